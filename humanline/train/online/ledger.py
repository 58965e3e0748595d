"""The ledger of rounds: which states each has reached, in a file that is only appended to.

A line is appended and flushed when what it says is true, and never before. The end of a file that a kill has torn is
ignored. A state's line holds the SHA-256 of the file that the state made, so that a damaged one is made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from humanline.system.disk import patient
from humanline.system.files import Lines, barrier, flush, sync, write_all

State = Literal["PLANNED", "SAMPLED", "SCORED", "PAIRED", "TRAINING", "DONE"]
STATES: tuple[State, ...] = get_args(State)
_ANEW = "remove the file to do its work again"


class LedgerError(ValueError):
    """A ledger or journal that is not what this program writes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One state of one round, and the digest of the file it made."""

    round: int
    state: State
    sha256: str | None


class Ledger:
    """The states that rounds have reached, in the order PLANNED, SAMPLED, SCORED, PAIRED, TRAINING, DONE.

    Parameters
    ----------
    path : Path
        A JSON-lines file; it need not exist.
    alone : bool
        Nobody else appends to it just now, so that a torn end is what a kill has left, and is cut off.

    Raises
    ------
    LedgerError
        If a whole line is no entry.
    """

    def __init__(self, path: Path, *, alone: bool = True) -> None:
        self.path = path
        if alone:
            read_lines(path)
        self.read()

    def read(self) -> None:
        """Read what is there, also what another process has added meanwhile."""
        self.entries: dict[int, dict[State, Entry]] = {}
        for number, row in enumerate(read_lines(self.path, cut=False), start=1):
            try:
                if row["state"] == "DISCARDED":
                    self.entries.pop(row["round"], None)
                elif row["state"] in STATES:
                    entry = Entry(row["round"], row["state"], row.get("sha256"))
                    self.entries.setdefault(entry.round, {})[entry.state] = entry
                else:
                    raise KeyError(row["state"])
            except (KeyError, TypeError) as error:
                raise LedgerError(f"{self.path}:{number}: no entry of a ledger: {error}") from None

    def has(self, round_: int, state: State, file: Path | None = None) -> bool:
        """Return whether a round has reached a state, and the file that it made is as it was."""
        entry = self.entries.get(round_, {}).get(state)
        if entry is None:
            return False
        return file is None or (file.is_file() and digest(file) == entry.sha256)

    def another(self, round_: int, state: State, file: Path) -> bool:
        """Return whether a round had reached a state with another file than the one that is there now."""
        entry = self.entries.get(round_, {}).get(state)
        return entry is not None and entry.sha256 != digest(file)

    def record(self, round_: int, state: State, file: Path | None = None) -> None:
        """Record that a round has reached a state; nothing happens if that is recorded already, of the same file."""
        sha256 = None if file is None else digest(file)
        known = self.entries.get(round_, {}).get(state)
        if known is not None and known.sha256 == sha256:
            return
        self.entries.setdefault(round_, {})[state] = Entry(round_, state, sha256)
        append(self.path, [{"round": round_, "state": state} | ({} if sha256 is None else {"sha256": sha256})])

    def discard(self, round_: int, reason: str) -> None:
        """Record that a round begins anew."""
        if self.entries.pop(round_, None) is not None:
            append(self.path, [{"round": round_, "state": "DISCARDED", "reason": reason}])


def read_lines(path: Path, *, whole: bool = False, cut: bool = True) -> list[dict[str, Any]]:
    """Return the rows of a file that is appended to; a torn end is cut off, so that it can be appended to again.

    Parameters
    ----------
    path : Path
        It need not exist.
    whole : bool
        Nobody appends to it, and it may be a person's: it is left as it is, and its last line needs no line end.
    cut : bool
        False leaves a torn end, which another process may be writing, as it is.

    Raises
    ------
    LedgerError
        If a line before the last is no JSON object, or the last one where the file is whole.
    """
    if not path.is_file():
        return []
    if cut and not whole:
        cut_torn_end(path)
    return list(each_line(path, whole=whole))


def each_line(path: Path, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file one by one, as `read_lines` does without cutting anything; the file must exist."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not whole and not line.endswith(b"\n"):
                return
            yield parse_line(path, number, line, "mend this line, or leave it out" if whole else _ANEW)


def parse_line(path: Path, number: int, line: bytes, advice: str = _ANEW) -> dict[str, Any]:
    """Return a line's row; raise LedgerError, with its place and advice, if it is none."""
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError) as error:
        why = error if line.strip() else "it is blank"
        raise LedgerError(f"{path}:{number}: damaged: {why}; {advice}") from None
    return row


def cut_torn_end(path: Path) -> None:
    """Take away what follows the last line end of a file: all that a kill in the middle of an append can leave."""
    with open(path, "rb") as file:
        end, size = _ends(file)
    if end == size:
        return
    with open(path, "r+b") as file:
        _lock(file)  # what looks torn may be a line that another process is writing: wait for it, and look again
        end, size = _ends(file)
        if end < size:
            os.truncate(path, end)


def _ends(file: BinaryIO) -> tuple[int, int]:
    """Return where the last whole line of a file ends, and where the file does."""
    end = size = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - (1 << 16))
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1, size
        end = start
    return 0, size


def _lock(file: BinaryIO | FileIO) -> None:
    """Keep others that append or cut from a file until it is closed, where its file system has locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


def append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append JSON rows, in one write unless the system takes less, and flush them; raise as `patient` does.

    Nothing is left of rows that could not be written.
    """
    data = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode()
    patient(path, lambda: _append(path, data), len(data))
    barrier(f"{path.name} appended")


def _append(path: Path, data: bytes) -> None:
    new = not path.exists()
    with open(path, "ab", buffering=0) as file:
        _lock(file)
        start = os.fstat(file.fileno()).st_size
        try:
            write_all(file.fileno(), data)
            sync(file.fileno(), path)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), start)
            raise
    if new:
        flush(path.parent)


def json_rows(rows: Sequence[dict[str, Any]]) -> Lines:
    """Return rows as the lines of a JSON-lines file."""
    return Lines(lambda: (json.dumps(row, ensure_ascii=True) + "\n" for row in rows))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
