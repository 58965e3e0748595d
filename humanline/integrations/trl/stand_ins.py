"""Stand-ins for the models that a loss of TRL calls.

The losses call `model(..., labels=labels, fused_lm_head=True).log_probs`, (B, T - 1) in nats, 0 where the label is
-100. One stand-in takes the policy's place and gives clipped log-probabilities, the other the reference's.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from humanline.integrations.trl.counts import Counts
from humanline.integrations.trl.head import log_probs_alone
from humanline.integrations.trl.noise import without_noise
from humanline.objectives import token_log_ratio
from humanline.theory import ClipRange

IGNORED = -100  # the label of a token that does not count


@dataclass(frozen=True, slots=True)
class Scored:
    """One call of the policy: its ids, and (B, T - 1) log-probabilities, 0 where the mask is False, nats."""

    input_ids: Tensor
    mask: Tensor
    policy: Tensor
    reference: Tensor
    clipped: Tensor


@dataclass(slots=True)
class ClippedPolicy:
    """Stand in for the policy: log-probabilities whose log-ratio to the reference is clipped.

    Parameters
    ----------
    model : callable
        The policy, wrapped as the trainer has it.
    reference : callable
        The same with the reference's weights.
    clip : ClipRange
    scoring : callable
        Makes the context of the reference's pass.
    tell : callable
        Told of each call of the loss: all of them up to then.
    bare : tensor or None
        Rows (`input_ids`) of which the loss reads log-probabilities alone: KTO's mismatched pairs.
    watched : bool
        Whether to raise RuntimeError if the reference's passes differ by chance.
    scored : list of Scored
        One for each call, in order.
    """

    model: Any
    reference: Callable[..., Any]
    clip: ClipRange
    scoring: Callable[[], AbstractContextManager[Any]]
    tell: Callable[[list[Scored]], None]
    bare: Tensor | None = None
    watched: bool = False
    scored: list[Scored] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the policy's output, its log-probabilities clipped; whatever is no call of a loss passes unchanged."""
        if not kwargs.get("fused_lm_head"):
            return self.model(*args, **kwargs)
        with torch.no_grad(), self.scoring():  # first, while the policy's pass keeps nothing for its gradient yet
            passed = without_noise if self.watched else operator.call
            ref = passed(lambda: self.reference(*args, **kwargs).log_probs.float())
        with log_probs_alone() if kwargs["input_ids"] is self.bare else contextlib.nullcontext():
            output = self.model(*args, **kwargs)
        mask = kwargs["labels"][:, 1:] != IGNORED
        policy = torch.where(mask, output.log_probs.float(), 0.0)
        ref = torch.where(mask, ref, 0.0)
        clipped = ref + self.clip.clip(token_log_ratio(policy, ref, mask))
        self.scored.append(Scored(kwargs["input_ids"], mask, policy, ref, clipped))
        self.tell(self.scored)
        output.log_probs = clipped
        return output

    def count(self, counts: Counts, inputs: dict[str, Any]) -> None:
        """Count the tokens of the answers that were trained on; raise RuntimeError if other rows were scored.

        A loss may score its rows in pieces, in their order. Of KTO's calls the last one is that of the answers.
        """
        trained = self.scored[-1:] if "KL_input_ids" in inputs else self.scored
        rows = inputs["completion_ids" if "completion_ids" in inputs else "input_ids"]
        asked = sum(len(one.input_ids) for one in trained)
        if asked != len(rows) or not ("input_ids" in inputs or _same_answers(trained, rows)):
            raise RuntimeError(
                f"TRL's loss of {len(rows)} rows asked its policy for {asked}, or for others, or in another order: it "
                "is not the loss that humanline was tested with; take away what replaces _compute_loss or "
                "_get_per_token_logps_and_entropies"
            )
        at = 0
        for one in trained:
            mask = one.mask
            if "tool_mask" in inputs:  # GRPO: tokens that a tool wrote
                own = inputs["tool_mask"][at : at + len(mask)].bool()
                mask = torch.cat([mask[:, : -own.size(1)], mask[:, -own.size(1) :] & own], 1)
            counts.add(token_log_ratio(one.policy.detach(), one.reference, mask), mask, self.clip)
            at += len(mask)


class Replayed:
    """Stand in for the reference of DPO and KTO: what was scored beside the policy, call by call in the same order."""

    def __init__(self) -> None:
        self.scored: list[Scored] = []

    def tell(self, scored: list[Scored]) -> None:
        """Take the latest call of the policy."""
        self.scored.append(scored[-1])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the reference's log-probabilities of the earliest call that was not replayed yet."""
        if not self.scored or not _same(self.scored[0].input_ids, kwargs["input_ids"]):
            raise RuntimeError(
                "TRL's loss asked the reference for other rows than the policy was asked for: this is not the loss "
                "that humanline was tested with"
            )
        return SimpleNamespace(log_probs=self.scored.pop(0).reference)


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and torch.equal(a, b))


class Unscored:
    """Stand in for GRPO's reference model while answers are generated: zeros, which `tell_grpo` replaces later."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return zeros of the shape of log-probabilities."""
        labels = kwargs["labels"]
        return SimpleNamespace(log_probs=torch.zeros(labels[:, 1:].shape, device=labels.device))


def _same_answers(scored: list[Scored], answers: Tensor) -> bool:
    """Return whether the last tokens of the rows that were scored are these (B, C) ids; their padding may differ."""
    return torch.equal(torch.cat([one.input_ids[:, -answers.size(1) :] for one in scored]), answers)


def tell_grpo(inputs: dict[str, Any], kl: bool, scored: list[Scored]) -> None:
    """Write into a micro-batch of GRPO's what its ratio and its KL term are to be taken against.

    With c the clipped log-probabilities, r the reference's and p the policy's, the ratio is c - r, and the KL term of
    TRL, a function of its reference minus c, becomes that of r - p with r - p + c in its reference's place.

    A loss that scores its rows in pieces has them all here by its last piece, row under row. One of them alone would be
    stretched over all rows where TRL subtracts it.

    Raises
    ------
    RuntimeError
        If fewer tokens of a row were scored than its answer has.
    """
    width = inputs["completion_ids"].size(1)
    if any(one.reference.size(1) < width for one in scored):
        raise RuntimeError(
            f"TRL's loss asked its policy for fewer tokens than the {width} of an answer: it is not the loss that "
            "humanline was tested with; take away what replaces _get_per_token_logps_and_entropies"
        )
    inputs["old_per_token_logps"] = torch.cat([one.reference[:, -width:] for one in scored])
    if kl:
        inputs["ref_per_token_logps"] = torch.cat(
            [(one.reference - one.policy + one.clipped)[:, -width:] for one in scored]
        )
