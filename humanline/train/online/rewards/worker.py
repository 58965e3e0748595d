"""A worker process: reads one task a line, answers one verdict a line, and may be killed at any time.

It dies with its parent, even inside a loop that never returns to Python: the kernel signals its whole process group
when the parent's end of the lifeline pipe closes, and a timer of the kernel ends it where an item takes longer than
its limit and nobody is left to kill it. It talks over descriptors that the code it runs does not know of; what that
code prints goes nowhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import numbers
import os
import resource
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from humanline.system.own_code import Loaded, OwnCodeError, load_call
from humanline.system.stop import outlive
from humanline.train.online.rewards.forms import described_signature
from humanline.train.online.rewards.verdict import NOT_SCORED, Verdict, described

_GRACE = 2.0  # seconds beyond an item's limit after which the kernel ends a worker whose parent does not
_LONGEST = 1e9  # seconds, of which the kernel takes no more than three centuries
_MIB = 2**20


def main(lifeline: int) -> None:
    """Serve the tasks of the standard input until it ends.

    Parameters
    ----------
    lifeline : int
        Descriptor of a pipe whose other end only the parent holds, and on which nothing is ever sent.
    """
    outlive()  # whoever asked the run to stop may have asked all its processes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _die_with_parent(lifeline)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)

    def answer(what: Any) -> None:
        replies.write(json.dumps(what).encode() + b"\n")
        replies.flush()

    first = requests.readline()
    if not first:
        return
    setup = json.loads(first)
    functions = _prepare(setup)
    answer(
        {
            call: found if isinstance(found, str) else {"source": found.digest} | described_signature(found.function)
            for call, found in functions.items()
        }
    )
    _limit_memory(_address_space() + setup["memory"] * _MIB)
    for line in requests:
        work = json.loads(line)
        _arm(work["seconds"] + _GRACE)
        verdict = _guarded(work["task"], functions)
        _arm(0)
        answer(verdict)
        if verdict.status == "memory":
            return  # what a failed allocation left behind is nobody else's


def _prepare(setup: dict[str, Any]) -> dict[str, Loaded | str]:
    """Import everything that tasks will need; return the callables, or what is wrong with them."""
    from humanline.train.online.rewards import verifiers  # noqa: F401

    if setup["math"]:
        from humanline.train.online.rewards.math_answer import math_verdict

        math_verdict(r"\boxed{\frac{1}{2}}", "1/2")
    return {call: _loaded(call, setup.get("beside")) for call in setup["functions"]}


def _loaded(call: str, beside: str | None) -> Loaded | str:
    try:
        return load_call(call, beside)
    except OwnCodeError as error:
        return str(error)


def _guarded(task: dict[str, Any], functions: dict[str, Loaded | str]) -> Verdict:
    try:
        return _verdict(task, functions)
    except MemoryError:
        return Verdict(None, "memory", "it needed more memory than source.scoring.memory allows")
    except BaseException as error:  # sys.exit among them
        return Verdict(None, "error", described(error))


def _verdict(task: dict[str, Any], functions: dict[str, Loaded | str]) -> Verdict:
    kind = task["kind"]
    if kind == "function":
        call = functions[task["call"]]
        if isinstance(call, str):
            return Verdict(None, "error", f"{task['call']} {call}")
        if "keywords" in task:
            logs = dict.fromkeys(task["logs"], _forget)
            return _entry_of(call.function(**task["keywords"], **logs), task["at"], task["of"])
        return _number_of(call.function(task["prompt"], task["completion"], **task["columns"]))
    if kind == "math":
        from humanline.train.online.rewards.math_answer import math_verdict

        return math_verdict(task["completion"], task["reference"])
    if kind == "readable":
        from humanline.train.online.rewards.math_answer import readable_reference

        return Verdict(float(readable_reference(task["reference"])))
    from humanline.train.online.rewards import verifiers

    if kind == "number":
        return verifiers.number_verdict(task["completion"], task["reference"])
    if kind == "format":
        return verifiers.format_verdict(task["completion"], task["pattern"])
    if kind == "tag_count":
        return verifiers.tag_count_verdict(task["completion"])
    raise ValueError(f"no such task: {kind!r}")


def _number_of(returned: Any) -> Verdict:
    if not isinstance(returned, numbers.Real):
        if hasattr(returned, "close"):
            returned.close()  # a coroutine that nobody awaits would warn
        return Verdict(None, "error", f"it returned {type(returned).__name__}; expected one number")
    try:
        value = float(returned)
    except OverflowError:
        return Verdict(None, "not_finite", "it returned a number beyond the range of floats")
    if not math.isfinite(value):
        return Verdict(None, "not_finite", f"it returned {value}")
    return Verdict(value)


def _forget(*_: Any, **__: Any) -> None:
    """Stand for what writes a function's own columns and metrics down, which is not done here."""


def _entry_of(returned: Any, at: int, count: int) -> Verdict:
    """Return the verdict of one entry of what a function of TRL's form has returned for so many completions."""
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes | Mapping):
        if hasattr(returned, "close"):
            returned.close()
        return Verdict(None, "error", f"it returned {type(returned).__name__}; expected a list, one entry a completion")
    entries = list(returned)
    if len(entries) != count:
        return Verdict(None, "error", f"it returned {len(entries)} values for {count} completions")
    entry = entries[at]
    if entry is None:
        return Verdict(None, NOT_SCORED, "it returned None")
    if not isinstance(entry, numbers.Real) and getattr(entry, "shape", None) == () and hasattr(entry, "item"):
        entry = entry.item()  # of a tensor without dimensions
    return _number_of(entry)


def _arm(seconds: float) -> None:
    """Set a timer by which the kernel ends this process, whatever it does; 0 takes it back."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, _LONGEST))


def _die_with_parent(lifeline: int) -> None:
    os.set_inheritable(lifeline, False)
    with contextlib.suppress(OSError):  # where pipes cannot do this, the timer and the end of the input are left
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _limit_memory(limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _address_space() -> int:
    """Return the bytes of address space in use."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:  # no Linux: a limit that is too wide, since shared libraries count elsewhere
        return 4 * 2**30
    return pages * resource.getpagesize()
