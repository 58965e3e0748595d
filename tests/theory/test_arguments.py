"""What the theory takes: laws up to the rounding of their own dtype, and errors that name argument, rule and value."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import (
    BetaRejection,
    BetaShape,
    BetaTest,
    ClipLimit,
    ClipRange,
    Identity,
    LogisticValue,
    PowerValue,
    Prelec,
    TverskyKahneman,
    accepted_law,
    accepted_sequence_law,
    certainty_equivalent,
    decision_weights,
    distance_for_gap,
    human_curve,
    implied_capacity,
    kl_divergence,
    perceived_law,
    sequence_law,
    subjective_utility,
    utility_gap_bound,
)
from humanline.theory._arrays import sum_tolerance
from tests.helpers import strategies
from tests.helpers.optional import torch

VOCABULARY = 128_256
GAIN, LOSS = TverskyKahneman(0.61), TverskyKahneman(0.69)
HUMAN = {"value": PowerValue(), "gain": GAIN, "loss": LOSS}
TEST = BetaTest(BetaShape(0.61, 1), 1e30)
LIMIT = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)

# ---- laws and their rounding ----------------------------------------------------------------------------------------


def peaked(kind, size=VOCABULARY, gap=12.0):
    """A softmax in float32 with one large logit: torch's own, or one whose sum runs from left to right."""
    logits = torch.randn(size, generator=torch.Generator().manual_seed(0))
    logits[0] = logits.max() + gap
    if kind == "torch":
        return logits.softmax(-1)
    exps = np.exp(logits.numpy() - logits.numpy().max())
    return exps / np.cumsum(exps, dtype=np.float32)[-1]


OUTCOMES = np.linspace(0.0, 1.0, VOCABULARY)
TAKES_LAWS = {
    "decision_weights": lambda law: decision_weights(OUTCOMES, law, gain=GAIN),
    "utility": lambda law: subjective_utility(OUTCOMES, law, value=PowerValue(), gain=GAIN),
    "implied_capacity": lambda law: implied_capacity(OUTCOMES, law, law).policy_probs,
    "bound": lambda law: utility_gap_bound(np.full(VOCABULARY, 1 / VOCABULARY), law, OUTCOMES).value,
    "accepted_law": lambda law: accepted_law(law, law, TEST, proposal=law).probs,
    "perceived_law": lambda law: perceived_law(law, law, 0.61).probs,
    "sequence_law": lambda law: sequence_law([law]),
    "accepted_sequence_law": lambda law: accepted_sequence_law([law], [law], TEST, resample="token").probs,
    "mean_disagreement": lambda law: LIMIT.mean_disagreement(OUTCOMES + 5, 2.0, probs=law),
}


@pytest.mark.parametrize("name", TAKES_LAWS)
@pytest.mark.parametrize("kind", ["torch", "left to right"])
def test_a_softmax_in_float32_is_a_law(kind, name):
    """A peaked softmax over a vocabulary misses 1 by 6e-5 to 1e-3, and gives what it gives when normalised first."""
    law = peaked(kind)
    exact = np.asarray(law, dtype=np.float64)
    assert 5e-5 < abs(math.fsum(exact) - 1) < 2e-3
    result = TAKES_LAWS[name](law)
    np.testing.assert_allclose(result, TAKES_LAWS[name](exact / math.fsum(exact)), rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="must sum to 1 within 1e-06 along the last axis; got "):
        TAKES_LAWS[name](exact)  # in float64 rounding explains none of it


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_softmax_in_16_bits_is_a_law(dtype):
    """Numbers of 16 bits, which torch sums in float32, are accepted too."""
    law = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0)).to(dtype).softmax(-1)
    weights = decision_weights(OUTCOMES, law, gain=Identity())
    np.testing.assert_allclose(weights, law.double() / law.double().sum(), rtol=1e-9, atol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 3000), spread=st.floats(0.1, 12), kind=st.sampled_from("fde"))
def test_rounding_stays_within_the_tolerance(seed, size, spread, kind):
    """Higham's bound: numbers divided by their sum from left to right, all in one dtype, sum to 1 within N u + u."""
    dtype = np.dtype(kind)
    terms = np.exp(np.random.default_rng(seed).normal(0, spread, size).clip(-9, 9) - 9).astype(dtype)
    total = np.float32(0) if kind == "e" else dtype.type(0)
    for term in terms:
        total = total + term.astype(total.dtype)
    law = (terms / total).astype(dtype)
    missed = abs(sum(map(Fraction, law.astype(float).tolist())) - 1)
    assert missed <= Fraction(sum_tolerance(law, size))


@pytest.mark.parametrize(
    ("dtype", "size", "tolerance"),
    [
        (np.float64, VOCABULARY, 1e-6),
        (np.float32, 5, 1e-6),
        (np.float32, VOCABULARY, (VOCABULARY + 1) * 2.0**-24),
        (np.float16, 1000, 1000 * 2.0**-24 + 2.0**-11 + 1000 * 2.0**-25),
    ],
)
def test_the_tolerance_is_that_of_the_dtype_and_no_more(dtype, size, tolerance):
    """A law that misses 1 by a little less than the tolerance is taken, one that misses it by a little more is not."""
    assert sum_tolerance(np.zeros(size, dtype), size) == pytest.approx(tolerance, rel=1e-12)
    eps = float(np.finfo(dtype).eps)
    for sign in (-1, 1):
        for share, taken in ((0.9 - eps / tolerance, True), (1.1 + eps / tolerance, False)):
            law = np.zeros(size, dtype)
            law[:2] = 0.5, 0.5 + sign * share * tolerance
            if taken:
                assert sequence_law([law]).sum() == pytest.approx(1, rel=1e-12)
            else:
                with pytest.raises(ValueError, match=r"conditionals\[0\] must sum to 1 within "):
                    sequence_law([law])


@pytest.mark.parametrize("k", range(1, 16))
@pytest.mark.parametrize("sign", [-1, 1])
def test_probabilities_that_sum_to_almost_1(k, sign):
    """In float64 a sum of 1 +- 10^-k is taken for k >= 7 and refused for k <= 5, whatever takes the law."""
    law = [0.25, 0.75 + sign * 10.0**-k]
    half = [0.5, 0.5]
    for take in (
        lambda: decision_weights([1, 2], law, gain=GAIN),
        lambda: implied_capacity([1, 2], half, law),
        lambda: utility_gap_bound(half, law, [1, 2]),
        lambda: accepted_law(law, half, TEST),
        lambda: perceived_law(half, law, 0.61),
        lambda: LIMIT.mean_disagreement([1, 2], 10.0, probs=law),
    ):
        if k <= 5:
            with pytest.raises(ValueError, match="must sum to 1 within 1e-06"):
                take()
        elif k >= 7:
            take()


@pytest.mark.parametrize("k", range(1, 16))
@pytest.mark.parametrize("sign", [-1, 1])
def test_weights_whose_mass_is_almost_1(k, sign):
    """At a mass of 1 +- 10^-k the printed bound of Prop. 3.4 applies for k >= 13 and not for k <= 11, both ways."""
    mass = 1 + sign * 10.0**-k
    rule = utility_gap_bound([0.5, mass - 0.5], [0.25, 0.75], [-1.0, 1.0]).all["as-printed"]
    distance = distance_for_gap(0.5, [-1.0, 1.0], mass=mass).all["as-printed"]
    assert rule.applies == distance.applies == (not math.isnan(rule.value)) == (not math.isnan(distance.value))
    if k != 12:
        assert rule.applies == (k > 12)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(prospect=strategies.prospects(), gamma=strategies.monotone_gammas)
def test_the_mass_of_gains_is_1_up_to_rounding(prospect, gamma):
    """Weights of gains only always count as of mass 1: their rounding is far below the tolerance."""
    outcomes, probs = np.abs(prospect[0]), prospect[1]
    weights = decision_weights(outcomes, probs, gain=TverskyKahneman(gamma))
    assert abs(math.fsum(weights) - 1) < 1e-13
    assert utility_gap_bound(weights, np.full(len(weights), 1 / len(weights)), outcomes).all["as-printed"].applies


@pytest.mark.parametrize("kind", ["torch", "left to right"])
def test_a_bound_worked_out_in_float32_is_one(kind):
    """The largest ratio of two float32 laws as given is a bound of it, although normalising moves the ratio."""
    policy, ref = peaked(kind, 32_000, gap=15.0), peaked(kind, 32_000, gap=3.0)
    ratio, inverse = float((policy / ref).max()), float((ref / policy).max())
    shape = BetaShape(0.61, 1)
    both = BetaRejection(shape, shape, policy_ratio_bound=ratio, ref_ratio_bound=inverse)
    for rejection in (BetaTest(shape, ratio), both):
        law = accepted_law(policy, ref, rejection).probs
        for resample in ("token", "sequence"):
            again = accepted_sequence_law([policy], [ref], rejection, resample=resample).probs
            np.testing.assert_allclose(again, law, rtol=1e-12)
    perceived_law(policy, ref, 0.61, ratio_bound=ratio)
    with pytest.raises(ValueError, match="ratio_bound must be at least the largest ratio"):
        accepted_law(policy, ref, BetaTest(shape, 0.99 * ratio))
    with pytest.raises(ValueError, match="ratio_bound must be at least the largest ratio"):
        perceived_law(policy, ref, 0.61, ratio_bound=0.99 * ratio)


# ---- gains only -----------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=60)
@given(prospect=strategies.prospects())
def test_gains_need_no_capacity_of_losses(prospect):
    """Without losses, leaving `loss` out is the same as giving any; with one it is an error that names it."""
    outcomes, probs = prospect
    gains = np.abs(outcomes)
    for call in (decision_weights, subjective_utility, certainty_equivalent):
        human = {"gain": GAIN} if call is decision_weights else {"gain": GAIN, "value": PowerValue()}
        np.testing.assert_array_equal(call(gains, probs, **human), call(gains, probs, loss=LOSS, **human))
        if min(outcomes) < 0:
            worst = re.escape(str(next(z for z in outcomes if z < 0)))
            with pytest.raises(
                ValueError, match=f"^loss must be given, since there are outcomes below .*; got {worst}$"
            ):
                call(outcomes, probs, **human)


def test_the_reference_point_says_what_a_gain_is():
    """Outcomes below 0 need no `loss` where the reference point is lower still."""
    value = PowerValue(reference_point=-5.0)
    assert subjective_utility([-5, -1], [0.5, 0.5], value=value, gain=Identity()) == pytest.approx(4**0.88 / 2)
    with pytest.raises(ValueError, match=r"^loss must be given.*; got 4\.0$"):
        decision_weights([4, 6], [0.5, 0.5], gain=GAIN, reference_point=5)


# ---- errors ---------------------------------------------------------------------------------------------------------


class NoInverse:
    """A value function that cannot be inverted."""

    reference_point = 0.0

    def __call__(self, outcome):
        return outcome


WANTED = "value must be a value function, which can be called and has "


@pytest.mark.parametrize(
    ("call", "value", "message"),
    [
        (subjective_utility, abs, f"{WANTED}reference_point, such as PowerValue(); got {abs!r}"),
        (subjective_utility, 0.88, f"{WANTED}reference_point, such as PowerValue(); got 0.88"),
        (certainty_equivalent, abs, f"{WANTED}reference_point and inverse, such as PowerValue(); got {abs!r}"),
        (
            certainty_equivalent,
            no := NoInverse(),
            f"{WANTED}reference_point and inverse, such as PowerValue(); got {no!r}",
        ),
    ],
)
def test_a_plain_callable_is_no_value_function(call, value, message):
    """What has no reference point, or for an equivalent no inverse, is refused by name before anything is computed."""
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        call([1, 2], [0.5, 0.5], value=value, gain=GAIN)
    assert subjective_utility([1, 2], [0.5, 0.5], value=NoInverse(), gain=Identity()) == 1.5


ONE_ARRAY = "be one array, or lists that hold numbers and are as long as each other at every level"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("outcomes", lambda bad: decision_weights(bad, [0.5, 0.5], gain=GAIN)),
        ("probs", lambda bad: subjective_utility([1, 2], bad, **HUMAN)),
        ("outcome", lambda bad: PowerValue()(bad)),
        ("prob", lambda bad: GAIN(bad)),
        ("policy", lambda bad: accepted_law(bad, [0.5, 0.5], TEST)),
        ("log_ratio", lambda bad: LIMIT.rejection(8).acceptance_probability(bad)),
        ("draws", lambda bad: TEST.keeps(torch.zeros(2), bad)),
    ],
)
@pytest.mark.parametrize("bad", [[[1, 2], [3]], [[1, 2], 3]])
def test_ragged_lists_are_named(name, call, bad):
    """Lists of unequal lengths are an error that names the argument, in numpy and beside a tensor."""
    with pytest.raises(ValueError, match=f"^{re.escape(f'{name} must {ONE_ARRAY}; got {bad}')}$"):
        call(bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda big: decision_weights([0, big], [0.5, 0.5], gain=GAIN, loss=LOSS),
        lambda big: PowerValue()([0, big]),
        lambda big: PowerValue()(big),
        lambda big: utility_gap_bound([0.5, 0.5], [0.25, 0.75], [0, big]).value,
    ],
)
def test_integers_beyond_64_bits_are_numbers(call):
    """An integer that no integer of 64 bits holds gives what the float does; beyond float64 it must be finite."""
    np.testing.assert_array_equal(call(10**30), call(1e30))
    np.testing.assert_array_equal(call(-(10**30)), call(-1e30))
    with pytest.raises(ValueError, match=r"^(outcomes?|values) must be finite; got 10{400}$"):
        call(10**400)


def test_integers_beyond_64_bits_beside_a_tensor():
    """Beside a tensor such a list is a tensor too."""
    keeps = TEST.keeps(torch.zeros(2), [0, 10**30])
    assert keeps.tolist() == TEST.keeps(torch.zeros(2), [0, 1e30]).tolist()
    with pytest.raises(ValueError, match=r"^draws must be finite; got 10{400}$"):
        TEST.keeps(torch.zeros(2), [0, 10**400])


@pytest.mark.parametrize("bad", [[None, 1.0], ["1", 10**30], [10**30, 1j]])
def test_objects_that_are_no_real_numbers_stay_refused(bad):
    """What float64 would read from None, or from text, is not taken for a number."""
    with pytest.raises(TypeError, match=r"^outcome must hold real numbers; got dtype "):
        PowerValue()(bad)


def test_kinds_of_arrays_are_not_mixed():
    """Mixing numpy and torch in a call whose result has their kind is an error that names both arguments and kinds."""
    message = "log_ratio, policy_draws must be arrays of one kind; got numpy.ndarray and torch.Tensor"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        LIMIT.rejection(8).keeps(torch.zeros(2), np.zeros(2), [0.5, 0.5])
    mixed = decision_weights(torch.tensor([1.0, 2.0]), np.array([0.5, 0.5]), gain=GAIN)  # numpy's, whatever is given
    np.testing.assert_array_equal(mixed, decision_weights([1.0, 2.0], [0.5, 0.5], gain=GAIN))


def leaf() -> Any:
    """Return a law that wants a gradient."""
    return torch.tensor([0.25, 0.75], requires_grad=True)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("outcomes", lambda: decision_weights(leaf(), [0.5, 0.5], gain=GAIN)),
        ("probs", lambda: subjective_utility([1, 2], leaf(), **HUMAN)),
        ("outcomes", lambda: certainty_equivalent(leaf(), [0.5, 0.5], **HUMAN)),
        ("p", lambda: kl_divergence(leaf(), [0.5, 0.5])),
        ("candidate", lambda: utility_gap_bound([0.5, 0.5], leaf(), [1, 2])),
        ("gap", lambda: distance_for_gap(leaf(), [1, 2])),
        ("prob", lambda: human_curve(leaf(), gain=GAIN)),
        ("sampler_probs", lambda: implied_capacity([1, 2], [0.5, 0.5], leaf())),
        ("policy", lambda: accepted_law(leaf(), [0.5, 0.5], TEST)),
        ("ref", lambda: perceived_law([0.5, 0.5], leaf(), 0.61)),
        ("conditionals[0]", lambda: sequence_law([leaf()])),
        ("log_ratio", lambda: TEST.acceptance_probability(leaf())),
        ("log_ratio", lambda: TEST.log_acceptance_probability(leaf())),
        ("log_ratio", lambda: LIMIT.rejection(8).acceptance_probability(leaf())),
        ("log_ratio", lambda: LIMIT.rejection(8).log_acceptance_probability(leaf())),
        ("x", lambda: BetaShape(2, 3).cdf(leaf())),
        ("log_ratio", lambda: LIMIT.error(leaf(), 8.0)),
        ("concentration", lambda: LIMIT.acceptance_probability(0.0, leaf())),
        ("log_ratio", lambda: LIMIT.limiting_error(leaf())),
    ],
)
def test_no_gradient_is_lost_without_a_word(name, call):
    """A tensor that requires a gradient is refused, by name, where the result is numpy's."""
    message = f"{name} must not require a gradient, which would be lost here: pass value.detach(); got {leaf()!r}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        call()


def test_no_gradient_is_lost_from_a_list():
    """Tensors inside a list are refused by name too, beside numpy and beside a tensor."""
    for call in (lambda: PowerValue()([leaf()[0], 2.0]), lambda: TEST.keeps(torch.zeros(1, 2), [[0.5, leaf()[1]]])):
        with pytest.raises(TypeError, match=r"^(outcome|draws) must not require a gradient, which would be lost here"):
            call()


def test_detached_tensors_are_taken():
    """The same tensors without gradient give what lists give, scalars too."""
    law = leaf().detach().double()
    np.testing.assert_array_equal(
        decision_weights(law, law, gain=GAIN), decision_weights(law.tolist(), law.tolist(), gain=GAIN)
    )
    given, plain = (
        distance_for_gap(gap, [1, 2], mass=mass) for gap, mass in ((torch.tensor(0.5), np.array(1.0)), (0.5, 1.0))
    )
    assert (given.divergence, given.rule) == (plain.divergence, plain.rule)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("gamma", TverskyKahneman),
        ("alpha", Prelec),
        ("curvature", LogisticValue),
        ("loss_aversion", lambda given: PowerValue(loss_aversion=given)),
        ("reference_point", lambda given: PowerValue(reference_point=given)),
        ("a", lambda given: BetaShape(given, 1)),
        ("ratio_bound", lambda given: BetaTest(BetaShape(1, 1), given)),
        ("low", lambda given: ClipRange(given, 1.5)),
        ("gamma", lambda given: perceived_law([0.5, 0.5], [0.5, 0.5], given)),
    ],
)
def test_a_parameter_does_not_lose_its_gradient(name, build):
    """A torch parameter is not turned into a plain number without a word; one that is detached is."""
    parameter = torch.nn.Parameter(torch.tensor(-0.61 if name == "low" else 1.61))
    with pytest.raises(
        TypeError, match=f"^{name} must not require a gradient, which would be lost here.*; got Parameter"
    ):
        build(parameter)
    build(parameter.detach())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("call", [subjective_utility, certainty_equivalent])
@pytest.mark.parametrize(
    ("outcomes", "probs", "message"),
    [
        ([1.0, 1e200], [0.5, 0.5], "outcomes must have values that floats can hold; got 1e+200"),
        ([1e200, -1e300], [0.5, 0.5], "outcomes must have values that floats can hold; got 1e+200"),
        ([1.0, -1e200], [1.0, 0.0], "outcomes must have values that floats can hold; got -1e+200"),
        ([1.3e154, 1.3e154], [0.99, 0.01], None),
    ],
)
def test_outcomes_that_overflow_are_named(call, outcomes, probs, message):
    """Values beyond the largest float are refused, where they gave inf or nan; just below it they are not."""
    human = {"value": PowerValue(2.0), "gain": GAIN, "loss": LOSS}
    if message is None:
        assert np.isfinite(call(outcomes, probs, **human))
        return
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(outcomes, probs, **human)


def test_a_utility_that_overflows_is_named():
    """A weight above 1, as a capacity that is not monotone can give, makes a finite value overflow: refused too."""
    with pytest.raises(ValueError, match=r"^outcomes must have a utility that floats can hold; got inf$"):
        subjective_utility(
            [1.7e308, 1.0],
            [0.5, 0.5],
            value=PowerValue(1.0),
            gain=lambda p: p + 3 * p * (1 - p),  # 1.25 at 1/2
            allow_negative=True,
        )


def test_numbers_too_large_for_a_float_are_named():
    """An integer beyond the largest float is refused as an argument, not by an OverflowError."""
    with pytest.raises(ValueError, match=r"^gamma must be finite; got 1000"):
        TverskyKahneman(10**400)
