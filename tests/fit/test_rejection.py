"""What a fitted capacity means for rejection and clipping, against plain quadrature, sampling and closed forms."""

from __future__ import annotations

import functools
import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from humanline.fit import Model, fit_prospect
from humanline.fit.rejection import gamma_of, map_to_rejection
from humanline.theory import (
    ExponentialPower,
    Identity,
    LinearInLogOdds,
    PowerWeight,
    Prelec,
    TverskyKahneman,
)
from tests.helpers.choices import answered

CUT = 4.0


def omega(p, gamma):
    return p**gamma / (p**gamma + (1 - p) ** gamma) ** (1 / gamma)


def cut_laws(spread, points=200_000):
    """Policy, reference and log-ratio at fine points up to 4 standard deviations from the policy's mean."""
    x = (np.linspace(-CUT, CUT, points + 1)[1:] + np.linspace(-CUT, CUT, points + 1)[:-1]) / 2
    policy, ref = (np.exp(-((x - mean) ** 2) / 2) for mean in (0.0, -spread))
    policy, ref = policy / policy.sum(), ref / ref.sum()
    return policy, ref, np.log(policy / ref)


def sup_of(policy, kept, gamma, side="gain"):
    x, y = np.minimum(np.cumsum(policy), 1), np.cumsum(kept) / kept.sum()
    human = omega(x, gamma) if side == "loss" else 1 - omega(1 - x, gamma)
    return np.abs(y - human)[:-1].max()


@functools.cache
def mapped(gamma, proposal="ref"):
    """What a capacity of 1992 comes to, for gains, without a search; several tests look at the same ones."""
    return map_to_rejection(TverskyKahneman(gamma), proposal=proposal, two_tests=False).sides["gain"]


@pytest.fixture(scope="module")
def median():
    """The medians of 1992, proposals from the reference, without a search."""
    return map_to_rejection({"gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}, two_tests=False)


@pytest.mark.parametrize(  # the next test has the other spread
    ("proposal", "spread"), [("ref", 1.0), ("policy", 1.0), pytest.param("ref", 0.5, marks=pytest.mark.slow)]
)
def test_the_one_sided_test_is_that_of_proposition_4_1(proposal, spread):
    """Its shape is Beta(gamma, 1), no ratio exceeds its bound; share and distance are those of plain quadrature."""
    gamma = 0.7
    one = map_to_rejection(TverskyKahneman(gamma), spread=spread, proposal=proposal, two_tests=False).sides["gain"]
    test = one.one_test.test
    policy, ref, log_ratio = cut_laws(spread)
    assert (test.shape.a, test.shape.b) == (gamma, 1)
    assert log_ratio.max() < math.log(test.ratio_bound) < log_ratio.max() + 1e-4 * spread
    kept = (ref if proposal == "ref" else policy) * (np.exp(log_ratio) / test.ratio_bound) ** gamma
    assert one.one_test.accepted == pytest.approx(kept.sum(), rel=2e-3)
    assert one.one_test.sup == pytest.approx(sup_of(policy, kept, gamma), abs=1e-3)


def test_the_one_sided_test_by_sampling():
    """Tokens drawn and rejected with Beta draws are as far from the human curve as said, within the bound of DKW."""
    rng, n, gamma = np.random.default_rng(1), 600_000, 0.8
    one = map_to_rejection(TverskyKahneman(gamma), spread=0.5, two_tests=False).sides["gain"].one_test
    x = stats.truncnorm.rvs(-CUT + 0.5, CUT + 0.5, loc=-0.5, size=n, random_state=rng)
    inside = [stats.norm.cdf(CUT - mean) - stats.norm.cdf(-CUT - mean) for mean in (0.0, -0.5)]
    log_ratio = 0.5 * x + 0.125 + math.log(inside[1] / inside[0])
    kept = np.sort(x[rng.beta(gamma, 1, n) * one.ratio_bound <= np.exp(log_ratio)])
    assert abs(len(kept) / n - one.accepted) < math.sqrt(math.log(2e6) / (2 * n)) + 1e-4
    below = (stats.norm.cdf(kept) - stats.norm.cdf(-CUT)) / inside[0]
    gap = np.abs(np.arange(1, len(kept) + 1) / len(kept) - (1 - omega(1 - below, gamma))).max()
    assert abs(gap - one.sup) < math.sqrt(math.log(2e6) / (2 * len(kept))) + 1e-3


def test_two_tests_keep_to_definition_4_2():
    """The bounds exceed every ratio, the share is at least what was asked, and share and distance are of quadrature."""
    gamma, least = 0.7, 0.01
    found = map_to_rejection({"loss": TverskyKahneman(gamma)}, least_accepted=least, seeds=[0]).sides["loss"]
    two, (policy, ref, log_ratio) = found.two_tests, cut_laws(1.0)
    rule = two.rejection
    assert rule.rule == "either"
    assert log_ratio.max() < math.log(rule.policy_ratio_bound) < log_ratio.max() + 1e-4
    assert -log_ratio.min() < math.log(rule.ref_ratio_bound) < -log_ratio.min() + 1e-4
    kept = ref * stats.beta.cdf(np.exp(log_ratio) / rule.policy_ratio_bound, rule.policy.a, rule.policy.b)
    kept *= stats.beta.cdf(np.exp(-log_ratio) / rule.ref_ratio_bound, rule.ref.a, rule.ref.b)
    assert two.accepted >= least and two.accepted == pytest.approx(kept.sum(), rel=0.01)
    assert two.sup == pytest.approx(sup_of(policy, kept, gamma, "loss"), abs=1e-3)
    # Keeping all is a rule too, up to its bounds, and so is the one test: the nearest is no worse than these.
    assert two.sup <= min(float(found.proposals.sup), found.one_test.sup) + 1e-3
    assert two.sup == pytest.approx(min(two.searches), abs=2e-3)


def test_no_clip_range_is_closer_than_none_in_kl_and_l1(median):
    """With the capacities of 1992 and either proposer: clipping drops tails that people overweight."""
    for side in (*median.sides.values(), mapped(0.61, "policy")):
        assert not side.ranges["kl"].closer and not side.ranges["l1"].closer
        assert "no clip range is closer than none" in side.ranges["l1"].words
        kl = side.grid.distances.kl
        assert np.isfinite(kl[-1, -1]) and np.isinf(kl[:-1, :-1][~np.isnan(kl[:-1, :-1])]).all()


def test_the_nearest_range_by_sup_hardly_helps_and_depends_on_gamma():
    """Proposals of the reference: the less gamma distorts, the more low ratios are best dropped; undistorted, most.

    So most of what a range does is to make up for the reference, which is worse than the policy. Where the policy
    proposes, the best range lowers the largest difference by less than a tenth.
    """
    lows = []
    for gamma in (0.5, 0.61, 0.8, 1.0):
        found = mapped(gamma).ranges["sup"]
        lows.append(found.low)
        assert found.at < found.without and found.undistorted[0] == pytest.approx(-0.4)
    assert lows == sorted(lows) and lows[-1] - lows[1] > 0.5 and lows[-1] == pytest.approx(-0.4)
    policy = mapped(0.61, "policy").ranges["sup"]
    assert policy.closer and 0 < 1 - policy.at / policy.without < 0.1
    assert policy.undistorted == (-math.inf, math.inf)


def test_the_nearest_range_is_the_least_of_an_independent_search(median):
    """A search of its own over the same ranges, by plain curves, finds no range that is nearer by more than .002."""
    edges = np.linspace(-8, 8, 4001)
    x = stats.norm.cdf(edges)
    human = 1 - omega(1 - x, 0.61)

    def sup(low, high):
        cdf = stats.norm.cdf(np.clip(edges, low - 0.5, high - 0.5) + 1)
        return np.abs((cdf - cdf[0]) / (cdf[-1] - cdf[0]) - human).max()

    ends = [*np.arange(0, 4.01, 0.2), 20.0]
    least = min(sup(-low, high) for low, high in itertools.product(ends, ends) if low + high > 0)
    nearest = median.sides["gain"].ranges["sup"]
    assert nearest.at <= least + 2e-3
    assert sup(nearest.low, min(nearest.high, 20.0)) == pytest.approx(nearest.at, abs=2e-3)
    ((low, lows), (high, highs)) = nearest.as_near
    assert low <= nearest.low <= lows and high <= nearest.high <= highs


def test_what_the_pages_say_of_the_medians(median):
    """The nearest range of gains begins at -1.1: .231 against .265; one test .152; of the policy's .183 for .196."""
    gain = median.sides["gain"]
    nearest = gain.ranges["sup"]
    assert (round(nearest.low, 9), nearest.high) == (-1.1, math.inf)
    said = [nearest.at, nearest.without, gain.one_test.sup, float(gain.on_policy.sup)]
    assert said == pytest.approx([0.231, 0.265, 0.152, 0.196], abs=5e-4)
    policy = mapped(0.61, "policy").ranges["sup"]
    assert [policy.at, policy.without] == pytest.approx([0.183, 0.196], abs=5e-4)
    assert mapped(0.8).ranges["sup"].low == pytest.approx(-0.6)


def test_where_gamma_comes_from():
    """Families that begin with an exponent have it; the others get that of the nearest capacity of 1992, by a grid."""
    assert gamma_of(TverskyKahneman(0.61))[0] == 0.61 and gamma_of(Identity())[0] == 1
    for capacity, exponent in ((LinearInLogOdds(0.6, 0.8), 0.6), (PowerWeight(0.7), 0.7), (TverskyKahneman(0.5), 0.5)):
        p = 1e-12  # ln Omega(p) / ln p tends to it
        assert gamma_of(capacity)[0] == exponent
        slope = math.log(float(capacity(2 * p)) / float(capacity(p))) / math.log(2)
        assert slope == pytest.approx(exponent, abs=1e-4)
    p = np.linspace(0.001, 0.999, 999)
    for capacity in (Prelec(0.65), ExponentialPower(2.2, 1.4)):
        gamma, source = gamma_of(capacity)
        grid = np.linspace(0.3, 1.5, 1201)
        errors = [np.abs(omega(p, each) - capacity(p)).max() for each in grid]
        assert gamma == pytest.approx(grid[np.argmin(errors)], abs=2e-3)
        assert "nearest capacity of Tversky and Kahneman" in source and f"{min(errors):.3f}" in source


@pytest.mark.parametrize("capacity", [Prelec(1.0, 8.0), ExponentialPower(3.0, 1.0)])
def test_the_gamma_of_a_convex_capacity_is_large(capacity):
    """Of a capacity that keeps below the diagonal the nearest of 1992 has a gamma of 3 to 9: a grid finds it."""
    p, grid = np.linspace(0.001, 0.999, 999), np.linspace(0.28, 20, 2000)
    errors = [np.abs(omega(p, each) - capacity(p)).max() for each in grid]
    gamma, source = gamma_of(capacity)
    assert 2.5 < gamma == pytest.approx(grid[np.argmin(errors)], abs=0.02) and f"{min(errors):.3f}" in source


def test_a_fit_says_what_stays_with_money():
    """Curvature, sensitivity and loss aversion are named with their values; gamma's interval goes with its test."""
    fit = fit_prospect(answered(1, 150, 6), starts=1)
    found = map_to_rejection(fit, two_tests=False)
    assert set(found.sides) == {"gain", "loss"}
    stays = {name: (value, why) for name, value, why in found.stays}
    assert set(stays) == {"curvature", "loss_curvature", "loss_aversion", "sensitivity", "lapse"}
    assert stays["sensitivity"][0] == fit.estimates["sensitivity"] and "per unit of utility" in stays["sensitivity"][1]
    assert "has no unit" in stays["loss_aversion"][1]
    interval = fit.interval("gain.gamma")
    assert found.sides["gain"].one_test.gamma_interval == (interval.low, interval.high)
    said = "\n".join(found.told())
    assert "Only capacities travel" in said and "Choices of modelling" in said
    assert "(95 %: " in said and "separable" not in said
    free = fit_prospect(answered(1, 150, 6), Model(equal={}, weights="separable"), starts=1)
    mapped = map_to_rejection(free, two_tests=False, errors="robust", confidence=0.9)
    narrow = free.interval("gain.gamma", kind="robust", confidence=0.9)
    assert mapped.sides["gain"].one_test.gamma_interval == (narrow.low, narrow.high)
    assert "(90 %: " in "\n".join(mapped.told()) and "separable" in mapped.choices[-1]
    stays = {name: why for name, _, why in mapped.stays}
    assert "depends on the unit of money" in stays["loss_aversion"]


@pytest.mark.slow
def test_the_map_does_not_change_with_the_unit_of_money():
    """Cents in place of euros: the capacities, and with them all of the map, stay as they are; sensitivity does not."""
    data = answered(2, 150, 6)
    cents = type(data)(
        data.outcomes * 100, data.probs, data.start, data.problem, data.response, data.trials, data.kind, data.person,
        data.problem_names, data.person_names,
    )  # fmt: skip
    one, other = (fit_prospect(each, starts=1) for each in (data, cents))
    maps = [map_to_rejection(fit, two_tests=False).sides["gain"] for fit in (one, other)]
    assert maps[0].one_test.gamma == pytest.approx(maps[1].one_test.gamma, rel=1e-5)
    assert maps[0].ranges["sup"].low == maps[1].ranges["sup"].low
    assert one.estimates["sensitivity"] > 5 * other.estimates["sensitivity"]


def test_the_map_as_json(median):
    """The same call gives the same JSON, without nan or infinities; the rows hold every range that was tried."""
    again = map_to_rejection({"gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}, two_tests=False)
    text = json.dumps(median.to_dict(), allow_nan=False)
    assert text == json.dumps(again.to_dict(), allow_nan=False)
    assert len(median.clip_rows()) == 2 * 42 * 42


@pytest.mark.parametrize(
    ("fitted", "settings", "said"),
    [
        ({}, {}, "fitted must hold a capacity"),
        ({"gains": TverskyKahneman(0.61)}, {}, "side"),
        (TverskyKahneman(0.61), {"spread": 0}, "spread must be > 0"),
        (TverskyKahneman(0.61), {"proposal": "nobody"}, "proposal"),
        (TverskyKahneman(0.61), {"least_accepted": 1.0}, "least_accepted must be < 1"),
        (TverskyKahneman(0.61), {"seeds": []}, "seeds must hold at least one"),
    ],
)
def test_what_cannot_be_mapped(fitted, settings, said):
    """No capacity, an unknown side or proposer, and numbers out of range are named before anything is searched."""
    with pytest.raises(ValueError, match=said):
        map_to_rejection(fitted, **settings)


def test_what_is_no_capacity():
    """A number is none."""
    with pytest.raises(TypeError, match="gain must be a capacity"):
        map_to_rejection({"gain": 0.61})
