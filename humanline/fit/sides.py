"""The gains, or the losses, of prospects, laid out so that sums over the outcomes of each are sums of long rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.theory.capacity.family import powered_odds

Array = NDArray[np.float64]
Index = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Side:
    """One side of all prospects: a node for each distinct outcome of a prospect.

    Nodes stand in blocks, one for each number of nodes that a prospect may have: in it first the nearest outcome of
    each prospect, then the second nearest of each, and so on. `laid_out` makes it of nodes in the order of prospects.

    Parameters
    ----------
    count : (R,) int array
        How many nodes each prospect has.
    outcome, prob : (M,) int arrays
        Which entry of `outcomes` and of `log_probs` a node has.
    cumulative : bool
        Whether weights are; else they are separable.
    outcomes : (Z,) array
        Distinct outcomes.
    log_probs : (T,) array
        Distinct logs of the probability of an outcome at least as far from the reference point (cumulative), or of the
        outcome itself (separable). From the precise end.
    outcome_group, prob_group : (Z,), (T,) int arrays, optional
        The group whose parameters an entry is evaluated with.
    """

    count: Index
    outcome: Index
    prob: Index
    cumulative: bool
    outcomes: Array
    log_probs: Array
    outcome_group: Index | None = None
    prob_group: Index | None = None

    def steps(self, of_outcomes: Array) -> Array:
        """Return ``f(z_j) - f(z_(j-1))`` of each node, from f of the distinct outcomes, 0 at the reference point.

        Of separable weights ``f(z_j)``.
        """
        at_nodes = of_outcomes[self.outcome]
        if not self.cumulative:
            return at_nodes
        steps = at_nodes.copy()
        for rows, first, number in self._blocks:
            edge, end = first + len(rows), first + number * len(rows)
            steps[edge:end] -= at_nodes[first : end - len(rows)]
        return steps

    def totals(self, at_nodes: Array, others: Array) -> Array:
        """Return for each prospect the sum of the products of two numbers of its nodes."""
        sums = np.empty(len(self._filled))
        begin = 0
        for rows, first, number in self._blocks:
            shape, end = (number, len(rows)), first + number * len(rows)
            one, other = at_nodes[first:end].reshape(shape), others[first:end].reshape(shape)
            np.einsum("kn,kn->n", one, other, out=sums[begin : begin + len(rows)])
            begin += len(rows)
        found = np.zeros(len(self.count))
        found[self._filled] = sums
        return found

    def nodes(self, rows: Index) -> tuple[Index, Index]:
        """Return where the nodes of chosen prospects begin in a list of theirs, and that list, nearest first."""
        place, stride = self._places
        count = self.count[rows]
        start = np.concatenate([[0], np.cumsum(count)])
        level = np.arange(start[-1]) - np.repeat(start[:-1], count)
        return start, np.repeat(place[rows], count) + level * np.repeat(stride[rows], count)

    @functools.cached_property
    def log_rests(self) -> Array:
        """The logs of 1 minus the probabilities that `log_probs` are of."""
        with np.errstate(divide="ignore"):
            return np.asarray(powered_odds(np, self.log_probs, 1.0)[1])

    @functools.cached_property
    def _blocks(self) -> list[tuple[Index, int, int]]:
        """The prospects of each block, where it begins, and how many nodes each has."""
        found, first = [], 0
        for number in np.unique(self.count[self.count > 0]).tolist():
            rows = np.flatnonzero(self.count == number)
            found.append((rows, first, number))
            first += number * len(rows)
        return found

    @functools.cached_property
    def _filled(self) -> Index:
        """The prospects that have nodes, block after block."""
        return np.concatenate([rows for rows, _, _ in self._blocks]) if self._blocks else np.zeros(0, np.int64)

    @functools.cached_property
    def _places(self) -> tuple[Index, Index]:
        """Where the first node of each prospect is, and how far from each the next."""
        place, stride = np.zeros(len(self.count), np.int64), np.zeros(len(self.count), np.int64)
        for rows, first, _ in self._blocks:
            place[rows], stride[rows] = first + np.arange(len(rows)), len(rows)
        return place, stride


def laid_out(count: Index, outcome: Index, prob: Index, cumulative: bool, *tables: Any) -> Side:
    """Return a side from nodes that stand prospect after prospect, nearest first; `tables` are the other fields."""
    bare = Side(count, outcome, prob, cumulative, *tables)
    _, target = bare.nodes(np.arange(len(count)))
    turned = []
    for index in (outcome, prob):
        laid = np.empty(len(index), np.intp)
        laid[target] = index
        turned.append(laid)
    return Side(count, turned[0], turned[1], cumulative, *tables)
