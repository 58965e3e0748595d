"""Sequences too many to enumerate: sampled token by token; what is a sum over tokens stays exact, by recursion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from humanline.sim.world import World, by_node, generator, start_towards, token_logprobs

#: Sequences have a number of their own, in base V, and so must fit into an integer.
MAX_CODES = 2**62
#: Sequences a context of each policy from which a win rate is estimated: a standard error of at most .03 a context.
DRAWS = 256


@dataclass(frozen=True, eq=False, slots=True)
class LongWorld(World):
    """Hold problems whose sequences have numbers but are listed nowhere.

    A response is its number in base V, the first token highest, as in a `World`.

    Parameters
    ----------
    cells : (0, T) integer tensor
        None is listed.
    scores, quality, labels : (S, P, nodes * V) tensors
        What each token adds; a sequence's score is the sum over its tokens.
    sizes : tuple of int
        Nodes at each position; a position's nodes stand together, in order.
    """

    sizes: tuple[int, ...] = ()

    def law(self, table: Tensor) -> Tensor:
        """Raise a ValueError: there is no law over sequences that are not enumerated."""
        del table
        count = f"{self.vocab}^{self.length} sequences"
        raise ValueError(f"{count} are not enumerated, so that there is no law over them; take a shorter length")

    def expected_score(self, table: Tensor) -> Tensor:
        """Return the exact expected true score of a policy, mean over contexts, (S,)."""
        return self.path_mean(table, self.scores)

    def divergence(self, table: Tensor, other: Tensor) -> Tensor:
        """Return the exact KL divergence of a policy from another, nats a response, mean over contexts, (S,)."""
        return self.path_mean(table, table - other)

    def path_mean(self, table: Tensor, values: Tensor) -> Tensor:
        """Return the expected sum of what the tokens of a response are worth, mean over contexts, (S,).

        ``V(node) = sum_v p(v | node) (value(node, v) + V(next node))``, from the last position to the first

        Parameters
        ----------
        table, values : (S, P, nodes * V) tensors
        """
        probs = table.exp()
        ahead = torch.zeros_like(table[..., :1])
        for begin, end, after in _positions(self.sizes):
            worth, p = (by_node(each, self.vocab)[..., begin:end, :] for each in (values, probs))
            ahead = (p * (worth + ahead[..., _next(self.child, begin, end, after)])).sum(-1)
        return ahead[..., 0].mean(-1)

    def best_score(self) -> Tensor:
        """Return the true score of the best response, mean over contexts, (S,)."""
        ahead = torch.zeros_like(self.scores[..., :1])
        for begin, end, after in _positions(self.sizes):
            worth = by_node(self.scores, self.vocab)[..., begin:end, :]
            ahead = (worth + ahead[..., _next(self.child, begin, end, after)]).amax(-1)
        return ahead[..., 0].mean(-1)

    def scores_of(self, contexts: Tensor, responses: Tensor) -> Tensor:
        """Return the true scores of some responses, (S, B, G)."""
        return token_logprobs(self.scores, self.places(contexts, responses)).sum(-1)

    def labels_of(self, contexts: Tensor, responses: Tensor) -> Tensor:
        """Return what training sees of them: true scores, or the proxy's."""
        labels = self.scores if self.labels is None else self.labels
        return token_logprobs(labels, self.places(contexts, responses)).sum(-1)

    def places(self, contexts: Tensor, responses: Tensor) -> Tensor:
        """Return where in a flattened table the tokens of some responses are, (S, B, G, T)."""
        begin = (contexts * self.child.numel())[:, None]
        node, found = torch.zeros_like(responses), []
        for place in range(self.length):
            token = responses // self.vocab ** (self.length - 1 - place) % self.vocab
            found.append(begin + node * self.vocab + token)
            node = self.child[node, token]
        return torch.stack(found, -1)

    def estimated_win_rate(self, policy: Tensor, opponent: Tensor) -> Tensor:
        """Return how often a policy scores higher than another in the same context, ties counting half, (S,).

        Over all pairs of `DRAWS` sequences of each and context, from the same uniform numbers for every seed.

        Parameters
        ----------
        policy, opponent : (S, P, nodes * V) tensors
        """
        contexts = torch.arange(policy.shape[1])
        scores = []
        for name, table in (("policy", policy), ("opponent", opponent)):
            drawn = generator(0, f"win rate {name}").random((1, len(contexts), DRAWS, self.length))
            uniforms = torch.from_numpy(drawn).expand(len(policy), -1, -1, -1)
            scores.append(self.scores_of(contexts, self.sample(table, contexts, uniforms)))
        mine, theirs = scores[0].contiguous(), scores[1].sort(-1).values
        below = torch.searchsorted(theirs, mine, right=False) + torch.searchsorted(theirs, mine, right=True)
        return below.to(policy.dtype).mean((1, 2)) / (2 * DRAWS)


def standard_gain(child: Tensor, sizes: tuple[int, ...], gain: Tensor) -> Tensor:
    """Return gains (S, P, nodes * V) whose sums have mean 0 and variance 1 over all contexts and sequences."""
    mean = _sums(child, sizes, gain, gain)[0].mean(-1)[:, None, None]
    centred = gain - mean / len(sizes)
    return centred / _product(child, sizes, centred, centred).sqrt()


def agreeing_gain(child: Tensor, sizes: tuple[int, ...], gain: Tensor, other: Tensor, correlation: float) -> Tensor:
    """Return gains whose sums have exactly a given correlation with those of `gain`, as `world.agreeing` does.

    Parameters
    ----------
    child, sizes
        Of a `LongWorld`.
    gain, other : (S, P, nodes * V) tensors
        Of `standard_gain`.
    correlation : float in [-1, 1]
    """
    rest = standard_gain(child, sizes, other - _product(child, sizes, gain, other) * gain)
    return start_towards(gain, rest, correlation)


def _product(child: Tensor, sizes: tuple[int, ...], one: Tensor, other: Tensor) -> Tensor:
    """Return the mean product of two sums over all contexts and sequences, (S, 1, 1)."""
    return _sums(child, sizes, one, other)[2].mean(-1)[:, None, None]


def _sums(child: Tensor, sizes: tuple[int, ...], one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means of two sums and of their product over all sequences of each context, (S, P) each.

    ``E[(a + A)(b + B)] = ab + a E[B] + b E[A] + E[AB]`` at every token, A and B being the sums over what follows.
    """
    a_ahead = b_ahead = product = torch.zeros_like(one[..., :1])
    for begin, end, after in _positions(sizes):
        a, b = (by_node(each, child.shape[1])[..., begin:end, :] for each in (one, other))
        following = _next(child, begin, end, after)
        a_next, b_next, ab_next = (each[..., following] for each in (a_ahead, b_ahead, product))
        a_ahead, b_ahead = (a + a_next).mean(-1), (b + b_next).mean(-1)
        product = (a * b + a * b_next + b * a_next + ab_next).mean(-1)
    return a_ahead[..., 0], b_ahead[..., 0], product[..., 0]


def _positions(sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return the first node of each position, the last but one, and where the next position's begin; the last first."""
    found, end = [], sum(sizes)
    for size in reversed(sizes):
        found.append((end - size, end, end))
        end -= size
    return found


def _next(child: Tensor, begin: int, end: int, after: int) -> Tensor:
    """Return the place of each next node among those of the next position; 0 for the last."""
    return (child[begin:end] - after).clamp(min=0)
