"""The level of data: how probable a model finds its answers, over all of them and by quartile.

All of it is arithmetic on sums of log-probabilities, whoever computed these: training on its way, or an inspection. The
*level* of a row is the mean log-probability of its tokens, in nats per token, and that of a set the mean over all of
its tokens: what training reports as `chosen_logprob`, and what minus the entropy of a policy is of its own answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from humanline.stats import Estimate, ratio_estimate, slice_sums

SAME = 1e-5  # nats per token that rounding may make of equal levels
#: Mean log-probability per token, nats, of the rows in the worst quartile of the paper's Figure 6.
PAPER_RANGE = (-1.03, -0.36)
Side = Literal["below", "within", "above"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    """What is known of R rows with A answers each.

    Parameters
    ----------
    parts : A names
        Of the answers: ("chosen", "rejected"), or ("answer",).
    prompts : (R,) int array
        Equal where rows share a prompt.
    sums : (R, A) float array
        Log-probability of each answer, nats: the sum over the tokens that count in the loss, its end token among them.
    tokens : (R, A) int array, >= 1
        How many tokens these are.
    octets : (R, A) int array
        Bytes of the answer's text (UTF-8).
    """

    parts: tuple[str, ...]
    prompts: Ints
    sums: Floats
    tokens: Ints
    octets: Ints

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def levels(self) -> Floats:
        """Return the level of each row, over the tokens of all its answers: (R,), nats per token."""
        return np.asarray(self.sums.sum(1) / self.tokens.sum(1))

    def take(self, rows: NDArray[np.bool_]) -> RowScores:
        """Return the rows that a mask (R,) marks."""
        return RowScores(self.parts, self.prompts[rows], self.sums[rows], self.tokens[rows], self.octets[rows])


@dataclass(frozen=True, slots=True)
class Level:
    """The level of a set of answers.

    Attributes
    ----------
    nats : Estimate
        Mean log-probability of a token, clustered by prompt.
    bits_per_byte : Estimate or None
        Minus the log-probability of all tokens, end tokens among them, in bits, over the bytes of the texts: what
        tokenizers can be compared in. None where texts have no bytes.
    rows, tokens : int
    """

    nats: Estimate
    bits_per_byte: Estimate | None
    rows: int
    tokens: int


def level_of(scores: RowScores, part: str | None = None) -> Level:
    """Return the level of one part of the rows, or of all their answers together.

    Raises
    ------
    ValueError
        If there are no rows.
    """
    columns = slice(None) if part is None else [scores.parts.index(part)]
    sums, tokens, octets = (one[:, columns].sum(1) for one in (scores.sums, scores.tokens, scores.octets))
    clusters = scores.prompts.tolist()
    bits = ratio_estimate(-sums / math.log(2), octets, clusters) if octets.any() else None
    return Level(ratio_estimate(sums, tokens, clusters), bits, len(scores), int(tokens.sum()))


def level_of_quartile(scores: RowScores, inside: NDArray[np.bool_]) -> Level:
    """Return the level of the rows of a quartile, (R,) marked; its error knows that other rows have other edges."""
    sums, tokens, octets = (one.sum(1) for one in (scores.sums, scores.tokens, scores.octets))
    clusters, levels = scores.prompts.tolist(), scores.levels
    bits = None
    if octets[inside].any():
        bits = ratio_estimate(*slice_sums(-sums / math.log(2), octets, clusters, levels, inside))
    nats = ratio_estimate(*slice_sums(sums, tokens, clusters, levels, inside))
    return Level(nats, bits, int(inside.sum()), int(tokens[inside].sum()))


@dataclass(frozen=True, slots=True, eq=False)
class Quartiles:
    """Values split into quarters, from the lowest to the highest.

    Attributes
    ----------
    edges : three floats
        The largest values of the first, the second and the third quartile.
    numbers : (R,) int array
        The quartile of each value, 1 to 4.
    """

    edges: tuple[float, float, float]
    numbers: Ints


def quartiles_of(values: Floats) -> Quartiles | None:
    """Split values into quartiles; None where these do not exist.

    The k-th edge is the value at place ``ceil(k n / 4)`` in ascending order, and a value lies in quartile 1 + the
    number of edges below it. So equal values share a quartile, and where all values differ sizes differ by one at most.
    Values that lie within `SAME` of the lowest of them count as equal: a pass over other rows rounds otherwise.

    Parameters
    ----------
    values : (n,) array of finite floats

    Returns
    -------
    Quartiles or None
        None where so many values are equal, or so few are there, that a quartile would be empty.
    """
    if not len(values):
        return None
    values = _rounded_down(values)
    ordered = np.sort(values)
    low, middle, high = (float(ordered[-(-k * len(ordered) // 4) - 1]) for k in (1, 2, 3))
    if not low < middle < high < ordered[-1]:
        return None
    numbers = 1 + sum((values > edge).astype(np.int64) for edge in (low, middle, high))
    return Quartiles((low, middle, high), np.asarray(numbers))


def _rounded_down(values: Floats) -> Floats:
    """Return each value as the lowest of those that count as equal to it."""
    order = np.argsort(values, kind="stable")
    result, lowest = values.copy(), -math.inf
    for place, value in zip(order.tolist(), values[order].tolist(), strict=True):
        if value > lowest + SAME:
            lowest = value
        result[place] = lowest
    return result


@dataclass(frozen=True, slots=True)
class Quarter:
    """The rows of one quartile: their level, and the lowest and the highest level of a row."""

    level: Level
    low: float
    high: float


def deciding_part(scores: RowScores) -> str:
    """Return what the level of a row is taken of."""
    return "pair" if len(scores.parts) == 2 else scores.parts[0]


def levels_by_part(scores: RowScores, labels: Ints | None) -> dict[str, Level]:
    """Return the level of each part by its name, the deciding one last.

    Parameters
    ----------
    scores : RowScores
    labels : (R,) int array or None
        1 for desirable answers and 0 for undesirable ones, where rows have labels.
    """
    parts = dict[str, Level]()
    if len(scores.parts) == 2:
        parts = {part: level_of(scores, part) for part in scores.parts}
    elif labels is not None:
        for name, label in (("desirable", 1), ("undesirable", 0)):
            if (own := labels == label).any():
                parts[name] = level_of(scores.take(own))
    return parts | {deciding_part(scores): level_of(scores)}


def quarters_of(scores: RowScores) -> list[Quarter]:
    """Return the quartiles of rows by their levels, from the lowest; nothing where they do not exist."""
    values = scores.levels
    found = quartiles_of(values)
    if found is None:
        return []
    marks = [found.numbers == number for number in (1, 2, 3, 4)]
    return [
        Quarter(level_of_quartile(scores, own), float(values[own].min()), float(values[own].max())) for own in marks
    ]


def side_of_paper(level: float) -> Side:
    """Return on which side of the paper's range a level lies, nats per token."""
    low, high = PAPER_RANGE
    return "below" if level < low else "above" if level > high else "within"


def against_paper(level: float) -> str:
    """Return in words where a level lies against the paper's range."""
    low, high = PAPER_RANGE
    where = {"below": "below", "within": "inside", "above": "above"}[side_of_paper(level)]
    return (
        f"{level:.3f} nats per token lies {where} [{low:g}, {high:g}], the paper's worst quartile, of one model, one "
        "tokenizer and one data set"
    )


def told(mean: float, half_width: float, form: str = ".3f") -> str:
    """Return a number with half the width of its 95 % interval, in words where that is not known."""
    known = f"± {half_width:{form.removeprefix('+')}}" if np.isfinite(half_width) else "(interval not known)"
    return f"{mean:{form}} {known}"


def told_as(estimate: Estimate, form: str = ".3f") -> str:
    """Return an estimate with half the width of its 95 % interval, in words where that is not known."""
    return told(estimate.mean, estimate.interval().half_width, form)


def estimate_as_json(estimate: Estimate) -> dict[str, float | None]:
    """Return an estimate with its standard error and 95 % interval; null where one prompt tells nothing of them."""
    half = estimate.interval().half_width
    bounds = {"se": estimate.error, "low": estimate.mean - half, "high": estimate.mean + half}
    return {"value": estimate.mean} | {name: one if np.isfinite(one) else None for name, one in bounds.items()}
