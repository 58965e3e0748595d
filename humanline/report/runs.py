"""Runs as their folders tell of them: finished, going on, stopped or failed, of this version or another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline import __version__
from humanline.plots.learning_curves import Lines, Look
from humanline.report.find import Found
from humanline.system.log import RUN_LOG
from humanline.train.run.card import FACTS
from humanline.train.run.facts import facts_of
from humanline.train.run.looks import count, interval, looks_of, numbers
from humanline.train.run.metrics import FoundRows, lenient_rows, read_object
from humanline.train.run.status import how_it_ended, state_of

_LAST_BYTES = 4000  # of an error log that are looked at
_LARGEST = 1e300  # of what is drawn: axes reach beyond their points, and differences of points must be finite


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a report tells of a run.

    Parameters
    ----------
    name : str
    state : str
        "finished", "going on" or "not finished".
    notes : list of str
        What a reader must know before the numbers.
    facts : mapping
        As `humanline.train.run.facts.facts_of` tells them.
    looks : list of mapping
        All held-out ones.
    lines : Lines
        For the learning curves.
    level : mapping or None
        How probable the start found the data, as levels.json has it.
    """

    name: str
    state: str
    notes: list[str]
    facts: Mapping[str, Any]
    looks: list[dict[str, Any]]
    lines: Lines
    level: Mapping[str, Any] | None


def read_run(found: Found) -> RunReport:
    """Return what the folder of a run tells; what cannot be read of it is said in the notes."""
    folder, notes = found.path, []
    trees = {}
    for name in ("config", "data", "start"):
        trees[name] = _tree(folder / f"{name}.json")
        if not trees[name]:
            notes.append(f"{name}.json is missing, or no JSON object: what it says is not shown.")
    metrics = lenient_rows(folder / "metrics.jsonl")
    notes += _of_metrics(metrics)
    software = _software(folder)
    facts = facts_of(trees["config"], trees["data"], trees["start"], metrics.rows, software)
    version = software.get("humanline")
    if trees["config"] and facts["title"] is None:
        by = "another version of humanline" if version is None else f"version {version}"
        notes.append(
            f"config.json cannot be read by this version ({__version__}): it is of {by}, or was changed. Its settings "
            "are shown as they are, and not said in words."
        )
    elif version is not None and version != __version__:
        notes.append(f"Made by version {version} of humanline, read by {__version__}.")
    state, why = _state(folder, facts)
    looks = looks_of(metrics.rows)
    lines, beyond = _lines(found.name, metrics.rows, looks)
    return RunReport(
        name=found.name,
        state=state,
        notes=[*why, *notes, *beyond],
        facts=facts,
        looks=looks,
        lines=lines,
        level=_tree(folder / "levels.json") or None,
    )


def _tree(file: Path) -> dict[str, Any]:
    try:
        return read_object(file.read_bytes())
    except OSError:
        return {}


def _of_metrics(found: FoundRows) -> list[str]:
    notes = []
    if found.damaged:
        few = ", ".join(map(str, found.damaged[:6])) + (" ..." if len(found.damaged) > 6 else "")
        notes.append(f"metrics.jsonl is damaged: {len(found.damaged)} lines are no rows and left out (line {few}).")
    if found.unread:
        notes.append(f"metrics.jsonl cannot be read: {found.unread}.")
    elif not found.rows:
        notes.append("metrics.jsonl has no row yet: there is nothing to draw.")
    return notes


def _software(folder: Path) -> dict[str, Any]:
    """Return the versions of what a run was made by: as its model's facts say them, or its last checkpoint."""
    # A run that goes on may remove a checkpoint between finding it and looking at it.
    last = sorted(folder.glob("checkpoints/step-*/state.json"), key=lambda path: _written(path.parent))
    for file in [folder / "final" / FACTS, *reversed(last)]:
        software = _tree(file).get("software")
        if isinstance(software, Mapping) and software:
            return {str(name): str(version) for name, version in software.items()}
    return {}


def _state(folder: Path, facts: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return how a run stands, as `humanline status` says it, and what is to be said of it."""
    broke, state = facts["broke"], state_of(folder)
    notes = []
    if state == "going on":
        notes = [f"It is still going on: what is shown is of its first {facts['updates']} updates."]
    elif state == "not finished":
        said = f"It has not finished: it was stopped, killed, or failed, after {facts['updates']} updates or more."
        notes = [f"{said} `humanline train ... --resume` goes on with it where it can.", *_end(folder)]
    if broke is not None:
        notes.append(f"It was seen to break: {', '.join(f'{name} {value}' for name, value in broke.items())}.")
    return state, notes


def _end(folder: Path) -> list[str]:
    """Return what the last process of a run ended by: as run.log says it, and error.log where it says more than that.

    Lines are only ever added to error.log, so that its last one may be of a failure that a later process went on from.
    """
    ended, fault = how_it_ended(folder), _last_line(folder / "error.log")
    notes = [f"It ended by: {ended}"] if ended else []
    is_newer = _written(folder / "error.log") >= _written(folder / RUN_LOG)
    if fault and fault not in ended and (is_newer or not ended):
        which = "" if is_newer else ", older than that of its run.log"
        notes.append(f"The last line of its error.log{which}: {fault}")
    return notes


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _last_line(file: Path) -> str:
    try:
        with open(file, "rb") as log:
            log.seek(max(0, file.stat().st_size - _LAST_BYTES))
            lines = log.read(_LAST_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _lines(name: str, rows: list[dict[str, Any]], looks: list[dict[str, Any]]) -> tuple[Lines, list[str]]:
    """Return what is drawn of a run, and which numbers of it are too large to be."""
    beyond: Counter[str] = Counter()

    def drawn(row: Mapping[str, Any]) -> dict[str, float]:
        found = numbers(row)
        large = {one for one, value in found.items() if abs(value) > _LARGEST}
        beyond.update(large)
        return {one: value for one, value in found.items() if one not in large}

    lines = Lines(
        name=name,
        steps={step: drawn(row) for row in rows if (step := count(row, "step")) is not None},
        looks=[_drawn_look({**look, "metrics": drawn(look["metrics"])}) for look in looks],
        rounds={number: drawn(row) for row in rows if (number := count(row, "round")) is not None},
    )
    listed = ", ".join(f"{times} of {one}" for one, times in sorted(beyond.items()))
    return lines, [f"Numbers beyond {_LARGEST:g} are in no curve: {listed}."] if beyond else []


def _drawn_look(look: Mapping[str, Any]) -> Look:
    metrics = look["metrics"]
    ends = {name: found for name in metrics if (found := interval(look, name)) is not None}
    return Look(look["updates"], metrics, ends)
