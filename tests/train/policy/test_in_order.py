"""Attention's backward pass sums in a fixed order, nothing else does, and no bit of a result depends on it."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from humanline.system.out_of_memory import MemoryRanOutError
from humanline.train.policy import in_order as module
from humanline.train.policy.in_order import in_order, sum_in_order
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.preflight import exhausted
from tests.helpers.gpu import block_on, model_on
from tests.helpers.support import config

ON, OFF = 2, 0


class Spied(torch.autograd.Function):
    """The identity, which notes whether order is asked for where a backward pass goes through it."""

    seen: ClassVar[list[tuple[str, int]]] = []

    @staticmethod
    def forward(ctx, x, name):
        ctx.name = name
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        Spied.seen.append((ctx.name, torch.get_deterministic_debug_mode()))
        return grad, None


@pytest.fixture(autouse=True)
def nothing_is_left():
    Spied.seen = []
    yield
    assert torch.get_deterministic_debug_mode() == OFF and not module._BEFORE


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output = scaled_dot_product_attention(Spied.apply(query, "in"), key, value, is_causal=True)
    return Spied.apply(output, "in")


@pytest.mark.parametrize("trained", [(0, 1, 2), (0,), (1,), (2,), ()], ids=str)
def test_order_is_asked_for_in_attention_alone(trained):
    """On from its result to its inputs, whichever of them have a gradient; off before, after and without gradient."""
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn((2, 2, 8, 4), generator=generator).requires_grad_(i in trained) for i in range(3)]

    def layer(function) -> tuple[Tensor, list[Tensor]]:
        inputs = [Spied.apply(x * 2, "out") for x in leaves]
        output = function(*inputs)
        total = Spied.apply(output, "out").square().sum()
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        return output.detach(), list(torch.autograd.grad(total, wanted)) if wanted else []

    plain = layer(attend)
    Spied.seen.clear()
    ordered = layer(lambda *inputs: in_order(attend, *inputs))
    assert torch.equal(plain[0], ordered[0])
    assert all(torch.equal(a, b) for a, b in zip(plain[1], ordered[1], strict=True))
    assert set(Spied.seen) == ({("in", ON), ("out", OFF)} if trained else set())
    with torch.no_grad():
        assert torch.equal(in_order(attend, *(x * 2 for x in leaves)), plain[0])


class Failing(torch.autograd.Function):
    """The identity, in whose backward pass memory runs out."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        Spied.seen.append(("failing", torch.get_deterministic_debug_mode()))
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_nothing_is_left_on_after_memory_has_run_out_within_attention(toy, tmp_path, monkeypatch):
    """What was on before is put back before anything is estimated, and so for the next run of the process."""
    inputs = [torch.randn((2, 2, 8, 4)).requires_grad_() for _ in range(3)]

    def fail() -> None:
        in_order(lambda *given: Failing.apply(attend(*given)), *inputs).sum().backward()

    def estimate(device) -> None:
        Spied.seen.append(("estimate", torch.get_deterministic_debug_mode()))
        raise ValueError

    monkeypatch.setattr(exhausted, "used", estimate)
    with pytest.raises(MemoryRanOutError), exhausted.explaining(config(toy, tmp_path), tmp_path) as known:
        known.of_model(outline=None, stream="a stream", steps=1, device=torch.device("cpu"))
        fail()
    assert Spied.seen == [("failing", ON), ("estimate", OFF)]
    assert torch.get_deterministic_debug_mode() == OFF


@pytest.mark.parametrize("checkpointing", [False, True])
def test_models_run_in_order_once_that_is_asked_for(monkeypatch, checkpointing):
    """Every layer of a model of transformers then does so on a GPU, with the bits it had; on a CPU nothing changes.

    What is computed again for the backward pass is not within it.
    """
    monkeypatch.setattr(AttentionInterface, "_global_mapping", dict(AttentionInterface._global_mapping))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.delenv(module.WORKSPACE, raising=False)
    policy, block = LogprobModel(model_on("cpu")).train(), block_on("cpu")
    if checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})

    def graded() -> list[Tensor]:
        found = policy(*block.inputs)
        return [found.detach(), *torch.autograd.grad(found.sum(), list(policy.parameters()))]

    calls: list[str] = []

    def counted(attend, *inputs):
        calls.append("called")
        return in_order(lambda *given: Spied.apply(attend(*given), "in"), *inputs)

    plain = graded()
    try:
        sum_in_order.__wrapped__()
        assert not torch.backends.cuda.cudnn_sdp_enabled() and os.environ.pop(module.WORKSPACE) == ":4096:8"
        assert all(torch.equal(a, b) for a, b in zip(graded(), plain, strict=True))
        monkeypatch.setattr(module, "in_order", counted)
        graded()
        assert not calls
        monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.ndim == 4))
        assert all(torch.equal(a, b) for a, b in zip(graded(), plain, strict=True))
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert len(calls) == (4 if checkpointing else 2)
    assert Spied.seen == [("in", ON)] * 2
