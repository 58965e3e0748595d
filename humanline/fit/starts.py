"""Bounds of the coordinates, and where climbs start: the usual values first, then draws from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit.likelihood import Likelihood
from humanline.fit.straight import Straight

Array = NDArray[np.float64]


def bounds(likelihood: Likelihood) -> tuple[Array, Array]:
    """Return the lowest and the highest straight coordinates of the free parameters, (K,) each (see `Straight`).

    So they do not depend on the unit of outcomes.
    """
    usual = _usual(likelihood)
    unit = _units(likelihood, usual)
    middle = likelihood.coordinates(_scaled(likelihood, usual))
    shift = Straight(likelihood).there(middle) - middle
    ends = []
    for name in likelihood.names:
        # A parameter that others are equal to stays within the bounds of all of them.
        tied = [spec for other, spec in likelihood.specs.items() if likelihood.model.source(other) == name]
        low = max(float(spec.coordinate(spec.low * unit[spec.unit])) for spec in tied)
        high = min(float(spec.coordinate(spec.high * unit[spec.unit])) for spec in tied)
        ends.append([low, high])
    found = np.array(ends, dtype=np.float64).reshape(-1, 2)
    # What is shifted is shifted at the usual curvature: bounds of sensitivity are those of a typical difference.
    return found[:, 0] + shift, found[:, 1] + shift


def starting_points(likelihood: Likelihood, number: int, seed: int) -> Array:
    """Return coordinates to start from, (number, K): the usual values, then draws.

    A curvature is drawn in units of the outcomes. The sensitivity is one at which a typical difference of utilities, at
    the start's own curvature and capacity, is worth 1: so starts move with the unit of outcomes as the parameters do.
    """
    rng = np.random.default_rng(seed)
    found = []
    for each in range(number):
        values = _usual(likelihood)
        for name, spec in likelihood.specs.items():
            if each and name in likelihood.names:
                share = rng.random()
                least, most = spec.coordinate(spec.least), spec.coordinate(spec.most)
                values[name] = float(spec.natural(least + share * (most - least)))
        found.append(likelihood.coordinates(_scaled(likelihood, values)))
    return np.array(found).reshape(number, len(likelihood.names))


def _usual(likelihood: Likelihood) -> dict[str, float]:
    return {name: spec.start for name, spec in likelihood.specs.items()}


def _scaled(likelihood: Likelihood, values: dict[str, float]) -> dict[str, float]:
    unit = _units(likelihood, values)
    return {name: value * unit[likelihood.specs[name].unit] for name, value in values.items()}


def _units(likelihood: Likelihood, values: dict[str, float]) -> dict[str, float]:
    """Return what each unit of parameters is, "per utility" at some values of them."""
    size = likelihood.choices.typical_size(likelihood.reference_point)
    unit = {"": 1.0, "per outcome": 1 / size, "outcome": size, "per utility": 1.0}
    scaled = {name: value * unit[likelihood.specs[name].unit] for name, value in values.items()}
    model = likelihood.model
    complete = model.complete({name: scaled[name] for name in likelihood.names}, likelihood.choices.kind)
    families: Any = model.families(complete, likelihood.reference_point)
    table = likelihood.choices.prepared(model.weights, likelihood.reference_point)
    utility = table.utilities(**dict(zip(("value", "gain", "loss"), families, strict=True)))
    half = len(utility) // 2
    gaps = np.abs(utility[half : 2 * half] - utility[:half])
    typical = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0
    return {**unit, "per utility": 1 / typical}
