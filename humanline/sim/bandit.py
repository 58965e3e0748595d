"""Contextual bandits: one token a response, a softmax policy over features that all contexts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from humanline import _checks
from humanline.sim.features import Shared, share_features
from humanline.sim.world import (
    World,
    agreeing,
    at_least,
    between,
    check_seeds,
    settle,
    standardise,
    verified,
)


@dataclass(frozen=True)
class Bandit:
    """Describe contextual bandits, one for each seed.

    ``policy(a | x) = softmax_a(f(x, a) . w)`` with standard normal features; the true score is linear in the features
    up to a part that is drawn without regard to them, of mean 0 and variance 1 over contexts and arms.

    Parameters
    ----------
    contexts : int >= 1
    arms : int >= 2
    features : int >= 1
        The fewer, compared with contexts times arms, the more of what is learnt in one context carries over to others.
    alignment : float in [-1, 1]
        Correlation of the start policy's weights with the true ones.
    sharpness : float >= 0
        Standard deviation of the start policy's logits; 0 starts at the uniform policy.
    misfit : float in [0, 1]
        Share of the score's variance that is drawn without regard to the features.
    verifiable : float in (0, 1), optional
        Score 1 for the best arms of a context, as few as have this probability at the start, and 0 for the others.
    hidden : int >= 0
        Hidden units of the policy and of what the score is made of, a network ``f(x, a) -> tanh -> logit``; 0: linear.
    proxy : float in [0, 1]
        Training sees another graded score, which has this correlation with the true one over all contexts and arms and
        is made as it is (or 1 and 0 made from that); 1: it sees the true one.

    Raises
    ------
    ValueError
        If a parameter is out of its range.
    TypeError
        If a parameter is not a number.

    Notes
    -----
    Source: not from arXiv 2509.24207; the smallest problem with a policy, a reference and a reward.
    """

    contexts: int = 16
    arms: int = 10
    features: int = 12
    alignment: float = 0.5
    sharpness: float = 1.0
    misfit: float = 0.2
    verifiable: float | None = None
    hidden: int = 0
    proxy: float = 1.0

    def __post_init__(self) -> None:
        settle(self, contexts=at_least(1), arms=at_least(2), features=at_least(1), hidden=at_least(0))
        settle(self, alignment=between(-1), sharpness=_checks.non_negative, misfit=between(0), proxy=between(0))
        if self.verifiable is not None:
            settle(self, verifiable=between(0, ends=False))

    def draw(self, seeds: Sequence[int]) -> World:
        """Return the bandits of these seeds (distinct integers >= 0)."""
        seeds = check_seeds(seeds)
        shared, quality = self._scored(seeds)
        world = World(
            child=torch.zeros((1, self.arms), dtype=torch.long),
            cells=torch.arange(self.arms)[:, None],
            scores=quality,
            quality=quality,
            start=shared.start,
            features=shared.features,
            better=None if self.hidden else shared.better,
            hidden=self.hidden,
        )
        judged = None
        if self.proxy < 1:
            judged = agreeing(quality, self._scored(seeds, " of the proxy")[1], self.proxy)
        if self.verifiable is None:
            return replace(world, labels=judged)
        law = world.law(world.table(world.start))
        labels = None if judged is None else verified(judged, law, self.verifiable)
        return replace(world, scores=verified(quality, law, self.verifiable), labels=labels)

    def _scored(self, seeds: list[int], score: str = "") -> tuple[Shared, Tensor]:
        """Return the shared features, and a graded score of mean 0 and variance 1."""
        shared = share_features(self, seeds, (self.contexts, self.arms), self.arms, score)
        return shared, standardise(shared.gain)
