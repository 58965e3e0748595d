"""What has come of a plan: of each run how far it is, whether it is the plan's, and what its answers are worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.evaluate.answers import SCORED
from humanline.evaluate.model_files import COMMIT, files_of
from humanline.evaluate.records import NAME, Evaluation, EvaluationError, read_evaluation
from humanline.evaluate.run import as_rounds, limits_of
from humanline.reproduce.scales.plan import PlannedRun
from humanline.reproduce.scales.write import (
    ANSWERED,
    ANSWERING,
    ANSWERS_EACH,
    ANSWERS_LENGTH,
    EVALUATIONS,
    RUNS,
    Prepared,
    settings_of,
)
from humanline.system.folders import MANIFEST
from humanline.train.config.rounds import SamplingConfig
from humanline.train.online.stages import read_rollouts
from humanline.train.policy.hub import HUB
from humanline.train.run.fingerprint import differences, flat, same_settings
from humanline.train.run.metrics import lenient_rows, read_object
from humanline.train.run.status import StatusError, read_status

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Found:
    """What a plan's folder has of a run.

    Attributes
    ----------
    run : PlannedRun or None
        None: the start model.
    state : "not begun", "not finished", "finished", "evaluated" or "refused"
        refused: what is there is not the plan's, or cannot be read.
    note : str
        How far it is, or why it is refused; of an evaluation, what it lacks.
    values : mapping of str to float
        Of an item that has a score, the mean over its answers.
    lengths : mapping of str to float
        Of an item, mean tokens of its answers; empty where the evaluation does not say.
    evaluation : Evaluation or None
    clipped : float or None
        Share of tokens of all steps whose log-ratio was clipped; None where nothing clips.
    """

    run: PlannedRun | None
    state: str
    note: str = ""
    values: Values | None = None
    lengths: Values | None = None
    evaluation: Evaluation | None = None
    clipped: float | None = None


def read_found(plan: Prepared) -> dict[str, Found]:
    """Return what a plan's folder has, by name, of every run of the scale, asked for or not, and of its starts."""
    found = {name: _with_evaluation(plan, name, Found(None, "not begun")) for name in plan.scale.starts}
    for run in plan.scale.runs:
        found[run.name] = _with_evaluation(plan, run.name, _trained(plan, run))
    return found


def _trained(plan: Prepared, run: PlannedRun) -> Found:
    folder = plan.folder / RUNS / run.name
    if not folder.exists():
        return Found(run, "not begun")
    try:
        status = read_status(folder)
        config = read_object((folder / "config.json").read_bytes())
    except (StatusError, OSError) as error:
        return Found(run, "refused", f"{folder} is no run that can be read: {error}")
    if not config:
        return Found(run, "refused", f"{folder}: config.json is damaged, so that nobody knows what was run")
    table = differences(same_settings(config), settings_of(plan.configs[run.name]))
    if table:
        lines = "; ".join(" ".join(line.split()) for line in table.splitlines()[1:])
        return Found(run, "refused", f"{folder} has other settings than the plan (name, then, now): {lines}")
    if status.broke is not None:
        return Found(run, "refused", f"{folder} was seen to break: {dict(status.broke)}")
    if not (folder / "final" / MANIFEST).is_file():
        return Found(run, "not finished", f"{status.updates} of {status.steps} steps, {status.state}")
    return Found(run, "finished", "not evaluated yet", clipped=_clipped(folder))


def _clipped(folder: Path) -> float | None:
    rows = [row for row in lenient_rows(folder / "metrics.jsonl").rows if "clipped_low" in row]
    shares = [row["clipped_low"] + row["clipped_high"] for row in rows]
    return sum(shares) / len(shares) if shares else None


def _with_evaluation(plan: Prepared, name: str, found: Found) -> Found:
    """Return a run with its evaluation, if that is there, and of this run's model."""
    folder = plan.folder / EVALUATIONS / name
    if found.state == "refused" or not (folder / NAME).exists():
        return found
    if found.run is not None and found.state != "finished":
        return Found(found.run, "refused", f"{folder} has an evaluation, and the run is {found.state}: of what is it?")
    try:
        evaluation = read_evaluation(folder)
        wrong = _not_the_plans(plan, name, folder, evaluation)
        lengths = _lengths(folder) if plan.scale.evaluation == "scored" else {}
    except (EvaluationError, ValueError, OSError) as error:
        said = str(error)
        return Found(found.run, "refused", said if said.startswith(str(folder)) else f"{folder}: {said}")
    if wrong:
        return Found(found.run, "refused", f"{folder}: {wrong}")
    values = {item.id: sum(item.known) / len(item.known) for item in evaluation.items if item.known}
    lost = len(evaluation.items) - len(values)
    note = f"{lost} of {len(evaluation.items)} prompts have no score" if lost else ""
    return Found(found.run, "evaluated", note, values, lengths, evaluation, found.clipped)


def _not_the_plans(plan: Prepared, name: str, folder: Path, evaluation: Evaluation) -> str:
    """Return why an evaluation is none of this run, or start, as the plan asks for it; nothing if it is one."""
    if plan.scale.evaluation == "alpaca":
        scoring = evaluation.settings.get("scoring")
        kind = scoring.get("kind") if isinstance(scoring, Mapping) else None
        if kind != "alpaca_eval" or evaluation.name != name:
            return f"it is of {evaluation.name!r}, scored by {kind!r}, and not AlpacaEval's of {name!r}"
        folder = folder / ANSWERED
        # How the form of answers is scored is of no interest there.
        limits = {"max_length": ANSWERS_LENGTH, "max_prompt_length": None}
        then = read_evaluation(folder).settings
        expected = {"sampling": _drawn(ANSWERING, ANSWERS_EACH), "limits": limits}
    else:
        prepared = as_rounds(plan.configs[plan.scale.starts.get(name, name)], None)
        wanted = prepared.rounds
        assert wanted is not None
        scored = same_settings({"source": {"scoring": wanted.scoring.model_dump(mode="json")}})
        then, expected = evaluation.settings, {"sampling": _drawn(wanted.sampling, wanted.samples)}
        expected["limits"] = limits_of(prepared)
        expected["scoring"] = {one.removeprefix("source.scoring."): value for one, value in scored.items()}
    table = differences(flat({part: then.get(part) for part in expected}), flat(expected))
    if table:
        return f"it was not asked as the plan asks:\n{table}"
    if name in plan.configs:
        return _other_model(plan.folder / RUNS / name / "final", folder)
    return _other_start(plan, plan.configs[plan.scale.starts[name]].model, folder)


def _drawn(sampling: SamplingConfig, samples: int) -> dict[str, Any]:
    """Return how answers are drawn, as an evaluation has it."""
    return sampling.model_dump(mode="json", exclude={"engine", "mismatch_limit"}) | {"samples": samples}


def _other_start(plan: Prepared, model: str, folder: Path) -> str:
    """Return whether an evaluation was of another model than that which runs begin with; nothing where it was not.

    By its name, and by its files where they are: a report may be made on a machine that has none of them, or of a model
    on the hub those alone that were needed there.
    """
    settings, problem = _asked_with(folder)
    if problem:
        return problem
    table = differences({"model": settings.get("model")}, {"model": model})
    if not table:
        where = model if model.startswith(HUB) else str(plan.folder / Path(model).expanduser())
        then, now = _files_then(settings), _files_now(where)
        if model.startswith(HUB) or not now:
            then, now = ({name: one[name] for name in one if name in then and name in now} for one in (then, now))
        table = differences(then, now)
    return f"the model that was asked is not the one that runs begin with, {model}:\n{table}" if table else ""


def _other_model(final: Path, folder: Path) -> str:
    """Return whether an evaluation was of other files than a run's model now has; nothing where they agree."""
    settings, problem = _asked_with(folder)
    if problem:
        return problem
    table = differences(_files_then(settings), _files_now(str(final)))
    return f"the model that was asked is not the one in {final}:\n{table}" if table else ""


def _asked_with(folder: Path) -> tuple[Mapping[str, Any], str]:
    """Return what an evaluation's folder says it is of, and why that cannot be read, if it cannot."""
    try:
        return dict(json.loads((folder / "plan.json").read_text(encoding="utf-8"))["settings"]), ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {}, f"its plan.json, which says what model was asked, cannot be read ({type(error).__name__})"


def _files_then(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return sizes and contents of a model's files when it was asked, without times, which a copy may change.

    Nor with the commit of the hub, which an edited card changes.
    """
    files = {name: text for name, text in settings.items() if name.startswith("model files.")}
    return {name: _untimed(str(text)) for name, text in files.items() if name != f"model files.{COMMIT}"}


def _files_now(model: str) -> dict[str, str]:
    """Return the same of a model now; empty where its files are not."""
    return {f"model files.{name}": _untimed(text) for name, text in files_of(model).items()}


def _untimed(text: str) -> str:
    size, _, sha = text.split(" ")
    return f"{size} {sha}"


def _lengths(folder: Path) -> dict[str, float]:
    return {
        one.id: sum(len(answer.ids) for answer in one.completions) / len(one.completions)
        for one in read_rollouts(folder / SCORED)
        if one.completions
    }


def mean_of(values: Values) -> float:
    """Return the mean of an evaluation's items."""
    return sum(values.values()) / len(values)


def summary_of(name: str, found: Found) -> dict[str, Any]:
    """Return a row of runs.csv."""
    row: dict[str, Any] = {"run": name, "state": found.state}
    row |= {"score": None, "items": None, "length": None, "length_controlled": None, "clipped": found.clipped}
    if found.evaluation is not None and found.values:
        row |= {"score": mean_of(found.values), "items": len(found.values)}
        row["length"] = found.evaluation.summary.get("tokens", found.evaluation.summary.get("avg_length"))
        row["length_controlled"] = found.evaluation.summary.get("length_controlled_winrate")
    return row | {"note": found.note, "differs": "" if found.run is None else found.run.differs}
