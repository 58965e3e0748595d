"""What weights and optimizer states are kept in, and activations computed again: equal where they must be."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from humanline.system.stop import StopRequested
from humanline.train.config.run import OptimizerConfig
from humanline.train.loop import train
from humanline.train.policy import build
from humanline.train.policy.build import build_policy
from humanline.train.policy.errors import ModelError
from humanline.train.policy.optimizer import OptimizerError, make_optimizer, same_rounding, set_lr
from humanline.train.run.state import OptimizerState
from tests.helpers.cases import StopAt
from tests.helpers.support import CLIP, SCHEDULES, config, run, same, steps, weights

BF16 = {"steps": 6, "batch_size": 8, "micro_batch_size": 4, "precision": "bf16", "weights": "bf16"}
needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao (extra low-memory) is not installed")


@pytest.mark.parametrize("objective", [pytest.param("dpo", marks=pytest.mark.slow), "kto", "grpo"])
def test_activation_checkpointing_changes_no_bit(toy, tmp_path, objective):
    """Activations computed again are those that were dropped: weights are bitwise equal with and without."""
    training = {"steps": 4, "batch_size": 8, "micro_batch_size": 4}
    reference = {"schedule": {"kind": "before_step", "every": 1}}
    results = [
        run(
            toy,
            tmp_path / str(on),
            objective,
            training=training | {"activation_checkpointing": on},
            reference=reference,
            transform=CLIP,
        )
        for on in (False, True)
    ]
    assert same(*map(weights, results))


def test_activation_checkpointing_keeps_fewer_tensors(toy):
    """With checkpointing a layer keeps its input for the backward pass and next to nothing else."""
    kept = {}
    for on in (False, True):
        policy, _ = build_policy(config(toy, Path("unused"), training__activation_checkpointing=on))
        policy.train()
        sizes = []

        def count(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        ids = torch.randint(0, 300, (4, 60))
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            policy(ids, torch.ones((4, 59), dtype=torch.bool)).sum()
        kept[on] = sum(sizes)
    assert kept[True] < kept[False] / 2


@needs_torchao
@pytest.mark.parametrize("states", ["float32", "8bit"])
def test_small_updates_of_bf16_weights_are_not_lost(states):
    """An update of a sixteenth of a bf16 step moves a sixteenth of the weights by that step; rounding loses all.

    Weights start at 1, above which bf16 steps are 2^-7, and AdamW's first update of a constant gradient is lr. Each
    weight moves by one step with probability p = lr / 2^-7, independently, so by Hoeffding the share that moves is off
    p by more than sqrt(ln(2 / 1e-9) / 2 N) with probability below 1e-9.
    """
    rate, size, step = 2**-11, 2**18, 2**-7
    moved = {}
    for name, make in (
        ("ours", lambda w: make_optimizer([w], OptimizerConfig(lr=rate, states=states), "bf16")),
        ("torch", lambda w: torch.optim.AdamW([w], lr=rate, weight_decay=0.0)),
    ):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.ones(size, dtype=torch.bfloat16))
        optimizer = make(weight)
        weight.grad = -torch.ones_like(weight)
        optimizer.step()
        moved[name] = (weight.detach().double() - 1) / step
    assert not moved["torch"].any()
    assert set(moved["ours"].unique().tolist()) == {0.0, 1.0}
    assert abs(moved["ours"].mean().item() - rate / step) < math.sqrt(math.log(2e9) / (2 * size))


@needs_torchao
def test_eight_bit_states_follow_adamw():
    """With 8-bit states AdamW of float32 weights stays close to torch's own, and its states are bytes."""
    torch.manual_seed(0)
    start, gradients = torch.randn(64, 256), torch.randn(10, 64, 256)
    ends = []
    for states in ("float32", "8bit"):
        weight = torch.nn.Parameter(start.clone())
        optimizer = make_optimizer([weight], OptimizerConfig(lr=1e-3, states=states, weight_decay=0.1), "float32")
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        ends.append(weight.detach() - start)
    # An update is a ratio of two means; their codes are rounded to about 1 part in 100 of the largest of their block.
    assert torch.nn.functional.cosine_similarity(*(end.flatten() for end in ends), dim=0) > 0.99
    assert {tensor.dtype for name, tensor in states_of(optimizer, weight).items() if "codes" in name} == {torch.uint8}


def states_of(optimizer, weight):
    return OptimizerState(optimizer, {"weight": weight}, lambda _, state: state).state()


@needs_torchao
def test_states_too_small_for_eight_bits_can_decay():
    """The running mean square of a small bf16 tensor is the same whether larger ones are kept in 8 bits or not."""
    kept = []
    for states in ("float32", "8bit"):
        weight = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
        optimizer = make_optimizer([weight], OptimizerConfig(lr=1e-4, states=states), "bf16")
        for step in range(60):
            weight.grad = torch.full_like(weight, 1.0 if step < 10 else 0.1)
            optimizer.step()
        kept.append(states_of(optimizer, weight)["exp_avg_sq/weight"])
    assert torch.equal(*kept) and kept[0].dtype == torch.float32


@needs_torchao
def test_processes_round_alike_whatever_they_drew_before():
    """The rounding of an update depends on seed and step alone, and leaves a process's own random numbers alone."""
    ends = []
    for drawn in (0, 5):
        torch.manual_seed(drawn)
        torch.rand(drawn)
        weight = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        optimizer = make_optimizer([weight], OptimizerConfig(lr=2**-11), "bf16")
        weight.grad = torch.ones_like(weight)
        before = torch.get_rng_state()
        with same_rounding(3, 7, "bf16", weight.device):
            optimizer.step()
        assert torch.equal(torch.get_rng_state(), before)
        ends.append(weight.detach())
    assert torch.equal(*ends) and len(ends[0].unique()) == 2


@needs_torchao
@pytest.mark.parametrize("states", ["float32", "8bit"])
@pytest.mark.parametrize("kept", ["float32", "bf16"])
def test_states_survive_being_written(states, kept):
    """Whatever they are made of, states read back are bitwise those written, and float32 ones stay float32."""
    torch.manual_seed(0)
    start = torch.randn(64, 256, dtype=torch.float32 if kept == "float32" else torch.bfloat16)

    def make():
        weight = torch.nn.Parameter(start.clone())
        return weight, make_optimizer([weight], OptimizerConfig(lr=1e-3, states=states), kept)

    weight, optimizer = make()
    for _ in range(3):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
    written = {name: tensor.clone() for name, tensor in states_of(optimizer, weight).items()}
    other, again = make()
    OptimizerState(again, {"weight": other}, lambda _, state: state).load_state(
        {name: tensor.clone() for name, tensor in written.items()}
    )
    assert same(states_of(again, other), written)
    if states == "float32":
        assert written["exp_avg/weight"].dtype == torch.float32
    with torch.no_grad():
        other.copy_(weight)
    for one, its in ((weight, optimizer), (other, again)):
        torch.manual_seed(1)
        one.grad = torch.ones_like(one)
        its.step()
    assert torch.equal(weight, other)


@needs_torchao
@pytest.mark.parametrize(
    "training,states",
    [
        pytest.param(BF16, "float32", marks=pytest.mark.slow),
        (BF16, "8bit"),
        pytest.param(BF16 | {"weights": "float32"}, "8bit", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_stopped_run_goes_on_to_the_same_bits(toy, tmp_path, training, states):
    """Runs with bf16 weights or 8-bit states, stopped in mid-window and resumed, end with the same bits."""
    settings = {
        "training": training,
        "optimizer": {"lr": 3e-3, "states": states},
        "reference": {"schedule": SCHEDULES["before_3"]},
    }
    whole = run(toy, tmp_path / "whole", **settings)
    for number in (3, 8):
        stopped = config(toy, tmp_path / str(number), **settings)
        with pytest.raises(StopRequested):
            train(stopped, stop=StopAt(number), show_progress=False)
        assert same(weights(train(stopped, resume=True, show_progress=False)), weights(whole))


@needs_torchao
@pytest.mark.parametrize("states", [pytest.param("float32", marks=pytest.mark.slow), "8bit"])
def test_bf16_weights_score_ahead_as_a_second_model_does(toy, tmp_path, states):
    """With bf16 weights scoring ahead equals a second model bit for bit; at rate 0 every log-ratio is exactly 0."""
    settings = {"training": BF16, "optimizer": {"lr": 3e-3, "states": states}, "transform": CLIP}
    both = [
        run(toy, tmp_path / storage, reference={"schedule": SCHEDULES["before_1"], "storage": storage}, **settings)
        for storage in ("score_ahead", "model")
    ]
    assert same(*map(weights, both))
    assert {tensor.dtype for tensor in weights(both[0]).values()} == {torch.bfloat16}
    settings["optimizer"] = {"lr": 0.0, "states": states}
    still = run(toy, tmp_path / "still", reference={"schedule": SCHEDULES["before_1"]}, **settings)
    assert [row["log_ratio_rms"] for row in steps(still)] == [0.0] * BF16["steps"]


def test_packages_are_missed_before_weights_are_read(toy, tmp_path, monkeypatch):
    """Without torchao or bitsandbytes the settings that need them are refused, with the command that installs them."""
    monkeypatch.setattr(build, "load_weights", lambda *a, **k: pytest.fail("the weights were read"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for changes, error, what in (
        ({"training": BF16}, OptimizerError, "training.weights: bf16 needs torchao"),
        ({"optimizer__states": "8bit"}, OptimizerError, "optimizer.states: 8bit needs torchao"),
        ({"adapter": {"base": "nf4"}}, ModelError, "adapter.base: nf4 needs bitsandbytes"),
    ):
        with pytest.raises(error, match=rf"{what}: pip install .*\[low-memory\]'"):
            run(toy, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"training__weights": "bf16"}, "set precision: bf16 too"),
        ({"adapter": {"base": "bf16"}}, "set training.precision: bf16 too"),
        ({"adapter": {}, "training": BF16}, "adapters are trained in float32"),
        ({"training__micro_batch_tokens": 100}, "at most one of micro_batch_size and micro_batch_tokens"),
        ({"adapter": {"rank": 0}}, "greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_each_other(toy, changes, message):
    """Precisions that do not go together, and two ways to cut a batch, are refused by the configuration."""
    with pytest.raises(ValueError, match=message):
        config(toy, Path("unused"), **changes)


def test_the_learning_rate_of_a_compiled_optimizer_is_kept_a_tensor():
    """set_lr fills a tensor in place and replaces a number."""
    weight = torch.nn.Parameter(torch.ones(2))
    plain = torch.optim.AdamW([weight], lr=1.0)
    compiled = torch.optim.AdamW([weight], lr=torch.tensor(1.0))
    before = compiled.param_groups[0]["lr"]
    for one in (plain, compiled):
        set_lr(one, 0.25)
    assert plain.param_groups[0]["lr"] == 0.25
    assert compiled.param_groups[0]["lr"] is before and before.item() == 0.25
