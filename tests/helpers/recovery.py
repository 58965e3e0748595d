"""One parameter vector drawn from and found again: `python -m tests.helpers.recovery [--replications 400]`.

Prints, for each parameter, the bias in standard errors and how often 95 % intervals cover what they should.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from humanline.fit import Choices, Fit, Likelihood, Model, fit_prospect
from humanline.fit.straight import climb_straight
from tests.helpers.choices import TRUTH, problems

PROBLEMS, REPEATS, REPLICATIONS = 400, 5, 400
#: Spread, in logits, of the effects that problems have of their own where they have some.
EFFECT = 1.5
LEVEL = 3.841458820694124 / 2  # half the .95 quantile of chi-squared with one degree of freedom
Z = 1.959963984540054


@dataclass(frozen=True)
class Recovery:
    """What was found, by parameter: bias in standard deviations of the estimates, coverage by kind of interval."""

    names: tuple[str, ...]
    replications: int
    bias: Any
    coverage: dict[str, Any]
    bounds: int

    def table(self) -> str:
        """Return lines to print."""
        kinds = list(self.coverage)
        lines = ["parameter       " + "".join(f"{head:>13}" for head in ["bias / s.d.", *kinds])]
        for k, name in enumerate(self.names):
            numbers = [self.bias[k], *(self.coverage[kind][k] for kind in kinds)]
            lines.append(f"{name:16}" + "".join(f"{number:13.3f}" for number in numbers))
        return "\n".join([*lines, f"{self.replications} replications, {self.bounds} with a parameter on a bound"])


def shares() -> tuple[Any, Any, Any]:
    """Return 400 problems, and how often a person of the true parameters chooses the second option of each."""
    first, second = problems(np.random.default_rng(0), PROBLEMS)
    empty = Likelihood(Choices.between(first, second, np.zeros(PROBLEMS)), Model())
    return first, second, empty.predicted(empty.coordinates(TRUTH))


def replications(number: int, effect: float) -> Iterator[Fit]:
    """Yield fits of 2000 choices, five to each problem; `effect` is the spread of effects that problems have."""
    first, second, share = shares()
    problem = np.repeat(np.arange(PROBLEMS), REPEATS)
    rng = np.random.default_rng(1)
    logit = np.log(share / (1 - share))
    for _ in range(number):
        chance = 1 / (1 + np.exp(-logit - rng.normal(0, effect, PROBLEMS))) if effect else share
        yield fit_prospect(
            Choices.between(first, second, rng.random(len(problem)) < chance[problem], problem=problem), starts=1
        )


def estimated(effect: float) -> Any:
    """Return the coordinates that are estimated: of the shares that remain where the effects are averaged out.

    Effects make shares flatter on average, so that with them it is not the true vector, but the nearest in likelihood.
    """
    first, second, share = shares()
    if not effect:
        return Likelihood(Choices.between(first, second, share, kind="rates"), Model()).coordinates(TRUTH)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    logit = np.log(share / (1 - share))[:, None] + effect * nodes
    marginal = (weights / (1 + np.exp(-logit))).sum(1) / weights.sum()
    return fit_prospect(Choices.between(first, second, marginal, kind="rates"), starts=3).coordinates


def recovery(number: int = REPLICATIONS, effect: float = 0.0) -> Recovery:
    """Return bias and coverage; a profile covers where the profile there is within 1.92 of the maximum."""
    centre = estimated(effect)
    kinds = ["information", "robust", "problem"]
    found: list[Any] = []
    covered: dict[str, list[Any]] = {kind: [] for kind in [*kinds, "profile"]}
    bounds, names = 0, ()
    for fit in replications(number, effect):
        names = fit.names
        bounds += bool(fit.at_bound)
        found.append(fit.coordinates)
        for kind in kinds:
            covered[kind].append(np.abs(fit.coordinates - centre) <= Z * np.sqrt(np.diag(fit.covariance(kind))))
        held = [
            climb_straight(fit.likelihood, fit.coordinates, fit.low, fit.high, held={k: centre[k]})
            for k in range(len(names))
        ]
        assert all(each.converged for each in held)
        covered["profile"].append([fit.log_likelihood - each.value <= LEVEL for each in held])
    bias = (np.mean(found, axis=0) - centre) / np.std(found, axis=0, ddof=1)
    return Recovery(names, number, bias, {kind: np.mean(each, axis=0) for kind, each in covered.items()}, bounds)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.recovery", description=__doc__)
    parser.add_argument("--replications", type=int, default=REPLICATIONS)
    chosen = parser.parse_args()
    for effect in (0.0, EFFECT):
        started = time.perf_counter()
        print(f"problems have {'effects of spread ' + format(effect, 'g') if effect else 'no effects'}")
        print(recovery(chosen.replications, effect).table())
        print(f"{time.perf_counter() - started:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
