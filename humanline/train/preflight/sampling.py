"""What drawing completions in a run's own process holds: a cache of keys and values, and the passes that fill it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from humanline.train.config import TrainConfig
from humanline.train.policy.load import TYPES
from humanline.train.policy.precision import narrowed
from humanline.train.preflight.dry_run import Meter, Quantities, in_depth, without_numbers
from humanline.train.preflight.workload import Drawn

#: Bytes for each of the vocabulary by which a row's token is picked: its scores as they come and in float32, their
#: logs, these over the temperature, and two rows of doubles, of probabilities and of their sums.
_PICKED = 4 + 4 + 4 + 4 + 8 + 8


def drawing_bytes(config: TrainConfig, outline: Any, batch: Drawn) -> int:
    """Return the most bytes beyond weights as they are kept that drawing a batch holds, if it goes on to the end.

    The larger of two: the pass over the prompts, and the one for the last token, which has the whole cache, and for a
    moment what it appends to twice. Copies of weights in the type of the computation are part of both. Under
    `training.padding: free` as with padding, since generate has it always.

    Parameters
    ----------
    config : TrainConfig
    outline
        The model on the meta device; left as it was.
    batch : Drawn

    Raises
    ------
    DryRunError
        If the model does something that depends on numbers.
    """
    vocabulary: int = outline.get_output_embeddings().weight.shape[0]
    found = in_depth(outline, lambda depth: _draw(config, outline, depth, batch))
    return round(max(found.values())) + batch.rows * vocabulary * _PICKED


def _draw(config: TrainConfig, outline: Any, depth: int | None, batch: Drawn) -> Quantities:
    """Return what is live at most in the first pass and in the last."""
    meter = Meter(counted=0, tokens=batch.rows * batch.prompt)
    with (
        without_numbers(config, outline, depth, meter, train=False, masks=True) as policy,
        contextlib.ExitStack() as stack,
    ):
        model = policy.model
        stack.enter_context(torch.no_grad())
        stack.enter_context(meter)
        if config.training.precision != "float32":
            stack.enter_context(narrowed(model, TYPES[config.training.precision]))

        def passed(width: int, cache: Any, total: int) -> Any:
            given = {"attention_mask": torch.empty((batch.rows, total), dtype=torch.long), "past_key_values": cache}
            ids = torch.empty((batch.rows, width), dtype=torch.long)
            return model(input_ids=ids, use_cache=True, logits_to_keep=1, **given).past_key_values

        meter.stretch = "first"
        passed(batch.prompt, None, batch.prompt)
        # All tokens but the last at once, for the cache that they leave alone.
        before = batch.prompt + batch.new - 1
        meter.stretch = "between"
        cache = passed(before, None, before)
        meter.stretch = "last"
        passed(1, cache, before + 1)
    return {name: float(meter.peaks[name]) for name in ("first", "last")}
