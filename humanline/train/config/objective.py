"""The sections of a configuration that choose a loss, and what happens to token log-ratios before it.

A section says all that the rest of training asks of an objective, in class attributes and properties of
`ObjectiveSection`; `step/loss.py` computes its loss. No other file tells one objective from another by its kind, so a
new objective is a function in humanline.objectives and a section here. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from humanline.theory import BetaRejection, BetaShape, ClipRange
from humanline.train.config.base import IN_FLOAT32, NonNegative, OwnPart, Positive, Section

Shape = Literal["completion", "preference", "unpaired"]
AnyShape = Shape | Literal["prompt"]
Spread = Literal["population", "sample", "none"]
RatioBound = Annotated[float, Field(gt=1, allow_inf_nan=False), IN_FLOAT32] | Literal["batch_max"]


@dataclass(frozen=True, slots=True)
class Grouping:
    """How the answers to one prompt are held against each other.

    Parameters
    ----------
    std : {"population", "sample", "none"}
        How scores are scaled within a group.
    eps : float, >= 0
        Added to their standard deviation.
    whole : bool
        Whether no group may be split: where each micro-batch has its own mean, what is in it counts.
    """

    std: Spread
    eps: float
    whole: bool


class ObjectiveSection(Section):
    """What training asks of an objective, whichever it is."""

    kind: str

    unit: ClassVar[Literal["sequence", "pair", "example", "group"]]
    """What a batch size counts: a sequence, a (chosen, rejected) pair, an answer with a label, or a group of them."""
    units: ClassVar[str]
    """Several of these, in words."""
    members: ClassVar[int] = 1
    """Rows of a unit, where rounds do not keep more."""
    units_a_pair: ClassVar[int] = 1
    """Units that a preference pair makes."""
    shapes: ClassVar[tuple[Shape, ...]]
    """Shapes of the rows that it reads, the default one first."""
    needs_reference: ClassVar[bool] = True
    """Without one the loss is the mean negative log-probability of a token."""
    loss: ClassVar[str]
    """The function of humanline.objectives that computes it."""
    reference_point: ClassVar[str | None] = None
    """The function of humanline.objectives that makes the reference point of labelled answers, from a sum of sequence
    log-ratios over the whole step and their number."""
    mismatched: ClassVar[bool] = False
    """Whether that sum is over mismatched pairs, each prompt with another one's answer, not over the answers."""
    not_of_the_loss: ClassVar[frozenset[str]] = frozenset({"kind"})
    """Settings that the loss does not take."""
    later: ClassVar[Mapping[str, Any]] = {}
    """Settings that came later, with the value that says what held before: runs from before them go on."""

    @property
    def title(self) -> str:
        """Return its name as papers write it."""
        name, *which = self.kind.split("_")
        return "-".join([name.upper(), *which])

    @property
    def loss_settings(self) -> dict[str, Any]:
        """Return the settings that the loss is called with, besides tensors."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in self.not_of_the_loss}

    @property
    def loss_unit(self) -> float:
        """Return the factor of a limit on its loss: 1, unless the loss grows otherwise than margins do."""
        return 1.0

    @property
    def grouping(self) -> Grouping | None:
        """Return how groups are read, if units are groups."""
        return None

    @property
    def kl_penalty(self) -> float | None:
        """Return the weight of the KL penalty, None for objectives that have no such term."""
        return None

    @property
    def own(self) -> OwnPart | None:
        """Return the section itself if its loss is a function of the user's own, in place of `loss`."""
        return None

    @property
    def reads_scores(self) -> bool:
        """Return whether it has a use for scores of answers, which rounds make."""
        return self.needs_reference

    @property
    def needs_both_labels(self) -> bool:
        """Return whether labelled data must hold desirable and undesirable answers."""
        return False

    @property
    def label_weights(self) -> tuple[float, float]:
        """Return what undesirable and desirable answers count in the loss of labelled data."""
        return 1.0, 1.0

    @property
    def looks_at_answers(self) -> bool:
        """Return whether its reference point takes a pass over the step's own answers, before the first loss."""
        return self.reference_point is not None and not self.mismatched

    def reads_as(self, shape: AnyShape) -> AnyShape:
        """Return the shape as which rows of a shape are read."""
        return shape


class PairObjective(ObjectiveSection):
    """An objective of (chosen, rejected) pairs."""

    kind: str = "pairs"

    unit = "pair"
    units = "pairs"
    members = 2
    shapes = ("preference",)


class LabelledObjective(ObjectiveSection):
    """An objective of answers that are desirable or not, each for itself."""

    allow_single_label: bool = False
    """Accept data that are all desirable, or all undesirable."""

    unit = "example"
    units = "examples"
    units_a_pair = 2
    shapes = ("unpaired", "preference")
    not_of_the_loss = frozenset({"kind", "allow_single_label"})

    @property
    def needs_both_labels(self) -> bool:
        """Return whether data must hold both labels."""
        return not self.allow_single_label


class NllObjective(ObjectiveSection):
    """Plain next-token training, which makes a start model; it has no reference."""

    kind: Literal["nll"] = "nll"

    unit = "sequence"
    units = "examples"
    shapes = ("completion", "preference")
    needs_reference = False
    loss = "nll_loss"

    def reads_as(self, shape: AnyShape) -> AnyShape:
        """Return that of completions: of a preference row the chosen answer is read."""
        return "completion"


class DpoObjective(PairObjective):
    """DPO (Eq. 6); with label smoothing conservative DPO."""

    kind: Literal["dpo"] = "dpo"
    beta: Positive = 0.1
    """Scale of the log-ratio inside the sigmoid."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5), IN_FLOAT32] = 0.0
    """Share of pairs that are taken to be labelled the wrong way round: no margin grows without end, as long as the
    reference stays."""

    loss = "dpo_loss"
    later: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.0}

    @property
    def title(self) -> str:
        """Return its name as papers write it."""
        return "conservative DPO" if self.label_smoothing else "DPO"


class IpoObjective(PairObjective):
    """IPO (arXiv 2310.12036): the difference of a pair's log-ratios is drawn to 1 / (2 beta), not without end.

    Under a reference that follows the policy it is drawn so far from each one anew.
    """

    kind: Literal["ipo"] = "ipo"
    beta: Positive = 0.1
    """The paper's tau; the larger, the smaller is the difference that is aimed at."""
    length_normalised: bool = False
    """Take means over each answer's tokens, as TRL does, in place of sums; beta is then on another scale. Means of
    clipped log-ratios differ by the width of the clip at most."""

    loss = "ipo_loss"

    @property
    def loss_unit(self) -> float:
        """Return the loss of pairs whose margins are 1 off: 1 / beta^2, four times the loss of the first step."""
        return self.beta**-2


class ApoZeroObjective(PairObjective):
    """APO-zero (arXiv 2408.06266): chosen answers become likelier and rejected ones less likely, each for itself.

    For chosen answers that are better than the policy's own.
    """

    kind: Literal["apo_zero"] = "apo_zero"
    beta: Positive = 0.1
    """Scale of the log-ratio inside the sigmoid."""

    loss = "apo_zero_loss"


class ApoDownObjective(PairObjective):
    """APO-down (arXiv 2408.06266): chosen answers become less likely, and rejected ones still less.

    For chosen answers that are worse than the policy's own. Right after a sync only rejected answers have a gradient.
    """

    kind: Literal["apo_down"] = "apo_down"
    beta: Positive = 0.1
    """Scale of the log-ratio inside the sigmoid."""

    loss = "apo_down_loss"


class KtoObjective(LabelledObjective):
    """KTO (Eq. 7)."""

    kind: Literal["kto"] = "kto"
    beta: Positive = 0.25
    """Scale of the log-ratio inside the sigmoid."""
    desirable_weight: NonNegative = 1.1
    """Weight of desirable examples."""
    undesirable_weight: NonNegative = 1.0
    """Weight of undesirable examples."""

    loss = "kto_loss"
    reference_point = "kto_reference_point"
    mismatched = True

    @model_validator(mode="after")
    def _some_weight(self) -> KtoObjective:
        if self.desirable_weight == self.undesirable_weight == 0:
            raise ValueError(
                "desirable_weight and undesirable_weight are both 0, so that every loss is 0 and nothing is learned; "
                "leave one of them out"
            )
        return self

    @property
    def label_weights(self) -> tuple[float, float]:
        """Return the two weights of the section."""
        return self.undesirable_weight, self.desirable_weight


class BcoObjective(LabelledObjective):
    """BCO (arXiv 2404.04656): answers are told apart by a sigmoid around the mean reward of the step's answers.

    This mean takes a forward pass a step. TRL keeps a running mean over all steps, which a reference that moves would
    leave behind.
    """

    kind: Literal["bco"] = "bco"
    beta: Positive = 0.1
    """Scale of the log-ratio inside the sigmoid."""

    loss = "bco_loss"
    reference_point = "bco_reference_point"


class GrpoObjective(ObjectiveSection):
    """GRPO (Eq. 1), normalised over the tokens of the whole step, or of each micro-batch (`local`, as HALOs does)."""

    kind: Literal["grpo"] = "grpo"
    clip_eps: Positive = 0.15
    """GRPO's own clip: ratios outside [1 - eps, 1 + eps] teach nothing more. A reference that never moves needs a much
    larger one: the paper's Table 3 has 0.5 offline and 0.15 in all other variants. From 1 on nothing is clipped from
    below."""
    kl_coef: NonNegative = 0.01
    """Weight of the KL penalty; 0 switches it off."""
    normalise: Literal["global", "local"] = "global"
    """Over whose tokens the loss is averaged: the step's, or each micro-batch's, which then holds whole groups."""
    advantage_std: Spread = "population"
    """How scores are scaled within a group."""
    advantage_eps: NonNegative = 0.0
    """Added to the standard deviation of a group's scores, where they are divided by one."""

    unit = "group"
    units = "groups"
    members = 2
    shapes = ("preference",)
    loss = "grpo_loss"
    not_of_the_loss = frozenset({"kind", "normalise", "advantage_std", "advantage_eps"})

    @property
    def grouping(self) -> Grouping:
        """Return how groups are read; they stay whole where each micro-batch has a mean of its own."""
        return Grouping(self.advantage_std, self.advantage_eps, self.normalise == "local")

    @property
    def kl_penalty(self) -> float:
        """Return the weight of the KL penalty."""
        return self.kl_coef


class FunctionObjective(OwnPart, ObjectiveSection):
    """A loss of your own: a function of token log-ratios that returns the loss of each unit, or of each token.

    It is given what `of` says: pairs (chosen and rejected answers), examples (answers that are desirable or not),
    sequences (answers alone) or groups (answers with advantages).
    """

    kind: Literal["function"] = "function"
    of: Literal["pairs", "examples", "sequences", "groups"] = "pairs"
    """What it is a loss of, and so which rows are read and what a batch size counts."""

    place = "objective"
    loss = ""

    @property
    def title(self) -> str:
        """Return what it calls."""
        return self.call

    @property
    def own(self) -> OwnPart:
        """Return the section itself."""
        return self

    @property
    def _like(self) -> type[ObjectiveSection]:
        kinds: dict[str, type[ObjectiveSection]] = {
            "pairs": PairObjective,
            "examples": LabelledObjective,
            "sequences": NllObjective,
        }
        return kinds.get(self.of, GrpoObjective)

    @property
    def unit(self) -> Literal["sequence", "pair", "example", "group"]:  # type: ignore[override]
        """Return what a batch size counts."""
        return self._like.unit

    @property
    def units(self) -> str:  # type: ignore[override]
        """Return several of these, in words."""
        return self._like.units

    @property
    def members(self) -> int:  # type: ignore[override]
        """Return the rows of a unit, where rounds do not keep more."""
        return self._like.members

    @property
    def units_a_pair(self) -> int:  # type: ignore[override]
        """Return the units that a preference pair makes."""
        return self._like.units_a_pair

    @property
    def shapes(self) -> tuple[Shape, ...]:  # type: ignore[override]
        """Return the shapes of the rows that it reads."""
        return self._like.shapes

    @property
    def grouping(self) -> Grouping | None:
        """Return how groups are read: advantages as those of GRPO by default."""
        return GrpoObjective().grouping if self.of == "groups" else None

    @property
    def reads_scores(self) -> bool:
        """Return whether it has a use for scores: not of answers alone."""
        return self.of != "sequences"

    def reads_as(self, shape: AnyShape) -> AnyShape:
        """Return the shape as which rows of a shape are read: answers alone as completions."""
        return "completion" if self.of == "sequences" else shape


Objective = Annotated[
    NllObjective
    | DpoObjective
    | IpoObjective
    | ApoZeroObjective
    | ApoDownObjective
    | KtoObjective
    | BcoObjective
    | GrpoObjective
    | FunctionObjective,
    Field(discriminator="kind"),
]
OBJECTIVES: tuple[type[ObjectiveSection], ...] = get_args(get_args(Objective)[0])
REFERENCE_FREE = ("simpo", "orpo", "slic", "cpo")  # known by name, and refused


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

    @model_validator(mode="after")
    def _some_width(self) -> ClipTransform:
        if self.log_eps_low == self.log_eps_high == 0:
            raise ValueError(
                "log_eps_low and log_eps_high are both 0, so that every log-ratio becomes 0 and, where it is not 0 "
                "already as in a round's first step, nothing is learned; widen the range, or take kind: none, which "
                "leaves log-ratios as they are"
            )
        return self

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
        smallest = math.nextafter(1.0, 2.0)  # right after a sync every ratio is 1, and a bound has to exceed 1
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


class FunctionTransform(OwnPart):
    """A transform of your own: a function of token log-ratios that returns as many, each from its own row alone."""

    kind: Literal["function"] = "function"

    place = "transform"


Transform = Annotated[NoTransform | ClipTransform | BetaTransform | FunctionTransform, Field(discriminator="kind")]
