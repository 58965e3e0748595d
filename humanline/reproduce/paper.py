"""What runs here say of the paper's figures and tables (`paper_claims`): differences, intervals, verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from humanline.reproduce.best import Runs, tried_cells, tuned_cells, whole_cells
from humanline.reproduce.cells import Cell, Objective
from humanline.reproduce.edges import edges
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.paper_claims import CLAIMS, ONLINE, PaperClaim
from humanline.stats import Estimate, holm, mean_estimate

#: Level of a test of either side, after Holm's correction over a claim's objectives; one minus intervals' confidence.
ALPHA = 0.05
#: What counts as alike: this share of what the tuned online runs gain on the start models.
MARGIN_SHARE = 0.1
#: A claim about clipping says something where at least this share of tokens is clipped.
LEAST_CLIPPED = 0.01


@dataclass(frozen=True, slots=True)
class PaperRow:
    """What the runs of a testbed say of a claim, for one objective.

    Attributes
    ----------
    testbed, where, says, objective, paper, differs, exact : str
    kind, of : str
        As in `PaperClaim`.
    first, second : float
        Mean of each, over start models.
    difference, low, high : float
        First less second, with its 95 % interval over start models, not corrected.
    margin : float
        Of a claim that both are alike.
    p, adjusted : float
        Of the claim's opposite, and by Holm's correction over the claim's objectives: small where the claim holds.
    contrary, contrary_adjusted : float
        Of the claim itself, and corrected likewise: small where it does not hold.
    clipped : float
        Share of tokens that the first's runs clip, or the second's where the claim is about their clipping.
    starts : int
    verdict : "holds here", "does not hold here", "undecided here", "not testable here" or "not run"
    why : str
    first_edges, second_edges : str
        At which edges of what was run the chosen cells of each side lie (`edges.edges`); empty where none was chosen.
    """

    testbed: str
    where: str
    says: str
    objective: str
    paper: str
    verdict: str
    first: float = math.nan
    second: float = math.nan
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    margin: float = math.nan
    p: float = math.nan
    adjusted: float = math.nan
    contrary: float = math.nan
    contrary_adjusted: float = math.nan
    clipped: float = math.nan
    starts: int = 0
    kind: str = ""
    of: str = ""
    why: str = ""
    differs: str = ""
    exact: str = ""
    first_edges: str = ""
    second_edges: str = ""


def paper_rows(outcomes: Iterable[Outcome], claims: Sequence[PaperClaim] = CLAIMS) -> list[PaperRow]:
    """Return what the runs of one testbed say of claims, as usual those of the paper that runs can speak to.

    A claim is asked where all of its cells were run. Of several on a side the one is taken, for each start model, that
    is best by score from the others (`best.tuned_cells`); its value is the mean over draws. Differences are paired by
    start model, and start models are the sample. A claim holds here where its opposite has a p-value, corrected by Holm
    over its objectives, of at most .05, and does not where it has such a one itself: Student's t, one-sided. Alike is
    said where both sides of the margin are, and is denied where a difference lies beyond either, whose p-value counts
    twice. Claims about clipping are not testable where fewer than 1 % of tokens are clipped, and none is with a single
    start model.

    Raises
    ------
    ValueError
        If there is no outcome, or they are of several testbeds.
    """
    runs = list(outcomes)
    if len({one.testbed for one in runs}) != 1:
        raise ValueError(f"outcomes: must be of one testbed, are of {sorted({one.testbed for one in runs}) or 'none'}")
    found, tried = [], tried_cells(runs)
    for claim in claims:
        rows = [_compared(claim, objective, runs, tried) for objective in claim.numbers]
        found += verdicts(claim, rows)
    return found


def _compared(claim: PaperClaim, objective: Objective, runs: Sequence[Outcome], tried: Mapping[Cell, Runs]) -> PaperRow:
    row = blank_row(claim, objective, runs[0].testbed)
    if claim.testbeds and row.testbed not in claim.testbeds:
        return replace(row, why=f"asked of {', '.join(claim.testbeds)}")
    cells = [cell for pick in (claim.first, claim.second) for cell in pick(objective)]
    if missing := len(set(cells) - {one.cell for one in runs}):
        return replace(row, why=f"{missing} of its {len(cells)} cells have no run" if missing < len(cells) else "")
    (first, its_edges), (second, other_edges) = (_tuned(pick(objective), tried) for pick in (claim.first, claim.second))
    if not first or not second:
        lost = "every cell of a side has a collapsed run, or none from some start model"
        why = lost if len({one.start for one in runs}) > 1 else "one start model, and others must choose"
        return replace(row, why=why)
    margin = MARGIN_SHARE * gain(_tuned(ONLINE(objective), tried)[0]) if claim.kind == "alike" else math.nan
    row = replace(row, first_edges=its_edges, second_edges=other_edges)
    return with_difference(claim, row, first, second, margin)


def blank_row(claim: PaperClaim, objective: Objective, testbed: str) -> PaperRow:
    """Return the row of a claim of which nothing was run."""
    return PaperRow(
        testbed,
        claim.where,
        claim.says,
        objective,
        claim.numbers[objective],
        "not run",
        kind=claim.kind,
        of=claim.of,
        differs=claim.differs,
        exact=claim.exact,
    )


def with_difference(claim: PaperClaim, row: PaperRow, first: Runs, second: Runs, margin: float) -> PaperRow:
    """Return a row with everything but its verdict: means over draws, paired by start model.

    Parameters
    ----------
    claim : PaperClaim
    row : PaperRow
    first, second : mapping of int to sequence of Outcome
        The runs of each side, by start model; those that both have are compared.
    margin : float
        Of a claim that both are alike; nan where none can be told.
    """
    shared = sorted(set(first) & set(second))
    one, other = (np.array([_mean(side[start], claim.of) for start in shared]) for side in (first, second))
    estimate = mean_estimate([float(value) for value in one - other])
    interval = estimate.interval(1 - ALPHA)
    clipping = second if claim.clips == "second" else first
    clipped = float(np.mean([_mean(clipping[start], "clipped") for start in shared]))
    if math.isnan(clipped):
        clipped = 0.0
    p, contrary = p_values(claim.kind, estimate, margin)
    return replace(
        row,
        first=float(one.mean()),
        second=float(other.mean()),
        difference=estimate.mean,
        low=estimate.mean - interval.half_width,
        high=estimate.mean + interval.half_width,
        margin=margin,
        p=p,
        contrary=contrary,
        clipped=clipped,
        starts=len(shared),
    )


def p_values(kind: str, estimate: Estimate, margin: float) -> tuple[float, float]:
    """Return the p-values of a claim's opposite and of the claim itself; 1 where no margin can be told."""
    if kind == "alike":
        if math.isnan(margin):
            return 1.0, 1.0
        inside = (one.above(-margin) for one in (estimate, -estimate))
        outside = (one.above(margin) for one in (estimate, -estimate))
        return max(inside), min(1.0, 2 * min(outside))
    claimed = estimate if kind == "more" else -estimate
    return claimed.above(0.0), (-claimed).above(0.0)


def verdicts(claim: PaperClaim, rows: Sequence[PaperRow]) -> list[PaperRow]:
    """Return the rows of a claim, one for each objective, with the verdicts that `paper_rows` describes.

    Those without a p-value stay as they are, and are no part of Holm's correction.
    """
    found = both_sides([row.p for row in rows], [row.contrary for row in rows])
    return [row if one is None else _judged(claim, row, one) for row, one in zip(rows, found, strict=True)]


@dataclass(frozen=True, slots=True)
class Sides:
    """What the p-values of a claim come to, corrected together with others: for it, against it, and the verdict."""

    adjusted: float
    contrary_adjusted: float
    verdict: str


def both_sides(p: Sequence[float], contrary: Sequence[float]) -> list[Sides | None]:
    """Return what claims that are corrected together come to, by Holm, each side by itself.

    Parameters
    ----------
    p, contrary : sequences of float
        Of each claim's opposite and of the claim itself; where `p` is nan nothing was tested.

    Returns
    -------
    list of Sides or None
        *holds here* where the first, corrected, is at most .05; else *does not hold here* where the second is; else
        *undecided here*. None where nothing was tested, which is no part of the correction.
    """
    found: list[Sides | None] = []
    for own, against in zip(holm(p).tolist(), holm(contrary).tolist(), strict=True) if len(p) else ():
        decided = "holds here" if own <= ALPHA else "does not hold here" if against <= ALPHA else "undecided here"
        found.append(None if math.isnan(own) else Sides(own, against, decided))
    return found


def _judged(claim: PaperClaim, row: PaperRow, found: Sides) -> PaperRow:
    row = replace(row, adjusted=found.adjusted, contrary_adjusted=found.contrary_adjusted)
    if claim.clips and row.clipped < LEAST_CLIPPED:
        return replace(row, verdict="not testable here", why=f"{row.clipped:.2%} of tokens are clipped")
    if claim.kind == "alike" and math.isnan(row.margin):
        return replace(row, verdict="undecided here", why="no margin: online runs are missing, or may gain nothing")
    why = "the runs speak clearly for neither side" if found.verdict == "undecided here" else row.why
    return replace(row, verdict=found.verdict, why=why)


def _tuned(cells: Sequence[Cell], tried: Mapping[Cell, Runs]) -> tuple[Runs, str]:
    """Return the runs from each start model of the cell that the others choose; and at which edges these cells lie."""
    whole = whole_cells(tried, cells)
    inside = {cell: whole[cell] for cell in cells if cell in whole}
    chosen = tuned_cells(inside)
    told = edges(chosen, [cell for cell in cells if cell in tried], tried)
    return {start: list(inside[cell][start]) for start, cell in chosen.items()}, told


def gain(online: Runs) -> float:
    """Return what tuned online runs gain on the start models, mean over these; nan where that may be nothing.

    Parameters
    ----------
    online : mapping of int to sequence of Outcome
        By start model.
    """
    if not online:
        return math.nan
    estimate = mean_estimate([_mean(found, "score") - found[0].start_score for found in online.values()])
    return estimate.mean if estimate.mean > estimate.interval(1 - ALPHA).half_width else math.nan


def _mean(runs: Sequence[Outcome], name: str) -> float:
    return float(np.mean([getattr(run, name) for run in runs]))
