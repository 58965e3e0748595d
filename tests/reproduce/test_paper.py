"""The paper's figures as comparisons of cells: verdicts on made-up runs whose answer is known, and recipes of cells."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from humanline.reproduce.cells import FEW_LRS, FEW_SCALE, Cell, core, figure_9, paper
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.paper import paper_rows
from humanline.reproduce.paper_claims import CLAIMS, ELSEWHERE, FAMILY
from humanline.reproduce.paper_report import write_paper_report
from humanline.reproduce.plan import cells_of
from humanline.reproduce.recipe import recipe
from humanline.reproduce.start import Pairs
from humanline.reproduce.subsets import some_pairs
from humanline.reproduce.tables import outcomes_csv, read_outcomes
from humanline.reproduce.testbeds.registry import testbed as bed_of
from humanline.theory import BetaRejection, BetaShape
from humanline.train.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
LR = FEW_LRS[0]
OFFLINE = Cell("dpo", "offline", LR, **FEW_SCALE["dpo"])
ONLINE = Cell("dpo", "online", LR, **FEW_SCALE["dpo"])
K1, K8, K32 = (Cell("dpo", "humanline", LR, every=every, **FEW_SCALE["dpo"]) for every in (1, 8, 32))
#: What each start model has of its own, which pairing takes out but for a little.
STARTS = (0.0, 0.1, 0.25)
NOISE = (0.002, -0.001, -0.001)


def runs(cell: Cell, score: float, *, clipped: float = 0.0, sign: int = 1) -> list[Outcome]:
    found = []
    for start, (own, noise) in enumerate(zip(STARTS, NOISE, strict=True)):
        values = dict.fromkeys(Outcome.__dataclass_fields__, math.nan)
        values |= {"testbed": "letters", "cell": cell, "start": start, "draw": 0, "status": "done", "task": ""}
        values |= {"start_score": 0.5 + own, "score": score + own + sign * noise, "kl_to_start": 1.0, "length": 5.0}
        values |= {"clipped": clipped, "judged": 0.5, "greedy": 0.5, "matched": 0.5, "updates": 1, "scorer_calls": 1}
        found.append(Outcome(**values))
    return found


def row(outcomes: list[Outcome], says: str, objective: str = "dpo"):
    """Return the row of a claim; such of its cells as are not given are so bad that none of them is chosen."""
    (claim,) = [one for one in CLAIMS if one.says == says]
    asked = {cell for name in claim.numbers for pick in (claim.first, claim.second) for cell in pick(name)}
    given, starts = {one.cell for one in outcomes}, {one.start for one in outcomes}
    kinds = {(cell.objective, cell.variant) for cell in given}
    others = [cell for cell in asked - given if (cell.objective, cell.variant) in kinds]
    filled = [one for cell in others for one in runs(cell, -9.0) if one.start in starts]
    (found,) = [one for one in paper_rows([*outcomes, *filled]) if (one.says, one.objective) == (says, objective)]
    return found


def test_a_gain_over_offline_is_the_mean_over_start_models_with_students_interval():
    found = row([*runs(OFFLINE, 0.6), *runs(K1, 0.7, sign=-1)], "offline + humanline, k = 1, is better than offline")
    differences = [0.1 - 2 * noise for noise in NOISE]
    assert found.difference == pytest.approx(0.1) and (found.starts, found.verdict) == (3, "holds here")
    test = stats.ttest_1samp(differences, 0.0, alternative="greater")
    assert found.p == pytest.approx(test.pvalue) and found.adjusted == pytest.approx(test.pvalue)  # alone in its claim
    low, high = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_a_loss_is_no_gain_and_one_start_model_says_nothing():
    outcomes = [*runs(OFFLINE, 0.7), *runs(K1, 0.6, sign=-1)]
    assert row(outcomes, "offline + humanline, k = 1, is better than offline").verdict == "does not hold here"
    alone = [one for one in outcomes if not one.start]
    assert row(alone, "offline + humanline, k = 1, is better than offline").verdict == "not run"


@pytest.mark.parametrize("gain", [0.0072, -0.0072])
def test_both_verdicts_are_corrected_alike(gain):
    """A p-value of .034 decides for or against a claim alone, and neither of three; the 95 % interval holds 0."""
    says = "offline + humanline, k = 1, is better than offline"
    mine = [*runs(OFFLINE, 0.6), *runs(K1, 0.6 + gain, sign=-1)]
    side = "greater" if gain > 0 else "less"
    p = stats.ttest_1samp([gain - 2 * noise for noise in NOISE], 0.0, alternative=side).pvalue
    found = row(mine, says)
    assert 0.025 < p < 0.05 and found.low < 0 < found.high
    assert found.verdict == ("holds here" if gain > 0 else "does not hold here")
    assert (found.adjusted if gain > 0 else found.contrary_adjusted) == pytest.approx(p)
    for objective in ("kto", "grpo"):
        offline, first = (replace(cell, objective=objective, beta=None, clip_eps=None) for cell in (OFFLINE, K1))
        scale = FEW_SCALE[objective]
        mine += [*runs(replace(offline, **scale), 0.6), *runs(replace(first, **scale), 0.6 + gain, sign=-1)]
    for objective in ("dpo", "kto", "grpo"):
        found = row(mine, says, objective)
        assert found.verdict == "undecided here"
        assert (found.adjusted if gain > 0 else found.contrary_adjusted) == pytest.approx(3 * p)


def test_alike_is_denied_beyond_either_margin():
    """Its p-value is twice the smaller one of both sides: margin .04, difference -.1 with Student's t of 2 degrees."""
    outcomes = [*runs(OFFLINE, 0.6), *runs(K8, 0.8, sign=-1), *runs(ONLINE, 0.9)]
    found = row(outcomes, "offline + humanline is on par with online")
    differences = [-0.1 - 2 * noise for noise in NOISE]
    test = stats.ttest_1samp(differences, -found.margin, alternative="less")
    assert found.contrary == pytest.approx(2 * test.pvalue) and found.p > 0.99


@pytest.mark.parametrize(
    ("score", "verdict"),
    [(0.899, "holds here"), (0.8, "does not hold here"), (0.86, "undecided here")],
)
def test_alike_is_within_a_tenth_of_what_online_gains(score, verdict):
    """Online gains .4: the margin is .04, and .86 lies on it."""
    outcomes = [*runs(OFFLINE, 0.6), *runs(K8, score, sign=-1), *runs(ONLINE, 0.9)]
    found = row(outcomes, "offline + humanline is on par with online")
    assert found.margin == pytest.approx(0.04) and found.verdict == verdict


def test_k_is_chosen_by_the_other_start_models():
    """K = 8 is best on average but for its luck from start 0, where the others choose k = 32."""
    outcomes = [*runs(OFFLINE, 0.6), *runs(K8, 0.6), *runs(K32, 0.65)]
    outcomes = [replace(one, score=0.99) if one.cell == K8 and not one.start else one for one in outcomes]
    found = row(outcomes, "offline + humanline, its own k, is better than offline")
    chosen = (0.65, 0.6, 0.6)  # the luck chooses k = 8 for the others
    expected = [score + own + noise for score, own, noise in zip(chosen, STARTS, NOISE, strict=True)]
    assert found.first == pytest.approx(sum(expected) / 3)


def test_clipping_that_touches_no_token_is_not_tested():
    clip_only = Cell("dpo", "clip only", LR, **FEW_SCALE["dpo"])
    says = "clipping without syncing is as bad as offline"
    outcomes = [*runs(OFFLINE, 0.6), *runs(ONLINE, 0.9)]
    assert row([*outcomes, *runs(clip_only, 0.6, clipped=0.02)], says).verdict == "holds here"
    found = row([*outcomes, *runs(clip_only, 0.6, clipped=0.009)], says)
    assert (found.verdict, found.why) == ("not testable here", "0.90% of tokens are clipped")


def test_what_humanline_lacks_without_its_clip_is_not_tested_where_its_clip_touches_nothing():
    sync_only = Cell("dpo", "sync only", LR, every=8, **FEW_SCALE["dpo"])
    says = "syncing without clipping falls short of humanline"
    found = row([*runs(sync_only, 0.6), *runs(K8, 0.7, clipped=0.02, sign=-1)], says)
    assert (found.verdict, found.clipped) == ("holds here", pytest.approx(0.02))
    found = row([*runs(sync_only, 0.6), *runs(K8, 0.7, clipped=0.003, sign=-1)], says)
    assert (found.verdict, found.why) == ("not testable here", "0.30% of tokens are clipped")


def test_without_online_runs_nothing_is_called_alike():
    clip_only = Cell("dpo", "clip only", LR, **FEW_SCALE["dpo"])
    outcomes = [*runs(OFFLINE, 0.6), *runs(clip_only, 0.6, clipped=0.02)]
    found = row(outcomes, "clipping without syncing is as bad as offline")
    assert found.verdict == "undecided here" and "no margin" in found.why


def test_every_claim_compares_cells_that_are_run():
    """Each side of each claim has cells, all of them among those that --all runs, and the two share none."""
    from humanline.reproduce.cells import around

    known = {*core(), *around(), *paper()}
    for claim in CLAIMS:
        for objective in claim.numbers:
            first, second = set(claim.first(objective)), set(claim.second(objective))
            assert first and second and first | second <= known and not first & second, (claim.says, objective)
            assert {cell.objective for cell in first | second} == {objective}


def test_a_claim_some_of_whose_cells_were_not_run_is_not_judged():
    """The best of a few of them is not what is declared."""
    says = "offline + humanline, its own k, is better than offline"
    mine = [*runs(OFFLINE, 0.6), *runs(K8, 0.9, sign=-1)]
    (found,) = [one for one in paper_rows(mine) if one.says == says and one.objective == "dpo"]
    assert (found.verdict, found.why) == ("not run", "46 of its 48 cells have no run")
    assert math.isnan(found.difference) and math.isnan(found.p)


def test_another_family_is_asked_of_its_own_testbed_alone_with_the_cells_that_are_run_there():
    """Its few cells are those of the command, and leave every other claim without a verdict."""
    cells = figure_9()
    assert cells == cells_of("letters-gemma2", everything=False) and set(cells) <= set(core()) and len(cells) == 12
    assert (
        set(cells_of("letters-gemma2", everything=True)) > set(cells)
        and cells_of("letters", everything=False) == core()
    )
    mine = [one for cell in cells for one in runs(cell, 0.6 + 0.1 * (cell.variant == "humanline"))]
    rows = paper_rows([replace(one, testbed="letters-gemma2") for one in mine])
    assert {one.says for one in rows if one.verdict != "not run"} == {FAMILY}
    found = [one for one in rows if one.says == FAMILY]
    assert len(found) == 3 and all(one.difference == pytest.approx(0.1) for one in found)
    (found, *_) = [one for one in paper_rows(mine) if one.says == FAMILY]
    assert (found.verdict, found.why) == ("not run", "asked of letters-gemma2")


def test_scales_of_figure_9_are_those_that_letters_chose():
    """For each objective the most often chosen cell of the committed table, offline and at k = 32."""
    with open(ROOT / "studies" / "frontier" / "letters" / "best.csv", encoding="utf-8", newline="") as lines:
        best = {(one["objective"], one["series"]): one["chosen"] for one in csv.DictReader(lines)}
    for cell in figure_9():
        series = "offline" if cell.variant == "offline" else "humanline, k = 32"
        chosen = best[cell.objective, series].split("; ")[0].split(" ")[0]
        assert chosen in {replace(cell, lr=lr).name for lr in FEW_LRS}


def test_every_figure_and_table_has_a_row_or_a_reason():
    said = " ".join([*(claim.where for claim in CLAIMS), *ELSEWHERE])
    for name in ("Figure 1", "5", "6", "7", "8", "9", "10", "11"):
        assert f"Figure {name.removeprefix('Figure ')}" in said
    for number in range(3, 8):
        assert f"Table {number}" in said or f"and {number}" in said


def test_the_simulators_claims_are_named_as_they_are_there():
    from humanline.sim.claims import CLAIMS as EXACT

    assert {claim.exact for claim in CLAIMS} - {""} <= set(EXACT)


def test_the_report_says_what_was_not_run(tmp_path):
    clip_only = Cell("dpo", "clip only", LR, **FEW_SCALE["dpo"])
    cells = [replace(one, lr=lr) for one in (OFFLINE, clip_only) for lr in FEW_LRS]
    mine = [one for cell in [*cells, ONLINE] for one in runs(cell, 0.6, clipped=0.02)]
    mine = [replace(one, score=one.score + 0.3) if one.cell == ONLINE else one for one in mine]
    files = write_paper_report(tmp_path, mine)
    assert [file.name for file in files] == ["paper.csv", "paper.md"]
    text = files[1].read_text()
    assert "**holds here**" in text and "**not run**" in text and "Figure 7: `humanline reproduce --sampling`" in text
    assert files[0].read_text().count("\n") == 1 + sum(len(claim.numbers) for claim in CLAIMS)
    with pytest.raises(ValueError, match="of one testbed"):
        write_paper_report(tmp_path / "none", [])
    assert not (tmp_path / "none").exists()


def test_later_settings_are_columns_where_a_run_has_them(tmp_path):
    """A table of the grid alone has the columns it always had; a cell's own settings are read back."""
    assert "quartile" not in outcomes_csv(runs(OFFLINE, 0.6))
    table = [one for cell in paper() for one in runs(cell, 0.6)]
    (tmp_path / "runs.csv").write_text(outcomes_csv(table))
    assert [one.cell for one in read_outcomes(tmp_path / "runs.csv")] == [one.cell for one in table]
    assert len({cell.name for cell in paper()}) == len(paper()) == len({cell.settings for cell in paper()})


def test_cells_of_the_paper_are_recipes_that_differ_in_what_they_say(tmp_path):
    settings = {}
    for cell in paper():
        many = Pairs(tmp_path / "pairs.jsonl", 2560, 20480, 0.5)
        found = recipe(
            cell,
            bed_of("letters"),
            model=tmp_path,
            pairs=many,
            prompts=tmp_path / "a",
            distance=tmp_path / "b",
            output=tmp_path / "out",
            seed=0,
        )
        TrainConfig.model_validate(found)
        settings[cell] = found
    (ranges,) = [one for one in paper() if one.log_eps_high == 3.0 and one.lr == LR]
    assert settings[ranges]["transform"] == {"kind": "clip", "log_eps_low": -1.0, "log_eps_high": 3.0}
    (few,) = [one for one in paper() if one.desirable and one.variant == "offline" and one.lr == LR]
    assert settings[few]["objective"]["desirable_weight"] == 4.0 and settings[few]["training"]["batch_size"] == 20
    (rejects,) = [one for one in paper() if one.variant == "rejection" and one.objective == "kto" and one.lr == LR]
    assert settings[rejects]["transform"]["kind"] == "beta_rejection"
    assert settings[rejects]["reference"] == {"schedule": {"kind": "before_step", "every": 8}}


def test_ratios_beyond_the_bound_of_rejection_are_treated_as_those_within(tmp_path):
    """Each test keeps all from 1 nat on towards its bound; beyond it the other test rejects as the same law says."""
    (cell, *_) = [one for one in paper() if one.variant == "rejection"]
    found = recipe(
        cell,
        bed_of("letters"),
        model=tmp_path,
        pairs=Pairs(tmp_path / "pairs.jsonl", 2560, 20480, 0.5),
        prompts=tmp_path / "a",
        distance=tmp_path / "b",
        output=tmp_path / "out",
        seed=0,
    )
    given = TrainConfig.model_validate(found).transform
    bound = given.policy_ratio_bound
    assert math.log(bound) < 2.5 and bound == given.ref_ratio_bound
    laws = [stats.beta(shape.a, shape.b) for shape in (given.policy, given.ref)]
    assert all(law.sf(math.e / bound) < 1e-13 for law in laws)
    shapes = [BetaShape(shape.a, shape.b) for shape in (given.policy, given.ref)]
    rule = BetaRejection(*shapes, policy_ratio_bound=bound, ref_ratio_bound=bound)
    draws = [law.rvs(20000, random_state=seed) for seed, law in enumerate(laws)]
    for ratio, law in ((2.5, laws[1]), (-2.5, laws[0])):
        share = law.cdf(math.exp(-2.5) / bound)
        assert 0.1 < share < 0.2 and rule.keeps([ratio] * 20000, *draws).mean() == pytest.approx(share, abs=0.015)


def test_few_desirable_answers_are_the_first_quarter_beside_all_the_worse(tmp_path):
    rows = [{"prompt": f"p{i}", "chosen": f"good{i}", "rejected": f"bad{i}"} for i in range(8)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    pairs = Pairs(tmp_path / "pairs.jsonl", 8, 64, 0.5)
    (few,) = [one for one in paper() if one.desirable and one.variant == "offline" and one.lr == LR]
    found = some_pairs(few, pairs, tmp_path, tmp_path / "data")
    kept = [json.loads(line) for line in found.file.read_text().splitlines()]
    assert [one["completion"] for one in kept if one["label"]] == ["good0", "good1"]
    assert [one["completion"] for one in kept if not one["label"]] == [f"bad{i}" for i in range(8)]
    assert (found.count, found.scorer_calls, found.shape) == (8, 64, "unpaired")
    assert some_pairs(OFFLINE, pairs, tmp_path, tmp_path / "none") is pairs and not (tmp_path / "none").exists()
