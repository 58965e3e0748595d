"""What a configuration makes of its data: the stream of training and the held-out evaluation.

The loop runs on them, and `humanline validate` only looks whether they can be made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from humanline.train.batch import Unit
from humanline.train.config import TrainConfig
from humanline.train.evaluate import Evaluator
from humanline.train.examples import DataSets
from humanline.train.guard import Reduce
from humanline.train.reference import Score
from humanline.train.stream import Stream
from humanline.train.tokens import Renderer


def renderer_of(config: TrainConfig, tokenizer: Any) -> Renderer:
    """Return the template path of a run; raise ValueError as `Renderer` does."""
    data = config.data
    return Renderer(
        tokenizer, data.template, data.max_length, data.too_long, data.max_prompt_length, data.special_tokens
    )


def training_stream(
    config: TrainConfig, units: Sequence[Unit], renderer: Renderer, *, rank: int = 0, ranks: int = 1
) -> Stream:
    """Return the batches of training; raise ValueError as `Stream` does."""
    return Stream(
        units,
        config.objective,
        batch_size=config.training.batch_size,
        micro_batch_size=config.training.micro_batch_size,
        seed=config.seed,
        pad_id=_pad_id(renderer),
        max_length=config.data.max_length,
        rank=rank,
        ranks=ranks,
        micro_batch_tokens=config.training.micro_batch_tokens,
        padding=config.training.padding,
    )


def held_out_evaluator(
    config: TrainConfig,
    sets: DataSets,
    renderer: Renderer,
    score: Score,
    reduce: Reduce,
    device: torch.device,
    *,
    rank: int = 0,
    ranks: int = 1,
    check: Callable[[], None] | None = None,
) -> Evaluator | None:
    """Return what measures the held-out set, if there is one; raise ValueError as `Evaluator` does."""
    if config.data.eval is None:
        return None
    return Evaluator(
        config.objective,
        sets.held_out,
        sets.held_out_pairs,
        score=score,
        reduce=reduce,
        batch_size=config.evaluation.batch_size,
        pad_id=_pad_id(renderer),
        max_length=config.data.max_length,
        device=device,
        rank=rank,
        ranks=ranks,
        check=check,
    )


def run_length(config: TrainConfig, stream: Stream) -> int:
    """Return the number of steps of a run."""
    return config.training.steps or stream.steps(config.training.epochs or 0.0)


def _pad_id(renderer: Renderer) -> int:
    """Return any token to pad with: what counts goes by position."""
    pad: int | None = renderer.tokenizer.pad_token_id
    return int(renderer.tokenizer.eos_token_id) if pad is None else pad
