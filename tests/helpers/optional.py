"""torch for tests of the base package: where it is not installed, what needs it is skipped, and only that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import BASE

WHY = "needs torch, which the base package does without"


class Absent:
    """Stands for torch and for whatever is asked of it: it has every name, is no type of anything, and skips if called.

    A test that calls it is skipped. A file that calls it outside of its tests is skipped as a whole.
    """

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        pytest.skip(WHY, allow_module_level=True)

    def __neg__(self) -> Absent:
        return self

    def __instancecheck__(self, other: object) -> bool:
        return False


#: Of tests that call what imports torch by itself: the simulator, and its figures.
NEEDS_TORCH = pytest.mark.skipif(BASE, reason=WHY)

if BASE:
    torch: Any = Absent()
else:
    import torch  # type: ignore[no-redef]  # noqa: F401
