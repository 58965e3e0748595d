"""A plugin of pytest that tells which heavy packages a session has imported, in its last line."""

from __future__ import annotations

import sys

import pytest


def heavy() -> list[str]:
    """Return the names of torch and of transformers' files of models, those that were imported."""
    parts = [(name, name.rpartition(".")[2]) for name in sorted(sys.modules)]
    models = [
        name
        for name, last in parts
        if name.startswith("transformers.") and last.startswith("modeling_") and last != "modeling_auto"
    ]
    return [*(["torch"] if "torch" in sys.modules else []), *models]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    print("imported:", *heavy())
