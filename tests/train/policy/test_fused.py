"""Fused layers: put into one model alone, near its own code, and compared with it before a run begins."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

from humanline.train.policy import build
from humanline.train.policy.build import build_policy, checked_model
from humanline.train.policy.errors import ModelError
from humanline.train.policy.fused import check_fused, fuse, refuse_unfusable
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.precision import compute_in
from tests.helpers.support import config, run, steps

PACKAGE = "liger_kernel.transformers.functional"
IDS = list(range(3, 40))


def rms_norm(hidden, weight, eps, offset, rounds, in_place):
    """What the kernel computes, in float32 throughout."""
    wide = hidden.float()
    normed = wide * (wide.square().mean(-1, keepdim=True) + eps) ** -0.5
    return (normed * (weight.float() + offset)).to(hidden.dtype)


def swiglu(gate, up):
    return (gate.float() * torch.sigmoid(gate.float()) * up).to(gate.dtype)


def geglu(gate, up):
    return torch.nn.functional.gelu(gate.float(), approximate="tanh").mul(up).to(gate.dtype)


def rope(query, key, cos, sin):
    wide = apply_rotary_pos_emb(query.float(), key.float(), cos.float(), sin.float())
    return tuple(one.to(query.dtype) for one in wide)


@pytest.fixture
def kernels(monkeypatch):
    """A package whose functions compute what the kernels do, and how often each was called."""
    calls: dict[str, int] = {}

    def counted(name, function):
        def call(*args):
            calls[name] = calls.get(name, 0) + 1
            return function(*args)

        return call

    functions = {"liger_rms_norm": rms_norm, "liger_swiglu": swiglu, "liger_geglu": geglu, "liger_rope": rope}
    package = SimpleNamespace(**{name: counted(name, function) for name, function in functions.items()})
    monkeypatch.setitem(sys.modules, PACKAGE, package)
    return SimpleNamespace(package=package, calls=calls)


def tiny(kind: str = "llama", **settings):
    """A small model with random weights, the same for the same arguments."""
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(sizes | heads | settings)))


@pytest.mark.parametrize("kind,norms", [("llama", 5), ("qwen3", 9), ("gemma2", 9)])
def test_one_model_alone_is_changed(kernels, kind, norms):
    """Every norm, gate and rotation of a model is a kernel's; another model of the class computes what it did."""
    model, other, ids = tiny(kind), tiny(kind), torch.tensor([IDS])
    before = other(ids).logits
    fuse(model)
    assert torch.equal(other(ids).logits, before) and not kernels.calls
    torch.testing.assert_close(model(ids).logits, before, rtol=1e-4, atol=1e-4)
    gate = "liger_geglu" if kind == "gemma2" else "liger_swiglu"
    assert kernels.calls == {"liger_rms_norm": norms, gate: 2, "liger_rope": 2}
    assert model.state_dict().keys() == other.state_dict().keys()
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.get_output_embeddings().weight.zero_()
        for weight in copied.get_decoder().layers[0].parameters():
            weight.zero_()
    assert not copied(ids).logits.any()
    torch.testing.assert_close(model(ids).logits, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_what_is_right_is_let_through(kernels, precision):
    """Kernels that round otherwise than the model's own code pass the comparison, with gradients, in either type."""
    model = tiny()
    fuse(model)
    policy = LogprobModel(model)
    if precision == "bf16":
        compute_in(policy, torch.bfloat16)
    check_fused(policy, IDS, gradient=True)
    assert kernels.calls["liger_rope"] == 2 * 2  # the passes with plain layers call none
    assert all(weight.grad is None for weight in policy.parameters())


def grows(function, factor):
    return lambda *args: function(*args) * factor


def knows_of_gradients(*args):
    return swiglu(*args) * (1 + 1e-6 * torch.is_grad_enabled())


def loses_gradients(gate, up):
    return swiglu(gate.detach(), up)


@pytest.mark.parametrize(
    "name,function,message",
    [
        ("liger_rms_norm", grows(rms_norm, 1.1), "change log-probabilities by"),
        ("liger_swiglu", grows(swiglu, float("nan")), "change log-probabilities by nan"),
        ("liger_swiglu", knows_of_gradients, "with gradient than without"),
        ("liger_swiglu", loses_gradients, "change the gradient by"),
        ("liger_rope", lambda q, k, cos, sin: (q, k), "change log-probabilities by"),
    ],
)
def test_what_is_wrong_is_refused(kernels, name, function, message):
    """Wrong values, bits that depend on whether there are gradients, and wrong gradients end in a message."""
    setattr(kernels.package, name, function)
    model = tiny()
    fuse(model)
    with pytest.raises(ModelError, match=f"training.layers: liger: .*({message}).* set training.layers: plain"):
        check_fused(LogprobModel(model), IDS, gradient=True)


def test_plain_layers_are_not_compared():
    """A policy without fused layers makes no pass."""
    model = tiny()
    model.register_forward_pre_hook(lambda *_: 1 / 0)
    check_fused(LogprobModel(model), IDS, gradient=True)


def test_refusals_come_before_weights(toy, tmp_path, monkeypatch):
    """No GPU, no package, and layers that no kernel is known for: one message each, from the outline alone."""
    given = config(toy, tmp_path / "run", training__layers="liger")
    with pytest.raises(ModelError, match="kernels for GPUs alone, and this run would train on cpu"):
        checked_model(given, torch.device("cpu"))
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(ModelError, match=r"needs the packages liger-kernel and triton \(pip install"):
        checked_model(given, torch.device("cuda"))
    monkeypatch.setitem(sys.modules, PACKAGE, SimpleNamespace())
    with pytest.raises(ModelError, match="needs the packages liger-kernel and triton"):
        checked_model(given, torch.device("cuda"))
    with torch.device("meta"):
        phi, gelu, renamed = tiny("phi3", pad_token_id=0), tiny(hidden_act="gelu"), tiny()
    with pytest.raises(ModelError, match=r"llama, mistral, .* and not of phi3 with silu"):
        refuse_unfusable(phi)
    with pytest.raises(ModelError, match="and not of llama with gelu"):
        refuse_unfusable(gelu)
    monkeypatch.setattr(LlamaAttention, "forward", lambda self, hidden, **_: hidden)
    with pytest.raises(ModelError, match="has no Attention in the form"):
        refuse_unfusable(renamed)


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_a_run_of_fused_layers_stands_still_at_rate_0(toy, tmp_path, monkeypatch, kernels, sharding):
    """At learning rate 0 every log-ratio is exactly 0, in bf16, with activations computed again, sharded or not."""
    monkeypatch.setattr(build, "refuse_missing_kernels", lambda *_: None)
    training = {"steps": 2, "batch_size": 8, "micro_batch_size": 4, "precision": "bf16", "layers": "liger"}
    result = run(
        toy,
        tmp_path / "run",
        optimizer={"lr": 0.0},
        training=training | {"activation_checkpointing": True, "sharding": sharding},
        reference={"schedule": {"kind": "before_step", "every": 1}},
    )
    assert [row["log_ratio_rms"] for row in steps(result)] == [0.0] * 2 and kernels.calls


def test_adapters_go_with_fused_layers(toy, kernels):
    """LoRA of what a fused gate lies between is computed and trained."""
    policy, _ = build_policy(config(toy, Path("unused"), adapter={"rank": 2}, training__layers="liger"))
    check_fused(policy, IDS, gradient=True)
    policy(torch.tensor([IDS]), torch.ones((1, len(IDS) - 1), dtype=torch.bool)).sum().backward()
    assert all(weight.grad is not None for weight in policy.parameters() if weight.requires_grad)


INTERPRETED = """
import importlib, numpy, torch, triton
import triton.language as tl
import triton.runtime.interpreter as interpreter

# What the interpreter of Triton lacks: numbers that know their type, and functions of the GPU's own library.
before = interpreter._implicit_cvt
interpreter._implicit_cvt = lambda x: before(x) if type(x) is not float else tl.tensor(
    interpreter.TensorHandle(numpy.array([x], dtype=numpy.float32), tl.float32), tl.float32)

@triton.jit
def rsqrt(x):
    return tl.rsqrt(x)

@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1

importlib.import_module("liger_kernel.ops.rms_norm").rsqrt = rsqrt
importlib.import_module("liger_kernel.ops.geglu").tanh = tanh

from tests.train.policy.test_fused import IDS, tiny
from humanline.train.policy.fused import check_fused, fuse
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.precision import compute_in

IDS = IDS[:8]
for kind in ("llama", "qwen3", "gemma2"):
    for narrow in (False, True):
        model, plain = tiny(kind, num_hidden_layers=1), LogprobModel(tiny(kind, num_hidden_layers=1))
        fuse(model)
        policy = LogprobModel(model)
        ids, mask = torch.tensor([IDS, IDS[::-1]]), torch.ones((2, len(IDS) - 1), dtype=torch.bool)
        for one in (policy, plain):
            if narrow:
                compute_in(one, torch.float16)  # the interpreter has no bf16
            one(ids, mask).sum().backward()
        check_fused(policy, IDS, gradient=True)
        for own, right in zip(policy.parameters(), plain.parameters(), strict=True):
            share = (own.grad - right.grad).norm() / right.grad.norm()
            assert share < (0.1 if narrow else 1e-4), (kind, narrow, share)
print("compared")
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("liger_kernel") is None, reason="liger-kernel (extra kernels) is not installed")
def test_the_kernels_themselves_in_an_interpreter(tmp_path):
    """The package's kernels, run on a CPU by Triton's interpreter, give the bits, values and gradients asked for."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    (tmp_path / "compare.py").write_text(INTERPRETED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "compare.py")], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.strip().endswith("compared"), done.stderr
