"""`humanline inspect-data --probe STEPS`: train a throw-away copy for some steps, and look at the tokens of each row.

The steps are those of the run itself: `set_up` makes it ready from the same recipe, with the same loader, and
`take_steps` takes them. Only what leaves the steps alone is another: the output, which is a temporary folder, and
checkpoints, looks (held-out data, the distance from the start), trackers and a stop at a collapse, which are off. The
folder holds settings and metrics, no weights; it is removed at the end, also of a probe that fails or is stopped, but
not of one that is killed (SIGKILL).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.evaluate.drift import Probe, TokenSums
from humanline.evaluate.records import EvaluationError
from humanline.evaluate.score_rows import Progress, Say
from humanline.system.disk import WriteError
from humanline.system.stop import StopRequested, StopSignal
from humanline.train.config import TrainConfig
from humanline.train.config.describe import describe_reference, describe_transform, describe_variant, units_in_words
from humanline.train.config.run import TrackingConfig
from humanline.train.data.units import SIDES, Units

if TYPE_CHECKING:
    from humanline.train.data.batch import MicroBatch
    from humanline.train.policy.build import CheckedModel

PREFIX = "humanline-probe-"  # of the temporary folder


@dataclass(frozen=True, slots=True)
class Planned:
    """A probe that can be made.

    Attributes
    ----------
    steps, of_steps : int
        To take, and of the whole run.
    """

    steps: int
    of_steps: int


def refuse_probe(config: TrainConfig, steps: int) -> None:
    """Raise EvaluationError if a probe of so many steps could tell nothing, whatever the data."""
    if steps < 1:
        raise EvaluationError(f"--probe must be a number of optimizer steps >= 1; got {steps}")
    if config.rounds is not None:
        raise EvaluationError(
            "--probe is not for prompts: a run in rounds draws its answers as it goes, so that there are none whose "
            "levels could be split into quartiles"
        )
    if not config.objective.needs_reference:
        raise EvaluationError(
            f"--probe looks at log-ratios against a reference, and {config.objective.title} has none: nothing drifts "
            "from it or is clipped"
        )
    if config.reference.schedule.snapshot(1) == 1:
        raise EvaluationError(
            f"--probe would see nothing: reference.schedule {config.reference.schedule.kind} syncs after every step, "
            "so that in all of the run the reference is the policy itself, from which nothing drifts"
        )
    if steps == 1:
        raise EvaluationError(
            "--probe 1 would see nothing: the reference of the first step is the policy itself, from which nothing "
            "drifts; give at least 2"
        )


def plan_probe(config: TrainConfig, units: Units, checked: CheckedModel, device: Any, steps: int, say: Say) -> Planned:
    """Form the batches of the steps, say what the probe will take and what is off in it, and return its plan.

    Raises
    ------
    EvaluationError
        If the run has fewer steps, or there is nowhere to put temporary files.
    ValueError
        If the data make no batches, as the run would say.
    """
    from humanline.train.data.run_data import run_length, training_stream
    from humanline.train.preflight.dry_run import DryRunError
    from humanline.train.preflight.hardware import seconds_here
    from humanline.train.preflight.memory import Estimator
    from humanline.train.preflight.workload import Workload

    stream = training_stream(config, units, checked.renderer)
    of_steps = run_length(config, stream)
    if steps > of_steps:
        raise EvaluationError(f"--probe {steps}: the run of this recipe has only {of_steps} steps; give at most these")
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise EvaluationError(
            f"--probe has no folder for temporary files: {error.strerror}; set TMPDIR to one that can be written"
        ) from None
    workload = Workload.of_stream(stream, steps)
    tokens = steps * workload.work.real_tokens
    what = f"the probe will train {steps} of {of_steps} steps, about {tokens:,.0f} tokens"
    try:
        estimate = Estimator(checked.outline, cuda=device.type == "cuda").estimate(config, workload)
        work = steps * estimate.total_flops
        seconds = seconds_here(work, device, config.training.precision)
        what += f": {work:.2g} operations, about {max(1, round(seconds)):,} s here once the model is loaded again"
    except DryRunError as error:
        what += f"; how long that takes is not known ({error})"
    say(f"{what}; its temporary folder, of metrics alone, is {place}/{PREFIX}...")
    return Planned(steps, of_steps)


def run_probe(
    config: TrainConfig,
    units: Units,
    scored: Sequence[int] | np.ndarray,
    planned: Planned,
    *,
    stop: StopSignal | None = None,
    progress: Progress | None = None,
) -> Probe:
    """Train a copy for the planned steps in a temporary folder, remove it, and return what became of the tokens.

    Parameters
    ----------
    config : TrainConfig
        With which `refuse_probe` and `plan_probe` found nothing wrong.
    units : Units
        Of data.train, as training reads them.
    scored : (S,) ints
        The rows that have a level.
    planned : Planned
    stop : StopSignal, optional
    progress : callable, optional
        Called with the steps taken and those due.

    Raises
    ------
    StopRequested
        If `stop` was asked; nothing of the probe is kept.
    EvaluationError
        If the temporary folder cannot be written.
    OSError, ModelError, DataError, ValueError, NonFiniteError, MemoryRanOutError
        As training does.
    """
    from humanline.train.loop import take_steps
    from humanline.train.run.result import RunResult
    from humanline.train.setup import set_up
    from humanline.train.step.trial import Trial

    tally, steps = Tally(units, planned.steps, progress), planned.steps
    try:
        with (
            tempfile.TemporaryDirectory(prefix=PREFIX) as folder,
            set_up(_quiet(config, f"{folder}/run"), stop=stop, show_progress=False, trial=Trial(steps, tally)) as run,
        ):
            assert not isinstance(run, RunResult)
            take_steps(run)
            broken = run.watch.broken
            broke = None if broken is None else run.watch.words(broken)
            if broke is not None and config.training.collapse.action == "stop":
                broke += "; the run itself would stop there (training.collapse.action)"
    except StopRequested as request:
        raise StopRequested(
            request.signal_name,
            f"stopped by {request.signal_name} during the probe, of which nothing is kept; scores that were made are",
        ) from None
    except WriteError as error:
        raise EvaluationError(
            f"the probe was given up, and nothing of it is kept: {error.reason}; set TMPDIR to a folder with some space"
        ) from None
    if progress is not None:
        progress(steps, steps)
    snapshot = config.reference.schedule.snapshot
    return Probe(
        steps=steps,
        of_steps=planned.of_steps,
        kind=config.transform.kind,
        how=tuple(_how(config, planned)),
        parts=tally.parts,
        tokens=tally.sums(units),
        scored=np.asarray(scored, dtype=np.int64),
        still=tuple(step for step in range(steps) if snapshot(step) == step),
        by_step=tuple(tally.steps_taken()),
        broke=broke,
    )


def _quiet(config: TrainConfig, output: str) -> TrainConfig:
    """Return the recipe with another output, and without all that leaves its steps alone and reaches out of it."""
    collapse = config.training.collapse
    if collapse.action == "stop":
        collapse = collapse.model_copy(update={"action": "warn"})
    return config.model_copy(
        update={
            "output": output,
            "data": config.data.model_copy(update={"eval": None}),
            "evaluation": config.evaluation.model_copy(update={"distance": None}),
            "tracking": TrackingConfig(),
            "training": config.training.model_copy(update={"disk_full": "stop", "collapse": collapse}),
        }
    )


def _how(config: TrainConfig, planned: Planned) -> list[str]:
    """Return lines on what was trained, with what, and what was switched off."""
    warm = round(config.optimizer.warmup_fraction * planned.of_steps)
    slow = f", all of them in the warm-up of {warm} steps to it" if warm >= planned.steps else ""
    training, off = config.training, ["checkpoints"]
    off += ["held-out evaluation"] if config.data.eval is not None else []
    off += ["the distance from the start"] if config.evaluation.distance is not None else []
    off += [f"tracking ({', '.join(config.tracking.trackers)})"] if config.tracking.trackers else []
    return [
        f"{describe_variant(config)}, as the recipe says: {training.batch_size} {units_in_words(config)} a step, lr "
        f"{config.optimizer.lr:g}{slow}, seed {config.seed}",
        f"off, since no step depends on it: {', '.join(off)}",
        f"transform: {describe_transform(config)}",
        f"reference: {describe_reference(config)}",
    ]


class Tally:
    """Add up what the losses of some steps saw, row by row and answer by answer: an `Observe` of training.

    Parameters
    ----------
    units : Units
    steps : int
    progress : callable, optional
        Called with the steps taken and those due, whenever one more has begun.
    """

    def __init__(self, units: Units, steps: int, progress: Progress | None = None) -> None:
        self.steps, self.progress = steps, progress
        self.parts = SIDES if len(units.sequences.lengths(0)) == len(SIDES) else ("answer",)
        self.apart = units.taken_apart
        self._rows = {name: row for row, name in enumerate(units.names)}
        if len(self._rows) < len(units.names):
            raise EvaluationError("two rows have one name, so that nobody could tell whose tokens were clipped")
        shape = len(units.names), len(self.parts)
        self._sums: dict[str, np.ndarray] = {name: np.zeros(shape) for name in ("tokens", "sums", "sizes")}
        self._shape = shape
        self.by_step: list[dict[str, float]] = []

    def __call__(self, step: int, batch: MicroBatch, log_ratio: Any, marks: Mapping[str, Any]) -> None:
        """Take in a micro-batch."""
        if not self.by_step or self.by_step[-1]["step"] != step:
            if self.progress is not None:
                self.progress(step, self.steps)
            self.by_step.append({"step": step, "tokens": 0, **dict.fromkeys(marks, 0), "sizes": 0.0})
        if not batch.rows:  # in which nothing counts
            return
        ratios = log_ratio.cpu().double()
        found = {"tokens": batch.block.on_host.mask, "sums": ratios, "sizes": ratios.abs(), **marks}
        places = tuple(np.array([self._place(row.unit.id, row.member) for row in batch.rows]).T)
        for name, values in found.items():
            sums = values.cpu().sum(1).numpy()
            np.add.at(self._sums.setdefault(name, np.zeros(self._shape)), places, sums)
            if name in self.by_step[-1]:
                self.by_step[-1][name] += sums.sum().item()

    def steps_taken(self) -> Iterator[dict[str, float]]:
        """Yield of each step its number, its tokens, how many of them have which mark, and how large log-ratios are."""
        for one in self.by_step:
            yield {name: value for name, value in one.items() if name != "sizes"} | {
                "log_ratio_size": one["sizes"] / one["tokens"]
            }

    def sums(self, units: Units) -> TokenSums:
        """Return the sums of all rows."""
        counts = {name: one.astype(np.int64) for name, one in self._sums.items() if name not in ("sums", "sizes")}
        tokens = counts.pop("tokens")
        return TokenSums(units.sequences.prompt_hashes, tokens, self._sums["sums"], self._sums["sizes"], counts)

    def _place(self, unit: str, member: int) -> tuple[int, int]:
        """Return the row of a sequence of a unit, and which of its answers it is."""
        if self.apart:
            name, _, side = unit.rpartition("#")
            return self._rows[name], SIDES.index(side)
        return self._rows[unit], member
