"""Which process on which machine: an identity that is not mistaken for another's after a reboot or on another node.

A process number alone says little: it is used again, and every machine and every container has its own. With the
machine's boot, the container's process namespace and the moment the process started it names one process for ever.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

Fate = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True, slots=True)
class Identity:
    """One process.

    Parameters
    ----------
    host : str
        The machine's name, for people.
    process : int
        Its number, >= 1.
    boot : str
        One start of one machine; empty where that cannot be told.
    namespace : str
        The space in which the number counts (containers of one machine have their own); empty where there is but one.
    started : str
        When the process started, in the machine's own terms; empty where that cannot be told.
    """

    host: str
    process: int
    boot: str = ""
    namespace: str = ""
    started: str = ""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"

    @classmethod
    def own(cls) -> Self:
        """Return the identity of this process."""
        boot, namespace = _place()
        return cls(platform.node(), os.getpid(), boot, namespace, _state(os.getpid())[1])

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Read what `row` gave; raise ValueError if it is none."""
        names = ("host", "process", "boot", "namespace", "started")
        values = [row.get(name) for name in names]
        if type(values[1]) is not int or values[1] < 1 or not all(type(v) is str for v in values[:1] + values[2:]):
            raise ValueError("it names no process")
        return cls(*values)  # type: ignore[arg-type]

    def row(self) -> dict[str, Any]:
        """Return the identity as a JSON object."""
        return asdict(self)

    def is_suspended(self) -> bool:
        """Return whether the process is known to be alive, and stopped: by SIGSTOP, Ctrl+Z or a debugger."""
        return self.fate() == "alive" and _state(self.process)[0] in ("T", "t")

    def fate(self) -> Fate:
        """Return the fate of the process; "unknown" where it is of another machine, container or boot."""
        if not self.boot or (self.boot, self.namespace) != _place():
            return "unknown"
        try:
            os.kill(self.process, 0)  # asks whether it is there, also where /proc hides what others own
        except ProcessLookupError:
            return "dead"
        except PermissionError:
            pass
        except (OSError, OverflowError):
            return "unknown"
        state, started = _state(self.process)
        if state in ("Z", "X"):  # it has ended, and nobody has asked how
            return "dead"
        if not (started and self.started):
            return "unknown"
        return "alive" if started == self.started else "dead"


def _place() -> tuple[str, str]:
    """Return this machine's boot and the namespace of this process's number; an empty boot where one is unknown."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "kern.bootsessionuuid"), ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except (OSError, ValueError):
        return "", ""


def _state(process: int) -> tuple[str, str]:
    """Return a process's state letter and when it started; empty where the system does not say."""
    if sys.platform == "darwin":
        state, _, started = _output("ps", "-o", "stat=,lstart=", "-p", str(process)).partition(" ")
        return state[:1], " ".join(started.split())
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # of another namespace, with other processes' numbers
            return "", ""
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]  # the 22nd of all
    except (OSError, IndexError):
        return "", ""


def _output(*words: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=10, check=True)
        return done.stdout.strip()
    return ""
