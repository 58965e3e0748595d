"""Weights shared out over processes: the same numbers, and weights that score which batch exactly."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from humanline.train.loop import take_steps
from humanline.train.policy import shard as shard_module
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_outline
from humanline.train.policy.shard import refuse_unshareable, whole_tensors
from humanline.train.run.metrics import read_metrics
from humanline.train.run.shares import share_of
from humanline.train.setup import Run, set_up
from tests.helpers.paper_models import write_paper_model
from tests.helpers.support import CLIP, REJECT, config

TRAINING = {"steps": 4, "batch_size": 12, "micro_batch_size": 3}
K1, K4 = ({"schedule": {"kind": "before_step", "every": every}} for every in (1, 4))
BUDGET = {"micro_batch_size": None, "micro_batch_tokens": 130, "padding": "free", "activation_checkpointing": True}
BOUND = REJECT | {"policy_ratio_bound": "batch_max", "ref_ratio_bound": "batch_max"}
VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nll": ({"kind": "nll"}, {"transform": {"kind": "none"}, "reference": {}}),
    "dpo": ("dpo", {}),
    "model": ("dpo", {"reference": K1 | {"storage": "model"}}),
    "kto": ("kto", {"training": TRAINING | BUDGET}),
    "grpo": ("grpo", {"training": TRAINING | {"micro_batch_size": None}}),
    "lora": ("grpo", {"adapter": {"rank": 4, "alpha": 8.0, "dropout": 0.2}, "reference": K4 | {"baseline": "initial"}}),
    "batch_max": ("dpo", {"transform": BOUND}),
    "8bit": ("dpo", {"optimizer": {"lr": 1e-3, "states": "8bit"}}),
}


def settings(toy, folder: Path, name: str, sharding: str, **changes: Any):
    objective, own = VARIANTS[name]
    tree = {"training": TRAINING, "transform": CLIP, "reference": K1} | own | changes
    tree["training"] = tree["training"] | {"sharding": sharding}
    held_out = {"data__eval": toy["held_out"], "evaluation": {"batch_size": 2, "every": 2}}
    return config(toy, folder / f"{name}-{sharding}", objective, **held_out, **tree)


def outcome(given, change=lambda run: run) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Return what a run measured, but for times, and the policy's parameters at its end."""
    with set_up(given, show_progress=False) as ready:
        assert isinstance(ready, Run)
        take_steps(change(ready))
        weights = whole_tensors(dict(ready.trained.policy.named_parameters()), keep=True)
    rows = [dict(row) for row in read_metrics(Path(given.output) / "metrics.jsonl")]
    for row in rows:
        row.pop("seconds", None)
        row.pop("tokens_per_second", None)
    return rows, weights


def assert_same(one, other) -> None:
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, weight in one[1].items():
        assert torch.equal(weight, other[1][name]), name


@pytest.mark.parametrize(  # DPO is there with bounds of the batch; a second model and pairs without one are slow
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("dpo", "model", "nll") else ()) for name in VARIANTS]
)
def test_one_process_computes_the_same_bits(toy, tmp_path, name):
    """Metrics, held-out ones too, and weights are those of a policy that is whole, to the last bit."""
    assert_same(*(outcome(settings(toy, tmp_path, name, sharding)) for sharding in ("none", "full")))


@pytest.mark.parametrize("family", ["gemma2", pytest.param("llama3", marks=pytest.mark.slow)])
def test_models_of_the_papers_families(toy, tmp_path, family):
    """Tied and untied heads, buffers and soft caps are as transformers loads them."""
    model = write_paper_model(tmp_path / "model", family)
    found = [
        outcome(settings(toy | {"model": model}, tmp_path, "dpo", sharding, data__max_length=128))
        for sharding in ("none", "full")
    ]
    assert_same(*found)


class Between:
    """A spread whose updates are preceded by a pass of the policy that nothing is made of."""

    def __init__(self, run: Run) -> None:
        self.run, self.spread = run, run.trained.spread

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spread, name)

    def clip(self, limit: float) -> torch.Tensor:
        norm = self.spread.clip(limit)
        self.run.trained.logprobs_of(self.run.batches.step(0).micro_batches[0].block)
        return norm


def looking(run: Run) -> Run:
    return replace(run, trained=replace(run.trained, spread=Between(run)))


def test_a_pass_before_the_update_leaves_nothing_stale(toy, tmp_path, monkeypatch):
    """A pass without gradient between backward pass and update changes no bit; if its weights were kept, it would."""
    plain = outcome(settings(toy, tmp_path / "plain", "dpo", "full"))
    assert_same(plain, outcome(settings(toy, tmp_path / "looked", "dpo", "full"), looking))
    monkeypatch.setattr(shard_module, "let_go", lambda policy: None)
    stale = outcome(settings(toy, tmp_path / "stale", "dpo", "full"), looking)
    losses = [[row["loss"] for row in rows if "loss" in row] for rows, _ in (plain, stale)]
    assert abs(losses[0][-1] - losses[1][-1]) > 1e-4


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_scoring_ahead_equals_a_second_model(toy, tmp_path, every):
    """The weights that score a batch are exactly those of the schedule."""
    schedule, long = {"schedule": {"kind": "before_step", "every": every}}, TRAINING | {"steps": 6}
    found = [
        outcome(
            settings(toy, tmp_path / storage, "dpo", "full", reference=schedule | {"storage": storage}, training=long)
        )
        for storage in ("score_ahead", "model")
    ]
    assert_same(*found)


def test_gradients_are_shared_out_between_micro_batches(toy, tmp_path):
    """After each backward pass a process holds the gradient of its rows, and no whole one."""
    with set_up(settings(toy, tmp_path, "dpo", "full"), show_progress=False) as run:
        assert isinstance(run, Run)
        for micro in run.batches.step(0).micro_batches[:2]:
            with run.trained.spread.accumulating(last=False):
                run.trained.spread.wrapped(*micro.block.inputs).sum().backward()
            for module in run.trained.policy.modules():
                for parameter in module._parameters.values():
                    if parameter is not None:
                        assert type(parameter.grad) is type(parameter)  # a part of the whole, known as such
                        assert share_of(parameter).rows.shape == share_of(parameter.grad).rows.shape


def test_rows_stay_the_policys_own(toy, tmp_path):
    """Over whole runs the optimizer's rows share the memory of the policy's; where they do not, a step says so."""
    with set_up(settings(toy, tmp_path, "kto", "full"), show_progress=False) as run:
        assert isinstance(run, Run)
        policy, rows = run.trained.policy, run.trained.spread.rows
        take_steps(run)
        parameters = dict(policy.named_parameters())
        assert parameters.keys() == rows.keys()
        for name, mine in rows.items():
            assert share_of(parameters[name]).rows.data_ptr() == mine.data_ptr()
        policy._apply(torch.clone)
        with pytest.raises(RuntimeError, match="no longer what the policy computes with"):
            run.trained.spread.clip(1.0)


def test_bf16_gathers_narrow_weights_and_gives_wide_log_probabilities(toy, tmp_path):
    """Log-probabilities are float32 and not all numbers of bf16; without learning every log-ratio is exactly 0."""
    bf16 = {"training": TRAINING | {"precision": "bf16"}, "optimizer": {"lr": 0.0}}
    given = settings(toy, tmp_path, "dpo", "full", **bf16)
    with set_up(given, show_progress=False) as run:
        assert isinstance(run, Run)
        block = run.batches.step(0).micro_batches[0].block
        logprobs = run.trained.logprobs_of(block)
        assert logprobs.dtype is torch.float32
        assert not torch.equal(logprobs, logprobs.bfloat16().float())
        take_steps(run)
    rows = [row for row in read_metrics(Path(given.output) / "metrics.jsonl") if "log_ratio_rms" in row]
    assert len(rows) == 4 and all(row["log_ratio_rms"] == 0 for row in rows)


@pytest.fixture
def unread(monkeypatch) -> None:
    monkeypatch.setattr("humanline.train.setup.build_policy", lambda *_: pytest.fail("weights were read"))


def refusal(given) -> str:
    with pytest.raises(ModelError) as error, set_up(given, show_progress=False):
        pass
    assert not Path(given.output).exists()
    return str(error.value)


def test_settings_that_cannot_go_together():
    """Weights in 4 bits, and engines that need a whole model, are refused with the configuration."""
    toy = {"model": "model", "pairs": "pairs"}
    sharded = {"training__sharding": "full"}
    with pytest.raises(ValueError, match=r"4 bits .* cannot be shared out"):
        config(toy, Path("run"), **sharded, adapter={"base": "nf4"})
    for kind in ("generate", "continuous"):
        rounds = {
            "kind": "rounds",
            "contexts_per_round": 4,
            "count": 1,
            "sampling": {"max_tokens": 4, "engine": {"kind": kind}},
            "scoring": {"rewards": [{"kind": "function", "call": "rewards:one"}]},
        }
        with pytest.raises(ValueError, match=r"engine\.kind: server"):
            config(toy, Path("run"), "grpo", **sharded, source=rounds, data={"train": "pairs"}, training__steps=None)


def test_layers_that_cannot_be_found(toy, tmp_path, unread, monkeypatch):
    """A model whose layers are in no list is refused before its weights are read."""
    monkeypatch.setattr("transformers.LlamaConfig.num_hidden_layers", 77, raising=False)
    monkeypatch.setattr(
        "humanline.train.policy.shard.decoder_layers", lambda model: (_ for _ in ()).throw(ModelError("no layers"))
    )
    assert "no layers" in refusal(settings(toy, tmp_path, "dpo", "full"))


def test_weights_that_cannot_be_cut(toy):
    """Single numbers, and weights of several layers, or of one and of the rest, are refused by name; tied heads not."""
    model = load_outline(toy["model"])
    refuse_unshareable(model)
    first, second = model.model.layers
    before = second.mlp
    second.mlp = first.mlp
    with pytest.raises(ModelError, match=r"mlp.* are parts of several layers; set training.sharding: none"):
        refuse_unshareable(model)
    second.mlp = before
    first.input_layernorm.weight = model.model.norm.weight
    with pytest.raises(ModelError, match=r"layers\.0\.input_layernorm\.weight are parts of several layers"):
        refuse_unshareable(model)
    first.input_layernorm.weight = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ModelError, match=r"layers\.0\.input_layernorm\.weight are single numbers"):
        refuse_unshareable(model)


def test_files_whose_slices_cannot_be_read(toy, tmp_path, unread):
    """Weights under names that the model does not have are refused, with what to do, before any are read."""
    folder = tmp_path / "model"
    shutil.copytree(toy["model"], folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("self_attn", "attention"): one for name, one in tensors.items()}, folder / "model.safetensors"
    )
    said = refusal(settings(toy | {"model": str(folder)}, tmp_path, "dpo", "full"))
    assert "attention" in said and "training.sharding: none" in said


def test_weights_that_are_not_finite(toy, tmp_path):
    """Nan in the files ends the run before its first step, by name."""
    folder = tmp_path / "model"
    shutil.copytree(toy["model"], folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][-1, -1] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    said = refusal(settings(toy | {"model": str(folder)}, tmp_path, "dpo", "full"))
    assert "model.layers.1.mlp.up_proj.weight" in said
