"""Files as large as public sets: 15 000 problems in each format are read and fitted."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from humanline.fit import Choices, Likelihood, Model, fit_prospect
from humanline.fit.formats import lottery, read_choices

TRUTH = {"curvature": 0.8, "loss_aversion": 1.5, "gain.gamma": 0.7, "loss.gamma": 0.75, "sensitivity": 0.2}
SHAPES = (("-", (1,)), ("Symm", (3, 5, 7, 9)), ("R-skew", (2, 3, 5, 8)), ("L-skew", (2, 3, 5, 8)))
PROBS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
PROBLEMS, EACH = 15_000, 50


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return both files, with answers that follow known parameters."""
    rng, folder = np.random.default_rng(5), tmp_path_factory.mktemp("large")
    games = []
    for _ in range(2 * PROBLEMS):
        shape, sizes = SHAPES[rng.integers(4)]
        high, low = int(rng.integers(-20, 100)), int(rng.integers(-50, 60))
        games.append((high, float(rng.choice(PROBS)), low, shape, int(rng.choice(sizes))))
    laws = [lottery(*game) for game in games]
    first, second = (tuple(zip(*laws[side::2], strict=True)) for side in (0, 1))
    likelihood = Likelihood(Choices.between(first, second, np.zeros(PROBLEMS)), Model())
    count = rng.binomial(EACH, likelihood.predicted(likelihood.coordinates(TRUTH)))
    with open(folder / "games.csv", "w", newline="") as file:
        writer = csv.writer(file)
        sides = [[f"H{s}", f"pH{s}", f"L{s}", f"LotShape{s.upper()}", f"LotNum{s.upper()}"] for s in "ab"]
        writer.writerow(["GameID", *sides[0], *sides[1], "Amb", "Corr", "B.1"])
        for at in range(PROBLEMS):
            writer.writerow([at, *games[2 * at], *games[2 * at + 1], 0, 0, count[at] / EACH])
    with open(folder / "long.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["problem", "option", "outcome", "probability", "count"])
        for at in range(PROBLEMS):
            for option, law, chosen in (("A", laws[2 * at], EACH - count[at]), ("B", laws[2 * at + 1], count[at])):
                writer.writerows((at, option, z, repr(float(p)), chosen) for z, p in zip(*law, strict=True))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["games", "long"])
def test_fifteen_thousand_problems_are_read_and_fitted(made, name):
    """All problems are there, half of ten starts or more agree, and estimates are within five errors of the truth."""
    (part,) = read_choices(made / f"{name}.csv", per_rate=EACH if name == "games" else None).parts
    assert part.choices.problems == PROBLEMS and part.choices.kind == ("rates" if name == "games" else "counts")
    fit = fit_prospect(part.choices)
    assert fit.starts.agreeing >= 5 and not fit.at_bound
    errors = fit.standard_errors()
    off = {key: (fit.estimates[key] - value) / errors[key] for key, value in TRUTH.items()}
    assert max(map(abs, off.values())) < 5, off
