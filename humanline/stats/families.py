"""Corrections for the number of hypotheses that are tested together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjust p-values for their number by Holm's step-down rule.

    ``a_(i) = max_{j <= i} min(1, (m - j + 1) p_(j))`` with p_(1) <= ... <= p_(m) those of the m hypotheses that were
    tested. To reject where ``a <= level`` rejects a true one with probability at most `level`, however they depend.

    Parameters
    ----------
    p_values : (m,) array in [0, 1], m >= 1
        nan where a hypothesis was not tested: it stays nan and does not count.

    Returns
    -------
    (m,) float64 array
        In the order given; never smaller than the p-value, and ordered as they are.

    Raises
    ------
    ValueError
        If `p_values` is not one-dimensional, is empty, or holds a number outside [0, 1].

    Notes
    -----
    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979).
    SciPy has only the false discovery rates of Benjamini, Hochberg and Yekutieli.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03, float("nan")])
    array([0.03, 0.06, 0.06,  nan])
    """
    given = np.asarray(p_values, dtype=np.float64)
    if given.ndim != 1 or given.size == 0:
        raise _checks.fail("p_values", "be one-dimensional and hold at least one p-value", p_values)
    _checks.no_element("p_values", "be in [0, 1], or nan where not tested", (given < 0) | (given > 1), given)
    tested = np.flatnonzero(~np.isnan(given))
    order = tested[np.argsort(given[tested])]
    adjusted = np.full(given.shape, np.nan)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.arange(len(order), 0, -1) * given[order]))
    return adjusted
