"""A report: the page and the two files with all its numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from humanline.plots import check as check_figures
from humanline.plots import frontier
from humanline.plots.inline import inline
from humanline.plots.learning_curves import draw, panels, rows, write_rows
from humanline.report.answers import read_answer_set, rounds_of, side_by_side, unlike
from humanline.report.find import ReportError, find, overlooked
from humanline.report.page import (
    FORMAT,
    answers_tree,
    evaluation_tree,
    group_trees,
    notes_of,
    render,
    run_trees,
    study_tree,
    unlike_data,
    unlike_scores,
    whole_tree,
)
from humanline.report.runs import RunReport, read_run
from humanline.report.studies import Study, read_study
from humanline.system.files import make_folder, write_text
from humanline.system.paths import PathError, absolute

#: How page, tree and points begin, by which an earlier report is known: nothing else is replaced.
_BEGINNINGS = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="generator" content="humanline report">',
    f'{{\n "format": "{FORMAT}"',
    "panel,series,x,y\n",
)


def write_report(paths: Sequence[str], out: str = "report.html", *, prompts: int = 4) -> list[Path]:
    """Write a report of run folders, answers and suites of runs.

    Parameters
    ----------
    paths : non-empty sequence of str
    out : str
        The page; its name ends in .html. An earlier report is replaced.
    prompts : int >= 1
        Of which answers are shown side by side, at most.

    Returns
    -------
    list of Path
        The page, the tree of all that it says (NAME.json) and the points of its learning curves (NAME-curves.csv).

    Raises
    ------
    ReportError
        As `find` does; or if the page's name is not fit, or would replace something that is no report.
    ModuleNotFoundError
        If matplotlib is missing.
    WriteError
        If a file cannot be written.
    """
    if prompts < 1:
        raise ReportError(f"--prompts must be >= 1; got {prompts}")
    files = _files(out)
    check_figures()
    found = find(paths)
    runs = [read_run(one) for one in found if one.kind == "run"]
    given = [read_answer_set(one) for one in found if one.kind == "answers"]
    of_rounds = [answers for one in found if one.kind == "run" for answers in rounds_of(one)]
    studies = [read_study(one) for one in found if one.kind == "study"]

    groups = group_trees(runs)
    curves, charts = _curves(runs, groups)
    study_trees = []
    for place, study in enumerate(studies):
        tree, drawn = _study(study, place)
        study_trees.append(tree)
        charts[f"study-{place}"] = drawn
    tree = whole_tree(
        notes=notes_of(overlooked(paths)),
        runs=run_trees(runs),
        run_notes=[*unlike_data(runs), *unlike_scores(runs)],
        groups=groups,
        evaluations=[evaluation_tree(one) for one in given],
        evaluation_notes=notes_of(unlike(given)),
        answers=answers_tree(side_by_side([*given, *of_rounds], prompts)),
        answer_notes=notes_of(f"{one.name}: {note}" for one in of_rounds for note in one.notes),
        studies=study_trees,
    )
    page, facts, points = files
    text = render(tree, charts, [facts.name, points.name])
    make_folder(page.parent)
    write_rows(points, curves)
    write_text(facts, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    write_text(page, text)
    return files


def _files(out: str) -> list[Path]:
    """Return page, tree and points; raise ReportError if one cannot be written, or is something else already."""
    try:
        page = absolute(out)
    except PathError as error:
        raise ReportError(f"--out {out!r} {error}") from None
    if page.suffix not in (".html", ".htm"):
        raise ReportError(f"--out {out!r}: the page's name must end in .html")
    files = [page, page.with_suffix(".json"), page.with_name(f"{page.stem}-curves.csv")]
    for file, beginning in zip(files, _BEGINNINGS, strict=True):
        try:
            with open(file, encoding="utf-8") as before:
                is_ours = before.read(len(beginning)) == beginning
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            is_ours = False
        if not is_ours:
            raise ReportError(f"--out {out!r}: {file} is there already, and is none of a report; choose another name")
    return files


def _curves(
    runs: Sequence[RunReport], groups: Sequence[Mapping[str, Any]]
) -> tuple[list[Any], dict[str, list[dict[str, str]]]]:
    """Return the points of all learning curves, and the charts of each group."""
    points, charts = [], {}
    for place, group in enumerate(groups):
        own = rows(run.lines for run in runs if run.name in group["names"])
        points += own
        charts[f"curves-{place}"] = [
            {"title": title, "svg": inline(draw(own, title, group["names"]), f"c{place}-{number}")}
            for number, title in enumerate(panels(own))
        ]
    return points, charts


def _study(study: Study, place: int) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return what is said of a suite of runs, with the points of its figure, and its charts."""
    tree, charts = study_tree(study), []
    points: list[list[Any]] = []
    if study.figure is not None:
        try:
            for number, (title, (own, figure)) in enumerate(frontier.panels_of(study.figure).items()):
                charts.append({"title": title, "svg": inline(figure, f"s{place}-{number}")})
                points += [list(row) for row in own]
        except (OSError, ValueError) as error:
            tree["notes"] += notes_of([f"{study.figure.name} cannot be drawn: {error}"])
    return tree | {"points": [[None if isinstance(x, float) and x != x else x for x in row] for row in points]}, charts
