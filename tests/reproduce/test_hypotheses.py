"""The verdicts, on synthetic runs from a known curve: each can hold, fail, stay undecided or lack overlap."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from humanline.reproduce.cells import around, core
from humanline.reproduce.frontier import arrange, best_clips
from humanline.reproduce.hypotheses import CLAIMS, NAMES, compare, judge
from humanline.reproduce.power import World, outcomes, simulate
from humanline.reproduce.report import words
from humanline.reproduce.rules import Rules, as_section, grid_digest, read_rules
from humanline.reproduce.shown import finding_rows, frontier_rows, markdown, shown_rows
from tests.conftest import ROOT

FILE = ROOT / "studies" / "frontier" / "hypotheses.yaml"
RULES = Rules()
#: So little scatter that verdicts are clear.
CLEAR = World(curve="quadratic", between_cells=0.001, between_draws=0.001, heights=0.01)


def judged(rows, rules=RULES):
    return {one.hypothesis: one for one in judge(rows, rules)}


def changed(rows, chosen, **numbers):
    """Return rows with other numbers in some of them."""
    return [replace(row, **numbers) if chosen(row) else row for row in rows]


def lifted(rows, chosen, by):
    return [replace(row, score=row.score + by) if chosen(row) else row for row in rows]


def is_humanline(objective):
    return lambda row: (row.cell.objective, row.cell.variant) == (objective, "humanline")


def test_the_committed_file_says_what_the_code_does():
    """Numbers, hypotheses and the grid of the file are those of the code."""
    rules = read_rules(FILE)
    assert rules == RULES
    assert (rules.grid_cells, rules.grid_digest) == (len(core()), grid_digest(core()))
    text = FILE.read_text(encoding="utf-8")
    assert all(re.search(rf"^  {name}:$", text, re.MULTILINE) for name in NAMES)
    assert set(CLAIMS) == set(NAMES)


def test_rules_with_a_wrong_name_are_refused(tmp_path):
    """A lacking or unknown number is named."""
    from ruamel.yaml import YAML

    section = as_section(RULES)
    section["alpa"] = section.pop("alpha")
    path = tmp_path / "h.yaml"
    with path.open("w") as file:
        YAML().dump({"rules": section}, file)
    with pytest.raises(ValueError, match=r"\['alpa', 'alpha'\]"):
        read_rules(path)
    path.write_text("a: 1\n")
    with pytest.raises(ValueError, match="no section 'rules'"):
        read_rules(path)


def test_on_one_curve_the_predictions_hold():
    """With little scatter H1 to H3 hold, and H4 fails: online lies on the curve too."""
    found = judged(outcomes(CLEAR, 0))
    assert [found[name].verdict for name in ("H1", "H2", "H3", "H4")] == ["holds", "holds", "holds", "fails"]
    assert not any(found[name].left_out.get("dpo-offline-lr0.0001-beta1") for name in NAMES)
    assert found["H1"].margin == pytest.approx(0.1 * 0.187, rel=0.1)


def test_a_shift_fails():
    """Humanline two margins below fails H1 to H3; online a margin above holds H4."""
    found = judged(outcomes(replace(CLEAR, shift=-0.2, online=0.1), 0))
    assert [found[name].verdict for name in ("H1", "H2", "H3", "H4")] == ["fails", "fails", "fails", "holds"]
    assert found["H1"].estimate == pytest.approx(-0.2 * 0.187, abs=0.004)


def test_much_scatter_is_undecided():
    """Where intervals are wider than the margin nothing holds and nothing fails."""
    found = judged(outcomes(replace(CLEAR, between_cells=0.1, between_draws=0.1), 1))
    assert [found[name].verdict for name in ("H1", "H2", "H3")] == ["undecided"] * 3


def test_distances_apart_have_no_overlap():
    """DPO runs with humanline beyond every offline one are not compared, and said to lie above or below its peak."""
    rows = outcomes(CLEAR, 0)
    rows = [replace(row, kl_to_start=500.0 + row.draw, score=0.5) if is_humanline("dpo")(row) else row for row in rows]
    found = judged(rows)["H1"]
    assert (found.verdict, found.cells) == ("no overlap", ())
    assert math.isnan(found.p) and math.isnan(found.adjusted)
    assert len([why for why in found.left_out.values() if why.startswith("further")]) == 36
    assert found.beyond == pytest.approx(0.5 - 0.73, abs=0.03)


def test_one_learning_rate_in_the_overlap_is_too_few():
    """Three cells or more on each side do not do where they are of one learning rate."""
    rows = outcomes(CLEAR, 0)
    rows = changed(rows, lambda row: is_humanline("kto")(row) and row.cell.lr != 3e-4, kl_to_start=900.0)
    found = judged(rows)["H2"]
    assert found.verdict == "no overlap"
    assert "compared cells at 1 learning rates" in found.reason


def test_a_missing_run_leaves_every_verdict_open():
    """With one run of the grid not made nothing holds or fails, and the finding says so."""
    rows = outcomes(replace(CLEAR, shift=-0.2), 0)[1:]
    found = judged(rows)
    assert {one.verdict for one in found.values()} == {"undecided"}
    assert {one.missing for one in found.values()} == {1}
    assert "1 runs of the grid are missing" in found["H1"].reason


def test_further_draws_and_other_cells_change_nothing():
    """Runs beyond the declared starts and draws, and cells around the grid, are not judged."""
    rows = outcomes(CLEAR, 0)
    more = [replace(row, draw=row.draw + 3, score=9.0) for row in rows]
    more += [replace(row, start=row.start + 3, score=9.0) for row in rows]
    more += [replace(rows[0], cell=cell, score=9.0) for cell in around()]
    assert [repr(one) for one in judge(rows + more, RULES)] == [repr(one) for one in judge(rows, RULES)]


def test_collapsed_runs_are_counted_and_used_nowhere():
    """A run whose score is nan adds to the count; whatever else it says has no part in an estimate."""
    rows = outcomes(CLEAR, 0)
    some = lambda row: is_humanline("dpo")(row) and row.cell.lr in (1e-4, 3e-4) and row.draw == 1  # noqa: E731
    nan = judged(changed(rows, some, status="not finite", score=math.nan, kl_to_start=math.nan))["H1"]
    told = judged(changed(rows, some, status="not finite", score=-50.0))["H1"]
    assert nan.collapsed == told.collapsed == 54
    assert nan.estimate == told.estimate
    assert nan.verdict != "holds"
    assert "54 of 324 compared runs collapsed" in nan.reason


def test_a_cell_that_collapsed_from_one_start_is_left_out_by_name():
    """Offline and compared cells alike, with the reason."""
    rows = outcomes(CLEAR, 0)
    names = ["dpo-offline-lr0.001-beta0.1", "dpo-humanline-lr0.0003-beta1-k8"]
    found = judged(changed(rows, lambda row: row.cell.name in names and row.start == 2, status="not finite"))["H1"]
    assert [found.left_out[name] for name in names] == ["start 2: every run collapsed"] * 2
    assert names[1] not in found.cells


def test_a_run_that_has_not_moved_has_no_place_on_the_axis():
    """KL 0 is neither an error nor a point at minus infinity."""
    rows = outcomes(CLEAR, 0)
    name = "dpo-offline-lr0.0001-beta5"
    found = judged(changed(rows, lambda row: row.cell.name == name, kl_to_start=0.0))["H1"]
    assert found.left_out[name] == "start 0: no run moved"
    assert math.isfinite(found.estimate)


def test_an_offline_curve_below_its_start_has_no_margin():
    """Without a gain nothing can hold or fail."""
    found = judged(changed(outcomes(CLEAR, 0), lambda row: True, start_score=2.0))
    assert {found[name].verdict for name in ("H1", "H2", "H3", "H4")} == {"undecided"}
    assert "nowhere above its start" in found["H1"].reason


def test_one_start_is_undecided():
    """From one start model no hypothesis is judged."""
    found = judged(outcomes(replace(CLEAR, starts=1), 0), replace(RULES, starts=(0,)))
    assert {one.verdict for one in found.values()} == {"undecided"}


def test_wrong_outcomes_are_refused():
    """Two runs of one key, two testbeds, and none of the grid."""
    rows = outcomes(CLEAR, 0)
    with pytest.raises(ValueError, match="twice"):
        judge([*rows, rows[0]], RULES)
    with pytest.raises(ValueError, match="one testbed"):
        judge([*rows[1:], replace(rows[0], testbed="other")], RULES)
    with pytest.raises(ValueError, match="none"):
        judge([], RULES)


def test_clips_are_chosen_on_one_draw_and_nothing_else_of_it_is_used():
    """Scores of the tuning draw change H3 through the choice alone."""
    rows = outcomes(CLEAR, 0)
    grpo = lambda row: row.cell.objective == "grpo" and row.draw == RULES.tuning_draw  # noqa: E731
    base = judged(rows)["H3"]
    assert judged(lifted(rows, grpo, 3.0))["H3"].estimate == base.estimate
    wide = lifted(rows, lambda row: grpo(row) and row.cell.clip_eps == 1.0, 3.0)
    assert all("eps1" in name for name in judged(wide)["H3"].cells)
    narrow = lifted(rows, lambda row: grpo(row) and row.cell.clip_eps == 0.15, 3.0)
    assert all("eps0.15" in name for name in judged(narrow)["H3"].cells)
    table = arrange(narrow, core(), RULES)
    assert {cell.clip_eps for cell in compare(table, "grpo", "humanline", RULES).front.offline.cells} > {0.15}


def test_a_collapsed_cell_is_the_worst_of_its_clip():
    """A clip is as good as its best cell without a collapsed run."""
    rows = outcomes(CLEAR, 0)
    rows = changed(rows, lambda row: row.cell.clip_eps == 1.0, score=9.0, status="not finite")
    cells = [cell for cell in core() if cell.objective == "grpo" and cell.variant == "offline"]
    assert 1.0 not in best_clips(arrange(rows, core(), RULES), cells, 2, 0)


def test_holm_counts_five():
    """Corrected p-values are never smaller, and the smallest is five times its own."""
    found = judged(outcomes(World(), 3)).values()
    raw, adjusted = np.array([one.p for one in found]), np.array([one.adjusted for one in found])
    assert (adjusted >= raw).all()
    assert adjusted.min() == pytest.approx(5 * raw.min())


def test_rows_say_everything():
    """Tables hold each finding, each curve's coefficients that give its peak, and other scores; as Markdown too."""
    rows = outcomes(CLEAR, 0)
    findings = finding_rows(judge(rows, RULES))
    assert [row["hypothesis"] for row in findings] == list(NAMES)
    fronts = frontier_rows(rows, RULES)
    assert [(row["objective"], row["start"]) for row in fronts[:4]] == [("dpo", 0), ("dpo", 1), ("dpo", 2), ("kto", 0)]
    for row in fronts:
        place = math.log(row["kl_at_peak"]) - row["centre"]
        assert sum(row[f"c{n}"] * place**n for n in range(row["degree"] + 1)) == pytest.approx(row["peak"])
    shown = shown_rows(lifted(rows, is_humanline("dpo"), 0.05), RULES)
    of_dpo = {row["outcome"]: row for row in shown if (row["objective"], row["variant"]) == ("dpo", "humanline")}
    assert of_dpo["score"]["estimate"] == pytest.approx(0.05, abs=0.004)
    assert of_dpo["greedy"]["estimate"] == pytest.approx(0.0, abs=0.004)
    assert of_dpo["score, covariates"]["estimate"] == pytest.approx(0.05, abs=0.02)
    assert len(markdown(findings).splitlines()) == 2 + len(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("curve", ["power", "quadratic"])
def test_the_whole_procedure_covers_and_finds(curve):
    """Judged whole, intervals of H1 to H3 cover 93 to 97 %, and H1 finds two margins in four of five grids."""
    grids = 500
    allowed = 3 * math.sqrt(0.05 * 0.95 / grids)
    for share in simulate(World(curve=curve), RULES, grids=grids, seed=10_000)[:3]:
        assert 0.93 - allowed < share.covered < 0.97 + allowed
    for shift in (-0.2, 0.2):
        assert simulate(World(curve=curve, shift=shift), RULES, grids=100, seed=20_000)[0].differs > 0.8


def test_what_is_not_known_is_left_empty():
    """A verdict without an estimate has no interval, not one from nan to nan."""
    rows = [row for row in outcomes(CLEAR, 0) if row.cell.variant == "offline" and row.cell.objective == "dpo"]
    findings = judge(rows, RULES)
    assert any(math.isnan(one.low) for one in findings)
    assert "nan" not in words(rows, findings, [], [], [], RULES)
