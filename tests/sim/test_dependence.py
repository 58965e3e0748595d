"""What tells where a claim holds, corrected for the number of levels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from humanline.sim.dependence import ORDERS, dependences


def information(outcomes, levels):
    """Mutual information in nats, by its definition."""
    total = 0.0
    for level in set(levels):
        for outcome in (True, False):
            both = np.mean([(a == level) and (b == outcome) for a, b in zip(levels, outcomes, strict=True)])
            if both:
                total += both * math.log(both / (levels.count(level) / len(levels)) / np.mean(outcomes == outcome))
    return total


def expected(outcomes, levels):
    """Its mean over all orders of the outcomes, by the hypergeometric law of each cell."""
    n, yes, total = len(levels), int(sum(outcomes)), 0.0
    for level in set(levels):
        size = levels.count(level)
        for margin in (yes, n - yes):
            counts = np.arange(max(1, size + margin - n), min(size, margin) + 1)
            weights = stats.hypergeom(n, margin, size).pmf(counts)
            total += float((weights * counts / n * np.log(n * counts / (size * margin))).sum())
    return total


def test_the_share_is_information_beyond_chance():
    """The adjusted share is that of Vinh et al., whose expectation is exact, within the error of 9999 orders."""
    rng = np.random.default_rng(0)
    for levels in (2, 3, 9):
        factor = [str(i % levels) for i in range(45)]
        outcomes = np.array([rng.random() < (0.2 + 0.6 * (level == "0")) for level in factor])
        (found,) = dependences(outcomes.tolist(), {"factor": factor})
        share = np.mean(outcomes)
        entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
        mean = expected(outcomes, factor)
        # gains lie in [0, ln 2], so their mean is within Hoeffding's bound of the exact one
        slack = math.log(2) * math.sqrt(math.log(2e6) / (2 * ORDERS))
        want = (information(outcomes, factor) - mean) / (entropy - mean)
        assert found.share == pytest.approx(want, abs=2 * slack / (entropy - mean))
        assert {level: total for level, (_, total) in found.levels.items()} == {
            str(i): factor.count(str(i)) for i in range(levels)
        }


def test_levels_in_plenty_tell_nothing_by_that():
    """A factor with a level for each pair of settings removes more entropy than the true one, and comes last."""
    outcomes = [True] * 6 + [True, False] * 6 + [False] * 6  # 9 of 12 in one half, 3 of 12 in the other
    true, many = ["x"] * 12 + ["y"] * 12, [str(i // 2) for i in range(24)]
    assert information(np.array(outcomes), many) > information(np.array(outcomes), true)
    first, second = dependences(outcomes, {"many": many, "true": true})
    assert (first.name, second.name) == ("true", "many") and first.share > 0.1 > second.share


def test_a_factor_that_says_everything_has_all_of_it():
    """Where the level decides, the share is 1 and no order does as well; 0 of it where it tells nothing."""
    yes = [True] * 12 + [False] * 12
    found = dependences(yes, {"none": ["p", "q"] * 12, "all": ["a"] * 12 + ["b"] * 12, "one": ["o"] * 24})
    assert [each.name for each in found] == ["all", "none"]
    assert found[0].share == pytest.approx(1) and found[0].p == pytest.approx(2 / (1 + ORDERS))
    assert found[1].share < 0 and found[1].p == 1 and str(found[0]) == "all: a 12/12, b 0/12"


def test_outcomes_that_are_alike_depend_on_nothing():
    """All yes, all no and no outcome at all give an empty list."""
    for outcomes in ([True] * 4, [False] * 4, []):
        assert dependences(outcomes, {"factor": ["a", "b", "a", "b"][: len(outcomes)]}) == []


def test_chance_is_taken_for_a_dependence_in_at_most_a_twentieth_of_studies():
    """Random outcomes over three factors: some p < .05 no more often than the binomial law of .05 allows."""
    rng, studies = np.random.default_rng(2), 60
    factors = {"task": [], "objective": [], "rate": []}
    for task in "abc":
        for objective in "def":
            for rate in "ghijk":
                for name, level in zip(factors, (task, objective, rate), strict=True):
                    factors[name].append(level)
    wrong = sum(any(d.p < 0.05 for d in dependences((rng.random(45) < 0.4).tolist(), factors)) for _ in range(studies))
    assert wrong <= stats.binom.isf(1e-6, studies, 0.05)
