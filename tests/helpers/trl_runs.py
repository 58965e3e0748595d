"""TRL's trainers on rows of token ids, small enough for a test, and a plain loop to hold them against."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from humanline.objectives import dpo_loss, grpo_loss, kto_loss
from humanline.theory import ClipRange

QUIET = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "lr_scheduler_type": "constant"}


def trainer_of(
    name: str,
    model: Any,
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    peft_config: Any = None,
    eval_rows: int = 0,
    **settings: Any,
) -> Any:
    """Return a trainer of TRL that takes token ids, logs every step, and keeps what reaches its loss in training.

    Rows of GRPO hold a prompt and its `answers`, which take the place of a generation, and their `scores`.
    """
    import trl
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer

    disable_progress_bars()
    grpo = name == "GRPO"
    by_prompt = {row["prompt"]: row for row in rows} if grpo else {}

    class Tokens(getattr(trl, f"{name}Trainer")):  # type: ignore[misc]
        def _send_telemetry(self) -> None:
            """Send nothing."""

        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

        def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
            members = [place % 2 for place in range(len(prompts))]
            found = [by_prompt[prompt] for prompt in prompts]
            answers = [row["answers"][member] for row, member in zip(found, members, strict=True)]
            texts = [f"{prompt}#{member}" for prompt, member in zip(prompts, members, strict=True)]
            return [row["prompt_ids"] for row in found], answers, None, texts, None, {}, None, []

    def score(completions: list[str], **_: Any) -> list[float]:
        found = [text.rsplit("#", 1) for text in completions]
        return [float(by_prompt[prompt]["scores"][int(member)]) for prompt, member in found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common = {"logging_steps": 1, "save_strategy": "no", "gradient_checkpointing": False}
        if grpo:
            common |= {"num_generations": 2, "shuffle_dataset": False, "max_completion_length": 64}
        else:
            common |= {"train_sampling_strategy": "sequential", "max_length": 64}
        args = getattr(trl, f"{name}Config")(output_dir=str(folder), **(QUIET | common | settings))
        more = {"reward_funcs": score} if grpo else {}
        data = [{"prompt": row["prompt"]} for row in rows] if grpo else rows
        tokenizer = AutoTokenizer.from_pretrained(getattr(model, "name_or_path", model))
        return Tokens(
            model=model,
            args=args,
            train_dataset=Dataset.from_list(data),
            eval_dataset=Dataset.from_list(data[:eval_rows]) if eval_rows else None,
            processing_class=tokenizer,
            peft_config=peft_config,
            **more,
        )


def record(trainer: Any) -> list[list[dict[str, Any]]]:
    """Keep the inputs of each micro-batch that a trainer's loss is given in training, in lists of one step each."""
    steps: list[list[dict[str, Any]]] = []
    theirs = trainer._compute_loss

    def loss(model: Any, inputs: dict[str, Any], *more: Any, **named: Any) -> Any:
        if trainer.model.training:
            if len(steps) <= trainer.state.global_step:
                steps.append([])
            steps[-1].append({name: one.clone() if isinstance(one, Tensor) else one for name, one in inputs.items()})
        return theirs(model, inputs, *more, **named)

    trainer._compute_loss = loss
    return steps


def trained(trainer: Any, **arguments: Any) -> Any:
    """Train, and return the trainer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(**arguments)
    return trainer


def logged(trainer: Any, name: str) -> list[float]:
    """Return what was logged of each step."""
    return [row[name] for row in trainer.state.log_history if name in row]


def logprobs(model: Any, ids: Tensor, attention: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Return (B, T - 1) log-probabilities of a plain pass, and which of them count."""
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]
    found = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return found, counted[:, 1:].bool()


def plain_loop(
    model: Any,
    steps: list[list[dict[str, Any]]],
    loss_of: Callable[[Any, Any, dict[str, Any]], Tensor],
    *,
    lr: float,
    eps: float,
    syncs: Callable[[int], bool],
) -> tuple[list[float], list[float]]:
    """Train with a second model as the reference, taken before the update; return losses and gradient norms."""
    reference, losses, norms = copy.deepcopy(model), [], []
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, eps=eps, weight_decay=0.0)
    for step, micro_batches in enumerate(steps):
        total = 0.0
        for inputs in micro_batches:
            loss = loss_of(model, reference, inputs | {"micro_batches": len(micro_batches)})
            loss.backward()
            total += loss.item()
        if syncs(step):
            reference.load_state_dict(model.state_dict())
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0).item())
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def plain_dpo(clip: ClipRange, beta: float) -> Callable[[Any, Any, dict[str, Any]], Tensor]:
    """Return DPO's loss of a step of one micro-batch of TRL's, its chosen rows first."""

    def loss_of(model: Any, reference: Any, inputs: dict[str, Any]) -> Tensor:
        given = inputs["input_ids"], inputs["attention_mask"], inputs["completion_mask"]
        policy, mask = logprobs(model, *given)
        with torch.no_grad():
            ref, _ = logprobs(reference, *given)
        log_ratio, half = clip.clip(policy - ref), len(policy) // 2
        loss, _ = dpo_loss(
            log_ratio[:half], log_ratio[half:], chosen_mask=mask[:half], rejected_mask=mask[half:], beta=beta
        )
        return loss

    return loss_of


def plain_kto(clip: ClipRange, beta: float) -> Callable[[Any, Any, dict[str, Any]], Tensor]:
    """Return KTO's loss of a micro-batch of TRL's, z_0 its own."""

    def loss_of(model: Any, reference: Any, inputs: dict[str, Any]) -> Tensor:
        def ratios(prefix: str) -> tuple[Tensor, Tensor]:
            given = [inputs[f"{prefix}{name}"] for name in ("input_ids", "attention_mask", "completion_mask")]
            policy, mask = logprobs(model, *given)
            with torch.no_grad():
                ref, _ = logprobs(reference, *given)
            return clip.clip(policy - ref), mask

        log_ratio, mask = ratios("")
        with torch.no_grad():
            kl, kl_mask = ratios("KL_")
        desirable = torch.as_tensor(inputs["label"], dtype=torch.bool)
        loss, _ = kto_loss(
            log_ratio, mask=mask, desirable=desirable, kl_log_ratio=kl, kl_mask=kl_mask, beta=beta,
            denominator=len(desirable) * inputs["micro_batches"],
        )  # fmt: skip
        return loss

    return loss_of


def plain_grpo(
    clip: ClipRange, eps: float, beta: float, share: float, delta: float | None = None, cut: list[int] | None = None
) -> Callable[[Any, Any, dict[str, Any]], Tensor]:
    """Return GRPO's loss of a micro-batch; `share` is the part of a generation's tokens that a step is divided by.

    With `delta` the ratio is at most that where GRPO's own clip does not hold it, written here from the formula; how
    many tokens of a micro-batch it holds is added to `cut`.
    """

    def loss_of(model: Any, reference: Any, inputs: dict[str, Any]) -> Tensor:
        width = inputs["completion_ids"].size(1)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        policy, mask = logprobs(model, ids, attention, attention)
        with torch.no_grad():
            ref, _ = logprobs(reference, ids, attention, attention)
        raw, mask = (policy - ref)[:, -width:], mask[:, -width:]
        denominator, advantages = float(inputs["num_items_in_batch"]) * share, inputs["advantages"]
        if delta is not None:
            ratio, signs = clip.clip(raw).exp(), advantages[:, None]
            two_sided = torch.minimum(ratio.clamp(max=delta) * signs, ratio.clamp(1 - eps, 1 + eps) * signs)
            kl = (-raw).exp() + raw - 1
            assert cut is not None
            cut.append(int(((ratio > delta) & (signs < 0) & mask).sum()))
            return torch.where(mask, beta * kl - two_sided, 0.0).sum() / denominator
        loss, _ = grpo_loss(
            clip.clip(raw), mask=mask, advantages=advantages, kl_log_ratio=raw, clip_eps=eps, kl_coef=beta,
            denominator=denominator,
        )  # fmt: skip
        return loss

    return loss_of
