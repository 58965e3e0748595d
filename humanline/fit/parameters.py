"""Parameters of a model: their names, the scale they are estimated on, bounds and where starts are drawn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from humanline import _checks
from humanline.theory import (
    ExponentialPower,
    ExponentialValue,
    HyperbolicLog,
    Identity,
    LinearInLogOdds,
    LogarithmicValue,
    LogisticValue,
    NeoAdditive,
    PowerValue,
    PowerWeight,
    Prelec,
    TverskyKahneman,
)
from humanline.theory.capacity.family import choose
from humanline.theory.capacity.tversky_kahneman import MONOTONE_GAMMA

#: The positive numbers.
POSITIVE = (5e-324, math.inf)


@dataclass(frozen=True)
class Parameter:
    """What estimation needs to know of a parameter.

    Parameters
    ----------
    name : str
    start : float
        A usual value: the first start of a fit.
    low, high : float
        Bounds.
    least, most : float
        Starts are drawn between these.
    scale : str
        "log" or "identity": what is estimated, and what standard errors are of.
    unit : str
        What a natural value is multiplied by, above and in bounds: "" (1), "per outcome" (1 over the typical size of
        an outcome), "outcome" (that size), "per utility" (1 over the typical difference of utilities).
    domain : pair of floats
        What a fixed value may be, both ends included.
    """

    name: str
    start: float
    low: float
    high: float
    least: float
    most: float
    scale: str = "log"
    unit: str = ""
    domain: tuple[float, float] = POSITIVE

    def checked(self, name: str, value: Any) -> float:
        """Return a value as a float; raise unless it is in the domain."""
        number = _checks.finite(name, value)
        low, high = self.domain
        if not low <= number <= high:
            rule = "be > 0" if low == POSITIVE[0] else f"be >= {low:.6g}"
            raise _checks.fail(name, rule if high == math.inf else f"{rule} and <= {high:g}", value)
        return number

    def coordinate(self, value: Any) -> Any:
        """Return a value on the scale of estimation."""
        return np.log(value) if self.scale == "log" else np.asarray(value, dtype=float)

    def inside(self, low: float, high: float) -> tuple[float, float]:
        """Return the natural values of two coordinates, as far as the parameter can have them."""
        with np.errstate(over="ignore"):
            ends = np.clip(self.natural(np.array([low, high])), *self.domain)
        return float(ends[0]), float(ends[1])

    def natural(self, coordinate: Any) -> Any:
        """Return the value of a coordinate."""
        return np.exp(coordinate) if self.scale == "log" else np.asarray(coordinate, dtype=float)

    def slope(self, value: Any) -> Any:
        """Return the derivative of the value in its coordinate, from the value."""
        return value if self.scale == "log" else np.ones_like(value)


VALUES: dict[str, type] = {
    "power": PowerValue,
    "exponential": ExponentialValue,
    "logarithmic": LogarithmicValue,
    "logistic": LogisticValue,
}
CAPACITIES: dict[str, type] = {
    "tversky-kahneman": TverskyKahneman,
    "prelec": Prelec,
    "linear-in-log-odds": LinearInLogOdds,
    "power": PowerWeight,
    "neo-additive": NeoAdditive,
    "exponential-power": ExponentialPower,
    "hyperbolic-log": HyperbolicLog,
    "identity": Identity,
}

_POWER = Parameter("curvature", 0.88, 0.02, 5.0, 0.4, 1.2)
_SCALED = Parameter("curvature", 0.5, 1e-4, 100.0, 0.05, 2.0, unit="per outcome")
#: By family, what its curvatures are.
CURVATURES = {PowerValue: _POWER, ExponentialValue: _SCALED, LogarithmicValue: _SCALED, LogisticValue: _SCALED}
LOSS_AVERSION = Parameter("loss_aversion", 2.25, 0.01, 100.0, 0.8, 4.0)
#: By family, what its own parameters are. A neo-additive capacity has a share in place of its intercept:
#: ``intercept = share (1 - slope)``, so that every slope goes with every share in [0, 1].
CAPACITY_PARAMETERS: dict[type, tuple[Parameter, ...]] = {
    TverskyKahneman: (
        Parameter("gamma", 0.65, MONOTONE_GAMMA * (1 + 1e-12), 5.0, 0.4, 1.1, domain=(MONOTONE_GAMMA, math.inf)),
    ),
    Prelec: (Parameter("alpha", 0.65, 0.02, 5.0, 0.4, 1.1), Parameter("beta", 1.0, 0.02, 50.0, 0.7, 1.5)),
    LinearInLogOdds: (Parameter("slope", 0.65, 0.02, 5.0, 0.4, 1.1), Parameter("elevation", 0.8, 0.02, 50.0, 0.5, 1.5)),
    PowerWeight: (Parameter("exponent", 1.0, 0.02, 20.0, 0.5, 1.5),),
    NeoAdditive: (
        Parameter("slope", 0.8, 0.01, 1.0, 0.5, 0.95, domain=(POSITIVE[0], 1.0)),
        Parameter("share", 0.5, 1e-4, 1.0, 0.2, 0.8, domain=(0.0, 1.0)),
    ),
    ExponentialPower: (
        Parameter("alpha", 1.0, 0.02, 50.0, 0.6, 1.6),
        Parameter("beta", 0.2, -20.0, 20.0, -0.5, 0.8, scale="identity", domain=(-math.inf, math.inf)),
    ),
    HyperbolicLog: (Parameter("alpha", 0.5, 1e-3, 100.0, 0.2, 1.5), Parameter("beta", 1.0, 0.02, 50.0, 0.7, 1.5)),
    Identity: (),
}
SENSITIVITY = Parameter("sensitivity", 1.0, 1e-5, 1e5, 0.3, 3.0, unit="per utility")
LAPSE = Parameter("lapse", 0.02, 1e-6, 0.9, 0.005, 0.1, domain=(0.0, 1.0))
NOISE = Parameter("noise", 0.2, 1e-6, 1e4, 0.1, 0.5, unit="outcome")


def capacity_of(family: type, values: Mapping[str, Any]) -> Any:
    """Return the capacity that parameters of a model make."""
    if family is NeoAdditive:
        share = values["share"]
        slope = choose(values["slope"] > 1, 1.0, values["slope"])  # a step of a derivative may lead beyond
        room, wanted = 1 - slope, share * (1 - slope)
        return NeoAdditive(slope, choose(wanted > room, room, wanted))  # rounding must not carry the sum above 1
    return quietly(family, values)


def quietly(family: type, values: Mapping[str, Any]) -> Any:
    """Return a capacity without the warning of one that is not monotone: a model has been asked for that."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return family(**values)


def in_parameters(family: type, values: Mapping[str, Any], found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return derivatives in the parameters of a model from those in the fields of its capacity."""
    if family is NeoAdditive and found:
        by_slope, by_intercept = found["slope"], found["intercept"]
        return {"slope": by_slope - values["share"] * by_intercept, "share": (1 - values["slope"]) * by_intercept}
    return found
