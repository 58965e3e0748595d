"""Problems and choices for the tests of fits: drawn from a seed, answered as a model says."""

from __future__ import annotations

from typing import Any

import numpy as np

from humanline.fit import Choices, Likelihood, Model

TRUTH = {"curvature": 0.8, "loss_aversion": 1.8, "gain.gamma": 0.6, "loss.gamma": 0.7, "sensitivity": 0.3}


def problems(rng: Any, number: int, most: int = 4) -> tuple[Any, Any]:
    """Return two options for each of some problems: gains, losses and both, of up to `most` outcomes."""
    z = rng.integers(-40, 60, (2 * number, most)).astype(float)
    count = rng.integers(1, most + 1, 2 * number)
    p = rng.integers(1, 20, (2 * number, most)) * (np.arange(most) < count[:, None])
    p = p / p.sum(1, keepdims=True)
    return (z[:number], p[:number]), (z[number:], p[number:])


def answered(
    seed: int, number: int = 300, repeats: int = 5, model: Model | None = None, truth: Any = None, **more: Any
) -> Choices:
    """Return choices of several people in each problem, as a model would make them."""
    rng = np.random.default_rng(seed)
    first, second = problems(rng, number)
    problem = np.repeat(np.arange(number), repeats)
    settings = {"problem": problem, "person": np.tile(np.arange(repeats), number), **more}
    empty = Choices.between(first, second, np.zeros(len(problem)), **settings)
    likelihood = Likelihood(empty, Model() if model is None else model)
    share = likelihood.predicted(likelihood.coordinates(TRUTH if truth is None else truth))
    return Choices.between(first, second, (rng.random(len(problem)) < share).astype(float), **settings)
