"""Verdicts of plans on made-up evaluations whose answer is known: paired, crossed, and chosen on other prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from humanline.evaluate.records import Evaluation, Item
from humanline.reproduce.scales.claims import scale_rows
from humanline.reproduce.scales.plan import Asked, PlannedRun, Scale
from humanline.reproduce.scales.read import Found
from humanline.stats import crossed_estimate

K1 = "offline + humanline, k = 1, is better than offline"
OWN = "offline + humanline, its own k, is better than offline"
ALIKE = "humanline with a larger k, here 8, is as good as with k = 1"
SHORT = "offline + humanline gives shorter answers than offline"
NAMES = [f"grpo/{kind}/seed{seed}" for seed in (0, 1) for kind in ("offline", "k1", "k8")]
SCALE = Scale(
    "made-up",
    "made up",
    tuple(PlannedRun(name, "llama3-8b-grpo-offline", differs="all") for name in NAMES),
    (
        Asked(K1, "grpo", ("grpo/k1",), ("grpo/offline",)),
        Asked(OWN, "grpo", ("grpo/k1", "grpo/k8"), ("grpo/offline",)),
        Asked(ALIKE, "grpo", ("grpo/k8",), ("grpo/k1",)),
        Asked(SHORT, "grpo", ("grpo/k1",), ("grpo/offline",)),
    ),
    "scored",
    "none",
    {"start": NAMES[0]},
)
RNG = np.random.default_rng(3)
PROMPTS = RNG.normal(0, 1.0, 40)
NOISE = {name: RNG.normal(0, 0.02, 40) for name in NAMES}
GAINS = {"offline": 0.5, "k1": 0.7, "k8": 0.7}


def found(gains=GAINS, names=NAMES, **changes) -> dict[str, Found]:
    """Return evaluations: what a prompt is worth, what the kind of run gains, and noise."""
    result = {"start": made(None, PROMPTS)}
    for name in names:
        run = next(one for one in SCALE.runs if one.name == name)
        result[name] = made(run, PROMPTS + gains[name.split("/")[1]] + NOISE[name], **changes)
    return result


def made(run, values, **changes) -> Found:
    ids = [f"{n:03}" for n in range(len(values))]
    items = tuple(Item(i, f"digest {i}", (float(v),), ("ok",)) for i, v in zip(ids, values, strict=True))
    lengths = {i: 10.0 + n % 3 for n, i in enumerate(ids)}
    one = Found(run, "evaluated", "", dict(zip(ids, map(float, values), strict=True)), lengths)
    return replace(one, evaluation=Evaluation("m", 0, {"scoring": 1}, items), **changes)


def row(says, results, scale=SCALE):
    (mine,) = [one for one in scale_rows(scale, results) if (one.says, one.objective) == (says, "grpo")]
    return mine


def one_seed(scale: Scale = SCALE) -> Scale:
    return replace(scale, runs=tuple(run for run in scale.runs if run.name.endswith("seed0")))


def test_with_one_seed_prompts_are_paired():
    names = [name for name in NAMES if name.endswith("0")]
    mine = row(K1, found(names=names), one_seed())
    differences = 0.2 + NOISE["grpo/k1/seed0"] - NOISE["grpo/offline/seed0"]
    test = stats.ttest_1samp(differences, 0.0, alternative="greater")
    low, high = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert mine.difference == pytest.approx(differences.mean()) and mine.p == pytest.approx(test.pvalue)
    assert (mine.low, mine.high) == pytest.approx((low, high)) and (mine.starts, mine.verdict) == (1, "holds here")


def test_several_seeds_are_crossed_with_prompts():
    mine = row(K1, found())
    table = np.stack([0.2 + NOISE[f"grpo/k1/seed{s}"] - NOISE[f"grpo/offline/seed{s}"] for s in (0, 1)], axis=1)
    estimate = crossed_estimate(table)
    assert mine.difference == pytest.approx(table.mean()) and mine.starts == 2
    assert mine.high - mine.difference == pytest.approx(estimate.interval(0.95).half_width)


def test_a_k_is_taken_on_the_half_of_the_prompts_that_it_is_not_judged_on():
    """K = 8 is better by 1 on even prompts and worse by 1 on odd ones: each half chooses what fails on the other."""
    results = found()
    even = np.arange(40) % 2 == 0
    for seed in (0, 1):
        name = f"grpo/k8/seed{seed}"
        results[name] = made(results[name].run, PROMPTS + np.where(even, 1.7, -0.3))
    mine = row(OWN, results)
    expected = []
    for seed in (0, 1):
        k1 = 0.7 + NOISE[f"grpo/k1/seed{seed}"]
        expected.append(np.where(even, k1, -0.3) - 0.5 - NOISE[f"grpo/offline/seed{seed}"])
    assert mine.difference == pytest.approx(float(np.mean(expected)))


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.7, "holds here"), (0.95, "does not hold here"), (0.77, "undecided here")]
)
def test_alike_is_within_a_tenth_of_what_the_other_side_gains_over_the_start(gain, verdict):
    mine = row(ALIKE, found(GAINS | {"k8": gain}))
    assert mine.margin == pytest.approx(0.07, abs=0.002) and mine.verdict == verdict


def test_without_a_start_nothing_is_alike():
    results = found() | {"start": Found(None, "not begun")}
    mine = row(ALIKE, results)
    assert mine.verdict == "undecided here" and "no margin" in mine.why


def test_alike_takes_its_margin_from_online_runs_where_a_claim_names_them():
    asked = tuple(replace(one, online="grpo/offline") if one.says == ALIKE else one for one in SCALE.asked)
    assert row(ALIKE, found(), replace(SCALE, asked=asked)).margin == pytest.approx(0.05, abs=0.002)


def test_what_is_partial_or_unlike_is_said_and_not_judged():
    results = found()
    results["grpo/k1/seed1"] = replace(results["grpo/k1/seed1"], state="not finished")
    mine = row(K1, results)
    assert (mine.verdict, mine.why) == ("not run", "1 of its 4 runs have no result: grpo/k1/seed1")
    results = found()
    other = results["grpo/k1/seed1"].evaluation
    results["grpo/k1/seed1"] = replace(results["grpo/k1/seed1"], evaluation=replace(other, settings={"scoring": 2}))
    assert row(K1, results).why == "its runs were not asked or scored alike"
    results = found()
    items = tuple(replace(one, prompt="other") for one in results["grpo/k1/seed1"].evaluation.items)
    told = replace(results["grpo/k1/seed1"].evaluation, items=items)
    results["grpo/k1/seed1"] = replace(results["grpo/k1/seed1"], evaluation=told)
    assert "is not the same prompt" in row(K1, results).why


def test_lengths_are_compared_where_they_are_known_for_each_prompt():
    assert row(SHORT, found()).difference == 0.0
    mine = row(SHORT, found(lengths={}))
    assert mine.verdict == "undecided here" and "means alone" in mine.why
