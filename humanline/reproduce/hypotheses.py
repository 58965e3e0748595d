"""The verdicts on the five hypotheses of the frontier, from the outcomes of one testbed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from humanline.reproduce.cells import OBJECTIVES, Objective, core
from humanline.reproduce.curves import Curves
from humanline.reproduce.excess import Excess, excess, mean_excess
from humanline.reproduce.frontier import Frontier, Overlap, Table, arrange, best_clips, frontier, moved, overlap
from humanline.reproduce.frontier import log_distance as log_distance_of
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.rules import Rules
from humanline.reproduce.signs import advantages
from humanline.stats import Estimate, crossed_estimate, equivalence, holm

Verdict = Literal["holds", "fails", "undecided", "no overlap"]
NAMES = ("H1", "H2", "H3", "H4", "H5")
CLAIMS = {
    "H1": "offline DPO cells predict humanline DPO cells at their distance, within the margin",
    "H2": "offline KTO cells predict humanline KTO cells at their distance, within the margin",
    "H3": "offline GRPO cells predict humanline GRPO cells at their distance, within the margin, at tuned clips",
    "H4": "online runs lie above the offline curve at their distance",
    "H5": "the curve tells the better of an offline and a humanline run more often than each of three rules",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What the runs of a testbed say of a hypothesis.

    Attributes
    ----------
    testbed, hypothesis : str
    estimate : float
        Mean score above the offline curve (H1 to H4); by how much more often the curve is right than the rule that
        comes closest to it (H5).
    low, high : float
        95 % interval, not corrected for the number of hypotheses.
    degrees : float
        Of freedom.
    margin : float
        nan for H5.
    p, adjusted : float
        Of the hypothesis' opposite, and by Holm's correction over the five; nan where nothing could be tested.
    verdict : str
    reason : str
        Why not more can be said; what H5's closest rule is.
    cells : tuple of str
        Names of cells compared.
    left_out : dict of str to str
        Cells of both sides left out, and why.
    collapsed, compared : int
        Runs without finite numbers among `compared`, all runs of the cells that could have been compared.
    beyond : float
        Mean score above the offline peak of cells further than the offline range, shown and not tested; nan without.
    missing : int
        Runs of the grid not made.
    """

    testbed: str
    hypothesis: str
    estimate: float
    low: float
    high: float
    degrees: float
    margin: float
    p: float
    adjusted: float
    verdict: Verdict
    reason: str
    cells: tuple[str, ...]
    left_out: dict[str, str]
    collapsed: int
    compared: int
    beyond: float
    missing: int

    @property
    def differs(self) -> bool:
        """Return whether the interval excludes 0, whatever the margin."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cells of a variant held against the frontier of their objective.

    Attributes
    ----------
    front : Frontier
    table : Table
        All cells of the variant that were to be compared.
    found : Overlap
    part : Excess or None
        None without overlap.
    """

    front: Frontier
    table: Table
    found: Overlap
    part: Excess | None


def judge(outcomes: Iterable[Outcome], rules: Rules) -> list[Finding]:
    """Judge the five hypotheses on the outcomes of one testbed; cells outside of `cells.core` are not looked at.

    A hypothesis holds where its p-value, corrected by Holm for five, is at most `alpha` and no more than
    `most_collapsed` of the compared runs collapsed. H1 to H3 (two one-sided tests of the mean error
    against the margin) fail where the 95 % interval lies outside of the margin; H4 (mean above 0) where it lies below
    the margin, and H5 (above 0 against each rule) where that against some rule lies below 0. Failing is not corrected
    for the number of hypotheses, so that it is easier than holding. Else, and while a run of the grid
    is missing, a hypothesis is undecided, or has no overlap.

    Raises
    ------
    ValueError
        If none is of the grid, they are of several testbeds, or a run is there twice.
    """
    rows = list(outcomes)
    table = arrange(rows, core(), rules)
    testbed = rows[0].testbed
    compared = {objective: compare(table, objective, "humanline", rules) for objective in OBJECTIVES}
    online = [compare(table, objective, "online", rules) for objective in OBJECTIVES]
    found = [
        _of_excess(testbed, name, [compared[objective]], rules)
        for name, objective in zip(NAMES[:3], OBJECTIVES, strict=True)
    ]
    found += [_of_excess(testbed, "H4", online, rules), _of_signs(testbed, table, rules)]
    adjusted = holm([one.p for one in found])
    missing = table.missing
    return [
        _final(replace(one, adjusted=float(p), missing=missing), rules) for one, p in zip(found, adjusted, strict=True)
    ]


def compare(table: Table, objective: Objective, variant: str, rules: Rules) -> Comparison:
    """Hold the cells of a variant against the offline cells of its objective.

    GRPO's clips are chosen on `tuning_draw` and everything else comes from the other draws: offline keeps the best
    `offline_clips`, without which there is no curve, and humanline the best `other_clips`; online cells are all kept.
    """
    cells = [cell for cell in table.cells if cell.objective == objective]
    offline, others = ([cell for cell in cells if cell.variant == name] for name in ("offline", variant))
    draws = table.draws
    if objective == "grpo":
        draws = tuple(draw for draw in draws if draw != rules.tuning_draw)
        clips = best_clips(table, offline, rules.offline_clips, rules.tuning_draw)
        offline = [cell for cell in offline if cell.clip_eps in clips]
        if variant == "humanline":
            clips = best_clips(table, others, rules.other_clips, rules.tuning_draw)
            others = [cell for cell in others if cell.clip_eps in clips]
    front = frontier(table.of(cells=offline, draws=draws), objective, rules)
    theirs = table.of(cells=others, draws=draws)
    found = overlap(front, theirs, rules)
    part = None
    if front.curves is not None and not found.reason:
        part = _excess(front.curves, found.inside, rules)
    return Comparison(front, theirs, found, part)


def _excess(
    curves: Curves, table: Table, rules: Rules, read: Callable[[Outcome], float] = lambda run: run.score
) -> Excess:
    return excess(curves, table.values(log_distance_of(rules)), moved(table, rules, read))


def _of_excess(testbed: str, name: str, comparisons: list[Comparison], rules: Rules) -> Finding:
    """Return the finding on the mean excess of one comparison, or of those of several objectives that overlap."""
    used = [one for one in comparisons if one.part is not None]
    left_out = {key: why for one in comparisons for key, why in (one.front.left_out | one.found.left_out).items()}
    for one in comparisons:
        if one.part is None:
            left_out |= {cell.name: one.found.reason for cell in one.found.inside.cells}
    shown = used or comparisons
    collapsed = sum(one.table.collapsed() for one in shown)
    compared = sum(len(one.table.cells) * len(one.table.starts) * len(one.table.draws) for one in shown)
    nothing = _nothing(testbed, name, left_out, collapsed, compared, _beyond(comparisons))
    if not used:
        reason = "; ".join(f"{one.front.objective}: {one.found.reason}" for one in comparisons)
        return replace(nothing, verdict="no overlap", reason=reason)
    estimate = mean_excess([one.part for one in used if one.part is not None])
    margin = float(np.mean([one.front.margin(rules) for one in used]))
    cells = tuple(cell.name for one in used for cell in one.found.inside.cells)
    if not estimate.degrees or math.isnan(margin):
        reason = "one start model" if not estimate.degrees else "the offline curve is nowhere above its start"
        return replace(nothing, estimate=estimate.mean, margin=margin, reason=reason, cells=cells)
    p = estimate.above(0.0) if name == "H4" else equivalence(estimate, margin).p
    return _with(replace(nothing, margin=margin, p=p, cells=cells), estimate, rules)


def _of_signs(testbed: str, table: Table, rules: Rules) -> Finding:
    found = advantages(table, rules) if len(table.draws) > 1 else []
    cells = [cell for cell in table.cells if cell.variant in ("offline", "humanline")]
    part = table.of(cells=cells)
    runs = len(cells) * len(table.starts) * len(table.draws)
    nothing = _nothing(testbed, "H5", {}, part.collapsed(), runs, math.nan)
    if not found or any(len(one.table) < 2 for one in found):
        return replace(nothing, verdict="no overlap", reason="too few offline runs for curves of other draws")
    if len(table.starts) < 2:
        return replace(nothing, reason="one start model")
    estimates = {one.rival: crossed_estimate(one.table) for one in found}
    worst = max(estimates, key=lambda rival: estimates[rival].above(0.0))
    right = ", ".join(f"right in {one.right:.3f} of {one.pairs} pairs against {one.rival}" for one in found)
    unused = sum(one.unused for one in found)
    reason = f"closest rule: {worst}; {right}; {unused} pairs unused"
    result = replace(nothing, p=estimates[worst].above(0.0), reason=reason, cells=tuple(c.name for c in cells))
    below = [rival for rival, one in estimates.items() if one.mean + one.interval(1 - rules.alpha).half_width < 0]
    return _with(replace(result, verdict="fails" if below else "undecided"), estimates[worst], rules)


def _nothing(
    testbed: str, name: str, left_out: dict[str, str], collapsed: int, compared: int, beyond: float
) -> Finding:
    """Return a finding that says nothing yet."""
    unknown = dict.fromkeys(("estimate", "low", "high", "degrees", "margin", "p", "adjusted"), math.nan)
    return Finding(
        testbed=testbed,
        hypothesis=name,
        verdict="undecided",
        reason="",
        cells=(),
        left_out=left_out,
        collapsed=collapsed,
        compared=compared,
        beyond=beyond,
        missing=0,
        **unknown,
    )


def _with(finding: Finding, estimate: Estimate, rules: Rules) -> Finding:
    half = estimate.interval(1 - rules.alpha).half_width
    mean = estimate.mean
    return replace(finding, estimate=mean, low=mean - half, high=mean + half, degrees=estimate.degrees)


def _beyond(comparisons: list[Comparison]) -> float:
    """Return the mean score above the offline peak of cells that lie further than the offline range."""
    values = []
    for one in comparisons:
        if one.front.curves is not None and one.found.beyond.cells:
            scores = one.found.beyond.values(lambda run: run.score)
            values += list(np.nanmean(scores - one.front.curves.peaks()[0][:, None], axis=(1, 2)))
    return float(np.mean(values)) if values else math.nan


def _final(finding: Finding, rules: Rules) -> Finding:
    """Return a finding with its verdict."""
    if finding.verdict == "no overlap" or math.isnan(finding.p):
        return finding
    outside = abs(finding.estimate) - (finding.high - finding.estimate) > finding.margin  # False for H5's nan
    fails = {"H4": finding.high < finding.margin, "H5": finding.verdict == "fails"}.get(finding.hypothesis, outside)
    if finding.missing:
        said = f"{finding.missing} runs of the grid are missing"
        return replace(finding, verdict="undecided", reason=_join(finding.reason, said))
    if finding.adjusted <= rules.alpha:
        if finding.collapsed > rules.most_collapsed * finding.compared:
            said = f"{finding.collapsed} of {finding.compared} compared runs collapsed"
            return replace(finding, reason=_join(finding.reason, said))
        return replace(finding, verdict="holds")
    return replace(finding, verdict="fails" if fails else "undecided")


def _join(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)
