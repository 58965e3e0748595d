"""What the level of data is held against: the model's own level, and the range of the paper's worst quartile.

Neither says good or bad. The paper finds data of a low level worse to learn from (Figure 6) and explains it by
humanline's clip, which acts more often there; whether the gap to the model's own level predicts an outcome is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from humanline.stats import Estimate, ratio_difference, slice_sums
from humanline.train.data.levels import (
    PAPER_RANGE,
    RowScores,
    Side,
    against_paper,
    estimate_as_json,
    level_of,
    side_of_paper,
    told_as,
)

OwnSide = Literal["below", "at", "above", "unknown"]


@dataclass(frozen=True, slots=True)
class Own:
    """The level of a model's own answers.

    Attributes
    ----------
    scores : RowScores
        One answer a row.
    truncated : int
        Answers that were cut at their limit.
    """

    scores: RowScores
    truncated: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where data lies.

    Attributes
    ----------
    level : Estimate
        Of the data, nats per token.
    paper : {"below", "within", "above"}
        On which side of the paper's range the level lies.
    own_level, gap : Estimate or None
        Of the model's own answers, and by how much the data's level lies above it; None without own answers.
    gaps : tuple of Estimate
        The same of each quartile, from the lowest; empty where there are none.
    """

    level: Estimate
    paper: Side
    own_level: Estimate | None = None
    gap: Estimate | None = None
    gaps: tuple[Estimate, ...] = ()

    @property
    def own(self) -> OwnSide:
        """Return where the data lies by the interval of the gap: at the own level if that holds 0."""
        return "unknown" if self.gap is None else side_of(self.gap)

    @property
    def disagree(self) -> bool:
        """Return whether one yardstick calls the level of the data low and the other does not."""
        return self.own != "unknown" and (self.paper != "above") != (self.own == "below")


def side_of(gap: Estimate) -> OwnSide:
    """Return on which side of 0 the 95 % interval of a gap lies."""
    interval = gap.interval()
    if not np.isfinite(interval.half_width):
        return "unknown"
    if not interval.excludes_zero:
        return "at"
    return "above" if gap.mean > 0 else "below"


def judge(scores: RowScores, numbers: np.ndarray | None, own: Own | None) -> Verdict:
    """Hold rows against the paper's range and, where there are any, the model's own answers.

    Parameters
    ----------
    scores : RowScores
    numbers : (R,) int array or None
        The quartile of each row.
    own : Own or None
    """
    level = level_of(scores).nats
    paper = side_of_paper(level.mean)
    if own is None:
        return Verdict(level, paper)
    ours, theirs = ((one.sums.sum(1), one.tokens.sum(1), one.prompts.tolist()) for one in (scores, own.scores))
    marks = [] if numbers is None else [numbers == number for number in (1, 2, 3, 4)]
    gaps = tuple(ratio_difference(slice_sums(*ours, scores.levels, inside), theirs) for inside in marks)
    return Verdict(level, paper, level_of(own.scores).nats, ratio_difference(ours, theirs), gaps)


_OWN_WORDS = {
    "below": "farther from it, on the low side: the model finds these answers less probable than its own",
    "at": "not told apart from it",
    "above": "above it: the model finds these answers more probable than its own, as it does of what it knows well, or "
    "of what was drawn at a low temperature",
    "unknown": "on a side that is not known: of one prompt there is no interval",
}


def describe_verdict(verdict: Verdict, own: Own | None, *, probed: bool = False) -> Iterator[str]:
    """Yield the lines of a verdict, with its reasons; `probed`: lines about clipping follow."""
    yield f"verdict      {against_paper(verdict.level.mean)}"
    half = verdict.level.interval().half_width
    if not np.isfinite(half):
        yield "  its interval is not known, as all rows are of one prompt: the true level may lie anywhere"
    elif any(abs(verdict.level.mean - edge) <= half for edge in PAPER_RANGE):
        yield f"  its interval, {told_as(verdict.level)}, holds an edge of that range: it may lie on the other side"
    if own is None or verdict.own_level is None or verdict.gap is None:
        yield "  the model's own level, a yardstick for any model, is not known: --own-samples N measures it"
    else:
        cut = f", {own.truncated} of them cut at their limit" if own.truncated else ""
        yield (
            f"  own level {told_as(verdict.own_level)}, of {len(own.scores)} answers of the model{cut}; "
            f"the data's minus that: {told_as(verdict.gap, '+.3f')}"
        )
        yield f"  against its own level the data is {_OWN_WORDS[verdict.own]}"
        for number, gap in enumerate(verdict.gaps, start=1):
            yield f"  quartile {number}  {told_as(gap, '+.3f')}  {side_of(gap)}"
        if verdict.disagree:
            yield f"  the two yardsticks disagree: {_why(verdict)}"
    silent = "" if probed else "; of clipping nothing is said, which takes training (--probe STEPS)"
    yield f"  nearer or farther, not good or bad{silent}"


def _why(verdict: Verdict) -> str:
    assert verdict.own_level is not None
    own = told_as(verdict.own_level)
    if verdict.own == "below":
        return (
            f"the level is above the paper's range, and this model is surer still of its own answers ({own}); its own "
            "level is of this model and these prompts, the range is not"
        )
    theirs = "not told apart from" if verdict.own == "at" else "above"
    return (
        f"the level is low by the paper's range, but {theirs} that of this model's own answers ({own}), whose tokens, "
        "entropy or training differ from the paper's model; its own level is of this model and these prompts"
    )


def verdict_as_json(verdict: Verdict, own: Own | None) -> dict[str, Any]:
    """Return a verdict as JSON can say it."""

    def said(one: Estimate | None) -> dict[str, float | None] | None:
        return None if one is None else estimate_as_json(one)

    return {
        "paper": {"range": list(PAPER_RANGE), "side": verdict.paper},
        "own": None
        if own is None
        else {
            "level": said(verdict.own_level),
            "answers": len(own.scores),
            "truncated": own.truncated,
            "gap": said(verdict.gap),
            "side": verdict.own,
            "gap_by_quartile": [said(gap) for gap in verdict.gaps],
        },
        "disagree": verdict.disagree,
    }
