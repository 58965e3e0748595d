"""Start training runs in forked processes and kill them: a script that `kills.py` talks to.

Everything heavy is imported once; every run is a child of its own, so that a kill costs no start-up. Each line of
standard input is a job, each line of standard output its outcome. What a job's `by` names, a module of ours, plays it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch

import humanline.system.disk as disk
from humanline.system.stop import StopRequested, StopSignal
from humanline.train.config import TrainConfig
from humanline.train.config.base import BESIDE
from humanline.train.loop import train
from humanline.train.run.checkpoints import Checkpoints
from tests.helpers.barriers import do_at, send
from tests.helpers.files import do_not_wait_for_the_disk

STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU}


def child(job: dict[str, Any]) -> int:
    """Run one job in this process: kill or signal it at a write barrier, or note all barriers it passes."""
    acts = {number: partial(send, getattr(signal, job["signal"])) for number in job.get("signal_at", ())}
    if "fill_at" in job:
        acts[job["fill_at"]] = partial(fill, job)
    if "kill_at" in job:
        acts[job["kill_at"]] = partial(send, signal.SIGKILL)
    passed = do_at(acts)
    disk.LOOK_AGAIN = job.get("look_again", disk.LOOK_AGAIN)
    os.environ.update(job.get("env", {}))
    if "flock" in job:  # what a file system without these locks answers
        fcntl.flock = no_flock(getattr(errno, job["flock"]))
    for name in job.get("ignored", ()):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if "largest_file" in job:  # a write beyond it fails as on a full disk, inside whatever library is writing
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest_file"], job["largest_file"]))
    if job.get("slow_to_save"):
        Checkpoints.save = lambda *_, **__: time.sleep(60)
    sys.stderr = open(job["log"], "w", encoding="utf-8")  # noqa: SIM115
    code = 0
    try:
        with StopSignal() as stop:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            config = TrainConfig.model_validate(job["config"], context={BESIDE: job.get("beside")})
            train(config, resume=job["resume"], stop=stop)
    except StopRequested as request:
        print(request, file=sys.stderr)
        code = 75
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    Path(job["log"]).with_suffix(".barriers").write_text(json.dumps(passed))
    return code


def no_flock(number: int) -> Any:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return flock


def fill(job: dict[str, Any]) -> None:
    """Leave no byte on a file system, for good or for some seconds; ask the run to stop after others."""
    with open(job["ballast"], "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    if "free_after" in job:
        threading.Timer(job["free_after"], os.unlink, [job["ballast"]]).start()
    if "stop_full_after" in job:
        threading.Timer(job["stop_full_after"], os.kill, [os.getpid(), signal.SIGTERM]).start()


def run(job: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # until the child can take a signal
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(child(job))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    stop = getattr(signal, job.get("signal", "SIGTERM"))
    numbers = {"kill_after": signal.SIGKILL, "stop_after": stop, "stop_again_after": signal.SIGINT}
    if "once_there" in job:
        while not Path(job["once_there"]).exists():
            time.sleep(0.02)
    for name, number in numbers.items():
        if name in job:
            time.sleep(job[name])
            os.kill(pid, number)
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": time.perf_counter() - started}


def warm_up(model: str) -> None:
    """Import what a run imports, by loading its model; nothing that starts a thread."""
    from humanline.train.policy.load import load_policy
    from humanline.train.policy.logprobs import LogprobModel
    from humanline.train.run.fingerprint import software
    from humanline.train.run.processes import start_accelerator

    start_accelerator()
    model, _ = load_policy(model, dropout=False, max_length=16)
    ids = torch.arange(4)[None]
    with torch.no_grad():
        LogprobModel(model)(ids, torch.ones((1, 3), dtype=torch.bool))
    torch.optim.AdamW(model.parameters())
    software()


if __name__ == "__main__":
    warm_up(sys.argv[1])
    gc.collect()
    gc.freeze()  # what is there stays: the collector need not look at it in every run
    os.fsync = do_not_wait_for_the_disk
    for line in sys.stdin:
        job = json.loads(line)
        if "shell" in job:
            outcome = {"code": subprocess.run(job["shell"]).returncode}
        else:
            outcome = importlib.import_module(job["by"]).run(job) if "by" in job else run(job)
        print(json.dumps(outcome), flush=True)
