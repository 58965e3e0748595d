"""Comparisons: joined by item and seed, tested as declared."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from humanline.evaluate.compare import compare
from humanline.evaluate.declared import Declared, Plan, read_plan
from humanline.evaluate.records import Evaluation, EvaluationError, Item, read_evaluation, write_evaluation
from humanline.evaluate.report import as_json, describe
from humanline.stats import (
    crossed_estimate,
    detectable_difference,
    holm,
    needed_crossed,
    needed_pairs,
    non_inferiority,
)
from humanline.train.config.read import ConfigError

SETTINGS = {"prompts": {"sha256": "a1"}, "sampling": {"temperature": 0.7}, "scoring": {"reward": "math"}}


def evaluation(name: str, values, seed: int | None = None, settings=SETTINGS, ids=None, **more) -> Evaluation:
    """One sample an item, or a tuple of samples; None is a timeout."""
    ids = ids or [f"q{n}" for n in range(len(values))]
    items = []
    for id_, given in zip(ids, values, strict=True):
        samples = given if isinstance(given, tuple) else (given,)
        samples = tuple(None if one is None else float(one) for one in samples)
        status = tuple("timeout" if one is None else "ok" for one in samples)
        items.append(Item(id_, f"digest of {id_}", samples, status))
    return Evaluation(name, seed, settings, tuple(items), **more)


def planned(**settings) -> Declared:
    return Declared(Plan(**settings), "plan.yaml", "0" * 64, "2026-01-01")


def test_one_sample_of_one_run_is_mcnemars():
    theirs, ours = [1, 0, 0, 0, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1, 1]
    (found,) = compare([evaluation("a", theirs), evaluation("b", ours)]).contrasts
    assert found.how == "McNemar's exact test"
    assert found.p == scipy.stats.binomtest(1, 5).pvalue == found.adjusted
    assert (found.items, found.seeds, found.baseline, found.name) == (8, 1, "a", "b")
    assert found.interval.mean == pytest.approx(3 / 8) == found.mean - found.baseline_mean


def test_several_samples_of_one_run_are_sign_flips():
    theirs = [(1, 0), (0, 0), (1, 1), (0, 1), (0, 0)]
    ours = [(1, 1), (1, 0), (1, 1), (1, 1), (1, 0)]
    (found,) = compare([evaluation("a", theirs), evaluation("b", ours)]).contrasts
    assert found.how == "sign flips" and found.p == 2 / 2**4  # four differences of one sign, and one of 0
    assert found.estimate.degrees == 4


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_scores_differ_by_through_rounding_alone_is_no_difference(seeds):
    """A weighted sum of .1 and .2 is that of .3 and 0; a hair more than rounding counts, if there is that alone."""
    for value, shown in ((0.1 + 0.2, "no difference shown"), (0.3 + 1e-12, "better")):
        files = [
            evaluation(name, [one] * 8 + [0.5, 0.2, 0.9], seed=seed)
            for name, one in (("a", 0.3), ("b", value))
            for seed in range(seeds)
        ]
        (found,) = compare(files).contrasts
        assert found.verdict(0.05) == shown and (found.estimate.mean > 0) == (shown == "better")


@pytest.mark.parametrize("unit", ["items", "seeds", "both"])
def test_differences_of_seeds_and_items_that_make_up_for_each_other_are_none(unit):
    """.4 less .3 and .2 less .3 have a mean of 3e-17; a hair more than rounding counts, if there is that alone."""
    for more, shown in ((0.0, "no difference shown"), (1e-12, "better")):
        files = [evaluation("a", [0.3] * 12, seed=seed) for seed in range(6)]
        for seed in range(6):
            files.append(evaluation("b", [(0.2, 0.4)[(item + seed) % 2] + more for item in range(12)], seed=seed))
        (found,) = compare(files, planned(unit=unit)).contrasts
        assert found.unit == unit and found.verdict(0.05) == shown
        assert (found.estimate.mean == 0, found.p == 1) == ((True, True) if more == 0 else (False, False))


def test_seeds_are_joined_and_crossed_with_items():
    rng = np.random.default_rng(0)
    values = {(n, s): rng.normal(size=30) for n in "ab" for s in range(4)}
    files = [evaluation(n, values[n, s].tolist(), seed=s) for n in "ab" for s in (0, 1, 2, 3)]
    found = compare(files)
    assert found.unit == "both" and "several seeds" in found.why_unit
    (one,) = found.contrasts
    table = np.stack([values["b", s] - values["a", s] for s in range(4)], 1)
    assert one.estimate.mean == pytest.approx(table.mean(), abs=1e-14)
    assert "degrees of freedom" in one.how
    over_seeds = compare(files, planned(unit="seeds")).contrasts[0]
    assert over_seeds.estimate.mean == pytest.approx(table.mean(), abs=1e-14)
    expected = scipy.stats.ttest_1samp(table.mean(0), 0).confidence_interval(0.95)
    assert over_seeds.interval.mean + over_seeds.interval.half_width == pytest.approx(expected.high, rel=1e-9)


def test_holm_inside_the_family_and_not_outside():
    rng = np.random.default_rng(1)
    start = rng.normal(size=40)
    files = [evaluation("start", start.tolist())]
    files += [
        evaluation(name, (start + rng.normal(d, 1, 40)).tolist()) for name, d in (("x", 0.4), ("y", 0.3), ("z", 0))
    ]
    alone = compare(files)
    assert [one.adjusted for one in alone.contrasts] == pytest.approx(holm([one.p for one in alone.contrasts]))
    two = compare(files, planned(family=("z", "x")))
    by_name = {one.name: one for one in two.contrasts}
    assert by_name["y"].adjusted is None
    assert [by_name[n].adjusted for n in "zx"] == pytest.approx(holm([by_name[n].p for n in "zx"]))


def test_a_margin_is_a_t_test_at_the_margin():
    rng = np.random.default_rng(2)
    theirs = rng.random(50)
    ours = theirs + rng.normal(-0.01, 0.05, 50)
    files = [evaluation("a", theirs.tolist()), evaluation("b", ours.tolist())]
    (found,) = compare(files, planned(test="non-inferiority", margin=0.05)).contrasts
    assert found.margin == non_inferiority((ours - theirs).tolist(), 0.05) and found.p == found.margin.p
    assert found.verdict(0.05) == "not worse by 0.05"
    (equal,) = compare(files, planned(test="equivalence", margin=0.05)).contrasts
    assert equal.verdict(0.05) == "equal within 0.05"
    (narrow,) = compare(files, planned(test="equivalence", margin=1e-4)).contrasts
    assert narrow.verdict(0.05) == "not shown"
    assert found.needed["items"] < narrow.needed["items"]


def test_what_only_one_side_has_is_counted_and_left_out():
    theirs = evaluation("a", [1, 0, 1, None, 1], ids=["q0", "q1", "q2", "q3", "q4"])
    ours = evaluation("b", [0, 1, 1, 1], ids=["q0", "q1", "q3", "q9"])
    found = compare([theirs, ours])
    (one,) = found.contrasts
    assert one.items == 2
    assert one.left_out == {"items that are not in all files": 3, "items without a score on one side": 1}
    assert any("3 items that are not in all files" in line for line in found.remarks)
    seeds = [evaluation("a", [1, 0], seed=s) for s in (0, 1, 2)] + [evaluation("b", [0, 0], seed=s) for s in (1, 2, 5)]
    (one,) = compare(seeds).contrasts
    assert one.seeds == 2 and one.left_out == {"seeds that only one of both has": 2}
    assert compare(seeds[::-1]).contrasts[0].left_out == one.left_out


def test_a_lost_sample_of_several_is_counted_too():
    (one,) = compare([evaluation("a", [(1, None), (0, 1)]), evaluation("b", [(1, 1), (1, 1)])]).contrasts
    assert one.left_out == {"single samples without a score": 1} and one.baseline_mean == 0.75
    lost = evaluation("a", [(1, None, None), (0, 1, 1)], seed=0)
    (one,) = compare([lost, evaluation("b", [(1, 1, 0), (1, 1, 0)], seed=4)]).contrasts
    assert one.left_out == {"single samples without a score": 2}


def test_the_smallest_difference_that_could_have_been_shown():
    """Twice the noise hides twice the difference; the found difference is not read."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=60)
    zero = [0.0] * 60
    one, shifted, twice = (
        compare([evaluation("a", zero), evaluation("b", given.tolist())]).contrasts[0].detectable
        for given in (noise, noise + 5, 2 * noise)
    )
    assert one == pytest.approx(shifted, rel=1e-9) and twice == pytest.approx(2 * one, rel=1e-9)


@pytest.mark.parametrize("shift", [-0.4, 0.4])
@pytest.mark.parametrize("unit", ["items", "seeds", "both"])
def test_each_unit_has_its_test_its_error_and_its_need(unit, shift):
    """Mean differences of items or of seeds, or the table of both: p-values, intervals at the plan's level, numbers."""
    rng = np.random.default_rng(7)
    table = shift + rng.normal(size=(12, 1)) + 0.3 * rng.normal(size=(1, 5)) + 0.5 * rng.normal(size=(12, 5))
    files = [evaluation("a", [0.0] * 12, seed=s) for s in range(5)]
    files += [evaluation("b", table[:, s].tolist(), seed=s) for s in range(5)]
    (found,) = compare(files, planned(unit=unit, level=0.1, wanted=0.6)).contrasts
    assert (found.items, found.seeds, found.unit) == (12, 5, unit)
    if unit == "both":
        degrees, error = found.estimate.degrees, found.estimate.error
        expected = 2 * scipy.stats.t.sf(abs(table.mean()) / error, degrees)
        assert crossed_estimate(table) == found.estimate and set(found.needed) == {"items", "seeds"}
        assert None not in found.needed.values() and found.needed["items"] != found.needed["seeds"]
        for more in ("items", "seeds"):
            assert found.needed[more] == needed_crossed(table, 0.6, more=more, level=0.1)
        assert found.how == f"Student's t, items by seeds, {degrees:.1f} degrees of freedom"
    else:
        means = table.mean(1 if unit == "items" else 0)
        degrees, error = len(means) - 1, means.std(ddof=1) / math.sqrt(len(means))
        signs = np.array(list(itertools.product([1, -1], repeat=len(means))))
        expected = np.mean(np.abs(signs @ means) >= abs(means.sum()) - 1e-12)
        fewest = next(n for n in range(1, 99) if 2 / 2**n <= 0.1)  # whose signs alone can have so small a p-value
        assert found.needed == {unit: max(fewest, needed_pairs(float(means.std(ddof=1)), 0.6, level=0.1))}
        assert found.how == "sign flips"
    assert found.p == pytest.approx(expected, rel=1e-9)
    assert (found.estimate.degrees, found.estimate.error) == pytest.approx((degrees, error), rel=1e-12)
    assert found.interval.half_width == pytest.approx(scipy.stats.t.ppf(0.95, degrees) * error, rel=1e-9)
    assert found.detectable == detectable_difference(found.estimate, level=0.1)
    assert found.verdict(0.1) in ("no difference shown", "better" if table.mean() > 0 else "worse")


@pytest.mark.parametrize(("level", "fewest"), [(0.05, 6), (0.01, 8), (0.2, 4)])
@pytest.mark.parametrize("unit", ["items", "seeds"])
def test_a_test_by_signs_of_few_can_show_nothing(unit, level, fewest):
    """However large the difference: so none could have been shown, and as many are needed as have small p-values."""
    rng = np.random.default_rng(9)
    for count in (fewest - 1, fewest):
        shape = (count, 1) if unit == "items" else (40, count)
        table = 5 + 0.01 * rng.normal(size=shape)
        seeds = range(shape[1])
        files = [evaluation("a", [0.0] * shape[0], seed=s) for s in seeds]
        files += [evaluation("b", table[:, s].tolist(), seed=s) for s in seeds]
        found = compare(files, planned(unit=unit, level=level, wanted=1))
        (one,) = found.contrasts
        shown = count == fewest
        assert one.how == "sign flips" and one.p == 2 / 2**count and (one.p <= level) == shown
        assert (one.verdict(level) == "better") == math.isfinite(one.detectable) == shown
        assert one.needed == {unit: fewest}
        assert ("no difference of any size" in "\n".join(describe(found))) != shown


def test_binary_items_too_few_for_mcnemars_test():
    """Five that are all better give p = .0625."""
    for count, shown in ((5, False), (6, True)):
        (one,) = compare([evaluation("a", [0] * count), evaluation("b", [1] * count)]).contrasts
        assert one.how == "McNemar's exact test" and (one.p <= 0.05) == math.isfinite(one.detectable) == shown


def test_a_setting_that_one_file_does_not_say_is_named_so():
    files = [evaluation("a", [1, 0]), evaluation("b", [1, 0], settings=SETTINGS | {"limits": {"max_length": 64}})]
    with pytest.raises(EvaluationError, match=r"not evaluated alike: limits\.max_length: not said and 64"):
        compare(files)


def test_other_templates_are_said_and_no_refusal():
    """A chat model and its base may be asked each in its way."""
    files = [evaluation(name, [1, 0], summary={"template": how}) for name, how in (("a", "chat"), ("b", "plain"))]
    assert "prompts were put into different templates: a: chat; b: plain" in compare(files).remarks
    assert not any("templates" in one for one in compare([files[0], evaluation("b", [1, 0])]).remarks)
    seeds = [("a", 0, "plain"), ("a", 1, "chat"), ("b", 0, "chat"), ("b", 1, "chat")]
    files = [evaluation(name, [1, 0], seed=seed, summary={"template": how}) for name, seed, how in seeds]
    assert "prompts were put into different templates: a: plain and chat; b: chat" in compare(files).remarks


def test_items_that_ask_the_same_are_said():
    """Where items are the unit, which takes them for independent."""
    files = [evaluation(name, [1, 0, 0], seed=seed) for name in "ab" for seed in (0, 1)]
    same = [replace(one, items=tuple(replace(item, prompt="the same") for item in one.items)) for one in files]
    assert any("2 items have the prompt of an earlier one" in one for one in compare(same).remarks)
    assert not any("of an earlier one" in one for one in compare(files).remarks)
    assert not any("of an earlier one" in one for one in compare(same, planned(unit="seeds")).remarks)


def test_what_is_wanted_goes_before_the_margin():
    rng = np.random.default_rng(8)
    files = [evaluation("a", [0.0] * 30), evaluation("b", rng.normal(size=30).tolist())]
    for plan, wanted in (({"wanted": 0.1}, 0.1), ({}, 0.5)):
        (found,) = compare(files, planned(test="non-inferiority", margin=0.5, level=0.01, **plan)).contrasts
        deviation = found.estimate.error * math.sqrt(30)
        assert found.needed == {"items": needed_pairs(deviation, wanted, level=0.01, sides=1)}
        assert found.margin == non_inferiority(found.estimate, 0.5, confidence=0.99)
        assert found.detectable == detectable_difference(found.estimate, level=0.01, sides=1)


def test_a_family_decides_by_the_corrected_p_value():
    """Each verdict is of its own p-value, corrected, whatever the order of the family; level itself is shown."""
    zero = evaluation("start", [0.0] * 8)
    files = [zero] + [evaluation(f"m{n}", [1.0] * (8 - n) + [-1.0] * n) for n in range(3)]
    found = compare(files, planned(family=("m2", "m1", "m0"), level=0.09))
    p = [2 / 2**8, 2 * 9 / 2**8, 2 * 37 / 2**8]
    assert [one.p for one in found.contrasts] == p
    assert [one.adjusted for one in found.contrasts] == pytest.approx([3 * p[0], 2 * p[1], p[2]])
    assert [one.verdict(0.09) for one in found.contrasts] == ["better", "no difference shown", "no difference shown"]
    assert found.contrasts[0].verdict(3 * p[0]) == "better"
    assert describe(found)[4].split()[9:11] == [f"{p[0]:.2g}", f"{3 * p[0]:.2g}"]
    ours = [0.3, -0.2, 0.1, 0.05, 0.2, 0.0]
    margins = [evaluation("start", [0.0] * 6)] + [evaluation(name, ours) for name in "abc"]
    for test, margin in (("non-inferiority", 0.09), ("equivalence", 0.24)):
        for one in compare(margins, planned(test=test, margin=margin)).contrasts:
            assert one.p < 0.05 < one.adjusted == pytest.approx(3 * one.p) and one.verdict(0.05) == "not shown"
            assert one.margin.holds


def test_seeds_of_one_model_alone_are_no_sample_of_seeds():
    """Then the unit is items; and seeds are joined by their numbers, whatever the order of the files."""
    files = [evaluation("a", [1, 0, 1], seed=1)] + [evaluation("b", [s, 1, s], seed=s) for s in (2, 0, 1)]
    found = compare(files)
    assert found.unit == "items" and found.contrasts[0].mean == 1.0
    turned = [evaluation("a", [s, 0, 0], seed=s) for s in (0, 1, 2)]
    turned += [evaluation("b", [s, 0, 0.5], seed=s) for s in (2, 0, 1)]
    table = compare(turned, planned(unit="both")).contrasts[0]
    assert table.estimate.mean == pytest.approx(0.5 / 3) and table.left_out == {}
    assert compare(turned, planned(unit="seeds")).contrasts[0].estimate.error == 0  # each is 1/6 better


def test_a_margin_in_another_unit_is_refused_of_shares_alone():
    files = [evaluation("a", [-3.0, 0.5, 1.0]), evaluation("b", [-3.0, 0.5, 0.0])]
    assert compare(files, planned(test="non-inferiority", margin=2.0)).contrasts[0].margin.margin == 2.0


def bare(power: float, tests: int) -> float:
    """Margin, in standard errors, at which so many one-sided z-tests at .05 all pass for equal models."""
    return float(scipy.stats.norm.ppf(0.95) + scipy.stats.norm.ppf(1 - (1 - power) / tests))


@pytest.mark.parametrize(("test", "tests"), [("non-inferiority", 1), ("equivalence", 2)])
def test_the_power_of_a_margin_is_that_for_equal_models(test, tests):
    """Of equivalence both one-sided tests must pass: 80 % needs .9 of each."""
    rng = np.random.default_rng(4)
    files = [evaluation("a", [0.0] * 2000), evaluation("b", rng.normal(size=2000).tolist())]
    (found,) = compare(files, planned(test=test, margin=0.05)).contrasts
    error = found.estimate.error
    assert found.detectable == pytest.approx(bare(0.8, tests) * error, rel=2e-3)
    assert found.needed["items"] == pytest.approx(2000 * (bare(0.8, tests) * error / 0.05) ** 2, rel=2e-3)
    drawn = rng.normal(0.0, error, size=20_000)
    passed = (drawn > 1.645 * error - found.detectable) & (
        (drawn < found.detectable - 1.645 * error) if tests == 2 else True
    )
    assert passed.mean() == pytest.approx(0.8, abs=0.015)


def test_one_common_seed_is_no_sample_of_seeds():
    """Nor one common item of items: what holds for both needs two of both, whatever each model has alone."""
    files = [evaluation("a", [1, 0, 1], seed=s) for s in (0, 1)] + [evaluation("b", [0, 0, 1], seed=s) for s in (1, 2)]
    with pytest.raises(EvaluationError, match="have one of seeds in common; a comparison over both needs at least two"):
        compare(files)
    assert compare(files, planned(unit="items")).contrasts[0].seeds == 1
    with pytest.raises(EvaluationError, match="one of seeds in common"):
        compare(files, planned(unit="seeds"))
    files = [evaluation(n, [1, 0], seed=s, ids=["q", n]) for n in "ab" for s in (0, 1)]
    with pytest.raises(EvaluationError, match="one of items in common"):
        compare(files)


def test_a_difference_is_shown_where_test_and_interval_find_it():
    """Six differences of one sign, one of them large: sign flips find it, while Student's interval holds 0."""
    ours = [0.1, 0.1, 0.1, 0.1, 0.1, 9.0]
    found = compare([evaluation("a", [0.0] * 6), evaluation("b", ours)])
    (one,) = found.contrasts
    assert one.p == 2 / 2**6 < 0.05 and not one.interval.excludes_zero
    assert one.verdict(0.05) == "no difference shown"
    assert any("sign flips and Student's interval disagree" in line for line in found.remarks)
    few = compare([evaluation("a", [0] * 100), evaluation("b", [1] * 5 + [0] * 95)])  # 5 to 0: p = .0625
    assert few.contrasts[0].interval.excludes_zero and few.contrasts[0].verdict(0.05) == "no difference shown"
    assert any("McNemar's exact test and Student's interval disagree" in line for line in few.remarks)
    more = compare([evaluation("a", [0] * 100), evaluation("b", [1] * 9 + [0] * 91)])
    assert more.contrasts[0].verdict(0.05) == "better" and not any("disagree" in line for line in more.remarks)


def test_the_lines_say_what_the_numbers_are():
    """Signs, sides, bounds in order and what is needed, as the plan has them."""
    rng = np.random.default_rng(5)
    values = {(n, s): rng.normal(d, 1, 30) for n, d in (("a", 0.0), ("b", -2.0)) for s in (0, 1, 2)}
    files = [evaluation(n, one.tolist(), seed=s) for (n, s), one in values.items()]
    found = compare(files, planned(wanted=0.01, level=0.1))
    (one,) = found.contrasts
    lines = describe(found)
    assert "model's value minus that of 'a'; intervals of 90 %" in lines[2]
    table = np.stack([values["b", s] - values["a", s] for s in range(3)], 1)
    cells = lines[4].split()
    assert cells[:3] == ["b", "30", "3"] and cells[-1] == "worse" == one.verdict(0.1)
    assert [float(cell) for cell in cells[3:6]] == pytest.approx(
        [np.mean([values["b", s] for s in range(3)]), np.mean([values["a", s] for s in range(3)]), table.mean()],
        abs=1e-4,
    )
    half = scipy.stats.t.ppf(0.95, one.estimate.degrees) * one.estimate.error
    assert [float(cells[6]), float(cells[8])] == pytest.approx([table.mean() - half, table.mean() + half], abs=1e-4)
    assert "no number of items is enough for 0.01" in lines[5] and "80 % power" in lines[5]
    tree = as_json(found)
    assert tree["declared"]["before"] and not as_json(compare(files))["declared"]["before"]
    assert tree["contrasts"][0]["verdict"] == "worse"
    turned = compare(files, planned(baseline="b")).contrasts[0]
    assert turned.estimate == -compare(files).contrasts[0].estimate and turned.verdict(0.05) == "better"


def test_what_could_have_been_shown_is_said_to_be_uncorrected_of_a_family():
    """The size is of one test alone: of several that are corrected together each line says so, of one none does."""
    rng = np.random.default_rng(6)
    files = [evaluation(name, rng.normal(0, 1, 30).tolist()) for name in "abcd"]
    said = {
        count: [line for line in describe(compare(files, planned(**plan))) if "80 % power" in line]
        for count, plan in ((3, {}), (2, {"family": ("b", "c")}), (1, {"family": ("b",)}))
    }
    before = [
        [f"before the correction for {count} comparisons" in line for line in lines] for count, lines in said.items()
    ]
    assert before == [[True, True, True], [True, True, False], [False, False, False]]


@pytest.mark.parametrize(
    ("files", "plan", "message"),
    [
        ([evaluation("a", [1])], None, "two models or more"),
        ([evaluation("a", [1]), evaluation("a", [1])], None, "two files of 'a' without a seed"),
        ([evaluation("a", [1], seed=3), evaluation("a", [1], seed=3)], None, "two files of 'a' of seed 3"),
        ([evaluation("a", [1], seed=3), evaluation("a", [1])], None, "some files of 'a' have a seed"),
        (
            [evaluation("a", [1]), evaluation("b", [1], settings=SETTINGS | {"sampling": {"temperature": 1.0}})],
            None,
            r"not evaluated alike: sampling.temperature: 0.7 and 1.0",
        ),
        ([evaluation("a", [1, 0]), evaluation("b", [1, 0])], planned(baseline="c"), "the plan names 'c'"),
        ([evaluation("a", [1, 0]), evaluation("b", [1, 0])], planned(family=("a",)), "names the baseline"),
        ([evaluation("a", [1, 0]), evaluation("b", [1, 0])], planned(unit="seeds"), "needs several seeds"),
        ([evaluation("a", [1], seed=0), evaluation("b", [1], ids=["x"], seed=0)], None, "no scored item in common"),
        ([evaluation("a", [1]), evaluation("b", [1])], None, "one of items in common"),
        ([evaluation("a", [1, 0]), evaluation("b", [(1, 1), (0, 0)])], None, r"has \[1, 2\] samples"),
        (
            [evaluation("a", [1, 0]), evaluation("b", [1, 0])],
            planned(test="non-inferiority", margin=2.0),
            "the margin is 2, but all values are from 0 to 1",
        ),
        (
            [evaluation("a", [1, 0], seed=s) for s in (0, 1)] + [evaluation("b", [1, 0], seed=s) for s in (2, 3)],
            None,
            "no seed in common",
        ),
    ],
)
def test_what_is_refused(files, plan, message):
    with pytest.raises(EvaluationError, match=message):
        compare(files, plan)


def test_equal_ids_with_other_prompts_are_refused():
    theirs, ours = evaluation("a", [1, 0]), evaluation("b", [1, 0])
    other = Evaluation("b", None, SETTINGS, (Item("q0", "another", (1.0,), ("ok",)), *ours.items[1:]))
    with pytest.raises(EvaluationError, match="item 'q0' is another question"):
        compare([theirs, other])


class TestPlans:
    def test_a_file_is_declared_with_digest_and_date(self, tmp_path):
        file = tmp_path / "plan.yaml"
        file.write_text("test: non-inferiority\nmargin: 0.02\nfamily: [b, c]\n")
        declared = read_plan(file)
        assert declared.plan == Plan(test="non-inferiority", margin=0.02, family=("b", "c"))
        assert "declared in plan.yaml, sha256" in declared.label and "20" in str(declared.changed)
        assert Declared(Plan(margin=0.1, test="equivalence")).label == "chosen by options, afterwards"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("margin: -0.02\ntest: equivalence", "margin: how large a loss is acceptable has no sign: write 0.02"),
            ("margin: 0.02", "a test of a difference has none"),
            ("test: equivalence", "margin is missing"),
            ("test: equivalence\nmargin: 0", "must be > 0"),
            ("margn: 1", "did you mean margin"),
            ("level: 0.7", "level"),
            ("family: [a, a]", "twice"),
            ("", "must hold keys such as test: and margin:"),
        ],
    )
    def test_what_is_refused(self, tmp_path, text, message):
        file = tmp_path / "plan.yaml"
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_plan(file)


class TestFiles:
    def test_a_file_comes_back(self, tmp_path):
        one = evaluation("a", [(1, None), (0.25, 3)], seed=7, summary={"pass@1": 0.5})
        write_evaluation(tmp_path / "a.json", one)
        assert read_evaluation(tmp_path / "a.json") == one

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda text: "{", "which is JSON"),
            (lambda text: "[]", "no evaluation file"),
            (lambda text: text.replace('"format": 1', '"format": 9'), "has format 9"),
            (lambda text: text.replace('"q1"', '"q0"'), "item 2: 'q0' is there twice"),
            (lambda text: text.replace("[1.0]", "[null]"), "item 1: 'q0' must have a finite number"),
            (lambda text: text.replace("[1.0]", "[NaN]"), "item 1"),
            (lambda text: text.replace("[1.0]", "[]"), "one status for each value"),
            (lambda text: text.replace('"seed": null', '"seed": "x"'), "seed must be an integer"),
        ],
    )
    def test_what_is_refused(self, tmp_path, change, message):
        file = tmp_path / "a.json"
        write_evaluation(file, evaluation("a", [1, 0]))
        file.write_text(change(file.read_text()))
        with pytest.raises(EvaluationError, match=message):
            read_evaluation(file)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(EvaluationError, match="cannot be read: No such file"):
            read_evaluation(Path(tmp_path / "none.json"))
        with pytest.raises(EvaluationError, match=r"this folder holds no evaluation\.json"):
            read_evaluation(tmp_path)


def test_infinite_errors_are_no_result():
    """Items that agree: no width, and nothing is needed to show any difference, which is said."""
    comparison = compare([evaluation("a", [0.5] * 6), evaluation("b", [0.5] * 6)])
    (found,) = comparison.contrasts
    assert any("all differences are 0, which tells nothing of how much they vary" in one for one in comparison.remarks)
    assert found.p == 1.0 and found.interval.half_width == 0.0 and math.isfinite(found.detectable)


def test_differences_that_are_alike_but_for_rounding_are_told():
    """Of tenths: .4 less .3 is not .2 less .1."""
    values = [n / 10 for n in range(1, 9)]
    comparison = compare([evaluation("a", values), evaluation("b", [value + 0.1 for value in values])])
    (found,) = comparison.contrasts
    assert 0 < found.estimate.error < 1e-15
    assert any("all differences are 0.1, which tells nothing of how much" in one for one in comparison.remarks)
