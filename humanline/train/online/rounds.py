"""Rounds: Algorithm 1 and its relatives, from the prompts of a round to the batches of its steps.

A round goes through the states of the ledger, each with its file, so that a run that was stopped anywhere goes on from
what is there:

    rounds/ledger.jsonl        what each round has reached, appended only
    rounds/cache-rank-0.jsonl  every score that was ever given, by content
    rounds/00003/plan.json     PLANNED: which prompts, which policy, which settings
    rounds/00003/samples.jsonl SAMPLED
    rounds/00003/scores.jsonl  SCORED
    rounds/00003/kept.jsonl    PAIRED: which completions are trained on, with their scores
    rounds/00003/report.json   what was left out, and why
                               TRAINING, DONE

Departures from Algorithm 1: steps are whole batches, and what is left over in a round is not trained on; prompts are
drawn without replacement; the optimizer goes on from round to round.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from humanline.schedule import InRounds, Schedule, Snapshots
from humanline.system.disk import patient, tell
from humanline.system.files import (
    DamagedError,
    HeldFiles,
    barrier,
    check_room,
    disk_errors,
    flush,
    make_folder,
    write_text,
)
from humanline.system.progress import RunProgress
from humanline.train.config import TrainConfig
from humanline.train.data.batch import MicroBatch, Unit
from humanline.train.data.prompts import Context, Draw
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import RunData, count_rounds, training_stream
from humanline.train.data.stream import StepBatch, Stream
from humanline.train.data.units import units_hash
from humanline.train.online.held_out import RolloutEvaluator
from humanline.train.online.ledger import Ledger, each_line, json_rows
from humanline.train.online.overlap import Ahead, Job
from humanline.train.online.samplers import make_stages
from humanline.train.online.samplers.proof import check_in_words
from humanline.train.online.select import Kept, make_units, row_names, select
from humanline.train.online.stages import (
    BY_RESUMING,
    PoisonedError,
    RoundStages,
    read_rollouts,
    read_scores,
    served_name,
)
from humanline.train.online.types import Rollout
from humanline.train.run.fingerprint import as_planned, is_planned, same_settings, trained_hash
from humanline.train.run.processes import Processes, RoundError
from humanline.train.run.state import ModuleState, Stateful
from humanline.train.step.reference import ScoreAhead

_FILES = ("plan.json", "samples.jsonl", "scores.jsonl", "kept.jsonl", "report.json")
MakeStream = Callable[[Sequence[Unit], int], Stream]  # of a round's units, with a seed


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round shall do; a round whose plan is the same is the same round."""

    round: int
    policy: str
    contexts: tuple[str, ...]
    settings: dict[str, Any]

    def text(self) -> str:
        """Return the plan as the text of its file."""
        facts = {"round": self.round, "policy": self.policy, **as_planned(self.settings), "contexts": self.contexts}
        return json.dumps(facts, indent=1) + "\n"

    def is_in(self, file: Path) -> bool:
        """Return whether a plan's file is of this one, whatever settings in it need not be the same."""
        facts = json.loads(file.read_text(encoding="utf-8"))
        same = (facts["round"], facts["policy"], tuple(facts["contexts"])) == (self.round, self.policy, self.contexts)
        return same and is_planned(facts, self.settings)


class Rounds:
    """Make the data of each round when it begins, and serve the batches of its steps.

    Parameters
    ----------
    config : TrainConfig
        Whose source is rounds.
    contexts : sequence of Context
        Every prompt of the run.
    folder : Path
        Where rounds are kept; made if need be.
    make_stream : callable
        Makes the batches of a round.
    stages : RoundStages
        Samples and scores.
    version : callable
        Returns the version of the policy's weights as they are now.
    save_weights : callable
        Writes them to a file, for the second process (source.overlap).
    processes : Processes
    log : callable
        Told the numbers of a round, at its first step.
    say : callable
        Told what a person should know.

    Raises
    ------
    ValueError
        If a round needs more prompts than there are.
    """

    def __init__(
        self,
        config: TrainConfig,
        contexts: Sequence[Context],
        folder: Path,
        *,
        make_stream: MakeStream,
        stages: RoundStages,
        version: Callable[[], str],
        save_weights: Callable[[Path], None],
        processes: Processes,
        log: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        assert config.rounds is not None
        self.config, self.rounds = config, config.rounds
        self.draw = Draw(contexts, self.rounds.contexts_per_round, config.seed)
        self.context_ids = {context.id: context.ids for context in contexts}
        self.folder, self.make_stream, self.stages, self.version = folder, make_stream, stages, version
        self.processes, self.log, self.say = processes, log, say
        self.total = count_rounds(config, len(contexts))
        self.number = -1  # of the round that is trained on
        self.next = 0  # of the one to make next; those in between left too little
        self.start = self.end = 0
        self.stream: Stream | None = None
        self.behaviour: dict[str, Sequence[float]] = {}
        self.stale = False  # whether an older policy sampled than the one at the round's start
        self.policy = ""  # version at the start of the round that is trained on
        self.save_weights = save_weights
        self.ahead = Ahead(processes.stopping, say)
        self.asked_for = -1  # the round that the second process was last looked after for
        self.line = ""  # what is to be said of a round, once the sampler's mismatch is known
        self._ledger: Ledger | None = None
        self._held = HeldFiles()  # of the round that is trained on, without which its checkpoints are of no use

    def remake(self) -> None:
        """Make the files of the round that is trained on again if they are gone, and say so; for the main process."""
        gone = self._held.remake()
        if gone:
            tell(f"warning: {gone[0].parent} was gone while round {self.number} was trained on: it is made again")

    def open_ledger(self) -> Ledger:
        """Return the ledger, read when it is first needed; all processes call this alike."""
        if self._ledger is None:
            self.processes.on_main(lambda: make_folder(self.folder, parents=False))
            self._ledger = Ledger(self.folder / "ledger.jsonl", alone=self.processes.rank == 0)
        return self._ledger

    def of(self, number: int) -> Path:
        """Return the folder of a round."""
        return self.folder / f"{number:05d}"

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
        ledger = self.open_ledger()
        if step < self.end:
            self._start_ahead()  # if a stop has ended it
            return True
        if self.number >= 0:
            self.processes.on_main(lambda: ledger.record(self.number, "DONE"))
        for _ in range(self.draw.rounds_a_pass):
            if self._finished(step):
                return False
            number, version = self.next, self.version()
            began = time.perf_counter()
            sampled_by = self.policy if self._is_ahead(number) else version
            report, units = self._make(number, sampled_by)
            length = self._steps_of(units, step)
            if length:
                self.number, self.policy, self.next = number, version, number + 1
                self.stale = sampled_by != version
                self._open(step, length, units)
                self._tell(report, length, time.perf_counter() - began, sampled_by)
                self._start_ahead()
                return True
            self._skip(number, report, len(units))
            self.next = number + 1
        if self._finished(step):
            return False
        raise RoundError("no round of a whole pass over the prompts left enough for a batch")

    def _skip(self, number: int, report: dict[str, Any], units: int) -> None:
        """Leave out a round that is too small for a batch; raise RoundError if that is an error."""
        kind = {"dpo": "pairs", "kto": "examples"}.get(self.config.objective.kind, "groups")
        batch = self.config.training.batch_size
        what = f"round {number} leaves {units} {kind}, too few for a batch of {batch} (training.batch_size)"
        if self.rounds.too_few == "error":
            again = ""
            if report["facts"]["without_score"]:  # which a reward that is mended may give it
                again = ", after it has scored again what has no score"
                self.processes.on_main(lambda: self._forget_scores(number))
            raise RoundError(
                f"{what}: {report['why']}. Samples and scores are kept: --resume with source.too_few=skip leaves the "
                f"round out and goes on{again}. A new run can have a lower source.score_margin or training.batch_size, "
                "or more source.contexts_per_round or source.samples."
            )
        self.say(f"{what}; skipped: {report['why']}")
        self.processes.on_main(lambda: self.open_ledger().record(number, "DONE"))

    def _forget_scores(self, number: int) -> None:
        """Have a round scored again when it is come back to; what has a score is known from the scorer's cache."""
        for name in ("kept.jsonl", "scores.jsonl"):
            (self.of(number) / name).unlink(missing_ok=True)

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step of the round that is trained on."""
        assert self.stream is not None and self.start <= step < self.end
        return self.stream.step(step - self.start)

    def schedule(self, schedule: Schedule) -> Snapshots:
        """Return the schedule as rounds see it: begun anew at each of them, unless it is to be kept."""
        keeps = self.config.reference.round_start == "keep" and schedule.kind != "each_round"
        if schedule.kind == "never" or keeps:
            return schedule
        return InRounds(schedule, lambda step: (self.start, self.end))

    def mismatch(self, step: int, batch: StepBatch, scored: Callable[[MicroBatch], Tensor]) -> dict[str, float]:
        """Return how far the sampler's token log-probabilities are from those that training computes.

        Called at every step, it does something at the first one of a round.

        Parameters
        ----------
        step : int
        batch : StepBatch
            Of that step.
        scored : callable
            Returns token log-probabilities of the policy as it is now.

        Returns
        -------
        dict
            ``sampler_mismatch_rms`` and ``sampler_mismatch_max``, nats; ``staleness_rms`` and ``staleness_max`` where
            an older policy than this one sampled; empty where the sampler told none, or at another temperature.
        """
        behaviour, self.behaviour = self.behaviour, {}
        if step != self.start:
            return {}
        metrics = {} if self.config.training.temperature != 1.0 else self._mismatch(batch, behaviour, scored)
        self._say_line(metrics)
        return metrics

    def _mismatch(
        self, batch: StepBatch, behaviour: dict[str, Sequence[float]], scored: Callable[[MicroBatch], Tensor]
    ) -> dict[str, float]:
        sums = torch.zeros(2, dtype=torch.float64)
        largest = torch.zeros((), dtype=torch.float64)
        for micro in batch.micro_batches:
            rows = [behaviour.get(name) for name in micro.block.names]
            if all(row is None for row in rows):
                continue
            ours, mask = scored(micro).cpu().double(), micro.block.mask.cpu()
            for row, theirs in enumerate(rows):
                if theirs is not None:
                    gap = ours[row][mask[row]] - torch.tensor(theirs, dtype=torch.float64)
                    sums += torch.tensor([gap.square().sum(), len(gap)], dtype=torch.float64)
                    largest = torch.maximum(largest, gap.abs().max())
        squares, count = self.processes.reduce(sums, "sum").tolist()
        top = self.processes.reduce(largest, "max").item()
        name = "staleness" if self.stale else "sampler_mismatch"
        return {f"{name}_rms": math.sqrt(squares / count), f"{name}_max": top} if count else {}

    # What a checkpoint holds.

    def state(self) -> dict[str, Tensor]:
        """Return where the rounds stand; their data are in their folders, and a digest is here."""
        units = b"" if self.stream is None else units_hash(self.stream.units).encode()
        return {
            "place": torch.tensor([self.number, self.next, self.start, self.end, int(self.stale)]),
            "units": torch.tensor(list(units), dtype=torch.uint8),
            "policy": torch.tensor(list(self.policy.encode()), dtype=torch.uint8),
        }

    def refuse_state(self, state: dict[str, Tensor], updates: int) -> None:
        """Raise DamagedError if some of so many updates stand on a poisoned round, of which others are left."""
        number, _, start, end, _ = state["place"].tolist()
        if number < 0 or not start < updates < end:
            return
        try:
            self._refuse_poisoned(number)
        except PoisonedError as error:
            raise DamagedError(
                f"it is in the middle of round {number}, which cannot be trained on: {error}; where no older "
                "checkpoint is left, remove the checkpoints to begin anew"
            ) from None

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go back to a round, with the data in its folder; raise DamagedError if these are not the same."""
        number, self.next, self.start, self.end, stale = state["place"].tolist()
        self.policy, self.stale = bytes(state["policy"].tolist()).decode(), bool(stale)
        if number < 0:
            return
        self.number = number
        folder = self.of(number)
        try:
            units = self._units(number)
        except (OSError, ValueError) as error:
            raise DamagedError(f"the data of round {number} in {folder} cannot be read: {error}") from None
        if units_hash(units).encode() != bytes(state["units"].tolist()):
            raise DamagedError(f"the data of round {number} in {folder} are not those that the run had")
        self.open_ledger()
        self._open(self.start, self.end - self.start, units)

    def renew(self, updates: int, others: Iterable[Stateful]) -> None:
        """Give up the round of a checkpoint, to make it again, if it is poisoned and no update stands on it."""
        if self.number < 0 or updates != self.start:
            return
        try:
            self._refuse_poisoned(self.number)
        except PoisonedError:
            self.next, self.number, self.end, self.stream = self.number, -1, self.start, None
            for other in others:
                if isinstance(other, ScoreAhead):
                    other.forget(updates)

    # The making of a round.

    def _finished(self, step: int) -> bool:
        steps = self.config.training.steps
        return step >= steps if steps is not None else self.next >= self.total

    def _steps_of(self, units: Sequence[Unit], step: int) -> int:
        """Return how many steps a round's units give."""
        batch, limit = self.config.training.batch_size, self.config.training.steps
        if len(units) < batch or (self.config.objective.kind == "kto" and len(units) < 4):  # of two prompts
            return 0
        length = self.rounds.steps or len(units) // batch
        return length if limit is None else min(length, limit - step)

    def _make(self, number: int, policy: str) -> tuple[dict[str, Any], list[Unit]]:
        """Plan, sample, score and select, as far as that has not been done; return a report and what to train on."""
        contexts, folder = self.draw.round(number), self.of(number)
        plan, ledger = self.plan(number, policy), self.open_ledger()
        self.processes.on_main(lambda: self._begin(plan))
        if self._is_ahead(number):
            self._start_ahead()  # if a stop has ended it
        self.processes.each(lambda: self.ahead.wait_for(number))
        ledger.read()
        samples, scores, kept = (folder / name for name in ("samples.jsonl", "scores.jsonl", "kept.jsonl"))
        if not self.processes.agree(ledger.has(number, "SAMPLED", samples)):
            self.stages.sample(folder, contexts, number, policy)
            self.processes.on_main(lambda: ledger.record(number, "SAMPLED", samples))
        else:
            self.stages.rest()
        self.processes.on_main(lambda: _tidy(folder))
        if not self.processes.agree(ledger.has(number, "SCORED", scores)):
            self.stages.score(folder, f"round {number}")
            self.processes.on_main(lambda: ledger.record(number, "SCORED", scores))
        ledger.read()
        if not self.processes.agree(ledger.has(number, "PAIRED", kept)):

            def pair() -> None:
                rollouts = read_rollouts(samples)
                try:
                    selection = select(
                        rollouts,
                        read_scores(scores, rollouts),
                        self.rounds,
                        "all" if self.config.keeps_groups else "best_worst",
                        of=f"round {number}",
                        mend=BY_RESUMING,
                    )
                except RoundError:  # scored when more was allowed
                    self._forget_scores(number)
                    raise
                rows = [
                    {"id": one.rollout.id, "completions": one.numbers, "scores": one.scores} for one in selection.kept
                ]
                write_text(folder / "report.json", json.dumps(selection.report(self.rounds.score_margin)) + "\n")
                write_text(kept, json_rows(rows))
                ledger.record(number, "PAIRED", kept)

            self.processes.on_main(pair)
        report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return report, self._units(number)

    def plan(self, number: int, policy: str) -> Plan:
        """Return what a round shall do."""
        used: Any = {"seed": True, "source": {"samples", "sampling", "scoring"}}
        settings = same_settings(self.config.model_dump(mode="json", include=used))
        return Plan(number, policy, tuple(context.id for context in self.draw.round(number)), settings)

    def _begin(self, plan: Plan) -> None:
        """Write the plan down, or go on with a round that has the same; put one with another, or poisoned, aside."""
        folder, ledger = self.of(plan.round), self._ledger
        file = folder / "plan.json"
        assert ledger is not None
        if ledger.has(plan.round, "PLANNED", file):
            why = "was planned with another policy or other settings"
            if plan.is_in(file):
                try:
                    if ledger.has(plan.round, "SAMPLED", folder / "samples.jsonl"):
                        self._refuse_poisoned(plan.round)
                    return
                except PoisonedError as error:
                    why = f"holds samples that cannot be trained on ({error})"
            aside = _free(folder)
            self.say(f"round {plan.round} {why}: it is made anew, and what there was is now {aside}")
            folder.rename(aside)
            barrier(f"{folder.name} put aside")
            ledger.discard(plan.round, f"it {why}; kept in {aside.name}")
        make_folder(folder, parents=False)  # which would hide that the run's own is gone
        write_text(file, plan.text())
        ledger.record(plan.round, "PLANNED", file)

    def _refuse_poisoned(self, number: int) -> None:
        """Raise PoisonedError, with the place, if a round's samples hold what cannot be trained on."""

        def check(rollout: Rollout) -> None:
            self.stages.trainable.check_rollout(rollout, len(self.context_ids.get(rollout.id, ())))

        read_rollouts(self.of(number) / "samples.jsonl", check)

    def _is_ahead(self, number: int) -> bool:
        """Return whether a round is made by the second process, from the policy at the start of the one before."""
        return self.rounds.overlap and self.number >= 0 and number == self.number + 1

    def _start_ahead(self) -> None:
        """Have the next round made by the second process, if there is one and it is not made yet."""
        number, limit = self.next, self.config.training.steps
        if not self._is_ahead(number) or number >= self.total or (limit is not None and self.end >= limit):
            return
        if self.asked_for == number:
            return
        self.asked_for = number
        folder = self.of(number)
        job = Job(self.config, self.folder, number, self.policy, str(self.processes.device), torch.get_num_threads())

        def start() -> None:
            assert self._ledger is not None
            self._begin(self.plan(number, self.policy))
            if self._ledger.has(number, "SAMPLED", folder / "samples.jsonl"):
                return  # and its weights are no longer needed, nor there
            if not job.weights.is_file():
                if self.version() != self.policy:
                    raise RoundError(
                        f"{job.weights} is missing, with which round {number} was to be sampled; remove {folder} and "
                        "resume from an earlier checkpoint, or start a new run without source.overlap"
                    )
                self.save_weights(job.weights)
            self.ahead.start(job)

        self.processes.on_main(start)

    def evaluator(self, held_out: Sequence[Context]) -> RolloutEvaluator | None:
        """Return what measures the policy on held-out prompts, if there are any."""
        return RolloutEvaluator(held_out, self.stages, self.folder, self.version) if held_out else None

    def close(self) -> None:
        """End what samples and scores, here and in a second process; nothing on the disk is lost."""
        self._say_line()
        self.ahead.close()
        self.stages.close()

    def _units(self, number: int) -> list[Unit]:
        """Return what a round's files say is trained on, and take note of what the sampler said of it."""
        folder = self.of(number)
        rollouts = {rollout.id: rollout for rollout in read_rollouts(folder / "samples.jsonl")}
        rows = list(each_line(folder / "kept.jsonl"))
        kept = [Kept(rollouts[row["id"]], tuple(row["completions"]), tuple(row["scores"])) for row in rows]
        objective = self.config.objective.kind
        self.behaviour = {
            name: completion.logprobs
            for one in kept
            for name, completion in zip(
                row_names(one.rollout.id, len(one.numbers), objective), one.completions, strict=True
            )
            if completion.logprobs is not None
        }
        return make_units(kept, objective, self.context_ids)

    def _open(self, step: int, length: int, units: list[Unit]) -> None:
        """Begin to serve a round."""
        self.start, self.end = step, step + length
        # A seed of its own for each round, or the same places would be drawn together every time.
        seed = int.from_bytes(hashlib.blake2b(f"{self.config.seed} {self.number}".encode(), digest_size=7).digest())
        self.stream = self.make_stream(units, seed)
        if self.processes.rank == 0:
            self._held.hold(self.of(self.number) / name for name in _FILES)
        ledger = self.open_ledger()
        self.processes.on_main(lambda: ledger.record(self.number, "TRAINING"))

    def _tell(self, report: dict[str, Any], length: int, seconds: float, sampled_by: str) -> None:
        """Log what a round came to, and have it said at its first step."""
        facts = report["facts"]
        check = {} if self.stages.served is None else self.stages.served.facts(served_name(sampled_by))
        numbers = {f"server_{name}": value for name, value in check.items() if isinstance(value, float)}
        self.log({"round": self.number, "steps": length, **facts, **numbers, "seconds": seconds})
        parts = [f"score {facts['score']:.4g}"] if "score" in facts else []
        parts.append(f"{facts['kept_contexts']} of {facts['contexts']} prompts kept")
        if facts["kept_contexts"] < facts["contexts"] or facts["without_score"] or facts.get("asked_again"):
            parts.append(report["why"])
        if self.config.keeps_groups and facts["equal_scores"]:
            parts.append(f"{facts['equal_scores']} with equal scores, of advantage 0")
        if check:
            parts.append(f"server: {check_in_words(check)}")
        self.line = f"round {self.number}: {'; '.join(parts)}; {length} steps"
        syncs = self.config.reference.schedule.kind in ("before_step", "after_step")
        if length == 1 and syncs and self.config.reference.round_start == "sync":
            self.say(
                f"warning: round {self.number} has a single step, and the reference was made equal to the policy at "
                "its start: every log-ratio is 0, so that neither sync nor clip does anything"
            )

    def _say_line(self, mismatch: Mapping[str, float] = MappingProxyType({})) -> None:
        """Say what is to be said of a round, with how far its sampler is from training."""
        rms = mismatch.get("sampler_mismatch_rms")
        if self.line:
            self.say(self.line + ("" if rms is None else f"; sampler off by {rms:.2g} nats (rms)"))
        self.line = ""
        limit = self.rounds.sampling.mismatch_limit
        if rms is not None and rms > limit:
            self.say(
                f"warning: round {self.number}: the sampler's log-probabilities of its own tokens differ from those "
                f"that training computes by {rms:.3g} nats (rms), more than source.sampling.mismatch_limit: {limit:g}: "
                "it may have other weights, settings or a cache of older ones, and then the data are not from this "
                "policy"
            )


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
    """Return the rounds of a run with what samples and scores them; raise ValueError as these do."""
    from humanline.train.online.rewards.check import check_scoring

    assert config.rounds is not None
    scoring = config.rounds.scoring

    def check() -> None:
        for remark in check_scoring(scoring, [*data.contexts, *data.held_out]):
            progress.say(remark)

    processes.on_main(check)

    def save_weights(path: Path) -> None:
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

    def make_stream(units: Sequence[Unit], seed: int) -> Stream:
        return training_stream(config, units, renderer, rank=processes.rank, ranks=processes.ranks, seed=seed)

    return Rounds(
        config,
        data.contexts,
        folder,
        make_stream=make_stream,
        stages=make_stages(
            config, policy, adapter, renderer, folder, processes, say=progress.say, progress=progress.working
        ),
        version=lambda: trained_hash(policy),
        save_weights=save_weights,
        processes=processes,
        log=log,
        say=progress.say,
    )


def _tidy(folder: Path) -> None:
    """Remove what a round's folder holds for its sampling alone, once that is over."""
    for path in [*folder.glob("samples-rank-*.journal.jsonl"), folder / "weights.safetensors"]:
        path.unlink(missing_ok=True)


def _free(folder: Path) -> Path:
    """Return a name beside a folder that nothing has yet."""
    number = 1
    while (path := folder.with_name(f"{folder.name}.before-{number}")).exists():
        number += 1
    return path
