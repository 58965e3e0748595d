"""What a set of problems can tell of a model's parameters, by expected information, before anyone has answered."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.faults import Fault
from humanline.fit.identify import NOTHING, fit_faults
from humanline.fit.likelihood import Likelihood
from humanline.fit.model import Model
from humanline.fit.result import Fit
from humanline.fit.scaled import Scaled, scaled
from humanline.fit.simulate import as_problems, check_values, given_values
from humanline.fit.starts import starting_points

Array = NDArray[np.float64]
#: A component of a flat direction below this is rounding too.
_SMALL = 1e-6


@dataclass(frozen=True, eq=False)
class Design:
    """Hold what problems are expected to tell of parameters; `design_check` makes it.

    Parameters
    ----------
    likelihood : Likelihood
        Of the problems, without answers.
    coordinates : (K,) array
        Where the information is expected: logs of the parameters that are positive.
    n : (P,) array
        Choices of each problem, of all people together.
    by_problem : (P, K, K) array
        Expected information of one choice of each problem.
    faults : tuple of Fault
        Why the parameters cannot all be determined, with what to do; empty if they can.
    """

    likelihood: Likelihood
    coordinates: Array
    n: Array
    by_problem: Array
    faults: tuple[Fault, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The K free parameters."""
        return self.likelihood.names

    @property
    def values(self) -> dict[str, float]:
        """The values of the free parameters at which the information is expected."""
        found = self.likelihood.natural(self.coordinates)
        return {name: found[name] for name in self.names}

    @functools.cached_property
    def information(self) -> Array:
        """The expected information of all choices in the coordinates, (K, K)."""
        return np.asarray(np.einsum("p,pij->ij", self.n, self.by_problem))

    @functools.cached_property
    def _scaled(self) -> Scaled:
        return scaled(self.information)

    @property
    def _null(self) -> NDArray[np.bool_]:
        eigen = self._scaled.eigen
        return np.asarray(eigen <= NOTHING * max(eigen[-1], 1e-300)) if len(eigen) else np.zeros(0, dtype=bool)

    @property
    def flat(self) -> tuple[dict[str, float], ...]:
        """Directions of which these problems say nothing: for each, how its coordinates move together, the most by 1.

        Coordinates are logs: ``{"curvature": -0.3, "sensitivity": 1.0}`` says that no choice changes as sensitivity
        rises by 1 % and curvature falls by .3 %.
        """
        found = []
        for vector in _reduced((self._scaled.vectors[:, self._null] / self._scaled.scale[:, None]).T):
            vector = vector / vector[np.abs(vector).argmax()]
            found.append({name: float(v) for name, v in zip(self.names, vector, strict=True) if abs(v) > _SMALL})
        return tuple(found)

    @functools.cached_property
    def covariance(self) -> Array:
        """The expected covariance of the coordinates' estimates, (K, K); nan for what these problems do not determine.

        The inverse of the expected information, within what is determined.
        """
        null = self._null
        inverse = self._scaled.inverse(~null)
        lost = (np.abs(self._scaled.vectors[:, null]) > _SMALL).any(1)
        inverse[lost] = inverse[:, lost] = np.nan
        return inverse

    @property
    def standard_errors(self) -> dict[str, float]:
        """The expected standard errors on the natural scale; nan for what is not determined."""
        errors, values = np.sqrt(np.diag(self.covariance)), self.values
        slopes = [self.likelihood.specs[name].slope(values[name]) for name in self.names]
        return {name: float(error * slope) for name, error, slope in zip(self.names, errors, slopes, strict=True)}

    @property
    def correlations(self) -> Array:
        """The expected correlations of the coordinates' estimates, (K, K)."""
        errors = np.sqrt(np.diag(self.covariance))
        return np.asarray(self.covariance / np.outer(errors, errors))

    @property
    def condition(self) -> float:
        """The condition of the information in coordinates scaled to unit information; infinite with flat directions.

        Above about 1e8 these problems hardly tell some combination of the parameters from another.
        """
        return math.inf if self._null.any() else self._scaled.condition

    def needed(self, name: str, standard_error: float) -> float:
        """Return how many choices in all give a parameter this standard error, with problems in the same shares.

        ``sum(n) (expected error / wished error)**2``; nan for what is not determined.
        """
        if name not in self.names:
            raise _checks.unknown("parameter", name, self.names)
        wished = _checks.positive("standard_error", standard_error)
        return float(self.n.sum() * (self.standard_errors[name] / wished) ** 2)

    def adds(self, name: str | None = None) -> Array:
        """Return what one more choice of each problem adds, (P,).

        To all parameters: by how much it raises the log-determinant of the information, ``tr(J^-1 J_p)``; times n these
        sum to the number of parameters. To one: by what share it lowers the variance of its estimate; times n these
        sum to 1. At first order, within what is determined; nan for a parameter that is not.
        """
        if name is None:
            own, kept = self._scaled, ~self._null
            roots = own.vectors[:, kept] / np.sqrt(own.eigen[kept]) / own.scale[:, None]
            return np.asarray(np.einsum("ik,pij,jk->p", roots, self.by_problem, roots))
        if name not in self.names:
            raise _checks.unknown("parameter", name, self.names)
        place = self.names.index(name)
        row, variance = self.covariance[place], self.covariance[place, place]
        if not np.isfinite(variance):
            return np.full(len(self.n), np.nan)
        row = np.where(np.isfinite(row), row, 0.0)
        return np.asarray(np.einsum("i,pij,j->p", row, self.by_problem, row) / variance)

    def most(self, number: int = 5, name: str | None = None) -> list[tuple[Any, float]]:
        """Return the problems of which one more choice adds most (see `adds`), with what it adds, the most first."""
        adds = self.adds(name)
        order = np.argsort(-adds, kind="stable")[:number]
        return [(self.likelihood.choices.problem_names[at], float(adds[at])) for at in order]

    def told(self) -> list[str]:
        """Return lines that say what the design determines, how well, and what it does not."""
        total, problems = int(self.n.sum()), len(self.n)
        cannot = [f"cannot be: {fault.told()}" for fault in self.faults]
        head = f"{problems} problems, {total} choices, model {self.likelihood.model.title!r}"
        if not self.names:
            return [f"{head}: all parameters are fixed, and none is to be determined", *cannot]
        lines = [f"{head}; expected at:"]
        errors = self.standard_errors
        wide = max((len(name) for name in self.names), default=0)
        for name, value in self.values.items():
            error = errors[name]
            log = self.likelihood.specs[name].scale == "log"
            relative = f" ({100 * error / value:.0f} %)" if log else ""
            said = "not determined" if math.isnan(error) else f"standard error {error:.3g}{relative}"
            lines.append(f"  {name:<{wide}}  {value:<8.4g} {said}")
        lines += cannot
        for direction in self.flat:
            said = ", ".join(f"{name} by {100 * size:+.0f} %" for name, size in direction.items())
            lines.append(f"no choice changes if together move: {said}")
        correlated = self._most_correlated()
        if correlated:
            lines.append(correlated)
        best = ", ".join(f"{name} ({adds:.2g})" for name, adds in self.most(3))
        lines.append(f"one more choice adds most (to the log of the information's determinant) in problem {best}")
        return lines

    def _most_correlated(self) -> str:
        size = np.abs(np.nan_to_num(self.correlations)) - np.eye(len(self.names))
        if len(self.names) < 2 or size.max() <= 0:
            return ""
        i, j = sorted(int(each) for each in np.unravel_index(size.argmax(), size.shape))  # rounding is not symmetric
        value = self.correlations[i, j]
        return f"most correlated: the estimates of {self.names[i]} and {self.names[j]}, {value:+.2f}"


def design_check(
    problems: Choices | Any,
    model: Model | Fit | None = None,
    *,
    values: Mapping[str, float] | None = None,
    n: ArrayLike = 1,
    kind: str | None = None,
    reference_point: float | None = None,
) -> Design:
    """Say which parameters a set of problems identifies, and how well, before data are collected.

    The expected information of a choice is ``dP dP' / (P (1 - P))``, P the probability of the second option.

    Parameters
    ----------
    problems : Choices, or two options as `Choices.between` takes them, or prospects for certainty equivalents
        Of Choices the problems alone count.
    model : Model or Fit, optional
        Cumulative prospect theory with the families of 1992, by default.
    values : mapping from name to float, optional
        Of the free parameters, where the information is expected. The fit's estimates by default, or the usual
        values, with the sensitivity at which a typical difference of utilities is worth 1.
    n : number >= 0, or (P,) array
        Choices of each problem, of all people together, who are taken to be alike.
    kind : str, optional
        "equivalents" for certainty equivalents; the default with problems, or a fit, of that kind.
    reference_point : float, optional
        That of the fit, or 0.

    Returns
    -------
    Design
        With ``faults`` where the parameters cannot be determined: nothing is raised for a design that says too little.

    Raises
    ------
    DataError
        If the problems are faulty.
    ValueError
        If a value is missing, of no free parameter, or out of its range, or some n is negative or all are 0.

    Notes
    -----
    What is expected depends on the values: try those that you hold possible. Standard errors are those of many
    choices; with few, or next to a bound, estimates spread further.

    Examples
    --------
    >>> first = [[40.0, 0.0], [90.0, 10.0], [60.0, 20.0]], [[0.5, 0.5], [0.1, 0.9], [0.8, 0.2]]
    >>> design = design_check((first, ([[18.0], [20.0], [45.0]], [[1.0]] * 3)), n=100)
    >>> sorted(fault.column for fault in design.faults)
    ['loss.gamma', 'loss_aversion', 'problems']
    """
    model = Model() if model is None else model
    own = model.likelihood if isinstance(model, Fit) else None
    zero = (own.reference_point if own is not None else 0.0) if reference_point is None else reference_point
    empty = as_problems(problems, kind, model)
    likelihood = Likelihood(empty, own.model if own is not None else model, reference_point=zero)  # type: ignore[arg-type]
    if values is None and own is None:
        coordinates = starting_points(likelihood, 1, seed=0)[0]
    else:
        given = given_values(model, values)
        check_values(likelihood.model, given, empty.kind)
        coordinates = likelihood.coordinates(given)
    number = np.broadcast_to(np.asarray(n, dtype=np.float64), (empty.problems,)).copy()
    _checks.no_element("n", "be finite and >= 0", ~(np.isfinite(number) & (number >= 0)), number)
    if not number.any():
        raise _checks.fail("n", "be > 0 for some problem", n)
    by_problem = likelihood.cluster_terms(coordinates, np.arange(empty.problems))[1]
    asked = Likelihood(empty.take(np.flatnonzero(number)), likelihood.model, reference_point=zero)
    return Design(likelihood, coordinates, number, by_problem, tuple(fit_faults(asked)))


def _reduced(vectors: Array) -> Array:
    """Return the reduced echelon form of vectors (D, K): of all bases of their span the one that names fewest."""
    found = vectors / np.abs(vectors).max(1, keepdims=True) if vectors.size else vectors
    done = 0
    for column in range(found.shape[1]):
        if done == len(found):
            break
        pivot = done + int(np.abs(found[done:, column]).argmax())
        if abs(found[pivot, column]) <= _SMALL:
            continue
        found[[done, pivot]] = found[[pivot, done]]
        found[done] /= found[done, column]
        others = np.arange(len(found)) != done
        found[others] -= found[others, column, None] * found[done]
        done += 1
    return found
