"""Worker processes of a command."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from humanline._workers import WorkerError, worker_processes
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


def test_an_error_that_cannot_travel_arrives_in_words(tmp_path):
    """An error whose class takes other arguments than it keeps would break the pool, and hide what happened."""
    with worker_processes(1, then="") as pool:
        assert pool.submit(abs, -3).result() == 3
        with pytest.raises(WorkerError, match=r"in a worker process: WriteError: .*out/file cannot be written"):
            pool.submit(write_nowhere, str(tmp_path / "out" / "file")).result()
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()
        assert pool.submit(abs, -4).result() == 4
