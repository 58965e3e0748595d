"""Testbeds by their names."""

from __future__ import annotations

from humanline.reproduce.testbeds import arithmetic, instructions, letters
from humanline.reproduce.testbeds.base import Testbed

TESTBEDS = {
    bed.name: bed for bed in (letters.SMALL, letters.LARGE, arithmetic.SMALL, instructions.SMALL, instructions.LARGE)
}


def testbed(name: str) -> Testbed:
    """Return the testbed of that name.

    Raises
    ------
    ValueError
        If there is none, naming those that there are.
    """
    if name not in TESTBEDS:
        raise ValueError(f"no testbed is called {name!r}; there are {', '.join(TESTBEDS)}")
    return TESTBEDS[name]
