"""The sections of what is minimised: objectives, and the transforms of their log-ratios."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from humanline.theory import BetaRejection, BetaShape, ClipRange
from humanline.train.config.base import IN_FLOAT32, NonNegative, Positive, Section

RatioBound = Annotated[float, Field(gt=1, allow_inf_nan=False), IN_FLOAT32] | Literal["batch_max"]


class NllObjective(Section):
    """Plain next-token training, which makes a start model; it has no reference."""

    kind: Literal["nll"] = "nll"


class DpoObjective(Section):
    """DPO (Eq. 6)."""

    kind: Literal["dpo"] = "dpo"
    beta: Positive = 0.1
    """Scale of the log-ratio inside the sigmoid."""


class KtoObjective(Section):
    """KTO (Eq. 7)."""

    kind: Literal["kto"] = "kto"
    beta: Positive = 0.25
    """Scale of the log-ratio inside the sigmoid."""
    desirable_weight: NonNegative = 1.1
    """Weight of desirable examples."""
    undesirable_weight: NonNegative = 1.0
    """Weight of undesirable examples."""
    allow_single_label: bool = False
    """Accept data that are all desirable, or all undesirable."""


class GrpoObjective(Section):
    """GRPO (Eq. 1), normalised over the tokens of the whole step, or of each micro-batch (`local`, as HALOs does)."""

    kind: Literal["grpo"] = "grpo"
    clip_eps: Annotated[float, Field(gt=0, le=1), IN_FLOAT32] = 0.15
    """GRPO's own clip: ratios outside [1 - eps, 1 + eps] teach nothing more. A reference that never moves needs a much
    larger one: the paper's Table 3 has 0.5 offline and 0.15 in all other variants."""
    kl_coef: NonNegative = 0.01
    """Weight of the KL penalty; 0 switches it off."""
    normalise: Literal["global", "local"] = "global"
    """Over whose tokens the loss is averaged: the step's, or each micro-batch's, which then holds whole groups."""
    advantage_std: Literal["population", "sample", "none"] = "population"
    """How scores are scaled within a group."""
    advantage_eps: NonNegative = 0.0
    """Added to the standard deviation of a group's scores."""

    @property
    def whole_groups(self) -> bool:
        """Return whether no group may be split: where each micro-batch has its own mean, what is in it counts."""
        return self.normalise == "local"


class NoTransform(Section):
    """Leave log-ratios as they are."""

    kind: Literal["none"] = "none"


class ClipTransform(Section):
    """Humanline clipping (section 5.1), in nats."""

    kind: Literal["clip"] = "clip"
    log_eps_low: Annotated[float, Field(le=0, allow_inf_nan=False), IN_FLOAT32] = -1.5
    """Lowest token log-ratio, nats."""
    log_eps_high: NonNegative = 1.5
    """Highest token log-ratio, nats."""

    def build(self) -> ClipRange:
        """Return the theory's object."""
        return ClipRange(self.log_eps_low, self.log_eps_high)


class Beta(Section):
    """The two shapes of one Beta draw."""

    a: Positive
    b: Positive


class BetaTransform(Section):
    """Humanline sampling (Def. 4.2): rejected tokens are detached.

    A bound is a number > 1, or `batch_max`: the largest ratio of the step's batch, which costs a forward pass a step.
    """

    kind: Literal["beta_rejection"] = "beta_rejection"
    policy: Beta
    """Shape of the draws that policy ratios are held against."""
    ref: Beta
    """Shape of the draws that reference ratios are held against."""
    policy_ratio_bound: RatioBound
    """Upper bound of the ratio policy / reference."""
    ref_ratio_bound: RatioBound
    """Upper bound of the ratio reference / policy."""
    rule: Literal["either", "both"] = "either"
    """Whether one of the two tests is enough to keep a token, or both must pass."""

    def needs_batch_max(self) -> bool:
        """Return whether a bound depends on the batch."""
        return "batch_max" in (self.policy_ratio_bound, self.ref_ratio_bound)

    def build(self, policy_max: float = math.nan, ref_max: float = math.nan) -> BetaRejection:
        """Return the theory's object, with `batch_max` bounds taken from the given largest ratios."""
        smallest = 1 + 1e-6  # right after a sync every ratio is 1, and a bound has to exceed 1
        return BetaRejection(
            policy=BetaShape(self.policy.a, self.policy.b),
            ref=BetaShape(self.ref.a, self.ref.b),
            policy_ratio_bound=max(policy_max, smallest)
            if self.policy_ratio_bound == "batch_max"
            else float(self.policy_ratio_bound),
            ref_ratio_bound=max(ref_max, smallest)
            if self.ref_ratio_bound == "batch_max"
            else float(self.ref_ratio_bound),
            rule=self.rule,
        )


Objective = Annotated[NllObjective | DpoObjective | KtoObjective | GrpoObjective, Field(discriminator="kind")]


Transform = Annotated[NoTransform | ClipTransform | BetaTransform, Field(discriminator="kind")]
