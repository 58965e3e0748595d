"""Prompts whose answers a verifier scores: on how many all answers score the same, which teaches GRPO nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from humanline.evaluate.levels import bar_lines
from humanline.evaluate.records import EvaluationError
from humanline.stats import Proportion, wilson_interval
from humanline.train.online.types import Rollout, Score


@dataclass(frozen=True, slots=True)
class PromptRate:
    """What the answers to one prompt have scored.

    Attributes
    ----------
    id : str
    values : tuple of float
        Of the answers that training would use.
    equal : bool
        Whether these are equal up to rounding, so that all advantages are 0.
    """

    id: str
    values: tuple[float, ...]
    equal: bool

    @property
    def rate(self) -> float:
        """Return the mean score, which of scores of 0 and 1 is the pass rate."""
        return float(np.mean(self.values))


@dataclass(frozen=True, slots=True)
class PromptRates:
    """What the answers to a set of prompts have scored.

    Attributes
    ----------
    prompts : tuple of PromptRate
        With two answers or more that training would use.
    too_few : tuple of str
        Names of prompts with fewer, of which nothing can be said.
    without_score : mapping of str to int
        Answers without a score, by status.
    counted_as : float or None
        What answers without a score count as; None where they are left out.
    truncated : int
        Truncated answers that are left out.
    """

    prompts: tuple[PromptRate, ...]
    too_few: tuple[str, ...]
    without_score: dict[str, int]
    counted_as: float | None = None
    truncated: int = 0

    @property
    def binary(self) -> bool:
        """Return whether all scores are 0 or 1, so that there are pass rates."""
        return all(value in (0.0, 1.0) for one in self.prompts for value in one.values)

    @property
    def equal(self) -> Proportion:
        """Return the share of prompts whose answers all score the same, with Wilson's interval."""
        return wilson_interval(sum(one.equal for one in self.prompts), len(self.prompts))

    @property
    def band(self) -> tuple[float, float] | None:
        """Return the lowest and the highest pass rate of prompts whose answers differ; None where none do."""
        rates = [one.rate for one in self.prompts if not one.equal]
        return (min(rates), max(rates)) if rates and self.binary else None


def rates_of(
    rollouts: Sequence[Rollout],
    scores: Sequence[Sequence[Score]],
    *,
    failed: str | float = "drop",
    truncated: str = "keep",
) -> PromptRates:
    """Return what scored answers say of their prompts, as a round of training takes them.

    Parameters
    ----------
    rollouts, scores
    failed : str or float
        As source.scoring.failed: what an answer without a score counts as, where it is a number.
    truncated : str
        As source.truncated: "drop" leaves truncated answers out.

    Raises
    ------
    EvaluationError
        If no prompt has two scored answers.
    """
    import torch

    from humanline.objectives import group_advantages

    found, too_few, lost = list[PromptRate](), list[str](), Counter[str]()
    instead, cut = (None if isinstance(failed, str) else float(failed)), 0
    for rollout, own in zip(rollouts, scores, strict=True):
        lost.update(score.status for score in own if score.value is None)
        dropped = [truncated == "drop" and answer.truncated for answer in rollout.completions]
        cut += sum(dropped)
        each = [score.value if score.value is not None else instead for score in own]
        values = tuple(value for value, gone in zip(each, dropped, strict=True) if value is not None and not gone)
        if len(values) < 2:
            too_few.append(rollout.id)
            continue
        group = torch.zeros(len(values), dtype=torch.long)
        advantages = group_advantages(torch.tensor(values, dtype=torch.float64), group)
        found.append(PromptRate(rollout.id, values, equal=not advantages.any()))
    if not found:
        raise EvaluationError(f"none of {len(rollouts)} prompts has two scored answers, which could differ")
    return PromptRates(tuple(found), tuple(too_few), dict(sorted(lost.items())), instead, cut)


def describe_rates(rates: PromptRates) -> Iterator[str]:
    """Yield the lines of what was found."""
    sizes = sorted({len(one.values) for one in rates.prompts})
    many = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    yield f"prompts      {len(rates.prompts)} with {many} scored answers each"
    yield f"  all answers score the same on {rates.equal} of them; GRPO learns nothing there"
    if rates.too_few:
        yield f"  {len(rates.too_few)} prompts have fewer than two scored answers, and are in no number"
    if rates.without_score:
        listed = ", ".join(f"{count} {status}" for status, count in rates.without_score.items())
        what = "left out" if rates.counted_as is None else f"counted as {rates.counted_as:g} (source.scoring.failed)"
        yield f"  answers without a score: {listed}; {what}"
    if rates.truncated:
        yield f"  {rates.truncated} truncated answers are left out (source.truncated: drop)"
    if not rates.binary:
        yield "  scores are not 0 or 1, so there are no pass rates"
        return
    yield "  prompts by pass rate:"
    counts = Counter(round(one.rate, 4) for one in rates.prompts)
    rows = sorted(counts.items())
    yield from (f"    {line}" for line in bar_lines([f"{rate:.3g}" for rate, _ in rows], [n for _, n in rows]))
    band = rates.band
    if band is None:
        yield "  no prompt has answers of both scores: none of them teaches anything as they are sampled now"
    else:
        yield f"  answers differ at pass rates from {band[0]:.3g} to {band[1]:.3g}: --keep-pass-rate keeps such a band"


def rates_as_json(rates: PromptRates) -> dict[str, Any]:
    """Return the rates as JSON can say them."""
    equal = rates.equal
    return {
        "prompts": len(rates.prompts),
        "equal": {"share": equal.share, "low": equal.low, "high": equal.high},
        "too_few": list(rates.too_few),
        "without_score": rates.without_score,
        "counted_as": rates.counted_as,
        "truncated_left_out": rates.truncated,
        "band": None if rates.band is None else list(rates.band),
        "rates": [{"id": one.id, "mean": one.rate, "answers": len(one.values)} for one in rates.prompts],
    }
