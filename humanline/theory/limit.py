"""Clipping as the limit of humanline sampling: the family of Theorem 4.3, its errors and how fast they vanish."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory import beta
from humanline.theory._arrays import SUM_TOLERANCE, float64, last_axis, law_total, plain
from humanline.theory._excess import minus_log1p
from humanline.theory.clipping import ClipRange
from humanline.theory.rejection import BetaRejection, means_near

TAILS = ("entropy", "gaussian")
#: Draws of a smaller concentration are all but 0 or 1, so that errors hardly change any more.
_FEWEST = 1e-6


@dataclass(frozen=True)
class ClipLimit:
    """Hold the family of rejection rules that becomes clipping as its concentration grows.

    ``E[M_P B_P] = exp(low)`` and ``E[M_R B_R] = exp(-high)``, with ``a + b = concentration`` in both shapes

    An *error* is the probability that a token's verdict differs from the clip's (kept if and only if its log-ratio
    lies in [low, high]). *Tail* bounds of it are, for each test, with mean m and argument ``x = r/M`` (or ``1/(r M)``):

    - entropy: ``exp(-concentration kl(m || x))``, ``kl(m || x) = m ln(m/x) + (1 - m) ln((1 - m)/(1 - x))``
    - gaussian: ``exp(-2 (concentration + 1) (x - m)**2)``

    Parameters
    ----------
    clip : ClipRange
        Both bounds finite, nats.
    policy_ratio_bound, ref_ratio_bound : float > 1
        M_P and M_R. A ratio beyond its bound always passes that test.

    Raises
    ------
    ValueError
        If a clip bound is not finite or so far out that a mean underflows, or a ratio bound is not > 1 or not
        finite.
    TypeError
        If `clip` is not a ClipRange.

    Notes
    -----
    Source: arXiv 2509.24207, Thm 4.3. The paper states convergence for every ratio and no rate. It holds off the two
    ends of the range; on an end the error tends to 1/2. Neither bound is in the paper: the entropy one is Chernoff's
    (a Beta variable compared with x is a difference of Gamma ones compared with 0), valid for all shapes and nearly
    tight; the gaussian one uses the sub-Gaussian parameter ``1/(4 (concentration + 1))`` of a Beta variable (Marchal
    and Arbel, 2017) and is loose where the mean is near 0.

    Examples
    --------
    >>> limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
    >>> limit.acceptance_probability(np.log([0.15, 0.3, 1.0, 4.0]), 64).round(6).tolist()
    [0.355801, 0.755088, 0.999387, 0.650131]
    >>> halfway = -1.5 - np.log(2)
    >>> [math.ceil(limit.needed_concentration(halfway, 1e-3, by=by)) for by in ("exact", "entropy", "gaussian")]
    [678, 939, 9989]
    """

    clip: ClipRange
    _: KW_ONLY
    policy_ratio_bound: float
    ref_ratio_bound: float

    def __post_init__(self) -> None:
        means_near(self.clip, policy_ratio_bound=self.policy_ratio_bound, ref_ratio_bound=self.ref_ratio_bound)
        for name in ("policy_ratio_bound", "ref_ratio_bound"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def means(self) -> tuple[float, float]:
        """The means of B_P and B_R, ``exp(low) / M_P`` and ``exp(-high) / M_R``."""
        return means_near(self.clip, policy_ratio_bound=self.policy_ratio_bound, ref_ratio_bound=self.ref_ratio_bound)

    def rejection(self, concentration: float) -> BetaRejection:
        """Return one member of the family: `BetaRejection.near`."""
        return BetaRejection.near(
            self.clip,
            concentration,
            policy_ratio_bound=self.policy_ratio_bound,
            ref_ratio_bound=self.ref_ratio_bound,
        )

    def acceptance_probability(self, log_ratio: ArrayLike, concentration: ArrayLike) -> Any:
        """Return the exact probability that a token is kept.

        ``A_P A_R`` as in `BetaRejection.acceptance_probability`

        Parameters
        ----------
        log_ratio : array or scalar
            Nats; nan stays nan.
        concentration : array or scalar > 0, that broadcasts with `log_ratio`

        Returns
        -------
        numpy float64 array, or numpy scalar for numbers
            Of the broadcast shape; for torch tensors too.

        Raises
        ------
        ValueError
            If a concentration is not > 0 or not finite.

        Notes
        -----
        Source: arXiv 2509.24207, Thm 4.3.
        """
        k = _concentrations(concentration)
        policy, ref = (beta.cdf(k * mean, k * (1 - mean), log_x) for mean, log_x in self._tests(log_ratio))
        return plain(policy * ref)

    def error(self, log_ratio: ArrayLike, concentration: ArrayLike) -> Any:
        """Return the exact probability that the verdict on a token differs from the clip's.

        ``1 - A_P A_R`` within the range (without subtracting from 1), ``A_P A_R`` outside

        Parameters
        ----------
        log_ratio : array or scalar
            Nats; nan stays nan.
        concentration : array or scalar > 0, that broadcasts with `log_ratio`

        Returns
        -------
        numpy float64 array, or numpy scalar for numbers
            Of the broadcast shape; for torch tensors too.

        Raises
        ------
        ValueError
            If a concentration is not > 0 or not finite.

        Notes
        -----
        Source: arXiv 2509.24207, Thm 4.3.

        Examples
        --------
        >>> limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
        >>> limit.error([-1.5, 0.0], [[1e2], [1e6]]).round(3).tolist()
        [[0.435, 0.0], [0.499, 0.0]]
        """
        x, k = np.broadcast_arrays(float64("log_ratio", log_ratio), _concentrations(concentration))
        inside = np.asarray(self.clip.contains(x))
        result = np.empty(x.shape)
        sides = [(k * mean, k * (1 - mean), log_x) for mean, log_x in self._tests(x)]
        policy, ref = (beta.survival(a[inside], b[inside], log_x[inside]) for a, b, log_x in sides)
        result[inside] = policy + ref * (1 - policy)
        policy, ref = (beta.cdf(a[~inside], b[~inside], log_x[~inside]) for a, b, log_x in sides)
        result[~inside] = policy * ref
        return plain(result)

    def error_bound(self, log_ratio: ArrayLike, concentration: ArrayLike, *, tail: str = "entropy") -> Any:
        """Bound the error by the tails of the Beta draws.

        Outside the range the tail of the test that should fire; within it the sum of both, at most 1.

        Parameters
        ----------
        log_ratio : array or scalar
            Nats.
        concentration : array or scalar > 0, that broadcasts with `log_ratio`
        tail : "entropy" or "gaussian"

        Returns
        -------
        numpy float64 array, or numpy scalar for numbers
            Of the broadcast shape; for torch tensors too.

        Raises
        ------
        ValueError
            If a concentration is not > 0 or not finite, or the tail is unknown.

        Notes
        -----
        Source: not in arXiv 2509.24207, which gives no rate for Thm 4.3.

        Examples
        --------
        >>> limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
        >>> [float(limit.error_bound(-2.2, 1000, tail=tail).round(4)) for tail in ("entropy", "gaussian")]
        [0.0006, 0.4958]
        """
        _checks.one_of("tail", tail, TAILS)
        k = _concentrations(concentration)
        policy, ref = (np.exp(-(k + shift) * rate) for rate, shift in self._exponents(log_ratio, tail))
        return plain(np.minimum(policy + ref, 1.0))

    def needed_concentration(self, log_ratio: float, error: float, *, by: str = "exact") -> float:
        """Return the concentration from which on the error at a log-ratio is at most a given one.

        ``exact`` searches the largest concentration at which the error still exceeds it; ``entropy`` and ``gaussian``
        solve the bounds, ``ln(1/error) / kl(m || x)`` and ``ln(1/error) / (2 (x - m)**2) - 1`` where one test matters.

        Parameters
        ----------
        log_ratio : float
            Nats.
        error : float, 0 < error < 1
        by : "exact", "entropy" or "gaussian"

        Returns
        -------
        float
            Not rounded up. Infinite exactly on an end of the range, where no concentration brings the error below
            1/2; 0 if every concentration will do.

        Raises
        ------
        ValueError
            If the log-ratio is nan, the error is not in (0, 1) or `by` is unknown.

        Notes
        -----
        Source: arXiv 2509.24207, Thm 4.3, which asks for a limit only. It grows in proportion to the ratio bound, and
        by the gaussian tail with its square.

        Examples
        --------
        >>> limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
        >>> round(limit.needed_concentration(-1.5 - math.log(2), 1e-3), 3)
        677.095
        """
        _checks.one_of("by", by, ("exact", *TAILS))
        x = float(log_ratio)
        if math.isnan(x):
            raise _checks.fail("log_ratio", "not be nan", log_ratio)
        target = _checks.positive("error", error)
        if target >= 1:
            raise _checks.fail("error", "be < 1", error)
        if float(self.limiting_error(x)) > 0:
            return math.inf
        bound = self._solve_bound(x, target, "entropy" if by == "exact" else by)
        return self._solve_exactly(x, target, bound) if by == "exact" else bound

    def limiting_error(self, log_ratio: ArrayLike) -> Any:
        """Return the limit of the error: 1/2 exactly on an end of the range, 0 elsewhere (3/4 if both ends are 0).

        A numpy float64 array of the same shape, or a numpy scalar for a number; for torch tensors too.

        Notes
        -----
        Source: arXiv 2509.24207, Thm 4.3, completed: the paper does not treat the ends. There the verdict asks whether
        a Beta draw exceeds its own mean, which tends to a fair coin as the draw's law tends to a normal one.

        Examples
        --------
        >>> limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
        >>> limit.limiting_error([-2.0, -1.5, 0.0]).tolist()
        [0.0, 0.5, 0.0]
        """
        x = float64("log_ratio", log_ratio)
        passes = np.where(x == self.clip.low, 0.5, 1.0) * np.where(x == self.clip.high, 0.5, 1.0)
        return plain(1 - passes)

    def mean_disagreement(
        self, log_ratio: ArrayLike, concentration: ArrayLike, *, probs: ArrayLike | None = None
    ) -> Any:
        """Return the share of tokens on which a member of the family and the clip disagree.

        ``sum_i p_i error(x_i)``

        Parameters
        ----------
        log_ratio : (N,) array
            The log-ratios that occur, or a sample of them; nats.
        concentration : array or scalar > 0, any shape
        probs : (N,) array >= 0, optional
            Sums to 1 up to rounding, as in `decision_weights`, and is normalised; 1/N each by default.

        Returns
        -------
        numpy float64 array, or numpy scalar for a number
            Of the shape of `concentration`; for torch tensors too.

        Raises
        ------
        ValueError
            If a concentration is not > 0, a log-ratio is not finite, or the probabilities are negative, of another
            shape or do not sum to 1.

        Notes
        -----
        Source: arXiv 2509.24207, Thm 4.3. Without an atom on an end of the range it falls exponentially, see
        `decay_exponent`; atoms on an end keep half of their probability.

        Examples
        --------
        >>> limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
        >>> limit.mean_disagreement([-3.0, -1.0, 0.5], [10, 100, 1000], probs=[0.2, 0.3, 0.5]).round(5).tolist()
        [0.2049, 0.03835, 8e-05]
        """
        x, p = _atoms(log_ratio, probs)
        k = _concentrations(concentration)
        return plain(self.error(x, k[..., None]) @ p)

    def mean_disagreement_of_density(
        self,
        density: Callable[[NDArray[np.float64]], ArrayLike],
        concentration: ArrayLike,
        *,
        support: tuple[float, float],
    ) -> Any:
        """Return the share of tokens on which a member of the family and the clip disagree, for a continuous spread.

        ``integral of density(x) error(x) dx``

        Parameters
        ----------
        density : callable
            Of the log-ratio, from an array to one of the same shape.
        concentration : array or scalar > 0, any shape
        support : (float, float)
            Nats, finite; the density integrates to 1 over it within 1e-6.

        Returns
        -------
        numpy float64 array, or numpy scalar for a number
            Of the shape of `concentration`; for torch tensors too.
            By Gauss-Legendre quadrature on pieces that shrink towards both ends of the range.

        Raises
        ------
        ValueError
            If a concentration is not > 0, the support is empty or not finite, or the density is negative or does not
            integrate to 1.

        Notes
        -----
        Source: arXiv 2509.24207, Thm 4.3. It falls as ``disagreement_constant / sqrt(concentration)``.

        Examples
        --------
        >>> limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
        >>> flat = limit.mean_disagreement_of_density(lambda x: np.full_like(x, 0.1), [1e2, 1e4], support=(-5, 5))
        >>> (flat * np.sqrt([1e2, 1e4])).round(3).tolist(), round(limit.disagreement_constant(0.1, 0.1), 3)
        ([0.868, 0.813], 0.812)
        """
        k = _concentrations(concentration)
        low, high = _checks.finite("support[0]", support[0]), _checks.finite("support[1]", support[1])
        if not low < high:
            raise _checks.fail("support", "be an interval of positive length", support)
        result = np.empty(k.shape)
        for place, one in np.ndenumerate(k):
            x, weight = self._quadrature(float(one), low, high)
            height = np.asarray(density(x), dtype=np.float64)
            _checks.same_shape("density(x)", height.shape, "x", x.shape)
            _checks.no_element("density(x)", "be >= 0", ~(height >= 0), height)
            total = float(weight @ height)
            if abs(total - 1) > SUM_TOLERANCE:
                raise _checks.fail("density", f"integrate to 1 over the support within {SUM_TOLERANCE:g}", total)
            result[place] = weight @ (height * self.error(x, float(one))) / total
        return plain(result)

    def disagreement_constant(self, density_at_low: float, density_at_high: float) -> float:
        """Return C where the mean disagreement falls as ``C / sqrt(concentration)``.

        ``C = sqrt(2/pi) (f(low) sqrt(1/m_P - 1) + f(high) sqrt(1/m_R - 1))`` with the means m of the draws

        Parameters
        ----------
        density_at_low, density_at_high : float >= 0
            Of the log-ratio (per nat) at the ends of the range; at a jump, the mean of both sides.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If a density is negative or not finite.

        Notes
        -----
        Source: not in arXiv 2509.24207; a consequence of its Thm 4.3: near an end the verdict disagrees between the
        end and the log of the draw times its bound, which is about normal with variance ``(1/m - 1)/concentration``.
        """
        heights = (
            _checks.non_negative("density_at_low", density_at_low),
            _checks.non_negative("density_at_high", density_at_high),
        )
        widths = (math.sqrt(1 / mean - 1) for mean in self.means)
        return math.sqrt(2 / math.pi) * sum(f * width for f, width in zip(heights, widths, strict=True))

    def decay_exponent(self, log_ratio: ArrayLike, *, probs: ArrayLike | None = None) -> float:
        """Return D where the mean disagreement over finitely many ratios falls as ``exp(-D concentration)``.

        The least ``kl(m || x)`` of the tests that matter, over the log-ratios that occur.

        Parameters
        ----------
        log_ratio : (N,) array
            Nats.
        probs : (N,) array >= 0, optional
            As in `mean_disagreement`.

        Returns
        -------
        float
            Up to a factor of the order ``1 / sqrt(concentration)``. 0 if a log-ratio of positive probability lies on
            an end of the range; infinite if no ratio can ever be judged differently.

        Raises
        ------
        ValueError
            As `mean_disagreement`.

        Notes
        -----
        Source: not in arXiv 2509.24207; a consequence of its Thm 4.3.
        """
        x, p = _atoms(log_ratio, probs)
        policy, ref = (rate for rate, _ in self._exponents(x[p > 0], "entropy"))
        return float(np.minimum(policy, ref).min())

    def _tests(self, log_ratio: ArrayLike) -> list[tuple[float, NDArray[np.float64]]]:
        """Return for each test the mean of its draw and the log of what the draw is compared with, at most 0."""
        x = float64("log_ratio", log_ratio)
        bounds = math.log(self.policy_ratio_bound), math.log(self.ref_ratio_bound)
        sides = [np.where(side > 0, 0.0, side) for side in (x - bounds[0], -x - bounds[1])]
        return list(zip(self.means, sides, strict=True))

    def _exponents(self, log_ratio: ArrayLike, tail: str) -> list[tuple[NDArray[np.float64], float]]:
        """Return for each test (rate, shift): its tail is exp(-(concentration + shift) rate); inf if it cannot err."""
        x = float64("log_ratio", log_ratio)
        idle = x > self.clip.high, x < self.clip.low  # outside the range only the test that should fire matters
        result = []
        for side, (mean, log_y) in enumerate(self._tests(x)):
            y, shift = np.exp(log_y), 1.0
            # ln(y / mean), from the log-ratio itself: next to an end the difference of two logarithms is all rounding.
            t = x - self.clip.low if side == 0 else self.clip.high - x
            near = np.clip(t, -0.1, 0.1)
            if tail == "entropy":
                with np.errstate(divide="ignore"):
                    rate = mean * (math.log(mean) - log_y) + (1 - mean) * (math.log1p(-mean) - np.log(-np.expm1(log_y)))
                u = np.expm1(near)
                close = mean * minus_log1p(u) + (1 - mean) * minus_log1p(-mean * u / (1 - mean))
                rate, shift = np.where(near == t, close, np.maximum(rate, 0.0)), 0.0
            else:
                rate = 2 * np.where(near == t, mean * np.expm1(near), y - mean) ** 2
            end = self.clip.low if side == 0 else self.clip.high
            rate = np.where(x == end, 0.0, np.where((y == 1) | idle[side], np.inf, rate))
            result.append((np.where(np.isnan(x), np.nan, rate), shift))
        return result

    def _solve_bound(self, x: float, target: float, tail: str) -> float:
        """Return the concentration at which a tail bound equals the target."""
        from scipy.optimize import brentq

        sides = [(float(rate), shift) for rate, shift in self._exponents(x, tail) if rate < np.inf]
        if not sides:
            return 0.0
        alone = max(-math.log(target) / rate - shift for rate, shift in sides)
        if len(sides) == 1:
            return max(alone, 0.0)

        def excess(k: float) -> float:
            # in units of the target, so that the smallest targets are solved as well as the largest
            return sum(math.exp(-(k + shift) * rate - math.log(target)) for rate, shift in sides) - 1

        if excess(alone) <= 0:  # the other test does not show
            return max(alone, 0.0)
        top = max((math.log(2) - math.log(target)) / rate - shift for rate, shift in sides)
        if excess(top) >= 0:  # both sides alike: the root itself, up to rounding
            return max(top, 0.0)
        return max(float(brentq(excess, alone, top, xtol=1e-12 * abs(top), rtol=1e-14)), 0.0)

    def _solve_exactly(self, x: float, target: float, bound: float) -> float:
        """Return the largest concentration at which the error exceeds the target; none above `bound` does."""
        from scipy.optimize import brentq

        if bound == 0:
            return 0.0
        # next to an end the root may lie far below the bound, which knows nothing of how skewed the draws are
        grid = np.geomspace(min(bound * 1e-6, _FEWEST), bound, 2000)
        above = np.flatnonzero(self.error(x, grid) > target)
        if not above.size:
            return 0.0
        if above[-1] == len(grid) - 1:  # the bound is exact to rounding
            return bound

        def excess(log_k: float) -> float:
            return math.log(max(float(self.error(x, math.exp(log_k))), 5e-324)) - math.log(target)

        ends = np.log(grid[above[-1] : above[-1] + 2])
        for log_k in ends:  # the logarithm of an end may round to its other side
            if excess(log_k) * (1 if log_k == ends[0] else -1) <= 0:
                return math.exp(log_k)
        return math.exp(float(brentq(excess, *ends, xtol=1e-15, rtol=1e-14)))

    def _quadrature(self, k: float, low: float, high: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return nodes and weights on pieces that double in length away from either end of the range."""
        cuts: list[NDArray[Any]] = [np.linspace(low, high, 129)]
        for end, mean in zip((self.clip.low, self.clip.high), self.means, strict=True):
            steps = math.sqrt((1 / mean - 1) / (k + 1)) * 2.0 ** np.arange(-2, 12)
            cuts += [end - steps, end + steps, np.array([end])]
        kinks = [math.log(self.policy_ratio_bound), -math.log(self.ref_ratio_bound)]
        edges = np.unique(np.clip(np.concatenate([*cuts, kinks]), low, high))
        node, weight = np.polynomial.legendre.leggauss(16)
        half = np.diff(edges)[:, None] / 2
        return (edges[:-1, None] + half * (node + 1)).ravel(), (half * weight).ravel()


def _concentrations(concentration: ArrayLike) -> NDArray[np.float64]:
    k = float64("concentration", concentration)
    _checks.no_element("concentration", "be finite", ~np.isfinite(k), k)
    _checks.no_element("concentration", "be > 0", k <= 0, k)
    return k


def _atoms(log_ratio: ArrayLike, probs: ArrayLike | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return log-ratios and their normalised probabilities."""
    (x,) = last_axis(log_ratio=log_ratio)
    if x.ndim != 1:
        raise _checks.fail("log_ratio", "have one axis", x.shape)
    if probs is None:
        return x, np.full(x.shape, 1 / x.size)
    _, p = last_axis(log_ratio=x, probs=probs)
    _checks.same_shape("probs", np.shape(probs), "log_ratio", x.shape)
    return x, p / law_total("probs", probs, p)
