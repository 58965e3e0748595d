"""The next round, sampled and scored by a second process while this one trains: its data are one round stale.

The second process gets the weights as a file, works in the round's folder as any round does, and ends. It holds nothing
that is not on the disk: if it is lost, it is started again and goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.train.config import TrainConfig
from humanline.train.pairing import RoundError
from humanline.train.rollout import SamplingStopped

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Job:
    """What the second process is to do."""

    config: TrainConfig
    folder: Path  # of all rounds
    number: int
    policy: str
    device: str
    threads: int

    @property
    def weights(self) -> Path:
        """Return the file that holds the policy's trained weights."""
        return self.folder / f"{self.number:05d}" / "weights.safetensors"


class Ahead:
    """Run one job at a time in a second process.

    Parameters
    ----------
    stopping : callable
        Asked while waiting whether the run was asked to stop.
    """

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self.stopping = stopping
        self.process: Any = None
        self.number: int | None = None

    def start(self, job: Job) -> None:
        """Begin; an earlier job must be over."""
        assert self.process is None
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(job, theirs, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()
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
        if self.process is None or self.number != number:
            return
        try:
            while not self.ours.poll(0.05):
                if self.stopping():
                    raise SamplingStopped
            try:
                problem = self.ours.recv()
            except EOFError:
                self.process.join()
                problem = f"it ended with exit code {self.process.exitcode}"
        finally:
            self.close()
        if problem is not None:
            raise RoundError(
                f"round {number}, sampled and scored in a second process: {problem}\nWhat it did is kept, and --resume "
                "goes on with it."
            )

    def close(self) -> None:
        """End the second process, if there is one; it loses nothing."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.ours.close()
            self.process = self.number = None


def _work(job: Job, answer: Any, parent: int) -> None:
    """Sample and score one round, then say whether that went well."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent, which got it too, says when to end
    with contextlib.suppress(OSError, AttributeError):  # where there is such a call
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    problem: str | None = None
    try:
        make_round(job)
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        problem = f"{kind}{error}"
    answer.send(problem)


def make_round(job: Job) -> None:
    """Sample and score a round whose plan is there, in this process."""
    import torch
    from safetensors.torch import load_file

    from humanline.train.assemble import renderer_of
    from humanline.train.contexts import Draw, read_contexts
    from humanline.train.device import alone
    from humanline.train.ledger import Ledger
    from humanline.train.model import load_tokenizer
    from humanline.train.policy import build_policy
    from humanline.train.quiet import import_transformers
    from humanline.train.rollouts import make_stages
    from humanline.train.state import ModuleState

    import_transformers()
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(job.threads)
    config, folder = job.config, job.weights.parent
    rounds = config.rounds
    assert rounds is not None
    device = torch.device(job.device)
    renderer = renderer_of(config, load_tokenizer(config.model))
    contexts, _ = read_contexts(config, config.data.train, renderer)
    own = Draw(contexts, rounds.contexts_per_round, config.seed).round(job.number)
    ledger = Ledger(job.folder / "ledger.jsonl")
    scorer, adapter = build_policy(config, device)
    scorer.to(device)
    ModuleState(scorer).load_state(load_file(job.weights, device=str(device)))
    processes = alone(config.training.precision, device)
    stages = make_stages(config, scorer, adapter, renderer, job.folder, processes)
    try:
        samples, scores = folder / "samples.jsonl", folder / "scores.jsonl"
        if not ledger.has(job.number, "SAMPLED", samples):
            stages.sample(folder, own, job.number, job.policy)
            ledger.record(job.number, "SAMPLED", samples)
        if not ledger.has(job.number, "SCORED", scores):
            stages.score(folder)
            ledger.record(job.number, "SCORED", scores)
    finally:
        stages.close()
