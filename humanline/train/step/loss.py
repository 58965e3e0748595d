"""From token log-probabilities to the loss of a micro-batch: the one place where transform and loss meet.

log-probs -> log_ratio -> transform -> loss -> (value, metrics)

There is one class for each kind of unit, which feeds a loss its arguments. Which loss that is, and with what settings,
the objective's section says (`config/objective.py`).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from humanline import objectives
from humanline._shapes import Bool, Float
from humanline.objectives import clip_marks, detach_rejected, rejection_marks, token_log_ratio
from humanline.theory import BetaRejection, ClipRange
from humanline.train.config.objective import (
    BetaTransform,
    ClipTransform,
    FunctionTransform,
    ObjectiveSection,
    Transform,
)
from humanline.train.data.batch import Block, MicroBatch
from humanline.train.data.stream import StepBatch
from humanline.train.data.transfer import to_device
from humanline.train.run.processes import Reduce
from humanline.train.step.own import OwnLoss, OwnTransform
from humanline.train.step.reference import BatchLogprobs, LogprobsOf


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What has to be known of a whole step, over all ranks, before its first loss."""

    step: int
    units: int
    tokens: int
    micro_batches: int
    reference_point: Float[Tensor, ""] | None = None
    rejection: BetaRejection | None = None


# Told of each micro-batch: its step, itself, its untransformed log-ratios (R, T - 1), nats and without gradient, and by
# name which of its tokens the transform has acted on, (R, T - 1) bool.
Observe = Callable[[int, MicroBatch, Tensor, Mapping[str, Tensor]], None]
Losses = tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]
_LARGEST = 709.0  # nats; a ratio beyond e to it is above any bound that a float holds


class UnitLoss(ABC):
    """Call an objective's loss with what units of one kind are made of.

    Parameters
    ----------
    objective : ObjectiveSection
    """

    def __init__(self, objective: ObjectiveSection) -> None:
        self.loss: Callable[..., Losses]
        if objective.own is not None:
            self.loss = OwnLoss(objective.own)
        else:
            self.loss = partial(getattr(objectives, objective.loss), **objective.loss_settings)

    @abstractmethod
    def __call__(
        self, facts: StepFacts, batch: MicroBatch, values: Float[Tensor, "R T"], to_anchor: Float[Tensor, "R T"]
    ) -> Losses:
        """Return one micro-batch's share of the loss and of the metrics of its step.

        Parameters
        ----------
        facts : StepFacts
        batch : MicroBatch
        values : (R, T - 1) tensor
            Transformed token log-ratios, or log-probabilities where there is no reference, nats.
        to_anchor : (R, T - 1) tensor
            Untransformed log-ratios against the anchor of a KL penalty, nats.
        """


class SequenceLoss(UnitLoss):
    """Call a loss that is a mean over tokens."""

    def __call__(
        self, facts: StepFacts, batch: MicroBatch, values: Float[Tensor, "R T"], to_anchor: Float[Tensor, "R T"]
    ) -> Losses:
        """Return loss and metrics, as `UnitLoss` says."""
        return self.loss(values, mask=batch.block.mask, denominator=facts.tokens)


class PairLoss(UnitLoss):
    """Call a loss of (chosen, rejected) pairs, which is a mean over them."""

    def __call__(
        self, facts: StepFacts, batch: MicroBatch, values: Float[Tensor, "R T"], to_anchor: Float[Tensor, "R T"]
    ) -> Losses:
        """Return loss and metrics, as `UnitLoss` says."""
        half, mask = len(batch.units), batch.block.mask
        return self.loss(
            values[:half],
            values[half:],
            chosen_mask=mask[:half],
            rejected_mask=mask[half:],
            denominator=facts.units,
        )


class LabelledLoss(UnitLoss):
    """Call a loss of desirable and undesirable answers, which is a mean over them."""

    def __call__(
        self, facts: StepFacts, batch: MicroBatch, values: Float[Tensor, "R T"], to_anchor: Float[Tensor, "R T"]
    ) -> Losses:
        """Return loss and metrics, as `UnitLoss` says."""
        return self.loss(
            values,
            mask=batch.block.mask,
            desirable=batch.desirable,
            reference_point=facts.reference_point,
            denominator=facts.units,
        )


class GroupLoss(UnitLoss):
    """Call a loss of groups of answers, which is a mean over tokens: the step's, or each micro-batch's own."""

    def __init__(self, objective: ObjectiveSection) -> None:
        super().__init__(objective)
        self.local = objective.grouping is not None and objective.grouping.whole

    def __call__(
        self, facts: StepFacts, batch: MicroBatch, values: Float[Tensor, "R T"], to_anchor: Float[Tensor, "R T"]
    ) -> Losses:
        """Return loss and metrics, as `UnitLoss` says."""
        assert batch.advantages is not None
        local = batch.block.mask.sum() * facts.micro_batches  # the mean over micro-batches of each one's own token mean
        return self.loss(
            values,
            mask=batch.block.mask,
            advantages=batch.advantages,
            kl_log_ratio=to_anchor,
            denominator=local if self.local else facts.tokens,
        )


_OF_UNIT: dict[str, type[UnitLoss]] = {
    "sequence": SequenceLoss,
    "pair": PairLoss,
    "example": LabelledLoss,
    "group": GroupLoss,
}


class ObjectiveStep:
    """Compute the losses of a step's micro-batches so that they add up to the loss of the step.

    Parameters
    ----------
    objective : ObjectiveSection
    transform : Transform
    seed : int
        Key of the Beta draws, with (step, row, token).
    device : torch.device
    observe : Observe, optional
        Told of every micro-batch whose log-ratios a loss was computed from.
    """

    def __init__(
        self,
        objective: ObjectiveSection,
        transform: Transform,
        seed: int,
        device: torch.device,
        observe: Observe | None = None,
    ) -> None:
        self.objective, self.transform, self.seed, self.device = objective, transform, seed, device
        self.observe = observe
        self.unit_loss = _OF_UNIT[objective.unit](objective)
        self.clip: ClipRange | None = transform.build() if isinstance(transform, ClipTransform) else None
        self.own = OwnTransform(transform) if isinstance(transform, FunctionTransform) else None

    def look(
        self, step: int, batch: StepBatch, ref: list[BatchLogprobs], logprobs_of: LogprobsOf, reduce: Reduce
    ) -> StepFacts:
        """Gather what the losses of the step need to know of all its micro-batches.

        KTO's z_0 comes from the mismatched pairs of the whole step, other reference points from its answers, and
        bounds set to `batch_max` from its largest ratios; each of these runs the policy once more without gradient.
        Everything else needs counts only.

        Parameters
        ----------
        step : int
        batch : StepBatch
            On the training device.
        ref : list
            The reference's log-probabilities, one entry a micro-batch; empty where there is no reference.
        logprobs_of : callable
            Gives the policy's token log-probabilities of a block, without gradient.
        reduce : callable
            Reduction over ranks.
        """
        objective, rejection, point = self.objective, None, None
        bounded = isinstance(self.transform, BetaTransform) and self.transform.needs_batch_max()
        answers: list[Tensor] = []
        if bounded or objective.looks_at_answers:
            answers = [
                token_log_ratio(logprobs_of(micro.block), rows, micro.block.mask)
                for micro, (rows, _) in zip(batch.micro_batches, ref, strict=True)
            ]
        if objective.reference_point is not None:
            of = self._mismatched(batch, ref, logprobs_of) if objective.mismatched else answers
            point = self._reference_point(objective.reference_point, of, batch.total_units, reduce)
        if isinstance(self.transform, BetaTransform):
            rejection = self.transform.build(*(self._largest_ratios(answers, reduce) if bounded else ()))
        return StepFacts(step, batch.total_units, batch.total_tokens, batch.total_micro_batches, point, rejection)

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
            The reference's, read where the objective has one, and the KL anchor's (None: the reference again).

        Returns
        -------
        loss : 0-d tensor
        metrics : dict of 0-d tensors
            Shares: their sum over micro-batches and ranks is the value of the step.
        """
        if not self.objective.needs_reference:
            return self.unit_loss(facts, batch, logprobs, logprobs)
        assert ref is not None
        mask = batch.block.mask
        raw = token_log_ratio(logprobs, ref, mask)
        log_ratio, marks = self._transform(raw, batch.block, facts)
        if self.observe is not None:
            self.observe(facts.step, batch, raw.detach(), marks)
        to_anchor = raw if baseline is None else token_log_ratio(logprobs, baseline, mask)
        loss, metrics = self.unit_loss(facts, batch, log_ratio, to_anchor)
        sums = {name: marked.sum() for name, marked in marks.items()}
        sums["log_ratio_rms"] = raw.detach().square().sum()
        return loss, metrics | {name: one / facts.tokens for name, one in sums.items()}

    def _transform(
        self, log_ratio: Float[Tensor, "R T"], block: Block, facts: StepFacts
    ) -> tuple[Float[Tensor, "R T"], dict[str, Bool[Tensor, "R T"]]]:
        if self.clip is not None:
            return self.clip.clip(log_ratio), clip_marks(log_ratio, block.mask, self.clip)
        if self.own is not None:
            return self.own(log_ratio, block.mask)
        if facts.rejection is not None:
            draws = beta_draws(facts.rejection, self.seed, facts.step, block)
            marks = rejection_marks(log_ratio, block.mask, facts.rejection, *draws)
            return detach_rejected(log_ratio, facts.rejection, *draws), marks
        return log_ratio, {}

    def _mismatched(
        self, batch: StepBatch, ref: list[BatchLogprobs], logprobs_of: LogprobsOf
    ) -> Iterator[Float[Tensor, "K T"]]:
        """Yield the log-ratios of each micro-batch's mismatched pairs."""
        for micro, (_, pairs) in zip(batch.micro_batches, ref, strict=True):
            assert micro.mismatched is not None and pairs is not None
            yield token_log_ratio(logprobs_of(micro.mismatched), pairs, micro.mismatched.mask)

    def _reference_point(
        self, name: str, log_ratios: Iterable[Float[Tensor, "_ _"]], count: int, reduce: Reduce
    ) -> Float[Tensor, ""]:
        total = torch.zeros((), device=self.device)
        for log_ratio in log_ratios:
            total += (log_ratio if self.clip is None else self.clip.clip(log_ratio)).sum()
        point: Float[Tensor, ""] = getattr(objectives, name)(reduce(total, "sum"), count)
        return point

    def _largest_ratios(self, answers: list[Float[Tensor, "_ _"]], reduce: Reduce) -> tuple[float, float]:
        """Return the largest ratios of a step both ways, as doubles: rounded, one would lie beside its own bound.

        A log-ratio that is not finite gives no bound: before the step is over its loss is refused, with its example.
        """
        found = [one.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for one in answers]
        largest = torch.stack([torch.stack([one.max(), (-one).max()]) for one in found]).amax(0)
        policy_max, ref_max = (math.exp(min(log, _LARGEST)) for log in reduce(largest, "max").tolist())
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
    mask = block.on_host.mask
    draws = torch.zeros((2, *mask.shape), dtype=torch.float64)
    for row, name in enumerate(block.names):
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        count = int(mask[row].sum())
        for side, shape in enumerate((rejection.policy, rejection.ref)):
            values = np.random.default_rng([seed, step, key, side]).beta(shape.a, shape.b, size=count)
            draws[side, row, mask[row]] = torch.from_numpy(values)
    policy_draws, ref_draws = to_device(draws.to(torch.float32), block.mask.device)
    return policy_draws, ref_draws
