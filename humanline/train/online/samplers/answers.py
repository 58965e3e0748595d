"""What OpenAI-compatible servers answer -> completions, with everything checked that training relies on.

Servers differ in what they tell. Token ids come from vLLM (`token_ids`) and SGLang (`token_ids`, or in the chat answers
of some versions `response_token_ids`); elsewhere a completion gets the ids of its own text. A text that ended by an end
token is told from one that ended by a stop text by what the server says of it (`stop_reason`, `matched_stop`), else by
its last token, else by whether text or ids hold a stop text: servers are asked to leave it in. One that tells no ids
and cuts it off without a word makes the two alike, and they count as ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.chat_template import RenderError
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.text_ids import UnknownText
from humanline.train.online.samplers.http import BadAnswer, parse, quoted
from humanline.train.online.trainable import Trainable, Untrainable
from humanline.train.online.types import Completion, Finish, SamplerError


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion as a server told it."""

    text: str
    finish: Finish
    ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None


def read_answers(content: bytes, context: Context, asked: int, config: SamplingConfig) -> list[Answer]:
    """Return the completions in an answer, 1 to `asked`.

    Parameters
    ----------
    content : bytes
        Of /v1/chat/completions or /v1/completions.
    context : Context
        What was asked about.
    asked : int
        Completions asked for.
    config : SamplingConfig

    Raises
    ------
    BadAnswer
        If it is no JSON, something is missing or of the wrong type, or generation broke off.
    SamplerError
        If asking again would not help: another prompt than ours was read, there are more completions than asked for, or
        the server takes answers apart (reasoning, tool calls).
    """
    answer = parse(content)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise BadAnswer(f"an answer without choices: {quoted(answer)}")
    if len(choices) > asked:
        raise SamplerError(
            f"asked for {asked} completions, the server sent {len(choices)}; set "
            "source.sampling.engine.samples_per_request: 1"
        )
    _check_prompt(answer, choices[0], context, asked)
    return [_read(choice, config) for choice in choices]


def _check_prompt(answer: dict[str, Any], choice: dict[str, Any], context: Context, asked: int) -> None:
    ours = len(context.ids)
    told = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
    usage = answer.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if isinstance(told, list):
        same, count = tuple(told) == context.ids, len(told)
    else:
        # Some count the prompt once for each completion.
        same = not _is_int(count) or count in (0, ours, ours * asked)
    if not same:
        counts = f"{count} tokens where training reads {ours}" if count != ours else f"other tokens ({ours} of them)"
        raise SamplerError(
            f"the server reads the prompt as {counts}: its chat template or tokenizer is "
            "another one, or it puts a begin token before a text that has one. Serve the tokenizer and template that "
            "are trained with (the folders that training saves hold both), or try the other "
            "source.sampling.engine.endpoint"
        )


def _read(choice: dict[str, Any], config: SamplingConfig) -> Answer:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    if isinstance(message, dict) and any(message.get(name) for name in _APART):
        raise SamplerError(
            "the server takes answers apart (reasoning or tool calls), so that what was "
            "sampled is not known. Start it without its reasoning and tool parsers, or set "
            "source.sampling.engine.endpoint: completions"
        )
    reason = choice.get("finish_reason")
    if isinstance(message, dict) and "content" in message and text is None and reason == "stop":
        text = ""  # so SGLang tells an answer that ended at once
    if not isinstance(text, str) or not _encodes(text):
        raise BadAnswer(f"a completion that is no text: {quoted(choice)}")
    if reason not in ("stop", "length"):
        raise BadAnswer(f"a completion that broke off (finish_reason {quoted(reason)})")
    ids = _ids(choice)
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    if reason == "length":
        finish: Finish = "length"
        if ids is None:  # a character that was cut in two has no tokens of its own
            text = text.rstrip("\N{REPLACEMENT CHARACTER}")
    elif isinstance(matched, str):
        finish = "stop"
        text += matched if matched in config.stop and matched not in text else ""
    elif matched is None and ids is None and any(stop in text for stop in config.stop):
        finish = "stop"
    else:
        finish = "end"
    exact = config.top_p == 1 and config.temperature in (0, 1)
    # Of the servers we know, only vLLM (which tells a stop_reason) gives them as they are before temperature and top-p.
    logprobs = _logprobs(choice.get("logprobs")) if exact or "stop_reason" in choice else None
    return Answer(text, finish, ids, logprobs)


_APART = ("reasoning", "reasoning_content", "tool_calls", "function_call")


def _ids(choice: dict[str, Any]) -> tuple[int, ...] | None:
    ids = next((choice[name] for name in _IDS if choice.get(name) is not None), None)
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(map(_is_int, ids)):
        raise BadAnswer(f"token ids that are not numbers: {quoted(ids)}")
    return tuple(ids)


_IDS = ("token_ids", "response_token_ids")


def _logprobs(told: Any) -> tuple[float, ...] | None:
    if not isinstance(told, dict):
        return None
    values: Any = told.get("token_logprobs")
    if isinstance(told.get("content"), list):
        values = [entry.get("logprob") if isinstance(entry, dict) else None for entry in told["content"]]
    if not isinstance(values, list) or not all(is_logprob(value) for value in values):
        return None
    return tuple(map(float, values))


_FREE_CHARACTERS = 1 << 16  # that a tokenizer may drop or take together, as some do with spaces


class Completer:
    """Make completions of answers: with token ids, with log-probs where each id has one, and fit to be trained on.

    Parameters
    ----------
    trainable : Trainable
    stop : sequence of str
        Texts that end a completion.
    """

    def __init__(self, trainable: Trainable, stop: Sequence[str]) -> None:
        renderer = trainable.renderer
        tokenizer = renderer.tokenizer
        added = (i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        self.trainable, self.renderer, self.stop = trainable, renderer, tuple(stop)
        self.special = frozenset([*added, *tokenizer.all_special_ids])
        self.end = renderer.encode((Message("user", "a"),), "a").ids[-1]
        self.longest = max(map(len, tokenizer.get_vocab()))  # characters that one token can write, at most

    def __call__(self, answer: Answer, context: Context) -> Completion:
        """Return an answer as a completion of `context`; raise Untrainable if it cannot be trained on."""
        text, finish = answer.text, answer.finish
        if answer.ids is None:
            self._refuse_endless(text, self.trainable.room(len(context.ids)))
            ids = self.text_ids(text, context, ended=finish == "end")
        else:
            self.trainable.check_ids(answer.ids)
            text, ids, finish = self._ended(text, answer.ids, finish)
        logprobs = answer.logprobs
        if logprobs is not None and answer.ids is not None and len(logprobs) == len(answer.ids):
            logprobs = logprobs[: len(ids)]  # of those that are left where some were dropped
        logprobs = logprobs if logprobs is not None and len(logprobs) == len(ids) else None
        completion = Completion(text=text, ids=ids, finish=finish, logprobs=logprobs)
        self.trainable.check(completion, len(context.ids))
        return completion

    def _refuse_endless(self, text: str, room: int) -> None:
        """Raise Untrainable if a text is longer than so many tokens can write: it may take a tokenizer gigabytes."""
        if len(text) > _FREE_CHARACTERS + room * self.longest:
            raise Untrainable(
                "too_many_tokens",
                f"its text has {len(text)} characters, which are more than {room} tokens, what "
                f"source.sampling.max_tokens {self.trainable.max_tokens} and data.max_length "
                f"{self.renderer.limits.max_length} leave",
            )

    def _ended(self, text: str, ids: tuple[int, ...], finish: Finish) -> tuple[str, tuple[int, ...], Finish]:
        """Return text, ids and finish of a completion made whole: its stop text stays, its end token is there."""
        if finish == "length" or (finish == "end" and ids and ids[-1] in self.special):
            return text, ids, finish
        said = self.trainable.decode(ids)
        if not any(stop in said for stop in self.stop):
            # A server that keeps the end token to itself.
            return text, (*ids, self.end) if finish == "end" else ids, finish
        before = self.trainable.decode(ids[:-1])
        while any(stop in before for stop in self.stop):  # tokens drawn ahead, behind the one that made it whole
            ids, said = ids[:-1], before
            before = self.trainable.decode(ids[:-1])
        at, stop = min((said.index(stop), stop) for stop in self.stop if stop in said)
        return text + stop if text.strip() == said[:at].strip() else text, ids, "stop"

    def text_ids(self, text: str, context: Context, *, ended: bool) -> tuple[int, ...]:
        """Return the ids of a text as training would write them, with the end token if it ended."""
        try:
            sequence = self.renderer.encode(context.prompt, text, context.given)
        except (RenderError, UnknownText):  # blank, or nothing that is taken: its plain tokens, none of them special
            ids = tuple(self.renderer.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
            return (*ids, self.end) if ended else ids
        ids = sequence.ids[sequence.prompt_length :]
        return ids if ended else ids[:-1]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_logprob(value: Any) -> bool:
    """Return whether a value is a finite number that a log-probability can be, rounding allowed for."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value <= 1e-3


def _encodes(text: str) -> bool:
    """Return whether a text is all characters: JSON can write halves of them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
