"""Sequences: an autoregressive policy over a small vocabulary, every sequence enumerated unless they are too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from humanline import _checks
from humanline.sim.features import share_features
from humanline.sim.long import MAX_CODES, LongWorld, agreeing_gain, standard_gain
from humanline.sim.world import (
    MAX_ENTRIES,
    MAX_RESPONSES,
    World,
    agreeing,
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
    features : int >= 0
        With F > 0 each (x, t, last tokens, token) has F standard normal features, and the logits are linear in them
        with F weights that all of these share, so that a step in one context moves the others. What tokens add to the
        score is linear in the same features, but for `misfit`; `alignment` is the correlation of the weights.
    hidden : int >= 0
        With H > 0 logits and gains are those of a network with H hidden units on the features, which it needs.
    misfit : float in [0, 1]
        Share of the variance of what tokens add that is drawn without regard to the features; of no effect without.
    proxy : float in [0, 1]
        Training sees another graded score, which has this correlation with the true one over all contexts and
        sequences and is made as it is (or 1 and 0 made from that); 1: it sees the true one.
    enumerated : bool
        False: sequences are sampled and never listed, so that they may be longer. Expected scores stay exact, by
        recursion over positions; what needs the law over all sequences cannot be had (`LongWorld`).

    Raises
    ------
    ValueError
        If a parameter is out of its range, there are more than 2^20 sequences to enumerate (2^62 otherwise), `hidden`
        comes without `features`, or `verifiable` without enumeration.
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
    features: int = 0
    hidden: int = 0
    misfit: float = 0.2
    proxy: float = 1.0
    enumerated: bool = True

    def __post_init__(self) -> None:
        settle(self, vocab=at_least(2), length=at_least(1), contexts=at_least(1))
        if self.order is not None:
            settle(self, order=at_least(0))
        settle(self, alignment=between(-1), sharpness=_checks.non_negative, features=at_least(0), hidden=at_least(0))
        settle(self, misfit=between(0), proxy=between(0))
        _checks.instance("enumerated", self.enumerated, bool)
        if self.hidden and not self.features:
            raise ValueError("hidden: a network reads features; say how many with features=")
        if self.verifiable is not None:
            settle(self, verifiable=between(0, ends=False))
        self._check_size()

    def _check_size(self) -> None:
        # not by the power itself, which for a length of millions would be a number of millions of digits
        limit, reason = (MAX_RESPONSES, "to be enumerated") if self.enumerated else (MAX_CODES, "to be numbered")
        if self.length > limit.bit_length():
            raise _checks.fail("length", f"be <= {limit.bit_length() - 1}, {reason}", self.length)
        named = f"sequences of {self.length} of {self.vocab} tokens"
        if self.enumerated:
            check_size(named, self.vocab**self.length, MAX_RESPONSES, "take a smaller vocab or length")
            return
        if self.verifiable is not None:
            raise ValueError("verifiable: which sequences are right is found by enumeration; take enumerated=True")
        check_size(named, self.vocab**self.length, MAX_CODES, "take a smaller vocab or length")
        cells = sum(level_sizes(self.vocab, self.length, self.order)) * self.vocab
        check_size("cells of the policy's table", cells, MAX_RESPONSES, "take a smaller order or vocab")

    def draw(self, seeds: Sequence[int]) -> World:
        """Return the problems of these seeds (distinct integers >= 0)."""
        seeds = check_seeds(seeds)
        sizes = level_sizes(self.vocab, self.length, self.order)
        entries = len(seeds) * self.contexts * (self.vocab**self.length if self.enumerated else sum(sizes) * self.vocab)
        check_size("responses of all seeds and contexts", entries, MAX_ENTRIES, "take fewer seeds or contexts")
        if self.enumerated:
            child, cells = histories(self.vocab, self.length, self.order)
        else:
            child = successors(self.vocab, sizes)
            cells = torch.empty((0, self.length), dtype=torch.long)
        gain, policy = self._gain(seeds, child.numel())
        other = self._gain(seeds, child.numel(), " of the proxy")[0] if self.proxy < 1 else None
        if not self.enumerated:
            scores = standard_gain(child, sizes, gain)
            labels = None
            if other is not None:
                labels = agreeing_gain(child, sizes, scores, standard_gain(child, sizes, other), self.proxy)
            return LongWorld(child, cells, scores, scores, **policy, labels=labels, sizes=sizes)
        world = World(child, cells, scores=gain, quality=gain, **policy)
        quality = standardise(world.law(gain))  # a sum over tokens, as a law is
        scores, labels = quality, None
        if other is not None:
            labels = agreeing(quality, standardise(world.law(other)), self.proxy)
        if self.verifiable is not None:
            law = world.law(world.table(world.start))
            scores = verified(quality, law, self.verifiable)
            labels = None if labels is None else verified(labels, law, self.verifiable)
        return World(child, cells, scores, quality, **policy, labels=labels)

    def _gain(self, seeds: list[int], cells: int, score: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Return what each token adds to a score, (S, P, cells), and a world's fields that say what the policy is."""
        shape = self.contexts, cells
        if not self.features:
            gain = torch.stack([normals(seed, f"target{score}", *shape) for seed in seeds])
            noise = torch.stack([normals(seed, "start", *shape) for seed in seeds])
            return gain, {"start": self.sharpness * start_towards(gain, noise, self.alignment), "better": gain}
        shared = share_features(self, seeds, shape, self.vocab, score)
        better = None if self.hidden else shared.better
        policy = {"start": shared.start, "better": better, "features": shared.features, "hidden": self.hidden}
        return shared.gain, policy


def level_sizes(vocab: int, length: int, order: int | None) -> tuple[int, ...]:
    """Return the number of nodes at each position: of histories that can be told apart."""
    seen = length if order is None else order
    return tuple(vocab ** min(seen, t) for t in range(length))


def successors(vocab: int, sizes: Sequence[int]) -> Tensor:
    """Return the node after each token of each node, (nodes, vocab); 0 after the last."""
    first = [sum(sizes[:t]) for t in range(len(sizes))]
    child = torch.zeros((sum(sizes), vocab), dtype=torch.long)
    for t in range(len(sizes) - 1):
        history = torch.arange(sizes[t])[:, None] * vocab + torch.arange(vocab)
        child[first[t] : first[t] + sizes[t]] = first[t + 1] + history % sizes[t + 1]
    return child


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
    child = successors(vocab, level_sizes(vocab, length, order))
    digits = torch.arange(vocab**length)[:, None] // vocab ** torch.arange(length - 1, -1, -1) % vocab
    node = torch.zeros(vocab**length, dtype=torch.long)
    cells = torch.empty_like(digits)
    for t in range(length):
        cells[:, t] = node * vocab + digits[:, t]
        node = child[node, digits[:, t]]
    return child, cells
