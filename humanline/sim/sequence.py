"""Sequences: a tabular autoregressive policy over a small vocabulary, every sequence enumerated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from humanline import _checks
from humanline.sim.world import (
    MAX_ENTRIES,
    MAX_RESPONSES,
    World,
    at_least,
    between,
    check_seeds,
    check_size,
    normals,
    settle,
    standardise,
    start_towards,
    verified,
)


@dataclass(frozen=True)
class Sequences:
    """Describe problems of writing a sequence of tokens, one for each seed.

    ``policy(y | x) = prod_t softmax(logits of (x, t, last tokens))[y_t]``; the true score of a sequence is the sum of
    standard normal numbers, one for each (x, t, last tokens, token), of mean 0 and variance 1 over all sequences.

    Parameters
    ----------
    vocab : int >= 2
    length : int >= 1
    contexts : int >= 1
    order : int >= 0, optional
        Number of last tokens that the policy and the score see; None = the whole history.
    alignment : float in [-1, 1]
        Correlation of the start policy's logits with what the tokens add to the score.
    sharpness : float >= 0
        Standard deviation of the start policy's logits.
    verifiable : float in (0, 1), optional
        Score 1 for the best sequences of a context, as few as have this probability at the start, and 0 for the others.

    Raises
    ------
    ValueError
        If a parameter is out of its range, or there are more than 2^20 sequences.
    TypeError
        If a parameter is not a number.

    Notes
    -----
    Source: arXiv 2509.24207, section 3 (policies over sequences of tokens); the problem is ours.
    """

    vocab: int = 4
    length: int = 5
    contexts: int = 4
    order: int | None = 1
    alignment: float = 0.5
    sharpness: float = 1.0
    verifiable: float | None = None

    def __post_init__(self) -> None:
        settle(self, vocab=at_least(2), length=at_least(1), contexts=at_least(1))
        if self.order is not None:
            settle(self, order=at_least(0))
        settle(self, alignment=between(-1), sharpness=_checks.non_negative)
        if self.verifiable is not None:
            settle(self, verifiable=between(0, ends=False))
        # not by the power itself, which for a length of millions would be a number of millions of digits
        if self.length > MAX_RESPONSES.bit_length():
            raise _checks.fail("length", f"be <= {MAX_RESPONSES.bit_length() - 1}, to be enumerated", self.length)
        hint = "take a smaller vocab or length"
        check_size(f"sequences of {self.length} of {self.vocab} tokens", self.vocab**self.length, MAX_RESPONSES, hint)

    def draw(self, seeds: Sequence[int]) -> World:
        """Return the problems of these seeds (distinct integers >= 0)."""
        seeds = check_seeds(seeds)
        entries = len(seeds) * self.contexts * self.vocab**self.length
        check_size("responses of all seeds and contexts", entries, MAX_ENTRIES, "take fewer seeds or contexts")
        child, cells = histories(self.vocab, self.length, self.order)
        shape = self.contexts, child.numel()
        gain = torch.stack([normals(seed, "target", *shape) for seed in seeds])
        noise = torch.stack([normals(seed, "start", *shape) for seed in seeds])
        start = self.sharpness * start_towards(gain, noise, self.alignment)
        world = World(child, cells, scores=gain, quality=gain, start=start)
        quality = standardise(world.law(gain))  # a sum over tokens, as a law is
        scores = quality
        if self.verifiable is not None:
            scores = verified(quality, world.law(world.table(start)), self.verifiable)
        return World(child, cells, scores, quality, start, better=gain)


def histories(vocab: int, length: int, order: int | None) -> tuple[Tensor, Tensor]:
    """Return the nodes of sequences of which only the last `order` tokens and the position are told apart.

    Parameters
    ----------
    vocab, length : int
    order : int, optional
        None = the whole history.

    Returns
    -------
    child : (nodes, vocab) integer tensor
        The node after each token; 0 after the last.
    cells : (vocab**length, length) integer tensor
        ``node * vocab + token`` of every token of every sequence.
    """
    seen = length if order is None else order
    sizes = [vocab ** min(seen, t) for t in range(length)]
    first = [sum(sizes[:t]) for t in range(length)]
    child = torch.zeros((sum(sizes), vocab), dtype=torch.long)
    for t in range(length - 1):
        history = torch.arange(sizes[t])[:, None] * vocab + torch.arange(vocab)
        child[first[t] : first[t] + sizes[t]] = first[t + 1] + history % sizes[t + 1]
    digits = torch.arange(vocab**length)[:, None] // vocab ** torch.arange(length - 1, -1, -1) % vocab
    node = torch.zeros(vocab**length, dtype=torch.long)
    cells = torch.empty_like(digits)
    for t in range(length):
        cells[:, t] = node * vocab + digits[:, t]
        node = child[node, digits[:, t]]
    return child, cells
