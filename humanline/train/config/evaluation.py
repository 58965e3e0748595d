"""The section evaluation: when a policy is looked at, by held-out data and by how far it has travelled."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from humanline.schedule import PositiveInt
from humanline.train.config.base import NonEmpty, Section
from humanline.train.config.rounds import RoundsSource, SamplingConfig, ScoringConfig
from humanline.train.config.secrets import learn


class DistanceConfig(Section):
    """How far the policy has travelled from the one that the run began with, in nats an answer.

    Answers are drawn at temperature 1 from the whole distribution; what else there is to sampling is that of the rounds
    (stop texts, system prompt, engine), or, on fixed data, generate with as many rows as evaluation.batch_size.
    """

    prompts: NonEmpty | None = None
    """File of rows with a prompt; default: the rows of data.eval, those first that evaluation.limit leaves out."""
    limit: PositiveInt = 128
    """How many prompts are used: different ones that training does not have, and best no held-out score either."""
    samples: PositiveInt = 2
    """Answers a prompt, of the start and, for kl_to_start, of the policy."""
    max_tokens: PositiveInt | None = None
    """Tokens of an answer, its end token included; default: as source.sampling says, 512 on fixed data."""
    to_start: Literal["end", "looks", "never"] = "end"
    """When kl_to_start is measured, for which the start's weights are read again, or the adapter is switched off."""

    def refuse_unfit(self, rounds: RoundsSource | None, shared: bool, held_out: bool) -> None:
        """Raise ValueError if a run cannot be measured so.

        Parameters
        ----------
        rounds : RoundsSource or None
            The source of a run in rounds.
        shared : bool
            Whether its weights are shared out over processes.
        held_out : bool
            Whether it has a held-out set.
        """
        where = "evaluation.distance"
        if self.prompts is None and not held_out:
            raise ValueError(f"{where} needs prompts: give {where}.prompts, or a held-out set (data.eval)")
        served = rounds is not None and rounds.sampling.engine.kind == "server"
        if shared and not served:
            raise ValueError(
                f"{where} with training.sharding: full: no process has a whole model to draw the start's answers with; "
                f"leave out {where}, or set training.sharding: none"
            )
        if shared and self.to_start != "never":
            raise ValueError(
                f"{where}.to_start: {self.to_start} with training.sharding: full: no process holds the whole weights "
                f"of policy and start; set {where}.to_start: never, which leaves kl_from_start"
            )
        if served and self.to_start == "looks":
            raise ValueError(
                f"{where}.to_start: looks would have a server given new weights for every look: set it to end, or never"
            )
        if served and rounds is not None and rounds.overlap:
            raise ValueError(
                f"source.overlap with a server and {where}: its answers would come from the weights that the next "
                f"round is sampled from; leave out {where}, or source.overlap"
            )


class EvaluationConfig(Section):
    """When to look at the held-out set, always at the start and the end, and how `humanline evaluate` asks a model."""

    every: PositiveInt | None = None
    """Steps between looks at the held-out set."""
    batch_size: PositiveInt = 32
    """Units a forward pass."""
    limit: PositiveInt | None = None
    """How many rows of the held-out set a run uses, the first that fit; the others are checked, and not tokenised.
    `humanline evaluate` asks all of them."""
    samples: PositiveInt = 1
    """Answers to a held-out prompt, in rounds and by `humanline evaluate`."""
    sampling: SamplingConfig | None = None
    """How these are drawn; default: as source.sampling says. What the section leaves out has its own default, not the
    value of source.sampling, but for the engine, which is that of the rounds."""
    scoring: ScoringConfig | None = None
    """humanline evaluate: how answers are scored; default: as source.scoring says."""

    distance: DistanceConfig | None = None
    """How far the policy has travelled from its start, measured at every look; null: it is not."""

    @model_validator(mode="after")
    def _answers_differ(self) -> EvaluationConfig:
        if self.samples > 1 and self.sampling is not None and self.sampling.temperature == 0:
            raise ValueError(
                f"evaluation.samples is {self.samples}, but at evaluation.sampling.temperature: 0 all are the same; "
                "set samples: 1, or a temperature"
            )
        return self

    @model_validator(mode="after")
    def _learn_secrets(self) -> EvaluationConfig:
        if self.sampling is not None and self.sampling.engine.kind == "server":
            learn({"engine": self.sampling.engine.model_dump(mode="json")})
        return self
