"""What clipping did to the tokens of a step, over all its micro-batches and processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from humanline.objectives import clip_marks
from humanline.theory import ClipRange

NAMES = ("clipped_low", "clipped_high", "log_ratio_rms")


class Counts:
    """Add up tokens, those clipped at either end, and squares of untransformed log-ratios (nats)."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    @torch.no_grad()
    def add(self, log_ratio: Tensor, mask: Tensor, clip: ClipRange) -> None:
        """Add the tokens of a micro-batch: untransformed log-ratios and their mask, both (B, T - 1)."""
        marks = clip_marks(log_ratio, mask, clip)
        sums = [mask.sum(), marks["clipped_low"].sum(), marks["clipped_high"].sum(), log_ratio.square().sum()]
        added = torch.stack([one.float() for one in sums])  # whole numbers stay exact up to 2^24 tokens a step
        self._sums = added if self._sums is None else self._sums + added

    def taken(self, reduce: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Return shares of tokens and the rms of log-ratios since the last call, summed over processes by `reduce`."""
        assert self._sums is not None
        tokens, low, high, squares = reduce(self._sums).tolist()
        self._sums = None
        tokens = max(tokens, 1)
        return dict(zip(NAMES, (low / tokens, high / tokens, (squares / tokens) ** 0.5), strict=True))
