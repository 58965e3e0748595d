"""From token log-probabilities to the loss of a micro-batch: the one place where transform and loss meet.

log-probs -> log_ratio -> transform -> loss -> (value, metrics)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from humanline._shapes import Float, Integer
from humanline.objectives import (
    clip_metrics,
    detach_rejected,
    dpo_loss,
    grpo_loss,
    kto_loss,
    kto_reference_point,
    nll_loss,
    rejection_metrics,
    token_log_ratio,
)
from humanline.theory import BetaRejection, ClipRange
from humanline.train.config.objective import BetaTransform, ClipTransform, Objective, Transform
from humanline.train.data.batch import Block, MicroBatch
from humanline.train.data.stream import StepBatch
from humanline.train.run.processes import Reduce
from humanline.train.step.reference import Score, Scored


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What has to be known of a whole step, over all ranks, before its first loss."""

    step: int
    units: int
    tokens: int
    micro_batches: int
    reference_point: Float[Tensor, ""] | None = None
    rejection: BetaRejection | None = None


class ObjectiveStep:
    """Compute the losses of a step's micro-batches so that they add up to the loss of the step.

    Parameters
    ----------
    objective : Objective
    transform : Transform
    seed : int
        Key of the Beta draws, with (step, row, token).
    device : torch.device
    """

    def __init__(self, objective: Objective, transform: Transform, seed: int, device: torch.device) -> None:
        self.objective, self.transform, self.seed, self.device = objective, transform, seed, device
        self.clip: ClipRange | None = transform.build() if isinstance(transform, ClipTransform) else None

    def look(self, step: int, batch: StepBatch, ref: list[Scored], score: Score, reduce: Reduce) -> StepFacts:
        """Gather what the losses of the step need to know of all its micro-batches.

        KTO's z_0 comes from the mismatched pairs of the whole step, and bounds set to `batch_max` from its largest
        ratios; both run the policy once more without gradient. Everything else needs counts only.

        Parameters
        ----------
        step : int
        batch : StepBatch
            On the training device.
        ref : list
            The reference's log-probabilities, one entry a micro-batch; empty for nll.
        score : callable
            The policy's scoring pass.
        reduce : callable
            Reduction over ranks.
        """
        z_0, rejection = None, None
        if self.objective.kind == "kto":
            z_0 = self._reference_point(batch, ref, score, reduce)
        if isinstance(self.transform, BetaTransform):
            bounds = self._largest_ratios(batch, ref, score, reduce) if self.transform.needs_batch_max() else ()
            rejection = self.transform.build(*bounds)
        return StepFacts(step, batch.total_units, batch.total_tokens, batch.total_micro_batches, z_0, rejection)

    def loss(
        self,
        facts: StepFacts,
        batch: MicroBatch,
        logprobs: Float[Tensor, "R T"],
        ref: Float[Tensor, "R T"] | None,
        baseline: Float[Tensor, "R T"] | None,
    ) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        """Compute one micro-batch's share of the loss and of the metrics of its step.

        Parameters
        ----------
        facts : StepFacts
        batch : MicroBatch
        logprobs : (R, T - 1) tensor
            The policy's, with gradient, nats.
        ref, baseline : (R, T - 1) tensors or None
            The reference's (None for nll) and the KL anchor's (None: the reference again).

        Returns
        -------
        loss : 0-d tensor
        metrics : dict of 0-d tensors
            Shares: their sum over micro-batches and ranks is the value of the step.
        """
        objective, mask = self.objective, batch.block.mask
        if objective.kind == "nll":
            return nll_loss(logprobs, mask=mask, denominator=facts.tokens)
        assert ref is not None
        raw = token_log_ratio(logprobs, ref, mask)
        log_ratio, counts = self._transform(raw, batch.block, facts)
        if objective.kind == "dpo":
            half = len(batch.units)
            loss, metrics = dpo_loss(
                log_ratio[:half],
                log_ratio[half:],
                chosen_mask=mask[:half],
                rejected_mask=mask[half:],
                beta=objective.beta,
                denominator=facts.units,
            )
        elif objective.kind == "kto":
            loss, metrics = kto_loss(
                log_ratio,
                mask=mask,
                desirable=batch.desirable,
                reference_point=facts.reference_point,
                beta=objective.beta,
                desirable_weight=objective.desirable_weight,
                undesirable_weight=objective.undesirable_weight,
                denominator=facts.units,
            )
        else:
            assert batch.advantages is not None
            local = mask.sum() * facts.micro_batches  # the mean over micro-batches of each one's own token mean
            loss, metrics = grpo_loss(
                log_ratio,
                mask=mask,
                advantages=batch.advantages,
                kl_log_ratio=raw if baseline is None else token_log_ratio(logprobs, baseline, mask),
                clip_eps=objective.clip_eps,
                kl_coef=objective.kl_coef,
                denominator=facts.tokens if objective.normalise == "global" else local,
            )
        counts["log_ratio_rms"] = raw.detach().square().sum()
        return loss, metrics | {name: count / facts.tokens for name, count in counts.items()}

    def _transform(
        self, log_ratio: Float[Tensor, "R T"], block: Block, facts: StepFacts
    ) -> tuple[Float[Tensor, "R T"], dict[str, Integer[Tensor, ""]]]:
        if self.clip is not None:
            return self.clip.clip(log_ratio), clip_metrics(log_ratio, block.mask, self.clip)
        if facts.rejection is not None:
            draws = beta_draws(facts.rejection, self.seed, facts.step, block)
            counts = rejection_metrics(log_ratio, block.mask, facts.rejection, *draws)
            return detach_rejected(log_ratio, facts.rejection, *draws), counts
        return log_ratio, {}

    def _reference_point(self, batch: StepBatch, ref: list[Scored], score: Score, reduce: Reduce) -> Float[Tensor, ""]:
        total = torch.zeros((), device=self.device)
        for micro, (_, scored) in zip(batch.micro_batches, ref, strict=True):
            assert micro.mismatched is not None and scored is not None
            log_ratio = token_log_ratio(score(micro.mismatched), scored, micro.mismatched.mask)
            total += (log_ratio if self.clip is None else self.clip.clip(log_ratio)).sum()
        return kto_reference_point(reduce(total, "sum"), batch.total_units)

    def _largest_ratios(self, batch: StepBatch, ref: list[Scored], score: Score, reduce: Reduce) -> tuple[float, float]:
        largest = torch.stack(
            [
                torch.stack([log_ratio.max(), (-log_ratio).max()])
                for micro, (scored, _) in zip(batch.micro_batches, ref, strict=True)
                for log_ratio in [token_log_ratio(score(micro.block), scored, micro.block.mask)]
            ]
        ).amax(0)
        policy_max, ref_max = reduce(largest, "max").exp().tolist()
        return policy_max, ref_max


def beta_draws(
    rejection: BetaRejection, seed: int, step: int, block: Block
) -> tuple[Float[Tensor, "R T"], Float[Tensor, "R T"]]:
    """Draw both Beta variables of every token that counts, keyed by (seed, step, row name, place in the answer).

    The key makes draws independent of padding, of the order of rows and of how a step is cut into micro-batches.

    Parameters
    ----------
    rejection : BetaRejection
    seed, step : int
    block : Block

    Returns
    -------
    policy_draws, ref_draws : (R, T - 1) tensors
        On the block's device; 0 (which keeps) where the mask is False.
    """
    draws = torch.zeros((2, *block.mask.shape), dtype=torch.float64)
    mask = block.mask.cpu()
    for row, name in enumerate(block.names):
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        count = int(mask[row].sum())
        for side, shape in enumerate((rejection.policy, rejection.ref)):
            values = np.random.default_rng([seed, step, key, side]).beta(shape.a, shape.b, size=count)
            draws[side, row, mask[row]] = torch.from_numpy(values)
    policy_draws, ref_draws = draws.to(torch.float32).to(block.mask.device)
    return policy_draws, ref_draws
