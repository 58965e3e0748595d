"""A small language model from scratch: a tokenizer trained on one's own text and random Llama weights.

For demos, tests and teaching: it needs no download, and its files load like any other Hugging Face model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from humanline._checks import fail
from humanline.system.files import refuse_used_folder
from humanline.system.imports import quiet
from humanline.train.data.json_lines import json_lines
from humanline.train.data.source import DataError
from humanline.train.data.sources import existing_file
from humanline.train.policy.new_gemma2 import tiny_gemma2
from humanline.train.policy.new_tokenizer import train_tokenizer
from humanline.train.policy.save import create_model

with quiet():
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase


Family = Literal["llama", "gemma2"]


def tiny_llama(
    tokenizer: PreTrainedTokenizerBase,
    *,
    hidden_size: int = 128,
    layers: int = 2,
    heads: int = 4,
    max_length: int = 1024,
    seed: int = 0,
) -> LlamaForCausalLM:
    """Return a small Llama with random float32 weights, the same for the same seed.

    The global random state of torch is left as it was. The generation config samples from the model's own
    distribution: no top-k, no top-p, temperature 1.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Gives the vocabulary size and the begin, end and pad tokens.
    hidden_size : int
        The width, a multiple of 2 * `heads` (rotary positions turn pairs of numbers within each head).
    layers, heads : int
        Both >= 1.
    max_length : int
        The number of positions, tokens, >= 1.
    seed : int
        From 0 to 2**64 - 1.

    Raises
    ------
    ValueError
        If an argument is outside its domain.
    """
    sizes = {"hidden_size": hidden_size, "layers": layers, "heads": heads, "max_length": max_length}
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise fail(name, "be an integer >= 1", value)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise fail("seed", "be an integer from 0 to 2**64 - 1", seed)
    if hidden_size % (2 * heads):
        raise fail("hidden_size", f"be a multiple of 2 * heads = {2 * heads}", hidden_size)
    tokens: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=max(8, 8 * round(hidden_size / 3)),  # about 8/3 of the width, a multiple of 8
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        dtype="float32",
        **tokens,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would reseed accelerators too
        model = LlamaForCausalLM(config).float()
    # Servers pick tokens greedily unless the checkpoint says do_sample.
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **tokens)
    return model.eval()


def new_model(
    out: str | Path,
    *,
    text: str | Path,
    fields: Sequence[str] | None = None,
    vocab_size: int = 2048,
    hidden_size: int = 128,
    layers: int = 2,
    heads: int = 4,
    max_length: int = 1024,
    seed: int = 0,
    family: Family = "llama",
) -> Path:
    """Write a new tokenizer and a small random model to a directory and return its path.

    Everything is written to a temporary directory beside `out` and renamed at the end, so `out` is whole or absent.

    Parameters
    ----------
    out : str or Path
        The directory to create; it may exist if it is empty.
    text : str or Path
        A .txt file, or a .jsonl file, of which all strings are used.
    fields : sequence of str or None
        Columns of the .jsonl file to use instead of all; each row must have them.
    vocab_size, hidden_size, layers, heads, max_length, seed : int
        As in `train_tokenizer` and `tiny_llama`.
    family : "llama" or "gemma2"
        Of architectures.

    Raises
    ------
    OutputError
        If `out` is a file, a directory with something in it, or a place where nothing can be made.
    FileNotFoundError
        If `text` is not a file.
    DataError
        If the file has no text, is not UTF-8, or has rows that are not JSON objects or lack a field.
    ValueError
        If the file is of another type, `fields` comes with a .txt file, or a size is outside its domain.
    """
    refuse_used_folder(out)
    texts = _texts(existing_file(text), fields)
    tokenizer = train_tokenizer(texts, vocab_size)
    tokenizer.model_max_length = max_length
    make = {"llama": tiny_llama, "gemma2": tiny_gemma2}[family]
    model = make(tokenizer, hidden_size=hidden_size, layers=layers, heads=heads, max_length=max_length, seed=seed)
    return create_model(out, model, tokenizer)


def _texts(file: Path, fields: Sequence[str] | None) -> list[str]:
    """Return the texts of a file."""
    if file.suffix == ".txt":
        if fields is not None:
            raise ValueError(f"fields needs a .jsonl file; {file.name} is plain text and has no columns")
        try:
            texts = [file.read_text(encoding="utf-8-sig")]
        except UnicodeDecodeError as error:
            line = file.read_bytes()[: error.start].count(b"\n") + 1
            raise DataError(f"{file.name}:{line}: byte 0x{error.object[error.start]:02x} is not UTF-8") from None
    elif file.suffix == ".jsonl":
        problems: list[str] = []
        texts = []
        for where, row in json_lines(file, problems):
            for name in row if fields is None else fields:
                if name in row:
                    texts.extend(_strings(row[name]))
                else:
                    problems.append(f"{where}: no field {name!r}; expected it among {', '.join(map(repr, row))}")
        if problems:
            raise DataError(f"{file}: {len(problems)} problems", problems)
    else:
        raise fail("text", "be a .txt or .jsonl file", file.name)
    if not any(text.strip() for text in texts):
        raise DataError(f"{file} holds no text to train a tokenizer on")
    return texts


def _strings(value: Any) -> Iterator[str]:
    """Yield every string inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
