"""The verdict of a study on each of the paper's claims, setting by setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from humanline.plots import _names, _style
from humanline.plots._table import SETTING, Row, Table, points, settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from humanline.sim.report import Report

_VERDICTS = ("holds", "small", "undecided", "slightly contrary", "contrary", "rounding", "not tested")
_NO_EVIDENCE = ("rounding", "not tested")
#: Verdicts over all settings, in the order in which the claims are drawn, and what is written above them.
_OVERALL = {
    "holds everywhere": "hold in every setting that tests them",
    "depends": "depend on the setting (those that hold most often first)",
    "small at most": "make a small difference at most",
    "contrary somewhere, holds nowhere": "hold in no setting, and the contrary does in some",
    "undecided everywhere": "are decided in no setting",
    "not tested": "were not tested",
}
#: The claims of `humanline.sim.claims` in few words; claims.md has all of them.
WORDS = {
    "online-beats-offline": "online beats offline",
    "humanline-beats-offline": "humanline beats offline, same data",
    "humanline-closes-gap": "offline humanline does as well as online",
    "sync-closes-half-the-gap": "syncing alone closes half of the gap",
    "sync-gives-most": "syncing alone gives most of the gain (k = 1)",
    "sync-gives-most-k16": "syncing alone gives most of the gain (k = 16)",
    "sync-needed": "clipping alone falls short of humanline",
    "clip-needed": "syncing alone falls short (k = 1)",
    "clip-needed-k16": "syncing alone falls short (k = 16)",
    "clip-matches-sampling": "clipping matches Beta rejection (k = 1)",
    "clip-matches-sampling-k16": "clipping matches Beta rejection (k = 16)",
    "larger-k-slower": "syncing less often learns more slowly",
    "larger-k-stabler": "syncing less often is stabler",
    "larger-k-stabler-stale": "syncing less often is stabler, old samples",
    "k1-collapses": "syncing every step collapses",
    "stale-samples-hurt": "without humanline, old samples do harm",
    "humanline-tolerates-stale": "with humanline, samples may be 64 steps old",
    "trust-region-worse": "trust-region syncing is worse",
    "low-probability-worse": "improbable data are worse",
    "clip-range-hardly-matters": "the clip range hardly matters",
    "online-humanline-slightly-better": "humanline helps online too, but less",
    "online-beats-worse-data": "online beats data of a worse policy",
    "online-beats-better-data": "online beats data of a better policy",
    "humanline-ahead-at-distance": "humanline ahead at equal KL (k = 1)",
    "humanline-ahead-at-farthest": "the same at the farthest KL (k = 1)",
    "humanline-ahead-at-distance-k64": "humanline ahead at equal KL (k = 64)",
    "humanline-ahead-at-farthest-k64": "the same at the farthest KL (k = 64)",
    "online-ahead-at-distance": "online ahead at equal KL",
    "online-ahead-at-farthest": "online ahead at the farthest KL",
    "online-travels-farther": "online goes farther from the start",
    "perceived-distance-predicts": "closer to the perceived law ends higher",
    "perceived-predicts-better": "the perceived law tells more than the policy",
    "placebo-undistorted": "placebo: perception with gamma = 1",
    "placebo-mean-age": "placebo: a reference as old on average",
    "placebo-same-ages": "placebo: a reference of the same ages",
    "placebo-random-detachment": "placebo: tokens detached at random",
    "placebo-other-seeds": "placebo: even seeds against odd ones",
}


def rows(report: Report) -> list[Row]:
    """Return the numbers of the figure.

    Returns
    -------
    list of Row
        Panel: a claim with its verdict over all settings; series: ``task, objective``; x: the learning rate, infinite
        for the tuned one; y: 0 holds, 1 small, 2 undecided, 3 slightly contrary, 4 contrary, 5 rounding, 6 not tested.
        Panel ``setting``: seeds.
    """
    from humanline.sim.contrasts import MARGIN

    out = settings(seeds=report.scale.seeds, margin=MARGIN)
    for judgement in report.judgements:
        for f in judgement.findings:
            rate = math.inf if f.setting.rate is None else f.setting.rate
            panel = f"{judgement.claim.name}: {judgement.verdict}"
            series = f"{f.setting.task}, {f.setting.objective}"
            out += points(panel, series, rate, _VERDICTS.index(f.verdict))
    return out


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows), list(dict.fromkeys(row.panel for row in rows if row.panel != SETTING)))


def by_verdict(table: Table, claims: list[str]) -> dict[str, list[str]]:
    """Return the claims of each verdict over all settings, those that hold in the largest share of tests first."""

    def order(claim: str) -> float:
        fixed, tuned = _count(table, claim, tuned=False), _count(table, claim, tuned=True)
        return -(fixed[0] + tuned[0]) / max(fixed[1] + tuned[1], 1)

    groups = {verdict: [claim for claim in claims if claim.endswith(f": {verdict}")] for verdict in _OVERALL}
    return {verdict: sorted(group, key=order) for verdict, group in groups.items() if group}


def _count(table: Table, claim: str, *, tuned: bool) -> tuple[int, int]:
    """Return in how many settings, of fixed learning rates or tuned, a claim holds, of those in which it is tested."""
    boxes = [box for series in table.series(claim) for box in zip(*table.xy(claim, series), strict=True)]
    verdicts = [_VERDICTS[int(y)] for x, y in boxes if math.isinf(x) == tuned]
    return verdicts.count("holds"), sum(verdict not in _NO_EVIDENCE for verdict in verdicts)


def _label(table: Table, claim: str) -> str:
    fixed, tuned = ("{} of {}".format(*_count(table, claim, tuned=tuned)) for tuned in (False, True))
    return f"{WORDS[claim.partition(':')[0]]}:  {fixed}" + (f", tuned {tuned}" if tuned != "0 of 0" else "")


def _draw(table: Table, claims: list[str]) -> Figure:
    from matplotlib.patches import Patch

    looks = {
        "holds": (_style.GREEN, ""),
        "small": ("#b5e0d3", ""),
        "undecided": ("#d0d0d0", ""),
        "slightly contrary": ("#f3cdb3", "xxxx"),
        "contrary": (_style.RED, "xxxx"),
        "rounding": ("#ffffff", "////"),
        "not tested": ("#ffffff", "...."),
    }
    groups = list(dict.fromkeys(series for claim in claims for series in table.series(claim)))
    rates = sorted({x for claim in claims for series in table.series(claim) for x in table.xy(claim, series)[0]})
    title = "The paper's claims on small exact problems: where each holds"
    ordered = by_verdict(table, claims)
    lines = len(claims) + len(ordered)
    figure, (axes,) = _style.panels([11.6], height=2.2 + 0.27 * lines, title=title)
    places = {rate: place + 0.35 * math.isinf(rate) for place, rate in enumerate(rates)}  # the tuned one stands apart
    width = len(rates) + 0.95
    down, ticks, labels = 0, [], []
    for verdict, group in ordered.items():
        axes.text(-0.3, down + 0.62, f"These {_OVERALL[verdict]}", fontsize=8, fontweight="bold", va="center")
        down += 1
        for claim in group:
            for series in table.series(claim):
                left = groups.index(series) * width
                for rate, found in zip(*table.xy(claim, series), strict=True):
                    axes.add_patch(_box(left + places[rate], down, *looks[_VERDICTS[int(found)]]))
            ticks.append(down + 0.5)
            labels.append(_label(table, claim))
            down += 1
    axes.set(xlim=(-0.3, len(groups) * width - 0.3), ylim=(lines, -0.1))
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_xticks(
        [group * width + places[rate] + 0.5 for group in range(len(groups)) for rate in rates],
        [("tuned" if math.isinf(rate) else f"{rate:g}") for _ in groups for rate in rates],
        rotation=90,
        fontsize=6.5,
    )
    for place, name in enumerate(groups):
        words = "\n".join(_names.setting(name)).replace(", ", ",\n")
        axes.text(place * width + len(rates) / 2, -0.3, words, ha="center", va="bottom", fontsize=8)
    axes.grid(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("learning rate")
    patches = [
        Patch(facecolor=c, hatch=h, edgecolor=_style.GREY, linewidth=0.4, label=n) for n, (c, h) in looks.items()
    ]
    axes.legend(handles=patches, ncols=len(patches), loc="upper center", bbox_to_anchor=(0.4, -0.11))
    _style.note(
        figure,
        "A box is a setting: problem, objective and learning rate (tuned: the best for each variant).  “20 of 45, "
        "tuned 5 of 9”: holds in 20 of the settings of fixed learning rates that test the claim, and in 5 tuned ones.\n"
        f"Holds, contrary: sign-flip tests over n = {table.setting('seeds'):g} seeds, p < 0.05 after Holm’s correction "
        f"over a claim’s settings.  Small, slightly contrary: a difference below {table.setting('margin'):g} of what "
        "there is to gain.\nRounding: another rounding says something else.  Not tested: the setting says nothing "
        "about the claim, as where no token is clipped.",
    )
    return figure


def _box(left: float, top: float, colour: str, hatch: str) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (left + 0.06, top + 0.08), 0.88, 0.84, facecolor=colour, hatch=hatch, edgecolor=_style.GREY, linewidth=0.4
    )
