"""Runs from one start model share its answers, and are the runs that they would be without."""

from __future__ import annotations

import dataclasses
import errno
import shutil

import pytest

from humanline.reproduce.brought import bring
from humanline.reproduce.cells import Cell
from humanline.reproduce.run import Job, run
from humanline.reproduce.start import ANSWERS_OF_START, make_pairs, make_start, prompt_files
from humanline.train.online.distance import Distance
from tests.helpers.micro_testbed import MICRO

CELL = Cell("dpo", "offline", 1e-3, beta=1.0)
OTHER = Cell("kto", "humanline", 3e-3, beta=0.1, every=8)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with a start model and two draws of pairs."""
    folder = tmp_path_factory.mktemp("micro")
    prompt_files(MICRO, folder / "starts")
    make_start(MICRO, "near", 0, folder / "starts")
    for draw in range(2):
        make_pairs(MICRO, "near", 0, draw, folder / "starts")
    return folder


@pytest.fixture
def fresh(begun, tmp_path):
    """A copy of it, from which nothing has been run."""
    return shutil.copytree(begun, tmp_path / "fresh")


@pytest.fixture(scope="module")
def run_once(begun, tmp_path_factory):
    """A copy of it from which one cell has been run, as it then was, and the outcome."""
    folder = shutil.copytree(begun, tmp_path_factory.mktemp("once") / "micro")
    found = outcome(folder, CELL)
    return folder, shutil.copytree(folder, folder.with_name("as it was")), found


@pytest.fixture
def first(run_once):
    """The outcome of the first run."""
    return run_once[2]


@pytest.fixture
def once(run_once):
    """The folder with that first run alone, in its place: answers are known by where their model lies."""
    folder, before, _ = run_once
    shutil.rmtree(folder)
    return shutil.copytree(before, folder)


def outcome(folder, cell, draw=0):
    return dataclasses.replace(run(Job(MICRO, cell, 0, draw), folder, keep_runs=False), seconds=0.0)


def shared(folder):
    return sorted((folder / "starts" / "micro" / "near-0" / ANSWERS_OF_START).iterdir())


def test_the_second_run_draws_none_and_is_the_same_run(fresh, once, monkeypatch):
    """Another cell of the same start and draw is, bit for bit, what it is where it is run first."""
    alone = outcome(fresh, OTHER)
    assert len(shared(once)) == 1
    drawn = []
    monkeypatch.setattr(Distance, "_draw_start", lambda *_: drawn.append(1))
    assert outcome(once, OTHER) == alone and not drawn
    assert alone.kl_from_start > 0 and alone.kl_to_start > 0


def test_each_draw_and_each_way_of_drawing_has_its_own(once):
    """The order's seed is that of the answers too, and rounds draw in batches of another size."""
    outcome(once, CELL, draw=1)
    assert len({path.read_bytes() for path in shared(once)}) == len(shared(once)) == 2
    outcome(once, Cell("dpo", "online", 1e-3, beta=1.0))
    assert len(shared(once)) == 3


@pytest.mark.parametrize("harm", ["a line less", "of other weights", pytest.param("nothing", marks=pytest.mark.slow)])
def test_what_is_damaged_or_of_another_model_is_drawn_anew(once, first, harm):
    """The run is what it would have been, and the next one finds its answers."""
    [file] = shared(once)
    whole = file.read_text()
    if harm == "a line less":
        file.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    elif harm == "of other weights":
        head, _, rows = whole.partition("\n")
        file.write_text(head.replace('"policy": "', '"policy": "0') + "\n" + rows)
    else:
        file.write_text("")
    assert file.read_text() != whole
    assert outcome(once, CELL) == first
    assert [path.read_text() for path in shared(once)] == [whole]


def test_a_disk_without_room_for_them_costs_no_run(once, first, monkeypatch):
    """What was trained and measured is not lost for something that saves time; nothing half-written is used."""

    def full(source, target):
        target.write_bytes(source.read_bytes()[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    assert outcome(once, CELL) == first
    shutil.rmtree(shared(once)[0].parent)
    assert outcome(once, CELL) == first
    assert all(path.name.startswith(".") for path in shared(once))


def test_they_are_not_brought_along(once, tmp_path):
    """What lies beside a start model from elsewhere proves nothing about these."""
    assert shared(once) and bring(once / "starts", MICRO, [0], tmp_path / "mine") == ["near-0"]
    assert not (tmp_path / "mine" / "micro" / "near-0" / ANSWERS_OF_START).exists()
