"""Scores by content: what has been scored once, by the same reward, is not scored again."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from humanline.system.disk import patient
from humanline.system.files import make_folder, sync, write_all
from humanline.train.online.rewards.verdict import Verdict

_UNFLUSHED = 1.0  # seconds of cheap results that a kill may cost
_UNSYNCED = 0.1  # seconds of dear ones that a loss of power may cost; a kill costs none


class ScoreCache:
    """Values by key, in memory and, given a path, in an append-only file of JSON lines.

    Only values are kept: a reward that gave a status is asked again the next time. Lines that cannot be read, such as
    one that a kill has torn, are passed over. Several processes may append to one file.

    Parameters
    ----------
    path : Path or None
        Made if it is missing, with its folder.
    others : iterable of Path
        Files of other processes, which are read now and not written: whose values one has in them may have changed
        with the number of processes.

    Raises
    ------
    OSError
        If it cannot be read or written.
    """

    def __init__(self, path: Path | None, others: Iterable[Path] = ()) -> None:
        self._known: dict[bytes, tuple[float, str]] = {}
        self._file: int | None = None
        self._torn = False  # whether the file may end in the middle of a line, by a kill or a write that failed
        self._failed = False
        self._lines: list[str] = []
        self._flushed = self._synced = time.monotonic()
        self._unsynced = False
        if path is None:
            return
        for other in others:
            for line in other.read_bytes().splitlines():
                self._read(line)
        self._path = path
        make_folder(path.parent)
        self._file = patient(path, lambda: os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644))
        self._seen = 0
        self._torn = self.refresh()

    def refresh(self) -> bool:
        """Take in what other processes have appended since; return whether the file ends in the middle of a line."""
        if self._file is None:
            return False
        data = os.pread(self._file, max(0, os.fstat(self._file).st_size - self._seen), self._seen)
        end = data.rfind(b"\n") + 1
        for line in data[:end].splitlines():
            self._read(line)
        self._seen += end
        return end < len(data)

    def get(self, key: bytes) -> Verdict | None:
        """Return the value of a key, or None."""
        found = self._known.get(key)
        return None if found is None else Verdict(found[0], reason=found[1])

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Keep a value, if it is one; `flush` brings it to the disk."""
        if verdict.value is None or key in self._known:
            return
        self._known[key] = (verdict.value, verdict.reason)
        if self._file is not None:
            self._lines.append(json.dumps({"key": key.hex(), "value": verdict.value, "reason": verdict.reason}) + "\n")

    def flush(self, *, dear: bool | None = None) -> None:
        """Write what was put, and flush it to the disk.

        Parameters
        ----------
        dear : bool, optional
            Whether values that cost something were put, by a call of a function: they are written at once, and flushed
            to the disk if that was not done in the last tenth of a second (a flush takes longer than a cheap function).
            Cheap ones are written about once a second. Default: all is written and flushed.
        """
        if self._file is None or not (self._lines or (dear is None and self._unsynced)):
            return
        now = time.monotonic()
        if dear is not False or now - self._flushed > _UNFLUSHED:
            self._failed = True
            patient(self._path, lambda: self._write(dear is None or now - self._synced > _UNSYNCED), self._room())
            self._failed = False
            self._lines.clear()
            self._flushed = time.monotonic()

    def _room(self) -> int:
        return sum(map(len, self._lines))

    def _write(self, synced: bool) -> None:
        """Append all lines, on a line of their own: others may have appended behind a torn end."""
        assert self._file is not None
        if self._lines:
            torn, self._torn = self._torn, True
            write_all(self._file, b"\n" * torn + "".join(self._lines).encode())
            self._torn = False
            self._unsynced = True
        if synced:
            sync(self._file, self._path)
            self._synced, self._unsynced = time.monotonic(), False

    def close(self) -> None:
        """Flush and close the file; where a flush has failed, that has been said, and is not tried again."""
        if self._file is not None:
            try:
                if not self._failed:
                    self.flush()
            finally:
                os.close(self._file)
                self._file = None

    def _read(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            key, value, reason = bytes.fromhex(row["key"]), row["value"], row["reason"]
        except (ValueError, TypeError, KeyError):
            return
        if isinstance(value, float) and math.isfinite(value) and isinstance(reason, str):
            self._known[key] = (value, reason)


def content_key(*what: Any) -> bytes:
    """Return the SHA-256 of JSON values: 32 bytes, the same for the same content in every process."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).digest()
