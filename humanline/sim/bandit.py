"""Contextual bandits: one token a response, a softmax policy over features that all contexts share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from humanline import _checks
from humanline.sim.world import (
    MAX_ENTRIES,
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

    def __post_init__(self) -> None:
        settle(self, contexts=at_least(1), arms=at_least(2), features=at_least(1))
        settle(self, alignment=between(-1), sharpness=_checks.non_negative, misfit=between(0))
        if self.verifiable is not None:
            settle(self, verifiable=between(0, ends=False))

    def draw(self, seeds: Sequence[int]) -> World:
        """Return the bandits of these seeds (distinct integers >= 0)."""
        seeds = check_seeds(seeds)
        size = len(seeds) * self.contexts * self.arms * self.features
        check_size("features of all seeds", size, MAX_ENTRIES, "take fewer seeds, contexts, arms or features")
        count = self.contexts, self.arms
        features = torch.stack([normals(seed, "features", *count, self.features) for seed in seeds])
        target = torch.stack([normals(seed, "target", self.features) for seed in seeds])
        noise = torch.stack([normals(seed, "start", self.features) for seed in seeds])
        misfit = torch.stack([normals(seed, "misfit", *count) for seed in seeds])
        linear = (features @ target[:, None, :, None]).squeeze(-1)
        quality = math.sqrt(1 - self.misfit) * standardise(linear) + math.sqrt(self.misfit) * standardise(misfit)
        quality = standardise(quality)
        better = _sharpened(features, target)
        start = self.sharpness * _sharpened(features, start_towards(target, noise, self.alignment))
        world = World(
            child=torch.zeros((1, self.arms), dtype=torch.long),
            cells=torch.arange(self.arms)[:, None],
            scores=quality,
            quality=quality,
            start=start,
            features=features,
            better=better,
        )
        if self.verifiable is None:
            return world
        scores = verified(quality, world.law(world.table(start)), self.verifiable)
        return replace(world, scores=scores)


def _sharpened(features: Tensor, weights: Tensor) -> Tensor:
    """Return weights (S, F) scaled so that their logits have standard deviation 1 around each context's mean."""
    logits = (features @ weights[:, None, :, None]).squeeze(-1)
    centred = logits - logits.mean(-1, keepdim=True)
    return weights / centred.square().mean((1, 2)).sqrt()[:, None]
