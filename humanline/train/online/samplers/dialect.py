"""Requests for completions, in the words of OpenAI's protocol that a server knows.

Fields beyond OpenAI's are sent where they make sampling what the config says; a server that refuses one by name is
asked again without it, and from then on.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from humanline.train.config.rounds import SamplingConfig, ServerEngine
from humanline.train.data.messages import Messages, to_json, tool_calls
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.http import Refused

EXTRAS = (
    "seed",
    "logprobs",
    "return_token_ids",
    "top_k",
    "min_p",
    "repetition_penalty",
    "add_special_tokens",
    "include_stop_str_in_output",
    "no_stop_trim",
    "generation_config",
)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights that answer a request: the model's name, the policy's version, generation settings for its folder."""

    model: str | None
    policy: str = ""
    generation: str | None = None


class Dialect:
    """The requests for completions as one server takes them.

    Parameters
    ----------
    config : SamplingConfig
        Its engine must be a ServerEngine.
    renderer : Renderer

    Raises
    ------
    ValueError
        If the server is to write prompts by a template that writes the day.

    Attributes
    ----------
    path : str
        Where requests go.
    """

    def __init__(self, config: SamplingConfig, renderer: Renderer) -> None:
        assert isinstance(config.engine, ServerEngine)
        self.config, self.renderer = config, renderer
        by_itself = "chat" if renderer.template == "chat" and not renderer.dated else "completions"
        self._chat = (config.engine.endpoint or by_itself) == "chat"
        if self._chat and renderer.dated:
            raise ValueError(
                "source.sampling.engine.endpoint: chat has the server write prompts, with the day on which it is asked "
                "(strftime_now in the chat template) in place of data.date; leave endpoint out, which sends token ids"
            )
        self.path = "/v1/chat/completions" if self._chat else "/v1/completions"
        self._refused: set[str] = set()  # fields that this server does not take
        self._prompt_as_text = False
        self._no_tool_choice = False

    def under(self, config: SamplingConfig) -> Dialect:
        """Return the dialect of the same server with other settings of sampling."""
        other = copy.copy(self)
        other.config = config
        return other

    def body(
        self, context: Context, numbers: range, key: tuple[int, ...], again: int, room: int, weights: Weights
    ) -> dict[str, Any]:
        """Return the body of a request.

        Parameters
        ----------
        context : Context
        numbers : range
            Of the samples that are asked for.
        key : tuple of int
            (seed, round).
        again : int
            How many answers were asked for again so far.
        room : int
            Tokens that a completion may have.
        weights : Weights
        """
        config = self.config
        body: dict[str, Any] = {"temperature": config.temperature, "top_p": config.top_p, "max_tokens": room}
        if weights.model is not None:
            body["model"] = weights.model
        if len(numbers) > 1:
            body["n"] = len(numbers)
        if config.stop:
            body["stop"] = list(config.stop)
        extras: dict[str, Any] = {
            "seed": seed(key, context.id, numbers[0], again),
            "logprobs": True if self._chat else 1,
            "return_token_ids": True,  # vLLM, SGLang
            # Otherwise vLLM and SGLang take these from the model's generation_config.json.
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        if self._chat:
            body |= {"messages": as_requested(context.prompt), **context.given.columns()}
            if self._no_tool_choice and context.given.tools:
                body["tool_choice"] = "none"
        else:
            # Token ids leave nothing to the server's tokenizer; transformers serve takes only text.
            body["prompt"] = (
                self.renderer.writer.prompt_text(context.prompt, context.given)
                if self._prompt_as_text
                else list(context.ids)
            )
            extras["add_special_tokens"] = False  # vLLM: the text has its begin token
        if config.stop:
            extras |= {"include_stop_str_in_output": True, "no_stop_trim": True}  # vLLM; SGLang
        if weights.generation is not None:
            extras["generation_config"] = weights.generation  # transformers serve
        return body | {name: value for name, value in extras.items() if name not in self._refused}

    def do_without(self, error: Refused, body: dict[str, Any]) -> bool:
        """Leave out from now on what a refusal names; return whether there was anything."""
        if error.status not in (400, 422):
            return False
        if isinstance(body.get("prompt"), list) and "prompt" in error.reason and "string" in error.reason:
            self._prompt_as_text = True
            return True
        if "tools" in body and "tool_choice" not in body and re.search("tool[ _]choice", error.reason):
            self._no_tool_choice = True  # vLLM without a parser of tools; the prompt has them all the same
            return True
        named = {name for name in EXTRAS if name in body and re.search(rf"\b{name}\b", error.reason)}
        self._refused |= named
        return bool(named)


def as_requested(prompt: Messages) -> list[dict[str, Any]]:
    """Return messages as OpenAI's protocol has them: the arguments of tool calls are text."""
    messages = [message.as_dict() for message in prompt]
    for call in tool_calls(messages):
        if not isinstance(call["arguments"], str):
            call["arguments"] = to_json(call["arguments"])
    return messages


def seed(key: tuple[int, ...], context: str, sample: int, again: int = 0) -> int:
    """Return a request's seed, 0 to 2**31 - 1, which every server can hold; another one where it is asked again."""
    content = json.dumps([list(key), context, sample, *([again] if again else [])]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=4).digest(), "big") >> 1
