"""Of two processes of a run one is killed, fails or hangs: the other ends in time and says so, and the run goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from humanline.system.activity import Activity
from humanline.system.identity import Identity
from humanline.train.config.run import CheckpointConfig
from humanline.train.loop import train
from humanline.train.run.neighbours import Card, Periods, _Watch, _where
from humanline.train.run.processes import computing_limit
from humanline.train.step.held_out import Evaluator
from tests.conftest import ROOT
from tests.helpers.kills import Server, result_of
from tests.helpers.neighbours_run import PLACES
from tests.helpers.processes import free_port
from tests.helpers.support import config

QUICK = {"tick": 0.2, "unheard": 10, "unreachable": 10, "grace": 2.0, "patience": 4.0}
REWARD = {"kind": "function", "call": "tests.helpers.toy_rewards:digits"}


class Pairs:
    """A process that forks two for each run (`neighbours_run.py`)."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def run(self, settings: Any, *, resume: bool = False, periods: Any = QUICK, **job: Any) -> dict[str, Any]:
        recipe = Path(settings.output).with_suffix(".yaml")
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(json.dumps(settings.model_dump(mode="json")), encoding="utf-8")
        job |= {"recipe": str(recipe), "resume": resume, "port": free_port()}
        if periods is not None:
            job["periods"] = periods
        return self.server.play("tests.helpers.neighbours_run", job)


@pytest.fixture(scope="module")
def pairs(server):
    return Pairs(server)


def fixed(toy, folder, **changes: Any) -> Any:
    """A run on fixed data, with a checkpoint every two steps."""
    return config(
        toy,
        folder / "run",
        "dpo",
        data__eval=toy["held_out"],
        evaluation={"batch_size": 2, "every": 2},
        reference={"schedule": {"kind": "before_step", "every": 2}},
        checkpoint={"every": 2},
        training={"steps": 6, "batch_size": 8, "micro_batch_size": 2} | changes,
    )


def online(toy, folder) -> Any:
    """A run in three rounds of two steps."""
    return config(
        toy,
        folder / "run",
        "grpo",
        data={"train": toy["pairs"], "max_length": 64},
        source={
            "kind": "rounds",
            "contexts_per_round": 16,
            "samples": 4,
            "count": 3,
            "steps": 2,
            "sampling": {"max_tokens": 8, "engine": {"kind": "generate", "batch_size": 8}},
            "scoring": {"rewards": [REWARD], "workers": 1},
        },
        reference={"schedule": {"kind": "before_step", "every": 2}},
        training={"batch_size": 8, "micro_batch_size": 4},
    )


def fault(rank: int, place: str, how: str, after: int) -> dict[str, Any]:
    return {"rank": rank, "place": place, "how": how, "after": after}


ONLINE = {"sample": 2}  # at which call of a place, where the run is in rounds
CALLS = {"load": 0, "score": 9, "train": 10, "save": 1, "evaluate": 1}
PHASES = {
    "load": "loading",
    "score": "scoring, after 2 updates",
    "train": "training, after [23] updates",  # one evaluates more than the other
    "save": "saving, after 4 updates",
    "evaluate": "evaluating, after 2 updates",
}


@pytest.fixture(scope="module")
def whole(toy, pairs, tmp_path_factory):
    """What each of the two runs comes to when nothing happens to it; made when first asked for."""
    found: dict[Any, Any] = {}

    def result(make: Any) -> Any:
        if make not in found:
            settings = make(toy, tmp_path_factory.mktemp("whole"))
            assert pairs.run(settings)["codes"] == [0, 0]
            found[make] = result_of(settings)
        return found[make]

    return result


def test_every_place_that_is_harmed_is_there():
    """Most tests that harm one are slow; a name that went would be seen by nobody for as long as they are not run."""
    assert set(CALLS) | set(ONLINE) <= set(PLACES) and all(callable(getattr(*place)) for place in PLACES.values())


def goes_on(pairs, settings, whole, make) -> None:
    """Go on with both processes to the same bits."""
    outcome = pairs.run(settings, resume=True)
    assert outcome["codes"] == [0, 0], outcome["said"]
    assert result_of(settings) == whole(make)


def harmed(toy, folder, pairs, rank, place, how, **job) -> tuple[Any, Any, dict[str, Any]]:
    make = online if place in ONLINE else fixed
    settings = make(toy, folder)
    after = ONLINE[place] if place in ONLINE else CALLS[place]
    where = "save what is of all" if (place, rank) == ("save", 0) else place
    return make, settings, pairs.run(settings, fault=fault(rank, where, how, after), **job)


def killed(toy, folder, pairs, whole, rank, place, **job) -> float:
    """Kill one process, hold the other to its words, go on with both; return the seconds that the other one took."""
    make, settings, outcome = harmed(toy, folder, pairs, rank, place, "kill", **job)
    assert outcome["codes"][rank] == -signal.SIGKILL and outcome["codes"][1 - rank] == 69, outcome
    said = outcome["said"][1 - rank]
    if place == "load" and rank == 0:  # it may not even have said who it is
        assert "the store of the launcher, or of process 0, on 127.0.0.1 cannot" in said or "process 0 (" in said
    else:
        assert f"humanline train: process {rank} (" in said and "is gone: it was killed or has crashed" in said
    assert "; this process was " in said and "--resume" in said and "Traceback" not in said
    goes_on(pairs, settings, whole, make)
    return outcome["seconds"][1 - rank]


def raised(toy, folder, pairs, whole, rank, place, **job) -> float:
    """Let one process fail, check what both say, resume both; return the seconds that the other one took."""
    make, settings, outcome = harmed(toy, folder, pairs, rank, place, "raise", **job)
    own, said = outcome["said"][rank], outcome["said"][1 - rank]
    assert outcome["codes"][rank] == 1 and "KeyError: 'made by a test, ***'" in own, outcome
    if place == "sample" or (place, rank) == ("save", 0):  # where all can agree on it
        assert outcome["codes"][1 - rank] == 2 and "could not go on; its own message says why" in said, outcome
    else:
        assert outcome["codes"][1 - rank] == 69, outcome
        assert re.search(f"failed while {PHASES[place]}: KeyError: 'made by a test, \\*\\*\\*'", said), said
        assert "in harmful" in said and "hf_xxx" not in said  # where it was raised, secrets aside
        assert "--resume" in said
    if place == "sample":  # after two rounds of two steps, all saved first
        assert [path.name for path in (folder / "run" / "checkpoints").iterdir()] == ["step-00000004"]
    goes_on(pairs, settings, whole, make)
    return outcome["seconds"][1 - rank]


@pytest.mark.slow
def test_a_killed_process_ends_the_run_and_it_goes_on(toy, tmp_path, pairs, whole):
    """The first process, which keeps the store, is killed: the other one says so, and both go on to the same bits."""
    assert killed(toy, tmp_path, pairs, whole, 0, "train") < 30


def test_a_process_that_fails_ends_the_run_and_it_goes_on(toy, tmp_path, pairs, whole):
    """The second process fails while it scores: the first says where and with what, secrets aside."""
    assert raised(toy, tmp_path, pairs, whole, 1, "score") < 30


@pytest.mark.slow
def test_a_process_without_memory_says_what_to_change_and_the_other_ends(toy, tmp_path, pairs, whole):
    """One of two runs out of memory in its loss: it says so with the estimate, the other one whose fault it was."""
    make, settings, outcome = harmed(toy, tmp_path, pairs, 1, "train", "memory")
    own, said = outcome["said"][1], outcome["said"][0]
    assert outcome["codes"] == [69, 2], outcome
    for words in ("out of memory while training, after ", "2.00 GiB more", "estimate     ", "change  "):
        assert words in own, own
    assert "step-00000002 is the newest checkpoint" in own and "Traceback" not in own
    words = (
        "failed while training, after [23] updates: MemoryRanOutError: out of memory while training, after [23] updates"
    )
    assert re.search(words, said), said
    goes_on(pairs, settings, whole, make)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_of_one_process_while_loading_is_no_fault_of_the_other(toy, tmp_path, pairs, rank):
    """SIGTERM to one process before there is anything to save ends both as stopped, and neither as failed."""
    outcome = pairs.run(fixed(toy, tmp_path), fault=fault(rank, "load", "stop", 0))
    assert outcome["codes"] == [75, 75], outcome
    assert "stopped by SIGTERM while loading; no step was begun by this call" in outcome["said"][rank]
    words = rf"stopped by a signal to another process: process {rank} \(.*\) was stopped by SIGTERM while loading; "
    assert re.search(words, outcome["said"][1 - rank]), outcome


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", [*CALLS, *ONLINE])
@pytest.mark.parametrize("harm", [killed, raised])
def test_wherever_one_process_ends_the_other_does(toy, tmp_path, pairs, whole, harm, place, rank):
    """Each process, killed or failing in each phase, with the periods that a run has by itself."""
    seconds = harm(toy, tmp_path, pairs, whole, rank, place, periods=None)
    print(f"{harm.__name__} {place} {rank}: {seconds:.1f} s")
    assert seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_machine_that_is_gone_is_missed(toy, tmp_path, pairs, whole, rank):
    """A process on another machine, of which no more is known than that it says nothing, is taken for gone in time."""
    settings = fixed(toy, tmp_path)
    outcome = pairs.run(settings, fault=fault(rank, "train", "kill", 9), periods=None, elsewhere=True)
    seconds, said = outcome["seconds"][1 - rank], outcome["said"][1 - rank]
    print(f"elsewhere {rank}: {seconds:.1f} s")
    assert outcome["codes"][1 - rank] == 69 and seconds < 60, outcome
    if rank:
        assert (
            "process 1 (" in said and "has not been heard of for 30 s: it, its machine or the network is gone" in said
        )
    else:
        assert "the store of the launcher, or of process 0, on 127.0.0.1 cannot be reached for 24 s" in said
    goes_on(pairs, settings, whole, fixed)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_hangs_is_named(toy, tmp_path, pairs, whole, rank):
    """One that does nothing any more ends both after training.stall_minutes, with where it stands."""
    settings = fixed(toy, tmp_path, stall_minutes=0.05)
    outcome = pairs.run(settings, fault=fault(rank, "score", "hang", 9))
    assert outcome["codes"] == [69, 69], outcome
    for said in outcome["said"]:
        assert f"process {rank} (" in said and "stands still: nothing got done for 0.05 minutes while scoring" in said
        assert "reference.py" in said and "(harmful)" in said and "training.stall_minutes: 0.05" in said
        assert f"process {1 - rank} (" not in said
    goes_on(pairs, settings, whole, fixed)


def test_the_watch_speaks_before_a_collective_gives_up():
    """Inside of a collective of computing one waits longer than the watch allows, for ever where it allows that."""
    assert computing_limit(60).total_seconds() == 70 * 60 and computing_limit(0.0).days >= 365


@pytest.mark.parametrize("minutes", [6e5, 1e9, 1e13, 3e38])
def test_a_wait_of_centuries_is_one_of_a_year(minutes):
    """A limit that is meant as none is no more than torch can count in nanoseconds."""
    assert computing_limit(minutes) == computing_limit(0.0)


@pytest.mark.slow
def test_a_long_save_is_no_long_collective(toy, tmp_path, pairs, whole):
    """The main process saves for longer than a collective of computing may take: the other one waits for it."""
    settings = fixed(toy, tmp_path, stall_minutes=1.0)
    outcome = pairs.run(settings, fault=fault(0, "save", "slow", 1), computing=12)
    assert outcome["codes"] == [0, 0] and outcome["seconds"][1] > 25, outcome
    assert result_of(settings) == whole(fixed)


@pytest.mark.slow
def test_a_suspended_process_is_not_gone(toy, tmp_path, pairs, whole):
    """One that was stopped for longer than a silence may last goes on, and so does the run."""
    settings = fixed(toy, tmp_path)
    outcome = pairs.run(settings, fault=fault(1, "train", "freeze", 9), thaw=6, limit=60)
    assert outcome["codes"] == [0, 0], outcome
    assert result_of(settings) == whole(fixed)


@pytest.mark.slow
def test_a_launcher_that_ends_the_others_does_not_take_their_words(toy, tmp_path):
    """Under torch's launcher, which sends SIGTERM to the others, the words are the same, and so is what goes on."""
    settings = fixed(toy, tmp_path, steps=400)
    recipe = tmp_path / "run.yaml"
    recipe.write_text(json.dumps(settings.model_dump(mode="json")), encoding="utf-8")
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    launcher = subprocess.Popen(
        [sys.executable, *launch, "-m", "humanline", "train", str(recipe)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    until = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count('"step"') > 3) and time.monotonic() < until:
        time.sleep(0.05)
    workers = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    second = next(pid for pid in workers if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(int(second), signal.SIGKILL)
    began = time.monotonic()
    said = launcher.communicate(timeout=120)[1]
    assert time.monotonic() - began < 60
    assert f"process id {second}) is gone: it was killed or has crashed" in said and "this process was" in said


def test_a_run_that_cannot_be_measured_saves_first(toy, tmp_path, monkeypatch):
    """One process alone, whose evaluation fails after two updates, has them in a checkpoint, and goes on from there."""
    settings = fixed(toy, tmp_path).model_copy(update={"checkpoint": CheckpointConfig()})
    true, calls = Evaluator._logprobs, []

    def fails(self, batch, idle):
        calls.append(batch)
        if len(calls) == 2:
            raise RuntimeError("made by a test")
        return true(self, batch, idle)

    with monkeypatch.context() as patched:
        patched.setattr(Evaluator, "_logprobs", fails)
        with pytest.raises(RuntimeError, match="made by a test"):
            train(settings, show_progress=False)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    train(settings, resume=True, show_progress=False)
    other = settings.model_copy(update={"output": str(tmp_path / "other")})
    train(other, show_progress=False)
    assert result_of(settings) == result_of(other)


def watch(rank: int, cards: dict[int, Card], limit: float, card: Card) -> _Watch:
    """What a process knows, without threads."""
    made = object.__new__(_Watch)
    made.rank, made.cards, made.limit, made.card, made.periods = rank, cards, limit, card, Periods()
    made.others, made.frozen = list(cards), dict.fromkeys(cards, 0)
    made.gone_since, made.silent, made.exchanges, made.was, made.stopping = {}, 0, 5, "", False
    made.asked, made._over, made._knows, made._wanted = False, *(threading.Event() for _ in range(3))
    return made


def test_who_waits_does_not_stand_still():
    """Of several that do nothing, those are named that wait for nobody; all, where all wait; none, while one works."""

    def card(still: float, waiting: bool = False) -> Card:
        return Card(Identity("host", 1), still=still, waiting=waiting)

    mine = Card(Identity("here", 2), still=100, waiting=True)
    assert watch(0, {1: card(0), 2: card(100, True)}, 60, mine)._verdict() is None  # one writes for hours
    late, all_wait = {1: card(100), 2: card(100, True)}, {1: card(100, True), 2: card(90, True)}
    for others, names in ((late, {1}), (all_wait, {0, 1, 2})):
        found = watch(0, others, 60, mine)._verdict()
        assert found is not None
        assert {rank for rank in range(3) if f"process {rank} (" in found[0]} == names
    assert watch(0, {1: card(100)}, float("inf"), mine)._verdict() is None


def test_who_is_far_away_learns_of_a_fault_at_its_next_look():
    """Of 100 processes one fails; all the others, which watch 16 each, know it after one exchange, with its error."""
    store = torch.distributed.HashStore()
    failed = Card(Identity("far", 7), end="failed", doing="saving", words="KeyError: 'x'", trace="Traceback\n  here")
    watches = []
    for rank in range(100):
        mine = Card(Identity(f"host{rank}", 1), looks=3, waiting=True) if rank != 70 else failed
        others = {(rank + n) % 100: Card(Identity("near", 1)) for n in range(1, 17)}
        one = watch(rank, others, 60, mine)
        one.prefix, one.cards = "humanline/0", {}
        watches.append(one)
    for one in watches:
        one.trade(store)
    for one in watches:
        one.trade(store)
        verdict = one._verdict()
        words = "process 70 (far, process id 7) failed while saving: KeyError: 'x'\nTraceback\n  here"
        assert one.rank == 70 or (verdict is not None and verdict[0] == words), one.rank


@pytest.mark.parametrize(("folder", "waits"), [("distributed", True), ("nn", False)])
def test_who_stands_in_a_collective_waits(folder, waits):
    """A thread inside of torch.distributed may wait for another process, and is not the one that stands still."""
    names: dict[str, Any] = {"begun": False, "over": False}
    name = f"{os.sep}{os.path.join('torch', folder, 'own.py')}"
    thread = threading.Thread(target=exec, args=(compile("begun = True\nwhile not over: pass", name, "exec"), names))
    thread.start()
    while not names["begun"]:
        time.sleep(0.01)
    where, inside = _where(thread.ident)
    names["over"] = True
    thread.join()
    assert inside is waits and where.startswith("own.py:")


class Ended(Exception):
    """In place of the end of this process."""


def test_who_ends_after_a_stop_ends_as_stopped(monkeypatch, capfd):
    """A process that was stopped while it loaded, or one that ended for that, is no fault; a fault elsewhere is one."""

    def ended(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr("humanline.train.run.neighbours.os._exit", ended)
    mine = Card(Identity("here", 2), waiting=True)
    stopped = Card(Identity("host", 1), end="stopped", words="stopped by SIGTERM")
    words = "stopped by a signal to another process: process 1 (host, process id 1) was stopped by SIGTERM"
    relayed = Card(Identity("host", 3), found=words, asked=True)
    failed = Card(Identity("host", 3), end="failed", words="KeyError")
    for others, code in (({1: stopped}, 75), ({3: relayed}, 75), ({1: stopped, 3: failed}, 69)):
        one = watch(0, others, 60, mine)
        found, _ = one._verdict()
        assert (found == words) is (code == 75) is one.asked
        with pytest.raises(Ended, match=str(code)):
            one._give_up(found, 0)
        assert one.card.found == found and one.card.asked is one.asked  # for the others
        said = capfd.readouterr().err
        assert ("while loading; no step was begun by this call" in said) is (code == 75) is ("--resume" not in said)


def test_what_a_process_does_is_said_in_words():
    """Phases within phases, with the updates so far; an error remembers the innermost."""
    activity = Activity()
    assert str(activity) == "loading"
    activity.trained(1)
    assert str(activity) == "training, after 1 update"
    error = ValueError()
    with pytest.raises(ValueError), activity.doing("evaluating"), activity.doing("sampling"):
        raise error
    assert str(activity) == "training, after 1 update"
    assert activity.at(error) == "evaluating: sampling, after 1 update"
