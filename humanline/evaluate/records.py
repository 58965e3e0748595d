"""Evaluation files: one JSON file for what one model, of one seed, reached on a list of items.

```
{"format": 1, "name": "dpo", "seed": 0,
 "settings": {"prompts": ..., "sampling": ..., "scoring": ...},
 "summary": {...},
 "items": [{"id": "17", "prompt": "<digest>", "values": [1.0, null], "status": ["ok", "timeout"]}, ...]}
```

An item has one value a sample, null where a status says why there is none. Files are compared where their settings are
equal; what may differ, the model above all, stands outside of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from humanline.system.files import write_text
from humanline.system.paths import PathError, absolute
from humanline.system.terminal import shorten
from humanline.train.run.looks import is_number

FORMAT = 1
NAME = "evaluation.json"


class EvaluationError(ValueError):
    """An evaluation that cannot be read, or files that cannot be compared."""


def in_full(path: str | Path) -> Path:
    """Return a path in full; raise EvaluationError if no file can have it."""
    try:
        return absolute(path)
    except PathError as error:
        raise EvaluationError(f"{str(path)!r} {error}") from None


def text_of_file(path: str | Path, inside: str = "") -> str:
    """Return the text of a file, or of the file `inside` a folder; raise EvaluationError if it cannot be read."""
    file = in_full(path)
    try:
        return (file / inside if file.is_dir() else file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise EvaluationError(f"{path}: cannot be read: {reason}") from None


@dataclass(frozen=True, slots=True)
class Item:
    """What a model reached on one item.

    Attributes
    ----------
    id : str
    prompt : str
        Digest of what was asked, so that equal ids stand for equal questions.
    values : tuple of float or None
        One a sample.
    status : tuple of str
        One a sample: "ok", or why there is no value.
    """

    id: str
    prompt: str
    values: tuple[float | None, ...]
    status: tuple[str, ...]

    @property
    def known(self) -> list[float]:
        """Return the values that are there."""
        return [value for value in self.values if value is not None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation file.

    Attributes
    ----------
    name : str
        Of the model; files of several seeds share it.
    seed : int or None
        Of the training run; None where it has none.
    settings : mapping
        All that must be equal for two to be compared.
    summary : mapping
        What `humanline evaluate` has said of it.
    items : tuple of Item
    """

    name: str
    seed: int | None
    settings: Mapping[str, Any]
    items: tuple[Item, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write an evaluation file, an item a line, whole or not at all."""
    head = {
        "format": FORMAT,
        "name": evaluation.name,
        "seed": evaluation.seed,
        "settings": dict(evaluation.settings),
        "summary": dict(evaluation.summary),
    }
    lines = [json.dumps(head, indent=1, allow_nan=False)[:-2] + ',\n "items": [\n']
    for number, one in enumerate(evaluation.items):
        row = {"id": one.id, "prompt": one.prompt, "values": one.values, "status": one.status}
        lines.append(f"  {json.dumps(row, allow_nan=False)}{',' if number + 1 < len(evaluation.items) else ''}\n")
    write_text(path, [*lines, " ]\n}\n"])


def read_evaluation(path: str | Path) -> Evaluation:
    """Read an evaluation file, or the one in a folder of `humanline evaluate`.

    Raises
    ------
    EvaluationError
        If there is no such file, it is none of `humanline evaluate`, or of another format; if an item is repeated, has
        no sample, or a value is neither a finite number nor null with a status.
    """
    if (folder := in_full(path)).is_dir() and not (folder / NAME).exists():
        raise EvaluationError(f"{path}: this folder holds no {NAME}, which `humanline evaluate` writes")
    text = text_of_file(path, NAME)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"{path}: no evaluation file, which is JSON: {error}") from None
    if not isinstance(row, dict) or not {"format", "items", "settings"} <= row.keys():
        raise EvaluationError(f"{path}: no evaluation file; `humanline evaluate` writes them")
    if row["format"] != FORMAT:
        raise EvaluationError(f"{path} has format {row['format']!r}; this version of humanline reads {FORMAT}")
    try:
        name, seed, settings, summary = row["name"], row["seed"], row["settings"], row["summary"]
        if not (isinstance(name, str) and name and isinstance(settings, dict) and isinstance(summary, dict)):
            raise TypeError("name must be a string that is not empty, settings and summary objects")
        if seed is not None and type(seed) is not int:
            raise TypeError("seed must be an integer or null")
        items = tuple(_items(path, row["items"]))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, EvaluationError):
            raise
        raise EvaluationError(f"{path}: no evaluation file ({type(error).__name__}: {error})") from None
    return Evaluation(name, seed, settings, items, summary)


def prompt_digest(parts: Any) -> str:
    """Return the digest of what was asked, as JSON can say it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:16]


def without_value(items: Sequence[Item]) -> Counter[str]:
    """Return how many samples have no value, by status."""
    return Counter(
        status for item in items for value, status in zip(item.values, item.status, strict=True) if value is None
    )


def repeated_prompts(items: Sequence[Item]) -> int:
    """Return how many items ask what an earlier one asks, so that they tell less than as many others."""
    return len(items) - len({item.prompt for item in items})


def _items(path: str | Path, rows: Any) -> Iterator[Item]:
    seen: set[str] = set()
    if not isinstance(rows, list) or not rows:
        raise EvaluationError(f"{path}: it has no items")
    for number, row in enumerate(rows, start=1):
        where = f"{path}: item {number}"
        if not isinstance(row, dict) or not {"id", "prompt", "values", "status"} <= row.keys():
            raise EvaluationError(f"{where}: must have id, prompt, values and status")
        name, values, status = row["id"], row["values"], row["status"]
        if not (isinstance(name, str) and isinstance(row["prompt"], str)):
            raise EvaluationError(f"{where}: id and prompt must be strings")
        if name in seen:
            raise EvaluationError(f"{where}: {name!r} is there twice")
        seen.add(name)
        if not (isinstance(values, list) and isinstance(status, list) and 0 < len(values) == len(status)):
            raise EvaluationError(f"{where}: {name!r} must have one status for each value, and at least one")
        for value, word in zip(values, status, strict=True):
            if not isinstance(word, str) or not (is_number(value) if word == "ok" else value is None):
                raise EvaluationError(
                    f"{where}: {name!r} must have a finite number where its status is ok, and null elsewhere; got "
                    f"{shorten(repr(value))} with {word!r}"
                )
        yield Item(name, row["prompt"], tuple(values), tuple(status))
