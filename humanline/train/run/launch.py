"""Several processes of one run on this machine: started, told what reaches this one, and waited for.

torch's own launcher is not used for it. It ends with 1 whatever its processes end with; once one of them has ended, it
kills the others after 30 seconds, which may be in the middle of a checkpoint; and they live on when it is killed.

Nothing is ever killed here but by a second signal. A process that is left alone ends by itself, since the processes of
a run watch each other (`humanline.train.run.neighbours`); one that still waits for the others to come is told to stop.
The main process says what there is to say; what the others print is kept, and shown where that one could not speak.

They find together through a store that this process keeps on the loopback device, at a port the system chose.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import IO, Any

import torch

from humanline.system.activity import EXIT_FOLLOWED, EXIT_NEIGHBOUR
from humanline.system.cores import usable_cores
from humanline.system.launcher import LAUNCHED_BY, LauncherError, refuse_launcher
from humanline.system.stop import ECHO, EXIT_STOPPED, handled
from humanline.system.terminal import told

_LOOK = 0.1  # seconds between two looks at the processes
_ALONE = 30.0  # seconds after which the others are told to stop that have not followed one that failed
_KILL = 10.0  # and after which they are killed, once they were told to stop twice
_KEPT = 2**16  # characters of what a process other than the main one has printed
_LOOPBACK = "lo"
_OF_OTHERS = (EXIT_NEIGHBOUR, EXIT_FOLLOWED, EXIT_STOPPED)  # exit codes that another process, or a signal, has caused


def launch(words: Sequence[str], count: int) -> int:
    """Run a command of humanline as several processes of one run, and return the exit code that says how it ended.

    Parameters
    ----------
    words : sequence of str
        The command and its arguments.
    count : int
        How many processes, >= 2; each has a GPU of its own, or, where there is none, its share of the CPU's cores.

    Returns
    -------
    int
        0 if all have ended with it; else that of the main process, or of the first other one, that failed by itself; 69
        where others only were gone; 75 if they were stopped.

    Raises
    ------
    LauncherError
        If this process is itself one of a launcher's, or there are fewer GPUs.
    """
    refuse_launcher(f"--processes {count}")
    _refuse_few(count)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(max(128, 2 * count))
    port = listener.getsockname()[1]
    distributed: Any = torch.distributed
    store = distributed.TCPStore(
        "127.0.0.1", port, None, True, timedelta(seconds=60), wait_for_workers=False, master_listen_fd=listener.detach()
    )
    with _Signals() as signals:
        processes: list[_Process] = []
        for rank in range(count):
            processes.append(_Process(rank, _start(words, rank, count, port)))
        _wait(processes, signals)
    del store
    for process in processes:
        process.hear_out()
    code = _outcome(processes, signals.name)
    _show(processes, code, signals.name)
    return code


def _refuse_few(count: int) -> None:
    """Raise LauncherError if there are GPUs, but not one for each process."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "on") or not torch.cuda.is_available():
        return
    there = torch.cuda.device_count()
    if count > there:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise LauncherError(
            f"--processes {count}, but {there} GPU{'' if there == 1 else 's'} can be seen here"
            + (f" (CUDA_VISIBLE_DEVICES={shown})" if shown is not None else "")
            + ": each process needs one of its own"
        )


def _start(words: Sequence[str], rank: int, count: int, port: int) -> subprocess.Popen[bytes]:
    """Start one process; the main one has this one's output, the others have a pipe."""
    defaults = {"OMP_NUM_THREADS": str(max(1, usable_cores() // count))}
    if os.path.exists(f"/sys/class/net/{_LOOPBACK}"):  # by themselves these two choose a device to the network
        defaults |= {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already, and outlives the main process
        LAUNCHED_BY: str(os.getpid()),
    }
    here = os.getcwd() in sys.path or "" in sys.path  # as `python -m` has it, and an installed command does not
    command = [sys.executable, *([] if here else ["-P"]), "-m", "humanline", *words]
    apart = rank > 0 and os.environ.get("HUMANLINE_DEBUG", "0") in ("", "0")
    out: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if apart else {}
    return subprocess.Popen(command, env=defaults | os.environ | own, stdin=subprocess.DEVNULL, **out)


@dataclass(slots=True)
class _Process:
    """One process of the run.

    Parameters
    ----------
    rank : int
    process : Popen
    code : int or None
        Its exit code, negative for a signal; None as long as it lives.
    at : float
        When it was seen to have ended.
    said : str
        The end of what it has printed, unless it is the main one.
    """

    rank: int
    process: subprocess.Popen[bytes]
    code: int | None = None
    at: float = 0.0
    said: str = ""
    listener: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.process.stdout is not None:
            self.listener = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
            self.listener.start()

    def _listen(self, output: IO[bytes]) -> None:
        mark = f"process {self.rank}: "  # of what a person should know at once (`system.disk.tell`)
        for line in output:
            text = line.decode(errors="backslashreplace")
            self.said = (self.said + text)[-_KEPT:]
            if text.startswith(mark):
                with contextlib.suppress(OSError):
                    print(text, end="", file=sys.stderr, flush=True)

    def look(self) -> None:
        """Notice whether the process has ended."""
        if self.code is None and self.process.poll() is not None:
            self.code, self.at = self.process.returncode, time.monotonic()

    def send(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.code is None:
            self.process.send_signal(number)

    def hear_out(self) -> None:
        """Wait for the last of what it has printed; what it has started may hold its output open."""
        if self.listener is not None:
            self.listener.join(2.0)


class _Signals:
    """The signals that ask for a stop, as they come; used as a context manager."""

    def __init__(self) -> None:
        self.name = ""  # of the first one
        self.came: list[int] = []
        self.first = 0.0
        self.again: float | None = None  # when a second one came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in handled():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.name:
            self.name, self.first = signal.Signals(number).name, now
        elif self.again is None and now - self.first > ECHO and number != getattr(signal, "SIGXCPU", 0):
            self.again = now
        self.came.append(number)

    def take(self) -> Iterator[int]:
        """Give each signal that came since the last call."""
        while self.came:
            yield self.came.pop(0)


def _wait(processes: Sequence[_Process], signals: _Signals) -> None:
    """Wait for all processes, and hand on what signals come."""
    told_to_stop = False
    while any(process.code is None for process in processes):
        time.sleep(_LOOK)
        for number in signals.take():
            for process in processes:
                process.send(number)
        for process in processes:
            process.look()
        now = time.monotonic()
        failed = [process.at for process in processes if process.code]
        if failed and not told_to_stop and now - min(failed) > _ALONE:
            told_to_stop = True
            for process in processes:
                process.send(signal.SIGTERM)
        if signals.again is not None and now - signals.again > _KILL:
            for process in processes:
                process.send(signal.SIGKILL)


def _outcome(processes: Sequence[_Process], stopped_by: str) -> int:
    """Return the exit code that says how the run ended."""
    main, *others = processes
    codes = [process.code or 0 for process in (main, *sorted(others, key=lambda process: process.at))]
    own = [code for code in codes if code > 0 and code not in _OF_OTHERS]
    killed = [-code for code in codes if code < 0]
    if own:
        return own[0]
    if stopped_by and EXIT_NEIGHBOUR not in codes:
        by_it = {getattr(signal, stopped_by), signal.SIGTERM}  # before they were ready for one
        rest = [number for number in killed if number not in by_it]
        return 128 + rest[0] if rest else EXIT_STOPPED if any(codes) else 0
    if EXIT_NEIGHBOUR in codes or killed:
        return EXIT_NEIGHBOUR
    return EXIT_STOPPED if EXIT_STOPPED in codes else 0


def _show(processes: Sequence[_Process], code: int, stopped_by: str) -> None:
    """Show what another process has said, where the main one has not said it, or could not."""
    main = processes[0].code or 0
    others = sorted((process for process in processes[1:] if process.code), key=lambda process: process.at)
    crashed = [process for process in others if (process.code or 0) < 0]
    if main < 0 or main == EXIT_FOLLOWED or (main == EXIT_STOPPED and not stopped_by and code != EXIT_STOPPED):
        own = [process for process in others if process.code not in _OF_OTHERS]
        chosen = (own or others)[:1]
    elif main == EXIT_NEIGHBOUR:
        chosen = crashed[:1]  # whose last words the watch cannot have
    else:
        chosen = []
    if stopped_by and main < 0 and code == EXIT_STOPPED:
        print(f"humanline train: stopped by {stopped_by} before anything was begun", file=sys.stderr, flush=True)
        return
    for process in chosen:
        text = "\n".join(process.said.strip().splitlines()[-40:])
        if text:
            print(told(f"process {process.rank} said:\n{text}", keep="\n"), file=sys.stderr, flush=True)
    if main < 0 and not any(process.said.strip() for process in chosen):
        name = signal.Signals(-main).name
        print(f"humanline train: the main process was ended by {name}", file=sys.stderr, flush=True)
