"""The parts of humanline inside TRL, on stand-ins for its trainers: TRL need not be installed."""

from __future__ import annotations

import json
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from humanline.integrations.trl import TrainerError, kept
from humanline.integrations.trl.counts import Counts
from humanline.integrations.trl.hooks import Humanline
from humanline.integrations.trl.reference import Reference
from humanline.integrations.trl.stand_ins import Replayed, Scored, Unscored
from humanline.schedule import AfterStep, BeforeStep, EachRound, Never
from humanline.theory import ClipRange

SETTINGS = {"clip": {"low": -1.5, "high": 1.5}, "schedule": {"kind": "before_step", "every": 1}}


class Tied(nn.Module):
    """An embedding whose weight is the head's too, a frozen layer, and a layer that is trained."""

    is_gradient_checkpointing = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.frozen, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, input_ids: Tensor, labels: Tensor, fused_lm_head: bool = False) -> Any:
        """Return log-probabilities as TRL's fused head does."""
        hidden = self.layer(self.frozen(self.embed(input_ids)).tanh())
        found = self.head(hidden)[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None])[..., 0]
        return SimpleNamespace(log_probs=found.masked_fill(labels[:, 1:] == -100, 0))


def ids(rows: int = 2) -> dict[str, Any]:
    given = torch.randint(7, (rows, 6), generator=torch.Generator().manual_seed(1))
    return {"input_ids": given, "labels": given.clone(), "fused_lm_head": True}


class Trainer:
    """The moments of a trainer's life, with a loss as TRL's DPO calls its models."""

    def __init__(self, accumulation: int = 1) -> None:
        self.model, self.accumulation = Tied(), accumulation
        self.ref_model: Any = Tied()
        self.beta, self.is_in_train = 0.1, True
        self.args = SimpleNamespace(gradient_checkpointing_kwargs=None, should_save=True)
        self.state = SimpleNamespace(global_step=0)
        self.accelerator = SimpleNamespace(
            sync_gradients=True, reduce=lambda sums, reduction: sums, free_memory=lambda: None
        )
        self._metrics: dict[str, Any] = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.optimizer = torch.optim.SGD([one for one in self.model.parameters() if one.requires_grad], lr=0.5)
        self.saw: list[tuple[int, dict[str, Tensor]]] = []

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        policy = model(**inputs).log_probs
        self.saw.append((self.state.global_step, {n: t.clone() for n, t in self.hooks.reference.tensors.items()}))
        return -(policy - self.ref_model(**inputs).log_probs).sum()

    def _save_checkpoint(self, model: Any, trial: Any) -> None: ...

    def _load_from_checkpoint(self, folder: Any) -> None: ...

    def add_callback(self, hooks: Humanline) -> None:
        self.hooks = hooks

    def train(self, steps: int) -> list[dict[str, Tensor]]:
        """Return the weights before each update."""
        past = []
        self.hooks.on_train_begin(self.args, self.state, None)
        for _ in range(steps):
            past.append({name: one.detach().clone() for name, one in self.model.named_parameters()})
            self.hooks.on_step_begin(self.args, self.state, None)
            for micro in range(self.accumulation):
                self.accelerator.sync_gradients = micro == self.accumulation - 1
                self._compute_loss(self.model, ids()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.state.global_step += 1
            self.hooks.on_step_end(self.args, self.state, None)
        return past


def with_humanline(schedule: Any, clip: ClipRange = ClipRange(-0.1, 0.1), accumulation: int = 1) -> Trainer:  # noqa: B008
    trainer = Trainer(accumulation)
    Humanline(trainer, "DPOTrainer", clip, schedule).attach()
    return trainer


SCHEDULES = [Never(), *(BeforeStep(every=k) for k in (1, 2, 3)), AfterStep(every=2), EachRound(round_steps=3)]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_each_loss_sees_the_reference_that_the_schedule_says(schedule, accumulation):
    """All micro-batches of step s are scored with the weights of `snapshot(s)`, bit for bit."""
    trainer = with_humanline(schedule, accumulation=accumulation)
    past = trainer.train(8)
    assert len(trainer.saw) == 8 * accumulation
    for step, tensors in trainer.saw:
        of = past[schedule.snapshot(step)]
        assert all(torch.equal(of[name], one) for name, one in tensors.items()), step
    assert not torch.equal(past[0]["layer.weight"], past[7]["layer.weight"])


def test_what_is_counted_is_counted_over_a_step():
    """One number a step and name, over the tokens of all its micro-batches."""
    trainer = with_humanline(BeforeStep(every=1), accumulation=3)
    trainer.train(4)
    found = trainer._metrics["train"]
    assert {name: len(one) for name, one in found.items()} == {
        f"humanline/{name}": 4 for name in ("clipped_low", "clipped_high", "log_ratio_rms")
    }
    assert found["humanline/log_ratio_rms"][0] == 0 < found["humanline/log_ratio_rms"][1]


def test_counts_are_those_of_plain_numbers():
    """Shares of the tokens that count, with other processes added, and the root of the mean square."""
    counts, mask = Counts(), torch.tensor([[True, True, False], [True, True, True]])
    counts.add(torch.tensor([[-2.0, 1.0, 9.0], [2.0, 0.5, 3.0]]) * mask, mask, ClipRange(-1.5, 1.5))
    counts.add(torch.tensor([[0.0]]), torch.tensor([[True]]), ClipRange(-1.5, 1.5))
    found = counts.taken(lambda sums: 2 * sums)
    assert found == pytest.approx({"clipped_low": 1 / 6, "clipped_high": 2 / 6, "log_ratio_rms": (18.25 / 6) ** 0.5})


def test_a_reference_holds_what_is_trained_once_and_is_no_alias():
    """It holds neither frozen nor tied tensors twice, scores as a deep copy would, and gives no gradient."""
    model = Tied()
    reference = Reference(model)
    reference.take()
    assert set(reference.tensors) == {"embed.weight", "layer.weight", "layer.bias"}
    before = model(**ids()).log_probs.detach().clone()
    with torch.no_grad():
        model.embed.weight.mul_(2)
        model.layer.weight.add_(1)
    after = model(**ids()).log_probs
    found = reference(**ids()).log_probs
    assert torch.equal(found, before) and not torch.allclose(after, before) and not found.requires_grad
    assert torch.equal(model(**ids()).log_probs, after)  # the model has its own weights again
    storage = {name: one.data_ptr() for name, one in reference.tensors.items()}
    reference.take()
    assert torch.equal(reference(**ids()).log_probs, after)
    assert {name: one.data_ptr() for name, one in reference.tensors.items()} == storage


def test_clipped_tokens_have_no_gradient_and_others_theirs():
    """The loss of clipped log-probabilities moves no weight where all tokens are beyond the range."""
    trainer = with_humanline(Never(), ClipRange(-1e-6, 1e-6))
    trainer.train(1)
    trainer._compute_loss(trainer.model, ids()).backward()
    assert all(one.grad is None or not one.grad.any() for one in trainer.model.parameters())
    trainer.hooks.clip = ClipRange(-50, 50)
    trainer._compute_loss(trainer.model, ids()).backward()
    assert trainer.model.layer.weight.grad.any()


def test_a_loss_that_asks_otherwise_is_noticed():
    """A reference asked for other rows than the policy, twice, or never, is an error and not another number."""
    replayed, rows = Replayed(), ids()
    zeros = torch.zeros(2, 5)
    replayed.scored.append(Scored(rows["input_ids"], zeros.bool(), zeros, zeros, zeros))
    with pytest.raises(RuntimeError, match="other rows than the policy"):
        replayed(input_ids=rows["input_ids"] + 1)
    assert torch.equal(replayed(input_ids=rows["input_ids"].clone()).log_probs, zeros)
    with pytest.raises(RuntimeError, match="other rows than the policy"):
        replayed(input_ids=rows["input_ids"])
    trainer = with_humanline(Never())
    trainer.ref_model = lambda **_: SimpleNamespace(log_probs=0.0)  # as if the loss had another reference
    with pytest.raises(RuntimeError, match="did not ask its reference"):
        trainer.train(1)
    assert Unscored()(labels=torch.zeros(2, 6)).log_probs.shape == (2, 5)


def test_a_kept_reference_is_read_as_it_was(tmp_path):
    """What is written beside a checkpoint is read to the same bits, bf16 too; another model's is refused."""
    tensors = {"a": torch.randn(3, 2), "b": torch.randn(4).bfloat16()}
    kept.write(tmp_path / "checkpoint-3", tensors, 3, SETTINGS)
    step, found = kept.read(tmp_path / "checkpoint-3", SETTINGS)
    assert step == 3 and found.keys() == tensors.keys()
    assert all(torch.equal(one, tensors[name]) and one.dtype == tensors[name].dtype for name, one in found.items())
    folder = tmp_path / "checkpoint-3" / kept.FOLDER
    assert {path.name for path in folder.iterdir()} == {"reference.safetensors", "settings.json", "manifest.json"}
    reference = Reference(Tied())
    with pytest.raises(ValueError, match="tensors are not those that the model trains, the first a"):
        reference.become(found)


def test_settings_that_were_edited_are_noticed(tmp_path):
    """A changed settings file is refused by its checksum."""
    kept.write(tmp_path / "checkpoint-3", {"a": torch.ones(1)}, 3, SETTINGS)
    path = tmp_path / "checkpoint-3" / kept.FOLDER / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"step": 4}))
    with pytest.raises(TrainerError, match=r"settings\.json has"):
        kept.read(tmp_path / "checkpoint-3", SETTINGS)
