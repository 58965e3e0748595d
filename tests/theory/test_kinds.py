"""Which kind of array comes back: every public function for numbers, lists, numpy arrays and torch tensors."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from humanline import theory
from humanline.theory import (
    BetaRejection,
    BetaShape,
    BetaTest,
    ClipLimit,
    ClipRange,
    ExponentialPower,
    ExponentialValue,
    HyperbolicLog,
    Identity,
    LinearInLogOdds,
    LogarithmicValue,
    LogisticValue,
    NeoAdditive,
    PowerValue,
    PowerWeight,
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
    separable_weights,
    sequence_law,
    subjective_utility,
    total_variation,
    utility_gap_bound,
)
from tests.helpers.optional import torch

Make = Callable[[Any], Any]

SHAPE, CLIP, GAIN = BetaShape(2, 3), ClipRange(-1.5, 1.5), TverskyKahneman(0.61)
TEST, LIMIT = BetaTest(SHAPE, 4), ClipLimit(CLIP, policy_ratio_bound=6, ref_ratio_bound=6)
REJECTION = BetaRejection(SHAPE, SHAPE, policy_ratio_bound=4, ref_ratio_bound=4)
HUMAN = {"value": PowerValue(), "gain": GAIN, "loss": GAIN}
LAW = [0.25, 0.75]
IMPLIED = implied_capacity([1.0, 2.0], LAW, LAW)
CAPACITIES = [
    GAIN,
    Prelec(0.65),
    LinearInLogOdds(0.61, 0.724),
    PowerWeight(2.0),
    NeoAdditive(0.8, 0.1),
    ExponentialPower(2.0, 0.5),
    HyperbolicLog(1.0, 1.5),
    Identity(),
]
VALUES = [PowerValue(), ExponentialValue(0.5), LogarithmicValue(0.5), LogisticValue(0.5)]


def of_its_own(function: Callable[[Any], Any]) -> Callable[[Make, Any], Any]:
    """The call of a function of one argument."""
    return lambda make, x: function(make(x))


def of_logs(function: Callable[[Any], Any]) -> Callable[[Make, Any], Any]:
    """The call of a function of logs of probabilities."""
    return lambda make, x: function(make((-np.asarray(x)).tolist()))


def the_last_of(partials: Callable[[Any], tuple[Any, dict[str, Any]]]) -> Callable[[Any], Any]:
    """The last derivative in a parameter, or the value where there is no parameter."""
    return lambda x: [(found := partials(x))[0], *found[1].values()][-1]


#: What answers in kind, elementwise: from a function that makes an argument of a number or of nested lists of them.
IN_KIND: dict[str, Callable[[Make, Any], Any]] = {
    **{f"{type(c).__name__}.__call__": of_its_own(c) for c in (*CAPACITIES, *VALUES)},
    **{f"{type(c).__name__}.inverse": of_its_own(c.inverse) for c in (*CAPACITIES, *VALUES)},
    **{f"{type(c).__name__}.derivative": of_its_own(c.derivative) for c in (*CAPACITIES, *VALUES)},
    **{f"{type(c).__name__}.partials": of_logs(the_last_of(c.partials)) for c in CAPACITIES},
    **{f"{type(v).__name__}.partials": of_its_own(the_last_of(v.partials)) for v in VALUES},
    **{f"{type(c).__name__}.log": of_logs(c.log) for c in CAPACITIES},
    "ClipRange.clip": of_its_own(CLIP.clip),
}
VERDICTS: dict[str, Callable[[Make, Any], Any]] = {
    "ClipRange.contains": lambda make, x: CLIP.contains(make(x)),
    "BetaTest.keeps": lambda make, x: TEST.keeps(make(x), make(x)),
    "BetaRejection.keeps": lambda make, x: REJECTION.keeps(make(x), make(x), make(x)),
}
#: What gives numpy's float64 whatever it is given, elementwise.
FLOAT64: dict[str, Callable[[Make, Any], Any]] = {
    "BetaShape.cdf": lambda make, x: SHAPE.cdf(make(x)),
    "BetaTest.acceptance_probability": lambda make, x: TEST.acceptance_probability(make(x)),
    "BetaTest.log_acceptance_probability": lambda make, x: TEST.log_acceptance_probability(make(x)),
    "BetaRejection.acceptance_probability": lambda make, x: REJECTION.acceptance_probability(make(x)),
    "BetaRejection.log_acceptance_probability": lambda make, x: REJECTION.log_acceptance_probability(make(x)),
    "ClipLimit.acceptance_probability": lambda make, x: LIMIT.acceptance_probability(make(x), make(x)),
    "ClipLimit.error": lambda make, x: LIMIT.error(make(x), make(x)),
    "ClipLimit.error_bound": lambda make, x: LIMIT.error_bound(make(x), make(x)),
    "ClipLimit.limiting_error": lambda make, x: LIMIT.limiting_error(make(x)),
    "ClipLimit.mean_disagreement": lambda make, x: LIMIT.mean_disagreement(make(LAW), make(x), probs=make(LAW)),
    "ClipLimit.mean_disagreement_of_density": lambda make, x: LIMIT.mean_disagreement_of_density(
        lambda at: np.full_like(at, 0.25), make(x), support=(-2, 2)
    ),
    "ImpliedCapacity.__call__": lambda make, x: IMPLIED(make(x)),
    "ImpliedCapacity.curve": lambda make, x: IMPLIED.curve(make(x)),
    "human_curve": lambda make, x: human_curve(make(x), gain=GAIN),
}
#: What takes laws over the last axis, and how many axes the result of one law has.
OF_LAWS: dict[str, tuple[int, Callable[[Make, Any], Any]]] = {
    "decision_weights": (1, lambda make, p: decision_weights(make(p), make(p), gain=GAIN)),
    "separable_weights": (1, lambda make, p: separable_weights(make(p), make(p), gain=GAIN)),
    "subjective_utility": (0, lambda make, p: subjective_utility(make(p), make(p), **HUMAN)),
    "certainty_equivalent": (0, lambda make, p: certainty_equivalent(make(p), make(p), **HUMAN)),
    "kl_divergence": (0, lambda make, p: kl_divergence(make(p), make(p))),
    "total_variation": (0, lambda make, p: total_variation(make(p), make(p))),
    "AcceptedLaw.probs": (1, lambda make, p: accepted_law(make(p), make(p), TEST).probs),
    "accepted_law": (0, lambda make, p: accepted_law(make(p), make(p), TEST).acceptance_rate),
    "perceived_law": (0, lambda make, p: perceived_law(make(p), make(p), 0.61).proposed_tokens),
    "implied_capacity": (1, lambda make, p: implied_capacity(make(LAW), make(LAW), make(p)).sampler_probs),
    "ImpliedCapacity.distances": (
        0,
        lambda make, p: implied_capacity(make(LAW), make(LAW), make(p)).distances(gain=GAIN).sup,
    ),
}
#: What gives Python's objects, here floats, where there are no axes.
PYTHON: dict[str, Callable[[Make, Any], Any]] = {
    "utility_gap_bound": lambda make, p: utility_gap_bound(make(p), make(p), make(LAW)).value,
    "distance_for_gap": lambda make, p: distance_for_gap(make(p), make(LAW)).divergence,
}
#: What gives a Python float, or an array of its own shape, whatever the shape of its arguments.
FIXED: dict[str, Callable[[Make], Any]] = {
    "ClipLimit.needed_concentration": lambda make: LIMIT.needed_concentration(make(0.5), make(0.25)),
    "ClipLimit.decay_exponent": lambda make: LIMIT.decay_exponent(make(LAW), probs=make(LAW)),
    "accepted_sequence_law": lambda make: (
        accepted_sequence_law([make(LAW)], [make(LAW)], TEST, resample="token").acceptance_rate
    ),
    "sequence_law": lambda make: sequence_law([make(LAW)]),
}
#: What takes no array: numbers and settings only.
NO_ARRAYS = {
    *(f"{type(each).__name__}.max_abs" for each in VALUES),
    "BetaRejection.near",
    "BetaShape.sample",
    "ClipLimit.disagreement_constant",
    "ClipLimit.rejection",
}


def every(*tables: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("call", [pytest.param(f, id=name) for table in tables for name, f in table.items()])


ARRAYS = pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
#: On the meta device the dtypes take one path, and an inverse, which cannot see that it is done, takes seconds.
TENSORS = pytest.mark.parametrize(
    "device,dtype",
    [
        pytest.param(device, dtype, marks=pytest.mark.slow if device == "meta" and dtype is not torch.float32 else ())
        for device in ("cpu", "meta")
        for dtype in DTYPES
    ],
)
PLAIN = pytest.mark.parametrize("make", [lambda x: x, np.array], ids=["Python", "numpy"])
EVERY_KIND = pytest.mark.parametrize(
    "make",
    [lambda x: x, np.array, lambda x: np.array(x, np.float32), torch.tensor, lambda x: torch.tensor(x).double()],
    ids=["Python", "float64", "float32", "torch.float32", "torch.float64"],
)
X = [[0.25, 0.5, 0.375]]


def test_every_public_function_is_in_a_table():
    """No public function, or public method of a public class, has an answer whose kind nothing here looks at."""
    found = set()
    for name in theory.__all__:
        public = getattr(theory, name)
        if not inspect.isclass(public):
            found.add(name)
        elif not getattr(public, "_is_protocol", False):
            methods = [method for method, _ in inspect.getmembers(public, callable) if not method.startswith("_")]
            own = any("__call__" in vars(each) for each in public.__mro__)
            found |= {f"{name}.{method}" for method in [*methods, *(["__call__"] if own else [])]}
    tables = (IN_KIND, VERDICTS, FLOAT64, OF_LAWS, PYTHON, FIXED)
    listed = {name for table in tables for name in table} | NO_ARRAYS
    assert found == listed - {"AcceptedLaw.probs"}


@every(IN_KIND)
@ARRAYS
def test_numpy_arrays_and_scalars_keep_their_dtype(call, dtype):
    """An array gives an array of its shape and dtype; one without axes gives a numpy scalar."""
    for x, kind in ((X, np.ndarray), (0.25, dtype)):
        answer = call(lambda each: np.array(each, dtype), x)
        assert type(answer) is kind and answer.dtype == dtype and answer.shape == np.shape(x)


@every(IN_KIND, FLOAT64)
def test_numbers_and_lists_are_float64(call):
    """A number gives a numpy float64, a list an array of them."""
    for x, kind in ((X, np.ndarray), (0.25, np.float64)):
        answer = call(lambda each: each, x)
        assert type(answer) is kind and answer.dtype == np.float64 and answer.shape == np.shape(x)


@every(IN_KIND)
@TENSORS
def test_tensors_keep_dtype_and_device(call, dtype, device):
    """A tensor gives a tensor of its shape, dtype and device, without axes too."""
    for x in (X, 0.25):
        answer = call(lambda each: torch.tensor(each, dtype=dtype, device=device), x)
        assert type(answer) is torch.Tensor
        assert (answer.dtype, answer.shape, answer.device.type) == (dtype, np.shape(x), device)


@pytest.mark.gpu
def test_tensors_stay_on_the_gpu():
    """What answers in kind, verdicts too, leaves a tensor on the GPU; what computes in numpy refuses one."""
    for call in (*IN_KIND.values(), *VERDICTS.values()):
        assert call(lambda each: torch.tensor(each, device="cuda"), X).device.type == "cuda"
    for call in FLOAT64.values():
        with pytest.raises(TypeError, match="cuda"):
            call(lambda each: torch.tensor(each, device="cuda"), X)


@every(VERDICTS)
def test_verdicts_are_bools_of_the_kind_given(call):
    """Lists and arrays give bool arrays, numbers numpy bools, and tensors bool tensors on their device."""
    for make in (lambda each: each, np.array, lambda each: np.array(each, np.float32)):
        assert type(call(make, 0.25)) is np.bool_
        answer = call(make, X)
        assert type(answer) is np.ndarray and answer.dtype == np.bool_ and answer.shape == np.shape(X)
    for device in ("cpu", "meta"):
        for x in (X, 0.25):
            answer = call(lambda each, device=device: torch.tensor(each, device=device), x)
            assert type(answer) is torch.Tensor and (answer.dtype, answer.device.type) == (torch.bool, device)


@pytest.mark.parametrize("call", [GAIN, PowerValue(), CLIP.clip])
def test_integers_become_the_default_float(call):
    """Integers and bools become float64 with numpy and torch's default dtype in tensors."""
    for given in ([0, 1], [False, True]):
        assert call(np.array(given)).dtype == call(given).dtype == np.float64
        assert call(torch.tensor(given)).dtype == torch.get_default_dtype() == torch.float32


@every(FLOAT64)
@EVERY_KIND
def test_float64_whatever_is_given(call, make):
    """Arrays and tensors of any dtype give float64 arrays of their shape, those without axes numpy scalars."""
    for x, kind in ((X, np.ndarray), (0.25, np.float64)):
        answer = call(make, x)
        assert type(answer) is kind and answer.dtype == np.float64 and answer.shape == np.shape(x)


@every(OF_LAWS)
@EVERY_KIND
def test_laws_give_float64_whatever_is_given(call, make):
    """One law gives a float64 array of its outcomes, or a numpy scalar; several give float64 arrays."""
    axes, function = call
    for p, shape in ((LAW, ()), ([LAW, LAW[::-1]], (2,))):
        answer = function(make, p)
        assert type(answer) is (np.ndarray if shape or axes else np.float64)
        assert answer.dtype == np.float64 and answer.shape == (*shape, 2)[: len(shape) + axes]


@every(PYTHON)
@EVERY_KIND
def test_bounds_of_one_law_are_python_floats(call, make):
    """Without axes the numbers are Python's, with axes float64 arrays; so are the rules, as strings."""
    one = call(make, LAW) if call is PYTHON["utility_gap_bound"] else call(make, 0.25)
    assert type(one) is float
    several = call(make, [LAW, LAW])
    assert type(several) is np.ndarray and several.dtype == np.float64
    bound = utility_gap_bound(make(LAW), make(LAW), make(LAW))
    assert type(bound.rule) is str and type(bound.reason) is str and type(bound.all["pinsker"].applies) is bool


@every(FIXED)
@EVERY_KIND
def test_one_number_or_law_is_the_same_for_every_kind(call, make):
    """What is about one case is a Python float, and the law of sequences a float64 array."""
    answer = call(make)
    assert type(answer) is float or (type(answer) is np.ndarray and answer.dtype == np.float64)


def test_what_takes_numbers_gives_numpy_arrays_or_floats():
    """Draws are a float or a float64 array, the largest value and the constants Python floats."""
    rng = np.random.default_rng(0)
    for shape in (SHAPE, BetaShape(2, 1), BetaShape(1, 2)):
        assert isinstance(shape.sample(rng), float)
        assert shape.sample(rng, 3).dtype == np.float64
    assert all(type(value.max_abs(-1.0, 1.0)) is float for value in VALUES)
    assert type(LIMIT.disagreement_constant(0.1, 0.1)) is float
    assert dataclasses.is_dataclass(LIMIT.rejection(8.0)) and type(LIMIT.rejection(8.0).policy.a) is float
    assert type(BetaRejection.near(CLIP, 8, policy_ratio_bound=6, ref_ratio_bound=6).ref.b) is float


def test_whole_numbers_of_a_tensor_keep_their_digits():
    """They are float64 as of an array, where torch's default float had made ties of neighbours."""
    large, near, probs = [16777216, 16777217], [100000001, 100000003], [0.5, 0.5]
    gain, other = TverskyKahneman(0.61), TverskyKahneman(0.69)
    for outcomes, options in ((large, {}), (near, {"loss": other, "reference_point": 100000002})):
        of_array, of_tensor = (
            decision_weights(kind(outcomes), probs, gain=gain, **options) for kind in (np.array, torch.tensor)
        )
        assert (of_array == of_tensor).all() and of_array[0] != of_array[1]
