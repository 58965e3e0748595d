"""What a chat template is given: messages with all their keys, tools, and arguments of the template's own.

What a message holds beyond role and content, and what a row gives beyond messages, is kept as JSON text: it can be
compared and hashed, nobody changes it on the way, and it keeps the order of keys, which templates print.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from humanline.train.data.json_lines import parse_json

TOOLS, KWARGS = "tools", "chat_template_kwargs"  # columns of a row


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Parameters
    ----------
    role, content : str
        The content is empty where a message only calls tools.
    keys : str
        Its other keys (`tool_calls`, `tool_call_id`, `name`, `reasoning_content`, ...) as a JSON object; empty if it
        has none.
    place : str
        Where in its file it stands, for what is said of it; no part of what it is.
    plain : bool
        Whether its row has it as a text and not in a list of messages; no part of what it is either.
    """

    role: str
    content: str
    keys: str = ""
    place: str = field(default="", compare=False, repr=False)
    plain: bool = field(default=False, compare=False, repr=False)

    @classmethod
    def of(cls, turn: Mapping[str, Any]) -> Message:
        """Return the message that `as_dict` made a dict of; raise KeyError or TypeError if it is none."""
        if not isinstance(turn, Mapping):
            raise TypeError(f"a message must be an object with role and content, got {type(turn).__name__}")
        keys = {name: value for name, value in turn.items() if name not in ("role", "content")}
        return cls(turn["role"], turn["content"], to_json(keys) if keys else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the message as rows and templates have it."""
        return {"role": self.role, "content": self.content} | (json.loads(self.keys) if self.keys else {})


Messages: TypeAlias = tuple[Message, ...]
# A message where the assistant's turn is more than a text; several turns where all of the assistant's are answers.
Answer: TypeAlias = str | Message | Messages


@dataclass(frozen=True, slots=True)
class Given:
    """What a row gives the chat template besides messages: JSON text, empty where it gives nothing.

    Parameters
    ----------
    tools : str
        A list of objects.
    kwargs : str
        An object: variables of the template, such as enable_thinking.
    place : str
        As in `Message`.
    """

    tools: str = ""
    kwargs: str = ""
    place: str = field(default="", compare=False, repr=False)

    @classmethod
    def of(cls, columns: Mapping[str, Any], place: str = "") -> Given:
        """Return the contents of the columns `tools` and `chat_template_kwargs`, each JSON or JSON text.

        None and what is empty stand for nothing.

        Raises
        ------
        ValueError
            If one holds something else; the message says which, and what was expected.
        """
        tools, kwargs = (_parsed(columns.get(name), name) for name in (TOOLS, KWARGS))
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise ValueError(f"{TOOLS!r} is no list of objects")
        if not isinstance(kwargs, dict):
            raise ValueError(f"{KWARGS!r} is no object")
        texts = {}
        for name, value in ((TOOLS, tools), (KWARGS, kwargs)):
            try:
                texts[name] = to_json(value) if value else ""
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from None
        return cls(texts[TOOLS], texts[KWARGS], place)

    def columns(self) -> dict[str, Any]:
        """Return the columns that are there, as JSON values."""
        return {name: json.loads(text) for name, text in ((TOOLS, self.tools), (KWARGS, self.kwargs)) if text}


NOTHING = Given()


def to_json(value: Any) -> str:
    """Return JSON text; raise ValueError if a value is none of JSON's, or half a character."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a surrogate pair, which no tokenizer can read") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from None
    return text


def is_empty(value: Any) -> bool:
    """Return whether a value holds nothing that could be written: null, or a text, list or object without content."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def without_nulls(value: Any) -> Any:
    """Return a value of a table without the nulls in it: there every entry has the keys of all, and null if absent."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def tool_calls(turns: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Give the objects in messages that hold the arguments of a tool call, as `arguments`."""
    for turn in turns:
        calls = turn.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and "arguments" in function:
                yield function


def texts_in(value: Any) -> Iterator[str]:
    """Give every text in a JSON value, names of keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)


def _parsed(value: Any, name: str) -> Any:
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError as error:
            raise ValueError(f"{name!r} is a text that is no JSON ({error})") from None
    empty: Any = [] if name == TOOLS else {}
    return empty if is_empty(value) else value
