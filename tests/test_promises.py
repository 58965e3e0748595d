"""The table of promises names tests that exist."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "promises.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "`tests/" in line]


@functools.cache
def defined(path: str) -> set[str]:
    """Return the names of functions and classes in a file, with those of their methods."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inside = node.body if isinstance(node, ast.ClassDef) else ()
            found |= {f"{node.name}::{one.name}" for one in inside if isinstance(one, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_every_promise_has_its_test(row):
    """Each row of docs/promises.md names a file of tests, or tests in one, and all of them are there."""
    fault, does, tests = (cell.strip() for cell in row.strip("|").split(" | "))
    assert fault and does
    named = re.findall(r"`(tests/[^`]*)`", tests)
    assert named
    for one in named:
        path, _, name = one.partition("::")
        assert (ROOT / path).is_file(), path
        assert not name or name in defined(path), one


def test_every_row_of_the_page_is_a_promise():
    """No row of a table goes without a test."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len(ROWS) >= 25 and set(rows) - set(ROWS) == {"| fault | what happens | test |"}
