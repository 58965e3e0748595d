"""Value functions, capacities and prospects of one's own, each drawn into axes in a line of code.

They return matplotlib's axes, to be titled, labelled anew and saved; given axes, they draw into these, so that panels
can be put together. Without axes they make a figure of their own, in the house's style, which is saved by
``axes.figure.savefig("name.png")``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from humanline import _checks
from humanline.plots import _style
from humanline.theory import Capacity, ValueFunction, certainty_equivalent, decision_weights, subjective_utility

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (_style.BLACK, _style.BLUE, _style.RED, _style.GREEN, _style.ORANGE, _style.PINK, _style.SKY)
_LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (5, 4)))
_POINTS = 400
_SHORTEST_LABEL = 5  # outcomes of a prospect whose names fit below it


def plot_value(
    value: ValueFunction | Mapping[str, ValueFunction],
    *,
    low: float | None = None,
    high: float | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Draw value functions over outcomes: gains to the right of the reference point, losses to the left.

    Parameters
    ----------
    value : ValueFunction, or mapping from str to ValueFunction
        With names there is a legend.
    low, high : float, low < high, optional
        Ends of the outcomes; default: 10 below the lowest and 10 above the highest reference point.
    axes : Axes, optional
        To draw into; default: new ones.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        If an end is not finite, low is not below high, or a value in between is not finite.
    TypeError
        If something is no value function.
    ModuleNotFoundError
        If matplotlib is missing, which the extra `plots` brings.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.1.

    Examples
    --------
    >>> from humanline.theory import PowerValue
    >>> axes = plot_value({"human": PowerValue(), "no loss aversion": PowerValue(loss_aversion=1.0)})
    >>> low, high = axes.get_xlim()
    >>> float(low), float(high)
    (-10.0, 10.0)
    """
    named = _named("value", value, "reference_point")
    points = [_checks.finite("value.reference_point", one.reference_point) for one in named.values()]
    start = min(points) - 10 if low is None else _checks.finite("low", low)
    end = max(points) + 10 if high is None else _checks.finite("high", high)
    if not start < end:
        raise _checks.fail("low", f"be < high {end!r}", start)
    x = np.unique(np.concatenate([np.linspace(start, end, _POINTS), [z for z in points if start <= z <= end]]))
    curves = {name: np.asarray(one(x), dtype=np.float64) for name, one in named.items()}
    for curve in curves.values():
        _checks.no_element("value", "be finite between low and high", ~np.isfinite(curve), curve)
    with _style.style():
        axes = _axes(axes, 4.6)
        axes.axhline(0, color=_style.GREY, linewidth=0.8)
        for point in sorted(set(points)):
            axes.axvline(point, color=_style.GREY, linewidth=0.8)
        _lines(axes, x, curves, labelled=isinstance(value, Mapping))
        axes.set(xlim=(start, end), xlabel="outcome", ylabel="value", title="Value v(z)")
    return axes


def plot_capacity(capacity: Capacity | Mapping[str, Capacity], *, axes: Axes | None = None) -> Axes:
    """Draw capacities: how a cumulative probability is perceived, beside the diagonal of one that is seen as it is.

    Parameters
    ----------
    capacity : Capacity, or mapping from str to Capacity
        With names there is a legend.
    axes : Axes, optional
        To draw into; default: new ones.

    Returns
    -------
    Axes

    Raises
    ------
    TypeError
        If something is no capacity.
    ModuleNotFoundError
        If matplotlib is missing, which the extra `plots` brings.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 3.

    Examples
    --------
    >>> from humanline.theory import TverskyKahneman
    >>> axes = plot_capacity({"gains": TverskyKahneman(0.61), "losses": TverskyKahneman(0.69)})
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['gains', 'losses']
    """
    named = _named("capacity", capacity)
    fine = np.geomspace(1e-4, 0.01, 20)
    x = np.concatenate([[0.0], fine[:-1], np.linspace(0.01, 0.99, 197), 1 - fine[:-1][::-1], [1.0]])
    curves = {name: np.asarray(one(x), dtype=np.float64) for name, one in named.items()}
    with _style.style():
        axes = _axes(axes, 4.2)
        axes.plot([0, 1], [0, 1], color=_style.GREY, linewidth=0.8)
        _lines(axes, x, curves, labelled=isinstance(capacity, Mapping))
        axes.set(
            xlim=(0, 1),
            aspect="equal",
            xlabel="cumulative probability, best outcome first",
            ylabel="perceived cumulative probability",
            title="Capacity Ω(p)",
        )
    return axes


def plot_prospects(
    outcomes: ArrayLike,
    probs: ArrayLike,
    *,
    value: ValueFunction,
    gain: Capacity,
    loss: Capacity | None = None,
    names: list[str] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Draw prospects: what is objectively expected of each beside the sure outcome that a human would take for it.

    Of a single prospect every outcome is drawn, its probability beside its decision weight.

    Parameters
    ----------
    outcomes, probs : (N,) or (B, N) arrays
        As in `decision_weights`; pad shorter prospects with any outcome, of probability 0.
    value : ValueFunction
    gain, loss : Capacity
        As in `subjective_utility`.
    names : list of str, optional
        Of the prospects; default: their numbers.
    axes : Axes, optional
        To draw into; default: new ones.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError
        As `subjective_utility` does, if the arrays have more than two axes, or if there are not as many names as
        prospects.
    TypeError
        As `subjective_utility` does.
    ModuleNotFoundError
        If matplotlib is missing, which the extra `plots` brings.

    Notes
    -----
    Source: arXiv 2509.24207, Defs. 3.2 and 3.3.

    Examples
    --------
    >>> from humanline.theory import PowerValue, TverskyKahneman
    >>> human = dict(value=PowerValue(), gain=TverskyKahneman(0.61), loss=TverskyKahneman(0.69))
    >>> axes = plot_prospects([[100, 0], [50, -50]], [[0.1, 0.9], [0.5, 0.5]], **human, names=["lottery", "coin"])
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['lottery', 'coin']
    """
    theory: dict[str, Any] = {"value": value, "gain": gain, "loss": loss}
    subjective_utility(outcomes, probs, **theory)  # which refuses what is no prospect
    z, p = np.broadcast_arrays(np.asarray(outcomes, dtype=np.float64), np.asarray(probs, dtype=np.float64))
    if z.ndim > 2:
        raise _checks.fail("outcomes", "have one axis, or two", f"shape {z.shape}")
    count = 1 if z.ndim == 1 else len(z)
    if names is not None and len(names) != count:
        raise _checks.fail("names", f"hold {count}, one a prospect", names)
    with _style.style():
        if z.ndim == 1:
            weights = decision_weights(z, p, gain=gain, loss=loss, reference_point=value.reference_point)
            return _one_prospect(_axes(axes, 4.6), z, p, weights, "" if names is None else names[0])
        sure = np.asarray(certainty_equivalent(z, p, **theory))
        return _prospects(_axes(axes, 5.2), (z * p).sum(-1), sure, names or [str(i + 1) for i in range(count)])


def _one_prospect(axes: Axes, z: Any, p: Any, weights: Any, name: str) -> Axes:
    order = np.argsort(z, kind="stable")
    places = np.arange(len(z))
    few = len(z) <= 4 * _SHORTEST_LABEL
    axes.bar(places - 0.2, p[order], 0.4, color=_style.GREY, label="probability")
    axes.bar(places + 0.2, weights[order], 0.4, color=_style.BLUE, label="decision weight")
    axes.set_xticks(places if few else places[:: len(z) // _SHORTEST_LABEL])
    axes.set_xticklabels([f"{z[order][int(at)]:g}" for at in axes.get_xticks()])
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="outcome, from worst to best", ylabel="probability, decision weight", title=name or "Prospect")
    axes.legend()
    return axes


def _prospects(axes: Axes, expected: Any, sure: Any, names: list[str]) -> Axes:
    places = np.arange(len(names))[::-1]  # the first on top
    axes.hlines(places, np.minimum(expected, sure), np.maximum(expected, sure), color=_style.GREY, linewidth=1.0)
    axes.plot(expected, places, "o", color=_style.GREY, label="expected outcome")
    axes.plot(sure, places, "D", color=_style.BLUE, label="certainty equivalent")
    axes.axvline(0, color=_style.GREY, linewidth=0.8)
    axes.set_yticks(places, labels=names)
    axes.grid(axis="y", visible=False)
    axes.set(
        ylim=(-0.6, 1.16 * len(names) - 0.3), xlabel="outcome", title="Prospects, and what they are worth for certain"
    )
    axes.legend()
    return axes


def _named(argument: str, given: Any, *needed: str) -> dict[str, Any]:
    """Return functions by name; one alone has none."""
    named: dict[str, Callable[..., Any]] = dict(given) if isinstance(given, Mapping) else {"": given}
    if not named:
        raise _checks.fail(argument, "hold at least one", given)
    for one in named.values():
        if not callable(one) or any(not hasattr(one, name) for name in needed):
            kind = "value function, such as PowerValue()" if needed else "capacity, such as TverskyKahneman(0.61)"
            raise _checks.wrong_kind(argument, f"be a {kind}, or a mapping of such by name", one)
    return named


def _axes(axes: Axes | None, width: float) -> Axes:
    if axes is not None:
        return axes
    from matplotlib.figure import Figure

    return Figure(figsize=(width, 3.8), layout="constrained", dpi=_style.DPI).subplots()


def _lines(axes: Axes, x: Any, curves: Mapping[str, Any], *, labelled: bool) -> None:
    for number, (name, curve) in enumerate(curves.items()):
        again, place = divmod(number, len(_COLOURS))  # beyond as many curves as colours, each meets another line
        colour, line = _COLOURS[place], _LINES[(place + again) % len(_LINES)]
        axes.plot(x, curve, color=colour, linestyle=line, label=name or None)
    if labelled:
        axes.legend(handlelength=3.2)
