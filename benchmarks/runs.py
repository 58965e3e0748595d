"""Small but not trivial training runs on synthetic data, and a way to run the real loop step by step."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.functional import logsigmoid

from benchmarks.machine import DEVICE
from humanline.system.imports import quiet_libraries
from humanline.system.progress import RunProgress
from humanline.train.config import TrainConfig
from humanline.train.data.batch import MicroBatch
from humanline.train.data.run_data import renderer_of, training_stream
from humanline.train.data.sets import read_units
from humanline.train.policy.load import TYPES, load_policy, load_tokenizer
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.new_tokenizer import SMALLEST_VOCAB, train_tokenizer
from humanline.train.policy.precision import compute_in

OBJECTIVES: dict[str, dict[str, Any]] = {
    "dpo": {"kind": "dpo", "beta": 0.1},
    "kto": {"kind": "kto", "beta": 0.1},
    "grpo": {"kind": "grpo"},
}
# What scores a batch: ahead of time at every step, once before the run, a second model, a second model synced.
REFERENCES: dict[str, dict[str, Any]] = {
    "ahead": {"schedule": {"kind": "before_step", "every": 1}},
    "free": {"schedule": {"kind": "never"}},
    "live": {"schedule": {"kind": "never"}, "storage": "model"},
    "second": {"schedule": {"kind": "before_step", "every": 1}, "storage": "model"},
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """A lognormal law of lengths, in tokens: its median and the standard deviation of its logarithm."""

    median: float
    spread: float

    def draw(self, rng: random.Random, most: int) -> int:
        """Return a length of 1 to `most` tokens."""
        return min(most, max(1, round(rng.lognormvariate(math.log(self.median), self.spread))))


# Of prompts and answers as chat preference data may have them. Declared, not fitted to any set: in rows of at most
# 256 and 767 tokens an average prompt has about 115 of them and an average answer about 280.
REAL = (Lengths(90.0, 0.9), Lengths(230.0, 0.7))


@dataclass(frozen=True, slots=True)
class Workload:
    """Model and batch sizes.

    An answer has between `shortest` times `answer` and `answer` tokens; or, where there are `lengths`, prompts and
    answers have lengths from these two laws, up to `prompt` and `answer`.
    """

    hidden: int
    layers: int
    heads: int
    vocab: int
    prompt: int
    answer: int
    batch: int
    micro_batch: int
    precision: str = "float32"
    shortest: float = 0.5
    inner: int | None = None  # width of the feed-forward layers; default: 8/3 of `hidden`
    key_heads: int | None = None  # default: as many as `heads`
    lengths: tuple[Lengths, Lengths] | None = None


QUICK = Workload(hidden=64, layers=2, heads=2, vocab=512, prompt=8, answer=24, batch=4, micro_batch=4)
CPU = Workload(hidden=256, layers=4, heads=4, vocab=8192, prompt=32, answer=96, batch=12, micro_batch=6)
GPU = Workload(
    hidden=1024, layers=16, heads=16, vocab=32768, prompt=128, answer=384, batch=32, micro_batch=16, precision="bf16"
)
# Weights that outweigh activations, to see what a second copy of them costs.
CPU_WEIGHTS = Workload(hidden=512, layers=8, heads=8, vocab=8192, prompt=8, answer=24, batch=4, micro_batch=4)
GPU_WEIGHTS = Workload(
    hidden=2048, layers=16, heads=16, vocab=32768, prompt=32, answer=96, batch=8, micro_batch=4, precision="bf16"
)


def prepare(folder: Path, workload: Workload, pairs: int = 64, *, weights: bool = True) -> dict[str, Any]:
    """Write a random Llama and synthetic preference pairs; return the sections of a configuration that name them.

    Without `weights` only the settings of the model are written, for a run that makes its weights where it needs them.

    The tokenizer knows bytes only, so that a text has as many tokens as letters, while the model embeds the whole
    vocabulary of the workload.
    """
    quiet_libraries()
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer(["no merges"], SMALLEST_VOCAB)
    tokenizer.save_pretrained(folder / "model")
    config = LlamaConfig(
        vocab_size=workload.vocab,
        hidden_size=workload.hidden,
        intermediate_size=workload.inner or 8 * round(workload.hidden / 3),
        num_hidden_layers=workload.layers,
        num_attention_heads=workload.heads,
        num_key_value_heads=workload.key_heads or workload.heads,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    if weights:
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder / "model")
    else:
        config.save_pretrained(folder / "model")
    rng = random.Random(0)

    def text(length: int) -> str:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=length))

    def prompt() -> str:
        return text(workload.prompt if workload.lengths is None else workload.lengths[0].draw(rng, workload.prompt))

    def answer() -> str:
        if workload.lengths is not None:
            return text(workload.lengths[1].draw(rng, workload.answer))
        return text(rng.randint(round(workload.shortest * workload.answer), workload.answer))

    rows = [{"prompt": prompt(), "chosen": answer(), "rejected": answer()} for _ in range(pairs)]
    data = folder / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {
        "model": str(folder / "model"),
        "data": {"train": str(data), "shape": "preference", "template": "plain"},
        "training": {
            "batch_size": workload.batch,
            "micro_batch_size": workload.micro_batch,
            "precision": workload.precision,
        },
        "optimizer": {"lr": 1e-4, "warmup_fraction": 0.0},
    }


def run_config(
    base: dict[str, Any],
    output: Path,
    reference: dict[str, Any],
    *,
    steps: int,
    objective: str | dict[str, Any] = "dpo",
    lr: float = 1e-4,
    training: dict[str, Any] | None = None,
    **sections: Any,
) -> TrainConfig:
    """Return the configuration of one run on what `prepare` wrote; `training` and `sections` replace what it names."""
    objective = OBJECTIVES[objective] if isinstance(objective, str) else objective
    sizes = base["training"]
    if objective["kind"] == "grpo":  # of which it counts the rows, here of groups of two
        sizes = sizes | {"micro_batch_size": 2 * sizes["micro_batch_size"]}
    return TrainConfig.model_validate(
        base
        | {
            "output": str(output),
            "objective": objective,
            "reference": reference,
            "training": sizes | {"steps": steps} | (training or {}),
            "optimizer": base["optimizer"] | {"lr": lr},
        }
        | sections
    )


def training_batches(config: TrainConfig) -> list[tuple[MicroBatch, ...]]:
    """Return the micro-batches of every step of a run, for a trainer of another kind to be fed with."""
    assert config.training.steps is not None
    tokenizer = load_tokenizer(config.model)
    renderer = renderer_of(config, tokenizer)
    units, _ = read_units(config, config.data.train, renderer)
    stream = training_stream(config, units, renderer)
    return [stream.step(number).micro_batches for number in range(config.training.steps)]


@contextmanager
def own_accelerate(kept: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Give a run accelerate's state of the process for itself, and put back what was there.

    Accelerate keeps one state a process, whether gradients are being accumulated included: two trainers that take
    turns in one process would otherwise read each other's.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState

    shared = {kind.__name__: kind._shared_state for kind in (PartialState, AcceleratorState, GradientState)}
    outer = {name: dict(state) for name, state in shared.items()}

    def put(states: dict[str, dict[str, Any]]) -> None:
        for name, state in shared.items():
            state.clear()
            state.update(states.get(name, {}))

    put(kept)
    try:
        yield
    finally:
        kept.update({name: dict(state) for name, state in shared.items()})
        put(outer)


class _Closed(BaseException):
    """Unwinds a run that is not to go on."""


class Stepped(threading.Thread):
    """Work on a thread of its own that stands still wherever it calls `pause`, until it is asked for the next step.

    Parameters
    ----------
    work : callable
    """

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.finished = self.closed = False
        self.error: BaseException | None = None
        self._accelerate: dict[str, dict[str, Any]] = {}
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        """Do the work, from the first `step` on."""
        self._go.acquire()
        try:
            if not self.closed:
                self.work()
        except _Closed:
            pass
        except BaseException as error:
            self.error = error
        self.finished = True
        self._back.release()

    def step(self) -> None:
        """Let the work go on to its next pause or its end; what it raises is raised here."""
        if self.finished:
            raise RuntimeError("the work is over")
        with own_accelerate(self._accelerate):
            self._go.release()
            self._back.acquire()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the work where it stands."""
        if not self.finished:
            self.closed = True
            with own_accelerate(self._accelerate):
                self._go.release()
                self.join()

    def pause(self) -> None:
        """Hand control back; called by the work itself."""
        self._back.release()
        self._go.acquire()
        if self.closed:
            raise _Closed


def pause() -> None:
    """Hand control back if this is a thread that is stepped."""
    thread = threading.current_thread()
    if isinstance(thread, Stepped):
        thread.pause()


@contextmanager
def pausing_loop() -> Iterator[None]:
    """Make `humanline.train.loop.train` pause after every optimizer step where it runs under `Stepped`."""
    shown = RunProgress.step

    def step(self: RunProgress, *arguments: Any) -> None:
        shown(self, *arguments)
        pause()

    with patch.object(RunProgress, "step", step):
        yield


def bare_dpo(config: TrainConfig) -> LogprobModel:
    """Train with offline DPO in the fewest lines of torch: forward, backward, clip, step, and pause.

    Batches and the reference's log-probabilities are ready on the device before the first step, nothing is logged or
    checked, and nothing is read back from the device.
    """
    assert config.objective.kind == "dpo"
    model, _ = load_policy(config.model, dropout=False, max_length=config.data.max_length)
    policy = LogprobModel(model).to(DEVICE).train()
    if config.training.precision != "float32":
        compute_in(policy, TYPES[config.training.precision])
    steps = []
    for micro_batches in training_batches(config):
        blocks = [micro.block.to(torch.device(DEVICE)) for micro in micro_batches]
        with torch.no_grad():
            steps.append([(b.input_ids, b.mask, policy(b.input_ids, b.mask)) for b in blocks])
    optimizer = torch.optim.AdamW(
        policy.parameters(),
        lr=config.optimizer.lr,
        betas=(config.optimizer.adam_beta1, config.optimizer.adam_beta2),
        eps=config.optimizer.adam_eps,
        weight_decay=config.optimizer.weight_decay,
        fused=True,
    )
    for parts in steps:
        for input_ids, mask, ref in parts:
            logprobs = policy(input_ids, mask)
            chosen, rejected = (logprobs - ref).sum(1).chunk(2)
            loss = -logsigmoid(config.objective.beta * (chosen - rejected)).sum() / config.training.batch_size
            loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.optimizer.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        pause()
    return policy
