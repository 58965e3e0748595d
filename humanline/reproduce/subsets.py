"""What of the pairs a cell learns from: a quarter of them, or all the worse answers and few of the better."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from humanline.reproduce.cells import Cell
from humanline.reproduce.start import Pairs, new_folder, write_rows


def some_pairs(cell: Cell, pairs: Pairs, model: Path, folder: Path) -> Pairs:
    """Return the pairs that a cell learns from; all of them, unless it says otherwise.

    Parameters
    ----------
    cell : Cell
        With a `quartile`, what `humanline inspect-data --keep-quartiles` keeps of the file; with `desirable`, the
        better answers of the first so many pairs and the worse ones of all, a row each.
    pairs : Pairs
    model : Path
        The start model, by which quarters are divided.
    folder : Path
        Made anew for the cell's own file.

    Raises
    ------
    EvaluationError
        If the pairs have no quarters.
    OSError
        If the file cannot be written.
    """
    if cell.quartile is not None:
        return _quarter(cell.quartile, pairs, model, folder)
    if cell.desirable is not None:
        return _few_desirable(cell.desirable, pairs, folder)
    return pairs


def _quarter(number: int, pairs: Pairs, model: Path, folder: Path) -> Pairs:
    from humanline.evaluate.inspect_run import config_of_file, inspect_data

    new_folder(folder)
    config = config_of_file(str(pairs.file), str(model))
    inspect_data(config, out=str(folder), keep_quartiles=(number,), say=lambda text: None)
    file = folder / f"kept-quartiles-{number}.jsonl"
    return replace(pairs, file=file, count=file.read_bytes().count(b"\n"))


def _few_desirable(share: float, pairs: Pairs, folder: Path) -> Pairs:
    new_folder(folder)
    rows = []
    with open(pairs.file, encoding="utf-8") as lines:
        for place, row in enumerate(map(json.loads, lines)):
            if place < share * pairs.count:
                rows.append({"prompt": row["prompt"], "completion": row["chosen"], "label": True})
            rows.append({"prompt": row["prompt"], "completion": row["rejected"], "label": False})
    file = folder / "answers.jsonl"
    write_rows(file, rows)
    return replace(pairs, file=file, shape="unpaired")
