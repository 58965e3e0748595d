"""A server for tests that has a real model: it answers, tells of given texts, and takes new weights or only says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.scripted_server import Asked, Reply


class ModelServer:
    """What a scripted server answers with.

    Parameters
    ----------
    folder : the model that it starts with
    takes : told how often new weights came before; returns whether these are taken
    given : whether it tells log-probabilities of given texts
    logprobs : whether it tells log-probabilities of its answers
    told : what it makes of log-probabilities before it tells them
    draws : what it makes of logits before it draws from them, whatever it is asked for
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        takes: Callable[[int], bool] = lambda count: True,
        given: str | None = "echo",
        logprobs: bool = True,
        told: Callable[[torch.Tensor], torch.Tensor] = lambda values: values,
        draws: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits,
    ) -> None:
        self.takes, self.given, self.logprobs, self.told, self.draws = takes, given, logprobs, told, draws
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.load(folder)
        self.updates = 0

    def load(self, folder: str | Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/update":
            if self.takes(self.updates):
                self.load(asked.body["folder"])
            self.updates += 1
            return Reply({"success": True})
        if asked.path == "/v1/completions" and (asked.body.get("echo") or "prompt_logprobs" in asked.body):
            return self.given_logprobs(asked.body)
        if asked.path.endswith("/completions"):
            return self.answer(asked.body)
        return Reply({})

    def of(self, ids: list[int]) -> torch.Tensor:
        """The log-probability of every token but the first."""
        with torch.no_grad():
            rows = torch.log_softmax(self.model(torch.tensor([ids])).logits[0, :-1], -1)
        return self.told(rows.gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1))

    def given_logprobs(self, body: dict[str, Any]) -> Reply:
        ids = body["prompt"]
        values = [None, *self.of(ids).tolist()]
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": "length"}
        if self.given == "echo" and body.get("echo"):
            choice["logprobs"] = {"token_logprobs": [*values, -1.0]}
        elif self.given == "prompt_logprobs" and "prompt_logprobs" in body:
            entries = [
                {str(i): {"logprob": value}, "0": {"logprob": -9.0}} for i, value in zip(ids, values, strict=True)
            ]
            choice["prompt_logprobs"] = [None, *entries[1:]]
        else:
            return Reply({"error": {"message": "no such field"}}, 400)
        return Reply({"choices": [choice]})

    def answer(self, body: dict[str, Any]) -> Reply:
        messages = body["messages"]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        # A new generator for each request: equal seeds, equal texts.
        random = torch.Generator().manual_seed(body["seed"])
        answer: list[int] = []
        with torch.no_grad():
            while len(answer) < body["max_tokens"]:
                logits = self.draws(self.model(torch.tensor([ids + answer])).logits[0, -1])
                greedy = body["temperature"] == 0
                token = int(logits.argmax() if greedy else logits.softmax(-1).multinomial(1, generator=random))
                answer.append(token)
                if token == self.tokenizer.eos_token_id:
                    break
        ended = answer[-1] == self.tokenizer.eos_token_id
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self.tokenizer.decode(answer[:-1] if ended else answer)},
            "finish_reason": "stop" if ended else "length",
            "token_ids": answer,
        }
        if self.logprobs:
            values = self.of(ids + answer)[len(ids) - 1 :]
            choice["logprobs"] = {"content": [{"logprob": value} for value in values.tolist()]}
        return Reply({"choices": [choice], "prompt_token_ids": ids})


def bf16(values: torch.Tensor) -> torch.Tensor:
    """Values as a server tells them that computes log-probabilities in bf16."""
    return values.bfloat16().float()
