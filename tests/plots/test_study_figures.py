"""The figures of a study: drawn from its results, and from the committed numbers."""

from __future__ import annotations

import csv
import importlib
import io
from dataclasses import replace

import pytest

from humanline.plots import STUDY_FIGURES, _style, _table, sim_claims, sim_curves, sim_stability, write_study_figures
from humanline.sim.claims import CLAIMS
from humanline.sim.findings import OVERALL, VERDICTS, Finding, Judgement
from humanline.sim.lookup import Setting
from humanline.sim.report import Report, Scale, cells_of, study
from humanline.sim.study import run_study
from humanline.stats import Interval
from tests.conftest import ROOT
from tests.plots.test_figures import without_clip_names

FOLDER = ROOT / "studies" / "simulator"


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """A study of everything, far too small to mean anything."""
    return study(tmp_path_factory.mktemp("study"), scale=Scale(seeds=2, steps=1, rates=(0.1,)))


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """The runs of such a study that figures look at beyond the claims."""
    scale = Scale(seeds=2, steps=1, rates=(0.1,))
    return Report(scale, run_study(cells_of([], scale), range(2), tmp_path_factory.mktemp("few") / "few.sqlite"), [])


@pytest.mark.slow
def test_every_figure_is_made_from_a_study(report, tmp_path, monkeypatch):
    """Each figure leaves a CSV that reads back, an SVG and a PNG."""
    monkeypatch.setattr(_style, "DPI", 20)  # quick to write
    made = [path.name for path in write_study_figures(tmp_path, report)]
    assert sorted(made) == sorted(f"{name}.{kind}" for name in STUDY_FIGURES for kind in ("csv", "svg", "png"))
    assert all(_table.read(tmp_path / f"{name}.csv") for name in STUDY_FIGURES)


@pytest.mark.parametrize(  # of the claims, whose committed numbers the last test draws, it takes longest
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "sim_claims" else ()) for name in STUDY_FIGURES]
)
def test_the_committed_pictures_are_drawn_from_the_committed_numbers(name):
    """Drawing the committed CSV again gives the committed SVG."""
    svg, module = io.BytesIO(), importlib.import_module(f"humanline.plots.{name}")
    figure = module.draw(_table.read(FOLDER / f"{name}.csv"))
    with _style.style():
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    assert without_clip_names(svg.getvalue()) == without_clip_names((FOLDER / f"{name}.svg").read_bytes())


def test_the_committed_overview_agrees_with_the_committed_table():
    """The overview shows the verdict of every setting of the table."""
    shown = {
        (row.panel.partition(":")[0], row.series, "tuned" if row.x == float("inf") else f"{row.x:g}"): VERDICTS[
            int(row.y)
        ]
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


def test_rates_that_some_variants_alone_have_are_in_the_curves_and_not_in_the_grids(few):
    """A variant followed beyond the edge is drawn at its best rate; the grids keep the rates that all variants have."""
    report = few
    better = {
        name: values + (name != "start") for name, values in report.results["bandit", "dpo", 0.1, "offline"].items()
    }
    beyond = {("bandit", "dpo", 3.0, "offline"): better}
    beyond |= {("sequence", "grpo", 3.0, "offline+humanline k=4"): report.results["sequence", "grpo", 0.1, "offline"]}
    beyond |= {("sequence", "grpo", 3.0, "offline"): report.results["sequence", "grpo", 0.1, "offline"]}
    more = replace(report, results=report.results | beyond)
    assert sim_stability.rows(more)[1:] == sim_stability.rows(report)[1:]  # but for the setting, whose x is nan
    series = {row.series for row in sim_curves.rows(more) if row.panel == "bandit, dpo"}
    assert "offline, lr 3" in series and "offline, lr 0.1" not in series and "online, lr 0.1" in series


def made_up(**verdicts):
    """A report in which claims have these verdicts at learning rates 1, 2, ..., the last one tuned."""
    judgements = []
    for name, found in verdicts.items():
        rates = [*range(1, len(found)), None]
        findings = [
            Finding(Setting("bandit", "dpo", rate), Interval(0.0, 1.0), verdict, verdict, 0.5, 0.5, "")
            for rate, verdict in zip(rates, found, strict=True)
        ]
        judgements.append(Judgement(CLAIMS[name.replace("_", "-")], findings))
    return Report(Scale(seeds=7, steps=1, rates=(1.0,)), {}, judgements)


def drawn(report):
    """The labels of the overview, top down, each with its place, and its headings."""
    (axes,) = sim_claims.draw(sim_claims.rows(report)).axes
    labels = [(label.get_position()[1], label.get_text()) for label in axes.get_yticklabels()]
    headings = [
        (text.get_position()[1], text.get_text()) for text in axes.texts if text.get_text().startswith("These ")
    ]
    return labels, headings


def test_every_verdict_has_a_box_of_its_own_and_every_kind_a_heading():
    """The overview knows the verdicts of the judge, in its order, and all kinds over all settings."""
    rows = sim_claims.rows(made_up(sync_needed=VERDICTS))
    assert [row.y for row in rows if row.panel == "sync-needed: depends"] == list(range(len(VERDICTS)))
    (axes,) = sim_claims.draw(rows).axes
    looks = {(patch.get_facecolor(), patch.get_hatch()) for patch in axes.patches}
    assert len(axes.patches) == len(looks) == len(VERDICTS)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == list(VERDICTS)
    kinds = made_up(
        sync_needed=["holds", "holds"],
        clip_needed=["holds", "small"],
        larger_k_slower=["small", "undecided"],
        k1_collapses=["contrary", "small"],
        online_beats_offline=["undecided", "undecided"],
        trust_region_worse=["rounding", "not tested"],
    )
    assert [judgement.verdict for judgement in kinds.judgements] == list(OVERALL)
    labels, headings = drawn(kinds)
    assert len(headings) == len(OVERALL)
    assert all(h[0] < label[0] for h, label in zip(headings, labels, strict=True))


def test_labels_count_fixed_and_tuned_settings_apart_and_without_those_that_are_no_evidence():
    """Of two fixed settings that test the claim one holds, and the tuned one; rounding and not tested do not count."""
    labels, _ = drawn(made_up(clip_needed=["holds", "small", "rounding", "not tested", "holds"]))
    assert labels[0][1] == f"{sim_claims.WORDS['clip-needed']}:  1 of 2, tuned 1 of 1"


def test_claims_are_drawn_in_words_and_sorted_by_verdict():
    """Every claim has words of its own; within a verdict those that hold in the largest share of tests come first."""
    assert list(sim_claims.WORDS) == list(CLAIMS)
    assert len(set(sim_claims.WORDS.values())) == len(CLAIMS)
    found = made_up(
        larger_k_slower=["contrary", "small"],
        clip_needed=["holds", "small", "undecided", "undecided"],
        sync_needed=["holds", "holds", "undecided", "undecided"],
        stale_samples_hurt=["holds", "holds"],
    )
    labels, headings = drawn(found)
    names = ["stale-samples-hurt", "sync-needed", "clip-needed", "larger-k-slower"]
    assert [label.partition(":")[0] for _, label in labels] == [sim_claims.WORDS[name] for name in names]
    assert [sum(place < head for place, _ in labels) for head, _ in headings] == [0, 1, 3]


def test_the_committed_overview_counts_what_the_committed_table_does():
    """The label of every claim has the counts of its rows."""
    with open(FOLDER / "claims.csv", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    (axes,) = sim_claims.draw(_table.read(FOLDER / "sim_claims.csv")).axes
    found = {}
    for name, words in sim_claims.WORDS.items():
        parts = []
        for tuned in (False, True):
            mine = [r["verdict"] for r in table if r["claim"] == name and (r["rate"] == "tuned") == tuned]
            tested = [verdict for verdict in mine if verdict not in ("rounding", "not tested")]
            parts.append(f"{mine.count('holds')} of {len(tested)}")
        found[words] = parts[0] + (f", tuned {parts[1]}" if parts[1] != "0 of 0" else "")
    assert {f"{words}:  {count}" for words, count in found.items()} == {t.get_text() for t in axes.get_yticklabels()}
