"""Functions of scipy.special, which is imported when the first of them is called.

Importing it takes longer than everything else in this package together, and most uses need none of it.
"""

from __future__ import annotations

from typing import Any

_NAMES = frozenset({"betainc", "betaincc", "betaln", "kl_div", "logsumexp", "ndtr", "rel_entr"})


def __getattr__(name: str) -> Any:
    """Return a function that looks its namesake up in scipy.special when it is called."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def call(*arguments: Any, **options: Any) -> Any:
        from scipy import special

        return getattr(special, name)(*arguments, **options)

    return call
