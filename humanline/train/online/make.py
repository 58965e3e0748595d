"""Making a round: planned, sampled, scored and selected, as far as its ledger and files do not say that it is done.

A run and its second process (`overlap.py`) make rounds with the same code. A round goes through the states of the
ledger, each with its file, so that a run that was stopped anywhere goes on from what is there:

    rounds/ledger.jsonl        what each round has reached, appended only
    rounds/cache-rank-0.jsonl  every score that was ever given, by content
    rounds/00003/plan.json     PLANNED: which prompts, which policy, which settings
    rounds/00003/samples.jsonl SAMPLED
    rounds/00003/scores.jsonl  SCORED
    rounds/00003/kept.jsonl    PAIRED: which completions are trained on, with their scores
    rounds/00003/report.json   what was left out, and why
                               TRAINING, DONE
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.system.files import barrier, make_folder, write_text
from humanline.train.config import TrainConfig
from humanline.train.data.batch import Unit
from humanline.train.data.prompts import Context, Draw
from humanline.train.online.ledger import Ledger, State, each_line, json_rows
from humanline.train.online.select import Kept, make_units, row_names, select
from humanline.train.online.stages import BY_RESUMING, PoisonedError, RoundStages, read_rollouts, read_scores
from humanline.train.online.types import Rollout
from humanline.train.run.fingerprint import as_planned, is_planned, same_settings
from humanline.train.run.processes import RoundError

_MADE: dict[State, str] = {  # in each state
    "PLANNED": "plan.json",
    "SAMPLED": "samples.jsonl",
    "SCORED": "scores.jsonl",
    "PAIRED": "kept.jsonl",
}
_REPORT = "report.json"
WEIGHTS = "weights.safetensors"  # of the policy that the second process samples from


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a round: prompts, policy and settings; a round whose plan is the same is the same round."""

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


@dataclass(frozen=True, slots=True)
class RoundData:
    """The units of a round, and the sampler's own token log-probabilities (nats) by the names of rows."""

    units: list[Unit]
    behaviour: dict[str, Sequence[float]]


class RoundMaker:
    """Make the rounds of a run on the disk, each state once; all processes of the run call its methods alike.

    Parameters
    ----------
    config : TrainConfig
        Whose source is rounds.
    contexts : sequence of Context
        Every prompt of the run.
    folder : Path
        Where rounds are kept; made if need be.
    stages : RoundStages
        Samples and scores.
    say : callable
        Shows what a person should know.
    second : bool
        This process works beside the run, which appends to the same ledger.

    Attributes
    ----------
    draw : Draw
        The prompts of each round.

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
        stages: RoundStages,
        say: Callable[[str], None],
        *,
        second: bool = False,
    ) -> None:
        assert config.rounds is not None
        self.config, self.rounds = config, config.rounds
        self.draw = Draw(contexts, self.rounds.contexts_per_round, config.seed)
        self.folder, self.stages, self.processes, self.say = folder, stages, stages.processes, say
        self._context_ids = {context.id: context.ids for context in contexts}
        self._second = second
        self._ledger: Ledger | None = None

    def open(self) -> None:
        """Read the ledger, if that has not been done: once the run's folder is its own."""
        if self._ledger is None:
            self.processes.on_main(lambda: make_folder(self.folder, parents=False))
            self._ledger = Ledger(self.folder / "ledger.jsonl", alone=not self._second and self.processes.rank == 0)

    @property
    def ledger(self) -> Ledger:
        """Return the ledger, which must be open."""
        assert self._ledger is not None
        return self._ledger

    def of(self, number: int) -> Path:
        """Return the folder of a round."""
        return folder_of(self.folder, number)

    def files(self, number: int) -> list[Path]:
        """Return the files of a round that is trained on."""
        return [self.of(number) / name for name in (*_MADE.values(), _REPORT)]

    # From a plan to what is trained on.

    def begin(self, number: int, policy: str) -> None:
        """Write the plan down, or go on with a round that has the same; put one with another, or poisoned, aside.

        For the main process.
        """
        plan, folder, ledger = self._plan(number, policy), self.of(number), self.ledger
        file = folder / _MADE["PLANNED"]
        if ledger.has(number, "PLANNED", file):
            why = "was planned with another policy or other settings"
            if plan.is_in(file):
                try:
                    if self.is_sampled(number):
                        self.refuse_poisoned(number)
                    return
                except PoisonedError as error:
                    why = f"holds samples that cannot be trained on ({error})"
            aside = _free(folder)
            self.say(f"round {number} {why}: it is made anew, and what there was is now {aside}")
            folder.rename(aside)
            barrier(f"{folder.name} put aside")
            ledger.discard(number, f"it {why}; kept in {aside.name}")
        make_folder(folder, parents=False)  # which would hide that the run's own is gone
        write_text(file, plan.text())
        ledger.record(number, "PLANNED", file)

    def sample(self, number: int, policy: str) -> None:
        """Sample a round from the policy as it is, which has that version, unless that is done."""
        self.ledger.read()  # to which another process may have added
        folder, contexts = self.of(number), self.draw.round(number)
        if not self._reach(number, "SAMPLED", lambda: self.stages.sample(folder, contexts, number, policy)):
            self.stages.rest()

    def score(self, number: int) -> None:
        """Score a round's samples, unless that is done."""
        self._reach(number, "SCORED", lambda: self.stages.score(self.of(number), f"round {number}"))

    def finish(self, number: int, policy: str) -> tuple[dict[str, Any], RoundData]:
        """Do what is left of a round that is begun: sample, score, select; return a report and what to train on."""
        self.sample(number, policy)
        self.processes.on_main(lambda: self._tidy(number))
        self.score(number)
        self.ledger.read()
        self._reach(number, "PAIRED", lambda: self.processes.on_main(lambda: self._select(number)))
        report: dict[str, Any] = json.loads((self.of(number) / _REPORT).read_text(encoding="utf-8"))
        return report, self.data(number)

    def data(self, number: int) -> RoundData:
        """Return the data of a round from its files; raise OSError or ValueError if they cannot be read."""
        folder = self.of(number)
        rollouts = {rollout.id: rollout for rollout in read_rollouts(folder / _MADE["SAMPLED"])}
        rows = list(each_line(folder / _MADE["PAIRED"]))
        kept = [Kept(rollouts[row["id"]], tuple(row["completions"]), tuple(row["scores"])) for row in rows]
        apart = self.config.objective.unit == "example"
        behaviour = {
            name: completion.logprobs
            for one in kept
            for name, completion in zip(
                row_names(one.rollout.id, len(one.numbers), taken_apart=apart), one.completions, strict=True
            )
            if completion.logprobs is not None
        }
        return RoundData(make_units(kept, self._context_ids, taken_apart=apart), behaviour)

    # What there is.

    def is_sampled(self, number: int) -> bool:
        """Return whether a round has its samples, as far as this process has read the ledger."""
        return self.ledger.has(number, "SAMPLED", self.of(number) / _MADE["SAMPLED"])

    def refuse_poisoned(self, number: int) -> None:
        """Raise PoisonedError, with the place, if a round's samples hold what cannot be trained on."""

        def check(rollout: Rollout) -> None:
            self.stages.trainable.check_rollout(rollout, len(self._context_ids.get(rollout.id, ())))

        read_rollouts(self.of(number) / _MADE["SAMPLED"], check)

    def forget_scores(self, number: int) -> None:
        """Discard a round's scores, so that it is scored again when it is resumed; scores that it has are in the cache.

        For the main process.
        """
        for state in ("PAIRED", "SCORED"):
            (self.of(number) / _MADE[state]).unlink(missing_ok=True)

    def _reach(self, number: int, state: State, act: Callable[[], object]) -> bool:
        """Do what makes the file of a state, unless ledger and file say that it is done; return whether it was not."""
        file = self.of(number) / _MADE[state]
        if self.processes.agree(self.ledger.has(number, state, file)):
            return False
        act()
        self.processes.on_main(lambda: self._record(number, state, file))
        return True

    def _record(self, number: int, state: State, file: Path) -> None:
        """Record the file of a state; what was made of another one that stood in its place is discarded."""
        if self.ledger.another(number, state, file):
            states = tuple(_MADE)
            for later in states[states.index(state) + 1 :]:
                (self.of(number) / _MADE[later]).unlink(missing_ok=True)
        self.ledger.record(number, state, file)

    def _tidy(self, number: int) -> None:
        """Remove what a round's folder holds for its sampling alone."""
        folder = self.of(number)
        for path in [*folder.glob("samples-*.journal.jsonl"), folder / WEIGHTS]:
            path.unlink(missing_ok=True)

    def _plan(self, number: int, policy: str) -> Plan:
        used: Any = {"seed": True, "source": {"samples", "sampling", "scoring"}}
        settings = same_settings(self.config.model_dump(mode="json", include=used))
        return Plan(number, policy, tuple(context.id for context in self.draw.round(number)), settings)

    def _select(self, number: int) -> None:
        folder = self.of(number)
        rollouts = read_rollouts(folder / _MADE["SAMPLED"])
        try:
            selection = select(
                rollouts,
                read_scores(folder / _MADE["SCORED"], rollouts),
                self.rounds,
                "all" if self.config.keeps_groups else "best_worst",
                of=f"round {number}",
                mend=BY_RESUMING,
            )
        except RoundError:  # scored when more was allowed
            self.forget_scores(number)
            raise
        rows = [{"id": one.rollout.id, "completions": one.numbers, "scores": one.scores} for one in selection.kept]
        write_text(folder / _REPORT, json.dumps(selection.report(self.rounds.score_margin)) + "\n")
        write_text(folder / _MADE["PAIRED"], json_rows(rows))


def folder_of(rounds: Path, number: int) -> Path:
    """Return the folder of a round, in the folder of all of them."""
    return rounds / f"{number:05d}"


def _free(folder: Path) -> Path:
    """Return a name beside a folder that nothing has yet."""
    number = 1
    while (path := folder.with_name(f"{folder.name}.before-{number}")).exists():
        number += 1
    return path
