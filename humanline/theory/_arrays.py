"""What numpy arrays and torch tensors have in common: how arguments become floating arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj
from numpy.typing import NDArray

from humanline import _checks


def floats(**values: Any) -> tuple[Any, list[Any]]:
    """Return the common array namespace of `values` and each of them as a floating array.

    Arrays keep their kind, device and floating dtype; lists and scalars become numpy arrays (or arrays of the kind
    of the others); integers and bools become the kind's default float.
    """
    given = [value for value in values.values() if is_array_api_obj(value)]
    xp = array_namespace(*given) if given else array_namespace(np.empty(0))
    return xp, [_floating(xp, name, value) for name, value in values.items()]


def plain(array: Any) -> Any:
    """Return a 0-d numpy array as a scalar, anything else as it is."""
    return array[()] if isinstance(array, np.ndarray) else array


def last_axis(**values: Any) -> list[NDArray[np.float64]]:
    """Return `values` as float64 arrays of one shape (..., N), N > 0, with every entry finite.

    The only broadcasting is that of an (N,) array over the leading axes of another.
    """
    arrays = {name: np.asarray(floats(**{name: value})[1][0], dtype=np.float64) for name, value in values.items()}
    widest = max(arrays, key=lambda name: arrays[name].ndim)
    shape = arrays[widest].shape
    for name, array in arrays.items():
        if array.ndim == 0:
            raise _checks.fail(name, "have an axis of outcomes", values[name])
        if array.shape[-1] == 0:
            raise _checks.fail(name, "hold at least one outcome", array)
        _checks.same_shape(name, array.shape, widest, shape[-1:] if array.ndim == 1 else shape)
        _checks.no_element(name, "be finite", ~np.isfinite(array), array)
    return [np.broadcast_to(array, shape) for array in arrays.values()]


def _floating(xp: Any, name: str, value: Any) -> Any:
    # torch before 2.13 cuts a tensor from its graph in asarray, so what is an array already stays as it is.
    array = value if is_array_api_obj(value) else xp.asarray(value)
    if xp.isdtype(array.dtype, "real floating"):
        return array
    if not xp.isdtype(array.dtype, ("bool", "integral")):
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}")
    return xp.astype(array, xp.asarray(0.0).dtype)
