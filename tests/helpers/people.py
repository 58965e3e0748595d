"""People with parameters of their own, drawn from a normal law of logs, and what they choose."""

from __future__ import annotations

from typing import Any

import numpy as np

from humanline.fit import Choices, Likelihood, Model
from tests.helpers.choices import problems

MEAN = np.log([0.8, 1.8, 0.6, 0.7, 0.2])  # curvature, loss aversion, gamma of gains and of losses, sensitivity
SPREAD = np.array([0.2, 0.3, 0.2, 0.2, 0.4])
#: Two free parameters: what cheap tests fit.
SMALL = Model(
    fixed={"loss_aversion": 1.8, "curvature": 0.8}, equal={"loss_curvature": "curvature", "loss.gamma": "gain.gamma"}
)
SMALL_MEAN, SMALL_SPREAD = np.log([0.6, 0.15]), np.array([0.25, 0.4])


def crowd(
    seed: int, people: int, number: int, model: Model | None = None, size: float = 1.0, apart: float = 1.0
) -> tuple[Choices, Any]:
    """Return what people chose in the same problems, and their coordinates; outcomes are counted in 1/`size`.

    Their spreads are multiplied by `apart`.
    """
    rng = np.random.default_rng(seed)
    model = Model() if model is None else model
    first, second = problems(rng, number)
    settings = {"problem": np.tile(np.arange(number), people), "person": np.repeat(np.arange(people), number)}
    empty = Choices.between(first, second, np.zeros(people * number), **settings)
    likelihood = Likelihood(empty, model, by_person=True)
    mean, spread = (SMALL_MEAN, SMALL_SPREAD) if len(likelihood.names) == 2 else (MEAN, SPREAD)
    truth = rng.normal(mean, apart * spread, (people, len(mean)))
    lowest = np.where([name.endswith("gamma") for name in likelihood.names], np.log(0.2793), -np.inf)
    truth = np.maximum(truth, lowest)
    chosen = rng.random(people * number) < likelihood.predicted(truth)
    scaled = [(outcomes * size, probs) for outcomes, probs in (first, second)]
    return Choices.between(*scaled, chosen.astype(float), **settings), truth
