"""The paper's claims as contrasts between runs, and the verdict that a study gives on each.

A claim is judged in *settings*: a problem, an objective and a learning rate; also at the learning rate that is best
for each variant, chosen on one half of the seeds and judged on the other, both ways round. In a setting the claim is
one or more numbers per seed that it says are positive on average. Scores count as a share of what there is to gain:
0 the start policy, 1 the best response to every context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.sim.study import Result
from humanline.sim.variants import CLIP_RANGES
from humanline.stats import Interval, holm, mean_interval, sign_flip_test

Array = NDArray[np.float64]
#: Differences of less than this share of what there is to gain count as none.
MARGIN = 0.05
#: A claim about clipping is tested only where more than this share of tokens is clipped.
CLIPPED = 0.01
LEVEL = 0.05
HOLDS, CONTRARY, UNDECIDED, NOT_TESTED = "holds", "contrary", "undecided", "not tested"


@dataclass(frozen=True)
class Setting:
    """Name a problem, an objective and a learning rate (None: the best for each variant)."""

    task: str
    objective: str
    rate: float | None

    def __str__(self) -> str:
        return f"{self.task}, {self.objective}, " + ("tuned" if self.rate is None else f"lr {self.rate:g}")


class Study:
    """Look up the results of a study.

    Parameters
    ----------
    results : mapping from (task, objective, rate, variant) to a Result
    """

    def __init__(self, results: Mapping[tuple[str, str, float, str], Result]) -> None:
        self.results = results

    def get(self, setting: Setting, variant: str, measure: str) -> Array:
        """Return a measure of each seed; scores as a share of what there is to gain.

        At the tuned rate, each half of the seeds (even and odd places) has the rate at which the variant's mean final
        score over the other half is highest.
        """
        if setting.rate is not None:
            return _gained(self.results[setting.task, setting.objective, setting.rate, variant], measure)
        rates = [r for t, o, r, v in self.results if (t, o, v) == (setting.task, setting.objective, variant)]
        tables = [self.results[setting.task, setting.objective, rate, variant] for rate in rates]
        scores = np.stack([_gained(table, "score") for table in tables])
        values = np.stack([_gained(table, measure) for table in tables])
        tuned = np.empty(values.shape[1])
        for half in (0, 1):
            best = scores[:, 1 - half :: 2].mean(1).argmax()
            tuned[half::2] = values[best, half::2]
        return tuned


def _gained(result: Result, measure: str) -> Array:
    room = result["best"] - result["start"]
    if measure in ("score", "early"):
        return np.where(np.isfinite(result[measure]), (result[measure] - result["start"]) / room, -1.0)
    if measure == "drop":
        return np.where(np.isfinite(result["drop"]), result["drop"] / room, 1.0)
    return result[measure]


Get = Callable[[str, str], Array]  # (variant, measure) -> (S,)


@dataclass(frozen=True)
class Contrast:
    """Hold what a claim comes to in one setting.

    Parameters
    ----------
    effect : (S,) array
        What is reported.
    positive : list of (S,) arrays
        What the claim says is positive on average, all of it.
    untested : str
        Why the setting says nothing about the claim; empty if it does.
    """

    effect: Array
    positive: list[Array]
    untested: str = ""


@dataclass(frozen=True)
class Claim:
    """Describe a claim of the paper.

    Parameters
    ----------
    name, words, source : str
        How it is called here, what it says, and where in arXiv 2509.24207.
    effect : str
        What the reported number is.
    variants : tuple of str
    contrast : callable
        From a look-up (variant, measure) to a Contrast.
    tasks, objectives : tuples of str
    """

    name: str
    words: str
    source: str
    effect: str
    variants: tuple[str, ...]
    contrast: Callable[[Get], Contrast]
    tasks: tuple[str, ...] = ("bandit", "sequence", "verifiable")
    objectives: tuple[str, ...] = ("dpo", "kto", "grpo")


def _score(first: str, second: str) -> Callable[[Get], Contrast]:
    def contrast(get: Get) -> Contrast:
        difference = get(first, "score") - get(second, "score")
        return Contrast(difference, [difference])

    return contrast


def _above_zero(difference: Array) -> bool:
    interval = mean_interval(difference.tolist())
    return interval.excludes_zero and interval.mean > 0


def _too_few(get: Get, variant: str) -> str:
    outside = float(get(variant, "outside").mean())
    return "" if outside > CLIPPED else f"{outside:.2%} of tokens clipped"


def _closes_gap(get: Get) -> Contrast:
    offline, human, online = (get(name, "score") for name in ("offline", "offline+humanline", "online"))
    untested = "" if _above_zero(online - offline) else "online is not better than offline"
    return Contrast(human - online, [human - offline, human - online + MARGIN], untested)


def _sync_gives_most(get: Get) -> Contrast:
    offline, human, sync = (get(name, "score") for name in ("offline", "offline+humanline", "sync only"))
    untested = "" if _above_zero(human - offline) else "humanline is not better than offline"
    more_than_half = sync - (offline + human) / 2
    return Contrast(more_than_half, [more_than_half], untested)


def _clip_needed(first: str, second: str) -> Callable[[Get], Contrast]:
    def contrast(get: Get) -> Contrast:
        difference = get(first, "score") - get(second, "score")
        return Contrast(difference, [difference], _too_few(get, first))

    return contrast


def _clip_range(get: Get) -> Contrast:
    default = "offline+humanline k=16"
    differences = [get(name, "score") - get(default, "score") for name in _RANGES]
    largest = max(differences, key=lambda d: abs(float(d.mean())))
    within = [MARGIN + sign * d for d in differences for sign in (1, -1)]
    return Contrast(largest, within, _too_few(get, default))


def _slower(get: Get) -> Contrast:
    difference = get("offline+humanline k=1", "early") - get("offline+humanline k=64", "early")
    return Contrast(difference, [difference])


def _stabler(variant: str) -> Callable[[Get], Contrast]:
    def contrast(get: Get) -> Contrast:
        difference = get(f"{variant} k=1", "drop") - get(f"{variant} k=64", "drop")
        return Contrast(difference, [difference])

    return contrast


def _collapses(get: Get) -> Contrast:
    collapsed = get("online+humanline every=64 k=1", "collapsed")
    return Contrast(collapsed, [collapsed - 0.5])


def _tolerates(get: Get) -> Contrast:
    often, seldom, human = (
        get(name, "score") for name in ("online every=1", "online every=64", "online+humanline every=64 k=16")
    )
    untested = "" if _above_zero(often - seldom) else "sampling less often does no harm without humanline"
    return Contrast(human - often, [human - seldom, human - often + MARGIN], untested)


def _low_probability(get: Get) -> Contrast:
    low, *rest = (get(f"offline+humanline quartile={q}", "score") for q in (1, 2, 3, 4))
    difference = np.mean(rest, 0) - low
    return Contrast(difference, [difference])


def _slightly(get: Get) -> Contrast:
    online = get("online+humanline", "score") - get("online", "score")
    offline = get("offline+humanline", "score") - get("offline", "score")
    return Contrast(online, [online, offline - online])


def _as_good_as_beta(get: Get) -> Contrast:
    difference = get("offline+humanline", "score") - get("beta rejection", "score")
    return Contrast(difference, [difference + MARGIN], _too_few(get, "beta rejection"))


def _perceived(get: Get) -> Contrast:
    difference = get("offline", "distance") - get("online", "distance")
    return Contrast(difference, [difference])


_RANGES = tuple(f"offline+humanline k=16 clip={low:g},{high:g}" for low, high in CLIP_RANGES)
_QUARTILES = tuple(f"offline+humanline quartile={q}" for q in (1, 2, 3, 4))

CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        Claim(
            "online-beats-offline",
            "Online alignment beats offline alignment.",
            "section 1, Figure 1",
            "score, online - offline",
            ("online", "offline"),
            _score("online", "offline"),
        ),
        Claim(
            "humanline-beats-offline",
            "On the same offline data the humanline variant beats the plain one.",
            "section 5.2.1, Figure 1",
            "score, offline+humanline - offline",
            ("offline+humanline", "offline"),
            _score("offline+humanline", "offline"),
        ),
        Claim(
            "humanline-closes-gap",
            "Offline humanline does as well as online: better than offline, and not worse than online by "
            f"{MARGIN:g} of what there is to gain.",
            "section 5.2.1, Figure 1",
            "score, offline+humanline - online",
            ("offline+humanline", "offline", "online"),
            _closes_gap,
        ),
        Claim(
            "sync-gives-most",
            "Syncing alone gives more than half of what humanline gains over offline.",
            "section 5.2.1, Figure 5 left",
            "score, sync only - mean of offline and offline+humanline",
            ("offline+humanline", "offline", "sync only"),
            _sync_gives_most,
        ),
        Claim(
            "sync-needed",
            "Clipping without syncing falls short of humanline.",
            "section 5.2.1, Figure 5 left",
            "score, offline+humanline - clip only",
            ("offline+humanline", "clip only"),
            _score("offline+humanline", "clip only"),
        ),
        Claim(
            "clip-needed",
            "Syncing every step without clipping falls short of humanline.",
            "section 5.2.1, Figure 5 left",
            "score, offline+humanline - sync only",
            ("offline+humanline", "sync only"),
            _clip_needed("offline+humanline", "sync only"),
        ),
        Claim(
            "clip-needed-k16",
            "The same where the reference is synced every 16 steps, so that more tokens are clipped.",
            "section 5.2.1, Figure 5 left",
            "score, offline+humanline k=16 - sync only k=16",
            ("offline+humanline k=16", "sync only k=16"),
            _clip_needed("offline+humanline k=16", "sync only k=16"),
        ),
        Claim(
            "clip-matches-sampling",
            "Humanline clipping does as well as humanline sampling: not worse than Beta rejection by "
            f"{MARGIN:g} of what there is to gain.",
            "section 5.2.1, Figure 5 right",
            "score, offline+humanline - beta rejection",
            ("offline+humanline", "beta rejection"),
            _as_good_as_beta,
        ),
        Claim(
            "larger-k-slower",
            "Syncing less often learns more slowly: a lower score after a quarter of the steps.",
            "section 5.2.2, Figures 7 and 8",
            "score at a quarter of the run, k = 1 - k = 64",
            ("offline+humanline k=1", "offline+humanline k=64"),
            _slower,
        ),
        Claim(
            "larger-k-stabler",
            "Syncing less often is stabler: the score falls less from its best.",
            "sections 5.1 and 5.2.2, Figures 7 and 8",
            "fall from the best score, k = 1 - k = 64",
            ("offline+humanline k=1", "offline+humanline k=64"),
            _stabler("offline+humanline"),
        ),
        Claim(
            "larger-k-stabler-stale",
            "The same for rewards that are sampled every 64 steps.",
            "section 5.2.2, Figure 7",
            "fall from the best score, k = 1 - k = 64",
            ("online+humanline every=64 k=1", "online+humanline every=64 k=64"),
            _stabler("online+humanline every=64"),
            tasks=("sequence", "verifiable"),
            objectives=("grpo",),
        ),
        Claim(
            "k1-collapses",
            "On verifiable rewards, sampled every 64 steps, syncing every step collapses: more than half of the runs "
            "end below their start.",
            "section 5.2.2, Figure 7, Table 2",
            "share of runs that end below their start",
            ("online+humanline every=64 k=1",),
            _collapses,
            tasks=("verifiable",),
            objectives=("grpo",),
        ),
        Claim(
            "stale-samples-hurt",
            "Without humanline, sampling every 64 steps is worse than sampling every step.",
            "section 5.2.2, Figure 7",
            "score, online every step - online every 64",
            ("online every=1", "online every=64"),
            _score("online every=1", "online every=64"),
            tasks=("sequence", "verifiable"),
            objectives=("grpo",),
        ),
        Claim(
            "humanline-tolerates-stale",
            "With humanline (k = 16) sampling every 64 steps does as well as sampling every step without: better than "
            f"sampling every 64 without, and not worse than every step by {MARGIN:g} of what there is to gain.",
            "section 5.2.2, Figure 7",
            "score, online+humanline every 64 (k = 16) - online every step",
            ("online every=1", "online every=64", "online+humanline every=64 k=16"),
            _tolerates,
            tasks=("sequence", "verifiable"),
            objectives=("grpo",),
        ),
        Claim(
            "trust-region-worse",
            "Trust-region syncing (every 64 steps, after the update) is worse than humanline.",
            "section 5.2.1, Figure 10",
            "score, offline+humanline - trust region",
            ("offline+humanline", "trust region"),
            _score("offline+humanline", "trust region"),
        ),
        Claim(
            "low-probability-worse",
            "Humanline on the quarter of the data that the start policy finds least likely is worse than on the rest.",
            "section 5.2.1, Figure 6",
            "score, mean of quartiles 2 to 4 - quartile 1",
            _QUARTILES,
            _low_probability,
            objectives=("dpo",),
        ),
        Claim(
            "clip-range-hardly-matters",
            f"The clip ranges of Table 6 all come within {MARGIN:g} of what there is to gain of the default (k = 16).",
            "section 5.2.1, Table 6",
            "score, the range that differs most - default",
            ("offline+humanline k=16", *_RANGES),
            _clip_range,
            objectives=("dpo",),
        ),
        Claim(
            "online-humanline-slightly-better",
            "Humanline helps online too, but less than offline.",
            "section 5.2.1",
            "score, online+humanline - online",
            ("offline", "offline+humanline", "online", "online+humanline"),
            _slightly,
        ),
        Claim(
            "online-beats-worse-data",
            "Online alignment beats offline data from a worse policy.",
            "section 3, Figure 2",
            "score, online - offline on worse data",
            ("online", "offline worse data"),
            _score("online", "offline worse data"),
            objectives=("dpo", "grpo"),
        ),
        Claim(
            "online-beats-better-data",
            "Online alignment beats offline data from a better policy.",
            "section 3, Figure 2",
            "score, online - offline on better data",
            ("online", "offline better data"),
            _score("online", "offline better data"),
            objectives=("dpo", "grpo"),
        ),
        Claim(
            "online-closer-to-perceived",
            "At the end of training, the law of online data is closer to the human-perceived distribution of the "
            "policy than that of offline data (half the L1 distance; medians of Tversky and Kahneman).",
            "section 3, Figure 2",
            "distance, offline - online",
            ("online", "offline"),
            _perceived,
        ),
    )
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


def chosen(names: Sequence[str]) -> list[Claim]:
    """Return the claims of these names, all of them if there is none.

    Raises
    ------
    ValueError
        If a name is not one of `CLAIMS`; the nearest is suggested.
    """
    for name in names:
        if name not in CLAIMS:
            raise _checks.unknown("claim", name, list(CLAIMS))
    return [CLAIMS[name] for name in dict.fromkeys(names or CLAIMS)]
