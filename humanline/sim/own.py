"""A loss of one's own in the simulator: the function that a recipe names as `objective: {kind: function}`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from humanline import _checks
from humanline.sim.objectives import Batch, LogRatio, Losses, advantages_of, best_and_worst, unequal

_UNITS = ("pairs", "examples", "groups")


@dataclass(frozen=True)
class Own:
    """Take a loss of one's own of each group, called as training calls it.

    Parameters
    ----------
    loss : callable
        Of token log-ratios ``log pi - log pi_ref`` in nats, (R, T), after the transform, and bool masks of that shape:

        - pairs: ``loss(chosen, rejected, *, chosen_mask, rejected_mask)``, one number a pair, (B,);
        - examples: ``loss(log_ratio, *, mask, desirable)``, one number an answer, (R,), with `desirable` bool, (R,);
        - groups: ``loss(log_ratio, *, mask, advantages)``, one number a token, (R, T), with `advantages` (R,).

        It may return metrics beside it, ``(loss, metrics)``, which the simulator does not look at. A row's numbers come
        from that row alone: the rows of all seeds are handed over together. Options go in by `functools.partial`.
    of : "pairs", "examples" or "groups"
        Pairs and examples are the best and the worst answer of each group; a group whose answers score alike teaches
        them nothing.

    Raises
    ------
    TypeError
        If the loss is not callable; when it is called, if it returns no tensor.
    ValueError
        If `of` is another word; when it is called, if the loss has another shape.

    Notes
    -----
    A seed's loss is the mean over its units of the step: pairs, examples, or tokens.
    """

    loss: Callable[..., Any]
    of: str = "pairs"

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise TypeError(f"loss must be callable; got {self.loss!r}")
        _checks.one_of("of", self.of, _UNITS)

    def rows(self, batch: Batch) -> Tensor:
        """Return the responses that the loss sees, (S, B, 2), or (S, B, G) of groups."""
        return batch.responses if self.of == "groups" else best_and_worst(batch)

    def losses(self, batch: Batch, log_ratio: Tensor, raw: Tensor, mismatched: LogRatio) -> Losses:
        """Return each seed's loss from the transformed log-ratios (S, B, K, T) of `rows`."""
        del raw, mismatched
        if self.of == "groups":
            flat = log_ratio.flatten(0, 2)
            advantages = advantages_of(batch).flatten()
            found = self._each(flat.shape, flat, mask=_all(flat), advantages=advantages)
            return found.reshape(len(log_ratio), -1).mean(1), {}
        counts = unequal(batch)
        if self.of == "pairs":
            chosen, rejected = (log_ratio[:, :, one].flatten(0, 1) for one in (0, 1))
            masks = {"chosen_mask": _all(chosen), "rejected_mask": _all(rejected)}
            found = self._each(chosen.shape[:1], chosen, rejected, **masks)
        else:
            flat = log_ratio.flatten(0, 2)
            desirable = torch.tensor([True, False]).repeat(len(flat) // 2)
            found = self._each(flat.shape[:1], flat, mask=_all(flat), desirable=desirable)
            counts = counts.repeat_interleave(2, 1)
        return torch.where(counts, found.reshape(counts.shape), 0.0).mean(1), {}

    def _each(self, shape: torch.Size, *values: Tensor, **more: Tensor) -> Tensor:
        """Return what the loss says of each unit, with any metrics left out."""
        found = self.loss(*values, **more)
        loss = found[0] if isinstance(found, tuple) else found
        if not isinstance(loss, Tensor):
            raise TypeError(f"the loss must return a tensor, or a tensor and metrics; got {type(loss).__name__}")
        if loss.shape != shape:
            raise ValueError(f"the loss of {self.of} must have the shape {tuple(shape)}; got {tuple(loss.shape)}")
        return loss


def _all(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)
