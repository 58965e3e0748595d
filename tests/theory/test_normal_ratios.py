"""What clip ranges keep of normal log-ratios, against plain quadrature and sampling."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from humanline.theory import Identity, TverskyKahneman
from humanline.theory.clip_distances import clip_distances
from humanline.theory.normal_ratios import human_distances, nearest_rule, sampler, side_weights

NORMAL = statistics.NormalDist()
#: Both ends, one, and a range off the middle.
RANGES = ((-1.5, 1.5), (-1.1, math.inf), (-math.inf, 0.7), (-0.3, 2.2), (-math.inf, math.inf))


def omega(p, gamma):
    return p**gamma / (p**gamma + (1 - p) ** gamma) ** (1 / gamma)


def by_hand(low, high, *, gamma, side, spread, proposer, points=400_000):
    """Sup, area, L1 and share kept, from the definitions, on fine points of the policy's standardised log-ratio."""
    edges = np.linspace(-9, 9, points + 1)
    x = stats.norm.cdf(edges)
    shift = -spread if proposer == "ref" else 0.0
    cut = [min(max((end - spread**2 / 2) / spread, -9), 9) for end in (low, high)]
    cdf = stats.norm.cdf(np.clip(edges, *cut) - shift)
    kept = cdf[-1] - cdf[0]
    y = (cdf - cdf[0]) / kept
    human = omega(x, gamma) if side == "loss" else 1 - omega(1 - x, gamma)
    gap = y - human
    return np.abs(gap).max(), np.trapezoid(np.abs(gap), x), np.abs(np.diff(gap)).sum(), kept


@pytest.mark.parametrize("side", ["gain", "loss"])
@pytest.mark.parametrize(("spread", "proposer"), [(1.0, "ref"), (1.0, "policy"), (0.6, "ref")])
def test_distances_of_clip_ranges_from_their_definition(side, spread, proposer):
    """Largest difference, area, L1 norm and share kept are those of 400 000 points, to .003 and better."""
    for low, high in RANGES:
        tilt = None if proposer == "ref" else 0.0
        found = clip_distances(
            TverskyKahneman(0.61), [low], [high], side=side, spread=spread, proposal_tilt=tilt, atoms=8000
        )
        sup, area, l1, kept = by_hand(low, high, gamma=0.61, side=side, spread=spread, proposer=proposer)
        assert found.distances.sup.item() == pytest.approx(sup, abs=1.5e-3)
        assert found.distances.area.item() == pytest.approx(area, abs=1e-3)
        assert found.distances.l1.item() == pytest.approx(l1, abs=3e-3)
        assert found.kept.item() == pytest.approx(kept, abs=1e-9)
        assert math.isinf(found.distances.kl.item()) == (math.isfinite(low) or math.isfinite(high))


def test_what_is_kept_by_sampling():
    """Log-ratios drawn from the reference and kept in the range have the law, within the bound of DKW."""
    rng, n = np.random.default_rng(3), 200_000
    drawn = rng.normal(-0.5, 1.0, n)
    kept = np.sort(drawn[(drawn >= -1.1) & (drawn <= 1.5)])
    found = clip_distances(TverskyKahneman(0.61), [-1.1], [1.5])
    assert abs(len(kept) / n - found.kept.item()) < math.sqrt(math.log(2e6) / (2 * n))
    x = np.array([NORMAL.cdf(z - 0.5) for z in kept[:: len(kept) // 500]])  # the policy's probability of less
    empirical = np.arange(0, len(kept), len(kept) // 500) / len(kept)
    human = 1 - omega(1 - x, 0.61)
    sup = np.abs(empirical - human).max()
    bound = math.sqrt(math.log(2e6) / (2 * len(kept))) + 2 / 500 * 1.5  # and what lies between two of 500 places
    assert abs(sup - found.distances.sup.item()) < bound


def test_undistorted_policy_needs_no_range():
    """If people perceive as it is and the policy proposes, nothing is closer than keeping all, at distance 0."""
    found = clip_distances(Identity(), [-2.0, -1.0, -np.inf], [1.0, 2.0, np.inf], proposal_tilt=0.0)
    for name in ("sup", "area", "l1", "kl"):
        distance = getattr(found.distances, name)
        assert distance[-1, -1] == pytest.approx(0, abs=1e-12) and (distance.ravel()[:-1] > 1e-3).all()


def test_an_empty_range_has_no_distance():
    """From 0 to 0 nothing is kept, and there is no law to be near."""
    found = clip_distances(TverskyKahneman(0.61), [0.0, -1.0], [0.0, 1.0])
    assert found.kept[0, 0] == 0 and math.isnan(found.distances.sup[0, 0]) and math.isfinite(found.distances.sup[1, 1])


def test_losses_are_weighed_from_the_worst():
    """The weights of losses are those of gains with the order turned; a sampler's distance turns with it."""
    gain = TverskyKahneman(0.61)
    policy = np.array([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(side_weights(policy, gain, "loss"), side_weights(policy[::-1], gain)[::-1], atol=1e-15)
    better, worse = (sampler(tilt, atoms=2000) for tilt in (0.5, -0.5))
    one, other = human_distances(better, gain, "loss"), human_distances(worse, gain, "gain")
    for name in ("sup", "area", "l1", "kl"):
        assert float(getattr(one, name)) == pytest.approx(float(getattr(other, name)), abs=1e-9)


@pytest.mark.parametrize(
    ("ends", "said"), [(([0.5], [1.0]), "low"), (([-1.0], [-0.5]), "high"), (([np.nan], [1.0]), "low")]
)
def test_ends_of_the_wrong_sign(ends, said):
    """A range holds 0, so that padding is never moved."""
    with pytest.raises(ValueError, match=said):
        clip_distances(TverskyKahneman(0.61), *ends)


def test_an_unknown_side():
    """There are gains and losses."""
    with pytest.raises(ValueError, match="side"):
        nearest_rule(TverskyKahneman(0.61), side="gains")
