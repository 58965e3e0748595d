"""Humanline sampling: reject tokens by comparing likelihood ratios with Beta draws (Definition 4.2)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaincc

from humanline import _checks
from humanline.theory._arrays import floats, plain
from humanline.theory.clipping import ClipRange


@dataclass(frozen=True)
class BetaShape:
    """Hold the two shapes of a Beta variable.

    density proportional to ``x**(a - 1) (1 - x)**(b - 1)`` on [0, 1]

    Parameters
    ----------
    a, b : float > 0

    Raises
    ------
    ValueError
        If a shape is not > 0 or not finite.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 4.2, where they are called gamma and beta.

    Examples
    --------
    >>> BetaShape(1, 3).mean
    0.25
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", _checks.positive("a", self.a))
        object.__setattr__(self, "b", _checks.positive("b", self.b))

    @property
    def mean(self) -> float:
        """The mean, ``a / (a + b)``."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> float:
        """The variance, ``mean (1 - mean) / (a + b + 1)``."""
        return self.mean * (self.b / (self.a + self.b)) / (self.a + self.b + 1)


@dataclass(frozen=True)
class BetaRejection:
    """Decide which tokens humanline sampling keeps.

    The policy's test fires if ``r < M_P B_P`` and the reference's if ``1/r < M_R B_R``, with
    ``r = exp(log_ratio)`` and ``B ~ Beta(a, b)`` drawn independently for each token.

    Parameters
    ----------
    policy, ref : BetaShape
        Shapes of B_P and B_R.
    policy_ratio_bound, ref_ratio_bound : float > 1
        Upper bounds M_P of r and M_R of 1/r. A ratio above its bound is kept by that test.
    rule : "either" or "both"
        Reject if either test fires, or only if both do.

    Raises
    ------
    ValueError
        If a bound is not > 1 or not finite, or the rule is unknown.
    TypeError
        If a shape is not a BetaShape.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 4.2 and Eq. 5 (``either``). The rule ``both`` is an extension of this package.

    Examples
    --------
    >>> shape = BetaShape(2, 3)
    >>> rejection = BetaRejection(shape, shape, policy_ratio_bound=4, ref_ratio_bound=4)
    >>> rejection.keeps([0.0, -2.0, 2.0], [0.2, 0.2, 0.2], [0.2, 0.2, 0.2]).tolist()
    [True, False, False]
    """

    policy: BetaShape
    ref: BetaShape
    _: KW_ONLY
    policy_ratio_bound: float
    ref_ratio_bound: float
    rule: str = "either"

    def __post_init__(self) -> None:
        _checks.instance("policy", self.policy, BetaShape)
        _checks.instance("ref", self.ref, BetaShape)
        for name in ("policy_ratio_bound", "ref_ratio_bound"):
            object.__setattr__(self, name, _checks.greater_than_one(name, getattr(self, name)))
        _checks.one_of("rule", self.rule, ("either", "both"))

    @classmethod
    def near(
        cls, clip: ClipRange, concentration: float, *, policy_ratio_bound: float, ref_ratio_bound: float
    ) -> BetaRejection:
        """Return the member of the family that becomes clipping as its concentration grows.

        ``E[B_P] = exp(low) / M_P`` and ``E[B_R] = exp(-high) / M_R``, both with ``a + b = concentration``

        Parameters
        ----------
        clip : ClipRange
            Both bounds finite, nats.
        concentration : float > 0
        policy_ratio_bound, ref_ratio_bound : float > 1
            M_P and M_R. To stay as close to the limit, the concentration has to grow with them.

        Returns
        -------
        BetaRejection
            In the limit it keeps log-ratios strictly inside the range, rejects those outside, and keeps half of those
            exactly on a bound.

        Raises
        ------
        ValueError
            If a clip bound or the concentration is not finite, the concentration is not > 0, a ratio bound is not
            > 1, or a clip bound is so far out that a shape underflows to 0.
        TypeError
            If `clip` is not a ClipRange.

        Notes
        -----
        Source: arXiv 2509.24207, Thm 4.3. Its conditions eps_P < M_P and eps_R > 1/M_R hold by construction, as
        low <= 0 <= high and both ratio bounds exceed 1. The paper states convergence for every ratio; on a bound the
        acceptance tends to 1/2.

        Examples
        --------
        >>> rejection = BetaRejection.near(ClipRange(-1.5, 1.5), 64, policy_ratio_bound=6, ref_ratio_bound=6)
        >>> rejection.acceptance_probability(np.log([0.15, 0.3, 1.0, 4.0])).round(6).tolist()
        [0.355801, 0.755088, 0.999387, 0.650131]
        """
        _checks.instance("clip", clip, ClipRange)
        total = _checks.positive("concentration", concentration)
        shapes = []
        for log_threshold, name, bound in (
            (_checks.finite("clip.low", clip.low), "policy_ratio_bound", policy_ratio_bound),
            (-_checks.finite("clip.high", clip.high), "ref_ratio_bound", ref_ratio_bound),
        ):
            mean = math.exp(log_threshold) / _checks.greater_than_one(name, bound)
            shapes.append(BetaShape(total * mean, total * (1 - mean)))
        return cls(*shapes, policy_ratio_bound=policy_ratio_bound, ref_ratio_bound=ref_ratio_bound)

    def keeps(self, log_ratio: Any, policy_draws: Any, ref_draws: Any) -> Any:
        """Return the verdict on each token, True for kept.

        The policy's test passes if ``B_P <= r / M_P``, the reference's if ``B_R <= 1 / (r M_R)``.

        Parameters
        ----------
        log_ratio : array or scalar, any shape
            Nats.
        policy_draws, ref_draws : arrays in [0, 1] that broadcast with `log_ratio`
            Draws of B_P and B_R, not checked.

        Returns
        -------
        bool array
            A log-ratio of nan is not kept.

        Raises
        ------
        TypeError
            If numpy arrays and torch tensors are mixed.

        Notes
        -----
        Source: arXiv 2509.24207, Eq. 5.
        """
        xp, (x, policy_draws, ref_draws) = floats(log_ratio=log_ratio, policy_draws=policy_draws, ref_draws=ref_draws)
        policy_passes = policy_draws <= xp.exp(_at_most_zero(xp, x - math.log(self.policy_ratio_bound)))
        ref_passes = ref_draws <= xp.exp(_at_most_zero(xp, -x - math.log(self.ref_ratio_bound)))
        return plain(policy_passes & ref_passes if self.rule == "either" else policy_passes | ref_passes)

    def acceptance_probability(self, log_ratio: ArrayLike) -> Any:
        """Return the probability that a token is kept.

        ``A_P A_R`` (either) or ``1 - (1 - A_P)(1 - A_R)`` (both), where
        ``A_P = I(min(1, r / M_P); a_P, b_P)``, ``A_R = I(min(1, 1 / (r M_R)); a_R, b_R)`` and I is the regularised
        incomplete beta function

        Parameters
        ----------
        log_ratio : array or scalar, any shape
            Nats; nan stays nan.

        Returns
        -------
        float64 array of the same shape

        Notes
        -----
        Source: arXiv 2509.24207, Eq. 5. With ``b = 1`` in both shapes and ratios within the bounds the probability is
        ``r**(a_P - a_R) / (M_P**a_P M_R**a_R)``: equal shapes keep every token alike, and a_P > a_R favours the
        policy's tokens, which is the opposite of the remark below Def. 4.2.

        Examples
        --------
        >>> shape = BetaShape(0.61, 1)
        >>> rejection = BetaRejection(shape, shape, policy_ratio_bound=4, ref_ratio_bound=4)
        >>> rejection.acceptance_probability([-1.0, 0.0, 1.0]).round(6).tolist()
        [0.184284, 0.184284, 0.184284]
        """
        x = np.asarray(log_ratio, dtype=np.float64)
        policy = _cdf(self.policy, _at_most_zero(np, x - math.log(self.policy_ratio_bound)))
        ref = _cdf(self.ref, _at_most_zero(np, -x - math.log(self.ref_ratio_bound)))
        return plain(policy * ref if self.rule == "either" else policy + ref * (1 - policy))


def _at_most_zero(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, 0.0, x)


def _cdf(shape: BetaShape, log_x: Any) -> Any:
    """Return the Beta distribution function at exp(log_x), from the end at which its argument is precise."""
    if shape.b == 1:
        return np.exp(shape.a * log_x)
    low = betainc(shape.a, shape.b, np.exp(log_x))
    return np.where(log_x < -math.log(2), low, betaincc(shape.b, shape.a, -np.expm1(log_x)))
