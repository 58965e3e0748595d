"""Five signals ask a run to save and end, whoever sends them and to however many of its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from humanline.train.online.overlap import Ahead, Job
from humanline.train.online.rewards.pool import Pool
from humanline.train.run.processes import RoundError
from tests.helpers.files import leftovers
from tests.helpers.kills import result_of
from tests.helpers.support import config

NAMES = ("SIGHUP", "SIGUSR1", "SIGXCPU")
ALL = ("SIGTERM", "SIGINT", *NAMES)
SHORT = {"checkpoint": {"every": 2, "minutes": None}, "training__steps": 8}  # the last save is not the last step


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory, server):
    """A run that was left alone, how many write barriers it passed before its model, and its seconds."""
    one = config(toy, tmp_path_factory.mktemp("whole") / "run", **SHORT)
    outcome = server.run(one)
    assert outcome["code"] == 0, outcome["log"]
    return one, outcome["barriers"].index("final begun"), outcome["seconds"]


class TestRuns:
    @pytest.mark.parametrize("moments", [[5], pytest.param(range(10), marks=pytest.mark.slow)], ids=len)
    @pytest.mark.parametrize("name", [*NAMES[:2], pytest.param(NAMES[2], marks=pytest.mark.slow)])
    def test_each_signal_saves_and_the_run_goes_on_bit_for_bit(self, toy, tmp_path, server, whole, name, moments):
        """At every tenth of its writes: exit code 75, the same bits on --resume; so too at times, unless it is done."""
        one, count, seconds = whole
        for tenth in moments:
            for how in ("write", "time") if len(moments) > 1 else ("write",):
                stopped = config(toy, tmp_path / f"{how}-{tenth}", **SHORT)
                at = {"signal_at": [count * tenth // 10]} if how == "write" else {"stop_after": seconds * tenth / 10}
                outcome = server.run(stopped, signal=name, **at)
                stopped_or_done = (75,) if how == "write" else (75, 0)
                assert outcome["code"] in stopped_or_done, outcome
                assert (f"stopped by {name}" in outcome["log"]) == (outcome["code"] == 75), outcome
                outcome = server.run(stopped, resume=True)
                assert outcome["code"] == 0, outcome["log"]
                assert result_of(stopped) == result_of(one) and not leftovers(Path(stopped.output))
                shutil.rmtree(stopped.output)

    def test_what_was_ignored_at_the_start_stays_ignored(self, toy, tmp_path, server, whole):
        """Under nohup (SIGHUP ignored) the signal changes nothing, however often; the others too, where ignored."""
        one, count, _ = whole
        kept = config(toy, tmp_path / "run", **SHORT)
        for name in NAMES:
            outcome = server.run(kept, signal=name, signal_at=list(range(0, count, 2)), ignored=[name])
            assert outcome["code"] == 0, outcome["log"]
            assert result_of(kept) == result_of(one)
            shutil.rmtree(kept.output)


REWARD = """
import os, time

def slow(prompt, completion):
    open(f"{completion}.begun", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    return 0.5
"""


class TestOtherProcesses:
    """A scheduler may send its signal to every process of a job."""

    def test_reward_workers_live_on(self, tmp_path, monkeypatch):
        """While they start and while they work: every item is scored, by the workers that were there."""
        (tmp_path / "own.py").write_text(REWARD)
        monkeypatch.chdir(tmp_path)
        pool = Pool(2, seconds=60, memory=256, functions=["own:slow"])
        tasks = [
            {"kind": "function", "call": "own:slow", "prompt": "", "completion": name, "columns": {}} for name in "ab"
        ]
        start, signalled = pool._start, []

        def signalling(wanted):
            start(wanted)
            for worker in pool._workers:
                if worker.process.pid not in signalled or worker.ready:
                    signalled.append(worker.process.pid)
                    for name in ALL:
                        os.kill(worker.process.pid, getattr(signal, name))
            if all((tmp_path / f"{name}.begun").exists() for name in "ab"):
                (tmp_path / "go").touch()

        wait = pool._wait

        def waiting():
            if sum(worker.task is not None for worker in pool._workers) == 2:
                while not (tmp_path / "go").exists():
                    signalling(2)
                    time.sleep(0.05)
            return wait()

        monkeypatch.setattr(pool, "_start", signalling)
        monkeypatch.setattr(pool, "_wait", waiting)
        done = dict(one for some in pool.run(tasks) for one in some)
        pool.close()
        assert {number: verdict.value for number, verdict in done.items()} == {0: 0.5, 1: 0.5}, done
        assert len(set(signalled)) == 2

    @pytest.mark.slow
    def test_the_process_that_samples_ahead_lives_on(self, tmp_path):
        """From its first moment on; what it says is what it was asked, not how it was killed."""
        ahead = Ahead(lambda: False, print)
        ahead.start(Job(None, tmp_path, 0, "", "cpu", 1))
        for name in ALL:
            os.kill(ahead.process.pid, getattr(signal, name))
        with pytest.raises(RoundError, match="AttributeError"):  # it has no settings
            ahead.wait_for(0)
        for name in ALL:
            os.kill(ahead.process.pid, getattr(signal, name))
        ahead.start(Job(None, tmp_path, 1, "", "cpu", 1))
        with pytest.raises(RoundError, match="AttributeError"):
            ahead.wait_for(1)
        ahead.close()


@pytest.mark.slow
def test_a_terminal_that_is_closed_ends_a_run_with_everything_saved(toy, tmp_path):
    """The command in a terminal of its own, which then goes away under its progress bar: 75, and it can be resumed."""
    import yaml

    one = config(toy, tmp_path / "run", training__steps=100000)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(one.model_dump(mode="json")))
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "humanline", "train", str(tmp_path / "recipe.yaml")]
    begin = (
        "import os, sys, fcntl, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    run = subprocess.Popen([sys.executable, "-c", begin, *words], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.set_blocking(ours, False)
    begun, until = tmp_path / "run" / "data.json", time.monotonic() + 120
    try:
        while not begun.exists():
            assert time.monotonic() < until and run.poll() is None
            with contextlib.suppress(BlockingIOError):
                os.read(ours, 65536)
            time.sleep(0.1)
        os.close(ours)
        assert run.wait(60) == 75
    finally:
        run.kill()
        run.wait()
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
