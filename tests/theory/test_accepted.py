"""What rejection samples (Proposition 4.1, Definition 4.2): exact laws of tokens and sequences."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from humanline.theory import (
    BetaRejection,
    BetaShape,
    BetaTest,
    ClipRange,
    accepted_law,
    accepted_sequence_law,
    perceived_law,
    sequence_law,
)
from tests import oracles
from tests.helpers import strategies
from tests.helpers.optional import torch

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
POLICY, REF = [0.2, 0.25, 0.15, 0.4], [0.5, 0.3, 0.15, 0.05]
GAMMAS, SHAPES = st.floats(0.1, 2.5), st.sampled_from([0.2, 0.61, 1.0, 1.7, 6.0])
DELTA = 1e-9  # chance that a sampling test fails by luck, for each of them


def largest_ratios(policy, ref):
    """The least admissible bounds of policy/ref and of ref/policy, kept above 1."""
    ratios = np.asarray(policy) / np.asarray(ref)
    return max(ratios.max(), 1 + 1e-9), max((1 / ratios).max(), 1 + 1e-9)


def both_tests(policy, ref, shapes, rule="either"):
    """A rejection whose bounds are the largest ratios."""
    bounds = largest_ratios(policy, ref)
    return BetaRejection(*shapes, policy_ratio_bound=bounds[0], ref_ratio_bound=bounds[1], rule=rule)


def resample(rng, proposal, policy, ref, rejection, count):
    """Propose, test and propose again until `count` tokens are kept; also the share kept of what was proposed."""
    proposal, log_ratio = np.asarray(proposal), np.log(np.asarray(policy) / np.asarray(ref))
    tokens, waiting, proposed = np.empty(count, dtype=int), np.arange(count), 0
    while waiting.size:
        tried = rng.choice(len(proposal), size=waiting.size, p=proposal)
        proposed += waiting.size
        x = log_ratio[tried]
        if isinstance(rejection, BetaTest):
            kept = rejection.keeps(x, rejection.shape.sample(rng, x.shape))
        else:
            draws = (shape.sample(rng, x.shape) for shape in (rejection.policy, rejection.ref))
            kept = rejection.keeps(x, *draws)
        tokens[waiting[kept]] = tried[kept]
        waiting = waiting[~kept]
    return tokens, proposed


# ---- one test -------------------------------------------------------------------------------------------------------


@SETTINGS
@given(x=st.floats(-60, 60), a=SHAPES, b=SHAPES, bound=st.floats(1.01, 50))
def test_acceptance_of_one_test(x, a, b, bound):
    """Prop. 4.1: the chance to keep a token is the incomplete beta integral up to r/M, to 1e-12, and so is its log."""
    test = BetaTest(BetaShape(a, b), bound)
    log_y = min(oracles.mpf(0), oracles.mpf(x) - oracles.mpmath.log(oracles.mpf(bound)))
    assume(abs(log_y) > 1e-6 or log_y == 0)  # next to the bound the rounding of ln M decides
    expected = oracles.beta_cdf(oracles.mpmath.exp(log_y), a, b)
    assert test.acceptance_probability(x) == pytest.approx(float(expected), rel=1e-12 * max(1, 1e-3 / abs(log_y or 1)))
    log_expected = float(oracles.mpmath.log(expected))
    assert test.log_acceptance_probability(x) == pytest.approx(log_expected, rel=1e-12, abs=1e-11)


@pytest.mark.parametrize(
    ("policy", "ref", "rule"),
    [
        ((40.0, 3.0), (2.0, 9.0), "either"),
        ((40.0, 3.0), (2.0, 9.0), "both"),
        ((3000.0, 70000.0), (0.61, 1.0), "either"),
        pytest.param((3000.0, 70000.0), (0.61, 1.0), "both", marks=pytest.mark.slow),
    ],
)
def test_the_log_survives_where_the_probability_underflows(policy, ref, rule):
    """At ratios of e**-50 ... e**50 the log of the acceptance is exact to 1e-10, the acceptance itself 0 and no nan."""
    x = np.array([-50.0, -20.0, -3.0, 0.0, 3.0, 20.0, 50.0])
    rejection = BetaRejection(BetaShape(*policy), BetaShape(*ref), policy_ratio_bound=6, ref_ratio_bound=6, rule=rule)
    expected = [float(oracles.log_acceptance(v, policy, ref, (6, 6), rule)) for v in x]
    ours = rejection.log_acceptance_probability(x)
    np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(rejection.acceptance_probability(x), np.exp(ours), rtol=1e-9)


@SETTINGS
@given(a=st.tuples(SHAPES, SHAPES), b=st.tuples(st.floats(1, 20), st.floats(1, 20)), bound=st.floats(1.5, 50))
def test_acceptance_is_log_concave_for_b_at_least_1(a, b, bound):
    """For b >= 1 the log of the acceptance is concave in the log-ratio, so Figure 2's curve cannot be an inverse S."""
    rejection = BetaRejection(
        BetaShape(a[0], b[0]), BetaShape(a[1], b[1]), policy_ratio_bound=bound, ref_ratio_bound=bound
    )
    grid = np.linspace(-6, 6, 241)
    log_accept = rejection.log_acceptance_probability(grid)
    assert np.diff(log_accept, 2).max() <= 1e-12 * np.abs(log_accept).max()


def test_acceptance_is_not_log_concave_below_1():
    """With b < 1, and under the rule `both`, it is convex somewhere: the condition of the statement is needed."""
    grid = np.linspace(-6, 1.2, 241)
    one = BetaTest(BetaShape(1.0, 0.2), 4)
    assert np.diff(one.log_acceptance_probability(grid), 2).max() > 1e-4
    both = BetaRejection(
        BetaShape(2, 1), BetaShape(2, 1), policy_ratio_bound=6, ref_ratio_bound=6, rule="both"
    ).log_acceptance_probability(np.linspace(-1.7, 1.7, 41))
    assert np.diff(both, 2).max() > 1e-4


def test_one_test_is_one_half_of_the_rule():
    """Def. 4.2: a token is kept by `either` if both tests keep it, by `both` if one does; numpy and torch agree."""
    rng = np.random.default_rng(3)
    x, draws = rng.normal(0, 2, 500), rng.random((2, 500))
    for rule, join in (("either", np.logical_and), ("both", np.logical_or)):
        rejection = both_tests(POLICY, REF, (BetaShape(2, 3), BetaShape(1, 1)), rule)
        expected = join(rejection.policy_test.keeps(x, draws[0]), rejection.ref_test.keeps(-x, draws[1]))
        np.testing.assert_array_equal(rejection.keeps(x, *draws), expected)
        verdicts = rejection.policy_test.keeps(torch.tensor(x), torch.tensor(draws[0]))
        np.testing.assert_array_equal(verdicts.numpy(), rejection.policy_test.keeps(x, draws[0]))


def test_no_gradient_passes_a_verdict():
    """Eq. 5 rejects by detaching: verdicts are bools without a graph, whatever the inputs carry."""
    x = torch.linspace(-3, 3, 9, requires_grad=True)
    draws = torch.full((9,), 0.3, requires_grad=True)
    test = BetaTest(BetaShape(2, 3), 4)
    for verdicts in (test.keeps(x, draws), both_tests(POLICY, REF, (BetaShape(1, 1),) * 2).keeps(x, draws, draws)):
        assert (verdicts.dtype, verdicts.requires_grad, verdicts.grad_fn) == (torch.bool, False, None)
    kept = torch.where(test.keeps(x, draws), x, x.detach())
    kept.sum().backward()
    assert torch.equal(x.grad != 0, test.keeps(x, draws))


# ---- laws of a token ------------------------------------------------------------------------------------------------


def test_published_laws():
    """Prop. 4.1 at gamma .61: the laws of both readings of the proposal, and the shares accepted with M = 8."""
    for proposal, probs, rate in (
        ("ref", [0.3241, 0.3043, 0.1700, 0.2015], 0.24810),
        ("ref_power", [0.2217, 0.2540, 0.1860, 0.3383], 0.29523),
    ):
        law = perceived_law(POLICY, REF, 0.61, proposal=proposal)
        np.testing.assert_allclose(law.probs, probs, atol=5e-5)
        assert law.acceptance_rate == pytest.approx(rate, abs=5e-6)
        assert law.proposed_tokens == pytest.approx(1 / law.acceptance_rate)
        bounded = perceived_law(POLICY, REF, 0.61, proposal=proposal, ratio_bound=16)
        np.testing.assert_allclose(bounded.probs, law.probs, rtol=1e-14)
        assert bounded.acceptance_rate == pytest.approx(law.acceptance_rate * 2**-0.61)


@SETTINGS
@given(laws=strategies.laws(2), gamma=GAMMAS)
def test_closed_forms_are_what_is_accepted(laws, gamma):
    """Prop. 4.1: both closed forms are proposal times acceptance, normalised, and so is the share accepted."""
    policy, ref = laws
    test = BetaTest(BetaShape(gamma, 1), largest_ratios(policy, ref)[0])
    power = [oracles.mpf(q) ** oracles.mpf(gamma) for q in ref]
    powered = [float(q / oracles.mpmath.fsum(power)) for q in power]
    for name, proposal in (("ref", ref), ("ref_power", powered)):
        closed = perceived_law(policy, ref, gamma, proposal=name, ratio_bound=test.ratio_bound)
        exact = accepted_law(policy, ref, test, proposal=proposal)
        accept = [
            (oracles.mpf(p) / oracles.mpf(q) / oracles.mpf(test.ratio_bound)) ** oracles.mpf(gamma)
            for p, q in zip(policy, ref, strict=True)
        ]
        probs, rate = oracles.rejection_sampled(proposal, accept)
        for law in (closed, exact):
            np.testing.assert_allclose(law.probs, [float(p) for p in probs], rtol=1e-11)
            assert law.acceptance_rate == pytest.approx(float(rate), rel=1e-11)


@SETTINGS
@given(laws=strategies.laws(2), gamma=GAMMAS)
def test_the_two_readings_agree_only_at_one_or_for_a_flat_reference(laws, gamma):
    """Prop. 4.1: the laws coincide at gamma = 1 (the policy itself) and for a uniform reference, not otherwise."""
    policy, ref = laws
    for proposal in ("ref", "ref_power"):
        np.testing.assert_allclose(perceived_law(policy, ref, 1, proposal=proposal).probs, policy, rtol=1e-11)
    flat = [1 / len(ref)] * len(ref)
    np.testing.assert_allclose(
        perceived_law(policy, flat, gamma).probs,
        perceived_law(policy, flat, gamma, proposal="ref_power").probs,
        rtol=1e-11,
    )
    assume(max(ref) > 1.01 * min(ref) and abs(gamma - 1) > 0.01)
    first, second = (perceived_law(policy, ref, gamma, proposal=proposal).probs for proposal in ("ref", "ref_power"))
    np.testing.assert_allclose(
        np.log(first) - np.log(second),
        np.mean(np.log(first / second)) + (1 - gamma) * (np.log(ref) - np.mean(np.log(ref))),
        atol=1e-9,
    )
    assert np.abs(np.log(first) - np.log(second)).max() > 1e-6


@SETTINGS
@given(
    laws=strategies.laws(3), shapes=st.tuples(SHAPES, SHAPES, SHAPES, SHAPES), rule=st.sampled_from(["either", "both"])
)
def test_the_law_of_general_shapes(laws, shapes, rule):
    """Def. 4.2: proposal times exact acceptance over its sum, for any shapes, either rule and any proposal."""
    policy, ref, proposal = laws
    rejection = both_tests(policy, ref, (BetaShape(*shapes[:2]), BetaShape(*shapes[2:])), rule)
    bounds = rejection.policy_ratio_bound, rejection.ref_ratio_bound
    x = np.log(policy) - np.log(ref)
    accept = [oracles.acceptance(v, shapes[:2], shapes[2:], bounds, rule) for v in x]
    probs, rate = oracles.rejection_sampled(proposal, accept)
    law = accepted_law(policy, ref, rejection, proposal=proposal)
    # at its own bound a test's argument is 1 up to rounding, where a density with b < 1 is steep
    np.testing.assert_allclose(law.probs, [float(p) for p in probs], rtol=1e-3 if min(shapes[1::2]) < 1 else 1e-9)
    assert law.acceptance_rate == pytest.approx(float(rate), rel=1e-3 if min(shapes[1::2]) < 1 else 1e-9)
    assert law.probs.sum() == pytest.approx(1, rel=1e-12)


@SETTINGS
@given(laws=strategies.laws(2), g_policy=GAMMAS, g_ref=GAMMAS)
def test_power_shapes_tilt_by_their_difference(laws, g_policy, g_ref):
    """Def. 4.2 at b = 1: the kept tokens follow ref (policy/ref)**(gP - gR); gP > gR moves them towards the policy."""
    policy, ref = (np.array(law) for law in laws)
    rejection = both_tests(policy, ref, (BetaShape(g_policy, 1), BetaShape(g_ref, 1)))
    expected = ref * (policy / ref) ** (g_policy - g_ref)
    law = accepted_law(policy, ref, rejection).probs
    np.testing.assert_allclose(law, expected / expected.sum(), rtol=1e-10)
    shift = ((law - ref) * np.log(policy / ref)).sum()  # of the mean log-ratio
    assert shift * (g_policy - g_ref) >= -1e-12


def test_equal_power_shapes_sample_the_proposal():
    """Def. 4.2: gP = gR keeps every token alike, so what is kept is what was proposed; gP = gR + 1 keeps the policy."""
    same = both_tests(POLICY, REF, (BetaShape(0.61, 1), BetaShape(0.61, 1)))
    np.testing.assert_allclose(accepted_law(POLICY, REF, same).probs, REF, rtol=1e-14)
    one_more = both_tests(POLICY, REF, (BetaShape(1.61, 1), BetaShape(0.61, 1)))
    np.testing.assert_allclose(accepted_law(POLICY, REF, one_more).probs, POLICY, rtol=1e-13)


@pytest.mark.parametrize(
    "rejection",
    [
        BetaTest(BetaShape(0.61, 1), 8),
        BetaTest(BetaShape(1, 3), 8.5),
        both_tests(POLICY, REF, (BetaShape(0.7, 1.3), BetaShape(0.4, 0.8))),
        both_tests(POLICY, REF, (BetaShape(1.4, 0.3), BetaShape(1.0, 0.5)), "both"),
        BetaRejection.near(ClipRange(-0.8, 1.9), 30, policy_ratio_bound=9, ref_ratio_bound=3),
    ],
)
def test_resampling_draws_from_the_law(rejection):
    """Tokens proposed until kept follow the exact law within Dvoretzky-Kiefer-Wolfowitz, the share kept Hoeffding."""
    count = 200_000
    tokens, proposed = resample(np.random.default_rng(11), REF, POLICY, REF, rejection, count)
    law = accepted_law(POLICY, REF, rejection)
    found = np.bincount(tokens, minlength=4).cumsum() / count
    assert np.abs(found - law.probs.cumsum()).max() <= math.sqrt(math.log(2 / DELTA) / (2 * count))
    rng = np.random.default_rng(12)
    x = np.log(np.array(POLICY) / np.array(REF))[rng.choice(4, size=count, p=REF)]
    if isinstance(rejection, BetaTest):
        kept = rejection.keeps(x, rejection.shape.sample(rng, count))
    else:
        kept = rejection.keeps(x, rejection.policy.sample(rng, count), rejection.ref.sample(rng, count))
    assert abs(kept.mean() - law.acceptance_rate) <= math.sqrt(math.log(2 / DELTA) / (2 * count))
    assert count / proposed == pytest.approx(law.acceptance_rate, rel=0.05)


def test_laws_of_many_distributions_at_once():
    """Leading axes are distributions of their own, and tokens that are never proposed stay impossible."""
    rng = np.random.default_rng(0)
    policy, ref = rng.dirichlet(np.ones(5), (3, 2)), rng.dirichlet(np.ones(5), (3, 2))
    rejection = BetaTest(BetaShape(0.5, 2), 1e6)
    law = accepted_law(policy, ref, rejection, truncate=True)
    assert law.probs.shape == (3, 2, 5)
    assert law.acceptance_rate.shape == law.proposed_tokens.shape == (3, 2)
    for place in np.ndindex(3, 2):
        one = accepted_law(policy[place], ref[place], rejection, truncate=True)
        np.testing.assert_allclose(law.probs[place], one.probs, rtol=1e-14)
        closed = perceived_law(policy[place], ref[place], 0.5)
        np.testing.assert_allclose(perceived_law(policy, ref, 0.5).probs[place], closed.probs, rtol=1e-14)
    some = accepted_law([0.5, 0.5, 0.0], [0.2, 0.2, 0.6], BetaTest(BetaShape(1, 1), 3), proposal=[0.5, 0.0, 0.5])
    assert some.probs.tolist() == [1.0, 0.0, 0.0]
    assert perceived_law([0.5, 0.5, 0.0], [0.2, 0.3, 0.5], 0.61).probs[2] == 0


def test_tiny_probabilities_survive():
    """Ratios of e**50 and e**-50 give a law without nan, whose logs agree with the closed form."""
    tiny = math.exp(-50)
    policy, ref = [tiny, 1 - 2 * tiny, tiny], [0.5, 0.5 - tiny, tiny]
    law = perceived_law(policy, ref, 0.61)
    weights = [
        oracles.mpf(q) ** (1 - oracles.mpf(0.61)) * oracles.mpf(p) ** oracles.mpf(0.61)
        for p, q in zip(policy, ref, strict=True)
    ]
    expected = [float(w / oracles.mpmath.fsum(weights)) for w in weights]
    np.testing.assert_allclose(law.probs, expected, rtol=1e-12)
    sharp = BetaRejection.near(ClipRange(-1.5, 1.5), 5000, policy_ratio_bound=6, ref_ratio_bound=1e30)
    assert np.isfinite(accepted_law(policy, ref, sharp).probs).all()


def test_truncation_keeps_what_exceeds_its_bound():
    """With `truncate` a ratio above its bound passes that test always, as in `keeps`."""
    test = BetaTest(BetaShape(1, 1), 2)
    law = accepted_law(POLICY, REF, test, truncate=True)
    expected = np.array(REF) * np.minimum(1, np.array(POLICY) / np.array(REF) / 2)
    np.testing.assert_allclose(law.probs, expected / expected.sum(), rtol=1e-14)


# ---- laws of sequences ----------------------------------------------------------------------------------------------

TREE_POLICY = [[0.3, 0.7], [[0.9, 0.1], [0.4, 0.6]], [[[0.2, 0.8], [0.5, 0.5]], [[0.7, 0.3], [0.35, 0.65]]]]
TREE_REF = [[0.6, 0.4], [[0.5, 0.5], [0.25, 0.75]], [[[0.5, 0.5], [0.1, 0.9]], [[0.45, 0.55], [0.6, 0.4]]]]


@pytest.mark.parametrize("gamma", [0.61, 1.0])
@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_laws_of_sequences(unit, gamma):
    """Prop. 4.1: resampling tokens, or whole sequences, gives what an enumeration of all sequences gives."""
    test = BetaTest(BetaShape(gamma, 1), 6)
    law = accepted_sequence_law(TREE_POLICY, TREE_REF, test, resample=unit)
    expected, proposed = oracles.resampled_sequences(
        TREE_POLICY,
        TREE_REF,
        lambda x: oracles.mpmath.exp(x * oracles.mpf(gamma)) / oracles.mpf(6) ** oracles.mpf(gamma),
        unit,
    )
    for y, prob in expected.items():
        assert law.probs[y] == pytest.approx(float(prob), rel=1e-12)
    assert law.proposed_tokens == pytest.approx(float(proposed), rel=1e-12)
    assert law.acceptance_rate == pytest.approx(3 / float(proposed), rel=1e-12)
    assert law.probs.sum() == pytest.approx(1, rel=1e-13)


def test_tokens_and_sequences_differ_unless_the_normalisers_do_not():
    """Prop. 4.1: the laws differ where normalisers depend on the prefix, and agree at gamma = 1 or for equal ones."""
    test = BetaTest(BetaShape(0.61, 1), 6)
    token, sequence = (
        accepted_sequence_law(TREE_POLICY, TREE_REF, test, resample=unit).probs for unit in ("token", "sequence")
    )
    assert np.abs(token - sequence).max() > 1e-3
    plain = BetaTest(BetaShape(1, 1), 6)
    for unit in ("token", "sequence"):
        law = accepted_sequence_law(TREE_POLICY, TREE_REF, plain, resample=unit).probs
        np.testing.assert_allclose(law, sequence_law(TREE_POLICY), rtol=1e-13)
    policy = [[0.3, 0.7], [[0.9, 0.1], [0.1, 0.9]]]  # the same normaliser after either token
    ref = [[0.6, 0.4], [[0.5, 0.5], [0.5, 0.5]]]
    laws = [accepted_sequence_law(policy, ref, test, resample=unit).probs for unit in ("token", "sequence")]
    np.testing.assert_allclose(*laws, rtol=1e-13)


@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_sampled_sequences_follow_the_law(unit):
    """Sequences made by drawing again rejected tokens, or themselves, lie within DKW's band of the exact law."""
    rejection = BetaRejection(BetaShape(0.3, 1.2), BetaShape(0.1, 1), policy_ratio_bound=5.1, ref_ratio_bound=5.1)
    rng, count = np.random.default_rng(5), 40_000
    places = np.zeros(count, dtype=int)
    waiting = np.arange(count)

    def propose(prefix, step):
        policy, ref = (np.array(tree[step]).reshape(-1, 2)[prefix] for tree in (TREE_POLICY, TREE_REF))
        token = (rng.random(prefix.size) < ref[:, 1]).astype(int)
        x = np.log(policy / ref)[np.arange(prefix.size), token]
        return 2 * prefix + token, rejection.keeps(
            x, *(s.sample(rng, x.size) for s in (rejection.policy, rejection.ref))
        )

    if unit == "token":
        for step in range(3):
            following, waiting = np.empty(count, dtype=int), np.arange(count)
            while waiting.size:
                tried, kept = propose(places[waiting], step)
                following[waiting[kept]] = tried[kept]
                waiting = waiting[~kept]
            places = following
    else:
        while waiting.size:
            tried, kept = np.zeros(waiting.size, dtype=int), np.ones(waiting.size, dtype=bool)
            for step in range(3):
                tried, passes = propose(tried, step)
                kept &= passes
            places[waiting[kept]] = tried[kept]
            waiting = waiting[~kept]
    law = accepted_sequence_law(TREE_POLICY, TREE_REF, rejection, resample=unit)
    found = np.bincount(places, minlength=8).cumsum() / count
    assert np.abs(found - law.probs.ravel().cumsum()).max() <= math.sqrt(math.log(2 / DELTA) / (2 * count))


# ---- errors ---------------------------------------------------------------------------------------------------------

ONE = BetaTest(BetaShape(1, 1), 8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BetaTest(BetaShape(1, 1), 1), "ratio_bound must be > 1; got 1"),
        (
            lambda: accepted_law([0.5, 0.6], [0.5, 0.5], ONE),
            "policy must sum to 1 within 1e-06 along the last axis; got 1.1",
        ),
        (lambda: accepted_law([0.5, 0.5], [1.5, -0.5], ONE), "ref must be >= 0; got -0.5"),
        (lambda: accepted_law([0.5, math.nan], [0.5, 0.5], ONE), "policy must be finite; got nan"),
        (
            lambda: accepted_law([0.5, 0.5], [0.5, 0.25, 0.25], ONE),
            "ref must have the shape of policy (2,); got (3,)",
        ),
        (
            lambda: accepted_law(POLICY, REF, BetaTest(BetaShape(1, 1), 7.9)),
            "ratio_bound must be at least the largest ratio, 8; got 7.9",
        ),
        (
            lambda: accepted_law(
                POLICY, REF, BetaRejection(BetaShape(1, 1), BetaShape(1, 1), policy_ratio_bound=8, ref_ratio_bound=2)
            ),
            "ref_ratio_bound must be at least the largest ratio, 2.5; got 2.0",
        ),
        (
            lambda: accepted_law([1.0, 0.0], [0.5, 0.5], both_tests(POLICY, REF, (BetaShape(1, 1), BetaShape(1, 1)))),
            "ref_ratio_bound must be at least the largest ratio, inf; got 2.5",
        ),
        (
            lambda: accepted_law([1.0, 0.0], [1.0, 0.0], ONE, proposal=[0.5, 0.5]),
            "proposal must be 0 where both policy and ref are 0; got 0.5",
        ),
        (
            lambda: accepted_law([1.0, 0.0], [0.5, 0.5], ONE, proposal=[0.0, 1.0]),
            "rejection must accept a token that can be proposed; got 0.0",
        ),
        (lambda: perceived_law(POLICY, REF, 0), "gamma must be > 0; got 0"),
        (
            lambda: perceived_law(POLICY, REF, 0.6, proposal="policy"),
            "proposal must be one of 'ref', 'ref_power'; got 'policy'",
        ),
        (
            lambda: perceived_law(POLICY, REF, 0.6, ratio_bound=3),
            "ratio_bound must be at least the largest ratio, 8; got 3",
        ),
        (
            lambda: perceived_law([0.5, 0.5], [1.0, 0.0], 0.6),
            "policy must be 0 where ref is 0, or no bound of the ratio exists; got 0.5",
        ),
        (lambda: sequence_law([]), "conditionals must hold the conditional of at least one token; got []"),
        (
            lambda: sequence_law([[0.5, 0.5], [0.5, 0.5]]),
            "conditionals[1] must have shape (2, 'N'); got (2,)",
        ),
        (
            lambda: sequence_law([[0.5, 0.5], [[0.5, 0.5], [0.5, 0.4]]]),
            "conditionals[1] must sum to 1 within 1e-06 along the last axis; got 0.9",
        ),
        (
            lambda: accepted_sequence_law(TREE_POLICY, TREE_REF, ONE, resample="all"),
            "resample must be one of 'token', 'sequence'; got 'all'",
        ),
        (
            lambda: accepted_sequence_law(TREE_POLICY, TREE_REF[:2], ONE, resample="token"),
            "ref must have the shape of policy (2, 2, 2); got (2, 2)",
        ),
        (
            lambda: accepted_sequence_law([[1.0, 0.0]], [[0.5, 0.5]], ONE, resample="sequence", proposal=[[0.0, 1.0]]),
            "rejection must accept a sequence that can be proposed; got 0.0",
        ),
    ],
)
def test_refuses_laws_and_bounds_that_do_not_fit(build, message):
    """Every wrong argument is a ValueError that names it, its rule and the value."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()


def test_refuses_other_types():
    """A shape in place of a test, a tuple in place of a shape, and a seed in place of a generator are TypeErrors."""
    with pytest.raises(
        TypeError, match=r"^rejection must be a BetaTest or BetaRejection; got BetaShape\(a=1.0, b=1.0\)$"
    ):
        accepted_law(POLICY, REF, BetaShape(1, 1))
    with pytest.raises(TypeError, match=r"^shape must be a BetaShape; got \(1, 1\)$"):
        BetaTest((1, 1), 2)
    with pytest.raises(TypeError, match=r"^rng must be a Generator; got 0$"):
        BetaShape(1, 1).sample(0)
    with pytest.raises(TypeError):
        ONE.keeps(torch.zeros(2), np.zeros(2))


def test_prefixes_that_never_occur_do_not_matter():
    """A prefix of probability 0 may be followed by what no rejection would accept."""
    policy, ref = [[1, 0], [[0.5, 0.5], [1, 0]]], [[0.5, 0.5], [[0.5, 0.5], [0, 1]]]
    test = BetaTest(BetaShape(0.5, 1), 4)
    for resample in ("token", "sequence"):
        law = accepted_sequence_law(policy, ref, test, resample=resample)
        np.testing.assert_allclose(law.probs, [[0.5, 0.5], [0, 0]], atol=1e-15)


def test_a_rate_below_the_smallest_float_costs_infinitely_many_tokens():
    """Where next to nothing is accepted the law is still exact, and its cost infinite."""
    law = accepted_sequence_law([[0.5, 0.5]], [[0.5, 0.5]], BetaTest(BetaShape(3000, 1), 4), resample="sequence")
    np.testing.assert_allclose(law.probs, [0.5, 0.5], rtol=1e-9)
    assert law.acceptance_rate == 0 and law.proposed_tokens == np.inf


def test_a_ratio_that_cannot_occur_is_not_refused():
    """Behind a prefix of probability 0 a ratio beyond the bound matters no more to whole sequences than to tokens."""
    policy, ref = [[1.0, 0.0], [[0.5, 0.5], [0.9, 0.1]]], [[1.0, 0.0], [[0.5, 0.5], [0.1, 0.9]]]
    test = BetaTest(BetaShape(0.61, 1), 2)
    by_token, whole = (accepted_sequence_law(policy, ref, test, resample=how) for how in ("token", "sequence"))
    np.testing.assert_allclose(whole.probs, by_token.probs, rtol=1e-14)
    with pytest.raises(ValueError, match="ratio_bound must be at least the largest ratio, 9"):
        accepted_sequence_law([[0.5, 0.5], policy[1]], [[0.5, 0.5], ref[1]], test, resample="sequence")
