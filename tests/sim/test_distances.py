"""Equal distance, ranks over variants, and the placebos: true, false and idle by construction."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from humanline.schedule import BeforeStep
from humanline.sim.claims import CLAIMS
from humanline.sim.distances import (
    ALONG,
    AT_THE_END,
    POINTS,
    RANKED,
    ahead,
    arrivals,
    at_equal_distance,
    farther,
    predicts,
    predicts_better,
    rank_correlation,
    reach,
    way,
)
from humanline.sim.lag import Lag
from humanline.sim.run import simulate
from humanline.sim.study import measure
from humanline.sim.variants import BETA, MEAN_AGE, ODD_SYNC, STRIDE, VARIANTS, blind, make_run
from humanline.stats import mean_interval

SEEDS = 200
#: Updates done at each point of a way, the start first.
TIMES = np.array([0, 1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256])


def columns(*rows):
    """Points in time of one seed, as (N, 1) arrays."""
    return tuple(np.array(row, float)[:, None] for row in rows)


# ---- ways -----------------------------------------------------------------------------------------------------------


def test_a_way_is_read_off_the_measures_in_order_of_time():
    """The start, five early points, then the run's measurements; scores as a share of what there is to gain."""
    start, best = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    values = {"start": start, "best": best}
    for place, (score, kl) in enumerate(POINTS, 1):
        values[score], values[kl] = start + place, np.array([0.1, 0.2]) * place
    divergence, gained = way(lambda variant, measure: values[measure], "any")
    np.testing.assert_allclose(divergence, np.arange(14)[:, None] * [0.1, 0.2])
    np.testing.assert_allclose(gained, np.arange(14)[:, None] * [0.5, 0.5])
    found = measure(make_run("bandit", "dpo", 0.001, "offline", steps=32), [0, 1])
    assert [name for pair in POINTS for name in pair if name not in found] == []
    distances = [found[kl][0] for _, kl in POINTS]  # of so slow a run that it only goes away
    assert distances == sorted(distances) and 0 < distances[0] < distances[-1] == found["kl"][0]


def test_between_points_a_way_is_a_line_over_the_root_of_the_divergence():
    """At the points themselves their scores, and between them in proportion to the root of nats, not to nats."""
    divergence, gained = columns([0, 1, 9], [0, 0.5, 0.9])
    wanted = np.array([[0.5], [1.0], [1.5], [2.0], [3.0]])
    np.testing.assert_allclose(arrivals(divergence, gained, wanted)[:, 0], [0.25, 0.5, 0.6, 0.7, 0.9])


def test_what_counts_is_the_first_arrival():
    """A way that turns back and comes again has the score of the first time; its reach is the farthest it ever was."""
    divergence, gained = columns([0, 4, 1, 9, 4], [0, 0.4, 0.9, 0.6, 0.1])
    assert reach(divergence).tolist() == [3.0]
    wanted = np.array([[1.0], [2.0], [2.5], [3.0]])
    # from 1 nat on the way on: at a root of 2.5, three quarters of the line from 1 to 3
    np.testing.assert_allclose(arrivals(divergence, gained, wanted)[:, 0], [0.2, 0.4, 0.675, 0.6])


def test_a_way_that_breaks_ends_there():
    """Points that are not finite are never arrived at, and leave what was before as it is."""
    divergence, gained = columns([0, 1, np.nan, np.nan], [0, 0.5, np.nan, np.nan])
    assert reach(divergence).tolist() == [1.0]
    assert arrivals(divergence, gained, np.array([[0.5], [1.0]]))[:, 0].tolist() == [0.25, 0.5]
    broken = columns([0, np.nan], [0, np.nan])
    assert at_equal_distance(broken, (divergence, gained)).tolist() == [0.0]


def test_only_what_both_reach_is_compared_seed_by_seed():
    """The farther way is read where the other still is; each seed has a range of its own."""
    far = np.array([[0.0, 0.0], [16.0, 4.0]]), np.array([[0.0, 0.0], [0.8, 0.8]])
    near = np.array([[0.0, 0.0], [4.0, 16.0]]), np.array([[0.0, 0.0], [0.8, 0.8]])
    assert at_equal_distance(far, near, AT_THE_END) == pytest.approx([0.4 - 0.8, 0.8 - 0.4])
    assert at_equal_distance(far, near, ALONG) == pytest.approx(np.array([-0.4, 0.4]) * np.mean(ALONG))


# ---- a planted shift ------------------------------------------------------------------------------------------------


def planted(rng, shift, studies):
    """Two ways over 200 seeds of many studies, one four times as quick, the first above at the farthest both reach.

    What is gained at distance x is ``a (1 - exp(-x / s))``, with a and s of each seed, and for the first
    ``(shift + noise) x / shared`` more; both slow down as runs do, and are measured at a run's times.
    """
    count = studies * SEEDS
    height, scale = 0.5 + 0.1 * rng.standard_normal(count), 0.8 + 0.4 * rng.random(count)
    far = [
        (1.0 + rng.random(count)) * -np.expm1(-TIMES[:, None] / (pace * (0.8 + 0.4 * rng.random(count))))
        for pace in (40.0, 160.0)
    ]
    shared = np.minimum(far[0][-1], far[1][-1])
    gained = [height * -np.expm1(-x / scale) for x in far]
    gained[0] = gained[0] + (shift + 0.1 * rng.standard_normal(count)) * far[0] / shared
    return [(x**2, g) for x, g in zip(far, gained, strict=True)]


@pytest.mark.parametrize(
    ("places", "shift"),
    [
        pytest.param(ALONG, 0.0, id="along-0.0", marks=pytest.mark.slow),
        pytest.param(ALONG, 0.06, id="along-0.06"),
        pytest.param(AT_THE_END, 0.0, id="at the end-0.0"),
        pytest.param(AT_THE_END, 0.06, id="at the end-0.06"),
    ],
)
def test_a_planted_shift_is_recovered_and_none_is_found_where_there_is_none(shift, places):
    """Intervals of 1000 studies cover the planted shift in 93 to 97 of 100, although one way is far quicker.

    Lines between the points of a curved way lie below it: of that less than .002 is left, a 25th of the margin.
    """
    studies, want = 1000, shift * np.mean(places)
    effects = at_equal_distance(*planted(np.random.default_rng(11), shift, studies), places).reshape(studies, SEEDS)
    found = [mean_interval(effect.tolist()) for effect in effects]
    assert 0.93 <= np.mean([abs(one.mean - want) <= one.half_width for one in found]) <= 0.97
    assert effects.mean() == pytest.approx(want, abs=0.002)


def test_scores_at_equal_times_would_find_a_shift_where_there_is_none():
    """An eighth into the run the quicker of the same two ways is above the other by far more than the margin."""
    (_, first), (_, second) = planted(np.random.default_rng(12), 0.0, 1)
    assert (first[6] - second[6]).mean() > 0.1


# ---- claims at equal distance ---------------------------------------------------------------------------------------


def look_up(**ways):
    """A look-up of ways: (far, height, slope above the line) of each variant, the start at 1 and the best at 3."""

    def get(variant, measure):
        far, rise = ways[variant]
        if measure in ("start", "best"):
            return np.full(SEEDS, 1.0 if measure == "start" else 3.0)
        (place,) = (i for i, pair in enumerate(POINTS, 1) if measure in pair)
        x = far * place / len(POINTS)
        return np.full(SEEDS, x**2) if "kl" in measure else 1.0 + 2.0 * rise * np.full(SEEDS, x)

    return get


def test_ahead_is_true_false_and_idle_by_construction():
    """Who gains more per distance is ahead, however far the other goes; ways that hardly leave are not compared."""
    for places in (ALONG, AT_THE_END):
        claim = ahead("a", "b", places)
        quick = claim(look_up(a=(1.0, 0.3), b=(2.0, 0.2)))
        assert quick.effect == pytest.approx(np.full(SEEDS, 0.1 * np.mean(places))) and quick.untested == ""
        assert quick.positive[0] is quick.effect
        assert claim(look_up(a=(2.0, 0.2), b=(1.0, 0.3))).effect == pytest.approx(-0.1 * np.mean(places))
        assert np.abs(claim(look_up(a=(3.0, 0.2), b=(1.0, 0.2))).effect).max() < 1e-12
        assert claim(look_up(a=(0.09, 0.3), b=(2.0, 0.2))).untested == "they share 0.0081 nats of their ways"
        assert claim(look_up(a=(0.11, 0.3), b=(2.0, 0.2))).untested == ""


def test_the_distance_shared_is_that_of_a_typical_seed():
    """Ways are compared where half of the seeds share enough of them, however far a few others go."""
    far = np.where(np.arange(SEEDS) < 0.4 * SEEDS, 1.0, 0.05)

    def claim(far):
        return ahead("a", "b")(look_up(a=(far, 0.3), b=(2.0, 0.2)))

    assert claim(far).untested == "they share 0.0025 nats of their ways" and claim(far + 0.06).untested == ""


def test_along_a_way_is_all_of_it_evenly():
    """Sixteen places, from a sixteenth of what both reach to all of it; the end is that alone."""
    np.testing.assert_allclose(ALONG, np.linspace(0, 1, 17)[1:])
    assert AT_THE_END == (1.0,)


def test_farther_is_the_difference_of_divergences_at_the_farthest():
    """In nats, the first above the second, small below a tenth."""
    found = farther("a", "b")(look_up(a=(3.0, 0.1), b=(2.0, 0.9)))
    assert found.effect == pytest.approx(np.full(SEEDS, 5.0)) and found.positive[0] is found.effect
    assert (found.margin, found.untested) == (0.1, "")


@pytest.mark.parametrize(
    ("name", "human"),
    [
        ("humanline-ahead-at-distance", "offline+humanline"),
        ("humanline-ahead-at-distance-k64", "offline+humanline k=64"),
        ("online-ahead-at-distance", "online"),
        ("humanline-ahead-at-farthest", "offline+humanline"),
        ("humanline-ahead-at-farthest-k64", "offline+humanline k=64"),
        ("online-ahead-at-farthest", "online"),
        ("online-travels-farther", "online"),
    ],
)
def test_claims_at_equal_distance_compare_the_variant_with_offline(name, human):
    """The sign is that of the variant less offline, over the whole way or at its end."""
    effect = CLAIMS[name].contrast(look_up(**{human: (2.0, 0.4), "offline": (1.5, 0.2)})).effect.mean()
    along, end = 0.2 * 1.5 * np.mean(ALONG), 0.2 * 1.5
    want = 4.0 - 2.25 if name == "online-travels-farther" else end if "farthest" in name else along
    assert effect == pytest.approx(want)


# ---- ranks ----------------------------------------------------------------------------------------------------------


def test_rank_correlations_are_scipys_with_ties_and_gaps():
    """Of each seed alone, ties and all; places that are nan in either do not count."""
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 6, (10, 40)).astype(float), rng.integers(0, 6, (10, 40)).astype(float)
    first[2, :10], second[5, 5:15] = np.nan, np.nan
    found = rank_correlation(first, second)
    for seed in range(40):
        known = np.isfinite(first[:, seed]) & np.isfinite(second[:, seed])
        want = spearmanr(first[known, seed], second[known, seed]).statistic
        assert found[seed] == pytest.approx(want, abs=1e-12)
    assert rank_correlation(np.ones((5, 1)), np.arange(5.0)[:, None]).tolist() == [0.0]
    assert rank_correlation(np.array([[1.0], [2.0], [np.nan]]), np.arange(3.0)[:, None]).tolist() == [0.0]
    assert rank_correlation(np.array([[1.0], [5.0], [2.0]]), np.array([[0.0], [9.0], [1.0]])).tolist() == [1.0]


def ranked(perceived, literal, undistorted=None):
    """A look-up of ten variants that end the higher the later they stand, and distances of each in that order."""
    rng = np.random.default_rng(4)
    by_name = {"distance": perceived, "distance literal": literal, "distance undistorted": undistorted}

    def get(variant, measure):
        place = RANKED.index(variant)
        if measure == "score":
            return np.full(SEEDS, 0.1 * place)
        given = by_name[measure]
        return rng.random(SEEDS) if given is None else np.full(SEEDS, float(given[place]))

    return get


def test_closeness_predicts_the_score_where_it_was_made_so():
    """1 where the closer end higher, -1 where the farther do, about 0 where distances are random, 0 where all tie."""
    up = np.arange(10)
    claim = CLAIMS["perceived-distance-predicts"]
    assert claim.contrast is predicts and claim.variants == RANKED
    assert predicts(ranked(-up, None)).effect == pytest.approx(np.ones(SEEDS))
    assert predicts(ranked(up, None)).effect == pytest.approx(-np.ones(SEEDS))
    assert predicts(ranked(0 * up, None)).effect.tolist() == [0.0] * SEEDS
    idle = mean_interval(predicts(ranked(None, None)).effect.tolist())
    assert not idle.excludes_zero and idle.half_width < 0.1


@pytest.mark.parametrize("noisy", ["distance", "score"])
def test_what_differs_by_rounding_alone_ties(noisy):
    """Distances, or scores, that differ in the last digits only have one rank, whatever the digits say."""
    up = np.arange(10)

    def get(variant, measure):
        place = RANKED.index(variant)
        value = 0.1 * place if measure == "score" else -0.1 * place
        return np.full(SEEDS, 0.5 + 1e-13 * value if measure == noisy else value)

    assert (get(RANKED[1], noisy) != get(RANKED[9], noisy)).all()
    assert predicts(get).effect.tolist() == [0.0] * SEEDS
    assert predicts(ranked(-up, None)).effect.min() > 0.99


def test_the_perceived_law_predicts_better_where_the_literal_one_does_not():
    """The difference of both correlations: 2 and -2 at most, 0 where both distances order variants alike."""
    up = np.arange(10)
    claim = CLAIMS["perceived-predicts-better"].contrast
    assert claim(ranked(-up, up)).effect == pytest.approx(np.full(SEEDS, 2.0))
    assert claim(ranked(up, -up)).effect == pytest.approx(np.full(SEEDS, -2.0))
    assert claim(ranked(-up, -up - 5)).effect.tolist() == [0.0] * SEEDS
    placebo = CLAIMS["placebo-undistorted"].contrast
    assert placebo(ranked(None, up, -up)).effect == pytest.approx(np.full(SEEDS, 2.0))
    assert predicts_better("distance")(ranked(up, up)).margin == 0.1


# ---- placebos -------------------------------------------------------------------------------------------------------


def test_with_gamma_1_perception_predicts_exactly_as_the_policy_itself_does():
    """In real runs of all ranked variants the placebo's effect is 0 for every seed, and that of the claim is not."""
    found = {
        name: {key: np.array(x) for key, x in measure(make_run("bandit", "dpo", 0.3, name, steps=16), range(6)).items()}
        for name in RANKED
    }

    def get(variant, measure):
        return found[variant][measure]

    assert CLAIMS["placebo-undistorted"].contrast(get).effect.tolist() == [0.0] * 6
    assert np.abs(CLAIMS["perceived-predicts-better"].contrast(get).effect).max() > 0


def test_references_that_are_never_synced_are_as_old_as_the_synced_one():
    """Once they have begun: 8 updates on average; one always, one each of 1 to 15 as often, but never in order."""
    schedules = BeforeStep(every=ODD_SYNC), Lag(MEAN_AGE), Lag(ODD_SYNC, STRIDE)
    synced, mean, same = ([step - each.snapshot(step) for step in range(16, 46)] for each in schedules)
    assert np.mean(synced) == np.mean(mean) == np.mean(same) == MEAN_AGE
    assert sorted(synced) == sorted(same) == sorted([*range(1, ODD_SYNC + 1)] * 2) and set(mean) == {MEAN_AGE}
    assert (np.diff(synced) == 1).sum() == 28 and not (np.diff(same) == 1).any()
    assert VARIANTS[f"sync only k={ODD_SYNC}"].schedule == schedules[0]
    assert VARIANTS["never synced, of the mean age"].schedule == schedules[1]
    assert VARIANTS["never synced, of the same ages"].schedule == schedules[2]


def test_a_reference_one_update_old_is_the_one_that_is_synced_before_every_step():
    """Lag(1) and BeforeStep(1) make the same run, bit for bit; another lag does not."""
    run = make_run("sequence", "dpo", 0.3, "sync only", steps=12)
    synced, trailing, older = (
        simulate(replace(run, schedule=schedule), [0, 1]).params for schedule in (BeforeStep(every=1), Lag(1), Lag(3))
    )
    assert (synced == trailing).all() and (synced != older).any()
    with pytest.raises(ValueError, match="updates"):
        Lag(0)
    with pytest.raises(ValueError, match="stride"):
        Lag(3, -1)
    with pytest.raises(ValueError, match=r"stride must share no divisor with updates \(4\); got 2"):
        Lag(4, 2)


def test_a_blind_rejection_keeps_every_ratio_alike_and_as_many_as_the_other_at_1():
    """The probability of being kept is the same from a thousandth to a thousand, that of humanline sampling at 1."""
    want = float(BETA.acceptance_probability(0.0))
    ratios = np.log([0.0011, 0.1, 1.0, 10.0, 900.0])
    np.testing.assert_allclose(blind(BETA).acceptance_probability(ratios), want, rtol=1e-9)
    assert BETA.acceptance_probability(ratios[1]) < want - 0.3
    assert 0.04 < 1 - want < 0.06


def test_random_detachment_detaches_that_share_of_a_run():
    """Over 32 steps of 2 seeds the share is that probability, within Hoeffding's bound."""
    found = measure(make_run("sequence", "dpo", 0.3, "random detachment", steps=32), [0, 1])
    tokens = 32 * 16 * 2 * 5
    tolerance = math.sqrt(math.log(2e6) / (2 * tokens))
    assert found["outside"] == pytest.approx([1 - float(BETA.acceptance_probability(0.0))] * 2, abs=tolerance)
