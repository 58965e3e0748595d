"""One row, of words of our own, in the form of each published set that docs/data-formats.md names.

`turns` and `answers` say in plain words what has to come out of it: what the prompt is and what is learned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ASKED, MORE = "Which way is north?", "On a map, I mean."
UP, DOWN = "Up, towards the top.", "Down, towards the bottom."

TOOL = {
    "type": "function",
    "function": {
        "name": "point",
        "description": "Point somewhere.",
        "parameters": {"type": "object", "properties": {"way": {"type": "string", "description": "Where to."}}},
    },
}
TOOLS_TEXT = (
    '[{"type": "function", "function": {"name": "point", "description": "Point somewhere.", "parameters": {"type": '
    '"object", "properties": {"way": {"type": "string", "description": "Where to."}}}}}]'
)


def user(content: str) -> dict[str, Any]:
    """Return a turn of the user."""
    return {"role": "user", "content": content}


def says(content: str) -> dict[str, Any]:
    """Return a turn of the assistant."""
    return {"role": "assistant", "content": content}


def calls(way: str) -> dict[str, Any]:
    """Return a turn of the assistant that calls the tool."""
    call = {"type": "function", "function": {"name": "point", "arguments": {"way": way}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@dataclass(frozen=True, slots=True)
class Published:
    """A row of a published form.

    Parameters
    ----------
    row : dict
    turns : list of (role, content)
        Of the prompt.
    answers : list of str
        What is learned, without its end: of a pair the chosen answer first; none of a prompt.
    data : dict
        Settings of the section data that it needs.
    objective : str
    for_trl : dict
        What has to change before TRL reads it: columns, or None for those it must not have.
    """

    row: dict[str, Any]
    turns: list[tuple[str, str]]
    answers: list[str]
    data: dict[str, Any] = field(default_factory=dict)
    objective: str = "dpo"
    for_trl: dict[str, Any] = field(default_factory=dict)


_HH = f"\n\nHuman: {ASKED}\n\nAssistant: Where are you?\n\nHuman: {MORE}\n\nAssistant:"
_TALK = [("user", ASKED), ("assistant", "Where are you?"), ("user", MORE)]
_TURNS = [{"role": role, "content": content} for role, content in _TALK]
_CALL = '<call>point {"way": "up"}</call>', '<call>point {"way": "down"}</call>'

PUBLISHED: dict[str, Published] = {
    "UltraFeedback-binarized": Published(
        {
            "prompt": ASKED,
            "prompt_id": "0f3a",
            "chosen": [user(ASKED), says(UP)],
            "rejected": [user(ASKED), says(DOWN)],
            "messages": [user(ASKED), says(UP)],
            "score_chosen": 8.5,
            "score_rejected": 3.0,
        },
        [("user", ASKED)],
        [UP, DOWN],
        for_trl={"prompt": None, "messages": None},
    ),
    "Tulu 3 preference": Published(
        {
            "id": "north-1",
            "prompt": ASKED,
            "chosen": [*_TURNS, says(UP)],
            "rejected": [*_TURNS, says(DOWN)],
            "source": "of-our-own",
        },
        _TALK,
        [UP, DOWN],
        for_trl={"prompt": None},
    ),
    "argilla dpo-mix": Published(
        {
            "dataset": "of-our-own",
            "chosen": [{"role": "system", "content": "Be brief."}, *_TURNS, says(UP)],
            "rejected": [{"role": "system", "content": "Be brief."}, *_TURNS, says(DOWN)],
            "chosen_rating": 5.0,
            "rejected_rating": 2.0,
        },
        [("system", "Be brief."), *_TALK],
        [UP, DOWN],
    ),
    "HH-RLHF": Published(
        {"chosen": f"{_HH} {UP}", "rejected": f"{_HH} {DOWN}"},
        _TALK,
        [UP, DOWN],
        data={"format": "hh"},
        for_trl={"chosen": [*_TURNS, says(UP)], "rejected": [*_TURNS, says(DOWN)]},
    ),
    "HH-RLHF as text": Published(
        {"chosen": f"{_HH} {UP}", "rejected": f"{_HH} {DOWN}"},
        [("text", _HH)],
        [f" {UP}", f" {DOWN}"],
        data={"template": "plain"},
    ),
    "KTO-mix": Published({"prompt": _TURNS, "completion": [says(UP)], "label": True}, _TALK, [UP], objective="kto"),
    "GSM8K": Published(
        {"question": ASKED, "answer": "It is up.\n#### 1"},
        [("user", ASKED)],
        [],
        data={"columns": {"prompt": "question"}},
        objective="grpo",
        for_trl={"question": None, "prompt": [user(ASKED)]},
    ),
    "tool calling": Published(
        {"prompt": [user(ASKED)], "chosen": [calls("up")], "rejected": [calls("down")], "tools": TOOLS_TEXT},
        [("user", ASKED)],
        list(_CALL),
    ),
}
