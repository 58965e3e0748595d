"""Processes of one run that were given different things are refused before anything is read."""

from __future__ import annotations

import os

import pytest

from humanline.train.run.alike import _differences
from tests.train.run.test_neighbours import Pairs, fixed


@pytest.fixture(scope="module")
def pairs(server):
    return Pairs(server)


@pytest.mark.slow
def test_what_differs_between_processes_is_refused(toy, tmp_path, pairs):
    """A setting, software, the size of the data or the output folder itself: named once, with whom; both end."""
    other, away = tmp_path / "other.jsonl", tmp_path / "away"
    other.write_text("\n")
    away.mkdir()
    given = {"overrides": ["training.batch_size=4", f"data.train={other}"], "version": "0.0.1"}
    there = {"overrides": [f"output={away / 'run'}"]}
    cases = {
        "given": (
            given,
            ["training.batch_size: 8 in process 0 (HOST), 4 in process 1 (HOST)", "the size of data.train: "],
        ),
        "folder": (there, ["the output folder: process 1 (HOST) does not see what process 0 (HOST) writes at"]),
    }
    for name, (own, words) in cases.items():
        outcome = pairs.run(fixed(toy, tmp_path / name), own=own)
        assert outcome["codes"] == [2, 2], outcome
        main, second = outcome["said"]
        for word in words:
            assert word.replace("HOST", os.uname().nodename) in main, main
        assert ("0.0.1 in process 1" in main) is (name == "given") and "Traceback" not in main
        assert "not given the same" in main and "its own message says why" in second
        assert not (tmp_path / name / "run").exists()
        assert {path.suffix for path in (tmp_path / name).iterdir()} <= {".yaml", ".log"}  # no token is left
    assert not list(away.iterdir())


def test_what_all_find_wrong_is_said_once(toy, tmp_path, pairs):
    """A batch that the processes cannot share: the main one says so, the other one points to it; nothing is written."""
    settings = fixed(toy, tmp_path, micro_batch_size=8)
    outcome = pairs.run(settings)
    assert outcome["codes"] == [2, 2], outcome
    main, second = outcome["said"]
    assert "which 2 processes cannot share evenly" in main and "Traceback" not in main
    assert "cannot share" not in second and "the main process could not go on; its own message says why" in second
    assert not (tmp_path / "run").exists()


def test_what_differs_is_named_with_whom():
    """One value is of the first process and others; a secret that differs is not shown."""
    facts = [{"host": f"h{n}", "sees": True, "facts": {"torch": "2" if n == 2 else "1"}} for n in range(4)]
    assert _differences(facts) == ["torch: 1 in process 0 (h0) and 2 more, 2 in process 2 (h2)"]
    whole = "the settings as a whole"
    hidden = [{"host": "h", "sees": True, "facts": {whole: str(n), "a": "***"}} for n in range(2)]
    assert _differences(hidden) == [f"{whole}: 0 in process 0 (h), 1 in process 1 (h)"]
