"""Humanline sampling: reject tokens by comparing likelihood ratios with Beta draws (Definition 4.2)."""

from __future__ import annotations

import math
import sys
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory import beta
from humanline.theory._arrays import float64, floats, plain
from humanline.theory.beta import BetaShape
from humanline.theory.clipping import ClipRange

#: Floats below this have lost digits already, and soon are 0.
TINY = sys.float_info.min


@dataclass(frozen=True)
class BetaTest:
    """Decide by one Beta draw whether a likelihood ratio is large enough to keep.

    The test fires, and the token is rejected, if ``r < M B`` with ``r = exp(log_ratio)`` and ``B ~ Beta(a, b)``.

    Parameters
    ----------
    shape : BetaShape
        ``BetaShape(gamma, 1)`` is the paper's, gamma being the constant of the capacity.
    ratio_bound : float > 1
        Upper bound M of r. A ratio above it is kept.

    Raises
    ------
    ValueError
        If the bound is not > 1 or not finite.
    TypeError
        If the shape is not a BetaShape.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1; each half of Def. 4.2. `perceived_law` and `accepted_law` say what it samples.

    Examples
    --------
    >>> BetaTest(BetaShape(0.5, 1), 4).acceptance_probability(np.log([0.01, 1.0, 4.0])).round(6).tolist()
    [0.05, 0.5, 1.0]
    """

    shape: BetaShape
    ratio_bound: float

    def __post_init__(self) -> None:
        _checks.instance("shape", self.shape, BetaShape)
        object.__setattr__(self, "ratio_bound", _checks.greater_than_one("ratio_bound", self.ratio_bound))

    def keeps(self, log_ratio: Any, draws: Any) -> Any:
        """Return the verdict on each token, True for kept.

        ``B <= r / M``

        Parameters
        ----------
        log_ratio : array or scalar, any shape
            Nats.
        draws : array in [0, 1] that broadcasts with `log_ratio`
            Not checked.

        Returns
        -------
        numpy bool array, numpy bool for numbers, or torch bool tensor for tensors
            Of the broadcast shape. A log-ratio of nan is not kept.

        Raises
        ------
        TypeError
            If numpy arrays and torch tensors are mixed.

        Notes
        -----
        Source: arXiv 2509.24207, Prop. 4.1.
        """
        xp, (x, draws) = floats(log_ratio=log_ratio, draws=draws)
        return plain(_passes(xp, x, draws, self.ratio_bound))

    def acceptance_probability(self, log_ratio: ArrayLike) -> Any:
        """Return the probability that a token is kept.

        ``I(min(1, r / M); a, b)``, which is ``(r / M)**a`` for b = 1; I is the regularised incomplete beta function

        Parameters
        ----------
        log_ratio : array or scalar, any shape
            Nats; nan stays nan.

        Returns
        -------
        numpy float64 array, or numpy scalar for a number
            Of the same shape; for torch tensors too.

        Notes
        -----
        Source: arXiv 2509.24207, Prop. 4.1. For b >= 1 it is log-concave in the log-ratio.
        """
        log_x = self._log_x(log_ratio)
        if self.shape.b == 1:
            return plain(np.exp(self.shape.a * log_x))
        return plain(beta.cdf(self.shape.a, self.shape.b, log_x))

    def log_acceptance_probability(self, log_ratio: ArrayLike) -> Any:
        """Return the log of `acceptance_probability` (nats), of its kind, also where the probability itself underflows.

        Raises
        ------
        ArithmeticError
            If a ratio lies so near its bound, at a shape b next to 0, that a tail has no end after a million terms.

        Examples
        --------
        >>> BetaTest(BetaShape(40, 3), 6).log_acceptance_probability([-50.0, 9.0]).round(3).tolist()
        [-2064.912, 0.0]
        """
        log_x = self._log_x(log_ratio)
        if self.shape.b == 1:
            return plain(self.shape.a * log_x)
        return plain(beta.log_cdf(self.shape.a, self.shape.b, log_x))

    def _log_x(self, log_ratio: ArrayLike) -> NDArray[np.float64]:
        x: NDArray[np.float64] = _at_most_zero(np, float64("log_ratio", log_ratio) - math.log(self.ratio_bound))
        return x


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

    Def. 4.2 asks for bounds that no ratio exceeds. Bounds inside the spread of the ratios make another rule, whose test
    always keeps what lies beyond: with it Fig. 2's human curve is met more closely than by rules of the definition.

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

    @property
    def policy_test(self) -> BetaTest:
        """The test of r against ``M_P B_P``."""
        return BetaTest(self.policy, self.policy_ratio_bound)

    @property
    def ref_test(self) -> BetaTest:
        """The test of 1/r against ``M_R B_R``: its log-ratio is the negative of a token's."""
        return BetaTest(self.ref, self.ref_ratio_bound)

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
            > 1, or a clip bound is so far out, or the concentration so small, that a mean or a shape underflows.
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
        total = _checks.positive("concentration", concentration)
        shapes = []
        for mean in means_near(clip, policy_ratio_bound=policy_ratio_bound, ref_ratio_bound=ref_ratio_bound):
            if total * min(mean, 1 - mean) < TINY:
                raise _checks.fail("concentration", f"leave both shapes of each Beta draw at {TINY:.2g} or more", total)
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
        numpy bool array, numpy bool for numbers, or torch bool tensor for tensors
            Of the broadcast shape. A log-ratio of nan is not kept.

        Raises
        ------
        TypeError
            If numpy arrays and torch tensors are mixed.

        Notes
        -----
        Source: arXiv 2509.24207, Eq. 5.
        """
        xp, (x, policy_draws, ref_draws) = floats(log_ratio=log_ratio, policy_draws=policy_draws, ref_draws=ref_draws)
        policy_passes = _passes(xp, x, policy_draws, self.policy_ratio_bound)
        ref_passes = _passes(xp, -x, ref_draws, self.ref_ratio_bound)
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
        numpy float64 array, or numpy scalar for a number
            Of the same shape; for torch tensors too.

        Notes
        -----
        Source: arXiv 2509.24207, Eq. 5. With ``b = 1`` in both shapes and ratios within the bounds the probability is
        ``r**(a_P - a_R) / (M_P**a_P M_R**a_R)``: equal shapes keep every token alike, and a_P > a_R favours the
        policy's tokens, which is the opposite of the remark below Def. 4.2.

        Under ``either`` with both b >= 1 it is log-concave in the log-ratio; under ``both`` it need not be.

        Examples
        --------
        >>> shape = BetaShape(0.61, 1)
        >>> rejection = BetaRejection(shape, shape, policy_ratio_bound=4, ref_ratio_bound=4)
        >>> rejection.acceptance_probability([-1.0, 0.0, 1.0]).round(6).tolist()
        [0.184284, 0.184284, 0.184284]
        """
        x = float64("log_ratio", log_ratio)
        policy, ref = self.policy_test.acceptance_probability(x), self.ref_test.acceptance_probability(-x)
        return policy * ref if self.rule == "either" else policy + ref * (1 - policy)

    def log_acceptance_probability(self, log_ratio: ArrayLike) -> Any:
        """Return the log of `acceptance_probability` (nats), of its kind, also where the probability itself underflows.

        Raises
        ------
        ArithmeticError
            If a ratio lies so near its bound, at a shape b next to 0, that a tail has no end after a million terms.

        Examples
        --------
        >>> rejection = BetaRejection.near(ClipRange(-1.5, 1.5), 1e4, policy_ratio_bound=6, ref_ratio_bound=6)
        >>> rejection.acceptance_probability([-50.0, 0.0, 50.0]).tolist()
        [0.0, 1.0, 0.0]
        >>> rejection.log_acceptance_probability([-50.0, 0.0, 50.0]).round(1).tolist()
        [-17675.4, 0.0, -17675.4]
        """
        x = float64("log_ratio", log_ratio)
        policy, ref = self.policy_test.log_acceptance_probability(x), self.ref_test.log_acceptance_probability(-x)
        if self.rule == "either":
            return policy + ref
        larger, smaller = np.maximum(policy, ref), np.minimum(policy, ref)
        return plain(larger + np.log1p(np.exp(smaller - larger) * -np.expm1(larger)))


def means_near(clip: ClipRange, *, policy_ratio_bound: float, ref_ratio_bound: float) -> tuple[float, float]:
    """Return the means of the two draws in `BetaRejection.near`, ``exp(low) / M_P`` and ``exp(-high) / M_R``."""
    _checks.instance("clip", clip, ClipRange)
    policy_bound = _checks.greater_than_one("policy_ratio_bound", policy_ratio_bound)
    ref_bound = _checks.greater_than_one("ref_ratio_bound", ref_ratio_bound)
    means = []
    for name, end, bound in (("clip.low", clip.low, policy_bound), ("clip.high", clip.high, ref_bound)):
        mean = math.exp(-abs(_checks.finite(name, end))) / bound
        if mean < TINY:
            rule = f"leave the mean of its Beta draw, exp(-|{name}|) / {bound:g}, at {TINY:.2g} or more"
            raise _checks.fail(name, rule, end)
        means.append(mean)
    return means[0], means[1]


def _at_most_zero(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, 0.0, x)


def _passes(xp: Any, x: Any, draws: Any, bound: float) -> Any:
    """Return whether each draw is at most r / M."""
    return draws <= xp.exp(_at_most_zero(xp, x - math.log(bound)))
