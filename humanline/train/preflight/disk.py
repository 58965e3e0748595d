"""How many bytes a run writes, and whether its disk holds them: `validate` and `train` ask it alike."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline.system.disk import in_words, nearest
from humanline.system.files import SPARE, OutputError
from humanline.train.config import TrainConfig
from humanline.train.config.rounds import SamplingConfig
from humanline.train.config.run import CheckpointConfig

if TYPE_CHECKING:
    from humanline.train.data.batch import Unit
    from humanline.train.data.stream import StepBatch, Stream

_A_STEP = 700  # bytes of a line of metrics
_A_STEP_TRACKED = 2500  # and of tensorboard's events
_A_TOKEN = 25  # of a sampled one, in the files of its round: its text, id and log-probability
_A_SCORE = 300  # of a completion's, in the files of its round and in the cache


@dataclass(frozen=True, slots=True)
class Writes:
    """The bytes that a run writes, beside what lies in its output folder now.

    Parameters
    ----------
    output : str
    keep : int
        Checkpoints that are kept; a further one is there while it is written.
    checkpoint : int
        Of one checkpoint, without metrics.
    metrics : int
        Of the metrics at the end, which every checkpoint holds too.
    model : int
        Of the finished model.
    rounds : int
        Of samples, scores and served weights; all but the weights are kept. And of answers of the start.
    trackers : int
    """

    output: str
    keep: int
    checkpoint: int
    metrics: int
    model: int
    rounds: int
    trackers: int

    @property
    def total(self) -> int:
        """Return the sum of these bytes."""
        once = self.model + self.metrics + self.rounds + self.trackers
        return (self.keep + 1) * (self.checkpoint + self.metrics) + once

    def describe(self) -> str:
        """Return the sum and its parts in words."""
        parts = f"about {in_words(self.total)} for {self.keep} checkpoints, a further one while it is written"
        if self.rounds:
            parts += f", {in_words(self.rounds)} of samples, scores and served weights at most"
        if self.metrics + self.trackers > self.total // 100:
            parts += f", {in_words((self.keep + 2) * self.metrics + self.trackers)} of metrics"
        return f"{parts}, and the model"

    def free(self) -> int:
        """Return the bytes that are free for the run: on its file system, and what an earlier start has written."""
        folder = Path(self.output).expanduser()
        held = 0
        for place, _, names in os.walk(folder):  # nothing, where there is none or it cannot be read
            for name in names:
                with contextlib.suppress(OSError):  # a file that is just being replaced
                    held += os.lstat(os.path.join(place, name)).st_size
        return shutil.disk_usage(nearest(self.output)).free + held

    def refuse(self) -> None:
        """Raise OutputError if there is too little space, with what is needed and free."""
        free = self.free()
        if self.total + SPARE > free:
            raise OutputError(
                f"output {self.output!r} does not fit on the disk: it needs {self.describe()}, and {in_words(SPARE)} "
                f"more to stay free, but its file system has {in_words(free)}; free some space, choose another place, "
                "or lower training.steps or checkpoint.keep"
            )


def bytes_written(
    config: TrainConfig,
    outline: Any,
    stream: Stream,
    steps: int,
    held_out: Sequence[Unit] = (),
    ranks: int = 1,
    prompts: int = 0,
) -> Writes:
    """Count what a run writes.

    Parameters
    ----------
    config : TrainConfig
    outline
        The model on the meta device.
    stream : Stream
        Its first batch stands for all.
    steps : int
    held_out : sequence of Unit
        Whose log-probabilities are computed once and kept.
    ranks : int
        Processes, each of which keeps its own log-probabilities.
    prompts : int
        Held-out ones, in rounds.

    Raises
    ------
    ModelError
        As `static_bytes` does.
    """
    from humanline.train.data.units import count_tokens
    from humanline.train.preflight.memory import static_bytes

    sizes = static_bytes(config, outline)
    logprobs = config.window_steps(steps) * _logprob_bytes(stream.step(0))
    logprobs += (1 + config.objective.mismatched) * 4 * count_tokens(held_out)[0]  # of which the prompts' are none
    return Writes(
        output=config.output,
        keep=_most_kept(config.checkpoint, steps),
        checkpoint=(1 + config.second_models) * sizes.weights + sizes.states + logprobs * ranks,
        metrics=_A_STEP * steps,
        model=sizes.weights,
        rounds=_of_rounds(config, steps, sizes.weights, prompts) + _of_distance(config),
        trackers=_A_STEP_TRACKED * steps if "tensorboard" in config.tracking.trackers else 0,
    )


def _most_kept(settings: CheckpointConfig, steps: int) -> int:
    """Return how many checkpoints are there at most: as many as a run of so many steps makes, if that is fewer."""
    made = steps + 1  # by the clock there may be one after each, and one before the first
    if settings.minutes is None:
        made = steps // settings.every if settings.every is not None else 0
        made += 2  # as it is stopped
    return min(settings.keep, made)


def _of_rounds(config: TrainConfig, steps: int, weights: int, prompts: int) -> int:
    rounds = config.rounds
    if rounds is None:
        return 0
    number = (rounds.count or -(-steps // config.round_steps)) + 1  # a round's samples are there twice as it ends
    completions = rounds.samples * rounds.contexts_per_round * number
    copies = 2 * (rounds.sampling.engine.kind == "server") + rounds.overlap  # the served ones and those before them
    answers = 2 * prompts * config.evaluation.samples  # are there twice as a look ends, and removed after it
    looks = (_longest_answer(config, config.asking) + _A_SCORE) * answers
    return (_longest_answer(config, rounds.sampling) + _A_SCORE) * completions + copies * weights + looks


def _of_distance(config: TrainConfig) -> int:
    distance = config.evaluation.distance
    if distance is None:
        return 0
    answers = 3 * distance.limit * distance.samples  # the start's, and the policy's of a look, twice as that ends
    return _longest_answer(config, config.travelling) * answers


def _longest_answer(config: TrainConfig, sampling: SamplingConfig) -> int:
    """Return the bytes of the longest answer that there can be, behind a prompt of one token."""
    return _A_TOKEN * min(sampling.max_tokens, max(1, config.data.max_length - 1))


def _logprob_bytes(batch: StepBatch) -> int:
    """Return the bytes of the float32 log-probabilities of a batch."""
    blocks = [block for micro in batch.micro_batches for block in (micro.block, micro.mismatched) if block is not None]
    return sum(4 * block.mask.numel() for block in blocks)
