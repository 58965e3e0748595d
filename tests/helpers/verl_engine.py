"""A stand-in for verl's engine on the CPU: a table of logits, updated by plain gradient descent, that remembers.

Everything around it is verl's: the worker, its loop of mini-batches, micro-batches, padding and the loss. Importing
this module needs verl.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, PolicyLossConfig, TrainingWorkerConfig
from verl.workers.engine import BaseEngine, EngineRegistry
from verl.workers.engine.utils import postprocess_batch_func, prepare_micro_batches
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding, response_from_nested

VOCABULARY, PROMPT, ANSWER = 11, 3, 5


class Table(BaseEngine):
    """An engine whose model is a table: the logits of the next token, by the present one, and a row for all of them."""

    def __init__(self, **_: Any) -> None:
        self.table = torch.nn.Parameter(
            torch.randn(VOCABULARY + 1, VOCABULARY, generator=torch.Generator().manual_seed(0))
        )
        self.before: list[torch.Tensor] = []  # the weights before each update
        self.trained: list[TensorDict] = []  # the mini-batch of each update
        self.modes: list[str] = []

    def initialize(self) -> None: ...

    def is_mp_src_rank_with_outputs(self) -> bool:
        return True

    def get_data_parallel_rank(self) -> int:
        return 0

    def get_data_parallel_size(self) -> int:
        return 1

    def get_data_parallel_group(self) -> Any:
        return torch.distributed.group.WORLD

    def train_mode(self, **_: Any) -> Any:
        return nullcontext(self.modes.append("train"))

    def eval_mode(self, **_: Any) -> Any:
        return nullcontext(self.modes.append("eval"))

    def optimizer_zero_grad(self) -> None:
        self.table.grad = None

    def optimizer_step(self) -> float:
        with torch.no_grad():
            self.table -= 0.5 * self.table.grad
        return float(self.table.grad.norm())

    def lr_scheduler_step(self) -> float:
        return 0.5

    def log_probs(self, input_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return nested log-probabilities, at each token those of the token after it."""
        tokens = input_ids.values()
        chosen = (table[tokens] + table[-1]).log_softmax(-1).gather(-1, tokens.roll(-1)[:, None])[:, 0]
        return torch.nested.nested_tensor_from_jagged(chosen, offsets=input_ids.offsets())

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        assert loss_function is None or not forward_only, "scoring computes no loss"
        if not forward_only:
            self.before.append(copy.deepcopy(self.table.detach()))
            self.trained.append(data.clone())
        mask = data["response_mask"]
        tu.assign_non_tensor(data, batch_num_tokens=int((mask.values() if mask.is_nested else mask).sum()), dp_size=1)
        micro_batches, indices = prepare_micro_batches(data=data)
        done = []
        for micro_batch in micro_batches:
            model_output = {"log_probs": self.log_probs(micro_batch["input_ids"], self.table)}
            loss, metrics = torch.tensor(1.0), {}
            if loss_function is not None:
                loss, metrics = loss_function(model_output=model_output, data=micro_batch, dp_group=None)
            if not forward_only:
                loss.backward()
            told = {name: value.detach() for name, value in model_output.items()}
            done.append({"model_output": told, "loss": float(loss.detach()), "metrics": metrics})
        return postprocess_batch_func(output_lst=done, indices=indices, data=data)


def worker(loss_mode: str, *, strategy: str = "fsdp", tokens: int | None = None, **actor: Any) -> TrainingWorker:
    """Return verl's worker around a `Table`; torch.distributed has to be there, and VERL_ENGINE_DEVICE=cpu.

    With `tokens` its micro-batches are of verl's dynamic size, of so many tokens at most.
    """
    if "fsdp" not in EngineRegistry._engines.get("language_model", {}) or not any(
        found is Table for found in EngineRegistry._engines["language_model"]["fsdp"].values()
    ):
        EngineRegistry.register(model_type="language_model", backend=["fsdp"], device="cpu")(Table)
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=_Model(),
        engine_config=FSDPEngineConfig(
            strategy="fsdp",
            use_dynamic_bsz=tokens is not None,
            micro_batch_size_per_gpu=1,
            max_token_len_per_gpu=tokens,
        ),
    )
    made = TrainingWorker(config)
    made.device_name = "cpu"
    object.__setattr__(made.engine_config, "strategy", strategy)
    made.set_loss_fn(loss(loss_mode, **actor))
    return made


def loss(loss_mode: str, **actor: Any) -> Any:
    """Return verl's loss of an actor with a policy loss of that name."""
    policy_loss = PolicyLossConfig(loss_mode=loss_mode)
    given = FSDPActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss, **actor
    )
    return partial(ppo_loss, config=given)


class _Model(dict):
    model_type: str | None = None


def round_of(count: int, seed: int, *, nested: bool, of: TrainingWorker) -> TensorDict:
    """Return answers of many lengths with old_log_probs of the worker's weights, as one of verl's two trainers does."""
    draw = torch.Generator().manual_seed(seed)
    lengths = [(1 + i % PROMPT, 1 + (3 * i) % ANSWER) for i in range(count)]
    rows = [torch.randint(VOCABULARY, (sum(both),), generator=draw) for both in lengths]
    mask = [torch.ones(answer, dtype=torch.long) for _, answer in lengths]
    data = _nested(rows, mask, lengths) if nested else _padded(rows, lengths)
    advantages = torch.randn(count, generator=draw)
    tu.assign_non_tensor(
        data, temperature=1.0, micro_batch_size_per_gpu=count, use_dynamic_bsz=False, compute_loss=False
    )
    scored = tu.get(of.infer_batch(data.copy()), "log_probs")
    data.pop("micro_batch_size_per_gpu"), data.pop("use_dynamic_bsz"), data.pop("compute_loss")
    if nested:
        data["old_log_probs"] = response_from_nested(scored, data["response_mask"])
        data["advantages"] = torch.nested.as_nested_tensor(
            [a.expand(len(one)).clone() for a, one in zip(advantages, mask, strict=True)], layout=torch.jagged
        )
    else:
        data["old_log_probs"] = no_padding_2_padding(scored, data)
        data["advantages"] = advantages[:, None].expand(count, ANSWER).clone()
    return data


def _nested(rows: list, mask: list, lengths: list) -> TensorDict:
    fields = {
        "input_ids": rows,
        "prompts": [row[:prompt] for row, (prompt, _) in zip(rows, lengths, strict=True)],
        "responses": [row[prompt:] for row, (prompt, _) in zip(rows, lengths, strict=True)],
        "response_mask": mask,
        "loss_mask": mask,
        "position_ids": [torch.arange(len(row)) for row in rows],
    }
    made = {name: torch.nested.as_nested_tensor(value, layout=torch.jagged) for name, value in fields.items()}
    return tu.get_tensordict(made)


def _padded(rows: list, lengths: list) -> TensorDict:
    shape = (len(rows), PROMPT + ANSWER)
    ids, attention = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    for at, (row, (prompt, answer)) in enumerate(zip(rows, lengths, strict=True)):
        ids[at, PROMPT - prompt : PROMPT + answer] = row
        attention[at, PROMPT - prompt : PROMPT + answer] = 1
    fields = {
        "input_ids": ids,
        "prompts": ids[:, :PROMPT].clone(),
        "responses": ids[:, PROMPT:].clone(),
        "attention_mask": attention,
        "response_mask": attention[:, PROMPT:].clone(),
        "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
    }
    return left_right_2_no_padding(tu.get_tensordict(fields))


def train(
    of: TrainingWorker, data: TensorDict, *, mini_batch: int, shuffle: bool = False, epochs: int = 1
) -> dict[str, Any]:
    """Take a round of updates in verl's own loop and return its metrics."""
    given = {"mini_batch_size": mini_batch, "global_batch_size": mini_batch, "epochs": epochs, "seed": 5}
    tu.assign_non_tensor(
        data, **given, dataloader_kwargs={"shuffle": shuffle}, calculate_entropy=True, compute_loss=True
    )
    return tu.get(of.train_mini_batch(data), "metrics")


def answer_log_probs(engine: Table, batch: TensorDict, table: torch.Tensor) -> torch.Tensor:
    """Return what old_log_probs of a mini-batch are under given weights, as one flat tensor of its answers' tokens."""
    return torch.cat([row[-n:] for row, n in zip(_shifted(engine, batch, table), answer_lengths(batch), strict=True)])


def old_log_probs(batch: TensorDict) -> torch.Tensor:
    """Return the reference in a mini-batch, flat in the same order."""
    found = batch["old_log_probs"]
    return torch.cat([row[:n] for row, n in zip(found.unbind(), answer_lengths(batch), strict=True)])


def answer_lengths(batch: TensorDict) -> list[int]:
    """Return the tokens of each answer."""
    return [int(row.sum()) for row in batch["response_mask"].unbind()]


def _shifted(engine: Table, batch: TensorDict, table: torch.Tensor) -> list[torch.Tensor]:
    # A token's log-probability stands at the token before it.
    found = []
    for row in batch["input_ids"].unbind():
        found.append(torch.stack([(table[a] + table[-1]).log_softmax(-1)[b] for a, b in pairwise(row)]))
    return found
