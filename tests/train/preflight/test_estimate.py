"""What a run is estimated to take is what it takes, and a run that cannot fit is refused before it is loaded."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.peak import peak_mib
from humanline.cli import main
from humanline.train.config import TrainConfig, load_config
from humanline.train.config.run import AdapterConfig, OptimizerConfig
from humanline.train.data.batch import Block, Unit
from humanline.train.data.run_data import renderer_of, training_stream
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.sets import read_sets
from humanline.train.data.stream import Stream
from humanline.train.loop import train
from humanline.train.policy.adapter import Adapter
from humanline.train.policy.load import load_outline, load_policy, load_tokenizer
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.optimizer import make_optimizer
from humanline.train.preflight import fits as budget
from humanline.train.preflight import hardware
from humanline.train.preflight import suggest as changes
from humanline.train.preflight.dry_run import FLOPS, STRETCHES, DryRunError, _run, dry_run
from humanline.train.preflight.fits import DoesNotFitError, refuse_unfit, workload_of
from humanline.train.preflight.hardware import GIB, Device, EstimateError, device_of
from humanline.train.preflight.memory import Estimator, _shared_copies, generous_bytes, static_bytes
from humanline.train.preflight.suggest import suggest
from humanline.train.preflight.workload import Workload, cheap_shape, full_block
from humanline.train.run.state import trained_parameters
from tests.helpers.peak_run import write_data, write_model
from tests.helpers.support import CLIP, config

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
GEMMA_27B = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "vocab_size": 256000,
    "hidden_size": 4608,
    "intermediate_size": 36864,
    "num_hidden_layers": 46,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}
AHEAD = {"schedule": {"kind": "before_step", "every": 1}}


def outline_of(folder: Path, settings: dict[str, Any]) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    return load_outline(str(folder))


def small(kind: str, layers: int, folder: Path) -> Any:
    """The outline of a model of few and narrow layers."""
    whole = {"llama": LLAMA_8B, "gemma2": GEMMA_27B}[kind]
    narrow = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return outline_of(folder, whole | narrow | heads)


def run_config(model: str = "model", **changes: Any) -> TrainConfig:
    """The configuration of a DPO step of 32 pairs of 1024 tokens, in passes of one pair."""
    training = {"steps": 8, "batch_size": 32, "micro_batch_size": 1, "precision": "bf16"} | changes.pop("training", {})
    tree: dict[str, Any] = {
        "model": model,
        "output": "run",
        "objective": {"kind": "dpo"},
        "reference": AHEAD,
        "data": {"train": "rows.jsonl", "max_length": 1024},
        "training": training,
        "optimizer": {"lr": 1e-6},
    }
    return TrainConfig.model_validate(tree | changes)


def limits(given: TrainConfig, ranks: int = 1) -> Workload:
    return Workload.at_limits(given, ranks=ranks, why="a test")


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Estimator:
    """An estimator for the shape of Llama 3 8B on a GPU, no dry run of which is done twice."""
    return Estimator(outline_of(tmp_path_factory.mktemp("llama"), LLAMA_8B), cuda=True)


@pytest.mark.parametrize(
    "changes",
    [{"adapter": {"rank": 4}}, {"training__precision": "bf16", "training__weights": "bf16"}],
    ids=["lora", "bf16"],
)
def test_an_estimate_uses_up_no_random_numbers(toy, tmp_path, monkeypatch, changes):
    """Whether a run was estimated before it was let through or not changes none of its random numbers."""
    given = config(toy, tmp_path / "run", **changes)
    renderer = renderer_of(given, load_tokenizer(given.model))
    stream = training_stream(given, read_sets(given, renderer).train, renderer)
    outline, looked, estimate = load_outline(given.model), [], Estimator.estimate
    monkeypatch.setattr(budget, "capacity", lambda device: 3e6)  # too near to be let through at once
    monkeypatch.setattr(budget, "swap", lambda device: 0.0)
    monkeypatch.setattr(Estimator, "estimate", lambda *a: (looked.append(1), estimate(*a))[1])
    before = torch.get_rng_state()
    with contextlib.suppress(DoesNotFitError):
        refuse_unfit(given, outline, stream, 8, torch.device("cpu"))
    assert looked and torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------------------------------------------------------------
# The shapes of the paper's models


def test_what_8b_takes_by_itself(llama):
    """8,030,261,248 parameters: 16 bytes each in float32, 119.7 GiB; with a reference 149.6; narrow ones 45 GiB."""
    wide = static_bytes(run_config(), llama.outline)
    assert wide.parameters == wide.trained == 8_030_261_248
    assert wide.kept + wide.gradients == 16 * wide.parameters and round(16 * wide.parameters / GIB, 1) == 119.7
    second = static_bytes(run_config(reference=AHEAD | {"storage": "model"}), llama.outline)
    assert second.kept == wide.kept + 4 * wide.parameters
    bf16 = {"precision": "bf16", "weights": "bf16"}
    narrow = static_bytes(run_config(training=bf16, optimizer={"lr": 1e-6, "states": "8bit"}), llama.outline)
    assert (narrow.kept + narrow.gradients) / GIB == pytest.approx(45, rel=0.02)
    assert static_bytes(run_config(), llama.outline, ranks=8).buckets == 4 * wide.parameters


def test_the_compute_of_an_8b_step(llama):
    """64 rows of 1024 tokens: forward 1.00 PFLOP, 3.00 without scoring, 4.00 with it, as in plain arithmetic."""
    estimate = llama.estimate(run_config(), limits(run_config()))
    flops = {name: size / 1e15 for name, size in estimate.flops.items()}
    assert flops["forward"] == pytest.approx(1.00, rel=0.03)
    assert flops["forward"] + flops["backward"] == pytest.approx(3.00, rel=0.03)
    assert flops["scoring"] + flops["forward"] + flops["backward"] == pytest.approx(4.00, rel=0.03)
    assert flops["layers again"] == 0
    assert flops["logits again"] == pytest.approx(2 * 128256 * 4096 * 64 * 1023 / 1e15)


@pytest.mark.parametrize(
    "objective,passes",
    [
        ({"kind": "dpo"}, 1),
        ({"kind": "ipo"}, 1),
        ({"kind": "kto"}, 3),  # the reference's of answers and of mismatched pairs, the policy's of mismatched pairs
        ({"kind": "bco"}, 2),  # the reference's and the policy's of answers
        ({"kind": "grpo"}, 1),
    ],
    ids=lambda given: str(given),
)
def test_scoring_counts_every_pass_without_gradient(llama, objective, passes):
    """Scoring takes as many forward passes over the step as the reference and a reference point ask for."""
    given = run_config(objective=objective)
    flops = llama.estimate(given, limits(given)).flops
    assert flops["scoring"] / flops["forward"] == pytest.approx(passes, rel=0.02)


def test_checkpointing_computes_layers_again_but_for_their_last_product(llama):
    """Of 0.94 PFLOP that all layers would take again, torch leaves out each last product: no gradient needs it."""
    given = run_config(training={"activation_checkpointing": True})
    estimate = llama.estimate(given, limits(given))
    left_out = 2 * 14336 * 4096 * 32 * 64 * 1024
    assert (estimate.flops["layers again"] + left_out) / 1e15 == pytest.approx(0.94, rel=0.03)
    assert estimate.peak < 135 * GIB  # target 7
    without = run_config()
    assert llama.estimate(without, limits(without)).activations > 5 * estimate.activations


def test_scoring_takes_the_room_of_gradients_for_its_copies(llama):
    """Copies of 8B's weights, 2 bytes each, and a pass's chunk of logits take less than training has at its peak.

    Weights that are bf16 have no copies, and neither has a frozen float32 base, beside which gradients are small.
    """
    given = run_config(training={"activation_checkpointing": True})
    estimate = llama.estimate(given, limits(given))
    base = estimate.static.kept + 2 * estimate.static.parameters
    scoring = estimate.phases["scoring pass"]
    assert base + 0.9 * GIB < scoring < base + 1.4 * GIB
    assert scoring < estimate.phases["update"] < estimate.peak
    for given in (
        {"training": {"precision": "bf16", "weights": "bf16"}, "optimizer": {"lr": 1e-6, "states": "8bit"}},
        {"adapter": {"rank": 16, "base": "float32"}},
    ):
        assert _shared_copies(run_config(**given), static_bytes(run_config(**given), llama.outline)) == 0


@pytest.mark.parametrize("cuda,rows", [(True, 2046), (False, 256)])
def test_a_gpu_has_larger_chunks_of_logits(llama, cuda, rows):
    """A pass without gradient holds float32 logits of 128 256 words for whole tiles of rows: 1 GiB, or 128 MiB."""
    found = dry_run(run_config(), llama.outline, full_block(2, 1024), backward=False, accumulates=False, cuda=cuda)
    copy = 0 if cuda else 4 * 128256 * 4096  # of the head
    assert (found["head"] - found["held"] - copy) / (4 * 128256) == pytest.approx(rows, rel=0.05)


def test_27b_takes_lora(tmp_path):
    """Full fine-tuning of Gemma 2 27B exceeds 139 GiB by its weights alone; LoRA leaves most of that free."""
    outline = outline_of(tmp_path / "model", GEMMA_27B)
    whole = static_bytes(run_config(), outline)
    assert whole.parameters == 27_227_128_320 and whole.kept > 139 * GIB
    lora = static_bytes(run_config(adapter={"rank": 16}), outline)
    assert lora.trained < 0.01 * lora.parameters and lora.frozen == 2 * whole.parameters
    assert lora.kept + lora.gradients < 55 * GIB
    nf4 = static_bytes(run_config(adapter={"rank": 16, "base": "nf4"}), outline)
    assert nf4.frozen / whole.parameters == pytest.approx(0.58, abs=0.01)  # of which the head's are bf16


@pytest.mark.slow
def test_27b_with_lora_fits_139_gib(tmp_path):
    """With what its passes hold, too; with activation checkpointing a GPU of 80 GiB is enough."""
    estimator = Estimator(outline_of(tmp_path / "model", GEMMA_27B), cuda=True)
    given = run_config(adapter={"rank": 16})
    estimate = estimator.estimate(given, limits(given))
    assert 55 * GIB < estimate.peak < 139 * GIB
    given = run_config(adapter={"rank": 16}, training={"activation_checkpointing": True})
    assert estimator.estimate(given, limits(given)).peak < 80 * GIB


# ---------------------------------------------------------------------------------------------------------------------
# Against other ways to count


@pytest.mark.parametrize(
    "kind,training",
    [("llama", {}), pytest.param("gemma2", {"activation_checkpointing": True}, marks=pytest.mark.slow)],
)
def test_few_layers_tell_of_many(tmp_path, kind, training):
    """What is extrapolated from small depths is what a dry run of all layers finds, also where kinds alternate."""
    depth = {"llama": 5, "gemma2": 8}[kind]
    outline = small(kind, depth, tmp_path / "model")
    given, block, accumulates = run_config(training=training), full_block(2, 32), kind == "gemma2"
    short = dry_run(given, outline, block, backward=True, accumulates=accumulates, cuda=False)
    whole = _run(given, outline, block, None, True, accumulates, False)
    for name in whole.keys() - {"middle layers backward"}:
        assert short[name] == pytest.approx(whole[name], rel=1e-3), name
    ends = max(whole[name] for name in ("last layers backward", "first layers backward"))
    assert whole["middle layers backward"] <= 1.02 * ends
    assert len(outline.model.layers) == outline.config.num_hidden_layers == depth


def test_the_dry_run_holds_what_a_real_pass_saves(tmp_path):
    """Bytes held after the forward pass are those of the distinct storages that a real one saves for its backward."""
    outline = small("llama", 3, tmp_path / "model")
    from transformers import AutoModelForCausalLM

    policy = LogprobModel(AutoModelForCausalLM.from_config(outline.config, dtype=torch.float32))
    weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(512, (4, 64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = policy.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    given = run_config(training={"precision": "float32"})
    found = dry_run(given, outline, full_block(4, 64), backward=True, accumulates=False, cuda=False)
    # The last hidden states are alive but not saved, and rotary tables may be saved by layers that share them.
    assert found["held"] == pytest.approx(sum(saved.values()) + hidden.nbytes, rel=0.02)


def test_flops_are_those_torch_counts(tmp_path):
    """Without fused attention, products in layers are as many as torch's own counter finds in a real pass."""
    outline = small("gemma2", 2, tmp_path / "model")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(outline.config, dtype=torch.float32)
    with FlopCounterMode(display=False) as counter:
        hidden = model.get_decoder()(input_ids=torch.randint(512, (2, 48)), use_cache=False).last_hidden_state
        forward = counter.get_total_flops()
        hidden.sum().backward()
    given = run_config(training={"precision": "float32"})
    found = dry_run(given, outline, full_block(2, 48), backward=True, accumulates=False, cuda=False)
    assert found["forward linear"] + found["forward attention"] == forward
    assert found["backward linear"] + found["backward attention"] == counter.get_total_flops() - forward


@pytest.mark.parametrize("targets", [None, ("q_proj", "down_proj")])
def test_adapters_are_counted_as_peft_makes_them(toy, targets):
    """Trained parameters under LoRA are those that peft adds."""
    settings = AdapterConfig(rank=4, targets=targets)
    model, _ = load_policy(toy["model"], dropout=False, max_length=64)
    Adapter(model, settings, toy["model"])
    given = run_config(adapter=settings.model_dump(), training={"precision": "float32"})
    static = static_bytes(given, load_outline(toy["model"]))
    assert static.trained == sum(p.numel() for p in trained_parameters(model).values())
    assert static.weights + static.frozen == sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("weights,states", [("float32", "float32"), ("float32", "8bit"), ("bf16", "8bit")])
def test_optimizer_states_are_counted_as_they_are_made(toy, weights, states):
    """The bytes of the states are those of the tensors that the optimizer makes, values, scales and tables."""
    if states == "8bit":
        pytest.importorskip("torchao")
    model, _ = load_policy(toy["model"], dropout=False, max_length=64, weights=weights)
    optimizer = make_optimizer(model.parameters(), OptimizerConfig(lr=1e-6, states=states), weights)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()

    def size(tensor: torch.Tensor) -> int:
        parts = getattr(tensor, "tensor_attrs", None)
        return tensor.nbytes if parts is None else sum(getattr(tensor, name).nbytes for name in parts)

    held = sum(size(state[n]) for state in optimizer.state.values() for n in ("exp_avg", "exp_avg_sq"))
    training = {"precision": "bf16" if weights == "bf16" else "float32", "weights": weights}
    given = run_config(training=training, optimizer={"lr": 1e-6, "states": states})
    assert static_bytes(given, load_outline(toy["model"])).states == held


# ---------------------------------------------------------------------------------------------------------------------
# Batches, and what follows from settings


def test_the_largest_blocks_are_those_of_the_data(toy, tmp_path):
    """The first block of a step and those after it are looked at apart; compute is the mean over the steps."""
    given = config(toy, tmp_path / "run", training={"steps": 6, "batch_size": 8, "micro_batch_size": 2})
    workload = workload_of(given, 1)
    assert workload.remark == "" and workload.passes == 4 and workload.later is not None
    assert workload.first.input_ids.numel() >= workload.later.input_ids.numel() > 0
    # All 48 pairs are seen once in 6 steps.
    from humanline.train.data.run_data import renderer_of
    from humanline.train.data.sets import read_sets
    from humanline.train.policy.load import load_tokenizer

    units = read_sets(given, renderer_of(given, load_tokenizer(given.model))).train
    assert workload.work.real_tokens == pytest.approx(sum(len(s.ids) for u in units for s in u.sequences) / 6)
    assert workload.work.counted == pytest.approx(sum(unit.tokens for unit in units) / 6)
    assert workload.work.padded_tokens > workload.work.real_tokens
    shared = workload_of(given, 2)
    assert shared.passes == 2 and shared.first.input_ids.shape == workload.first.input_ids.shape


def test_more_rows_and_tokens_take_more(tmp_path):
    """The peak grows with rows a pass, shrinks with checkpointing, and grows by a second model less its window."""
    estimator = Estimator(small("llama", 1, tmp_path / "model"), cuda=False)

    def peak(**training: Any) -> int:
        given = run_config(
            training={"precision": "float32", "micro_batch_size": 4} | training, data={"train": "x", "max_length": 256}
        )
        return estimator.estimate(given, limits(given)).peak

    base = peak()
    assert base < peak(micro_batch_size=8)
    assert peak(micro_batch_size=8, activation_checkpointing=True) < peak(micro_batch_size=8)
    assert peak(micro_batch_size=None, micro_batch_tokens=8 * 256) == base
    given = run_config(training={"precision": "float32"})
    second = given.model_copy(update={"reference": run_config(reference=AHEAD | {"storage": "model"}).reference})
    one, two = (estimator.estimate(each, limits(each)) for each in (given, second))
    assert two.peak - one.peak == two.static.second_models - one.window
    assert two.static.second_models == two.static.weights and two.window == 0


@pytest.mark.parametrize(
    "overlap,cuda,there",
    [
        ("auto", False, False),
        ("auto", True, True),
        ("always", False, True),
        ("never", True, False),
    ],
)
def test_the_copy_that_a_checkpoint_is_written_from_is_counted(tmp_path, overlap, cuda, there):
    """Weights, states and second models once more in host memory, which on a CPU is that of the run, and is said."""
    given = run_config(training={"precision": "float32"}, checkpoint={"overlap": overlap})
    estimate = Estimator(small("llama", 1, tmp_path / "model"), cuda=cuda).estimate(given, limits(given))
    assert estimate.copies == (estimate.static.saved if there else 0)
    assert estimate.static.saved == estimate.static.weights + estimate.static.states
    plain = given.model_copy(update={"checkpoint": run_config(checkpoint={"overlap": "never"}).checkpoint})
    without = Estimator(small("llama", 1, tmp_path / "again"), cuda=cuda).estimate(plain, limits(plain))
    assert estimate.peak - without.peak == (0 if cuda else estimate.copies)


def grpo_config(samples: int, normalise: str = "global", **training: Any) -> TrainConfig:
    """The configuration of GRPO on 4 groups a step, a whole group each prompt."""
    return run_config(
        objective={"kind": "grpo", "normalise": normalise},
        data={"train": "rows.jsonl", "max_length": 256},
        reference={"schedule": {"kind": "each_round"}},
        source={
            "kind": "rounds",
            "contexts_per_round": 64,
            "samples": samples,
            "count": 1,
            "sampling": {"max_tokens": 128, "engine": {"kind": "generate", "batch_size": 1}},
            "scoring": {"rewards": [{"kind": "format"}]},
        },
        training={"steps": None, "batch_size": 4, "precision": "float32"} | training,
    )


def group_stream(samples: int, given: TrainConfig) -> Stream:
    """Steps of groups whose rows are all as long as they may be."""
    sequence = TokenSequence((5,) * 256, 1)
    scores = tuple(map(float, range(samples)))
    units = [Unit(f"unit {i}", (sequence,) * samples, scores=scores) for i in range(8)]
    sizes = {"batch_size": 4, "micro_batch_size": given.training.micro_batch_size}
    return Stream(units, given.objective, **sizes, seed=0, pad_id=0, max_length=256)


def test_the_peak_goes_by_rows_and_not_by_groups(tmp_path):
    """The dry run of GRPO's passes of one row peaks alike for groups of 4 and of 64; whole groups take what they hold.

    Looked up from batches, or at the limits of the configuration, the passes are the same.
    """
    estimator = Estimator(small("llama", 2, tmp_path / "model"), cuda=True)
    peaks: dict[Any, int] = {}
    for samples, size in ((4, 1), (64, 1), (64, 4), (64, None)):
        given = grpo_config(samples, micro_batch_size=size)
        workload = Workload.of_stream(group_stream(samples, given), 2)
        assert workload.first.input_ids.shape == (size or 4 * samples, 256)
        assert workload.passes == 4 * samples // (size or 4 * samples)
        peaks[samples, size] = estimator.estimate(given, workload).peak
        at_limits = limits(given)
        assert at_limits.first.input_ids.shape == workload.first.input_ids.shape
        assert at_limits.passes == workload.passes and (at_limits.later is None) == (workload.later is None)
        assert estimator.estimate(given, at_limits).peak == peaks[samples, size]
    assert peaks[4, 1] == peaks[64, 1] < peaks[64, 4] < peaks[64, None]
    whole = limits(grpo_config(64, "local", micro_batch_size=100))  # one group of 64 and no second one
    assert whole.first.input_ids.shape == (64, 256) and whole.passes == 4
    tokens = limits(grpo_config(64, micro_batch_tokens=700, micro_batch_size=None))
    assert tokens.first.input_ids.shape == (2, 256) and tokens.passes == 128
    assert limits(grpo_config(64, micro_batch_size=3), ranks=3).passes == 29  # of 86 rows
    assert limits(grpo_config(3, micro_batch_size=None), ranks=8).first.input_ids.shape == (2, 256)


@pytest.mark.parametrize(
    "normalise,training,change",
    [
        ("global", {"micro_batch_size": 64}, "training.micro_batch_size=1"),
        ("global", {"micro_batch_size": None, "micro_batch_tokens": 4096}, "training.micro_batch_tokens=256"),
        ("local", {"micro_batch_size": 256}, "training.micro_batch_size=64"),
        ("local", {"micro_batch_size": 64}, None),
        pytest.param(
            "local",
            {"micro_batch_size": None, "micro_batch_tokens": 131072},
            "training.micro_batch_tokens=16384",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_smaller_passes_are_suggested_down_to_what_stays_together(tmp_path, monkeypatch, normalise, training, change):
    """The change that is named goes down to a row, or to a group where passes have means of their own, and is exact."""
    monkeypatch.setattr(changes, "_CHANGES", tuple(one for one in changes._CHANGES if "smaller passes" in one[0]))
    estimator = Estimator(small("llama", 2, tmp_path / "model"), cuda=True)
    given = grpo_config(64, normalise, **training)
    found = suggest(estimator, given, limits(given), memory=0)
    assert [one.overrides for one in found] == ([(change,)] if change else [])
    for one in found:
        name, value = change.removeprefix("training.").split("=")
        smaller = grpo_config(64, normalise, **training | {name: int(value)})
        assert ("part of the loss" in one.what) == (normalise == "local")
        assert one.alone.peak == estimator.estimate(smaller, limits(smaller)).peak


def test_padding_is_not_held_where_there_is_none(tmp_path):
    """Rows laid end to end take the tokens they have; rows filled up take those of the longest."""
    outline = small("llama", 2, tmp_path / "model")
    mask = torch.zeros((4, 127), dtype=torch.bool)
    lengths = (128, 16, 16, 16)
    for row, length in enumerate(lengths):
        mask[row, : length - 1] = True
    block = Block(("row",) * 4, torch.zeros((4, 128), dtype=torch.long), mask, lengths)
    held = {}
    for padding in ("right", "free"):
        given = run_config(training={"precision": "float32", "padding": padding})
        held[padding] = dry_run(given, outline, block, backward=True, accumulates=False, cuda=False)["held"]
    assert held["free"] / held["right"] == pytest.approx(sum(lengths) / 512, rel=0.1)


def test_what_is_suggested_helps(llama, tmp_path, monkeypatch):
    """Each suggestion makes the run smaller alone, joins those before it until all fit, and is a valid override."""

    def dry(given: TrainConfig, outline: Any, block: Block, *, backward: bool, **_: Any) -> dict[str, float]:
        """So many bytes a token, or a tenth with checkpointing, in place of a dry run."""
        size = 3e5 * block.input_ids.numel() / (10 if given.training.activation_checkpointing else 1)
        return dict.fromkeys([*STRETCHES, "held", *FLOPS], size if backward else size / 10)

    monkeypatch.setattr("humanline.train.preflight.memory.dry_run", dry)
    estimator = Estimator(llama.outline, cuda=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model: model\noutput: {tmp_path / 'run'}\nobjective: {{kind: dpo}}\n"
        "data: {train: rows.jsonl, max_length: 1024}\nreference: {storage: model}\n"
        "training: {steps: 8, batch_size: 32, micro_batch_size: 8}\noptimizer: {lr: 1e-6}\n"
    )
    given = load_config(recipe)
    work = limits(given)
    start = estimator.estimate(given, work).peak
    found = suggest(estimator, given, work, memory=0)
    assert [one.overrides[0] for one in found] == [
        "reference.storage=score_ahead",
        "training.activation_checkpointing=true",
        "training.micro_batch_size=1",
        "training.precision=bf16",
        'adapter="{rank: 16}"',
        'adapter="{rank: 16, base: nf4}"',
    ]  # not padding: rows are full
    together = [one.together.peak for one in found if one.together is not None]
    assert together == sorted(together, reverse=True) and together[0] < start
    for one in found:
        changed = load_config(recipe, [word.replace('"', "") for word in one.overrides])
        assert one.alone.peak < start
        assert one.alone.peak == estimator.estimate(changed, limits(changed)).peak
    enough = suggest(estimator, given, work, memory=found[0].alone.peak)
    assert [one.together is not None for one in enough][:2] == [True, False]


# ---------------------------------------------------------------------------------------------------------------------
# The command


@pytest.fixture
def recipe(toy, tmp_path):
    """A good recipe."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"model: {toy['model']}\noutput: {tmp_path / 'run'}\nobjective: {{kind: dpo}}\n"
        f"data: {{train: {toy['pairs']}, eval: {toy['held_out']}, max_length: 64}}\n"
        "training: {epochs: 1, batch_size: 8, micro_batch_size: 4}\noptimizer: {lr: 1e-3}\n"
    )
    return path


def test_the_command_says_what_a_run_takes(recipe, tmp_path, capsys):
    """A recipe that fits ends with exit code 0 after memory, verdict, compute and a time from the given rate."""
    assert main(["estimate", str(recipe), "seed=3", "--gpu-memory", "80", "--gpus", "2", "--tflops", "788"]) == 0
    out = capsys.readouterr().out
    for expected in (
        "all trained",
        "gradients on their way between GPUs",
        "optimizer states (float32)",
        "peak: ",
        "verdict      fits: 0.75 GiB of 80.00 GiB",
        "(788 TFLOP/s, as given)",
        "in 1 pass(es) on each of 2 GPUs",
    ):
        assert expected in out, out
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_ends_with_what_to_change(recipe, monkeypatch, capsys):
    """A GPU that is too small makes exit code 2 and a list of changes; a time is not given where none is measured."""
    monkeypatch.setattr(changes, "_CHANGES", changes._CHANGES[:4])
    assert main(["estimate", str(recipe), "training.precision=float32", "--gpu-memory", "0.7501"]) == 2
    out = capsys.readouterr().out
    assert "does not fit" in out and "training.activation_checkpointing=true  (up to a third more work" in out
    assert ("not measured" in out) is not torch.cuda.is_available()


def test_data_that_cannot_be_read_are_taken_at_their_limits(recipe, capsys):
    """Without data every row has data.max_length tokens, and a remark says so and why."""
    assert main(["estimate", str(recipe), "data.train=nowhere.jsonl", "--gpu-memory", "80"]) == 0
    out = capsys.readouterr().out
    assert "every row is taken to have 64 tokens (data.max_length)" in out and "nowhere.jsonl" in out


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("objective,rows", [("dpo", "pairs"), ("kto", "pairs"), ("kto", "unpaired"), ("grpo", "pairs")])
def test_a_look_at_its_limits_has_the_rows_of_one_at_the_data(toy, tmp_path, objective, rows, limit):
    """KTO looks at pairs that it takes apart as pairs, too; no look has more than evaluation.limit of them."""
    shape = {"pairs": "preference", "unpaired": "unpaired"}[rows]
    given = config(
        toy,
        tmp_path / "run",
        objective,
        data={"shape": shape, "train": toy[rows], "eval": toy[rows], "max_length": 64},
        evaluation={"batch_size": 4, "limit": limit},
        training={"steps": 2, "batch_size": 8},
    )
    read, limits = budget.workload_of(given, 1), Workload.at_limits(given, why="of a test")
    assert read.remark == "" and read.held_out is not None and limits.held_out is not None
    assert limits.held_out.lengths == (given.data.max_length,) * len(read.held_out.lengths)


@pytest.mark.parametrize(
    "words,message",
    [
        (["--gpu-memory", "0"], "--gpu-memory must be a number above 0"),
        (["--gpu-memory", "nan"], "--gpu-memory must be a number above 0"),
        (["--gpu-memory", "80", "--tflops", "-1"], "--tflops must be a number above 0"),
        (["--gpu-memory", "80", "--gpus", "0"], "--gpus must be >= 1"),
        (["--gpu-memory", "80", "--gpus", "3"], "3 processes cannot share evenly"),
        (["--gpu-memory", "80", "model=./nowhere"], "no config.json"),
        (["--gpu-memory", "80", "adapter={targets: [q_prj]}"], "did you mean q_proj?"),
        (["--gpu-memory", "80", "trainer=1"], "unknown key"),
        (["--gpu-memory", "80", "data.max_length=129"], "data.max_length 129 exceeds the 128 positions"),
        (["--gpu-memory", "80", "adapter={targets: [q_proj, lm_head]}"], "lm_head: the output head"),
    ],
)
def test_bad_options_are_named(recipe, capsys, words, message):
    """What cannot be estimated is told with exit code 2 and its reason, without a traceback."""
    assert main(["estimate", str(recipe), *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and "verdict" not in captured.out


def test_weights_need_not_be_there(toy, recipe, tmp_path, capsys):
    """A model of which there is the configuration and the tokenizer alone can be estimated."""
    shutil.copytree(toy["model"], tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    assert main(["estimate", str(recipe), f"model={tmp_path / 'model'}", "--gpu-memory", "80"]) == 0
    assert "verdict      fits" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------------------
# The refusal


def stream_of(given: TrainConfig) -> Stream:
    from humanline.train.data.run_data import renderer_of, training_stream
    from humanline.train.data.sets import read_sets
    from humanline.train.policy.load import load_tokenizer

    renderer = renderer_of(given, load_tokenizer(given.model))
    return training_stream(given, read_sets(given, renderer).train, renderer)


def test_a_run_that_cannot_fit_is_refused_before_it_is_loaded(toy, tmp_path, monkeypatch):
    """Training ends before weights are read and anything is written; the message has the peak and what to change."""
    monkeypatch.setattr(budget, "capacity", lambda device: 1e6)
    monkeypatch.setattr(changes, "_CHANGES", changes._CHANGES[:4])
    monkeypatch.setattr("humanline.train.setup.build_policy", lambda *_: pytest.fail("weights were loaded"))
    given = config(toy, tmp_path / "run", transform=CLIP, reference=AHEAD | {"storage": "model"})
    with pytest.raises(DoesNotFitError, match="nothing was loaded") as refused:
        train(given, show_progress=False)
    assert not (tmp_path / "run").exists()
    for expected in ("peak: ", "verdict      does not fit", "training.activation_checkpointing=true"):
        assert expected in str(refused.value)


def test_only_what_cannot_fit_is_refused(toy, tmp_path, monkeypatch):
    """A run passes down to its weights and nine tenths of the rest, and what is small is let through unmeasured."""
    given = config(toy, tmp_path / "run", training={"steps": 2, "batch_size": 8, "micro_batch_size": 8})
    outline, stream, cpu = load_outline(given.model), stream_of(given), torch.device("cpu")
    estimate = Estimator(outline, cuda=False).estimate(given, Workload.of_stream(stream, 2))
    static = estimate.static.kept + estimate.static.gradients
    assert estimate.lower_bound == pytest.approx(static + 0.9 * (estimate.peak - static))
    monkeypatch.setattr(budget, "capacity", lambda device: estimate.lower_bound + 1)
    refuse_unfit(given, outline, stream, 2, cpu)
    monkeypatch.setattr(budget, "capacity", lambda device: estimate.lower_bound - 1)
    monkeypatch.setattr(changes, "_CHANGES", ())
    with pytest.raises(DoesNotFitError, match="nothing known makes it smaller"):
        refuse_unfit(given, outline, stream, 2, cpu)
    monkeypatch.undo()
    monkeypatch.setattr(budget, "Estimator", lambda *_, **__: pytest.fail("a dry run was made for a tiny model"))
    refuse_unfit(given, outline, stream, 2, cpu)


def test_processes_on_one_host_have_its_memory_between_them(toy, tmp_path, monkeypatch):
    """Each may take its share, which the refusal names; a GPU, of which each has its own, is not divided."""
    given = config(toy, tmp_path / "run", training={"steps": 2, "batch_size": 8, "micro_batch_size": 8})
    outline, stream, cpu = load_outline(given.model), stream_of(given), torch.device("cpu")
    bound = Estimator(outline, cuda=False).estimate(given, Workload.of_stream(stream, 2)).lower_bound
    monkeypatch.setattr(budget, "capacity", lambda device: 6 * bound)
    monkeypatch.setattr(budget, "swap", lambda device: 1.5 * bound)
    monkeypatch.setattr(changes, "_CHANGES", ())
    for name, value in {"WORLD_SIZE": 16, "RANK": 9, "LOCAL_WORLD_SIZE": 7, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    refuse_unfit(given, outline, stream, 2, cpu)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(DoesNotFitError, match=r"\(1/8 of \d+\.\d\d GiB, this machine's memory\)"):
        refuse_unfit(given, outline, stream, 2, cpu)
    monkeypatch.setattr(hardware, "capacity", lambda device: 8 * 2.0**30)
    assert hardware.used(cpu)[1] == GIB
    assert hardware.sharing(torch.device("cuda")) == 1


def test_an_estimate_divides_the_memory_of_a_host_by_processes(recipe, monkeypatch, capsys):
    """Without a GPU each of `--gpus` processes is held against a part of this machine's memory, and called so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(hardware, "capacity", lambda device: 80 * 2.0**30)
    assert main(["estimate", str(recipe), "--gpus", "2", "--tflops", "1"]) == 0
    out = capsys.readouterr().out
    assert "GiB of 40.00 GiB (1/2 of 80.00 GiB, this machine's memory)" in out
    assert "on each of 2 processes" in out and "GPU" not in out
    assert device_of(None, 1.0, "float32").name == "this machine's memory"


def test_a_model_that_no_dry_run_can_run_is_let_through(toy, tmp_path, monkeypatch):
    """An estimate that cannot be made refuses nothing."""

    def broken(*_: Any, **__: Any) -> None:
        raise DryRunError("it asks for numbers")

    monkeypatch.setattr(budget, "capacity", lambda device: 1e6)
    monkeypatch.setattr("humanline.train.preflight.memory.dry_run", broken)
    given = config(toy, tmp_path / "run")
    refuse_unfit(given, load_outline(given.model), stream_of(given), 2, torch.device("cpu"))


@pytest.mark.parametrize(
    "kind,padding,rows,width,changes",
    [
        ("llama", "free", 16, 64, {}),
        ("gemma2", "right", 2, 512, {}),
        ("llama", "right", 2, 8, {"precision": "bf16", "adapter": {"rank": 1, "base": "float32"}}),
    ],
)
def test_the_bound_that_costs_nothing_is_one(tmp_path, kind, padding, rows, width, changes):
    """The bound that lets small runs through is above the estimate, also where all pairs of tokens are held."""
    outline = small(kind, 2, tmp_path / "model")
    given = run_config(
        data={"train": "x", "max_length": width},
        training={
            "precision": changes.pop("precision", "float32"),
            "batch_size": rows,
            "micro_batch_size": rows // 2,
            "padding": padding,
        },
        **changes,
    )
    estimate = Estimator(outline, cuda=False).estimate(given, limits(given))
    assert generous_bytes(given, outline, rows, width) - (1 << 29) > estimate.peak


def test_the_cheap_shape_covers_every_block(toy, tmp_path):
    """No block of a run has more cells than the shape that the cheap bound is made for."""
    for training in ({"micro_batch_size": 3}, {"micro_batch_size": None, "micro_batch_tokens": 200}):
        given = config(toy, tmp_path / "run", "kto", training={"steps": 6, "batch_size": 6} | training)
        stream = stream_of(given)
        rows, width = cheap_shape(stream, given)
        for step in range(6):
            for micro in stream.step(step).micro_batches:
                for block in (micro.block, micro.mismatched):
                    assert block is None or block.input_ids.numel() <= rows * width


def test_numbers_out_of_range_are_refused():
    """A memory or a rate that is no number above 0 is named."""
    with pytest.raises(EstimateError, match="--gpu-memory must be a number above 0; got -2"):
        device_of(-2.0, None, "float32")


def test_a_look_at_the_distance_takes_the_start_once_more(toy, tmp_path):
    """Its weights, the hidden states that wait for its pass, and that pass; none of it where it is not read again."""

    def estimate(to_start: str, **changes: Any) -> Any:
        distance = {"prompts": toy["prompts"], "max_tokens": 8, "to_start": to_start}
        data = {"train": toy["completions"], "max_length": 64}
        evaluation = {"batch_size": 24, "distance": distance}
        given = config(toy, tmp_path / "a", {"kind": "nll"}, data=data, evaluation=evaluation, **changes)
        outline = load_outline(given.model)
        return Estimator(outline, cuda=False).estimate(given, limits(given)), given, outline

    found, given, outline = estimate("end")
    never, *_ = estimate("never")
    lora, *_ = estimate("end", adapter={"rank": 4})
    weights = 4 * sum(one.numel() for one in outline.parameters())
    hidden = 4 * 16 * 24 * 63
    name = "distance from the start"
    assert (found.start, never.start, lora.start) == (weights, 0, 0)
    assert found.phases[name] - never.phases[name] == weights + hidden
    assert generous_bytes(given, outline, 8, 64) > generous_bytes(estimate("never")[1], outline, 8, 64) + weights - 1
    lines = "\n".join(budget.describe(given, outline, limits(given), found, Device("here", 1 << 40, False)))
    assert "weights of the start, for a look" in lines
    assert limits(given).travelled.input_ids.shape == (24, 64)
    plain = config(toy, tmp_path / "a")
    assert name not in Estimator(outline, cuda=False).estimate(plain, limits(plain)).phases


# ---------------------------------------------------------------------------------------------------------------------
# Against measured peaks

MEASURED: dict[str, dict[str, Any]] = {
    "several passes": {},
    "one pass": {"training": {"micro_batch_size": 4}},
    "checkpointing": {"training": {"activation_checkpointing": True}},
    "rows end to end": {"training": {"padding": "free"}},
    "bf16": {"training": {"precision": "bf16"}},
    "bf16, checkpointing": {"training": {"precision": "bf16", "activation_checkpointing": True}},
    "second model": {"reference": AHEAD | {"storage": "model"}},
    "grpo": {"objective": {"kind": "grpo"}},
    "kto": {"objective": {"kind": "kto"}},
    "lora": {"adapter": {"rank": 8}},
    "8-bit states": {"optimizer": {"lr": 1e-6, "states": "8bit"}},
    "distance": {
        "training": {"micro_batch_size": 1},
        "evaluation": {"batch_size": 16, "distance": {"prompts": "far.jsonl", "limit": 8, "max_tokens": 200}},
    },
}


@pytest.fixture(scope="module")
def measurable(tmp_path_factory) -> Path:
    """A model of 17 million float32 weights, and pairs whose answers differ in length."""
    folder = tmp_path_factory.mktemp("measurable")
    write_model(folder / "model", vocabulary=16384, hidden=384, layers=6)
    write_data(folder / "pairs.jsonl", 32, (60, 240))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_estimates_are_within_a_tenth_of_measured_peaks(measurable, tmp_path, monkeypatch, name):
    """The largest resident set of a whole run in a fresh process rises by what was estimated, to a tenth."""
    if name == "8-bit states":
        pytest.importorskip("torchao")
    # Tensors are given back to the system when they are freed; by itself glibc keeps blocks of up to 32 MiB.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tree: dict[str, Any] = {
        "model": str(measurable / "model"),
        "output": str(tmp_path / "run"),
        "objective": {"kind": "dpo"},
        "reference": AHEAD,
        "data": {"train": str(measurable / "pairs.jsonl"), "max_length": 1024, "shape": "preference"},
        "training": {"steps": 2, "batch_size": 4, "micro_batch_size": 2},
        "optimizer": {"lr": 1e-6},
    }
    write_data(tmp_path / "far.jsonl", 80, (1, 2))
    for section, change in json.loads(json.dumps(MEASURED[name]).replace("far.jsonl", f"{tmp_path}/far.jsonl")).items():
        tree[section] = tree["training"] | change if section == "training" else change
    given = TrainConfig.model_validate(tree)
    estimate = Estimator(load_outline(given.model), cuda=False).estimate(given, workload_of(given, 1))
    measured = peak_mib("tests.helpers.peak_run:prepare", tree=tree)
    assert measured > 100
    assert estimate.peak / 2**20 / measured == pytest.approx(1.0, abs=0.1)
