"""What importing the theory brings in, and what it exports."""

from __future__ import annotations

import subprocess
import sys

import humanline.theory

HEAVY = ("torch", "matplotlib", "sympy", "mpmath", "scipy.stats", "scipy.optimize", "transformers")


def imported(statement: str) -> set[str]:
    """The heavy modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_is_light():
    """Importing the theory loads neither torch nor the slow parts of scipy; the check itself can see them."""
    assert imported("import humanline.theory") == set()
    assert imported("import humanline.theory, scipy.optimize") == {"scipy.optimize"}


def test_numpy_use_never_loads_torch():
    """Calling the array-agnostic functions on numpy arrays loads no torch either."""
    calls = "from humanline.theory import *; PowerValue()([1.0]); TverskyKahneman(.61)([.5]); ClipRange(-1, 1).clip(3)"
    assert imported(calls) == set()


def test_exports_are_documented_and_sorted():
    """Every exported name exists, has a docstring and stands in order; its docstring names a source and the paper."""
    names = humanline.theory.__all__
    assert names == sorted(names)
    for name in names:
        notes = getattr(humanline.theory, name).__doc__.partition("Source: ")[2]
        assert "arXiv 2509.24207" in notes, name
