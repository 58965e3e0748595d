"""Imports of libraries that print when they are imported or load a model: kept quiet, or shown safely."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

from humanline.system.terminal import told


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what libraries log and warn of, errors aside, from the terminal: torchao names every kernel it lacks."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def shown_safely() -> Iterator[None]:
    """Show what libraries log and warn of as everything else is shown: it may hold names of files, and secrets."""

    class Record(logging.LogRecord):
        def getMessage(self) -> str:
            return told(super().getMessage(), keep="\n")

    def warn(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        with contextlib.suppress(OSError):
            print(told(text, keep="\n"), end="", file=file or sys.stderr)

    factory, before = logging.getLogRecordFactory(), warnings.showwarning
    logging.setLogRecordFactory(Record)
    warnings.showwarning = warn
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)
        warnings.showwarning = before


def import_transformers() -> None:
    """Import what transformers needs to make a model; it imports torchao if there is one.

    Raises
    ------
    ValueError
        If Python runs without docstrings, which transformers reads.
    """
    if sys.flags.optimize > 1:
        raise ValueError(
            "Python runs without docstrings (python -OO, or PYTHONOPTIMIZE=2), which transformers reads to make its "
            "models: leave the option out, or unset PYTHONOPTIMIZE"
        )
    with quiet():
        import transformers.modeling_utils  # noqa: F401


def quiet_libraries() -> None:
    """Import transformers and switch off its progress bars, for a process that says by itself what it is doing."""
    import_transformers()
    from transformers.utils import logging as library

    library.disable_progress_bar()
