"""What a run says when memory runs out."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest
import torch

import humanline.train.policy.build as build
import humanline.train.preflight.fits as fits
import humanline.train.setup as setup
from humanline.system.out_of_memory import MemoryRanOutError, bytes_asked, is_out_of_memory
from humanline.train.loop import train
from humanline.train.step.loss import ObjectiveStep
from tests.helpers.few_changes import only_smaller_passes
from tests.helpers.support import config

CUDA = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.80 GiB of"


def too_much() -> None:
    """Ask torch for more than any machine has."""
    torch.empty(1 << 60, dtype=torch.int8)


def no_memory() -> None:
    """Ask numpy for it."""
    np.empty(1 << 60, dtype=np.int8)


def on_a_gpu() -> None:
    """Raise what torch raises on a GPU."""
    raise torch.OutOfMemoryError(CUDA)


def plain() -> None:
    """Raise what Python raises."""
    raise MemoryError


@pytest.mark.parametrize(
    ("error", "asked"), [(too_much, 2.0**60), (no_memory, 2.0**60), (on_a_gpu, 2.5 * 2**30), (plain, 0.0)]
)
def test_memory_that_ran_out_is_known_and_how_much_was_asked_for(error, asked):
    """By torch on a GPU and on a CPU, by numpy and by Python; another error is none."""
    with pytest.raises((RuntimeError, MemoryError)) as found:
        error()
    assert is_out_of_memory(found.value) and bytes_asked(found.value) == asked
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(ValueError("a row says: CUDA error: out of memory"))
    assert bytes_asked(ValueError("nothing")) == 0.0


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the documentation",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
@pytest.mark.parametrize("kind", [RuntimeError, torch.AcceleratorError])
def test_what_a_gpu_says_beside_its_allocator_is_known_too(kind, words):
    """Of memory that is not its allocator's, pinned memory among it; torch has no type of error for that."""
    assert is_out_of_memory(kind(words))


def failing(monkeypatch, place: str, error) -> None:
    """Run out of memory there, when two updates are done."""
    owner, name = {"training": (ObjectiveStep, "loss"), "update": (torch.optim.AdamW, "step")}[place]
    true, calls = getattr(owner, name), []

    def harmful(*args, **kwargs):
        calls.append(0)
        if len(calls) > (4 if place == "training" else 2):
            error()
        return true(*args, **kwargs)

    monkeypatch.setattr(owner, name, harmful)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("training", on_a_gpu),
        pytest.param("update", too_much, marks=pytest.mark.slow),
        pytest.param("training", plain, marks=pytest.mark.slow),
    ],
)
def test_a_run_without_memory_says_where_how_much_and_what_to_change(toy, tmp_path, monkeypatch, place, error):
    """Phase and step, what was asked for, the estimate, passes that fit, other changes, and the checkpoint."""
    failing(monkeypatch, place, error)
    training = {"steps": 4, "batch_size": 8, "micro_batch_size": 4}
    given = config(toy, tmp_path / "run", "dpo", training=training, checkpoint={"every": 1})
    with pytest.raises(MemoryRanOutError) as found:
        train(given, show_progress=False)
    said = str(found.value)
    assert said.startswith("out of memory while training, after 2 updates: "), said
    for words in ("in use       at most ", "estimate     ", "change  "):
        assert words in said
    assert ("training.micro_batch_size=2, the largest that fits" in said) is (error is not too_much)
    for words in ("training.activation_checkpointing=true", "precision=bf16", "states=8bit", "adapter="):
        assert words in said
    assert ("2.50 GiB more were asked for" in said) is (error is on_a_gpu)
    assert re.search(r"go on .*step-00000002 is the newest checkpoint: --resume", said)
    assert is_out_of_memory(found.value.__cause__)
    monkeypatch.undo()
    train(given, resume=True, show_progress=False)


def test_other_processes_hear_of_it_once_all_is_known_that_is_said(toy, tmp_path, monkeypatch):
    """They, and then a launcher, end the one that an estimate would keep; it is made before they are told."""
    failing(monkeypatch, "update", plain)
    only_smaller_passes(monkeypatch)
    joined, left = setup.joined, []

    @contextlib.contextmanager
    def noted(*arguments):
        try:
            with joined(*arguments) as given:
                yield given
        except MemoryRanOutError as error:
            left.append(str(error))
            raise

    monkeypatch.setattr(setup, "joined", noted)
    with pytest.raises(MemoryRanOutError) as found:
        train(config(toy, tmp_path / "run"), show_progress=False)
    assert left == [str(found.value)] and "\nestimate " in left[0]


@pytest.mark.slow
def test_what_an_estimate_does_not_know_of_is_added_to_it(toy, tmp_path, monkeypatch):
    """Where a run took more than was estimated, each change is held against the room with that on top."""
    failing(monkeypatch, "training", on_a_gpu)
    training = {"steps": 6, "batch_size": 8, "micro_batch_size": 8}
    given = config(toy, tmp_path / "run", "dpo", training=training)
    monkeypatch.setattr("humanline.train.preflight.exhausted.used", lambda device: (6 * 2.0**30, 8.4 * 2**30))
    monkeypatch.setattr("humanline.train.preflight.exhausted.capacity", lambda device: 16 * 2.0**30)
    with pytest.raises(MemoryRanOutError, match="none of it is enough") as found:
        train(given, show_progress=False)
    said = str(found.value)
    assert "the device has 16.00 GiB, of which 7.60 GiB are not for this process" in said
    assert re.search(r"8\.[45]\d GiB too little, which are added below", said), said
    assert "passes  " not in said and "; fits" not in said


@pytest.mark.slow
def test_without_an_estimate_all_else_is_said(toy, tmp_path, monkeypatch):
    """While weights are read, or where no estimate can be made, there is still a phase and advice."""
    given = config(toy, tmp_path / "run", "dpo")
    monkeypatch.setattr(build, "load_weights", lambda *_, **__: too_much())
    with pytest.raises(MemoryRanOutError, match="out of memory while loading: ") as found:
        train(given, show_progress=False)
    assert "estimate  " in str(found.value)
    monkeypatch.setattr("humanline.train.preflight.exhausted.Estimator", fits.GIB)
    with pytest.raises(MemoryRanOutError, match="humanline estimate tells"):
        train(given, show_progress=False)
    monkeypatch.setattr("humanline.train.setup.read_data", lambda *_: plain())
    with pytest.raises(MemoryRanOutError, match="out of memory while loading: MemoryError\nchange  "):
        train(given, show_progress=False)
