"""What launchers say in the environment, and what only looks like it."""

from __future__ import annotations

import pytest

from humanline.system.launcher import LauncherError, from_slurm, launched_processes, too_slow_to_stop

GIVEN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "count"),
    [({}, 1), (GIVEN, 2), ({"WORLD_SIZE": "1"}, 1), ({"WORLD_SIZE": "1", "LOCAL_RANK": "-1"}, 1)],
)
def test_processes_are_counted(monkeypatch, given, count):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert launched_processes() == count


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc'"),
        ({"WORLD_SIZE": "-3"}, "WORLD_SIZE is '-3'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"LOCAL_RANK": "q"}, "LOCAL_RANK is 'q'"),
        ({"RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
        ({"RANK": None, "LOCAL_RANK": None}, "RANK and LOCAL_RANK is not set"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is not set"),
    ],
)
def test_what_no_launcher_says_is_named(monkeypatch, changed, message):
    for name, value in (GIVEN | changed).items():
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(LauncherError, match=message):
        launched_processes()


def test_how_long_a_launcher_waits(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not too_slow_to_stop(1e6)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert not too_slow_to_stop(14) and "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=200 " in too_slow_to_stop(20)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1800")
    assert not too_slow_to_stop(600) and too_slow_to_stop(1000)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
    assert too_slow_to_stop(20)


STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "20",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2),4",
    "SLURM_STEP_NODELIST": "gpu[003-006,9],login1",
    "SLURM_PROCID": "17",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
}


def test_a_task_of_srun_is_a_process_of_the_run():
    """Its place among all tasks and on its node, and where the first one is; all tasks have the same port."""
    place = {"MASTER_ADDR": "gpu003", "MASTER_PORT": str(20_000 + (16 * 4711 + 2) % 20_000)}
    found = {"WORLD_SIZE": "20", "RANK": "17", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"} | place
    assert from_slurm(STEP) == found
    assert from_slurm(STEP | {"MASTER_ADDR": "here"})["MASTER_ADDR"] == "here"
    for nodes, first in (("n1,n2", "n1"), ("rack[1-2]node[03,4]", "rack1node03"), ("one", "one")):
        assert from_slurm(STEP | {"SLURM_STEP_NODELIST": nodes})["MASTER_ADDR"] == first


def test_what_else_runs_under_slurm_is_left_alone():
    """A batch script, one task alone, and what torchrun has started in a task."""
    batch = {name: value for name, value in STEP.items() if "STEP" not in name} | {"SLURM_NTASKS": "20"}
    for given in ({}, batch, STEP | {"SLURM_STEP_NUM_TASKS": "1"}, STEP | GIVEN):
        assert from_slurm(given) == {}
    for missing in ("SLURM_PROCID", "SLURM_STEP_NODELIST"):
        with pytest.raises(LauncherError, match=f"20 tasks .* make no sense .*{missing}"):
            from_slurm({name: value for name, value in STEP.items() if name != missing})
