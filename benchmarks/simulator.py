"""The simulator, many seeds at once, beside a hand-written numba kernel and loops of one seed at a time (10).

All do the same work on the same problems with the same random numbers: softmax policies over ten arms, GRPO's loss of
log-ratios that a ClipRange clipped first, against the policy of one step before, plain gradient steps. A *seed-step* is
one such step of one seed: its groups sampled, its gradient taken, its parameters changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.interleave import interleave, ratio_interval
from benchmarks.machine import installed
from benchmarks.report import Result, Row, not_measured
from humanline.schedule import BeforeStep
from humanline.sim.bandit import Bandit
from humanline.sim.objectives import Grpo
from humanline.sim.run import Rollouts, Run, simulate
from humanline.sim.world import World, generator
from humanline.theory import ClipRange

Array = NDArray[np.float64]

#: Of the simulator against the kernel, and against a loop of one seed at a time.
KERNEL_TARGET, LOOP_TARGET = 0.1, 15.0
#: Largest difference between parameters that counts as rounding.
ROUNDING = 1e-9
CLIP, CLIP_EPS, LEARNING_RATE = 0.2, 0.15, 0.5
#: A group is as wide as that many roundings of its scores or less: they tie (`humanline.objectives.group_advantages`).
TIE, TINY = 8 * float(np.finfo(float).eps), 8 * float(np.finfo(float).tiny)
#: Seeds whose uniforms the kernel is given at a time.
BLOCK = 256


@dataclass(frozen=True, slots=True)
class Size:
    """How many seeds run at once, how many one at a time, for how many steps; groups a step, and timed rounds."""

    seeds: int
    steps: int
    groups: int
    rounds: int
    warm_up: int
    alone: int = 1


QUICK = (Size(40, 20, 1, 6, 1, 2), Size(20, 20, 3, 6, 1, 2))
SIZES = (Size(1000, 1000, 1, 20, 1), Size(8192, 1000, 1, 8, 1), Size(1000, 250, 16, 12, 1))
ARMS, FEATURES, MEMBERS = 10, 10, 2


@dataclass(frozen=True, eq=False)
class Drawn:
    """A task whose problems were drawn before, so that no side's time holds their drawing."""

    world: World

    def draw(self, seeds: Sequence[int]) -> World:
        """Return the problems of seeds that follow each other; the first of all is 0."""
        some = slice(seeds[0], seeds[-1] + 1)
        of_seeds = ("scores", "quality", "start", "features", "better")
        return replace(self.world, **{name: getattr(self.world, name)[some] for name in of_seeds})


def described(size: Size) -> Run:
    """Return the run that every side performs."""
    return Run(
        task=Bandit(contexts=1, arms=ARMS, features=FEATURES),
        objective=Grpo(clip_eps=CLIP_EPS, kl_coef=0.0),
        source=Rollouts(every=1),
        schedule=BeforeStep(),
        transform=ClipRange(-CLIP, CLIP),
        learning_rate=LEARNING_RATE,
        steps=size.steps,
        groups=size.groups,
        group_size=MEMBERS,
        optimizer="sgd",
        measurements=1,
    )


def train_by_hand(features: Array, scores: Array, start: Array, uniforms: Array) -> tuple[Array, int]:
    """Do what the simulator does, seed by seed and number by number: the kernel, once numba has compiled it.

    Parameters
    ----------
    features : (S, arms, F) array
    scores : (S, arms) array
    start : (S, F) array
    uniforms : (S, steps, groups, members) array

    Returns
    -------
    params : (S, F) array
    outside : int
        Tokens whose log-ratio lay outside the clip range.
    """
    seeds, arms, width = features.shape
    steps, groups, members = uniforms.shape[1:]
    above, below = math.log1p(CLIP_EPS), math.log1p(-CLIP_EPS)
    params = start.copy()
    outside = 0
    policy, reference, probs, slope = np.empty(arms), np.empty(arms), np.empty(arms), np.empty(arms)
    drawn, advantage = np.empty(members, np.int64), np.empty(members)
    for seed in range(seeds):
        for step in range(steps):
            top = -np.inf
            for arm in range(arms):
                logit = 0.0
                for feature in range(width):
                    logit += features[seed, arm, feature] * params[seed, feature]
                policy[arm] = logit
                top = max(top, logit)
            total = 0.0
            for arm in range(arms):
                probs[arm] = math.exp(policy[arm] - top)
                total += probs[arm]
            shift = top + math.log(total)
            for arm in range(arms):
                probs[arm] /= total
                policy[arm] -= shift
                slope[arm] = 0.0
                if step == 0:
                    reference[arm] = policy[arm]
            for group in range(groups):
                mean, high, low = 0.0, -np.inf, np.inf
                for member in range(members):
                    arm, cumulative = 0, probs[0]
                    while arm < arms - 1 and uniforms[seed, step, group, member] >= cumulative:
                        arm += 1
                        cumulative += probs[arm]
                    drawn[member] = arm
                    mean += scores[seed, arm] / members
                    high, low = max(high, scores[seed, arm]), min(low, scores[seed, arm])
                tied = high - low <= TIE * max(abs(high), abs(low)) + TINY
                variance = 0.0
                for member in range(members):
                    advantage[member] = 0.0 if tied else scores[seed, drawn[member]] - mean
                    variance += advantage[member] ** 2 / members
                for member in range(members):
                    arm = drawn[member]
                    log_ratio = policy[arm] - reference[arm]
                    beyond = log_ratio < -CLIP or log_ratio > CLIP
                    outside += beyond
                    blocked = log_ratio > above if advantage[member] >= 0 else log_ratio < below
                    if not (tied or beyond or blocked):
                        slope[arm] -= math.exp(log_ratio) * advantage[member] / math.sqrt(variance)
            total = 0.0
            for arm in range(arms):
                slope[arm] /= groups * members
                total += slope[arm]
            for arm in range(arms):
                slope[arm] -= probs[arm] * total
                reference[arm] = policy[arm]
            for feature in range(width):
                gradient = 0.0
                for arm in range(arms):
                    gradient += features[seed, arm, feature] * slope[arm]
                params[seed, feature] -= LEARNING_RATE * gradient
    return params, outside


def train_one(features: Array, scores: Array, start: Array, uniforms: Array) -> Array:
    """Do the same for one seed with numpy's arrays: (arms, F), (arms,), (F,), (steps, groups, members) -> (F,)."""
    above, below = math.log1p(CLIP_EPS), math.log1p(-CLIP_EPS)
    params, count = start.copy(), uniforms[0].size
    reference = None
    for u in uniforms:
        policy = features @ params
        policy -= policy.max()
        policy -= math.log(np.exp(policy).sum())
        probs = np.exp(policy)
        if reference is None:
            reference = policy
        drawn = np.searchsorted(probs.cumsum()[:-1], u, side="right")
        got = scores[drawn]
        tied = np.ptp(got, axis=1) <= TIE * np.abs(got).max(1) + TINY
        centred = got - got.mean(1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(1))
        advantage = np.where(tied[:, None], 0.0, centred / np.where(tied, 1.0, spread)[:, None])
        log_ratio = (policy - reference)[drawn]
        kept = (np.abs(log_ratio) <= CLIP) & np.where(advantage >= 0, log_ratio <= above, log_ratio >= below)
        weights = np.where(kept, -np.exp(log_ratio) * advantage / count, 0.0)
        slope = np.bincount(drawn.ravel(), weights.ravel(), len(scores))
        params = params - LEARNING_RATE * ((slope - probs * slope.sum()) @ features)
        reference = policy
    return params


def uniforms_of(run: Run, seeds: Sequence[int]) -> Array:
    """Return the numbers with which the simulator samples, (S, steps, groups, members)."""
    shape = run.steps, run.groups, run.group_size
    return np.stack([generator(seed, "responses").random(shape) for seed in seeds])


def problems(world: World) -> tuple[Array, Array, Array]:
    """Return features, scores and start of bandits with one context."""
    assert world.features is not None
    return tuple(x.numpy().copy() for x in (world.features[:, 0], world.scores[:, 0], world.start))  # type: ignore[return-value]


def require_same(name: str, found: Array, expected: Array) -> float:
    """Return the largest difference between parameters; raise if it is more than rounding."""
    gap = float(np.max(np.abs(found - expected)))
    if not gap <= ROUNDING:  # nan is no rounding either
        raise RuntimeError(f"{name} does other work than the simulator: its parameters differ by {gap:.1e}")
    return gap


def benchmark_simulator(quick: bool) -> Result:
    """Compare seed-steps a second on one core."""
    rows: list[Row] = []
    seconds: dict[str, list[float]] = {}
    sizes = QUICK if quick else SIZES
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for size in sizes:
            more, taken = _one_size(size)
            rows += more
            seconds |= {f"{size.seeds} seeds, {size.groups} groups, {name}": kept for name, kept in taken.items()}
    finally:
        torch.set_num_threads(threads)
    settings = {"arms": ARMS, "features": FEATURES, "group_size": MEMBERS, "clip": CLIP, "clip_eps": CLIP_EPS}
    settings |= {"learning_rate": LEARNING_RATE, "threads": 1, "numba": installed("numba")}
    return Result(settings | {"sizes": [asdict(size) for size in sizes]}, rows, seconds)


def _one_size(size: Size) -> tuple[list[Row], dict[str, list[float]]]:
    """Check that all sides agree, then time them."""
    run, seeds = described(size), range(size.seeds)
    world = run.task.draw(seeds)
    run = replace(run, task=Drawn(world))
    given = problems(world)
    kernel = _compiled()

    def by_kernel() -> Array:
        parts = []
        for first in range(0, size.seeds, BLOCK):
            some = slice(first, min(first + BLOCK, size.seeds))
            parts.append(kernel(*(x[some] for x in given), uniforms_of(run, seeds[some]))[0])  # type: ignore[misc]
        return np.concatenate(parts)

    def by_numpy() -> Array:
        return np.stack(
            [train_one(*(x[seed] for x in given), uniforms_of(run, [seed])[0]) for seed in seeds[: size.alone]]
        )

    def alone() -> Array:
        return torch.cat([simulate(run, [seed]).params for seed in seeds[: size.alone]]).numpy()

    trace = simulate(run, seeds)
    expected = trace.params.numpy()
    gaps = [
        require_same("one seed at a time", alone(), expected[: size.alone]),
        require_same("numpy", by_numpy(), expected[: size.alone]),
    ]
    sides: dict[str, Callable[[], object]] = {
        "simulator": lambda: simulate(run, seeds),
        "one seed at a time": alone,
        "numpy, one seed at a time": by_numpy,
    }
    if kernel is not None:
        gaps.append(require_same("the kernel", by_kernel(), expected))
        sides["kernel"] = by_kernel
    taken = interleave(sides, rounds=size.rounds, warm_up=size.warm_up)
    done = {name: size.seeds if name in ("simulator", "kernel") else size.alone for name in sides}
    note = (
        f"all agree to {max(gaps):.0e} after steps that moved a parameter by up to "
        f"{float((trace.params - world.start).abs().max()):.1f} and clipped {float(trace.outside.mean()):.1%} of tokens"
    )
    what = f"{size.seeds} seeds x {size.steps} steps, {size.groups} group{'s' * (size.groups > 1)} of {MEMBERS}: "
    rows = []
    if kernel is None:
        rows.append(
            not_measured("10", f"{what}simulator / numba kernel", "numba is not installed", f">= {KERNEL_TARGET:g}")
        )
    for other, target in (
        ("kernel", KERNEL_TARGET),
        ("one seed at a time", LOOP_TARGET),
        ("numpy, one seed at a time", None),
    ):
        if other not in taken:
            continue
        rates = {name: [done[name] * size.steps / value for value in taken[name]] for name in ("simulator", other)}
        found = ratio_interval(rates["simulator"], rates[other])
        rows.append(
            Row(
                "-" if target is None else "10",
                what + ("simulator / numba kernel" if other == "kernel" else f"simulator / {other}"),
                tuple(f"{_short(median(rates[name]))}/s" for name in ("simulator", other)),  # type: ignore[arg-type]
                found.ratio,
                (found.low, found.high),
                "" if target is None else f">= {target:g}",
                None if target is None else found.ratio >= target,
                note if other == "kernel" else f"{other}: measured on {done[other]} of the seeds",
            )
        )
    return rows, taken


def _compiled() -> Callable[..., tuple[Array, int]] | None:
    """Return `train_by_hand` compiled for one thread, None without numba."""
    try:
        from numba import njit
    except ImportError:
        return None
    return njit(train_by_hand)  # type: ignore[no-any-return]


def _short(rate: float) -> str:
    return f"{rate / 1e6:.3g} M" if rate >= 1e5 else f"{rate / 1e3:.3g} k"
