"""The configuration of a run: one frozen tree of typed sections, and what follows from them together.

Every section names each number that a run depends on; unknown keys are errors, and all errors of a file and of the
command line are reported together. No field here is without a reader in humanline.train (a test looks for them).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from humanline.schedule import Never, PositiveInt
from humanline.train.config.base import IN_FLOAT32, Fraction, NonEmpty, NonNegative, Positive, Section, Temperature
from humanline.train.config.data import DataConfig
from humanline.train.config.evaluation import EvaluationConfig
from humanline.train.config.objective import OBJECTIVES, AnyShape, NoTransform, Objective, Transform
from humanline.train.config.own_schedule import AnySchedule
from humanline.train.config.rounds import FixedSource, GenerateEngine, RoundsSource, SamplingConfig, Source


class ReferenceConfig(Section):
    """What the policy is compared with: the schedule, where its weights live, and the anchor of the KL penalty."""

    schedule: AnySchedule = Never()
    """Which earlier policy is the reference of a step."""
    storage: Literal["score_ahead", "model"] = "score_ahead"
    """Log-probabilities computed ahead of time, or a second model in memory; the results are equal."""
    baseline: Literal["reference", "initial"] = "reference"
    """The anchor of GRPO's KL penalty."""
    round_start: Literal["sync", "keep"] = "sync"
    """What a round of sampling begins with: the reference made equal to the policy, or as it was, which a schedule of
    each_round, made equal at every round, does not take."""


Limit = Positive | None
SYNCED = ("before_step", "after_step", "function")  # schedules that may sync within a round


class CollapseConfig(Section):
    """When a run has broken, and what is done then; null switches a limit off.

    The median of the last rows (`steps`, `rounds`; a single look at the held-out set) is held against the first row,
    which is of the policy before its first update. humanline/train/run/collapse.py has the rules.
    """

    action: Literal["warn", "stop", "ignore"] = "warn"
    """warn: one line, once. stop: save, end and say why (exit code 4). ignore: do not look."""
    steps: PositiveInt = 10
    """Steps of which the median is taken."""
    rounds: PositiveInt = 3
    """Rounds of which the median is taken; of answers' length, share cut short and entropy the start is the median of
    as many, and rounds of fewer than 32 prompts count as one until they have 32."""
    score: Limit = 0.25
    """A score that has fallen from its best by so many standard deviations of answers' scores, by four standard errors
    of its own, and by half of what it had gained: all three. By so many above the first it is better than at first."""
    length: Annotated[float, Field(gt=1, allow_inf_nan=False), IN_FLOAT32] | None = 4.0
    """Answers so many times as long as at first, or as short, while the score is no better than at first; shorter ones
    are no break where at first more than 0.3 were cut at their limit."""
    truncated: Limit = 0.3
    """Share of answers cut at their limit, above that at first, while the score is no better than at first."""
    entropy_rise: Limit = 1.0
    """Nats a token by which the entropy of answers is above that at first."""
    entropy_left: Limit = 0.1
    """Share of its first value below which the entropy of a round's answers is, while the score is no better than at
    first."""
    clipped: Limit = 0.5
    """Share of tokens outside of humanline's clip."""
    log_ratio: Limit = 2.0
    """Root mean square of token log-ratios, nats, where the reference follows the policy (before_step); three times as
    much where it does not, since rejected answers may well leave a fixed one far behind."""
    loss: Limit = 5.0
    """Training loss, above that of the first step; that of ipo, which is in squares of nats, times beta squared."""
    surprise: Limit = 2.0
    """Nats a token by which the log-probability of held-out answers (the chosen ones) is below that at first; of
    answers with a label, which are good or bad, it is not looked at."""


class TrainingConfig(Section):
    """How far, how much at a time and in which precision."""

    steps: PositiveInt | None = None
    """Optimizer steps; give these or epochs."""
    epochs: Annotated[float, Field(gt=0, le=1e9), IN_FLOAT32] | None = None
    """Passes over the data, in rounds as many whole ones as each pass fills; give these or steps."""
    batch_size: PositiveInt = 32
    """Examples, pairs or groups a step, over all processes."""
    micro_batch_size: PositiveInt | None = None
    """Examples, pairs or, under GRPO, rows (single answers) a forward pass and process; default: all of its share."""
    micro_batch_tokens: PositiveInt | None = None
    """Tokens a forward pass and process, in place of micro_batch_size; padding counts where there is any."""
    padding: Literal["right", "free"] = "right"
    """Rows filled up to one length, or laid end to end without any padding."""
    precision: Literal["float32", "bf16"] = "float32"
    """What is computed in; bf16 with copies of weights that are kept in float32, on one device as on many."""
    weights: Literal["float32", "bf16"] = "float32"
    """What trained weights are kept in; bf16 ones are rounded stochastically, so that small updates are not lost."""
    sharding: Literal["none", "full"] = "none"
    """Weights, gradients and optimizer states: whole in every process, or shared out over the processes (FSDP2)."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass in place of keeping them: less memory, a third more work."""
    logprobs: Literal["chunked", "cut_cross_entropy"] = "chunked"
    """What turns hidden states into token log-probabilities; the results are equal but for rounding."""
    layers: Literal["plain", "liger"] = "plain"
    """What computes norms, rotary embeddings and gated activations: the model's code, or fused kernels on a GPU."""
    dropout: bool = False
    """Keep the model's dropout rates; default: they are set to 0."""
    temperature: Temperature = 1.0
    """Logits are divided by it before log-probabilities are taken; some code trains at the temperature of sampling."""
    stall_minutes: NonNegative = 60.0
    """Of several processes: minutes in which one gets nothing done, after which all end; 0: never.

    Inside of a collective of computing one waits ten minutes longer, in silence."""
    disk_full: Literal["stop", "wait"] = "stop"
    """On a full disk: end, and go on later by --resume; or wait for space, trying again every minute."""
    collapse: CollapseConfig = CollapseConfig()
    """When a run has broken, and what is done then."""

    @model_validator(mode="after")
    def _one_micro_batch(self) -> TrainingConfig:
        if self.micro_batch_size is not None and self.micro_batch_tokens is not None:
            raise ValueError(
                "give at most one of micro_batch_size and micro_batch_tokens (training.micro_batch_size=null on the "
                "command line takes one back)"
            )
        return self

    @model_validator(mode="after")
    def _bf16_weights(self) -> TrainingConfig:
        if self.weights == "bf16" and self.precision != "bf16":
            raise ValueError("weights: bf16 are computed with in bf16: set precision: bf16 too")
        return self


class AdapterConfig(Section):
    """LoRA: low-rank additions to frozen weights are trained in place of the weights themselves."""

    rank: Annotated[int, Field(ge=1, le=65536)] = 16
    """Rank of the additions."""
    alpha: Annotated[float, Field(gt=0, le=1e6), IN_FLOAT32] = 32.0
    """Additions are scaled by alpha / rank."""
    dropout: Fraction = 0.0
    """Share of their inputs that is dropped in training, never in passes without gradient; not possible for experts."""
    targets: Annotated[tuple[NonEmpty, ...], Field(strict=False, min_length=1)] | None = None
    """Layers that get additions, by the ends of their names; default: all linear layers but the output head, and the
    fused weights of experts (`experts.gate_up_proj`), one addition to each expert."""
    base: Literal["float32", "bf16", "nf4"] | None = None
    """What the frozen weights are kept in; default: what is computed in. nf4 is QLoRA (bitsandbytes)."""


class OptimizerConfig(Section):
    """AdamW, with warm-up to a learning rate that stays, or falls to 0 until the end of the run."""

    lr: NonNegative
    """Learning rate after warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What it does then: stay, or fall along a line or half a cosine, to 0 where a step after the last would be; of a
    run in rounds that is the last that it may have."""
    adam_beta1: Fraction = 0.9
    """Decay of the mean gradient."""
    adam_beta2: Fraction = 0.999
    """Decay of the mean squared gradient."""
    adam_eps: Positive = 1e-8
    """Added to the root of the mean squared gradient."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay, of all trained weights alike: of norms and biases, too."""
    warmup_fraction: Fraction = 0.1
    """Share of the steps over which the learning rate rises."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""
    states: Literal["float32", "8bit"] = "float32"
    """What the running means of gradients are kept in; 8bit (torchao) takes a quarter of the memory."""


class CheckpointConfig(Section):
    """When a run writes down all it needs to go on: every so many steps, or minutes, and whenever it is stopped."""

    every: PositiveInt | None = None
    """Steps between checkpoints."""
    minutes: Positive | None = 30.0
    """Minutes between checkpoints."""
    keep: Annotated[int, Field(ge=2, le=10**6)] = 2
    """How many of the newest are kept."""
    overlap: Literal["auto", "always", "never"] = "auto"
    """Whether steps go on while one is written, from a copy in host memory; auto: on GPUs, where the copy fits."""


class TrackingConfig(Section):
    """Where metrics are shown besides the run's own files; nowhere unless named here."""

    trackers: Annotated[tuple[Literal["tensorboard", "trackio", "wandb"], ...], Field(strict=False)] = ()
    """Programs that show the metrics; each must be installed."""
    project: NonEmpty = "humanline"
    """Name under which trackio and wandb file the run."""


class TrainConfig(Section):
    """One run."""

    model: NonEmpty
    """Folder in Hugging Face format, or hub: and a name on the hub."""
    output: NonEmpty
    """Folder to create for the run."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Fixes the order of the data and every random draw."""
    objective: Objective
    """The loss."""
    transform: Transform = NoTransform()
    """What happens to token log-ratios before the loss."""
    reference: ReferenceConfig = ReferenceConfig()
    """What the policy is compared with."""
    adapter: AdapterConfig | None = None
    """LoRA; default: all weights are trained."""
    data: DataConfig
    """The rows to read, and how."""
    source: Source = FixedSource()
    """What batches are made of: these rows, or answers that the policy gives to prompts, round by round."""
    training: TrainingConfig
    """How far, and how much at a time."""
    optimizer: OptimizerConfig
    """AdamW."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """When the held-out set is looked at."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the run is saved to go on from."""
    tracking: TrackingConfig = TrackingConfig()
    """Where metrics are shown besides the run's own files."""

    @property
    def rounds(self) -> RoundsSource | None:
        """Return the source of a run in rounds; None on fixed data."""
        return self.source if isinstance(self.source, RoundsSource) else None

    @property
    def asking(self) -> SamplingConfig:
        """Return how answers to held-out prompts are drawn."""
        return self.evaluation.sampling or (SamplingConfig() if self.rounds is None else self.rounds.sampling)

    @property
    def travelling(self) -> SamplingConfig:
        """Return how answers are drawn by which the distance from the start is measured."""
        batch = GenerateEngine(batch_size=self.evaluation.batch_size)
        own = SamplingConfig(engine=batch) if self.rounds is None else self.rounds.sampling
        distance = self.evaluation.distance
        most = own.max_tokens if distance is None else distance.max_tokens or own.max_tokens
        return own.model_copy(update={"temperature": 1.0, "top_p": 1.0, "max_tokens": most})

    @property
    def own_baseline(self) -> bool:
        """Return whether the KL anchor is another policy than the reference: under `never` that is the initial one."""
        return self.reference.baseline == "initial" and self.reference.schedule.kind != "never"

    @property
    def references(self) -> int:
        """Return the number of earlier policies whose log-probabilities a step needs."""
        return 1 + self.own_baseline if self.objective.needs_reference else 0

    @property
    def second_models(self) -> int:
        """Return how many copies of the trained weights are kept."""
        return self.references if self.reference.storage == "model" else 0

    def window_steps(self, steps: int) -> int:
        """Return the most steps whose log-probabilities wait: to the schedule's next sync, or the end of the run."""
        if not self.objective.needs_reference or self.reference.storage == "model":
            return 0
        whole = 0 if self.adapter is not None else steps  # an adapter's base is the initial policy, always at hand
        schedule = self.reference.schedule
        if schedule.kind == "never":
            return whole
        if schedule.kind == "function":
            return schedule.longest_window(steps if self.rounds is None else self.round_steps) + (
                whole if self.own_baseline else 0
            )
        ahead = schedule.every if schedule.kind != "each_round" else schedule.round_steps or self.round_steps
        return min(ahead + 1, steps) + (whole if self.own_baseline else 0)

    @property
    def kept_in(self) -> Literal["float32", "bf16", "nf4"]:
        """Return the type that the model's own weights are kept in, trained or, under an adapter, frozen."""
        return self.training.weights if self.adapter is None else self.adapter.base or self.training.precision

    @property
    def rows_a_unit(self) -> int:
        """Return the sequences of one unit of a batch: of an example, a pair or a group."""
        if self.rounds is not None and self.keeps_groups:
            return self.rounds.samples
        return self.objective.members

    @property
    def rows_together(self) -> int:
        """Return how many rows of a unit a micro-batch holds together: all, or where groups are split one."""
        groups = self.objective.grouping
        return self.rows_a_unit if groups is None or groups.whole else 1

    def rows_a_pass(self, ranks: int) -> int:
        """Return the rows of a forward pass where tokens are not what is counted, in each of so many processes."""
        share = -(-self.training.batch_size * self.rows_a_unit // (ranks * self.rows_together)) * self.rows_together
        size = self.training.micro_batch_size
        if size is None:
            return share
        return min(share, size * self.rows_a_unit if self.objective.grouping is None else size)

    @property
    def keeps_groups(self) -> bool:
        """Return whether rounds keep all completions of a prompt, not the best and the worst."""
        return self.rounds is not None and self.objective.grouping is not None and self.rounds.select != "best_worst"

    @property
    def units_a_round(self) -> int:
        """Return the most units that a round of sampling can leave."""
        return 0 if self.rounds is None else self.rounds.contexts_per_round * self.objective.units_a_pair

    @property
    def round_steps(self) -> int:
        """Return the most steps that a round of sampling can have."""
        if self.rounds is None:
            return 0
        return self.rounds.steps or max(1, self.units_a_round // self.training.batch_size)

    @property
    def data_shape(self) -> AnyShape:
        """Return the shape of the rows: prompts in rounds, else the one given, or the natural one of the objective."""
        return "prompt" if self.rounds is not None else self.data.shape or self.objective.shapes[0]

    @model_validator(mode="after")
    def _same_engine(self) -> TrainConfig:
        """Have held-out prompts answered by the engine of the rounds, where evaluation.sampling names none."""
        sampling = self.evaluation.sampling
        if self.rounds is not None and sampling is not None and "engine" not in sampling.model_fields_set:
            whole = sampling.model_copy(update={"engine": self.rounds.sampling.engine})
            self.__dict__["evaluation"] = self.evaluation.model_copy(update={"sampling": whole})
        return self

    @model_validator(mode="after")
    def _one_length(self) -> TrainConfig:
        given = [n for n, v in (("steps", self.training.steps), ("epochs", self.training.epochs)) if v is not None]
        if self.rounds is not None and self.rounds.count is not None:
            given.append("source.count")
        if len(given) != 1:
            either = "steps and epochs" if self.rounds is None else "steps, epochs and source.count"
            raise ValueError(
                f"training: give exactly one of {either} (training.epochs=null on the command line takes one back)"
            )
        return self

    @model_validator(mode="after")
    def _sharding_fits(self) -> TrainConfig:
        if self.training.sharding == "none":
            return self
        if self.adapter is not None and self.adapter.base == "nf4":
            raise ValueError(
                "training.sharding: weights kept in 4 bits (adapter.base: nf4) cannot be shared out; with sharding: "
                "none each process keeps all of them, which in 4 bits is little"
            )
        if self.rounds is None:
            return self
        engine = self.rounds.sampling.engine
        if engine.kind != "server":
            raise ValueError(
                f"training.sharding: full leaves no process with a whole model, which source.sampling.engine.kind: "
                f"{engine.kind} samples with; set engine.kind: server, or training.sharding: none"
            )
        if self.rounds.overlap and engine.proof is not None:
            raise ValueError(
                "source.overlap with training.sharding: full: the process that has the next round sampled holds no "
                "model, against which the server could be proved to have its weights; leave out source.overlap, or set "
                "source.sampling.engine.proof: null"
            )
        return self

    @model_validator(mode="after")
    def _distance_fits(self) -> TrainConfig:
        if self.evaluation.distance is not None:
            shared = self.training.sharding == "full"
            self.evaluation.distance.refuse_unfit(self.rounds, shared, self.data.eval is not None)
        return self

    @model_validator(mode="after")
    def _rounds_fit(self) -> TrainConfig:
        schedule, rounds = self.reference.schedule, self.rounds
        if self.reference.round_start == "keep" and (rounds is None or schedule.kind == "each_round"):
            why = "rounds of sampling alone, and source.kind is fixed: leave it out"
            if rounds is not None:
                why = (
                    "schedules under which a reference can outlive its round; that of {kind: each_round} is the policy "
                    "at the start of each: leave it out, or take another schedule"
                )
            raise ValueError(f"reference.round_start: keep is for {why}")
        if rounds is None:
            if schedule.kind == "each_round" and schedule.round_steps is None:
                raise ValueError("reference.schedule.round_steps is needed where the source is fixed")
            return self
        if not self.objective.reads_scores:
            *others, last = [one.model_fields["kind"].default for one in OBJECTIVES if one.needs_reference]
            raise ValueError(
                f"source.kind: objective {self.objective.kind} has no use for scores; "
                f"take {', '.join(others)} or {last}"
            )
        if self.data.shape is not None:
            raise ValueError("data.shape: rounds read prompts; leave it out")
        if schedule.kind == "each_round" and schedule.round_steps is not None:
            raise ValueError(
                "reference.schedule.round_steps: the section source says how long rounds are; leave it out"
            )
        engine = rounds.sampling.engine
        if rounds.overlap and engine.kind == self.asking.engine.kind == "server" and self.data.eval is not None:
            raise ValueError(
                "source.overlap with a server and data.eval: held-out prompts would be answered by the weights that "
                "the next round is sampled from; leave out data.eval, or source.overlap, or have them answered in the "
                "run's own process (evaluation.sampling.engine: {kind: generate})"
            )
        if engine.kind == "server" and (engine.new_weights.kind == "adapter") != (self.adapter is not None):
            raise ValueError(
                "source.sampling.engine.new_weights: kind: adapter is how a server gets an adapter's weights, and "
                "only these: "
                + ("set it, or take engine: {kind: generate}" if self.adapter is not None else "take another kind")
            )
        if self.objective.grouping is None and rounds.select == "all":
            raise ValueError(f"source.select: all makes groups, which {self.objective.kind} cannot read; leave it out")
        if self.reference.storage == "score_ahead":
            keeps = self.reference.round_start == "keep" and schedule.kind in SYNCED
            if keeps or (schedule.kind == "never" and self.adapter is None):
                what = "round_start: keep" if keeps else "schedule: never"
                raise ValueError(
                    f"reference.{what} lets older weights score batches that did not exist while the policy held them: "
                    "set reference.storage: model"
                )
            if self.own_baseline and self.adapter is None:
                raise ValueError(
                    "reference.baseline: initial in rounds needs the initial weights for batches that come later: set "
                    "reference.storage: model, or train an adapter"
                )
        synced = self.reference.round_start == "sync" and schedule.kind in SYNCED
        if synced and self.round_steps == 1:
            raise ValueError(
                "rounds of one step with a reference that is synced at the start of each make every ratio 1: set "
                "reference.round_start: keep and reference.storage: model, or reference.schedule: {kind: each_round} "
                "if no reference of its own is meant"
            )
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> TrainConfig:
        objective, allowed = self.objective, self.objective.shapes
        if self.rounds is None and self.data_shape not in allowed:
            raise ValueError(f"data.shape for {objective.kind} must be {' or '.join(allowed)}; got {self.data.shape}")
        given = self.transform.kind != "none" or self.reference != ReferenceConfig()
        if not objective.needs_reference and given:
            raise ValueError(
                f"objective {objective.kind} has no reference: leave out the sections transform and reference"
            )
        if self.transform.kind == "function" and objective.reference_point is not None:
            raise ValueError(
                f"transform.kind: function cannot go with objective {objective.kind}, whose reference point (z_0) is a "
                "mean of transformed log-ratios of other answers, which a transform of your own is not given; take "
                "transform.kind: clip, or another objective"
            )
        if objective.kl_penalty is None and self.reference.baseline == "initial":
            raise ValueError("reference.baseline is the anchor of GRPO's KL penalty; no other objective has one")
        if not objective.kl_penalty and self.reference.baseline == "initial":
            raise ValueError(
                "reference.baseline: initial anchors the KL penalty, which objective.kl_coef: 0 switches off"
            )
        if self.adapter is not None:
            if self.training.weights != "float32":
                raise ValueError(
                    "adapters are trained in float32: set adapter.base, which tells what the frozen weights are kept "
                    "in, in place of training.weights"
                )
            if self.adapter.base == "bf16" and self.training.precision != "bf16":
                raise ValueError("adapter.base: bf16 is computed with in bf16: set training.precision: bf16 too")
        if self.evaluation.every is not None and self.data.eval is None and self.evaluation.distance is None:
            raise ValueError("evaluation.every needs a held-out set: data.eval")
        return self
