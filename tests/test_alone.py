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


# A room, a name that picks a few quick tests of it, of which some use the tokenizer, and what it may import.
ROOMS = [("tests/system", "test_home_folders or test_first", set()), ("tests/train/data", "test_plain", {"torch"})]


@pytest.mark.parametrize("room,some,allowed", ROOMS, ids=[room for room, *_ in ROOMS])
def test_a_room_is_collected_without_what_its_tests_do_without(room, some, allowed):
    """All files of the room are imported, and some of its tests run."""
    assert imported(room, "-k", some) <= allowed


@pytest.mark.slow
@pytest.mark.parametrize("room,some,allowed", ROOMS, ids=[room for room, *_ in ROOMS])
def test_a_room_runs_without_what_its_tests_do_without(room, some, allowed):
    """All quick tests of the room run."""
    assert imported(room, "-m", "not slow") <= allowed


def test_the_check_itself_can_fail(monkeypatch):
    """Torch and a model's file are named where they are imported; the list of models is no model."""
    before = set(heavy())
    for name in ("torch", "transformers.models.new.modeling_new", "transformers.models.auto.modeling_auto"):
        monkeypatch.setitem(sys.modules, name, sys)
    assert set(heavy()) == before | {"torch", "transformers.models.new.modeling_new"}
