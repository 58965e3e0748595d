"""Libraries that speak when they are imported or load a model, kept quiet."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator


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
