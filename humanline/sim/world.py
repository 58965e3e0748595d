"""Problems with finitely many responses, many seeds at once: laws, samples and exact values.

A response is a path through *nodes*: at every node the policy picks one of V tokens, and the token says which node
comes next. A bandit has one node; a sequence of T tokens has one for every history that the policy can tell apart. A
policy is a table of log-probabilities, one row a node, and everything here is a look-up in that table.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from humanline import _checks

#: The most responses that are enumerated, and the most numbers that one table over seeds may hold.
MAX_RESPONSES, MAX_ENTRIES = 2**20, 2**28


class Task(Protocol):
    """The settings of a problem; every seed draws its own problem from them."""

    def draw(self, seeds: Sequence[int]) -> World:
        """Return the problems of these seeds."""


@dataclass(frozen=True, eq=False, slots=True)
class World:
    """Hold the problems of S seeds: P contexts with the same N responses of T tokens over a vocabulary of V.

    Parameters
    ----------
    child : (nodes, V) integer tensor
        The node that follows a token; whatever it says of the last token is never read. Node 0 is the first.
    cells : (N, T) integer tensor
        ``node * V + token`` of every token of every response. Responses count in base V, the first token highest.
    scores : (S, P, N) tensor
        True scores, what a policy is meant to raise.
    quality : (S, P, N) tensor
        What the scores were made from: themselves, or the graded score behind a score of 0 or 1.
    start : (S, ...) tensor
        Parameters of the start policy.
    features : (S, P, nodes * V, F) tensor, optional
        The logits are ``features @ parameters``; without features the parameters, (S, P, nodes * V), are the logits.
    better : (S, ...) tensor, optional
        Parameters whose logits grow with the true score, of standard deviation 1: added to a policy they improve it.
    hidden : int
        With H > 0 the logits are those of a network on the features, ``tanh(features @ A) b``; a seed's parameters are
        A, row by row, and b: F * H + H numbers.
    labels : tensor like `scores`, optional
        What training sees of a response: the score of a proxy. Without it, the true score.
    """

    child: Tensor
    cells: Tensor
    scores: Tensor
    quality: Tensor
    start: Tensor
    features: Tensor | None = None
    better: Tensor | None = None
    hidden: int = 0
    labels: Tensor | None = None

    @property
    def length(self) -> int:
        """The number of tokens of a response, T."""
        return self.cells.shape[1]

    @property
    def vocab(self) -> int:
        """The number of tokens, V."""
        return self.child.shape[1]

    def table(self, params: Tensor) -> Tensor:
        """Return the log-probability (nats) of every token at every node.

        ``logit - logsumexp(logits of the node)``

        Parameters
        ----------
        params : (S, ...) tensor
            Shaped like `start`.

        Returns
        -------
        (S, P, nodes * V) tensor
        """
        if self.features is None:
            return normalised(params, self.vocab)
        if self.hidden:
            return normalised(network(self.features, params, self.hidden), self.vocab)
        return normalised(linear(self.features, params), self.vocab)

    def law(self, table: Tensor) -> Tensor:
        """Return the log-probability (nats) of every response, (S, P, N), from a table."""
        length = self.cells.shape[1]
        total = torch.zeros_like(table[..., :1])
        for place in range(length):  # the beginnings of that length, each once
            cells = self.cells[:: self.vocab ** (length - 1 - place), place].view(-1, self.vocab)
            total = (total[..., None] + table[..., cells]).flatten(-2)
        return total

    def expected_score(self, table: Tensor) -> Tensor:
        """Return the exact expected true score of a policy, mean over contexts, (S,), from its table."""
        return expected(self.law(table), self.scores)

    def divergence(self, table: Tensor, other: Tensor) -> Tensor:
        """Return how far a policy is from another, nats a response, (S,), from their tables.

        ``mean_x KL(policy || other) = mean_x sum_y policy(y | x) (log policy(y | x) - log other(y | x))``

        By enumeration; >= 0, infinite where the policy has a response that the other never has, nan where a table is.
        """
        law = self.law(table)
        terms = torch.where(law == -torch.inf, 0.0, law.exp() * (law - self.law(other)))
        return terms.sum(-1).mean(-1).clamp(min=0.0)

    def best_score(self) -> Tensor:
        """Return the true score of the best response, mean over contexts, (S,)."""
        return self.scores.amax(-1).mean(-1)

    def scores_of(self, contexts: Tensor, responses: Tensor) -> Tensor:
        """Return the true scores of some responses, (S, B, G), as `places` does their tokens' places."""
        return _picked(self.scores, contexts, responses)

    def labels_of(self, contexts: Tensor, responses: Tensor) -> Tensor:
        """Return what training sees of them: true scores, or the proxy's."""
        return _picked(self.scores if self.labels is None else self.labels, contexts, responses)

    def places(self, contexts: Tensor, responses: Tensor) -> Tensor:
        """Return where in a flattened table the tokens of some responses are.

        Parameters
        ----------
        contexts : (B,) integer tensor
            The context of each group, the same for every seed.
        responses : (S, B, G) integer tensor

        Returns
        -------
        (S, B, G, T) integer tensor, for `token_logprobs`
        """
        cells_per_context = self.child.numel()
        return self.cells[responses] + (contexts * cells_per_context)[:, None, None]

    def sample(self, table: Tensor, contexts: Tensor, uniforms: Tensor) -> Tensor:
        """Draw responses token by token, by inversion.

        Parameters
        ----------
        table : (S, P, nodes * V) tensor
        contexts : (B,) integer tensor
        uniforms : (S, B, G, T) tensor in [0, 1)

        Returns
        -------
        (S, B, G) integer tensor
        """
        cumulative = by_node(table.detach().exp(), self.vocab).cumsum(-1)[..., :-1]
        cumulative = cumulative.nan_to_num(torch.inf, torch.inf)  # a broken policy picks token 0
        first, *later = uniforms.movedim(-1, 0).contiguous()
        response = token = torch.searchsorted(cumulative[:, contexts, 0].contiguous(), first, right=True)
        laws, node = cumulative.flatten(0, -2), torch.zeros((), dtype=torch.long)
        for u in later:
            node = self.child[node, token]
            begin = torch.arange(0, len(laws), len(self.child)).view(len(table), -1)[:, contexts, None]
            token = torch.searchsorted(laws[(begin + node).flatten()], u.view(-1, 1), right=True).view(u.shape)
            response = response * self.vocab + token
        return response


def linear(features: Tensor, params: Tensor) -> Tensor:
    """Return ``features @ w``, (S, P, C), for features (S, P, C, F) and parameters w, (S, F)."""
    return (features @ params[:, None, :, None]).squeeze(-1)


def network(features: Tensor, params: Tensor, hidden: int) -> Tensor:
    """Return ``tanh(features @ A) b``, (S, P, C), for features (S, P, C, F) and parameters A, b, (S, F * H + H)."""
    first = params[:, :-hidden].reshape(len(params), 1, features.shape[-1], hidden)
    return ((features @ first).tanh() @ params[:, None, -hidden:, None]).squeeze(-1)


def expected(law: Tensor, values: Tensor) -> Tensor:
    """Return ``mean_x sum_y exp(law(y | x)) values(x, y)``, (S,), from two (S, P, N) tensors."""
    return (law.exp() * values).sum(-1).mean(-1)


def _picked(values: Tensor, contexts: Tensor, responses: Tensor) -> Tensor:
    flat = (responses + (contexts * values.shape[-1])[:, None]).flatten(1)
    return values.flatten(1).gather(1, flat).view(responses.shape)


def normalised(logits: Tensor, vocab: int) -> Tensor:
    """Return ``logit - logsumexp(logits of the node)`` for logits (..., nodes * V), nats."""
    logprobs: Tensor = by_node(logits, vocab).log_softmax(-1)
    return logprobs.view(logits.shape)


def by_node(table: Tensor, vocab: int) -> Tensor:
    """Return (..., nodes * V) numbers as (..., nodes, V)."""
    return table.reshape(*table.shape[:-1], -1, vocab)


def token_logprobs(table: Tensor, places: Tensor) -> Tensor:
    """Return the log-probabilities (nats, shape of `places`) that a table (S, P, C) holds at `World.places`."""
    return table.flatten(1).gather(1, places.flatten(1)).view(places.shape)


def sample_law(law: Tensor, contexts: Tensor, uniforms: Tensor) -> Tensor:
    """Draw whole responses from any law over them, by inversion.

    Parameters
    ----------
    law : (S, P, N) tensor
        Log-probabilities; each row is normalised here.
    contexts : (B,) integer tensor
    uniforms : (S, B, G) tensor in [0, 1)

    Returns
    -------
    (S, B, G) integer tensor
        Never a response of probability 0.
    """
    drawn = torch.zeros(uniforms.shape, dtype=torch.long)
    cumulative = (law - law.amax(-1, keepdim=True)).exp().cumsum(-1)
    for context in sorted(set(contexts.tolist())):
        where = contexts == context
        row = cumulative[:, context]
        u = uniforms[:, where].flatten(1) * row[:, -1:]
        found = torch.searchsorted(row.contiguous(), u, right=True).clamp(max=law.shape[-1] - 1)
        drawn[:, where] = found.view(len(law), -1, uniforms.shape[-1])
    return drawn


def normals(seed: int, stream: str, *shape: int) -> Tensor:
    """Return standard normal numbers (float64) that depend on the seed, the name of the stream and the shape alone."""
    return torch.from_numpy(generator(seed, stream).standard_normal(shape))


def generator(seed: int, stream: str) -> np.random.Generator:
    """Return the generator of one seed for one purpose."""
    return np.random.default_rng([seed, *stream.encode()])


def standardise(values: Tensor) -> Tensor:
    """Return values of mean 0 and variance 1 over all but the first axis (0 where they are constant)."""
    axes = tuple(range(1, values.ndim))
    centred: Tensor = values - values.mean(axes, keepdim=True)
    spread: Tensor = centred.square().mean(axes, keepdim=True).sqrt()
    scaled: Tensor = centred / torch.where(spread > 0, spread, 1.0)
    return torch.where(spread > 0, scaled, torch.zeros_like(spread))


def verified(quality: Tensor, law: Tensor, share: float) -> Tensor:
    """Return scores of 0 or 1: 1 for the best responses of a context, as few as have at least a given probability.

    Parameters
    ----------
    quality, law : (S, P, N) tensors
        Graded scores, and log-probabilities.
    share : float in (0, 1)

    Returns
    -------
    (S, P, N) tensor
    """
    order = torch.argsort(quality, dim=-1, descending=True, stable=True)
    before = law.exp().gather(-1, order).cumsum(-1).roll(1, -1)
    before[..., 0] = 0.0
    return torch.zeros_like(quality).scatter(-1, order, (before < share).to(quality.dtype))


def start_towards(target: Tensor, noise: Tensor, alignment: float) -> Tensor:
    """Return ``alignment target + sqrt(1 - alignment^2) noise``: of correlation `alignment` with the target."""
    return alignment * target + math.sqrt(1 - alignment**2) * noise


def agreeing(quality: Tensor, other: Tensor, correlation: float) -> Tensor:
    """Return values of mean 0 and variance 1 that have exactly a given correlation with a quality, in each seed.

    ``correlation quality + sqrt(1 - correlation^2) rest``, the rest being what `quality` leaves unexplained of `other`

    Parameters
    ----------
    quality, other : (S, P, N) tensors
        Of mean 0 and variance 1 in each seed.
    correlation : float in [-1, 1]

    Returns
    -------
    (S, P, N) tensor
    """
    shared = (quality * other).mean((1, 2), keepdim=True)
    return start_towards(quality, standardise(other - shared * quality), correlation)


def whole(name: str, value: object, least: int) -> int:
    """Return `value`, an integer of any kind, as an int; raise a ValueError or TypeError unless it is >= `least`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer; got {value!r}")
    if number < least:
        raise _checks.fail(name, f"be >= {least}", value)
    return number


def at_least(least: int) -> Callable[[str, object], int]:
    """Return the check that `whole` makes."""
    return lambda name, value: whole(name, value, least)


def between(least: float, *, ends: bool = True) -> Callable[[str, object], float]:
    """Return the check that a number lies between `least` and 1, with or without the ends."""

    def check(name: str, value: object) -> float:
        number = _checks.finite(name, value)
        if not (least <= number <= 1 if ends else least < number < 1):
            left, right = "[]" if ends else "()"
            raise _checks.fail(name, f"be in {left}{least:g}, 1{right}", value)
        return number

    return check


def settle(settings: object, **checks: Callable[[str, Any], float]) -> None:
    """Check fields of frozen settings and write them back as plain numbers, so that equal settings look equal."""
    for name, check in checks.items():
        object.__setattr__(settings, name, check(name, getattr(settings, name)))


def check_seeds(seeds: Sequence[int]) -> list[int]:
    """Return the seeds; raise unless they are distinct integers >= 0, at least one."""
    listed = [whole("a seed", seed, 0) for seed in seeds]
    if not listed or len(set(listed)) < len(listed):
        raise _checks.fail("seeds", "be distinct, at least one", listed)
    return listed


def check_size(what: str, count: int, limit: int, hint: str) -> None:
    """Raise a ValueError that names size and limit if an enumeration is too large."""
    if count > limit:
        raise ValueError(f"{what}: {count:,} to enumerate, of which {limit:,} is the limit; {hint}")
