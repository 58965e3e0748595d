"""A data file -> the units an objective trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from humanline.train.batch import Unit
from humanline.train.config import TrainConfig
from humanline.train.data import (
    DataError,
    DuplicateReport,
    check_labels,
    pairs_to_groups,
    pairs_to_unpaired,
    read_rows,
    report_duplicates,
)
from humanline.train.tokens import LengthReport, Renderer, tokenize


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a file: lengths, what was left out, duplicates."""

    path: str
    lengths: LengthReport
    duplicates: DuplicateReport

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.lengths}"]
        if self.duplicates.duplicates:
            parts.append(f"{self.duplicates.duplicates} duplicates")
        if self.duplicates.contradictions:
            parts.append(f"{self.duplicates.contradictions} contradictions")
        return "; ".join(parts)


def read_units(
    config: TrainConfig, path: str, renderer: Renderer, *, as_pairs: bool = False
) -> tuple[list[Unit], Report]:
    """Read, check and tokenise a file for the objective of a run.

    Preference rows become pairs (DPO), groups of two (GRPO), two unpaired examples (KTO) or their chosen answer (nll).

    Parameters
    ----------
    config : TrainConfig
    path : str
    renderer : Renderer
    as_pairs : bool
        Keep preference rows as pairs whatever the objective is (held-out preference accuracy).

    Returns
    -------
    units : list of Unit
    report : Report

    Raises
    ------
    DataError
        If the file cannot be used; every problem is listed.
    """
    kind = "pairs" if as_pairs else config.objective.kind
    shape = "completion" if kind == "nll" else config.data_shape
    try:
        examples = cast(Any, read_rows(path, shape, columns=config.data.columns))
    except DataError as error:
        if config.objective.kind == "kto":
            error.args = (f"{error}\nThis run reads data.shape: {shape}; KTO also reads preference or unpaired rows.",)
        raise
    from_pairs = kind == "kto" and shape == "preference"
    duplicates = report_duplicates(pairs_to_unpaired(examples) if from_pairs else examples)
    if kind == "grpo":
        examples = pairs_to_groups(examples)
    tokenized = tokenize(examples, renderer)  # pairs as pairs, so that answers cut to the same tokens are found
    units = []
    for example, sequences in zip(tokenized.examples, tokenized.sequences, strict=True):
        if from_pairs:
            units += [
                Unit(f"{example.id}#{name}", (sequence,), desirable=name == "chosen")
                for name, sequence in zip(("chosen", "rejected"), sequences, strict=True)
            ]
        else:
            label, scores = getattr(example, "label", True), getattr(example, "scores", ())
            units.append(Unit(example.id, sequences, desirable=bool(label), scores=scores))
    if config.objective.kind == "kto" and shape == "unpaired":
        # After the lengths, which may leave out all examples of one label.
        check_labels(tokenized.examples, allow_single_label=config.objective.allow_single_label)
    return units, Report(path, tokenized.report, duplicates)
