"""Subjective utility of a prospect, and the sure outcome that is worth as much (Definition 3.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from humanline import _checks
from humanline.theory._arrays import float64
from humanline.theory.capacity.family import Capacity
from humanline.theory.value import ValueFunction
from humanline.theory.weighting import decision_weights


def subjective_utility(
    outcomes: ArrayLike,
    probs: ArrayLike,
    *,
    value: ValueFunction,
    gain: Capacity,
    loss: Capacity | None = None,
    allow_negative: bool = False,
    presorted: bool = False,
) -> Any:
    """Sum the values of a prospect's outcomes, each times its decision weight.

    ``u = sum_z omega(z) v(z)``

    Parameters
    ----------
    outcomes, probs : (..., N) arrays
        As in `decision_weights`.
    value : ValueFunction
        Its reference point also divides gains from losses.
    gain, loss : Capacity
    allow_negative, presorted : bool
        As in `decision_weights`.

    Returns
    -------
    (...) numpy float64 array, or numpy scalar for one prospect
        For torch tensors too.

    Raises
    ------
    ValueError
        As `decision_weights` does, or if an outcome's value, or the utility, is too large for a float.
    TypeError
        As `decision_weights` does, or if `value` is a callable without a reference point.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.3. The sum is over distinct outcomes, as there; the proof of Prop. 3.4 sums over
    outputs, which counts tied outcomes more than once.

    Examples
    --------
    >>> from humanline.theory import PowerValue, TverskyKahneman
    >>> human = dict(value=PowerValue(), gain=TverskyKahneman(0.61), loss=TverskyKahneman(0.69))
    >>> float(subjective_utility([36, 25, -9, -16], [0.7, 0.1, 0.1, 0.1], **human).round(6))
    8.008447
    """
    _check_value(value, "reference_point")
    weights = decision_weights(
        outcomes,
        probs,
        gain=gain,
        loss=loss,
        reference_point=value.reference_point,
        allow_negative=allow_negative,
        presorted=presorted,
    )
    z = float64("outcomes", outcomes)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
        values = np.asarray(value(z))
        _checks.same_shape("value(outcomes)", values.shape, "outcomes", z.shape)
        _checks.no_element("outcomes", "have values that floats can hold", ~np.isfinite(values), z)
        utility = (weights * values).sum(-1)
    _checks.no_element("outcomes", "have a utility that floats can hold", ~np.isfinite(utility), np.asarray(utility))
    return utility


def certainty_equivalent(
    outcomes: ArrayLike,
    probs: ArrayLike,
    *,
    value: ValueFunction,
    gain: Capacity,
    loss: Capacity | None = None,
    allow_negative: bool = False,
    presorted: bool = False,
) -> Any:
    """Return the sure outcome that is worth as much as the prospect.

    ``v^-1(u)``

    Parameters
    ----------
    outcomes, probs : (..., N) arrays
        As in `decision_weights`.
    value : ValueFunction
    gain, loss : Capacity
    allow_negative, presorted : bool
        As in `decision_weights`.

    Returns
    -------
    (...) numpy float64 array, or numpy scalar for one prospect
        For torch tensors too. In the unit of the outcomes.

    Raises
    ------
    ValueError
        As `subjective_utility` does.
    TypeError
        As `subjective_utility` does, or if `value` has no inverse.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.3 (the gamble of section 3: what it takes to forgo playing).

    Examples
    --------
    >>> from humanline.theory import PowerValue, TverskyKahneman
    >>> human = dict(value=PowerValue(), gain=TverskyKahneman(0.61), loss=TverskyKahneman(0.69))
    >>> float(certainty_equivalent([100, -100], [0.8, 0.2], **human).round(4))
    1.7987
    """
    _check_value(value, "reference_point", "inverse")
    utility = subjective_utility(
        outcomes, probs, value=value, gain=gain, loss=loss, allow_negative=allow_negative, presorted=presorted
    )
    return value.inverse(utility)


def _check_value(value: Any, *needed: str) -> None:
    missing = [name for name in needed if not hasattr(value, name)]
    if missing or not callable(value):
        rule = f"be a value function, which can be called and has {' and '.join(needed)}, such as PowerValue()"
        raise _checks.wrong_kind("value", rule, value)
