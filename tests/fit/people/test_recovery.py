"""People drawn from a law and found again: who is named, what pooling gains, and how often intervals cover."""

from __future__ import annotations

import numpy as np
import pytest

from humanline.fit.people import fit_people
from tests.helpers.people import crowd

PEOPLE, CHOICES = 200, 100


def root_mean_square(errors):
    return np.sqrt(np.mean(errors**2, axis=0))


@pytest.mark.slow  # a minute or two
def test_two_hundred_people(capsys):
    """Who runs away alone is named; pooling halves errors; intervals cover .90 to .99 of 200 people's parameters.

    Binomial standard error of a coverage of .95 of 200 people: .015, more where the law itself is off.
    """
    data, truth = crowd(0, PEOPLE, CHOICES)
    fit = fit_people(data)
    named = np.array([each in fit.undetermined for each in range(PEOPLE)])
    assert 0.05 < named.mean() < 0.35
    alone = fit.alone.coordinates[~named]
    assert np.isfinite(alone).all()
    ratio = root_mean_square((fit.pooled.coordinates - truth)[~named]) / root_mean_square(alone - truth[~named])
    assert (ratio <= 1.02).all() and (ratio <= 0.5).sum() >= 3, ratio
    covered = {
        name: (np.abs(each.coordinates - truth) <= 1.96 * each.errors).mean(0)
        for name, each in (("plain", fit.plain), ("pooled", fit.pooled))
    }
    with capsys.disabled():
        print(f"\n{named.mean():.3f} of people named; pooled/alone {ratio.round(2)}; coverage {covered}")
    assert ((covered["pooled"] >= 0.90) & (covered["pooled"] <= 0.995)).all()
    assert (fit.pooled.errors.mean(0) >= fit.plain.errors.mean(0)).all()
