"""What numpy arrays and torch tensors have in common: how arguments become floating arrays, and when they are laws."""

from __future__ import annotations

import numbers
import reprlib
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj
from numpy.typing import NDArray

from humanline import _checks

#: How far the entries of a law may sum from 1 before it is refused; within it the law is normalised.
SUM_TOLERANCE = 1e-6
#: The rounding unit of the sums that laws are normalised by: libraries sum numbers of 16 bits in float32.
_WIDEST_UNIT = 2.0**-24


def floats(**values: Any) -> tuple[Any, list[Any]]:
    """Return the common array namespace of `values` and each of them as a floating array.

    Arrays keep their kind, device and floating dtype; lists and scalars become numpy arrays (or arrays of the kind
    of the others); integers and bools become the kind's default float.
    """
    given = {name: value for name, value in values.items() if is_array_api_obj(value)}
    try:
        xp = array_namespace(*given.values()) if given else array_namespace(np.empty(0))
    except TypeError:
        kinds = " and ".join(sorted({f"{type(each).__module__}.{type(each).__name__}" for each in given.values()}))
        raise TypeError(f"{', '.join(given)} must be arrays of one kind; got {kinds}") from None
    return xp, [_floating(xp, name, value) for name, value in values.items()]


def float64(name: str, value: Any) -> NDArray[np.float64]:
    """Return an argument of a function whose results are numpy's, so that no gradient could come back."""
    if is_array_api_obj(value) and not isinstance(value, np.ndarray):
        xp = array_namespace(value)
        if xp.isdtype(value.dtype, ("bool", "integral")):  # the kind's default float may hold fewer digits
            value = xp.astype(value, xp.float64)
    xp, (array,) = floats(**{name: value})
    _checks.no_gradient(name, array)
    return np.asarray(array if isinstance(array, np.ndarray) else xp.astype(array, xp.float64), dtype=np.float64)


def plain(array: Any) -> Any:
    """Return a 0-d numpy array as a scalar, anything else as it is."""
    return array[()] if isinstance(array, np.ndarray) else array


_PAD = "to make prospects equally long, pad with probability 0, and any finite outcome"


def last_axis(**values: Any) -> list[NDArray[np.float64]]:
    """Return `values` as float64 arrays of one shape (..., N), N > 0, with every entry finite.

    Each may be of a kind of its own, a numpy array beside a tensor: unlike in `floats`, results are numpy's whatever is
    given, so that the kinds leave nothing to guess. The only broadcasting is that of an (N,) array over the leading
    axes of another.
    """
    arrays = {name: float64(name, value) for name, value in values.items()}
    widest = max(arrays, key=lambda name: arrays[name].ndim)
    shape = arrays[widest].shape
    for name, array in arrays.items():
        if array.ndim == 0:
            raise _checks.fail(name, "have an axis of outcomes", values[name])
        if array.shape[-1] == 0:
            raise _checks.fail(name, "hold at least one outcome", array)
        _checks.same_shape(name, array.shape, widest, shape[-1:] if array.ndim == 1 else shape)
        if "outcomes" in values and np.isnan(array).any():
            raise ValueError(f"{_checks.fail(name, 'be finite', float('nan'))}; {_PAD}")
        _checks.no_element(name, "be finite", ~np.isfinite(array), array)
    return [np.broadcast_to(array, shape) for array in arrays.values()]


def law_total(name: str, given: Any, law: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of a law along its last axis, which stays; raise unless it is one, up to rounding.

    `given` is the argument that `last_axis` made `law` of.
    """
    _checks.no_element(name, "be >= 0", law < 0, law)
    total = law.sum(-1, keepdims=True)
    tolerance = sum_tolerance(given, law.shape[-1])
    rule = f"sum to 1 within {tolerance:.2g} along the last axis"
    _checks.no_element(name, rule, np.abs(total - 1) > tolerance, total)
    return np.asarray(total)


def sum_tolerance(given: Any, entries: int) -> float:
    """Return how far the entries of a law may sum from 1: 1e-6, or what rounding in the law's own dtype can explain.

    With u the rounding unit (half of eps), a sum of N terms >= 0, in any order, is right up to a factor of ``1 +- N u``
    (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), and the terms divided by it are each right
    up to a factor of ``1 +- u``, or half the smallest subnormal: the quotients sum to 1 within
    ``N u + u + N tiny / 2``. In float32 with 128 256 entries that is .0076; sums from left to right come to .001 of it,
    torch's softmax to 6e-5.
    """
    info = _precision(given)
    unit, smallest = float(info.eps) / 2, float(info.smallest_normal) * float(info.eps)
    return max(SUM_TOLERANCE, entries * min(unit, _WIDEST_UNIT) + unit + entries * smallest / 2)


def resolution(given: Any) -> float:
    """Return the relative distance of neighbouring numbers (eps) in an argument's own dtype."""
    return float(_precision(given).eps)


def _precision(given: Any) -> Any:
    xp, (array,) = floats(given=given)
    return xp.finfo(array.dtype)


def _floating(xp: Any, name: str, value: Any) -> Any:
    # torch before 2.13 cuts a tensor from its graph in asarray, so what is an array already stays as it is.
    array = value if is_array_api_obj(value) else _from_list(xp, name, value)
    if isinstance(array, np.ndarray) and array.dtype == object:
        array = _from_objects(name, array)
    if xp.isdtype(array.dtype, "real floating"):
        return array
    if not xp.isdtype(array.dtype, ("bool", "integral")):
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}")
    return xp.astype(array, xp.asarray(0.0).dtype)


def _from_list(xp: Any, name: str, value: Any) -> Any:
    """Return nested lists, or a scalar, as an array."""
    if not isinstance(xp.asarray(0.0), np.ndarray):  # numpy refuses tensors with a gradient, torch detaches them
        _no_gradient_inside(name, value)
    try:
        return xp.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        _no_gradient_inside(name, value)
        if (wide := _too_wide(value)) is not None:  # torch refuses integers beyond 64 bits, numpy makes them objects
            return xp.asarray(_from_objects(name, wide).tolist())
        rule = "be one array, or lists that hold numbers and are as long as each other at every level"
        raise ValueError(f"{name} must {rule}; got {reprlib.repr(value)}") from error


def _too_wide(value: Any) -> NDArray[np.object_] | None:
    """Return lists of numbers that fit no integer of 64 bits as an array of Python's; None for anything else."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        return None
    return array if array.dtype == object and _all_real(array) else None


def _from_objects(name: str, array: NDArray[np.object_]) -> NDArray[Any]:
    """Return Python's numbers, such as integers beyond 64 bits, as float64; other objects as they are."""
    if not _all_real(array):
        return array
    try:
        return array.astype(np.float64)
    except OverflowError:
        raise _checks.fail(name, "be finite", max(array.ravel().tolist(), key=abs)) from None


def _all_real(array: NDArray[np.object_]) -> bool:
    return all(isinstance(each, numbers.Real) for each in array.flat)


def _no_gradient_inside(name: str, value: Any) -> None:
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, list | tuple):
            _no_gradient_inside(name, each)
        else:
            _checks.no_gradient(name, each)
