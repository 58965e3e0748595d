"""A run whose peak memory can be measured: what is paged in and kept by libraries happens before, in a tiny one."""

from __future__ import annotations

import gc
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from humanline.train.config import TrainConfig
from humanline.train.policy.new_model import new_model
from humanline.train.policy.new_tokenizer import train_tokenizer

LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def write_data(path: Path, count: int, words: tuple[int, int], seed: int = 0) -> None:
    """Write preference pairs whose answers have so many words, at least and at most."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for index in range(count):
            answers = [" ".join(draw.choices("abcdefgh", k=draw.randint(*words))) for _ in range(2)]
            file.write(json.dumps({"prompt": f"{index} " * 8, "chosen": answers[0], "rejected": answers[1]}) + "\n")


def write_model(path: Path, *, vocabulary: int, hidden: int, layers: int, **settings: Any) -> None:
    """Write a Llama with random weights in which tensors outweigh everything else."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer(["a b c d e f g h 0 1 2 3 4 5 6 7 8 9"] * 4, vocab_size=300)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=8 * hidden // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=2048,
        **settings,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)


def prepare(tree: dict[str, Any]) -> Callable[[], object]:
    """Return a run, for `benchmarks.peak`; of several processes each makes the tiny one alone, without sharding."""
    from accelerate import PartialState

    from humanline.train.loop import train

    config = TrainConfig.model_validate(tree)
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder)
        (small / "text.txt").write_text("a b c d e f g h 0 1 2 3 4 5 6 7 8 9 " * 20)
        new_model(small / "model", text=small / "text.txt", vocab_size=300, hidden_size=64, layers=1)
        write_data(small / "pairs.jsonl", 4, (2, 4))
        changes = {
            "model": str(small / "model"),
            "output": str(small / "run"),
            "data": tree["data"] | {"train": str(small / "pairs.jsonl")},
            "training": tree["training"] | {"batch_size": 2, "micro_batch_size": 1, "micro_batch_tokens": None},
        }
        changes["training"]["sharding"] = "none"
        launched = {name: os.environ.pop(name) for name in LAUNCHED if name in os.environ}
        train(TrainConfig.model_validate(tree | changes), show_progress=False)
        PartialState._reset_state()
        os.environ.update(launched)
    gc.collect()
    return lambda: train(config, show_progress=False)
