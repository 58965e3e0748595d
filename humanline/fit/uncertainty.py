"""How sure estimates are: covariances, intervals from standard errors and from profiles, and why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.scaled import Scaled, scaled

Array = NDArray[np.float64]
KINDS = ("information", "robust", "problem", "person")
#: Beyond this condition of the scaled information its inverse has no digits left that mean anything.
WORST_CONDITION = 1e12


@dataclass(frozen=True)
class ParameterInterval:
    """An interval of a parameter, on its natural scale.

    Parameters
    ----------
    name : str
    low, high : float
        nan where there is no such end.
    confidence : float
    why : str
        Why an end is missing; else empty.
    """

    name: str
    low: float
    high: float
    confidence: float
    why: str = ""


def coordinate_covariance(fit: Any, kind: str) -> Array:
    """Return the covariance of a fit's coordinates; nan for those on a bound, and where it has no digits."""
    likelihood, coordinates, inner = fit.likelihood, fit.coordinates, fit.inner
    number = len(coordinates)
    found = np.full((number, number), np.nan)
    if not inner.any():
        return found
    bread = _inverse(fit.information[np.ix_(inner, inner)])
    if bread is None:
        return found
    if kind == "information":
        # Minus half squared errors have no unit of their own: the mean squared error is that of the residuals.
        spread = 1.0 if likelihood.objective == "likelihood" else _mean_square(likelihood, coordinates)
        middle = bread * spread
    else:
        middle = bread @ _meat(likelihood, coordinates, inner, kind) @ bread
    found[np.ix_(inner, inner)] = middle
    return found


def _meat(likelihood: Any, coordinates: Array, inner: NDArray[np.bool_], kind: str) -> Array:
    """Return the sum of outer products of scores, or of their sums over clusters.

    At the estimates a cluster's score is too small, the more so the more it has to say: the fit has moved towards it.
    With its share H of the information this is made good by ``(1 - H)**(-1/2)``, as Bell and McCaffrey (2002) do.
    """
    if kind == "robust":
        scores = likelihood.scores(coordinates)[1][:, inner]
        if len(scores) <= scores.shape[1]:
            return np.full((scores.shape[1], scores.shape[1]), np.nan)
        return np.asarray(scores.T @ scores * len(scores) / (len(scores) - 1))
    labels = likelihood.choices.problem if kind == "problem" else likelihood.choices.person
    used, cluster = np.unique(labels, return_inverse=True)
    scores, information = likelihood.cluster_terms(coordinates, cluster)
    scores, information = scores[:, inner], information[:, inner][:, :, inner]
    number = scores.shape[1]
    if len(used) <= number:
        return np.full((number, number), np.nan)
    size, axes = np.linalg.eigh(information.sum(0))
    if not size[0] > 0:
        return np.full((number, number), np.nan)
    whiten, unwhiten = axes / np.sqrt(size), np.sqrt(size)[:, None] * axes.T
    share, own = np.linalg.eigh(whiten.T @ information @ whiten)
    rest = np.where(share < 1 - 1e-9, 1 / np.sqrt(np.maximum(1 - share, 1e-9)), 0.0)
    turned = np.einsum("cij,cj,ckj,ck->ci", own, rest, own, scores @ whiten, optimize=True)
    return np.asarray(unwhiten.T @ (turned.T @ turned) @ unwhiten)


def _mean_square(likelihood: Any, coordinates: Array) -> float:
    degrees = len(likelihood.choices) - len(coordinates)
    return float(-2 * likelihood.value(coordinates) / degrees) if degrees > 0 else math.nan


def tells_apart(information: Array) -> bool:
    """Return whether information is positive definite, and its inverse has digits that mean anything."""
    return _definite(information) is not None


def _inverse(information: Array) -> Array | None:
    """Return the inverse of a positive definite matrix; None if it is none, or too near to one that is not."""
    found = _definite(information)
    return None if found is None else found.inverse()


def _definite(information: Array) -> Scaled | None:
    if not (np.isfinite(information).all() and (np.diag(information) > 0).all()):
        return None
    found = scaled(information)
    return found if found.condition < WORST_CONDITION else None


def wald_interval(fit: Any, name: str, *, confidence: float, kind: str | None) -> ParameterInterval:
    """Return the interval ``estimate exp(-+ q error)`` (on the log scale, where that is the parameter's).

    q is the quantile of Student's law with `degrees` degrees of freedom. Ends are no values that the parameter cannot
    have.
    """
    from scipy.special import stdtrit

    place, spec = place_of(fit, name), fit.likelihood.specs[name]
    check_confidence(confidence)
    if name in fit.at_bound:
        return _none(name, confidence, f"the estimate is on its {fit.at_bound[name]} bound")
    kind = fit.usual_kind if kind is None else kind
    variance = fit.covariance(kind)[place, place]
    if not variance >= 0:
        return _none(name, confidence, _no_error(fit, kind))
    reach = float(stdtrit(degrees(fit, kind), (1 + confidence) / 2)) * math.sqrt(variance)
    at = fit.coordinates[place]
    low, high = fit.bounds_of(name)
    if at - reach < low and at + reach > high:
        return _none(name, confidence, "it would reach beyond both bounds: these data hardly tell this parameter")
    low, high = spec.inside(at - reach, at + reach)
    return ParameterInterval(name, low, high, confidence)


def degrees(fit: Any, kind: str) -> float:
    """Return the degrees of freedom of an error: clusters less one, where errors are clustered; else infinite.

    The error itself is as uncertain as that: of few clusters a normal law would be too narrow.
    """
    return clusters(fit, kind) - 1 if kind in ("problem", "person") else math.inf


def clusters(fit: Any, kind: str) -> int:
    """Return how many problems, or people, have answers."""
    return len(np.unique(fit.choices.problem if kind == "problem" else fit.choices.person))


def _no_error(fit: Any, kind: str) -> str:
    if kind in ("problem", "person"):
        used = clusters(fit, kind)
        if used <= int(fit.inner.sum()):
            return f"there are {used} clusters (each {kind} is one), no more than parameters"
    if kind == "robust" and len(fit.choices) <= int(fit.inner.sum()):
        return "there are no more responses than parameters"
    return "the information cannot be inverted: these data do not tell the parameters apart"


def place_of(fit: Any, name: str) -> int:
    """Return which coordinate a free parameter is; raise if it is not free."""
    if name not in fit.names:
        raise _checks.unknown("free parameter", name, fit.names)
    return int(fit.names.index(name))


def check_confidence(confidence: float) -> None:
    """Raise unless a confidence lies strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise _checks.fail("confidence", "lie strictly between 0 and 1", confidence)


def _none(name: str, confidence: float, why: str) -> ParameterInterval:
    return ParameterInterval(name, math.nan, math.nan, confidence, why)


def profile_interval(fit: Any, name: str, *, confidence: float = 0.95) -> ParameterInterval:
    """Return the interval of values at which the best log-likelihood is within half a chi-squared quantile of the best.

    The other parameters are fitted anew at each value. Only for likelihoods: shares have none.

    Parameters
    ----------
    fit : Fit
    name : str
        A free parameter.
    confidence : float in (0, 1)

    Returns
    -------
    ParameterInterval
        An end is nan, and ``why`` says so, where the profile stays above the line up to the parameter's bound (it is
        flat there), the estimate itself is on the bound, no optimum of the others was found, or one that is better than
        the fit.

    Raises
    ------
    ValueError
        If the name is not free, or the fit is of shares, or of least squares.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtri

    from humanline.fit.straight import climb_straight

    place, spec = place_of(fit, name), fit.likelihood.specs[name]
    check_confidence(confidence)
    if not fit.has_likelihood:
        raise _checks.fail("fit", "have a likelihood: bare rates have none; see the robust interval", fit.choices.kind)
    if name in fit.at_bound:
        return _none(name, confidence, f"the estimate is on its {fit.at_bound[name]} bound")
    level = fit.log_likelihood - chdtri(1, 1 - confidence) / 2
    known = {float(fit.coordinates[place]): fit.coordinates}

    def excess(at: float) -> float:
        near = known[min(known, key=lambda other: abs(other - at))]
        for begin in (near, fit.coordinates):
            found = climb_straight(fit.likelihood, begin, fit.low, fit.high, held={place: at})
            if found.converged:
                break
        else:
            raise _Lost(f"with {name} held at {float(spec.natural(at)):.6g} no optimum of the others was found")
        if found.value > fit.log_likelihood + 1e-6 * (1 + abs(fit.log_likelihood)):
            raise _Lost("there is a better optimum than that of the fit: fit again with more starts")
        known[at] = found.coordinates
        return float(found.value - level)

    variance = fit.covariance("information")[place, place]
    step = 1.96 * math.sqrt(variance) if variance > 0 else 0.5
    ends, why = [], []
    try:
        for sign, bound in zip((-1, 1), fit.bounds_of(name), strict=True):
            inside = outside = float(fit.coordinates[place])
            reach = step
            while True:
                further = outside + sign * reach
                outside, reach = further if sign * further < sign * bound else bound, 1.5 * reach
                above = excess(outside)
                if above < 0 or outside == bound:
                    break
                inside = outside
            if above >= 0:
                ends.append(math.nan)
                why.append(f"{'below' if sign < 0 else 'above'} the estimate the profile is flat up to the bound")
            else:
                ends.append(float(spec.natural(brentq(excess, inside, outside, xtol=1e-6))))
    except _Lost as lost:
        return _none(name, confidence, str(lost))
    return ParameterInterval(name, ends[0], ends[1], confidence, "; ".join(why))


class _Lost(Exception):
    """Say why a profile could not be followed."""
