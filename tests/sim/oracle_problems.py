"""A slow second opinion on the problems of the simulator, one seed at a time. Imports no humanline."""

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
    hidden: int = 0
    paths: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, int))
    quality: Array = field(default_factory=lambda: np.empty(0))
    scores: Array = field(default_factory=lambda: np.empty(0))
    labels: Array = field(default_factory=lambda: np.empty(0))

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
                    rows = self.features[x][node * self.vocab : (node + 1) * self.vocab]
                    logits = np.array([read(row, params, self.hidden) for row in rows])
                table[x, node] = log_softmax(logits)
        return table

    def law(self, table: Array) -> Array:
        """Log-probabilities of the responses, (contexts, responses)."""
        if not len(self.paths):
            self.paths = np.array([self.path(y) for y in self.responses])
        return table[:, self.paths[..., 0], self.paths[..., 1]].sum(-1)

    def backward(self, at: list[tuple[int, tuple[int, int], float]], table: Array, params: Array) -> Array:
        """The gradient of the parameters from derivatives by token log-probabilities."""
        gradient = np.zeros_like(self.start)
        for x, (node, token), slope in at:
            by_logit = -np.exp(table[x, node]) * slope
            by_logit[token] += slope
            if self.features is None:
                gradient.reshape(table.shape)[x, node] += by_logit  # a view
            else:
                rows = self.features[x][node * self.vocab : (node + 1) * self.vocab]
                for row, pull in zip(rows, by_logit, strict=True):
                    gradient += pull * slope_of_read(row, params, self.hidden)
        return gradient


def read(row: Array, params: Array, hidden: int) -> float:
    """A logit: linear in the features, or a network's."""
    if not hidden:
        return math.fsum(row * params)
    inner = params[:-hidden].reshape(len(row), hidden)
    return math.fsum(params[k - hidden] * math.tanh(math.fsum(row * inner[:, k])) for k in range(hidden))


def slope_of_read(row: Array, params: Array, hidden: int) -> Array:
    """Its derivatives by the parameters."""
    if not hidden:
        return row
    inner = params[:-hidden].reshape(len(row), hidden)
    units = np.array([math.tanh(math.fsum(row * inner[:, k])) for k in range(hidden)])
    return np.concatenate([np.outer(row, params[-hidden:] * (1 - units**2)).ravel(), units])


def shared(task: Any, seed: int, cells: int, vocab: int, score: str = "") -> tuple[Array, Array, Array, Array]:
    """Features, what each cell adds to a score, start and better of a policy over features."""
    features = normal(seed, "features", task.contexts, cells, task.features)
    count = task.features if not task.hidden else (task.features + 1) * task.hidden
    target, noise = normal(seed, f"target{score}", count), normal(seed, "start", count)
    misfit = normal(seed, f"misfit{score}", task.contexts, cells)
    if task.hidden:
        for weights in (target, noise):
            weights[: -task.hidden] /= math.sqrt(task.features)

    def logits(weights: Array) -> Array:
        return np.array([[read(row, weights, task.hidden) for row in rows] for rows in features])

    def sharp(weights: Array, sharpness: float) -> Array:
        spread = math.sqrt(
            np.mean([(node - node.mean()) ** 2 for rows in logits(weights) for node in rows.reshape(-1, vocab)])
        )
        scaled = weights.copy()
        scaled[-task.hidden if task.hidden else 0 :] *= sharpness / spread
        return scaled

    start = task.alignment * target + math.sqrt(1 - task.alignment**2) * noise
    gain = math.sqrt(1 - task.misfit) * unit(logits(target)) + math.sqrt(task.misfit) * unit(misfit)
    return features, gain, sharp(start, task.sharpness), sharp(target, 1.0)


def problem(task: Any, seed: int) -> Problem:
    """Draw a problem again."""
    towards = math.sqrt(1 - task.alignment**2)
    if type(task).__name__ == "Bandit":
        responses, nodes, seen, vocab = [(a,) for a in range(task.arms)], {(0, ()): 0}, 0, task.arms
    else:
        seen, vocab = task.length if task.order is None else task.order, task.vocab
        histories = [(t, h) for t in range(task.length) for h in product(range(vocab), repeat=min(seen, t))]
        nodes = {history: index for index, history in enumerate(histories)}
        responses = list(product(range(vocab), repeat=task.length))
    cells = len(nodes) * vocab

    def quality(score: str) -> tuple[Problem, Array]:
        if task.features:
            features, gain, start, better = shared(task, seed, cells, vocab, score)
        else:
            gain, noise = (
                normal(seed, f"target{score}", task.contexts, cells),
                normal(seed, "start", task.contexts, cells),
            )
            features, start, better = None, task.sharpness * (task.alignment * gain + towards * noise), gain
        found = Problem(task.contexts, vocab, responses, nodes, seen, start, better, features, task.hidden)
        return found, unit(found.law(gain.reshape(task.contexts, len(nodes), vocab)))

    found, found.quality = quality("")
    graded = found.quality
    if task.proxy < 1:
        other = quality(" of the proxy")[1]
        rest = unit(other - found.quality * (found.quality * other).mean())
        graded = task.proxy * found.quality + math.sqrt(1 - task.proxy**2) * rest
    found.scores, found.labels = found.quality, graded
    if task.verifiable is not None:
        probs = np.exp(found.law(found.table(found.start)))
        found.scores, found.labels = (verified(q, probs, task.verifiable) for q in (found.quality, graded))
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
