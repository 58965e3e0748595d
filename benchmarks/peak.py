"""Peak memory of a piece of work, each in a fresh process so that nothing of another one is counted.

`python -m benchmarks.peak module:function '{"argument": 1}'` calls the function, which prepares and returns the work,
reads the memory in use, does the work, and prints by how many MiB the peak rose above what was in use.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def peak_mib(prepare: str, *, fresh: bool = True, given_back: bool = False, **arguments: Any) -> float:
    """Return the peak memory of the work that `prepare` ("module:function") returns, MiB above what it starts from.

    Parameters
    ----------
    prepare : str
    fresh : bool
        False measures in this process, where that is only to be quick: what was freed before counts for nothing then.
    given_back : bool
        True has glibc give back at once what is freed in large pieces (MALLOC_MMAP_THRESHOLD_), so that a fresh process
        peaks at what it holds: without it the same work peaks up to a sixth higher or lower by where its holes are.
    **arguments
        Of the function.

    Raises
    ------
    RuntimeError
        If the process fails.
    """
    if not fresh:
        return _measured(prepare, arguments)
    command = [sys.executable, "-m", "benchmarks.peak", prepare, json.dumps(arguments)]
    root = Path(__file__).resolve().parent.parent
    environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "65536"} if given_back else {})
    answer = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{prepare} {arguments} failed:\n{answer.stderr[-2000:]}")
    return float(answer.stdout.split()[-1])


def _measured(prepare: str, arguments: dict[str, Any]) -> float:
    module, _, function = prepare.partition(":")
    work = getattr(importlib.import_module(module), function)(**arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
        work()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**20
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak so far is forgotten
        before = _largest_resident_mib()
        work()
        peak = _largest_resident_mib()
    return peak - before


def _main(prepare: str, arguments: str) -> None:
    found = _measured(prepare, json.loads(arguments))
    sys.stdout.write(f"{found}\n")  # in one piece: several processes may share the pipe


def _largest_resident_mib() -> float:
    """Return the largest resident set of this process.

    Linux starts a program's ru_maxrss at the size of the process that started it, so VmHWM is read where there is one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


if __name__ == "__main__":
    _main(*sys.argv[1:])
