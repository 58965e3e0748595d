"""The paper's claims: what each says, where, and the contrast between runs that it comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from humanline import _checks
from humanline.sim import contrasts, distances
from humanline.sim.contrasts import LEFT_OPEN, MARGIN, Contrast, Get
from humanline.sim.variants import MEAN_AGE, ODD_SYNC


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
    placebo : bool
        Whether it says that something helps which should not, so that it should hold nowhere.
    """

    name: str
    words: str
    source: str
    effect: str
    variants: tuple[str, ...]
    contrast: Callable[[Get], Contrast]
    tasks: tuple[str, ...] = ("bandit", "sequence", "verifiable")
    objectives: tuple[str, ...] = ("dpo", "kto", "grpo")
    placebo: bool = False


def _higher(name: str, words: str, source: str, one: str, other: str, *, placebo: bool = False) -> Claim:
    """Return the claim that a variant ends with a higher score than another."""
    contrast = contrasts.score(one, other)
    return Claim(name, words, source, f"score, {one} - {other}", (one, other), contrast, placebo=placebo)


CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        _higher(
            "online-beats-offline",
            "Online alignment beats offline alignment.",
            "section 1, Figure 1",
            "online",
            "offline",
        ),
        _higher(
            "humanline-beats-offline",
            "On the same offline data the humanline variant beats the plain one.",
            "section 5.2.1, Figure 1",
            "offline+humanline",
            "offline",
        ),
        Claim(
            "humanline-closes-gap",
            "Offline humanline does as well as online: better than offline, and not worse than online by "
            f"{MARGIN:g} of what there is to gain or by {LEFT_OPEN:.0%} of the gap.",
            "section 5.2.1, Figure 1",
            "score, offline+humanline - online",
            ("offline+humanline", "offline", "online"),
            contrasts.closes_gap,
        ),
        Claim(
            "sync-closes-half-the-gap",
            "Syncing alone, on the same offline data, closes more than half of the gap between offline and online.",
            "section 5.2.1, Figure 5 left; the gap: Figure 1",
            "share of the gap that sync only closes (ratio of means)",
            ("offline", "sync only", "online"),
            contrasts.sync_closes_half,
        ),
        Claim(
            "sync-gives-most",
            "Syncing alone gives more than half of what humanline gains over offline.",
            "section 5.2.1, Figure 5 left",
            "share of what offline+humanline gains over offline that sync only gives (ratio of means)",
            ("offline+humanline", "offline", "sync only"),
            contrasts.sync_gives_most("offline+humanline", "sync only"),
        ),
        Claim(
            "sync-gives-most-k16",
            "Syncing every 16 steps alone gives more than half of what humanline that syncs as often, and clips more "
            "tokens than at every step, gains over offline.",
            "section 5.2.1, Figure 5 left",
            "share of what offline+humanline k=16 gains over offline that sync only k=16 gives (ratio of means)",
            ("offline+humanline k=16", "offline", "sync only k=16"),
            contrasts.sync_gives_most("offline+humanline k=16", "sync only k=16"),
        ),
        Claim(
            "sync-needed",
            "Clipping without syncing falls short of humanline.",
            "section 5.2.1, Figure 5 left",
            "score, offline+humanline - clip only",
            ("offline+humanline", "clip only"),
            contrasts.where_clipped("offline+humanline", "clip only", "clip only"),
        ),
        Claim(
            "clip-needed",
            "Syncing every step without clipping falls short of humanline.",
            "section 5.2.1, Figure 5 left",
            "score, offline+humanline - sync only",
            ("offline+humanline", "sync only"),
            contrasts.where_clipped("offline+humanline", "sync only", "offline+humanline"),
        ),
        Claim(
            "clip-needed-k16",
            "Syncing every 16 steps without clipping falls short of humanline that syncs as often, and clips more "
            "tokens than at every step.",
            "section 5.2.1, Figure 5 left",
            "score, offline+humanline k=16 - sync only k=16",
            ("offline+humanline k=16", "sync only k=16"),
            contrasts.where_clipped("offline+humanline k=16", "sync only k=16", "offline+humanline k=16"),
        ),
        Claim(
            "clip-matches-sampling",
            "Humanline clipping does as well as humanline sampling: not worse than Beta rejection by "
            f"{MARGIN:g} of what there is to gain.",
            "section 5.2.1, Figure 5 right",
            "score, offline+humanline - beta rejection",
            ("offline+humanline", "beta rejection"),
            contrasts.as_good("offline+humanline", "beta rejection"),
        ),
        Claim(
            "clip-matches-sampling-k16",
            "Humanline clipping does as well as humanline sampling where the reference is synced every 16 steps, so "
            f"that more tokens are clipped: not worse than Beta rejection by {MARGIN:g} of what there is to gain.",
            "section 5.2.1, Figure 5 right",
            "score, offline+humanline k=16 - beta rejection k=16",
            ("offline+humanline k=16", "beta rejection k=16"),
            contrasts.as_good("offline+humanline k=16", "beta rejection k=16"),
        ),
        Claim(
            "larger-k-slower",
            "Syncing less often learns more slowly: a lower score after a quarter of the steps.",
            "section 5.2.2, Figures 7 and 8",
            "score at a quarter of the run, k = 1 - k = 64",
            ("offline+humanline k=1", "offline+humanline k=64"),
            contrasts.slower,
        ),
        Claim(
            "larger-k-stabler",
            "Syncing less often is stabler: the score falls less from its best.",
            "sections 5.1 and 5.2.2, Figures 7 and 8",
            "fall from the best score, k = 1 - k = 64",
            ("offline+humanline k=1", "offline+humanline k=64"),
            contrasts.stabler("offline+humanline"),
        ),
        Claim(
            "larger-k-stabler-stale",
            "Syncing less often is stabler for rewards that are sampled every 64 steps, too: the score falls less from "
            "its best.",
            "section 5.2.2, Figure 7",
            "fall from the best score, k = 1 - k = 64",
            ("online+humanline every=64 k=1", "online+humanline every=64 k=64"),
            contrasts.stabler("online+humanline every=64"),
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
            contrasts.collapses,
            tasks=("verifiable",),
            objectives=("grpo",),
        ),
        Claim(
            "stale-samples-hurt",
            "Without humanline, sampling every 64 steps is worse than sampling every step.",
            "section 5.2.2, Figure 7",
            "score, online every step - online every 64",
            ("online every=1", "online every=64"),
            contrasts.score("online every=1", "online every=64"),
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
            contrasts.tolerates,
            tasks=("sequence", "verifiable"),
            objectives=("grpo",),
        ),
        _higher(
            "trust-region-worse",
            "Trust-region syncing (every 64 steps, after the update) is worse than humanline.",
            "section 5.2.1, Figure 10",
            "offline+humanline",
            "trust region",
        ),
        Claim(
            "low-probability-worse",
            "Humanline on the quarter of the data that the start policy finds least likely is worse than on the rest.",
            "section 5.2.1, Figure 6",
            "score, mean of quartiles 2 to 4 - quartile 1",
            contrasts.QUARTILES,
            contrasts.low_probability,
            objectives=("dpo",),
        ),
        Claim(
            "clip-range-hardly-matters",
            f"The clip ranges of Table 6 all come within {MARGIN:g} of what there is to gain of the default (k = 16).",
            "section 5.2.1, Table 6",
            "score, the range that differs most - default",
            ("offline+humanline k=16", *contrasts.RANGES),
            contrasts.clip_range,
            objectives=("dpo",),
        ),
        Claim(
            "online-humanline-slightly-better",
            "Humanline helps online too, but less than offline.",
            "section 5.2.1",
            "score, online+humanline - online",
            ("offline", "offline+humanline", "online", "online+humanline"),
            contrasts.slightly,
        ),
        Claim(
            "online-beats-worse-data",
            "Online alignment beats offline data from a worse policy.",
            "section 3, Figure 2",
            "score, online - offline on worse data",
            ("online", "offline worse data"),
            contrasts.score("online", "offline worse data"),
            objectives=("dpo", "grpo"),
        ),
        Claim(
            "online-beats-better-data",
            "Online alignment beats offline data from a better policy.",
            "section 3, Figure 2",
            "score, online - offline on better data",
            ("online", "offline better data"),
            contrasts.score("online", "offline better data"),
            objectives=("dpo", "grpo"),
        ),
        Claim(
            "humanline-ahead-at-distance",
            "At equal distance from the start policy, humanline on the same offline data is better than plain.",
            "section 5.2.1, Figure 1; the distance is ours",
            "score at equal KL divergence from the start, mean over the way, offline+humanline - offline",
            ("offline+humanline", "offline"),
            distances.ahead("offline+humanline", "offline"),
        ),
        Claim(
            "humanline-ahead-at-farthest",
            "At the farthest distance from the start policy that both reach, humanline on the same offline data is "
            "better than plain.",
            "section 5.2.1, Figure 1; ours, added after a look at 50 seeds",
            "score at the farthest KL divergence from the start that both reach, offline+humanline - offline",
            ("offline+humanline", "offline"),
            distances.ahead("offline+humanline", "offline", distances.AT_THE_END),
        ),
        Claim(
            "humanline-ahead-at-distance-k64",
            "At equal distance from the start policy, humanline that syncs every 64 steps is better than plain on the "
            "same offline data.",
            "sections 5.2.1 and 5.2.2, Figure 1; the distance is ours",
            "score at equal KL divergence from the start, mean over the way, offline+humanline k=64 - offline",
            ("offline+humanline k=64", "offline"),
            distances.ahead("offline+humanline k=64", "offline"),
        ),
        Claim(
            "humanline-ahead-at-farthest-k64",
            "At the farthest distance from the start policy that both reach, humanline that syncs every 64 steps is "
            "better than plain on the same offline data.",
            "sections 5.2.1 and 5.2.2, Figure 1; ours, added after a look at 50 seeds",
            "score at the farthest KL divergence from the start that both reach, offline+humanline k=64 - offline",
            ("offline+humanline k=64", "offline"),
            distances.ahead("offline+humanline k=64", "offline", distances.AT_THE_END),
        ),
        Claim(
            "online-ahead-at-distance",
            "At equal distance from the start policy, online is better than offline.",
            "section 1, Figure 1; the distance is ours",
            "score at equal KL divergence from the start, mean over the way, online - offline",
            ("online", "offline"),
            distances.ahead("online", "offline"),
        ),
        Claim(
            "online-ahead-at-farthest",
            "At the farthest distance from the start policy that both reach, online is better than offline.",
            "section 1, Figure 1; ours, added after a look at 50 seeds",
            "score at the farthest KL divergence from the start that both reach, online - offline",
            ("online", "offline"),
            distances.ahead("online", "offline", distances.AT_THE_END),
        ),
        Claim(
            "online-travels-farther",
            "Online alignment moves the policy farther from its start than offline alignment.",
            "ours: what a comparison at the end of training mixes in",
            "KL divergence from the start at the farthest, nats, online - offline",
            ("online", "offline"),
            distances.farther("online", "offline"),
        ),
        Claim(
            "perceived-distance-predicts",
            "Of two ways to train, the one whose data are closer to the human-perceived distribution of its policy "
            "ends with the higher score (half the L1 distance at the end; medians of Tversky and Kahneman).",
            "section 3, Figure 2, Prop. 3.4",
            "rank correlation, over ten variants, of closeness to the perceived law and score",
            distances.RANKED,
            distances.predicts,
        ),
        Claim(
            "perceived-predicts-better",
            "Closeness to the perceived distribution tells more of the score than closeness to the policy itself, "
            "which no perception distorts.",
            "section 3, Figure 2, Prop. 3.4",
            "rank correlation with the score, perceived law - policy",
            distances.RANKED,
            distances.predicts_better("distance"),
        ),
        Claim(
            "placebo-undistorted",
            "Closeness to a perceived distribution that distorts nothing (gamma = 1) tells more of the score than "
            "closeness to the policy itself, although both are the same distribution.",
            "section 3; a placebo of ours",
            "rank correlation with the score, perceived law with gamma = 1 - policy",
            distances.RANKED,
            distances.predicts_better("distance undistorted"),
            placebo=True,
        ),
        _higher(
            "placebo-mean-age",
            f"Syncing every {ODD_SYNC} steps is better than a reference that trails the policy by {MEAN_AGE}, which is "
            "as old on average and never synced. It is always that old, so that more than the sync differs.",
            "section 5.1; a placebo of ours",
            f"sync only k={ODD_SYNC}",
            "never synced, of the mean age",
            placebo=True,
        ),
        _higher(
            "placebo-same-ages",
            f"Syncing every {ODD_SYNC} steps is better than a reference that has each of the ages 1 to {ODD_SYNC} as "
            "often, in another order, and is never synced.",
            "section 5.1; a placebo of ours, added after a look at 50 seeds",
            f"sync only k={ODD_SYNC}",
            "never synced, of the same ages",
            placebo=True,
        ),
        _higher(
            "placebo-random-detachment",
            "Detaching tokens at random, as many as humanline sampling detaches at equal policies (about 5 %), is "
            "better than detaching none. Their gradient is lost, so that it may be worse: a placebo on one side.",
            "section 5.2.1, Figure 5 right; a placebo of ours",
            "random detachment",
            "sync only",
            placebo=True,
        ),
        Claim(
            "placebo-other-seeds",
            "Seeds of even number end higher than seeds of odd number.",
            "a placebo of ours",
            "score, offline+humanline on even seeds - on odd seeds",
            ("offline+humanline",),
            contrasts.other_seeds("offline+humanline"),
            placebo=True,
        ),
    )
}


def _worth(name: str, words: str, first: str, second: str, *, placebo: bool = False) -> list[Claim]:
    """Return the claim that training by one rule is worth more to people than by another, for tests and for clips."""
    return [
        Claim(
            f"{name}-{kind}",
            f"{words} (Rule: {kind}.)",
            "an open question of arXiv 2509.24207; the claim is ours",
            f"worth to the person, {first} {kind} - {second}{'' if second == 'no rule' else f' {kind}'}",
            (f"{first} {kind}", second if second == "no rule" else f"{second} {kind}"),
            contrasts.felt(f"{first} {kind}", second if second == "no rule" else f"{second} {kind}"),
            ("bandit", "sequence"),
            placebo=placebo,
        )
        for kind in ("test", "clip")
    ]


#: Claims of `humanline sim --people`, written before any of its runs.
PERSONAL: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        *_worth("own-beats-shared", "A rule of each person's gamma beats one of 1992 for all.", "own", "shared"),
        *_worth("own-beats-population", "A rule of one's own gamma beats the population's.", "own", "population"),
        *_worth(
            "population-beats-shared", "A rule of people's middle gamma beats that of 1992.", "population", "shared"
        ),
        *_worth("own-beats-anothers", "A rule of one's own gamma beats one of somebody else's.", "own", "another's"),
        *_worth("own-beats-none", "A rule of each person's gamma beats no rule, only syncing.", "own", "no rule"),
    )
}


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
