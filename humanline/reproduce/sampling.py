"""The verdicts on the paper's Figure 7 from the runs of one testbed: what it costs to sample 64 times less often."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from humanline.reproduce.best import tried_cells, tuned_cells, whole_cells
from humanline.reproduce.cells import SAMPLING_SYNCS, STALE_STEPS, Cell, sampling
from humanline.reproduce.frontier import is_finite
from humanline.reproduce.outcome import Outcome
from humanline.stats import Estimate, holm, mean_estimate, non_inferiority

Verdict = Literal["holds", "fails", "undecided"]
Variant = tuple[int, int | None]  # steps for which is sampled at once, and k
FRESH: Variant = (1, None)
STALE: Variant = (STALE_STEPS, None)
SYNCED: dict[str, Variant] = {"S2": (STALE_STEPS, 12), "S3": (STALE_STEPS, 20)}  # k = 1 is shown, not claimed
CLAIMS = {
    "S1": f"sampling every {STALE_STEPS} steps loses more than the margin to sampling every step",
    **{
        name: f"sampling every {STALE_STEPS} steps with humanline, k = {k}, loses less than the margin"
        for name, (_, k) in SYNCED.items()
    },
}


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """Numbers that the verdicts depend on, decided before the first run (studies/frontier/sampling.yaml).

    Parameters
    ----------
    alpha : float in (0, 1)
        Level of each test after Holm's correction, and one minus the confidence of intervals.
    margin_share : float > 0
        Margin as a share of what sampling every step gains on the start model.
    starts, draws : tuples of int
        Seeds of start models, and of prompts and samples, that are judged; further ones are not.
    cells : int
        How many `cells.sampling` has.
    digest : str
        Of their names (`rules.grid_digest`).
    """

    alpha: float = 0.05
    margin_share: float = 0.1
    starts: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    draws: tuple[int, ...] = (0,)
    cells: int = 15
    digest: str = "4877461f7d086d180dd5df7858ff0b1b721e88cf899bda7be0ffc00ff7de22f0"


@dataclass(frozen=True, slots=True)
class SamplingFinding:
    """What the runs of a testbed say of a claim.

    Attributes
    ----------
    testbed, claim : str
    estimate, low, high : float
        Score less that of sampling every step, mean over start models, and its 95 % interval, not corrected.
    margin : float
    p, adjusted : float
        Of the claim's opposite, and by Holm's correction; nan where nothing could be tested.
    verdict : str
    reason : str
        Why not more can be said.
    """

    testbed: str
    claim: str
    estimate: float
    low: float
    high: float
    margin: float
    p: float
    adjusted: float
    verdict: Verdict
    reason: str


def variant_of(cell: Cell) -> Variant:
    """Return for how many steps a cell of `cells.sampling` samples at once, and its k."""
    if cell.round_steps is None:
        raise ValueError(f"{cell.name}: no cell of the sampling runs: it does not say how often it samples")
    return cell.round_steps, cell.every


def judged_runs(outcomes: Iterable[Outcome], rules: SamplingRules) -> list[Outcome]:
    """Return the runs of `cells.sampling` from the starts and draws that are judged.

    Raises
    ------
    ValueError
        If there is none, they are of several testbeds, a run is there twice, or whole runs differ in how many updates
        they took or answers they asked the judge about: nothing but how often is sampled may tell them apart.
    """
    cells = set(sampling())
    rows = [one for one in outcomes if one.cell in cells and one.start in rules.starts and one.draw in rules.draws]
    if not rows:
        raise ValueError("outcomes: none is of the sampling cells, starts and draws that are judged")
    if len(testbeds := {one.testbed for one in rows}) > 1:
        raise ValueError(f"outcomes: must be of one testbed, are of {sorted(testbeds)}; judge each by itself")
    if len({(one.cell, one.start, one.draw) for one in rows}) < len(rows):
        raise ValueError("outcomes: a run is there twice; keep one of the two")
    efforts = {(one.updates, one.scorer_calls): one for one in rows if one.status == "done"}
    if len(efforts) > 1:
        told = ", ".join(f"{one.cell.name}: {one.updates} and {one.scorer_calls}" for one in efforts.values())
        raise ValueError(f"outcomes: runs differ in updates and in answers that were scored ({told}); run them anew")
    return rows


def judge_sampling(outcomes: Iterable[Outcome], rules: SamplingRules) -> list[SamplingFinding]:
    """Judge the claims of Figure 7 on the outcomes of one testbed.

    Each variant is taken at its own learning rate, the best by the *other* start models (`best.tuned_cells`), its score
    being the mean over draws; differences are paired by start model, and start models are the sample. A claim holds
    where its p-value, corrected by Holm, is at most `alpha`: S1 by a one-sided t-test of a difference below - margin,
    the others of one above it. It fails where the 95 % interval lies on the other side. While a run is missing, and
    where the interval of what sampling every step gains on the start models holds 0, nothing is decided.

    Raises
    ------
    ValueError
        As `judged_runs`.
    """
    rows = judged_runs(outcomes, rules)
    expected = len(sampling()) * len(rules.starts) * len(rules.draws)
    lacking = f"{expected - len(rows)} of {expected} runs are missing" if len(rows) < expected else ""
    tuned = tuned_scores(rows)
    margin = rules.margin_share * gain(rows, tuned, rules)
    found = [_finding(rows[0].testbed, name, tuned, margin, rules) for name in CLAIMS]
    adjusted = holm([one.p for one in found])
    return [_final(replace(one, adjusted=float(p)), lacking, rules) for one, p in zip(found, adjusted, strict=True)]


def overall(findings: Sequence[SamplingFinding]) -> Verdict:
    """Return the verdict on the figure as a whole: it holds where every claim does, and fails where one fails."""
    verdicts = {one.verdict for one in findings}
    if "fails" in verdicts:
        return "fails"
    return "holds" if verdicts == {"holds"} else "undecided"


def tuned_scores(rows: Sequence[Outcome]) -> dict[Variant, dict[int, float]]:
    """Return the score of each variant from each start model at the learning rate that the other starts chose.

    A variant has none where each of its cells lacks runs from some start model, or has a collapsed one.
    """
    cells = sampling()
    whole, found = whole_cells(tried_cells(rows), cells), {}
    for variant in dict.fromkeys(map(variant_of, cells)):
        runs = {cell: whole[cell] for cell in cells if cell in whole and variant_of(cell) == variant}
        found[variant] = {
            start: float(np.mean([run.score for run in runs[cell][start]])) for start, cell in tuned_cells(runs).items()
        }
    return found


def gain(rows: Sequence[Outcome], tuned: Mapping[Variant, Mapping[int, float]], rules: SamplingRules) -> float:
    """Return what sampling every step gains on the start models, mean over these; nan where it may gain nothing."""
    starts = {one.start: one.start_score for one in rows}
    if not (fresh := tuned[FRESH]):
        return math.nan
    estimate, half = _estimate(fresh, starts, rules)
    return estimate.mean if estimate.mean > half else math.nan


def difference_rows(outcomes: Iterable[Outcome], rules: SamplingRules) -> list[dict[str, Any]]:
    """Return what is shown and decides nothing: every variant less sampling every step, and less every 64 without sync.

    At each learning rate alike for both, by the score, the greedy score and the distance, and by the score with each at
    its own. Means over start models with 95 % intervals, not corrected for their number; runs that collapsed are left
    out with their start model, and counted.
    """
    rows = judged_runs(outcomes, rules)
    tuned, found = tuned_scores(rows), []
    for first, second in _pairs():
        told = {"variant": words_of(first), "less": words_of(second)}
        found.append({**told, "lr": "its own", "of": "score", **_told(tuned[first], tuned[second], rules)})
        for lr in sorted({cell.lr for cell in sampling()}):
            for name in ("score", "greedy", "kl_to_start"):
                one, other = (_by_start(rows, variant, lr, name) for variant in (first, second))
                found.append({**told, "lr": f"{lr:g}", "of": name, **_told(one, other, rules)})
    return found


def words_of(variant: Variant) -> str:
    """Return a variant in words."""
    steps, every = variant
    often = "every step" if steps == 1 else f"every {steps}"
    return often if every is None else f"{often}, humanline, k = {every}"


def _pairs() -> list[tuple[Variant, Variant]]:
    stale = [STALE, *((STALE_STEPS, every) for every in SAMPLING_SYNCS)]
    return [(one, FRESH) for one in stale] + [(one, STALE) for one in stale[1:]]


def _by_start(rows: Sequence[Outcome], variant: Variant, lr: float, name: str) -> dict[int, float]:
    """Return means over draws; without the start models from which a run collapsed."""
    runs: dict[int, list[Outcome]] = {}
    for one in rows:
        if variant_of(one.cell) == variant and one.cell.lr == lr:
            runs.setdefault(one.start, []).append(one)
    return {
        start: float(np.mean([getattr(run, name) for run in some]))
        for start, some in runs.items()
        if all(map(is_finite, some))
    }


def _told(first: Mapping[int, float], second: Mapping[int, float], rules: SamplingRules) -> dict[str, Any]:
    starts = sorted({*first} & {*second})
    if not starts:
        return dict.fromkeys(("estimate", "low", "high"), math.nan) | {"starts": 0}
    estimate, half = _estimate(first, second, rules)
    return {"estimate": estimate.mean, "low": estimate.mean - half, "high": estimate.mean + half, "starts": len(starts)}


def _estimate(first: Mapping[int, float], second: Mapping[int, float], rules: SamplingRules) -> tuple[Estimate, float]:
    """Return the mean difference over start models that both have, and half its interval's width."""
    estimate = mean_estimate([first[start] - second[start] for start in sorted({*first} & {*second})])
    return estimate, estimate.interval(1 - rules.alpha).half_width


def _finding(
    testbed: str,
    name: str,
    tuned: Mapping[Variant, Mapping[int, float]],
    margin: float,
    rules: SamplingRules,
) -> SamplingFinding:
    """Return the finding on a claim, all but its verdict."""
    one, fresh = tuned[SYNCED.get(name, STALE)], tuned[FRESH]
    unknown = dict.fromkeys(("estimate", "low", "high", "p", "adjusted"), math.nan)
    nothing = SamplingFinding(testbed, name, margin=margin, verdict="undecided", reason="", **unknown)
    if not one or not fresh:
        variant = words_of(FRESH if not fresh else SYNCED.get(name, STALE))
        said = f"{variant}: fewer than two start models, or at every learning rate a run that collapsed or is missing"
        return replace(nothing, reason=said)
    estimate, half = _estimate(one, fresh, rules)
    found = replace(nothing, estimate=estimate.mean, low=estimate.mean - half, high=estimate.mean + half)
    if math.isnan(margin):
        return replace(found, reason="sampling every step gains nothing on the start models that noise could not give")
    p = (-estimate).above(margin) if name == "S1" else non_inferiority(estimate, margin).p
    return replace(found, p=p)


def _final(finding: SamplingFinding, lacking: str, rules: SamplingRules) -> SamplingFinding:
    """Return a finding with its verdict."""
    if lacking:
        return replace(finding, reason="; ".join(filter(None, (finding.reason, lacking))))
    if math.isnan(finding.p):
        return finding
    if finding.adjusted <= rules.alpha:
        return replace(finding, verdict="holds")
    fails = finding.low > -finding.margin if finding.claim == "S1" else finding.high < -finding.margin
    return replace(finding, verdict="fails" if fails else "undecided")
