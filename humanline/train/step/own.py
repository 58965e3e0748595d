"""Losses and transforms of the user's own, called with the tensors of a micro-batch and held to what they must return.

A loss of one's own returns the loss of each unit, or of each token, and nothing is summed or averaged in it: means over
a step are taken here, so that they cannot depend on how the step is cut into micro-batches and over processes.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from humanline.system.own_code import OwnCodeError, is_installed
from humanline.train.config.base import OwnPart
from humanline.train.run.metrics import KINDS

NOT_GIVEN = ("denominator", "reference_point", "kl_log_ratio")  # what losses of the house get besides
# Names that a row of metrics has already, and those by which rows of other kinds are told.
TAKEN = frozenset({"step", "loss", "grad_norm", "lr", "seconds", "tokens_per_second", "log_ratio_rms", "transformed"})
TAKEN |= {"clipped_low", "clipped_high", "detached", "above_bound"}
TAKEN |= {f"{what}_{how}" for what in ("sampler_mismatch", "staleness") for how in ("rms", "max")}
TAKEN |= {"kind", "updates", *KINDS}


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """Make what a function of the user's own raises an OwnCodeError, which says where; memory that runs out aside."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # else a run would end where a function says so, as if it were over
        frames = traceback.extract_tb(error.__traceback__)[1:]  # not this one
        files = [frame for frame in frames if not frame.filename.startswith("<")]
        own = [frame for frame in files if not is_installed(Path(frame.filename).resolve())]
        at = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        raise OwnCodeError(f"{what} raised {type(error).__name__}: {error}{at}") from error


class OwnLoss:
    """Call a loss of the user's own as losses of the house are called.

    Parameters
    ----------
    part : OwnPart
        The objective's section.
    """

    def __init__(self, part: OwnPart) -> None:
        self.part, self.call, self.options, self.function = part, part.call, part.options, part.load().function

    def __call__(self, *values: Tensor, denominator: Any, **given: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a micro-batch's share of the loss and of the metrics of its step.

        Parameters
        ----------
        values : (R, T) tensors
            Transformed token log-ratios: one of rows, or two of chosen and of rejected answers.
        denominator : number
            Units of the step, or tokens.
        given
            Masks, labels or advantages.

        Raises
        ------
        OwnCodeError
            If it returns anything but such tensors, or other metrics than before.
        """
        given = {name: value for name, value in given.items() if name not in NOT_GIVEN}
        mask = given["mask"] if "mask" in given else given["chosen_mask"]
        losses, metrics = self.each(*values, **given)
        counts = mask if losses.ndim == 2 else mask.any(1)  # a row of which nothing counts is there for company alone
        shares = {name: torch.where(counts, one.detach(), 0.0).sum() / denominator for name, one in metrics.items()}
        return torch.where(counts, losses, 0.0).sum() / denominator, shares

    def each(self, *values: Tensor, **given: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each unit, (B,), or token, (R, T), and metrics of this shape; raise as `__call__` does.

        Metrics are in the order of their names: processes add them up by their places, and one may list a set, of which
        the order differs from process to process.
        """
        with telling(f"objective: {self.call}"):
            found = self.function(*values, **given, **self.options)
        losses, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        shape = values[0].shape if len(values) == 1 and "desirable" not in given else values[0].shape[:1]
        self._refuse("its loss", losses, shape)
        if not isinstance(metrics, dict):
            raise self._wrong(f"returned {type(metrics).__name__} beside its loss; expected metrics by name")
        for name, one in metrics.items():
            if not isinstance(name, str) or not name.isidentifier() or name in TAKEN:
                raise self._wrong(f"names a metric {name!r}; expected a name that is not taken: letters, digits and _")
            self._refuse(f"metric {name}", one, shape)
        metrics = dict(sorted(metrics.items()))
        before = self.part.first_metrics(tuple(metrics))  # also where it was tried, before the first step
        if tuple(metrics) != before:
            raise self._wrong(f"returned metrics {list(metrics)} after {list(before)}; expected the same each time")
        return losses, metrics

    def _refuse(self, what: str, found: Any, shape: torch.Size) -> None:
        if not isinstance(found, Tensor):
            raise self._wrong(f"returned {type(found).__name__} as {what}; expected a tensor of shape {tuple(shape)}")
        if found.shape != shape or not found.is_floating_point():
            which = (
                "one number a token" if len(shape) == 2 else "one number a unit; the mean over them is taken for you"
            )
            raise self._wrong(
                f"returned {what} of shape {tuple(found.shape)} and {found.dtype}; expected floating numbers of shape "
                f"{tuple(shape)}, {which}"
            )

    def _wrong(self, what: str) -> OwnCodeError:
        return OwnCodeError(f"objective: {self.call} {what}")


class OwnTransform:
    """Call a transform of the user's own.

    Parameters
    ----------
    part : OwnPart
        The transform's section.
    """

    def __init__(self, part: OwnPart) -> None:
        self.call, self.options, self.function = part.call, part.options, part.load().function

    def __call__(self, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return transformed log-ratios, 0 where the mask is False, and `transformed`: which tokens' values it changed.

        Raises
        ------
        OwnCodeError
            If it returns anything but a tensor of floating numbers of the same shape.
        """
        with telling(f"transform: {self.call}"):
            found = self.function(log_ratio, mask=mask, **self.options)
        if not isinstance(found, Tensor) or found.shape != log_ratio.shape or not found.is_floating_point():
            got = f"shape {tuple(found.shape)}, {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise OwnCodeError(
                f"transform: {self.call} returned {got}; expected floating numbers of shape {tuple(log_ratio.shape)}, "
                "one a token"
            )
        out = torch.where(mask, found, 0.0)
        return out, {"transformed": (out.detach() != log_ratio.detach()) & mask}
