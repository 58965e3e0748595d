"""The processes of a run: the accelerator, what they agree on, and moving a step's batch to the device.

They wait for each other in two ways. While they compute, on the device (`over_ranks`), they all do the same, so that a
wait has a short limit. Where one of them works on the host meanwhile, which may take hours (a checkpoint, a round's
samples and scores, space on a full disk), they meet in a group of their own (`Meeting`): nothing is late there, and
only the watch (`humanline.train.run.neighbours`) tells who stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

from humanline.system.activity import HERE
from humanline.system.disk import StoppedWaiting, stopped_elsewhere
from humanline.system.launcher import launched_processes
from humanline.system.lock import LockLostError
from humanline.system.stop import SamplingStopped, StopRequested, StopSignal
from humanline.train.data.stream import StepBatch

T = TypeVar("T")


class MainProcessError(ValueError):
    """What the other processes of a run raise when the main one has failed, so that none waits for it."""


class MainProcessFault(MainProcessError):
    """What they raise where that failure came neither from input nor from the disk: an error nobody has thought of."""


_AGREED = "humanline_agreed"  # attribute of an error that all processes have agreed on


def is_agreed(error: BaseException, ranks: int) -> bool:
    """Return whether all processes of a run know of an error in one of them, so that they can save together."""
    if ranks == 1 or isinstance(error, MainProcessError | RoundError | NonFiniteError) or hasattr(error, _AGREED):
        return True
    return error.__cause__ is not None and is_agreed(error.__cause__, ranks)  # told in other words meanwhile


_WHY_NOT = {
    "FSDP": ": under bf16 the FSDP plugin returns log-probabilities in bf16, too coarse to be compared, and where no "
    "layer classes are named it gathers the whole model at once",
    "DEEPSPEED": ": DeepSpeed hides the update inside the last backward pass",
}


_FOR_EVER = timedelta(days=365)
MARGIN = timedelta(minutes=10)  # so that the watch, which says who it was, comes first


def computing_limit(stall_minutes: float) -> timedelta:
    """Return how long a process waits inside a collective of computing: ten minutes more than the watch allows.

    It is a year at most: torch counts in nanoseconds, of which there is no number for a few centuries.
    """
    asked = stall_minutes and min(stall_minutes, _FOR_EVER / timedelta(minutes=1))
    return min(timedelta(minutes=asked) + MARGIN, _FOR_EVER) if asked else _FOR_EVER


def start_accelerator(*, stall_minutes: float = 0.0) -> Any:
    """Return an Accelerator for this run, also where there was an earlier run in the process.

    What the environment of accelerate could change behind the configuration's back is pinned or refused: its mixed
    precision is off, `humanline.train.policy.precision` is what narrows a computation.

    Parameters
    ----------
    stall_minutes : float
        Minutes without anything done after which a process is said to stand still; 0: never (`computing_limit`).

    Raises
    ------
    ValueError
        If the launcher asks for anything but plain processes, its variables make no sense (`LauncherError`), or
        its processes would not find together.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import GradientAccumulationPlugin, InitProcessGroupKwargs

    launched = launched_processes()
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(
        cpu=launched > 1 and not torch.accelerator.is_available(),  # by itself each would run alone there
        mixed_precision="no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),  # a plain number loses to the environment
        dynamo_backend="no",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=computing_limit(stall_minutes))],
    )
    how = accelerator.distributed_type.value
    if how != "NO" and not how.startswith("MULTI_"):
        raise ValueError(
            f"the launcher asks for {how}, which cannot be used here{_WHY_NOT.get(how, '')}. Launch plain processes "
            "(torchrun, or accelerate launch --multi_gpu); to share weights, gradients and optimizer states out over "
            "them, set training.sharding: full"
        )
    if accelerator.num_processes != launched:
        raise ValueError(
            f"the launcher has started {launched} processes (WORLD_SIZE), but this one finds itself in a group of "
            f"{accelerator.num_processes}: devices of type {accelerator.device.type} may not work together here; set "
            "ACCELERATE_USE_CPU=true to train on CPU, or start one process"
        )
    return accelerator


def on_device(batch: StepBatch, device: torch.device) -> StepBatch:
    """Return the step's batch with its micro-batches on a device."""
    return replace(batch, micro_batches=tuple(micro.to(device) for micro in batch.micro_batches))


def over_ranks(accelerator: Any) -> Reduce:
    """Return a function that reduces a tensor over all ranks, by "sum" or "max"."""

    def reduce(value: Tensor, how: str) -> Tensor:
        if accelerator.num_processes == 1:
            return value
        with HERE.waits():
            value = value.to(accelerator.device)
            largest = how == "max"
            value = accelerator.gather(value.unsqueeze(0)).amax(0) if largest else accelerator.reduce(value, how)
            if value.is_cuda:  # where waiting begins only when the value is asked for
                torch.cuda.current_stream(value.device).synchronize()
            return value

    return reduce


class Meeting:
    """Where the processes of a run wait for each other however long one of them works on the host.

    It is a group of its own, over gloo, so in host memory also where they compute on GPUs: no limit of time, and no
    watchdog of NCCL, ends a wait. One process alone meets nobody.

    Parameters
    ----------
    ranks : int
        The number of processes; each of them makes a meeting, at the same place.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.group: Any = None if ranks == 1 else torch.distributed.new_group(backend="gloo", timeout=_FOR_EVER)

    def reduce(self, value: Tensor, how: str) -> Tensor:
        """Return a tensor reduced over all processes, by "sum" or "max", on the host; it must be finite."""
        if self.group is None:
            return value
        operation = torch.distributed.ReduceOp.MAX if how == "max" else torch.distributed.ReduceOp.SUM
        value = value.detach().to("cpu", copy=True)
        with HERE.waits():
            torch.distributed.all_reduce(value, operation, self.group)
        return value

    def texts(self, text: str) -> list[str]:
        """Return a text of each process, by rank."""
        rank = 0 if self.group is None else torch.distributed.get_rank(self.group)
        return gathered(text, rank, self.ranks, self.reduce)

    def given(self, made: bytes, size: int) -> bytes:
        """Return bytes that the main process has made, so many, in all processes."""
        if self.group is None:
            return made
        block = torch.frombuffer(bytearray(made), dtype=torch.uint8) if made else torch.empty(size, dtype=torch.uint8)
        with HERE.waits():
            torch.distributed.broadcast(block, 0, self.group)
        return made or block.numpy().tobytes()

    def close(self) -> None:
        """Leave the meeting, once all have come to its end."""
        if self.group is not None:
            torch.distributed.destroy_process_group(self.group)


def on_main(accelerator: Any, meet: Reduce, act: Callable[[], int | None]) -> int:
    """Run `act` in the main process and return its number, 0 for none, in all of them.

    Parameters
    ----------
    accelerator
    meet : callable
        `Meeting.reduce`: the others wait there as long as `act` takes.
    act : callable

    Raises
    ------
    Exception
        What `act` raises, in the main process, and in the others MainProcessError; where that is neither OSError nor
        ValueError, MainProcessFault. StoppedWaiting and SamplingStopped in all of them.
    """
    number, error = 0, None
    if accelerator.is_main_process:
        try:
            with HERE.works_alone():
                number = act() or 0
        except Exception as raised:
            error = raised
    failed = 0
    if error is not None:
        failed = 3 if isinstance(error, StoppedWaiting) else 1 if isinstance(error, OSError | ValueError) else 2
        failed = 4 if isinstance(error, SamplingStopped) else failed
    agreed = meet(torch.tensor([failed, number], dtype=torch.float64), "max").tolist()
    failed, number = map(int, agreed)
    if error is not None:
        setattr(error, _AGREED, True)
        raise error
    if failed == 3:
        raise stopped_elsewhere()
    if failed == 4:
        raise SamplingStopped
    if failed:
        kind = MainProcessError if failed == 1 else MainProcessFault
        raise kind("the main process could not go on; its own message says why")
    return number


def gathered(text: str, rank: int, ranks: int, reduce: Reduce) -> list[str]:
    """Return the texts of all processes, in their order; called by all of them alike."""
    own = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
    longest = int(reduce(torch.tensor(len(own)), "max").item())
    table = torch.zeros((ranks, longest), dtype=torch.uint8)
    table[rank, : len(own)] = own
    return [bytes(row).rstrip(b"\0").decode() for row in reduce(table, "sum").tolist()]


def asked_to_end(stop: StopSignal | None, lost: Callable[[], str | None]) -> Callable[[], bool]:
    """Return a function: whether this process was asked to stop, or has lost its output folder to another run.

    Each call notes that the process is at work.
    """

    def answer() -> bool:
        HERE.touch()
        return lost() is not None or (stop is not None and stop.requested is not None)

    return answer


def safe_points(stop: StopSignal | None, meet: Reduce, lost: Callable[[], str | None]) -> Callable[[], None]:
    """Return a function that all processes of a run call alike where it can be stopped; they meet there.

    It raises StopRequested in all of them once one of them was asked to stop, and, once one of them has lost the output
    folder to another run, LockLostError in that one and MainProcessError in the others.
    """

    def check() -> None:
        gone = lost()
        asked = 2.0 if gone is not None else 0.0 if stop is None or stop.requested is None else 1.0
        asked = meet(torch.tensor(asked), "max").item()
        if gone is not None:
            raise LockLostError(gone)
        if asked > 1:
            raise MainProcessError("the main process could not go on; its own message says why")
        if asked:
            raise StopRequested((stop and stop.requested) or "a signal to another process")

    return check


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a run, as one of them sees them; all of them call its methods alike.

    Parameters
    ----------
    accelerator, reduce
        `over_ranks`, between passes that take all of them about as long.
    check : callable
        `safe_points`.
    stopping : callable
        Returns whether this process was asked to stop; asked where the others are not listening.
    meeting : Meeting
        Where they wait for what one of them does on the host.
    """

    accelerator: Any
    reduce: Reduce
    check: Callable[[], None]
    stopping: Callable[[], bool]
    meeting: Meeting

    @property
    def rank(self) -> int:
        """Return the number of this process."""
        return int(self.accelerator.process_index)

    @property
    def ranks(self) -> int:
        """Return the number of processes."""
        return int(self.accelerator.num_processes)

    @property
    def device(self) -> torch.device:
        """Return the device of this process."""
        device: torch.device = self.accelerator.device
        return device

    def on_main(self, act: Callable[[], int | None]) -> int:
        """Run `act` in the main process and return its number in all, as the function `on_main` does.

        Raises
        ------
        StopRequested
            In all of them, where `act` has given up sampling since the main process was asked to stop.
        """
        try:
            return on_main(self.accelerator, self.meeting.reduce, act)
        except SamplingStopped:
            self.check()
            raise

    def agree(self, answer: bool) -> bool:
        """Return the main process's answer in all of them."""
        return bool(self.on_main(lambda: int(answer)))

    def made_by_main(self, make: Callable[[], bytes]) -> bytes:
        """Return in all processes what `make` returns in the main one, which is not empty; raise as `on_main` does."""
        made = [b""]

        def act() -> int:
            made[0] = make()
            return len(made[0])

        size = self.on_main(act)
        return self.meeting.given(made[0], size)

    def alike(self, act: Callable[[], T]) -> T:
        """Return what `act` gives in each process, where all of them are given the same to look at.

        Raises
        ------
        ValueError, OSError
            What `act` raises in the main process, and MainProcessError in the others, so that what all of them find is
            said once. Where it raises nothing there: what it raises in others, and MainProcessError in the rest.
        """
        found: list[T] = []
        error: Exception | None = None
        try:
            found.append(act())
        except (OSError, ValueError) as raised:
            error = raised
        failed = torch.tensor([error is not None, error is not None and self.rank == 0], dtype=torch.float64)
        anywhere, in_main = self.meeting.reduce(failed, "max").tolist()
        if error is not None and (self.rank == 0 or not in_main):
            setattr(error, _AGREED, True)
            raise error
        if anywhere:
            who = "the main process" if in_main else "another process"
            raise MainProcessError(f"{who} could not go on; its own message says why")
        return found[0]

    def told_by_main(self, numbers: Sequence[int]) -> list[int]:
        """Return the main process's numbers, of 64 bits, in all of them; they wait as long as it takes to tell them."""
        own = torch.tensor(numbers if self.rank == 0 else (), dtype=torch.int64)
        count = int(self.meeting.reduce(torch.tensor(len(own)), "max").item())
        if count == 0:
            return []
        told: list[int] = self.meeting.reduce(torch.nn.functional.pad(own, (0, count - len(own))), "sum").tolist()
        return told

    def each(self, act: Callable[[], None]) -> None:
        """Run `act` in every process and wait for all of them.

        Raises
        ------
        Exception
            What `act` raises, in its process, and MainProcessError in the others.
        StopRequested
            If a process was asked to stop meanwhile, in all of them.
        """
        error: Exception | None = None
        try:
            act()
        except SamplingStopped:
            pass  # and the check below stops all
        except Exception as raised:
            error = raised
        failed = bool(self.meeting.reduce(torch.tensor(float(error is not None)), "max").item())
        self.check()
        if error is not None:
            setattr(error, _AGREED, True)
            raise error
        if failed:
            raise MainProcessError("another process could not go on; its own message says why")


@dataclass(frozen=True, slots=True)
class _Alone:
    """The part of an accelerator that `Processes` uses, for a process that trains nothing."""

    device: torch.device
    process_index: int = 0
    num_processes: int = 1
    is_main_process: bool = True


def alone(device: torch.device) -> Processes:
    """Return a single process that is part of no run and is not asked to stop."""
    return Processes(_Alone(device), lambda value, how: value, lambda: None, lambda: False, Meeting(1))


def leave_processes() -> None:
    """Take the process out of its group, if it is in one; without it gloo may abort a finished process at its exit."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


Reduce = Callable[[Tensor, str], Tensor]  # over ranks, "sum" or "max"


class NonFiniteError(FloatingPointError):
    """A loss or gradient that is not finite, in all processes; the run stopped before the update and saved nothing."""


class RoundError(ValueError):
    """A round that cannot be trained on."""
