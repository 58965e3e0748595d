"""What the levels of rows show besides: how often the chosen answer is the likelier, histograms, lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from humanline.stats import Estimate, Proportion, clustered_share, ratio_estimate
from humanline.train.data.levels import Floats, Ints, RowScores


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
