"""Syncing inside verl's own worker and loop, with a stand-in engine that remembers its weights."""

from __future__ import annotations

import pytest
import torch

from humanline.integrations.verl import settings
from humanline.schedule import BeforeStep

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
    expected = [start + BeforeStep(every=every).snapshot(s) for start in (0, 7) for s in range(7)]
    assert references(engine, worker.engine) == expected
    # Scoring ahead, which wants neither, left the settings of the training pass alone.
    assert all(batch["calculate_entropy"] and batch["compute_loss"] for batch in worker.engine.trained)
    assert worker.engine.modes.count("eval") == 2 + 2 * (7 - 1 - every)


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
