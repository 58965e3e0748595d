"""One parameter vector, drawn from and found again: bias, and how often intervals cover it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.helpers.recovery import EFFECT, estimated, recovery, replications


@pytest.mark.slow  # 400 fits, each with five profiles: minutes
def test_estimates_are_unbiased_and_intervals_cover():
    """Of 400 replications of 2000 choices, bias is below a third of a standard error, coverage 92 to 98 %.

    The standard error of a coverage of .95 over 400 replications is .011, that of a mean a twentieth of a standard
    error: the bounds are nearly three and nearly seven of them away.
    """
    found = recovery()
    assert not found.bounds and (np.abs(found.bias) < 1 / 3).all(), found.table()
    for kind in ("information", "robust", "problem", "profile"):
        assert ((found.coverage[kind] >= 0.92) & (found.coverage[kind] <= 0.98)).all(), found.table()


@pytest.mark.slow  # as many
def test_clustered_intervals_cover_where_plain_ones_fail():
    """Where problems have effects of their own, intervals clustered by problem cover what is estimated, others fail."""
    found = recovery(effect=EFFECT)
    assert ((found.coverage["problem"] >= 0.92) & (found.coverage["problem"] <= 0.98)).all(), found.table()
    for kind in ("information", "robust", "profile"):
        assert (found.coverage[kind] < 0.92).all(), found.table()


def test_a_few_replications_are_near():
    """The mean of twelve fits is within five of its standard errors of the truth, for each parameter."""
    fits = list(itertools.islice(replications(12, 0.0), 12))
    off = np.mean([fit.coordinates for fit in fits], axis=0) - estimated(0.0)
    error = np.sqrt(np.mean([np.diag(fit.covariance()) for fit in fits], axis=0) / len(fits))
    assert (np.abs(off) < 5 * error).all() and math.isfinite(error.sum())
