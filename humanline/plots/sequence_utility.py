"""Every sequence of a small policy: what people perceive of it, which data come close, and what rejection samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings
from humanline.sim.threads import one_thread
from humanline.stats import mean_interval
from humanline.theory import (
    BetaRejection,
    BetaShape,
    BetaTest,
    ClipLimit,
    ClipRange,
    accepted_sequence_law,
    total_variation,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from humanline.sim.run import Trace

VOCAB, LENGTH, CONTEXTS = 4, 4, 2
LIMIT = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
TILTS = tuple(np.linspace(-2, 2, 17).tolist())
GAMMAS = (0.2, 0.4, 0.61, 0.8, 1.0, 1.5)
CONCENTRATIONS = (1.0, 4.0, 16.0, 64.0, 1024.0, 16_384.0)


def rows(*, learning_rate: float = 0.1, steps: int = 64, sharpness: float = 1.0, seeds: int = 6) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    learning_rate : float > 0
        Of the offline DPO runs (Adam, beta 0.1) that make the policies.
    steps : int >= 1
    sharpness : float >= 0
        Standard deviation of the start policies' logits.
    seeds : int >= 2

    Returns
    -------
    list of Row
        Means over the seeds (of means over contexts), and half-widths of 95 % Student intervals. Panels ``source`` (x:
        place of a data source in `sources`, y: utility gap, its corrected bound, and half the L1 distance from the
        perceived distribution), ``tilt`` (x: tilt, y: that distance; series: laws made from the policy or the start),
        ``gamma`` (x: first shape of Prop. 4.1's Beta draw, y: total variation between the two laws that rejection
        samples, and from each to the perceived distribution, divided by its mass), ``concentration`` (x: of humanline
        sampling, y: total variation between its two laws), ``cost`` (the same, y: tokens proposed for a sequence),
        ``outside`` (as ``source``, y: probability that a token lies outside the clip range) and ``setting``.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.1 to 3.3, Prop. 3.4, Prop. 4.1 and Thm 4.3, by enumeration. Surprisals are
    log-ratios of whole sequences to the start policy; medians of Tversky and Kahneman (1992). Whole sequences drawn
    again under Beta(gamma, 1) have the law of the policy tilted by gamma - 1 times the surprisal.
    """
    with one_thread():
        trace = trained(learning_rate=learning_rate, steps=steps, sharpness=sharpness, seeds=seeds)
        used = settings(seeds=seeds, contexts=CONTEXTS, steps=steps)
        return [*used, *_of_sources(trace), *_of_tilts(trace), *_of_rejection(trace)]


def trained(*, learning_rate: float = 0.1, steps: int = 64, sharpness: float = 1.0, seeds: int = 6) -> Trace:
    """Return the run that makes the policies; parameters as in `rows`."""
    from humanline.sim.objectives import Dpo
    from humanline.sim.run import Run, simulate
    from humanline.sim.sequence import Sequences

    task = Sequences(vocab=VOCAB, length=LENGTH, contexts=CONTEXTS, sharpness=sharpness)
    return simulate(Run(task=task, objective=Dpo(0.1), learning_rate=learning_rate, steps=steps), range(seeds))


def sources(trace: Trace) -> dict[str, Any]:
    """Return the laws (S, P, N), log-probabilities, that data for a policy may come from, by name."""
    from humanline.sim.run import Fixed, behaviour_law

    seeds, world = range(len(trace.scores)), trace.world
    return {
        "worse data": behaviour_law(world, Fixed(tilt=-1.0), seeds),
        "training data": trace.behaviour,
        "start policy": world.law(world.table(world.start)),
        "better data": behaviour_law(world, Fixed(tilt=1.0), seeds),
        "on-policy": world.law(trace.policy),
    }


def conditionals(law: Any) -> list[NDArray[np.float64]]:
    """Return the next-token distributions of a law over sequences (N,), nats, in the form `sequence_law` takes."""
    joint = law.exp().numpy().reshape((VOCAB,) * LENGTH)
    prefixes = [joint.sum(tuple(range(t, LENGTH))) for t in range(LENGTH + 1)]
    return [prefixes[t + 1] / prefixes[t][..., None] for t in range(LENGTH)]


def _interval(panel: str, series: str, x: float, values: Any) -> list[Row]:
    interval = mean_interval(np.asarray(values).tolist())
    return [
        *points(panel, series, x, interval.mean),
        *points(panel, f"{series} half-width", x, interval.half_width),
    ]


def _of_sources(trace: Trace) -> list[Row]:
    import torch

    from humanline.sim.measures import perceive, utility_gap

    world = trace.world
    start, law = world.law(world.table(world.start)), world.law(trace.policy)
    perception = perceive(law, start)
    log_ratio = (trace.policy - trace.reference)[..., world.cells]
    outside = (~LIMIT.clip.contains(log_ratio)).to(torch.float64).mean(-1)
    out: list[Row] = []
    violated = 0
    for place, (name, source) in enumerate(sources(trace).items()):
        found = utility_gap(perception, source)
        violated += int((found.gap > found.bound).sum())
        out += points("name", name, place, math.nan)
        for series, values in (("gap", found.gap), ("bound", found.bound), ("distance", found.distance)):
            out += _interval("source", series, place, values.mean(-1))
        out += points("outside", name, place, float((source.exp() * outside).sum(-1).mean()))
    out += points("perceived", "mass", math.nan, perception.mass.mean())
    out += points("perceived", "utility", math.nan, perception.utility.mean())
    out += points("perceived", "bound violated", math.nan, violated)
    return out


def _of_tilts(trace: Trace) -> list[Row]:
    from humanline.sim.measures import perceive, utility_gap

    world = trace.world
    start, law = world.law(world.table(world.start)), world.law(trace.policy)
    perception = perceive(law, start)
    out: list[Row] = []
    for tilt in TILTS:
        for series, tilted in (
            ("policy by surprisal", law + tilt * (law - start)),
            ("start policy by true score", start + tilt * world.quality),
        ):
            found = utility_gap(perception, tilted.log_softmax(-1))
            out += _interval("tilt", series, tilt, found.distance.mean(-1))
    return out


def _of_rejection(trace: Trace) -> list[Row]:
    from humanline.sim.measures import perceive

    world = trace.world
    start, law = world.law(world.table(world.start)), world.law(trace.policy)
    perception = perceive(law, start)
    perceived = perception.weights / perception.mass[..., None]
    largest = float((trace.policy - trace.reference).max().exp())
    rules: list[tuple[str, float, BetaTest | BetaRejection]]
    rules = [("gamma", gamma, BetaTest(BetaShape(gamma, 1), max(2.0, largest))) for gamma in GAMMAS]
    rules += [("concentration", k, LIMIT.rejection(k)) for k in CONCENTRATIONS]
    found: dict[tuple[str, str, float], list[float]] = {}
    for seed, context in np.ndindex(law.shape[:2]):
        policy, ref = (conditionals(each[seed, context]) for each in (law, start))
        human = perceived[seed, context]
        for panel, x, rule in rules:
            truncate = panel == "concentration"  # ratios beyond 6 are as good as 6
            laws = {
                resample: accepted_sequence_law(policy, ref, rule, resample=resample, truncate=truncate)
                for resample in ("token", "sequence")
            }
            token, whole = (each.probs.ravel() for each in laws.values())
            numbers = {(panel, "token against sequence"): total_variation(token, whole)}
            numbers |= {("cost", f"{panel}, {name}"): each.proposed_tokens for name, each in laws.items()}
            if panel == "gamma":
                on_policy = law[seed, context].exp().numpy()
                for name, probs in (("token by token", token), ("whole sequences", whole), ("on-policy", on_policy)):
                    numbers[panel, f"{name} to perceived"] = total_variation(human, probs)
            for (where, series), value in numbers.items():
                found.setdefault((where, series, x), []).append(float(value))
    out: list[Row] = []
    for (panel, series, x), values in found.items():
        by_seed = np.reshape(values, law.shape[:2]).mean(-1)
        out += points(panel, series, x, by_seed.mean()) if panel == "cost" else _interval(panel, series, x, by_seed)
    return out


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    title = f"All {VOCAB**LENGTH} sequences: perceived utility, and the laws that rejection samples"
    figure, (source, tilt, gamma, concentration) = _style.panels([5.3, 5.3], height=9.0, title=title, down=2)
    _draw_sources(source, table)
    looks: dict[str, tuple[str, Any, str]]
    looks = {
        "policy by surprisal": (_style.BLUE, "-", "policy · exp(tilt · surprisal) / Z"),
        "start policy by true score": (_style.RED, "--", "start · exp(tilt · true score) / Z"),
    }
    _lines(tilt, table, "tilt", looks)
    x, y = table.xy("tilt", "policy by surprisal")
    for place, label, marker in ((0.0, "on-policy", "o"), (-1.0, "start policy", "s")):
        tilt.plot(place, y[np.abs(x - place).argmin()], marker, color=_style.BLACK, markersize=5, label=label)
    tilt.set(
        xlim=(x[0], x[-1]),
        ylim=(0, 1),
        xlabel="tilt, per nat of surprisal or unit of score (0: as it is)",
        ylabel="½ Σ|perceived − data| (0: equal)",
        title="Distance of tilted data from the perceived distribution",
    )
    looks = {
        "on-policy to perceived": (_style.BLACK, ":", "perceived to on-policy"),
        "token by token to perceived": (_style.BLUE, "-", "perceived to token by token"),
        "whole sequences to perceived": (_style.RED, "--", "perceived to whole sequences"),
        "token against sequence": (_style.GREEN, "-.", "token by token to whole sequences"),
    }
    _lines(gamma, table, "gamma", looks)
    gamma.set(
        xlabel="γ of Beta(γ, 1)",
        ylabel="total variation (0: same law, 1: disjoint)",
        title="Proposition 4.1: rejected tokens, or sequences, drawn again",
    )
    looks = {"token against sequence": (_style.GREEN, "-.", "token by token to whole sequences")}
    _lines(concentration, table, "concentration", looks)
    concentration.set_xscale("log")
    concentration.set(
        xlabel="concentration (a + b of the Beta draws)",
        ylabel="total variation (0: same law, 1: disjoint)",
        title="Humanline sampling on its way to clipping",
    )
    for axes in (gamma, concentration):
        axes.set_ylim(bottom=0)
    for axes in (source, tilt, gamma, concentration):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, handlelength=2.6)
    _style.note(
        figure,
        f"Means over n = {table.setting('seeds'):g} seeds (each of {table.setting('contexts'):g} contexts); bars and "
        f"bands: 95 % Student intervals.  Policies: after {table.setting('steps'):g} steps of offline DPO.\n"
        "Surprisal: log-ratio of a sequence to the start policy, nats.  Utility: of the median person (Tversky and "
        "Kahneman 1992), in units of the value of a gain of 1 nat.\n"
        "Perceived: decision weights of the policy’s sequences, which need not sum to 1 (divided by their sum in the "
        "lower left panel).",
    )
    return figure


def _lines(axes: Axes, table: Table, panel: str, looks: dict[str, tuple[str, Any, str]]) -> None:
    for series, (colour, line, label) in looks.items():
        x, y = table.xy(panel, series)
        half = table.xy(panel, f"{series} half-width")[1]
        axes.plot(x, y, color=colour, linestyle=line, label=label)
        axes.fill_between(x, np.maximum(y - half, 0), y + half, color=colour, alpha=0.15, linewidth=0)


def _draw_sources(axes: Axes, table: Table) -> None:
    looks = (("gap", "o", _style.BLUE, "utility gap"), ("bound", "_", _style.RED, "its corrected bound"))
    for series, marker, colour, label in looks:
        x, y = table.xy("source", series)
        half = table.xy("source", f"{series} half-width")[1]
        axes.errorbar(x, y, yerr=half, fmt=marker, color=colour, markersize=7, capsize=3, label=label)
    axes.set_yscale("log")
    names = table.series("name")
    axes.set(
        xlim=(-0.5, len(names) - 0.5),
        xticks=range(len(names)),
        xticklabels=[name.replace(" ", "\n") for name in names],
        ylabel="utility, in values of a gain of 1 nat",
        title="Proposition 3.4: learning from other data than the perceived",
    )
