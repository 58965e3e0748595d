"""What several answers to one question are worth: pass@k and majority@k, unbiased for more answers than k."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb

from humanline import _checks


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Compute the probability that at least one of k answers, drawn from n without replacement, is correct.

    ``1 - C(n - c, k) / C(n, k)`` for c correct ones of n: the unbiased estimate of ``1 - (1 - p)^k``.

    Parameters
    ----------
    correct : int in 0 .. samples
    samples : int >= 1
    k : int in 1 .. samples

    Returns
    -------
    float in [0, 1]

    Raises
    ------
    ValueError
        If a number is no such integer.

    Notes
    -----
    Source: Chen et al., Evaluating large language models trained on code, arXiv 2107.03374, Eq. 1.

    Examples
    --------
    >>> pass_at_k(1, 4, 2)
    0.5
    """
    n, c, k = _count("samples", samples, 1), _count("correct", correct, 0, samples), _count("k", k, 1, samples)
    return float(1 - Fraction(comb(n - c, k), comb(n, k)))


def usual_ks(most: int) -> list[int]:
    """Return the k that pass@k is told for where nobody has chosen: powers of two up to n answers, and n itself.

    Parameters
    ----------
    most : int >= 1
        The most answers that any question has.

    Returns
    -------
    list of int
        In order, from 1.

    Examples
    --------
    >>> usual_ks(6)
    [1, 2, 4, 6]
    """
    most = _count("most", most, 1)
    return sorted({2**power for power in range(most.bit_length())} | {most})


def majority_at_k(counts: Sequence[int], correct: Sequence[bool], k: int) -> float:
    """Compute the probability that the most frequent of k answers, drawn without replacement, is correct.

    Where several answers are the most frequent ones, one of them is drawn.

    Parameters
    ----------
    counts : sequence of int >= 1
        How often each distinct answer occurs; n is their sum.
    correct : sequence of bool
        Whether each is correct.
    k : int in 1 .. n

    Returns
    -------
    float in [0, 1]
        For k = 1 the share of correct answers.

    Raises
    ------
    ValueError
        If lengths differ, there is no answer, or a number is no such integer.

    Notes
    -----
    Source: Wang et al., Self-consistency improves chain of thought reasoning, arXiv 2203.11171. Exact: choices of k of
    n answers are counted, by how many answers share the largest frequency, in time of order k^2 n.

    Examples
    --------
    >>> majority_at_k([2, 1, 1], [True, False, False], k=3)
    0.6666666666666666
    >>> majority_at_k([3, 5], [True, False], k=8)
    0.0
    """
    _checks.same_shape("correct", (len(correct),), "counts", (len(counts),))
    if not len(counts):
        raise _checks.fail("counts", "hold at least one answer", counts)
    sizes = [_count("counts", count, 1) for count in counts]
    total = sum(sizes)
    k = _count("k", k, 1, total)
    right = Fraction(0)
    for winner, is_right in enumerate(correct):
        if is_right:
            others = sizes[:winner] + sizes[winner + 1 :]
            for top in range(1, min(sizes[winner], k) + 1):
                won = comb(sizes[winner], top)
                right += sum(
                    (won * Fraction(ways, 1 + ties) for ties, ways in _rests(others, k - top, top)), Fraction(0)
                )
    return float(right / comb(total, k))


def _rests(sizes: Sequence[int], rest: int, top: int) -> list[tuple[int, int]]:
    """Count the choices of `rest` answers of which none occurs above `top` times, by how many occur as often."""
    ways = {(0, 0): 1}  # by the number chosen so far, and how many answers are tied
    for size in sizes:
        found: dict[tuple[int, int], int] = {}
        for (chosen, ties), number in ways.items():
            for taken in range(min(size, top, rest - chosen) + 1):
                key = chosen + taken, ties + (taken == top)
                found[key] = found.get(key, 0) + number * comb(size, taken)
        ways = found
    return [(ties, number) for (chosen, ties), number in ways.items() if chosen == rest]


def _count(name: str, value: int, low: int, high: int | None = None) -> int:
    if _checks.finite(name, value) < low or (high is not None and value > high) or int(value) != value:
        raise _checks.fail(
            name, f"be an integer >= {low}" if high is None else f"be an integer in {low} .. {high}", value
        )
    return int(value)
