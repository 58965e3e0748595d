"""The noise of the data themselves: what the best possible model would still miss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.fit.choices import Choices

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Floor:
    """What a model that knew every problem's own probability would score.

    Parameters
    ----------
    squared_error : float or None
        Mean squared difference between shares and their expectation; None where the data do not tell it.
    log_loss : float or None
        Minus the log-likelihood per choice, in nats; None for rates, which are of no known number of choices, for
        certainty equivalents, and where the data do not tell it.
    covered : float in [0, 1]
        The share of choices that are in problems whose noise the data tell.
    why : str
        Why a number is missing, or holds for a part only; else empty.
    """

    squared_error: float | None
    log_loss: float | None
    covered: float
    why: str = ""


def sampling_floor(choices: Choices, noise: ArrayLike | None = None) -> Floor:
    """Estimate the error that sampling alone makes, for a model of everyone.

    Of problems with R >= 2 responses of n_i choices, the squared error is ``R/(R - 1) sum n_i (y_i - mean)^2``; of one
    response of n choices ``y (1 - y) n/(n - 1)``. Each is unbiased if responses are independent given the problem, the
    first also if people differ and the n_i are equal. The log-loss is the entropy of each problem's choice.

    Parameters
    ----------
    choices : Choices
    noise : (M,) array, optional
        The sampling variance of each response, where it is known.

    Returns
    -------
    Floor

    Raises
    ------
    ValueError
        If `noise` has another shape, or is not finite and >= 0.

    Notes
    -----
    Source of the entropy: Zhang, Entropy estimation in Turing's perspective, Neural Computation 24 (2012): with k of N
    choices ``sum k/N (psi(N) - psi(k))``, below the truth in expectation by a term that falls exponentially with N.
    """
    if noise is not None:
        variance = np.asarray(noise, dtype=np.float64)
        _checks.same_shape("noise", variance.shape, "response", choices.response.shape)
        _checks.no_element("noise", "be finite and >= 0", ~(np.isfinite(variance) & (variance >= 0)), variance)
        return Floor(float(np.average(variance, weights=choices.trials)), None, 1.0)
    trials, share = choices.trials, choices.response / choices.trials
    number = np.bincount(choices.problem, minlength=choices.problems)
    total = _sums(choices, trials)
    mean = np.divide(_sums(choices, trials * share), total, out=np.zeros_like(total), where=total > 0)
    spread = _sums(choices, trials * (share - mean[choices.problem]) ** 2)
    several = number >= 2
    found = np.where(several, spread * number / np.maximum(number - 1, 1), 0.0)
    known = several
    if choices.kind in ("choices", "counts"):
        alone = (number == 1) & (total >= 2)
        found = np.where(alone, mean * (1 - mean) * total / np.maximum(total - 1, 1), found)
        known = several | alone
    covered = float(total[known].sum() / total.sum())
    if not covered:
        return Floor(None, None, 0.0, _nothing(choices.kind))
    log_loss = _entropy(choices, known, total) if choices.kind in ("choices", "counts") else None
    why = "" if covered == 1 else f"of the {covered:.0%} of choices in problems that were answered more than once"
    return Floor(float(found[known].sum() / total[known].sum()), log_loss, covered, why)


def _nothing(kind: str) -> str:
    if kind == "rates":
        return "unknown: nobody says of how many choices each rate is"
    return "unknown: no problem was answered more than once"


def _sums(choices: Choices, values: Array) -> Array:
    return np.bincount(choices.problem, weights=values, minlength=choices.problems).astype(float)


def _entropy(choices: Choices, known: NDArray[np.bool_], total: Array) -> float:
    from scipy.special import digamma

    second = _sums(choices, choices.response)[known]
    number = total[known]
    nats = sum(
        k * (digamma(number) - digamma(np.maximum(k, 1))) for k in (second, number - second)
    )  # k = 0 adds nothing
    return float(np.sum(nats) / number.sum())
