"""One run of a cell: trained as `humanline train` trains, then measured."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from humanline.reproduce.answers import Measured, Model, measure
from humanline.reproduce.cells import Cell
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.recipe import recipe
from humanline.reproduce.shared_answers import train_sharing
from humanline.reproduce.start import ANSWERS_OF_START, SCORE_SEED, Pairs, Start, make_pairs, make_start, prompt_file
from humanline.reproduce.subsets import some_pairs
from humanline.reproduce.testbeds.base import Testbed
from humanline.reproduce.versions import made_by
from humanline.stats import mean_estimate


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a cell: from which start model, with which draw of the pairs and their order.

    Parameters
    ----------
    testbed : Testbed
    cell : Cell
    start, draw : int
    """

    testbed: Testbed
    cell: Cell
    start: int
    draw: int

    @property
    def name(self) -> str:
        """Return what tells this run from every other, for people and for files."""
        return f"{self.testbed.name}/{self.cell.name}-start{self.start}-draw{self.draw}"


def run(job: Job, folder: Path, *, keep_runs: bool) -> Outcome:
    """Train and measure one run; its start model and pairs are made if they are not there.

    Parameters
    ----------
    job : Job
    folder : Path
        Start models and pairs lie in ``starts`` there, and the run in ``runs`` while it goes on.
    keep_runs : bool
        Whether the run's folder stays.

    Raises
    ------
    ModelError, OSError, ValueError
        As `train_sharing` does; a run that ended as `Outcome.status` says is an outcome, and no error.
    """
    from humanline.train.config import TrainConfig
    from humanline.train.run.metrics import read_metrics
    from humanline.train.run.processes import NonFiniteError

    start, pairs = _made(job, folder)
    testbed, calls = job.testbed, pairs.scorer_calls
    config = _configuration(job, folder, start, pairs)
    output = Path(config["output"])
    shutil.rmtree(output, ignore_errors=True)
    began = time.process_time()
    try:
        shared = start.model.parents[1] / ANSWERS_OF_START
        result = train_sharing(TrainConfig.model_validate(config), shared)
        measured = measure(Model(testbed, result.model), SCORE_SEED, start.measured.entropy)
        status, held_out = "done", result.final
    except NonFiniteError:  # in a step, or in the answers of what the last step has left
        status, held_out, measured = "not finite", {}, None
    seconds = time.process_time() - began
    metrics = output / "metrics.jsonl"
    rows = list(read_metrics(metrics)) if metrics.is_file() else []  # the first round may have had no numbers
    if not keep_runs:
        shutil.rmtree(output, ignore_errors=True)
        shutil.rmtree(_own_data(output), ignore_errors=True)
    if job.cell.round_steps is not None:
        calls = sum(row["completions"] for row in rows if "round" in row)
    return _outcome(job, status, start.measured.score, measured, held_out, rows, calls, seconds)


def configured(job: Job, folder: Path) -> dict[str, Any]:
    """Return the configuration of a job in a suite's folder; its start model and pairs are made if they are not there.

    Raises
    ------
    ModelError, OSError, ValueError
        As `make_start` and `make_pairs` do.
    """
    return _configuration(job, folder, *_made(job, folder))


def _made(job: Job, folder: Path) -> tuple[Start, Pairs]:
    """Return a job's start model and pairs, which are made if they are not there."""
    starts = folder / "starts"
    start = make_start(job.testbed, "near", job.start, starts)
    return start, make_pairs(job.testbed, job.cell.data, job.start, job.draw, starts)


def _configuration(job: Job, folder: Path, start: Start, pairs: Pairs) -> dict[str, Any]:
    testbed, starts, output = job.testbed, folder / "starts", folder / "runs" / job.name
    return recipe(
        job.cell,
        testbed,
        model=start.model,
        pairs=some_pairs(job.cell, pairs, start.model, _own_data(output)),
        prompts=prompt_file(testbed, "pairs", starts),
        distance=prompt_file(testbed, "distance", starts),
        output=output,
        seed=100 * job.start + job.draw,
    )


def _own_data(output: Path) -> Path:
    """Return the folder of data that a single run has."""
    return output.with_name(f"{output.name}-data")


def _outcome(
    job: Job,
    status: str,
    start_score: float,
    measured: Measured | None,
    held_out: dict[str, float],
    rows: list[dict[str, Any]],
    scorer_calls: int,
    seconds: float,
) -> Outcome:
    steps = [row for row in rows if "step" in row]
    unknown = Measured(*[math.nan] * len(Measured.__dataclass_fields__))
    found = asdict(measured or unknown)
    clipped = [row["clipped_low"] + row["clipped_high"] for row in steps if "clipped_low" in row]
    saturation = [row["saturation"] for row in steps[-max(1, len(steps) // 10) :] if "saturation" in row]
    distances = ("kl_to_start", "kl_to_start_se", "kl_from_start", "kl_from_start_se")
    return Outcome(
        testbed=job.testbed.name,
        cell=job.cell,
        start=job.start,
        draw=job.draw,
        status=status,
        start_score=start_score,
        **found,
        **{name: held_out.get(name, math.nan) for name in distances},
        clipped=mean_estimate(clipped).mean if clipped else math.nan,
        saturation=mean_estimate(saturation).mean if saturation else math.nan,
        updates=len(steps),
        scorer_calls=scorer_calls,
        seconds=seconds,
        task=made_by(job.testbed),
    )
