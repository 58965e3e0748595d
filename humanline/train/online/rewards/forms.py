"""The two forms of a function reward, ours and TRL's: how they are told apart, and what a function is given.

    ours   call(prompt, completion, **columns)                                          -> one number
    trl    call(prompts=[...], completions=[...], completion_ids=[...], **columns)      -> a list of numbers or None

Source of the second: TRL 1.16, `GRPOTrainer._calculate_rewards`, which gives every column of the data but `prompt`,
`completion` and `completion_ids`, and `trainer_state`, `log_extra`, `log_metric` and `environments` besides. Here a
function is called for one answer at a time, in a worker process: lists hold one entry. What it logs is not kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from humanline.train.online.rewards.verdict import shown

Form = Literal["ours", "trl"]
LISTS = ("prompts", "completions", "completion_ids")
LOGS = ("log_extra", "log_metric")
_ABSENT = ("trainer_state", "environments")  # of a trainer that is not here
_NO_COLUMNS = ("prompt", "completion", *LISTS, *LOGS, *_ABSENT)
_PAIR = ("prompt", "completion")
_CALLS = {
    "ours": "call(prompt, completion, **columns) -> number",
    "trl": "call(prompts=[...], completions=[...], completion_ids=[...], **columns) -> list of numbers or None",
}
_BOTH = f"{_CALLS['ours']} (signature: ours), or {_CALLS['trl']} (signature: trl)"

Described: TypeAlias = Mapping[str, Any]


class FormError(ValueError):
    """A function that cannot be called as a reward; the message says what was expected and what was found."""


def described_signature(call: Callable[..., Any]) -> dict[str, Any]:
    """Return what a callable's signature says, as a JSON object: workers tell the run of it.

    ``shown`` is the signature as text, ``names`` are the parameters that can be given by keyword, ``needed`` those
    without a default, the nameless ones included; ``pair`` is whether two values can be given by position, and
    ``first`` the names that they would have; ``rest`` is whether any keyword is taken, and ``waits`` whether
    it is asynchronous.
    """
    waits = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # of a compiled function: nothing is known, anything may go
        return {"shown": "", "names": [], "needed": [], "first": [], "pair": True, "rest": True, "waits": waits}
    parameters = signature.parameters.values()
    placed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    single = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return {
        "shown": shown(str(signature)),
        "names": [one.name for one in named],
        "needed": [one.name for one in single if one.default is one.empty],
        "first": [one.name for one in placed[:2]],
        "pair": len(placed) >= 2 or any(one.kind is one.VAR_POSITIONAL for one in parameters),
        "rest": any(one.kind is one.VAR_KEYWORD for one in parameters),
        "waits": waits,
    }


@dataclass(frozen=True, slots=True)
class Taken:
    """How a function reward is called.

    Parameters
    ----------
    call : str
        Its name.
    form : {"ours", "trl"}
    found : mapping
        Its signature (`described_signature`).
    columns : tuple of str
        Those that the recipe names.
    """

    call: str
    form: Form
    found: Described
    columns: tuple[str, ...] = ()

    def given(self, columns: Collection[str]) -> list[str]:
        """Return which of a prompt's columns it is given: those the recipe names, or, in TRL's form, all it takes."""
        if self.columns or self.form == "ours":
            return list(self.columns)
        return [name for name in columns if name not in _NO_COLUMNS and self.takes(name)]

    def needed(self) -> list[str]:
        """Return the columns without which it cannot be called."""
        if self.form == "ours":
            return list(self.columns)
        return list(dict.fromkeys([*self.columns, *(n for n in self.found["needed"] if n not in (*LISTS, *LOGS))]))

    def needed_lists(self) -> list[str]:
        """Return the lists without which a function of TRL's form cannot be called."""
        return [name for name in LISTS if name in self.found["needed"]]

    def takes(self, name: str) -> bool:
        """Return whether it can be given a keyword."""
        return self.found["rest"] or name in self.found["names"]


def taken(call: str, found: Described, signature: Form | None, columns: Sequence[str]) -> Taken:
    """Return how a function is called.

    Parameters
    ----------
    call : str
        Its name, for messages.
    found : mapping
        Its signature (`described_signature`).
    signature : {"ours", "trl"} or None
        What the recipe says; None: what its parameters are called tells.
    columns : sequence of str
        Those that the recipe names.

    Raises
    ------
    FormError
        If it can be called in neither form, or not in the one that the recipe says; if it may be of either; if it is
        asynchronous; or if it needs what only TRL's trainer has.
    """
    if found["waits"]:
        raise FormError(
            f"{call} is asynchronous (async def), which is not supported; wrap it: "
            "def reward(**given): return asyncio.run(the_function(**given))"
        )
    form = signature or _told(call, found)
    mismatch = _ours_mismatch(found, columns) if form == "ours" else _trl_mismatch(found, columns)
    if mismatch:
        raise FormError(f"{call}: {mismatch}; expected {_CALLS[form]}; found {_found(found)}")
    return Taken(call, form, found, tuple(columns))


def _told(call: str, found: Described) -> Form:
    """Return the form that the names of a function's parameters tell; those without such names by what they take."""
    names = {*found["names"], *found["first"]}
    trl, ours = not names.isdisjoint(LISTS), not names.isdisjoint(_PAIR)
    if trl == ours and not trl and found["pair"] != found["rest"]:
        trl, ours = found["rest"], found["pair"]
    if trl and not ours:
        return "trl"
    if ours and not trl:
        return "ours"
    if not trl and not (found["pair"] or found["rest"]):
        raise FormError(f"{call}: expected {_BOTH}; found {_found(found)}")
    raise FormError(
        f"{call} may be called in two ways, since its signature is {_found(found)}: write signature: ours beside call "
        f"for {_CALLS['ours']}, or signature: trl for {_CALLS['trl']}"
    )


def _found(found: Described) -> str:
    return found["shown"] or "a signature that Python cannot read"


def _ours_mismatch(found: Described, columns: Sequence[str]) -> str:
    """Return what keeps a function from being called in our form, empty if nothing does."""
    if not found["pair"]:
        return "it does not take a prompt and a completion by position"
    first = found["first"]
    names = [name for name in found["names"] if name not in first]
    if lacking := [name for name in found["needed"] if name not in (*first, *columns)]:
        return f"it needs {', '.join(lacking)}, too: name the columns it reads in columns: [{', '.join(lacking)}]"
    if beyond := [name for name in columns if name not in names and not found["rest"]]:
        return f"it does not take {', '.join(beyond)}, which columns names"
    return ""


def _trl_mismatch(found: Described, columns: Sequence[str]) -> str:
    """Return what keeps a function from being called in TRL's form, empty if nothing does."""
    if absent := [name for name in found["needed"] if name in _ABSENT]:
        return f"it needs {', '.join(absent)} of TRL's trainer, which is not here: give it a default"
    if nameless := [name for name in found["needed"] if name not in found["names"]]:
        return f"it does not take {', '.join(nameless)} by keyword"
    if single := [name for name in found["needed"] if name in _PAIR]:
        return f"it needs {', '.join(single)}, of which TRL's form gives lists, as {', '.join(n + 's' for n in single)}"
    if beyond := [name for name in columns if name in _NO_COLUMNS or not (found["rest"] or name in found["names"])]:
        return f"it is not given {', '.join(beyond)}, which columns names"
    return ""
