"""Each reward tried on two stand-in answers to the first prompt, so that what it gives is seen before a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from humanline.train.config.rounds import FunctionReward, MathReward, ModelReward, NumberReward, Reward, ScoringConfig
from humanline.train.online.rewards.forms import Taken
from humanline.train.online.rewards.math_answer import answer_in
from humanline.train.online.rewards.pool import Pool
from humanline.train.online.rewards.tasks import task_of, together
from humanline.train.online.rewards.verdict import NOT_SCORED, Verdict, shown
from humanline.train.online.types import Completion, Rollout

Encode = Callable[[str], Sequence[int]]
_ANSWER, _NO_ANSWER = r"The answer is \boxed{42}.", "I do not know."
_LONGEST = 60  # characters of an answer that are shown


def try_rewards(
    config: ScoringConfig, prompt: Rollout, called: Mapping[int, Taken | str], pool: Pool, encode: Encode
) -> tuple[list[str], list[str], list[str]]:
    """Score two answers by every reward but models, whose weights that would take.

    Parameters
    ----------
    config : ScoringConfig
    prompt : Rollout
        Whose completions are not looked at.
    called : mapping
        How functions are called (`how_called`); all of them can be.
    pool : Pool
    encode : callable
        Returns the token ids of an answer.

    Returns
    -------
    shown, problems, remarks : list of str
        What each gave; what would end a run; what would not.
    """
    lines, problems, remarks = list[str](), list[str](), list[str]()
    for number, reward in enumerate(config.rewards):
        where = f"source.scoring.rewards[{number}] ({reward.kind})"
        if isinstance(reward, ModelReward):
            lines.append(f"{where}: not tried here, since that takes its weights")
            continue
        how = called.get(number)
        answers = [Completion(text, tuple(encode(text)), "end") for text in (_right(reward, prompt), _NO_ANSWER)]
        tasks = [task_of(reward, prompt, answer, how) for answer in answers]
        verdicts = _alone(tasks, pool)
        values = ", ".join(
            f"{_value(verdict)} for {shown(repr(answer.text), _LONGEST)}"
            for verdict, answer in zip(verdicts, answers, strict=True)
        )
        lines.append(f"{where}: {_told(reward, how, prompt)}{values}")
        failed = [verdict for verdict in verdicts if verdict.value is None and verdict.status != NOT_SCORED]
        if isinstance(reward, FunctionReward) and failed:
            listed = problems if len(failed) == 2 and config.failed == "error" else remarks
            listed.append(f"{where}: {reward.call} gave no value for a stand-in answer: {failed[0].reason}")
        elif isinstance(how, Taken) and how.form == "trl":
            _look_at_others(where, tasks, verdicts, pool, problems, remarks)
    return lines, problems, remarks


def _right(reward: Reward, prompt: Rollout) -> str:
    """Return an answer that ought to be right, where the reward reads a reference."""
    if not isinstance(reward, MathReward | NumberReward):
        return _ANSWER
    reference = str(prompt.extra.get(reward.answer))
    if isinstance(reward, MathReward):
        reference = answer_in(reference)
    return rf"\boxed{{{reference}}}" if isinstance(reward, MathReward) and "boxed" not in reference else reference


def _told(reward: Reward, called: Taken | str | None, prompt: Rollout) -> str:
    if not isinstance(reward, FunctionReward) or not isinstance(called, Taken):
        return ""
    columns = ", ".join(called.given(prompt.extra)) or "no column"
    form = "TRL's form" if called.form == "trl" else "our form"
    return f"{reward.call} of {form}, given {columns}: "


def _value(verdict: Verdict) -> str:
    if verdict.value is not None:
        return f"{verdict.value:g}"
    return "None (not scored)" if verdict.status == NOT_SCORED else f"no value ({verdict.status}: {verdict.reason})"


def _alone(tasks: Sequence[dict[str, Any] | Verdict], pool: Pool) -> list[Verdict]:
    """Return the verdicts of tasks, in their order."""
    asked = [(number, task) for number, task in enumerate(tasks) if not isinstance(task, Verdict)]
    found = {number: task for number, task in enumerate(tasks) if isinstance(task, Verdict)}
    found |= {asked[at][0]: verdict for done in pool.run([task for _, task in asked]) for at, verdict in done}
    return [found[number] for number in range(len(tasks))]


def _look_at_others(
    where: str,
    tasks: Sequence[dict[str, Any] | Verdict],
    alone: Sequence[Verdict],
    pool: Pool,
    problems: list[str],
    remarks: list[str],
) -> None:
    """Note if a function gives an answer another value beside others: TRL calls it for many, humanline for one."""
    asked = [task for task in tasks if not isinstance(task, Verdict)]
    beside = _alone([together(asked, at) for at in range(len(asked))], pool)
    if [verdict.value for verdict in beside] == [verdict.value for verdict in alone]:
        return
    if [verdict.value for verdict in _alone(asked, pool)] != [verdict.value for verdict in alone]:
        remarks.append(f"{where}: it gives the same answer other values when it is called again; the first one counts")
    else:
        problems.append(
            f"{where}: it gives an answer another value in one list with others ({', '.join(map(_value, beside))}) "
            f"than alone ({', '.join(map(_value, alone))}); here it is called for one answer at a time, so its value "
            "may not depend on the other answers"
        )
