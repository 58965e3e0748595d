"""A system without POSIX, as far as humanline can tell: what Windows lacks is missing, for the package alone.

By `lack()`, or as a plugin of pytest (`-p tests.helpers.no_posix_plugin`). Python's own library and other packages go
on with what this system has, since they ask it which it is.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from types import ModuleType
from typing import Any

#: Modules of Python's library that its documentation gives as available on Unix alone.
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
#: Names of others that it gives so, and some, of `os` and `signal`, of Linux alone.
NAMES = {
    "os": {
        *("O_ASYNC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "WEXITSTATUS", "WIFEXITED", "WNOHANG"),
        *("chown", "fork", "forkpty", "fchmod", "fchown", "geteuid", "getgid", "getloadavg", "getpgid", "getpgrp"),
        *("getpriority", "getuid", "initgroups", "killpg", "mkfifo", "nice", "posix_fadvise", "posix_fallocate"),
        *("posix_spawn", "pread", "preadv", "pwrite", "pwritev", "register_at_fork", "sched_getaffinity"),
        *("sched_setaffinity", "setpgid", "setsid", "statvfs", "fstatvfs", "sysconf", "tcgetpgrp", "uname", "wait"),
        *("wait3", "wait4", "waitid", "waitstatus", "sendfile", "memfd_create", "pidfd_open", "fdatasync", "sync"),
    },
    "signal": {
        *("SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGIO", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP"),
        *("SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGXCPU", "SIGXFSZ", "ITIMER_REAL", "SIG_BLOCK"),
        *(
            "SIG_SETMASK",
            "SIG_UNBLOCK",
            "alarm",
            "pthread_kill",
            "pthread_sigmask",
            "pause",
            "setitimer",
            "siginterrupt",
        ),
        *("sigpending", "sigwait", "sigtimedwait"),
    },
    "select": {"poll", "epoll", "kqueue"},
    "socket": {"AF_UNIX", "SO_REUSEPORT", "send_fds", "recv_fds"},
    "time": {"clock_settime", "pthread_getcpuclockid", "tzset"},
    "mmap": {"MAP_SHARED", "MAP_PRIVATE", "PROT_READ", "PROT_WRITE"},
}


class Lacking(ModuleType):
    """A module without some of its names."""

    def __init__(self, module: ModuleType, names: set[str]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_real=module, _names=names)

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on this system")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._real, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._real, name)


def lack() -> None:
    """Let the package import no module of `MODULES`, and find no name of `NAMES`; before it is imported."""
    if early := [name for name in sys.modules if name.startswith("humanline.")]:
        raise RuntimeError(f"imported before: {', '.join(early)}")
    lacking = {name: Lacking(importlib.import_module(name), names) for name, names in NAMES.items()}
    plain = builtins.__import__

    def without(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if not level and str((globals or {}).get("__name__", "")).split(".")[0] == "humanline":
            if name in MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if (first := name.split(".")[0]) in lacking and (first == name or not fromlist):
                return lacking[first]
        return plain(name, globals, locals, fromlist, level)

    builtins.__import__ = without
