"""Further draws of chosen cells: which, from where, and that what chose a cell does not say what it is worth."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML
from scipy import stats

from humanline.cli import main
from humanline.reproduce import suite
from humanline.reproduce.cells import OBJECTIVES, Cell, core
from humanline.reproduce.chosen import (
    COMPARED,
    ChosenRules,
    as_declared,
    choose,
    choosing_jobs,
    chosen_jobs,
    chosen_rows,
    kind_rows,
)
from humanline.reproduce.chosen_report import write_chosen_report
from humanline.reproduce.paper import ALPHA, MARGIN_SHARE
from humanline.reproduce.paper_claims import CLAIMS
from humanline.reproduce.plan import SECONDS
from humanline.reproduce.rules import grid_digest, read_section
from humanline.reproduce.tables import read_outcomes, write_outcomes
from humanline.reproduce.testbeds.registry import TESTBEDS
from humanline.reproduce.versions import made_by
from tests.conftest import ROOT
from tests.helpers.micro_testbed import MICRO
from tests.reproduce.test_tables import OUTCOME

STUDY = ROOT / "studies" / "frontier"
LETTERS = STUDY / "letters" / "runs.csv"
RULES = ChosenRules()


@cache
def grid():
    """The committed runs of the grid of letters."""
    known = set(core())
    return [one for one in read_outcomes(LETTERS) if one.cell in known]


@cache
def committed():
    return choose(choosing_jobs("letters", 3, 3, 10), grid(), 10)


def fresh_runs(choice, score, **changes):
    """Runs of every chosen cell on fresh draws, with scores that `score` gives for objective, variant, start, draw."""
    found = []
    for job in chosen_jobs(choice):
        value = score(job.cell.objective, job.cell.variant, job.start, job.draw)
        told = {"testbed": choice.testbed, "cell": job.cell, "start": job.start, "draw": job.draw, "score": value}
        found.append(dataclasses.replace(OUTCOME, **(told | {"start_score": 0.5, "clipped": 0.1} | changes)))
    return found


LEVEL = {"offline": 0.7, "humanline": 0.75, "online": 0.8, "online humanline": 0.8}


def known(objective, variant, start, draw):
    """Levels of variants, whose differences vary between start models, and up and down between draws."""
    spread = {"offline": 0.0, "humanline": 0.01 * (start - 1), "online": 0.005 * ((start + 1) % 3)}.get(
        variant, start / 150
    )
    wobble = 0.004 * (-1) ** draw if variant == "humanline" else 0.002 * (draw % 3)
    return LEVEL[variant] + 0.02 * OBJECTIVES.index(objective) + spread + wobble


def row_of(rows, says, objective="dpo"):
    (found,) = [row for row in rows if (row["says"], row["objective"]) == (says, objective)]
    return found


def test_the_committed_file_says_what_the_code_does():
    """Numbers, claims and the count of runs are those of the code; alpha and margin those of all claims."""
    path = STUDY / "chosen.yaml"
    assert read_section(path, ChosenRules) == RULES
    assert (RULES.grid_cells, RULES.grid_digest) == (len(core()), grid_digest(core()))
    tree = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    assert [one["claim"] for one in tree["claims"].values()] == list(COMPARED)
    assert tree["as_in_paper"] == {"alpha": ALPHA, "margin_share": MARGIN_SHARE}
    count = len(RULES.variants) * len(OBJECTIVES) * len(RULES.starts) * len(RULES.draws)
    assert len(chosen_jobs(committed())) == count == int(re.search(r"(\d+) runs a testbed", tree["runs"])[1])
    assert as_declared(committed(), RULES) == ""


def test_claims_are_about_all_cells_of_their_variants():
    """What is chosen among is what the paper's claims choose among."""
    claims = {claim.says: claim for claim in CLAIMS if claim.says in COMPARED}
    assert set(claims) == set(COMPARED)
    for says, variants in COMPARED.items():
        for pick, variant in zip((claims[says].first, claims[says].second), variants, strict=True):
            for objective in OBJECTIVES:
                mine = [one for one in core() if (one.objective, one.variant) == (objective, variant)]
                assert pick(objective) == mine


def test_the_cells_of_letters_are_those_that_other_start_models_chose():
    """Found again in the committed table with plain loops: the best mean over both other start models' draws."""
    scores = defaultdict(dict)
    with open(LETTERS, encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            settings = (row["passes"], row["data"], row["quartile"], row["desirable"], row["log_eps_low"])
            if settings == ("1", "near", "", "", "") and row["variant"] in LEVEL:
                cell = tuple(row[name] for name in ("objective", "variant", "lr", "beta", "clip_eps", "every"))
                scores[cell][int(row["start"]), int(row["draw"])] = float(row["score"])
    for (objective, variant), by_start in committed().cells.items():
        for start, cell in by_start.items():
            mine = {
                name: np.mean([value for (one, _), value in some.items() if one != start])
                for name, some in scores.items()
                if name[:2] == (objective, variant)
            }
            assert committed().sizes[objective, variant] == len(mine)
            best = max(mine, key=mine.get)
            given = (cell.lr, cell.beta, cell.clip_eps, cell.every)
            assert tuple(float(text) if text else None for text in best[2:]) == given
    assert len(committed().cells) == 12


def test_differences_on_the_draws_that_chose_are_those_of_the_committed_claims():
    """The same cells on the same draws: the table of the paper's claims has these numbers already."""
    with open(STUDY / "letters" / "paper.csv", encoding="utf-8", newline="") as lines:
        wanted = {(row["says"], row["objective"]): float(row["difference"] or "nan") for row in csv.DictReader(lines)}
    rows = chosen_rows(committed(), fresh_runs(committed(), known))
    assert len(rows) == 12
    for row in rows:
        assert row["choosing_difference"] == pytest.approx(wanted[row["says"], row["objective"]], rel=1e-4)


def test_fresh_draws_change_no_choice_and_choosing_draws_no_comparison():
    """A command that goes on chooses the same cells; luck of the draws that chose is in no number that is compared."""
    more = [dataclasses.replace(one, draw=one.draw + 3, score=9 - one.score) for one in grid()]
    assert choose(choosing_jobs("letters", 3, 3, 10), [*more, *grid()], 10) == committed()
    lucky = dataclasses.replace(
        committed(), before=tuple(dataclasses.replace(one, score=one.score + 1) for one in committed().before)
    )
    fresh = fresh_runs(committed(), known)
    rows, others = chosen_rows(committed(), fresh), chosen_rows(lucky, fresh)
    for row, other in zip(rows, others, strict=True):
        assert {**row, "choosing_difference": 0} == {**other, "choosing_difference": 0}


def test_runs_are_those_of_fresh_draws_and_whole_draws_come_first():
    jobs = chosen_jobs(committed())
    assert [job.draw for job in jobs] == sorted(job.draw for job in jobs)
    assert {job.draw for job in jobs} == set(RULES.draws) and len({job.name for job in jobs}) == len(jobs) == 252
    for job in jobs:
        assert committed().cells[job.cell.objective, job.cell.variant][job.start] == job.cell


def test_comparisons_are_paired_t_tests_over_start_models():
    """By scipy, of means over fresh draws: difference, interval, both p-values, the margin; draws by hand."""
    rows = chosen_rows(committed(), fresh_runs(committed(), known))

    def side(variant, objective="dpo"):
        return np.array([[known(objective, variant, start, draw) for draw in RULES.draws] for start in RULES.starts])

    margin = 0.1 * (side("online").mean() - 0.5)
    for says, (first, second) in COMPARED.items():
        row = row_of(rows, says)
        difference = side(first).mean(1) - side(second).mean(1)
        low, high = stats.ttest_1samp(difference, 0).confidence_interval(0.95)
        told = (row["first"], row["difference"], row["low"], row["high"], row["starts"], row["draws"])
        assert told == pytest.approx((side(first).mean(), difference.mean(), low, high, 3, 7))
        bounds = (-margin, 1) if row["kind"] == "alike" else (0.0, 1)
        p = stats.ttest_1samp(difference, bounds[0], alternative="greater").pvalue
        if row["kind"] == "alike":
            p = max(p, stats.ttest_1samp(difference, margin, alternative="less").pvalue)
            assert row["margin"] == pytest.approx(margin)
        assert row["p"] == pytest.approx(p, abs=1e-12)
        within = side(first) - side(second)
        assert row["sd_of_draws"] == pytest.approx(np.sqrt(within.var(1, ddof=1).mean()))
    assert row_of(rows, "offline + humanline, its own k, is better than offline")["verdict"] == "holds here"
    assert row_of(rows, "offline + humanline is on par with online")["verdict"] != "holds here"


def test_a_claim_is_corrected_over_its_objectives():
    """One objective's p-value of .03 holds alone, and not among three of which the others say nothing."""

    def score(objective, variant, start, draw):
        if variant == "humanline":
            return 0.7 + ((0.02, 0.032, 0.05)[start] if objective == "dpo" else (0.01, -0.01, 0.0)[start])
        return 0.7

    rows = chosen_rows(committed(), fresh_runs(committed(), score))
    row = row_of(rows, "offline + humanline, its own k, is better than offline")
    assert row["p"] < 0.05 < row["adjusted"] == pytest.approx(3 * row["p"]) and row["verdict"] == "undecided here"


def test_a_collapsed_fresh_run_leaves_its_comparisons_undecided():
    """It is counted, its score is in no mean, and no claim holds of the runs that are left."""
    fresh = fresh_runs(committed(), known)
    place = next(n for n, one in enumerate(fresh) if (one.cell.objective, one.cell.variant) == ("dpo", "humanline"))
    fresh[place] = dataclasses.replace(fresh[place], status="not finite", score=math.nan, kl_to_start=math.nan)
    rows = chosen_rows(committed(), fresh)
    row = row_of(rows, "offline + humanline, its own k, is better than offline")
    assert (row["verdict"], row["collapsed"]) == ("undecided here", 1) and "1 runs" in row["why"]
    assert math.isfinite(row["difference"]) and math.isfinite(row["sd_of_draws"])
    assert row_of(rows, "offline + humanline, its own k, is better than offline", "grpo")["verdict"] == "holds here"
    kinds = {(one["objective"], one["series"]): one for one in kind_rows(committed(), fresh)}
    kind = kinds["dpo", "humanline"]
    assert (kind["runs"], kind["collapsed"]) == (21, 1) and math.isfinite(kind["score"])


def test_a_kind_whose_cells_all_collapsed_is_not_run():
    """It has no cell to choose; a cell with one collapsed run is none to choose, and the others are."""
    gone = [
        dataclasses.replace(one, status="not finite", score=math.nan)
        if (one.cell.objective, one.cell.variant, one.draw, one.start) == ("kto", "online", 1, 1)
        else one
        for one in grid()
    ]
    choice = choose(choosing_jobs("letters", 3, 3, 10), gone, 10)
    assert ("kto", "online") not in choice.cells and len(chosen_jobs(choice)) == 231
    rows = chosen_rows(choice, fresh_runs(choice, known))
    row = row_of(rows, "online is better than offline", "kto")
    assert row["verdict"] == "not run" and row["why"] == "no cell of online could be chosen"
    best = committed().cells["dpo", "offline"][0]
    gone = [
        dataclasses.replace(one, status="not finite", score=math.nan) if (one.cell, one.start) == (best, 2) else one
        for one in grid()
    ]
    other = choose(choosing_jobs("letters", 3, 3, 10), gone, 10)
    assert other.cells["dpo", "offline"][0] != best and other.sizes["dpo", "offline"] == 11


def test_a_fresh_run_that_is_missing_is_an_error(tmp_path):
    fresh = fresh_runs(committed(), known)
    with pytest.raises(ValueError, match="draw 9 is missing: nothing is compared"):
        write_chosen_report(tmp_path / "out", committed(), fresh[:-1], RULES)
    assert not (tmp_path / "out").exists()


def test_the_report_has_every_number_in_a_file_and_says_what_was_not_declared(tmp_path):
    files = write_chosen_report(tmp_path, committed(), fresh_runs(committed(), known), RULES)
    assert [path.name for path in files] == ["runs.csv", "best.csv", "chosen.csv", "chosen.md"]
    text = files[-1].read_text(encoding="utf-8")
    assert "Not as declared" not in text and "252 runs from 3 start models" in text and "**holds here**" in text
    with open(files[2], encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["says"] for row in rows] == [says for says in COMPARED for _ in OBJECTIVES]
    again = chosen_rows(committed(), read_outcomes(files[0]))
    assert [row["difference"] for row in rows] == [f"{row['difference']:.6g}" for row in again]
    with open(files[1], encoding="utf-8", newline="") as lines:
        kinds = list(csv.DictReader(lines))
    assert len(kinds) == 12 and {row["runs"] for row in kinds} == {"21"}
    few = choose(choosing_jobs("letters", 3, 3, 5), grid(), 5)
    write_chosen_report(tmp_path, few, fresh_runs(few, known), RULES)
    said = "**Not as declared** (studies/frontier/chosen.yaml): fresh draws 3 .. 4, declared 3 .. 9."
    assert said in files[-1].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chosen", "10"], "letters: --chosen needs every run of the grid that chooses (1368: 3 start models, 3 dr"),
        (["--chosen", "3"], "--chosen must be in 4 .. 100, got 3: it counts all draws"),
        (["--chosen", "101"], "--chosen must be in 4 .. 100, got 101"),
        (["--chosen", "10", "--draws", "0"], "--draws must be >= 1, got 0"),
        (["--chosen", "10", "--starts", "1"], "--starts must be >= 2 with --chosen, got 1"),
        (["letters-gemma2", "--chosen", "10"], "letters-gemma2 has a few cells of it alone"),
        (["--chosen", "10", "--all"], "and --all of other runs; leave out one or the other"),
        (["--chosen", "10", "--sampling"], "and --sampling of other runs; leave out one or the other"),
        (["--chosen", "10", "--quick"], "leave it out, or with it --chosen"),
        (["--chosen", "10", "--scale", "small"], "leave out --chosen"),
    ],
)
def test_what_cannot_be_chosen_is_refused_and_nothing_is_made(words, said, tmp_path, capsys):
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (lambda one: one.start == 2, "and 456 are missing; start models 2 have none. Give them with --known"),
        (lambda one: one.cell == core()[5], f"and 9 are missing; 1 cells never ran, {core()[5].name} first. Give"),
        (lambda one: (one.cell, one.start, one.draw) == (core()[0], 0, 2), "and 1 are missing. Give them with"),
        (lambda one: one.draw > 0, "and 912 are missing. Give them with --known"),
    ],
)
def test_a_choice_of_part_of_the_grid_is_refused(lost, said):
    """A cell that never ran may be the best; a start model without runs can neither choose nor be chosen for."""
    with pytest.raises(ValueError, match=re.escape(said)):
        choose(choosing_jobs("letters", 3, 3, 10), [one for one in grid() if not lost(one)], 10)


CELLS = [
    Cell("dpo", "offline", 1e-3, beta=1.0),
    Cell("dpo", "offline", 1e-2, beta=1.0),
    Cell("dpo", "humanline", 1e-3, beta=1.0, every=8),
    Cell("dpo", "online", 1e-3, beta=1.0),
]


@pytest.fixture
def micro(monkeypatch):
    """The micro testbed with a grid of four cells."""
    monkeypatch.setitem(TESTBEDS, "micro", MICRO)
    monkeypatch.setitem(SECONDS, "micro", (1.0, 1.0, 1.0))
    monkeypatch.setattr("humanline.reproduce.chosen.core", lambda: list(CELLS))
    monkeypatch.setattr("humanline.reproduce.plan.core", lambda: list(CELLS))


@pytest.fixture
def stubs(monkeypatch, micro, in_process):
    """Runs that cost nothing, made in this process; what was run is returned."""
    ran = []

    def run(job, folder, *, keep_runs):
        ran.append(job)
        score = 0.6 + 0.1 * CELLS.index(job.cell) + 0.01 * job.start + 0.001 * job.draw
        told = {"cell": job.cell, "start": job.start, "draw": job.draw, "score": score, "task": made_by(MICRO)}
        return dataclasses.replace(OUTCOME, **told)

    monkeypatch.setattr(suite, "run", run)
    for name in ("make_start", "make_pairs"):
        monkeypatch.setattr(suite, name, lambda *_: None)
    for name in ("has_start", "has_pairs"):
        monkeypatch.setattr(suite, name, lambda *_: True)
    return ran


def words(out: Path, *more: str) -> list[str]:
    few = ["--starts", "2", "--draws", "2", "--processes", "1", "--quiet"]
    return ["reproduce", "micro", "--out", str(out), *few, *more]


@pytest.fixture
def table(tmp_path):
    """A table of the runs of the small grid, whose best cells are the last of each variant."""
    runs = [
        dataclasses.replace(OUTCOME, cell=cell, start=start, draw=draw, score=0.6 + 0.1 * place, task=made_by(MICRO))
        for place, cell in enumerate(CELLS)
        for start in range(2)
        for draw in range(2)
    ]
    write_outcomes(tmp_path / "grid.csv", runs)
    return tmp_path / "grid.csv"


def test_the_command_runs_what_the_table_chose_and_goes_on(stubs, table, tmp_path, monkeypatch, capsys):
    """Counted and timed first; stopped, it leaves a table that another folder goes on with; nothing is run twice."""
    out = tmp_path / "out"
    monkeypatch.setattr("time.monotonic", lambda: float(len(stubs)))
    assert main(words(out, "--chosen", "4", "--known", str(table), "--minutes", "0.05")) == 75
    told = capsys.readouterr()
    assert "16 runs of" in told.out and "12 runs; the other 12 take about" in told.out
    kept = out / "micro" / "chosen" / "runs.csv"
    assert str(kept) in told.err and len(read_outcomes(kept)) == len(stubs) == 4
    assert not (out / "micro" / "chosen" / "chosen.csv").exists()
    assert main(words(tmp_path / "other", "--chosen", "4", "--known", str(table), "--known", str(kept))) == 0
    assert "12 runs, 4 of them kept; the other 8 take about" in capsys.readouterr().out
    assert len(stubs) == 12 == len({job.name for job in stubs})
    assert [job.draw for job in stubs] == [2] * 6 + [3] * 6
    assert {job.cell for job in stubs} == {CELLS[1], CELLS[2], CELLS[3]}
    assert main(words(tmp_path / "other", "--chosen", "4")) == 0 and len(stubs) == 12  # the folder knows its grid
    with open(tmp_path / "other" / "micro" / "chosen" / "chosen.csv", encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["objective"] == "dpo"]
    assert [float(row["difference"] or "nan") for row in rows] == pytest.approx([0.1, -0.1, 0.2, math.nan], nan_ok=True)
    assert (tmp_path / "other" / "micro" / "chosen" / "chosen.md").read_text().count("Not as declared") == 1


@pytest.mark.parametrize("where", ["a cell that is not chosen", "fresh runs"])
def test_runs_that_choose_and_those_that_are_chosen_began_from_one_start_model(where, stubs, table, tmp_path, capsys):
    """Cells are not chosen by runs from two models, and fresh runs are from the model of those that chose."""
    runs, known, fresh = read_outcomes(table), [str(table)], tmp_path / "fresh.csv"
    if where == "fresh runs":
        other = dataclasses.replace(runs[-1], draw=2, start_score=OUTCOME.start_score + 1e-4)
        write_outcomes(fresh, [other])
        known.append(str(fresh))
    else:
        write_outcomes(table, [dataclasses.replace(runs[0], start_score=OUTCOME.start_score + 1e-4), *runs[1:]])
    given = [word for path in known for word in ("--known", path)]
    assert main(words(tmp_path / "out", "--chosen", "4", *given)) == 2 and not stubs
    said = capsys.readouterr().err
    assert "of micro scores" in said and "it is another model" in said
    assert not list((tmp_path / "out").glob("micro/chosen/*"))


def test_a_table_of_other_runs_is_refused(stubs, table, tmp_path, capsys):
    """Also where another table has all of the grid."""
    write_outcomes(tmp_path / "mine.csv", [dataclasses.replace(OUTCOME, draw=7)])
    given = ("--chosen", "4", "--known", str(table), "--known", str(tmp_path / "mine.csv"))
    assert main(words(tmp_path / "out", *given)) == 2 and not stubs
    assert f"--known {tmp_path / 'mine.csv'}: none of its 1 runs (of micro)" in capsys.readouterr().err


@pytest.mark.slow  # two start models and some twenty runs
def test_chosen_cells_are_trained_and_a_stopped_command_ends_with_the_same_tables(micro, tmp_path):
    """With worker processes, from a grid that was run here; in one go, and begun by the minutes' first thing."""
    out, other = tmp_path / "out", tmp_path / "other"
    grid_of = choosing_jobs("micro", 2, 2, 4)
    write_outcomes(tmp_path / "grid.csv", suite.run_suite(grid_of, out, processes=2).outcomes)
    assert main(words(out, "--chosen", "4", "--processes", "2")) == 0
    known = ("--chosen", "4", "--known", str(tmp_path / "grid.csv"))
    for number in range(2):
        assert main(words(other, *known, "--minutes", "0.0001")) == 75
        assert len(list(other.glob("starts/micro/near-*/facts.json"))) == number + 1
    assert main(words(other, *known)) == 0
    for name in ("best.csv", "chosen.csv", "chosen.md"):
        one, two = (place / "micro" / "chosen" / name for place in (out, other))
        assert one.read_bytes() == two.read_bytes()
    fresh = read_outcomes(out / "micro" / "chosen" / "runs.csv")
    assert {one.draw for one in fresh} == {2, 3} and len(fresh) == 12 and all(one.status == "done" for one in fresh)
