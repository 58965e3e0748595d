"""What a worker process is given to score one completion by one reward: all that the reward looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from humanline.train.config.rounds import (
    FormatReward,
    FunctionReward,
    MathReward,
    NumberReward,
    Reward,
    TagCountReward,
)
from humanline.train.online.rewards.forms import LISTS, LOGS, FormError, Taken, taken
from humanline.train.online.rewards.verdict import LONGEST_COMPLETION, Verdict
from humanline.train.online.types import Completion, Rollout

_IDS = "completion_ids"  # of `LISTS`


def how_called(rewards: Sequence[Reward], functions: Mapping[str, Any]) -> dict[int, Taken | str]:
    """Return, by the number of each function reward, how it is called, or what is wrong with it.

    Parameters
    ----------
    rewards : sequence of Reward
    functions : mapping
        What `Pool.functions` says.
    """
    found: dict[int, Taken | str] = {}
    for number, reward in enumerate(rewards):
        if isinstance(reward, FunctionReward):
            facts = functions[reward.call]
            if isinstance(facts, str):
                found[number] = f"{reward.call} {facts}"
                continue
            try:
                found[number] = taken(reward.call, facts, reward.signature, reward.columns)
            except FormError as error:
                found[number] = str(error)
    return found


def task_of(
    reward: Reward, rollout: Rollout, completion: Completion, called: Taken | str | None = None
) -> dict[str, Any] | Verdict:
    """Return a worker's task, which is all that the reward looks at; or a verdict that needs no worker.

    Parameters
    ----------
    reward : Reward
        Any but a reward model.
    rollout : Rollout
        The prompt and the columns of its row.
    completion : Completion
    called : Taken or str
        Of a function reward, as `how_called` says.
    """
    text = completion.text
    if len(text) > LONGEST_COMPLETION:
        return Verdict(None, "too_long", f"it has {len(text)} characters; at most {LONGEST_COMPLETION} are read")
    match reward:
        case MathReward() | NumberReward():
            reference = rollout.extra.get(reward.answer)
            if reference is None:
                return _without(rollout, reward.answer)
            return {"kind": reward.kind, "completion": text, "reference": reference}
        case FormatReward():
            return {"kind": "format", "completion": text, "pattern": reward.pattern}
        case TagCountReward():
            return {"kind": "tag_count", "completion": text}
        case FunctionReward():
            assert called is not None
            if isinstance(called, str):
                return Verdict(None, "error", called)
            if missing := [name for name in called.needed() if name not in rollout.extra]:
                return _without(rollout, missing[0])
            columns = {name: rollout.extra[name] for name in called.given(rollout.extra)}
            if called.form == "trl":
                if not completion.ids and _IDS in called.needed_lists():
                    return Verdict(None, "error", f"it is a text alone, and {reward.call} needs its {_IDS}")
                return _in_lists(reward.call, rollout, completion, columns, called)
            return {
                "kind": "function",
                "call": reward.call,
                "prompt": messages_of(rollout),
                "completion": text,
                "columns": columns,
            }
    raise TypeError(f"no verifier for {type(reward).__name__}")


def _in_lists(
    call: str, rollout: Rollout, completion: Completion, columns: Mapping[str, Any], called: Taken
) -> dict[str, Any]:
    """Return the task of a function of TRL's form: lists of one entry, of texts where the row's prompt is a text."""
    prompt: Any
    answer: Any
    if rollout.plain:
        prompt, answer = rollout.prompt[-1].content, completion.text
    else:
        prompt, answer = messages_of(rollout), [{"role": "assistant", "content": completion.text}]
    entries = dict(zip(LISTS, (prompt, answer, list(completion.ids)), strict=True))
    if not completion.ids:  # of a text from elsewhere they are not known
        del entries[_IDS]
    keywords = {name: [entry] for name, entry in entries.items() if called.takes(name)}
    keywords |= {name: [value] for name, value in columns.items()}
    logs = [name for name in LOGS if called.takes(name)]
    return {"kind": "function", "call": call, "keywords": keywords, "logs": logs, "at": 0, "of": 1}


def together(tasks: Sequence[Mapping[str, Any]], at: int) -> dict[str, Any]:
    """Return the task of one call for several completions, in TRL's form, of which the entry `at` is wanted."""
    keywords = {name: [entry for task in tasks for entry in task["keywords"][name]] for name in tasks[0]["keywords"]}
    return {**tasks[0], "keywords": keywords, "at": at, "of": len(tasks)}


def messages_of(rollout: Rollout) -> list[dict[str, Any]]:
    """Return a prompt as rows and templates have it."""
    return [message.as_dict() for message in rollout.prompt]


def _without(rollout: Rollout, column: str) -> Verdict:
    return Verdict(None, "no_reference", f"its prompt {rollout.id} has no column {column!r}")
