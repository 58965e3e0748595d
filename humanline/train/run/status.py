"""Where a run stands, as its folder tells: read only, of a run that goes on, was stopped, killed or is finished."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from humanline.system.folders import MANIFEST
from humanline.system.lock import last_holder, seen_at_work
from humanline.system.log import BEGUN, ENDED, RESUMED, RUN_LOG
from humanline.system.terminal import told
from humanline.train.run.looks import best_look, count, interval, is_number, looks_of, shown_metrics, updates_of
from humanline.train.run.metrics import lenient_rows, read_object

State = Literal["finished", "going on", "not finished"]
_LONGEST_STEP = 1e9  # seconds: a clock that says more was wrong
_RECENT = 50  # steps whose time tells that of the next ones
_LAST_BYTES = 1 << 16  # of a log that are looked at


class StatusError(ValueError):
    """A folder that holds no run, or none that can be read."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run stands.

    Parameters
    ----------
    state : {"finished", "going on", "not finished"}
        As `state_of` tells it.
    updates : int
        Done, as far as rows of metrics tell.
    steps : int or None
        Of the whole run; in rounds, at most. None where a run of an earlier version does not say.
    seconds : float or None
        A step, from the last 50 and the rounds; None where there is no row yet.
    silent : float or None
        Seconds since the last row was written.
    last, best : mapping or None
        Looks at held-out data: ``updates`` and ``metrics``.
    judged_by : str or None
        The metric by which the best look is the best.
    broke : mapping or None
        What the run was seen to break by.
    holder : str or None
        Which process holds the folder, or held it last.
    ended : str
        What its last process ended by; empty while that goes on, or where nothing tells.
    at_most : bool
        Whether there may be fewer steps: in passes over prompts, of which rounds may leave less than they could.
    """

    state: State
    updates: int
    steps: int | None
    seconds: float | None
    silent: float | None
    last: Mapping[str, Any] | None
    best: Mapping[str, Any] | None
    judged_by: str | None
    broke: Mapping[str, Any] | None
    holder: str | None
    ended: str
    at_most: bool = False

    def lines(self) -> list[str]:
        """Return the status in words, a line a fact."""
        most = "at most " if self.at_most else ""
        total = "of an unknown number" if self.steps is None else f"of {most}{self.steps}"
        share = f" ({self.updates / self.steps:.1%})" if self.steps and not self.at_most else ""
        silent = "" if self.silent is None else f"; last row written {_duration(self.silent)} ago"
        found = {"state": self.state, "step": f"{self.updates} {total}{share}{silent}"}
        if self.state != "finished":
            found["time left"] = self._left()
        found["last look"] = "none yet" if self.last is None else _look(self.last)
        if self.best is not None:
            found["best look"] = f"{_look(self.best)}; judged by {self.judged_by}"
        if self.broke is not None:
            found["broke"] = ", ".join(f"{name} {value}" for name, value in self.broke.items())
        found["lock"] = self._lock()
        if self.ended or self.state == "not finished":  # a finished one of an earlier version has no log
            found["ended"] = self.ended or "nothing says by what: it was killed, or its machine went down"
        return [told(f"{name:<12} {text}") for name, text in found.items()]

    def _left(self) -> str:
        if self.steps is None or self.seconds is None:
            return "not known yet"
        most = "at most " if self.at_most else ""
        left = _duration((self.steps - self.updates) * self.seconds)
        words = f"{most}about {left}, at {self.seconds:.3g} s a step"
        return words if self.state == "going on" else f"{words}, once it is resumed"

    def _lock(self) -> str:
        if self.holder is None:
            return "none"
        return f"held by {self.holder}" if self.state == "going on" else f"free; last held by {self.holder}"


def read_status(folder: str | Path) -> Status:
    """Return where the run of a folder stands; nothing is written, waited for or locked.

    Raises
    ------
    StatusError
        If the folder holds no run, or its metrics are there and cannot be read.
    """
    folder = Path(folder)
    _refuse_other(folder)
    metrics = folder / "metrics.jsonl"
    found = lenient_rows(metrics)
    if found.unread:
        raise StatusError(f"{metrics} cannot be read: {found.unread}")
    rows = found.rows
    looks = looks_of(rows)
    judge, best = best_look(looks)
    state = state_of(folder)
    return Status(
        state=state,
        updates=updates_of(rows),
        steps=_total(folder),
        seconds=_seconds(rows),
        silent=time.time() - metrics.stat().st_mtime if rows else None,
        last=looks[-1] if looks else None,
        best=best,
        judged_by=judge,
        broke=next((row["broke"] for row in rows if isinstance(row.get("broke"), Mapping)), None),
        holder=last_holder(folder),
        ended="" if state == "going on" else how_it_ended(folder),
        at_most=_is_at_most(folder),
    )


def _refuse_other(folder: Path) -> None:
    """Raise StatusError if a folder holds no run: a model and a checkpoint have files of the same names."""
    if not any((folder / name).is_file() for name in ("config.json", "metrics.jsonl", RUN_LOG)):
        raise StatusError(f"{folder} holds no run: there is no config.json, metrics.jsonl or {RUN_LOG} in it")
    is_model = bool({"model_type", "architectures"} & _tree(folder / "config.json").keys())
    if (is_model or (folder / MANIFEST).is_file()) and not (folder / RUN_LOG).is_file():
        whole, what = folder.resolve(), "a model" if is_model else "a checkpoint of a run"
        above = whole.parent if whole.name == "final" else whole.parent.parent
        is_inside = (above / "metrics.jsonl").is_file()
        raise StatusError(f"{folder} holds {what}, not a run" + (f": name {str(above)!r}" if is_inside else ""))


def state_of(folder: Path) -> State:
    """Return how a run stands: one whose folder is held goes on, even where an earlier process has finished it."""
    if seen_at_work(folder):
        return "going on"
    return "finished" if (folder / "final" / MANIFEST).is_file() else "not finished"


def _total(folder: Path) -> int | None:
    """Return the number of steps that a run has written down, or else that its recipe gives."""
    training = _tree(folder / "config.json").get("training")
    of_recipe = training.get("steps") if isinstance(training, Mapping) else None
    own = _tree(folder / "data.json"), {"steps": of_recipe}
    return next((steps for tree in own if (steps := count(tree, "steps"))), None)


def _is_at_most(folder: Path) -> bool:
    """Return whether the number of steps is what rounds can give, which is known when they have been made."""
    tree = _tree(folder / "config.json")
    training, source = tree.get("training"), tree.get("source", tree.get("rounds"))  # `rounds` of earlier versions
    in_rounds = isinstance(source, Mapping) and source.get("kind", "rounds") == "rounds"
    return in_rounds and isinstance(training, Mapping) and training.get("steps") is None


def _tree(file: Path) -> dict[str, Any]:
    try:
        return read_object(file.read_bytes())
    except OSError:
        return {}


def _seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of a step: the mean of the last ones, and the share of a round's own seconds."""
    timed = [row for row in rows if is_number(row.get("seconds")) and 0 <= row["seconds"] < _LONGEST_STEP]
    steps = [float(row["seconds"]) for row in timed if "step" in row]
    if not steps:
        return None
    rounds = [float(row["seconds"]) for row in timed if "round" in row]
    recent = steps[-_RECENT:]
    return sum(recent) / len(recent) + sum(rounds) / len(steps)


def how_it_ended(folder: Path) -> str:
    """Return what the last process of a run ended by, as its log says it; empty where it does not."""
    try:
        with open(folder / RUN_LOG, "rb") as log:
            log.seek(max(0, log.seek(0, 2) - _LAST_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        stamp, _, text = line.partition("  ")
        if text.startswith((BEGUN, RESUMED)):
            return ""
        if text.startswith(ENDED):
            return f"{text.removeprefix(ENDED).lstrip(': ')}, at {stamp}"
    return ""


def _look(look: Mapping[str, Any]) -> str:
    metrics = look["metrics"]
    parts = []
    for name in shown_metrics(metrics):
        error = f" ± {metrics[f'{name}_se']:.2g}" if interval(look, name) is not None else ""
        parts.append(f"{name} {metrics[name]:.4g}{error}")
    return f"after {look['updates']} updates: {'  '.join(parts)}"


def _duration(seconds: float) -> str:
    """Return a time in the two units that matter: 40 s, 12 min 5 s, 3 h 20 min, 2 d 4 h."""
    whole = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for at, (name, size) in enumerate(units):
        if whole >= size:
            count, rest = divmod(whole, size)
            if at + 1 == len(units) or not (more := rest // units[at + 1][1]):
                return f"{count} {name}"
            return f"{count} {name} {more} {units[at + 1][0]}"
    return "0 s"
