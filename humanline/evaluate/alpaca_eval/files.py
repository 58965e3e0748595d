"""JSON lists of the package: their objects with the lines that they begin in, and the instructions of its set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from humanline.evaluate.records import EvaluationError, text_of_file
from humanline.system.files import output_path


def objects(path: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects of a JSON list with the lines that they begin in."""
    rows = list(_each(path, text_of_file(path)))
    if not rows:
        raise EvaluationError(f"{path}: the list is empty")
    return rows


def _each(path: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    decoder, line, at = json.JSONDecoder(), 1, 0

    def space(begin: int) -> int:
        while begin < len(text) and text[begin] in " \t\r\n":
            begin += 1
        return begin

    at = space(0)
    if text[at : at + 1] != "[":
        raise EvaluationError(f"{path}: must be a JSON list of objects")
    counted, at = 0, space(at + 1)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            row, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise EvaluationError(f"{path}:{line}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise EvaluationError(f"{path}:{line}: must be an object; got {type(row).__name__}")
        yield line, row
        at = space(end)
        if text[at : at + 1] == ",":
            at = space(at + 1)
        elif text[at : at + 1] != "]":
            raise EvaluationError(f"{path}:{line}: the list breaks off, or has no comma, behind what begins here")
    if space(at + 1) < len(text):
        raise EvaluationError(f"{path}: something stands behind the list")


def read_instructions(path: str) -> dict[str, dict[str, Any]]:
    """Return the rows of an evaluation set by instruction; raise EvaluationError if one is there twice."""
    rows: dict[str, dict[str, Any]] = {}
    for line, row in objects(path):
        text = text_of(row, "instruction", f"{path}:{line}")
        if text in rows:
            raise EvaluationError(f"{path}:{line}: the instruction {short(text)} is there twice")
        rows[text] = row
    return rows


def text_of(row: dict[str, Any], name: str, where: str) -> str:
    """Return a text of a row; raise EvaluationError if it is none."""
    value = row.get(name)
    if not isinstance(value, str):
        raise EvaluationError(f"{where}: must have a text {name!r}; got {value!r:.40}")
    return value


def short(text: str) -> str:
    """Return the beginning of a text, in quotes, on one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else line[:59] + "…")


def free_file(out: str) -> Path:
    """Return the path of a file that is to be made; raise EvaluationError if it exists, or has no folder."""
    target = output_path(out)
    if target.exists():
        raise EvaluationError(f"--out {out!r} exists already; choose another name or remove it")
    if not target.parent.is_dir():
        raise EvaluationError(f"--out {out!r}: there is no folder {str(target.parent)!r}")
    return target
