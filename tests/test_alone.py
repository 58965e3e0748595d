"""Rooms of tests that run alone, without the heavy libraries that their rooms of the package do without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.helpers.loaded import heavy


def imported(*words: str) -> set[str]:
    """Return the modules of torch and of transformers' models that a session of these tests imports, in a process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.helpers.loaded", *words]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    return set(result.stdout.splitlines()[-1].removeprefix("imported:").split())


ROOMS = {"tests/system": set(), "tests/train/data": {"torch"}}  # and what they may import


def test_tests_of_the_system_are_collected_without_torch():
    """All files of the room are imported, and some of its tests run; the other room takes longer to import."""
    assert imported("tests/system", "-k", "test_home_folders or test_first") <= ROOMS["tests/system"]


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_runs_without_what_its_tests_do_without(room):
    """All quick tests of the room run."""
    assert imported(room, "-m", "not slow") <= ROOMS[room]


def test_the_check_itself_can_fail(monkeypatch):
    """Torch and a model's file are named where they are imported; the list of models is no model."""
    before = set(heavy())
    for name in ("torch", "transformers.models.new.modeling_new", "transformers.models.auto.modeling_auto"):
        monkeypatch.setitem(sys.modules, name, sys)
    assert set(heavy()) == before | {"torch", "transformers.models.new.modeling_new"}
