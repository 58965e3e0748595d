"""The campaign itself: it finds what it looks for, makes the same cases again, and a few of each kind pass."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.campaign.forked import Command, _own_part, adopt_orphans, no_network, run
from tests.campaign.stage import faults
from tests.conftest import ROOT

# Some of each kind; a process warms itself for each of the two tests that play them.
FEW = ["kills:0", "data:0", "answers:76"]
MORE = [
    "disks:0",
    "locks:0",
    "recipes:38",
    "models:9",
    "servers:0",
    "rewards:0",
    "kills:3",
    "kills:514",
    "disks:6",
    "disks:41",
    "data:64",
    "data:67",
    "data:130",
    "data:134",
    "recipes:0",
]
MORE += ["recipes:110", "models:0", "models:3", "models:240", "servers:30", "servers:60", "rewards:9", "answers:1"]


def raises() -> int:
    raise RuntimeError("a fault")


def prints(text: str, code: int = 0) -> int:
    print(text)
    return code


def hangs() -> int:
    time.sleep(60)
    return 0


def rests() -> int:
    time.sleep(0.5)
    return 0


def hoards() -> int:
    held = []
    while len(held) < 250:
        held.append(b"x" * 2**24)
        time.sleep(0.005)
    return 0


def leaves_a_process() -> int:
    subprocess.Popen(["sleep", "60"], start_new_session=True)
    return 0


def connects() -> int:
    import socket

    try:
        socket.create_connection(("192.0.2.1", 80), timeout=5)
    except OSError:
        return 2
    return 0


def shares() -> int:
    held = b"x" * (720 * 2**20)
    pid = os.fork()
    if pid == 0:
        time.sleep(0.5)
        os._exit(0)
    os.waitpid(pid, 0)
    return len(held) % 2


@pytest.fixture
def orphans():
    """Adopt the processes that a command leaves behind, for a while."""
    adopt_orphans()
    yield
    adopt_orphans(False)


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (partial(prints, "fine"), []),
        (raises, ["exit code 1", "a traceback"]),
        (partial(prints, "\x1b[31m"), [r"raw '\x1b'"]),
        (partial(prints, "x" * 10_000), ["printed 10001 characters"]),
        (partial(prints, "", 2), ["exit code 2 without a word"]),
        (partial(prints, "words", 5), ["exit code 5"]),
        (hangs, ["took more than 1 s"]),
        (hoards, ["took more than 1500 MiB"]),
        (shares, []),
        (leaves_a_process, ["left 1 process"]),
    ],
    ids=["fine", "a fault", "escapes", "much", "no word", "a code", "a hang", "memory", "shared memory", "a process"],
)
def test_what_may_never_be_is_found(tmp_path, orphans, work, found):
    """A command that does what none may do is complained of, by what it did, and one that is fine is not."""
    outcome = run(Command(work=work), tmp_path, seconds=1.0 if work is hangs else 30.0, mib=1500.0)
    complaints = faults(outcome, (0, 2))
    assert len(complaints) == len(found), complaints
    for complaint, words in zip(complaints, found, strict=True):
        assert words in complaint


def test_what_a_forked_process_shares_with_its_parent_is_not_its_own(tmp_path):
    """A command that takes next to nothing is fine by a limit far below what the process holds that forks it."""
    held = _own_part(os.getpid())
    assert held > 100
    gc.disable()  # a collection in the forked process would write to what it shares, and so copy it
    try:
        outcome = run(Command(work=rests), tmp_path, mib=held / 4)
    finally:
        gc.enable()
    assert outcome.over is None


def test_the_network_is_out_of_reach_and_noted(tmp_path):
    """A connection beyond this machine is refused, and written down by its address."""
    outcome = run(Command(work=connects, before=(partial(no_network, tmp_path / "tried"),)), tmp_path)
    assert outcome.code == 2 and "192.0.2.1" in (tmp_path / "tried").read_text()


def test_a_fresh_process_does_what_a_forked_one_does(tmp_path):
    """A command that is begun afresh ends as the forked one does."""
    for fresh in (False, True):
        outcome = run(Command(words=("ls",)), tmp_path, fresh=fresh)
        assert outcome.code == 0 and "\n" in outcome.out and not outcome.err, outcome


def test_a_case_is_a_function_of_its_number_and_seed(toy, tmp_path):
    """The same number and seed make the same files, another seed others."""
    from tests.campaign import models
    from tests.campaign.stage import Stage

    def made(seed: int) -> dict[str, bytes]:
        folder = tmp_path / "case"
        shutil.copytree(toy["model"], folder / "model")
        models.mutate(Stage("models", 250, seed, None, folder), folder / "model")
        files = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
        shutil.rmtree(folder)
        return files

    assert made(0) == made(0) != made(1)


@pytest.mark.parametrize("cases", [pytest.param(FEW, id="few"), pytest.param(MORE, id="more", marks=pytest.mark.slow)])
def test_a_few_cases_of_each_kind_pass(tmp_path, cases):
    """Some kills, faults, hostile files, servers, rewards and answers leave every promise kept; most kinds are slow."""
    command = [sys.executable, "-m", "tests.campaign", "--processes", "1", "--results", str(tmp_path), "--only", *cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(cases)} cases" in (tmp_path / "results.md").read_text()


def test_kinds_have_as_many_cases_as_were_promised():
    """The committed table is of a whole campaign: 500 kills, 100 model folders and recipes, and so on."""
    rows = (Path(__file__).parent / "results.md").read_text(encoding="utf-8").splitlines()
    cases = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in rows if row.startswith("| ")}
    least = {"data": 90, "recipes": 100, "models": 100, "servers": 60, "rewards": 28, "answers": 130, "kills": 500}
    for kind, count in least.items():
        assert int(cases[kind][1]) >= count, kind
