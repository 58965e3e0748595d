"""Make choices.csv and games.csv: made-up people who follow prospect theory, in both formats of humanline fit."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from humanline.fit import Choices, Likelihood, Model
from humanline.fit.formats import lottery

PEOPLE, PROBLEMS, GAMES = 6, 40, 60
TRUTH = {"curvature": 0.85, "loss_aversion": 1.6, "gain.gamma": 0.6, "loss.gamma": 0.7, "sensitivity": 0.4}
SHAPES = (("-", 1), ("Symm", 5), ("R-skew", 4), ("L-skew", 3))


def shares(first: tuple, second: tuple) -> np.ndarray:
    """Return how probable the second option of each problem is to a person of the made-up kind."""
    empty = Choices.between(first, second, np.zeros(len(first[0])))
    likelihood = Likelihood(empty, Model())
    return likelihood.predicted(likelihood.coordinates(TRUTH))


def choices(seed: int = 0) -> list[list]:
    """Return rows in the long format: a risky and a sure option, or two risky ones, chosen by six people."""
    rng = np.random.default_rng(seed)
    options = []
    for number in range(PROBLEMS):
        prob = rng.choice([0.05, 0.1, 0.25, 0.5, 0.75, 0.9])
        low, high = sorted(rng.integers(-30, 60, 2).tolist())
        high += 5
        even = prob * high + (1 - prob) * low
        other = [round(even + rng.normal(0, 4))]
        law = [1.0]
        if number % 3 == 0:
            other, law = [other[0] - 6, other[0] + 6], [0.5, 0.5]
        options.append((([high, low], [prob, round(1 - prob, 2)]), (other, law)))
    first, second = (([each[side][0] for each in options], [each[side][1] for each in options]) for side in (0, 1))
    share = shares(first, second)
    rows: list[list] = [["problem", "option", "outcome", "probability", "choice", "person"]]
    for person in range(PEOPLE):
        for problem in range(PROBLEMS):
            chosen = int(rng.random() < share[problem])
            for option, side, mine in (("A", first, 1 - chosen), ("B", second, chosen)):
                for outcome, prob in zip(side[0][problem], side[1][problem], strict=True):
                    rows.append([problem + 1, option, outcome, float(prob), mine, f"p{person + 1}"])
    return rows


def games(seed: int = 1) -> list[list]:
    """Return rows in the format of the Choice Prediction Competitions: rates of 25 choices in three blocks."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(GAMES):
        sides = []
        for _ in range(2):
            shape, size = SHAPES[rng.integers(len(SHAPES))] if number % 2 else SHAPES[0]
            low, high = sorted(rng.integers(-30, 60, 2).tolist())
            sides.append((high + 2, float(rng.choice([0.1, 0.25, 0.5, 0.75, 0.9])), low, shape, size))
        # Close in expectation, so that choices say something.
        means = [prob * high + (1 - prob) * low for high, prob, low, _, _ in sides]
        high, prob, low, shape, size = sides[1]
        shift = round(means[0] - means[1])
        made.append((sides[0], (high + shift, prob, low + shift, shape, size)))
    first, second = (tuple(zip(*(lottery(*each[side]) for each in made), strict=True)) for side in (0, 1))
    share = shares(first, second)
    names = ["Ha", "pHa", "La", "LotShapeA", "LotNumA", "Hb", "pHb", "Lb", "LotShapeB", "LotNumB"]
    rows: list[list] = [["GameID", *names, "Amb", "Corr", "B.1", "B.2", "B.3"]]
    for number, (a, b) in enumerate(made):
        rates = (rng.binomial(25, share[number], 3) / 25).tolist()
        rows.append([number + 1, *a, *b, int(number % 15 == 14), 0, *rates])
    return rows


if __name__ == "__main__":
    for name, rows in (("choices.csv", choices()), ("games.csv", games())):
        with open(Path(__file__).parent / name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
