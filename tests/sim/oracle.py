"""A slow second opinion on a whole run: one seed, plain loops over steps, groups and tokens. Imports no humanline.

It reads the settings of a `Run` (duck-typed), draws problem and data again from the documented streams, keeps the
parameters of every step, and asks the schedule's closed form which of them score a step. Gradients are by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Response = tuple[int, ...]


def stream(seed: int, name: str) -> np.random.Generator:
    """One generator for each seed and purpose."""
    return np.random.default_rng([seed, *name.encode()])


def normal(seed: int, name: str, *shape: int) -> Array:
    return stream(seed, name).standard_normal(shape)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def log_softmax(row: Array) -> Array:
    return row - row.max() - math.log(math.fsum(np.exp(row - row.max())))


def unit(values: Array) -> Array:
    """Mean 0 and variance 1."""
    centred = values - values.mean()
    return centred / math.sqrt((centred**2).mean())


# ---- problems -------------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """One seed's problem: responses are tuples of tokens, a node is a position and the tokens the policy sees there."""

    contexts: int
    vocab: int
    responses: list[Response]
    nodes: dict[tuple[int, Response], int]
    seen: int
    start: Array
    better: Array
    features: Array | None = None
    quality: Array = field(default_factory=lambda: np.empty(0))
    scores: Array = field(default_factory=lambda: np.empty(0))

    def path(self, response: Response) -> list[tuple[int, int]]:
        """The (node, token) pairs of a response."""
        found = []
        for t, token in enumerate(response):
            history = response[max(0, t - self.seen) : t]
            found.append((self.nodes[t, history], token))
        return found

    def table(self, params: Array) -> Array:
        """Log-probabilities, (contexts, nodes, vocab)."""
        table = np.empty((self.contexts, len(self.nodes), self.vocab))
        for x in range(self.contexts):
            for node in range(len(self.nodes)):
                if self.features is None:
                    logits = params.reshape(table.shape)[x, node]
                else:
                    logits = np.array([math.fsum(row * params) for row in self.features[x]])
                table[x, node] = log_softmax(logits)
        return table

    def law(self, table: Array) -> Array:
        """Log-probabilities of the responses, (contexts, responses)."""
        rows = [[math.fsum(table[x][cell] for cell in self.path(y)) for y in self.responses] for x in range(len(table))]
        return np.array(rows)

    def backward(self, at: list[tuple[int, tuple[int, int], float]], table: Array) -> Array:
        """The gradient of the parameters from derivatives by token log-probabilities."""
        gradient = np.zeros_like(self.start)
        for x, (node, token), slope in at:
            by_logit = -np.exp(table[x, node]) * slope
            by_logit[token] += slope
            if self.features is None:
                gradient.reshape(table.shape)[x, node] += by_logit  # a view
            else:
                gradient += self.features[x].T @ by_logit
        return gradient


def problem(task: Any, seed: int) -> Problem:
    """Draw a problem again."""
    towards = math.sqrt(1 - task.alignment**2)
    if type(task).__name__ == "Bandit":
        features = normal(seed, "features", task.contexts, task.arms, task.features)
        target, noise = normal(seed, "target", task.features), normal(seed, "start", task.features)

        def sharp(weights: Array) -> Array:
            return weights / math.sqrt(np.mean([(row - row.mean()) ** 2 for row in features @ weights]))

        found = Problem(
            task.contexts,
            task.arms,
            [(a,) for a in range(task.arms)],
            {(0, ()): 0},
            0,
            task.sharpness * sharp(task.alignment * target + towards * noise),
            sharp(target),
            features,
        )
        misfit = normal(seed, "misfit", task.contexts, task.arms)
        mixed = math.sqrt(1 - task.misfit) * unit(features @ target) + math.sqrt(task.misfit) * unit(misfit)
        found.quality = unit(mixed)
    else:
        seen = task.length if task.order is None else task.order
        histories = [(t, h) for t in range(task.length) for h in product(range(task.vocab), repeat=min(seen, t))]
        nodes = {history: index for index, history in enumerate(histories)}
        shape = task.contexts, len(nodes) * task.vocab
        gain, noise = normal(seed, "target", *shape), normal(seed, "start", *shape)
        start = task.sharpness * (task.alignment * gain + towards * noise)
        responses = list(product(range(task.vocab), repeat=task.length))
        found = Problem(task.contexts, task.vocab, responses, nodes, seen, start, gain)
        found.quality = unit(found.law(gain.reshape(task.contexts, len(nodes), task.vocab)))
    found.scores = found.quality
    if task.verifiable is not None:
        found.scores = verified(found.quality, np.exp(found.law(found.table(found.start))), task.verifiable)
    return found


def verified(quality: Array, probs: Array, share: float) -> Array:
    """1 for the best responses of a context, one after another until they have the share."""
    scores = np.zeros_like(quality)
    for x in range(len(quality)):
        total = 0.0
        for y in sorted(range(quality.shape[1]), key=lambda y: -quality[x, y]):
            if total >= share:
                break
            scores[x, y], total = 1.0, total + probs[x, y]
    return scores


# ---- data -----------------------------------------------------------------------------------------------------------


def inverted(probs: Array, u: float) -> int:
    """The first index whose cumulative probability is above u."""
    total = 0.0
    for index, p in enumerate(probs):
        total += p
        if u < total:
            return index
    return len(probs) - 1


def behaviour(world: Problem, source: Any, seed: int) -> Array:
    """Log-probabilities of the policy that wrote fixed data."""
    start = world.table(world.start)
    noise = normal(seed, "behaviour", world.contexts, len(world.nodes) * world.vocab).reshape(start.shape)
    drifted = np.array([[log_softmax(row) for row in rows] for rows in start + source.drift * noise])
    return np.array([log_softmax(row) for row in world.law(drifted) + source.tilt * world.quality])


def fixed_groups(run: Any, world: Problem, seed: int) -> list[tuple[int, list[int]]]:
    """Context and responses of every group of the run, in the order in which they are used."""
    count = run.groups * run.steps
    probs = np.exp(behaviour(world, run.source, seed))
    times = 1 if run.source.quartile is None else 4
    uniforms = stream(seed, "responses").random((times * count, run.group_size))
    drawn = [
        (i % count % world.contexts, [inverted(probs[i % count % world.contexts], u) for u in uniforms[i]])
        for i in range(times * count)
    ]
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


def outcome(run: Any, seed: int) -> Outcome:
    """Train one seed."""
    world = problem(run.task, seed)
    online = type(run.source).__name__ == "Rollouts"
    kind, length = type(run.objective).__name__, len(world.responses[0])
    update = (Adam if run.optimizer == "adam" else Sgd)(run.learning_rate)
    params, tables, batches = [world.start], [world.table(world.start)], []
    groups = [] if online else fixed_groups(run, world, seed)
    law = world.law(tables[0]) if online else behaviour(world, run.source, seed)
    uniforms = stream(seed, "responses")
    outside = saturation = 0.0
    first = world.table(world.start + run.reference_tilt * world.better)

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
                x, members = i % world.contexts, []
                for _ in range(run.group_size):
                    response: Response = ()
                    for t in range(length):
                        node = world.nodes[t, response[max(0, t - world.seen) : t]]
                        response += (inverted(writer[x, node], uniforms.random()),)
                    members.append(world.responses.index(response))
                batch.append((x, members))
        else:
            batch = groups[run.groups * step : run.groups * (step + 1)]
        batches.append(batch)

        scored = [[world.scores[x, y] for y in members] for x, members in batch]
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
        params.append(update(params[-1], world.backward(at, policy)))
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
    )
