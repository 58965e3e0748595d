"""What the level of data is held against: the model's own level, and the range of the paper's worst quartile.

Neither says good or bad. The paper finds data of a low level worse to learn from (Figure 6) and explains it by
humanline's clip, which acts more often there; whether the gap to the model's own level predicts an outcome is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from humanline.evaluate.levels import RowScores, level_of
from humanline.stats import Estimate, ratio_difference

#: Mean log-probability per token, nats, of the rows in the worst quartile of the paper's Figure 6.
PAPER_RANGE = (-1.03, -0.36)
Side = Literal["below", "within", "above"]
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
    low, high = PAPER_RANGE
    paper: Side = "below" if level.mean < low else "above" if level.mean > high else "within"
    if own is None:
        return Verdict(level, paper)
    quarters = [] if numbers is None else [scores.take(numbers == number) for number in (1, 2, 3, 4)]
    gaps = tuple(_gap(quarter, own.scores) for quarter in quarters)
    return Verdict(level, paper, level_of(own.scores).nats, _gap(scores, own.scores), gaps)


def _gap(scores: RowScores, own: RowScores) -> Estimate:
    ours, theirs = ((one.sums.sum(1), one.tokens.sum(1), one.prompts.tolist()) for one in (scores, own))
    return ratio_difference(ours, theirs)


_OWN_WORDS = {
    "below": "farther from it, on the low side: the model finds these answers less probable than its own",
    "at": "not told apart from it",
    "above": "above it: the model finds these answers more probable than its own, as it does of what it knows well, or "
    "of what was drawn at a low temperature",
    "unknown": "of one prompt no interval is known",
}


def describe_verdict(verdict: Verdict, own: Own | None, *, probed: bool = False) -> Iterator[str]:
    """Yield the lines of a verdict, with its reasons; `probed`: lines about clipping follow."""
    low, high = PAPER_RANGE
    where = {"below": "below", "within": "inside", "above": "above"}[verdict.paper]
    yield (
        f"verdict      {verdict.level.mean:.3f} nats per token lies {where} [{low:g}, {high:g}], the paper's worst "
        "quartile, of one model, one tokenizer and one data set"
    )
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
    own = f"{verdict.own_level.mean:.3f}"
    if verdict.own == "below":
        return (
            f"the level is above the paper's range, and this model is surer still of its own answers ({own}); its own "
            "level is of this model and these prompts, the range is not"
        )
    return (
        f"the level is low by the paper's range, but so is that of this model's own answers ({own}), whose tokens, "
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


def told_as(estimate: Estimate, form: str = ".3f") -> str:
    """Return an estimate with half the width of its 95 % interval, in words where that is not known."""
    half = estimate.interval().half_width
    known = f"± {half:{form.removeprefix('+')}}" if np.isfinite(half) else "(interval not known)"
    return f"{estimate.mean:{form}} {known}"


def estimate_as_json(estimate: Estimate) -> dict[str, float | None]:
    """Return an estimate with its standard error and 95 % interval; null where one prompt tells nothing of them."""
    half = estimate.interval().half_width
    bounds = {"se": estimate.error, "low": estimate.mean - half, "high": estimate.mean + half}
    return {"value": estimate.mean} | {name: one if np.isfinite(one) else None for name, one in bounds.items()}
