"""Worker processes: whatever an item does, it is bounded, said, and no other item's concern."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from humanline.system import terminal
from humanline.train.config.rounds import EnvironmentConfig, ScoringConfig
from humanline.train.online.rewards.environment import worker_environment
from humanline.train.online.rewards.pool import Pool, PoolError, make_pool
from tests.conftest import ROOT
from tests.helpers.processes import alive, gone

FUNCTIONS = """
import os, subprocess, sys, time
from fractions import Fraction
import numpy

def length(prompt, completion, **columns):
    return len(completion)

def seen(prompt, completion, answer):
    return prompt == [{"role": "user", "content": "hi"}] and answer == {"a": [1, None]} and completion == "abc"

def loop(prompt, completion):
    while True:
        pass

def deaf(prompt, completion):
    import signal
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(name, signal.SIG_IGN)
    return 9**9**9**9  # never comes back to Python

def hog(prompt, completion):
    return len([0] * 10**11)

def slow_hog(prompt, completion):
    held = []
    while True:
        held.append(bytes(2**24))

def leave(prompt, completion):
    sys.exit(3)

def leave_at_once(prompt, completion):
    os._exit(7)

def fault(prompt, completion):
    import ctypes
    ctypes.string_at(0)

def shout(prompt, completion):
    print("x" * 100_000)
    sys.stderr.write("y")
    os.write(1, b'["no", "reply"]\\n')
    return True

def children(prompt, completion):
    child = subprocess.Popen(["sleep", "1000"])
    with open("children", "a") as file:
        file.write(f"{os.getpid()} {child.pid} ")
    time.sleep(1000)

def daemons(prompt, completion):
    left = [subprocess.Popen(["sleep", "1000"], start_new_session=True).pid]
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            time.sleep(1000)
        os._exit(0)
    left.append(int(os.read(read, 20)))
    with open("daemons", "a") as file:
        file.write(f"{left[0]} {left[1]} ")
    if completion == "crash":
        os._exit(7)
    if completion == "stay":
        time.sleep(1000)
    return 1

def variables(prompt, completion):
    return sum(name in os.environ for name in completion.split())

def recursion(prompt, completion):
    return recursion(prompt, completion)

class Bad(Exception):
    def __str__(self):
        raise Exception

def bad(prompt, completion):
    raise Bad

def angry(prompt, completion):
    raise ValueError("no\\n\\x1b[31m" + completion * 1000)

async def later(prompt, completion):
    return 1.0

number = 3
RETURNS = {
    "true": True, "float32": numpy.float32(0.5), "int64": numpy.int64(2), "fraction": Fraction(1, 4),
    "nan": float("nan"), "inf": float("-inf"), "huge": 10**400,
    "none": None, "list": [1.0], "empty": [], "text": "1", "complex": 1j, "array": numpy.ones(2),
}

def returns(prompt, completion):
    return RETURNS[completion]

def imports_slowly(prompt, completion):
    import slow_to_import
    return len(completion)

def imports_for_ever(prompt, completion):
    import endless
    return len(completion)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with callables, which is the current one."""
    (tmp_path / "reward_functions.py").write_text(FUNCTIONS, encoding="utf-8")
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(2)", encoding="utf-8")
    (tmp_path / "endless.py").write_text("while True: pass", encoding="utf-8")
    (tmp_path / "json.py").write_text("raise SystemExit('this is not the json that was meant')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(name, completion="abc", prompt=(), **columns):
    return {
        "kind": "function",
        "call": f"reward_functions:{name}",
        "prompt": list(prompt),
        "completion": completion,
        "columns": columns,
    }


def boxed(text, reference="5"):
    return {"kind": "math", "completion": rf"\boxed{{{text}}}", "reference": reference}


def results(pool, tasks):
    found = {}
    for done in pool.run(tasks):
        for number, verdict in done:
            assert number not in found
            found[number] = verdict
    return [found[number] for number in range(len(tasks))]


def in_pool(tasks, *, workers=2, seconds=1.0, memory=512, first_seconds=1.0):
    names = list(dict.fromkeys(task["call"] for task in tasks if task["kind"] == "function"))
    math = any(task["kind"] == "math" for task in tasks)
    pool = Pool(workers, seconds=seconds, memory=memory, first_seconds=first_seconds, functions=names, math=math)
    try:
        return results(pool, tasks)
    finally:
        pool.close()


HARM = {
    "loop": "timeout",
    "deaf": "timeout",
    "hog": "memory",
    "slow_hog": "memory",
    "leave": "error",
    "leave_at_once": "crashed",
    "fault": "crashed",
    "recursion": "error",
    "bad": "error",
    "angry": "error",
    "later": "error",
}


def test_harm_is_bounded_and_nobody_elses(here):
    """Every way to fail has its status and reason, and the items around it get their values."""
    tasks = [task for name in HARM for task in (call(name), call("length"))]
    verdicts = in_pool(tasks)
    assert {name: verdict.status for name, verdict in zip(HARM, verdicts[::2], strict=True)} == HARM
    assert all(verdict.value is None and verdict.reason for verdict in verdicts[::2])
    assert all(verdict == (3.0, "ok", "") for verdict in verdicts[1::2])
    reasons = {name: verdict.reason for name, verdict in zip(HARM, verdicts[::2], strict=True)}
    assert reasons["loop"] == "longer than 1 seconds for a first call" and "source.scoring.memory" in reasons["hog"]
    assert reasons["leave"] == "SystemExit: 3" and reasons["leave_at_once"].endswith("exited with 7")
    assert reasons["fault"].endswith("killed by SIGSEGV") and "coroutine" in reasons["later"]
    assert len(reasons["angry"]) <= 300 and reasons["angry"].isprintable()


def test_a_first_call_may_import(here):
    """What a callable imports when a worker first calls it costs no item its score, short as the limit of items is."""
    tasks = [call("imports_slowly", "x" * n) for n in range(1, 9)]
    verdicts = in_pool(tasks, seconds=1, first_seconds=1000)
    assert verdicts == [(float(n), "ok", "") for n in range(1, 9)]


@pytest.mark.parametrize("seconds", [1e7, 1e10, 3e38])
def test_a_limit_that_is_meant_as_none_is_taken(here, seconds):
    """More seconds than the system's clocks take leave an item all its time, and do not end the run."""
    assert in_pool([call("length")], seconds=seconds, first_seconds=seconds) == [(3.0, "ok", "")]


def test_an_import_that_never_ends_ends(here):
    """Three first calls get the longer limit, those after them the limit of any item."""
    verdicts = in_pool([call("imports_for_ever")] * 5, workers=1, seconds=0.1, first_seconds=0.4)
    assert [verdict.status for verdict in verdicts] == ["timeout"] * 5
    reasons = [f"longer than {limit} seconds for a first call" for limit in (0.4, 0.4, 0.4, 0.1, 0.1)]
    assert [verdict.reason for verdict in verdicts] == reasons


def test_an_item_that_hangs_has_the_limit_of_items(here):
    """A worker that has returned a value of a callable is given no more time for it than any item has."""
    (here / "sleepy.py").write_text(
        "import time\ndef f(prompt, completion):\n    time.sleep(1000 if completion == 'hang' else 0)\n    return 1\n"
    )
    task = {"kind": "function", "call": "sleepy:f", "prompt": [], "columns": {}}
    tasks = [task | {"completion": text} for text in ("a", "hang", "b")]
    verdicts = in_pool(tasks, workers=1, seconds=1, first_seconds=1000)
    assert [verdict.status for verdict in verdicts] == ["ok", "timeout", "ok"]
    assert verdicts[1].reason == "longer than 1 seconds"


def test_hostile_answers_are_bounded():
    """Answers made to take for ever, to nest or to confuse end with a status or as wrong; right ones stay right."""
    hostile = [
        "9^{9^{9^{9}}}",
        "10^{10^{10}}",
        "(" * 900 + ")" * 900,
        "{" * 900 + "}" * 900,
        "\x00\x1b[31m6",
        "\ud800 6",
        "9" * 1990,
        "x^{1000000}",
    ]
    whole = ["{" * 10_000, "(" * 10_000, "$" * 10_000, r"\boxed{" * 10_000, r"\boxed{" * 9000 + "}" * 9000]
    tasks = [boxed(text) for text in hostile] + [{"kind": "math", "completion": t, "reference": "5"} for t in whole]
    tasks.append({"kind": "format", "completion": "a" * 40 + "b", "pattern": "(a+)+c"})
    right = boxed(r"\frac{10}{2}")
    verdicts = in_pool([one for task in tasks for one in (task, right)], seconds=1)
    assert all(verdict.value == 1 for verdict in verdicts[1::2])
    assert all(v.value == 0 or v.status in ("timeout", "memory", "too_long") for v in verdicts[::2])
    statuses = [verdict.status for verdict in verdicts[::2]]
    assert statuses[0] == statuses[2] == statuses[-1] == "timeout"
    assert statuses[-2] == "too_long"


def test_texts_that_repeat_themselves_are_read_for_their_number(here):
    """A policy that has broken writes such texts: each has a score within a verifier's time, however long it is."""
    pieces = ["#### ", "####", "1 ", "1,", "^", "**", "{,}", "-", "(", r"\frac{", "\nA:", "#### 1. a\n", "9", "1/2 "]
    texts = [piece * (60_000 // len(piece)) for piece in pieces]
    texts += ["####" + " " * 60_000 + "x", "x =" + " " * 60_000 + "- 5"]
    tasks = [{"kind": "number", "completion": text, "reference": "5"} for text in texts]
    assert {verdict.status for verdict in in_pool(tasks, seconds=5)} == {"ok"}


def test_code_in_an_answer_is_not_run(here):
    """A command in an answer, which would make a file, makes none."""
    made = here / "made"
    code = f"__import__('os').system('touch {made}')"
    texts = [rf"\boxed{{{code}}}", f"${code}$", rf"\boxed{{\text{{{code}}}}}", f"The final answer is {code}."]
    tasks = [{"kind": "math", "completion": text, "reference": "5"} for text in texts]
    tasks += [{"kind": "number", "completion": text, "reference": "5"} for text in texts]
    assert [verdict.value for verdict in in_pool(tasks, seconds=5)] == [0.0] * 8
    assert not made.exists()


def test_what_a_callable_may_return(here):
    """Real numbers of any kind are values; nan and infinities are not finite; anything else is an error."""
    wanted = {
        "true": 1.0,
        "float32": 0.5,
        "int64": 2.0,
        "fraction": 0.25,
        "nan": "not_finite",
        "inf": "not_finite",
        "huge": "not_finite",
        "none": "error",
        "list": "error",
        "empty": "error",
        "text": "error",
        "complex": "error",
        "array": "error",
    }
    verdicts = in_pool([call("returns", name) for name in wanted], workers=1)
    found = {name: v.status if v.value is None else v.value for name, v in zip(wanted, verdicts, strict=True)}
    assert found == wanted


def test_what_a_callable_is_given(here):
    """It is called with the prompt's messages, the completion and the columns; what it prints goes nowhere."""
    given = call("seen", "abc", [{"role": "user", "content": "hi"}], answer={"a": [1, None]})
    assert [verdict.value for verdict in in_pool([given, call("shout"), call("length", "\ud800\x00")])] == [1, 1, 2]


def test_callables_are_found_before_anything_is_scored(here):
    """A callable that is there has a digest of its file; one that is not, a sentence."""
    names = [f"reward_functions:{name}" for name in ("length", "missing", "number")] + ["no_such_module:f"]
    pool = Pool(1, seconds=1, memory=256, functions=names)
    try:
        found = pool.functions()
        assert len(found[names[0]]["source"]) == 64
        assert "AttributeError" in found[names[1]] and found[names[2]] == "is no callable, but int"
        assert "ModuleNotFoundError" in found[names[3]]
        assert "cannot be imported" in results(pool, [call("missing")])[0].reason
    finally:
        pool.close()


def test_a_thread_may_ask(here):
    """Limits hold as well where the caller is not the main thread, and the thread's end harms no worker."""
    found = []
    pool = Pool(2, seconds=0.5, memory=256, first_seconds=0.5, functions=["reward_functions:loop"], math=True)
    for tasks in ([call("loop"), boxed("5"), boxed("6")], [boxed("6"), boxed("5")]):
        before = {worker.process.pid for worker in pool._workers}
        thread = threading.Thread(target=lambda tasks=tasks: found.append(results(pool, tasks)))
        thread.start()
        thread.join()
    assert before & {worker.process.pid for worker in pool._workers}  # the second thread used the first one's
    pool.close()
    values = [[v.status if v.value is None else v.value for v in verdicts] for verdicts in found]
    assert values == [["timeout", 1, 0], [0, 1]]


def test_workers_are_reused(here):
    """Hundreds of items start no more processes than there are workers."""
    (here / "pids.py").write_text("import os\ndef pid(prompt, completion):\n    return os.getpid()\n")
    task = {"kind": "function", "call": "pids:pid", "prompt": [], "completion": "", "columns": {}}
    assert len({verdict.value for verdict in in_pool([task] * 200, seconds=60)}) <= 2


def test_large_items_pass(here):
    """An item larger than the buffers of pipes arrives whole."""
    large = call("length", "é" * 90_000, text="x" * 3_000_000)
    assert [verdict.value for verdict in in_pool([large] * 3, seconds=30)] == [90_000] * 3


def test_giving_up_kills_what_is_busy(here):
    """A run that is closed half-way leaves no busy worker and no child of one, and the pool works on."""
    pool = Pool(2, seconds=1000, memory=256, functions=["reward_functions:children", "reward_functions:length"])
    running = pool.run([call("children"), *[call("length")] * 50])
    next(running)
    while len((here / "children").read_text().split() if (here / "children").exists() else ()) < 2:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="busy"):
        next(pool.run([call("length")]))
    running.close()
    assert gone(map(int, (here / "children").read_text().split()))
    assert results(pool, [call("length")])[0].value == 3
    left = [worker.process.pid for worker in pool._workers]
    pool.close()
    assert left and gone(left)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux lets orphans be adopted")
def test_what_leaves_its_session_ends_too(here):
    """Processes that a reward has started in sessions of their own, or by forking twice, end with its worker.

    It may be killed at its limit of time, or crash, or be ended when the run is over.
    """
    pool = Pool(1, seconds=1, memory=256, first_seconds=1, functions=["reward_functions:daemons"])
    tasks = [call("daemons", how) for how in ("stay", "crash", "return")]
    assert [verdict.status for verdict in results(pool, tasks)] == ["timeout", "crashed", "ok"]
    left = list(map(int, (here / "daemons").read_text().split()))
    assert len(left) == 6 and gone(left[:4]) and all(map(alive, left[4:]))
    pool.close()
    assert gone(left)


def test_workers_get_no_secrets(here, monkeypatch):
    """Variables that look like secrets by name or value are left out, unless they are to be kept; others may be."""
    values = {
        "A_TOKEN": "x",
        "OPENAI_API_KEY": "y",
        "INNOCENT": "ghp_" + "a" * 30,
        "SOME_PROXY": "http://me:word@proxy:80",
        "TOKENIZERS_PARALLELISM": "false",
        "UNWANTED": "1",
        "EMPTY_KEY": "",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    names = " ".join(values)
    assert in_pool([call("variables", names)])[0].value == 3
    chosen = EnvironmentConfig(keep=("OPENAI_API_KEY", "A_TOKEN"), drop=("UNWANTED",))
    kept, left_out = worker_environment(chosen, values)
    assert left_out == ["INNOCENT", "SOME_PROXY"]
    assert list(kept) == ["A_TOKEN", "OPENAI_API_KEY", "TOKENIZERS_PARALLELISM", "EMPTY_KEY"]


def test_workers_get_variables_that_a_secret_is_a_part_of(monkeypatch):
    """A secret of the recipe that is a user's or a project's name costs workers no path; a whole value stays out."""
    monkeypatch.setattr(terminal, "_remembered", {"alice_2", "project-of-alice-2026"})
    paths = {"HOME": "/home/alice_2", "PWD": "/home/alice_2/project-of-alice-2026", "PATH": "/x:/home/alice_2/bin"}
    kept, left_out = worker_environment(EnvironmentConfig(), {**paths, "WORD": "alice_2", "P": "http://a:alice_2@host"})
    assert kept == paths and left_out == ["P", "WORD"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_no_worker_outlives_a_killed_parent(here):
    """When the parent is killed, workers in loops that never return to Python end, and their children too."""
    code = (
        "from humanline.train.online.rewards.pool import Pool\n"
        "names = [f'reward_functions:{name}' for name in ('deaf', 'children', 'daemons', 'length')]\n"
        "pool = Pool(4, seconds=1000, memory=256, functions=names)\n"
        "task = dict(kind='function', prompt=[], completion='stay', columns={})\n"
        "for done in pool.run([task | dict(call=name) for name in [names[3]] * 4 + names[:3]]):\n"
        "    print(*[worker.process.pid for worker in pool._workers], flush=True)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, env=environment) as parent:
        workers = set()
        files = [here / name for name in ("children", "daemons")]
        while sum(len(file.read_text().split()) for file in files if file.exists()) < 4:
            if not workers:
                workers |= set(map(int, parent.stdout.readline().split()))
            time.sleep(0.02)
        pids = workers | {int(pid) for file in files for pid in file.read_text().split()}
        assert len(workers) >= 2 and all(map(alive, pids))
        parent.kill()
    assert gone(pids)


def test_workers_that_cannot_start_are_an_error(here):
    """Where importing a callable ends the process, asking again and again ends with what happened."""
    (here / "deadly.py").write_text("import os\nos._exit(9)\n")
    pool = Pool(2, seconds=1, memory=256, functions=["deadly:f"])
    with pytest.raises(PoolError, match=r"exited with 9; they import deadly:f"):
        pool.functions()
    pool.close()


def test_code_that_changes_meanwhile_scores_nothing(here):
    """A worker in a killed one's place imports anew: of another text, or none, no answer is scored, nor by a second."""
    file, names = here / "reward_functions.py", ["reward_functions:loop", "reward_functions:length"]
    pool = Pool(1, seconds=1, memory=256, first_seconds=1, functions=names)
    assert results(pool, [call("length")])[0].value == 3
    file.write_text(FUNCTIONS.replace("len(completion)", "2 * len(completion)"))
    assert results(pool, [call("length"), call("loop")])[0].value == 3  # by the worker that is there
    changed = "the code of reward_functions:loop has changed .* put the code of then"
    for text, what in ((file.read_text(), changed), ("an error", "later says: it cannot be imported: SyntaxError")):
        file.write_text(text)
        with pytest.raises(PoolError, match=what):
            results(pool, [call("length")])
    file.write_text(FUNCTIONS)
    assert results(pool, [call("length", "other")])[0].value == 5
    pool.close()


def test_code_that_a_later_worker_cannot_import_is_not_said_to_have_changed(here):
    """Its text is the same, and what it needs is gone: there is no other code to be put back."""
    (here / "theirs.py").write_text("open('needed')\n\ndef f(prompt, completion):\n    return 1.0\n")
    (here / "needed").touch()
    pool = Pool(1, seconds=1, memory=256, functions=["theirs:f"])
    pool.functions()
    pool.close()
    (here / "needed").unlink()
    with pytest.raises(PoolError, match="worker that started later says: it cannot be imported: FileNotFoundError"):
        results(pool, [call("f") | {"call": "theirs:f"}])
    pool.close()


def test_a_run_scores_with_the_code_that_it_began_with(here):
    """Noted when it begins, of all files: hours may pass until its first answers are scored."""
    file = here / "theirs.py"
    file.write_text("import more\n\ndef f(prompt, completion):\n    return more.one\n")
    (here / "more.py").write_text("one = 1.0")
    (here / "json.py").unlink()
    config = ScoringConfig.model_validate({"rewards": [{"kind": "function", "call": "theirs:f"}]})
    reward = config.rewards[0]
    reward.settle()
    pool = make_pool(config, {reward.call: reward.source})
    assert pool.functions()["theirs:f"]["source"] == reward.source
    pool.close()
    (here / "more.py").write_text("one = 2.0")
    pool = make_pool(config, {reward.call: reward.source})
    with pytest.raises(PoolError, match="the code of theirs:f has changed"):
        pool.functions()
    pool.close()


def test_an_unguarded_script_may_score(here):
    """A program without `if __name__ == "__main__"` runs once: workers do not run it again."""
    script = here / "script.py"
    script.write_text(
        "from humanline.train.online.rewards.pool import Pool\n"
        "open('runs', 'a').write('x')\n"
        "pool = Pool(1, seconds=5, memory=256)\n"
        "print(list(pool.run([{'kind': 'tag_count', 'completion': '<think>' + chr(10)}]))[0][0][1].value)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    (here / "json.py").unlink()  # the script's own folder goes before the library's for the script itself
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=60)
    assert (result.stdout, result.stderr) == ("0.25\n", "")
    assert (here / "runs").read_text() == "x"


@pytest.mark.slow
def test_math_500_through_the_workers(shared_data):
    """All 500 boxed answers are right through the worker processes too."""
    lines = (shared_data / "math500-test.jsonl").read_text(encoding="utf-8").splitlines()
    problems = [json.loads(line) for line in lines]
    verdicts = in_pool([boxed(row["answer"], row["solution"]) for row in problems], seconds=30, memory=1024)
    assert sum(verdict.value == 1 for verdict in verdicts) == 500
