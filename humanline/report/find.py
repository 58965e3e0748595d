"""What a folder is: a run, answers, or the tables of a suite of runs; or why it is nothing that can be reported on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from humanline.evaluate.answers import SAMPLES, SCORED
from humanline.evaluate.records import NAME as EVALUATION
from humanline.system.paths import PathError, absolute

Kind = Literal["run", "answers", "study"]
MOST = 64  # of one kind in a report, as many as can be told apart
_RUN = {"config.json", "metrics.jsonl"}
_TRACES = ("config.json", "results.sqlite", "runs.csv")  # what a folder holds that may have been meant
#: Of a testbed: folders in which `humanline reproduce` leaves tables of their own.
_PARTS = ("sampling", "chosen", "further")
_STUDY = ("runs.csv", "findings.csv", "frontier.csv", "paper.csv", "chosen.csv", "further.csv")


class ReportError(ValueError):
    """Something that no report can be made of, or written to."""


class Found(NamedTuple):
    """A folder or file, what it is, and its name in the report, which no other of its kind has."""

    kind: Kind
    path: Path
    name: str


def find(paths: Sequence[str]) -> list[Found]:
    """Return what each path is, in order; of a folder of such folders, what is in it; what is named twice, once.

    Of the folder of a suite, what is in it are the tables of its testbeds; with a testbed come its parts (sampling,
    chosen, further).

    Raises
    ------
    ReportError
        If there is no such file or folder, it is none that a report can be made of, or there are more than 64.
    """
    found: dict[Path, Kind] = {}
    for given in paths:
        for path, kind in _of(given):
            found.setdefault(path, kind)
    for kind in ("run", "answers", "study"):
        count = list(found.values()).count(kind)
        if count > MOST:
            raise ReportError(f"{count} folders of the kind {kind!r} are more than a page shows; name at most {MOST}")
    names = {kind: _names([path for path, own in found.items() if own == kind]) for kind in set(found.values())}
    return [Found(kind, path, names[kind][path]) for path, kind in found.items()]


def overlooked(paths: Sequence[str]) -> list[str]:
    """Return what `find` leaves out of the folders it looks into, though it looks like a run or a suite, and why."""
    notes: dict[str, None] = {}
    for given in paths:
        for child, kind in _looked_into(given)[2]:
            if kind is None and any((child / name).is_file() for name in _TRACES):
                notes[f"{child.parent.name}/{child.name} is left out; it {_why(child)}."] = None
    return list(notes)


def _of(given: str) -> Iterator[tuple[Path, Kind]]:
    path, kind, inside = _looked_into(given)
    children = [(child, of_child) for child, of_child in inside if of_child is not None]
    if kind is not None and kind != "study":
        yield path, kind
    elif children:
        yield from children
    else:
        raise ReportError(f"{given!r} {_why(path)}")


def _looked_into(given: str) -> tuple[Path, Kind | None, list[tuple[Path, Kind | None]]]:
    """Return a path, what it is, and what is looked at in its place where it is none of runs and answers itself."""
    try:
        path = absolute(given).resolve()
    except PathError as error:
        raise ReportError(f"{given!r} {error}") from None
    try:
        if not path.exists():
            raise ReportError(f"{given!r}: there is no such folder or file")
        kind = _kind(path)
        inside = sorted(path.iterdir()) if kind is None and path.is_dir() else []
        inside += [path] if kind == "study" else []
        inside += [child / part for child in inside for part in _PARTS if (child / part).is_dir()]
        return path, kind, [(child, _kind(child, child=True)) for child in inside]
    except OSError as error:
        raise ReportError(f"{given!r} cannot be read: {error.strerror}") from None


def _kind(path: Path, *, child: bool = False) -> Kind | None:
    if path.is_file():
        return "answers" if path.suffix == ".jsonl" and path.name not in _RUN and not child else None
    names = {one.name for one in path.iterdir()} if path.is_dir() else set()
    if names >= _RUN:
        return "run"
    if names & {EVALUATION, SAMPLES, SCORED}:
        return "answers"
    return "study" if "runs.csv" in names and names & set(_STUDY[1:]) else None


def _why(path: Path) -> str:
    if path.is_file() and path.name in _RUN:
        return f"is a file of a run, not the run: name its folder, {str(path.parent)!r}"
    if path.is_file():
        return "is no file of answers: `humanline sample` and `humanline score` write them, with names in .jsonl"
    if path.parent.joinpath("config.json").is_file() and path.name == "final":
        return f"is the model of a run, not the run: name {str(path.parent)!r}"
    if (path / "config.json").is_file():
        return (
            "holds a config.json, but no metrics.jsonl: it is a model, or a run that has not begun, or that lost its "
            "metrics"
        )
    if (path / "results.sqlite").is_file():
        return (
            "is a suite that has no tables yet: `humanline reproduce` writes them when all its runs are there, and the "
            "same command goes on with those that it keeps"
        )
    if (path / "runs.csv").is_file():
        return (
            "holds runs.csv and no table made of it: a suite that was stopped, with which the same command of "
            "`humanline reproduce` goes on, or something else"
        )
    return (
        "is no run (config.json and metrics.jsonl), no answers (a folder of `humanline evaluate`, or a .jsonl file of "
        "`humanline sample`), no tables of `humanline reproduce` (runs.csv), and no folder of any of these"
    )


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return a name for each path: its last part, with as many of those before it as it takes to be unlike others.

    Of files without their suffix, where no folder beside one has that name.
    """
    bare = {path: path.with_suffix("").parts if path.is_file() else path.parts for path in paths}
    counts = Counter(bare.values())
    parts = {path: own if counts[own] == 1 else path.parts for path, own in bare.items()}
    names: dict[Path, str] = {}
    for path, own in parts.items():
        count = 1
        while count < len(own) and any(other[-count:] == own[-count:] for one, other in parts.items() if one != path):
            count += 1
        name = "/".join(own[-count:])
        names[path] = name.encode("utf-8", "backslashreplace").decode("utf-8")  # bytes that are no UTF-8, as text
    return names
