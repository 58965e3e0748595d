"""What the machine lacks is said in one message before weights are read, by `train` and by `validate` alike."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from humanline.train.loop import train
from humanline.train.policy.build import refuse_slow_bf16
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_outline, load_tokenizer
from humanline.train.preflight.fits import DoesNotFitError, refuse_unfit
from humanline.train.preflight.validate import NotReadyError, validate
from tests.helpers.few_changes import only_smaller_passes
from tests.helpers.support import config

GPU = torch.device("cuda", 0)


def pretend(monkeypatch, capability: tuple[int, int] = (9, 0), memory: float = 139.8) -> None:
    """Let torch tell of a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Made Up 5000")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(memory * 2**30), int(memory * 2**30)))


def test_bf16_is_refused_on_a_gpu_without_arithmetic_for_it(toy, tmp_path, monkeypatch, capsys):
    """From compute capability 8.0 on there is one; what torch makes up for the others does not count."""
    pretend(monkeypatch, (8, 0))
    refuse_slow_bf16("bf16", GPU)
    pretend(monkeypatch, (7, 5))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)  # as it says there
    for precision, device in (("float32", GPU), ("bf16", torch.device("cpu"))):
        refuse_slow_bf16(precision, device)
    with pytest.raises(ModelError, match=r"precision: bf16 needs .* Made Up 5000 has 7\.5: set training.precision"):
        refuse_slow_bf16("bf16", GPU)
    monkeypatch.setattr(torch.version, "hip", "7.0", raising=False)
    refuse_slow_bf16("bf16", GPU)  # capabilities of AMD's are other numbers
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(NotReadyError, match=r"device: training.precision: bf16 needs"):
        validate(config(toy, tmp_path / "run", training={"precision": "bf16", "steps": 1, "batch_size": 4}))


def test_a_gpu_with_too_little_memory_is_refused(toy, tmp_path, monkeypatch):
    """Held against all the memory of the GPU; the message has the estimate and what to change."""
    given = config(toy, tmp_path / "run", training={"steps": 2, "batch_size": 8, "micro_batch_size": 8})
    renderer = fits_renderer(given)
    from humanline.train.data.run_data import read_data, stream_of

    stream, steps = stream_of(given, read_data(given, renderer), renderer)
    outline = load_outline(given.model)
    pretend(monkeypatch)
    only_smaller_passes(monkeypatch)
    refuse_unfit(given, outline, stream, steps, GPU)
    pretend(monkeypatch, memory=0.0005)
    with pytest.raises(DoesNotFitError, match="does not fit into memory, nothing was loaded") as refused:
        refuse_unfit(given, outline, stream, steps, GPU)
    said = str(refused.value)
    assert "verdict      does not fit" in said and "training.micro_batch_size=1" in said


def fits_renderer(given: Any) -> Any:
    """Return the template path of a run."""
    from humanline.train.data.run_data import renderer_of

    return renderer_of(given, load_tokenizer(given.model))


MISSING = {
    "torchao": ({"optimizer": {"lr": 1e-3, "states": "8bit"}}, "optimizer.states: 8bit needs torchao: pip install"),
    "bitsandbytes": (
        {"adapter": {"rank": 2, "base": "nf4"}, "training": {"precision": "bf16", "steps": 1, "batch_size": 4}},
        "adapter.base: nf4 needs bitsandbytes: pip install",
    ),
    "cut_cross_entropy": (
        {"training": {"logprobs": "cut_cross_entropy", "steps": 1, "batch_size": 4}},
        "cut_cross_entropy",
    ),
    "tensorboard": ({"tracking": {"trackers": ["tensorboard"]}}, "names tensorboard, which is not installed: pip"),
    "wandb": ({"tracking": {"trackers": ["wandb"]}}, "names wandb, which is not installed: pip install wandb"),
    "trackio": ({"tracking": {"trackers": ["trackio"]}}, "names trackio, which is not installed: pip install trackio"),
}


@pytest.mark.parametrize("package", MISSING)
def test_a_missing_package_is_named_before_weights_are_read(toy, tmp_path, monkeypatch, package):
    """One message with the setting and what installs it, from `train` and `validate`; nothing is written."""
    changes, words = MISSING[package]
    true = importlib.util.find_spec

    def find_spec(name, *args):
        hidden = (package, "tensorboardX") if package == "tensorboard" else (package,)
        return None if name.split(".")[0] in hidden else true(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr("humanline.train.run.tracking.find_spec", find_spec)
    monkeypatch.setitem(__import__("sys").modules, package, None)  # an import of it fails
    monkeypatch.setattr("humanline.train.setup.build_policy", lambda *_: pytest.fail("weights were loaded"))
    given = config(toy, tmp_path / "run", "dpo", **changes)
    with pytest.raises(ValueError, match=words) as refused:
        train(given, show_progress=False)
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()
    with pytest.raises(NotReadyError, match=words):
        validate(given)


def test_math_verify_is_looked_for_before_weights_are_read(toy, tmp_path, monkeypatch):
    """Whatever would keep rewards from being given is found with the prompts, not once the model is loaded."""
    true = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == "math_verify" else true(name, *args)
    )
    monkeypatch.setattr("humanline.train.setup.build_policy", lambda *_: pytest.fail("weights were loaded"))
    source = {
        "kind": "rounds",
        "contexts_per_round": 8,
        "samples": 4,
        "count": 1,
        "sampling": {"max_tokens": 8, "engine": {"kind": "generate", "batch_size": 8}},
        "scoring": {"rewards": [{"kind": "math", "answer": "chosen"}], "workers": 1},
    }
    given = config(
        toy,
        tmp_path / "run",
        "grpo",
        data={"train": toy["pairs"], "max_length": 64},
        source=source,
        training={"batch_size": 8},
        reference={"schedule": {"kind": "each_round"}},
    )
    with pytest.raises(ValueError, match="math-verify is not installed: pip install"):
        train(given, show_progress=False)
    assert not (tmp_path / "run").exists()
