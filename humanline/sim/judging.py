"""The verdict that a study gives on a claim, setting by setting and over all of them.

A claim is judged in *settings*: a problem, an objective and a learning rate; also at the learning rate that is best
for each variant, chosen on one half of the seeds and judged on the other, both ways round. In a setting the claim is
one or more numbers per seed that it says are positive on average. Scores count as a share of what there is to gain:
0 the start policy, 1 the best response to every context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from humanline.sim.claims import Claim
from humanline.sim.lookup import Setting, Study
from humanline.stats import Interval, holm, mean_interval, sign_flip_test

LEVEL = 0.05
HOLDS, CONTRARY, UNDECIDED, NOT_TESTED = "holds", "contrary", "undecided", "not tested"


@dataclass(frozen=True)
class Finding:
    """Hold what a study says of a claim in one setting.

    Parameters
    ----------
    setting : Setting
    effect : Interval
        Mean and 95 % Student interval over seeds.
    verdict : str
        "holds": every number that should be positive is, by sign-flip tests, p < 0.05 after Holm's correction over the
        settings; "contrary": one of them is negative, by the same standard; "undecided"; "not tested".
    p : float
        Adjusted p-value of "holds"; nan if not tested.
    why : str
        Why it is not tested.
    """

    setting: Setting
    effect: Interval
    verdict: str
    p: float
    why: str


@dataclass(frozen=True)
class Judgement:
    """Hold the verdict on a claim: "holds" in every tested setting, in none of them, or "depends"."""

    claim: Claim
    findings: list[Finding]

    @property
    def tested(self) -> list[Finding]:
        """The settings that say something about the claim."""
        return [finding for finding in self.findings if finding.verdict != NOT_TESTED]

    @property
    def verdict(self) -> str:
        """One of "holds", "does not hold", "depends" and "not tested"."""
        held = [finding.verdict == HOLDS for finding in self.tested]
        if not held:
            return NOT_TESTED
        return HOLDS if all(held) else "depends" if any(held) else "does not hold"

    @property
    def summary(self) -> str:
        """In how many settings it holds, and where it depends, on what most."""
        text = f"holds in {sum(f.verdict == HOLDS for f in self.findings)} of {len(self.tested)} tested settings"
        if self.verdict != "depends":
            return text
        name, levels = self.depends_on[0]
        return f"{text}; {name}: " + ", ".join(f"{level} {held}/{total}" for level, (held, total) in levels.items())

    @property
    def depends_on(self) -> list[tuple[str, dict[str, tuple[int, int]]]]:
        """Factors with, for each level, in how many of the tested settings the claim holds; the most telling first.

        A factor tells as much as knowing its level lowers the entropy of "holds".
        """
        factors = []
        for name in ("task", "objective", "rate"):
            levels: dict[str, tuple[int, int]] = {}
            for finding in self.tested:
                value = getattr(finding.setting, name)
                level = "tuned" if value is None else f"{value:g}" if name == "rate" else value
                held, total = levels.get(level, (0, 0))
                levels[level] = held + (finding.verdict == HOLDS), total + 1
            if len(levels) > 1:
                left = sum(total * _entropy(held / total) for held, total in levels.values())
                factors.append((left, "learning rate" if name == "rate" else name, levels))
        return [(name, levels) for _, name, levels in sorted(factors, key=lambda factor: factor[0])]


def _entropy(share: float) -> float:
    return -sum(p * float(np.log(p)) for p in (share, 1 - share) if p > 0)


def judge(claim: Claim, study: Study, settings: Sequence[Setting]) -> Judgement:
    """Judge one claim in some settings.

    Parameters
    ----------
    claim : Claim
    study : Study
        With the results of all variants of the claim in these settings.
    settings : sequence of Setting

    Returns
    -------
    Judgement

    Notes
    -----
    Source: arXiv 2509.24207, where the claim says. A claim of several parts holds if all of them do, so the largest of
    their p-values is tested; it is contrary if one of them is reversed, so the smallest is, times their number.
    """
    contrasts = [claim.contrast(lambda v, m, s=setting: study.get(s, v, m)) for setting in settings]  # type: ignore[misc]
    holds, contrary = np.full((2, len(settings)), np.nan)
    for index, contrast in enumerate(contrasts):
        if not contrast.untested:
            parts = np.stack(contrast.positive)
            holds[index] = np.max(sign_flip_test(parts, alternative="greater"))
            contrary[index] = min(1.0, len(parts) * float(np.min(sign_flip_test(parts, alternative="less"))))
    if np.isfinite(holds).any():
        holds, contrary = holm(holds), holm(contrary)
    findings = []
    for index, (setting, contrast) in enumerate(zip(settings, contrasts, strict=True)):
        verdict = UNDECIDED
        if contrast.untested:
            verdict = NOT_TESTED
        elif holds[index] < LEVEL:
            verdict = HOLDS
        elif contrary[index] < LEVEL:
            verdict = CONTRARY
        effect = mean_interval(contrast.effect.tolist())
        findings.append(Finding(setting, effect, verdict, float(holds[index]), contrast.untested))
    return Judgement(claim, findings)
