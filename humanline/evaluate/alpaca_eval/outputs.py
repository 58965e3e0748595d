"""model_outputs.json, made of any file of answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from humanline.evaluate.alpaca_eval.files import free_file, read_instructions, short
from humanline.evaluate.answers import read_answers
from humanline.evaluate.records import EvaluationError
from humanline.system.files import publish_file, write_text
from humanline.system.terminal import show
from humanline.train.online.commands import Say
from humanline.train.online.types import Completion, Rollout


def write_model_outputs(
    samples: str,
    instructions: str,
    out: str,
    *,
    name: str | None = None,
    answer: int | None = None,
    say: Say = show,
) -> Path:
    """Make a model_outputs.json of a file of answers, in the order of the package's instructions; return it.

    Parameters
    ----------
    samples : str
        File of `humanline sample` or of the same form, or a folder of `humanline evaluate`.
    instructions : str
        The package's evaluation set, alpaca_eval.json or another JSON list of objects with `instruction`.
    out : str
        File to make; it must be free.
    name : str, optional
        The generator's; default: what the samples tell.
    answer : int >= 1, optional
        Which of several answers is taken; default: there must be one.
    say : callable

    Raises
    ------
    EvaluationError, LedgerError
        If a file cannot be read; if an instruction of the set has no answer or two, or answers are to prompts that are
        none of its instructions; if a prompt is no single question; if there are several answers and none was chosen.
    FileExistsError, OSError
        If the output exists or cannot be written.
    """
    target = free_file(out)
    found = read_answers(samples)
    order = read_instructions(instructions)
    asked: dict[str, str] = {}
    cut = blank = 0
    for number, rollout in enumerate(found.rollouts, start=1):
        where = f"{found.file}:{number}"
        instruction, one = _instruction(rollout, where), _chosen(rollout, answer, where)
        if instruction in asked:
            raise EvaluationError(f"{where}: the instruction {short(instruction)} is there twice")
        asked[instruction] = one.text
        cut, blank = cut + one.truncated, blank + (not one.text.strip())
    _refuse_others(list(order), list(asked), str(found.file), instructions)
    generator = name or found.name
    rows = [
        {"instruction": text, "output": asked[text], "generator": generator}
        | ({"dataset": row["dataset"]} if "dataset" in row else {})
        for text, row in order.items()
    ]
    partial = target.with_name(f".{target.name}.new")
    write_text(partial, json.dumps(rows, indent=2, ensure_ascii=True) + "\n")
    publish_file(partial, target)
    say(f"{len(rows)} outputs of {generator!r}; {cut} of them truncated, {blank} blank")
    return target


def _refuse_others(wanted: Sequence[str], asked: Sequence[str], samples: str, instructions: str) -> None:
    """Raise EvaluationError unless the same instructions are in both."""
    missing = [one for one in wanted if one not in set(asked)]
    strange = [one for one in asked if one not in set(wanted)]
    if not (missing or strange):
        return
    by_words = {" ".join(one.split()): one for one in missing}
    changed = [one for one in strange if " ".join(one.split()) in by_words]
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(wanted)} instructions have no answer, such as {short(missing[0])}")
    parts += [f"{len(strange)} answers are to none of them, such as {short(strange[0])}"] if strange else []
    parts += [f"{len(changed)} of these differ from one in white space alone"] if changed else []
    raise EvaluationError(
        f"{samples} does not answer {instructions} instruction by instruction, which the package joins by their exact "
        f"text: {'; '.join(parts)}. Sample from that file's own instructions, unchanged"
    )


def _instruction(rollout: Rollout, where: str) -> str:
    turns = [turn for turn in rollout.prompt if turn.role not in ("system", "developer")]
    if len(turns) != 1 or turns[0].role != "user":
        raise EvaluationError(f"{where}: the prompt of {rollout.id!r} is no single question of a user")
    return turns[0].content


def _chosen(rollout: Rollout, answer: int | None, where: str) -> Completion:
    count = len(rollout.completions)
    if answer is None and count > 1:
        raise EvaluationError(
            f"{where}: {rollout.id!r} has {count} answers; the package takes one: choose which with --answer, or "
            "sample with evaluation.samples=1"
        )
    if answer is not None and not 1 <= answer <= count:
        raise EvaluationError(f"{where}: {rollout.id!r} has {count} answers; --answer {answer} is none of them")
    return rollout.completions[(answer or 1) - 1]
