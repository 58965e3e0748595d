"""Statistics of paired studies over seeds."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from humanline.stats import (
    Interval,
    equivalence,
    flips,
    holm,
    mean_estimate,
    mean_interval,
    non_inferiority,
    paired_interval,
    sign_flip_test,
)
from tests.helpers import strategies

ALTERNATIVES = ("two-sided", "greater", "less")
#: Hours of sleep that two drugs added for ten patients (Student, 1908).
FIRST_DRUG = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND_DRUG = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
#: Eighths of an inch by which crossed maize outgrew self-fertilised maize in Darwin's 15 pairs (Fisher, 1935).
MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def hoeffding(trials: int, failure: float = 1e-9) -> float:
    """How far a share of `trials` may lie from its expectation, but for probability `failure`."""
    return math.sqrt(math.log(2 / failure) / (2 * trials))


def samples(count: int) -> list[tuple[np.random.Generator, np.ndarray]]:
    """Normal samples of 2 to 30 values, off centre and of any spread, each with the generator that made it."""
    rngs = [np.random.default_rng(seed) for seed in range(count)]
    return [(rng, rng.normal(rng.normal(), rng.uniform(0.1, 3), rng.integers(2, 31))) for rng in rngs]


def test_a_worked_example():
    """The interval of 1, 2, 3, 4 is 2.5 ± 3.182446 * 1.290994 / 2, with the tabulated t quantile of 3 degrees."""
    interval = mean_interval([1, 2, 3, 4])
    assert interval.mean == 2.5
    assert interval.half_width == pytest.approx(3.182446305284263 * math.sqrt(5 / 3) / 2, rel=1e-12)
    assert interval.excludes_zero and str(interval) == "2.500 ± 2.054"


def test_one_value_has_no_width():
    """A single value gives an infinite half-width and prints without one."""
    assert mean_interval([2.0]).half_width == math.inf and str(mean_interval([2.0])) == "2.000"
    assert not mean_interval([2.0]).excludes_zero
    assert paired_interval([2.0], [1.0]) == Interval(1.0, math.inf)


def test_coverage():
    """Of 4000 intervals from 5 normal values 95 % cover the mean, within the Hoeffding bound at 1e-9."""
    rng, trials = random.Random(0), 4000
    covered = sum(not mean_interval([rng.gauss(0, 1) for _ in range(5)]).excludes_zero for _ in range(trials))
    assert abs(covered / trials - 0.95) < hoeffding(trials)


def test_zero_lies_in_an_interval_of_zero_alone():
    assert not mean_interval([0.0, 0.0]).excludes_zero and not Interval(0.5, 0.5).excludes_zero
    assert mean_interval([0.1, 0.1]).excludes_zero and not mean_interval([0.1]).excludes_zero


def test_equal_values_have_a_width_of_zero():
    """Equal values give that value and no width, also where their rounded sum is not their number times it."""
    rng, rounded = random.Random(1), 0
    for _ in range(200):
        value, count = rng.uniform(-1, 1), rng.randrange(2, 30)
        rounded += math.fsum([value] * count) / count != value
        assert mean_interval([value] * count, confidence=1 - 1e-16) == Interval(value, 0.0)
    assert rounded > 0


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_the_width_scales_with_the_values(scale):
    """Values whose squares leave the range of floats have the interval of the values in another unit."""
    interval = mean_interval([scale, 2 * scale, 4 * scale])
    assert interval.half_width == pytest.approx(mean_interval([1, 2, 4]).half_width * scale, rel=1e-12)


def test_the_paired_interval_of_a_published_example():
    """Student's sleeping drugs differ by 1.58 hours, with the 95 % interval 0.7001142 to 2.4598858 that R prints."""
    interval = paired_interval(SECOND_DRUG, FIRST_DRUG)
    assert interval.mean == pytest.approx(1.58, rel=1e-12)
    assert interval.half_width == pytest.approx((2.4598858 - 0.7001142) / 2, abs=1e-7)


def test_the_paired_interval_agrees_with_scipy():
    """The paired interval is that of scipy's paired t-test at any confidence."""
    for rng, first in samples(50):
        second, confidence = rng.normal(size=len(first)), rng.uniform(0.01, 0.999)
        interval = paired_interval(first, second, confidence=confidence)
        expected = scipy.stats.ttest_rel(first, second).confidence_interval(confidence)
        assert interval.mean - interval.half_width == pytest.approx(expected.low, rel=1e-9, abs=1e-12)
        assert interval.mean + interval.half_width == pytest.approx(expected.high, rel=1e-9, abs=1e-12)


def test_the_sign_flips_of_a_published_example():
    """Fisher counts 863 of the 32768 signs of Darwin's maize that reach the sum of 314, 1726 in both tails."""
    assert sum(MAIZE) == 314
    assert sign_flip_test(MAIZE, flips=2**15, alternative="greater") == 863 / 2**15
    assert sign_flip_test(MAIZE, flips=2**15) == 1726 / 2**15


@given(differences=st.lists(strategies.outcomes, min_size=1, max_size=7), alternative=st.sampled_from(ALTERNATIVES))
def test_sign_flips_agree_with_plain_enumeration(differences, alternative):
    """The exact p-value is the share of all sign choices whose sum is as extreme, ties counted."""
    reaches = {
        "two-sided": lambda total, seen: abs(total) >= abs(seen),
        "greater": lambda total, seen: total >= seen,
        "less": lambda total, seen: total <= seen,
    }[alternative]
    signs = list(itertools.product([1, -1], repeat=len(differences)))
    totals = [sum(s * d for s, d in zip(choice, differences, strict=True)) for choice in signs]
    expected = sum(reaches(total, sum(differences)) for total in totals) / len(signs)
    assert sign_flip_test(differences, alternative=alternative) == expected


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_sign_flips_agree_with_scipy(alternative):
    """The exact p-value is that of scipy's permutation test where no two sums are tied."""
    for seed in range(5):
        differences = np.random.default_rng(seed).normal(0.3, 1, 3 + 2 * seed)
        options = {"permutation_type": "samples", "alternative": alternative, "vectorized": True}
        expected = scipy.stats.permutation_test((differences,), np.mean, n_resamples=2**12, **options).pvalue
        assert sign_flip_test(differences, alternative=alternative) == pytest.approx(expected, rel=1e-12)


def test_ties_survive_rounding():
    """Sums that are equal on paper count as tied, although the floats 0.1 + 0.2 - 0.3 do not sum to 0."""
    assert sum([0.1, 0.2, -0.3]) > 0
    assert sign_flip_test([0.1, 0.2, -0.3], alternative="greater") == 5 / 8
    assert sign_flip_test([0.1, 0.2, -0.3], alternative="less") == 5 / 8
    assert sign_flip_test([0.1, 0.2, -0.3]) == 1.0


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_random_flips_approach_the_exact_p_value(alternative):
    """One flip fewer than enumeration needs is Monte Carlo, within its Hoeffding bound at 1e-9 of the exact p-value."""
    differences, flips = np.random.default_rng(0).normal(0.2, 1, (20, 13)), 2**13 - 2
    exact = sign_flip_test(differences, flips=flips + 1, alternative=alternative)
    estimate = sign_flip_test(differences, flips=flips, alternative=alternative)
    assert np.array_equal(exact, sign_flip_test(differences, flips=flips + 1, seed=1, alternative=alternative))
    assert not np.array_equal(estimate, sign_flip_test(differences, flips=flips, seed=1, alternative=alternative))
    assert np.abs(estimate - exact).max() < hoeffding(flips, 1e-9 / 20) + 1 / (1 + flips)


@given(sizes=st.lists(strategies.outcomes, min_size=1, max_size=6), alternative=st.sampled_from(ALTERNATIVES))
def test_the_exact_test_keeps_its_level(sizes, alternative):
    """Over all signs of any sizes, so under any symmetric law, p is at most a with probability at most a."""
    rows = np.array(list(itertools.product([1, -1], repeat=len(sizes)))) * np.array(sizes)
    p = sign_flip_test(rows, alternative=alternative)
    assert all((p <= level).mean() <= level for level in np.unique(p))


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_random_flips_keep_the_level(alternative):
    """Under symmetry the p-value of 19 flips is uniform on 1/20, ..., 1, within the DKW bound at 1e-9 (5000 trials)."""
    rng, trials = np.random.default_rng(0), 5000
    p = np.array(
        [sign_flip_test(rng.normal(size=30), flips=19, seed=s, alternative=alternative) for s in range(trials)]
    )
    levels = np.arange(21) / 20
    assert np.abs((p[:, None] <= levels + 1e-12).mean(0) - levels).max() < hoeffding(trials)


def test_random_flips_never_give_zero():
    """The smallest p-value of random flips is 1 / (1 + flips), which 60 positive differences reach."""
    assert sign_flip_test(np.ones(60), flips=99, alternative="greater") == 1 / 100


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_the_alternatives_mirror_each_other(n, alternative):
    """Turning every difference over exchanges "greater" and "less" and leaves "two-sided" as it was."""
    differences = np.random.default_rng(n).normal(0.2, 1, (10, n))
    mirrored = {"greater": "less", "less": "greater"}.get(alternative, alternative)
    p = sign_flip_test(differences, alternative=alternative)
    assert np.array_equal(p, sign_flip_test(-differences, alternative=mirrored))


@pytest.mark.parametrize("n", [1, 6, 40])
def test_each_row_is_a_test_of_its_own(n):
    """A stack of rows gives, in its shape, the p-value of each row alone; a single row gives a float."""
    differences = np.random.default_rng(n).normal(0.2, 1, (2, 3, n))
    p = sign_flip_test(differences, flips=500, seed=7)
    assert p.shape == (2, 3) and isinstance(sign_flip_test(differences[0, 0]), float)
    for i, j in itertools.product(range(2), range(3)):
        assert p[i, j] == sign_flip_test(differences[i, j], flips=500, seed=7)
    assert sign_flip_test(np.ones((0, n))).shape == (0,)


@pytest.mark.parametrize("n", [6, 40])
@pytest.mark.parametrize("scale", [1e-300, 1e307])
def test_the_unit_does_not_matter(n, scale):
    """Differences in any unit have the same p-value, also where their sum would overflow."""
    differences = np.append(np.random.default_rng(n).uniform(-1, 1.5, n - 1), 0.0)
    assert sign_flip_test(differences * scale) == sign_flip_test(differences)


@pytest.mark.parametrize("n", [6, 40])
def test_the_size_of_a_block_does_not_matter(n, monkeypatch):
    """Signs that are held a few at a time give the p-values of signs that are held all at once."""
    differences = np.random.default_rng(n).normal(0.2, 1, (3, n))
    expected = sign_flip_test(differences, flips=101)
    monkeypatch.setattr(flips, "_BLOCK", 7 * n)
    assert np.array_equal(sign_flip_test(differences, flips=101), expected)


@pytest.mark.parametrize("n", [1, 6, 40])
@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_no_difference_is_no_evidence(n, alternative):
    """Differences that are all 0 give p = 1, next to a row that is not."""
    p = sign_flip_test([np.zeros(n), np.arange(1.0, n + 1)], alternative=alternative)
    assert p[0] == sign_flip_test(np.zeros(n), alternative=alternative) == 1.0


def test_holm_of_a_hand_computed_example():
    """0.01, 0.04, 0.03, 0.005 become 3 * 0.01, then 2 * 0.03 for 0.03 and (no less) for 0.04, and 4 * 0.005."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], rel=1e-12)


def test_holm_of_a_published_example():
    """Of the 15 p-values of Benjamini and Hochberg (1995) three are significant at 0.05; 1 is the largest."""
    found = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    adjusted = holm([*found, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0])
    assert adjusted[:4] == pytest.approx([15 * 0.0001, 14 * 0.0004, 13 * 0.0019, 12 * 0.0095], rel=1e-12)
    assert (adjusted <= 0.05).sum() == 3 and adjusted.max() == 1.0


@given(p_values=st.lists(strategies.probabilities, min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferroni(p_values):
    """An adjusted p-value is the largest Bonferroni p-value of the sets of hypotheses that hold its own."""
    places = range(len(p_values))
    sets = [held for size in places for held in itertools.combinations(places, size + 1)]
    bonferroni = {held: min(1.0, len(held) * min(p_values[i] for i in held)) for held in sets}
    assert holm(p_values).tolist() == [max(bonferroni[held] for held in sets if i in held) for i in places]


def test_holm_leaves_out_what_was_not_tested():
    """A nan stays where it is and does not count among the tests; all nan is no test at all."""
    adjusted = holm([math.nan, 0.02, math.nan, 0.3])
    assert np.array_equal(adjusted, [math.nan, 0.04, math.nan, 0.3], equal_nan=True)
    assert np.isnan(holm([math.nan, math.nan])).all()


def test_non_inferiority_agrees_with_scipy():
    """The p-value and the lower bound are those of scipy's one-sided t-test at -margin."""
    for rng, differences in samples(50):
        margin, confidence = rng.uniform(0, 1), rng.uniform(0.01, 0.999)
        result = non_inferiority(differences, margin, confidence=confidence)
        expected = scipy.stats.ttest_1samp(differences, -margin, alternative="greater")
        assert result.p == pytest.approx(expected.pvalue, rel=1e-9)
        assert result.lower == pytest.approx(expected.confidence_interval(confidence).low, rel=1e-9, abs=1e-12)
        assert result.interval == mean_interval(differences, confidence=confidence) and result.margin == margin


def test_equivalence_agrees_with_scipy():
    """The p-value is the larger of scipy's one-sided t-tests at both margins, and the bounds are theirs."""
    for rng, differences in samples(50):
        margin, confidence = rng.uniform(0.01, 2), rng.uniform(0.01, 0.999)
        result = equivalence(differences, margin, confidence=confidence)
        above = scipy.stats.ttest_1samp(differences, -margin, alternative="greater")
        below = scipy.stats.ttest_1samp(differences, margin, alternative="less")
        assert result.p == pytest.approx(max(above.pvalue, below.pvalue), rel=1e-9)
        assert result.lower == pytest.approx(above.confidence_interval(confidence).low, rel=1e-9, abs=1e-12)
        assert result.upper == pytest.approx(below.confidence_interval(confidence).high, rel=1e-9, abs=1e-12)
        assert result.interval == mean_interval(differences, confidence=confidence) and result.margin == margin


@pytest.mark.parametrize("test", [non_inferiority, equivalence])
def test_the_bounds_and_the_p_value_decide_alike(test):
    """A result holds exactly where its p-value is below one minus the confidence; both verdicts occur."""
    results = [(test(x, 0.5, confidence=c), c) for _, x in samples(60) for c in (0.6, 0.8, 0.95)]
    assert all(result.holds == (result.p < 1 - c) for result, c in results)
    assert {result.holds for result, _ in results} == {True, False}


def test_non_inferiority_keeps_its_level():
    """A mean of exactly -margin is called non-inferior in 5 % of 4000 trials, within the Hoeffding bound at 1e-9."""
    draws = np.random.default_rng(0).normal(-0.7, 1, (4000, 6))
    assert abs(np.mean([non_inferiority(x, 0.7).holds for x in draws]) - 0.05) < hoeffding(len(draws))


@pytest.mark.parametrize("mean", [-2.5, 2.5])
def test_equivalence_keeps_its_level(mean):
    """A mean at either margin is called equivalent in at most 5 % of 4000 trials, to the Hoeffding bound at 1e-9."""
    draws = np.random.default_rng(0).normal(mean, 1, (4000, 6))
    assert np.mean([equivalence(x, 2.5).holds for x in draws]) < 0.05 + hoeffding(len(draws))


@pytest.mark.parametrize(
    "value,margin,p",
    [(0.0, 0.1, 0.0), (-0.1, 0.1, 1.0), (-0.2, 0.1, 1.0), (0.3, 0.1, 0.0), (0.0, 0.0, 1.0), (0.1, 0.0, 0.0)],
)
def test_non_inferiority_of_equal_differences(value, margin, p):
    """Equal differences decide without doubt, and one that is exactly -margin does not hold."""
    result = non_inferiority([value] * 7, margin)
    assert (result.interval, result.lower, result.p, result.holds) == (Interval(value, 0.0), value, p, p == 0.0)


@pytest.mark.parametrize("value,p", [(0.0, 0.0), (0.1, 1.0), (-0.1, 1.0), (-0.3, 1.0), (0.09, 0.0)])
def test_equivalence_of_equal_differences(value, p):
    """Equal differences decide without doubt, and one that is exactly the margin does not hold."""
    result = equivalence([value] * 7, 0.1)
    assert (result.lower, result.upper, result.p, result.holds) == (value, value, p, p == 0.0)


@pytest.mark.parametrize("confidence", [1e-320, 1e-17, 1 - 1e-16])
def test_no_confidence_gives_nan(confidence):
    """A confidence next to 0 or 1 gives bounds that are numbers, for equal differences the difference itself."""
    assert non_inferiority([0.1] * 7, 0.1, confidence=confidence).lower == 0.1
    result = equivalence([0.1, 0.2, 0.4, 0.0, 0.1, 0.2, 0.3], 0.1, confidence=confidence)
    assert not math.isnan(result.lower) and not math.isnan(result.upper)
    assert math.isfinite(result.interval.half_width)


def test_bounds_where_the_error_is_not_known():
    """A single value has no lower bound, as its interval has none (it was nan); a confidence above 1 is refused."""
    alone = mean_estimate([1.0])
    assert alone.lower() == -math.inf and alone.interval().half_width == math.inf
    with pytest.raises(ValueError, match=r"^confidence must be in \(0, 1\); got 95$"):
        mean_estimate([1.0, 2.0]).lower(95)


def test_verdicts_print_what_decides_them():
    """A result prints its interval, the bounds beside the margin, and its p-value."""
    numbers = [0.01, -0.02, 0.00, 0.01, -0.01]
    assert str(non_inferiority(numbers, 0.01)) == "-0.002 ± 0.016, lower bound -0.014 <= -0.010, p = 0.12"
    assert str(equivalence(numbers, 0.02)) == "-0.002 ± 0.016, bounds (-0.014, 0.010) inside ±0.020, p = 0.018"
    assert "(-0.014, 0.010) not inside ±0.010" in str(equivalence(numbers, 0.01))


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: mean_interval([]), "values must hold at least one number"),
        (lambda: mean_interval([1.0, math.nan]), "values must be finite; got nan"),
        (lambda: mean_interval([1.0, 2.0], confidence=1.0), r"confidence must be in \(0, 1\); got 1.0"),
        (lambda: paired_interval([], []), "first must hold at least one number"),
        (lambda: paired_interval([1.0], []), "second must hold at least one number"),
        (lambda: paired_interval([1.0, 2.0], [1.0]), r"second must have the shape of first \(2,\); got \(1,\)"),
        (lambda: paired_interval([1.0], [math.inf]), "second must be finite; got inf"),
        (lambda: paired_interval([1e308], [-1e308]), "first - second must be finite; got inf"),
        (lambda: paired_interval([1.0], [1.0], confidence=0), r"confidence must be in \(0, 1\); got 0"),
        (lambda: sign_flip_test([]), "differences must hold at least one number along the last axis"),
        (lambda: sign_flip_test(1.0), "differences must hold at least one number along the last axis; got 1.0"),
        (lambda: sign_flip_test(np.ones((2, 0))), "differences must hold at least one number along the last axis"),
        (lambda: sign_flip_test([[1.0], [math.nan]]), "differences must be finite; got nan"),
        (lambda: sign_flip_test([1.0], flips=0), "flips must be an integer >= 1; got 0"),
        (lambda: sign_flip_test([1.0], flips=1.5), "flips must be an integer >= 1; got 1.5"),
        (
            lambda: sign_flip_test([1.0], alternative="more"),
            "alternative must be one of 'two-sided', 'greater', 'less'",
        ),
        (lambda: holm([]), "p_values must be one-dimensional and hold at least one p-value"),
        (lambda: holm([[0.1]]), "p_values must be one-dimensional and hold at least one p-value"),
        (lambda: holm([0.1, 1.5]), r"p_values must be in \[0, 1\], or nan where not tested; got 1.5"),
        (lambda: holm([-0.1]), r"p_values must be in \[0, 1\], or nan where not tested; got -0.1"),
        (lambda: non_inferiority([], 0.1), "differences must hold at least one number"),
        (lambda: non_inferiority([0.1], 0.1), r"differences must hold at least two numbers; got \[0.1\]"),
        (lambda: non_inferiority([0.1, math.inf], 0.1), "differences must be finite; got inf"),
        (lambda: non_inferiority([0.1, 0.2], -0.1), "margin must be >= 0; got -0.1"),
        (lambda: non_inferiority([0.1, 0.2], math.inf), "margin must be finite; got inf"),
        (lambda: non_inferiority([0.1, 0.2], 0.1, confidence=2), r"confidence must be in \(0, 1\); got 2"),
        (lambda: equivalence([0.1], 0.1), r"differences must hold at least two numbers; got \[0.1\]"),
        (lambda: equivalence([0.1, math.nan], 0.1), "differences must be finite; got nan"),
        (lambda: equivalence([0.1, 0.2], 0.0), "margin must be > 0; got 0.0"),
        (lambda: equivalence([0.1, 0.2], math.nan), "margin must be finite; got nan"),
        (lambda: equivalence([0.1, 0.2], 0.1, confidence=-1), r"confidence must be in \(0, 1\); got -1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    """Every refused argument is named with its rule and its value."""
    with pytest.raises(ValueError, match=message):
        call()
