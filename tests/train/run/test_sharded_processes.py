"""Two and three processes that share out a policy compute what one does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from humanline.train.run.metrics import read_metrics
from tests.conftest import ROOT
from tests.helpers.paper_models import write_paper_model
from tests.helpers.peak_run import write_model
from tests.helpers.processes import free_port
from tests.helpers.shard_run import run_jobs
from tests.helpers.support import CLIP, REJECT, config

CLOSE = 2e-6
TRAINING = {"steps": 3, "batch_size": 12, "micro_batch_size": 2}
ONE = TRAINING | {"batch_size": 2, "micro_batch_size": 1}
WHOLE = TRAINING | {"micro_batch_size": None}  # one pass a process and step
PACKED = TRAINING | {"micro_batch_size": None, "micro_batch_tokens": 130, "padding": "free"}
LONG = {"steps": 6}  # past the fourth, at which a window ends
K1, K4 = ({"schedule": {"kind": "before_step", "every": every}} for every in (1, 4))
# Where a gradient is 0 but for rounding Adam takes a step of the learning rate's size in either direction.
NLL = {"transform": {"kind": "none"}, "reference": {}, "optimizer": {"lr": 1e-4}}
STEADY = {"optimizer": {"lr": 3e-3, "adam_eps": 1e-3, "max_grad_norm": 0.1}}  # below most norms
FEW: dict[str, tuple[Any, dict[str, Any]]] = {
    "dpo": ("dpo", {}),
    "kto-packed": ("kto", {"training": PACKED | {"activation_checkpointing": True}}),
    "grpo-lora": ("grpo", {"adapter": {"rank": 4, "alpha": 8.0}, "reference": K4 | {"baseline": "initial"}}),
    "model": ("dpo", {"reference": K1 | {"storage": "model"}}),
}
BOUND = REJECT | {"policy_ratio_bound": "batch_max", "ref_ratio_bound": "batch_max"}
STILL = {
    "training": PACKED | {"activation_checkpointing": True, "precision": "bf16"},
    "reference": K4,
    "optimizer": {"lr": 0.0},
}
MANY = FEW | {
    "nll": ({"kind": "nll"}, NLL),
    "nll-whole": ({"kind": "nll"}, NLL | {"training": WHOLE}),
    "dpo-4-whole": ("dpo", STEADY | {"reference": K4, "training": WHOLE | LONG}),
    "dpo-untied": ("dpo", STEADY | {"family": "llama3"}),
    "dpo-checkpointing": ("dpo", {"training": TRAINING | {"activation_checkpointing": True}}),
    "kto": ("kto", {}),
    "kto-4-whole": ("kto", STEADY | {"reference": K4, "training": WHOLE | LONG}),
    "grpo": ("grpo", {}),
    "grpo-4-packed": ("grpo", STEADY | {"reference": K4, "training": PACKED | LONG}),
    "grpo-whole-tied": ("grpo", STEADY | {"training": WHOLE, "family": "gemma2"}),
    "batch_max": ("dpo", {"transform": BOUND}),
    "grpo-idle": (
        "grpo",
        STEADY | {"transform": BOUND, "training": ONE},
    ),  # of three processes two run idle once
    "model-4": ("dpo", STEADY | {"reference": K4 | {"storage": "model"}, "training": TRAINING | LONG}),
}
NARROW: dict[str, tuple[Any, dict[str, Any]]] = {  # in bf16 what is padded beside a row changes its rounding
    "dpo-bf16": ("dpo", STEADY | {"training": TRAINING | {"precision": "bf16"}}),
    "kto-lora-bf16": ("kto", STEADY | {"training": TRAINING | {"precision": "bf16"}, "adapter": {"rank": 2}}),
}


def written(out: Path, jobs: dict[str, Any]) -> Path:
    """Make the folder for what jobs come to, and write them to a file in it."""
    out.mkdir()
    (out / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    return out / "jobs.json"


def launched(processes: int, out: Path, jobs: dict[str, Any], script: str = "shard_run.py") -> None:
    """Run jobs, or what else a script of tests/helpers makes of them, in so many processes that a launcher starts."""
    arguments = [str(ROOT / "tests/helpers" / script), str(out), str(written(out, jobs))]
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", str(free_port())]
    result = subprocess.run(
        [sys.executable, *launcher, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true"},
    )
    assert result.returncode == 0, result.stderr[-9000:]


def jobs_of(toy, out: Path, variants: dict[str, tuple[Any, dict[str, Any]]], sharding: str) -> dict[str, Any]:
    jobs = {}
    for name, (objective, changes) in variants.items():
        tree = {"training": TRAINING, "transform": CLIP, "reference": K1} | changes
        family = tree.pop("family", None)
        files = toy if family is None else toy | {"model": write_paper_model(out.parent / f"model-{family}", family)}
        tree["training"] = tree["training"] | {"sharding": sharding}
        given = config(
            files,
            out / name,
            objective,
            data__eval=toy["held_out"],
            data__max_length=128,
            evaluation={"batch_size": 2, "every": 2},  # 5 shares: one process has one less
            **tree,
        )
        jobs[name] = given.model_dump()
    return jobs


def order_of(run: Path) -> list[Any]:
    return [row["step"] for row in read_metrics(run / "metrics.jsonl") if "step" in row]


def assert_close(one: Path, other: Path, name: str) -> None:
    mine, theirs = (list(read_metrics(out / name / "metrics.jsonl")) for out in (one, other))
    for row, other_row in zip(mine, theirs, strict=True):
        for key in row.keys() - {"kind", "seconds", "tokens_per_second"}:
            assert other_row[key] == pytest.approx(row[key], rel=CLOSE, abs=CLOSE), (name, key)
    started = [json.loads((out / name / "start.json").read_text(encoding="utf-8")) for out in (one, other)]
    assert started[0] == started[1]  # the hash of the weights that are trained, and of those that are not
    weights = [torch.load(out / f"{name}.pt", weights_only=True) for out in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    for key, tensor in weights[0].items():
        torch.testing.assert_close(
            weights[1][key], tensor, rtol=0, atol=CLOSE, msg=lambda text, at=(name, key): f"{at}: {text}"
        )


def test_two_processes_that_share_out_a_policy(toy, tmp_path, server):
    """Losses, gradient norms, z_0, held-out metrics and weights are within 2e-6 of those of one process.

    A pass without gradient gathers each group once and sends nothing else, and an update sends nothing. Where numbers
    of one process are not finite both end in the same words. In bf16, without learning, every log-ratio is exactly 0.
    """
    (tmp_path / "one").mkdir()
    run_jobs(tmp_path / "one", jobs_of(toy, tmp_path / "one", FEW, "none"))
    more = {"counts": ("dpo", {}), "still": ("kto", STILL)}
    jobs = written(tmp_path / "two", jobs_of(toy, tmp_path / "two", FEW | more, "full"))
    server.ranks("tests.helpers.shard_run", tmp_path / "two", jobs, folder=tmp_path, imports=["peft"])
    for name in FEW:
        assert_close(tmp_path / "one", tmp_path / "two", name)
    found, other = (json.loads((tmp_path / f"two/counts-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1))
    groups = found["groups"]
    assert groups == 3
    assert found["scoring"] == {"c10d._allgather_base_": groups}
    assert found["training"] == {"c10d._allgather_base_": 2 * groups - 1, "c10d._reduce_scatter_base_": groups}
    assert found["clip"] == {"c10d.allreduce_": 1}
    assert found["update"] == {}
    nothing, rows, units, gradient, weight = found["said"]
    assert found["said"] == other["said"] and nothing == ""
    assert re.search(r"log-probabilities of pairs.jsonl:\d+#0, pairs.jsonl:\d+#0, pairs.jsonl:\d+#1, \S+#1\. ", rows)
    assert re.search(r"the loss of a micro-batch with pairs.jsonl:\d+, pairs.jsonl:\d+\. ", units)
    assert re.search(r"though not a loss, of a step with (pairs.jsonl:\d+, ){3}pairs.jsonl:\d+\. ", gradient)
    assert "the weights model.model.embed_tokens.weight are not finite" in weight
    rms = [row["log_ratio_rms"] for row in read_metrics(tmp_path / "two/still/metrics.jsonl") if "log_ratio_rms" in row]
    assert rms == [0.0] * 3


@pytest.mark.slow
def test_any_number_of_processes_whole_or_shared_out(toy, tmp_path):
    """One process, two and three, each with a whole policy or with its share, agree within 2e-6 in every variant.

    In bf16 those agree that are as many.
    """
    (tmp_path / "one").mkdir()
    run_jobs(tmp_path / "one", jobs_of(toy, tmp_path / "one", MANY, "none"))
    for processes in (2, 3):
        for sharding in ("none", "full"):
            out = tmp_path / f"{sharding}-{processes}"
            launched(processes, out, jobs_of(toy, out, MANY | NARROW, sharding))
            for name in MANY:
                assert_close(tmp_path / "one", out, name)
        for name in NARROW:
            assert_close(tmp_path / f"none-{processes}", tmp_path / f"full-{processes}", name)


@pytest.mark.slow
def test_no_process_holds_a_whole_model_while_it_starts(tmp_path):
    """Each of two processes holds its rows of a model of 300 million weights, and some rows that it reads once more.

    Most is held where rows of the largest parameters are read: embedding and head are half of this model.
    """
    folder = tmp_path / "model"
    write_model(folder, vocabulary=64_000, hidden=1024, layers=13)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    files = {"model": str(folder), "pairs": "none"}
    given = config(files, tmp_path / "run", training=TRAINING | {"sharding": "full"})
    launched(2, tmp_path / "out", given.model_dump(), "start_run.py")
    found = [json.loads((tmp_path / "out" / f"peak-{rank}.json").read_text()) for rank in (0, 1)]
    assert 0.99 * size < sum(one["rows"] for one in found) < 1.01 * size
    shares = [one["peak"] / size for one in found]
    assert max(shares) < 0.7, shares
