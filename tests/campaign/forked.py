"""One command in a process of its own: forked from this one or begun afresh; watched, limited, and cleaned up after."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

SECONDS, MIB = 30.0, 2048.0
_GRACE = 2.0  # seconds for what a command leaves behind to end by itself
_START = 60.0  # seconds more that a fresh process may take to import what it needs
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


@dataclass(frozen=True)
class Command:
    """What a process does: words of the command line, or a function that returns an exit code.

    `before` is called in the process ahead of it. Functions are of modules, so that a fresh process can be told them.
    """

    words: tuple[str, ...] = ()
    work: Callable[[], int] | None = None
    before: tuple[Callable[[], object], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    kill_after: float | None = None


@dataclass(frozen=True)
class Outcome:
    """code: negative for a signal; `over`: the limit that ended it; `left`: processes that outlived it."""

    code: int
    seconds: float
    mib: float
    out: str
    err: str
    over: str | None = None
    left: int = 0


@dataclass(frozen=True)
class _Given:
    """What a process holds before it does anything, since it was forked, in MiB and as the two functions measure."""

    resident: float = 0.0
    own_part: float = 0.0


def adopt_orphans(adopt: bool = True) -> None:
    """Make processes whose parent has ended children of this one, so that none goes unseen."""
    ctypes.CDLL(None).prctl(_SUBREAPER, int(adopt), 0, 0, 0)


def run(command: Command, folder: Path, *, fresh: bool = False, seconds: float = SECONDS, mib: float = MIB) -> Outcome:
    """Run a command in a folder and return what came of it; `seconds` and `mib` (with all its children) end it.

    What a forked process shares with this one counts for nothing: this one may hold any amount.
    """
    with tempfile.TemporaryDirectory() as words:
        out, err = Path(words, "out"), Path(words, "err")
        out.touch()  # before a kill that comes at once
        err.touch()
        before = children(os.getpid())
        given = _Given() if fresh else _Given(_resident(os.getpid()), _own_part(os.getpid()) / 2)
        started = time.monotonic()
        pid = (_begin if fresh else _fork)(command, folder, out, err)
        code, over, peak = _watch(pid, command, started, seconds + _START * fresh, mib, fresh, given)
        took = time.monotonic() - started
        left = _reap(before)
        texts = [path.read_text(encoding="utf-8", errors="surrogateescape") for path in (out, err)]
    return Outcome(code, took, peak, *texts, over=over, left=left)


def _watch(
    pid: int, command: Command, started: float, seconds: float, mib: float, fresh: bool, given: _Given
) -> tuple[int, str | None, float]:
    peak, over, pause = 0.0, None, 0.002
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), over, max(peak, usage.ru_maxrss / 1024 - given.resident)
        now = time.monotonic() - started
        held = sum(map(_resident, _tree(pid)))
        if held > mib:  # a process that has just been forked seems to hold all that it still shares with its parent
            held = sum(map(_own_part, _tree(pid))) - given.own_part
        peak = max(peak, held)
        if over is None and (now > seconds or peak > mib):
            over = f"more than {seconds:g} s" if now > seconds else f"more than {mib:g} MiB"
            for one in _tree(pid):
                _kill(one)
        elif command.kill_after is not None and now > command.kill_after + (_fresh_start if fresh else 0.0):
            _kill(pid)
        time.sleep(pause)
        pause = min(0.02, pause * 1.3)


_fresh_start = 4.0  # about what a fresh process takes before it does anything


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children(pid: int) -> set[int]:
    """Return the children of a process."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found |= set(map(int, (task / "children").read_text().split()))
    return found


def _tree(pid: int) -> list[int]:
    return [pid, *(one for child in children(pid) for one in _tree(child))]


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def _own_part(pid: int) -> float:
    """Return what a process holds, a page that n processes share counted as 1/n of one; slower than `_resident`."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (OSError, StopIteration):
        return 0.0


def _reap(before: set[int]) -> int:
    """Wait a little for orphans of a process that has ended; kill those that live on, and return how many did."""
    until = time.monotonic() + _GRACE
    while orphans := children(os.getpid()) - before:
        for one in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one, os.WNOHANG)
        if time.monotonic() > until:
            lived = [one for orphan in orphans for one in _tree(orphan)]
            for one in lived:
                _kill(one)
            for one in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(one, 0)
            return len(lived)
        time.sleep(0.005)
    return 0


def _fork(command: Command, folder: Path, out: Path, err: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for number, path in ((0, os.devnull), (1, out), (2, err)):
                handle = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(handle, number)
            sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
            code = within(command, folder)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return pid


def _begin(command: Command, folder: Path, out: Path, err: Path) -> int:
    environment = os.environ | dict(command.env) | {"PYTHONPATH": str(ROOT)}
    with open(out, "ab") as to, open(err, "ab") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaign.forked", str(folder)],
            stdin=subprocess.PIPE,
            stdout=to,
            stderr=complaints,
            cwd=ROOT,
            env=environment,
        )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(command))
    process.stdin.close()
    process.returncode = 0  # it is waited for by its number
    return process.pid


def within(command: Command, folder: Path) -> int:
    """Do what a command says, in this process; return its exit code as Python would."""
    import traceback

    from humanline.cli import main

    os.setsid()
    os.environ.update(command.env)
    os.chdir(folder)
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in ("", str(folder)))]
    try:
        for act in command.before:
            act()
        return main(list(command.words)) if command.work is None else command.work()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def no_network(note: Path) -> None:
    """Let this process connect to itself alone; write down what else it tries."""

    def noted(address: Any) -> None:
        with open(note, "a", encoding="utf-8") as file:
            file.write(f"{address}\n")

    connect, connect_ex, look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def is_here(address: Any) -> bool:
        host = address[0] if isinstance(address, tuple) else address
        return not isinstance(address, tuple) or str(host).startswith(LOOPBACK)

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: socket.socket, address: Any) -> Any:
            if is_here(address):
                return function(self, address)
            noted(address)
            raise OSError(101, "Network is unreachable")

        return call

    def found(host: Any, *args: Any, **named: Any) -> Any:
        if host is None or is_here((host.decode() if isinstance(host, bytes) else host,)):
            return look_up(host, *args, **named)
        noted(host)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    socket.socket.connect = guarded(connect)  # type: ignore[method-assign]
    socket.socket.connect_ex = guarded(connect_ex)  # type: ignore[method-assign]
    socket.getaddrinfo = found  # type: ignore[assignment]


def warm_up(*, many: bool = True) -> None:
    """Import what commands import, so that forked processes need not; for `many` of them also what some import.

    Nothing here starts a thread, which a forked process would lack.
    """
    from humanline.system.imports import quiet, quiet_libraries

    with quiet():
        quiet_libraries()
        if many:
            import httpx2  # noqa: F401
            import peft  # noqa: F401
            import pyarrow.parquet  # noqa: F401


if __name__ == "__main__":
    told: Command = pickle.loads(sys.stdin.buffer.read())
    code = within(told, Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
