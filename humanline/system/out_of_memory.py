"""What it looks like when memory has run out, whoever says so."""

from __future__ import annotations

import re

_ASKED = re.compile(r"(?:tried to|unable to) allocate (\d+(?:\.\d+)?) ?(bytes|[KMGTPE]i?B)", re.IGNORECASE)
_UNITS = {"b": 1} | {letter: 2 ** (10 * power) for power, letter in enumerate("kmgtpe", start=1)}
_GENERAL = ("RuntimeError", "AcceleratorError")  # of torch, for whatever goes wrong
_WORDS = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",  # of memory that the allocator does not manage: pinned, or a stream's and a kernel's
    "[CUDA]: out of memory",  # of Triton, as it loads a kernel
    "CUBLAS_STATUS_ALLOC_FAILED",
)


class MemoryRanOutError(MemoryError):
    """Memory has run out; the message says where, how much was needed, and what to change."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory has run out; only torch's allocator for GPUs has a type of error for that."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (type(error).__name__ in _GENERAL and any(words in str(error) for words in _WORDS))
    )


def bytes_asked(error: BaseException) -> float:
    """Return how many bytes there was no room for, as torch or numpy says it; 0 where nobody does."""
    found = _ASKED.search(str(error))
    return float(found[1]) * _UNITS[found[2][0].lower()] if found else 0.0
