"""Testbeds by their names."""

from __future__ import annotations

from humanline.reproduce.testbeds import arithmetic, instructions, letters
from humanline.reproduce.testbeds.base import Testbed

TESTBEDS = {
    bed.name: bed for bed in (letters.SMALL, letters.LARGE, arithmetic.SMALL, instructions.SMALL, instructions.LARGE)
}

#: What the hypotheses (`rules.Rules`) do not speak of: the paper's Figure 9, a larger model of another family.
OTHERS = {letters.GEMMA2.name: letters.GEMMA2}


def testbed(name: str) -> Testbed:
    """Return the testbed of that name.

    Raises
    ------
    ValueError
        If there is none, naming those that there are.
    """
    known = TESTBEDS | OTHERS
    if name not in known:
        raise ValueError(f"no testbed is called {name!r}; there are {', '.join(known)}")
    return known[name]
