"""Whole runs: resumed bit for bit, scored ahead as by a second model, still at rate 0, few waits, peaks as told."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import random
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from humanline.system.stop import StopRequested
from humanline.train.loop import take_steps, train
from humanline.train.policy.load import load_outline
from humanline.train.preflight.memory import Estimator
from humanline.train.preflight.workload import Workload
from humanline.train.setup import set_up
from tests.helpers.cases import StopAt
from tests.helpers.gpu import write_model
from tests.helpers.kills import result_of
from tests.helpers.support import CLIP, SCHEDULES, config, same, steps, weights

TWINS_ARE_SLOW = True  # on a CPU
BF16 = {"precision": "bf16"}
NARROW = {"precision": "bf16", "weights": "bf16"}
#: What a run computes in, and how its rows lie.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "float32": ({}, {}),
    "bf16": (BF16, {}),
    "bf16-packed-again": (BF16 | {"padding": "free", "activation_checkpointing": True}, {}),
    "narrow-8bit-packed": (NARROW | {"padding": "free"}, {"states": "8bit"}),
}
LONGEST = {"cuda": 600, "cpu": 40}  # tokens; on a GPU several blocks of keys


@pytest.fixture(scope="module")
def task(toy, tmp_path_factory) -> dict[str, dict[str, str]]:
    """A model whose heads a GPU's kernels take, and pairs of letters, short for a CPU and long for a GPU."""
    folder, rng, made = tmp_path_factory.mktemp("task"), random.Random(0), {}
    model = write_model(folder / "model", toy["model"])
    for device, longest in LONGEST.items():
        rows = []
        for _ in range(16):
            word = "".join(rng.choice("abcdefgh") for _ in range(rng.randint(longest // 8, longest // 2)))
            rows.append({"prompt": word[:4], "chosen": "".join(sorted(word)), "rejected": word[::-1]})
        (folder / f"{device}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        made[device] = {"model": model, "pairs": str(folder / f"{device}.jsonl")}
    return made


def settings(device: str, kind: str, schedule: str = "before_1", **changes: Any) -> dict[str, Any]:
    """Six steps of eight pairs in passes of four, with checkpoints."""
    training, optimizer = KINDS[kind]
    if (training.get("weights") == "bf16" or optimizer) and find_spec("torchao") is None:
        pytest.skip("torchao (extra low-memory) is not installed")
    return {
        "transform": CLIP,
        "reference": {"schedule": SCHEDULES.get(schedule, {"kind": "before_step", "every": 4})},
        "training": {"steps": 6, "batch_size": 8, "micro_batch_size": 4, **training},
        "optimizer": {"lr": 1e-3, "warmup_fraction": 0.4, **optimizer},
        "data__max_length": 2 * LONGEST[device],
        "checkpoint": {"every": 2, "minutes": None},
        **changes,
    }


def test_what_a_gpu_is_given_is_what_a_run_takes(task, toy, tmp_path):
    """Rows and model of a run on a GPU pass all checks before the first step, where a CPU can make them too."""
    made = config(task["cuda"], tmp_path / "run", **settings("cuda", "float32"))
    with set_up(made, show_progress=False) as run:
        widths = [micro.block.input_ids.shape[1] for step in range(2) for micro in run.batches.step(step).micro_batches]
    assert 128 < max(widths) <= made.data.max_length  # more than a block of keys


def everything(config: Any) -> tuple[Any, ...]:
    """The finished model's files, the metrics, and the tensors of the newest checkpoint, by their hashes."""
    *_, newest = sorted(path for path in (Path(config.output) / "checkpoints").iterdir() if path.is_dir())
    tensors = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in newest.glob("*.safetensors")}
    assert tensors
    return *result_of(config), tensors


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_half_way_goes_on_to_the_same_bytes(device, run_config, task, tmp_path, kind):
    """Stopped between updates or in the middle of a window and resumed, a run ends with the same bytes everywhere."""
    whole = run_config(task[device], tmp_path / "whole", **settings(device, kind, "before_3"))
    train(whole, show_progress=False)
    for number in (4, 9):
        stopped = whole.model_copy(update={"output": str(tmp_path / str(number))})
        with pytest.raises(StopRequested):
            train(stopped, stop=StopAt(number), show_progress=False)
        train(stopped, resume=True, show_progress=False)
        assert everything(stopped) == everything(whole)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_scoring_ahead_equals_a_second_model(device, run_config, task, tmp_path, kind, every):
    """Whether scored ahead or by a second model, the losses of each step and all weights are the same bits."""
    results = []
    for storage in ("score_ahead", "model"):
        given = settings(device, kind)
        given["reference"] = {"schedule": {"kind": "before_step", "every": every}, "storage": storage}
        results.append(train(run_config(task[device], tmp_path / storage, **given), show_progress=False))
    assert same(*map(weights, results))
    losses, log_ratios = ([[row[name] for row in steps(one)] for one in results] for name in ("loss", "log_ratio_rms"))
    assert losses[0] == losses[1] and log_ratios[0] == log_ratios[1] and log_ratios[0][-1] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_at_rate_0_stands_still(device, run_config, task, tmp_path, kind):
    """At learning rate 0 every log-ratio of a run is exactly 0, whatever it computes in and however its rows lie."""
    given = settings(device, kind)
    given["optimizer"] |= {"lr": 0.0}
    still = train(run_config(task[device], tmp_path / "run", **given), show_progress=False)
    assert [row["log_ratio_rms"] for row in steps(still)] == [0.0] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_the_host_seldom_waits_for_the_gpu(device, run_config, task, tmp_path, kind):
    """A step waits at most once a pass and twice besides, so that the GPU always has work.

    Counted by CUDA's own debug mode over whole steps, from one row of metrics to the next, after two that warm up; on a
    CPU it counts nothing. A step has two passes with gradient and two that score the next one.
    """
    given = run_config(task[device], tmp_path / "run", **settings(device, kind, checkpoint={"minutes": None}))
    counts: list[int] = []
    with set_up(given, show_progress=False) as run:
        assert run.processes.device.type == device
        watch = type(run.watch)
        write = watch.write

        def noted(self: Any, told: dict[str, Any]) -> None:
            write(self, told)
            counts.append(sum("synchronizing CUDA operation" in str(one.message) for one in caught))

        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            patch.setattr(watch, "write", noted)
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("warn")
            try:
                take_steps(run)
            finally:
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
    between = [b - a for a, b in itertools.pairwise(counts[1:])]
    places = sorted({f"{one.filename}:{one.lineno}" for one in caught})
    assert len(between) == 4 and max(between) <= 4 + 2, (between, places)


@pytest.mark.parametrize("kind", ["bf16", "bf16-packed-again", "narrow-8bit-packed"])
def test_the_peak_is_the_estimated_one(device, run_config, task, toy, tmp_path, kind):
    """A run's peak of allocated memory is within a tenth of the estimate, where a model is large beside what is fixed.

    How much torch has allocated is known on a GPU alone; on a CPU the estimate is made, and the run.
    """
    large = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 8}
    changes = large | {"num_key_value_heads": 4, "vocab_size": 32_000} if device == "cuda" else {}
    model = write_model(tmp_path / "model", toy["model"], **changes)
    given = run_config(task[device] | {"model": model}, tmp_path / "run", **settings(device, kind))
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    with set_up(given, show_progress=False) as run:
        stream, count = run.batches.stream, run.steps
        take_steps(run)
    estimate = Estimator(load_outline(model), cuda=device == "cuda").estimate(given, Workload.of_stream(stream, count))
    assert estimate.peak > estimate.static.kept > 0
    if device == "cuda":
        assert torch.cuda.max_memory_allocated() - before == pytest.approx(estimate.peak, rel=0.1)


def test_batches_arrive_whole(device, run_config, task, tmp_path):
    """What is copied to a device while it is busy, and made anew behind, is there in full when it is used."""
    given = run_config(task[device], tmp_path / "run", **settings(device, "float32"))
    with set_up(given, show_progress=False) as run:
        busy = torch.randn((2048, 2048) if device == "cuda" else (8, 8), device=device)
        arrived, expected = [], []
        for step in range(6):
            for micro in run.batches.step(step).micro_batches:
                for _ in range(20):
                    busy = torch.tanh(busy @ busy)
                block = micro.block.to(run.processes.device)
                arrived.append((block.input_ids + 0, block.mask & True))
                expected.append((micro.block.input_ids.clone(), micro.block.mask.clone()))
                del micro, block
    for there, here in zip(arrived, expected, strict=True):
        assert there[0].device.type == device
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there, here, strict=True))
