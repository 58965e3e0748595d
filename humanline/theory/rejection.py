"""Humanline sampling: reject tokens by comparing likelihood ratios with Beta draws (Prop. 4.1, Definition 4.2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory import _beta
from humanline.theory._arrays import float64, floats, last_axis, law_total, plain, resolution
from humanline.theory._special import betainc, logsumexp
from humanline.theory.clipping import ClipRange

#: A ratio may exceed its bound by this much on the log scale, so that a bound computed as the largest ratio is one.
BOUND_TOLERANCE = 1e-9
#: Floats below this have lost digits already, and soon are 0.
TINY = sys.float_info.min
#: Draws are made in blocks that stay in the cache.
BLOCK = 16_384


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

    def cdf(self, x: ArrayLike) -> Any:
        """Return the probability of a draw of at most x.

        ``I(x; a, b)``; ``x**a`` if b = 1, ``1 - (1 - x)**b`` if a = 1

        Parameters
        ----------
        x : array or scalar, any shape
            Below 0 the result is 0, above 1 it is 1; nan stays nan.

        Returns
        -------
        float64 array of the same shape

        Notes
        -----
        Source: arXiv 2509.24207, Prop. 4.1 (its proof derives ``x**a``).

        Examples
        --------
        >>> BetaShape(2, 1).cdf([-1.0, 0.5, 2.0]).tolist()
        [0.0, 0.25, 1.0]
        """
        given = float64("x", x)
        if given.size and not (given.min() >= 0 and given.max() <= 1):
            given = np.clip(given, 0.0, 1.0)
        if self.b == 1:
            return plain(np.power(given, self.a))
        if self.a == 1:
            with np.errstate(divide="ignore"):
                return plain(-np.expm1(self.b * np.log1p(-given)))
        return plain(betainc(self.a, self.b, given))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> Any:
        """Draw from the distribution.

        With E a standard exponential variable, ``exp(-E / a)`` is a draw if b = 1 and ``1 - exp(-E / b)`` if a = 1;
        other shapes are left to numpy.

        Parameters
        ----------
        rng : numpy.random.Generator
            Advanced by the draws. The values differ from those of ``rng.beta`` with the same state.
        size : int or tuple of int, optional
            Shape of the result; a scalar by default.

        Returns
        -------
        float64 array in [0, 1] of shape `size`, or a scalar

        Raises
        ------
        TypeError
            If `rng` is not a Generator.

        Notes
        -----
        Source: arXiv 2509.24207, Prop. 4.1: its ``U**(1/gamma)`` is ``exp(-E / gamma)`` with ``E = -ln U``. As for
        numpy, a draw closer to 0 or 1 than floats are is 0 or 1.

        Examples
        --------
        >>> draws = BetaShape(0.61, 1).sample(np.random.default_rng(0), (2, 50_000))
        >>> draws.shape, bool(abs(draws.mean() - 0.61 / 1.61) < 0.01)
        ((2, 50000), True)
        """
        _checks.instance("rng", rng, np.random.Generator)
        if self.a != 1 and self.b != 1:
            return rng.beta(self.a, self.b, size)
        if size is None:
            return self.sample(rng, 1)[0]
        draws = np.empty(size)
        flat = draws.reshape(-1)
        scale = -1 / (self.a if self.b == 1 else self.b)
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK]
            rng.standard_exponential(out=block)
            np.multiply(block, scale, out=block)
            np.exp(block, out=block)
            if self.b != 1:
                np.subtract(1.0, block, out=block)
        return draws


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
        bool array
            A log-ratio of nan is not kept.

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
        float64 array of the same shape

        Notes
        -----
        Source: arXiv 2509.24207, Prop. 4.1. For b >= 1 it is log-concave in the log-ratio.
        """
        log_x = self._log_x(log_ratio)
        if self.shape.b == 1:
            return plain(np.exp(self.shape.a * log_x))
        return plain(_beta.cdf(self.shape.a, self.shape.b, log_x))

    def log_acceptance_probability(self, log_ratio: ArrayLike) -> Any:
        """Return the log of `acceptance_probability` (nats), also where the probability itself underflows.

        Examples
        --------
        >>> BetaTest(BetaShape(40, 3), 6).log_acceptance_probability([-50.0, 9.0]).round(3).tolist()
        [-2064.912, 0.0]
        """
        log_x = self._log_x(log_ratio)
        if self.shape.b == 1:
            return plain(self.shape.a * log_x)
        return plain(_beta.log_cdf(self.shape.a, self.shape.b, log_x))

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
        float64 array of the same shape

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
        """Return the log of `acceptance_probability` (nats), also where the probability itself underflows.

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


@dataclass(frozen=True, eq=False)
class AcceptedLaw:
    """Hold the distribution that rejection sampling draws from, and what a draw costs.

    Parameters
    ----------
    probs : float64 array
        Probabilities of the tokens on the last axis, or of whole sequences on all axes.
    acceptance_rate : float or (...) array in (0, 1]
        Share accepted of what is proposed: of the tokens, or of the sequences where whole sequences are proposed.
    proposed_tokens : float or (...) array
        Tokens proposed on average until one token, or one sequence, is accepted.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1.
    """

    probs: NDArray[np.float64]
    acceptance_rate: Any
    proposed_tokens: Any


def accepted_law(
    policy: ArrayLike,
    ref: ArrayLike,
    rejection: BetaTest | BetaRejection,
    *,
    proposal: ArrayLike | None = None,
    truncate: bool = False,
) -> AcceptedLaw:
    """Return the exact law of a token that is proposed again and again until it is kept.

    ``proposal(y) A(y) / Z`` with the acceptance ``A(y) = rejection.acceptance_probability(ln(policy(y) / ref(y)))``

    Parameters
    ----------
    policy, ref : (..., N) arrays >= 0
        Next-token distributions; each sums to 1 within 1e-6, or within what rounding in its own dtype can explain if
        that is more (.0076 for 128 256 entries in float32), and is normalised. Either may be (N,).
    rejection : BetaTest or BetaRejection
        Of any shapes. A bound that is the largest ratio of the laws as given counts as one.
    proposal : (..., N) array >= 0, optional
        Where the tokens come from; `ref` by default.
    truncate : bool
        Let a ratio beyond its bound always pass that test, as `keeps` does, instead of refusing it.

    Returns
    -------
    AcceptedLaw
        With `probs` of shape (..., N) and the rest of shape (...); ``acceptance_rate`` is Z.

    Raises
    ------
    ValueError
        If the shapes differ, a law is negative, not finite or does not sum to 1, a ratio of a token that can be
        proposed exceeds its bound (unless `truncate`), a token can be proposed that neither the policy nor the
        reference produces, or no token can be accepted.
    TypeError
        If `rejection` is neither a BetaTest nor a BetaRejection, or a law is a tensor that requires a gradient.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1 and Def. 4.2; the law of the green curve of Fig. 2. Definition 4.2 proposes a
    token once and detaches it if rejected: this is then the law of the tokens that still count, and Z their share.
    It asks for bounds that no ratio exceeds; with `truncate` and a ratio beyond, this is the law of another rule.

    With both b = 1 and the rule ``either`` the law is proportional to ``proposal (policy / ref)**(a_P - a_R)``.

    Examples
    --------
    >>> policy, ref = [0.6, 0.4], [0.2, 0.8]
    >>> law = accepted_law(policy, ref, BetaTest(BetaShape(1, 1), 3))
    >>> law.probs.round(6).tolist(), float(law.acceptance_rate.round(6))
    ([0.6, 0.4], 0.333333)
    """
    return _accepted_law(policy, ref, rejection, ref if proposal is None else proposal, truncate)


def perceived_law(
    policy: ArrayLike, ref: ArrayLike, gamma: float, *, proposal: str = "ref", ratio_bound: float | None = None
) -> AcceptedLaw:
    """Return in closed form the law that Proposition 4.1 samples token by token, for either reading of its proposal.

    - proposal ``ref``: ``ref**(1 - gamma) policy**gamma / Z``
    - proposal ``ref_power``, that is ``ref**gamma`` normalised: ``policy**gamma / Z``

    accepting ``sum_y proposal(y) (policy(y) / (M ref(y)))**gamma`` of what is proposed

    Parameters
    ----------
    policy, ref : (..., N) arrays >= 0
        Next-token distributions; each sums to 1 up to rounding, as in `accepted_law`, and is normalised. Either may be
        (N,).
    gamma : float > 0
        Of the capacity, and the first shape of the Beta variable.
    proposal : "ref" or "ref_power"
    ratio_bound : float > 1, optional
        M; the largest ratio by default, of each distribution its own. The law does not depend on it.

    Returns
    -------
    AcceptedLaw
        With `probs` of shape (..., N) and the rest of shape (...).

    Raises
    ------
    ValueError
        If the shapes differ, a law is negative, not finite or does not sum to 1, the policy puts mass where the
        reference has none, gamma is not > 0, the proposal is unknown, or a ratio exceeds the bound.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1. Its condition 1 says that the reference proposes, which samples the first law,
    while its proof wants the second, proportional to ``policy**gamma``. They agree only if gamma = 1 or the reference
    is constant on its support. That the weight omega is close to ``policy**gamma`` needs the probability of better
    outcomes to be small beside that of the token itself, not merely small.

    Examples
    --------
    >>> policy, ref = [0.2, 0.25, 0.15, 0.4], [0.5, 0.3, 0.15, 0.05]
    >>> perceived_law(policy, ref, 0.61).probs.round(3).tolist()
    [0.324, 0.304, 0.17, 0.202]
    >>> perceived_law(policy, ref, 0.61, proposal="ref_power").probs.round(3).tolist()
    [0.222, 0.254, 0.186, 0.338]
    """
    laws, rounding = _laws(policy=policy, ref=ref)
    power = _checks.positive("gamma", gamma)
    _checks.one_of("proposal", proposal, ("ref", "ref_power"))
    outside = (laws["ref"] == 0) & (laws["policy"] > 0)
    _checks.no_element("policy", "be 0 where ref is 0, or no bound of the ratio exists", outside, laws["policy"])
    log_policy, log_ref = _log(laws["policy"]), _log(laws["ref"])
    possible = laws["ref"] > 0
    log_ratio = np.where(possible, log_policy - np.where(possible, log_ref, 0.0), -np.inf)
    log_bound = log_ratio.max(-1, keepdims=True)
    if ratio_bound is not None:
        given = math.log(_checks.greater_than_one("ratio_bound", ratio_bound))
        _bounded("ratio_bound", ratio_bound, log_bound, rounding)
        log_bound = np.maximum(log_bound, given)
    log_proposal = log_ref
    if proposal == "ref_power":
        log_proposal = power * log_ref - logsumexp(power * log_ref, axis=-1, keepdims=True)
    log_weights = log_proposal + power * (log_ratio - log_bound)
    log_rate = logsumexp(log_weights, axis=-1, keepdims=True)
    rate = np.exp(log_rate[..., 0])
    return AcceptedLaw(np.exp(log_weights - log_rate), plain(rate), plain(1 / rate))


def sequence_law(conditionals: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Return the probabilities of all sequences of a small autoregressive model.

    ``prod_t p(y_t | y_<t)``

    Parameters
    ----------
    conditionals : T arrays
        The t-th has t + 1 axes, one for each token before and the last for token t, over which it sums to 1 up to
        rounding, as in `accepted_law`; it is normalised.

    Returns
    -------
    float64 array with T axes

    Raises
    ------
    ValueError
        If there is no array, an array does not continue the one before it, or a law is negative, not finite or does
        not sum to 1.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1 (the factorisation in its proof).

    Examples
    --------
    >>> sequence_law([[0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]]).round(6).tolist()
    [[0.45, 0.05], [0.1, 0.4]]
    """
    law = np.ones(())
    for conditional in _tree("conditionals", conditionals)[0]:
        law = law[..., None] * conditional
    return law


def accepted_sequence_law(
    policy: Sequence[ArrayLike],
    ref: Sequence[ArrayLike],
    rejection: BetaTest | BetaRejection,
    *,
    resample: str,
    proposal: Sequence[ArrayLike] | None = None,
    truncate: bool = False,
) -> AcceptedLaw:
    """Return the exact law of a sequence whose rejected tokens, or which itself, are drawn again.

    - resample ``token``: ``prod_t proposal(y_t | y_<t) A(y_t | y_<t) / Z(y_<t)``, normalised for each prefix
    - resample ``sequence``, accepted only if every token passes: ``prod_t proposal A / Z``, normalised once

    Parameters
    ----------
    policy, ref : T arrays each
        Conditionals as in `sequence_law`.
    rejection : BetaTest or BetaRejection
    resample : "token" or "sequence"
    proposal : T arrays, optional
        `ref` by default.
    truncate : bool
        As in `accepted_law`.

    Returns
    -------
    AcceptedLaw
        With `probs` of T axes. A whole sequence is drawn before it is tested.

    Raises
    ------
    ValueError
        As `accepted_law` and `sequence_law` do, or if `resample` is unknown.
    TypeError
        If `rejection` is neither a BetaTest nor a BetaRejection.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1, which takes the two to be the same. They are only if the product of the
    normalisers Z(y_<t) is the same for every sequence.

    Examples
    --------
    >>> policy = [[0.5, 0.5], [[0.9, 0.1], [0.5, 0.5]]]
    >>> ref = [[0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]]
    >>> test = BetaTest(BetaShape(0.5, 1), 2)
    >>> accepted_sequence_law(policy, ref, test, resample="token").probs.sum(-1).round(6).tolist()
    [0.5, 0.5]
    >>> accepted_sequence_law(policy, ref, test, resample="sequence").probs.sum(-1).round(6).tolist()
    [0.472136, 0.527864]
    """
    _checks.one_of("resample", resample, ("token", "sequence"))
    proposal = ref if proposal is None else proposal
    given = (("policy", policy), ("ref", ref), ("proposal", proposal))
    trees, roundings = zip(*(_tree(name, tree) for name, tree in given), strict=True)
    rounding = roundings[0] + roundings[1]
    steps = len(trees[0])
    for name, tree in zip(("ref", "proposal"), trees[1:], strict=True):
        _checks.same_shape(name, tree[-1].shape, "policy", trees[0][-1].shape)
    if resample == "token":
        probs, proposed = np.ones(()), 0.0
        for step in zip(*trees, strict=True):
            # What follows a prefix that never occurs does not matter, so it may be anything.
            reached = [np.where((probs > 0)[..., None], array, 1 / array.shape[-1]) for array in step]
            law = _accepted_law(reached[0], reached[1], rejection, reached[2], truncate, rounding)
            proposed += float(np.where(probs > 0, probs * law.proposed_tokens, 0.0).sum())
            probs = probs[..., None] * law.probs
        return AcceptedLaw(probs, steps / proposed, proposed)
    log_weights = np.zeros(())
    for step in zip(*trees, strict=True):
        log_weights = log_weights[..., None] + _log_accepted(step[0], step[1], rejection, step[2], truncate, rounding)
    log_rate = logsumexp(log_weights)
    if log_rate == -np.inf:
        raise _checks.fail("rejection", "accept a sequence that can be proposed", 0.0)
    with np.errstate(over="ignore"):  # a rate too small for a float costs infinitely many tokens
        return AcceptedLaw(np.exp(log_weights - log_rate), float(np.exp(log_rate)), float(steps * np.exp(-log_rate)))


def _at_most_zero(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, 0.0, x)


def _passes(xp: Any, x: Any, draws: Any, bound: float) -> Any:
    """Return whether each draw is at most r / M."""
    return draws <= xp.exp(_at_most_zero(xp, x - math.log(bound)))


def _log(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.log(probs)


def _laws(**values: ArrayLike) -> tuple[dict[str, NDArray[np.float64]], float]:
    """Return distributions over the last axis, normalised, after checking that they are ones, and a rounding.

    The rounding is how much a log-ratio of the policy's and the reference's (or of one with a law that has none) can
    differ from the one that is worked out in the dtypes given and before normalising.
    """
    arrays = dict(zip(values, last_axis(**values), strict=True))
    rounding = 0.0
    for name, array in arrays.items():
        total = law_total(name, values[name], array)
        arrays[name] = array / total
        if name != "proposal":
            rounding += float(np.abs(np.log(total)).max()) + resolution(values[name])
    return arrays, rounding


def _tree(name: str, conditionals: Sequence[ArrayLike]) -> tuple[list[NDArray[np.float64]], float]:
    """Return the conditionals of a sequence, each continuing the one before it, and their largest rounding."""
    shape: tuple[int, ...] = ()
    tree, largest = [], 0.0
    for place, conditional in enumerate(conditionals):
        laws, rounding = _laws(**{f"{name}[{place}]": conditional})
        law, largest = laws[f"{name}[{place}]"], max(largest, rounding)
        if law.shape[:-1] != shape:
            raise ValueError(f"{name}[{place}] must have shape {(*shape, 'N')}; got {law.shape}")
        tree.append(law)
        shape = law.shape
    if not tree:
        raise _checks.fail(name, "hold the conditional of at least one token", conditionals)
    return tree, largest


def _accepted_law(
    policy: ArrayLike,
    ref: ArrayLike,
    rejection: BetaTest | BetaRejection,
    proposal: ArrayLike,
    truncate: bool,
    rounding: float = 0.0,
) -> AcceptedLaw:
    log_weights = _log_accepted(policy, ref, rejection, proposal, truncate, rounding)
    log_rate = logsumexp(log_weights, axis=-1, keepdims=True)
    _checks.no_element("rejection", "accept a token that can be proposed", log_rate == -np.inf, np.exp(log_rate))
    rate = np.exp(log_rate[..., 0])
    with np.errstate(over="ignore"):
        return AcceptedLaw(np.exp(log_weights - log_rate), plain(rate), plain(np.exp(-log_rate[..., 0])))


def _log_accepted(
    policy: ArrayLike,
    ref: ArrayLike,
    rejection: BetaTest | BetaRejection,
    proposal: ArrayLike,
    truncate: bool,
    rounding: float,
) -> NDArray[np.float64]:
    """Return ln(proposal A), -inf where nothing can be proposed or accepted.

    `rounding` is what a ratio may exceed its bound by, besides what the laws given here explain.
    """
    if not isinstance(rejection, BetaTest | BetaRejection):
        raise _checks.wrong_kind("rejection", "be a BetaTest or BetaRejection", rejection)
    laws, own_rounding = _laws(policy=policy, ref=ref, proposal=proposal)
    rounding += own_rounding
    possible = laws["proposal"] > 0
    lost = possible & (laws["policy"] == 0) & (laws["ref"] == 0)
    _checks.no_element("proposal", "be 0 where both policy and ref are 0", lost, laws["proposal"])
    with np.errstate(invalid="ignore"):
        log_ratio = np.where(possible, _log(laws["policy"]) - _log(laws["ref"]), 0.0)
    if not truncate:
        if isinstance(rejection, BetaTest):
            _bounded("ratio_bound", rejection.ratio_bound, log_ratio, rounding)
        else:
            _bounded("policy_ratio_bound", rejection.policy_ratio_bound, log_ratio, rounding)
            _bounded("ref_ratio_bound", rejection.ref_ratio_bound, -log_ratio, rounding)
    log_accepted: NDArray[np.float64] = _log(laws["proposal"]) + rejection.log_acceptance_probability(log_ratio)
    return log_accepted


def _bounded(name: str, bound: float, log_ratio: NDArray[np.float64], rounding: float) -> None:
    """Raise if a ratio exceeds its bound by more than rounding."""
    largest = float(log_ratio.max())
    if largest > math.log(bound) + BOUND_TOLERANCE + rounding:
        ratio = math.exp(largest) if largest < 700 else math.inf
        raise _checks.fail(name, f"be at least the largest ratio, {ratio:.9g}", bound)
