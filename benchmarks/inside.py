"""What goes on inside the steps of a real run: how long their parts take, and every log-ratio.

A run is looked at through what it hands to its steps, `humanline.train.setup.Run`, some of whose callables are wrapped
before the first step. What a version of the loop does not have is said to be missing, and nothing else breaks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch

import humanline.train.loop as loop
from benchmarks.machine import DEVICE

PARTS = ("scoring", "forward", "backward", "clip", "update")
Mark = Any  # a moment: seconds, or on a GPU an event in the queue of its work


def mark() -> Mark:
    """Note this moment: on a GPU, the one at which all that was asked of it before is done; nothing waits for it."""
    if DEVICE == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(start: Mark, end: Mark) -> float:
    """Return the seconds between two moments, both of which are over."""
    return end - start if DEVICE == "cpu" else start.elapsed_time(end) / 1000


class Inside:
    """Measure a run from inside, from the moment its steps begin.

    Attributes
    ----------
    missing : dict
        Of what could not be looked at, why.
    run : Run
        Once its steps have begun.
    """

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self.run: Any = None
        self._spans: list[tuple[str, Mark, Mark]] = []
        self._within = False
        self._largest = torch.zeros((), device=DEVICE)
        self._tokens = torch.zeros((), device=DEVICE, dtype=torch.long)

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[None]:
        """Look into the next run of this process for as long as the context lasts."""
        take_steps = loop.take_steps

        def wrapped(run: Any) -> Any:
            self._wrap(run)
            return take_steps(run)

        with patch.object(loop, "take_steps", wrapped):
            yield

    def seconds(self) -> dict[str, float]:
        """Return how long each part took since this was asked last; whatever was measured must be over."""
        found: dict[str, float] = {}
        for name, start, end in self._spans:
            found[name] = found.get(name, 0.0) + between(start, end)
        self._spans.clear()
        return found

    def log_ratios(self) -> tuple[float, int]:
        """Return the largest absolute log-ratio so far, and of how many tokens that is."""
        return float(self._largest), int(self._tokens)

    def _wrap(self, run: Any) -> None:
        self.run = run
        for reference in run.references:  # scored ahead of the step, or by a second model within it
            self._time("scoring", reference, "begin_step")
            self._time("scoring", reference, "logprobs")
        trained = run.trained
        self._time("forward", trained.spread, "wrapped")
        self._time("backward", run.processes.accelerator, "backward")
        self._time("clip", trained.spread, "clip")
        self._time("update", trained.optimizer, "step")
        self._put("log-ratios", run.objective, "loss", self._compared)

    def _time(self, part: str, owner: Any, name: str) -> None:
        self._put(part, owner, name, lambda function: _Timed(self, part, function))

    def _put(self, what: str, owner: Any, name: str, wrapped: Callable[[Any], Any]) -> None:
        try:
            setattr(owner, name, wrapped(getattr(owner, name)))
        except (AttributeError, TypeError) as error:
            self.missing[what] = f"{type(owner).__name__}.{name}: {error}"

    def _compared(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        def call(facts: Any, batch: Any, logprobs: Any, ref: Any, *others: Any, **more: Any) -> Any:
            if ref is not None:
                gap = (logprobs.detach() - ref).abs().max()
                self._largest = torch.maximum(self._largest, gap)
                self._tokens = self._tokens + batch.block.mask.sum()
            return loss(facts, batch, logprobs, ref, *others, **more)

        return call


class _Timed:
    """A callable whose calls are timed, but for those from within another one that is; else it is what it wraps."""

    def __init__(self, inside: Inside, part: str, function: Any) -> None:
        self.inside, self.part, self.function = inside, part, function

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call it between two marks."""
        inside = self.inside
        if inside._within:
            return self.function(*args, **options)
        inside._within, start = True, mark()
        try:
            return self.function(*args, **options)
        finally:
            inside._within = False
            inside._spans.append((self.part, start, mark()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


def idle_share(work: Callable[[], object]) -> tuple[float, float]:
    """Do some work; return its seconds and for how many of them the GPU had nothing to do, by the GPU's own records.

    Raises
    ------
    RuntimeError
        If it did not record anything.
    """
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as records:
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken = time.perf_counter() - started
    found = records.profiler.kineto_results.events()
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in found
        if event.device_type() == torch.autograd.DeviceType.CUDA
    )
    if not spans:
        raise RuntimeError("the profiler recorded nothing of the GPU")
    return taken, max(0.0, taken - covered(spans) / 1e9)


def covered(spans: list[tuple[int, int]]) -> int:
    """Return the length of what sorted spans cover together; where they overlap it counts once."""
    total, reached = 0, spans[0][0]
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
