"""DPO on contextual bandits, offline, humanline and online: where its sigmoid saturates, and where it does not."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings
from humanline.sim.threads import one_thread
from humanline.stats import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from humanline.sim.run import Run

#: Names of `humanline.sim.variants.OBJECTIVES`, by DPO's beta.
BETAS = {"0.1": "dpo", "1": "dpo beta 1", "10": "dpo beta 10"}
VARIANTS = {
    "offline": (_style.RED, ":"),
    "offline+humanline": (_style.ORANGE, "-"),
    "online": (_style.BLUE, "--"),
}
RATES = (0.03, 0.1, 0.3)
SYNC_EVERY = (1, 4, 16, 64)
#: The beta of the panel of sync intervals.
SYNC_BETA = "1"


def rows(
    *,
    learning_rate: float = 0.1,
    sync_every: int = 1,
    tilt: float = 0.0,
    seeds: int = 24,
    steps: int = 48,
    grid: bool = True,
) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    learning_rate : float > 0
        Of the curves (Adam).
    sync_every : int >= 1
        Optimizer steps between syncs, of all humanline runs but those that vary it.
    tilt : float
        Of the offline data: below 0 they are worse than the start policy's, above 0 better.
    seeds : int >= 2
    steps : int >= 1
    grid : bool
        Whether to train also at the other learning rates and sync intervals.

    Returns
    -------
    list of Row
        Scores are exact, as a share of what there is to gain: 0 the start policy, 1 the best arm of every context.
        Panels ``beta B`` (x: step, y: mean score of a variant over the seeds; series ending in ``half-width``: of its
        95 % Student interval), ``lead`` (x: saturation of the offline run, y: mean lead of offline+humanline over it,
        paired by seed, and half-widths; series: beta, a point a learning rate), ``sync`` (x: sync interval, y: mean
        final score of offline+humanline, and half-widths; series: learning rate) and ``clipped`` (the same runs; y:
        share of tokens outside the clip range), and ``setting``.

    Notes
    -----
    Source: arXiv 2509.24207, section 5; the problem is ours (`humanline.sim.bandit.Bandit`). The saturation of a run is
    the mean of ``sigmoid(margin)`` over its pairs and steps: 1/2 where the reference is the policy itself.
    """
    train = functools.cache(_train)  # the same run is in several panels
    problem = tilt, seeds, steps
    curves, leads, syncs = [], [], []
    rates = sorted({learning_rate, *(RATES if grid else ())})
    with one_thread():
        for beta in BETAS:
            for rate in rates:
                offline = train(beta, rate, "offline", sync_every, *problem)
                human = train(beta, rate, "offline+humanline", sync_every, *problem)
                leads += _interval("lead", f"beta {beta}", offline.saturation, human.scores[-1] - offline.scores[-1])
            for variant in VARIANTS:
                found = train(beta, learning_rate, variant, sync_every, *problem)
                for step, scores in zip(found.measured_at, found.scores, strict=True):
                    curves += _interval(f"beta {beta}", variant, step, scores)
        for rate in rates:
            for every in SYNC_EVERY:
                human = train(SYNC_BETA, rate, "offline+humanline", every, *problem)
                syncs += _interval("sync", f"lr {rate:g}", every, human.scores[-1])
                syncs += points("clipped", f"lr {rate:g}", every, human.outside)
    return [*settings(seeds=seeds, learning_rate=learning_rate, sync_every=sync_every), *curves, *leads, *syncs]


class _Trained(NamedTuple):
    measured_at: list[int]
    scores: Any  # (measurements, S), as a share of what there is to gain
    saturation: float
    outside: float


def _train(beta: str, rate: float, variant: str, sync_every: int, tilt: float, seeds: int, steps: int) -> _Trained:
    from humanline.sim.run import simulate

    trace = simulate(make_run(beta, rate, variant, sync_every, tilt, steps), range(seeds))
    scores = trace.scores.numpy()
    start, best = scores[:, :1], trace.world.scores.amax(-1).mean(-1, keepdim=True).numpy()
    gained = ((scores - start) / (best - start)).T
    return _Trained(trace.measured_at, gained, float(trace.saturation.mean()), float(trace.outside.mean()))


def make_run(beta: str, rate: float, variant: str, sync_every: int, tilt: float, steps: int) -> Run:
    """Return the run of `humanline.sim.variants` with this sync interval and tilt."""
    from humanline.schedule import BeforeStep
    from humanline.sim import variants
    from humanline.sim.run import Fixed

    run = variants.make_run("bandit", BETAS[beta], rate, variant, steps=steps)
    if isinstance(run.source, Fixed):
        run = replace(run, source=replace(run.source, tilt=tilt))
    return replace(run, schedule=BeforeStep(every=sync_every)) if isinstance(run.schedule, BeforeStep) else run


def _interval(panel: str, series: str, x: float, values: Any) -> list[Row]:
    interval = mean_interval(values.tolist())
    return [
        *points(panel, series, x, interval.mean),
        *points(panel, f"{series} half-width", x, interval.half_width),
    ]


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    title = "DPO on contextual bandits: what humanline gains on offline training, and where"
    figure, axes = _style.panels([3.9, 3.9, 3.9], height=7.8, title=title, down=2)
    for place, (each, beta) in enumerate(zip(axes, BETAS, strict=False)):
        _draw_curves(each, table, beta, legend=place == 1)
    _draw_lead(axes[3], table)
    for each, panel, title in (
        (axes[4], "sync", f"Sync interval, DPO beta {SYNC_BETA}: final score"),
        (axes[5], "clipped", "The same runs: share of tokens clipped"),
    ):
        names = [name for name in table.series(panel) if not name.endswith("half-width")]
        for i, name in enumerate(names):
            colour, line = ((_style.SKY, ":"), (_style.BLUE, "--"), (_style.BLACK, "-"), (_style.GREEN, "-."))[i % 4]
            x, y = table.xy(panel, name)
            half = table.xy(panel, f"{name} half-width")[1] if panel == "sync" else None
            look: dict[str, Any] = {"color": colour, "linestyle": line, "marker": "o", "markersize": 3.5, "capsize": 3}
            each.errorbar(x, y, yerr=half, label=name, **look)
        each.set_xscale("log", base=2)
        each.set(xticks=SYNC_EVERY, xticklabels=SYNC_EVERY, xlabel="optimizer steps between syncs", title=title)
        each.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, handlelength=2.2, columnspacing=1.2)
    axes[4].set_ylabel("exact score, share of what there is to gain")
    axes[5].set_ylabel("share of tokens")
    _style.note(
        figure,
        f"Means over n = {table.setting('seeds'):g} seeds, each with a bandit, data and draws of its own.  Bands and "
        "bars: 95 % Student intervals; the lead is paired by seed.  "
        "Score: 0 is the start policy, 1 the best arm of every context.\n"
        f"Top row: learning rate (lr) {table.setting('learning_rate'):g}.  Optimizer steps between syncs: "
        f"{table.setting('sync_every'):g}, but for the last two panels.  "
        "Saturation: 1/2 where the policy is its reference, 1 where pairs no longer teach.",
    )
    return figure


def _draw_curves(axes: Axes, table: Table, beta: str, *, legend: bool) -> None:
    for variant, (colour, line) in VARIANTS.items():
        x, y = table.xy(f"beta {beta}", variant)
        half = table.xy(f"beta {beta}", f"{variant} half-width")[1]
        axes.plot(x, y, color=colour, linestyle=line, label=variant)
        axes.fill_between(x, y - half, y + half, color=colour, alpha=0.18, linewidth=0)
    axes.set(ylim=(0, 1), xlabel="optimizer step", title=f"DPO, beta {beta}")
    axes.set_xlim(0, float(x[-1]))
    if beta == next(iter(BETAS)):
        axes.set_ylabel("exact score, share of what there is to gain")
    if legend:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, handlelength=2.2, columnspacing=1.2)


def _draw_lead(axes: Axes, table: Table) -> None:
    axes.axhline(0, color=_style.GREY, linewidth=0.9)
    for beta, colour, marker in zip(BETAS, (_style.GREEN, _style.BLUE, _style.RED), ("o", "s", "^"), strict=True):
        x, y = table.xy("lead", f"beta {beta}")
        half = table.xy("lead", f"beta {beta} half-width")[1]
        axes.errorbar(x, y, yerr=half, fmt=marker, color=colour, markersize=5, capsize=3, label=f"beta {beta}")
    axes.set(
        xlabel="saturation of the offline run: mean sigmoid(margin)",
        ylabel="lead of humanline over offline (final score)",
        title="Lead and saturation, a point a learning rate",
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, handlelength=1.2, columnspacing=1.2)
