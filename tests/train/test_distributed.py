"""Two processes compute what one does."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest
import torch

from humanline.train.checkpoint import CheckpointError
from humanline.train.config import CheckpointConfig, TrainConfig
from humanline.train.loop import train
from humanline.train.metrics import read_metrics
from tests.conftest import ROOT
from tests.train.kills import result_of
from tests.train.support import CLIP, OBJECTIVES, config, weights

TRAINING = {"steps": 5, "batch_size": 12, "micro_batch_size": 3}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def job(config: TrainConfig, resume: bool = False, stop_after: int = 0, expect: tuple[str, ...] = ("",)) -> dict:
    return {"config": config.model_dump(), "resume": resume, "stop_after": stop_after, "expect": expect}


def two_processes(tmp_path, jobs: list[dict]) -> str:
    """Run jobs (`ddp_run.py`) in two gloo processes, one after the other, and return what they printed."""
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps(jobs))
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    result = subprocess.run(
        [sys.executable, *launcher, "tests/train/ddp_run.py", str(tasks)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true"},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def test_two_ranks_equal_one(toy, tmp_path):
    """Loss, z_0, token counts and weights of two gloo processes are those of one, for every objective."""
    configs = {
        (name, where): config(
            toy,
            tmp_path / f"{name}-{where}",
            name,
            training=TRAINING,
            transform=CLIP,
            data__eval=toy["held_out"],
            evaluation={"batch_size": 2},  # 5 shares for 2 ranks
            reference={"schedule": {"kind": "before_step", "every": 2}},
        )
        for name in OBJECTIVES
        for where in ("one", "two")
    }
    single = {name: train(configs[name, "one"], show_progress=False) for name in OBJECTIVES}
    two_processes(tmp_path, [job(configs[name, "two"]) for name in OBJECTIVES])
    for name in OBJECTIVES:
        output = tmp_path / f"{name}-two"
        mine = list(read_metrics(single[name].metrics))
        theirs = list(read_metrics(output / "metrics.jsonl"))
        for one, two in zip(mine, theirs, strict=True):
            for key in set(one) - {"seconds", "tokens_per_second"}:
                assert two[key] == pytest.approx(one[key], rel=2e-3, abs=2e-5), (name, key)
        from safetensors.torch import load_file

        for key, tensor in load_file(output / "final" / "model.safetensors").items():
            torch.testing.assert_close(tensor, weights(single[name])[key], rtol=1e-3, atol=2e-4)


def test_two_ranks_stop_and_go_on_together(toy, tmp_path):
    """A signal to one process stops both; resumed by two the bits are the same, by one it is refused."""
    whole, stopped, other = (
        config(
            toy,
            tmp_path / name,
            "kto",
            training=TRAINING,
            transform=CLIP,
            data__eval=toy["held_out"],
            evaluation={"batch_size": 2, "every": 2},
            reference={"schedule": {"kind": "before_step", "every": 2}},
            **changes,
        )
        for name, changes in (("whole", {}), ("stopped", {}), ("stopped", {"seed": 9}))
    )
    refused = ("OutputError", "CheckpointError", "MainProcessError")
    said = two_processes(
        tmp_path,
        [
            job(whole),
            job(stopped, stop_after=3, expect=("StopRequested",)),
            job(other, resume=True, expect=refused),  # other settings: both raise, none waits for the other
            job(stopped, expect=refused),  # not without --resume
        ],
    )
    assert re.search("after [34] of 5 updates", said), said  # the second process may read the log a step late
    shutil.copytree(tmp_path / "stopped", tmp_path / "alone")
    (saved,) = (tmp_path / "stopped/checkpoints").iterdir()
    names = {path.name for path in saved.iterdir()}
    assert {"rank-0-reference-0-0.safetensors", "rank-1-reference-0-0.safetensors"} <= names
    with pytest.raises(CheckpointError, match=r"processes +2 +1"):
        train(stopped.model_copy(update={"output": str(tmp_path / "alone")}), resume=True, show_progress=False)
    single = stopped.model_copy(update={"output": str(tmp_path / "single"), "checkpoint": CheckpointConfig(every=2)})
    train(single, show_progress=False)
    shutil.rmtree(tmp_path / "single/final")
    jobs = [job(stopped, resume=True), job(stopped, resume=True), job(single, resume=True, expect=refused)]
    said = two_processes(tmp_path, jobs)
    assert re.search(r"processes +1 +2", said), said
    assert result_of(stopped) == result_of(whole)


def test_a_batch_that_ranks_cannot_share_is_refused(toy):
    """A number of micro-batches that does not divide by the ranks is refused before anything runs."""
    from humanline.train.batch import Unit
    from humanline.train.config import DpoObjective
    from humanline.train.stream import Stream
    from humanline.train.tokens import TokenSequence

    unit = Unit("a", (TokenSequence((1, 2), 1), TokenSequence((1, 3), 1)))
    with pytest.raises(ValueError, match="makes 3 of them, which 2 processes cannot share evenly"):
        Stream(
            [unit] * 9,
            DpoObjective(),
            batch_size=9,
            micro_batch_size=3,
            seed=0,
            pad_id=0,
            max_length=8,
            rank=0,
            ranks=2,
        )
