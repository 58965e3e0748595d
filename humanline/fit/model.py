"""A model of choices between prospects, as a value: what is weighed how, and which parameters are free."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from humanline import _checks
from humanline.fit.parameters import (
    CAPACITIES,
    CAPACITY_PARAMETERS,
    CURVATURES,
    LAPSE,
    LOSS_AVERSION,
    NOISE,
    POSITIVE,
    SENSITIVITY,
    VALUES,
    Parameter,
    capacity_of,
)
from humanline.fit.prepared import WEIGHTS

RULES = ("logit", "probit")
EQUIVALENTS = "equivalents"


@dataclass(frozen=True)
class Model:
    """Say how prospects are valued and chosen between, and which parameters are free, fixed or equal.

    ``P(second) = (1 - lapse) F(sensitivity (u_second - u_first)) + lapse/2``, with F logistic or normal.

    Parameters
    ----------
    value : str
        "power", "exponential", "logarithmic" or "logistic".
    gain : str
        Family of the capacity of gains: "tversky-kahneman", "prelec", "linear-in-log-odds", "power", "neo-additive",
        "exponential-power", "hyperbolic-log" or "identity".
    loss : str, optional
        That of losses; None, the default, is the family of gains, with parameters of its own.
    weights : str
        "cumulative", or "separable": Omega(p) of each outcome.
    rule : str
        "logit" or "probit".
    contextual : bool
        Divide the difference of utilities by that of the best and the worst outcome of the problem.
    fixed : mapping from name to float
        Parameters that are not estimated. ``lapse`` is fixed at 0 unless `lapse`.
    equal : mapping from name to name
        Parameters that are that of another name: by default losses have the curvature of gains. What is given takes
        the place of that, so that ``{}`` frees it. ``{"loss": "gain"}`` gives both sides one capacity.
    lapse : bool
        Estimate the rate of answers that are given without looking.
    non_monotone : bool
        Let gamma of Tversky and Kahneman go below .2792, where the capacity decreases somewhere.
    name : str
        Of what it is called in tables; by default its parts.

    Raises
    ------
    ValueError
        If a part is unknown, a name is not a parameter of the model, a fixed value is none that the parameter can have
        (for a gamma below .2792 see `non_monotone`), or equal names make a circle.

    Notes
    -----
    Source: arXiv 2509.24207, Defs. 3.1 to 3.3; Wilcox (2011), Journal of Econometrics 162, for contextual utility.

    Parameters are called ``curvature``, ``loss_curvature``, ``loss_aversion``, ``gain.gamma`` (any parameter of the
    capacity of gains), ``loss.gamma``, ``sensitivity`` and ``lapse``; of certainty equivalents ``noise``, the standard
    deviation in the unit of outcomes, takes the place of the last two. A neo-additive capacity has ``slope`` and
    ``share``, with ``intercept = share (1 - slope)``.

    Examples
    --------
    >>> Model().free()
    ('curvature', 'loss_aversion', 'gain.gamma', 'loss.gamma', 'sensitivity')
    >>> Model(gain="prelec", fixed={"gain.beta": 1.0, "loss.beta": 1.0}, equal={"loss.alpha": "gain.alpha"}).free()
    ('curvature', 'loss_curvature', 'loss_aversion', 'gain.alpha', 'sensitivity')
    """

    value: str = "power"
    gain: str = "tversky-kahneman"
    loss: str | None = None
    weights: str = "cumulative"
    rule: str = "logit"
    contextual: bool = False
    fixed: Mapping[str, float] = field(default_factory=dict)
    equal: Mapping[str, str] = field(default_factory=lambda: {"loss_curvature": "curvature"})
    lapse: bool = False
    non_monotone: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        _checks.one_of("value", self.value, tuple(VALUES))
        _checks.one_of("gain", self.gain, tuple(CAPACITIES))
        _checks.one_of("loss", self.loss_family, tuple(CAPACITIES))
        _checks.one_of("weights", self.weights, WEIGHTS)
        _checks.one_of("rule", self.rule, RULES)
        object.__setattr__(self, "fixed", {name: float(value) for name, value in dict(self.fixed).items()})
        object.__setattr__(self, "equal", self._expanded(dict(self.equal)))
        known = {**self.parameters(), **self.parameters(EQUIVALENTS)}
        for name in [*self.fixed, *self.equal, *self.equal.values()]:
            if name not in known:
                raise _checks.unknown("parameter", name, sorted(known))
        for name in self.equal:
            one, other = known[name], known[self.source(name)]
            if (one.unit, one.scale) != (other.unit, other.scale):
                rule = "be between parameters of one unit and one scale"
                raise _checks.fail("equal", rule, f"{name} = {self.source(name)}")
        for name, value in self.fixed.items():
            if name in self.equal:
                raise _checks.fail(name, "be fixed or equal to another, not both", value)
            self.parameters().get(name, NOISE).checked(name, value)

    def _expanded(self, equal: dict[str, str]) -> dict[str, str]:
        """Return equal names, with those of the parameters of the capacity in place of "loss"."""
        if "loss" not in equal:
            return equal
        if equal.pop("loss") != "gain" or self.loss_family != self.gain:
            rule = "be 'gain' for 'loss', with capacities of one family: one capacity for both sides"
            raise _checks.fail("equal", rule, dict(self.equal))
        names = [one.name for one in CAPACITY_PARAMETERS[self.family("loss")]]
        return {**{f"loss.{name}": f"gain.{name}" for name in names}, **equal}

    @property
    def loss_family(self) -> str:
        """The family of the capacity of losses."""
        return self.gain if self.loss is None else self.loss

    @property
    def title(self) -> str:
        """What the model is called in tables."""
        parts = [self.value, self.gain if self.loss_family == self.gain else f"{self.gain}/{self.loss_family}"]
        parts += [self.weights] if self.weights != "cumulative" else []
        parts += ["contextual"] if self.contextual else []
        parts += [self.rule] if self.rule != "logit" else []
        return self.name or " ".join([*parts, *(["lapse"] if self.lapse else [])])

    def parameters(self, kind: str = "choices") -> dict[str, Parameter]:
        """Return all parameters by name, free or not, of a kind of responses."""
        curvature = CURVATURES[VALUES[self.value]]
        found = {"curvature": curvature, "loss_curvature": curvature, "loss_aversion": LOSS_AVERSION}
        for side, family in (("gain", self.gain), ("loss", self.loss_family)):
            for parameter in CAPACITY_PARAMETERS[CAPACITIES[family]]:
                if self.non_monotone and family == "tversky-kahneman":
                    parameter = dataclasses.replace(parameter, low=0.05, domain=POSITIVE)
                found[f"{side}.{parameter.name}"] = parameter
        if kind == EQUIVALENTS:
            return {**found, "noise": NOISE}
        # Contextual differences lie between -1 and 1, whatever the unit of outcomes.
        sensitivity = dataclasses.replace(SENSITIVITY, unit="") if self.contextual else SENSITIVITY
        return {**found, "sensitivity": sensitivity, "lapse": LAPSE}

    def free(self, kind: str = "choices") -> tuple[str, ...]:
        """Return the names of what is estimated, in order."""
        return tuple(
            name
            for name in self.parameters(kind)
            if name not in self.equal and name not in self.fixed and (name != "lapse" or self.lapse)
        )

    def unused(self, kind: str = "choices") -> tuple[str, ...]:
        """Return what was asked of the model that a kind of responses has no use for, such as a rule of choice."""
        own = self.parameters(kind)
        found = [name for name in (*self.fixed, *self.equal) if name not in own]
        if kind == EQUIVALENTS:
            asked = {"rule": self.rule != RULES[0], "contextual": self.contextual, "lapse": self.lapse}
            found = [*(name for name, given in asked.items() if given), *found]
        return tuple(dict.fromkeys(found))

    def complete(self, free: Mapping[str, Any], kind: str = "choices") -> dict[str, Any]:
        """Return the values of all parameters from those of the free ones."""
        given = {"lapse": 0.0, **self.fixed, **free}
        return {name: given[self.source(name)] for name in self.parameters(kind)}

    def families(self, values: Mapping[str, Any], reference_point: float = 0.0) -> tuple[Any, Any, Any]:
        """Return the value function and the capacities of gains and of losses at values of all parameters.

        Parameters
        ----------
        values : mapping from name to float or array
            As `complete` returns them.
        reference_point : float

        Returns
        -------
        value, gain, loss : families of humanline.theory
        """
        names = ("curvature", "loss_curvature", "loss_aversion")
        value = VALUES[self.value](**{name: values[name] for name in names}, reference_point=reference_point)
        return value, *(capacity_of(self.family(side), self.own(side, values)) for side in ("gain", "loss"))

    def family(self, side: str) -> type:
        """Return the family of the capacity of "gain" or "loss"."""
        return CAPACITIES[self.gain if side == "gain" else self.loss_family]

    def own(self, side: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of the capacity of "gain" or "loss", without the prefix."""
        return {one.name: values[f"{side}.{one.name}"] for one in CAPACITY_PARAMETERS[self.family(side)]}

    def source(self, name: str) -> str:
        """Return the parameter whose value one has: itself, or what it is equal to."""
        seen = [name]
        while name in self.equal:
            name = self.equal[name]
            if name in seen:
                raise _checks.fail("equal", "make no circle", " = ".join([*seen, name]))
            seen.append(name)
        return name

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; `Model(**it)` is the model."""
        return dataclasses.asdict(self)

    def __hash__(self) -> int:
        """Return the same for equal models."""
        return hash(json.dumps(self.to_dict(), sort_keys=True))


def expected_value(**settings: Any) -> Model:
    """Return the model that sums outcomes times probabilities: nothing is free but how choices follow it."""
    return _plain("expected value", {"curvature": 1.0, "loss_curvature": 1.0, "loss_aversion": 1.0}, settings)


def expected_utility(value: str = "power", **settings: Any) -> Model:
    """Return the model of values times probabilities: curvature (one for both sides) and loss aversion are free."""
    return _plain(f"expected utility, {value}", {}, {"value": value, **settings})


def _plain(name: str, fixed: dict[str, float], settings: dict[str, Any]) -> Model:
    equal: dict[str, Any] = {"equal": {}} if fixed else {}
    return Model(**{"gain": "identity", "name": name, "fixed": fixed, **equal, **settings})


def standard_models(value: str = "power", **settings: Any) -> dict[str, Model]:
    """Return the models that are usually compared, by title: expected value and utility, then each family of capacity.

    Parameters
    ----------
    value : str
        Family of the value function.
    **settings
        Of every `Model`: ``rule``, ``contextual``, ``lapse``.

    Returns
    -------
    dict from title to Model
        Separable and cumulative for each family; Prelec's with one parameter and with two.
    """
    models = [expected_value(**settings), expected_utility(value, **settings)]
    for weights in ("separable", "cumulative"):
        for family in CAPACITIES:
            common = {"value": value, "gain": family, "weights": weights, **settings}
            if family == "prelec":
                one = {"gain.beta": 1.0, "loss.beta": 1.0}
                models.append(Model(**common, fixed=one, name=f"{weights}, prelec (one parameter)"))
            if family != "identity":
                models.append(Model(**common, name=f"{weights}, {family}"))
    return {model.title: model for model in models}
