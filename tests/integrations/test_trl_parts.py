"""The parts of humanline inside TRL, on stand-ins for its trainers: TRL need not be installed."""

from __future__ import annotations

import json
import math
import operator
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from humanline.integrations.trl import TrainerError, kept, stand_ins
from humanline.integrations.trl.counts import Counts
from humanline.integrations.trl.hooks import Humanline
from humanline.integrations.trl.reference import Reference
from humanline.integrations.trl.stand_ins import Replayed, Scored, Unscored, tell_grpo
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
        self.beta, self.is_in_train = 0.1, False
        self.args = SimpleNamespace(
            gradient_checkpointing_kwargs=None, should_save=True, gradient_accumulation_steps=accumulation
        )
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
        self.is_in_train = True
        self.tell("on_train_begin")
        for _ in range(steps):
            past.append({name: one.detach().clone() for name, one in self.model.named_parameters()})
            self.tell("on_step_begin")
            for micro in range(self.accumulation):
                last = micro == self.accumulation - 1
                self.accelerator.sync_gradients = self.says_last(last)
                self.training_step(micro)
                if not last:
                    self.tell("on_substep_end")
            self.tell("on_pre_optimizer_step")
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.state.global_step += 1
            self.tell("on_step_end")
        self.is_in_train = False
        return past

    def tell(self, event: str) -> None:
        """Call the hooks."""
        getattr(self.hooks, event)(self.args, self.state, None)

    def says_last(self, last: bool) -> bool:
        """Return what the accelerator is to say of a micro-batch."""
        return last

    def training_step(self, micro: int) -> None:
        """Compute a micro-batch's loss, and its gradient."""
        self._compute_loss(self.model, ids()).backward()


def with_humanline(schedule: Any, clip: ClipRange = ClipRange(-0.1, 0.1), accumulation: int = 1) -> Trainer:  # noqa: B008
    trainer = Trainer(accumulation)
    Humanline(trainer, "DPOTrainer", clip, schedule).attach()
    return trainer


SCHEDULES = [Never(), *(BeforeStep(every=k) for k in (1, 2, 3)), AfterStep(every=2), EachRound(round_steps=3)]


@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.slow), 3])
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


def moved(trainer: Trainer) -> bool:
    """Return whether a weight is another than at the start."""
    return any(
        not torch.equal(one, kept) for one, kept in zip(trainer.model.parameters(), Tied().parameters(), strict=True)
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_an_update_that_was_never_said_to_come_is_stopped_before_it(schedule, accumulation):
    """Where sync_gradients is always False nothing would ever be synced: the first update is not taken."""
    trainer = with_humanline(schedule, accumulation=accumulation)
    trainer.says_last = lambda last: False  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=r"step 0: an update came without accelerator\.sync_gradients.*Take away"):
        trainer.train(2)
    assert not moved(trainer)


def test_a_micro_batch_that_is_called_the_last_too_early_is_noticed():
    """Where sync_gradients is always True the reference would move within a step: no update is taken."""
    trainer = with_humanline(BeforeStep(every=1), accumulation=3)
    trainer.says_last = lambda last: True  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=r"step 0: accelerator\.sync_gradients was True at micro-batch 1, which"):
        trainer.train(1)
    assert not moved(trainer)


@pytest.mark.parametrize("around", [0, 1, 2])
def test_one_micro_batch_does_not_vouch_for_a_step(around):
    """Each micro-batch has to come through the clip; one that does not stops the step before its update."""
    trainer = with_humanline(BeforeStep(every=1), accumulation=3)

    def step(micro: int) -> None:
        if micro == around:
            trainer.model(**ids()).log_probs.sum().backward()
        else:
            trainer._compute_loss(trainer.model, ids()).backward()

    trainer.training_step = step  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=r"1 of \d micro-batches went without TRL's _compute_loss, so nothing was"):
        trainer.train(1)
    assert not moved(trainer)


@pytest.mark.parametrize(("accumulation", "twice"), [(1, 0), (3, 0), (3, 2)])
def test_a_second_loss_of_a_micro_batch_is_noticed(accumulation, twice):
    """Its reference may be another by then; one with the model in eval() counts for nothing, and does no harm."""
    trainer = with_humanline(BeforeStep(every=1), accumulation=accumulation)

    def step(micro: int) -> None:
        trainer.model.eval()
        trainer._compute_loss(trainer.model, ids())
        trainer.model.train()
        for _ in range(1 + (micro == twice)):
            trainer._compute_loss(trainer.model, ids()).backward()

    trainer.training_step = step  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=f"loss {twice + 2} came at micro-batch {twice + 1} of {accumulation}"):
        trainer.train(1)
    assert not moved(trainer)
    twice = -1
    trainer.train(2)
    assert moved(trainer)


def test_more_micro_batches_than_the_trainer_says_are_noticed():
    """A loop that takes more of them than gradient_accumulation_steps has a step of another size than was said."""
    trainer = with_humanline(BeforeStep(every=1), accumulation=3)
    trainer.args.gradient_accumulation_steps = 2
    with pytest.raises(RuntimeError, match=r"step 0: loss 3 came at micro-batch 3 of 2 \(gradient_accumulation_steps"):
        trainer.train(1)


def test_a_loss_that_failed_may_be_computed_again():
    """One that ended in an error was not trained on, and is not counted."""
    trainer = with_humanline(BeforeStep(every=1))
    theirs, failed = trainer.model.forward, []

    def fail(*given: Any, **named: Any) -> Any:
        failed.append(1)
        raise MemoryError

    def step(micro: int) -> None:
        if not failed:
            trainer.model.forward = fail  # type: ignore[method-assign]
            with pytest.raises(MemoryError):
                trainer._compute_loss(trainer.model, ids())
            trainer.model.forward = theirs  # type: ignore[method-assign]
        trainer._compute_loss(trainer.model, ids()).backward()

    trainer.training_step = step  # type: ignore[method-assign]
    trainer.train(2)
    assert moved(trainer) and failed


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_trainer_that_does_not_tell_of_its_steps(schedule):
    """Without being told that steps begin nothing could be held against them: refused before the first update."""
    trainer, tell = with_humanline(schedule), Trainer.tell
    trainer.tell = lambda event: None if event == "on_step_begin" else tell(trainer, event)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a loss of step 0, which was not begun: humanline's callback"):
        trainer.train(1)
    assert not moved(trainer)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_trainer_that_does_not_tell_of_its_updates(schedule):
    """Where a sync hangs on it the first step ends the run; other schedules do not miss it."""
    trainer, tell = with_humanline(schedule), Trainer.tell
    trainer.tell = lambda event: None if event == "on_pre_optimizer_step" else tell(trainer, event)  # type: ignore[method-assign]
    if not isinstance(schedule, BeforeStep):
        trainer.train(2)
        return
    with pytest.raises(
        RuntimeError, match=r"step 0 was taken without the sync before it that kind='before_step'.*asks"
    ):
        trainer.train(1)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_no_copy_is_held_while_the_gradients_of_a_sync_are_computed(accumulation):
    """From the last loss of a step that syncs until its update the model itself is what the copy would be of."""
    trainer = with_humanline(BeforeStep(every=2), accumulation=accumulation)
    held: list[int] = []

    def step(micro: int) -> None:
        loss = trainer._compute_loss(trainer.model, ids())
        held.append(len(trainer.hooks.reference.tensors))
        loss.backward()

    trainer.training_step = step  # type: ignore[method-assign]
    trainer.train(4)
    syncing = [3] * (accumulation - 1) + [0]
    assert held == [*syncing, *[3] * accumulation] * 2


def test_an_evaluation_between_a_sync_and_its_update_is_against_the_new_reference():
    """The copy is made for it; the step goes on with the same."""
    trainer = with_humanline(BeforeStep(every=1))
    seen: list[float] = []

    def step(micro: int) -> None:
        loss = trainer._compute_loss(trainer.model, ids())
        trainer.model.eval()
        seen.append(float(trainer._compute_loss(trainer.model, ids()).detach()))
        trainer.model.train()
        loss.backward()

    trainer.training_step = step  # type: ignore[method-assign]
    past = trainer.train(3)
    assert seen == [0, 0, 0]
    found = trainer.hooks.reference.tensors
    assert all(torch.equal(past[2][name], one) for name, one in found.items()) and len(found) == 3


def test_weights_that_move_between_loss_and_update_are_noticed():
    """The copy would be of others than the policy that was scored."""
    trainer = with_humanline(BeforeStep(every=1))

    def step(micro: int) -> None:
        trainer._compute_loss(trainer.model, ids()).backward()
        with torch.no_grad():
            trainer.model.layer.bias.add_(1)

    trainer.training_step = step  # type: ignore[method-assign]
    with pytest.raises(
        RuntimeError, match=r"1 weights changed between a step's last loss and its update, the first lay"
    ):
        trainer.train(1)


@pytest.mark.parametrize("hook", ["register_post_accumulate_grad_hook", "register_hook"])
def test_optimizers_that_update_layer_by_layer_have_the_copy_taken_before(hook):
    """Where weights move within the backward pass the reference is that from before it, and syncs as it should."""
    trainer = with_humanline(BeforeStep(every=1))

    def update(one: nn.Parameter, grad: Tensor | None = None) -> None:
        with torch.no_grad():
            one.sub_(0.5 * (one.grad if grad is None else grad))
        one.grad = None

    for one in trainer.model.parameters():
        if one.requires_grad:
            getattr(one, hook)(update if hook != "register_hook" else lambda grad, one=one: update(one, grad))
    past = trainer.train(4)
    for step, tensors in trainer.saw:
        of = past[BeforeStep(every=1).snapshot(step)]
        assert all(torch.equal(of[name], one) for name, one in tensors.items()), step
    assert moved(trainer)


def test_an_update_without_the_sync_before_it_is_noticed():
    """Where a step is counted as another than that of its loss, the one that needed a sync has none."""
    trainer = with_humanline(BeforeStep(every=3))

    def step(micro: int) -> None:
        trainer._compute_loss(trainer.model, ids()).backward()
        trainer.state.global_step += trainer.state.global_step == 2

    trainer.training_step = step  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="step 3 was taken without the sync before it that kind='before_step'"):
        trainer.train(4)


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


def noisy(trainer: Trainer, noise: Any) -> Trainer:
    """Have a layer's output pass through this in training, as dropout does that no module shows."""
    trainer.model.layer.register_forward_hook(lambda layer, _, out: noise(out) if layer.training else out)
    return trainer


def test_noise_that_no_module_shows_ends_the_run_before_its_first_update():
    """Two passes of the same weights that draw and differ are an error, in any micro-batch of the first step."""
    for accumulation in (1, 2):
        trainer = noisy(with_humanline(BeforeStep(every=1), accumulation=accumulation), nn.functional.dropout)
        with pytest.raises(
            RuntimeError, match=r"same weights differ by up to .* nats a token: it has dropout or noise"
        ):
            trainer.train(1)
        assert not moved(trainer)
    passes: list[int] = []

    def late(out: Tensor) -> Tensor:
        passes.append(1)
        torch.rand(1)
        return nn.functional.dropout(out) if len(passes) > 4 else out

    trainer = noisy(with_humanline(BeforeStep(every=1), accumulation=2), late)
    with pytest.raises(RuntimeError, match="same weights differ"):
        trainer.train(1)
    assert len(passes) == 3 + 2 and not moved(trainer)  # the reference twice and the policy, and again


def test_numbers_that_are_drawn_for_nothing_change_nothing(monkeypatch):
    """A model that draws and uses nothing of it trains, its random numbers those of a run without the second pass."""
    runs = []
    for looked in (True, False):
        if not looked:
            monkeypatch.setattr(stand_ins, "without_noise", operator.call)
        passes: list[Tensor] = []
        trainer = noisy(with_humanline(BeforeStep(every=1)), lambda out, to=passes: (to.append(torch.rand(1)), out)[1])
        torch.manual_seed(0)
        trainer.train(3)
        runs.append((len(passes), torch.rand(1), trainer.model.layer.weight))
    assert [one[0] for one in runs] == [2 * 3 + 1, 2 * 3]
    assert torch.equal(runs[0][1], runs[1][1]) and torch.equal(runs[0][2], runs[1][2])


class Grpo(Trainer):
    """One whose loss calls its policy as TRL's GRPO does: `pieces` are slices of the rows, each a call."""

    pieces: tuple[slice, ...] = (slice(None),)

    def __init__(self) -> None:
        super().__init__()
        self.beta = 0.3
        self.kept: list[dict[str, Any]] = []

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        rows = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        width = inputs["completion_ids"].size(1)
        policy = torch.cat([self.score(model, rows[at], width) for at in self.pieces])
        ratio = (policy - inputs["old_per_token_logps"]).exp()
        of_kl = inputs["ref_per_token_logps"] - policy
        self.kept.append(dict(inputs))
        advantages = inputs["advantages"][:, None]
        inner = ratio.clamp(0.8, 1.2)
        loss = -torch.minimum(ratio * advantages, inner * advantages) + self.beta * (of_kl.exp() - of_kl - 1)
        return loss.mean()

    def score(self, model: Any, rows: Tensor, width: int) -> Tensor:
        """Return log-probabilities of a call."""
        labels = rows.clone()
        labels[:, :-width] = -100
        return model(input_ids=rows, labels=labels, fused_lm_head=True).log_probs[:, -width:]


def answers() -> dict[str, Any]:
    given = torch.randint(7, (5, 9), generator=torch.Generator().manual_seed(2))
    tools = torch.ones(5, 6)
    tools[:, 2], tools[3, 1:] = 0, 0
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0])
    return {"prompt_ids": given[:, :3], "completion_ids": given[:, 3:], "advantages": advantages, "tool_mask": tools}


def grpo_step(*pieces: slice, score: Any = None) -> tuple[Grpo, Tensor]:
    """Return a trainer that has the reference of other weights, and its loss, with gradients."""
    trainer = Grpo()
    Humanline(trainer, "GRPOTrainer", ClipRange(-0.1, 0.1), Never()).attach()
    trainer.hooks.reference.take()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for one in trainer.model.parameters():
            one.add_(torch.randn(one.shape, generator=generator), alpha=0.2)
    trainer.pieces = pieces
    if score is not None:
        trainer.score = score  # type: ignore[method-assign]
    trainer.accelerator.sync_gradients = True
    loss = trainer._compute_loss(trainer.model, answers())
    loss.backward()
    return trainer, loss.detach()


ONE_BY_ONE = tuple(slice(at, at + 1) for at in range(5))


@pytest.mark.parametrize("pieces", [ONE_BY_ONE, (slice(0, 2), slice(2, 4), slice(4, 5))], ids=["rows", "twos"])
def test_a_policy_that_is_scored_in_pieces_has_the_loss_of_one_call(pieces):
    """Ratio, KL term, gradients and counts are those of all rows at once; the last piece alone would be stretched."""
    (whole, expected), (trainer, found) = grpo_step(slice(None)), grpo_step(*pieces)
    for name in ("old_per_token_logps", "ref_per_token_logps"):
        assert trainer.kept[0][name].shape == (5, 6)
        assert torch.allclose(trainer.kept[0][name], whole.kept[0][name], atol=1e-6)
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(trainer.model.layer.weight.grad, whole.model.layer.weight.grad, atol=1e-6)
    assert whole.model.layer.weight.grad.abs().max() > 1e-3
    shares = [dict(one._metrics["train"]) for one in (trainer, whole)]
    assert shares[0].keys() == shares[1].keys() and shares[1]["humanline/clipped_low"][0] > 0
    for name, one in shares[1].items():
        assert shares[0][name] == pytest.approx(one, abs=1e-6), name


@pytest.mark.parametrize(
    ("pieces", "asked"),
    [((slice(3, 5), slice(0, 3)), 5), ((slice(0, 1),), 1), ((slice(0, 1),) * 5, 5)],
    ids=["another order", "one of five", "one five times"],
)
def test_pieces_that_are_not_all_rows_in_their_order_are_refused(pieces, asked):
    """Each row has to be held against its own reference; one for all would be stretched in silence."""
    with pytest.raises(RuntimeError, match=f"of 5 rows asked its policy for {asked}, or for others, or in another ord"):
        grpo_step(*pieces)


def test_answers_that_are_scored_in_part_are_refused():
    """Of a row fewer tokens than its answer has."""

    def score(model: Any, rows: Tensor, width: int) -> Tensor:
        return model(input_ids=rows[:, -4:], labels=rows[:, -4:], fused_lm_head=True).log_probs

    with pytest.raises(RuntimeError, match="asked its policy for fewer tokens than the 6 of an answer"):
        grpo_step(slice(None), score=score)


def test_the_gradient_of_grpos_kl_term_is_that_of_the_unclipped_ratio():
    """What TRL is given in its reference's place has the k3 term's value and gradient of r - p, clipped or not."""
    torch.manual_seed(0)
    policy = (torch.randn(3, 5, dtype=torch.float64) - 3).requires_grad_()
    ref, mask = policy.detach() + torch.randn(3, 5, dtype=torch.float64), torch.ones(3, 5, dtype=torch.bool)
    clipped = ref + ClipRange(-0.5, 0.5).clip(policy - ref)
    inputs: dict[str, Any] = {"completion_ids": torch.zeros(3, 4)}
    tell_grpo(inputs, True, [Scored(torch.zeros(3, 6), mask, policy, ref, clipped)])
    theirs = inputs["ref_per_token_logps"] - clipped[:, -4:]
    kl = theirs.exp() - theirs - 1
    gradient = torch.autograd.grad(kl.sum(), policy)[0][:, -4:]
    unclipped = (ref - policy.detach())[:, -4:].tolist()
    value = [[math.exp(one) - one - 1 for one in row] for row in unclipped]
    right = [[1 - math.exp(one) for one in row] for row in unclipped]
    assert torch.allclose(kl, torch.tensor(value, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(gradient, torch.tensor(right, dtype=torch.float64), atol=1e-12)
    assert (clipped != policy)[:, -4:].sum() > 3
    assert torch.equal(inputs["old_per_token_logps"], ref[:, -4:])


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
