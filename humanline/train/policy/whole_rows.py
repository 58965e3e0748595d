"""Let transformers know that each row of a batch is one sequence, which it would otherwise ask the device.

Where a model is given no attention mask, transformers looks at the positions of all tokens for rows that hold several
sequences, in every pass, and on a GPU waits for the answer. Training knows it: no row does.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_WHOLE = ContextVar("whole", default=False)  # of this thread: in another one a sampler may run the same model


@contextlib.contextmanager
def whole_rows() -> Iterator[None]:
    """Say so of all rows that this thread gives to models of transformers, for as long as the context lasts."""
    _listen()
    before = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(before)


@functools.cache
def _listen() -> None:
    """Have transformers look here first; a version that asks in another way goes on asking."""
    from transformers import masking_utils

    look = getattr(masking_utils, "find_packed_sequence_indices", None)
    if look is None:
        return

    @functools.wraps(look)
    def find_packed_sequence_indices(*args: Any, **options: Any) -> Any:
        return None if _WHOLE.get() else look(*args, **options)

    masking_utils.find_packed_sequence_indices = find_packed_sequence_indices
