"""Run pairs of processes of one run, have one of them die, raise or hang, and see how the other ends.

`fork_server.py` calls `run`, for `test_neighbours.py` and others: each process is forked, so that a pair costs little
more than its work.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import humanline
import humanline.train.online.stages as stages
import humanline.train.policy.build as policy
import humanline.train.run.alike as alike
import humanline.train.run.checkpoint as checkpoint
import humanline.train.run.neighbours as neighbours
import humanline.train.run.processes as processes
import humanline.train.run.saving as saving
import humanline.train.step.held_out as evaluate
import humanline.train.step.loss as objective
import humanline.train.step.reference as reference
from humanline.cli import main
from humanline.system.identity import Identity
from tests.helpers.forked_ranks import become

PLACES = {
    "load": (policy, "load_tokenizer"),
    "score": (reference.LogprobsAhead, "_kept"),
    "train": (objective.ObjectiveStep, "loss"),
    "save": (saving, "write_files"),
    "save what is of all": (checkpoint.Contents, "write_facts"),  # which the main process does alone
    "evaluate": (evaluate.Evaluator, "_logprobs"),
    "sample": (stages, "sample_into"),
}


def harm(place: str, how: str, after: int, note: Path) -> None:
    """Make this process end, fail or stop at its call of that number."""
    owner, name = PLACES[place]
    true, calls = getattr(owner, name), 0

    def harmful(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= after or (how in ("freeze", "slow") and calls > after + 1):
            return true(*args, **kwargs)
        note.write_text(str(time.monotonic()))
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
            return true(*args, **kwargs)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
        if how == "hang":
            time.sleep(10_000)
        if how == "slow":
            time.sleep(25)
            return true(*args, **kwargs)
        if how == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity")
        raise KeyError(f"made by a test, hf_{'x' * 20}")

    setattr(owner, name, harmful)


def child(job: dict[str, Any], rank: int, log: Path) -> None:
    become(rank, 2, job["port"], log)
    if "periods" in job:
        neighbours.PERIODS = dataclasses.replace(neighbours.PERIODS, **job["periods"])
    if job.get("elsewhere"):  # as if the two were on two machines
        away = dataclasses.replace(Identity.own(), boot=f"machine {rank}", namespace="")
        neighbours.Identity = type("Elsewhere", (Identity,), {"own": classmethod(lambda cls: away), "__slots__": ()})
    if "computing" in job:  # seconds that a collective of computing may take, for stall_minutes of one
        processes.MARGIN = timedelta(seconds=job["computing"] - 60)
    fault = job.get("fault")
    if fault and fault["rank"] == rank:
        harm(fault["place"], fault["how"], fault["after"], log.with_name("fault"))
    own = job.get("own", {}) if rank else {}  # what only the second process is given
    alike.PATIENCE = 0.5
    humanline.__version__ = own.get("version", humanline.__version__)
    options = ["--resume"] if job["resume"] else []
    code = main(["train", job["recipe"], *options, *own.get("overrides", [])])
    sys.stderr.flush()
    os._exit(code)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run two processes; return their exit codes, what they said, and when they ended after the fault, in seconds."""
    folder = Path(job["recipe"]).parent
    fault, thaw = folder / "fault", job.get("thaw")
    fault.unlink(missing_ok=True)
    logs = [folder / f"rank-{rank}.log" for rank in range(2)]
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            child(job, rank, logs[rank])
        pids.append(pid)
    codes: dict[int, int] = {}
    ended: dict[int, float] = {}
    until = time.monotonic() + job.get("limit", 120)
    while len(codes) < 2:
        for rank, pid in enumerate(pids):
            done, status = (0, 0) if rank in codes else os.waitpid(pid, os.WNOHANG)
            if done:
                codes[rank], ended[rank] = os.waitstatus_to_exitcode(status), time.monotonic()
        if thaw and fault.exists() and time.monotonic() > float(fault.read_text()) + thaw:
            os.kill(pids[job["fault"]["rank"]], signal.SIGCONT)
            thaw = None
        if time.monotonic() > until:
            for rank in {0, 1} - codes.keys():
                os.kill(pids[rank], signal.SIGKILL)
        time.sleep(0.01)
    since = float(fault.read_text()) if fault.exists() else 0.0
    return {
        "codes": [codes[rank] for rank in range(2)],
        "seconds": [ended[rank] - since for rank in range(2)],
        "said": [log.read_text(encoding="utf-8", errors="replace") for log in logs],
    }
