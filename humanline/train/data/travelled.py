"""The prompts by whose answers the distance from the start is measured: best those that nothing else uses."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from dataclasses import replace
from typing import Any

from humanline.train.config import TrainConfig
from humanline.train.config.data import DataConfig
from humanline.train.data.counting import Counting, uncounted
from humanline.train.data.layout import shape_of
from humanline.train.data.messages import KWARGS, TOOLS
from humanline.train.data.prompts import Context, read_contexts
from humanline.train.data.render import Renderer
from humanline.train.data.sets import Report
from humanline.train.data.source import DataError

Key = Callable[[Context], Hashable]  # what is equal of prompts that are the same


def as_prompts(data: DataConfig) -> DataConfig:
    """Return how rows are read of which the columns of answers have none."""
    columns = {name: theirs for name, theirs in data.columns.items() if name in ("prompt", "system", TOOLS, KWARGS)}
    return data.model_copy(update={"columns": columns})


def read_travelled(
    config: TrainConfig,
    renderer: Renderer,
    key: Key,
    trained: Container[Any],
    scored: Container[Any],
    counting: Counting = uncounted,
) -> tuple[list[Context], Report]:
    """Return evaluation.distance.limit different prompts, the longest first, and a report that says which they are.

    They are the first of evaluation.distance.prompts, or else of data.eval, that training does not have and that give
    no held-out score; where these are too few, those that give one come after them.

    Parameters
    ----------
    config : TrainConfig
        With a section evaluation.distance.
    renderer : Renderer
    key : callable
        What tells prompts apart.
    trained, scored : container
        Keys of the prompts of training, and of those that give held-out metrics.
    counting : Counting

    Raises
    ------
    FileNotFoundError, DataError, ValueError
        As `read_contexts`; and DataError if training has all of them.
    """
    distance = config.evaluation.distance
    assert distance is not None
    path = distance.prompts or config.data.eval
    assert path is not None  # as the configuration has it
    shape = "prompt" if distance.prompts is not None else shape_of(config, path)
    if shape == "prompt" and config.rounds is None:
        config = config.model_copy(update={"data": as_prompts(config.data)})
    found, report = read_contexts(config, path, renderer, counting, sampling=config.travelling, shape=shape)
    different = {key(one): one for one in reversed(found)}  # the first of equal ones
    fresh = [one for one in found if different[key(one)] is one and key(one) not in trained]
    own = [one for one in fresh if key(one) not in scored][: distance.limit]
    shared = [one for one in fresh if key(one) in scored][: distance.limit - len(own)]
    if not own and not shared:
        raise DataError(
            f"{report.path}: no prompt is left to measure the distance from the start by: training has all of them",
            advice="Name a file of other prompts: evaluation.distance.prompts.",
        )
    note = f"by answers to {len(own) + len(shared)} of its prompts the distance from the start is measured"
    if shared:
        note += (
            f", of which {len(shared)} give held-out metrics too: a lower evaluation.limit, or "
            "evaluation.distance.prompts, leaves it prompts of its own"
        )
    return sorted([*own, *shared], key=lambda one: -len(one.ids)), replace(report, note=note)
