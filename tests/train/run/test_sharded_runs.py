"""What leaves the processes of a run whose weights are shared out: finished models, and weights for a server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from humanline.train.config import TrainConfig
from humanline.train.loop import train
from humanline.train.online.commands import sample
from humanline.train.run.metrics import read_metrics
from humanline.train.run.processes import start_accelerator
from tests.helpers.model_server import ModelServer, bf16
from tests.helpers.scripted_server import serving
from tests.helpers.support import config
from tests.train.online.test_served import online
from tests.train.run.test_distributed import job, two_processes

CLOSE = 2e-6


def fixed(toy, output: Path, sharding: str, **changes) -> TrainConfig:
    training = {"steps": 4, "batch_size": 8, "micro_batch_size": 4, "sharding": sharding}
    return config(toy, output, training=training, **changes)


def rounds(toy, output: Path, url: str, sharding: str, **changes) -> TrainConfig:
    """Rounds at a temperature that is not that of the proof, with more than one pass a step."""
    training = {"batch_size": 4, "micro_batch_size": 2, "temperature": 0.8, "sharding": sharding}
    settings = {"training": training, "checkpoint": {"minutes": None}} | changes
    return online(toy, toy["prompts"], output, url, sampling={"temperature": 0.8}, lr=1e-3, **settings)


def model_of(output: Path) -> dict[str, torch.Tensor]:
    return {
        name: weight
        for path in sorted((output / "final").glob("*.safetensors"))
        for name, weight in load_file(path).items()
    }


def assert_close(one: Path, other: Path) -> None:
    first, second = model_of(one), model_of(other)
    assert first.keys() == second.keys() and first
    for name, weight in first.items():
        assert (weight - second[name]).abs().max() < CLOSE, name


def rows(output: Path, kind: str) -> list[dict]:
    return [row for row in read_metrics(output / "metrics.jsonl") if kind in row]


@pytest.mark.slow
def test_two_processes_export_what_one_trains(toy, tmp_path, capsys):
    """A model in several files, an adapter, and rounds beside a server that is proved to have every round's weights.

    A server that keeps its old weights ends the run in both processes.

    Where the disk has no space for one of the files, every process hears of it, nothing half-written is left, and the
    weights are in a checkpoint, from which the run goes on.
    """
    lora = {"rank": 4, "alpha": 8.0}
    full, small = tmp_path / "full", {"file_bytes": 20_000}
    with serving(ModelServer(toy["model"])) as server:
        for name, changes in (("plain", {}), ("lora", {"adapter": lora})):
            train(fixed(toy, tmp_path / name, "none", **changes), show_progress=False)
        train(rounds(toy, tmp_path / "rounds", server.url, "none"), show_progress=False)
    stale = ModelServer(toy["model"], takes=lambda count: False)
    with serving(ModelServer(toy["model"])) as server, serving(stale) as ignorant:
        said = two_processes(
            tmp_path,
            [
                job(fixed(toy, full / "plain", "full"), expect=("OutputError",)) | small | {"no_file": 2},
                job(fixed(toy, full / "plain", "full"), resume=True) | small,
                job(fixed(toy, full / "lora", "full", adapter=lora)),
                job(rounds(toy, full / "rounds", server.url, "full")) | small,
                job(rounds(toy, full / "stale", ignorant.url, "full"), expect=("SamplerError", "MainProcessError")),
            ],
        )
    assert said.count("could not be written") == 2 and said.count("its weights are in") == 2
    assert len(list((full / "plain" / "final").glob("model-*-of-*.safetensors"))) > 2
    assert "still has those of" in said and len(rows(full / "stale", "round")) == 1
    for name in ("plain", "lora", "rounds"):
        assert_close(tmp_path / name, full / name)
        assert not list((full / name).glob(".*partial"))
    ours, theirs = (rows(folder / "rounds", "round") for folder in (tmp_path, full))
    assert len(ours) == len(theirs) == 3
    for row, other in zip(ours, theirs, strict=True):
        assert other["server_rms"] < 1e-5 and ("server_slope" in row) == ("server_slope" in other)
        assert "server_slope" not in other or other["server_slope"] == pytest.approx(1.0, abs=1e-3)
    for row, other in zip(*(rows(folder / "rounds", "step") for folder in (tmp_path, full)), strict=True):
        for name in ("loss", "grad_norm", "sampler_mismatch_rms"):
            assert other.get(name, 0.0) == pytest.approx(row.get(name, 0.0), abs=CLOSE), name
    starts = [json.loads((folder / "plain" / "start.json").read_text())["start weights"] for folder in (tmp_path, full)]
    assert starts[0] == starts[1]


@pytest.mark.slow
def test_the_next_round_is_sampled_meanwhile(toy, tmp_path):
    """By a second process that holds no model, beside two that share theirs out: as by one that holds a whole one."""
    ahead = {"rounds": {"overlap": True}, "engine": {"proof": None}}
    with serving(ModelServer(toy["model"])) as server:
        train(rounds(toy, tmp_path / "one", server.url, "none", **ahead), show_progress=False)
    with serving(ModelServer(toy["model"])) as server:
        two_processes(tmp_path, [job(rounds(toy, tmp_path / "two", server.url, "full", **ahead))])
    assert_close(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_the_proof_works_where_weights_are_gathered_in_bf16(toy, tmp_path):
    """The policy is then as coarse as a server in bf16: a right one is not refused, one with old weights is found."""
    healthy, stale = (ModelServer(toy["model"], takes=takes, told=bf16) for takes in (lambda _: True, lambda _: False))
    narrow = {"batch_size": 4, "micro_batch_size": 2, "precision": "bf16", "sharding": "full"}
    with serving(healthy) as server, serving(stale) as ignorant:
        two_processes(
            tmp_path,
            [
                job(online(toy, toy["prompts"], tmp_path / "right", server.url, training=narrow)),
                job(
                    online(toy, toy["prompts"], tmp_path / "stale", ignorant.url, training=narrow),
                    expect=("SamplerError", "MainProcessError"),
                ),
            ],
        )
    assert all(row["server_rms"] < 0.1 for row in rows(tmp_path / "right", "round"))


def test_single_stages_work_in_one_process(toy, tmp_path):
    """`humanline sample` takes a recipe that shares weights out: it gives the server a whole model, and proves it."""
    with serving(ModelServer(toy["model"])) as server:
        settings = rounds(toy, tmp_path / "run", server.url, "full")
        out = sample(settings, str(tmp_path / "samples.jsonl"), limit=3, say=lambda text: None)
    assert len(out.read_text().splitlines()) == 3
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    "kind,why", [("FSDP", "too coarse to be compared"), ("DEEPSPEED", "hides the update"), ("XLA", "")]
)
def test_other_ways_to_share_out_are_refused_with_the_reason(monkeypatch, kind, why):
    """What the launcher asks accelerate for, with what to set in its place."""
    monkeypatch.setattr("accelerate.Accelerator", lambda **_: SimpleNamespace(distributed_type=DistributedType(kind)))
    with pytest.raises(ValueError, match=rf"asks for {kind}, which .*{why}.*torchrun.*training.sharding: full"):
        start_accelerator()
