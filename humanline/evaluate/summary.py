"""How good a model is by its scored answers: pass@k, majority@k, mean score, and what could not be scored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from humanline.evaluate.records import EvaluationError, Item, prompt_digest, repeated_prompts, without_value
from humanline.stats import clustered_share, majority_at_k, mean_estimate, pass_at_k, usual_ks, wilson_interval
from humanline.train.config.rounds import MathReward, NumberReward, ScoringConfig
from humanline.train.online.rewards.answer import answer_key, is_unread
from humanline.train.online.types import Rollout, Score

AnswerKey = Callable[[str], str | None]


def items_of(rollouts: Sequence[Rollout], scores: Sequence[Sequence[Score]]) -> tuple[Item, ...]:
    """Return what an evaluation file keeps of scored answers.

    Raises
    ------
    EvaluationError
        If a prompt's id is there twice, or a prompt has no answer.
    """
    repeated = [name for name, count in Counter(one.id for one in rollouts).items() if count > 1]
    if repeated:
        raise EvaluationError(f"{len(repeated)} prompts have an id that another one has too, such as {repeated[0]!r}")
    empty = [one.id for one in rollouts if not one.completions]
    if empty:
        raise EvaluationError(f"{len(empty)} prompts have no answer, such as {empty[0]!r}")
    return tuple(
        Item(
            rollout.id,
            prompt_digest([message.as_dict() for message in rollout.prompt]),
            tuple(score.value for score in own),
            tuple(score.status for score in own),
        )
        for rollout, own in zip(rollouts, scores, strict=True)
    )


def key_of(scoring: ScoringConfig) -> AnswerKey | None:
    """Return how an answer is told from another one for a vote; None where rewards name no single answer."""
    kinds = [reward.kind for reward in scoring.rewards if isinstance(reward, MathReward | NumberReward)]
    return (lambda text: answer_key(text, kinds[0])) if len(kinds) == 1 else None


def summarise(
    rollouts: Sequence[Rollout],
    scores: Sequence[Sequence[Score]],
    *,
    key: AnswerKey | None = None,
    ks: Sequence[int] = (),
    confidence: float = 0.95,
) -> dict[str, Any]:
    """Summarise scored answers, problem by problem: samples of one problem are not independent of each other.

    Parameters
    ----------
    rollouts, scores
        Prompts with their answers, and a score for each.
    key : callable, optional
        Returns what an answer says, equal for answers that a vote takes for the same; None for one that says nothing.
    ks : sequence of int >= 1
        Of pass@k and majority@k; default: powers of two up to the number of samples, and that number.
    confidence : float in (0, 1)

    Returns
    -------
    dict
        ``problems``, ``samples`` (least and most a problem), ``answers``, ``without_score`` (count by status) and
        ``without_score_share``, ``unread`` and ``truncated`` (shares), ``tokens`` (mean); ``repeated_prompts`` (count,
        where a problem has the prompt of an earlier one); ``score`` (over problems, ``se``, ``low``, ``high``); where
        all scores are 0 or 1, ``pass@k`` and ``majority@k`` (the same, with ``problems``, those that have k scored
        answers).

    Raises
    ------
    EvaluationError
        If nothing was scored, a k is larger than the number of scored answers of every problem, or there are ks of
        scores that are not all 0 or 1.

    Notes
    -----
    Intervals are `humanline.stats.clustered_share` for shares, Wilson's where there is one sample a problem, and
    Student's over problems for other scores. Answers without a score are in no mean; their number is said.
    """
    items = items_of(rollouts, scores)
    known = [item.known for item in items]
    answers = [one for rollout in rollouts for one in rollout.completions]
    flat = [score for own in scores for score in own]
    lost = without_value(items)
    if not any(known):
        raise EvaluationError(
            f"none of {len(flat)} answers has a score: {', '.join(f'{n} {what}' for what, n in lost.items())}"
        )
    summary: dict[str, Any] = {
        "problems": len(items),
        "samples": [min(len(item.values) for item in items), max(len(item.values) for item in items)],
        "answers": len(flat),
        "without_score": dict(sorted(lost.items())),
        "without_score_share": lost.total() / len(flat),
        "unread": sum(is_unread(score.reason) for score in flat) / len(flat),
        "truncated": sum(answer.truncated for answer in answers) / len(answers),
        "tokens": math.fsum(len(answer.ids) for answer in answers) / len(answers),
    }
    if repeated := repeated_prompts(items):
        summary["repeated_prompts"] = repeated
    means = [math.fsum(values) / len(values) for values in known if values]
    binary = all(value in (0.0, 1.0) for values in known for value in values)
    if not binary:
        if ks:
            raise EvaluationError(
                "--k asks for pass@k, which there is of scores of 0 and 1 alone; some are neither: leave it out"
            )
        summary["score"] = mean_fact(means, confidence)
        return summary
    single = max(map(len, known)) == 1
    summary["score"] = share_fact(means, confidence, single)
    most = max(map(len, known))
    for k in ks or usual_ks(most):
        enough = [values for values in known if len(values) >= k]
        if not enough:
            raise EvaluationError(f"pass@{k} needs {k} scored answers of a problem; there are {most} at most")
        passed = [pass_at_k(int(sum(values)), len(values), k) for values in enough]
        summary[f"pass@{k}"] = share_fact(passed, confidence, single)
        if key is not None:
            votes = [
                _vote(rollout, own, key, k)
                for rollout, own, values in zip(rollouts, scores, known, strict=True)
                if len(values) >= k
            ]
            summary[f"majority@{k}"] = share_fact(votes, confidence, single)
    return summary


def _vote(rollout: Rollout, scores: Sequence[Score], key: AnswerKey, k: int) -> float:
    """Return the probability that the most frequent of k scored answers is right.

    An answer that says nothing stands alone: nothing agrees with it.
    """
    counts: dict[tuple[str, object], int] = {}
    right: dict[tuple[str, object], bool] = {}
    for number, (answer, score) in enumerate(zip(rollout.completions, scores, strict=True)):
        if score.value is None:
            continue
        said = key(answer.text)
        # By the score too: a checker that reads more than the key does may tell two answers apart that look alike.
        place = ("nothing", number) if said is None else (said, score.value)
        counts[place] = counts.get(place, 0) + 1
        right[place] = score.value == 1.0
    return majority_at_k(list(counts.values()), [right[place] for place in counts], k)


def share_fact(values: Sequence[float], confidence: float, single: bool) -> dict[str, Any]:
    """Return the mean of the shares of problems, with its standard error and interval, as a summary has it.

    `single` says that each is one outcome, 0 or 1: then the interval is Wilson's, else `clustered_share`.
    """
    if single:
        found = wilson_interval(round(sum(values)), len(values), confidence=confidence)
    else:
        found = clustered_share(values, confidence=confidence)
    return _fact(found.share, mean_estimate(values).error, found.low, found.high, len(values))


def mean_fact(values: Sequence[float], confidence: float) -> dict[str, Any]:
    """Return the mean of the values of problems, with its standard error and Student's interval."""
    estimate = mean_estimate(values)
    half = estimate.interval(confidence).half_width
    return _fact(estimate.mean, estimate.error, estimate.mean - half, estimate.mean + half, len(values))


def _fact(value: float, error: float, low: float, high: float, problems: int) -> dict[str, Any]:
    """Return a number with its standard error and interval; null where a single problem tells nothing of them."""
    bounds = {"se": error, "low": low, "high": high}
    return {
        "value": value,
        **{name: bound if math.isfinite(bound) else None for name, bound in bounds.items()},
        "problems": problems,
    }


def describe_summary(summary: dict[str, Any]) -> list[str]:
    """Return the lines of a summary: each number with its interval, and what is in no number."""
    least, most = summary["samples"]
    many = str(least) if least == most else f"{least} to {most}"
    lines = [f"{summary['problems']} problems, {many} samples each, {summary['tokens']:.0f} tokens an answer"]
    for name, fact in summary.items():
        if isinstance(fact, dict) and "value" in fact:
            known = "interval not known" if fact["low"] is None else f"{fact['low']:.4f} to {fact['high']:.4f}"
            error = "" if fact["se"] is None else f", standard error {fact['se']:.4f}"
            few = "" if fact["problems"] == summary["problems"] else f"; {fact['problems']} problems"
            lines.append(f"{name}: {fact['value']:.4f} ({known}{error}{few})")
    lines += of_repeated(summary)
    parts = [f"{count} {status}" for status, count in summary["without_score"].items()]
    lines.append(
        f"without a score {summary['without_score_share']:.1%}{f' ({chr(44).join(parts)})' if parts else ''}, "
        f"not read {summary['unread']:.1%}, truncated {summary['truncated']:.1%}"
    )
    return lines


def of_repeated(summary: dict[str, Any]) -> list[str]:
    """Return what is to be said of a summary with ``repeated_prompts``, nothing of one without."""
    if not (repeated := summary.get("repeated_prompts")):
        return []
    return [
        f"warning: {repeated} of {summary['problems']} problems have the prompt of an earlier one; errors and "
        "intervals take all for independent, and may be too small"
    ]
