"""Reward functions that hang, hoard, leave, lie or cling to life: bounded, with a status, never a silent zero."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.campaign.stage import Stage
from tests.campaign.world import recipes, write_recipe
from tests.train.online.test_rewards_pool import FUNCTIONS, HARM

MORE = '''
import atexit, gc, io, json, signal, socket, threading, time, warnings

def setsid(prompt, completion):
    """Start a process that leaves this one's session."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return 1.0

def setsid_and_hang(prompt, completion):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    time.sleep(1000)

def daemon(prompt, completion):
    """Become a process of its own, as daemons do."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()
    return 1.0

def forks(prompt, completion):
    """Return twice."""
    os.fork()
    return 1.0

def thread(prompt, completion):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return 1.0

def at_exit(prompt, completion):
    atexit.register(time.sleep, 1000)
    return 1.0

def closes_everything(prompt, completion):
    os.closerange(0, 100)
    return 1.0

def replies_itself(prompt, completion):
    for handle in range(3, 12):
        try:
            os.write(handle, b'{"value": 1e9, "status": "ok", "reason": ""}\\n')
        except OSError:
            pass
    return 0.5

def floods_replies(prompt, completion):
    for handle in range(3, 12):
        try:
            for _ in range(2000):
                os.write(handle, b"x" * 65536)
        except OSError:
            pass
    return 0.5

def kills_its_group(prompt, completion):
    os.kill(0, signal.SIGTERM)
    return 1.0

def kills_itself(prompt, completion):
    os.kill(os.getpid(), signal.SIGKILL)

def stops_itself(prompt, completion):
    os.kill(os.getpid(), signal.SIGSTOP)
    return 1.0

def interrupted(prompt, completion):
    raise KeyboardInterrupt

def generator_exit(prompt, completion):
    raise GeneratorExit

def no_memory(prompt, completion):
    raise MemoryError

def changes_json(prompt, completion):
    json.dumps = lambda *a, **k: "evil"
    json.loads = lambda *a, **k: {}
    return 1.0

def changes_directory(prompt, completion):
    os.chdir("/")
    return 1.0

def many_files(prompt, completion):
    global kept
    kept = [open(os.devnull) for _ in range(100_000)]
    return 1.0

def warns(prompt, completion):
    warnings.warn("\\x1b[31m" * 1000)
    return 1.0

class Evil(float):
    def __float__(self):
        raise RuntimeError("evil")
    def __repr__(self):
        raise RuntimeError("evil")

class Endless:
    def __float__(self):
        while True:
            pass

def evil_float(prompt, completion):
    return Evil(1.0)

def endless_float(prompt, completion):
    return Endless()

def deep_error(prompt, completion):
    error = ValueError("x" * 10_000_000)
    for _ in range(2000):
        later = ValueError("y"); later.__cause__ = error; error = later
    raise error

def escapes(prompt, completion):
    raise ValueError("\\x1b]0;title\\x07\\u202e" + completion)

def half_a_character(prompt, completion):
    raise ValueError("\\ud800")

def recursion_in_words(prompt, completion):
    class Deep(Exception):
        def __str__(self):
            return str(self)
    raise Deep

def disk(prompt, completion):
    with open("filled", "ab") as file:
        file.write(b"x" * 10**6)
    return 1.0

def collects(prompt, completion):
    gc.disable()
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    return 1.0

def wrong_arguments(text):
    return 1.0

class Callable_:
    def __call__(self, prompt, completion):
        return 1.0
    def __getattr__(self, name):
        raise RuntimeError("evil")

instance = Callable_()
'''
# name, and whether every completion gets a score: None where either is right
OWN: dict[str, bool | None] = {
    "setsid": None,
    "setsid_and_hang": False,
    "daemon": None,
    "forks": None,
    "thread": None,
    "at_exit": None,
    "closes_everything": None,
    "replies_itself": None,
    "floods_replies": None,
    "kills_its_group": None,
    "kills_itself": False,
    "stops_itself": False,
    "interrupted": False,
    "generator_exit": False,
    "no_memory": False,
    "changes_json": None,
    "changes_directory": True,
    "many_files": None,
    "warns": True,
    "evil_float": None,
    "endless_float": False,
    "deep_error": False,
    "escapes": False,
    "half_a_character": False,
    "recursion_in_words": False,
    "disk": True,
    "collects": None,
    "wrong_arguments": False,
    "instance": None,
}
CASES: dict[str, bool | None] = {"length": True} | dict.fromkeys(HARM, False) | OWN
COUNT = len(CASES)


def samples(stage: Stage, tree: dict) -> Path:
    """Return a file of samples, made once in each process."""
    if "samples" not in stage.world.kept:
        folder = stage.world.folder / f"samples-{stage.kind}-{stage.number}"
        folder.mkdir()
        alone = Stage(stage.kind, stage.number, stage.seed, stage.world, folder, fresh=stage.fresh)
        write_recipe(tree, folder / "recipe.yaml")
        alone.run("sample", "recipe.yaml", "--limit", "3", "--out", "samples.jsonl", allowed=(0,))
        if alone.complaints:
            raise RuntimeError(f"sampling fails: {alone.complaints}")
        stage.world.kept["samples"] = folder / "samples.jsonl"
    return stage.world.kept["samples"]


def play(stage: Stage) -> None:
    stage.name = list(CASES)[stage.number]
    tree = recipes(stage.world.toy, stage.folder / "run")["rounds"]
    shutil.copy(samples(stage, tree), stage.folder / "samples.jsonl")
    (stage.folder / "reward_functions.py").write_text(FUNCTIONS + MORE, encoding="utf-8")
    scoring = tree["source"]["scoring"]
    scoring |= {
        "rewards": [{"kind": "function", "call": f"reward_functions:{stage.name}"}],
        "seconds": 1.0,
        "first_seconds": 1.0,
        "memory": 512,
        "workers": 2,
    }
    scores = CASES[stage.name]
    for out, share, allowed in (  # where nearly all fail it is an error, unless that is allowed
        ("scored.jsonl", 0.5, {True: (0,), False: (2,), None: (0, 2)}[scores]),
        ("scored-or-not.jsonl", 1.0, (0, 2) if scores is None else (0,)),
    ):
        more = {"failed": "drop", "failed_share": share}
        write_recipe(tree | {"source": tree["source"] | {"scoring": scoring | more}}, stage.folder / "recipe.yaml")
        stage.run("score", "recipe.yaml", "samples.jsonl", "--out", out, allowed=allowed)
        _look(stage, stage.folder / out, scores)


def _look(stage: Stage, path: Path, scores: bool | None) -> None:
    """Every completion has either a score or a status, as the function deserves."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        for one in json.loads(line)["scores"]:
            stage.expect((one["value"] is None) == (one["status"] != "ok"), f"score and status: {one!r}"[:300])
            stage.expect(scores is None or (one["value"] is not None) == scores, f"scored so: {one!r}"[:300])
            stage.count("scores" if one["value"] is not None else f"status {one['status']}")
