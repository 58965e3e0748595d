"""Figure 2 of the paper from a concrete model: samplers as distortions of the policy's probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings
from humanline.theory import BetaShape, CapacityDistances, TverskyKahneman, human_curve
from humanline.theory.normal_ratios import CUT, Rule, beyond_a_bound, humanline_sampler, sampler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Pieces of equal width in z, in the numbers of which the distances are compared; the last is the figure's.
ATOMS = (1250, 2500, 5000, 10_000, 20_000)
TILTS = np.linspace(-2, 2, 161)
#: The gamma and the spread at which these rules were fitted to have the smallest largest difference from the human
#: curve, by `nearest_rule`: Def. 4.2 that accepts as much as the next one does (``least_accepted=0.0035, seeds=[2]``);
#: the same tests with bounds inside the spread (``cut=None, seeds=[6]``); Def. 4.2 with both b >= 1, where the best
#: tilts like a model that is worse by .273; and this package's rule ``both`` (``rule="both", cut=None, seeds=[0]``).
#: The searches are local: other rules may be closer.
#:
#: Of 15 starts of such a search for Def. 4.2, 14 ended between .1305 and .1309; where outcomes end at 3 standard
#: deviations the best is .127, and with no demand on the acceptance .127 (at 3: .112), accepting 1e-20 or less.
FITTED_AT = 0.61, 1.0
FITTED = {
    "humanline": Rule(BetaShape(0.8291396, 0.3012434), BetaShape(0.1068962, 0.2165775)),
    "bounds inside the spread": Rule(
        BetaShape(0.7242072, 0.03942008), BetaShape(0.08547727, 0.02766371), cut=None, bounds=(9.538026, 3.029225)
    ),
    "humanline, b >= 1": Rule(BetaShape(1.337, 1), BetaShape(0.61, 1)),
    "both tests": Rule(
        BetaShape(1.350051, 0.130968),
        BetaShape(0.5916573, 0.01984233),
        cut=None,
        bounds=(17.18737, 164.8066),
        rule="both",
    ),
}


def rows(*, gamma: float = 0.61, tilt: float = 1.0, spread: float = 1.0, atoms: Sequence[int] = ATOMS) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    gamma : float > 0
        Of the human capacity (Tversky and Kahneman's family, gains only).
    tilt : float > 0
        How many standard deviations of z the better and the worse model are away from the policy.
    spread : float > 0
        Standard deviation of the log-ratio, nats: the reference that humanline sampling proposes from is at -spread.
    atoms : sequence of int
        Numbers of pieces to compare; the last is used for everything else.

    Returns
    -------
    list of Row
        Panels ``curve`` (x: the policy's cumulative probability, y: the sampler's), ``sup``, ``KL``, ``area`` and
        ``share accepted`` of each curve (x: its tilt, nan if it is none), ``proposals beyond a bound`` and ``policy
        beyond a bound`` (y: share), ``KL by tilt`` and ``sup by tilt`` (x: tilt), ``KL by atoms`` and ``sup by atoms``
        (x: number of atoms), and ``setting``.

    Notes
    -----
    Source: arXiv 2509.24207, Fig. 2.
    """
    _checks.positive("tilt", tilt)
    gain, loss = TverskyKahneman(gamma), TverskyKahneman(0.69)
    tilts = {"on-policy": 0.0, "worse model": -tilt, "better model": tilt}
    out = settings(gamma=gamma, spread=spread)
    curve_x = np.concatenate([[0, 0.001, 0.0025, 0.005], np.linspace(0.01, 0.99, 99), [0.995, 0.9975, 0.999, 1]])
    out += points("curve", "human", curve_x, human_curve(curve_x, gain=gain))
    for count in atoms:
        samplers = {name: (sampler(d, atoms=count), d, math.nan) for name, d in tilts.items()}
        for name, rule in FITTED.items():
            implied, accepted = humanline_sampler(rule, spread=spread, atoms=count)
            samplers[name] = implied, math.nan, accepted
        for name, (implied, d, accepted) in samplers.items():
            distances = implied.distances(gain=gain)
            out += points("KL by atoms", name, count, distances.kl)
            out += points("sup by atoms", name, count, distances.sup)
            if count == atoms[-1]:
                out += points("curve", name, curve_x, implied.curve(curve_x))
                out += points("KL", name, d, distances.kl) + points("sup", name, d, distances.sup)
                out += points("area", name, d, distances.area)
                if name in FITTED:
                    out += points("share accepted", name, d, accepted)
                    beyond = beyond_a_bound(FITTED[name], spread=spread, atoms=count)
                    out += points("proposals beyond a bound", name, d, beyond[0])
                    out += points("policy beyond a bound", name, d, beyond[1])
    gains = _by_tilt(atoms[-1] // 4, gain, gain, 0)
    mixed = _by_tilt(atoms[-1] // 4, gain, loss, atoms[-1] // 8 + 1)
    out += points("KL by tilt", "gains only", TILTS, gains.kl)
    out += points("KL by tilt", "gains and losses", TILTS, mixed.kl)
    out += points("sup by tilt", "gains only", TILTS, gains.sup)
    return out


def _by_tilt(atoms: int, gain: Any, loss: Any, reference_point: float) -> CapacityDistances:
    """Return distances at each of TILTS; some at a time, which keeps memory small."""
    found = [
        sampler(some, atoms=atoms).distances(gain=gain, loss=loss, reference_point=reference_point)
        for some in np.array_split(TILTS, 8)
    ]
    return CapacityDistances(**{name: np.concatenate([getattr(d, name) for d in found]) for name in vars(found[0])})


#: Colour, line style and width of each curve.
_LOOK: dict[str, tuple[str, Any, float]] = {
    "human": (_style.BLACK, "-", 2.6),
    "on-policy": (_style.BLACK, "--", 1.5),
    "worse model": (_style.RED, "-.", 1.7),
    "better model": (_style.BLUE, (0, (6, 1.5)), 1.7),
    "humanline": (_style.GREEN, "-", 2.0),
    "bounds inside the spread": (_style.GREEN, ":", 1.6),
}


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    table = Table(rows)
    with _style.style():
        return _draw(table)


def _draw(table: Table) -> Figure:
    kl = {name: table.value("KL", name) for name in table.series("KL")}
    closer = [name for name in ("worse model", "better model") if kl[name] < kl["on-policy"]]
    by_kl = table.xy("KL by tilt", "gains only")[1]
    others = ", but are not the closest of all" if by_kl.min() < by_kl[by_kl.size // 2] - 1e-6 else ""
    title = (
        f"On-policy samples lie closer to the human curve than these models’{others}"
        if not closer
        else f"Here the {' and the '.join(closer)} lies closer to the human curve (KL) than on-policy samples"
    )
    figure, (curves, by_tilt) = _style.panels([6.5, 4.6], height=5.4, title=title)

    labels = {
        "human": f"human: gamma {table.setting('gamma'):g}, gains only",
        "on-policy": "on-policy",
        "worse model": f"worse model (d = {_tilt(table, 'worse model'):+g})".replace("-", "−"),
        "better model": f"better model (d = {_tilt(table, 'better model'):+g})",
        "humanline": "humanline sampling (Def. 4.2)",
        "bounds inside the spread": "not Def. 4.2: the same two tests,\nbounds that do not bound",
    }
    for name, label in labels.items():
        colour, line, width = _LOOK[name]
        text = label
        if name != "human":
            text += f"\n   sup {table.value('sup', name):.3f}   KL {kl[name]:.3f}"
        if name in FITTED:
            text += f"   accepts {_accepted(table, name)}"
        curves.plot(*table.xy("curve", name), color=colour, linestyle=line, linewidth=width, label=text)
    curves.set(
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
        xlabel="cumulative probability under the policy, worst outcome first",
        ylabel="cumulative probability under the sampler",
        title="Each sampler as a distortion of the policy",
    )
    curves.legend(
        title="distance to the human curve:\nlargest difference (sup), KL in nats",
        title_fontsize=8.0,
        alignment="left",
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
        labelspacing=0.8,
        handlelength=2.6,
    )
    _draw_by_tilt(table, by_tilt)
    count = int(table.xy("KL by atoms", "on-policy")[0][-1])
    proposals, policy = (
        table.value(f"{law} beyond a bound", "bounds inside the spread") for law in ("proposals", "policy")
    )
    is_there = (table.setting("gamma"), table.setting("spread")) == FITTED_AT
    fitted = ".  " if is_there else " at gamma {:g} and spread {:g}.\n".format(*FITTED_AT)
    notes = (
        "d: standard deviations of the log-ratio by which the sampler is better than the policy.  "
        f"{count:,} atoms of equal width.  {_convergence(table)}\n"
        f"Green rules propose from the reference and are fitted to the human curve{fitted}"
        "Def. 4.2 needs bounds that no ratio exceeds: "
        f"its outcomes end {CUT:g} standard deviations from the policy’s mean.\n"
        f"Of the other rule {100 * proposals:.0f} % of the proposals and {100 * policy:.1f} % of the policy’s outcomes "
        "lie beyond a bound and always pass that test.\n"
        "Not drawn: Def. 4.2 with both b ≥ 1, as the limit to clipping needs: "
        f"{_sup_and_share(table, 'humanline, b >= 1')}.  Rejecting only if both tests fire (ours, not Def. 4.2): "
        f"{_sup_and_share(table, 'both tests')}."
    )
    _style.note(figure, notes)
    return figure


def _draw_by_tilt(table: Table, axes: Any) -> None:
    d, kl = table.xy("KL by tilt", "gains only")
    _, mixed = table.xy("KL by tilt", "gains and losses")
    _, sup = table.xy("sup by tilt", "gains only")
    axes.plot(d, kl, color=_style.BLACK, label="KL(human ‖ sampler), nats: gains only")
    axes.plot(d, mixed, color=_style.GREY, linestyle=":", label="the same, half gains and half losses")
    axes.plot(d, sup, color=_style.ORANGE, linestyle="--", label="largest difference, gains only")
    axes.axvline(0, color=_style.GREY, linewidth=0.8)
    closer = d[kl < kl[np.abs(d).argmin()] - 1e-12]
    title = "Distance to the human curve against how much better the sampler is"
    if closer.size:
        low, high = _edges(d, kl)
        axes.axvspan(low, high, color="#f3d9cb", linewidth=0, zorder=0)
        axes.annotate(
            f"closer in KL than\non-policy (gains):\n {_between(low, high, d)}",
            xy=((low + high) / 2, 0.04),
            xytext=(0.66, 0.02),
            textcoords="axes fraction",
            xycoords=("data", "axes fraction"),
            fontsize=8,
            va="bottom",
            arrowprops={"arrowstyle": "-", "color": _style.GREY, "linewidth": 0.8},
        )
        side = "better" if not low else "worse" if not high else "worse or better"
        slightly = "slightly " if max(-low, high) < 1 else ""
        title = f"“On-policy is closest” is no theorem:\na {slightly}{side} model is closer, for gains only"
    for y, colour in ((kl, _style.BLACK), (mixed, _style.GREY), (sup, _style.ORANGE)):
        axes.plot(d[y.argmin()], y.min(), "o", color=colour, markersize=4)
    axes.set(
        xlim=(d[0], d[-1]),
        ylim=(0, max(1.4, 1.2 * float(kl[np.abs(d).argmin()]))),
        xlabel="tilt d of the sampler: worse  ←  0 = on-policy  →  better",
        ylabel="distance to the human curve",
        title=title,
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), handlelength=2.6)


def _edges(d: NDArray[Any], kl: NDArray[Any]) -> tuple[float, float]:
    """Return between which tilts KL is below its on-policy value, by straight lines between the points.

    Where it is still below at the first or the last tilt, that is the edge.
    """
    excess = kl - kl[np.abs(d).argmin()]
    excess[np.abs(d).argmin()] = 0.0
    crossings = [0.0, *(float(d[end]) for end in (0, -1) if excess[end] < 0)]
    for i in np.flatnonzero(excess[:-1] * excess[1:] < 0):
        crossings.append(float(d[i] - excess[i] * (d[i + 1] - d[i]) / (excess[i + 1] - excess[i])))
    return min(crossings), max(crossings)


def _between(low: float, high: float, d: NDArray[Any]) -> str:
    """Return in signs between which edges a tilt is; an end of those that are drawn bounds nothing."""
    names = [f"{end:+.2f}".replace("+0.00", "0").replace("-", "−") for end in (low, high)]
    is_bound = low > d[0], high < d[-1]
    sides = [names[0] + " < " if is_bound[0] else "", " < " + names[1] if is_bound[1] else ""]
    return ("d".join(sides) if any(is_bound) else "every d") + ("" if all(is_bound) else ",\nas far as drawn")


def _tilt(table: Table, name: str) -> float:
    return float(table.xy("KL", name)[0][0])


def _accepted(table: Table, name: str) -> str:
    return f"{100 * table.value('share accepted', name):.2g} %"


def _sup_and_share(table: Table, name: str) -> str:
    return f"sup {table.value('sup', name):.3f}, accepts {_accepted(table, name)}"


def _convergence(table: Table) -> str:
    """Say how much the distances change at the last doubling of the number of atoms."""
    changes = []
    for panel in ("KL by atoms", "sup by atoms"):
        for name in table.series(panel):
            _, y = table.xy(panel, name)
            if len(y) > 1:
                changes.append(abs(y[-1] - y[-2]))
    return f"Half as many atoms change no distance by more than {max(changes):.0e}." if changes else ""
