"""Policies over features that all contexts share, linear or a small network, and a score made of the same features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from humanline.sim.world import MAX_ENTRIES, by_node, check_size, linear, network, normals, standardise, start_towards


class Shared(NamedTuple):
    """Hold the features of a problem and the parameters that read them, for S seeds.

    Parameters
    ----------
    features : (S, P, C, F) tensor
        Standard normal.
    gain : (S, P, C) tensor
        What a token adds to the score, up to scale and shift.
    start, better : (S, F) or (S, F * H + H) tensors
        Parameters of the start policy, and of the part of `gain` that a policy can express, of standard deviation 1.
    """

    features: Tensor
    gain: Tensor
    start: Tensor
    better: Tensor


class Sharing(Protocol):
    """What a problem says of its features; `Bandit` and `Sequences` do."""

    @property
    def features(self) -> int:
        """F, of a token."""

    @property
    def hidden(self) -> int:
        """H hidden units; 0 = the policy is linear."""

    @property
    def alignment(self) -> float:
        """Correlation of the start's parameters with those behind the gain, in [-1, 1]."""

    @property
    def sharpness(self) -> float:
        """Standard deviation of the start's logits around the mean of their node, >= 0."""

    @property
    def misfit(self) -> float:
        """Share of the gain that is drawn without regard to the features, in [0, 1]."""


def share_features(task: Sharing, seeds: Sequence[int], shape: tuple[int, int], vocab: int, score: str = "") -> Shared:
    """Draw the features of every token, and the policy that starts on them.

    The gain of a token is what a policy with parameters of its own would add to its logit, of which a share `misfit`
    is replaced by what is drawn without regard to the features.

    Parameters
    ----------
    task : Sharing
    seeds : sequence of int
    shape : (int, int)
        Contexts P and cells C = nodes * `vocab`.
    vocab : int
    score : str
        Ends the names of the streams of the gain; a second score on the same features has another.

    Raises
    ------
    ValueError
        If the features of all seeds are more than 2^28 numbers.
    """
    features, hidden = task.features, task.hidden
    size = len(seeds) * math.prod(shape) * features * (1 + hidden)
    check_size("features of all seeds", size, MAX_ENTRIES, "take fewer seeds, contexts, arms or features")
    count = (features + 1) * hidden or features
    inputs = torch.stack([normals(seed, "features", *shape, features) for seed in seeds])
    target = torch.stack([normals(seed, f"target{score}", count) for seed in seeds])
    noise = torch.stack([normals(seed, "start", count) for seed in seeds])
    unlike = torch.stack([normals(seed, f"misfit{score}", *shape) for seed in seeds])
    if hidden:  # so that a hidden unit is neither idle nor saturated
        target[:, :-hidden] /= math.sqrt(features)
        noise[:, :-hidden] /= math.sqrt(features)
    fitting, rest = standardise(_logits(inputs, target, hidden)), standardise(unlike)
    gain = math.sqrt(1 - task.misfit) * fitting + math.sqrt(task.misfit) * rest
    start = _sharpened(inputs, start_towards(target, noise, task.alignment), vocab, hidden, task.sharpness)
    return Shared(inputs, gain, start, _sharpened(inputs, target, vocab, hidden, 1.0))


def _logits(features: Tensor, params: Tensor, hidden: int) -> Tensor:
    if hidden:
        return network(features, params, hidden)
    return linear(features, params)


def _sharpened(features: Tensor, params: Tensor, vocab: int, hidden: int, sharpness: float) -> Tensor:
    """Return parameters scaled so that their logits have a standard deviation around the mean of each node."""
    logits = by_node(_logits(features, params, hidden), vocab)
    centred = (logits - logits.mean(-1, keepdim=True)).flatten(-2)
    spread = centred.square().mean((1, 2)).sqrt()[:, None]
    if not hidden:
        return sharpness * (params / spread)
    return torch.cat([params[:, :-hidden], sharpness * (params[:, -hidden:] / spread)], 1)
