"""A run that is over holds no memory of its model: the next one in the same process has the room."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from humanline.train import given, loop
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from tests.helpers.rounds import online
from tests.helpers.support import config

SECOND_MODEL = {"schedule": {"kind": "never"}, "storage": "model"}


def made(name: str, toy: dict[str, str], prompts: str, output: Path) -> TrainConfig:
    """Return the configuration of a kind of run."""
    if name == "rounds":
        short = {"contexts_per_round": 8, "samples": 2, "count": 1, "steps": 1}
        return online(toy, prompts, output, rounds=short)
    others = output.with_suffix(".jsonl")
    others.write_text('{"prompt": "100 hgf"}\n{"prompt": "101 hgf"}\n')
    far = {"distance": {"prompts": str(others), "samples": 1, "max_tokens": 4}}
    changes = {
        "fixed": {},
        "second model": {"reference": SECOND_MODEL},
        "adapter": {"adapter": {"rank": 2}},
        "distance": {"evaluation": far},
    }
    return config(toy, output, **changes[name], training__steps=2)


def of_models() -> list[object]:
    """Return the modules, optimizers and tensors that are there."""
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
    return [one for one in gc.get_objects() if isinstance(one, kinds)]


@pytest.mark.parametrize("name", ["fixed", "second model", "adapter", "distance", "rounds"])
def test_nothing_of_a_model_stays(toy, prompts, tmp_path, name):
    """No policy, optimizer or reference is in a reference cycle, which would keep its memory until some collection."""
    train(made(name, toy, prompts, tmp_path / "first"), show_progress=False)  # what libraries keep for good
    gc.collect()
    before = of_models()  # held, so that no new object takes the place of one
    known = {id(one) for one in before}
    gc.disable()
    try:
        train(made(name, toy, prompts, tmp_path / "second"), show_progress=False)
        left = {type(one).__name__ for one in of_models() if id(one) not in known}
    finally:
        gc.enable()
    assert left == set()


def test_what_a_library_keeps_in_a_cycle_is_collected(toy, tmp_path, monkeypatch):
    """Importing torch's compiler, as a first run does, leaves frames of its callers that refer to themselves."""
    steps, left = loop.take_steps, []

    def keeping(run):
        cycle: list[object] = [run]
        cycle.append(cycle)
        left.append(weakref.ref(run.trained.policy))
        return steps(run)

    monkeypatch.setattr(loop, "take_steps", keeping)
    gc.disable()
    try:
        given.train(config(toy, tmp_path / "run"), show_progress=False)
        assert [one() for one in left] == [None]
    finally:
        gc.enable()
