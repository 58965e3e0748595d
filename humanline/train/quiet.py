"""Libraries that speak when they are imported, kept quiet."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keep warnings of an import to itself: torchao names every kernel that this machine has no use for."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def import_transformers() -> None:
    """Import what transformers needs to make a model; it imports torchao if there is one."""
    with quiet_import():
        import transformers.modeling_utils  # noqa: F401
