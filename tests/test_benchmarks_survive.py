"""Benchmarks survive what fails, hangs or is killed; and so does the script that runs them all on a GPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import large
from benchmarks.parts import Clock, Part, reason_of, run_parts
from benchmarks.report import Result
from tests.conftest import ROOT

FATES = {
    "well": "",
    "raises": "failed: ValueError: the first line",
    "hangs": "failed: took longer than the 2 s it was given",
    "out_of_memory": "failed: out of memory: MemoryError",
    "out_of_gpu_memory": "failed: out of memory: the step needs more memory than there is",
    "killed": "failed: killed by signal 9",
    "gone": "failed: the last thing that it said",
    "silent": "failed: ended with code 0 and said nothing",
    "absent": "failed: AttributeError: module 'tests.helpers.stand_ins' has no attribute 'absent'",
}


def stand_in(fate: str, needs: float = 1.0, **arguments: object) -> Part:
    return Part(f"what {fate} measures", f"tests.helpers.stand_ins:{fate}", arguments, needs=needs, number="7")


def test_a_benchmark_that_fails_costs_only_itself():
    """One that raises, hangs, is killed or lacks memory says so in a row, and keeps no other from running.

    The row names the part and its target, and there is no number in it; rows from before it failed are kept.
    """
    fates = [*FATES, "well"]
    found: dict[int, Result] = {}
    clock = Clock(60, workers=2)
    clock.limit = lambda needs, later: needs  # type: ignore[method-assign]
    parts = [stand_in(fate, 2.0 if fate == "hangs" else 60.0) for fate in fates]
    run_parts(parts, clock, lambda place, result, ended: found.update({place: result}))
    for place, (fate, why) in enumerate(FATES.items()):
        *kept, last = found[place].rows
        assert last.note == why and last.failed is bool(why)
        if why:
            assert (last.number, last.what, last.value, last.met) == ("7", f"what {fate} measures", None, None)
        if fate == "raises":
            assert [row.value for row in kept] == [0.5]
    assert found[0] == found[len(FATES)] == Result({"a": 1}, found[0].rows, {"a": [1.0]})


def is_gone(pid: int) -> bool:
    """Return whether a process is gone within five seconds, but for the end that its parent has not taken note of."""
    for _ in range(100):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            status = Path(f"/proc/{pid}/stat")
            if not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


def test_the_time_that_is_left_is_divided_by_need():
    """A part gets its share of what is left, or three times its need, and is not begun where that need is not there."""
    clock = Clock(1.0)
    assert clock.limit(10, 10) == pytest.approx(30, abs=1)
    assert clock.limit(10, 90) == 30
    assert clock.limit(59, 0) == pytest.approx(60, abs=1)
    assert clock.limit(61, 0) is None
    assert Clock(1.0, workers=2).limit(10, 30) == pytest.approx(30, abs=1)
    found = []
    run_parts([stand_in("killed", needs=3600)], clock, lambda *told: found.append(told))
    ((_, result, ended),) = found
    (row,) = result.rows
    assert ended and row.note.startswith("not measured: ") and row.note.endswith("it needs about 3600 s")


@pytest.fixture
def stand_ins(monkeypatch):
    """Put stand-ins in the place of all benchmarks, and no figure."""

    def put(*fates: str) -> None:
        known = {
            fate: command.Known(f"tests.helpers.stand_ins:{fate}", 1, 0.02 if fate == "hangs" else 5, 5)
            for fate in fates
        }
        facts = {"cpu": "a processor", "torch_threads": 1, "gpu": None, "versions": {"torch": "2"}}
        monkeypatch.setattr(command, "KNOWN", known)
        monkeypatch.setattr(command, "_machine", lambda clock: (facts, False))
        monkeypatch.setattr(command, "plot_results", lambda folder: 1 / 0)

    return put


def test_the_command_says_that_something_failed_and_writes_all_else(stand_ins, tmp_path, capsys, monkeypatch):
    """The exit code is 1 where a benchmark hangs; every file is written whole, and others have their numbers."""
    stand_ins("hangs", "well")
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    assert command.main(["--minutes", "0.8"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED" in shown and "not drawn: ZeroDivisionError" in shown
    trees = {name: json.loads((tmp_path / f"{name}-cpu.json").read_text()) for name in ("hangs", "well")}
    assert [row["value"] for row in trees["well"]["rows"]] == [0.5]
    assert trees["hangs"]["rows"][-1]["note"].startswith("failed: took longer than the ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hangs-cpu.json", "well-cpu.json"]
    stand_ins("well")
    assert command.main(["--minutes", "0.8", "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_its_file_and_no_process(tmp_path, number):
    """Whoever ends the command ends all that it has started, and finds written what was known by then."""
    note = tmp_path / "pids"
    script = f"""
import os, time
from benchmarks import __main__ as command
from benchmarks.parts import Part
leave = os._exit
os._exit = lambda code: (time.sleep(1), leave(code))  # time for whoever sees the kill to tell of it
command.KNOWN = {{"hangs": None}}
command._parts = lambda *_: [Part("it", "tests.helpers.stand_ins:hangs", {{"note": {str(note)!r}}}, needs=1)]
command._machine = lambda clock: ({{"gpu": None}}, False)
command.main(["--minutes", "5", "--out", {str(tmp_path)!r}])
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        file, tree = tmp_path / "hangs-cpu.json", {"rows": []}
        while not note.exists() or len(tree["rows"]) < 2:  # the row that it has found, and what is still to come
            assert process.poll() is None
            time.sleep(0.02)
            with contextlib.suppress(FileNotFoundError):
                tree = json.loads(file.read_text())
        os.kill(process.pid, number)
        process.communicate(timeout=30)
    assert process.returncode == (128 + number if number == signal.SIGTERM else -number)
    assert [row["note"] for row in json.loads(file.read_text())["rows"]] == [
        "",
        "not measured: the rest of it was not reached",
    ]
    for pid in map(int, note.read_text().split()):
        assert is_gone(pid)


def test_a_second_call_can_go_on_where_the_first_was_cut(monkeypatch, tmp_path):
    """Parts of `large` that are left out are not begun, and the other results have a name of their own."""
    begun: list[str] = []
    monkeypatch.setattr(command, "_machine", lambda clock: ({"gpu": {"name": "one"}}, False))
    monkeypatch.setattr(command, "run_parts", lambda parts, *_, **__: begun.extend(part.what for part in parts))
    assert command.main(["large", "--skip", "10", "--out", str(tmp_path)]) == 0
    every = [part.what for part in large.parts_of_large(False, True)]
    assert begun == every[10:]
    rows = json.loads((tmp_path / "large-after-10-gpu.json").read_text())["rows"]
    assert all(row["note"].startswith("not measured: ") and row["value"] is None for row in rows)
    assert [row["what"] for row in rows[: len(begun)]] == begun


def test_memory_that_a_cpu_lacks_is_named_as_such():
    """Torch says it by an error of no type of its own, and a run wraps that in one of its own."""
    plain = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")
    assert reason_of(plain).startswith("out of memory: ")
    assert reason_of(RuntimeError("something else")) == "RuntimeError: something else"


def script(folder: Path, codes: dict[str, int], *options: str, out: bool = True) -> tuple[int, str, list[str]]:
    """Run scripts/gpu.sh with a Python that only writes down what it is asked for; return code, output and calls."""
    asked, stub = folder / "asked", folder / "python"
    cases = "\n".join(f'  *" {what} "*) exit {code} ;;' for what, code in codes.items())
    stub.write_text(f'#!/bin/bash\n[ "$1" = - ] || echo "$*" >>{asked}\ncase " $* " in\n{cases}\nesac\n')
    stub.chmod(0o755)
    command = [str(ROOT / "scripts" / "gpu.sh"), *(["--out", str(folder / "out")] if out else []), *options]
    environment = os.environ | {"PYTHON": str(stub), "TMPDIR": str(folder)}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return (
        answer.returncode,
        answer.stdout + answer.stderr,
        # Without the question for a GPU, and without wheels where a checkout has some to install.
        [one for one in asked.read_text().splitlines()[1:] if "-m pip " not in one] if asked.exists() else [],
    )


def test_the_script_for_a_gpu_runs_all_stages_whatever_becomes_of_one(tmp_path):
    """One that fails or is cut keeps no other from running; the summary names each, and the exit code says it."""
    codes = {"-m pytest": 1, "packed": 124}
    code, said, asked = script(tmp_path, codes)
    assert code == 1
    names = [line.split("benchmarks ")[1].split()[0] for line in asked[1:]]
    assert "-m pytest -m gpu" in asked[0] and "--quick" in asked[1] and "--quick" not in asked[2]
    assert names == ["large", "large", "logprobs", "packed", "steps", "equality", "memory", "overlap", "checkpoints"]
    summary = said.partition("=== summary\n")[2]
    assert "tests: FAILED with 1" in summary and "packed: cut after" in summary
    assert summary.count("passed") == 8 and summary == (tmp_path / "out" / "gpu.log").read_text()[-len(summary) :]


@pytest.mark.parametrize(
    ("codes", "options", "code", "stages"),
    [
        ({}, ["--from", "memory"], 0, ["memory", "overlap", "checkpoints"]),
        ({"overlap": 124}, ["--from", "memory"], 3, ["memory", "overlap", "checkpoints"]),
        (
            {},
            ["--from", "large", "--minutes", "1"],
            3,
            ["logprobs", "packed", "equality", "memory", "overlap"],
        ),
        ({"-c": 1}, [], 2, []),
        ({}, ["--from", "nothing"], 2, []),
        ({}, ["--minutes", "0"], 2, []),
    ],
)
def test_the_script_for_a_gpu_says_by_its_exit_code_what_became_of_it(tmp_path, codes, options, code, stages):
    """0 is for stages that all ran to their end, 3 where time was short, 2 without a GPU or with wrong arguments."""
    found, said, asked = script(tmp_path, codes, *options)
    assert found == code
    names = [line.split("benchmarks ")[1].split()[0] for line in asked]
    if code == 2:
        assert names == [] and len(said.splitlines()) == 1
    elif stages is None:
        assert "large: not begun: " in said and "large" not in names and "logprobs" in names
    else:
        # `steps` wants all of a minute: it is begun if no second of it is gone yet
        assert [name for name in names if name != "steps" or "steps" in stages] == stages


def test_trying_the_script_overwrites_no_results(tmp_path):
    """Quick forms on a CPU, which measure nothing, leave what was measured alone and say where theirs are."""
    _, said, asked = script(tmp_path, {}, "--cpu", "--from", "memory", out=False)
    folders = {line.partition(" --out ")[2] for line in asked}
    assert len(folders) == 1 and Path(folders.pop()).parent == tmp_path
    assert f"results: {tmp_path}/" in said


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_on_a_cpu(tmp_path):
    """Its quick forms pass without a GPU, and leave the results where they were asked for."""
    command = [str(ROOT / "scripts" / "gpu.sh"), "--cpu", "--from", "packed", "--minutes", "12", "--out", str(tmp_path)]
    answer = subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, check=False)
    assert answer.returncode == 0, answer.stdout.decode()[-3000:]
    names = {f"{name}-cpu.json" for name in ("packed", "steps", "equality", "memory", "overlap", "checkpoints")}
    assert {path.name for path in tmp_path.iterdir()} == names | {"gpu.log"}
