"""A data set -> the units an objective trains on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from humanline.train.batch import Unit
from humanline.train.config import TrainConfig
from humanline.train.data import (
    Columns,
    DuplicateReport,
    check_labels,
    pairs_to_groups,
    pairs_to_unpaired,
    read_set,
    report_duplicates,
)
from humanline.train.sources import DataError, open_source
from humanline.train.tokens import LengthReport, Renderer, tokenize


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a set: lengths, what was left out, duplicates, prompts and how many of them training sees too."""

    path: str  # the file in full, or the set of the hub
    lengths: LengthReport
    duplicates: DuplicateReport
    prompts: int = 0  # different ones, as token ids
    prompts_in_training: int | None = None  # of a held-out set: how many of them also occur in the training set
    columns: Columns | None = None  # read and ignored

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.lengths}"]
        if self.duplicates.duplicates:
            parts.append(f"{self.duplicates.duplicates} duplicates")
        if self.duplicates.contradictions:
            parts.append(f"{self.duplicates.contradictions} contradictions")
        if self.prompts_in_training:
            parts.append(f"{self.prompts_in_training} of {self.prompts} prompts also occur in the training set")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class DataSets:
    """What a run trains on and is measured by."""

    train: list[Unit]
    held_out: list[Unit] = field(default_factory=list)
    held_out_pairs: list[Unit] = field(default_factory=list)  # where `held_out` took pairs apart (KTO)
    reports: dict[str, Report] = field(default_factory=dict)  # "train" and, where there is one, "held_out"


def read_sets(config: TrainConfig, renderer: Renderer) -> DataSets:
    """Read, check and tokenise the training set and the held-out set of a run.

    That both are the same set, or share prompts, is no error: a run may ask whether a model can learn its data by
    heart. It is reported.

    Raises
    ------
    FileNotFoundError, DataError, ValueError
        As `read_units`; if neither set can be used, one DataError with the problems of both.
    """
    paths = {"train": config.data.train} | ({"eval": config.data.eval} if config.data.eval is not None else {})
    found: dict[str, tuple[list[Unit], Report]] = {}
    errors: dict[str, DataError | FileNotFoundError] = {}
    for name, path in paths.items():
        try:
            found[name] = read_units(config, path, renderer)
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
    shared = len(_prompts(held_out) & _prompts(units))
    reports = sets.reports | {"held_out": replace(report, prompts_in_training=shared)}
    from_pairs = config.objective.kind == "kto" and config.data_shape == "preference"
    pairs = read_units(config, config.data.eval, renderer, as_pairs=True)[0] if from_pairs else []
    return DataSets(units, held_out, pairs, reports)


def _together(errors: dict[str, DataError | FileNotFoundError]) -> DataError:
    texts = [error.text(8) if isinstance(error, DataError) else str(error) for error in errors.values()]
    error = DataError("\n".join(f"data.{name}: {text}" for name, text in zip(errors, texts, strict=True)))
    error.problems = tuple(
        problem for one in errors.values() for problem in (one.problems if isinstance(one, DataError) else (str(one),))
    )
    return error


def _prompts(units: Iterable[Unit]) -> set[int]:
    """Return a hash of each prompt: 8 bytes in place of all its tokens."""
    return {hash(unit.sequences[0].ids[: unit.sequences[0].prompt_length]) for unit in units}


def read_units(
    config: TrainConfig, path: str, renderer: Renderer, *, as_pairs: bool = False
) -> tuple[list[Unit], Report]:
    """Read, check and tokenise a set for the objective of a run.

    Preference rows become pairs (DPO), groups of two (GRPO), two unpaired examples (KTO) or their chosen answer (nll).

    Parameters
    ----------
    config : TrainConfig
    path : str
        A file or a set of the hub, as `read_set` takes it.
    renderer : Renderer
    as_pairs : bool
        Keep preference rows as pairs whatever the objective is (held-out preference accuracy).

    Returns
    -------
    units : list of Unit
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
    kind = "pairs" if as_pairs else config.objective.kind
    shape = "completion" if kind == "nll" else config.data_shape
    try:
        found, columns = read_set(path, shape, columns=config.data.columns, ignore=config.data.ignore)
        examples = cast(Any, found)
    except DataError as error:
        if config.objective.kind != "kto" or not error.problems:
            raise
        hint = f"This run reads data.shape: {shape}; KTO also reads preference or unpaired rows."
        raise DataError(error.heading, error.problems, f"{error.advice}\n{hint}") from None
    name = open_source(path).name
    from_pairs = kind == "kto" and shape == "preference"
    duplicates = report_duplicates(pairs_to_unpaired(examples) if from_pairs else examples)
    if kind == "grpo":
        examples = pairs_to_groups(examples)
    try:
        tokenized = tokenize(examples, renderer)  # pairs as pairs, so that answers cut to the same tokens are found
    except DataError as error:
        raise DataError(f"{name}: {error.heading}", error.problems, error.advice) from None
    if config.objective.kind == "kto" and shape == "unpaired":
        try:  # after the lengths, which may leave out all examples of one label
            check_labels(tokenized.examples, allow_single_label=config.objective.allow_single_label)
        except DataError as error:
            lost = f" ({tokenized.report})" if tokenized.report.kept < tokenized.report.total else ""
            raise DataError(f"{name}: {error.heading}{lost}", error.problems, error.advice) from None
    units = []
    for example, sequences in zip(tokenized.examples, tokenized.sequences, strict=True):
        if from_pairs:
            units += [
                Unit(f"{example.id}#{side}", (sequence,), desirable=side == "chosen")
                for side, sequence in zip(("chosen", "rejected"), sequences, strict=True)
            ]
        else:
            label, scores = getattr(example, "label", True), getattr(example, "scores", ())
            units.append(Unit(example.id, sequences, desirable=bool(label), scores=scores))
    return units, Report(name, tokenized.report, duplicates, len(_prompts(units)), columns=columns)
