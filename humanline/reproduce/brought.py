"""Start models beside a table of runs, brought along so that what is run with these begins where they did."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import get_args

from humanline.reproduce.start import ANSWERS_OF_START, FACTS, TOLD, has_start, has_told, model_digest
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


def bring(starts: Path, testbed: Testbed, numbers: Collection[int], folder: Path) -> list[str]:
    """Copy start models with the pairs of their answers into a suite's folder of them; return their names.

    One that is there already is left as it is, and one that was made of another task, or is not whole, where it is. A
    copy counts only when `make_start` has measured it.

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
        If pairs are of another model, or have changed: the judge's scores differ in them by other than is told.
    OSError
        If they cannot be copied.
    """
    brought: list[str] = []
    if folder.resolve() == starts.resolve():
        return brought
    for source in get_args(Source):
        for number in sorted(set(numbers)):
            name = f"{source}-{number}"
            target = folder / testbed.name / name
            there = has_start(testbed, source, number, folder) or has_told(testbed, source, number, folder)
            if there or not has_start(testbed, source, number, starts):
                continue
            make_folder(target.parent)
            _copy(starts / testbed.name / name, target, testbed)
            brought.append(name)
    return brought


def _copy(place: Path, target: Path, testbed: Testbed) -> None:
    """Copy a start model's folder whole, or not at all."""
    partial = partial_of(target)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(place, partial, ignore=shutil.ignore_patterns(ANSWERS_OF_START))  # they are drawn anew
        (partial / FACTS).rename(partial / TOLD)
        for pairs in sorted(partial.glob("pairs-*")):
            if (pairs / FACTS).is_file():
                _check_pairs(pairs, place / pairs.name, testbed)
            else:  # not whole: they are drawn anew
                shutil.rmtree(pairs)
        shutil.rmtree(target, ignore_errors=True)  # what a run that was killed has left
        os.replace(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _check_pairs(pairs: Path, place: Path, testbed: Testbed) -> None:
    """Raise ValueError if pairs are of another model, or the judge finds another gap in them than is told."""
    try:
        facts = json.loads((pairs / FACTS).read_text(encoding="utf-8"))
        if facts.get("model") != model_digest(pairs.parent):
            raise ValueError("they are not told to be of the model beside them")
        told = facts["gap"]
        rows = [json.loads(line) for line in (pairs / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]
        judged = testbed.task.judged
        gaps = [judged(one["prompt"], one["chosen"]) - judged(one["prompt"], one["rejected"]) for one in rows]
        gap = sum(gaps) / max(1, len(gaps))
        if abs(gap - told) <= 1e-9:
            return
        said = f"their mean gap by the judge is {gap:.9g}, and {FACTS} says {told:.9g}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"they cannot be taken ({type(error).__name__}: {error})"
    raise ValueError(f"{place}: these pairs are not those that were drawn: {said}. Take the folder anew, or remove it")
