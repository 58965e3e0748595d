"""Worker processes of a command."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from humanline._workers import WorkerError, as_made, worker_processes
from tests.helpers.dying import write_nowhere
from tests.helpers.processes import gone


@pytest.mark.parametrize("how", ["done", "killed"])
def test_workers_do_not_outlive_their_command(tmp_path, how):
    """A command that ends, or is killed while a worker is busy, leaves no worker behind."""
    work = tmp_path / "work.py"
    work.write_text(
        "import os, sys, time\n"
        "from humanline._workers import worker_processes\n"
        "def busy(seconds):\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}} ')\n"
        "    time.sleep(seconds)\n"
        "if __name__ == '__main__':\n"
        "    with worker_processes(1, then='') as pool:\n"
        "        pool.submit(busy, float(sys.argv[1])).result()\n"
    )
    process = subprocess.Popen([sys.executable, str(work), "0" if how == "done" else "1000"])
    if how == "killed":
        while process.poll() is None and not (tmp_path / "pid").exists():
            time.sleep(0.02)
        process.kill()
    assert process.wait(60) == (0 if how == "done" else -signal.SIGKILL)
    until = time.monotonic() + 60
    while not (tmp_path / "pid").read_text().strip() and time.monotonic() < until:
        time.sleep(0.02)
    assert gone([int((tmp_path / "pid").read_text())])


def test_items_are_begun_in_their_order_so_many_at_a_time():
    """Each comes with what was made of it, and none is begun while as many as are allowed are under way."""
    begun, under_way, most = [], [], []

    def submit(item):
        begun.append(item)
        under_way.append(item)
        most.append(len(under_way))
        return pool.submit(lambda: item * 10)

    with ThreadPoolExecutor(2) as pool:
        made = []
        for item, result in as_made(range(7), submit, at_once=2):
            under_way.remove(item)
            made.append((item, result))
    assert sorted(made) == [(item, 10 * item) for item in range(7)] and begun == list(range(7)) and max(most) == 2


@pytest.mark.parametrize("which", ["work", "before"])
def test_those_under_way_are_yielded_before_an_error(which):
    """What fails, or refuses to begin another one, lets none be begun any more, and loses none that was."""
    futures, before = {}, []

    def submit(item):
        futures[item] = Future()
        return futures[item]

    def refuse():
        before.append(True)
        if which == "before" and len(before) == 3:
            raise OSError("enough")

    each = as_made("abcd", submit, at_once=2, before=refuse)
    with ThreadPoolExecutor(1) as other:
        first = other.submit(next, each)
        while len(futures) < 2:
            time.sleep(0.001)
        if which == "work":
            futures["a"].set_exception(OSError("enough"))
        else:
            futures["a"].set_result("A")
            assert first.result(30) == ("a", "A")
            first = other.submit(next, each)
        futures["b"].set_result("B")
        assert first.result(30) == ("b", "B")
    with pytest.raises(OSError, match="enough"):
        next(each)
    assert list(futures) == ["a", "b"]


def test_an_error_that_cannot_travel_arrives_in_words(tmp_path):
    """An error whose class takes other arguments than it keeps would break the pool, and hide what happened."""
    with worker_processes(1, then="") as pool:
        assert pool.submit(abs, -3).result() == 3
        with pytest.raises(WorkerError, match=r"in a worker process: WriteError: .*out/file cannot be written"):
            pool.submit(write_nowhere, str(tmp_path / "out" / "file")).result()
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()
        assert pool.submit(abs, -4).result() == 4
