"""Where a GPU has no kernel for rows laid end to end: said once, before weights are read, and with its reason."""

from __future__ import annotations

import pytest
import torch

from humanline.train import setup
from humanline.train.policy import packing
from humanline.train.policy.build import remarks_on
from humanline.train.policy.load import load_outline
from humanline.train.policy.packing import slower_without_kernel
from humanline.train.preflight.validate import validate
from tests.helpers.gpu import write_model
from tests.helpers.support import config, run

GPU = torch.device("cuda")
FREE = {"steps": 1, "batch_size": 4, "padding": "free"}


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that there is a GPU of a compute capability, with a torch that has the kernel or not."""

    def pretend(capability: tuple[int, int], kernel: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
        monkeypatch.setattr(packing, "_varlen", lambda: (lambda *_: None) if kernel else None)

    return pretend


@pytest.fixture(scope="module")
def outline(toy, tmp_path_factory):
    return load_outline(write_model(tmp_path_factory.mktemp("fits"), toy["model"]))  # heads of 64


def test_a_gpu_that_has_the_kernel_is_passed_over(gpu, outline, toy):
    """Nothing is said where one kernel serves all rows, nor on a CPU, nor where rows are padded; the outline stays."""
    gpu((9, 0))
    before = outline.config._attn_implementation
    assert slower_without_kernel(outline, GPU, "bf16") is None
    assert slower_without_kernel(outline, torch.device("cpu"), "float32") is None
    gpu((7, 5))
    assert remarks_on(config(toy, "unused", training={"steps": 1}), outline, None, GPU, 1) == []
    assert outline.config._attn_implementation == before


@pytest.mark.parametrize(
    "capability,kernel,precision,changes,why",
    [
        ((7, 5), True, "bf16", {}, "Some GPU is older than compute capability 8.0"),
        ((9, 0), True, "float32", {}, "it computes in bf16 alone (training.precision)"),
        ((9, 0), True, "bf16", {"head_dim": 20}, "heads of 20 numbers do not fit it"),
        ((9, 0), False, "bf16", {}, "this version of torch has none"),
    ],
    ids=["old GPU", "float32", "heads", "torch"],
)
def test_the_reason_is_named(gpu, toy, tmp_path, capability, kernel, precision, changes, why):
    """An old GPU, float32, heads of odd sizes and a torch without the kernel: each is a remark that names it."""
    gpu(capability, kernel)
    given = load_outline(write_model(tmp_path / "model", toy["model"], **changes))
    said = slower_without_kernel(given, GPU, precision)
    assert said is not None and why in said and "training.padding: right" in said


def test_validation_remarks_on_it(gpu, toy, tmp_path, monkeypatch, capsys):
    """On such a machine `validate` says so, and that the run would start."""
    gpu((7, 5))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = validate(config(toy, tmp_path / "run", training=FREE))
    assert len(found.remarks) == 1 and "older than compute capability 8.0" in found.remarks[0]
    assert "remark       training.padding: free: attention takes one row" in capsys.readouterr().out


def test_a_run_says_so_before_its_weights_are_read(toy, tmp_path, monkeypatch, capsys):
    """The line comes once, before any weight, and the run goes on."""
    monkeypatch.setattr(setup, "remarks_on", lambda *_: ["slow here"])
    monkeypatch.setattr(setup, "build_policy", lambda *_: pytest.fail("stop here"))
    with pytest.raises(pytest.fail.Exception):
        run(toy, tmp_path / "run", training=FREE)
    assert "slow here" not in capsys.readouterr().err  # shown where progress is
    with pytest.raises(pytest.fail.Exception):
        setup_shown(config(toy, tmp_path / "run", training=FREE))
    assert capsys.readouterr().err.count("remark: slow here") == 1


def setup_shown(given) -> None:
    with setup.set_up(given):
        pass
