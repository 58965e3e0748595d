"""A data file -> the units an objective trains on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from humanline.train.batch import Unit
from humanline.train.config import TrainConfig
from humanline.train.data import (
    Preference,
    Unpaired,
    check_labels,
    pairs_to_groups,
    pairs_to_unpaired,
    read_rows,
    report_duplicates,
)
from humanline.train.tokens import Renderer, tokenize


def read_units(
    config: TrainConfig, path: str, renderer: Renderer, *, as_pairs: bool = False
) -> tuple[list[Unit], dict[str, Any]]:
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
    report : dict
        What the lengths were, what was left out, and duplicates.

    Raises
    ------
    DataError
        If the file cannot be used; every problem is listed.
    """
    kind = "pairs" if as_pairs else config.objective.kind
    examples = cast(
        Any, read_rows(path, config.data_shape if kind != "nll" else "completion", columns=config.data.columns)
    )
    duplicates = report_duplicates(examples)
    if config.data_shape == "preference" and kind == "kto":
        examples = pairs_to_unpaired(cast(list[Preference], examples))
    if kind == "grpo":
        examples = pairs_to_groups(cast(list[Preference], examples))
    tokenized = tokenize(examples, renderer)
    if kind == "kto" and config.objective.kind == "kto":  # after the lengths, which may leave out all of one label
        kept = cast(tuple[Unpaired, ...], tokenized.examples)
        check_labels(kept, allow_single_label=config.objective.allow_single_label)
    units = [
        Unit(
            id=example.id,
            sequences=sequences,
            desirable=bool(getattr(example, "label", True)),
            scores=getattr(example, "scores", ()),
        )
        for example, sequences in zip(tokenized.examples, tokenized.sequences, strict=True)
    ]
    return units, {"path": path, "lengths": asdict(tokenized.report), "duplicates": asdict(duplicates)}
