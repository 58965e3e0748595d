"""What choices tell of a capacity: the same number of them in two sets of problems, before and after the answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit import Choices, Model, design_check, fit_prospect, simulate_choices
from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings
from humanline.theory import TverskyKahneman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Options = tuple[tuple[Any, Any], tuple[Any, Any]]
#: The medians of Tversky and Kahneman (1992), and a sensitivity at which people often, not always, take the better one.
MEDIANS = {"curvature": 0.88, "loss_aversion": 2.25, "gain.gamma": 0.61, "loss.gamma": 0.69, "sensitivity": 0.3}
#: Sets of problems: probabilities that spread, and probabilities of a half.
SPREAD, HALVES = "probabilities of .05 to .95", "probabilities of .45 to .55"
#: The standard error that choices are counted for, as a share of a parameter.
WISHED = 0.1
#: Digits of what comes from an optimum, which another machine finds again that closely.
DIGITS = 5


def made_problems(name: str, *, number: int = 40, seed: int = 0) -> Options:
    """Return problems of two outcomes against one or two: gains, losses and both, of amounts up to 100.

    Parameters
    ----------
    name : str
        `SPREAD` or `HALVES`: only the probabilities differ.
    number : int
    seed : int
        Of the amounts.
    """
    rng = np.random.default_rng(seed)
    least, most = (0.05, 0.95) if name == SPREAD else (0.45, 0.55)
    prob = least + (most - least) * rng.random((2, number))
    large, small = rng.integers(30, 101, (2, number)), rng.integers(0, 30, (2, number))
    sign = np.array([1, -1, 1])[np.arange(number) % 3]  # a third each: gains, losses, and gains against losses
    mixed = np.arange(number) % 3 == 2
    first = np.stack([sign * large[0], np.where(mixed, -small[0] - 10, sign * small[0])], 1)
    mean = prob[0] * first[:, 0] + (1 - prob[0]) * first[:, 1]
    # The second is worth about as much on average, closer together.
    second = np.stack([mean + sign * 0.3 * large[1] * (1 - prob[1]), mean - sign * 0.3 * large[1] * prob[1]], 1)
    probs = [np.stack([each, 1 - each], 1) for each in prob]
    return (first.astype(float), probs[0]), (np.round(second), probs[1])


def rows(*, gamma: float = 0.61, total: int = 10_000, seed: int = 0) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    gamma : float
        Of gains, of the people who answer; the rest are the medians of 1992.
    total : int
        Choices that are drawn and fitted in each set of problems.
    seed : int
        Of the answers.

    Returns
    -------
    list of Row
        Panels ``capacity`` (x: probability, y: perceived one), with series ``people``, and of each set of problems the
        fit and the ``low`` and ``high`` end of its 95 % band; ``estimate``, ``low`` and ``high`` (y: gamma of gains, of
        each set); ``expected`` and ``answered`` (y: choices in all for a standard error of a tenth of a parameter, by
        expected information and by that of the fit); ``correlated`` (y: the largest expected correlation of two
        estimates).
    """
    truth = {**MEDIANS, "gain.gamma": gamma}
    prob = np.linspace(0, 1, 101)
    out = settings(gamma=gamma, total=total, seed=seed)
    out += points("capacity", "people", prob, TverskyKahneman(gamma)(prob))
    out += points("capacity", "1992", prob, TverskyKahneman(MEDIANS["gain.gamma"])(prob))
    for name in (SPREAD, HALVES):
        problems = made_problems(name)
        design = design_check(problems, values=truth, n=1)
        share = 1 / len(design.n)
        for parameter, value in design.values.items():
            out += points("expected", f"{name}: {parameter}", math.nan, design.needed(parameter, WISHED * value))
        out += points("correlated", name, math.nan, np.abs(design.correlations - np.eye(5)).max())
        answers = simulate_choices(Model(), problems, values=truth, n=round(total * share), kind="counts", seed=seed)
        out += _fitted(name, answers, prob, total)
    return out


def _fitted(name: str, answers: Choices, prob: NDArray[Any], total: int) -> list[Row]:
    fit = fit_prospect(answers, starts=3)
    interval = fit.interval("gain.gamma")
    estimate = fit.estimates["gain.gamma"]
    found = {"estimate": estimate, "low": interval.low, "high": interval.high}
    out: list[Row] = []
    for kind, value in found.items():
        value = round(float(value), DIGITS)
        out += points(kind, name, math.nan, value)
        series = name if kind == "estimate" else f"{name}, {kind}"
        out += points("capacity", series, prob, TverskyKahneman(max(value, 0.28))(prob))
    for parameter, error in fit.standard_errors().items():
        needed = total * (error / fit.estimates[parameter] / WISHED) ** 2
        out += points("answered", f"{name}: {parameter}", math.nan, float(f"{needed:.{DIGITS}g}"))
    return out


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


_LOOK: dict[str, tuple[str, Any]] = {SPREAD: (_style.BLUE, "--"), HALVES: (_style.RED, "-.")}
_PARAMETERS = {
    "gain.gamma": "gamma of gains",
    "loss.gamma": "gamma of losses",
    "curvature": "curvature",
    "loss_aversion": "loss aversion",
    "sensitivity": "sensitivity",
}


def _draw(table: Table) -> Figure:
    needed = {name: table.value("expected", f"{name}: gain.gamma") for name in _LOOK}
    factor = needed[HALVES] / needed[SPREAD]
    title = f"What is asked decides what is learnt: one set needs {factor:.0f} times as many choices for the same gamma"
    figure, axes = _style.panels([4.6, 5.0], height=5.6, title=title)
    total = int(table.setting("total"))
    axes[0].plot(*table.xy("capacity", "people"), color=_style.BLACK, linewidth=2.2, label="the people who answer")
    for name, (colour, line) in _LOOK.items():
        x, below = table.xy("capacity", f"{name}, low")
        _, above = table.xy("capacity", f"{name}, high")
        axes[0].fill_between(x, below, above, color=colour, alpha=0.18, linewidth=0)
        low, high, estimate = (table.value(kind, name) for kind in ("low", "high", "estimate"))
        label = f"{name}:\n   γ = {estimate:.3f} ({low:.3f} to {high:.3f})"
        axes[0].plot(*table.xy("capacity", name), color=colour, linestyle=line, label=label)
    axes[0].plot([0, 1], [0, 1], color=_style.GREY, linewidth=0.8)
    axes[0].set(
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
        xlabel="cumulative probability, best outcome first",
        ylabel="perceived cumulative probability",
        title=f"Capacity of gains, fitted to {total:,} choices",
    )
    axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    places = np.arange(len(_PARAMETERS))[::-1]
    for name, (colour, _) in _LOOK.items():
        expected, answered = (
            [table.value(kind, f"{name}: {each}") for each in _PARAMETERS] for kind in ("expected", "answered")
        )
        axes[1].plot(expected, places, "o", color=colour, markersize=7, label=f"{name}: expected")
        axes[1].plot(answered, places - 0.18, "D", color=colour, fillstyle="none", label="the same, as answered")
    axes[1].set(
        xscale="log",
        ylim=(-0.6, len(places) - 0.4),
        xlabel="choices in all",
        title="Choices for a standard error of a tenth of the parameter",
    )
    axes[1].set_yticks(places, list(_PARAMETERS.values()))
    axes[1].legend(loc="upper center", bbox_to_anchor=(0.4, -0.16))
    correlated = ", ".join(f"{table.value('correlated', name):.3f} ({name})" for name in _LOOK)
    gamma, seed = table.setting("gamma"), int(table.setting("seed"))
    _style.note(
        figure,
        f"Answers are simulated (gamma of gains {gamma:g}, the rest the medians of 1992, sensitivity 0.3, seed {seed}) "
        "to 40 problems of gains, losses and both.\n"
        f"Shaded: 95 % interval of gamma. The largest expected correlation of two estimates: {correlated}.",
    )
    return figure
