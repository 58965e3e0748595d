"""The symbolic derivations behind the theory: plain functions that return sympy (or mpmath) objects.

Each docstring holds the argument; tests/theory/test_derivations.py checks every step that is an identity, and the
notebooks beside this file show them. Imports no humanline.
"""

from __future__ import annotations

from typing import Any

import mpmath
import sympy as sp

#: Symbols shared by the derivations.
g, x, b, M, k, t, u, z = sp.symbols("gamma x b M k t u z", positive=True)


def power_of_uniform() -> dict[str, Any]:
    """Prop. 4.1: the law of B = U**(1/gamma), from P(B <= x) = P(U <= x**gamma) = x**gamma.

    Returns the distribution function, its derivative, the density of Beta(gamma, 1), and the n-th moment.
    """
    n = sp.symbols("n", positive=True)
    cdf = x**g
    density = sp.diff(cdf, x)
    beta_density = x ** (g - 1) * (1 - x) ** (1 - 1) / sp.gamma(g) / sp.gamma(1) * sp.gamma(g + 1)
    moment = sp.integrate(sp.powsimp(x**n * density), (x, 0, 1), conds="none")
    return {
        "cdf": cdf,
        "density": density,
        "beta_density": sp.gammasimp(beta_density),
        "moment": sp.simplify(moment),
        "order": n,
    }


def rejection_laws() -> dict[str, Any]:
    """Prop. 4.1: proposal times acceptance (r/M)**gamma, for both readings of the proposal, up to a constant.

    Returns for `ref` and `ref_power` the unnormalised law of a token with probabilities p (policy) and q (reference).
    """
    p, q = sp.symbols("p q", positive=True)
    accept = (p / q / M) ** g
    laws = {"ref": q * accept, "ref_power": q**g * accept}
    return {
        **{name: sp.powsimp(sp.expand_power_base(law, force=True), force=True) for name, law in laws.items()},
        "policy": p,
        "reference": q,
    }


def two_sided_law() -> dict[str, Any]:
    """Def. 4.2 at beta_P = beta_R = 1: the acceptance, and its elasticity d ln A / d ln r = gamma_P - gamma_R.

    The acceptance is r**(gamma_P - gamma_R) / (M_P**gamma_P M_R**gamma_R): gamma_P = gamma_R keeps all tokens alike,
    gamma_P > gamma_R tilts towards the policy.
    """
    r, gp, gr, mp_, mr = sp.symbols("r gamma_P gamma_R M_P M_R", positive=True)
    accept = (r / mp_) ** gp * (1 / (r * mr)) ** gr
    log_accept = sp.expand_log(sp.log(accept), force=True)
    return {
        "acceptance": accept,
        "closed_form": r ** (gp - gr) / (mp_**gp * mr**gr),
        "elasticity": sp.simplify(r * sp.diff(log_accept, r)),
        "symbols": (r, gp, gr, mp_, mr),
    }


def theorem_moments() -> dict[str, Any]:
    """Thm 4.3: moments of the threshold M B with B ~ Beta(k m, k (1 - m)), m = eps/M, from those of the Beta law.

    E[B**n] = prod_{i<n} (a + i) / (a + b + i). The variance of the threshold is eps (M - eps) / (k + 1), so that k has
    to grow in proportion to M, and by Chebyshev P(|B - m| >= delta) <= variance / delta**2 -> 0.
    Skewness tends to 0 and kurtosis to 3, as `local_limit` explains.
    """
    eps = sp.symbols("epsilon", positive=True)
    mean = eps / M
    a = k * mean

    def raw(n: int) -> Any:
        return sp.prod([(a + i) / (k + i) for i in range(n)])

    variance = sp.factor(raw(2) - raw(1) ** 2)
    third = sp.factor(raw(3) - 3 * raw(1) * raw(2) + 2 * raw(1) ** 3)
    fourth = sp.factor(raw(4) - 4 * raw(1) * raw(3) + 6 * raw(1) ** 2 * raw(2) - 3 * raw(1) ** 4)
    return {
        "mean": sp.simplify(M * raw(1)),
        "variance": sp.factor(M**2 * variance),
        "variance_limit": sp.limit(variance, k, sp.oo),
        "skewness_squared_limit": sp.limit(sp.simplify(third**2 / variance**3), k, sp.oo),
        "kurtosis_limit": sp.simplify(sp.limit(sp.simplify(fourth / variance**2), k, sp.oo)),
        "symbols": (eps, M, k),
    }


def local_limit() -> dict[str, Any]:
    """Thm 4.3 on an end: the density of T = (B - m) sqrt(k / (m (1 - m))) over its value at 0 tends to exp(-t**2/2).

    With a = k m and b = k (1 - m) the log of that ratio at t is
    (k m - 1) ln(1 + t s / m) + (k (1 - m) - 1) ln(1 - t s / (1 - m)) with s = sqrt(m (1 - m) / k).
    Densities that converge do so in law (Scheffe), so P(B <= m) -> Phi(0) = 1/2: on an end a test passes half the time.
    Returns the limit and the first correction, of order k**(-1/2).
    """
    m, h = sp.symbols("m h", positive=True)  # h = k**(-1/2)
    s = sp.sqrt(m * (1 - m)) * h
    v = sp.symbols("v")

    def log_series(y: Any, order: int = 4) -> Any:  # ln(1 + y) for small y
        return sum((-1) ** (i + 1) * y**i / i for i in range(1, order + 1))

    ratio = (m / h**2 - 1) * log_series(v * s / m) + ((1 - m) / h**2 - 1) * log_series(-v * s / (1 - m))
    expanded = sp.expand(ratio)
    return {
        "limit": sp.simplify(expanded.coeff(h, 0)),
        "correction": sp.simplify(expanded.coeff(h, 1)),
        "symbols": (v, m),
    }


def chernoff_tail() -> dict[str, Any]:
    """Thm 4.3: P(B <= x) <= exp(-k kl(m || x)) for x < m, at every k and m.

    B <= x if and only if (1 - x) G_a - x G_b <= 0 for independent Gamma variables, as B = G_a / (G_a + G_b). Markov's
    inequality for exp(-s (...)) gives the bound (1 + s (1 - x))**(-k m) (1 - s x)**(-k (1 - m)) for 0 <= s < 1/x. Its
    log is convex in s, and stationary at s = (m - x) / (x (1 - x)), where it equals -k kl(m || x).
    """
    m, s = sp.symbols("m s", positive=True)
    log_bound = -k * m * sp.log(1 + s * (1 - x)) - k * (1 - m) * sp.log(1 - s * x)
    best = (m - x) / (x * (1 - x))
    divergence = m * sp.log(m / x) + (1 - m) * sp.log((1 - m) / (1 - x))
    return {
        "stationary": sp.simplify(sp.diff(log_bound, s).subs(s, best)),
        "curvature": sp.factor(sp.diff(log_bound, s, 2)),
        "log_bound_at_best": log_bound.subs(s, best),
        "minus_k_kl": -k * divergence,
        "factors_at_best": (sp.factor(1 + best * (1 - x)), sp.factor(1 - best * x)),
        "symbols": (m, x, k),
    }


def capacity_slope() -> dict[str, Any]:
    """Eq. 3: the sign of its slope, where that is least, and the condition on gamma.

    With t = (1 - p)/p, d ln Omega / dp times p (1 + t**gamma) is s(t) = gamma - 1 + gamma t**gamma + t**(gamma - 1).
    For gamma < 1 it is least where gamma**2 t = 1 - gamma, that is at p* = gamma**2 / (1 - gamma + gamma**2), and there
    s >= 0 if and only if h(gamma) = (2 gamma - 1) ln gamma + (2 - gamma) ln(1 - gamma) <= 0.
    """
    p = sp.symbols("p", positive=True)
    q = 1 - p
    log_capacity = g * sp.log(p) - sp.log(p**g + q**g) / g
    slope = g - 1 + g * t**g + t ** (g - 1)
    lowest = (1 - g) / g**2
    return {
        "log_capacity": log_capacity,
        "scaled_slope": sp.diff(log_capacity, p) * p * (1 + (q / p) ** g),
        "s": slope,
        "s_derivative": sp.diff(slope, t),
        "lowest_t": lowest,
        "flat_point": sp.simplify(1 / (1 + lowest)),
        "least_s": slope.subs(t, lowest),
        "h": (2 * g - 1) * sp.log(g) + (2 - g) * sp.log(1 - g),
        "symbols": (p, g, t),
    }


def monotonicity_threshold(digits: int = 40) -> tuple[Any, Any]:
    """Eq. 3: gamma*, below which the capacity decreases somewhere, and the flat point p* there, to so many digits."""
    with mpmath.workdps(digits + 15):
        condition = sp.lambdify(g, capacity_slope()["h"], "mpmath")
        gamma = mpmath.findroot(condition, mpmath.mpf("0.28"))
        return gamma, gamma**2 / (1 - gamma + gamma**2)


def relative_entropy_gap() -> dict[str, Any]:
    """Prop. 3.4, corrected (B2): f(u) = u ln u - u + 1 - 3 (u - 1)**2 / (2 (u + 2)) >= 0 for u > 0.

    f(1) = f'(1) = 0 and f'' = (u - 1)**2 (u + 8) / (u (u + 2)**3) >= 0, so f is convex with its least value, 0, at 1.
    """
    gap = u * sp.log(u) - u + 1 - 3 * (u - 1) ** 2 / (2 * (u + 2))
    return {
        "gap": gap,
        "at_one": gap.subs(u, 1),
        "slope_at_one": sp.simplify(sp.diff(gap, u).subs(u, 1)),
        "second_derivative": sp.factor(sp.simplify(sp.diff(gap, u, 2))),
        "symbol": u,
    }


def pinsker_crossing(digits: int = 30) -> dict[str, Any]:
    """Prop. 3.4: where 2 sqrt(1 - exp(-K)), Bretagnolle-Huber, meets sqrt(2 K), Pinsker.

    Squared, K = 2 (1 - exp(-K)), so (K - 2) exp(K - 2) = -2 exp(-2) and K = 2 + W(-2 exp(-2)) on the upper branch.
    """
    divergence = 2 + sp.LambertW(-2 * sp.exp(-2))
    return {"crossing": divergence, "value": sp.N(divergence, digits), "excess": 2 * (1 - sp.exp(-z)) - z, "symbol": z}


def log_concavity() -> dict[str, Any]:
    """Def. 4.2, Fig. 2: for b >= 1 the acceptance is log-concave in the log-ratio, so no inverse S comes out.

    A_P(z) is the distribution function of Y = ln(M B) at z. The density of ln B at y < 0 is
    exp(a y) (1 - exp(y))**(b - 1) / B(a, b); the second derivative of its log is -(b - 1) exp(y) / (1 - exp(y))**2, so
    it is log-concave if and only if b >= 1. Then its integral F is: for y0 < y, f'(y0)/f(y0) >= f'(y)/f(y), hence
    f(y) = int f' >= (f'(y)/f(y)) F(y), that is (ln F)'' = (f' F - f**2) / F**2 <= 0. A_R is the same in -z, and the
    product of log-concave functions is log-concave.
    """
    a = sp.symbols("a", positive=True)
    y = sp.symbols("y", negative=True)
    log_density = a * y + (b - 1) * sp.log(1 - sp.exp(y))
    jacobian = sp.exp(y) ** (a - 1) * (1 - sp.exp(y)) ** (b - 1) * sp.exp(y)
    return {
        "log_density": log_density,
        "change_of_variable": sp.simplify(sp.expand_log(sp.log(jacobian), force=True) - log_density),
        "second_derivative": sp.factor(sp.together(sp.diff(log_density, y, 2))),
        "symbols": (y, a, b),
    }


def disagreement_constant() -> dict[str, Any]:
    """Thm 4.3: for a density f of the log-ratio the mean disagreement at one end is about f(end) E|ln(M B) - end|.

    ln(M B) - end has to first order the standard deviation sd(B)/m = sqrt((1/m - 1)/(k + 1)), and a normal variable of
    standard deviation sigma has mean absolute value sqrt(2/pi) sigma.
    """
    m, sigma = sp.symbols("m sigma", positive=True)
    y = sp.symbols("y", real=True)
    normal = sp.exp(-(y**2) / (2 * sigma**2)) / (sp.sqrt(2 * sp.pi) * sigma)
    mean_absolute = 2 * sp.integrate(sp.Abs(y) * normal, (y, 0, sp.oo))
    spread = sp.sqrt(m * (1 - m) / (k + 1)) / m
    return {
        "mean_absolute": sp.simplify(mean_absolute),
        "constant": sp.limit(mean_absolute.subs(sigma, spread) * sp.sqrt(k), k, sp.oo),
        "symbols": (m, sigma),
    }


def value_shape() -> dict[str, Any]:
    """Def. 3.1, Eq. 2: at a distance x from the reference point, curvature and loss aversion.

    The second derivative of a gain is alpha (alpha - 1) x**(alpha - 2), negative for alpha < 1 (risk aversion); a loss
    weighs lambda times the equal gain (loss aversion for lambda > 1), and bends the other way.
    """
    alpha, aversion = sp.symbols("alpha lambda", positive=True)
    gain, loss = x**alpha, -aversion * x**alpha
    return {
        "gain_curvature": sp.simplify(sp.diff(gain, x, 2)),
        "loss_curvature": sp.simplify(sp.diff(loss, x, 2)),
        "loss_over_gain": sp.simplify(-loss / gain),
        "symbols": (x, alpha, aversion),
    }


def weights_telescope(count: int = 5) -> dict[str, Any]:
    """Def. 3.2, Eq. 4: weights of `count` gains, least good first, add up to the capacity of their total probability.

    Holds for every function Omega with Omega(0) = 0: all other terms cancel in pairs.
    """
    omega = sp.Function("Omega")
    probs = sp.symbols(f"p1:{count + 1}", positive=True)
    weights = [omega(sum(probs[i:])) - omega(sum(probs[i + 1 :])) for i in range(count - 1)] + [omega(probs[-1])]
    return {"weights": weights, "sum": sp.expand(sum(weights)), "capacity_of_total": omega(sum(probs))}
