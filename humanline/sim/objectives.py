"""What an objective needs of scored groups of responses, and the imported loss under vmap, one seed at a time.

A group is G responses to one context. DPO takes its best and its worst response as a pair, KTO the same two as a
desirable and an undesirable example, GRPO all of them. A group whose best and worst score tie teaches DPO and KTO
nothing and is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.func import vmap

from humanline import _checks
from humanline.objectives import dpo_loss, group_advantages, grpo_loss, kto_loss
from humanline.sim.world import between, settle

Losses = tuple[Tensor, dict[str, Tensor]]  # (S,) losses and metrics
#: From responses (S, B, K) to their transformed log-ratios (S, B, K, T).
LogRatio = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """Hold the scored groups of one step.

    Parameters
    ----------
    contexts : (B,) integer tensor
    responses : (S, B, G) integer tensor
    scores : (S, B, G) tensor
    """

    contexts: Tensor
    responses: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Dpo:
    """Take DPO's loss (`humanline.objectives.dpo_loss`) of each group's best and worst response."""

    beta: float = 0.1

    def __post_init__(self) -> None:
        settle(self, beta=_checks.positive)

    def rows(self, batch: Batch) -> Tensor:
        """Return the responses that the loss sees, (S, B, 2)."""
        return best_and_worst(batch)

    def losses(self, batch: Batch, log_ratio: Tensor, raw: Tensor, mismatched: LogRatio) -> Losses:
        """Return each seed's loss from the log-ratios (S, B, 2, T) of `rows`, transformed and raw."""
        del raw, mismatched
        mask = unequal(batch)[..., None].expand(log_ratio.shape[:2] + log_ratio.shape[3:])

        def loss(chosen: Tensor, rejected: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return dpo_loss(chosen, rejected, chosen_mask=mask, rejected_mask=mask, beta=self.beta)

        return vmap(loss)(log_ratio[:, :, 0], log_ratio[:, :, 1], mask)


@dataclass(frozen=True)
class Kto:
    """Take KTO's loss (`humanline.objectives.kto_loss`) of each group's best (desirable) and worst response.

    z_0 comes from each context with the two responses of the next group of the batch.
    """

    beta: float = 0.25
    desirable_weight: float = 1.1
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        settle(self, beta=_checks.positive, desirable_weight=_checks.non_negative)
        settle(self, undesirable_weight=_checks.non_negative)

    def rows(self, batch: Batch) -> Tensor:
        """Return the responses that the loss sees, (S, B, 2)."""
        return best_and_worst(batch)

    def losses(self, batch: Batch, log_ratio: Tensor, raw: Tensor, mismatched: LogRatio) -> Losses:
        """Return each seed's loss from the log-ratios (S, B, 2, T) of `rows`, transformed and raw."""
        del raw
        with torch.no_grad():
            other = mismatched(best_and_worst(batch).roll(-1, 1)).flatten(1, 2)
        flat = log_ratio.flatten(1, 2)
        mask = unequal(batch)[..., None, None].expand(log_ratio.shape).flatten(1, 2)
        desirable = torch.tensor([True, False]).repeat(log_ratio.shape[1])

        def loss(log_ratio: Tensor, mask: Tensor, other: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return kto_loss(
                log_ratio,
                mask=mask,
                desirable=desirable,
                kl_log_ratio=other,
                kl_mask=torch.ones_like(mask),
                beta=self.beta,
                desirable_weight=self.desirable_weight,
                undesirable_weight=self.undesirable_weight,
            )

        return vmap(loss)(flat, mask, other)


@dataclass(frozen=True)
class Grpo:
    """Take GRPO's loss (`humanline.objectives.grpo_loss`) of whole groups; the KL anchor is the start policy."""

    clip_eps: float = 0.15
    kl_coef: float = 0.01

    def __post_init__(self) -> None:
        settle(self, clip_eps=between(0, ends=False), kl_coef=_checks.non_negative)

    def rows(self, batch: Batch) -> Tensor:
        """Return the responses that the loss sees, (S, B, G)."""
        return batch.responses

    def losses(self, batch: Batch, log_ratio: Tensor, raw: Tensor, mismatched: LogRatio) -> Losses:
        """Return each seed's loss from the log-ratios (S, B, G, T) of `rows`, transformed, and raw to the start."""
        del mismatched
        advantages = advantages_of(batch).flatten(1)
        flat = log_ratio.flatten(1, 2)

        def loss(log_ratio: Tensor, advantages: Tensor, to_start: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return grpo_loss(
                log_ratio,
                mask=torch.ones_like(log_ratio, dtype=torch.bool),
                advantages=advantages,
                kl_log_ratio=to_start,
                clip_eps=self.clip_eps,
                kl_coef=self.kl_coef,
            )

        return vmap(loss)(flat, advantages, raw.flatten(1, 2))


class Objective(Protocol):
    """What a run asks of its objective; `Dpo`, `Kto` and `Grpo` are three."""

    def rows(self, batch: Batch) -> Tensor:
        """Return the responses that the loss sees, (S, B, K)."""

    def losses(self, batch: Batch, log_ratio: Tensor, raw: Tensor, mismatched: LogRatio) -> Losses:
        """Return each seed's loss and metrics.

        Parameters
        ----------
        batch : Batch
        log_ratio : (S, B, K, T) tensor
            Transformed log-ratios of `rows` against the reference, with gradient.
        raw : (S, B, K, T) tensor
            Untransformed, against the start policy.
        mismatched : callable
            From responses (S, B, K) to their log-ratios in the batch's contexts, clipped if the run clips.
        """


def best_and_worst(batch: Batch) -> Tensor:
    """Return the best and the worst response of each group, (S, B, 2); the first of equals."""
    which = torch.stack([batch.scores.argmax(-1), batch.scores.argmin(-1)], -1)
    return batch.responses.gather(-1, which)


def advantages_of(batch: Batch) -> Tensor:
    """Return the advantage of every response within its group, (S, B, G)."""
    same = torch.zeros(batch.scores.shape[-1], dtype=torch.long)
    # side by side lie the first members of all groups, then the second: what sums few numbers many times is quick so
    apart = batch.scores.flatten(0, 1).t().contiguous()
    return vmap(lambda scores: group_advantages(scores, same), in_dims=1)(apart).reshape(batch.scores.shape)


def unequal(batch: Batch) -> Tensor:
    """Return whether the scores of a group differ, (S, B)."""
    return batch.scores.amax(-1) > batch.scores.amin(-1)
