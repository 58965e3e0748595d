"""What people do to a trainer with humanline in it: right, or refused in words, never silently wrong."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed: pip install 'humanline[trl]'")

from humanline.integrations.trl import TrainerError, apply_humanline
from humanline.integrations.trl.kept import FOLDER
from humanline.schedule import Never
from tests.helpers.trl_runs import logged, trained, trainer_of
from tests.integrations.test_trl_resume import CLIP, rows, run

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL and what it loads warn of their own matters
FOLDER_5 = "checkpoint-5"


def subclassed(trainer: Any, **methods: Any) -> Any:
    """Make a trainer one of a subclass with these methods, as a user's own class is."""
    trainer.__class__ = type("Mine", (type(trainer),), methods)
    return trainer


def test_it_goes_in_once_and_before_the_training(toy, tmp_path):
    """A second call is refused, and one after training."""
    trainer = run(toy, tmp_path, max_steps=1, save_strategy="no")
    with pytest.raises(TrainerError, match="in it already: call apply_humanline once"):
        apply_humanline(trainer)
    trained(trainer)
    del trainer._humanline
    with pytest.raises(TrainerError, match="has trained already: call apply_humanline right after making it"):
        apply_humanline(trainer)


@pytest.mark.parametrize("backend", ["EAGER", "NO"])
def test_compiling_by_accelerates_settings_is_refused(toy, tmp_path, monkeypatch, backend):
    """What TRL's arguments do not show: the policy alone would be compiled, so that no log-ratio is 0."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", backend)
    if backend == "NO":
        run(toy, tmp_path, save_strategy="no")
        return
    with pytest.raises(TrainerError, match="ACCELERATE_DYNAMO_BACKEND"):
        run(toy, tmp_path, save_strategy="no")


def test_a_loss_that_goes_around_humanline_does_not_train_on(toy, tmp_path):
    """A subclass with another compute_loss ends the run at its first step; one that calls TRL's has the same losses."""
    expected = logged(trained(run(toy, tmp_path / "a", max_steps=3, save_strategy="no")), "loss")

    def through(self: Any, *arguments: Any, **named: Any) -> Any:
        return super(type(self), self).compute_loss(*arguments, **named)

    def around(self: Any, model: Any, inputs: Any, **named: Any) -> Any:
        return model(input_ids=inputs["input_ids"]).logits.mean()

    mine = subclassed(run(toy, tmp_path / "b", max_steps=3, save_strategy="no"), compute_loss=through)
    assert logged(trained(mine), "loss") == expected
    other = subclassed(run(toy, tmp_path / "c", max_steps=3, save_strategy="no"), compute_loss=around)
    with pytest.raises(RuntimeError, match="step 0: 1 of 1 micro-batches went without TRL's _compute_loss"):
        trained(other)


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (False, "step 0: an update came without accelerator.sync_gradients"),
        (True, "step 0: accelerator.sync_gradients was True at micro-batch 1, which no update followed"),
    ],
)
def test_a_trainer_that_misstates_its_last_micro_batch_does_not_train(toy, tmp_path, says, said):
    """Something else that sets sync_gradients would have switched syncing off, or on within a step."""
    trainer = run(toy, tmp_path, max_steps=3, save_strategy="no")
    before = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    trainer._humanline.trainer = Misstated(trainer, says)
    with pytest.raises(RuntimeError, match=re.escape(said)):
        trained(trainer)
    assert all(torch.equal(one, before[name]) for name, one in trainer.model.state_dict().items())


class Misstated:
    """A trainer whose accelerator says of every micro-batch the same."""

    def __init__(self, trainer: Any, says: bool) -> None:
        self._trainer = trainer
        self.accelerator = SimpleNamespace(sync_gradients=says, reduce=trainer.accelerator.reduce)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def test_a_second_pass_of_a_micro_batch_is_noticed(toy, tmp_path):
    """A subclass that computes the loss twice, to log it or to average, does not train on."""

    def twice(self: Any, *arguments: Any, **named: Any) -> Any:
        super(type(self), self).compute_loss(*arguments, **named)
        return super(type(self), self).compute_loss(*arguments, **named)

    trainer = subclassed(run(toy, tmp_path, max_steps=3, save_strategy="no"), compute_loss=twice)
    with pytest.raises(RuntimeError, match="step 0: loss 2 came at micro-batch 1 of 2"):
        trained(trainer)


def test_one_micro_batch_does_not_vouch_for_its_step(toy, tmp_path):
    """A subclass that goes around TRL's loss now and then is noticed at the first micro-batch of its own."""
    calls = iter(range(99))

    def now_and_then(self: Any, model: Any, inputs: Any, **named: Any) -> Any:
        if next(calls) == 3:
            return model(input_ids=inputs["input_ids"]).logits.mean()
        return super(type(self), self).compute_loss(model, inputs, **named)

    trainer = subclassed(run(toy, tmp_path, max_steps=3, save_strategy="no"), compute_loss=now_and_then)
    with pytest.raises(RuntimeError, match="step 1: 1 of 2 micro-batches went without TRL's _compute_loss"):
        trained(trainer)
    assert trainer.state.global_step == 1


def test_a_callback_that_was_taken_away_is_noticed(toy, tmp_path):
    """Without it nothing would be held against the steps, and other schedules would never sync."""
    trainer = run(toy, tmp_path, max_steps=3, save_strategy="no")
    trainer.remove_callback(trainer._humanline)
    with pytest.raises(RuntimeError, match=r"a loss of step 0, which was not begun.*Leave it among the trainer's"):
        trained(trainer)


def by_hand(trainer: Any, steps: int = 3) -> list[float]:
    """Train in a loop of one's own, as of plain PyTorch, and return the losses."""
    optimizer, losses = torch.optim.AdamW(trainer.model.parameters(), lr=3e-3), []
    trainer.model.train()
    for _, batch in zip(range(steps), trainer.get_train_dataloader(), strict=False):
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_loop_of_ones_own_is_noticed(toy, tmp_path):
    """Outside of train() nothing is synced: the second loss ends it, but for a schedule that never syncs."""
    trainer = run(toy, tmp_path, save_strategy="no", every=1)
    with pytest.raises(
        RuntimeError, match=r"outside of train\(\), and weights have moved since the reference was taken"
    ):
        by_hand(trainer)
    assert trainer.compute_loss(trainer.model.eval(), next(iter(trainer.get_train_dataloader()))) > 0
    never = trainer_of("DPO", toy["model"], tmp_path / "b", rows(), per_device_train_batch_size=2)
    apply_humanline(never, CLIP, Never())
    first, *later = by_hand(never)
    assert first == pytest.approx(math.log(2), abs=1e-6) and len(later) == 2 and first not in later


def test_another_model_is_noticed(toy, tmp_path):
    """A trainer that is given another model after the call does not train with a reference of the first."""
    trainer = run(toy, tmp_path, save_strategy="no")
    trainer.model = run(toy, tmp_path / "b", save_strategy="no").model
    with pytest.raises(RuntimeError, match="another model than apply_humanline was given"):
        trained(trainer)


def test_a_stop_between_our_files_and_trls_leaves_nothing_to_go_on_from(toy, tmp_path, monkeypatch):
    """A checkpoint with a reference and without TRL's state is not resumed from, an overwritten one neither."""
    from transformers import Trainer

    trained(run(toy, tmp_path / "run", max_steps=5))  # an earlier run's checkpoint, which is to be overwritten
    assert (tmp_path / "run" / FOLDER_5 / "trainer_state.json").is_file()
    for folder in (tmp_path / "new", tmp_path / "run"):
        with monkeypatch.context() as stopped:

            def killed(self: Any, *_: Any, **__: Any) -> None:
                raise KeyboardInterrupt

            stopped.setattr(Trainer, "save_model", killed)
            with pytest.raises(KeyboardInterrupt):
                trained(run(toy, folder, learning_rate=1e-2))
        assert (folder / FOLDER_5 / FOLDER).is_dir()
        with pytest.raises(TrainerError, match=r"checkpoint-5 holds no .*: its saving was cut off"):
            trained(run(toy, folder), resume_from_checkpoint=True)


def test_old_checkpoints_go_with_their_reference(toy, tmp_path):
    """save_total_limit leaves the newest checkpoints, each with its own reference, and nothing of the others."""
    trainer = trained(run(toy, tmp_path, save_steps=2, save_total_limit=2))
    kept = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("checkpoint"))
    assert kept == ["checkpoint-6", "checkpoint-8"] and trainer.state.global_step == 8
    for name in kept:
        said = json.loads((tmp_path / name / FOLDER / "settings.json").read_text())
        assert f"checkpoint-{said['step']}" == name


def test_resuming_twice_is_the_same(toy, tmp_path):
    """One trainer that resumes from a checkpoint twice has the losses and weights of the whole run each time."""
    whole = trained(run(toy, tmp_path / "run"))
    trainer = run(toy, tmp_path / "run")
    for _ in range(2):
        trained(trainer, resume_from_checkpoint=str(tmp_path / "run" / FOLDER_5))
        assert logged(trainer, "loss") == logged(whole, "loss")
        now = whole.model.state_dict()
        assert all(torch.equal(one, now[name]) for name, one in trainer.model.state_dict().items())


def test_a_checkpoint_without_its_optimizer_is_refused(toy, tmp_path):
    """With save_only_model the run cannot go on as itself, and says so."""
    trained(run(toy, tmp_path / "run", max_steps=5, save_only_model=True))
    with pytest.raises(TrainerError, match=r"holds no optimizer\.pt.*save_only_model"):
        trained(run(toy, tmp_path / "run"), resume_from_checkpoint=str(tmp_path / "run" / FOLDER_5))


def test_an_interrupted_step_is_not_counted_in_the_next_run(toy, tmp_path):
    """Training begun anew after an interruption within a step counts its own tokens alone."""
    trainer = run(toy, tmp_path, save_strategy="no")
    theirs, calls = trainer._humanline.counts["train"].add, iter(range(99))

    def add(*arguments: Any) -> None:
        theirs(*arguments)
        if next(calls) == 2:
            raise KeyboardInterrupt

    trainer._humanline.counts["train"].add = add
    trainer._humanline.on_train_begin, begin = lambda *_, **__: None, trainer._humanline.on_train_begin
    trainer._humanline.reference.take()
    with pytest.raises(KeyboardInterrupt):
        trained(trainer)
    trainer._humanline.on_train_begin = begin
    trained(trainer)
    assert logged(trainer, "humanline/log_ratio_rms")[-8] == 0


def test_a_last_step_of_fewer_rows_is_a_step(toy, tmp_path):
    """With 7 rows, 2 a micro-batch and 2 of these a step, an epoch's last step has 3 rows, and syncs and counts."""
    trainer = run(toy, tmp_path, max_steps=-1, num_train_epochs=3, save_strategy="no", data=rows(7), every=1)
    seen: list[tuple[int, int]] = []
    theirs = trainer._compute_loss

    def loss(model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        found = theirs(model, inputs, *more, **named)
        own, kept = dict(trainer.model.named_parameters()), trainer._humanline.reference.tensors
        same = all(torch.equal(own[name], one) for name, one in kept.items())
        seen.append((len(inputs["input_ids"]) // 2, int(same)))
        return found

    trainer._compute_loss = loss
    trained(trainer)
    # The first step's reference is the policy; then it is one step behind until the last micro-batch has been scored.
    assert seen == [(2, 1), (2, 1), (2, 0), (1, 1), *((2, 0), (2, 1), (2, 0), (1, 1)) * 2]
    assert len(logged(trainer, "humanline/log_ratio_rms")) == 6
