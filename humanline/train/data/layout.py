"""What the rows of a set look like: the shape of those whose recipe gives none, and hints where it is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from humanline.train.config import TrainConfig
from humanline.train.config.objective import OBJECTIVES, AnyShape
from humanline.train.data.row import OUTPUT, SIDES
from humanline.train.data.source import DataError
from humanline.train.data.sources import open_source

_ANSWERS = ("completion", "messages", OUTPUT)


def looks_like(there: Collection[str], columns: Mapping[str, str]) -> AnyShape | None:
    """Return the shape of rows with some columns, of which `columns` renames some; None if they are of no shape."""
    ours = {*there} - {*columns.values()} | {name for name, theirs in columns.items() if theirs in there}
    if "label" in ours and not ours.isdisjoint(_ANSWERS):
        return "unpaired"
    if {"chosen", "rejected"} <= ours or {*SIDES[:2], "label"} <= ours:
        return "preference"
    if not ours.isdisjoint(_ANSWERS):
        return "completion"
    return "prompt" if "prompt" in ours else None


def shape_of(config: TrainConfig, path: str) -> AnyShape:
    """Return the shape of a set's rows: as the recipe says, or as its first row looks where its objective reads that.

    Raises
    ------
    FileNotFoundError, DataError
        As `open_source`, where the first row is looked at.
    """
    shapes = config.objective.shapes
    if config.rounds is not None or config.data.shape is not None or len(shapes) == 1:
        return config.data_shape
    source = open_source(path)
    rows: Any = source.rows([], None)
    with contextlib.closing(rows):
        first = next(rows, None)
    looks = None if first is None else looks_like(source.columns(first[1]), config.data.columns)
    return config.data_shape if looks is None or looks not in shapes else looks


def with_hint(error: DataError, config: TrainConfig, shape: AnyShape, there: Collection[str]) -> DataError:
    """Return the error of a set whose rows were read as one shape and look like another, with what to do about it."""
    looks = looks_like(there, config.data.columns)
    hint = _hint(config, shape, looks) if error.problems and looks != shape else ""
    if not hint:
        return error
    return DataError(error.heading, error.problems, f"{error.advice}\n{hint}" if error.advice else hint)


def _hint(config: TrainConfig, shape: AnyShape, looks: AnyShape | None) -> str:
    objective = config.objective
    if config.rounds is not None:
        if looks in (None, "prompt"):
            return ""
        return f"In rounds rows are prompts; these look like {looks} rows, which source: {{kind: fixed}} trains on."
    if looks is None:
        if objective.unit != "example":
            return ""
        return f"This run reads data.shape: {shape}; {objective.title} also reads preference or unpaired rows."
    if looks == "prompt":
        what = "These rows are prompts without answers, to which the policy gives answers in rounds: "
        return f"{what}source: {{kind: rounds, ...}} (humanline cp tiny-online copies a recipe that has it)."
    if looks in objective.shapes:
        also = f"; {objective.title} also reads preference or unpaired rows" if objective.unit == "example" else ""
        return f"These rows look like {looks} rows: set data.shape: {looks}{also}."
    ours = [one for one in OBJECTIVES if isinstance(one.shapes, tuple)]  # what others read depends on their settings
    kinds = [one.model_fields["kind"].default for one in ours if looks in one.shapes]
    return f"These rows look like {looks} rows, which objective.kind: {' or '.join(kinds)} reads."
