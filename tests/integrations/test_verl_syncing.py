"""Syncing inside verl's own worker and loop: with a stand-in engine that remembers its weights, and with FSDP2's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from humanline.integrations.verl import settings
from humanline.schedule import BeforeStep
from tests.conftest import ROOT

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Return the helpers around verl's worker, with torch.distributed of one process and syncing installed."""
    pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed here")
    from humanline.integrations.verl import syncing

    store = tmp_path_factory.mktemp("store") / "file"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    syncing.install()
    assert syncing._failure == []
    from tests.helpers import verl_engine

    yield verl_engine
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Give wide bounds, and a worker without a GPU."""
    given = {settings.LOW: "-20", settings.HIGH: "20", "VERL_ENGINE_DEVICE": "cpu", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**given, "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)


def references(helpers, engine) -> list[int]:
    """Return, for each update, which earlier weights its mini-batch was scored with; they are told apart clearly."""
    found = []
    for batch in engine.trained:
        old = helpers.old_log_probs(batch)
        far = [float((helpers.answer_log_probs(engine, batch, table) - old).abs().max()) for table in engine.before]
        close = [t for t, distance in enumerate(far) if distance < 1e-6]
        assert len(close) == 1 and sorted(far)[1] > 1e-4, far
        found.append(close[0])
    return found


@pytest.mark.parametrize("nested", [False, True], ids=["older trainer", "newer trainer"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_which_weights_scored_which_mini_batch(engine, monkeypatch, every, nested):
    """Two rounds of 7 shuffled mini-batches: in each, step s has the weights of `BeforeStep(every).snapshot(s)`."""
    monkeypatch.setenv(settings.SYNC, "before_step")
    monkeypatch.setenv(settings.EVERY, str(every))
    worker = engine.worker("humanline", clip_ratio_c=1e9)
    for start in (0, 7):
        data = engine.round_of(14, start, nested=nested, of=worker)
        metrics = engine.train(worker, data, mini_batch=2, shuffle=True)
        assert metrics["actor/humanline/sync_every"] == [every] * 7
        assert metrics["actor/humanline/synced"] == [0.0] * (every + 1) + [1.0] * (6 - every)
    expected = [start + BeforeStep(every=every).snapshot(s) for start in (0, 7) for s in range(7)]
    assert references(engine, worker.engine) == expected
    # Scoring ahead, which wants neither, left the settings of the training pass alone.
    assert all(batch["calculate_entropy"] and batch["compute_loss"] for batch in worker.engine.trained)
    assert worker.engine.modes.count("eval") == 2 + 2 * (7 - 1 - every)


def test_several_epochs_of_a_round_are_one_count(engine, monkeypatch):
    """`ppo_epochs` 3 of 4 mini-batches are 12 steps of one schedule, whose references do not begin anew."""
    monkeypatch.setenv(settings.SYNC, "before_step")
    monkeypatch.setenv(settings.EVERY, "2")
    worker = engine.worker("humanline", clip_ratio_c=1e9)
    engine.train(worker, engine.round_of(8, 0, nested=True, of=worker), mini_batch=2, shuffle=True, epochs=3)
    assert references(engine, worker.engine) == [BeforeStep(every=2).snapshot(s) for s in range(12)]


@pytest.mark.parametrize("nested", [False, True], ids=["older trainer", "newer trainer"])
def test_micro_batches_of_dynamic_size_keep_each_answers_own_scores(engine, monkeypatch, nested):
    """Where verl sorts answers into micro-batches by length, the scores come back in the mini-batch's order."""
    monkeypatch.setenv(settings.SYNC, "before_step")
    monkeypatch.setenv(settings.EVERY, "1")
    worker = engine.worker("humanline", clip_ratio_c=1e9, tokens=9)
    engine.train(worker, engine.round_of(20, 2, nested=nested, of=worker), mini_batch=5, shuffle=True)
    assert references(engine, worker.engine) == [BeforeStep(every=1).snapshot(s) for s in range(4)]


@pytest.mark.parametrize(("count", "every", "said"), [(4, 3, "SYNC_EVERY=2 or less"), (2, 1, "at least 3")])
def test_a_round_too_short_to_sync_says_so(engine, monkeypatch, count, every, said):
    """With k + 1 mini-batches or fewer all have the round's start, the metric is 0, and a warning tells."""
    monkeypatch.setenv(settings.SYNC, "before_step")
    monkeypatch.setenv(settings.EVERY, str(every))
    worker = engine.worker("humanline", clip_ratio_c=1e9)
    data = engine.round_of(2 * count, 0, nested=True, of=worker)
    with pytest.warns(UserWarning, match=f"moved no reference in a round of {count} mini-batches.*{said}"):
        metrics = engine.train(worker, data, mini_batch=2)
    assert metrics["actor/humanline/synced"] == [0.0] * count
    assert references(engine, worker.engine) == [0] * count


def test_a_run_that_goes_on_elsewhere_is_the_same_run(engine, monkeypatch):
    """Nothing is kept between rounds: another process with the weights of a checkpoint takes the same updates."""
    monkeypatch.setenv(settings.SYNC, "before_step")
    whole, ended, resumed = (engine.worker("humanline", clip_ratio_c=1e9) for _ in range(3))
    for worker, start in ((whole, 0), (whole, 7), (ended, 0), (resumed, 7)):
        if worker is resumed:
            worker.engine.table.data.copy_(ended.engine.table.data)
        engine.train(worker, engine.round_of(10, start, nested=True, of=worker), mini_batch=2, shuffle=True)
    assert torch.equal(whole.engine.table, resumed.engine.table)
    for ours, theirs in zip(whole.engine.trained[5:], resumed.engine.trained, strict=True):
        assert torch.equal(engine.old_log_probs(ours), engine.old_log_probs(theirs))


def test_an_error_in_a_round_leaves_nothing_behind(engine, monkeypatch):
    """After a round that failed halfway, the loss outside of a round is refused as before one."""
    from humanline.integrations.verl import syncing

    monkeypatch.setenv(settings.SYNC, "before_step")
    worker = engine.worker("humanline", clip_ratio_c=1e9)
    data = engine.round_of(8, 0, nested=True, of=worker)
    steps = iter([worker.engine.optimizer_step, None])
    monkeypatch.setattr(worker.engine, "optimizer_step", lambda: next(steps)())
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        engine.train(worker, data, mini_batch=2)
    assert syncing.moved() is None and syncing._worker.get() is None


@pytest.mark.parametrize("nested", [False, True], ids=["older trainer", "newer trainer"])
def test_references_of_the_server_that_sampled_are_refused(engine, monkeypatch, nested):
    """In bypass mode a round would begin with that server's log-probabilities and go on with the engine's."""
    monkeypatch.setenv(settings.SYNC, "before_step")
    worker = engine.worker("humanline", clip_ratio_c=1e9)
    data = engine.round_of(8, 0, nested=nested, of=worker)
    data["rollout_log_probs"] = data["old_log_probs"].clone()
    with pytest.raises(ValueError, match="Set bypass_mode=false"):
        engine.train(worker, data, mini_batch=2)
    data = engine.round_of(8, 0, nested=nested, of=worker)
    data["rollout_log_probs"] = data["old_log_probs"] + 1e-3
    engine.train(worker, data, mini_batch=2)


def test_ray_finds_how_to_call_the_changed_method(engine):
    """An attribute of a worker's method tells Ray how to call it, and the change keeps it."""
    from verl.single_controller.base.decorator import MAGIC_ATTR
    from verl.workers.engine_workers import TrainingWorker

    assert getattr(TrainingWorker.train_mini_batch, MAGIC_ATTR) == getattr(
        TrainingWorker.train_mini_batch.__wrapped__, MAGIC_ATTR
    )


@pytest.mark.parametrize(
    ("processes", "strategy", "layout", "every", "epochs"),
    [(2, "fsdp", "nested", 3, 1), (1, "fsdp2", "padded", 2, 1), (2, "fsdp2", "nested", 1, 2)],
)
def test_verls_own_fsdp_engines(engine, tmp_path, processes, strategy, layout, every, epochs):
    """Two rounds of 7 mini-batches: a plain model with the weights of `snapshot` gives the references to 2e-5."""
    from tests.helpers import verl_fsdp

    verl_fsdp.make_model(tmp_path)
    told = [str(tmp_path), strategy, layout, str(every), str(epochs)]
    command = [sys.executable, "-m", "tests.helpers.verl_fsdp", *told]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HUMANLINE_")}
    log = tmp_path / "stderr"
    with log.open("w") as errors:
        ranks = [{**outside, "RANK": str(rank), "WORLD_SIZE": str(processes)} for rank in range(processes)]
        piped = {"stdout": subprocess.PIPE, "stderr": errors, "text": True, "cwd": ROOT}
        started = [subprocess.Popen(command, env=environment, **piped) for environment in ranks]
        said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes, log.read_text()[-2000:]
    for lines in said:
        rounds = [json.loads(line) for line in lines.splitlines() if line.startswith("[[")]
        assert len(rounds) == 2
        for found in rounds:
            assert [at for at, _, _ in found] == [BeforeStep(every=every).snapshot(s) for s in range(7 * epochs)]
            assert all(near < 2e-5 and after > 1e-3 for _, near, after in found)


@pytest.mark.parametrize("loss_mode", ["humanline", "vanilla"])
def test_without_the_name_a_round_has_one_reference(engine, monkeypatch, loss_mode):
    """Off unless named, and never for another loss: the start of the round scored all of it, as in plain verl."""
    if loss_mode == "vanilla":
        monkeypatch.setenv(settings.SYNC, "before_step")
    worker = engine.worker(loss_mode, clip_ratio_c=1e9)
    engine.train(worker, engine.round_of(8, 3, nested=True, of=worker), mini_batch=2, shuffle=False)
    assert references(engine, worker.engine) == [0] * 4


@pytest.mark.parametrize(("strategy", "said"), [("megatron", "strategy=fsdp2"), ("veomni", "strategy=fsdp2")])
def test_engines_that_were_not_tried_are_refused(engine, monkeypatch, strategy, said):
    """Another engine is refused at the first round, with the one to use."""
    monkeypatch.setenv(settings.SYNC, "before_step")
    worker = engine.worker("humanline", clip_ratio_c=1e9, strategy=strategy)
    data = engine.round_of(4, 0, nested=True, of=worker)
    with pytest.raises(ValueError, match=said):
        engine.train(worker, data, mini_batch=2, shuffle=False)


def test_sequence_parallelism_is_refused(engine, monkeypatch):
    """There verl hands the scores to one process of several only."""
    monkeypatch.setenv(settings.SYNC, "before_step")
    worker = engine.worker("humanline", clip_ratio_c=1e9)
    object.__setattr__(worker.engine_config, "ulysses_sequence_parallel_size", 2)
    with pytest.raises(ValueError, match="ulysses_sequence_parallel_size=1"):
        engine.train(worker, engine.round_of(4, 0, nested=True, of=worker), mini_batch=2, shuffle=False)


def test_a_loop_that_takes_another_way_is_noticed(engine, monkeypatch):
    """Were verl to make its mini-batches elsewhere, the loss would stop the run instead of training unsynced."""
    from verl.utils import tensordict_utils as tu

    monkeypatch.setenv(settings.SYNC, "before_step")
    worker = engine.worker("humanline", clip_ratio_c=1e9)
    data = engine.round_of(4, 0, nested=True, of=worker)
    monkeypatch.setattr(tu, "make_iterator", tu.make_iterator.__wrapped__)
    with pytest.raises(ValueError, match="took another way to the loss"):
        engine.train(worker, data, mini_batch=2, shuffle=False)
