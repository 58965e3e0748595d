"""Prospects of any number of outcomes in flat arrays: checked, sorted, ties merged, probabilities added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.fit.faults import DataError, Fault
from humanline.theory._arrays import SUM_TOLERANCE

#: Prospects that are sorted at a time, so that intermediate arrays stay small.
ROWS = 65_536
#: Above 1 minus this a probability is had from the sum of the rest, as in `decision_weights`.
_STEEP = 0.1


@dataclass(frozen=True, eq=False)
class Flat:
    """Distinct outcomes of positive probability, of prospect after prospect, each from worst to best."""

    row: NDArray[np.int64]
    outcome_index: NDArray[np.int32]
    prob_index: NDArray[np.int32]
    outcome_table: NDArray[np.float64]
    prob_table: NDArray[np.float64]
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    reference_point: float

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """The outcome of each node."""
        return self.outcome_table[self.outcome_index]


def flat_prospects(
    outcomes: Any, probs: Any, start: ArrayLike | None, reference_point: float, *, separable: bool
) -> Flat:
    """Return prospects as nodes that share tables of distinct outcomes and log-probabilities."""
    z, p, offsets = as_flat(outcomes, probs, start)
    check_prospects(z, p, offsets)
    parts = [
        _part(z, p, offsets, first, min(first + ROWS, len(offsets) - 1), reference_point, separable)
        for first in range(0, len(offsets) - 1, ROWS)
    ]
    outcome_table, outcome_index = _shared([part[1] for part in parts])
    prob_table, prob_index = _shared([part[2] for part in parts])
    row = np.concatenate([part[0] for part in parts]) if parts else np.zeros(0, np.int64)
    edges = np.flatnonzero(np.diff(row, prepend=-1))
    best = np.append(edges[1:], len(row)) - 1
    return Flat(
        row=row,
        outcome_index=outcome_index,
        prob_index=prob_index,
        outcome_table=outcome_table,
        prob_table=prob_table,
        lowest=outcome_table[outcome_index[edges]],
        highest=outcome_table[outcome_index[best]],
        reference_point=reference_point,
    )


def check_prospects(z: NDArray[np.float64], p: NDArray[np.float64], offsets: NDArray[np.int64]) -> None:
    """Raise DataError, which names every fault, unless these are prospects."""
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    faults = [
        Fault(row=int(row[at]), column=column, rule=rule, value=float(values[at]))
        for column, rule, values, bad in (
            ("outcome", "be finite", z, ~np.isfinite(z)),
            ("probability", "be finite and >= 0", p, ~(np.isfinite(p) & (p >= 0))),
        )
        for at in np.flatnonzero(bad)
    ]
    faults += [
        Fault(row=int(at), column="outcome", rule="be there at least once", value="nothing")
        for at in np.flatnonzero(np.diff(offsets) == 0)
    ]
    if not faults:
        total = np.bincount(row, weights=p, minlength=len(offsets) - 1)
        for at in np.flatnonzero(np.abs(total - 1) > SUM_TOLERANCE):
            hint = "; percentages are divided by 100 first" if abs(total[at] - 100) < 1 else ""
            rule = f"sum to 1 within {SUM_TOLERANCE:g}{hint}"
            faults.append(Fault(row=int(at), column="probability", rule=rule, value=float(total[at])))
    if faults:
        raise DataError("prospects", faults, unit="prospect")


def grown(start: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the nodes of chosen rows begin, and which nodes they are."""
    count = np.diff(start)[rows]
    new = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    return new, np.repeat(start[rows] - new[:-1], count) + np.arange(new[-1])


def as_flat(outcomes: Any, probs: Any, start: ArrayLike | None) -> tuple[Any, Any, NDArray[np.int64]]:
    """Return prospects as flat arrays, and where each begins."""
    if start is not None:
        z, p = np.asarray(outcomes, dtype=np.float64), np.asarray(probs, dtype=np.float64)
        offsets = np.asarray(start, dtype=np.int64)
        if z.ndim != 1 or offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(z):
            raise _checks.fail("start", "run from 0 to the length of flat arrays of outcomes", start)
        if (np.diff(offsets) < 0).any():
            raise _checks.fail("start", "never fall", start)
        _checks.same_shape("probs", p.shape, "outcomes", z.shape)
        return z, p, offsets
    if getattr(outcomes, "ndim", 0) == 2:
        z, p = np.asarray(outcomes, dtype=np.float64), np.asarray(probs, dtype=np.float64)
        _checks.same_shape("probs", p.shape, "outcomes", z.shape)
        return z.reshape(-1), p.reshape(-1), np.arange(len(z) + 1, dtype=np.int64) * z.shape[1]
    lists, laws = _lists("outcomes", outcomes), _lists("probs", probs)
    sizes, others = [len(each) for each in lists], [len(each) for each in laws]
    if sizes != others:
        raise _checks.fail("probs", f"be as long as outcomes in each prospect {sizes[:5]}", others[:5])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    empty = [np.zeros(0)]
    return np.concatenate(lists or empty), np.concatenate(laws or empty), offsets


def _lists(name: str, given: Sequence[ArrayLike]) -> list[NDArray[np.float64]]:
    found = [np.asarray(each, dtype=np.float64) for each in given]
    if any(each.ndim != 1 for each in found):
        raise _checks.fail(name, "hold a list of numbers for each prospect", given)
    return found


def _part(
    z: Any, p: Any, offsets: Any, first: int, last: int, reference_point: float, separable: bool
) -> tuple[Any, Any, Any]:
    """Return the rows, the outcomes and the log-probabilities of the nodes of some prospects."""
    z, p = z[offsets[first] : offsets[last]], p[offsets[first] : offsets[last]]
    row = np.repeat(np.arange(first, last), np.diff(offsets[first : last + 1]))
    some = p > 0
    z, p, row = z[some] + 0.0, p[some], row[some]
    order = np.lexsort((p, z, row))
    z, p, row = z[order], p[order], row[order]
    new = np.ones(len(z), dtype=bool)
    new[1:] = (row[1:] != row[:-1]) | (z[1:] != z[:-1])
    edges = np.flatnonzero(new)
    z, row, p = z[edges], row[edges], np.add.reduceat(p, edges) if len(edges) else p
    at_most, at_least = np.empty_like(p), np.empty_like(p)
    begin = np.flatnonzero(np.diff(row, prepend=-1))
    count = np.diff(begin, append=len(row))
    for size in np.unique(count):
        places = begin[count == size][:, None] + np.arange(size)
        block = p[places]
        block /= block.sum(-1, keepdims=True)
        p[places] = block
        at_most[places] = np.cumsum(block, -1)
        at_least[places] = np.cumsum(block[:, ::-1], -1)[:, ::-1]
    below, above = np.zeros_like(p), np.zeros_like(p)
    same = row[1:] == row[:-1]
    below[1:][same], above[:-1][same] = at_most[:-1][same], at_least[1:][same]
    gain = z >= reference_point
    total = p if separable else np.where(gain, at_least, at_most)
    rest = below + above if separable else np.where(gain, below, above)
    with np.errstate(divide="ignore"):
        log_prob = np.where(rest < _STEEP, np.log1p(-np.minimum(rest, _STEEP)), np.log(total))
    return row, np.unique(z, return_inverse=True), np.unique(log_prob, return_inverse=True)


def _shared(parts: list[Any]) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Return one table of distinct numbers, and the place in it of each node."""
    if not parts:
        return np.zeros(0), np.zeros(0, np.int32)
    table = parts[0][0] if len(parts) == 1 else np.unique(np.concatenate([own for own, _ in parts]))
    index = [np.searchsorted(table, own).astype(np.int32)[where] for own, where in parts]
    return table, np.concatenate(index)
