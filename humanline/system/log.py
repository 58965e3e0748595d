"""What a run has said, kept as plain text in a file of its folder: `run.log`.

A line goes into it as it was shown: without secrets, control characters as escapes (`terminal.told`), behind the time
in UTC. Lines from before the folder was the run's own wait until it is. A log is no reason to end a run: what cannot be
written is kept and tried again with the next line, up to a limit, and then left out with a line that says so.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from humanline.system.terminal import redact, shorten, told

RUN_LOG = "run.log"
BEGUN, RESUMED, ENDED = "---- begun", "---- resumed", "---- ended"
_MOST_WAITING = 1000  # lines
_LONGEST = 4000  # characters of a line


class TextLog:
    """Lines that are said, in a file once there is one; of a process, as `humanline.system.activity.HERE` is.

    Lines may come from several threads.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Forget an earlier run."""
        self._path: Path | None = None
        self._waiting: list[str] = []
        self._left_out = 0
        self._lost: Callable[[], object] = lambda: None

    def open(self, path: Path, mark: str, lost: Callable[[], object] = lambda: None) -> None:
        """Write to a file from now on: first what was said so far, behind a line that says who begins here.

        Parameters
        ----------
        path : Path
            In a folder that is there; of an earlier process of the run the file is gone on with.
        mark : str
        lost : callable
            Returns whether the folder is another run's by now, at no cost; nothing is written then.
        """
        with self._guard:
            self._path, self._lost = path, lost
            self._waiting.insert(0, _line(mark))
            self._write(flush=True)

    def note(self, text: str) -> None:
        """Take in what was said, one line or several."""
        with self._guard:
            for line in redact(text).split("\n"):  # before it is cut up: a secret may have several lines
                if len(self._waiting) < _MOST_WAITING:
                    self._waiting.append(_line(line))
                else:
                    self._left_out += 1
            self._write()

    def close(self, mark: str = "") -> None:
        """Write the rest, with a last line, bring the file to the disk and leave it; nothing if there is none."""
        with self._guard:
            if self._path is not None:
                self._waiting += [_line(mark)] if mark else []
                self._write(flush=True)
        self.begin()

    def _write(self, flush: bool = False) -> None:
        if self._path is None or self._lost() is not None:
            return
        lines = self._waiting
        if self._left_out:
            lines = [*lines, _line(f"{self._left_out} lines are left out: they could not be written")]
        with contextlib.suppress(OSError):  # a full disk, a folder that is gone: the run has its own words for it
            # By name and for each line: what was removed is made again, and what was put aside is not written to.
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                _append(file, "".join(lines).encode())
                self._waiting, self._left_out = [], 0
                if flush:
                    os.fsync(file)
            finally:
                os.close(file)


def _append(file: int, data: bytes) -> None:
    """Append all of it or nothing, on a line of its own: a kill may have torn the last one."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        data = b"\n" + data
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        raise


def _line(text: str) -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {shorten(told(text), _LONGEST)}\n"


@contextlib.contextmanager
def kept_log() -> Iterator[None]:
    """Keep what this process's run says for the length of the context; the last line is how it has ended."""
    LOG.begin()
    try:
        yield
    except BaseException as error:
        LOG.close(f"{ENDED}: {type(error).__name__}: {' '.join(str(error).split())}")
        raise
    LOG.close(f"{ENDED}: finished")


#: The log of this process's run.
LOG = TextLog()
