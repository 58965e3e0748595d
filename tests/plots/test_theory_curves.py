"""Curves of one's own: what is drawn is what the theory says, in axes that come back."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from humanline.plots import plot_capacity, plot_prospects, plot_value
from humanline.theory import (
    ExponentialValue,
    PowerValue,
    TverskyKahneman,
    certainty_equivalent,
    decision_weights,
)

HUMAN = {"value": PowerValue(), "gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}
Z, P = [[100, 0], [50, -50], [3, 1]], [[0.1, 0.9], [0.5, 0.5], [0.2, 0.8]]


def lines(axes) -> dict:
    return {line.get_label(): line.get_xydata() for line in axes.lines if not line.get_label().startswith("_")}


def test_values_are_drawn_with_their_kink():
    """The curves are the functions', from end to end, with a point where gains and losses meet."""
    functions = {"power": PowerValue(reference_point=0.3), "bounded": ExponentialValue(0.5, loss_aversion=2.0)}
    axes = plot_value(functions, low=-3.0, high=4.0)
    assert axes.get_xlim() == (-3.0, 4.0) and lines(axes).keys() == functions.keys()
    for name, points in lines(axes).items():
        np.testing.assert_array_equal(points[:, 1], functions[name](points[:, 0]))
        assert {-3.0, 0.0, 0.3, 4.0} <= set(points[:, 0])
    alone = plot_value(PowerValue(reference_point=2.0))
    assert alone.get_xlim() == (-8.0, 12.0) and alone.get_legend() is None


def test_capacities_are_drawn_beside_the_diagonal():
    """From 0 to 1, both ends in."""
    capacity = TverskyKahneman(0.61)
    points = lines(plot_capacity({"gains": capacity}))["gains"]
    np.testing.assert_array_equal(points[:, 1], capacity(points[:, 0]))
    assert points[0].tolist() == [0.0, 0.0] and points[-1].tolist() == [1.0, 1.0]


def test_as_many_curves_as_there_are_looks_are_told_apart():
    """Twenty named curves have twenty pairs of colour and dashes."""
    axes = plot_value({f"aversion {number}": PowerValue(loss_aversion=1 + number / 10) for number in range(20)})
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in named}
    assert len(named) == len(looks) == 20


def test_prospects_are_drawn_by_what_they_are_worth():
    """The expected outcome and the certainty equivalent of each, the first on top."""
    axes = plot_prospects(Z, P, **HUMAN, names=["a", "b", "c"])
    drawn = lines(axes)
    np.testing.assert_allclose(drawn["expected outcome"][:, 0], [10.0, 0.0, 1.4])
    np.testing.assert_allclose(drawn["certainty equivalent"][:, 0], certainty_equivalent(Z, P, **HUMAN))
    labels = dict(zip(axes.get_yticks(), [text.get_text() for text in axes.get_yticklabels()], strict=True))
    assert [labels[place] for place in drawn["expected outcome"][:, 1]] == ["a", "b", "c"] and labels[2] == "a"


def test_a_prospect_is_drawn_by_its_outcomes():
    """Bars from the worst outcome to the best: probabilities and decision weights."""
    z, p = [36.0, 25.0, -9.0, -16.0], [0.7, 0.1, 0.1, 0.1]
    axes = plot_prospects(z, p, **HUMAN)
    weights = decision_weights(z, p, gain=HUMAN["gain"], loss=HUMAN["loss"])
    heights = [[bar.get_height() for bar in group] for group in axes.containers]
    np.testing.assert_allclose(heights, [p[::-1], weights[::-1]])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["-16", "-9", "25", "36"]
    many = plot_prospects(np.arange(100.0), np.full(100, 0.01), **HUMAN)
    assert len(many.get_xticks()) <= 6 and many.get_xticklabels()[1].get_text() == "20"


def test_given_axes_are_drawn_into_and_come_back():
    """So that panels can be put together."""
    axes = Figure().subplots(1, 3)
    assert plot_value(PowerValue(), axes=axes[0]) is axes[0]
    assert plot_capacity(TverskyKahneman(0.61), axes=axes[1]) is axes[1]
    assert plot_prospects(Z, P, **HUMAN, axes=axes[2]) is axes[2]
    assert all(one.has_data() for one in axes)


@pytest.mark.parametrize(
    "call,error,said",
    [
        (lambda: plot_value(abs), TypeError, "value must be a value function, such as PowerValue"),
        (lambda: plot_value({}), ValueError, "value must hold at least one"),
        (lambda: plot_value(PowerValue(), low=3.0, high=3.0), ValueError, "low must be < high 3.0; got 3.0"),
        (lambda: plot_capacity(0.61), TypeError, "capacity must be a capacity, such as TverskyKahneman"),
        (lambda: plot_prospects(Z, P, **HUMAN, names=["a"]), ValueError, "names must hold 3, one a prospect"),
        (lambda: plot_prospects([Z], [P], **HUMAN), ValueError, "outcomes must have one axis, or two"),
        (lambda: plot_prospects([1, np.nan], [0.5, 0.5], **HUMAN), ValueError, "pad with probability 0"),
    ],
)
def test_what_cannot_be_drawn_is_named(call, error, said):
    """The argument, the rule and what was given."""
    with pytest.raises(error, match=said):
        call()


def test_nothing_but_matplotlib_is_needed():
    """They are drawn where torch is missing, and without pyplot."""
    code = "import sys; sys.modules['torch'] = None\nfrom humanline.plots import plot_capacity\n"
    code += "from humanline.theory import TverskyKahneman\nplot_capacity(TverskyKahneman(0.61)).figure.canvas.draw()\n"
    code += "assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
