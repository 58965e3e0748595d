"""Humanline DPO in one page of plain torch, to be read; nothing of humanline is imported.

    humanline new-model my-model --text examples/letters/pairs.jsonl
    python examples/minimal_loop.py my-model examples/letters/pairs.jsonl

`humanline train` gives the same losses and weights on the same rows (tests/test_minimal_loop.py). It does what is left
out here: it needs no second model, takes long rows in pieces, saves, resumes, and refuses what is wrong.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer


def token_ids(tokenizer: Any, prompt: str, answer: str) -> tuple[list[int], int]:
    """Return the token ids of a prompt and its answer, tokenised apart, and how many are the prompt's."""
    turn = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    before = tokenizer.encode(text, add_special_tokens=False)
    return before + tokenizer.encode(answer, add_special_tokens=False) + [tokenizer.eos_token_id], len(before)


def answer_logprobs(model: Any, sequences: list[tuple[list[int], int]]) -> torch.Tensor:
    """Return log pi of the answers' tokens, a row each, nats; 0 where there is prompt or padding."""
    width = max(len(ids) for ids, _ in sequences)
    ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in sequences])
    place = torch.arange(1, width)
    begin, end = (torch.tensor(ends)[:, None] for ends in zip(*[(n, len(row)) for row, n in sequences], strict=True))
    logprobs = torch.log_softmax(model(input_ids=ids).logits[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return torch.where((place >= begin) & (place < end), logprobs, 0.0)


def train(
    folder: str | Path,
    rows: list[dict[str, str]],
    *,
    steps: int,
    batch_size: int = 16,
    lr: float = 1e-3,
    beta: float = 0.1,
    every: int = 8,
    clip: tuple[float, float] = (-1.5, 1.5),
    seed: int = 0,
) -> tuple[list[float], Any]:
    """Train on preference rows; return the loss of each step and the model."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    pairs = [[token_ids(tokenizer, row["prompt"], row[side]) for side in ("chosen", "rejected")] for row in rows]
    order = [i for e in range(steps) for i in np.random.default_rng([seed, e]).permutation(len(pairs))]
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    losses = []
    for step in range(steps):
        batch = [pairs[i] for i in order[step * batch_size : (step + 1) * batch_size]]
        sequences = [chosen for chosen, _ in batch] + [rejected for _, rejected in batch]
        with torch.no_grad():
            ref_logprobs = answer_logprobs(reference, sequences)
        log_ratio = answer_logprobs(model, sequences) - ref_logprobs
        log_ratio = log_ratio.clamp(*clip)  # change 2: each token's log-ratio is clipped, before the loss sees it
        chosen, rejected = log_ratio.sum(-1).chunk(2)
        loss = -logsigmoid(beta * (chosen - rejected)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step % every == 0:  # change 1: the reference becomes the policy as it is before its update
            reference.load_state_dict(model.state_dict())
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / (round(0.1 * steps) + 1))  # warm-up
        optimizer.step()
        losses.append(loss.item())
    return losses, model


if __name__ == "__main__":
    data = [json.loads(line) for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()]
    for number, value in enumerate(train(sys.argv[1], data, steps=20)[0]):
        print(f"step {number}: loss {value:.6f}")
