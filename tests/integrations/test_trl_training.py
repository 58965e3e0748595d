"""TRL's trainers with one line of humanline do what `humanline train` and plain loops of its losses do."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl", reason="TRL is not installed: pip install 'humanline[trl]'")

from benchmarks.runs import QUICK, prepare, run_config, training_batches
from benchmarks.trl_steps import rows_for_trl
from humanline.integrations.trl import apply_humanline
from humanline.schedule import AfterStep, BeforeStep, EachRound, Never
from humanline.theory import ClipRange
from humanline.train.loop import train
from humanline.train.run.metrics import read_metrics
from tests.helpers.trl_runs import logged, plain_dpo, plain_grpo, plain_kto, plain_loop, record, trained, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL and what it loads warn of their own matters
CLIP, LR, STEPS = ClipRange(-0.02, 0.03), 3e-3, 8
EPS = 1e-6  # Adam's: a gradient that is nothing but rounding does not become a step of the learning rate
SECTION = {"kind": "clip", "log_eps_low": CLIP.low, "log_eps_high": CLIP.high}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "dpo": {"kind": "dpo", "beta": 0.5},
    "kto": {"kind": "kto", "beta": 0.5, "desirable_weight": 1.0, "undesirable_weight": 1.0},
    "grpo": {"kind": "grpo", "clip_eps": 0.2, "kl_coef": 0.04},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> dict[str, Any]:
    workload = replace(QUICK, hidden=32, vocab=300, batch=8, micro_batch=8)
    return prepare(tmp_path_factory.mktemp("workload"), workload)


def our_config(base: dict[str, Any], folder: Path, objective: str, every: int, accumulation: int, **more: Any) -> Any:
    return run_config(
        base,
        folder,
        {"schedule": {"kind": "before_step", "every": every}},
        steps=STEPS,
        objective=OBJECTIVES[objective],
        optimizer={"lr": LR, "warmup_fraction": 0.0, "adam_eps": EPS},
        training={"batch_size": 8, "micro_batch_size": 8 // accumulation},
        transform=SECTION,
        **more,
    )


def rows_of(base: dict[str, Any], folder: Path, objective: str, accumulation: int = 1) -> list[dict[str, Any]]:
    return rows_for_trl(objective, training_batches(our_config(base, folder, objective, 1, accumulation)))


def settings(accumulation: int, rows: int = 8) -> dict[str, Any]:
    return {
        "max_steps": STEPS,
        "learning_rate": LR,
        "adam_epsilon": EPS,
        "per_device_train_batch_size": rows // accumulation,
        "gradient_accumulation_steps": accumulation,
    }


def dpo(base: dict[str, Any], folder: Path, accumulation: int = 1, **more: Any) -> Any:
    rows = rows_of(base, folder, "dpo", accumulation)
    model = more.pop("model", base["model"])
    return trainer_of("DPO", model, folder / "trl", rows, beta=0.5, **(settings(accumulation) | more))


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("every", [1, 3])
def test_dpo_is_that_of_humanline_train(base, tmp_path, every, accumulation):
    """Losses, gradient norms, metrics and weights are the same, with more than half of the tokens clipped."""
    result = train(our_config(base, tmp_path / "ours", "dpo", every, accumulation), show_progress=False)
    ours = [row for row in read_metrics(result.metrics_file) if "step" in row]
    trainer = dpo(base, tmp_path, accumulation)
    apply_humanline(trainer, CLIP, BeforeStep(every=every))
    trained(trainer)
    for name, theirs in (("loss", "loss"), ("grad_norm", "grad_norm")):
        assert logged(trainer, theirs) == pytest.approx([row[name] for row in ours], abs=1e-5, rel=1e-5)
    for name in ("clipped_low", "clipped_high", "log_ratio_rms"):
        found = logged(trainer, f"humanline/{name}")
        assert len(found) == STEPS and found == pytest.approx([row[name] for row in ours], rel=1e-3, abs=1e-3)
    clipped = [row["clipped_low"] + row["clipped_high"] for row in ours]
    assert sum(clipped[1:]) / (STEPS - 1) > 0.5
    assert logged(trainer, "loss")[0] == pytest.approx(math.log(2)) and logged(trainer, "loss")[2] != math.log(2)
    weights = load_file(result.model / "model.safetensors")
    for name, one in trainer.model.state_dict().items():
        assert torch.allclose(one, weights[name], atol=1e-4, rtol=0), name


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("loss_type", ["kto"])
def test_kto_is_that_of_a_plain_loop(base, tmp_path, every, loss_type):
    """Losses and gradient norms are those of `kto_loss` with a second model, on TRL's own micro-batches."""
    rows = rows_of(base, tmp_path, "kto", 2)
    trainer = trainer_of("KTO", base["model"], tmp_path / "trl", rows, beta=0.5, loss_type=loss_type, **settings(2))
    apply_humanline(trainer, CLIP, BeforeStep(every=every))
    steps = record(trainer)
    trained(trainer)
    loss = plain_kto(CLIP, 0.5)
    losses, norms = plain_loop(
        plain(base), steps, loss, lr=LR, eps=EPS, syncs=BeforeStep(every=every).copies_before_update
    )
    assert len(steps) == STEPS and {len(one) for one in steps} == {2}
    assert logged(trainer, "loss") == pytest.approx(losses, abs=1e-5, rel=1e-5)
    assert logged(trainer, "grad_norm") == pytest.approx(norms, abs=1e-5, rel=1e-5)
    assert sum(logged(trainer, "kl")) > 0  # z_0 is somewhere above 0, so that it is seen


@pytest.mark.parametrize(("count", "sizes"), [(7, [[2, 2], [2, 1]]), (5, [[2, 2], [1]])])
def test_ktos_odd_last_batch_is_that_of_a_plain_loop(base, tmp_path, count, sizes):
    """An epoch's last micro-batch of one row, of one kind and one mismatched pair, is a step's like any other."""
    rows = rows_of(base, tmp_path, "kto", 2)[:count]
    more = {"max_steps": -1, "num_train_epochs": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    trainer = trainer_of("KTO", base["model"], tmp_path / "trl", rows, beta=0.5, **(settings(2) | more))
    apply_humanline(trainer, CLIP, BeforeStep(every=1))
    steps = record(trainer)
    trained(trainer)
    assert [[len(one["label"]) for one in step] for step in steps] == sizes * 4
    losses, norms = plain_loop(
        plain(base), steps, plain_kto(CLIP, 0.5), lr=LR, eps=EPS, syncs=BeforeStep(every=1).copies_before_update
    )
    assert logged(trainer, "loss") == pytest.approx(losses, abs=1e-5, rel=1e-5)
    assert logged(trainer, "grad_norm") == pytest.approx(norms, abs=1e-5, rel=1e-5)
    tokens = sum(int(one["completion_mask"][:, 1:].sum()) for one in steps[1])
    shares = [logged(trainer, f"humanline/clipped_{end}")[1] * tokens for end in ("low", "high")]
    assert shares == pytest.approx([round(one) for one in shares], abs=1e-3) and sum(shares) > 0


def plain(base: dict[str, Any]) -> Any:
    """Return the model as TRL has not touched it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(base["model"])


@pytest.mark.parametrize(("beta", "every", "passes"), [(0.0, 1, 1), (0.3, 1, 1), (0.3, 3, 1), (0.3, 3, 2)])
def test_grpo_is_that_of_a_plain_loop(base, tmp_path, beta, every, passes):
    """Losses and gradient norms are those of `grpo_loss`, the KL term unclipped, with 2 or 4 steps on a generation."""
    clip = ClipRange(-0.021, 0.031)  # no token within rounding of a bound, where either side would be right
    rows = rows_of(base, tmp_path, "grpo")
    trainer = trainer_of(
        "GRPO", base["model"], tmp_path / "trl", rows, beta=beta, epsilon=0.2, loss_type="dapo",
        use_bias_correction_kl=False, steps_per_generation=4, num_iterations=passes, **settings(2, rows=16),
    )  # fmt: skip
    apply_humanline(trainer, clip, BeforeStep(every=every))
    steps = record(trainer)
    trained(trainer)
    loss = plain_grpo(clip, 0.2, beta, 2 / 4)
    losses, norms = plain_loop(
        plain(base), steps, loss, lr=LR, eps=EPS, syncs=BeforeStep(every=every).copies_before_update
    )
    assert len(steps) == STEPS and {len(one) for one in steps} == {2}
    assert logged(trainer, "loss") == pytest.approx(losses, abs=1e-5, rel=1e-5)
    assert logged(trainer, "grad_norm") == pytest.approx(norms, abs=1e-5, rel=1e-5)
    clipped = [
        sum(pair)
        for pair in zip(*(logged(trainer, f"humanline/clipped_{end}") for end in ("low", "high")), strict=True)
    ]
    assert sum(clipped) / STEPS > 0.3


def test_grpos_two_sided_clip_is_behind_humanlines(base, tmp_path):
    """With `delta` below exp(high), losses and norms are those of both clips in turn, humanline's first."""
    wide, eps, delta = ClipRange(-0.12, 0.15), 0.05, 1.1
    rows = rows_of(base, tmp_path, "grpo")
    trainer = trainer_of(
        "GRPO", base["model"], tmp_path / "trl", rows, beta=0.3, epsilon=eps, delta=delta, loss_type="dapo",
        use_bias_correction_kl=False, steps_per_generation=4, **settings(2, rows=16),
    )  # fmt: skip
    apply_humanline(trainer, wide, BeforeStep(every=3))
    steps = record(trainer)
    trained(trainer)
    cut: list[int] = []
    losses, norms = plain_loop(
        plain(base), steps, plain_grpo(wide, eps, 0.3, 2 / 4, delta, cut), lr=LR, eps=EPS,
        syncs=BeforeStep(every=3).copies_before_update,
    )  # fmt: skip
    assert logged(trainer, "loss") == pytest.approx(losses, abs=1e-5, rel=1e-5)
    assert logged(trainer, "grad_norm") == pytest.approx(norms, abs=1e-5, rel=1e-5)
    assert sum(cut) > 20 and sum(logged(trainer, "humanline/clipped_high")) > 0
    without, _ = plain_loop(
        plain(base), steps, plain_grpo(wide, eps, 0.3, 2 / 4), lr=LR, eps=EPS,
        syncs=BeforeStep(every=3).copies_before_update,
    )  # fmt: skip
    assert logged(trainer, "loss") != pytest.approx(without, abs=1e-4)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_a_grpo_trainer_that_scores_in_pieces_has_the_losses_of_one_that_does_not(base, tmp_path, beta, size):
    """A subclass may give `_get_per_token_logps_and_entropies` a batch size, against the memory of long answers."""
    rows, runs = rows_of(base, tmp_path, "grpo"), []
    for pieces in (None, size):
        trainer = trainer_of(
            "GRPO", base["model"], tmp_path / str(pieces), rows, beta=beta, use_bias_correction_kl=False,
            **(settings(2, rows=16) | {"max_steps": 4}),
        )  # fmt: skip
        theirs = type(trainer)._get_per_token_logps_and_entropies

        def scored(self: Any, *given: Any, theirs: Any = theirs, pieces: Any = pieces, **named: Any) -> Any:
            return theirs(self, *given, **(named | {"batch_size": pieces}))

        trainer.__class__ = type("Mine", (type(trainer),), {"_get_per_token_logps_and_entropies": scored})
        apply_humanline(trainer, CLIP)
        trained(trainer)
        runs.append(trainer)
    names = ["loss", "grad_norm", *(f"humanline/{one}" for one in ("clipped_low", "clipped_high", "log_ratio_rms"))]
    for name in names:
        assert logged(runs[1], name) == pytest.approx(logged(runs[0], name), abs=2e-5, rel=1e-4), name
    assert logged(runs[0], "humanline/clipped_low")[1] > 0.1


@pytest.mark.parametrize("schedule", [Never(), AfterStep(every=2), EachRound(round_steps=3)], ids=lambda one: one.kind)
def test_other_schedules_have_the_reference_that_they_say(base, tmp_path, schedule):
    """Before each step's loss the reference holds the weights of `snapshot(step)`, bit for bit."""
    trainer = dpo(base, tmp_path, max_steps=7)
    apply_humanline(trainer, CLIP, schedule)
    history: list[dict[str, torch.Tensor]] = []
    seen: list[int] = []
    theirs = trainer._compute_loss

    def loss(*arguments: Any, **named: Any) -> Any:
        own = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
        history.append(own)
        tensors = trainer._humanline.reference.tensors
        seen.append(next(t for t, past in enumerate(history) if all(torch.equal(past[n], tensors[n]) for n in past)))
        return theirs(*arguments, **named)

    trainer._compute_loss = loss
    trained(trainer)
    assert seen == [schedule.snapshot(step) for step in range(7)]


def test_a_sync_after_the_update_would_switch_the_method_off(base, tmp_path):
    """With AfterStep(1) DPO's loss is ln 2 at every step; with BeforeStep(1) at the first alone."""
    for schedule, off in ((AfterStep(every=1), STEPS), (BeforeStep(every=1), 1)):
        trainer = dpo(base, tmp_path / schedule.kind)
        apply_humanline(trainer, CLIP, schedule)
        losses = logged(trained(trainer), "loss")
        assert sum(one == pytest.approx(math.log(2), abs=1e-6) for one in losses) == off


@pytest.mark.gpu
@pytest.mark.parametrize(("bf16", "gap"), [(False, 1e-5), (True, 1e-3)])
def test_a_gpu_has_the_losses_of_the_cpu(base, tmp_path, bf16, gap):
    """TRL's fused head under humanline, its kernels for CUDA, agrees with the one for CPUs."""
    runs = []
    for use_cpu in (True, False):
        trainer = dpo(base, tmp_path / str(use_cpu), learning_rate=1e-4, bf16=bf16, use_cpu=use_cpu)
        apply_humanline(trainer, ClipRange(-1e-3, 2e-3), BeforeStep(every=2))
        runs.append(logged(trained(trainer), "loss"))
    assert runs[1] == pytest.approx(runs[0], abs=gap)


def lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0, init_lora_weights=True)


@pytest.mark.parametrize("name", ["DPO", "GRPO"])
def test_lora_is_that_of_deep_copies(base, tmp_path, name):
    """With an adapter the run is that of a deep copy of the whole model as reference, which holds the adapter alone."""
    if name == "DPO":
        trainer = dpo(base, tmp_path, learning_rate=3e-2, peft_config=lora())
        loss_of = plain_dpo(CLIP, 0.5)
    else:
        rows = rows_of(base, tmp_path, "grpo")
        trainer = trainer_of(
            "GRPO", base["model"], tmp_path / "trl", rows, beta=0.3, use_bias_correction_kl=False,
            peft_config=lora(), **(settings(1, rows=16) | {"learning_rate": 3e-2}),
        )  # fmt: skip
        loss_of = plain_grpo(CLIP, 0.2, 0.3, 1.0)
    from peft import get_peft_model

    model = get_peft_model(plain(base), lora())
    model.load_state_dict(trainer.model.state_dict())
    apply_humanline(trainer, CLIP, BeforeStep(every=2))
    steps = record(trainer)
    trained(trainer)
    losses, norms = plain_loop(model, steps, loss_of, lr=3e-2, eps=EPS, syncs=BeforeStep(every=2).copies_before_update)
    assert logged(trainer, "loss") == pytest.approx(losses, abs=1e-5, rel=1e-5)
    assert logged(trainer, "grad_norm") == pytest.approx(norms, abs=1e-5, rel=1e-5)
    adapter = sum(one.numel() for one in trainer.model.parameters() if one.requires_grad)
    held = sum(one.numel() for one in trainer._humanline.reference.tensors.values())
    assert held == adapter < sum(one.numel() for one in trainer.model.parameters()) / 5


def test_an_adapter_that_is_there_already_loses_trls_copy(base, tmp_path):
    """A model that comes with an adapter keeps it alone: the one that TRL adds as its reference is let go."""
    from peft import get_peft_model

    trainer = dpo(base, tmp_path, model=get_peft_model(plain(base), lora()))
    assert "ref" in trainer.model.peft_config
    apply_humanline(trainer, CLIP)
    assert list(trainer.model.peft_config) == ["default"]
    assert not any(".ref." in name for name, _ in trainer.model.named_parameters())
    trained(trainer)
    assert logged(trainer, "loss")[0] == pytest.approx(math.log(2)) != logged(trainer, "loss")[3]


def test_an_adapter_of_ones_own_that_is_called_ref_is_trained(base, tmp_path):
    """Where TRL makes no reference, as GRPO does not at `beta` 0, an adapter of that name is the user's."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"])
    model = get_peft_model(plain(base), config, adapter_name="ref")
    model.add_adapter("default", config)
    rows = rows_of(base, tmp_path, "grpo")
    trainer = trainer_of("GRPO", model, tmp_path / "trl", rows, beta=0.0, **settings(1, rows=16) | {"max_steps": 2})
    before = {name: one.clone() for name, one in model.named_parameters() if one.requires_grad}
    apply_humanline(trainer, CLIP)
    trained(trainer)
    assert set(model.peft_config) == {"ref", "default"} and model.active_adapters == ["ref"]
    now = dict(model.named_parameters())
    assert before and all(".ref." in name and not torch.equal(one, now[name]) for name, one in before.items())


def test_evaluation_is_against_the_current_reference_and_moves_nothing(base, tmp_path):
    """Evaluating before, within and after training changes no number of it, and logs what was clipped."""
    plain_run = dpo(base, tmp_path / "a")
    apply_humanline(plain_run, CLIP)
    trained(plain_run)
    trainer = dpo(base, tmp_path / "b", eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4, eval_rows=6)
    apply_humanline(trainer, CLIP)
    before = trainer.evaluate()
    assert before["eval_loss"] == pytest.approx(math.log(2)) and before["eval_humanline/clipped_low"] == 0
    trained(trainer)
    assert logged(trainer, "loss") == logged(plain_run, "loss")
    within = logged(trainer, "eval_humanline/log_ratio_rms")
    assert len(within) == STEPS // 2 and all(one > 0 for one in within)


@pytest.mark.parametrize(("accumulation", "adapted"), [(1, False), (2, False), (2, True)])
def test_gradient_checkpointing_changes_nothing(base, tmp_path, accumulation, adapted):
    """A run that computes activations again has the same losses, with an adapter too."""
    runs = []
    for on in (False, True):
        torch.manual_seed(0)
        more = {"peft_config": lora(), "learning_rate": 3e-2} if adapted else {}
        trainer = dpo(base, tmp_path / str(on), accumulation, gradient_checkpointing=on, **more)
        apply_humanline(trainer, CLIP, BeforeStep(every=2))
        runs.append(logged(trained(trainer), "loss"))
    assert runs[0] == pytest.approx(runs[1], abs=1e-6)


@pytest.mark.parametrize("adapted", [False, True])
def test_the_reference_s_pass_leaves_no_hook_behind(base, tmp_path, adapted):
    """With gradient checkpointing: the model's switch adds one each time, so that a long run would slow down."""
    counts = []
    for mine in (False, True):
        more = {"peft_config": lora()} if adapted else {}
        trainer = dpo(base, tmp_path / str(mine), 2, gradient_checkpointing=True, **more)
        if mine:
            apply_humanline(trainer, CLIP)
        trained(trainer)
        counts.append(len(trainer.model.get_input_embeddings()._forward_hooks))
    assert counts[1] <= counts[0]  # those that the trainer itself leaves


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ["DPO", "KTO", "GRPO"])
def test_every_log_ratio_is_0_while_weights_stand_still(base, tmp_path, name, bf16):
    """At learning rate 0 policy and reference have the same log-probabilities to the bit, and there is a gradient."""
    rows = rows_of(base, tmp_path, name.lower(), 2)
    more = settings(2, rows=16 if name == "GRPO" else 8) | {"learning_rate": 0.0, "bf16": bf16, "max_steps": 3}
    more |= {"use_bias_correction_kl": False} if name == "GRPO" else {}
    trainer = trainer_of(name, base["model"], tmp_path / "trl", rows, beta=0.5, **more)
    apply_humanline(trainer, CLIP)
    trained(trainer)
    assert logged(trainer, "humanline/log_ratio_rms") == [0.0, 0.0, 0.0]
    assert all(norm > 1e-3 for norm in logged(trainer, "grad_norm"))


@pytest.mark.parametrize("name", ["DPO", "KTO", "GRPO"])
def test_the_second_model_is_gone(base, tmp_path, name):
    """Nothing holds TRL's own reference any more, and it needs no later collection of garbage to go."""
    import gc
    import weakref

    rows = rows_of(base, tmp_path, name.lower())
    more = {"use_bias_correction_kl": False} if name == "GRPO" else {}
    trainer = trainer_of(name, base["model"], tmp_path / "trl", rows, beta=0.5, **settings(1, rows=16) | more)
    theirs = weakref.ref(trainer.ref_model)
    gc.disable()
    try:
        apply_humanline(trainer, CLIP)
        assert theirs() is None
    finally:
        gc.enable()


def held(trainer: Any) -> int:
    """Train a step; return the bytes of all tensors that are there when the optimizer is about to update."""
    import gc

    from transformers import TrainerCallback

    found: list[int] = []

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            gc.collect()
            tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
            storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
            found.append(sum(storages.values()))

    trainer.add_callback(Look())
    trained(trainer)
    return found[-1]


@pytest.mark.parametrize("name", ["DPO", "KTO", "GRPO"])
def test_no_more_is_held_than_by_trl(base, tmp_path, name):
    """At an update there is one model, one reference, gradients and moments, as with TRL's own reference model."""
    import gc

    rows = rows_of(base, tmp_path, name.lower(), 2)
    more = settings(2, rows=16 if name == "GRPO" else 8) | {"max_steps": 2}
    more |= {"use_bias_correction_kl": False} if name == "GRPO" else {}
    found = []
    for humanline in (False, True):
        gc.collect()
        trainer = trainer_of(name, base["model"], tmp_path / "trl", rows, beta=0.5, **more)
        if humanline:
            apply_humanline(trainer, CLIP)
        weights = sum(one.nbytes for one in trainer.model.parameters())
        found.append(held(trainer))
        del trainer
    assert found[1] < found[0] + 0.05 * weights


def test_of_ktos_mismatched_pairs_log_probabilities_alone_are_computed(base, tmp_path, monkeypatch):
    """TRL reads nothing else of these passes, so the head computes no entropies for them, neither side's."""
    from trl.trainer import utils

    asked: list[tuple[bool, tuple[str, ...]]] = []
    head = utils._ChunkedLogProbFunction

    class Seen:
        @staticmethod
        def apply(*given: Any) -> Any:
            asked.append((torch.is_grad_enabled(), given[-1]))
            return head.apply(*given)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", Seen)
    rows = rows_of(base, tmp_path, "kto", 2)
    trainer = trainer_of("KTO", base["model"], tmp_path / "trl", rows, beta=0.5, **(settings(2) | {"max_steps": 2}))
    apply_humanline(trainer, CLIP)
    trained(trainer)
    alone = ("log_probs",)
    passes = [asked[at : at + 4] for at in range(0, len(asked), 4)]
    assert len(passes) == 4  # micro-batches: mismatched pairs, then answers, each scored by the reference first
    for one in passes:
        assert [outputs == alone for _, outputs in one] == [True, True, True, False]
        assert [gradient for gradient, _ in one] == [False, False, False, True] and "entropy" in one[3][1]
