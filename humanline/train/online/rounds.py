"""Rounds: Algorithm 1 and its relatives, from the prompts of a round to the batches of its steps.

`make.py` makes a round and has what it leaves on the disk; `round_log.py` logs it.

Departures from Algorithm 1: steps are whole batches, and what is left over in a round is not trained on; prompts are
drawn without replacement; the optimizer goes on from round to round.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from humanline.schedule import InRounds, Snapshots
from humanline.system.disk import tell
from humanline.system.files import DamagedError, HeldFiles
from humanline.system.progress import RunProgress
from humanline.train.config import TrainConfig
from humanline.train.config.own_schedule import AnySchedule
from humanline.train.data.batch import MicroBatch, Unit
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import RunData, count_rounds, training_stream
from humanline.train.data.stream import FixedBatches, StepBatch, Stream, one_prompt
from humanline.train.data.units import units_hash
from humanline.train.online.held_out import RolloutEvaluator
from humanline.train.online.ledger import State
from humanline.train.online.make import RoundData, RoundMaker
from humanline.train.online.overlap import NextRound
from humanline.train.online.round_log import RoundLog, mismatch
from humanline.train.online.samplers import make_held_out_stages, make_stages
from humanline.train.online.stages import PoisonedError, RoundStages
from humanline.train.run.fingerprint import trained_hash
from humanline.train.run.processes import Processes, RoundError
from humanline.train.run.state import OfEach, Stateful
from humanline.train.step.reference import LogprobsAhead

MakeStream = Callable[[Sequence[Unit], int], Stream]  # of a round's units, with a seed


class Rounds:
    """Serve the batches of a run in rounds; the data of a round are made when it begins.

    Parameters
    ----------
    config : TrainConfig
        Whose source is rounds.
    maker : RoundMaker
    ahead : NextRound
        Makes the next round meanwhile, under source.overlap.
    told : RoundLog
    make_stream : callable
        Makes the batches of a round.
    version : callable
        Returns the version of the policy's weights as they are now.
    held_out_stages : RoundStages
        Sample and score answers to held-out prompts; may be the maker's.

    Notes
    -----
    Source: arXiv 2509.24207, Algorithm 1; where this departs from it, the top of this file says.
    """

    def __init__(
        self,
        config: TrainConfig,
        maker: RoundMaker,
        ahead: NextRound,
        told: RoundLog,
        *,
        make_stream: MakeStream,
        version: Callable[[], str],
        held_out_stages: RoundStages,
    ) -> None:
        assert config.rounds is not None
        self.config, self.rounds = config, config.rounds
        self.maker, self.ahead, self.told, self.processes = maker, ahead, told, maker.processes
        self.make_stream, self.version, self.held_out_stages = make_stream, version, held_out_stages
        self.total = count_rounds(config, len(maker.draw.contexts))
        self.number = -1  # of the round that is trained on
        self.next = 0  # of the one to make next; those in between left too little
        self.start = self.end = 0
        self.stream: Stream | None = None
        self._batches: FixedBatches | None = None  # of that stream
        self.behaviour: dict[str, Sequence[float]] = {}  # of that round, until its sampler was compared
        self.stale = False  # whether an older policy sampled than the one at the round's start
        self.policy = ""  # version at the start of the round that is trained on
        self._held = HeldFiles()  # of the round that is trained on, without which its checkpoints are of no use

    def remake(self) -> None:
        """Make the files of the round that is trained on again if they are gone, and say so; for the main process."""
        gone = self._held.remake()
        if gone:
            tell(f"warning: {gone[0].parent} was gone while round {self.number} was trained on: it is made again")

    def prepare(self, step: int) -> bool:
        """Make sure that the batch of a step exists; return False if the run has no such step.

        Raises
        ------
        RoundError
            If a round leaves too little to train on and source.too_few is "error", or a completion has no score and
            source.scoring.failed is "error", or no prompt of a whole pass leaves anything.
        StopRequested, SamplerError, LedgerError, OSError
            What is sampled and scored by then is kept.
        """
        self.maker.open()
        if step < self.end:
            self._start_ahead()  # if a stop has ended it
            return self._batches is not None and self._batches.prepare(step - self.start)
        if self.number >= 0:
            self._record(self.number, "DONE")
        for _ in range(self.maker.draw.rounds_a_pass):
            if self._finished(step):
                return False
            number, version = self.next, self.version()
            began = time.perf_counter()
            sampled_by = self.policy if self._is_ahead(number) else version
            report, data = self._make(number, sampled_by)
            length = self._steps_of(data.units, step)
            if length:
                self.number, self.policy, self.next = number, version, number + 1
                self.stale = sampled_by != version
                self._open(step, length, data)
                self.told.made(number, report, length, time.perf_counter() - began, sampled_by)
                self._start_ahead()
                return True
            self._skip(number, report, len(data.units), time.perf_counter() - began, sampled_by)
            self.next = number + 1
        if self._finished(step):
            return False
        raise RoundError("no round of a whole pass over the prompts left enough for a batch")

    def _skip(self, number: int, report: dict[str, Any], units: int, seconds: float, sampled_by: str) -> None:
        """Leave out a round that is too small for a batch; raise RoundError if that is an error."""
        batch = self.config.training.batch_size
        left = f"{units} {self.config.objective.units}"
        what = f"round {number} leaves {left}, too few for a batch of {batch} (training.batch_size)"
        lower = " or training.batch_size"
        if units >= batch:
            lower = ""
            title = self.config.objective.title
            what = f"round {number} leaves {left}, all to one prompt, and {title} takes z_0 from answers to others"
        if self.rounds.too_few == "error":
            again = ""
            if report["facts"]["without_score"]:  # which a reward that is mended may give it
                again = ", after it has scored again what has no score"
                self.processes.on_main(lambda: self.maker.forget_scores(number))
            raise RoundError(
                f"{what}: {report['why']}. Samples and scores are kept: --resume with source.too_few=skip leaves the "
                f"round out and goes on{again}. A new run can have a lower source.score_margin{lower}, or more "
                "source.contexts_per_round or source.samples."
            )
        self.told.skipped(number, report, seconds, sampled_by, f"{what}; skipped: {report['why']}")
        self._record(number, "DONE")

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step of the round that is trained on."""
        assert self._batches is not None and self.start <= step < self.end
        return self._batches.step(step - self.start)

    def schedule(self, schedule: AnySchedule) -> Snapshots:
        """Return the schedule as rounds see it: begun anew at each of them, unless it is to be kept."""
        keeps = self.config.reference.round_start == "keep" and schedule.kind != "each_round"
        if schedule.kind == "never" or keeps:
            return schedule
        return InRounds(schedule, lambda step: (self.start, self.end))

    def mismatch(self, step: int, batch: StepBatch, logprobs_of: Callable[[MicroBatch], Tensor]) -> dict[str, float]:
        """Return how far the sampler's token log-probabilities are from those that training computes.

        Called at every step, it does something at the first one of a round.

        Parameters
        ----------
        step : int
        batch : StepBatch
            Of that step.
        logprobs_of : callable
            Gives token log-probabilities of the policy as it is now.

        Returns
        -------
        dict
            ``sampler_mismatch_rms`` and ``sampler_mismatch_max``, nats; ``staleness_rms`` and ``staleness_max`` where
            an older policy than this one sampled; empty where the sampler told none, or at another temperature.
        """
        behaviour, self.behaviour = self.behaviour, {}
        if step != self.start:
            return {}
        name = "staleness" if self.stale else "sampler_mismatch"
        alike = self.config.training.temperature == 1.0
        metrics = mismatch(name, behaviour, batch, logprobs_of, self.processes.reduce) if alike else {}
        self.told.begun(self.number, metrics)
        return metrics

    # What a checkpoint holds.

    def state(self) -> dict[str, Tensor]:
        """Return where the rounds stand; their data are in their folders, and a digest is here."""
        units = b"" if self.stream is None else units_hash(self.stream.units).encode()
        return {
            "place": torch.tensor([self.number, self.next, self.start, self.end, int(self.stale)]),
            "units": torch.tensor(list(units), dtype=torch.uint8),
            "policy": torch.tensor(list(self.policy.encode()), dtype=torch.uint8),
        }

    def refuse_state(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Raise DamagedError if some of so many updates stand on a poisoned round, of which others are left."""
        number, _, start, end, _ = state["place"].tolist()
        if number < 0 or not start < updates < end:
            return
        try:
            self.maker.refuse_poisoned(number)
        except PoisonedError as error:
            raise DamagedError(
                f"it is in the middle of round {number}, which cannot be trained on: {error}; where no older "
                "checkpoint is left, remove the checkpoints to begin anew"
            ) from None

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a round, with the data in its folder; raise DamagedError if these are not the same."""
        number, self.next, self.start, self.end, stale = state["place"].tolist()
        self.policy, self.stale = bytes(state["policy"].tolist()).decode(), bool(stale)
        if number < 0:
            return
        self.number = number
        folder = self.maker.of(number)
        try:
            data = self.maker.data(number)
        except (OSError, ValueError) as error:
            raise DamagedError(f"the data of round {number} in {folder} cannot be read: {error}") from None
        if units_hash(data.units).encode() != bytes(state["units"].tolist()):
            raise DamagedError(f"the data of round {number} in {folder} are not those that the run had")
        self.maker.open()
        self._open(self.start, self.end - self.start, data)

    def renew(self, updates: int, others: Iterable[Stateful | OfEach]) -> None:
        """Give up the round of a checkpoint, to make it again, if it is poisoned and no update stands on it."""
        if self.number < 0 or updates != self.start:
            return
        try:
            self.maker.refuse_poisoned(self.number)
        except PoisonedError:
            self.next, self.number, self.end, self.stream = self.number, -1, self.start, None
            for other in others:
                if isinstance(other, LogprobsAhead):
                    other.forget(updates)

    # The making of a round.

    def _finished(self, step: int) -> bool:
        steps = self.config.training.steps
        return step >= steps if steps is not None else self.next >= self.total

    def _steps_of(self, units: Sequence[Unit], step: int) -> int:
        """Return how many steps a round's units give."""
        batch, limit = self.config.training.batch_size, self.config.training.steps
        if len(units) < batch or (self.config.objective.mismatched and one_prompt(units)):
            return 0
        length = self.rounds.steps or len(units) // batch
        return length if limit is None else min(length, limit - step)

    def _make(self, number: int, policy: str) -> tuple[dict[str, Any], RoundData]:
        """Plan, sample, score and select, as far as that has not been done; return a report and what to train on."""
        self.processes.on_main(lambda: self.maker.begin(number, policy))
        self._start_ahead()  # if a stop has ended it
        self.ahead.wait_for(number)
        return self.maker.finish(number, policy)

    def _is_ahead(self, number: int) -> bool:
        """Return whether a round is made by the second process, from the policy at the start of the one before."""
        return self.rounds.overlap and self.number >= 0 and number == self.number + 1

    def _start_ahead(self) -> None:
        """Start the next round in the second process, if there is one and the round is not made yet."""
        number, limit = self.next, self.config.training.steps
        if self._is_ahead(number) and number < self.total and (limit is None or self.end < limit):
            self.ahead.start(number, self.policy)

    def evaluator(self, held_out: Sequence[Context]) -> RolloutEvaluator | None:
        """Return the evaluator of held-out prompts, if there are any."""
        if not held_out:
            return None
        samples = self.config.evaluation.samples
        return RolloutEvaluator(held_out, self.held_out_stages, self.maker.folder, self.version, samples)

    def close(self) -> None:
        """Close sampler and scorer, here and in a second process; nothing on the disk is lost."""
        self.told.begun(self.number)
        self._held.hold(())
        if self._batches is not None:
            self._batches.close()
        self.ahead.close()
        self.held_out_stages.sampler.close()  # its scorer is that of the rounds
        self.maker.stages.close()

    def _open(self, step: int, length: int, data: RoundData) -> None:
        """Begin to serve a round."""
        self.start, self.end, self.behaviour = step, step + length, data.behaviour
        # A seed of its own for each round, or the same places would be drawn together every time.
        seed = int.from_bytes(hashlib.blake2b(f"{self.config.seed} {self.number}".encode(), digest_size=7).digest())
        if self._batches is not None:
            self._batches.close()
        self.stream = self.make_stream(data.units, seed)
        self._batches = FixedBatches(self.stream, length, self.processes.device)
        if self.processes.rank == 0:
            self._held.hold(self.maker.files(self.number))
        self._record(self.number, "TRAINING")

    def _record(self, number: int, state: State) -> None:
        self.processes.on_main(lambda: self.maker.ledger.record(number, state))


def make_rounds(
    config: TrainConfig,
    data: RunData,
    renderer: Renderer,
    folder: Path,
    policy: Any,
    adapter: Any,
    processes: Processes,
    progress: RunProgress,
    log: Callable[[dict[str, Any]], None],
) -> Rounds:
    """Return the rounds of a run, with sampler and scorer; raise ValueError as these do."""

    def make_stream(units: Sequence[Unit], seed: int) -> Stream:
        return training_stream(config, units, renderer, rank=processes.rank, ranks=processes.ranks, seed=seed)

    assert config.rounds is not None
    for reward in config.rounds.scoring.rewards:
        if reward.kind == "function":
            reward.settle()
    stages = make_stages(
        config, policy, adapter, renderer, folder, processes, say=progress.say, progress=progress.working
    )
    asked = make_held_out_stages(config, policy, renderer, stages, processes) if data.held_out else stages
    maker = RoundMaker(config, data.contexts, folder, stages, progress.say)
    return Rounds(
        config,
        maker,
        NextRound(maker, policy, progress.say),
        RoundLog(config, stages.served, log, progress.say),
        make_stream=make_stream,
        version=lambda: trained_hash(policy, processes.reduce),
        held_out_stages=asked,
    )
