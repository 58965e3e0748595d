"""Answers of several models to the same prompts, side by side; and what evaluations say of them.

Which prompts are shown is no choice of ours: the first ones that most of the sets have, and of each the first answer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from humanline.evaluate.answers import SAMPLES, SCORED
from humanline.evaluate.compare import not_alike, other_templates
from humanline.evaluate.preference import of_bias
from humanline.evaluate.records import NAME, Evaluation, EvaluationError, read_evaluation
from humanline.report.find import Found
from humanline.train.online.ledger import LedgerError, each_line
from humanline.train.online.types import Rollout
from humanline.train.run.looks import is_number

LOOKED_AT = 256  # rows of a file, the first ones
LONGEST = 3000  # characters of a text
_SCORES = "scores.jsonl"


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer: its text, its score where there is one, and whether it was cut at its limit."""

    text: str
    score: float | None
    cut: bool
    of: int  # answers to this prompt

    def row(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"text": self.text, "score": self.score, "cut": self.cut, "of": self.of}


@dataclass(frozen=True, slots=True)
class AnswerSet:
    """The answers of one model: by prompt, in the order of their file; and its evaluation, under this name."""

    name: str
    answers: Mapping[str, Shown]  # by the prompt as JSON
    evaluation: Evaluation | None = None  # without its items
    notes: Sequence[str] = ()

    def measures(self) -> dict[str, Mapping[str, Any]]:
        """Return what the evaluation has measured: facts with a value, by name."""
        summary = {} if self.evaluation is None else self.evaluation.summary
        return {
            name: fact for name, fact in summary.items() if isinstance(fact, Mapping) and is_number(fact.get("value"))
        }


@dataclass(frozen=True, slots=True)
class Block:
    """Prompts that the same models were asked, and what each answered."""

    names: tuple[str, ...]
    prompts: list[tuple[list[tuple[str, str]], list[Shown]]]  # (role, text) of each message; an answer each name


def read_answer_set(found: Found) -> AnswerSet:
    """Return the answers of a file, or of a folder of `humanline evaluate`; what is unreadable is said in the notes."""
    path, notes, evaluation, name = found.path, [], None, found.name
    file = path
    if path.is_dir():
        file = next((path / one for one in (SCORED, SAMPLES) if (path / one).is_file()), path / SCORED)
        if (path / NAME).is_file():
            try:
                evaluation = replace(read_evaluation(path), name=name, items=())
                notes += _bias(evaluation)
            except EvaluationError as error:
                notes.append(str(error).replace(str(path), name))
    answers, said = _answers(file, None)
    return AnswerSet(name, answers, evaluation, [*notes, *said])


def _bias(evaluation: Evaluation) -> list[str]:
    """Return what is to be said of a judge that goes by the place at which an answer is shown."""
    position = evaluation.summary.get("position")
    if not (isinstance(position, Mapping) and position.get("biased") is True):
        return []
    try:
        return [of_bias(position)]
    except (KeyError, TypeError, ValueError):  # of another version
        return ["the judge is biased to the place at which an answer is shown"]


def unlike(sets: Sequence[AnswerSet]) -> list[str]:
    """Return why numbers of one name, of which each is held against the first one's, are not of the same thing.

    It is what `humanline compare` refuses, or says, of the same evaluations.
    """
    notes: dict[str, None] = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(one.measures() for one in sets)):
        first, *others = (one.evaluation for one in sets if one.evaluation is not None and name in one.measures())
        notes |= dict.fromkeys(why for other in others if (why := not_alike(first, other)))
        notes |= dict.fromkeys(other_templates([first, *others]))
    return list(notes)


def rounds_of(found: Found) -> list[AnswerSet]:
    """Return the answers of the first and the last round of a run that has any, which the policy gave in training."""
    folders = sorted(path.parent for path in (found.path / "rounds").glob(f"*/{SAMPLES}") if path.parent.name.isdigit())
    sets = []
    for folder in dict.fromkeys([*folders[:1], *folders[-1:]]):
        answers, notes = _answers(folder / SAMPLES, folder / _SCORES)
        when = f"round {int(folder.name)}" + ("" if int(folder.name) else ", its start")
        sets.append(AnswerSet(f"{found.name}, {when}", answers, notes=notes))
    return sets


def _answers(file: Path, scores: Path | None) -> tuple[dict[str, Shown], list[str]]:
    """Return the first answers of the first rows of a file, and what is to be said of it."""
    found: dict[str, Shown] = {}
    notes, number = [], 0
    values = itertools.chain(_score_rows(scores), itertools.repeat({}))
    try:
        rows = itertools.islice(each_line(file, whole=True), LOOKED_AT)
        for row, apart in zip(rows, values, strict=False):
            number += 1
            rollout = Rollout.from_row(row)
            if not rollout.completions:
                continue
            prompt = json.dumps([[message.role, message.content] for message in rollout.prompt])
            first = rollout.completions[0]
            own = row if "scores" in row else apart if apart.get("id") == rollout.id else {}
            shown = Shown(cut(first.text), _first_score(own), first.truncated, len(rollout.completions))
            found.setdefault(prompt, shown)
    except (LedgerError, OSError) as error:
        notes.append(f"{file.name} cannot be read further: {error}")
    except (KeyError, TypeError, ValueError) as error:
        notes.append(f"{file.name}: row {number} is none of answers ({type(error).__name__}: {error})")
    if not found and not notes:
        notes.append(f"{file.name} holds no answers")
    return found, notes


def _score_rows(file: Path | None) -> Iterator[dict[str, Any]]:
    if file is not None and file.is_file():
        try:
            yield from each_line(file, whole=True)
        except (LedgerError, OSError):
            return  # answers without a score


def _first_score(row: Mapping[str, Any]) -> float | None:
    scores = row.get("scores")
    first = scores[0] if isinstance(scores, list) and scores else None
    value = first.get("value") if isinstance(first, Mapping) else None
    return value if is_number(value) else None


def cut(text: str, longest: int = LONGEST) -> str:
    """Return the beginning of a text, and how much more there is of it."""
    return text if len(text) <= longest else f"{text[:longest]} [... {len(text) - longest:,} more characters]"


def side_by_side(sets: Sequence[AnswerSet], count: int) -> list[Block]:
    """Return blocks of prompts with the answers of all models that were asked them.

    The first block is of the models that share most prompts; a set that is in a block already begins no new one.

    Parameters
    ----------
    sets : sequence of AnswerSet
    count : int >= 1
        Prompts of a block, at most.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for prompt in dict.fromkeys(itertools.chain.from_iterable(one.answers for one in sets)):
        who = tuple(place for place, one in enumerate(sets) if prompt in one.answers)
        groups.setdefault(who, []).append(prompt)
    blocks, seen = [], set[int]()
    for who, prompts in sorted(groups.items(), key=lambda item: -len(item[0])):
        if not set(who) <= seen:
            seen |= set(who)
            shown = [
                ([(role, cut(text)) for role, text in json.loads(one)], [sets[place].answers[one] for place in who])
                for one in prompts[:count]
            ]
            blocks.append(Block(tuple(sets[place].name for place in who), shown))
    return blocks
