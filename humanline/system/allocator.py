"""How torch takes memory from a GPU, said in the environment before torch looks there."""

from __future__ import annotations

from collections.abc import Mapping

# The second and third are older names of the first, which torch still reads, and before it.
_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def growing_segments(environment: Mapping[str, str], platform: str) -> dict[str, str]:
    """Return the variables with which torch lets its pieces of a GPU's memory grow, instead of taking others.

    Batches differ in length from step to step, so that what one of them has left free is often too small for the
    next: without this, a run can be out of memory of which a good part is free.

    Parameters
    ----------
    environment : mapping
        Whoever has set up the allocator there, in whatever way, has the last word.
    platform : str
        As `sys.platform` is: torch can do this under Linux alone.
    """
    if platform != "linux" or any(name in environment for name in _NAMES):
        return {}
    return {_NAMES[0]: "expandable_segments:True"}
