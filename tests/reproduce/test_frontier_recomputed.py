"""The committed tables of score and distance are those that this code makes of the committed runs, byte by byte."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import numpy as np
import pytest

from humanline.plots import _style, _table, frontier
from humanline.reproduce.cells import core, sampling
from humanline.reproduce.chosen import ChosenRules, choose, choosing_jobs
from humanline.reproduce.chosen_report import write_chosen_report
from humanline.reproduce.foretold import read_levels, write_foretold
from humanline.reproduce.further import write_further_report
from humanline.reproduce.paper_report import write_paper_report
from humanline.reproduce.report import write_report
from humanline.reproduce.rules import Rules
from humanline.reproduce.sampling import SamplingRules
from humanline.reproduce.sampling_report import write_sampling_report
from humanline.reproduce.tables import read_outcomes
from tests.conftest import ROOT
from tests.plots.test_figures import without_clip_names
from tests.reproduce.test_sampling import world

STUDY = ROOT / "studies" / "frontier"
FOLDERS = sorted(path.parent.relative_to(STUDY).as_posix() for path in STUDY.rglob("runs.csv"))
PICTURES = {"frontier.svg", "frontier.png"}


def test_grids_that_go_on_have_the_runs_that_are_said():
    """Each is a run of the grid that is judged or of Figure 7's; none is there twice."""
    said = re.findall(r"\[(\d+)(?: runs)?\]\(([^)]*so-far\.csv)\)", (STUDY / "README.md").read_text(encoding="utf-8"))
    assert {STUDY / file for _, file in said} == set(STUDY.rglob("so-far.csv"))
    for count, file in said:
        runs, of_sampling = read_outcomes(STUDY / file), Path(file).parts[1] == "sampling"
        cells, rules = (set(sampling()), SamplingRules()) if of_sampling else (set(core()), Rules())
        places = {(one.cell, one.start, one.draw) for one in runs}
        assert len(places) == len(runs) == int(count), file
        assert {one.testbed for one in runs} == {Path(file).parts[0]}
        assert places <= {(cell, start, draw) for cell in cells for start in rules.starts for draw in rules.draws}, file


def test_a_run_that_two_tables_have_is_one_run():
    """Letters' offline runs of four passes belong to `--all` and to `--further`."""
    tables = [read_outcomes(STUDY / name / "runs.csv") for name in ("letters", "letters/further")]
    wider, more = ({(one.cell, one.start, one.draw): repr(one) for one in runs} for runs in tables)
    both = set(wider) & set(more)
    assert len(both) == 36 and all(wider[place] == more[place] for place in both)


def write_again(folder: Path, out: Path) -> None:
    """Write all that a folder's runs say, as `humanline reproduce` does at its end; nothing is trained."""
    outcomes = read_outcomes(folder / "runs.csv")
    if folder.name == "sampling":
        write_sampling_report(out, outcomes, SamplingRules())
    elif folder.name == "further":
        write_further_report(out, read_outcomes(folder.parent / "runs.csv"), outcomes)
    elif folder.name == "chosen":
        grid, draws = read_outcomes(folder.parent / "runs.csv"), max(one.draw for one in outcomes) + 1
        choice = choose(choosing_jobs(folder.parent.name, 3, 3, draws), grid, draws)
        write_chosen_report(out, choice, outcomes, ChosenRules())
    else:
        write_report(out, outcomes, Rules())
        write_paper_report(out, outcomes)
        if (folder / "levels.csv").is_file():
            write_foretold(out, outcomes, lambda places: read_levels(folder / "levels.csv"))


def differing(folder: Path, out: Path) -> list[str]:
    """Return the files that are in one folder alone, or not alike; pictures hang on the version of what draws them."""
    names = {path.name for place in (folder, out) for path in place.iterdir() if path.is_file()} - PICTURES
    both = [(name, [place / name for place in (folder, out)]) for name in sorted(names)]
    return [
        name
        for name, paths in both
        if not all(path.is_file() for path in paths) or paths[0].read_bytes() != paths[1].read_bytes()
    ]


@pytest.mark.parametrize("name", FOLDERS)
def test_the_committed_tables_are_those_of_the_committed_runs(name, tmp_path, monkeypatch):
    """Every table and text: cells, tuned cells, verdicts, curves, claims; and none that nobody could make again."""
    monkeypatch.setattr(_style, "save", lambda *_: [])
    write_again(STUDY / name, tmp_path / "out")
    assert differing(STUDY / name, tmp_path / "out") == []


def longer(outcomes):
    """Outcomes with more digits than a table of runs has, as runs have them that were made just now."""
    rng = np.random.default_rng(0)
    numbers = ("score", "greedy", "matched", "kl_to_start", "length", "entropy", "start_score")
    factors = 1 + rng.uniform(-4e-7, 4e-7, (len(outcomes), len(numbers)))
    return [
        dataclasses.replace(one, **{name: getattr(one, name) * float(x) for name, x in zip(numbers, row, strict=True)})
        for one, row in zip(outcomes, factors, strict=True)
    ]


@pytest.mark.parametrize("kind", ["grid", "sampling"])
def test_tables_of_runs_made_just_now_are_those_of_their_table(kind, tmp_path, monkeypatch):
    """What is committed from one machine, with all digits in its memory, is what another one makes of runs.csv."""
    monkeypatch.setattr(_style, "save", lambda *_: [])
    folder = tmp_path / "sampling" if kind == "sampling" else tmp_path / "letters-gemma2"
    if kind == "sampling":
        write_sampling_report(folder, longer(world()), SamplingRules())
    else:
        outcomes = longer(read_outcomes(STUDY / "letters-gemma2" / "runs.csv"))
        write_report(folder, outcomes, Rules())
        write_paper_report(folder, outcomes)
    write_again(folder, tmp_path / "again")
    assert differing(folder, tmp_path / "again") == []


def test_a_digit_that_was_changed_is_seen(tmp_path, monkeypatch):
    """In whichever table, and a table that lacks; the check above can fail."""
    monkeypatch.setattr(_style, "save", lambda *_: [])
    write_again(STUDY / "letters-gemma2", tmp_path / "out")
    write_again(STUDY / "letters-gemma2", tmp_path / "mine")
    assert differing(tmp_path / "mine", tmp_path / "out") == []
    for name in ("cells.csv", "paper.csv", "frontier.md"):
        text = (tmp_path / "mine" / name).read_text(encoding="utf-8")
        place = text.rindex("7")
        (tmp_path / "mine" / name).write_text(f"{text[:place]}8{text[place + 1 :]}", encoding="utf-8")
    (tmp_path / "mine" / "best.csv").unlink()
    assert differing(tmp_path / "mine", tmp_path / "out") == ["best.csv", "cells.csv", "frontier.md", "paper.csv"]


@pytest.mark.slow  # drawing
@pytest.mark.parametrize("name", [name for name in FOLDERS if (STUDY / name / "frontier.svg").is_file()])
def test_the_committed_figure_is_drawn_from_the_committed_numbers(name):
    """Drawing the committed CSV again gives the committed SVG, to a thousandth of a point: the CSV has 12 digits."""
    svg = io.BytesIO()
    figure = frontier.draw(_table.read(STUDY / name / "frontier.csv"))
    with _style.style():
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    committed = (STUDY / name / "frontier.svg").read_bytes()
    (ours, here), (theirs, there) = (apart(without_clip_names(one)) for one in (svg.getvalue(), committed))
    assert ours == theirs and here == pytest.approx(there, abs=1e-3)


def apart(svg: bytes) -> tuple[list[str], list[float]]:
    """Return what of a picture is no number with a point, and these numbers."""
    text = svg.decode()
    return re.split(r"-?\d+\.\d+", text), [float(one) for one in re.findall(r"-?\d+\.\d+", text)]
