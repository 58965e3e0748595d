"""The next round, sampled and scored by a second process while this one trains: its data are one round stale.

The second process gets the weights as a file, works in the round's folder as any round does, and ends. It holds nothing
that is not on the disk: if it is lost, it is started again and goes on. Where the run's processes share the weights
out, it holds no model at all: a server samples, from a folder that they have written together.

`NextRound` decides what it is to do, `Ahead` hands that over and waits, `_Worker` does it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from humanline.system.disk import of_run, patient
from humanline.system.files import check_room, disk_errors, flush
from humanline.system.parent import die_with_parent
from humanline.system.stop import SamplingStopped, outlive, sparing
from humanline.system.terminal import redact
from humanline.train.config import TrainConfig
from humanline.train.config.secrets import learn
from humanline.train.online.make import WEIGHTS, RoundMaker, folder_of
from humanline.train.online.stages import served_folder, served_name
from humanline.train.online.types import SamplerError
from humanline.train.run.fingerprint import trained_hash
from humanline.train.run.processes import RoundError
from humanline.train.run.state import ModuleState

GOES_ON = "\nWhat it did is kept, and --resume goes on with it."


@dataclass(frozen=True, slots=True)
class Job:
    """A round for the second process to make."""

    config: TrainConfig
    folder: Path  # of all rounds
    number: int
    policy: str
    device: str
    threads: int

    @property
    def by_folder(self) -> bool:
        """Return whether the weights lie in a folder that a server reads, and this process needs none."""
        return self.config.training.sharding == "full"

    @property
    def weights(self) -> Path:
        """Return the file that holds the policy's trained weights, or that folder."""
        if self.by_folder:
            return served_folder(self.folder, served_name(self.policy))
        return folder_of(self.folder, self.number) / WEIGHTS


class NextRound:
    """Make the next round in a second process while this one trains.

    Parameters
    ----------
    maker : RoundMaker
    policy : nn.Module
        Whose trained weights it samples with.
    say : callable
        Shows what the second process says of a round, once that is over.
    """

    def __init__(self, maker: RoundMaker, policy: nn.Module, say: Callable[[str], None]) -> None:
        self.maker, self.policy = maker, policy
        self.ahead = Ahead(maker.processes.stopping, say)
        self.asked_for = -1  # the round that the second process was last looked after for

    def start(self, number: int, version: str) -> None:
        """Start sampling a round with a version of the policy, unless done or under way; all processes call this.

        Raises
        ------
        RoundError
            If the policy has moved on from that version, and its weights were not kept.
        """
        if self.asked_for == number:
            return
        self.asked_for = number
        maker, processes = self.maker, self.maker.processes
        job = Job(maker.config, maker.folder, number, version, str(processes.device), torch.get_num_threads())
        processes.on_main(lambda: maker.begin(number, version))
        if processes.agree(maker.is_sampled(number)):
            return  # and its weights are no longer needed, nor there
        if not processes.agree(job.weights.exists()):
            if trained_hash(self.policy, processes.reduce) != version:
                raise RoundError(
                    f"{job.weights} is missing, with which round {number} was to be sampled; remove "
                    f"{maker.of(number)} and resume from an earlier checkpoint, or start a new run without "
                    "source.overlap"
                )
            self._write(job)
        processes.on_main(lambda: self.ahead.start(job))

    def _write(self, job: Job) -> None:
        """Write the weights that a job needs."""
        if job.by_folder:
            assert self.maker.stages.served is not None  # as the configuration has it
            self.maker.stages.served.write(served_name(job.policy))
        else:
            self.maker.processes.on_main(lambda: _save_weights(self.policy, job.weights))

    def wait_for(self, number: int) -> None:
        """Wait until a round is sampled and scored, if that is under way; raise as `Ahead.wait_for` does."""
        self.maker.processes.each(lambda: self.ahead.wait_for(number))

    def close(self) -> None:
        """End the second process, if there is one; it loses nothing."""
        self.ahead.close()


def _save_weights(policy: nn.Module, path: Path) -> None:
    """Write a policy's trained weights to a file, for the second process."""
    state = {name: tensor.cpu().contiguous() for name, tensor in ModuleState(policy).state().items()}
    size = sum(tensor.nbytes for tensor in state.values())
    partial = path.with_name(f".{path.name}.partial")

    def act() -> None:
        check_room(path.parent, size)
        try:
            with disk_errors():
                save_file(state, partial)
            flush(partial)
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)

    patient(path, act, size)


@contextlib.contextmanager
def _without_program() -> Iterator[None]:
    """Have processes that are started not run the program again that started this one.

    They need nothing of it, and one without `if __name__ == "__main__":` would train there too.
    """
    program = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


class Ahead:
    """Run one job at a time in a second process, which waits for the next one in between.

    Parameters
    ----------
    stopping : callable
        Polled while waiting: whether the run was asked to stop.
    say : callable
        Shows what the second process says of a job, once that is over.
    """

    def __init__(self, stopping: Callable[[], bool], say: Callable[[str], None]) -> None:
        self.stopping, self.say = stopping, say
        self.process: Any = None
        self.number: int | None = None

    def start(self, job: Job) -> None:
        """Begin; an earlier job must be over."""
        assert self.number is None
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
            with sparing():  # each by itself, since starting the first lets some of the signals through again
                multiprocessing.resource_tracker.ensure_running()
            with sparing(), _without_program():
                self.process.start()
            theirs.close()
        self.pipe.send(job)
        self.number = job.number

    def wait_for(self, number: int) -> None:
        """Wait until the job of a round is over, if it is under way.

        Raises
        ------
        RoundError
            If it failed; what it did is kept.
        SamplingStopped
            If the run was asked to stop; the second process is ended.
        """
        if self.number != number:
            return
        try:
            while not self.pipe.poll(0.05):
                if self.stopping():
                    raise SamplingStopped
            problem, said = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            problem, said = f"it ended with exit code {self.process.exitcode}{GOES_ON}", ()
            self.close()
        except SamplingStopped:
            self.close()
            raise
        self.number = None
        for line in said:
            self.say(line)
        if problem is not None:
            raise RoundError(f"round {number}, sampled and scored in a second process: {problem}")

    def close(self) -> None:
        """End the second process, if there is one; it loses nothing."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = self.number = None


def _work(pipe: Any, parent: int) -> None:
    """Sample and score one round after the other, and say of each what went wrong, if anything did."""
    outlive()  # the parent, which got the signal too, says when to end
    die_with_parent(parent)
    worker: _Worker | None = None
    said: list[str] = []
    while True:
        job = pipe.recv()
        problem: str | None = None
        try:
            learn(job.config.model_dump(mode="json"))
            with of_run(job.config.training.disk_full, None):  # the parent ends this process where it is to stop
                worker = worker or _Worker(job, said.append)
                worker.make(job)
        except Exception as error:
            problem = _in_words(error, job.folder)
        pipe.send((problem, tuple(said)))
        said.clear()


def _in_words(error: Exception, folder: Path) -> str:
    """Return an error, and how to go on, in words; the traceback of a fault of the program goes to a file."""
    if isinstance(error, SamplerError | RoundError):
        return str(error)  # they say both
    if isinstance(error, ValueError | OSError):
        return f"{error}{GOES_ON}"
    log, text = folder / "second-process.log", redact("".join(traceback.format_exception(error)))
    try:
        with open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
    except OSError as trouble:
        return f"{type(error).__name__}: {error}; its traceback could not be kept ({trouble}):\n{text}{GOES_ON}"
    return f"{type(error).__name__}: {error}; its traceback is in {log}{GOES_ON}"


class _Worker:
    """All that a process needs to sample and score the rounds of a run."""

    def __init__(self, job: Job, say: Callable[[str], None]) -> None:
        from humanline.system.imports import quiet_libraries
        from humanline.train.data.prompts import read_contexts
        from humanline.train.online.samplers import make_stages
        from humanline.train.policy.build import build_policy, checked_model
        from humanline.train.policy.logprobs import LogprobModel
        from humanline.train.run.processes import alone

        quiet_libraries()
        torch.set_num_threads(job.threads)
        config = job.config
        self.device = torch.device(job.device)
        checked = checked_model(config, self.device)
        renderer = checked.renderer
        contexts, _ = read_contexts(config, config.data.train, renderer)
        if job.by_folder:
            self.policy, adapter = LogprobModel(checked.outline), None
        else:
            self.policy, adapter = build_policy(config, self.device)
        processes = alone(self.device)
        stages = make_stages(config, self.policy, adapter, renderer, job.folder, processes, say=say)
        self.maker = RoundMaker(config, contexts, job.folder, stages, say, second=True)

    def make(self, job: Job) -> None:
        """Sample and score a round whose plan and weights are there."""
        if not job.by_folder:
            ModuleState(self.policy).load_state(load_file(job.weights, device=str(self.device)))
        self.maker.open()
        self.maker.sample(job.number, job.policy)
        self.maker.score(job.number)
