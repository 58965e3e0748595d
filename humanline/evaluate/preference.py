"""Which of two answers is better, asked in both orders: win rate, ties, and what a judge's order of reading decides.

A verdict is of one order: 1 where the model's answer is better, 0.5 for a tie, 0 where the baseline's is, or a status
that says why there is none. What two orders say of a pair of answers is worth their mean, so that a judge who only
looks at the order is worth one half; a pair of which one order has no verdict has no value, as the other order alone
would bring the judge's bias back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from humanline.evaluate.records import EvaluationError, Item, repeated_prompts, without_value
from humanline.evaluate.summary import of_repeated, share_fact
from humanline.stats import mcnemar, rounding_of
from humanline.train.online.rewards.verdict import Verdict
from humanline.train.online.types import Score

_LEVEL = 0.05  # of the test of position bias

#: Of one pair of answers: the verdict with the model's answer shown first, and with the baseline's shown first; a
#: single verdict where there is no order, as with scores, or equal answers.
Orders = tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdicts on the answers to one prompt.

    Attributes
    ----------
    id, prompt : str
        As in `Item`.
    pairs : tuple of Orders
        One a pair of answers.
    """

    id: str
    prompt: str
    pairs: tuple[Orders, ...]


def items_of_verdicts(judged: Sequence[Judged]) -> tuple[Item, ...]:
    """Return the items of an evaluation file: the worth of each pair, or the status of its first failed verdict."""
    return tuple(
        Item(one.id, one.prompt, tuple(map(worth, one.pairs)), tuple(map(_status, one.pairs))) for one in judged
    )


def worth(orders: Orders) -> float | None:
    """Return the mean of a pair's verdicts, in [0, 1]; None where one of them is none."""
    values = [verdict.value for verdict in orders if verdict.value is not None]
    return math.fsum(values) / len(values) if len(values) == len(orders) else None


def verdict_of_scores(mine: Score, other: Score, names: tuple[str, str] = ("model's", "baseline's")) -> Verdict:
    """Return the verdict of two scores: the larger one is better, equal ones tie, without one there is none.

    Those that differ by rounding alone are equal, as they are in training.
    """
    for name, score in zip(names, (mine, other), strict=True):
        if score.value is None:
            return Verdict(None, score.status, f"the {name} answer has no score: {score.reason}")
    assert mine.value is not None and other.value is not None
    gap, rounding = mine.value - other.value, rounding_of(mine.value, other.value)
    return Verdict(0.5 * (float(gap > rounding) + float(gap >= -rounding)))


def _status(orders: Orders) -> str:
    return next((verdict.status for verdict in orders if verdict.value is None), "ok")


def summarise_verdicts(judged: Sequence[Judged], *, confidence: float = 0.95) -> dict[str, Any]:
    """Summarise verdicts, prompt by prompt.

    Parameters
    ----------
    judged : sequence of Judged
    confidence : float in (0, 1)

    Returns
    -------
    dict
        ``problems``, ``pairs``, ``without_verdict`` (count by status) and ``without_verdict_share``;
        ``repeated_prompts`` (count, where a problem has the prompt of an earlier one); ``win_rate``
        (over prompts, in [0, 1], with ``se``, ``low``, ``high``); ``wins``, ``ties``, ``losses`` (counts of pairs
        worth more than, exactly and less than one half); where pairs were judged in both orders ``position``:
        ``pairs``, ``disagree`` (share of pairs of which the orders say different things), ``first_shown`` (share of
        verdicts for the answer shown first, a tie counting one half; one half without bias), ``lean_first`` and
        ``lean_second`` (counts of prompts on which the verdicts go to that place more often than to the other), ``p``
        and ``biased``.

    Raises
    ------
    EvaluationError
        If there is no pair with a verdict.

    Notes
    -----
    ``p`` is of the exact sign test (`humanline.stats.mcnemar`) that verdicts lean to the first place on as many prompts
    as to the second: a judge without position bias, however often it contradicts itself, leans to both alike.
    ``biased`` is whether p is at most .05. Intervals are `humanline.stats.clustered_share`, Wilson's where there
    is one verdict of yes or no a prompt.
    """
    items = items_of_verdicts(judged)
    flat = [orders for one in judged for orders in one.pairs]
    known = [item.known for item in items if item.known]
    lost = without_value(items)
    if not known:
        reason = next((v.reason for orders in flat for v in orders if v.value is None and v.reason), "")
        listed = ", ".join(f"{count} {status}" for status, count in sorted(lost.items())) or "no pair"
        raise EvaluationError(
            f"none of {len(flat)} pairs of answers has a verdict: {listed}{reason and f'; one of them: {reason}'}"
        )
    values = [value for own in known for value in own]
    summary: dict[str, Any] = {
        "problems": len(items),
        "pairs": len(flat),
        "without_verdict": dict(sorted(lost.items())),
        "without_verdict_share": lost.total() / len(flat),
        "win_rate": _share(known, confidence),
        "wins": sum(value > 0.5 for value in values),
        "ties": sum(value == 0.5 for value in values),
        "losses": sum(value < 0.5 for value in values),
    }
    if repeated := repeated_prompts(items):
        summary["repeated_prompts"] = repeated
    by_prompt = [[pair for orders in one.pairs if (pair := _both(orders)) is not None] for one in judged]
    by_prompt = [pairs for pairs in by_prompt if pairs]
    if by_prompt:
        summary["position"] = _position(by_prompt, confidence)
    return summary


def _both(orders: Orders) -> tuple[float, float] | None:
    """Return the worth of the first place in both orders."""
    if len(orders) != 2 or orders[0].value is None or orders[1].value is None:
        return None
    return orders[0].value, 1.0 - orders[1].value


def _position(by_prompt: Sequence[Sequence[tuple[float, float]]], confidence: float) -> dict[str, Any]:
    """Return what the order of showing has decided; pairs hold the worth of the first place in each order."""
    leans = [math.fsum(value - 0.5 for pair in pairs for value in pair) for pairs in by_prompt]
    first, second = sum(lean > 0 for lean in leans), sum(lean < 0 for lean in leans)
    p = mcnemar(first, second)
    return {
        "pairs": sum(map(len, by_prompt)),
        # The orders agree where what the first place is worth in one of them, the second is in the other.
        "disagree": _share([[float(one + other != 1.0) for one, other in pairs] for pairs in by_prompt], confidence),
        "first_shown": _share([[(one + other) / 2 for one, other in pairs] for pairs in by_prompt], confidence),
        "lean_first": first,
        "lean_second": second,
        "p": p,
        "biased": p <= _LEVEL,
    }


def _share(by_prompt: Sequence[Sequence[float]], confidence: float) -> dict[str, Any]:
    """Return the mean over prompts of their own means, with its interval."""
    means = [math.fsum(values) / len(values) for values in by_prompt]
    single = all(len(values) == 1 and values[0] in (0.0, 1.0) for values in by_prompt)
    return share_fact(means, confidence, single=single)


def describe_verdicts(summary: dict[str, Any]) -> list[str]:
    """Return the lines of a summary of verdicts."""
    rate = summary["win_rate"]
    parts = [f"{count} {status}" for status, count in summary["without_verdict"].items()]
    lines = [
        f"win rate: {_told(rate)} over {rate['problems']} prompts; {summary['wins']} pairs won, "
        f"{summary['ties']} tied, {summary['losses']} lost",
        f"without a verdict {summary['without_verdict_share']:.1%} of {summary['pairs']} pairs"
        + (f" ({', '.join(parts)}); the win rate is of the others" if parts else ""),
    ]
    lines += of_repeated(summary)
    if position := summary.get("position"):
        lines.append(
            f"the two orders disagree on {_told(position['disagree'])} of {position['pairs']} pairs; "
            f"{_told(position['first_shown'])} of verdicts are for the answer shown first"
        )
        if position["biased"]:
            lines.append(f"warning: {of_bias(position)}")
    return lines


def of_bias(position: Mapping[str, Any]) -> str:
    """Return what is to be said where ``position`` of a summary of verdicts is ``biased``."""
    place = "first" if position["lean_first"] > position["lean_second"] else "second"
    return (
        f"the judge is biased to the answer shown {place}: it leans to the first on {position['lean_first']} prompts, "
        f"to the second on {position['lean_second']} (p = {position['p']:.2g}). Both orders are in the win rate, so "
        "that this favours neither model, but hides differences between them"
    )


def _told(fact: dict[str, Any]) -> str:
    known = "interval not known" if fact["low"] is None else f"{fact['low']:.4f} to {fact['high']:.4f}"
    return f"{fact['value']:.4f} ({known})"
