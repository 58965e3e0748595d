"""What humanline is not put into, with the reason and what to change."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from humanline.schedule import AfterStep, BeforeStep, EachRound, Never
from humanline.system.install import install
from humanline.theory import ClipRange

TESTED = "1.16"  # of TRL, major and minor
KINDS = ("DPOTrainer", "KTOTrainer", "GRPOTrainer")
MARK = "_humanline"  # the attribute of a trainer that humanline is in
#: Losses that are functions of token log-ratios.
LOSSES = {
    "DPOTrainer": {
        *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard"),
        *("apo_zero", "apo_down", "discopop"),
    },
    "KTOTrainer": {"kto", "apo_zero_unpaired"},
    "GRPOTrainer": {"grpo", "bnpo", "dr_grpo", "dapo", "luspo"},
}
WHY_NOT = {
    "sft": "it is the policy's own log-likelihood, with no ratio to clip",
    "aot": "it sorts log-probabilities of policy and reference apart, so no answer is compared with its own reference",
    "aot_unpaired": "it sorts ratios over the micro-batch, so a pair's loss is no function of its own ratios",
    "sigmoid_norm": "it takes means over answers, and has not been held against a loss of humanline's",
    "cispo": "it weights the policy's own log-probabilities, so clipped ones would stop its gradient a second time",
    "sapo": "it replaces GRPO's clip by a gate of its own, which has not been tried with a clip before it",
    "vespo": "its weights are those of whole sequences, and its gradient that of the policy's own log-probabilities",
}


class TrainerError(ValueError):
    """A trainer that humanline is not put into, or a checkpoint that it does not go on from."""


def refuse(trainer: Any, clip: Any, schedule: Any) -> str:
    """Return which of `KINDS` a trainer is; raise TrainerError, with all reasons, if humanline cannot go into it."""
    _refuse_version()
    kind = next((name for cls in type(trainer).__mro__ for name in KINDS if _is_trls(cls, name)), None)
    if kind is None:
        raise TrainerError(
            f"apply_humanline: {type(trainer).__name__} is none of TRL's {', '.join(KINDS)}; other trainers have no "
            "token log-ratio to a reference that could be clipped, or have not been tried"
        )
    found = [*_of_arguments(clip, schedule), *_of_trainer(trainer, kind), *_of_model(trainer.model)]
    found += {"DPOTrainer": _of_dpo, "KTOTrainer": _of_kto, "GRPOTrainer": _of_grpo}[kind](trainer)
    if found:
        raise TrainerError(
            f"apply_humanline cannot be used with this {kind}:\n" + "\n".join(f"- {one}" for one in found)
        )
    return kind


def _is_trls(cls: type, name: str) -> bool:
    return cls.__name__ == name and cls.__module__.startswith("trl.trainer.")


def _refuse_version() -> None:
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        raise TrainerError(f"apply_humanline needs TRL: {install('trl')}") from None
    if version.split(".")[:2] != TESTED.split("."):
        raise TrainerError(
            f"apply_humanline was tested with TRL {TESTED}; this is {version}, whose losses may call their models in "
            f"another way, and nobody would notice: pip install 'trl>={TESTED},<{_next(TESTED)}'"
        )


def _next(minor: str) -> str:
    major, number = minor.split(".")
    return f"{major}.{int(number) + 1}"


def _of_arguments(clip: Any, schedule: Any) -> Iterator[str]:
    if not isinstance(clip, ClipRange):
        yield f"clip is {clip!r}: give a humanline.theory.ClipRange, as ClipRange(-1.5, 1.5)"
    if not isinstance(schedule, Never | BeforeStep | AfterStep | EachRound):
        yield f"schedule is {schedule!r}: give one of humanline.schedule, as BeforeStep(every=1)"
    if isinstance(schedule, EachRound) and schedule.round_steps is None:
        yield "EachRound() does not say how long a round is: give EachRound(round_steps=n), in optimizer steps"


def _of_trainer(trainer: Any, kind: str) -> Iterator[str]:
    args = trainer.args
    if getattr(trainer, MARK, None) is not None:
        yield "humanline is in it already: call apply_humanline once"
    if trainer.state.global_step > 0:
        yield "it has trained already: call apply_humanline right after making it, before train()"
    if _replaced(trainer, kind):
        yield "its class has a _compute_loss of its own, which need not be TRL's loss: take that away"
    if getattr(args, "sync_ref_model", False):
        yield (
            "sync_ref_model=True copies the weights after the update, where humanline syncs before it: leave it out, "
            "and give apply_humanline a schedule"
        )
    if getattr(args, "precompute_ref_log_probs", False):
        yield "precompute_ref_log_probs=True fixes a reference that is to move: leave it out"
    if trainer.is_deepspeed_enabled:
        yield "DeepSpeed keeps the weights elsewhere than in the model, and updates them within backward: use DDP"
    if trainer.is_fsdp_enabled:
        yield "FSDP shares the weights out, of which only whole ones can be copied here: use DDP, or humanline train"
    if args.n_gpu > 1:
        yield (
            f"one process holds {args.n_gpu} GPUs, which shares each batch out anew (DataParallel), and was not tried: "
            "start one process a GPU (torchrun or accelerate launch), or show it one GPU (CUDA_VISIBLE_DEVICES=0)"
        )
    sizes = getattr(trainer.accelerator, "parallelism_config", None)
    if sizes is not None:
        yield "parallelism_config (tensor, context or sequence parallelism) has not been tried: leave it out"
    if getattr(args, "torch_compile", False):
        yield "torch_compile=True would compile the policy's passes and not the reference's: leave it out"
    elif _compiles(trainer.accelerator):
        yield (
            "accelerate's settings (ACCELERATE_DYNAMO_BACKEND, or dynamo_config of accelerate launch) would compile "
            "the policy's passes and not the reference's: set the backend to no"
        )
    if getattr(args, "neftune_noise_alpha", None):
        yield "neftune_noise_alpha gives policy and reference different noise, so their ratio is never 1: leave it out"
    if getattr(args, "auto_find_batch_size", False):
        yield "auto_find_batch_size=True begins anew with weights that have moved: set per_device_train_batch_size"
    if getattr(args, "enable_jit_checkpoint", False):
        yield (
            "enable_jit_checkpoint=True saves within a step, when the reference is not the one to go on with: leave it "
            "out, and set save_steps"
        )
    if getattr(args, "use_liger_kernel", False):
        yield "use_liger_kernel=True replaces layers when training starts, and has not been tried: leave it out"
    if trainer.aux_loss_enabled:
        yield "the auxiliary loss of a mixture of experts has not been tried: set router_aux_loss_coef=0.0"
    if trainer._is_vlm:
        yield "models of images have not been tried: give the tokenizer of a language model as processing_class"


def _compiles(accelerator: Any) -> bool:
    plugin = getattr(getattr(accelerator, "state", None), "dynamo_plugin", None)
    return plugin is not None and str(getattr(plugin.backend, "value", plugin.backend)) != "NO"


def _replaced(trainer: Any, kind: str) -> bool:
    own = next((vars(cls)["_compute_loss"] for cls in type(trainer).__mro__ if "_compute_loss" in vars(cls)), None)
    theirs = next(cls for cls in type(trainer).__mro__ if _is_trls(cls, kind))
    return own is not vars(theirs).get("_compute_loss")


def _of_model(model: Any) -> Iterator[str]:
    """Look for what makes two passes of the same weights differ."""
    noisy: dict[str, float] = {}
    for name, module in model.named_modules():
        own = {key: value for key, value in _rates(module) if "drop" in key}
        if "Dropout" in type(module).__name__:
            own["p"] = getattr(module, "p", 0.0)
        noisy |= {f"{name}.{key}".lstrip("."): value for key, value in own.items() if value > 0}
    if noisy:
        first, rate = next(iter(noisy.items()))
        yield (
            f"dropout is above 0 ({first} = {rate:g}, {len(noisy)} such in all), so policy and reference would differ "
            "by chance: leave disable_dropout=True, and set the rates in the model's configuration "
            "(model_init_kwargs={'attention_dropout': 0.0}) and in the peft_config to 0"
        )
    places = {str(one) for one in (getattr(model, "hf_device_map", None) or {}).values()}
    if len(places) > 1:
        yield (
            f"its layers lie on {', '.join(sorted(places))} (device_map), which has not been tried: leave device_map "
            "out, and start one process a GPU"
        )
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        yield "adapters that add tokens to the prompt (prompt, prefix and p-tuning) have not been tried: use LoRA"
    if not any(one.requires_grad for one in model.parameters()):
        yield "no weight of the model is trained: check requires_grad and the peft_config"


def _rates(module: Any) -> Iterator[tuple[str, float]]:
    """Return the numbers that a module keeps, by name; those of adapters (LoHa, LoKr) stand in a mapping by adapter."""
    for key, value in vars(module).items():
        for name, one in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(one, float):
                yield f"{key}.{name}".rstrip("."), one


def warn_of_another_reference(trainer: Any) -> None:
    """Warn where the trainer's reference model has other weights than its policy: they are not used."""
    theirs = trainer.ref_model
    if theirs is None:
        return
    own = {_base_name(name): one for name, one in trainer.model.named_parameters()}
    for name, one in theirs.named_parameters():
        mine = own.get(_base_name(name))
        if mine is None or mine.shape != one.shape or not torch.equal(mine.to(one.dtype), one):
            warnings.warn(
                f"the trainer's ref_model has other weights than its model (the first: {name}), and is not used: the "
                "reference of humanline is the model's own earlier weights, to begin with those that it has now",
                stacklevel=3,
            )
            return


def _base_name(name: str) -> str:
    """Return a parameter's name as it is without an adapter."""
    return name.removeprefix("module.").removeprefix("base_model.model.").replace(".base_layer.", ".")


def _of_losses(kind: str, names: list[str]) -> Iterator[str]:
    for name in names:
        if name not in LOSSES[kind]:
            why = WHY_NOT.get(name, "it is not known here")
            yield f"loss_type {name!r}: {why}; use one of {', '.join(sorted(LOSSES[kind]))}"


def _of_dpo(trainer: Any) -> Iterator[str]:
    yield from _of_losses("DPOTrainer", list(trainer.loss_types))
    if trainer.use_weighting:
        yield "use_weighting=True (WPO) weights pairs by the policy's log-probabilities, not by ratios: leave it out"
    if trainer.ld_alpha is not None:
        yield "ld_alpha (LD-DPO) weights tokens after the clip, which no longer holds for what is summed: leave it out"


def _of_kto(trainer: Any) -> Iterator[str]:
    yield from _of_losses("KTOTrainer", [trainer.loss_type])


def _of_grpo(trainer: Any) -> Iterator[str]:
    args = trainer.args
    yield from _of_losses("GRPOTrainer", [trainer.loss_type])
    if trainer.importance_sampling_level != "token":
        yield (
            f"importance_sampling_level={trainer.importance_sampling_level!r} averages over an answer what is to be "
            "clipped token by token: set it to 'token'"
        )
    if args.use_bias_correction_kl and trainer.beta != 0:
        yield (
            "use_bias_correction_kl=True with beta > 0 multiplies the KL term, which is that of the unclipped ratio, "
            "by the clipped one: set it to False"
        )
    if trainer.use_vllm and trainer.vllm_importance_sampling_correction:
        yield (
            "vllm_importance_sampling_correction=True corrects towards the generation's snapshot, which is no longer "
            "what the ratio is taken against: set it to False"
        )
    if trainer.off_policy_mask_threshold is not None:
        yield "off_policy_mask_threshold measures the distance of clipped log-probabilities: leave it out"
