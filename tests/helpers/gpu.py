"""Small models and batches in sizes that kernels of a GPU take: heads of 64, rows longer than a block of keys."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from humanline.train.data.batch import Block, make_block
from humanline.train.data.sequences import TokenSequence
from humanline.train.policy.in_order import sum_in_order
from humanline.train.policy.layers import decoder_layers
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.packing import pack
from humanline.train.policy.precision import compute_in

#: Rows of one pass: on a GPU longer than the blocks that kernels cut them into, on a CPU so that it is quick.
LENGTHS = {"cuda": (700, 129, 1, 64, 300), "cpu": (40, 9, 1, 8, 20)}
VOCABULARY = 320


def llama(**changes: object) -> LlamaConfig:
    """A configuration of two layers with two heads of 64, which share their keys and values."""
    sizes: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**sizes | changes)  # type: ignore[arg-type]


def model_on(device: str, dtype: torch.dtype = torch.float32, **changes: object) -> torch.nn.Module:
    """A model with the same random weights on any device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(llama(**changes), dtype=torch.float32)
    return model.to(device, dtype)


def policy_on(
    device: str,
    *,
    packed: bool = False,
    checkpointing: bool = False,
    compute: torch.dtype | None = None,
    dtype: torch.dtype = torch.float32,
) -> LogprobModel:
    """A policy in training mode over such a model, set up as a run sets it up."""
    if device == "cuda":
        sum_in_order()
    model = model_on(device, dtype)
    if packed:
        pack(model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        assert decoder_layers(model)[0].gradient_checkpointing
    policy = LogprobModel(model, packed=packed).train()
    if compute is not None:
        compute_in(policy, compute)
    return policy


def block_on(device: str, lengths: tuple[int, ...] | None = None) -> Block:
    """Rows of random tokens on a device, padded; the first token of each is its prompt."""
    rng = random.Random(0)
    rows = [TokenSequence(tuple(rng.randrange(3, VOCABULARY) for _ in range(n)), 1) for n in lengths or LENGTHS[device]]
    return make_block(rows, [str(i) for i in range(len(rows))], 0).to(torch.device(device))


def write_model(folder: Path, tokenizer_of: str, **changes: object) -> str:
    """Write such a model with the tokenizer of another one; return the folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    tokenizer.model_max_length = 2048
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        settings = llama(**{"vocab_size": max(VOCABULARY, len(tokenizer)), **ends, **changes})
        model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
