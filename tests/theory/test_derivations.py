"""Each step of notebooks/derivations.py that is an identity, and the numbers that follow from it."""

from __future__ import annotations

import mpmath
import pytest
import sympy as sp

from humanline.theory import BetaShape, PowerValue, TverskyKahneman, decision_weights
from notebooks import derivations
from tests import oracles


def zero(expression) -> bool:
    """Whether an expression is identically 0 after simplification."""
    return sp.simplify(sp.expand_log(expression, force=True)) == 0


def test_the_law_of_a_power_of_a_uniform_variable():
    """Prop. 4.1: U**(1/gamma) has the density of Beta(gamma, 1), and the moments gamma / (gamma + n)."""
    law = derivations.power_of_uniform()
    assert zero(law["density"] - law["beta_density"])
    assert zero(law["moment"] - derivations.g / (derivations.g + law["order"]))
    for gamma in (0.3, 0.61, 2.0):
        mean = float(law["moment"].subs({derivations.g: gamma, law["order"]: 1}))
        assert BetaShape(gamma, 1).mean == pytest.approx(mean, rel=1e-15)


def test_both_laws_of_the_proposition():
    """Prop. 4.1: the reference as proposal gives ref**(1-g) policy**g, its power gives policy**g; equal at g = 1."""
    law = derivations.rejection_laws()
    p, q, g, bound = law["policy"], law["reference"], derivations.g, derivations.M
    assert zero(sp.log(law["ref"] / (q ** (1 - g) * p**g / bound**g)))
    assert zero(sp.log(law["ref_power"] / (p**g / bound**g)))
    assert sp.simplify((law["ref"] / law["ref_power"]).subs(g, 1)) == 1
    assert zero(sp.log(law["ref"] / law["ref_power"]) - (1 - g) * sp.log(q))  # constant in q only at g = 1


def test_the_two_sided_law():
    """Def. 4.2 at b = 1: acceptance is r**(gP - gR) / (M_P**gP M_R**gR), of elasticity gP - gR."""
    law = derivations.two_sided_law()
    r, gp, gr, *_ = law["symbols"]
    assert zero(sp.log(law["acceptance"]) - sp.log(law["closed_form"]))
    assert zero(law["elasticity"] - (gp - gr))
    assert sp.diff(law["closed_form"].subs(gp, gr), r) == 0


def test_moments_and_limit_of_the_theorem():
    """Thm 4.3: the threshold has mean eps and variance eps (M - eps) / (k + 1), which vanishes; it becomes normal."""
    found = derivations.theorem_moments()
    eps, bound, k = found["symbols"]
    assert found["mean"] == eps
    assert zero(found["variance"] - eps * (bound - eps) / (k + 1))
    assert found["variance_limit"] == found["skewness_squared_limit"] == 0
    assert found["kurtosis_limit"] == 3


def test_the_limit_on_an_end_is_a_fair_coin():
    """Thm 4.3: the standardised draw's density tends to exp(-t**2/2), so a ratio on an end passes half of the time."""
    found = derivations.local_limit()
    v, m = found["symbols"]
    assert zero(found["limit"] + v**2 / 2)
    with mpmath.workdps(40):  # the correction is the right one: the gap falls as 1/k
        at = {v: sp.Rational(7, 10), m: sp.Rational(1, 27)}
        correction = mpmath.mpf(sp.N(found["correction"].subs(at), 40))
        gaps = []
        for k in (10**6, 10**8):
            mean, value = mpmath.mpf(1) / 27, mpmath.mpf(7) / 10
            s = mpmath.sqrt(mean * (1 - mean) / k)
            exact = (k * mean - 1) * mpmath.log1p(value * s / mean)
            exact += (k * (1 - mean) - 1) * mpmath.log1p(-value * s / (1 - mean))
            gaps.append(exact + value**2 / 2 - correction / mpmath.sqrt(k))
        assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.01)


def test_the_entropy_tail():
    """Thm 4.3: Chernoff's bound is stationary and convex at the optimum, where it is exp(-k kl(m || x))."""
    found = derivations.chernoff_tail()
    m, x, k = found["symbols"]
    assert found["stationary"] == 0
    numerator, denominator = sp.fraction(sp.together(found["curvature"] / k))
    for values in ((0.3, 0.1, 0.5), (0.9, 0.2, 4.0), (0.02, 0.01, 30.0)):  # sampled; both terms are squares
        point = {m: values[0], x: values[1], sp.Symbol("s", positive=True): values[2]}
        assert (numerator / denominator).subs(point) > 0
    first, second = found["factors_at_best"]
    assert sp.simplify(first - m / x) == 0
    assert sp.simplify(second - (1 - m) / (1 - x)) == 0
    values = {m: sp.Rational(3, 10), x: sp.Rational(1, 10), k: 7}
    assert abs(sp.N((found["log_bound_at_best"] - found["minus_k_kl"]).subs(values), 30)) < 1e-28


def test_the_slope_of_the_capacity():
    """Eq. 3: its slope has the sign of s(t), least at p*, where s >= 0 is the condition on gamma."""
    found = derivations.capacity_slope()
    p, g, t = found["symbols"]
    points = [(sp.Rational(61, 100), sp.Rational(1, 7)), (sp.Rational(1, 4), sp.Rational(9, 10))]
    for gamma, prob in points:  # powers of 1 - p do not combine symbolically: 30 digits instead
        gap = found["scaled_slope"].subs({g: gamma, p: prob}) - found["s"].subs({g: gamma, t: (1 - prob) / prob})
        assert abs(sp.N(gap, 30)) < 1e-28
    assert sp.simplify((found["s_derivative"] * t ** (2 - g)).expand().powsimp() - (g**2 * t + g - 1)) == 0
    assert sp.simplify(found["flat_point"] - g**2 / (1 - g + g**2)) == 0
    for gamma in (0.1, 0.25, 0.279, 0.2793, 0.5, 0.9):
        least, h = (found[name].subs(g, sp.Rational(str(gamma))) for name in ("least_s", "h"))
        assert abs(sp.N(sp.log((least + 1 - g) / (1 - g)).subs(g, sp.Rational(str(gamma))) + h, 30)) < 1e-28
        assert (least >= 0) == (h <= 0)


def test_the_monotonicity_threshold():
    """Eq. 3: gamma* and p* to 40 digits, where slope and curvature vanish together."""
    gamma, flat = derivations.monotonicity_threshold(40)
    assert mpmath.nstr(gamma, 21) == "0.279204247014938541855"
    assert mpmath.nstr(flat, 12) == "0.0975961651773"
    with mpmath.workdps(50):
        other = oracles.flat_point()
        assert abs(gamma - other[0]) < mpmath.mpf("1e-40")
        assert abs(flat - other[1]) < mpmath.mpf("1e-39")
        assert abs(mpmath.diff(lambda p: oracles.tversky_kahneman(p, gamma), flat)) < mpmath.mpf("1e-20")


def test_the_inequality_behind_the_norm_bound():
    """Prop. 3.4, corrected: u ln u - u + 1 - 3 (u-1)**2 / (2 (u+2)) is convex with its minimum 0 at 1."""
    found = derivations.relative_entropy_gap()
    u = found["symbol"]
    assert found["at_one"] == found["slope_at_one"] == 0
    assert sp.simplify(found["second_derivative"] - (u - 1) ** 2 * (u + 8) / (u * (u + 2) ** 3)) == 0


def test_where_the_two_inequalities_cross():
    """Prop. 3.4: Bretagnolle-Huber is the tighter from K = 1.59362426 on."""
    found = derivations.pinsker_crossing(30)
    assert round(float(found["value"]), 8) == 1.59362426
    assert abs(sp.N(found["excess"].subs(found["symbol"], found["crossing"]), 30)) < 1e-28
    assert found["excess"].subs(found["symbol"], 1.5) > 0 > found["excess"].subs(found["symbol"], 1.7)


def test_log_concavity_of_the_acceptance():
    """Def. 4.2: the density of ln B is log-concave if and only if b >= 1."""
    found = derivations.log_concavity()
    y, _, b = found["symbols"]
    assert found["change_of_variable"] == 0
    assert sp.cancel(sp.together(found["second_derivative"] + (b - 1) * sp.exp(y) / (1 - sp.exp(y)) ** 2)) == 0


def test_the_constant_of_the_mean_disagreement():
    """Thm 4.3: for a continuous spread each end contributes f(end) sqrt(2/pi) sqrt(1/m - 1) / sqrt(k)."""
    found = derivations.disagreement_constant()
    m, sigma = found["symbols"]
    assert zero(found["mean_absolute"] - sp.sqrt(2 / sp.pi) * sigma)
    assert sp.simplify(found["constant"] ** 2 - 2 / sp.pi * (1 / m - 1)) == 0


def test_the_shape_of_the_value_function():
    """Def. 3.1: alpha < 1 makes gains concave and losses convex, and a loss weighs lambda times the equal gain."""
    found = derivations.value_shape()
    x, alpha, aversion = found["symbols"]
    assert found["loss_over_gain"] == aversion
    assert sp.simplify(found["gain_curvature"] - alpha * (alpha - 1) * x ** (alpha - 2)) == 0
    medians = {alpha: 0.88, x: 2, aversion: 2.25}
    assert found["gain_curvature"].subs(medians) < 0 < found["loss_curvature"].subs(medians)
    value = PowerValue(curvature=0.88, loss_aversion=2.25)
    assert -value(-3.0) / value(3.0) == pytest.approx(2.25, rel=1e-14)


def test_decision_weights_telescope():
    """Def. 3.2: the weights of gains alone sum to the capacity of their total probability, whatever the capacity."""
    found = derivations.weights_telescope(5)
    assert found["sum"] == found["capacity_of_total"]
    capacity = TverskyKahneman(0.61)
    weights = decision_weights([-1.0, 1.0, 2.0, 3.0], [0.4, 0.1, 0.2, 0.3], gain=capacity, loss=capacity)
    assert weights[1:].sum() == pytest.approx(capacity(0.6), rel=1e-14)
