"""Log-probabilities of given texts from an OpenAI-compatible server: those of a prompt's own tokens.

Servers that can, do so in one of two ways: completions with `echo`, whose log-probabilities begin with those of the
prompt, or `prompt_logprobs`, which vLLM has beside it. The tokens are sent as ids, so that no tokenizer comes between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.train.online.samplers.answers import is_logprob
from humanline.train.online.samplers.http import BadAnswer, Client, Refused, parse
from humanline.train.online.samplers.proof import Text

WAYS: tuple[dict[str, Any], ...] = ({"echo": True, "logprobs": 1}, {"prompt_logprobs": 1})
Told = dict[str, NDArray[np.float64]]


async def given_logprobs(client: Client, texts: Mapping[str, Text], model: str | None, concurrency: int) -> Told | None:
    """Return the server's log-probabilities of texts, from each one's start on; None if it does not tell them.

    Raises
    ------
    SamplerError
        If the server stays away.
    """
    async with client:
        for way in WAYS:
            names = list(texts)
            found: Told = {}
            # The first one alone: a server that does not know this way is not asked a hundred times.
            for part in (names[:1], names[1:]):
                values = await _some(client, texts, part, model, way, concurrency)
                if values is None:
                    break
                found |= values
            else:
                return found
    return None


async def _some(
    client: Client, texts: Mapping[str, Text], names: list[str], model: str | None, way: dict[str, Any], limit: int
) -> Told | None:
    gate = asyncio.Semaphore(limit)

    async def ask(text: Text) -> NDArray[np.float64] | None:
        body = {"prompt": list(text.ids), "max_tokens": 1, "temperature": 1.0} | way
        body |= {} if model is None else {"model": model}
        async with gate:
            try:
                return await client.post("/v1/completions", body, lambda content: _read(content, text))
            except Refused:
                return None

    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(ask(texts[name])) for name in names}
    values = {name: task.result() for name, task in tasks.items()}
    known = {name: one for name, one in values.items() if one is not None}
    return known if len(known) == len(values) else None


def _read(content: bytes, text: Text) -> NDArray[np.float64] | None:
    """Return the log-probabilities of a text from its start on, None if they are not in the answer."""
    answer = parse(content)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadAnswer("an answer without choices")
    told, ids = choices[0].get("logprobs"), text.ids
    values = told.get("token_logprobs") if isinstance(told, dict) else None
    by_token = choices[0].get("prompt_logprobs")
    if isinstance(by_token, list):
        values = [_of(entry, token) for entry, token in zip(by_token, ids, strict=False)]
    if not isinstance(values, list) or len(values) < len(ids):
        return None
    logprobs = values[text.start : len(ids)]
    return np.array(logprobs, dtype=np.float64) if all(map(is_logprob, logprobs)) else None


def _of(entry: Any, token: int) -> Any:
    """Return vLLM's log-probability of a token: each place names the most probable tokens and the text's own."""
    own = entry.get(str(token)) if isinstance(entry, dict) else None
    return own.get("logprob") if isinstance(own, dict) else own
