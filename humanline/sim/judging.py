"""The verdict that a study gives on claims, setting by setting.

A claim is judged in *settings*: a problem, an objective and a learning rate; also at the learning rate that is best
for each variant, chosen on one half of the seeds and judged on the other, both ways round. In a setting the claim is
one or more numbers per seed that it says are positive on average. Scores count as a share of what there is to gain:
0 the start policy, 1 the best response to every context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from humanline.sim.claims import Claim
from humanline.sim.contrasts import CLIPPED, Contrast
from humanline.sim.findings import (
    CONTRARY,
    HOLDS,
    LEVEL,
    NOT_TESTED,
    ROUNDING,
    SLIGHTLY_CONTRARY,
    SMALL,
    UNDECIDED,
    Finding,
    Judgement,
)
from humanline.sim.lookup import Array, Setting, Study
from humanline.sim.variants import VARIANTS
from humanline.stats import Interval, holm, mean_interval, sign_flip_test

#: Random signs of each test: the least p-value, 1e-5, stays below `LEVEL` after a correction over 4999 settings.
FLIPS = 99_999
#: An effect that another rounding moves by more than this share of its half-width hangs on rounding.
MOVED = 0.1
#: Decimals of the numbers that are tested: runs that differ in the last digits alone do not differ.
DECIMALS = 9

Question = tuple[Claim, Sequence[Setting]]


@dataclass(frozen=True)
class _Answer:
    """What the runs of one study come to in one setting."""

    contrast: Contrast
    effect: Interval
    p_holds: float
    p_contrary: float
    p_holds_jointly: float
    p_contrary_jointly: float

    @property
    def verdict(self) -> str:
        return self._verdict(self.p_holds, self.p_contrary)

    @property
    def jointly(self) -> str:
        return self._verdict(self.p_holds_jointly, self.p_contrary_jointly)

    def _verdict(self, p_holds: float, p_contrary: float) -> str:
        contrast, least = self.contrast, min(float(part.mean()) for part in self.contrast.positive)
        if contrast.untested:
            return NOT_TESTED
        if p_holds < LEVEL:
            return SMALL if contrast.superiority and least < contrast.margin else HOLDS
        if p_contrary < LEVEL:
            return SLIGHTLY_CONTRARY if contrast.superiority and least > -contrast.margin else CONTRARY
        return UNDECIDED


def judge(claim: Claim, study: Study, settings: Sequence[Setting], *, disturbed: Study | None = None) -> Judgement:
    """Judge one claim in some settings, as `judge_all` does."""
    return judge_all([(claim, settings)], study, disturbed=disturbed)[0]


def judge_all(questions: Sequence[Question], study: Study, *, disturbed: Study | None = None) -> list[Judgement]:
    """Judge claims in some settings each.

    Parameters
    ----------
    questions : sequence of (Claim, sequence of Setting)
    study : Study
        With the results of all variants of each claim in its settings.
    disturbed : Study, optional
        The same runs with other rounding. A setting in which the verdict changes, or the effect moves by more than a
        tenth of its half-width, is marked "rounding".

    Returns
    -------
    list of Judgement

    Notes
    -----
    Source: arXiv 2509.24207, where the claims say. A claim of several parts holds if all of them do, so the largest of
    their p-values is tested; it is contrary if one of them is reversed, so the smallest is, times their number. Both
    are corrected by Holm's method over the settings of the claim, and once more over those of all claims. A tuned
    setting whose variants all have one and the same fixed rate repeats that rate's setting: it takes its p-values and
    does not count in the correction.

    How far rounding moves an effect is the larger of how far its mean moves and of the root mean square of how far each
    seed's moves over the root of their number: what that would be if seeds moved independently, so that moves which
    happen to cancel are seen.
    """
    repeats = [[_repeated(claim, setting, study, settings) for setting in settings] for claim, settings in questions]
    answers = _answers(questions, study, repeats)
    others = answers if disturbed is None else _answers(questions, disturbed, repeats)
    judgements = []
    for (claim, settings), same, mine, theirs in zip(questions, repeats, answers, others, strict=True):
        findings = []
        for setting, place, answer, other in zip(settings, same, mine, theirs, strict=True):
            moved = _moved(answer, other)
            hangs = _hangs(answer, other, moved)
            findings.append(
                Finding(
                    setting,
                    answer.effect,
                    ROUNDING if hangs else answer.verdict,
                    ROUNDING if hangs else answer.jointly,
                    answer.p_holds,
                    answer.p_holds_jointly,
                    hangs or answer.contrast.untested,
                    None if place is None else settings[place].rate,
                    _edges(claim, setting, study),
                    _idle(claim, setting, study),
                    math.nan if disturbed is None else moved,
                )
            )
        judgements.append(Judgement(claim, findings))
    return judgements


def _repeated(claim: Claim, setting: Setting, study: Study, settings: Sequence[Setting]) -> int | None:
    """Return the place of the setting of a fixed rate that a tuned one repeats, because every variant has that rate."""
    if setting.rate is not None:
        return None
    rates = {rate for variant in claim.variants for rate in study.chosen(setting, variant)}
    alike = [Setting(setting.task, setting.objective, rate) for rate in rates]
    return list(settings).index(alike[0]) if len(alike) == 1 and alike[0] in settings else None


def _edges(claim: Claim, setting: Setting, study: Study) -> tuple[str, ...]:
    if setting.rate is not None:
        return ()
    return tuple(f"{variant} at {rate:g}" for variant in claim.variants for rate in study.edges(setting, variant))


def _idle(claim: Claim, setting: Setting, study: Study) -> tuple[str, ...]:
    acting = [name for name in claim.variants if name in VARIANTS and VARIANTS[name].transform is not None]
    return tuple(name for name in acting if float(study.get(setting, name, "outside").mean()) <= CLIPPED)


def _answers(
    questions: Sequence[Question], study: Study, repeats: Sequence[Sequence[int | None]]
) -> list[list[_Answer]]:
    """Return what a study says, for each claim and setting, with p-values corrected."""
    contrasts = [
        claim.contrast(lambda v, m, s=setting: study.get(s, v, m))  # type: ignore[misc]
        for claim, settings in questions
        for setting in settings
    ]
    raw = _p_values(contrasts)
    ends = np.cumsum([len(settings) for _, settings in questions]).tolist()
    slices = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
    # where the p-values of a setting come from: itself, or the one that it repeats
    origin = np.array(
        [
            part.start + (place if repeated is None else repeated)
            for part, same in zip(slices, repeats, strict=True)
            for place, repeated in enumerate(same)
        ],
        dtype=int,
    )
    once = np.where(origin == np.arange(len(origin)), raw, np.nan)
    own = np.full(raw.shape, np.nan)
    for part in slices:
        own[:, part] = _corrected(once[:, part])
    p = np.concatenate([own, _corrected(once)])[:, origin].T.tolist()
    answers = [_Answer(c, mean_interval(c.effect.tolist()), *row) for c, row in zip(contrasts, p, strict=True)]
    return [answers[part] for part in slices]


def _p_values(contrasts: Sequence[Contrast]) -> Array:
    """Return p-values of "holds" and of "contrary" for each contrast, (2, len(contrasts)); nan where it tests nothing.

    All tests of as many seeds are made at once, for drawing the signs takes time.
    """
    p = np.full((2, len(contrasts)), np.nan)
    tested = [
        (i, np.stack(contrast.positive).round(DECIMALS))
        for i, contrast in enumerate(contrasts)
        if not contrast.untested
    ]
    for seeds in sorted({parts.shape[1] for _, parts in tested}):
        chosen = [(i, parts) for i, parts in tested if parts.shape[1] == seeds]
        rows = np.concatenate([parts for _, parts in chosen])
        both = sign_flip_test(np.stack([rows, -rows]), flips=FLIPS, alternative="greater")
        first = 0
        for i, parts in chosen:
            mine = both[:, first : first + len(parts)]
            p[:, i] = mine[0].max(), min(1.0, len(parts) * float(mine[1].min()))
            first += len(parts)
    return p


def _corrected(p: Array) -> Array:
    """Return both rows of p-values after Holm's correction; nan does not count."""
    return np.stack([holm(row) if np.isfinite(row).any() else row for row in p])


def _moved(answer: _Answer, other: _Answer) -> float:
    moves = other.contrast.effect - answer.contrast.effect
    return float(max(abs(moves.mean()), np.sqrt(np.mean(moves**2) / len(moves))))


def _hangs(answer: _Answer, other: _Answer, moved: float) -> str:
    """Return how it shows that a setting hangs on rounding; empty if it does not."""
    if answer.verdict == other.verdict == NOT_TESTED:
        return ""
    if moved > max(MOVED * answer.effect.half_width, 10**-DECIMALS):
        return f"the effect moves by {moved:.2g}"
    return f"{answer.verdict} becomes {other.verdict}" if answer.verdict != other.verdict else ""
