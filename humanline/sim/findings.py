"""What a study says of a claim: in one setting, and over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from humanline.sim.claims import Claim
from humanline.sim.dependence import Dependence, dependences
from humanline.sim.lookup import Setting
from humanline.stats import Interval

LEVEL = 0.05
HOLDS, SMALL, UNDECIDED = "holds", "small", "undecided"
SLIGHTLY_CONTRARY, CONTRARY = "slightly contrary", "contrary"
ROUNDING, NOT_TESTED = "rounding", "not tested"
#: The verdicts of a setting; the last two are no evidence.
VERDICTS = (HOLDS, SMALL, UNDECIDED, SLIGHTLY_CONTRARY, CONTRARY, ROUNDING, NOT_TESTED)

HOLDS_EVERYWHERE, DEPENDS, SMALL_AT_MOST = "holds everywhere", "depends", "small at most"
CONTRARY_SOMEWHERE, UNDECIDED_EVERYWHERE = "contrary somewhere, holds nowhere", "undecided everywhere"
#: The verdicts over all settings, and what each says.
OVERALL = {
    HOLDS_EVERYWHERE: "it holds in every setting that tests it",
    DEPENDS: "it holds in some of them",
    SMALL_AT_MOST: "it holds in none and none is contrary, but differences below the margin are there",
    CONTRARY_SOMEWHERE: "it holds in none, and the contrary does in at least one",
    UNDECIDED_EVERYWHERE: "no setting decides",
    NOT_TESTED: "no setting tests it",
}


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
        settings; "small": so it is, but of a claim that the effect is positive one of the numbers is below the margin;
        "contrary": one of the numbers is negative, by the same standard; "slightly contrary": so it is, and none of
        them by as much as the margin; "undecided"; "rounding": a run with other rounding says something else; "not
        tested".
    jointly : str
        The same with the correction over the settings of all claims.
    p, p_jointly : float
        Adjusted p-values of "holds"; nan if not tested.
    why : str
        Why it is not tested, or how rounding shows.
    same_as : float or None
        The fixed learning rate whose runs a tuned setting repeats number by number.
    edges : tuple of str
        Variants whose best learning rate is the least or the largest that was run, with that rate.
    idle : tuple of str
        Variants that clip or reject, and do so to hardly any token.
    moved : float
        By how much another rounding moves the effect; nan if that was not measured.
    """

    setting: Setting
    effect: Interval
    verdict: str
    jointly: str
    p: float
    p_jointly: float
    why: str
    same_as: float | None = None
    edges: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    moved: float = float("nan")

    @property
    def tested(self) -> bool:
        """Whether it says something about the claim."""
        return self.verdict not in (ROUNDING, NOT_TESTED)


@dataclass(frozen=True)
class Judgement:
    """Hold what a study says of a claim in every setting, and over all of them."""

    claim: Claim
    findings: list[Finding]

    @property
    def fixed(self) -> list[Finding]:
        """The settings of a given learning rate."""
        return [finding for finding in self.findings if finding.setting.rate is not None]

    @property
    def tuned(self) -> list[Finding]:
        """The settings in which each variant has its best learning rate."""
        return [finding for finding in self.findings if finding.setting.rate is None]

    @property
    def tested(self) -> list[Finding]:
        """The settings that say something about the claim, each once: without those that repeat a fixed rate."""
        return [finding for finding in self.findings if finding.tested and finding.same_as is None]

    @property
    def verdict(self) -> str:
        """One of `OVERALL`."""
        return overall(finding.verdict for finding in self.tested)

    @property
    def jointly(self) -> str:
        """The same with the correction over the settings of all claims."""
        return overall(finding.jointly for finding in self.tested)

    @property
    def summary(self) -> str:
        """In how many settings it holds, how many are no evidence, and where it depends, on what most."""
        counts = Counter(finding.verdict for finding in self.tested)
        kinds = (SMALL, SLIGHTLY_CONTRARY, CONTRARY, UNDECIDED)
        counts["no evidence"] = sum(not f.tested and f.same_as is None for f in self.findings)
        others = ", ".join(f"{kind} in {counts[kind]}" for kind in (*kinds, "no evidence") if counts[kind])
        text = f"holds in {counts[HOLDS]} of {len(self.tested)} tested settings" + f" ({others})" * bool(others)
        on = self.depends_on[:1] if self.verdict == DEPENDS else []
        return "; ".join([text, *map(str, on)])

    @cached_property
    def depends_on(self) -> list[Dependence]:
        """What tells more than chance in which of the tested settings the claim holds, the most telling first.

        Fixed learning rates alone are looked at, if there are any.
        """
        looked_at = [f for f in self.fixed if f.tested] or self.tested
        factors = {
            "task": [f.setting.task for f in looked_at],
            "objective": [f.setting.objective for f in looked_at],
            "learning rate": ["tuned" if f.setting.rate is None else f"{f.setting.rate:g}" for f in looked_at],
        }
        return [each for each in dependences([f.verdict == HOLDS for f in looked_at], factors) if each.p < LEVEL]


def overall(verdicts: Iterable[str]) -> str:
    """Return the verdict over all settings from those of the settings that test a claim."""
    found = set(verdicts)
    if not found:
        return NOT_TESTED
    if found == {HOLDS}:
        return HOLDS_EVERYWHERE
    if HOLDS in found:
        return DEPENDS
    if CONTRARY in found:
        return CONTRARY_SOMEWHERE
    return SMALL_AT_MOST if found & {SMALL, SLIGHTLY_CONTRARY} else UNDECIDED_EVERYWHERE
