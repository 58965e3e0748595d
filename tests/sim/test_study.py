"""Studies: what is measured, what is kept, and what interrupts."""

from __future__ import annotations

import ast
import contextlib
import math
import re
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from humanline import _workers
from humanline._workers import WorkerError
from humanline.schedule import BeforeStep
from humanline.sim import study
from humanline.sim.bandit import Bandit
from humanline.sim.measures import perceive, utility_gap, win_rate
from humanline.sim.objectives import Dpo, Grpo, Kto
from humanline.sim.run import Fixed, Rollouts, Run, simulate
from humanline.sim.sequence import Sequences
from humanline.sim.study import MEASURES, measure, run_study
from humanline.sim.variants import OBJECTIVES, RATES, TASKS, VARIANTS, make_run
from humanline.theory import ClipRange, total_variation
from tests.conftest import ROOT
from tests.helpers.dying import die

BASE = Run(Bandit(contexts=3, arms=4, features=4), steps=4, groups=3, measurements=2)
RUNS = {"a": BASE, "b": replace(BASE, objective=Kto()), "c": replace(BASE, learning_rate=0.1)}
SEEDS = [0, 1, 5]


@pytest.fixture
def store(tmp_path):
    return tmp_path / "study.db"


@pytest.fixture
def measured(monkeypatch):
    """The runs that were measured, in order."""
    seen = []

    def counted(run, seeds):
        seen.append((run, list(seeds)))
        return measure(run, seeds)

    monkeypatch.setattr(study, "measure", counted)
    return seen


def same(first, second) -> bool:
    """Whether two studies have the same names, measures and bits."""
    return first.keys() == second.keys() and all(
        first[name].keys() == second[name].keys()
        and all(np.array_equal(first[name][key], second[name][key], equal_nan=True) for key in first[name])
        for name in first
    )


# ---- what is measured -----------------------------------------------------------------------------------------------


def test_measures_are_those_of_the_trace():
    """Every measure is what its description says of the trace of the same run, seed by seed."""
    run = replace(BASE, schedule=BeforeStep(every=2), transform=ClipRange(-0.02, 0.02), steps=8, measurements=8)
    trace, found = simulate(run, SEEDS), {name: np.array(values) for name, values in measure(run, SEEDS).items()}
    world = trace.world
    law, start, reference = (world.law(t) for t in (trace.policy, world.table(world.start), trace.reference))
    scores = trace.scores.numpy()
    gap = utility_gap(perceive(law, reference), trace.behaviour)
    probs, source = law.exp().numpy(), trace.behaviour.exp().numpy()
    literal = np.abs(probs - source).sum(-1).mean(-1) / 2
    want = {
        "start": scores[:, 0],
        "best": world.scores.max(-1).values.mean(-1),
        "score": scores[:, -1],
        "early": scores[:, 2],
        "drop": scores.max(1) - scores[:, -1],
        "collapsed": scores[:, -1] < scores[:, 0],
        "kl": world.divergence(trace.policy, world.table(world.start)),
        "win_rate": win_rate(law, start, world.scores),
        "utility": perceive(law, start).utility.mean(-1),
        "distance": gap.distance.mean(-1),
        "distance literal": total_variation(probs, source).mean(-1),
        "distance undistorted": found["distance undistorted"],
        "gap": gap.gap.mean(-1),
        "outside": trace.outside,
        "saturation": trace.saturation,
    }
    assert want.keys() == set(MEASURES)
    for name, values in want.items():
        np.testing.assert_array_equal(found[name], np.asarray(values), err_msg=name)
    for index in range(9):
        np.testing.assert_array_equal(found[f"curve {index}"], scores[:, index])
    assert 0 < found["outside"].mean() < 1
    # a capacity that distorts nothing leaves the policy itself, but for rounding
    np.testing.assert_allclose(found["distance undistorted"], literal, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["distance literal"], literal, rtol=0, atol=1e-12)
    assert (np.abs(found["distance"] - literal) > 1e-6).all()


def test_what_is_measured_over_time_is_what_shorter_runs_end_with():
    """Scores and divergences at 1/32 to 1/2 of the first interval and at every measurement are the policy's then.

    A run of as many steps ends with it: nothing that a run does depends on its length.
    """
    run = replace(BASE, steps=128, measurements=2, learning_rate=0.1)
    found = measure(run, SEEDS)
    steps = {
        "early curve 1": 2,
        "early curve 2": 4,
        "early curve 4": 16,
        "early curve 5": 32,
        "curve 1": 64,
        "curve 2": 128,
    }
    for name, step in steps.items():
        shorter = measure(replace(run, steps=step, measurements=1), SEEDS)
        assert found[name] == shorter["score"], name
        assert found[name.replace("curve", "kl curve")] == shorter["kl"], name
    assert found["curve 0"] == found["start"] and found["kl curve 0"] == [0.0, 0.0, 0.0]
    assert found["kl curve 2"] == found["kl"] and min(found["kl"]) > 0.01


def test_a_run_of_fewer_steps_than_measurements_has_every_curve():
    """Where two measurements fall on one update both names have its numbers."""
    found = measure(replace(BASE, steps=3, measurements=8), SEEDS)
    assert [name for name in found if name.startswith("curve")] == [f"curve {index}" for index in range(9)]
    assert found["curve 3"] == found["curve 2"] and found["curve 8"] == found["score"]


def test_a_policy_that_does_not_move_has_not_collapsed():
    """A score that stays exactly where it was is neither a drop nor a collapse, and wins half the time."""
    found = measure(replace(BASE, optimizer="sgd", learning_rate=1e-300), SEEDS)
    assert found["collapsed"] == found["drop"] == found["utility"] == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(found["win_rate"], 0.5, atol=1e-12)


def test_saturation_is_dpos_alone():
    """Other objectives have no saturation: nan."""
    assert np.isnan(measure(RUNS["b"], SEEDS)["saturation"]).all()
    assert np.isfinite(measure(RUNS["a"], SEEDS)["saturation"]).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("task", [Bandit(), Sequences()], ids=["bandit", "sequences"])
@pytest.mark.parametrize("source", [Fixed(), Rollouts(4)], ids=["fixed", "rollouts"])
def test_measures_cope_with_seeds_that_blew_up(source, task, optimizer):
    """Seeds that end at nan have collapsed 1 and nan for the rest, and raise neither an error nor a warning."""
    run = Run(task, Grpo(), source, optimizer=optimizer, learning_rate=1000.0, steps=40)
    found = {name: np.array(values) for name, values in measure(run, range(6)).items()}
    broken = ~np.isfinite(found["score"])
    assert broken.any()
    assert (found["collapsed"][broken] == 1).all()
    for name in ("kl", "win_rate", "utility", "distance", "distance literal", "distance undistorted", "gap", "drop"):
        assert np.array_equal(np.isnan(found[name]), broken), name
    assert np.isfinite(found["start"]).all() and np.isfinite(found["best"]).all()


def test_measures_of_a_seed_do_not_depend_on_broken_ones():
    """Where some seeds blew up the others have the measures that they have alone."""
    run = Run(Bandit(), Grpo(), learning_rate=30.0, steps=64)
    together = {name: np.array(values) for name, values in measure(run, range(12)).items()}
    fine = [seed for seed in range(12) if np.isfinite(together["score"][seed])]
    assert 0 < len(fine) < 12
    alone = measure(run, fine)
    for name in MEASURES:
        np.testing.assert_allclose(alone[name], together[name][fine], rtol=0, atol=1e-9, err_msg=name)


def test_measuring_leaves_the_threads_of_torch_alone():
    """The caller's number of threads is what it was."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        measure(BASE, [0])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# ---- what is kept ---------------------------------------------------------------------------------------------------


def test_a_study_returns_each_runs_measures(store):
    """Each name has the measures of its run, an array of a number a seed."""
    found = run_study(RUNS, SEEDS, store)
    assert list(found) == list(RUNS)
    assert same(found, {name: {k: np.array(v) for k, v in measure(run, SEEDS).items()} for name, run in RUNS.items()})
    assert all(values.shape == (3,) for result in found.values() for values in result.values())


def test_a_study_goes_on_where_it_stopped(store, measured):
    """After an interruption at the first result only the missing runs are measured, and results are bitwise equal."""

    def stop(done, total):
        if done == 1:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        run_study(RUNS, SEEDS, store, progress=stop)
    assert [run for run, _ in measured] == [RUNS["a"]]
    told = []
    found = run_study(RUNS, SEEDS, store, progress=lambda *now: told.append(now))
    assert [run for run, _ in measured] == list(RUNS.values())
    assert told == [(1, 3), (2, 3), (3, 3)]
    again = run_study(RUNS, SEEDS, store)
    assert len(measured) == 3
    assert same(found, again)
    assert same(found, run_study(RUNS, SEEDS, store.with_name("fresh.db")))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_was_finished_is_kept_when_a_run_is_interrupted(store, monkeypatch, error):
    """An interruption inside a run leaves the finished ones in the store."""

    def interrupted(run, seeds):
        if run == RUNS["b"]:
            raise error
        return measure(run, seeds)

    monkeypatch.setattr(study, "measure", interrupted)
    with pytest.raises(error):
        run_study(RUNS, SEEDS, store)
    told = []
    monkeypatch.setattr(study, "measure", measure)
    run_study(RUNS, SEEDS, store, progress=lambda *now: told.append(now))
    assert told[0] == (1, 3)


def test_equal_runs_are_measured_once(store, measured):
    """Two names of one run share its measurement."""
    found = run_study({"one": BASE, "other": replace(BASE), "third": RUNS["b"]}, SEEDS, store)
    assert len(measured) == 2
    assert same({"x": found["one"]}, {"x": found["other"]})


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 1},
        {"source": Fixed(tilt=0, drift=np.float64(0.5))},
        {"steps": np.int64(4)},
        {"task": Bandit(contexts=np.int64(3), arms=4, features=4, sharpness=1)},
        {"objective": Dpo(np.float64(0.1))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_runs_that_compare_equal_are_measured_once(store, measured, change):
    """1 and 1.0, and numpy's numbers, are the same setting."""
    base = replace(BASE, learning_rate=1.0)
    run = replace(base, **change)
    assert run == base
    run_study({"one": base, "other": run}, [0], store)
    assert len(measured) == 1


def test_other_seeds_other_settings_and_other_code_are_measured_again(store, measured, monkeypatch):
    """A result is reused for the same run, seeds and code alone; not for fewer seeds, or in another order."""
    run_study({"a": BASE}, [0, 1], store)
    for seeds in ([0], [0, 1, 2], [1, 0]):
        found = run_study({"a": BASE}, seeds, store)
        assert len(found["a"]["score"]) == len(seeds)
    assert [seeds for _, seeds in measured] == [[0, 1], [0], [0, 1, 2], [1, 0]]
    run_study({"a": replace(BASE, transform=ClipRange(-1, 1))}, [0, 1], store)
    run_study({"a": replace(BASE, schedule=BeforeStep(every=2))}, [0, 1], store)
    assert len(measured) == 6
    monkeypatch.setattr(study, "_code", lambda: "changed")
    run_study({"a": BASE}, [0, 1], store)
    assert len(measured) == 7


def imported(name, found):
    """Add the modules of the package that a module imports, and those that they do."""
    path = ROOT / (name.replace(".", "/") + ".py")
    path = path if path.exists() else ROOT / name.replace(".", "/") / "__init__.py"
    if name in found or not path.exists():
        return found
    found[name] = path
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("humanline"):
            for each in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                imported(each, found)
    return found


def test_a_result_grows_old_with_the_code_that_makes_it_and_with_no_other(tmp_path, monkeypatch):
    """A change in any module that a run imports is another key, one in what reads results alone is not."""
    needed = {path.relative_to(ROOT / "humanline") for path in imported("humanline.sim.study", {}).values()}
    # what checks, starts processes or names things changes no number
    needed -= {Path(name) for name in ("__init__.py", "_shapes.py", "_workers.py")}
    needed = {path for path in needed if path.parts[0] != "system"}
    assert {Path("sim/run.py"), Path("sim/measures.py"), Path("sim/long.py"), Path("objectives/losses.py")} <= needed
    for part in ("sim", "objectives", "theory"):
        shutil.copytree(ROOT / "humanline" / part, tmp_path / part)
    for name in ("schedule.py", "_checks.py"):
        shutil.copy(ROOT / "humanline" / name, tmp_path)
    before = study._code()
    monkeypatch.setattr(study, "__file__", str(tmp_path / "sim" / "study.py"))
    assert study._code() == before
    readers = {Path("sim") / f"{name}.py" for name in ("claims", "judging", "report", "worlds", "tables", "exact")}
    for path in (tmp_path / name for name in sorted(needed | readers)):
        text = path.read_bytes()
        path.write_bytes(text + b"#")
        assert (study._code() != before) is (path.relative_to(tmp_path) in needed), path
        path.write_bytes(text)
    monkeypatch.setattr(torch, "__version__", "other")
    assert study._code() != before


def test_seeds_may_be_a_range_or_an_array(store, measured):
    """The same seeds are the same study, however they are listed."""
    for seeds in ([0, 1], range(2), np.arange(2), (0, 1)):
        run_study({"a": BASE}, seeds, store)
    assert len(measured) == 1


def test_nan_survives_the_store(store):
    """Measures that are nan come back as nan."""
    run_study({"b": RUNS["b"]}, [0], store)
    assert math.isnan(run_study({"b": RUNS["b"]}, [0], store)["b"]["saturation"][0])


def test_processes_change_no_bit(store):
    """One process and two give bitwise equal results, and what two have kept one reads."""
    one = run_study(RUNS, SEEDS, store)
    other = store.with_name("two.db")
    told = []
    two = run_study(RUNS, SEEDS, other, processes=2, progress=lambda *now: told.append(now))
    assert same(one, two)
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert same(one, run_study(RUNS, SEEDS, other))


def test_two_studies_may_share_a_store(store):
    """A result that another process stored in the meantime is no error."""

    def meanwhile(done, total):
        if done == 0:
            run_study(RUNS, SEEDS, store)

    found = run_study(RUNS, SEEDS, store, progress=meanwhile)
    assert same(found, run_study(RUNS, SEEDS, store))


def test_no_runs_are_no_study(store):
    """An empty study returns nothing and says so."""
    told = []
    assert run_study({}, [0], store, progress=lambda *now: told.append(now)) == {}
    assert told == [(0, 0)]


@pytest.mark.parametrize("kind", ["text", "folder", "no folder"])
def test_a_store_that_cannot_be_is_an_error_that_names_it(tmp_path, kind, measured):
    """A text file, a folder and a path into nowhere raise an error with the path, before anything is measured."""
    path = tmp_path / "store"
    if kind == "text":
        path.write_text("name,score\n" * 100)
    elif kind == "folder":
        path.mkdir()
    else:
        path = tmp_path / "absent" / "store"
    before = path.read_bytes() if kind == "text" else None
    with pytest.raises(OSError, match=re.escape(str(path))):
        run_study(RUNS, SEEDS, path)
    assert measured == []
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize(
    ("seeds", "processes", "error"),
    [([], 1, ValueError), ([0, 0], 1, ValueError), ([0], 0, ValueError), ([0], 1.5, TypeError), ([0], True, TypeError)],
)
def test_bad_seeds_and_processes_are_refused_before_the_store_is_made(store, seeds, processes, error):
    """No seeds, repeated seeds and no processes are refused, and no file appears."""
    with pytest.raises(error):
        run_study(RUNS, seeds, store, processes=processes)
    assert not store.exists()


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("bandid", "dpo", 0.1, "offline"), "bandit"),
        (("bandit", "dpo ", 0.1, "offline"), "dpo"),
        (("bandit", "dpo", 0.1, "offline humanline"), "offline.humanline"),
        (("bandit", "zzz", 0.1, "offline"), "kto"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(names, said):
    """A misspelt task, objective or variant is an error with the nearest known name, or all of them."""
    with pytest.raises(ValueError, match=said):
        make_run(*names)


def test_every_name_makes_a_run_that_works():
    """Every variant trains a step with every objective, and GRPO's clip is wide where the reference never moves."""
    for variant in VARIANTS:
        for objective in OBJECTIVES:
            run = make_run("bandit", objective, RATES[0], variant, steps=2)
            assert run.source == VARIANTS[variant].source
            if objective == "grpo":
                assert (run.objective.clip_eps == 0.5) is (run.schedule.kind == "never")
        assert torch.isfinite(simulate(run, [0]).scores).all()
    for task in TASKS:
        assert torch.isfinite(simulate(make_run(task, "grpo", 0.1, "online", steps=2), [0]).scores).all()
    with pytest.raises(ValueError, match="learning_rate"):
        make_run("bandit", "dpo", 0.0, "offline")
    with pytest.raises(ValueError, match="steps"):
        make_run("bandit", "dpo", 0.1, "offline", steps=0)


@pytest.mark.parametrize("workers", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_run_that_fails_loses_no_other(tmp_path, monkeypatch, workers):
    """Where one of several runs at a time fails, those that are under way are kept, and its own error is raised.

    By default in threads, which are there at once; that processes do the same work is a test of its own.
    """
    if workers == "threads":
        all_under_way = threading.Barrier(3)

        def together(run, seeds):
            all_under_way.wait(30)
            return measure(run, seeds)

        monkeypatch.setattr(study, "measure", together)
        monkeypatch.setattr(_workers, "_Pool", lambda count, **_: ThreadPoolExecutor(count))
    runs = {"bad": replace(BASE, task=Bandit(contexts=2**14, arms=2**10, features=2**6))}
    runs |= {str(steps): replace(BASE, steps=steps) for steps in (200, 201)}
    seen = []
    with pytest.raises(ValueError, match="is the limit"):
        run_study(runs, [0], tmp_path / "s", processes=3, progress=lambda done, total: seen.append(done))
    assert seen == [0, 1, 2]
    again = []
    del runs["bad"]
    run_study(runs, [0], tmp_path / "s", progress=lambda done, total: again.append((done, total)))
    assert again == [(2, 2)]


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_study_with_words(tmp_path, monkeypatch):
    """Nobody waits for a process that was killed: the study ends, says what happened and goes on when called again."""
    monkeypatch.setattr(study, "measure", die)
    with pytest.raises(WorkerError, match=r"a worker process has died.*the same study goes on"):
        run_study(RUNS, SEEDS, tmp_path / "s", processes=2)
    monkeypatch.setattr(study, "measure", measure)
    assert same(run_study(RUNS, SEEDS, tmp_path / "s"), run_study(RUNS, SEEDS, tmp_path / "t"))


def test_errors_of_a_callback_are_its_own(tmp_path):
    """An error of SQLite's kind that the progress callback raises is not taken for one of the store."""

    def fails(done, total):
        raise sqlite3.OperationalError("mine")

    with pytest.raises(sqlite3.OperationalError, match="mine"):
        run_study({"a": BASE}, [0], tmp_path / "s", progress=fails)


def test_a_locked_store_is_not_to_be_removed(tmp_path, monkeypatch):
    """While another process writes, the error says that nothing is lost, and does not advise to remove anything."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.1))  # in place of five seconds
    run_study({"a": BASE}, [0], tmp_path / "s")
    with contextlib.closing(sqlite3.connect(tmp_path / "s", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="locked; what it keeps is not lost"):
            run_study({"a": BASE}, [0], tmp_path / "s")


def test_a_quartile_has_no_distance():
    """The law of a quartile is not known, so its distance and gap are nan, and everything else is measured."""
    found = measure(replace(BASE, source=Fixed(quartile=1)), [0, 1])
    assert np.isnan([found["distance"], found["gap"]]).all()
    assert np.isfinite([found["score"], found["utility"], found["win_rate"]]).all()
