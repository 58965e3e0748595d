"""Computing in bf16 over float32 weights: the bits of rounded weights, and of FSDP2; no copy outlives its use."""

from __future__ import annotations

import contextlib
import copy
import weakref
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig

from humanline.train.policy.build import build_policy
from humanline.train.policy.layers import decoder_layers
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.packing import pack
from humanline.train.policy.precision import SharedCopies, as_kept, compute_in, narrowed
from tests.helpers.support import SCHEDULES, config, run, run_with, same, steps, weights


def tiny(tied: bool, checkpointing: bool = False, packed: bool = False, vocab: int = 96) -> LogprobModel:
    """A small Llama in training mode with random weights, the same for the same arguments."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings = LlamaConfig(
            vocab_size=vocab,
            hidden_size=32,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
            initializer_range=0.2,
        )
        model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    if checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    if packed:
        pack(model)
    return LogprobModel(model, packed=packed).train()


def rows(vocab: int = 96, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and a mask."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (3, 20), generator=generator), torch.rand((3, 19), generator=generator) < 0.8


def graded(policy, *micro_batches: tuple[torch.Tensor, torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probabilities of micro-batches, and the gradients that some loss of all of them has."""
    policy.zero_grad()
    found = []
    for ids, mask in micro_batches:
        logprobs = policy(ids, mask)
        (logprobs * torch.linspace(-1, 2, logprobs.numel()).view_as(logprobs)).sum().backward()
        found.append(logprobs.detach())
    gradients = [weight.grad for weight in policy.parameters() if weight.requires_grad]
    return found, [getattr(one, "to_local", lambda one=one: one)() for one in gradients]


def rounded(policy: LogprobModel) -> LogprobModel:
    """A copy of a policy whose weights are bf16; its buffers are as they were."""
    other = copy.deepcopy(policy)
    for weight in other.parameters():
        weight.data = weight.data.bfloat16()
    return other


def kept(policy: torch.nn.Module) -> list[tuple[str, int, torch.dtype]]:
    return [(name, id(weight), weight.dtype) for name, weight in policy.named_parameters(remove_duplicate=False)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_bf16_is_the_computation_of_rounded_weights(tied, checkpointing, packed):
    """Log-probabilities and gradients are bit for bit those of a model of bf16 weights, in float32, and none is left.

    The gradients of that model are bf16, and those of two micro-batches are added in float32. Log-probabilities are
    not rounded to bf16, and a pass without gradient gives the same bits.
    """
    policy = tiny(tied, checkpointing, packed)
    oracle, before = rounded(policy), kept(policy)
    compute_in(policy, torch.bfloat16)
    logprobs, gradients = graded(policy, rows(), rows(seed=1))
    (one, first), (two, second) = graded(oracle, rows()), graded(oracle, rows(seed=1))
    assert same_tensors(logprobs, one + two)
    assert same_tensors(gradients, [a.float() + b.float() for a, b in zip(first, second, strict=True)])
    assert {value.dtype for value in (*logprobs, *gradients)} == {torch.float32}
    assert not torch.equal(logprobs[0].bfloat16().float(), logprobs[0])
    assert torch.equal(logprobs_of(policy, *rows()), logprobs[0])
    assert kept(policy) == before and policy.state_dict().keys() == oracle.state_dict().keys()
    if not packed:
        own, theirs = policy.own_logits(rows()[0]), oracle.own_logits(rows()[0])
        assert own.dtype == torch.bfloat16 and torch.equal(own, theirs) and kept(policy) == before


def logprobs_of(policy, ids, mask):
    """Score as a reference does."""
    with torch.no_grad():
        return policy.eval()(ids, mask)


def same_tensors(some, others) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("base", ["float32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapters_compute_in_bf16_too(toy, base, checkpointing):
    """Factors, kept in float32, are rounded for a pass like other weights, over a base in either type."""
    given = {"adapter": {"rank": 2, "base": "float32"}, "training__activation_checkpointing": checkpointing}
    policy, _ = build_policy(config(toy, Path("unused"), **given))
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.linspace(-0.1, 0.1, weight.numel()).view_as(weight))
            elif base == "bf16" and "lora" not in name:
                weight.data = weight.data.bfloat16()
    oracle, before = rounded(policy.train()), kept(policy)
    compute_in(policy, torch.bfloat16)
    (logprobs, gradients), (theirs, narrow) = graded(policy, rows()), graded(oracle, rows())
    assert same_tensors(logprobs, theirs) and len(gradients) == 28
    assert same_tensors(gradients, [one.float() for one in narrow])
    assert kept(policy) == before


def test_other_weights_are_rounded_in_their_place():
    """A pass with other weights in place of a policy's own, as of a second model, is that of a policy that has them."""
    policy, other = tiny(True), tiny(True)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.25)
    for one in (policy, other):
        compute_in(one, torch.bfloat16)
    weights = {name: weight.detach().clone() for name, weight in other.named_parameters()}
    before = kept(policy)
    with torch.no_grad():
        given = torch.func.functional_call(policy.eval(), weights, rows())
    assert torch.equal(given, logprobs_of(other, *rows())) and kept(policy) == before


def test_fully_sharded_weights_compute_the_same_bits():
    """One process of FSDP2 with bf16 parameters, and one of plain data parallelism, compute this policy's bits."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for tied, checkpointing, widens in ((False, False, False), (True, True, False), (True, False, True)):
            policy = tiny(tied, checkpointing)
            if widens:  # as some embeddings and norms do; what comes after them takes it in bf16 all the same
                for module in (policy.model.model.embed_tokens, policy.model.model.norm):
                    module.register_forward_hook(lambda module, inputs, output: output.float())
            sharded, parallel = copy.deepcopy(policy), copy.deepcopy(policy)
            how = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
            for layer in decoder_layers(sharded.model):
                fully_shard(layer, **how)
            fully_shard(sharded, **how)
            for one in (policy, parallel):
                compute_in(one, torch.bfloat16)
            parallel = torch.nn.parallel.DistributedDataParallel(parallel)
            (logprobs, gradients), *others = (graded(one, rows(), rows(seed=1)) for one in (policy, sharded, parallel))
            for theirs, their_gradients in others:
                assert same_tensors(logprobs, theirs) and same_tensors(gradients, their_gradients)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_copy_outlives_an_error(checkpointing):
    """After an error in a layer's pass, or where it is computed again, a policy has its own weights."""
    policy = tiny(False, checkpointing)
    compute_in(policy, torch.bfloat16)
    before = kept(policy)

    def fail(*_):
        raise ZeroDivisionError

    broken = policy.model.model.layers[1].mlp.up_proj
    hook = broken.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        policy(*rows())
    assert kept(policy) == before
    hook.remove()
    logprobs = policy(*rows())
    hook = broken.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError) if checkpointing else contextlib.nullcontext():
        logprobs.sum().backward()
    assert kept(policy) == before
    hook.remove()
    policy.zero_grad()
    expected = graded(tiny_in_bf16(), rows())
    assert all(map(same_tensors, graded(policy, rows()), expected))


def tiny_in_bf16() -> LogprobModel:
    policy = tiny(False)
    compute_in(policy, torch.bfloat16)
    return policy


class _Copies(TorchDispatchMode):
    """Count live bf16 copies of float32 tensors of one shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.live, self.most = shape, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and output.dtype == torch.bfloat16 and output.shape == self.shape:
            self.live += 1
            self.most = max(self.most, self.live)
            weakref.finalize(output.untyped_storage(), self._gone)
        return output

    def _gone(self) -> None:
        self.live -= 1


@pytest.mark.parametrize(
    "checkpointing,gradient,most,after", [(False, True, 3, 3), (True, True, 1, 0), (False, False, 1, 0)]
)
def test_copies_live_no_longer_than_they_are_needed(checkpointing, gradient, most, after):
    """Copies of all layers wait for the backward pass; under checkpointing, or without gradient, one layer's exist."""
    policy = tiny(False, checkpointing)
    compute_in(policy, torch.bfloat16)
    with _Copies(policy.model.model.layers[0].mlp.down_proj.weight.shape) as copies, torch.set_grad_enabled(gradient):
        logprobs = policy(*rows())
        assert (copies.most, copies.live) == (most, after)
        if gradient:
            logprobs.sum().backward()
        assert (copies.most, copies.live) == (most, 0)


def test_tied_weights_are_copied_once():
    """Embedding and head share one copy in a pass, and its gradient is rounded once, where they are tied."""
    for tied, count in ((True, 1), (False, 2)):
        policy = tiny(tied)
        compute_in(policy, torch.bfloat16)
        with _Copies(policy.model.get_output_embeddings().weight.shape) as copies:
            policy(*rows())
            assert copies.most == count


def test_a_whole_model_is_narrowed_and_comes_back():
    """Within the context a model computes what its rounded copy does, also in its layers; then, or after an error, not.

    No copy is made there in a pass.
    """
    policy, plain = tiny(True), tiny(True).eval()
    oracle = rounded(plain)
    compute_in(policy, torch.bfloat16)
    before, ids = kept(policy), rows()[0]
    model = policy.eval().model
    with pytest.raises(ZeroDivisionError), narrowed(model, torch.bfloat16):
        with _Copies(model.get_output_embeddings().weight.shape) as copies, torch.no_grad():
            assert torch.equal(model(ids).logits, oracle.model(ids).logits)
        assert copies.most == 0 and model.dtype == torch.bfloat16
        assert torch.equal(logprobs_of(policy, *rows()), logprobs_of(oracle, *rows()))
        1 / 0  # noqa: B018
    assert kept(policy) == before
    with as_kept(model):
        assert torch.equal(logprobs_of(LogprobModel(model), *rows()), logprobs_of(plain, *rows()))
    assert torch.equal(logprobs_of(policy, *rows()), logprobs_of(oracle, *rows()))


class _Casts(TorchDispatchMode):
    """Count how often each weight of a run's policy is copied to bf16, from the first step on."""

    def __init__(self) -> None:
        super().__init__()
        self.of = {}

    def watch(self, ready):
        self.of = {weight.data_ptr(): 0 for weight in ready.trained.policy.parameters()}
        return ready

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and output.dtype == torch.bfloat16 and args[0].data_ptr() in self.of:
            self.of[args[0].data_ptr()] += 1
        return output


@pytest.mark.parametrize(
    "objective,every,checkpointing,scored",
    [
        pytest.param("dpo", 1, False, 2, marks=pytest.mark.slow),
        pytest.param("dpo", 3, False, 1, marks=pytest.mark.slow),
        ("kto", 3, True, 3),
    ],
)
def test_passes_without_gradient_share_copies(toy, tmp_path, monkeypatch, objective, every, checkpointing, scored):
    """A weight is copied once for all passes without gradient before an update, and once a micro-batch.

    Twice, if it is a layer's and activations are computed again. The bits are those of copies made in every pass.
    Steps 0 and 1 have the same reference. Held-out data are measured at the start, with the same copies, and at the
    end. Where KTO looks at mismatched answers, each of
    the three steps has a pass without gradient. A checkpoint is saved wherever one can be.
    """
    training = {"steps": 3, "batch_size": 12, "micro_batch_size": 4, "precision": "bf16"}
    given = {
        "training": training | {"activation_checkpointing": checkpointing},
        "data": {"train": toy["pairs"], "eval": toy["held_out"], "max_length": 64, "shape": "preference"},
        "reference": {"schedule": {"kind": "before_step", "every": every}},
        "checkpoint": {"minutes": 1e-9},
    }
    with _Casts() as casts:
        shared = run_with(casts.watch, toy, tmp_path / "shared", objective, **given)
    assert set(casts.of.values()) == {scored + 1 + 9, scored + 1 + 9 * (1 + checkpointing)}
    monkeypatch.setattr(SharedCopies, "of", lambda policy: None)
    assert same(weights(shared), weights(run(toy, tmp_path / "each", objective, **given)))


def test_shared_copies_follow_the_weights():
    """Copies that passes share are made anew once a weight has changed, and are gone after `drop`."""
    policy = tiny(True)
    compute_in(policy, torch.bfloat16)
    shared, before = SharedCopies.of(policy), kept(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1, foreach=True)
    for _ in range(2):
        expected = logprobs_of(policy, *rows())
        with _Copies(policy.model.get_output_embeddings().weight.shape) as copies:
            for _ in range(2):
                with shared.in_place():
                    assert torch.equal(logprobs_of(policy, *rows()), expected)
                assert kept(policy) == before
            assert (copies.most, copies.live) == (1, 1)
            for weight in policy.parameters():
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            assert not torch.equal(logprobs_of(policy, *rows()), expected)
            with shared.in_place():
                pass
            shared.drop()
            assert copies.live == 0


def test_copies_that_gradients_leave_no_room_for_are_not_shared(toy):
    """Copies of a float32 base under a small adapter are made in each pass; of float32 policies there are none."""
    adapted = {"adapter": {"rank": 2, "base": "float32"}, "training__precision": "bf16"}
    for given, shares in ((adapted, False), ({"training__precision": "bf16"}, True), ({}, False)):
        policy, _ = build_policy(config(toy, Path("unused"), **given))
        assert (SharedCopies.of(policy) is not None) == shares


@pytest.mark.parametrize("storage", ["score_ahead", "model"])
def test_a_bf16_run_stands_still_at_rate_0(toy, tmp_path, storage):
    """At learning rate 0 every log-ratio is exactly 0, with activations computed again, whoever scores."""
    training = {"steps": 2, "batch_size": 8, "micro_batch_size": 4, "precision": "bf16"}
    result = run(
        toy,
        tmp_path / "run",
        "kto",
        optimizer={"lr": 0.0},
        training=training | {"activation_checkpointing": True},
        reference={"schedule": SCHEDULES["before_1"], "storage": storage},
    )
    assert [row["log_ratio_rms"] for row in steps(result)] == [0.0] * 2
    assert {tensor.dtype for tensor in weights(result).values()} == {torch.float32}


@pytest.mark.parametrize("adapter", [None, {"rank": 2}])
def test_a_policy_is_built_on_its_device(toy, adapter):
    """What checks run before training, fused kernels and those of packed rows among it, is what the device runs."""
    policy, _ = build_policy(config(toy, Path("unused"), adapter=adapter), torch.device("meta"))
    assert {tensor.device.type for tensor in (*policy.parameters(), *policy.buffers())} == {"meta"}
    assert policy.model.device.type == "meta"
