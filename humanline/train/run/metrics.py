"""The metrics file of a run: JSON lines, each of which says in `kind` what it is.

train     one optimizer step: `step` (from 0), losses and what explains them
look      one look at the policy: `updates` done by then, and `held_out`, its metrics
sample    what a round has sampled and kept: `round` (from 0)
break     the run was seen to break: `updates`, and `broke`, which says by what

Files of earlier versions have no `kind`; who reads them by `read_metrics` is told it all the same. docs/
reading-the-curves.md says what the numbers of each kind are.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.system.disk import StoppedWaiting, WriteError, is_full, patient, tell
from humanline.system.files import free_name, sync, text_of_open, write_all, write_text
from humanline.system.lock import LockLostError

_CHUNK = 1 << 20  # bytes
# By the name of what only rows of a kind have. No kind is called as such a name: who looks for the text '"step"' in the
# file, as readers of earlier versions do, finds it once a step.
KINDS = {"step": "train", "held_out": "look", "round": "sample", "broke": "break"}


class MetricsError(ValueError):
    """A metrics file with a line that is no row."""


class MetricsLog:
    """Append one JSON line after another; a reader always finds whole lines, also where a write has failed.

    A file that is removed, or replaced by another, while the run goes on is made again from the one that is still open.

    Parameters
    ----------
    path : Path or None
        None writes nothing (the other processes of a run).
    remake : callable
        Makes the run's folder again if it is gone.
    refuse_lost : callable
        Raises LockLostError if another run has taken over the folder.
    lost : callable
        Returns whether that is known already, at no cost; from then on rows are kept, and nothing is written.
    """

    def __init__(
        self,
        path: Path | None,
        remake: Callable[[], None] = lambda: None,
        refuse_lost: Callable[[], None] = lambda: None,
        lost: Callable[[], object] = lambda: None,
    ) -> None:
        self.path, self._remake, self._refuse_lost, self._lost = path, remake, refuse_lost, lost
        self._file: int | None = None
        self._left_out: set[str] = set()  # of which that was said
        self._unwritten = b""
        self._size = 0
        if path is not None:
            self._open(path)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None or self.path is None:
            return
        file, path = self._file, self.path
        try:
            # Where the run has failed, by a full disk perhaps, that is what is to be said, and nothing else.
            with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
                if kind is None:
                    self._refuse_lost()
                    self.flush()
                    file = self._file
                if self._lost() is None:
                    _bring_to_disk(file, path)
        finally:
            self._file = None
            with contextlib.suppress(OSError):
                os.close(file)

    def write(self, row: dict[str, Any]) -> None:
        """Write one row; numbers of it that are not finite, which JSON has no words for, are left out and told once.

        Where the run is asked to stop while it waits for space, or has lost its folder to another run, the row is kept
        until the next `flush`: that is called where all processes can stop.

        Raises
        ------
        WriteError
            If it cannot be written; nothing is left of it.
        """
        if self._file is not None:
            before = self._unwritten
            self._unwritten += (json.dumps(self._finite(with_kind(row)), allow_nan=False) + "\n").encode()
            try:
                with contextlib.suppress(StoppedWaiting):
                    self.flush()
            except BaseException:
                self._unwritten = before  # else a save after the failure writes it, and a resumed run once more
                raise

    def _finite(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row without what is not finite: a mean of ratios or a metric of one's own, and no reason to end."""
        lost = [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        new = [name for name in lost if name not in self._left_out]
        if new:
            self._left_out |= set(new)
            at = next((f"{name} {row[name]}" for name in (*KINDS, "updates") if type(row.get(name)) is int), "a row")
            tell(
                f"warning: {at}: not finite: {', '.join(new)} (a ratio too large for float32, say); left out of "
                f"{self.path} here and wherever this happens again. Training goes on: loss and gradient are finite"
            )
        return {name: value for name, value in row.items() if name not in lost}

    def flush(self) -> None:
        """Make sure the file is there, and write what could not be written yet; raise as `patient` does."""
        if self._file is not None and self.path is not None and self._lost() is None:
            with contextlib.suppress(LockLostError):  # which every process is told at the next safe point
                self._look(self.path)
            if self._unwritten and self._lost() is None:
                patient(self.path, self._append, len(self._unwritten))

    def _append(self) -> None:
        assert self._file is not None
        start = os.fstat(self._file).st_size
        try:
            write_all(self._file, self._unwritten)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, start)
            raise
        self._size, self._unwritten = start + len(self._unwritten), b""

    def _open(self, path: Path) -> None:
        before, self._file = self._file, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        if before is not None:
            os.close(before)
        self._size = os.fstat(self._file).st_size

    def _look(self, path: Path) -> None:
        """Make sure that the file under its name is the one that is written to."""
        assert self._file is not None
        mine = os.fstat(self._file)
        if mine.st_size < self._size:
            tell(
                f"warning: {path} was cut while the run went on: {self._size - mine.st_size} bytes of metrics are lost "
                "from it; what comes now is added"
            )
            self._size = mine.st_size
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino):
                return
            if found.st_size == mine.st_size and _same(path, self._file):  # a copy, or numbers that are not stable
                self._open(path)
                return
            self._refuse_lost()
            aside = free_name(path.parent, "metrics-other.jsonl")
            path.rename(aside)
            tell(f"warning: another file was put in the place of {path}; it is now {aside}")
        self._refuse_lost()
        self._remake()
        try:
            write_text(path, text_of_open(self._file))
            how = "made again, with all its lines"
        except (OSError, ValueError) as error:
            if is_full(error):  # nothing is lost yet
                raise
            how = f"begun anew: its lines so far are lost ({error})"
        self._open(path)
        tell(f"warning: {path} was gone while the run went on: it is {how}")


def _bring_to_disk(file: int, path: Path) -> None:
    try:
        sync(file, path)
    except OSError as error:
        if not is_full(error):
            raise WriteError(path, error) from error
        write_text(path, text_of_open(file))  # what could not be flushed is not tried again by a second flush


def _same(path: Path, file: int) -> bool:
    with open(path, "rb") as other:
        at = 0
        while piece := other.read(_CHUNK):
            if os.pread(file, len(piece), at) != piece:
                return False
            at += len(piece)
    return True


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metrics file, each with its `kind`; raise MetricsError, with the line, if one is damaged."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            row = read_object(line)
            if not row:
                raise MetricsError(f"{path}:{number}: is no row of metrics, but damaged or changed; remove that line")
            yield with_kind(row)


def with_kind(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that says what it is: as it does, or else, of an earlier version, as what it holds tells."""
    if "kind" in row:
        return row
    return {"kind": next((kind for name, kind in KINDS.items() if name in row), "other"), **row}


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of a metrics file that could be read, the numbers of the lines that could not, and why it could not."""

    rows: list[dict[str, Any]]
    damaged: list[int]
    unread: str = ""


def lenient_rows(path: Path) -> FoundRows:
    """Return what can be read of a metrics file: of one that is written to, was torn or damaged, or is not there.

    A last line without its end is being written, or is what a kill has left: it counts as not there.
    """
    rows: list[dict[str, Any]] = []
    damaged, unread = [], ""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                row = read_object(line)
                rows += [with_kind(row)] if row else []
                damaged += [] if row else [number]
    except FileNotFoundError:
        pass
    except OSError as error:
        unread = error.strerror or str(error)
    return FoundRows(rows, damaged, unread)


def read_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object that a text holds, an empty one where it holds none."""
    with contextlib.suppress(ValueError, RecursionError):
        tree = json.loads(text)
        if isinstance(tree, dict):
            return tree
    return {}
