"""Runs whose weights are shared out go on from their checkpoints, shared out or whole, to the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from humanline.system.stop import StopRequested
from humanline.train.loop import train
from humanline.train.run.checkpoint import CheckpointError
from humanline.train.run.shares import Saved
from tests.helpers.cases import case, moved
from tests.helpers.kills import result_of
from tests.train.run.test_distributed import job, spread, two_processes

SLOW = pytest.mark.slow
EIGHT = {"optimizer": {"lr": 3e-3, "states": "8bit"}}
UNSEEN = {"evaluation": {}, "data__eval": None}
LORA = {"adapter": {"rank": 4, "alpha": 8.0}}


class AfterFour:
    """A StopSignal that asks to stop after four updates."""

    holding = True

    def __init__(self, output) -> None:
        self.metrics = Path(output) / "metrics.jsonl"

    def hold(self) -> None:
        """Do nothing: it never raises by itself."""

    @property
    def requested(self) -> str | None:
        return "SIGTERM" if self.metrics.exists() and '"step": 3' in self.metrics.read_text() else None


def stopped(one, output, sharding: str):
    one = spread(moved(one, output), sharding)
    with pytest.raises(StopRequested, match="after 4 of 7"):
        train(one, stop=AfterFour(output), show_progress=False)
    return one


@pytest.mark.parametrize(
    "objective,schedule,storage,changes",
    [
        pytest.param("kto", "before_3", "score_ahead", {}, id="score_ahead"),
        pytest.param("dpo", "after_2", "model", {}, id="model", marks=SLOW),
        pytest.param("dpo", "before_3", "score_ahead", LORA, id="lora", marks=SLOW),
    ],
)
def test_one_process_goes_on_shared_out_or_whole(toy, tmp_path, objective, schedule, storage, changes):
    """Stopped in mid-window and resumed with another training.sharding, or the same, a run ends with the same bits."""
    one = case(toy, tmp_path / "whole", objective, schedule, storage, **changes)
    train(one, show_progress=False)
    expected = result_of(one)
    for before, after in (("full", "none"), ("none", "full"), ("full", "full")):
        run = stopped(one, tmp_path / f"{before}-{after}", before)
        newest = Path(run.output) / "checkpoints" / "step-00000004"
        sliced = {path.name for path in newest.glob("*-slices-*")}
        assert ("policy-slices-0-0.safetensors" in sliced) == ("optimizer-slices-0-0.safetensors" in sliced)
        assert bool(sliced) == (before == "full")
        train(spread(run, after), resume=True, show_progress=False)
        assert result_of(run) == expected, (before, after)


def test_eight_bit_states_stay_as_they_were_cut(toy, tmp_path):
    """A run with 8-bit states goes on with the same training.sharding, and is told so where that is another."""
    pytest.importorskip("torchao")
    one = case(toy, tmp_path / "whole", "dpo", "before_1", "score_ahead", **EIGHT, **UNSEEN)
    train(one, show_progress=False)
    run = stopped(one, tmp_path / "full", "full")
    with pytest.raises(CheckpointError, match=r"8-bit states .* sharded over 1 processes and are to be read whole"):
        train(spread(run, "none"), resume=True, show_progress=False)
    train(run, resume=True, show_progress=False)
    assert result_of(run) == result_of(one)


def test_a_damaged_slice_is_skipped(toy, tmp_path, capsys):
    """A checkpoint without one of its slices, or with one cut off, is skipped by name; the one before it is taken."""
    one = case(toy, tmp_path / "whole", "dpo", "before_1", "score_ahead")
    run = stopped(one, tmp_path / "run", "full")
    slices = Path(run.output) / "checkpoints/step-00000004/policy-slices-0-0.safetensors"
    slices.write_bytes(slices.read_bytes()[:-5])
    with pytest.raises(StopRequested):
        train(run, resume=True, stop=AfterFour(run.output))
    said = capsys.readouterr().err
    assert re.search(r"step-00000004: policy-slices-0-0.safetensors has \d+ bytes in place of \d+", said)
    assert "going on after 2 updates" in said


def test_what_is_saved_is_what_is_trained(toy, tmp_path):
    """The slices of a checkpoint make up the whole float32 weights, by name, and none of its files is a pickle."""
    run = stopped(case(toy, tmp_path / "whole", "dpo", "before_1", "score_ahead"), tmp_path / "run", "full")
    newest = Path(run.output) / "checkpoints" / "step-00000004"
    saved = Saved.in_files(newest.glob("policy-*.safetensors"))
    weights = {name: tensor.shape for name, tensor in load_file(Path(toy["model"]) / "model.safetensors").items()}
    assert {name.removeprefix("model."): tensor.shape for name, tensor in saved.items()} == weights
    assert {saved.kind(name)[1] for name in saved} == {torch.float32}
    for path in newest.iterdir():
        held = path.read_bytes()
        assert held[8:9] == b"{" if path.suffix == ".safetensors" else held.decode()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="float32", marks=SLOW),
        pytest.param(LORA, id="lora", marks=SLOW),
        pytest.param(EIGHT | UNSEEN, id="8bit", marks=SLOW),
    ],
)
def test_two_processes_that_share_out_a_policy_go_on(toy, tmp_path, changes):
    """Two processes, stopped and resumed, end with the same bits, held-out scores too; each wrote its own slices."""
    whole = spread(case(toy, tmp_path / "whole", "kto", "before_3", "score_ahead", **changes), "full")
    run = moved(whole, tmp_path / "stopped")
    two_processes(tmp_path, [job(whole), job(run, stop_after=4, expect=("StopRequested",)), job(run, resume=True)])
    assert result_of(run) == result_of(whole)
    saved = {path.name for path in (tmp_path / "stopped/checkpoints").glob("step-*/*")}
    assert {f"{part}-slices-{rank}-0.safetensors" for part in ("policy", "optimizer") for rank in (0, 1)} <= saved
