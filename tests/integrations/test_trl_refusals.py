"""What humanline is not put into: each with the reason and what to change. TRL need not be installed."""

from __future__ import annotations

import copy
import importlib.metadata
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from humanline.integrations.trl import TrainerError, apply_humanline
from humanline.integrations.trl.refusals import KINDS, LOSSES, WHY_NOT, refuse, warn_of_another_reference
from humanline.schedule import BeforeStep, EachRound
from humanline.system.install import install
from humanline.theory import ClipRange

CLIP, SCHEDULE = ClipRange(-1.5, 1.5), BeforeStep(every=1)


@pytest.fixture(autouse=True)
def tested_version(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.16.0")


def stand_in(kind: str, model: nn.Module | None = None, **changes: Any) -> Any:
    """A trainer with TRL's defaults, as far as they are looked at; `args_name` changes a setting of its arguments."""

    def _compute_loss(self: Any) -> None:
        """As TRL's."""

    cls = type(kind, (), {"__module__": f"trl.trainer.{kind[:-7].lower()}_trainer", "_compute_loss": _compute_loss})
    trainer = type("Mine", (cls,), {})()
    args = {"sync_ref_model": False, "precompute_ref_log_probs": False, "torch_compile": False}
    args |= {"n_gpu": 0, "neftune_noise_alpha": None, "auto_find_batch_size": False, "use_bias_correction_kl": False}
    values = {
        "state": SimpleNamespace(global_step=0),
        "is_deepspeed_enabled": False,
        "is_fsdp_enabled": False,
        "accelerator": SimpleNamespace(parallelism_config=None),
        "aux_loss_enabled": False,
        "_is_vlm": False,
        "model": model or nn.Linear(2, 2),
        "ref_model": None,
        "beta": 0.1,
        "loss_types": ["sigmoid"],
        "loss_type": {"KTOTrainer": "kto", "GRPOTrainer": "dapo"}.get(kind),
        "use_weighting": False,
        "ld_alpha": None,
        "importance_sampling_level": "token",
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "off_policy_mask_threshold": None,
    }
    for name, value in changes.items():
        (args if name.startswith("args_") else values)[name.removeprefix("args_")] = value
    vars(trainer).update(values, args=SimpleNamespace(**args))
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_as_it_should_be_passes(kind):
    """A trainer with TRL's defaults is taken, and each of its losses that is a function of token log-ratios."""
    assert refuse(stand_in(kind), CLIP, SCHEDULE) == kind
    for loss in LOSSES[kind]:
        assert refuse(stand_in(kind, loss_types=[loss], loss_type=loss), CLIP, SCHEDULE) == kind


ALL = {
    "args_sync_ref_model": (True, "copies the weights after the update", "leave it out"),
    "is_deepspeed_enabled": (True, "DeepSpeed keeps the weights elsewhere", "use DDP"),
    "is_fsdp_enabled": (True, "FSDP shares the weights out", "use DDP, or humanline train"),
    "args_torch_compile": (True, "compile the policy's passes and not the reference's", "leave it out"),
    "args_neftune_noise_alpha": (5.0, "different noise", "leave it out"),
    "args_auto_find_batch_size": (True, "begins anew with weights that have moved", "set per_device_train_batch_size"),
    "args_n_gpu": (2, "shares each batch out anew (DataParallel)", "start one process a GPU"),
    "args_enable_jit_checkpoint": (True, "saves within a step", "leave it out, and set save_steps"),
    "args_use_liger_kernel": (True, "replaces layers when training starts", "leave it out"),
    "aux_loss_enabled": (True, "mixture of experts has not been tried", "set router_aux_loss_coef=0.0"),
    "_is_vlm": (True, "models of images have not been tried", "give the tokenizer"),
    "_humanline": (object(), "in it already", "call apply_humanline once"),
    "state": (SimpleNamespace(global_step=3), "has trained already", "before train"),
    "accelerator": (SimpleNamespace(parallelism_config=object()), "has not been tried", "leave it out"),
}
COMPILING = SimpleNamespace(
    parallelism_config=None, state=SimpleNamespace(dynamo_plugin=SimpleNamespace(backend="INDUCTOR"))
)
OF_SOME = [
    ("DPOTrainer", "accelerator", COMPILING, "and not the reference's", "set the backend to no"),
    ("DPOTrainer", "args_precompute_ref_log_probs", True, "fixes a reference that is to move", "leave it out"),
    ("KTOTrainer", "args_precompute_ref_log_probs", True, "fixes a reference that is to move", "leave it out"),
    ("DPOTrainer", "use_weighting", True, "WPO", "leave it out"),
    ("DPOTrainer", "ld_alpha", 0.5, "LD-DPO", "leave it out"),
    ("GRPOTrainer", "args_use_bias_correction_kl", True, "that of the unclipped ratio", "set it to False"),
    ("GRPOTrainer", "importance_sampling_level", "sequence", "averages over an answer", "set it to 'token'"),
    ("GRPOTrainer", "use_vllm", True, "corrects towards the generation's snapshot", "set it to False"),
    ("GRPOTrainer", "off_policy_mask_threshold", 0.5, "clipped log-probabilities", "leave it out"),
    *(("DPOTrainer", "loss_types", ["sigmoid", one], WHY_NOT[one], "use one of apo_down") for one in
      ("sft", "aot", "aot_unpaired", "sigmoid_norm")),
    *(("GRPOTrainer", "loss_type", one, WHY_NOT[one], "use one of bnpo") for one in ("cispo", "sapo", "vespo")),
    ("KTOTrainer", "loss_type", "new_one", "it is not known here", "use one of apo_zero_unpaired, kto"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "value", "why", "what"),
    [(kind, name, *found) for name, found in ALL.items() for kind in KINDS] + OF_SOME,
)
def test_each_is_refused_with_the_reason_and_what_to_do(kind, name, value, why, what):
    """A setting that would change what the method is, or was not tried with it, is refused, alone."""
    with pytest.raises(TrainerError) as raised:
        apply_humanline(stand_in(kind, **{name: value}), CLIP, SCHEDULE)
    lines = str(raised.value).splitlines()
    assert lines[0] == f"apply_humanline cannot be used with this {kind}:" and len(lines) == 2
    assert why in lines[1] and what in lines[1]


def test_all_is_said_at_once_and_nothing_is_changed():
    """Several reasons come in one error, wrong arguments too, and the trainer is as it was."""
    trainer = stand_in("DPOTrainer", ld_alpha=0.5, use_weighting=True, is_fsdp_enabled=True)
    before = dict(vars(trainer))
    with pytest.raises(TrainerError) as raised:
        apply_humanline(trainer, (-1.5, 1.5), 3)
    assert len(str(raised.value).splitlines()) == 6 and vars(trainer) == before
    assert "give a humanline.theory.ClipRange" in str(raised.value) and "give one of humanline.schedule" in str(
        raised.value
    )


def test_a_round_has_a_length():
    """EachRound without its steps would never sync: it is refused."""
    with pytest.raises(TrainerError, match=r"give EachRound\(round_steps=n\)"):
        apply_humanline(stand_in("GRPOTrainer"), CLIP, EachRound())


def test_the_term_of_beta_0_is_not_there_to_be_refused():
    """TRL's default of use_bias_correction_kl is no matter where there is no KL term."""
    assert refuse(stand_in("GRPOTrainer", args_use_bias_correction_kl=True, beta=0.0), CLIP, SCHEDULE)


def test_dropout_is_refused_wherever_it_is():
    """A module's rate, one that a module keeps as a number, and an adapter's by its name, above 0; at 0 all pass."""

    class Attention(nn.Module):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.attention_dropout = rate
            self.weight = nn.Parameter(torch.ones(1))

    class LoKr(nn.Linear):
        def __init__(self, rate: float) -> None:
            super().__init__(1, 1)
            self.rank_dropout, self.rank_dropout_scale = {"default": rate}, {"default": True}

    for make in (Attention, LoKr, lambda rate: nn.Sequential(nn.Linear(1, 1), nn.Dropout(rate))):
        assert refuse(stand_in("DPOTrainer", make(0.0)), CLIP, SCHEDULE)
        with pytest.raises(TrainerError, match=r"dropout is above 0 \(.* = 0.1, 1 such.*disable_dropout=True"):
            refuse(stand_in("DPOTrainer", make(0.1)), CLIP, SCHEDULE)


def test_models_that_cannot_be_are_refused():
    """One that trains nothing, and one whose adapter adds tokens to the prompt."""
    frozen, prompted = nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1)
    prompted.peft_config = {"default": SimpleNamespace(is_prompt_learning=True)}  # type: ignore[assignment]
    for model, said in ((frozen, "no weight of the model is trained"), (prompted, "have not been tried: use LoRA")):
        with pytest.raises(TrainerError, match=said):
            refuse(stand_in("KTOTrainer", model), CLIP, SCHEDULE)


def test_layers_on_several_devices_are_refused():
    """A model that device_map has spread is told where its layers lie; one on a single device passes."""
    model = nn.Linear(1, 1)
    model.hf_device_map = {"": 0}  # type: ignore[assignment]
    assert refuse(stand_in("DPOTrainer", model), CLIP, SCHEDULE)
    model.hf_device_map = {"a": 0, "b": 1, "c": "cpu"}  # type: ignore[assignment]
    with pytest.raises(TrainerError, match=r"its layers lie on 0, 1, cpu.*leave device_map out"):
        refuse(stand_in("DPOTrainer", model), CLIP, SCHEDULE)


def test_a_reference_model_of_other_weights_is_not_dropped_in_silence(recwarn):
    """A reference model that differs from the policy is let go with a warning; one that is equal without a word."""
    model, adapted = nn.Sequential(nn.Linear(2, 2)), nn.Module()
    adapted.base_model = nn.Module()
    adapted.base_model.model = nn.Sequential(nn.ModuleDict({"base_layer": model[0]}))
    for policy in (model, adapted):
        warn_of_another_reference(stand_in("DPOTrainer", policy))
        warn_of_another_reference(stand_in("DPOTrainer", policy, ref_model=copy.deepcopy(model)))
        assert not recwarn
    other = copy.deepcopy(model)
    nn.init.ones_(other[0].bias)
    with pytest.warns(UserWarning, match=r"other weights than its model \(the first: 0\.bias\), and is not used"):
        warn_of_another_reference(stand_in("DPOTrainer", model, ref_model=other))


def test_a_loss_of_ones_own_is_refused():
    """A subclass whose `_compute_loss` is not TRL's may do anything."""
    trainer = stand_in("DPOTrainer")
    type(trainer)._compute_loss = lambda self: None
    with pytest.raises(TrainerError, match="_compute_loss of its own"):
        refuse(trainer, CLIP, SCHEDULE)


@pytest.mark.parametrize("name", ["SFTTrainer", "RLOOTrainer", "OnlineTrainer"])
def test_other_trainers_are_refused(name):
    """What is none of the three is told which they are; a class of the same name elsewhere is none of them."""
    for module in ("trl.trainer.some_trainer", "mine"):
        trainer = type(name if module != "mine" else "DPOTrainer", (), {"__module__": module})()
        with pytest.raises(TrainerError, match="is none of TRL's DPOTrainer, KTOTrainer, GRPOTrainer"):
            apply_humanline(trainer)


@pytest.mark.parametrize("version", ["1.15.2", "1.17.0", "0.16.0", "2.0.0"])
def test_other_versions_are_refused(monkeypatch, version):
    """A release of TRL that is not the tested minor is refused, with the command that installs that."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(TrainerError, match=f"tested with TRL 1.16; this is {version}.*trl>=1.16,<1.17"):
        apply_humanline(stand_in("DPOTrainer"))


def test_without_trl_the_extra_is_named(monkeypatch):
    """Where TRL is not installed the message says how to install it."""

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(TrainerError, match=re.escape(f"needs TRL: {install('trl')}")):
        apply_humanline(stand_in("DPOTrainer"))
