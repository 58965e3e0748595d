"""The three families of models that the paper trains, as tiny random ones: Llama 3, Gemma 2 and Qwen 2.5.

What sets a family apart is kept: Gemma's soft caps on attention and logits, its sliding window, scaled embeddings and
template without a system role; Qwen's biases in attention, missing begin token and default system message; Llama's
untied head and large rotary base. The chat templates are written here, in the manner of each family.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from humanline.train.policy.new_tokenizer import train_tokenizer

FAMILIES = ("llama3", "gemma2", "qwen2.5")
WINDOW = 8  # tokens that every other attention layer of the Gemma model looks back

_LLAMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% for m in messages %}"
    r"{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content.strip() + '<|eot_id|>' }}"
    "{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_GEMMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('this model has no role ' + m.role) }}"
    "{% elif (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns') }}"
    "{% endif %}"
    r"{{ '<start_of_turn>' + {'user': 'user', 'assistant': 'model'}[m.role] + '\n' }}"
    r"{{ m.content.strip() + '<end_of_turn>\n' }}"
    "{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_QWEN_TEMPLATE = (
    "{% if messages[0].role != 'system' %}"
    r"{{ '<|im_start|>system\nYou answer questions.<|im_end|>\n' }}"
    "{% endif %}"
    "{% for m in messages %}"
    r"{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TOKENS: dict[str, dict[str, Any]] = {
    "llama3": {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "pad_token": "<|eot_id|>",
        "extra_special_tokens": ["<|start_header_id|>", "<|end_header_id|>"],
    },
    "gemma2": {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "extra_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
    },
    "qwen2.5": {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "extra_special_tokens": ["<|im_start|>"],
    },
}
_TEMPLATES = {"llama3": _LLAMA_TEMPLATE, "gemma2": _GEMMA_TEMPLATE, "qwen2.5": _QWEN_TEMPLATE}
_TEXTS = ["The cat sat on the mat, and the dog sat on the cat.", "Two and two make four; sort the letters: abcdefgh."]


def write_paper_model(folder: str | Path, family: str, *, seed: int = 0) -> str:
    """Write a tiny random float32 model of a family, and a tokenizer with its template; return the folder.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    family : str
        One of `FAMILIES`.
    seed : int
        Of the weights.
    """
    tokenizer = _tokenizer(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(_config(family, tokenizer), dtype=torch.float32)
        for name, weight in model.named_parameters():  # fresh ones are 0 or 1 and would show nothing of themselves
            if name.endswith("bias") or "norm" in name:
                torch.nn.init.normal_(weight, mean=weight.mean().item(), std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _tokenizer(family: str) -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer(_TEXTS, vocab_size=300)
    tokenizer.bos_token = None
    tokenizer.add_special_tokens(_TOKENS[family])
    tokenizer.chat_template = _TEMPLATES[family]
    return tokenizer


def _config(family: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer) + 4,  # embeddings of real models have rows to spare
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.2,  # far from uniform, so that soft caps and windows matter
    }
    if family == "llama3":
        rope = {"rope_type": "default", "rope_theta": 500_000.0}
        return LlamaConfig(**sizes, tie_word_embeddings=False, rope_parameters=rope)
    if family == "gemma2":
        return Gemma2Config(
            **sizes,
            tie_word_embeddings=True,
            head_dim=16,  # heads are wider together than the hidden states, as in the real ones
            query_pre_attn_scalar=24,
            sliding_window=WINDOW,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=5.0,
        )
    if family == "qwen2.5":
        rope = {"rope_type": "default", "rope_theta": 1_000_000.0}
        return Qwen2Config(**sizes, tie_word_embeddings=True, rope_parameters=rope)
    raise ValueError(f"family must be one of {', '.join(FAMILIES)}; got {family!r}")
