"""Whether rewards fit their prompts, checked before a run does anything."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from humanline._checks import unknown
from humanline.system.install import install
from humanline.train.config.rounds import (
    FormatReward,
    FunctionReward,
    MathReward,
    ModelReward,
    NumberReward,
    Reward,
    ScoringConfig,
    columns_of,
)
from humanline.train.data.messages import Given, Message, Messages
from humanline.train.online.rewards.environment import worker_environment
from humanline.train.online.rewards.pool import Pool, PoolError, make_pool
from humanline.train.online.rewards.stand_in import Encode, try_rewards
from humanline.train.online.rewards.tasks import how_called
from humanline.train.online.rewards.verdict import shown
from humanline.train.online.rewards.verifiers import read_number
from humanline.train.online.types import Rollout

_SHOWN = 5
_MOST_PARSED = 1000


class RewardError(ValueError):
    """Rewards that cannot be given; the message names every one, and the prompts it does not fit."""


class HasColumns(Protocol):
    """A prompt: `Context`, `Rollout` and `PromptOnly` are such."""

    @property
    def id(self) -> str:
        """Return its name, for messages."""

    @property
    def prompt(self) -> Messages:
        """Return its messages."""

    @property
    def extra(self) -> Mapping[str, Any]:
        """Return the columns of its row beside the prompt."""

    @property
    def given(self) -> Given:
        """Return the tools and arguments that its columns give a chat template."""


def check_scoring(
    config: ScoringConfig,
    prompts: Sequence[HasColumns],
    *,
    show: Callable[[str], None] | None = None,
    encode: Encode = lambda text: (),
) -> list[str]:
    """Raise RewardError for whatever would keep rewards from being given; return remarks on what would not.

    Of the references of `math`, at most 1000, evenly spread, are read; of those of `number`, all. Callables are
    imported in a worker process, never in this one. Of a reward model the configuration and the tokenizer are loaded,
    not the weights; of one on the hub, nothing.

    Parameters
    ----------
    config : ScoringConfig
    prompts : sequence of Context, Rollout or PromptOnly
        All of the run.
    show : callable, optional
        Given one line a reward: what it gives for two stand-in answers to the first prompt. Default: none is tried.
    encode : callable
        Returns the token ids of such an answer.

    Returns
    -------
    list of str
        What templates of reward models do not write of prompts; what workers are not given of the environment; where
        source.scoring.failed is not "error": prompts without a reference that can be read, whose completions will have
        no score.

    Raises
    ------
    RewardError
        If a column does not exist, a prompt has no value in it or one that cannot be read (where source.scoring.failed
        is not "error", if that is so of more than the share source.scoring.failed_share), a pattern is no regular
        expression,
        math-verify is not installed, a callable cannot be imported, its signature is none of a reward's or may be of
        two kinds, what it needs is no column, it gives no value for either stand-in answer, a reward model's folder is
        missing or it is no such model, or worker processes do not start.
    """
    problems: list[str] = []
    remarks: list[str] = []
    columns = sorted({name for prompt in prompts for name in prompt.extra})
    for number, reward in enumerate(config.rewards):
        where = f"source.scoring.rewards[{number}] ({reward.kind})"
        for name in columns_of(reward):
            if name not in columns:
                problems.append(f"{where}: {_unknown_column(name, columns)}")
        problems += [f"{where}: {problem}" for problem in _own_problems(reward)]
    if not problems:
        problems, remarks = _with_workers(config, prompts, show, encode)
        remarks += _not_given(config)
        remarks += _left_out(config, prompts)
    if problems:
        problems += [line for line in _not_given(config) if any(name in line for name in _quoted(problems))]
        raise RewardError("\n".join(problems))
    return remarks


def _quoted(problems: Sequence[str]) -> set[str]:
    """Return all texts in quotes in messages: a reward that misses a variable raises a KeyError that quotes it."""
    return set(re.findall(r"'(\w+)'", "\n".join(problems)))


def _not_given(config: ScoringConfig) -> list[str]:
    """Return remarks on variables that worker processes, if there are any, do not get; names only."""
    if all(isinstance(reward, ModelReward) for reward in config.rewards):
        return []
    remarks = []
    environment, left_out = worker_environment(config.environment)
    if left_out:
        remarks.append(
            f"worker processes of scoring do not get what looks like a secret: {', '.join(left_out)}; a function "
            "reward that needs one gets it by source.scoring.environment.keep: [NAME]"
        )
    if unset := [name for name in config.environment.keep if name not in environment]:
        names = ", ".join(unset)
        remarks.append(f"source.scoring.environment.keep: {names} cannot be kept: not set in the environment")
    return remarks


def _unknown_column(name: str, columns: Sequence[str]) -> str:
    return str(unknown("column", name, columns)) if columns else f"{name}: the prompts have no columns but the prompt"


def _own_problems(reward: Reward) -> list[str]:
    """Return the problems of a reward whatever the prompts are."""
    if isinstance(reward, MathReward) and importlib.util.find_spec("math_verify") is None:
        return [f"math-verify is not installed: {install('rewards')}"]
    if isinstance(reward, FormatReward):
        try:
            re.compile(reward.pattern, re.DOTALL)
        except (re.error, RecursionError, OverflowError) as error:
            return [f"{shown(repr(reward.pattern), 100)} is no regular expression: {error}"]
    if isinstance(reward, ModelReward) and not reward.model.startswith("hub:"):
        from humanline.train.online.rewards.models import refuse_wrong_head, reward_settings, reward_tokenizer
        from humanline.train.policy.errors import ModelError

        try:
            refuse_wrong_head(reward, reward_settings(reward.model))
            reward_tokenizer(reward.model)
        except ModelError as error:
            return [str(error)]
    return []


def _left_out(config: ScoringConfig, prompts: Sequence[HasColumns]) -> list[str]:
    """Return remarks on prompts that templates of reward models do not write whole; of those on the hub none."""
    remarks = []
    for number, reward in enumerate(config.rewards):
        if not isinstance(reward, ModelReward) or reward.model.startswith("hub:"):
            continue
        from humanline.train.data.chat_template import ChatTemplate, RenderError
        from humanline.train.online.rewards.models import left_out, reward_tokenizer

        template, lost, first = ChatTemplate(reward_tokenizer(reward.model)), [], ""
        for prompt in prompts:
            try:
                turns = (*prompt.prompt, Message("assistant", "a"))
                what = left_out(template, turns, Given(prompt.given.tools))
            except RenderError:  # it has a status of its own
                continue
            lost += [prompt.id] if what else []
            first = first or what
        where = f"source.scoring.rewards[{number}] (model)"
        remarks += _named(lost, len(prompts), f"{where}: {first}, and scores without it")
    return remarks


def _with_workers(
    config: ScoringConfig, prompts: Sequence[HasColumns], show: Callable[[str], None] | None, encode: Encode
) -> tuple[list[str], list[str]]:
    """Return problems (callables that cannot be called, prompts without a reference), and remarks on lesser ones."""
    problems: list[str] = []
    remarks: list[str] = []
    pool = make_pool(config)
    try:
        loaded = pool.functions() if any(isinstance(reward, FunctionReward) for reward in config.rewards) else {}
        called = how_called(config.rewards, loaded)
        columns = sorted({name for prompt in prompts for name in prompt.extra})
        for number, reward in enumerate(config.rewards):
            where, how = f"source.scoring.rewards[{number}] ({reward.kind})", called.get(number)
            names = list(columns_of(reward))
            if isinstance(how, str):
                problems.append(f"{where}: {how}")
            elif how is not None:
                names = how.needed()
                absent = [name for name in names if name not in columns]
                problems += [f"{where}: {how.call} needs {_unknown_column(name, columns)}" for name in absent]
                if absent:
                    continue
            for name in names:
                lacking = [prompt.id for prompt in prompts if _lacks(reward, prompt.extra.get(name, _MISSING))]
                without = set(lacking)
                there = [(prompt.id, prompt.extra[name]) for prompt in prompts if prompt.id not in without]
                unreadable, looked_at = _unreadable(reward, there, pool)
                for what, names, of in (
                    (f"no value in column {name!r}", lacking, len(prompts)),
                    (f"the value in column {name!r} cannot be read", unreadable, looked_at),
                ):
                    named = _named(names, of, f"{where}: {what}")
                    if named and config.failed != "error" and len(names) / of > config.failed_share:
                        problems += [f"{one}; a larger share than source.scoring.failed_share" for one in named]
                    else:
                        (problems if config.failed == "error" or len(names) == of else remarks).extend(named)
        if show is not None and prompts and not problems:
            first = prompts[0]
            lines, wrong, said = try_rewards(
                config, Rollout(first.id, first.prompt, (), first.extra), called, pool, encode
            )
            problems += wrong
            remarks += said
            for line in lines:
                show(line)
    except PoolError as error:
        problems.append(str(error))
    finally:
        pool.close()
    return problems, remarks


_MISSING = object()


def _lacks(reward: Reward, value: Any) -> bool:
    if isinstance(reward, FunctionReward):
        return value is _MISSING
    return value is _MISSING or value is None or (isinstance(value, str) and not value.strip())


def _unreadable(reward: Reward, there: Sequence[tuple[str, Any]], pool: Pool) -> tuple[list[str], int]:
    """Return the names of those prompts whose references cannot be read, and how many were looked at."""
    if isinstance(reward, NumberReward):
        return [name for name, value in there if read_number(value) is None], len(there)
    if not isinstance(reward, MathReward):
        return [name for name, value in there if not _is_json(value)], len(there)
    step = -(-len(there) // _MOST_PARSED) or 1
    some = there[::step]
    plain = [isinstance(value, str | int | float) for _, value in some]
    tasks = [
        {"kind": "readable", "reference": value if ok else None} for (_, value), ok in zip(some, plain, strict=True)
    ]
    verdicts = dict(one for done in pool.run(tasks) for one in done)
    return [name for number, (name, _) in enumerate(some) if not verdicts[number].value], len(some)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _named(names: Sequence[str], of: int, what: str) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{what}: {len(names)} of {of} prompts: {', '.join(map(shown, names[:_SHOWN]))}{more}"]
