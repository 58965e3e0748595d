"""The log-likelihood of responses under a model, with scores and information, for everyone or each person."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.model import EQUIVALENTS, Model
from humanline.fit.parameters import in_parameters
from humanline.fit.rules import Prediction, Terms, response_terms

Array = NDArray[np.float64]
OBJECTIVES = ("likelihood", "least squares")
#: The step of differences of scores: where the error of rounding and that of the third derivative are both small.
_STEP = 1e-5


class Likelihood:
    """The log-likelihood of responses as a function of coordinates: logs of the free parameters (or themselves).

    Parameters
    ----------
    choices : Choices
    model : Model
    reference_point : float
        Zero of gain and loss; fixed, since gains become losses as it moves.
    objective : str
        "likelihood", or "least squares" of shares: then what is called a log-likelihood is minus half the squared
        error.
    by_person : bool
        Give each person coordinates of their own: coordinates are (people, K), and results have that first axis.

    Raises
    ------
    ValueError
        If the objective is none or not one of such responses, or the model has a part that these have no use for: a
        rule of choice other than logit, contextual utility, lapses or a sensitivity where they are certainty
        equivalents, a noise where they are not.

    Attributes
    ----------
    names : tuple of str
        The K free parameters.
    groups : int
        Number of people, or 1.

    Notes
    -----
    Every method takes coordinates of shape (K,), or (groups, K) if `by_person`. Counts have the likelihood of their
    choices one by one, without the binomial coefficient.
    """

    def __init__(
        self,
        choices: Choices,
        model: Model,
        *,
        reference_point: float = 0.0,
        objective: str = "likelihood",
        by_person: bool = False,
    ):
        _checks.one_of("objective", objective, OBJECTIVES)
        if objective == "least squares" and choices.kind == EQUIVALENTS:
            raise _checks.fail(
                "objective", "be likelihood with certainty equivalents, whose errors are normal", objective
            )
        if unused := model.unused(choices.kind):
            rule = f"ask nothing that {choices.kind} have no use for"
            raise _checks.fail("model", rule, ", ".join(unused))
        self.choices, self.model, self.objective = choices, model, objective
        self.reference_point, self.by_person = reference_point, by_person
        self.specs = model.parameters(choices.kind)
        self.names = model.free(choices.kind)
        self.groups = choices.people if by_person else 1
        if by_person:
            self._table, self._problem, self._place = choices.prepared_by_person(model.weights, reference_point)
            place_person = np.zeros(len(self._problem), np.int64)
            place_person[self._place] = choices.person
            self._group: NDArray[np.int64] | None = place_person
        else:
            self._table = choices.prepared(model.weights, reference_point)
            self._problem, self._place, self._group = np.arange(choices.problems), choices.problem, None
        self._totals: tuple[Array, Array] | None = None
        self._ends = self._contexts() if model.contextual and choices.kind != EQUIVALENTS else None

    # ---- coordinates and parameters ---------------------------------------------------------------------------------

    def natural(self, coordinates: ArrayLike) -> dict[str, Any]:
        """Return the values of all parameters, free or not: floats, or (groups,) arrays if `by_person`."""
        free = np.asarray(coordinates, dtype=np.float64)
        _checks.same_shape("coordinates", free.shape, "parameters", self._shape)
        values: dict[str, Any] = {name: self.specs[name].natural(free[..., k]) for k, name in enumerate(self.names)}
        if not self.by_person:
            values = {name: float(value) for name, value in values.items()}
        return self.model.complete(values, self.choices.kind)

    def coordinates(self, values: Mapping[str, Any]) -> Array:
        """Return the coordinates of values of the free parameters (others are passed over)."""
        found = [self.specs[name].coordinate(values[name]) for name in self.names]
        if not found:
            return np.zeros(self._shape)
        rows: Array = np.array(np.broadcast_arrays(*found), dtype=np.float64)
        return rows.T

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.groups, len(self.names)) if self.by_person else (len(self.names),)

    # ---- predictions ------------------------------------------------------------------------------------------------

    def predicted(self, coordinates: ArrayLike) -> Array:
        """Return the probability that the second is chosen, or the certainty equivalent, for each response: (M,).

        That is infinite where the utility lies beyond all values, as it may with separable weights.
        """
        return np.asarray(self._predictions(coordinates, derivatives=False).mean[self._place])

    def rows(self, coordinates: ArrayLike) -> Array:
        """Return the log-likelihood of each response, (M,) in nats."""
        found = self._predictions(coordinates, derivatives=False)
        terms = self._terms(found.at(self._place), self.choices.response, self.choices.trials)
        return np.asarray(terms.value)

    def scores(self, coordinates: ArrayLike) -> tuple[Array, Array]:
        """Return the log-likelihood of each response, (M,), and its derivatives in the coordinates, (M, K).

        If `by_person`, in the coordinates of the response's own person.
        """
        found = self._predictions(coordinates, derivatives=True).at(self._place)
        terms = self._terms(found, self.choices.response, self.choices.trials)
        return terms.value, terms.score

    def cluster_terms(self, coordinates: ArrayLike, cluster: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the scores of clusters of responses, (C, K), and their expected information, (C, K, K).

        Parameters
        ----------
        coordinates : (K,) array
            Of everyone.
        cluster : (M,) int array in 0 .. C - 1
        """
        found = self._predictions(coordinates, derivatives=True).at(self._place)
        terms = self._terms(found, self.choices.response, self.choices.trials)
        number, free = int(cluster.max()) + 1, len(self.names)
        root = terms.root.reshape(len(cluster), 2 if terms.root.ndim == 3 else 1, free)
        products = np.einsum("mri,mrj->mij", root, root).reshape(len(cluster), free**2)
        scores, squares = (_added_up(rows, cluster, number) for rows in (terms.score, products))
        return scores, squares.reshape(number, len(self.names), len(self.names))

    # ---- sums -------------------------------------------------------------------------------------------------------

    def value(self, coordinates: ArrayLike) -> Any:
        """Return the log-likelihood: a float, or (groups,)."""
        if self.choices.kind == EQUIVALENTS:
            return self._summed(self.rows(coordinates), self._place)
        found = self._predictions(coordinates, derivatives=False)
        return self._summed(self._terms(found, *self._sums()).value + self._rest())

    def derivatives(self, coordinates: ArrayLike) -> tuple[Any, Array, Array]:
        """Return the log-likelihood, its gradient and its expected information.

        Returns
        -------
        value : float, or (groups,)
        gradient : (K,), or (groups, K)
        information : (K, K), or (groups, K, K)
            Expected under the model: positive semi-definite.
        """
        found = self._predictions(coordinates, derivatives=True)
        if self.choices.kind == EQUIVALENTS:
            found = found.at(self._place)
            terms = self._terms(found, self.choices.response, self.choices.trials)
            place = self._place
            value = terms.value
        else:
            terms, place = self._terms(found, *self._sums()), None
            value = terms.value + self._rest()
        information = self._outer(terms.root, place)
        return self._summed(value, place), self._summed(terms.score, place), information

    def hessian(self, coordinates: ArrayLike) -> Array:
        """Return the second derivatives of the log-likelihood: (K, K), or (groups, K, K).

        By central differences of the gradient, which is exact: right to about 1e-9 of the larger entries.
        """
        at = np.asarray(coordinates, dtype=np.float64)
        columns = []
        for k in range(len(self.names)):
            step = np.zeros(len(self.names))
            step[k] = _STEP
            columns.append((self.derivatives(at + step)[1] - self.derivatives(at - step)[1]) / (2 * _STEP))
        if not columns:
            return np.zeros((*at.shape, 0))
        found = np.stack(columns, axis=-1)
        return np.asarray((found + np.swapaxes(found, -1, -2)) / 2)

    # ---- how --------------------------------------------------------------------------------------------------------

    def _sums(self) -> tuple[Array, Array]:
        """Return how often the second was chosen in each problem (of each person), and of how many choices."""
        if self._totals is None:
            number, given = len(self._problem), self.choices
            seconds, trials = (
                np.bincount(self._place, weights=each, minlength=number).astype(float)
                for each in (given.response, given.trials)
            )
            self._totals = seconds, trials
        return self._totals

    def _rest(self) -> Any:
        """Return what squared errors lose where several shares of a problem are taken together."""
        if self.objective == "likelihood":
            return 0.0
        y, n = self._sums()
        given = self.choices
        squares = np.bincount(self._place, weights=given.response**2 / given.trials, minlength=len(y))
        return -(squares - np.divide(y**2, n, out=np.zeros_like(y), where=n > 0)) / 2

    def _summed(self, rows: Array, place: Any = None) -> Any:
        if self._group is None:
            return rows.sum(0) if rows.ndim > 1 else float(rows.sum())
        group = self._group if place is None else self._group[place]
        if rows.ndim == 1:
            return np.bincount(group, weights=rows, minlength=self.groups)
        return _added_up(rows, group, self.groups)

    def _outer(self, root: Array, place: Any) -> Array:
        """Return the sum of outer products of rows, for each group; `root` may have several vectors a row."""
        if self._group is None:
            flat = root.reshape(math.prod(root.shape[:-1]), root.shape[-1])
            return np.asarray(flat.T @ flat)
        group = self._group if place is None else self._group[place]
        number = root.shape[-1]
        found = np.zeros((self.groups, number, number))
        for i in range(number):
            for j in range(i + 1):
                product = (root[..., i] * root[..., j]).reshape(len(group), -1).sum(-1)
                found[:, i, j] = found[:, j, i] = np.bincount(group, weights=product, minlength=self.groups)
        return found

    def _terms(self, found: Prediction, response: Array, trials: Array) -> Terms:
        return response_terms(found, response, trials, self.objective)

    def _contexts(self) -> tuple[Array, Array]:
        half = len(self._table) // 2
        low = np.minimum(self._table.lowest[:half], self._table.lowest[half:])
        return low, np.maximum(self._table.highest[:half], self._table.highest[half:])

    def _predictions(self, coordinates: ArrayLike, *, derivatives: bool) -> Prediction:
        values = self.natural(coordinates)
        value, gain, loss = self.model.families(values, self.reference_point)
        of_rows = values if self._group is None else {
            name: each[self._group] if np.ndim(each) else each for name, each in values.items()
        }  # fmt: skip
        columns = self._columns(of_rows) if derivatives else None
        if not columns:
            utilities = self._table.utilities(value=value, gain=gain, loss=loss)
            found: dict[str, Array] = {}
        else:
            wanted = {name for name in columns if "." not in name} | {f"{side}.{field}" for side in ("gain", "loss")
                      for field in self._fields(side, columns)}  # fmt: skip
            utilities, found = self._table.jacobian(value=value, gain=gain, loss=loss, wanted=wanted)
            found = self._in_parameters(found, of_rows)
        if self.choices.kind == EQUIVALENTS:
            return self._equivalents(utilities, found, of_rows, columns, value)
        return self._choice(utilities, found, of_rows, columns, value)

    def _columns(self, values: Mapping[str, Any]) -> dict[str, tuple[int, Any]]:
        """Return, for each parameter that moves with a coordinate, which one, and its derivative in that."""
        found: dict[str, tuple[int, Any]] = {}
        for name in self.specs:
            source = self.model.source(name)
            if source in self.names:
                found[name] = self.names.index(source), self.specs[source].slope(values[name])
        return found

    def _fields(self, side: str, columns: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields of a capacity whose derivatives are needed."""
        import dataclasses

        if not any(name.startswith(f"{side}.") for name in columns):
            return ()
        return tuple(field.name for field in dataclasses.fields(self.model.family(side)))

    def _in_parameters(self, found: dict[str, Array], values: Mapping[str, Any]) -> dict[str, Array]:
        kept = {name: each for name, each in found.items() if "." not in name}
        for side in ("gain", "loss"):
            own = {name.partition(".")[2]: each for name, each in found.items() if name.startswith(f"{side}.")}
            rows = {name: _twice(each, len(self._table)) for name, each in self.model.own(side, values).items()}
            turned = in_parameters(self.model.family(side), rows, own)
            kept |= {f"{side}.{name}": each for name, each in turned.items()}
        return kept

    def _choice(self, utilities: Array, found: Any, values: Any, columns: Any, value: Any) -> Prediction:
        half = len(utilities) // 2
        gap = utilities[half:] - utilities[:half]
        gaps = {name: each[half:] - each[:half] for name, each in found.items()}
        if self._ends is not None:
            gap, gaps = self._in_context(gap, gaps, value, columns)
        sensitivity = values["sensitivity"]
        eta = sensitivity * gap
        by_eta = by_lapse = None
        if columns is not None:
            by_eta, by_lapse = np.zeros((half, len(self.names))), np.zeros((half, len(self.names)))
            for name, (k, slope) in columns.items():
                if name in gaps:
                    by_eta[:, k] += sensitivity * gaps[name] * slope
                elif name == "sensitivity":
                    by_eta[:, k] += gap * slope
                elif name == "lapse":
                    by_lapse[:, k] += slope
        return Prediction.of_choices(self.model.rule, eta, values["lapse"], by_eta, by_lapse)

    def _in_context(self, gap: Array, gaps: dict[str, Array], value: Any, columns: Any) -> tuple[Array, Any]:
        from humanline.fit.prepared import at_groups

        low, high = self._ends  # type: ignore[misc]
        own = value if self._group is None else at_groups(value, self._group)
        worst, by_worst = own.partials(low)
        best, by_best = own.partials(high)
        width = np.where(best > worst, best - worst, 1.0)
        scaled = gap / width
        turned = {}
        for name in {*gaps, *(name for name in by_best if name in (columns or ()))}:
            by_width = by_best[name] - by_worst[name] if name in by_best else 0.0
            turned[name] = (gaps.get(name, 0.0) - scaled * by_width) / width
        return scaled, turned

    def _equivalents(self, utilities: Array, found: Any, values: Any, columns: Any, value: Any) -> Prediction:
        from humanline.fit.prepared import at_groups

        own = value if self._group is None else at_groups(value, self._group)
        # Separable weights may sum to more than 1: a utility beyond all values is that of no outcome, however large.
        sure = np.asarray(own.inverse(np.clip(utilities, *own.range)))
        by_sure = by_noise = None
        if columns is not None:
            number = len(self.names)
            by_sure, by_noise = np.zeros((len(sure), number)), np.zeros((len(sure), number))
            with np.errstate(divide="ignore", invalid="ignore"):
                direct, slope = own.partials(sure)[1], np.asarray(own.derivative(sure))
            good = np.isfinite(slope) & (slope > 0)
            for name, (k, chain) in columns.items():
                if name == "noise":
                    by_noise[:, k] += chain
                else:
                    moved = found.get(name, 0.0) - direct.get(name, 0.0)
                    by_sure[:, k] += np.divide(moved, slope, out=np.zeros_like(sure), where=good) * chain
        return Prediction.of_equivalents(sure, values["noise"], by_sure, by_noise)


def _added_up(rows: Array, group: NDArray[np.int64], number: int) -> Array:
    """Return the sums of rows (M, K) over each of a number of groups, (number, K)."""
    found = np.zeros((number, rows.shape[1]))
    for k, column in enumerate(rows.T):
        found[:, k] = np.bincount(group, weights=column, minlength=number)
    return found


def _twice(each: Any, rows: int) -> Any:
    """Return what problems have for each of their options."""
    return each if np.ndim(each) == 0 or len(each) == rows else np.tile(each, rows // len(each))
