"""The texts that are written in the source, each as one pattern in which what differs may be anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

GAP = "…"


def texts(folder: Path) -> Iterator[str]:
    """Yield every string of the modules below a folder, with `…` in place of what is put in when it is used."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def is_said(message: str, said: list[str]) -> bool:
    """Return whether the pieces of a message between its gaps stand in one of the texts, in this order."""
    pieces = [piece.strip() for piece in message.split(GAP) if piece.strip()]
    for text in said:
        at = 0
        for piece in pieces:
            at = text.find(piece, at)
            if at < 0:
                break
            at += len(piece)
        else:
            return bool(pieces)
    return False
