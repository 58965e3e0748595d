"""Disks that fill up, folders that vanish, file systems that cannot flush, and files that cannot be read."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.train.kills import Server, leftovers, result_of
from tests.train.test_resume import SOME, case, moved


def mounts_are_allowed(folder: Path) -> bool:
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        return subprocess.run(words, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def small(toy, tmp_path_factory):
    """A process that forks runs, and a file system of 80 MiB that it alone sees mounted."""
    folder = tmp_path_factory.mktemp("small")
    if not mounts_are_allowed(folder):
        pytest.skip("mounting is not allowed here")
    with Server(toy["model"], mount=folder) as server:
        yield server, folder


class Full(OSError):
    def __init__(self):
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestARealFullDisk:
    @pytest.mark.parametrize(
        "steps,what",
        [
            (12, r"/run/metrics\.jsonl cannot be written: No space left on device: \d+ bytes needed, .* free; "),
            (
                7,
                r"finished model could not be written: .*/run/final cannot be written: .* needed, .* free; no checkpoint ",
            ),
        ],
    )
    def test_a_run_ends_with_a_sentence_and_goes_on_to_the_same_bits(self, toy, small, tmp_path, steps, what):
        """The last line names file, need, what is free and --resume; then the run is bitwise as one left alone."""
        server, folder = small
        training = {"steps": steps, "batch_size": 8, "micro_batch_size": 4}
        one = case(toy, folder / "run", *SOME[0], training=training)
        whole = case(toy, tmp_path / "whole", *SOME[0], training=training)
        at = server.run(whole)["barriers"].index("step-00000004 named")
        ballast = folder / "ballast"
        outcome = server.run(one, fill_at=at, ballast=str(ballast), log=tmp_path / "log")
        assert outcome["code"] == 2, outcome["log"]
        last = outcome["log"].splitlines()[-1]
        assert re.search(what, last), last
        ending = "when there is space again, add --resume to the same command: the run goes on from step-00000004"
        assert last.endswith(ending), last
        server.shell("rm", ballast)
        assert server.run(one, resume=True, log=tmp_path / "log")["code"] == 0
        server.shell("cp", "-r", folder / "run", tmp_path / "copy")  # which is no part of what is mounted
        server.shell("rm", "-r", folder / "run")
        copy = moved(one, tmp_path / "copy")
        assert result_of(copy) == result_of(whole) and not leftovers(tmp_path / "copy")

    @pytest.mark.parametrize("place", ["metrics.jsonl renamed", "step-00000002 begun", "step-00000004: policy-0"])
    def test_a_run_that_waits_goes_on_by_itself_to_the_same_bits(self, toy, small, tmp_path, place):
        """With training.disk_full: wait, wherever the disk fills, nothing is lost once there is space; it is said."""
        server, folder = small
        waits = {"steps": 7, "batch_size": 8, "micro_batch_size": 4, "disk_full": "wait"}
        one = case(toy, folder / "run", *SOME[0], training=waits)
        whole = case(toy, tmp_path / "whole", *SOME[0])
        barriers = server.run(whole)["barriers"]
        at = next(n for n, what in enumerate(barriers) if what.startswith(place))
        how = {"ballast": str(folder / "ballast"), "free_after": 1.0, "look_again": 0.3}
        outcome = server.run(one, fill_at=at, **how, log=tmp_path / "log")
        assert outcome["code"] == 0, outcome["log"]
        assert outcome["log"].count("training.disk_full is wait: it is tried again every 0.3 seconds") == 1
        assert outcome["log"].count("there is space on the disk again: the run goes on") == 1
        server.shell("cp", "-r", folder / "run", tmp_path / "copy")
        server.shell("rm", "-r", folder / "run")
        assert result_of(moved(one, tmp_path / "copy")) == result_of(whole) and not leftovers(tmp_path / "copy")

    def test_a_stop_while_waiting_ends_the_run_and_says_what_is_saved(self, toy, small, tmp_path):
        """SIGTERM while a run waits: exit code 75, the newest checkpoint by name, and the same bits after --resume."""
        server, folder = small
        waits = {"steps": 7, "batch_size": 8, "micro_batch_size": 4, "disk_full": "wait"}
        one = case(toy, folder / "run", *SOME[0], training=waits)
        whole = case(toy, tmp_path / "whole", *SOME[0])
        at = server.run(whole)["barriers"].index("step-00000004 named")
        outcome = server.run(
            one, fill_at=at, ballast=str(folder / "ballast"), stop_full_after=1.0, log=tmp_path / "log"
        )
        assert outcome["code"] == 75, outcome["log"]
        last = outcome["log"].splitlines()[-1]
        assert "stopped by SIGTERM while it waited for space: " in last and "--resume" in last, last
        assert last.endswith("the run goes on from step-00000004"), last
        server.shell("rm", folder / "ballast")
        assert server.run(one, resume=True, log=tmp_path / "log")["code"] == 0
        server.shell("cp", "-r", folder / "run", tmp_path / "copy")
        server.shell("rm", "-r", folder / "run")
        assert result_of(moved(one, tmp_path / "copy")) == result_of(whole)
