"""Theorem 4.3 in training: verdicts, gradients and runs under Beta rejection; they tend to detaching."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings
from humanline.plots.clipping_limit import normal_density
from humanline.sim.threads import one_thread
from humanline.stats import mean_interval
from humanline.theory import ClipLimit, ClipRange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIMIT = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
#: Of the first panel: verdicts at each concentration, and how the normal spread is cut into tokens.
VERDICTS, TOKENS = 200_000, 4_000
#: Bandits whose predicted rates lie far enough apart to be told from one another.
SEEDS = (5, 2, 4, 8)
#: Of the last panel: problems, each at all of WIDTHS.
PROBLEMS = 8
#: Gaps are shown to this share of the clipped gradient.
LEAST = 1e-9
#: The name of an objective in the legends, its colour, line and marker.
LOOKS = {
    "dpo": ("DPO, beta 0.1", _style.BLUE, "-", "o"),
    "kto": ("KTO, beta 0.25", _style.ORANGE, "--", "^"),
    "grpo": ("GRPO", _style.GREEN, "-.", "x"),
}
WIDTHS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5)


def rows(*, seeds: int = 12, steps: int = 32, learning_rate: float = 0.1) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    seeds : int >= 2
        Runs of each objective and concentration.
    steps : int >= 1
    learning_rate : float > 0
        Of those runs (Adam).

    Returns
    -------
    list of Row
        Panels ``verdicts`` (x: concentration, y: share of verdicts unlike the clip's; series: a normal spread of
        log-ratios and the 20 of one bandit, each sampled, with the half-width of a 95 % interval, exact and
        predicted), ``gradient`` (x: concentration, y: norm of the difference between GRPO's expected gradient under
        Beta rejection and under clipping, in norms of the latter; series: a bandit, exact and predicted), ``rate``
        (x: predicted, y: fitted to the exact gaps), ``run`` (x: concentration, y: root mean square over the final
        parameters of the distance to the run under hard verdicts, and half-widths over the seeds), ``hard verdicts to
        clip`` (the same between these two), ``detach or clamp`` (x: probability that a token lies outside, y: norm of
        the difference between the two gradients, in norms of the clamped one; a point a seed and clip range), and
        ``setting``.

    Notes
    -----
    Source: arXiv 2509.24207, Thm 4.3 and section 5.1; it gives no rates. Bandits of 4 contexts and 5 arms, sequences of
    2 tokens over a vocabulary of 3; the policies of the panels without training are their starts with normal noise on
    the parameters. The reference is the start policy.
    """
    with one_thread():
        used = settings(verdicts=VERDICTS, seeds=seeds, steps=steps, problems=PROBLEMS)
        return [*used, *_verdicts(), *_gradients(), *_runs(seeds, steps, learning_rate), *_detach_or_clamp()]


def _problem(task: Any, seeds: Sequence[int], noise: float) -> tuple[Any, Any, Any, Any]:
    """Return worlds, parameters some way from their starts, the starts' tables and their laws."""
    import torch

    from humanline.sim.world import normals

    world = task.draw(seeds)
    reference = world.table(world.start)
    moved = torch.stack([normals(seed, "moved", *world.start.shape[1:]) for seed in seeds])
    return world, world.start + noise * moved, reference, world.law(reference)


def _bandits() -> tuple[Any, Any, Any, Any]:
    from humanline.sim.bandit import Bandit

    return _problem(Bandit(contexts=4, arms=5, features=6), SEEDS, 0.5)


def _sequences() -> Any:
    from humanline.sim.sequence import Sequences

    return Sequences(vocab=3, length=2, contexts=2)


def _verdicts() -> list[Row]:
    from scipy.special import ndtri

    from humanline.sim.limit import verdict_disagreement

    spread = ndtri((np.arange(TOKENS) + 0.5) / TOKENS)
    k: NDArray[np.float64] = np.geomspace(10, 1e5, 31)
    at_ends = normal_density(np.array([LIMIT.clip.low, LIMIT.clip.high]))
    constant = LIMIT.disagreement_constant(*map(float, at_ends))
    out = points("verdicts", "spread, exact", k, LIMIT.mean_disagreement(spread, k))
    out += points("verdicts", "spread, predicted", k, constant / np.sqrt(k))
    out += points("constant", "C", math.nan, constant)

    world, params, reference, _ = _bandits()
    atoms = (world.table(params) - reference)[-1].flatten().numpy()
    exponent = LIMIT.decay_exponent(atoms)
    until = np.geomspace(10, 12 / exponent, 31)
    share = LIMIT.mean_disagreement(atoms, until)
    predicted = _tail(until, exponent, until[-1], share[-1])
    out += points("verdicts", "bandit, exact", until, share)
    out += points("verdicts", "bandit, predicted", until, predicted)
    out += points("constant", "D", math.nan, exponent)
    for name, x, most in (("spread", spread, 1e5), ("bandit", atoms, 4 / exponent)):
        concentrations = np.geomspace(10, most, 6).tolist()
        found = verdict_disagreement(x, LIMIT, concentrations, seed=0, repeats=VERDICTS // x.size)
        out += points("verdicts", f"{name}, sampled", concentrations, found.sampled)
        out += points("verdicts", f"{name}, half-width", concentrations, 1.96 * found.standard_error)
    return out


def _tail(k: NDArray[np.float64], exponent: float, at: float, value: float) -> NDArray[np.float64]:
    """Return the exponential decay of this exponent that has a given value at one concentration."""
    return np.asarray(value * np.sqrt(at / k) * np.exp(-exponent * (k - at)))


def _gradients() -> list[Row]:
    from humanline.sim.limit import fit_decay, gradient_gap
    from humanline.sim.objectives import Grpo

    problem = _bandits()
    everyone = gradient_gap(problem[0], Grpo(), *problem[1:], LIMIT, [1.0]).exponent
    out: list[Row] = []
    for place, (seed, exponent) in enumerate(zip(SEEDS, everyone, strict=True)):
        near, far = np.geomspace(10, 30 / exponent, 40), np.linspace(60, 300, 7) / exponent
        gap, tail = (
            gradient_gap(problem[0], Grpo(), *problem[1:], LIMIT, k.tolist()).to_clip[place] for k in (near, far)
        )
        name, shown = f"bandit {seed}", gap > LEAST
        out += points("gradient", name, near[shown], gap[shown])
        # the prediction agrees with the smallest gap that is computed, far beyond what is shown
        predicted = _tail(near, exponent, far[-1], tail[-1])
        out += points("gradient", f"{name}, predicted", near[shown], predicted[shown])
        out += points("rate", name, exponent, fit_decay(far, tail).rate)
    return out


def _runs(seeds: int, steps: int, learning_rate: float) -> list[Row]:
    from humanline.sim.limit import trajectories
    from humanline.sim.run import Run

    k = np.geomspace(10, 1e8, 8)
    out: list[Row] = []
    for name, objective in _objectives().items():
        run = Run(task=_sequences(), objective=objective, learning_rate=learning_rate, steps=steps, groups=8)
        found = trajectories(run, LIMIT, k.tolist(), range(seeds))
        intervals = [mean_interval(distances.tolist()) for distances in found.to_detached]
        out += points("run", name, k, [interval.mean for interval in intervals])
        out += points("run", f"{name} half-width", k, [interval.half_width for interval in intervals])
        out += points("hard verdicts to clip", name, math.nan, found.detached_to_clip.mean())
        out += points("hard verdicts to clip", f"{name}, least", math.nan, found.detached_to_clip.min())
        out += points("moved", name, math.nan, found.moved.mean())
    return out


def _objectives() -> dict[str, Any]:
    """Return those of the paper's Table 3; GRPO's own clip as wide as a reference that never moves needs."""
    from dataclasses import replace

    from humanline.sim.variants import FIXED_REFERENCE_CLIP_EPS, OBJECTIVES

    found: dict[str, Any] = {name: OBJECTIVES[name] for name in LOOKS}
    found["grpo"] = replace(found["grpo"], clip_eps=FIXED_REFERENCE_CLIP_EPS)
    return found


def _detach_or_clamp() -> list[Row]:
    from humanline.sim.limit import detach_or_clamp

    problem = _problem(_sequences(), range(PROBLEMS), 1.0)
    clips = [ClipRange(-width, width) for width in WIDTHS]
    out: list[Row] = []
    for name, objective in _objectives().items():
        found = detach_or_clamp(problem[0], objective, *problem[1:], clips)
        some = (found.outside > 0) & np.isfinite(found.difference)  # where nothing is outside there is nothing to see
        out += points("detach or clamp", name, found.outside[some], found.difference[some])
    return out


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    title = "Sampling tends to detaching, which is clipping for GRPO only"
    figure, (verdicts, gradient, run, apart) = _style.panels([5.3, 5.3], height=9.8, title=title, down=2)
    _draw_verdicts(verdicts, table)
    _draw_gradient(gradient, table)
    _draw_runs(run, table)
    for name, (label, colour, _, marker) in LOOKS.items():
        x, y = table.xy("detach or clamp", name)
        label += ": exactly 0" if not y.any() else ""
        apart.plot(x, y, marker, color=colour, markersize=4, label=label, linestyle="none", alpha=0.8, clip_on=False)
    apart.set(
        xlim=(0, 1),
        xlabel="probability that a token lies outside the range",
        ylabel="‖detached − clamped‖ / ‖clamped‖",
        title="Expected gradients: clamping is not detaching",
    )
    apart.set_yscale("symlog", linthresh=1e-3)
    apart.set_ylim(0, 1)
    apart.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, handlelength=1.6)
    _style.note(
        figure,
        f"Clip range [{LIMIT.clip.low:g}, {LIMIT.clip.high:g}] nats.  Beta rejection keeps or detaches each token at "
        "random; the larger its concentration, the more alike its verdicts are to the clip’s.\n".replace("-1.5", "−1.5")
        + f"Top left: at each concentration n = {table.setting('verdicts'):,.0f} sampled verdicts against the exact "
        "share and its predicted rate.  Top right: the exact gradient tends to clipping’s as fast as predicted.\n"
        f"Bottom left: parameters after {table.setting('steps'):g} steps on small sequences; hard verdicts: tokens "
        f"outside the range are detached, always.  Lines: means over n = {table.setting('seeds'):g} runs; bands: 95 % "
        "Student intervals;\n"
        "horizontal: how far that limit is from clipping.  Bottom right: expected gradients of "
        f"{table.setting('problems'):g} policies, each at several clip ranges, where tokens outside are detached, and "
        "where they are clamped.",
    )
    return figure


def _draw_verdicts(axes: Axes, table: Table) -> None:
    c, d = table.value("constant", "C"), table.value("constant", "D")
    last = table.series("rate")[-1]
    handles: list[Any] = []
    look: dict[str, Any] = {"markersize": 3.5, "capsize": 3, "linewidth": 1.0}
    for name, colour, marker, what, prediction in (
        ("spread", _style.BLUE, "o", "log-ratios normal, sd 1 nat", f"predicted {c:.3f} / √concentration"),
        ("bandit", _style.RED, "s", f"20 log-ratios of {last}", f"predicted decay, D = {d:.2e}"),
    ):
        exact, predicted = (table.xy("verdicts", f"{name}, {each}") for each in ("exact", "predicted"))
        handles += axes.loglog(*exact, color=colour, linewidth=1.3, label=f"{what}: exact")
        x, y = table.xy("verdicts", f"{name}, sampled")
        half = table.xy("verdicts", f"{name}, half-width")[1]
        handles.append(axes.errorbar(x, y, yerr=half, label="sampled, 95 % interval", fmt=marker, color=colour, **look))
        handles += axes.loglog(*predicted, ":", color=_style.BLACK, linewidth=1.5, label=prediction)
    axes.set(
        xlim=(8, 1.3e5),
        ylim=(1e-5, 1),
        xlabel="concentration (a + b of the Beta draws)",
        ylabel="share of verdicts unlike the clip's",
        title="Verdicts on tokens",
    )
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, handlelength=2.0)


def _draw_gradient(axes: Axes, table: Table) -> None:
    names = table.series("rate")
    for i, name in enumerate(names):
        colour = (_style.PINK, _style.GREEN, _style.ORANGE, _style.SKY)[i % 4]
        predicted, fitted = (float(each[0]) for each in table.xy("rate", name))
        label = f"{name}: D = {predicted:.2e}, fitted / D = {fitted / predicted:.4f}"
        axes.loglog(*table.xy("gradient", name), color=colour, linewidth=2.2, label=label)
        axes.loglog(*table.xy("gradient", f"{name}, predicted"), ":", color=_style.BLACK, linewidth=1.3)
    axes.plot(
        [], [], ":", color=_style.BLACK, linewidth=1.3, label="predicted, ~ exp(−D concentration) / √concentration"
    )
    axes.set(
        xlim=(10, None),
        ylim=(LEAST, 3),
        xlabel="concentration (a + b of the Beta draws)",
        ylabel="‖rejection − clip‖ / ‖clip‖",
        title="GRPO's expected gradient, on four bandits of 4 contexts × 5 arms",
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=1, handlelength=2.4, labelspacing=0.2)


def _draw_runs(axes: Axes, table: Table) -> None:
    for name, (label, colour, line, marker) in LOOKS.items():
        k, mean = table.xy("run", name)
        half = table.xy("run", f"{name} half-width")[1]
        some = mean > 0
        apart = table.value("hard verdicts to clip", name)
        label += (
            f"; horizontal, from there to the clip: {apart:.4f}" if apart else "; from there to the clip: exactly 0"
        )
        axes.loglog(
            k[some], mean[some], color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1.3, label=label
        )
        lower = np.maximum(mean - half, 1e-6)
        axes.fill_between(k[some], lower[some], (mean + half)[some], color=colour, alpha=0.12, linewidth=0)
        if apart:
            axes.axhline(apart, color=colour, linestyle=line, linewidth=1.0)
    axes.set(
        xlim=(8, 1.3e8),
        ylim=(1e-4, 1),
        xlabel="concentration (where no point is drawn, all runs are the same)",
        ylabel="distance of the final parameters (rms)",
        title="Trained runs: distance to the run under hard verdicts",
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=1, handlelength=3.0, labelspacing=0.2)
