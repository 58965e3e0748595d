"""The real command, killed and taken up again, leaves what it leaves undisturbed, byte by byte."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from humanline.reproduce.suite import STORE
from humanline.system.kept import KeptResults
from tests.helpers.micro_suite import CELLS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
STARTS = 2
_LIMIT = 300.0  # seconds for a moment to come, on a busy machine


def begun(out: Path, *more: str) -> subprocess.Popen[str]:
    words = ["reproduce", "micro", "--starts", str(STARTS), "--out", str(out), "--quiet", *more]
    command = [sys.executable, "-m", "tests.helpers.micro_suite", *words]
    with open(out.with_suffix(".log"), "a", encoding="utf-8") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def finished(out: Path, *more: str) -> dict[str, bytes]:
    process = begun(out, *more)
    assert process.wait(timeout=600) == 0, out.with_suffix(".log").read_text()
    return left_in(out)


def left_in(out: Path) -> dict[str, bytes]:
    """Return what a suite has written of its testbed; of the seconds that runs took, nothing."""
    files = {path.name: path.read_bytes() for path in sorted((out / "micro").iterdir())}
    rows = list(csv.DictReader(files["runs.csv"].decode().splitlines()))
    assert len(rows) == STARTS * len(CELLS) and all(float(row["seconds"]) > 0 for row in rows)
    files["runs.csv"] = repr(
        [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
    ).encode()
    return files


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return finished(tmp_path_factory.mktemp("undisturbed") / "out", "--processes", "1")


def kept(out: Path) -> int:
    file = out / STORE
    return len(KeptResults(file).read()) if file.is_file() else 0


def in_start(out: Path) -> bool:
    return bool(list(out.glob("starts/micro/near-0/start/metrics.jsonl")))


def in_pairs(out: Path) -> bool:
    return bool(list(out.glob("starts/micro/near-*/pairs-0")))


def in_run(out: Path) -> bool:
    return bool(list(out.glob("runs/micro/*/metrics.jsonl")))


def after_two(out: Path) -> bool:
    return kept(out) >= 2


def in_second_start_model(out: Path) -> bool:
    return (out / "starts" / "micro" / "near-1").is_dir()


def in_last_run(out: Path) -> bool:
    return kept(out) == STARTS * len(CELLS) - 1


def in_tables(out: Path) -> bool:
    return (out / "micro" / "runs.csv").is_file()


def in_figure(out: Path) -> bool:
    return (out / "micro" / "frontier.md").is_file()


MOMENTS = (in_start, in_second_start_model, in_pairs, in_run, after_two, in_last_run, in_tables, in_figure)


def wait_for(moment: Callable[[Path], bool], out: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _LIMIT
    while not moment(out) and process.poll() is None:
        assert time.monotonic() < deadline, f"{moment.__name__} does not come"
        time.sleep(0.005)


def kill_when(moment: Callable[[Path], bool], out: Path, whole: bool) -> bool:
    """Kill a suite at a moment, the command alone or its workers with it; return whether it had not ended."""
    process = begun(out, "--processes", "1")
    wait_for(moment, out, process)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL) if whole else process.kill()
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda one: one.__name__)
def test_a_suite_that_was_killed_ends_with_the_tables_of_one_that_was_not(moment, undisturbed, tmp_path):
    """The kernel's kill leaves the command no word; its workers are killed with it, or are left behind."""
    out = tmp_path / "out"
    assert kill_when(moment, out, whole=MOMENTS.index(moment) % 2 == 0)
    assert finished(out, "--processes", "1") == undisturbed


def test_a_suite_that_is_killed_at_every_moment_in_turn_ends_the_same(undisturbed, tmp_path):
    out, killed = tmp_path / "out", 0
    for number, moment in enumerate(MOMENTS):
        killed += kill_when(moment, out, whole=number % 2 == 1)
    assert killed >= 4  # moments that have passed kill as soon as the process is there
    assert finished(out, "--processes", "2") == undisturbed


def test_two_processes_leave_the_tables_of_one(undisturbed, tmp_path):
    assert finished(tmp_path / "out", "--processes", "2") == undisturbed


def test_a_suite_that_was_stopped_says_so_leaves_its_runs_as_a_table_and_ends_the_same(undisturbed, tmp_path):
    """By a signal, before the first run is kept and after some: code 75, and every kept run in runs.csv."""
    out, log = tmp_path / "out", tmp_path / "out.log"
    for moment in (in_start, in_run, after_two, in_last_run):
        process = begun(out, "--processes", "1")
        wait_for(moment, out, process)
        process.terminate()
        assert process.wait(timeout=600) == 75
        assert (
            f"{kept(out)} of {STARTS * len(CELLS)} runs are kept" in log.read_text().splitlines()[-1 - bool(kept(out))]
        )
        if kept(out):
            with open(out / "micro" / "runs.csv", encoding="utf-8", newline="") as lines:
                assert len(list(csv.DictReader(lines))) == kept(out)
    assert finished(out, "--processes", "1") == undisturbed
