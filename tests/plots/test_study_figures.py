"""The figures of a study: drawn from its results, and from the committed numbers."""

from __future__ import annotations

import csv
import importlib
import io

import pytest

from humanline.plots import STUDY_FIGURES, _style, _table, sim_claims, write_study_figures
from humanline.sim.claims import CLAIMS
from humanline.sim.report import Scale, study
from tests.conftest import ROOT
from tests.plots.test_figures import without_clip_names

FOLDER = ROOT / "studies" / "simulator"


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """A study of everything, far too small to mean anything."""
    return study(tmp_path_factory.mktemp("study"), scale=Scale(seeds=2, steps=1, rates=(0.1,)))


def test_every_figure_is_made_from_a_study(report, tmp_path, monkeypatch):
    """Each figure leaves a CSV that reads back, an SVG and a PNG."""
    monkeypatch.setattr(_style, "DPI", 20)  # quick to write
    made = [path.name for path in write_study_figures(tmp_path, report)]
    assert sorted(made) == sorted(f"{name}.{kind}" for name in STUDY_FIGURES for kind in ("csv", "svg", "png"))
    assert all(_table.read(tmp_path / f"{name}.csv") for name in STUDY_FIGURES)


@pytest.mark.parametrize("name", STUDY_FIGURES)
def test_the_committed_pictures_are_drawn_from_the_committed_numbers(name):
    """Drawing the committed CSV again gives the committed SVG."""
    svg, module = io.BytesIO(), importlib.import_module(f"humanline.plots.{name}")
    figure = module.draw(_table.read(FOLDER / f"{name}.csv"))
    with _style.style():
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    assert without_clip_names(svg.getvalue()) == without_clip_names((FOLDER / f"{name}.svg").read_bytes())


def test_the_committed_overview_agrees_with_the_committed_table():
    """The overview shows the verdict of every setting of the table."""
    kinds = ("holds", "contrary", "undecided", "not tested")
    shown = {
        (row.panel.partition(":")[0], row.series, "tuned" if row.x == float("inf") else f"{row.x:g}"): kinds[int(row.y)]
        for row in _table.read(FOLDER / "sim_claims.csv")
        if row.panel != _table.SETTING
    }
    with open(FOLDER / "claims.csv", encoding="utf-8") as file:
        table = {
            (row["claim"], f"{row['task']}, {row['objective']}", row["rate"]): row["verdict"]
            for row in csv.DictReader(file)
        }
    assert shown == table


@pytest.mark.parametrize("name", STUDY_FIGURES)
def test_the_number_of_seeds_is_that_of_the_study(name):
    """The n that a figure prints is the one that every number of the study has."""
    with open(FOLDER / "runs.csv", encoding="utf-8") as file:
        seeds = {float(row["seeds"]) for row in csv.DictReader(file)}
    assert {_table.Table(_table.read(FOLDER / f"{name}.csv")).setting("seeds")} == seeds


def test_claims_are_drawn_in_words_and_sorted_by_verdict():
    """Every claim has words of its own; those that hold stand first, within a verdict those that hold most often."""
    assert list(sim_claims.WORDS) == list(CLAIMS)
    assert len(set(sim_claims.WORDS.values())) == len(CLAIMS)
    rows = _table.read(FOLDER / "sim_claims.csv")
    (axes,) = sim_claims.draw(rows).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    with open(FOLDER / "claims.csv", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    found = []
    for label in labels:
        words, _, count = label.rpartition(":  ")
        name = next(name for name, each in sim_claims.WORDS.items() if each == words)
        verdicts = [row["verdict"] for row in table if row["claim"] == name and row["verdict"] != "not tested"]
        held = verdicts.count("holds")
        assert count == f"{held} of {len(verdicts)}"
        found.append(held / len(verdicts))
    assert len(found) == len(CLAIMS) and found == sorted(found, reverse=True)
    headings = [text for text in axes.texts if text.get_text().startswith("These ")]
    assert [
        sum(label.get_position()[1] < h.get_position()[1] for label in axes.get_yticklabels()) for h in headings
    ] == [
        0,
        sum(share == 1 for share in found),
        sum(share > 0 for share in found),
    ]
