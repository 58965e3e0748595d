"""One parameter vector, drawn from and found again: bias, and how often intervals cover it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from humanline.fit import Choices, Likelihood, Model, fit_prospect
from humanline.fit.straight import climb_straight
from tests.helpers.choices import TRUTH, problems

PROBLEMS, REPEATS, REPLICATIONS = 400, 5, 400
LEVEL = 3.841458820694124 / 2  # half the .95 quantile of chi-squared with one degree of freedom
Z = 1.959963984540054


@pytest.fixture(scope="module")
def shares():
    """The problems, and how often a person of the true parameters would choose the second option of each."""
    rng = np.random.default_rng(0)
    first, second = problems(rng, PROBLEMS)
    empty = Likelihood(Choices.between(first, second, np.zeros(PROBLEMS)), Model())
    return first, second, empty.predicted(empty.coordinates(TRUTH))


def replications(shares, effect):
    """Yield fits of 2000 choices; `effect` is the spread of effects that problems have of their own (logits)."""
    first, second, share = shares
    problem = np.repeat(np.arange(PROBLEMS), REPEATS)
    rng = np.random.default_rng(1)
    for _ in range(REPLICATIONS):
        logit = np.log(share / (1 - share)) + rng.normal(0, effect, PROBLEMS) if effect else None
        chance = share if logit is None else 1 / (1 + np.exp(-logit))
        data = Choices.between(first, second, rng.random(len(problem)) < chance[problem], problem=problem)
        yield fit_prospect(data, starts=1)


def covered(fit, truth, kind):
    errors = np.sqrt(np.diag(fit.covariance(kind)))
    return np.abs(fit.coordinates - truth) <= Z * errors


@pytest.mark.slow  # 400 fits, each with five profiles: about three minutes
def test_estimates_are_unbiased_and_intervals_cover(shares):
    """Of 400 replications of 2000 choices, bias is below a third of a standard error, coverage 92 to 98 %.

    The standard error of a coverage of .95 over 400 replications is .011, that of a mean a twentieth of a standard
    error: the bounds are nearly three and nearly seven of them away. A profile interval covers the truth exactly where
    the profile at the truth is no more than 1.92 below the maximum.
    """
    estimates, information, robust, profile = [], [], [], []
    for fit in replications(shares, 0.0):
        truth = fit.likelihood.coordinates(TRUTH)
        assert not fit.at_bound
        estimates.append(fit.coordinates)
        information.append(covered(fit, truth, "information"))
        robust.append(covered(fit, truth, "robust"))
        held = [
            climb_straight(fit.likelihood, fit.coordinates, fit.low, fit.high, held={k: truth[k]}) for k in range(5)
        ]
        assert all(each.converged for each in held)
        profile.append([fit.log_likelihood - each.value <= LEVEL for each in held])
    assert len(estimates) == REPLICATIONS
    spread = np.std(estimates, axis=0, ddof=1)
    bias = (np.mean(estimates, axis=0) - truth) / spread
    assert (np.abs(bias) < 1 / 3).all(), bias
    for kind, found in (("information", information), ("robust", robust), ("profile", profile)):
        share = np.mean(found, axis=0)
        assert ((share >= 0.92) & (share <= 0.98)).all(), (kind, share)


@pytest.mark.slow  # 400 fits
def test_clustered_intervals_cover_where_plain_ones_fail(shares):
    """Where problems have effects of their own, clustered intervals cover the estimates' centre, plain ones do not.

    An effect moves what is estimated, too (logits that vary are flatter on average), so that what intervals must cover
    is the mean of the estimates, which 400 replications know to a twentieth of a standard error.
    """
    fits = list(replications(shares, 1.0))
    centre = np.mean([fit.coordinates for fit in fits], axis=0)
    share = {
        kind: np.mean([covered(fit, centre, kind) for fit in fits], axis=0)
        for kind in ("information", "robust", "problem")
    }
    assert ((share["problem"] >= 0.92) & (share["problem"] <= 0.98)).all(), share["problem"]
    assert (share["information"] < 0.92).all(), share["information"]
    assert (share["robust"] < 0.92).all(), share["robust"]


def test_a_few_replications_are_near(shares):
    """The mean of twelve fits is within five of its standard errors of the truth, for each parameter."""
    fits = [fit for fit, _ in zip(replications(shares, 0.0), range(12), strict=False)]
    truth = fits[0].likelihood.coordinates(TRUTH)
    off = np.mean([fit.coordinates for fit in fits], axis=0) - truth
    error = np.sqrt(np.mean([np.diag(fit.covariance()) for fit in fits], axis=0) / len(fits))
    assert (np.abs(off) < 5 * error).all() and math.isfinite(error.sum())
