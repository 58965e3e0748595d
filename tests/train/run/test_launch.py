"""Processes that `humanline train --processes N` starts: told to stop, killed, failing and hanging."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from humanline.cli import main
from humanline.system.activity import EXIT_NEIGHBOUR
from humanline.system.launcher import LAUNCHED_BY, LauncherError
from humanline.train.run import launch as launching
from humanline.train.run.launch import launch
from tests.conftest import ROOT
from tests.helpers.kills import result_of
from tests.helpers.processes import alive, gone
from tests.helpers.support import config
from tests.train.run.test_neighbours import Pairs, fixed

SAVE = {"rank": "0", "module": "humanline.train.run.checkpoint", "name": "Contents.write_facts", "how": "slow"}
STEP = {"module": "humanline.train.step.loss", "name": "ObjectiveStep.loss", "after": 10, "seconds": 10_000}


@pytest.fixture(scope="module")
def pairs(server):
    return Pairs(server)


class Launched:
    """`humanline train --processes 2`, with harm done to one of them."""

    def __init__(self, settings: Any, *words: str, harm: Any = None, **environment: str | None) -> None:
        self.folder = Path(settings.output).parent
        self.folder.mkdir(exist_ok=True, parents=True)
        recipe = self.folder / "run.yaml"
        recipe.write_text(json.dumps(settings.model_dump(mode="json")), encoding="utf-8")
        self.note = self.folder / "harmed"
        self.note.unlink(missing_ok=True)
        paths = os.pathsep.join([str(ROOT / "tests/helpers/harm"), str(ROOT)])
        given = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths} | environment
        if harm is not None:
            given["HARM"] = json.dumps(harm)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "humanline", "train", str(recipe), "--processes", "2", *words],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
            env={name: value for name, value in given.items() if value is not None},
        )
        self.children: list[int] = []

    def until(self, path: Path, text: str = "") -> None:
        """Wait until a file is there and holds a text; note the processes."""
        end = time.monotonic() + 120
        while not (path.exists() and text in path.read_text()) and time.monotonic() < end:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.02)
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.children = list(map(int, found))

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was said, and see that no process is left."""
        said = self.process.communicate(timeout=150)[1]
        assert gone(self.children)
        return self.process.returncode, said


def stopped_in_a_save(settings: Any, seconds: float) -> None:
    """Send SIGTERM to the launcher while a save takes so long: it waits for it, and says once how to go on."""
    slow = Launched(settings, harm=SAVE | {"after": 0, "seconds": seconds})
    slow.until(slow.note)
    began = time.monotonic()
    slow.process.send_signal(signal.SIGTERM)
    code, said = slow.end()
    assert code == 75 and time.monotonic() - began > 0.9 * seconds, said
    assert "stopped by SIGTERM after 2 of 6 updates; all of it is in" in said
    assert said.count("stopped by SIGTERM") == 1


@pytest.mark.slow
def test_a_run_stopped_in_a_save_goes_on(toy, tmp_path, pairs):
    """SIGTERM to the launcher in a save of 12 s: the run goes on to the same bits."""
    settings, other = fixed(toy, tmp_path), fixed(toy, tmp_path / "other")
    stopped_in_a_save(settings, 12)
    assert pairs.run(settings, resume=True)["codes"] == [0, 0]
    assert pairs.run(other)["codes"] == [0, 0] and result_of(settings) == result_of(other)


@pytest.mark.slow
def test_a_stop_waits_for_a_save_of_a_minute(toy, tmp_path):
    """Beyond the 30 seconds that other launchers give; the run goes on with the same command and --resume."""
    settings = fixed(toy, tmp_path)
    stopped_in_a_save(settings, 60)
    code, said = Launched(settings, "--resume").end()
    assert code == 0 and "going on after 2 updates" in said


@pytest.mark.slow
def test_no_process_outlives_the_launcher(toy, tmp_path):
    """Killed, it takes all with it; they have had their share of the cores."""
    run = Launched(fixed(toy, tmp_path, steps=400), OMP_NUM_THREADS=None)
    run.until(tmp_path / "run" / "metrics.jsonl", '"step": 4')
    threads = f"OMP_NUM_THREADS={max(1, len(os.sched_getaffinity(0)) // 2)}\0"
    assert all(threads.encode() in Path(f"/proc/{pid}/environ").read_bytes() for pid in run.children)
    run.process.kill()
    assert len(run.children) == 2 and gone(run.children)
    run.process.stderr.close()
    run.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["kill", "raise", "hang"])
def test_however_one_process_ends_all_do(toy, tmp_path, how, rank, sharding):
    """Within a minute, with what became of it said once; no process is left. Some wait in the gathering of weights."""
    settings = config(
        toy,
        tmp_path / "run",
        "dpo",
        reference={"schedule": {"kind": "before_step", "every": 2}},
        training={"steps": 6, "batch_size": 8, "micro_batch_size": 2, "stall_minutes": 0.1, "sharding": sharding},
    )
    bad = Launched(settings, harm=STEP | {"rank": str(rank), "how": how})
    bad.until(bad.note)
    began, pid = time.monotonic(), int(bad.note.read_text())
    code, said = bad.end()
    print(f"{how} {rank}: {time.monotonic() - began:.1f} s\n{said}")
    assert time.monotonic() - began < 60 and not alive(pid)
    assert code == (1 if how == "raise" else EXIT_NEIGHBOUR), said
    found = (
        {
            "kill": f"process {rank} (.*process id {pid}) is gone: it was killed or has crashed",
            "raise": "KeyError: 'made by a test'",
            "hang": f"process {rank} (.*process id {pid}) stands still: nothing got done for .* while training, after",
        }[how]
        .replace("(.", r"\(.")
        .replace(f"{pid})", rf"{pid}\)")
    )
    assert re.search(found, said), said
    if how == "raise" and rank == 1:
        assert "process 1 (" in said and "failed while training, after 5 updates" in said
        assert said.count("Traceback (most recent call last)") == 1 and "in harmful" in said
    if how == "hang":
        assert "in harmful" in said


def test_processes_that_cannot_be_started_are_refused(tmp_path, monkeypatch, capsys):
    """Under another launcher, more than there are GPUs, or none at all: said before anything is started."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(launching.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(launching.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    with pytest.raises(LauncherError, match=r"--processes 3, but 2 GPUs can be seen here \(CUDA_VISIBLE_DEVICES=0,3\)"):
        launch(["train"], 3)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(LauncherError, match="--processes 2 inside of a launcher"):
        launch(["train"], 2)
    assert main(["train", "nothing.yaml", "--processes", "0"]) == 2
    assert "--processes must be >= 1; got 0" in capsys.readouterr().err


def test_a_process_that_has_come_to_its_end_keeps_its_exit_code():
    """A signal that the launcher passes on while Python ends kills nothing."""
    text = "import os, sys; from humanline.cli import main; code = main(['train', 'nothing.yaml']);"
    command = [sys.executable, "-c", f"{text} os.kill(os.getpid(), {int(signal.SIGINT)}); sys.exit(code)"]
    for launched, code in ((True, 2), (False, -signal.SIGINT)):
        there = {LAUNCHED_BY: str(os.getpid())} if launched else {}
        ended = subprocess.run(command, env=os.environ | there, cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode == code and "nothing.yaml" in ended.stderr, ended


class Ended:
    """In place of a process: how it has ended, and when."""

    def __init__(self, rank: int, code: int, at: float = 0.0) -> None:
        self.rank, self.code, self.at, self.said = rank, code, at, f"words of {rank}"


@pytest.mark.parametrize(
    ("codes", "stopped_by", "code"),
    [
        ((0, 0), "", 0),
        ((75, 75), "SIGTERM", 75),
        ((4, 4), "", 4),
        ((69, -9), "", 69),
        ((-9, 69), "", 69),
        ((69, 1), "", 1),
        ((2, 75), "", 2),
        ((75, 2), "SIGTERM", 2),
        ((-15, 75), "SIGTERM", 75),
        ((-15, -15), "SIGTERM", 75),
        ((-9, 75), "SIGTERM", 137),
        ((69, -9), "SIGTERM", 69),
        ((75, 75), "", 75),
        ((3, 3), "", 3),
        ((1, 70), "", 1),
        ((70, 2), "", 2),
    ],
)
def test_the_exit_code_says_how_the_run_ended(codes, stopped_by, code):
    """What one has met by itself goes before what others have made of it, and a stop is none of both."""
    ended = [Ended(rank, one) for rank, one in enumerate(codes)]
    assert launching._outcome(ended, stopped_by) == code


def test_what_is_said_comes_once(capfd):
    """The main process speaks; another one's words are shown where it could not, or did not know them."""
    cases = [
        ((69, 1), ""),
        ((2, 70), ""),
        ((2, 2), ""),
        ((70, 1), "words of 1"),
        ((75, 2), "words of 1"),
        ((-9, 69), "words of 1"),
        ((69, -6), "words of 1"),
    ]
    for codes, words in cases:
        ended = [Ended(rank, one) for rank, one in enumerate(codes)]
        launching._show(ended, launching._outcome(ended, ""), "")
        said = capfd.readouterr().err
        assert (words in said and "words of 0" not in said) if words else not said, (codes, said)


SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=localhost SLURM_NODEID=0
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" & first=$!
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" & second=$!
echo "$first $second" > tasks
wait "$first"; one=$?
wait "$second"; two=$?
exit $((one > two ? one : two))
"""


@pytest.mark.slow
def test_a_batch_job_of_slurm_stops_in_time_and_is_queued_again(toy, tmp_path):
    """Two tasks of srun are one run of two processes; SIGUSR1 to both saves it, and puts the job in the queue."""
    settings = fixed(toy, tmp_path, steps=400)
    (tmp_path / "run.yaml").write_text(json.dumps(settings.model_dump(mode="json")), encoding="utf-8")
    commands = {
        "srun": SRUN,
        "scontrol": '#!/bin/sh\necho "$@" > queued\n',
        "mine.sh": f'#!/bin/sh\nexec {sys.executable} -m humanline train run.yaml --resume "$@"\n',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    own = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        [str(ROOT / "scripts/8b/slurm.sh"), str(tmp_path / "mine.sh"), "--quiet"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | own | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    metrics, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and '"step": 4' in metrics.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    tasks = list(map(int, (tmp_path / "tasks").read_text().split()))
    for task in tasks:
        os.kill(task, signal.SIGUSR1)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 75 and gone(tasks), said
    assert said.count("stopped by SIGUSR1 after") == 2 and (tmp_path / "queued").read_text() == "requeue 7\n"
    steps = [row["step"] for row in map(json.loads, metrics.read_text().splitlines()) if "step" in row]
    assert steps == list(range(len(steps)))
    assert f"stopped by SIGUSR1 after {len(steps)} of 400 updates; all of it is in" in said
