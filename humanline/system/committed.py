"""A file that a script makes and that is committed: written, or compared with what the script makes now."""

from __future__ import annotations

import argparse
from pathlib import Path

from humanline.system.files import write_text


def options(what: str) -> argparse.ArgumentParser:
    """Return a parser of a script's arguments that knows `--check`, to which others may be added."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--check", action="store_true", help="write nothing; say whether the committed file differs")
    return parser


def leave(path: Path, text: str, *, check: bool) -> int:
    """Write a file; or, to check, say whether it holds that text and return 1 if it does not."""
    if not check:
        write_text(path, text)
        return 0
    same = path.is_file() and path.read_text(encoding="utf-8") == text
    print(f"{path} is as it is made" if same else f"{path} differs from what is made now: run this without --check")
    return int(not same)
