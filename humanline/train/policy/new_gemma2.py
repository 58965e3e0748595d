"""A small Gemma 2 from random weights: norms around each block, capped logits, windows, and another activation."""

from __future__ import annotations

from typing import Any

import torch

from humanline.system.imports import quiet

with quiet():
    from transformers import Gemma2Config, Gemma2ForCausalLM, GenerationConfig, PreTrainedTokenizerBase


def tiny_gemma2(
    tokenizer: PreTrainedTokenizerBase, *, hidden_size: int, layers: int, heads: int, max_length: int, seed: int
) -> Gemma2ForCausalLM:
    """Return a small Gemma 2 with random float32 weights, the same for the same seed.

    Parameters and the random state of torch are those of `tiny_llama`, but for checks: what they are is for the caller
    to know. Half the layers see half of `max_length` back; half the heads share keys and values with another one.

    Raises
    ------
    ValueError
        If `heads` is odd.
    """
    if heads % 2:
        raise ValueError(f"heads must be even, since two share keys and values; got {heads}")
    tokens: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=max(8, 8 * round(hidden_size / 3)),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=hidden_size // heads,
        query_pre_attn_scalar=hidden_size // heads,
        max_position_embeddings=max_length,
        sliding_window=max(1, max_length // 2),
        tie_word_embeddings=True,
        dtype="float32",
        **tokens,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Gemma2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **tokens)
    return model.eval()
