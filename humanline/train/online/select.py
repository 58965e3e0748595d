"""Scored completions -> pairs and groups: what is kept of each prompt, and what was left out and why.

Source: arXiv 2509.24207, Algorithm 1, lines 8 to 11.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from humanline.stats import rounding_of
from humanline.train.config.rounds import RoundsSource, ScoringConfig
from humanline.train.data.batch import Unit
from humanline.train.data.sequences import TokenSequence
from humanline.train.online.rewards.scorer import reward_names, reward_place
from humanline.train.online.rewards.verdict import shown
from humanline.train.online.types import Completion, OwnTokens, Rollout, Score
from humanline.train.run.processes import RoundError

_KINDS_SHOWN = 4  # of reasons why completions have no score


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a prompt: some of its completions, the best first under best_worst, with their scores."""

    rollout: Rollout
    numbers: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def completions(self) -> tuple[Completion, ...]:
        """Return the completions that are kept."""
        return tuple(self.rollout.completions[number] for number in self.numbers)


@dataclass(slots=True)
class Selection:
    """What a round leaves to train on, and what became of the rest.

    Parameters
    ----------
    kept : list of Kept
    contexts, completions : int
        How many there were.
    statuses : Counter
        Completions without a score, by status.
    truncated : int
        Completions that ran into their length limit, whatever became of them.
    equal : int
        Prompts all of whose scores are the same, up to rounding: under best_worst left out, under all of advantage 0.
    below_margin, too_few : int
        Prompts left out because their scores differ too little, or fewer than two completions are left of them.
    gaps : list of float
        Of each prompt with two scores or more, the largest less the smallest, rounding aside.
    scores : list of float
        All of them.
    tokens, squares : int
        Of all completions: tokens, and the sum of their squared numbers.
    asked_again : Counter
        Answers of a server that could not be trained on, in whose place others were asked for, by reason.
    logprobs : OwnTokens
        What the sampler tells of the tokens that it has drawn.
    """

    kept: list[Kept] = field(default_factory=list)
    contexts: int = 0
    completions: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    truncated: int = 0
    equal: int = 0
    below_margin: int = 0
    too_few: int = 0
    gaps: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    tokens: int = 0
    squares: int = 0
    asked_again: Counter[str] = field(default_factory=Counter)
    logprobs: OwnTokens = field(default_factory=OwnTokens)

    def summary(self) -> dict[str, float]:
        """Return the numbers of a round for its line of metrics."""
        mean = math.fsum(self.scores) / len(self.scores) if self.scores else math.nan
        spread = math.fsum((s - mean) ** 2 for s in self.scores) / len(self.scores) if self.scores else math.nan
        length = self.tokens / max(1, self.completions)
        facts = {
            "contexts": self.contexts,
            "completions": self.completions,
            "kept_contexts": len(self.kept),
            "score": mean,
            "score_std": math.sqrt(spread),
            "completion_tokens": length,
            "completion_tokens_std": math.sqrt(max(0.0, self.squares / max(1, self.completions) - length * length)),
            "truncated": self.truncated / max(1, self.completions),
            "below_margin": self.below_margin,
            "equal_scores": self.equal,
            "too_few_completions": self.too_few,
            "without_score": sum(self.statuses.values()),
            "asked_again": self.asked_again.total(),
            **{f"asked_again/{why}": count for why, count in sorted(self.asked_again.items())},
            **self.logprobs.facts(),
        }
        return {name: value for name, value in facts.items() if math.isfinite(value)}

    def report(self, margin: float) -> dict[str, Any]:
        """Return numbers and words as a JSON object."""
        return {"facts": self.summary(), "why": self.why_so_few(margin)}

    def why_so_few(self, margin: float) -> str:
        """Return, in words, what was left out, and by how much scores missed the margin."""
        parts = []
        if self.below_margin:
            short = sorted((gap for gap in self.gaps if gap < margin or gap == 0), reverse=True)
            parts.append(
                f"{self.below_margin} prompts have scores that differ by less than source.score_margin {margin:g} "
                f"(the largest difference among them is {short[0]:.3g}, the median {short[len(short) // 2]:.3g})"
            )
        if self.statuses:
            lost = sum(self.statuses.values())
            parts.append(f"{lost} of {self.completions} completions have no score ({_listed(self.statuses)})")
        if self.too_few:
            parts.append(f"{self.too_few} prompts have fewer than two completions left")
        if self.truncated:
            parts.append(f"{self.truncated} completions were truncated")
        if self.asked_again:
            parts.append(in_place_of(self.asked_again))
        return "; ".join(parts) or "no prompt was left out"


def refuse_unscored(
    rollouts: Sequence[Rollout], scores: Sequence[Sequence[Score]], scoring: ScoringConfig, *, of: str, mend: str
) -> None:
    """Raise RoundError, with counts and reasons, if more completions have no score than is allowed.

    Parameters
    ----------
    rollouts : sequence of Rollout
    scores : sequence of sequence of Score
        One a completion.
    scoring : ScoringConfig
        Not one may lack a score if failed is "error", and no larger share than failed_share whatever failed is.
    of : str
        Whose completions they are, for the message.
    mend : str
        The sentence of the message that says how to have them scored again.
    """
    lost = [
        (f"{rollout.id}, completion {number}", score)
        for rollout, own in zip(rollouts, scores, strict=True)
        for number, score in enumerate(own, start=1)
        if score.value is None
    ]
    total = sum(map(len, scores))
    too_many = len(lost) / max(1, total) > scoring.failed_share
    if not too_many and not (lost and scoring.failed == "error"):
        return
    counts = _listed(Counter(score.status for _, score in lost))
    if len(scoring.rewards) > 1:
        names = reward_names(scoring.rewards)
        if by_reward := Counter(name for _, one in lost for name in _to_blame(one, names)):  # else it is their sum
            counts += f"; by reward: {_listed(by_reward)}"
    kinds = Counter(f"{score.status}: {score.reason}" for _, score in lost)
    first = {f"{score.status}: {score.reason}": place for place, score in reversed(lost)}
    told = kinds.most_common(_KINDS_SHOWN)
    lines = [f"- {count} times {shown(kind)} (first: {shown(first[kind], 100)})" for kind, count in told]
    if rest := len(lost) - sum(count for _, count in told):
        lines.append(f"- {rest} times something else")
    left_out = (
        "source.scoring.failed=drop, which leaves them out, or source.scoring.failed=0 or another score that they "
        "shall have"
    )
    if not too_many:
        way = f"It goes on without with {left_out}."
    elif scoring.failed == "error":
        way = f"It goes on without with source.scoring.failed_share=1 and {left_out}."
    else:
        way = "With source.scoring.failed_share=1 it goes on however many they are."
    raise RoundError(
        f"{of}: {len(lost)} of {total} completions have no score ({counts})"
        + (f", a larger share than source.scoring.failed_share {scoring.failed_share:g}:" if too_many else ":")
        + "".join(f"\n{line}" for line in lines)
        + f"\n{mend} {way}"
    )


def _to_blame(score: Score, names: Sequence[str]) -> list[str]:
    """Return the rewards for which there is no score: those that its reason names, or else all that gave no value.

    One of TRL's form that has nothing to say of a completion gives none either, and takes no score from another.
    """
    named = [name for number, name in enumerate(names) if reward_place(number, name) in score.reason]
    return named or [name for name in names if name not in score.parts]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def in_place_of(asked_again: Counter[str]) -> str:
    """Return, in words, how many answers could not be trained on, and why."""
    listed = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in asked_again.most_common())
    return f"{asked_again.total()} answers could not be trained on and were asked for again ({listed})"


def select(
    rollouts: Sequence[Rollout],
    scores: Sequence[Sequence[Score]],
    rounds: RoundsSource,
    how: Literal["best_worst", "all"],
    *,
    of: str,
    mend: str,
) -> Selection:
    """Keep the best against the worst completion of each prompt, or all of them.

    Parameters
    ----------
    rollouts : sequence of Rollout
    scores : sequence of sequence of Score
        One a completion.
    rounds : RoundsSource
        Of which are read score_margin (a pair is kept where max - min >= score_margin, rounding aside), truncated, and
        of its scoring what happens to completions without a score.
    how : {"best_worst", "all"}
    of, mend : str
        Words for the message of `refuse_unscored`.

    Raises
    ------
    RoundError
        As `refuse_unscored` does.
    """
    refuse_unscored(rollouts, scores, rounds.scoring, of=of, mend=mend)
    found, failed = Selection(), rounds.scoring.failed
    for rollout, own in zip(rollouts, scores, strict=True):
        found.contexts += 1
        found.asked_again.update(rollout.asked_again)
        usable: list[tuple[int, float]] = []
        for number, (completion, score) in enumerate(zip(rollout.completions, own, strict=True)):
            found.completions += 1
            found.tokens += len(completion.ids)
            found.squares += len(completion.ids) ** 2
            found.truncated += completion.truncated
            found.logprobs.add(completion)
            value = score.value
            if value is None:
                found.statuses[score.status] += 1
                if isinstance(failed, str):
                    continue
                value = failed
            found.scores.append(value)
            if completion.ids and not (completion.truncated and rounds.truncated == "drop"):
                usable.append((number, value))
        if len(usable) < 2:
            found.too_few += 1
            continue
        values = [value for _, value in usable]
        gap = _gap(values, rounds.score_margin)
        found.gaps.append(gap)
        found.equal += gap == 0
        if how == "best_worst":
            best, worst = values.index(max(values)), values.index(min(values))
            if gap < rounds.score_margin or gap == 0:
                found.below_margin += 1
                continue
            usable = [usable[best], usable[worst]]
        numbers, kept_scores = zip(*usable, strict=True)
        found.kept.append(Kept(rollout, numbers, kept_scores))
    return found


def _gap(values: Sequence[float], margin: float) -> float:
    """Return the largest of scores less the smallest; one that is 0 or the margin but for rounding is exactly that.

    .57 less .56 comes out below .01, .58 less .57 above.
    """
    high, low = max(values), min(values)
    gap, rounding = high - low, rounding_of(high, low)
    return next((exact for exact in (0.0, margin) if abs(gap - exact) <= rounding), gap)


def row_names(name: str, members: int, *, taken_apart: bool) -> list[str]:
    """Return the names of a prompt's rows, as batches have them (`humanline.train.data.batch.make_micro_batch`)."""
    if taken_apart:
        return [f"{name}#chosen", f"{name}#rejected"]
    return [f"{name}#{member}" for member in range(members)]


def make_units(kept: Sequence[Kept], context_ids: Mapping[str, tuple[int, ...]], *, taken_apart: bool) -> list[Unit]:
    """Return the units that an objective trains on: pairs and groups, or two labelled answers each.

    Parameters
    ----------
    kept : sequence of Kept
    context_ids : mapping of str to tuple of int
        Token ids of every prompt. Answers are the very tokens that were sampled.
    taken_apart : bool
        Whether each answer of a pair is a unit of its own, the first desirable and the second not.
    """
    units = []
    for one in kept:
        prompt, name = context_ids[one.rollout.id], one.rollout.id
        sequences = tuple(
            TokenSequence((*prompt, *completion.ids), len(prompt), completion.truncated)
            for completion in one.completions
        )
        if taken_apart:
            names = row_names(name, 2, taken_apart=True)
            units += [Unit(names[i], (sequence,), desirable=i == 0) for i, sequence in enumerate(sequences)]
        else:
            units.append(Unit(name, sequences, scores=one.scores))
    return units


def preference_rows(kept: Sequence[Kept]) -> Iterator[dict[str, Any]]:
    """Yield pairs as rows that offline training reads."""
    for one in kept:
        prompt: Any = [message.as_dict() for message in one.rollout.prompt]
        chosen, rejected = one.completions
        given = one.rollout.given.columns()
        yield {
            "prompt": prompt,
            "chosen": chosen.text,
            "rejected": rejected.text,
            "chosen_score": one.scores[0],
            "rejected_score": one.scores[1],
        } | given
