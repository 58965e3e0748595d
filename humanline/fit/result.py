"""What a fit found: estimates, how sure they are, and how the search for them went."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.likelihood import Likelihood
from humanline.fit.model import Model
from humanline.fit.scaled import scaled
from humanline.fit.straight import Straight
from humanline.fit.uncertainty import KINDS, ParameterInterval, coordinate_covariance, wald_interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Starts:
    """How the search went.

    Parameters
    ----------
    values : tuple of float
        The log-likelihood at which each start ended, in order of the starts; nan where it came to none.
    agreeing : int
        How many ended within 1e-8 (relative to 1 + its size) of the best.
    """

    values: tuple[float, ...]
    agreeing: int


@dataclass(frozen=True, eq=False)
class Fit:
    """Hold the estimates of a model; `fit_prospect` makes it.

    Parameters
    ----------
    likelihood : Likelihood
        Of which `coordinates` are the maximum: it holds the choices and the model.
    coordinates : (K,) array
        Estimates on the scale of estimation: logs, of parameters that are positive.
    log_likelihood : float
        In nats; with least squares minus half the squared error.
    low, high : (K,) arrays
        Bounds of the straight coordinates (`humanline.fit.straight`): sensitivity and loss aversion are bounded at the
        typical outcome.
    starts : Starts
    seed : int
    """

    likelihood: Likelihood
    coordinates: Array
    log_likelihood: float
    low: Array
    high: Array
    starts: Starts
    seed: int

    @property
    def model(self) -> Model:
        """The model."""
        return self.likelihood.model

    @property
    def choices(self) -> Choices:
        """The data."""
        return self.likelihood.choices

    @property
    def names(self) -> tuple[str, ...]:
        """The K free parameters."""
        return self.likelihood.names

    @property
    def parameters(self) -> dict[str, float]:
        """The values of all parameters, estimated or not."""
        return self.likelihood.natural(self.coordinates)

    @property
    def estimates(self) -> dict[str, float]:
        """The values of the free parameters."""
        return {name: self.parameters[name] for name in self.names}

    @property
    def value(self) -> Any:
        """The fitted value function."""
        return self._families[0]

    @property
    def gain(self) -> Any:
        """The fitted capacity of gains."""
        return self._families[1]

    @property
    def loss(self) -> Any:
        """The fitted capacity of losses."""
        return self._families[2]

    @property
    def _families(self) -> tuple[Any, Any, Any]:
        return self.model.families(self.parameters, self.likelihood.reference_point)

    @property
    def squared_error(self) -> float:
        """The mean squared difference of what was answered and predicted; of counts that of the shares, per choice."""
        given = self.choices
        error = given.response / given.trials - self.likelihood.predicted(self.coordinates)
        return float(np.average(error**2, weights=given.trials))

    @property
    def aic(self) -> float:
        """Akaike's criterion, ``2 K - 2 ln L``; nan without a likelihood: of least squares, and of bare rates."""
        return 2 * len(self.names) - 2 * self._log_likelihood

    @property
    def bic(self) -> float:
        """Schwarz's criterion, ``K ln(responses) - 2 ln L``, with counts one by one; nan as `aic` is."""
        return len(self.names) * math.log(self.choices.trials.sum()) - 2 * self._log_likelihood

    @property
    def _log_likelihood(self) -> float:
        return self.log_likelihood if self.has_likelihood else math.nan

    @property
    def has_likelihood(self) -> bool:
        """Whether what was maximised is a likelihood: not with least squares, nor of bare rates."""
        return self.choices.kind != "rates" and self.likelihood.objective == "likelihood"

    @functools.cached_property
    def at_bound(self) -> dict[str, str]:
        """The free parameters that sit on a bound, each with "lower" or "upper"."""
        room = 1e-6
        found = {}
        straight = Straight(self.likelihood).there(self.coordinates)
        for name, at, low, high in zip(self.names, straight, self.low, self.high, strict=True):
            if at - low < room or high - at < room:
                found[name] = "lower" if at - low < room else "upper"
        return found

    @functools.cached_property
    def information(self) -> Array:
        """The observed information: minus the second derivatives of the log-likelihood in the coordinates, (K, K)."""
        return -self.likelihood.hessian(self.coordinates)

    @property
    def condition(self) -> float:
        """The condition of the information, of coordinates scaled to unit information: 1 where estimates are unrelated.

        Above about 1e8 the data hardly tell some combination of the parameters from another; infinite where the
        information is not finite.
        """
        information = self.information[np.ix_(self.inner, self.inner)]
        return scaled(information).condition if np.isfinite(information).all() else math.inf

    @functools.cached_property
    def inner(self) -> NDArray[np.bool_]:
        """Which of the free parameters sit on no bound, (K,)."""
        on_bound = self.at_bound
        return np.array([name not in on_bound for name in self.names], dtype=bool)

    def bounds_of(self, name: str) -> tuple[float, float]:
        """Return the bounds of a free parameter's coordinate, with the others as estimated."""
        place = self.names.index(name)
        shift = (Straight(self.likelihood).there(self.coordinates) - self.coordinates)[place]
        return float(self.low[place] - shift), float(self.high[place] - shift)

    @property
    def usual_kind(self) -> str:
        """The kind of standard errors where none is asked for: of the information; robust ones without a likelihood.

        A share is no choice: fractional logit has the right derivatives, but not the information, of a likelihood. Nor
        have squared errors it, which are not as large everywhere.
        """
        return "information" if self.has_likelihood else "robust"

    def covariance(self, kind: str | None = None) -> Array:
        """Return the covariance of the coordinates (logs, of positive parameters), (K, K).

        Parameters
        ----------
        kind : str, optional
            "information" (the inverse of the observed information), "robust" (the sandwich, for a model that is not
            right), "problem" or "person" (the sandwich of sums over each problem or person, whose answers may depend
            on each other, corrected for what each adds to the information: CR2 of Bell and McCaffrey, 2002). By default
            `usual_kind`.

        Returns
        -------
        (K, K) array
            nan for a parameter on a bound, or if the information cannot be inverted.
        """
        kind = self.usual_kind if kind is None else kind
        _checks.one_of("kind", kind, KINDS)
        if kind not in self._covariances:
            self._covariances[kind] = coordinate_covariance(self, kind)
        return self._covariances[kind].copy()

    @functools.cached_property
    def _covariances(self) -> dict[str, Array]:
        return {}

    def standard_errors(self, kind: str | None = None) -> dict[str, float]:
        """Return the standard errors of the estimates on their natural scale (kinds as in `covariance`)."""
        errors = np.sqrt(np.diag(self.covariance(kind)))
        slopes = [self.likelihood.specs[name].slope(value) for name, value in self.estimates.items()]
        return {name: float(error * slope) for name, error, slope in zip(self.names, errors, slopes, strict=True)}

    def correlations(self, kind: str | None = None) -> Array:
        """Return the correlations of the coordinates' estimates, (K, K)."""
        covariance = self.covariance(kind)
        errors = np.sqrt(np.diag(covariance))
        return np.asarray(covariance / np.outer(errors, errors))

    def interval(self, name: str, *, confidence: float = 0.95, kind: str | None = None) -> ParameterInterval:
        """Return the interval of a parameter from its standard error, made on the log scale.

        By Student's law where errors are clustered, with clusters less one degrees of freedom; within the values that
        the parameter can have.

        Returns
        -------
        ParameterInterval
            With ``low`` and ``high``, nan where there is none, and ``why`` in words then: on a bound, without
            information, or where it would reach beyond both bounds.
        """
        return wald_interval(self, name, confidence=confidence, kind=kind)

    def predicted(self, choices: Choices | None = None) -> Array:
        """Return the probability of the second option (or the certainty equivalent) for each response, (M,).

        Parameters
        ----------
        choices : Choices, optional
            Of the same kind; by default those fitted.

        Raises
        ------
        ValueError
            If one are certainty equivalents and the others not: what is noise of the ones is no sensitivity.
        """
        return self._of(choices).predicted(self.coordinates)

    def rows(self, choices: Choices | None = None) -> Array:
        """Return the log-likelihood of each response, (M,), also of responses that were not fitted."""
        return self._of(choices).rows(self.coordinates)

    def _of(self, choices: Choices | None) -> Likelihood:
        if choices is None:
            return self.likelihood
        own = self.likelihood
        if (choices.kind == "equivalents") != (self.choices.kind == "equivalents"):
            raise _checks.fail("choices", f"be of the kind that was fitted, {self.choices.kind}", choices.kind)
        return Likelihood(choices, self.model, reference_point=own.reference_point, objective=own.objective)

    def to_dict(self, kind: str | None = None) -> Mapping[str, Any]:
        """Return what JSON can hold: model, estimates, standard errors, covariance (of a kind), starts, bounds."""
        kind = self.usual_kind if kind is None else kind
        errors = {kind: self.standard_errors(kind) for kind in KINDS if kind != "person" or self.choices.people > 1}
        return {
            "model": self.model.to_dict(),
            "kind": self.choices.kind,
            "objective": self.likelihood.objective,
            "reference_point": self.likelihood.reference_point,
            "responses": len(self.choices),
            "problems": self.choices.problems,
            "people": self.choices.people,
            "parameters": self.parameters,
            "free": list(self.names),
            "log_likelihood": self.log_likelihood,
            "aic": None if math.isnan(self.aic) else self.aic,
            "bic": None if math.isnan(self.bic) else self.bic,
            "squared_error": self.squared_error,
            "kind_of_covariance": kind,
            "standard_errors": {kind: _finite(each) for kind, each in errors.items()},
            "covariance_of_coordinates": [[_number(x) for x in row] for row in self.covariance(kind)],
            "at_bound": self.at_bound,
            "condition": _number(self.condition),
            "starts": {"seed": self.seed, "values": [_number(x) for x in self.starts.values],
                       "agreeing": self.starts.agreeing},
        }  # fmt: skip


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in values.items()}
