"""What is said when memory runs out: in what phase, what was in use, what the estimate was, and what to change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from humanline.system.activity import HERE
from humanline.system.out_of_memory import MemoryRanOutError, bytes_asked, is_out_of_memory
from humanline.system.terminal import shorten
from humanline.train.config import TrainConfig
from humanline.train.data.stream import Stream
from humanline.train.policy.in_order import put_back
from humanline.train.preflight.fits import describe_suggestions
from humanline.train.preflight.hardware import GIB, Device, capacity, used
from humanline.train.preflight.memory import Estimator
from humanline.train.preflight.suggest import smaller_passes
from humanline.train.preflight.workload import Workload

_LONGEST = 300  # characters of what a library says


@dataclass(slots=True)
class Known:
    """What is known of a run by the time that memory runs out.

    Parameters
    ----------
    config : TrainConfig
    checkpoints : Path
        Where the run keeps them.
    device : torch.device or None
        Where it trains.
    outline : optional
        Its model on the meta device.
    stream : Stream or None
    steps : int
    """

    config: TrainConfig
    checkpoints: Path
    device: torch.device | None = None
    outline: Any = None
    stream: Stream | None = None
    steps: int = 0

    def of_model(self, outline: Any, stream: Stream, steps: int, device: torch.device) -> None:
        """Take note of what an estimate needs."""
        self.outline, self.stream, self.steps, self.device = outline, stream, steps, device


@contextlib.contextmanager
def explaining(config: TrainConfig, checkpoints: Path) -> Iterator[Known]:
    """Give, for the length of a run, a place for what is known of it; where memory runs out, say all of that.

    Raises
    ------
    MemoryRanOutError
        In place of an error by which torch, numpy or Python says so.
    """
    known = Known(config, checkpoints)
    try:
        with put_back():  # before anything is estimated
            yield known
    except Exception as error:
        if isinstance(error, MemoryRanOutError) or not is_out_of_memory(error):
            raise
        raise MemoryRanOutError("\n".join(_lines(error, known))) from error


def _lines(error: Exception, known: Known) -> Iterator[str]:
    words = shorten(" ".join(str(error).split()), _LONGEST) or type(error).__name__
    yield f"out of memory while {HERE.at(error)}: {words}"
    said = list[str]()
    # Little memory is left, on a CPU, and an estimate can fail: what is known without one is said all the same.
    with contextlib.suppress(Exception):
        for line in _of_estimate(error, known):
            said.append(line)
    yield from said
    if not any(line.startswith("change") for line in said):
        yield (
            "change       a smaller training.micro_batch_size or micro_batch_tokens makes each pass smaller, and "
            "training.activation_checkpointing=true what it holds; humanline estimate tells what each would save"
        )
    newest = max(known.checkpoints.glob("step-*"), default=None)
    if newest is not None:
        yield (
            f"go on        {newest} is the newest checkpoint: --resume goes on from it on a device with more memory or "
            "shared by less, or shared out over more processes (training.sharding=full); with any other change a run "
            "begins anew, in another output folder"
        )


def _of_estimate(error: Exception, known: Known) -> Iterator[str]:
    config, device = known.config, known.device
    if device is None or known.stream is None:
        return
    asked, (most, there) = bytes_asked(error), used(device)
    more = f", when {asked / GIB:,.2f} GiB more were asked for" if asked else ""
    total = capacity(device)
    others = total - there
    shared = f", of which {others / GIB:,.2f} GiB are not for this process" if others > 0.05 * total else ""
    yield f"in use       at most {most / GIB:,.2f} GiB{more}; the device has {total / GIB:,.2f} GiB{shared}"
    workload = Workload.of_stream(known.stream, known.steps)
    estimator = Estimator(known.outline, cuda=device.type == "cuda")
    estimate = estimator.estimate(config, workload)
    unforeseen = max(0.0, most + asked - estimate.peak)  # what this run took and no estimate knows of
    yield f"estimate     {estimate.peak / GIB:,.2f} GiB at most, in: {estimate.peak_phase}" + (
        f"; {unforeseen / GIB:,.2f} GiB too little, which are added below" if unforeseen else ""
    )
    smaller = smaller_passes(estimator, config, workload, there, aside=unforeseen)
    if smaller is not None:
        yield (
            f"passes       {(smaller.alone.peak + unforeseen) / GIB:,.2f} GiB with {' '.join(smaller.overrides)}, the "
            f"largest that fits; {smaller.what}"
        )
    at = Device("the device of this run", there, device.type == "cuda", aside=unforeseen)
    yield from describe_suggestions(estimator, config, workload, at)
