"""Start models beside a table of runs, brought along so that what is run with these begins where they did."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import get_args

from humanline.reproduce.start import ANSWERS_OF_START, FACTS, PAIRS, TOLD, has_start, model_digest, told_start
from humanline.reproduce.testbeds.base import Source, Testbed
from humanline.system.files import make_folder, partial_of

STARTS = "starts"
_UP = 3  # folders above a table: OUT/TESTBED/further/runs.csv is the deepest that a suite leaves


def starts_beside(table: Path, testbed: Testbed) -> Path | None:
    """Return the nearest `starts` folder above a table, three folders up at most, that has a testbed's start models."""
    for above in list(table.resolve().parents)[:_UP]:
        if (above / STARTS / testbed.name).is_dir():
            return above / STARTS
    return None


def has_any_beside(table: Path, wanted: Iterable[tuple[Testbed, int]]) -> bool:
    """Return whether any of these start models lies beside a table, whole and made of the task as it is now."""
    return any(
        has_start(testbed, source, number, beside)
        for testbed, number in wanted
        if (beside := starts_beside(table, testbed)) is not None
        for source in get_args(Source)
    )


def bring(starts: Path, testbed: Testbed, numbers: Collection[int], folder: Path) -> list[str]:
    """Copy start models with the pairs of their answers into a suite's folder of them; return what was copied.

    Of one that is there already only draws of pairs that it lacks are copied, and these only where it is the same model
    bit for bit. One that was made of another task, or is not whole, stays where it is. A copy counts only when
    `make_start` has measured it.

    Parameters
    ----------
    starts : Path
        Where they lie, as `starts_beside` finds it.
    testbed : Testbed
    numbers : collection of int
        Of the start models that are wanted.
    folder : Path
        Of the suite: its own `starts` folder.

    Raises
    ------
    ValueError
        If pairs are of another model, or have changed: the judge's scores differ in them by other than is told; or if
        a draw is there already, of the same model, with other pairs.
    OSError
        If they cannot be copied.
    """
    brought: list[str] = []
    if folder.resolve() == starts.resolve():
        return brought
    for source in get_args(Source):
        for number in sorted(set(numbers)):
            name = f"{source}-{number}"
            place, target = starts / testbed.name / name, folder / testbed.name / name
            if not has_start(testbed, source, number, starts):
                continue
            told = told_start(testbed, source, number, folder) is not None
            if not (told or has_start(testbed, source, number, folder)):
                make_folder(target.parent)
                _copy_start(place, target, testbed)
                brought.append(name)
            elif _is_same_model(place, target):
                brought += [f"{name}/{pairs}" for pairs in _copy_pairs(place, target, testbed)]
    return brought


def _is_same_model(place: Path, target: Path) -> bool:
    """Return whether two start models are one, bit for bit; not where a manifest says nothing."""
    try:
        return model_digest(place) == model_digest(target)
    except (OSError, ValueError, KeyError):
        return False


def _copy_start(place: Path, target: Path, testbed: Testbed) -> None:
    """Copy a start model's folder whole, or not at all; its pairs where they are whole, else they are drawn anew."""
    with _copied(place, target, ANSWERS_OF_START, "pairs-*") as partial:  # answers too are drawn anew
        (partial / FACTS).rename(partial / TOLD)
        _copy_pairs(place, partial, testbed)


def _copy_pairs(place: Path, target: Path, testbed: Testbed) -> list[str]:
    """Copy those of a start model's draws of pairs that are whole and not there; return their names."""
    copied: list[str] = []
    for pairs in sorted(place.glob("pairs-*")):
        own = target / pairs.name
        if not (pairs / FACTS).is_file():
            continue
        if (own / FACTS).is_file():
            _refuse_other_pairs(own, pairs)
            continue
        with _copied(pairs, own) as partial:
            _check_pairs(partial, pairs, testbed)
        copied.append(pairs.name)
    return copied


def _refuse_other_pairs(own: Path, pairs: Path) -> None:
    """Raise ValueError if a draw of pairs of one model is there twice, and not the same: runs would not be of one."""
    if (own / PAIRS).read_bytes() != (pairs / PAIRS).read_bytes():
        raise ValueError(
            f"{own}: these pairs are others than those in {pairs}, of the same start model: runs that learn from them "
            f"cannot stand for one draw with runs of the table there. Take a new folder as --out; or, if no run here "
            f"has learned from them, remove {own}"
        )


@contextlib.contextmanager
def _copied(place: Path, target: Path, *but: str) -> Iterator[Path]:
    """Copy a folder without some of its files; changed by the body the copy comes to its place whole or not at all."""
    partial = partial_of(target)
    _remove(partial)
    try:
        shutil.copytree(place, partial, ignore=shutil.ignore_patterns(*but))
        _let_write(partial)  # whoever may only read theirs may do as they like with a copy
        yield partial
        _remove(target)  # what a run that was killed has left
        os.replace(partial, target)
    except BaseException:
        _remove(partial)
        raise


def _remove(folder: Path) -> None:
    if folder.is_dir():
        _let_write(folder)  # a copy that broke off has folders as theirs are
        shutil.rmtree(folder, ignore_errors=True)


def _let_write(folder: Path) -> None:
    for one in (folder, *folder.rglob("*")):
        one.chmod(one.stat().st_mode | stat.S_IWUSR)


def _check_pairs(pairs: Path, place: Path, testbed: Testbed) -> None:
    """Raise ValueError if pairs are of another model, or the judge finds another gap in them than is told."""
    try:
        facts = json.loads((pairs / FACTS).read_text(encoding="utf-8"))
        if facts.get("model") != model_digest(place.parent):
            raise ValueError("they are not told to be of the model beside them")
        told = facts["gap"]
        rows = [json.loads(line) for line in (pairs / PAIRS).read_text(encoding="utf-8").splitlines()]
        judged = testbed.task.judged
        gaps = [judged(one["prompt"], one["chosen"]) - judged(one["prompt"], one["rejected"]) for one in rows]
        gap = sum(gaps) / max(1, len(gaps))
        if abs(gap - told) <= 1e-9:
            return
        said = f"their mean gap by the judge is {gap:.9g}, and {FACTS} says {told:.9g}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"they cannot be taken ({type(error).__name__}: {error})"
    raise ValueError(f"{place}: these pairs are not those that were drawn: {said}. Take the folder anew, or remove it")
