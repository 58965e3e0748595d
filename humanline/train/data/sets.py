"""A data set -> the units an objective trains on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from humanline.train.config import TrainConfig
from humanline.train.data.bad_rows import BadRows
from humanline.train.data.batch import Unit
from humanline.train.data.counting import Counting, uncounted
from humanline.train.data.duplicates import DuplicateReport, Duplicates
from humanline.train.data.layout import shape_of, with_hint
from humanline.train.data.render import Renderer
from humanline.train.data.rows import Columns, SetReader
from humanline.train.data.shapes import (
    group_scores,
    pairs_to_unpaired,
    refuse_single_label,
    refuse_some_scores,
    refuse_unweighted,
)
from humanline.train.data.source import DataError
from humanline.train.data.tokenize import LengthReport, Tokenizing, in_batches
from humanline.train.data.units import BothSides, Names, Units, prompt_hashes


@dataclass(frozen=True, slots=True)
class Report:
    """A report on a set: lengths, examples left out, duplicates, prompts and how many of them training sees too."""

    path: str  # the file in full, or the set of the hub
    lengths: LengthReport
    duplicates: DuplicateReport
    prompts: int = 0  # different ones, as token ids
    prompts_in_training: int | None = None  # of a held-out set: how many of them also occur in the training set
    columns: Columns | None = None  # read and ignored
    beyond_limit: int = 0  # rows that were checked and not tokenised, of which `lengths` counts none
    note: str = ""  # what its prompts are for, or hold
    bad_rows: BadRows | None = None  # that were dropped, of which `lengths` counts none

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.lengths}", *([str(self.bad_rows)] if self.bad_rows else [])]
        if self.beyond_limit:
            parts.append(f"{self.beyond_limit} more rows are not used (evaluation.limit)")
        if self.duplicates.duplicates:
            parts.append(f"{self.duplicates.duplicates} duplicates")
        if self.duplicates.contradictions:
            parts.append(f"{self.duplicates.contradictions} contradictions")
        if self.prompts_in_training:
            parts.append(f"{self.prompts_in_training} of {self.prompts} prompts also occur in the training set")
        parts += [self.note] if self.note else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class DataSets:
    """The units that a run trains on, and those that it is measured by."""

    train: Sequence[Unit]
    held_out: Sequence[Unit] = field(default_factory=list)
    held_out_pairs: Sequence[Unit] = field(default_factory=list)  # where `held_out` took pairs apart
    reports: dict[str, Report] = field(default_factory=dict)  # "train" and, where there is one, "held_out"


def read_sets(config: TrainConfig, renderer: Renderer, counting: Counting = uncounted) -> DataSets:
    """Read, check and tokenise the training set and the held-out set of a run.

    That both are the same set, or share prompts, is no error: a run may ask whether a model can learn its data by
    heart. It is reported.

    Raises
    ------
    FileNotFoundError, DataError, ValueError
        As `read_units`; if neither set can be used, one DataError with the problems of both.
    """
    paths = {"train": config.data.train} | ({"eval": config.data.eval} if config.data.eval is not None else {})
    found: dict[str, tuple[Units, Report]] = {}
    errors: dict[str, DataError | FileNotFoundError] = {}
    for name, path in paths.items():
        try:
            limit = config.evaluation.limit if name == "eval" else None
            found[name] = read_units(config, path, renderer, counting=counting, limit=limit)
            if name == "train":
                _refuse_unweighted(config, *found[name])
        except (DataError, FileNotFoundError) as error:
            errors[name] = error
    if len(errors) > 1:
        raise _together(errors)
    for only in errors.values():
        raise only
    units, report = found["train"]
    sets = DataSets(units, reports={"train": report})
    if config.data.eval is None:
        return sets
    held_out, report = found["eval"]
    shared = len(np.intersect1d(prompt_hashes(held_out), prompt_hashes(units), assume_unique=True))
    reports = sets.reports | {"held_out": replace(report, prompts_in_training=shared)}
    pairs = held_out.pairs() if held_out.taken_apart else []
    return DataSets(units, held_out, pairs, reports)


def _refuse_unweighted(config: TrainConfig, units: Units, report: Report) -> None:
    try:
        refuse_unweighted(units.labels, config.objective.label_weights)
    except DataError as error:
        raise DataError(f"{report.path}: {error.heading}", error.problems, error.advice) from None


def _together(errors: dict[str, DataError | FileNotFoundError]) -> DataError:
    texts = [error.text(8) if isinstance(error, DataError) else str(error) for error in errors.values()]
    error = DataError("\n".join(f"data.{name}: {text}" for name, text in zip(errors, texts, strict=True)))
    error.problems = tuple(
        problem for one in errors.values() for problem in (one.problems if isinstance(one, DataError) else (str(one),))
    )
    return error


def read_units(
    config: TrainConfig, path: str, renderer: Renderer, *, counting: Counting = uncounted, limit: int | None = None
) -> tuple[Units, Report]:
    """Read, check and tokenise a set for the objective of a run.

    Preference rows become what the objective's units are: pairs, groups of two, two labelled examples or their chosen
    answer.
    Rows are read and tokenised in batches, of which nothing stays but token ids, names and labels.

    Parameters
    ----------
    config : TrainConfig
    path : str
        A file or a set of the hub, as `read_set` takes it.
    renderer : Renderer
    counting : Counting
        Shown how far reading is.
    limit : int, optional
        Rows that are used, the first that fit; the others are read and checked as rows.

    Returns
    -------
    units : Units
    report : Report

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    DataError
        If the set cannot be used; every problem is listed.
    ValueError
        If the tokenizer loses text.
    """
    objective = config.objective
    shape = objective.reads_as(shape_of(config, path))
    from_pairs = objective.unit == "example" and shape == "preference"
    names, duplicates = Names(), Duplicates()
    reader = SetReader.of(config.data, path, shape, counting)
    # Pairs as pairs: answers cut to the same tokens are found.
    tokenizing: Tokenizing[Any] = Tokenizing(renderer, dropping=reader.dropping)
    units = Units(tokenizing.sequences, Names(), taken_apart=from_pairs)
    unscored, first = 0, ""
    try:
        with contextlib.closing(iter(reader)) as examples, contextlib.closing(in_batches(examples)) as batches:
            for batch in batches:
                for example in batch:
                    names.append(example.id)
                for example in pairs_to_unpaired(batch) if from_pairs else batch:
                    duplicates.add(example)
                for example in tokenizing.add_some(batch, limit):
                    units.names.append(example.id)
                    if shape == "unpaired":
                        units.labels.append(bool(example.label))
                    elif objective.grouping is not None:
                        units.scores.extend(group_scores(example))
                        if example.chosen_score is None:
                            unscored, first = unscored + 1, first or example.id
    except DataError as error:
        raise with_hint(error, config, shape, reader.there) from None
    name = reader.source.name
    found = duplicates.report(BothSides(names) if from_pairs else names)
    bad = reader.left_out(tokenizing.dropped)
    try:
        lengths = tokenizing.finish()
    except DataError as error:
        raise DataError(f"{name}: {error.heading}", error.problems, error.advice) from None
    # After the lengths, which may leave out all examples of one label.
    try:
        if shape == "unpaired" and objective.needs_both_labels:
            desirable = sum(units.labels)
            refuse_single_label(desirable, len(units) - desirable)
        refuse_some_scores(unscored, len(units), first)
    except DataError as error:
        lost = f" ({lengths})" if lengths.kept < lengths.total else ""
        raise DataError(f"{name}: {error.heading}{lost}", error.problems, error.advice) from None
    beyond = len(names) - len(tokenizing.dropped) - lengths.total
    different = len(prompt_hashes(units))
    report = Report(name, lengths, found, different, columns=reader.columns, beyond_limit=beyond)
    note = ""
    if reader.marked and config.data.template == "chat":
        note = (
            f"{reader.marked} prompts are one user's turn with the turn marks of HH-RLHF in it: data.format: hh makes "
            "messages of them"
        )
    return units, replace(report, bad_rows=bad, note=note)
