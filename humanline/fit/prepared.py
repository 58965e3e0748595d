"""Prospects prepared once: sorted, ties merged, probabilities added up, so that each further utility costs little."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.fit.flat import Flat, flat_prospects
from humanline.fit.parameters import quietly
from humanline.fit.sides import Side, laid_out
from humanline.theory import Capacity, ValueFunction

#: How a prospect's probabilities become weights.
WEIGHTS = ("cumulative", "separable")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Hold prospects so that their utilities, and the derivatives of these, are quick to have; `prepare` makes it.

    Parameters
    ----------
    gains, losses : Side
    reference_point : float
    weights : str
        "cumulative" or "separable".
    lowest, highest : (R,) arrays
        The worst and the best outcome of positive probability of each prospect.
    groups : int
        How many sets of parameters there are: parameters are floats, or arrays of this length.
    """

    gains: Side
    losses: Side
    reference_point: float
    weights: str
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    groups: int = 1

    def __len__(self) -> int:
        """Return the number of prospects."""
        return len(self.lowest)

    def utilities(self, *, value: ValueFunction, gain: Capacity, loss: Capacity | None = None) -> NDArray[np.float64]:
        """Return the utility of each prospect.

        ``u = sum_j Omega(T_j) (v(z_j) - v(z_(j-1)))`` on each side of the reference point, from the nearest outcome to
        the farthest, with ``T_j`` the probability of an outcome at least as far as ``z_j``.

        Parameters
        ----------
        value : ValueFunction
            Its reference point is that of the table.
        gain, loss : Capacity
            `loss` is needed if there are losses. Those without ``log`` lose digits next to probability 1.

        Returns
        -------
        (R,) array

        Raises
        ------
        ValueError
            If the reference points differ, or there are losses and no `loss`.
        """
        loss = self._loss(value, gain, loss)
        total = np.zeros(len(self))
        for side, capacity in ((self.gains, gain), (self.losses, loss)):
            values = at_groups(value, side.outcome_group)(side.outcomes)
            capacity = at_groups(capacity, side.prob_group)
            perceived = _perceived(capacity, side.log_probs)
            total += side.totals(side.steps(np.asarray(values)), perceived[side.prob])
        return total

    def jacobian(
        self, *, value: Any, gain: Any, loss: Any | None = None, wanted: Collection[str] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Return the utility of each prospect and its derivatives in the parameters.

        Parameters
        ----------
        value : PowerValue, ExponentialValue, LogarithmicValue or LogisticValue
        gain, loss : capacity of humanline.theory
            As in `utilities`; both have ``partials``.
        wanted : names, optional
            Which derivatives; all by default.

        Returns
        -------
        utilities : (R,) array
        derivatives : dict from name to (R,) array
            In the parameters of the value function, under their names (``curvature``), and of the capacities, under
            theirs with a prefix (``gain.gamma``, ``loss.gamma``). Where parameters are arrays, in that of the
            prospect's own group.

        Raises
        ------
        ValueError
            As `utilities` does.
        """
        loss = self._loss(value, gain, loss)
        total = np.zeros(len(self))
        found: dict[str, NDArray[np.float64]] = {}

        def asked(name: str) -> bool:
            return wanted is None or name in wanted

        for side, capacity, kind in ((self.gains, gain, "gain"), (self.losses, loss, "loss")):
            values, by_value = at_groups(value, side.outcome_group).partials(side.outcomes)
            perceived, by_capacity = at_groups(capacity, side.prob_group).partials(side.log_probs, side.log_rests)
            steps, at_nodes = side.steps(values), perceived[side.prob]
            here = side.totals(steps, at_nodes)
            total += here
            for name, partial in by_capacity.items():
                if asked(f"{kind}.{name}"):
                    found[f"{kind}.{name}"] = side.totals(steps, partial[side.prob])
            for name, partial in by_value.items():
                mine = {"loss_aversion": "loss", "loss_curvature": "loss"}.get(name, kind)
                if name == "curvature" and "loss_curvature" in by_value:
                    mine = "gain"
                if mine != kind or not asked(name):
                    continue
                if name == "loss_aversion" and np.ndim(value.loss_aversion) == 0:
                    found[name] = here / value.loss_aversion
                    continue
                more = side.totals(side.steps(partial), at_nodes)
                found[name] = found[name] + more if name in found else more
        return total, found

    def for_groups(self, rows: ArrayLike, group: ArrayLike, groups: int) -> Prepared:
        """Return a table of prospects, each with the parameters of a group, such as a person.

        Parameters
        ----------
        rows : (S,) int array
            Which prospect of this table each of the new one is.
        group : (S,) int array in 0 .. groups - 1
        groups : int

        Returns
        -------
        Prepared
            Whose utilities take parameters that are arrays of shape (groups,), or floats.
        """
        rows, group = np.asarray(rows, dtype=np.int64), np.asarray(group, dtype=np.int64)
        sides = [_side_of_groups(side, rows, group) for side in (self.gains, self.losses)]
        return dataclasses.replace(
            self,
            gains=sides[0],
            losses=sides[1],
            lowest=self.lowest[rows],
            highest=self.highest[rows],
            groups=groups,
        )

    def _loss(self, value: Any, gain: Any, loss: Any) -> Any:
        if value.reference_point != self.reference_point:
            rule = f"have the reference point {self.reference_point!r} that the prospects were prepared with"
            raise _checks.fail("value", rule, value.reference_point)
        if loss is None and len(self.losses.outcome):
            raise _checks.fail("loss", "be given, since there are outcomes below the reference point", loss)
        return gain if loss is None else loss


def prepare(
    outcomes: ArrayLike | Sequence[ArrayLike],
    probs: ArrayLike | Sequence[ArrayLike],
    *,
    start: ArrayLike | None = None,
    reference_point: float = 0.0,
    weights: str = "cumulative",
) -> Prepared:
    """Sort prospects, merge their ties and add up their probabilities, once for any number of evaluations.

    Parameters
    ----------
    outcomes, probs : (R, N) arrays, or R lists of any lengths, or (N,) arrays with `start`
        In any order. The probabilities of each prospect are >= 0, sum to 1 within 1e-6 and are normalised; a padding
        has probability 0.
    start : (R + 1,) int array, optional
        Where each prospect begins in flat arrays, and their length.
    reference_point : float
        Zero of gain and loss.
    weights : str
        "cumulative" (Eq. 4), or "separable": Omega(p) of the summed probability of each distinct outcome.

    Returns
    -------
    Prepared

    Raises
    ------
    ValueError
        Of all prospects at once: if a number is not finite, a probability is negative, probabilities do not sum to 1,
        or a prospect has no outcome.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.3, summed by parts; utilities equal those of `subjective_utility` up to rounding.

    Examples
    --------
    >>> from humanline.theory import PowerValue, TverskyKahneman
    >>> table = prepare([[36, 25, -9, -16], [10]], [[0.7, 0.1, 0.1, 0.1], [1]])
    >>> table.utilities(value=PowerValue(), gain=TverskyKahneman(0.61), loss=TverskyKahneman(0.69)).round(6).tolist()
    [8.008447, 7.585776]
    """
    z0 = _checks.finite("reference_point", reference_point)
    _checks.one_of("weights", weights, WEIGHTS)
    flat = flat_prospects(outcomes, probs, start, z0, separable=weights == "separable")
    return Prepared(
        gains=_side(flat, flat.outcomes > z0, weights),
        losses=_side(flat, flat.outcomes < z0, weights),
        reference_point=z0,
        weights=weights,
        lowest=flat.lowest,
        highest=flat.highest,
    )


def _side(flat: Flat, mine: NDArray[np.bool_], weights: str) -> Side:
    """Return the nodes of one side; `flat` has the farthest losses first, and the nearest gains."""
    row = flat.row[mine]
    count = np.bincount(row, minlength=len(flat.lowest))
    size: NDArray[Any] = flat.outcome_index[mine]
    prob: NDArray[Any] = flat.prob_index[mine]
    if len(row) and flat.outcomes[mine][0] < flat.reference_point:
        last = np.cumsum(count) - 1
        turned = (2 * last - count + 1)[row] - np.arange(len(row))
        size, prob = size[turned], prob[turned]
    used_size, size = np.unique(size, return_inverse=True)
    used_prob, prob = np.unique(prob, return_inverse=True)
    tables = flat.outcome_table[used_size], flat.prob_table[used_prob]
    return laid_out(count, size, prob, weights == "cumulative", *tables)


def _side_of_groups(side: Side, rows: NDArray[np.int64], group: NDArray[np.int64]) -> Side:
    start, nodes = side.nodes(rows)
    count = np.diff(start)
    of_node = np.repeat(group, count)
    outcome, outcomes, outcome_group = _by_group(side.outcome[nodes], of_node, side.outcomes, side.outcome_group)
    prob, probs, prob_group = _by_group(side.prob[nodes], of_node, side.log_probs, side.prob_group)
    return laid_out(count, outcome, prob, side.cumulative, outcomes, probs, outcome_group, prob_group)


def _by_group(index: NDArray[Any], group: NDArray[Any], table: NDArray[Any], old: Any) -> tuple[Any, Any, Any]:
    """Return the entries that nodes have in a table of its own for each group, that table and its groups."""
    if old is not None:
        raise _checks.fail("prepared", "have no groups yet", "a table of groups")
    size = max(len(table), 1)
    used, where = np.unique(group * size + index, return_inverse=True)
    return where, table[used % size], used // size


def at_groups(family: Any, group: NDArray[np.int64] | None) -> Any:
    """Return a family whose parameters, if they are arrays of one entry for each group, are those of table entries."""
    fields = dataclasses.fields(family) if hasattr(family, "partials") else ()
    given = {field.name: getattr(family, field.name) for field in fields}
    arrays = {name: np.asarray(value) for name, value in given.items() if np.ndim(value)}
    if not arrays:
        return family
    if group is None:
        raise _checks.fail("parameters", "be numbers, since the prospects have no groups", family)
    given |= {name: values[group] for name, values in arrays.items()}
    return quietly(type(family), given)


def _perceived(capacity: Any, log_probs: NDArray[np.float64]) -> NDArray[np.float64]:
    if hasattr(capacity, "log"):
        return np.asarray(np.exp(capacity.log(log_probs)))
    return np.asarray(capacity(np.where(log_probs == -math.inf, 0.0, np.exp(log_probs))))
