"""What is estimated of a run whose weights are shared out over its processes, `training.sharding: full`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from humanline.cli import main
from humanline.train.config import TrainConfig, load_config
from humanline.train.policy.load import load_outline
from humanline.train.preflight import suggest as changes
from humanline.train.preflight.dry_run import FLOPS, STRETCHES
from humanline.train.preflight.fits import workload_of
from humanline.train.preflight.hardware import GIB
from humanline.train.preflight.memory import Estimator, static_bytes
from humanline.train.preflight.shards import Sharded, share_of
from humanline.train.preflight.suggest import gpus_needed, smaller_passes, suggest
from tests.conftest import ROOT
from tests.helpers.peak_run import write_data, write_model
from tests.helpers.processes import free_port
from tests.train.preflight.test_estimate import AHEAD, LLAMA_8B, limits, outline_of, run_config, small

FULL = {"sharding": "full"}
SMALL = LLAMA_8B | {"num_hidden_layers": 3, "hidden_size": 192, "intermediate_size": 250, "vocab_size": 1001}


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Any:
    return outline_of(tmp_path_factory.mktemp("llama"), LLAMA_8B)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory) -> Any:
    """An outline hardly any dimension of which is a multiple of the number of processes."""
    return outline_of(tmp_path_factory.mktemp("uneven"), SMALL | {"num_attention_heads": 3, "num_key_value_heads": 1})


# ---------------------------------------------------------------------------------------------------------------------
# What stays, and what travels


@pytest.mark.parametrize("shape", [(8, 3), (10, 3), (3, 5), (1, 7), (9,), (2,)])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_the_first_process_has_the_first_of_torchs_chunks(shape, parts):
    """A share is what torch's own division gives the first process, which has the most."""
    assert share_of(shape, parts) == torch.empty(shape, device="meta").chunk(parts)[0].numel()


def test_weights_gradients_and_states_are_shared(llama):
    """Each of 4 processes has a quarter of 8B's 16 bytes a parameter and no buckets; second models are shared too."""
    given = run_config(training=FULL, reference=AHEAD | {"storage": "model"})
    whole, share = static_bytes(given, llama), static_bytes(given, llama, ranks=4)
    assert share.parameters == share.trained == whole.parameters == 8_030_261_248  # all of whose rows divide by 4
    for name in ("weights", "gradients", "states", "second_models"):
        assert 4 * getattr(share, name) == getattr(whole, name) > 0, name
    assert share.buckets == 0 < static_bytes(run_config(), llama, ranks=4).buckets
    # A checkpoint is all of it, whatever the number of processes: what is written is counted for one.
    assert whole == static_bytes(run_config(reference=AHEAD | {"storage": "model"}), llama)


def test_shares_of_uneven_rows_and_of_a_frozen_base(uneven):
    """Every parameter is divided by itself, a frozen one too; an adapter's factors are."""
    parts = sum(p.chunk(3)[0].numel() for p in uneven.parameters())
    static = static_bytes(run_config(training=FULL), uneven, ranks=3)
    assert static.weights == 4 * parts > 4 * static.parameters / 3
    adapted = static_bytes(run_config(adapter={"rank": 4}, training=FULL), uneven, ranks=3)
    assert adapted.frozen == 2 * parts
    assert 4 * adapted.trained / 3 <= adapted.weights < 4 * adapted.trained / 2


def test_what_a_step_receives(uneven):
    """Two processes: half of each gather (root and layers, layers once more, and a scoring pass) and of each reduction.

    Rows that do not divide travel with those that fill them up.
    """
    given = run_config(training=FULL)
    padded = {name: 2 * p.chunk(2)[0].numel() for name, p in uneven.named_parameters()}
    layers = sum(size for name, size in padded.items() if ".layers." in name)
    everything = sum(padded.values())
    work = limits(given, 2)
    assert work.passes == 16
    estimate = Estimator(uneven, cuda=True).estimate(given, work)
    assert estimate.received == (16 * 0.5 * 2 * (2 * everything + layers), 16 * 0.5 * 4 * everything)
    kto = run_config(training=FULL | {"micro_batch_size": 2}, objective={"kind": "kto"})
    twice = Estimator(uneven, cuda=True).estimate(kto, limits(kto, 2))
    passes = limits(kto, 2).passes
    assert twice.received[0] == passes * 0.5 * 2 * (4 * everything + layers)  # three passes without gradient
    alone = Estimator(uneven, cuda=True).estimate(given, limits(given))
    assert alone.received == (0, 0)


def test_what_is_gathered_and_reduced(uneven):
    """Root and layers in the type of the computation, gradients to be reduced in float32."""
    root = sum(2 * p.chunk(2)[0].numel() for n, p in uneven.named_parameters() if ".layers." not in n)
    layer = sum(2 * p.chunk(2)[0].numel() for n, p in uneven.named_parameters() if ".layers.0." in n)
    head = uneven.lm_head.weight.numel()
    for precision, size in (("bf16", 2), ("float32", 4)):
        found = Sharded.of(run_config(training=FULL | {"precision": precision}), uneven, 2, cuda=True)
        assert (found.root.weights, found.layer.weights) == (size * root, size * layer)
        assert found.in_forward == size * (root + 2 * layer) and found.at_start == size * (2 * root + layer)
        assert found.in_backward == found.in_forward + (size + 4) * layer + size * head
        assert found.at_end >= size * root + 4 * root + 4 * root // 2
        on_cpu = Sharded.of(run_config(training=FULL | {"precision": precision}), uneven, 2, cuda=False)
        assert on_cpu.in_backward - found.in_backward == 4 * layer  # gloo reduces a copy
        assert on_cpu.at_end == size * root + 2 * 4 * root + 4 * root // 2
    alone = Sharded.of(run_config(training=FULL), uneven, 1, cuda=True)  # copies, and nothing on its way
    assert alone.in_forward == 2 * sum(
        p.numel() for n, p in uneven.named_parameters() if ".layers." not in n or ".layers.0." in n
    )
    lora = Sharded.of(run_config(adapter={"rank": 4}, training=FULL), uneven, 2, cuda=True)
    assert lora.root.gradients == lora.root.buffer == lora.head_gradient == 0 < lora.layer.buffer < 4 * layer


def test_more_processes_take_less_each(tmp_path):
    """The peak falls with their number, by the share of what stays; without sharding it does not."""
    estimator = Estimator(small("llama", 4, tmp_path / "model"), cuda=True)
    peaks: dict[Any, int] = {}
    for sharding in ("full", "none"):
        for ranks in (2, 4):
            given = run_config(training={"sharding": sharding, "micro_batch_size": 1})
            estimate = estimator.estimate(given, limits(given, ranks))
            peaks[sharding, ranks] = estimate.peak
            assert ("reduction of the root's gradients" in estimate.phases) == (sharding == "full")
    assert peaks["none", 2] == peaks["none", 4]
    assert peaks["full", 4] < peaks["full", 2]


# ---------------------------------------------------------------------------------------------------------------------
# What is told and suggested


def test_8b_is_offered_its_shares_first(llama, monkeypatch):
    """On two GPUs of 80 GB the first change is sharding, which is enough; on one the number of GPUs is told."""

    def dry(*_: Any, **__: Any) -> dict[str, float]:
        """A GiB everywhere, in place of dry runs, which are slow."""
        return dict.fromkeys([*STRETCHES, "held", *FLOPS], float(GIB))

    monkeypatch.setattr("humanline.train.preflight.memory.dry_run", dry)
    estimator, memory = Estimator(llama, cuda=True), 79 * GIB
    given = run_config(training={"activation_checkpointing": True})
    two = limits(given, 2)
    first = suggest(estimator, given, two, memory)[0]
    assert first.overrides == ("training.sharding=full",) and "equal results" in first.what
    assert first.alone.peak < memory < estimator.estimate(given, two).peak
    needed = gpus_needed(estimator, given, limits(given), memory)
    assert needed is not None and needed[0] == 2 and needed[1].peak == first.alone.peak
    fewer = gpus_needed(estimator, given, limits(given), 30 * GIB)
    assert fewer is not None and fewer[0] == 8
    assert gpus_needed(estimator, given, limits(given), 4 * GIB) is None  # not on 32, which have a pair each
    assert gpus_needed(estimator, run_config(adapter={"rank": 4, "base": "nf4"}), limits(given), 79 * GIB) is None
    three = replace(limits(given), passes=3)
    assert gpus_needed(estimator, given, three, 30 * GIB) is None  # of three passes two GPUs have some each


def test_4_bits_are_offered_without_sharding(tmp_path, monkeypatch):
    """What cannot be shared out is suggested with sharding off, as one change."""
    monkeypatch.setattr(changes, "_CHANGES", changes._CHANGES[-1:])
    given = run_config(training=FULL | {"micro_batch_size": 1})
    found = suggest(Estimator(small("llama", 2, tmp_path / "model"), cuda=True), given, limits(given), memory=0)
    assert [one.overrides for one in found] == [('adapter="{rank: 16, base: nf4}"', "training.sharding=none")]


def test_the_command_tells_of_shares_and_traffic(toy, tmp_path, monkeypatch, capsys):
    """Under sharding the table has shares, what is gathered and reduced and what travels; one GPU is told of more."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model: {toy['model']}\noutput: {tmp_path / 'run'}\nobjective: {{kind: dpo}}\n"
        f"data: {{train: {toy['pairs']}, eval: {toy['held_out']}, max_length: 64}}\n"
        "training: {epochs: 1, batch_size: 8, micro_batch_size: 2}\noptimizer: {lr: 1e-3}\n"
    )
    words = ["estimate", str(recipe), "--tflops", "1"]
    assert main([*words, "training.sharding=full", "--gpu-memory", "80", "--gpus", "2"]) == 0
    out = capsys.readouterr().out
    for expected in (
        "GiB on each GPU, 1/2 of weights, gradients and states",
        "weights gathered, at most (float32)",
        "gradients of a layer and of the head",
        "a step into each GPU, and as much out of it: weights gathered",
    ):
        assert expected in out, out
    assert "on their way between GPUs" not in out
    monkeypatch.setattr("humanline.train.preflight.fits.suggest", lambda *_, **__: [])
    monkeypatch.setattr("humanline.train.preflight.fits.gpus_needed", lambda *_, **__: (4, limits_peak()))
    assert main([*words, "--gpu-memory", "0.7501"]) == 2
    assert "0.85 GiB on each of 4 GPUs with training.sharding=full" in capsys.readouterr().out


def limits_peak() -> Any:
    """An estimate of a tenth of a GiB."""

    class Small:
        peak = 0.1 * GIB

    return Small()


# ---------------------------------------------------------------------------------------------------------------------
# Against measured peaks

MEASURED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "several passes": (2, {}, {}),
    "one pass": (2, {"micro_batch_size": 4}, {}),
    "checkpointing": (2, {"activation_checkpointing": True}, {}),
    "tied": (2, {}, {"tie_word_embeddings": True}),
    "three processes": (3, {}, {}),
    "one process": (1, {}, {}),
    # Larger, since oneDNN keeps some 50 MiB of code and copies of its own when it computes in bf16.
    "bf16": (2, {"precision": "bf16"}, {"vocabulary": 49152}),
    "bf16, checkpointing": (2, {"precision": "bf16", "activation_checkpointing": True}, {"vocabulary": 49152}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_estimates_are_within_a_tenth_of_the_measured_peak_of_a_process(tmp_path, name):
    """The largest resident set of the first process, which has the most, rises by what was estimated, to a tenth."""
    processes, training, settings = MEASURED[name]
    write_model(tmp_path / "model", **{"vocabulary": 16384, "hidden": 384, "layers": 6} | settings)
    write_data(tmp_path / "pairs.jsonl", 32, (60, 240))
    sizes = {"steps": 2, "batch_size": 4 * processes, "micro_batch_size": 2}
    tree: dict[str, Any] = {
        "model": str(tmp_path / "model"),
        "output": str(tmp_path / "run"),
        "objective": {"kind": "dpo"},
        "reference": AHEAD,
        "data": {"train": str(tmp_path / "pairs.jsonl"), "max_length": 1024, "shape": "preference"},
        "training": sizes | FULL | training,
        "optimizer": {"lr": 1e-6},
    }
    given = TrainConfig.model_validate(tree)
    estimate = Estimator(load_outline(given.model), cuda=False).estimate(given, workload_of(given, processes))
    measured = max(peaks_of_processes(tree, processes))
    assert measured > 100
    print(f"{name}: estimated / measured {estimate.peak / 2**20 / measured:.3f}")  # shown by -rP
    assert estimate.peak / 2**20 / measured == pytest.approx(1.0, abs=0.1)


def peaks_of_processes(tree: dict[str, Any], processes: int) -> list[float]:
    """The peak of each process of a run, MiB above what it starts from (`benchmarks.peak`)."""
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={free_port()}"]
    work = ["-m", "benchmarks.peak", "tests.helpers.peak_run:prepare", json.dumps({"tree": tree})]
    own = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    # Tensors are given back to the system when they are freed; by itself glibc keeps blocks of up to 32 MiB.
    own["MALLOC_MMAP_THRESHOLD_"] = "65536"
    done = subprocess.run(
        [sys.executable, *launcher, *work], env=os.environ | own, cwd=Path(ROOT), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(line) for line in done.stdout.split()]


DRY = dict.fromkeys([*STRETCHES, "held", *FLOPS])
GIVEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "second model": {"reference": AHEAD | {"storage": "model"}},
    "float32": {"training": {"precision": "float32", "micro_batch_size": 8}},
    "tokens": {"training": {"micro_batch_size": None, "micro_batch_tokens": 65536}},
    "shared out": {"training": FULL},
    "bf16 weights": {"training": {"weights": "bf16"}},
    "bf16 weights, 8 bit": {"training": {"weights": "bf16"}, "optimizer": {"lr": 1e-6, "states": "8bit"}},
    "adapter": {"adapter": {"rank": 4}},
    "adapter, shared out": {"adapter": {"rank": 4, "base": "float32"}, "training": FULL | {"precision": "float32"}},
    "grpo": {"objective": {"kind": "grpo"}, "training": {"micro_batch_size": 16}},
    "local": {"objective": {"kind": "grpo", "normalise": "local"}, "training": {"micro_batch_size": 16}},
}


@pytest.mark.parametrize("memory", [0, 25, 60])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", GIVEN)
def test_all_that_is_suggested_can_be_taken_together(llama, tmp_path, monkeypatch, name, ranks, memory):
    """The words of all rows together are a valid configuration; those of the rows with two numbers give the second."""

    def dry(given: TrainConfig, outline: Any, block: Any, *, backward: bool, **_: Any) -> dict[str, float]:
        """So many bytes a token, or a tenth with checkpointing, in place of a dry run."""
        size = 3e5 * block.input_ids.numel() / (10 if given.training.activation_checkpointing else 1)
        return dict.fromkeys(DRY, size if backward else size / 10)

    monkeypatch.setattr("humanline.train.preflight.memory.dry_run", dry)
    estimator, given = Estimator(llama, cuda=True), run_config(**GIVEN[name])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(given.model_dump(mode="json", exclude_unset=True)))
    found = suggest(estimator, given, limits(given, ranks), memory * GIB)
    assert len(found) > 1

    def taken(suggestions: Any) -> TrainConfig:
        return load_config(recipe, [word.replace('"', "") for one in suggestions for word in one.overrides])

    for number, one in enumerate(found):
        alone = taken([one])
        assert estimator.estimate(alone, limits(alone, ranks)).peak == one.alone.peak
        taken(found[: number + 1])
        if one.together is not None:
            both = taken([other for other in found[: number + 1] if other.together is not None])
            assert estimator.estimate(both, limits(both, ranks)).peak == one.together.peak


@pytest.mark.parametrize("batch,ranks,size", [(7, 2, 2), (8, 2, 1), (10, 4, None), (9, 3, 1)])
def test_no_size_is_suggested_that_processes_cannot_share(tmp_path, monkeypatch, batch, ranks, size):
    """The smallest passes are those of which each process has as many, as the stream asks; likewise those that fit."""
    monkeypatch.setattr(changes, "_CHANGES", tuple(one for one in changes._CHANGES if one[0].startswith("more and")))
    given = run_config(training={"batch_size": batch, "micro_batch_size": None, "precision": "float32"})
    estimator, work = Estimator(small("llama", 2, tmp_path / "model"), cuda=False), limits(given, ranks)
    words = [(f"training.micro_batch_size={size}",)] if size else []
    assert [one.overrides for one in suggest(estimator, given, work, memory=0)] == words
    memory = estimator.estimate(given, work).peak - 1
    smaller = smaller_passes(estimator, given, work, memory)
    assert (smaller is None) == (size is None)
    for one in [] if smaller is None else [smaller]:
        found = int(one.overrides[0].split("=")[1])
        assert -(-batch // found) % ranks == 0


def test_no_number_of_gpus_is_told_that_cannot_share_the_passes(llama, monkeypatch):
    """Of a batch of 12 in passes of 4 there are three, which two GPUs cannot share; of 16 there are four."""
    monkeypatch.setattr("humanline.train.preflight.memory.dry_run", lambda *_, **__: dict.fromkeys(DRY, float(GIB)))
    estimator = Estimator(llama, cuda=True)
    given = {size: run_config(training={"batch_size": size, "micro_batch_size": 4} | FULL) for size in (12, 16)}
    found = {size: gpus_needed(estimator, one, limits(one), 139 * GIB) for size, one in given.items()}
    assert found[12] is None and found[16] is not None and found[16][0] == 2
