"""How probable a model finds the answers of a file: levels, quartiles, and how often the chosen answer is the likelier.

All of it is arithmetic on sums of log-probabilities; `score_rows.py` makes them. The *level* of a row is the mean
log-probability of its tokens, in nats per token, and that of a set the mean over all of its tokens: what training
reports as `chosen_logprob`, and what minus the entropy of a policy is of its own answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from humanline.stats import Estimate, Proportion, clustered_share, ratio_estimate, slice_sums

SAME = 1e-5  # nats per token that rounding may make of equal levels
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
class Preferred:
    """The share of rows whose chosen answer is more probable than the rejected one; a tie counts one half.

    Attributes
    ----------
    whole : Proportion
        As whole answers, by their log-probabilities: a longer answer has a lower one.
    per_token : Proportion
        By log-probability per token.
    """

    whole: Proportion
    per_token: Proportion


def preferred_of(scores: RowScores) -> Preferred:
    """Return how often the first answer of a row is more probable than its second, as a mean over prompts."""
    return Preferred(_share(scores, scores.sums), _share(scores, scores.sums / scores.tokens))


def longer_rejected(scores: RowScores) -> Estimate:
    """Return by how many tokens rejected answers are longer than chosen ones: a mean over rows, clustered by prompt."""
    gaps = scores.tokens[:, 1] - scores.tokens[:, 0]
    return ratio_estimate(gaps, np.ones(len(gaps)), scores.prompts.tolist())


def _share(scores: RowScores, values: Floats) -> Proportion:
    first, second = values[:, 0], values[:, 1]
    wins = 0.5 * ((first > second).astype(float) + (first >= second))
    _, at = np.unique(scores.prompts, return_inverse=True)
    return clustered_share((np.bincount(at, weights=wins) / np.bincount(at)).tolist())


def bins_of(values: Floats, most: int = 20) -> tuple[Ints, Floats]:
    """Return counts and edges of a histogram whose bins have a round width: 1, 2 or 5 times a power of ten.

    Parameters
    ----------
    values : (n,) array of finite floats, n >= 1
    most : int >= 2
        Of bins.

    Returns
    -------
    counts : (B,) int array
    edges : (B + 1,) float array
    """
    low, high = float(values.min()), float(values.max())
    spread = max((high - low) / (most - 1), 1e-3)
    power = 10.0 ** math.floor(math.log10(spread))
    width = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= spread * (1 - 1e-12))
    first, last = math.floor(low / width), math.floor(high / width) + 1
    edges = np.arange(first, last + 1, dtype=np.float64) * width
    places = np.clip(np.floor(values / width).astype(np.int64) - first, 0, last - first - 1)
    return np.bincount(places, minlength=last - first).astype(np.int64), np.asarray(edges, dtype=np.float64)


def histogram_lines(values: Floats, *, width: int = 40) -> list[str]:
    """Return a histogram as lines of text: the range of each bin, a bar and the count."""
    counts, edges = bins_of(values)
    step = float(edges[1] - edges[0])
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    names = [f"{low:.{digits}f} to {high:.{digits}f}" for low, high in itertools.pairwise(edges.tolist())]
    return bar_lines(names, counts.tolist(), width)


def bar_lines(names: Sequence[str], counts: Sequence[int], width: int = 40) -> list[str]:
    """Return a line for each name: its count, and a bar of at most `width` characters."""
    longest, most, digits = max(map(len, names)), max(counts), len(str(max(counts)))
    return [
        f"{name:>{longest}}  {count:>{digits}}  {'#' * max(round(width * count / most), int(count > 0))}".rstrip()
        for name, count in zip(names, counts, strict=True)
    ]
