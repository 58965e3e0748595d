"""Processes that share a run, forked where everything is imported already: a launcher's place, at little cost.

`fork_server.py` calls `run`. A launcher starts Python anew for each process, which takes longer than what most tests
have it do.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.state import PartialState


def become(rank: int, ranks: int, port: int, log: Path) -> None:
    """Make this process, just forked, one of several as a launcher does; what it says goes to a file."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
        os.dup2(os.open(os.devnull, flags), number)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    PartialState._reset_state()


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the `main` of a module with `words` in `ranks` processes; return exit codes and what each has said.

    `imports` names modules that are imported before, once for all. Where one fails the others are killed.
    """
    for name in (job["module"], *job["imports"]):
        importlib.import_module(name)
    logs = [Path(job["folder"]) / f"rank-{rank}.log" for rank in range(job["ranks"])]
    pids = []
    for rank, log in enumerate(logs):
        pid = os.fork()
        if pid == 0:
            become(rank, job["ranks"], job["port"], log)
            _work(job["module"], job["words"])
        pids.append(pid)
    codes = exit_codes(pids)
    return {"codes": codes, "said": [log.read_text(encoding="utf-8", errors="replace") for log in logs]}


def exit_codes(pids: Sequence[int], seconds: float = 300) -> list[int]:
    """Wait for children to end, and return their exit codes; where one fails, or time is up, the others are killed."""
    codes: dict[int, int] = {}
    until = time.monotonic() + seconds
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if any(codes.values()) or time.monotonic() > until:
            for pid in set(pids) - codes.keys():
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


def _work(module: str, words: list[str]) -> None:
    sys.argv = [module, *words]
    try:
        importlib.import_module(module).main()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)
