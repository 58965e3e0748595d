"""What launchers say in the environment, and what only looks like it."""

from __future__ import annotations

import pytest

from humanline.system.launcher import LauncherError, launched_processes, too_slow_to_stop

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
