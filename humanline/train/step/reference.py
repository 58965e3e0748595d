"""The reference's log-probabilities: from the policy itself ahead of time, or from a second model in memory.

Both stores answer the same questions for every schedule. `LogprobsAhead` keeps token log-probabilities and no weights:
at the start of step t it runs the policy, without gradient, over the batches of all steps whose reference is theta_t.
`SecondModel` is the paper's way, a copy of the trained weights that is overwritten at the schedule's events; it serves
as comparison and as the oracle of the tests. Under an adapter the initial policy is there all along: `BaseModel` is the
policy with its adapter switched off.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from humanline.schedule import Snapshots
from humanline.system.activity import HERE
from humanline.system.files import DamagedError
from humanline.system.stop import StopRequested
from humanline.train.data.batch import Block, MicroBatch
from humanline.train.data.stream import Batches
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.spread import Spread
from humanline.train.run.processes import NonFiniteError, Reduce
from humanline.train.run.state import copy_in, own_first
from humanline.train.step.kept import Kept, KeptLogprobs, find_kept, kept_state

LogprobsOf = Callable[[Block], Tensor]  # token log-probabilities of a block, without gradient
BatchLogprobs = tuple[Tensor, Tensor | None]  # of a micro-batch's rows, and of its mismatched pairs
Heard = Callable[[int, MicroBatch, Tensor], None]  # told of a step's micro-batch what the start policy gives its rows
_UNSEEN = 1 << 24  # log-probabilities, over all processes, that a window computes before it looks at them
_ON_DEVICE = 1 << 26  # bytes of a window that wait on the device


class Reference(Protocol):
    """The life of a reference within one step, in this order; any state of it is that between two steps."""

    def begin_step(self, step: int, pause: Callable[[], None]) -> None:
        """Prepare the step; the policy holds theta_step.

        `pause` is called wherever what is done by then is not lost; it may raise to stop the run.
        """

    def settle(self) -> None:
        """Look whether what was prepared by now is sound, before it is saved; all processes call it alike."""

    def logprobs(self, step: int, index: int, batch: MicroBatch) -> BatchLogprobs:
        """Return the reference's token log-probabilities for micro-batch `index` of the step."""

    def before_update(self, step: int) -> None:
        """Act on the end of the losses: the optimizer is about to step, and the policy still holds theta_step."""

    def after_update(self, step: int) -> None:
        """Act on the optimizer's step; the policy now holds theta_{step+1}."""


class LogprobsAhead:
    """Compute log-probabilities of coming steps with the weights the schedule names, while the policy still holds them.

    Parameters
    ----------
    schedule : Snapshots
    logprobs_of : callable
        Gives the policy's token log-probabilities of a block, in eval mode and without gradient.
    batches : Batches
        All steps known by then are computed as soon as the schedule says.
    device : torch.device
        Where training wants the log-probabilities; there they wait too, or in host memory where they are many.
    reduce : callable
        Reduction over ranks, so that all of them stop together.
    progress : callable, optional
        Called with (done, due) while a window is computed.
    heard : callable, optional
        Called with what the policy computes before the first update.

    Raises
    ------
    NonFiniteError
        From `begin_step` and `settle`, if a log-probability that counts is not finite.
    """

    def __init__(
        self,
        schedule: Snapshots,
        logprobs_of: LogprobsOf,
        batches: Batches,
        device: torch.device,
        reduce: Reduce,
        progress: Callable[[int, int], None] | None = None,
        heard: Heard = lambda step, batch, logprobs: None,
    ) -> None:
        self.schedule, self.logprobs_of, self.batches = schedule, logprobs_of, batches
        self.device, self.reduce, self.progress, self.heard = device, reduce, progress, heard
        self.window: dict[int, list[Kept]] = {}
        self.next_step = 0
        self._scored_at, self._unseen = 0, list[int]()  # the steps at whose numbers nobody has looked yet

    @HERE.doing("scoring")
    def begin_step(self, step: int, pause: Callable[[], None]) -> None:
        """Compute every step whose snapshot is theta_step."""
        end, tokens = self.next_step, 0
        while end < self.batches.end and self.schedule.snapshot(end) == step:
            end += 1
        due, self._scored_at = range(self.next_step, end), step
        try:
            for done, ahead in enumerate(due):
                if self.progress is not None:
                    self.progress(done, len(due))
                batch = self.batches.step(ahead)
                self.window[ahead] = [self._kept(ahead, micro.to(self.device)) for micro in batch.micro_batches]
                self.next_step = ahead + 1
                self._unseen.append(ahead)
                tokens += batch.total_tokens  # of all processes, so that these settle together
                if tokens > _UNSEEN:
                    self.settle()
                    tokens = 0
                pause()
        except StopRequested:  # what is there will be saved
            self.settle()
            raise
        self.settle()

    def settle(self) -> None:
        """Look whether all that was computed since the last time is finite: one wait for the device, however much."""
        steps, self._unseen = self._unseen, []
        if not steps:
            return
        blocks = [one for step in steps for both in self.window[step] for one in both if one is not None]
        wrong = ~torch.stack([torch.isfinite(one.values).all() for one in blocks]).all()
        if self.reduce(wrong.to(torch.float32), "max").item():
            names = [name for one in blocks for name in one.not_finite()]
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise NonFiniteError(
                f"step {self._scored_at}: scoring gave log-probabilities that are not finite for "
                f"{', '.join(names[:8]) or 'examples of another process'}{more}. The weights, or these examples, are "
                "broken; nothing was updated by this step, or saved of it. Lower optimizer.lr if the run was going "
                "well before."
            )
        held = sum(one.values.nbytes for kept in self.window.values() for both in kept for one in both if one)
        if held > _ON_DEVICE and self.device.type != "cpu":
            for step in steps:
                self.window[step] = [
                    (rows.to_host(), None if other is None else other.to_host()) for rows, other in self.window[step]
                ]

    def logprobs(self, step: int, index: int, batch: MicroBatch) -> BatchLogprobs:
        """Return the log-probabilities kept for this micro-batch."""
        rows, mismatched = self.window[step][index]
        if batch.mismatched is None or mismatched is None:
            return rows.in_block(batch.block), None
        return rows.in_block(batch.block), mismatched.in_block(batch.mismatched)

    def before_update(self, step: int) -> None:
        """Do nothing: no weights are kept."""

    def after_update(self, step: int) -> None:
        """Drop what was kept for the step, which is over."""
        self.window.pop(step, None)

    def forget(self, step: int) -> None:
        """Drop the log-probabilities of this step and later ones, whose batches have changed."""
        self._unseen = [one for one in self._unseen if one < step]
        self.window = {past: logprobs for past, logprobs in self.window.items() if past < step}
        self.next_step = min(self.next_step, step)

    def state(self) -> dict[str, Tensor]:
        """Return the window and the first step that is not in it yet."""
        state = {"next_step": torch.tensor(self.next_step)}
        for step, kept in self.window.items():
            state |= kept_state(kept, f"{step}/")
        return state

    def load_states(self, states: Sequence[Mapping[str, Tensor]], rank: int) -> None:
        """Take over what all processes had in their windows, this one's own first."""
        others = own_first(states, rank)
        first = next(others)
        if "next_step" not in first:
            raise DamagedError("it has no next_step")
        self.next_step = int(first["next_step"])
        steps = sorted({int(name.partition("/")[0]) for name in first if name != "next_step"})
        if steps != list(range(self.next_step - len(steps), self.next_step)):
            raise DamagedError(f"its window ends before step {self.next_step} or has gaps")
        wanted = {f"{step}/": self.batches.step(step).micro_batches for step in steps}
        found = find_kept(itertools.chain([first], others), wanted)
        self.window = {step: found[f"{step}/"] for step in steps}
        for step in steps if 0 in self.window else ():  # before the first update
            for micro, (rows, _) in zip(wanted[f"{step}/"], self.window[step], strict=True):
                self.heard(step, micro, rows.in_block(micro.block))

    def _kept(self, step: int, micro: MicroBatch) -> Kept:
        rows, other = _of_both(self.logprobs_of, micro)
        if self._scored_at == 0:
            self.heard(step, micro, rows)
        return (
            KeptLogprobs.of(micro.block, rows),
            None if micro.mismatched is None or other is None else KeptLogprobs.of(micro.mismatched, other),
        )


class SecondModel:
    """Keep a copy of the weights that are trained and overwrite it at the schedule's events.

    Under an adapter that is a second adapter over the same base; where the policy is shared out over the processes,
    each keeps a copy of its rows.

    Parameters
    ----------
    schedule : Schedule
    policy : LogprobModel
        Whose weights are copied now and taken over later.
    spread : Spread
    """

    def __init__(self, schedule: Snapshots, policy: LogprobModel, spread: Spread) -> None:
        self.schedule, self.spread = schedule, spread
        self.copy = {name: rows.detach().clone() for name, rows in spread.rows.items()}
        self.logprobs_of = logprobs_pass(policy, spread.without_gradient(self.copy))

    def begin_step(self, step: int, pause: Callable[[], None]) -> None:
        """Do nothing: the copy runs when asked."""

    def settle(self) -> None:
        """Do nothing: nothing is prepared."""

    def logprobs(self, step: int, index: int, batch: MicroBatch) -> BatchLogprobs:
        """Run the copy over the micro-batch."""
        return _of_both(self.logprobs_of, batch)

    def before_update(self, step: int) -> None:
        """Take over theta_step if the schedule says so."""
        if self.schedule.copies_before_update(step):
            self._take_over()

    def after_update(self, step: int) -> None:
        """Take over theta_{step+1} if the schedule says so."""
        if self.schedule.copies_after_update(step):
            self._take_over()

    def state(self) -> dict[str, Tensor]:
        """Return the copied weights."""
        return {name: self.spread.state_of(name, rows) for name, rows in self.copy.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take weights over."""
        copy_in(self.state(), state)

    def _take_over(self) -> None:
        for name, rows in self.spread.rows.items():
            self.copy[name].copy_(rows.detach())


class BaseModel:
    """Run the policy with its adapter switched off: the initial policy, with nothing kept and nothing computed ahead.

    Parameters
    ----------
    logprobs_of : callable
        Gives the policy's token log-probabilities of a block, without gradient.
    off : callable
        Gives a context in which the policy has no adapter.
    """

    def __init__(self, logprobs_of: LogprobsOf, off: Callable[[], AbstractContextManager[None]]) -> None:
        self.logprobs_of, self.off = logprobs_of, off

    def begin_step(self, step: int, pause: Callable[[], None]) -> None:
        """Do nothing: the base model does not change."""

    def settle(self) -> None:
        """Do nothing: nothing is prepared."""

    def logprobs(self, step: int, index: int, batch: MicroBatch) -> BatchLogprobs:
        """Run the base model over the micro-batch."""
        with self.off():
            return _of_both(self.logprobs_of, batch)

    def before_update(self, step: int) -> None:
        """Do nothing."""

    def after_update(self, step: int) -> None:
        """Do nothing."""


def _of_both(logprobs_of: LogprobsOf, batch: MicroBatch) -> BatchLogprobs:
    return logprobs_of(batch.block), None if batch.mismatched is None else logprobs_of(batch.mismatched)


def logprobs_pass(policy: nn.Module, forward: Callable[..., Tensor] | None = None) -> LogprobsOf:
    """Return a callable for token log-probabilities: without gradient or dropout, else the code path of training.

    Parameters
    ----------
    policy : nn.Module
    forward : callable, optional
        The policy's pass where no gradient is wanted (`Spread.without_gradient`); default: the policy itself.
    """
    forward = forward or policy

    def logprobs_of(block: Block) -> Tensor:
        was_training = policy.training
        policy.eval()
        try:
            with torch.no_grad():
                return forward(*block.inputs)
        finally:
            policy.train(was_training)

    return logprobs_of
