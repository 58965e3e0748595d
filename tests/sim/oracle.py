"""A slow second opinion on a whole run: one seed, plain loops over steps, groups and tokens. Imports no humanline.

It reads the settings of a `Run` (duck-typed), draws problem and data again from the documented streams, keeps the
parameters of every step, and asks the schedule's closed form which of them score a step. Gradients are by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tests.sim.oracle_problems import Array, Problem, Response, log_softmax, normal, problem, sigmoid, stream, verified

# ---- data -----------------------------------------------------------------------------------------------------------


def inverted(probs: Array, u: float) -> int:
    """The first index whose cumulative probability is above u."""
    total = 0.0
    for index, p in enumerate(probs):
        total += p
        if u < total:
            return index
    return len(probs) - 1


def drifted(world: Problem, source: Any, seed: int) -> Array:
    """Log-probabilities of the tokens of another model."""
    start = world.table(world.start)
    noise = normal(seed, "behaviour", world.contexts, len(world.nodes) * world.vocab).reshape(start.shape)
    return np.array([[log_softmax(row) for row in rows] for rows in start + source.drift * noise])


def behaviour(world: Problem, source: Any, seed: int) -> Array:
    """Log-probabilities of the policy that wrote fixed data."""
    law = world.law(drifted(world, source, seed)) + source.tilt * world.quality
    good = verified(world.quality, np.exp(world.law(world.table(world.start))), 0.2)
    weights = np.exp(law - law.max())
    for x, y in product(range(len(law)), range(law.shape[1])):
        if good[x, y] and world.quality[x, y] > world.quality[x].min():
            weights[x, y] *= source.coverage
    with np.errstate(divide="ignore"):
        return np.log(weights / weights.sum(1, keepdims=True))


def written(world: Problem, writer: Array, x: int, uniforms: Any) -> int:
    """A response drawn token by token, from the probabilities of tokens and an iterator of uniform numbers."""
    response: Response = ()
    for t in range(len(world.responses[0])):
        node = world.nodes[t, response[max(0, t - world.seen) : t]]
        response += (inverted(writer[x, node], next(uniforms)),)
    return world.responses.index(response)


def fixed_groups(run: Any, world: Problem, seed: int) -> list[tuple[int, list[int], list[float]]]:
    """Context, responses and labels of every group of the run, in the order in which they are used."""
    steps, turn = run.groups * run.steps, world.contexts
    each = steps if run.source.passes == 1 else math.ceil(steps / run.source.passes / turn)  # groups a context
    count = min(steps, each * turn)
    groups = few_groups(run, world, seed, count)
    judged = judgements(run, world, seed)
    labelled = [(x, members, judged(x, members)) for x, members in groups]
    if count == steps:
        return labelled
    by_context = [labelled[x::turn] for x in range(turn)]
    order, rng, ordered = [list(range(each))] * turn, stream(seed, "passes"), []
    while len(ordered) < steps:
        ordered += [by_context[x][order[x][i]] for i in range(each) for x in range(turn)]
        shuffled = rng.permuted(np.array([[i] * turn for i in range(each)]), axis=0)
        order = [[int(i) for i in shuffled[:, x]] for x in range(turn)]
    return ordered[:steps]


def judgements(run: Any, world: Problem, seed: int) -> Any:
    """What labels a group, the next one that is written."""
    noise, errors = stream(seed, "judge's noise"), stream(seed, "judge's errors")

    def judged(x: int, members: list[int]) -> list[float]:
        labels = [float(world.labels[x, y]) for y in members]
        if run.judge.noise:
            labels = [label + run.judge.noise * noise.standard_normal() for label in labels]
        if run.judge.wrong and errors.random() < run.judge.wrong:
            labels = [max(labels) + min(labels) - label for label in labels]
        return labels

    return judged


def few_groups(run: Any, world: Problem, seed: int, count: int) -> list[tuple[int, list[int]]]:
    """Context and responses of the groups that fixed data have."""
    times = 1 if run.source.quartile is None else 4
    contexts = [i % count % world.contexts for i in range(times * count)]
    if getattr(run.task, "enumerated", True):
        probs = np.exp(behaviour(world, run.source, seed))
        uniforms = stream(seed, "responses").random((times * count, run.group_size))
        drawn = [(x, [inverted(probs[x], u) for u in row]) for x, row in zip(contexts, uniforms, strict=True)]
    else:
        writer, rng = np.exp(drifted(world, run.source, seed)), stream(seed, "responses")
        uniforms = iter(rng.random, None)
        drawn = [(x, [written(world, writer, x, uniforms) for _ in range(run.group_size)]) for x in contexts]
    if run.source.quartile is None:
        return drawn
    start = world.table(world.start)

    def likelihood(group: tuple[int, list[int]]) -> float:
        x, members = group
        return float(np.mean([start[x][cell] for y in members for cell in world.path(world.responses[y])]))

    kept: dict[int, list[tuple[int, list[int]]]] = {}
    for x in range(min(count, world.contexts)):
        mine = [group for group in drawn if group[0] == x]
        ranked = sorted(range(len(mine)), key=lambda i: likelihood(mine[i]))
        quarter = len(mine) // 4
        chosen = ranked[(run.source.quartile - 1) * quarter : run.source.quartile * quarter]
        kept[x] = [mine[i] for i in sorted(chosen)]
    return [kept[i % world.contexts].pop(0) for i in range(count)]


def beta(shape: Any, seed: int, side: str, step: int, size: tuple[int, ...]) -> Array:
    """The Beta draws of a step, one generator for sixteen steps."""
    rng, size = stream(seed, f"{side} draws {step // 16}"), (step % 16 + 1, *size)
    if shape.b == 1:
        return np.exp(-rng.standard_exponential(size) / shape.a)[-1]
    if shape.a == 1:
        return 1 - np.exp(-rng.standard_exponential(size) / shape.b)[-1]
    return rng.beta(shape.a, shape.b, size)[-1]


# ---- a step ---------------------------------------------------------------------------------------------------------


def clipped(transform: Any, ratio: float) -> float:
    if type(transform).__name__ != "ClipRange":
        return ratio
    return min(max(ratio, transform.low), transform.high)


def passes(transform: Any, ratio: float, draws: tuple[float, float] | None) -> bool:
    """Whether a token's gradient passes the transform."""
    if transform is None:
        return True
    if draws is None:
        return bool(transform.low <= ratio <= transform.high)
    tests = (
        math.exp(ratio) >= transform.policy_ratio_bound * draws[0],
        math.exp(-ratio) >= transform.ref_ratio_bound * draws[1],
    )
    return all(tests) if transform.rule == "either" else any(tests)


def advantages(scores: list[float]) -> list[float]:
    mean = math.fsum(scores) / len(scores)
    spread = math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / len(scores))
    return [0.0 if max(scores) == min(scores) else (s - mean) / spread for s in scores]


def pair_slopes(
    objective: Any, z: list[list[float]], other: list[list[float]], differ: list[bool]
) -> list[list[float]]:
    """Derivatives of DPO's or KTO's loss by the sequence log-ratios of best and worst; `other` are the mismatched."""
    slopes = []
    if type(objective).__name__ == "Dpo":
        for (best, worst), counts in zip(z, differ, strict=True):
            pull = objective.beta * sigmoid(-objective.beta * (best - worst)) / len(z) if counts else 0.0
            slopes.append([-pull, pull])
        return slopes
    flat = [value for pair in other for value in pair]
    z_0 = max(0.0, math.fsum(flat) / len(flat))
    for (best, worst), counts in zip(z, differ, strict=True):
        row = []
        for value, sign, weight in (
            (best, 1.0, objective.desirable_weight),
            (worst, -1.0, objective.undesirable_weight),
        ):
            gain = sign * objective.beta * (value - z_0)
            pull = weight * sign * objective.beta * sigmoid(gain) * sigmoid(-gain) / (2 * len(z))
            row.append(-pull if counts else 0.0)
        slopes.append(row)
    return slopes


def grpo_slope(objective: Any, ratio: float, advantage: float, count: int) -> float:
    """Derivative of GRPO's loss, its KL term aside, by a transformed log-ratio."""
    r = math.exp(ratio)
    held = r > 1 + objective.clip_eps if advantage >= 0 else r < 1 - objective.clip_eps
    return 0.0 if held else -r * advantage / count


class Adam:
    def __init__(self, rate: float) -> None:
        self.rate, self.t, self.m, self.v = rate, 0, 0.0, 0.0

    def __call__(self, params: Array, gradient: Array) -> Array:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        unbiased_m, unbiased_v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return params - self.rate * unbiased_m / (np.sqrt(unbiased_v) + 1e-8)


class Sgd:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, params: Array, gradient: Array) -> Array:
        return params - self.rate * gradient


# ---- a run ----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a run left behind."""

    params: list[Array]
    batches: list[list[tuple[int, list[int]]]]
    reference: Array
    behaviour: Array
    scores: dict[int, float]
    outside: float
    saturation: float
    best: float


def outcome(run: Any, seed: int) -> Outcome:
    """Train one seed."""
    world = problem(run.task, seed)
    online = type(run.source).__name__ == "Rollouts"
    kind, length = type(run.objective).__name__, len(world.responses[0])
    update = (Adam if run.optimizer == "adam" else Sgd)(run.learning_rate)
    params, tables, batches = [world.start], [world.table(world.start)], []
    groups = [] if online else fixed_groups(run, world, seed)
    law = world.law(tables[0]) if online else behaviour(world, run.source, seed)
    rng = stream(seed, "responses")
    uniforms, judged = iter(rng.random, None), judgements(run, world, seed)
    outside = saturation = 0.0
    first = world.table(world.start + run.reference_tilt * world.better) if run.reference_tilt else tables[0]

    def scoring(step: int) -> Array:
        """The table that scores a step."""
        synced = online and run.source.round_start == "sync"
        started = run.source.every * (step // run.source.every) if synced else 0
        untouched = {
            "never": True,
            "before_step": step == 0,
            "after_step": run.schedule.snapshot(step) == 0,
            "each_round": run.schedule.snapshot(step) == 0,
            "lag": run.schedule.snapshot(step) == 0,
        }
        if untouched[run.schedule.kind] and not synced:
            return first
        return tables[max(run.schedule.snapshot(step), started)]

    for step in range(run.steps):
        policy, reference = tables[step], scoring(step)
        if online:
            if step % run.source.every == 0:
                law, writer = world.law(policy), np.exp(policy)
            batch = []
            for i in range(run.groups * step, run.groups * (step + 1)):
                x = i % world.contexts
                members = [written(world, writer, x, uniforms) for _ in range(run.group_size)]
                batch.append((x, members, judged(x, members)))
        else:
            batch = groups[run.groups * step : run.groups * (step + 1)]
        scored = [labels for _, _, labels in batch]
        batch = [(x, members) for x, members, _ in batch]
        batches.append(batch)
        differ = [max(scores) > min(scores) for scores in scored]
        used = [members for _, members in batch]
        if kind != "Grpo":  # the first of equals
            used = [
                [members[scores.index(max(scores))], members[scores.index(min(scores))]]
                for (_, members), scores in zip(batch, scored, strict=True)
            ]
        draws = None
        if type(run.transform).__name__ == "BetaRejection":
            size = len(batch), len(used[0]), length
            draws = (
                beta(run.transform.policy, seed, "policy", step, size),
                beta(run.transform.ref, seed, "reference", step, size),
            )

        def ratios(x: int, y: int, against: Array, policy: Array = policy) -> list[float]:
            return [policy[x][cell] - against[x][cell] for cell in world.path(world.responses[y])]

        raw = [[ratios(x, y, reference) for y in ys] for (x, _), ys in zip(batch, used, strict=True)]
        flow = [
            [
                [passes(run.transform, r, draws and (draws[0][b, k, t], draws[1][b, k, t])) for t, r in enumerate(row)]
                for k, row in enumerate(rows)
            ]
            for b, rows in enumerate(raw)
        ]
        outside += np.mean([not f for rows in flow for row in rows for f in row]) / run.steps
        z = [[math.fsum(clipped(run.transform, r) for r in row) for row in rows] for rows in raw]

        at = []  # context, cell and derivative of the loss by its log-probability
        if kind == "Grpo":
            count = len(batch) * run.group_size * length
            for b, (x, _) in enumerate(batch):
                for k, advantage in enumerate(advantages(scored[b])):
                    y = used[b][k]
                    to_start = ratios(x, y, tables[0])
                    for t, cell in enumerate(world.path(world.responses[y])):
                        ratio = clipped(run.transform, raw[b][k][t])
                        slope = flow[b][k][t] * grpo_slope(run.objective, ratio, advantage, count)
                        slope += run.objective.kl_coef * (1 - math.exp(-to_start[t])) / count
                        at.append((x, cell, slope))
        else:
            other = []
            for b, (x, _) in enumerate(batch):
                ys = used[(b + 1) % len(batch)]
                other.append([math.fsum(clipped(run.transform, r) for r in ratios(x, y, reference)) for y in ys])
            slopes = pair_slopes(run.objective, z, other, differ)
            for b, (x, _) in enumerate(batch):
                for k, y in enumerate(used[b]):
                    for t, cell in enumerate(world.path(world.responses[y])):
                        at.append((x, cell, slopes[b][k] * flow[b][k][t]))
            if kind == "Dpo":
                margins = [best - worst if counts else 0.0 for (best, worst), counts in zip(z, differ, strict=True)]
                saturation += np.mean([sigmoid(run.objective.beta * margin) for margin in margins]) / run.steps
        params.append(update(params[-1], world.backward(at, policy, params[-1])))
        tables.append(world.table(params[-1]))

    scores = {
        step: float(np.mean((np.exp(world.law(table)) * world.scores).sum(-1))) for step, table in enumerate(tables)
    }
    return Outcome(
        params,
        batches,
        reference=scoring(run.steps - 1),
        behaviour=law,
        scores=scores,
        outside=outside,
        saturation=saturation if kind == "Dpo" else math.nan,
        best=float(world.scores.max(1).mean()),
    )
