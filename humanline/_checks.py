"""The one home of argument checks.

Every message has the same three parts: the argument's name, the rule it broke and the value that was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def fail(name: str, rule: str, got: Any) -> ValueError:
    """Return the ValueError for argument `name` that breaks `rule`."""
    return ValueError(f"{name} must {rule}; got {got!r}")


def wrong_kind(name: str, rule: str, got: Any) -> TypeError:
    """Return the TypeError for argument `name`, of a kind that `rule` excludes."""
    return TypeError(f"{name} must {rule}; got {got!r}")


def finite(name: str, value: Any) -> float:
    """Return `value` as a float; raise unless it is one finite real number."""
    number = _number(name, value)
    if not math.isfinite(number):
        raise fail(name, "be finite", value)
    return number


def positive(name: str, value: Any) -> float:
    """Return `value` as a float; raise unless it is finite and > 0."""
    number = finite(name, value)
    if number <= 0:
        raise fail(name, "be > 0", value)
    return number


def non_negative(name: str, value: Any) -> float:
    """Return `value` as a float; raise unless it is finite and >= 0."""
    number = finite(name, value)
    if number < 0:
        raise fail(name, "be >= 0", value)
    return number


def parameter(name: str, value: Any, check: Callable[[str, Any], float]) -> Any:
    """Return a parameter: one number as a float that has passed `check`, an array with axes, or a tracer, as it is.

    Parameters
    ----------
    name : str
    value : float, or array of floats that broadcasts against what the function is applied to
    check : callable
        `finite`, `non_negative` or `positive`, of one number.

    Raises
    ------
    ValueError
        If a number, or an entry of an array, breaks the rule; entries that cannot be read are not checked.
    """
    if not has_axes(value):
        return check(name, value)
    if check is non_negative:
        rule, reached = "be >= 0 and finite", value >= 0
    elif check is positive:
        rule, reached = "be > 0 and finite", value > 0
    else:
        rule, reached = "be finite", value > -math.inf
    no_element(name, rule, ~(reached & (value < math.inf)), value)
    return value


def has_axes(value: Any) -> bool:
    """Return whether a parameter is an array of several, or a number of JAX that is being traced and has no value."""
    if getattr(value, "ndim", 0) and not isinstance(value, str):
        return True
    return "Tracer" in type(value).__name__ and type(value).__module__.startswith("jax")


def greater_than_one(name: str, value: Any) -> float:
    """Return `value` as a float; raise unless it is finite and > 1."""
    number = finite(name, value)
    if number <= 1:
        raise fail(name, "be > 1", value)
    return number


def clip_bounds(low: Any, high: Any, *, low_name: str = "low", high_name: str = "high") -> tuple[float, float]:
    """Return both bounds as floats; raise unless low <= 0 <= high (either may be infinite).

    A clip range that leaves out 0 would turn the zero log-ratio of padding, or of a policy equal to its
    reference, into a contribution of its own.
    """
    lower, upper = _number(low_name, low), _number(high_name, high)
    if not lower <= 0:
        raise fail(low_name, "be <= 0 nats, so that a log-ratio of 0 is left alone", low)
    if not upper >= 0:
        raise fail(high_name, "be >= 0 nats, so that a log-ratio of 0 is left alone", high)
    return lower, upper


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return `value`; raise unless it is one of `allowed`."""
    if value not in allowed:
        raise fail(name, f"be one of {', '.join(map(repr, allowed))}", value)
    return str(value)


def unknown(kind: str, name: str, known: Sequence[str]) -> ValueError:
    """Return the ValueError for a name that is not known, with the nearest known one or all of them."""
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return ValueError(f"{name}: no such {kind}; {hint}")


def same_shape(name: str, shape: Any, other_name: str, other_shape: Any) -> None:
    """Raise unless two shapes are equal; no broadcasting is guessed."""
    if tuple(shape) != tuple(other_shape):
        raise ValueError(f"{name} must have the shape of {other_name} {tuple(other_shape)}; got {tuple(shape)}")


def instance(name: str, value: Any, kind: type) -> None:
    """Raise unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise wrong_kind(name, f"be a {kind.__name__}", value)


def no_gradient(name: str, value: Any) -> None:
    """Raise if `value` is a tensor that requires a gradient, which what is made of it would lose without a word."""
    if getattr(value, "requires_grad", False):
        raise wrong_kind(name, "not require a gradient, which would be lost here: pass value.detach()", value)


def no_element(name: str, rule: str, bad: Any, values: Any) -> None:
    """Raise for the first of `values` at which the bool array `bad` (same shape) is True.

    Values that cannot be read (inside torch.func.vmap, on the meta device, traced by JAX) are not checked.
    """
    try:
        found = bool(bad.any())
    except RuntimeError:
        return
    except TypeError as error:
        if "Tracer" in type(error).__name__:  # JAX's, for what is being traced
            return
        raise
    if found:
        raise fail(name, rule, float((values + 0 * bad)[bad][0]))  # one may have been broadcast to the other


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool | str) or getattr(value, "ndim", 0) != 0:
        raise wrong_kind(name, "be one real number", value)
    no_gradient(name, value)
    try:
        return float(value)
    except OverflowError:
        raise fail(name, "be finite", value) from None
    except (TypeError, ValueError):
        raise wrong_kind(name, "be one real number", value) from None


def summable(name: str, values: Sequence[float]) -> None:
    """Raise ValueError if sums of finite values, or of their distances from their mean, may be beyond all floats."""
    if math.isinf(2 * sum(map(abs, values))):
        raise fail(name, "be small enough for their sum to be finite", max(values, key=abs))


def refuse_twice(columns: Mapping[str, str]) -> None:
    """Raise ValueError if two of our names stand for one of the file's columns."""
    for theirs in columns.values():
        ours = [name for name, other in columns.items() if other == theirs]
        if len(ours) > 1:
            raise ValueError(f"columns names the file's {theirs!r} twice, as {' and '.join(map(repr, ours))}")
