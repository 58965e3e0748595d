"""Files of answers, read and joined: what two models answered to the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from humanline.evaluate.records import NAME, EvaluationError, in_full, prompt_digest, read_evaluation
from humanline.train.online.ledger import each_line
from humanline.train.online.stages import read_rollouts, read_scores
from humanline.train.online.types import Rollout, Score

SAMPLES, SCORED = "samples.jsonl", "scored.jsonl"


@dataclass(frozen=True, slots=True)
class Answers:
    """A file of answers.

    Attributes
    ----------
    file : Path
    name : str
        Of the model: as its evaluation says, or the file's.
    seed : int or None
    scoring : dict or None
        How they were scored, where an evaluation beside them says it.
    columns : tuple of str
        Of their prompts, what they were scored against or asked with, where an evaluation beside them says it.
    rollouts : list of Rollout
    scores : list of list of Score, or None
        None where the file has none.
    """

    file: Path
    name: str
    seed: int | None
    scoring: dict[str, object] | None
    columns: tuple[str, ...]
    rollouts: list[Rollout]
    scores: list[list[Score]] | None


class Joined(NamedTuple):
    """The answers of both models to one prompt."""

    id: str
    prompt: str  # its digest
    model: int  # place of the rollout in each file
    baseline: int


def read_answers(path: str) -> Answers:
    """Read a file of `humanline sample` or `humanline score`, or the one in a folder of `humanline evaluate`.

    Raises
    ------
    EvaluationError, LedgerError
        If there is no such file, it has no rows, a prompt's id is there twice or has no answer.
    """
    file = in_full(path)
    name, seed, settings = file.stem, None, dict[str, Any]()
    if file.is_dir():
        folder = file
        file = next((folder / one for one in (SCORED, SAMPLES) if (folder / one).is_file()), folder / SCORED)
        name = folder.name
        if (folder / NAME).is_file():
            evaluation = read_evaluation(folder)
            name, seed, settings = evaluation.name, evaluation.seed, dict(evaluation.settings)
    if not file.is_file():
        raise EvaluationError(f"{path!r} is no file of answers, and no folder of `humanline evaluate` that has one")
    rollouts = read_each_once(file)
    scored = all("scores" in row for row in each_line(file, whole=True))
    scores = read_scores(file, rollouts) if scored else None
    scoring = settings.get("scoring")
    if scoring is not None and "reward models" in settings:
        scoring = scoring | {"reward models": settings["reward models"]}
    return Answers(file, name, seed, scoring, tuple(settings.get("columns", ())), rollouts, scores)


def read_each_once(file: Path) -> list[Rollout]:
    """Read a file of answers; raise EvaluationError if it has no rows, a prompt's id is there twice or has no answer.

    LedgerError is raised as `humanline.train.online.stages.read_rollouts` does.
    """
    rollouts = read_rollouts(file)
    if not rollouts:
        raise EvaluationError(f"{str(file)!r} has no rows")
    lines: dict[str, int] = {}
    for number, rollout in enumerate(rollouts, start=1):
        if (first := lines.setdefault(rollout.id, number)) != number:
            count = len(rollouts) - len({one.id for one in rollouts})
            raise EvaluationError(
                f"{file}:{number}: the prompt {rollout.id!r} is there twice, first in line {first}; {count} rows are "
                "repeated ones"
            )
        if not rollout.completions:
            count = sum(not one.completions for one in rollouts)
            raise EvaluationError(
                f"{file}:{number}: the prompt {rollout.id!r} has no answer; {count} of {len(rollouts)} have none"
            )
    return rollouts


def join(model: Answers, baseline: Answers) -> list[Joined]:
    """Join the answers of two models by the prompts' ids, in the order of the model's file.

    Raises
    ------
    EvaluationError
        If no id is in both, an id stands for different prompts, or the model has another number of answers to a prompt
        than the baseline, which is not one.
    """
    places = {rollout.id: place for place, rollout in enumerate(baseline.rollouts)}
    joined = []
    for place, ours in enumerate(model.rollouts):
        if ours.id not in places:
            continue
        theirs = baseline.rollouts[places[ours.id]]
        where = f"{model.file} and {baseline.file}: {ours.id!r}"
        if ours.prompt != theirs.prompt:
            raise EvaluationError(f"{where} is another prompt in each; only answers to the same one can be compared")
        if len(theirs.completions) not in (1, len(ours.completions)):
            raise EvaluationError(
                f"{where} has {len(ours.completions)} and {len(theirs.completions)} answers; there must be as many in "
                "both, or one of the baseline"
            )
        asked = [message.as_dict() for message in ours.prompt]
        joined.append(Joined(ours.id, prompt_digest(asked), place, places[ours.id]))
    if not joined:
        raise EvaluationError(f"{model.file} and {baseline.file} have no prompt in common (they are joined by id)")
    return joined


def texts(model: Answers, baseline: Answers, one: Joined) -> list[tuple[str, str]]:
    """Return the pairs of answers to a prompt: the model's and the baseline's."""
    ours = [completion.text for completion in model.rollouts[one.model].completions]
    theirs = [completion.text for completion in baseline.rollouts[one.baseline].completions]
    return list(zip(ours, theirs * (len(ours) // len(theirs)), strict=True))


def digest_of_answers(answers: Answers, places: Sequence[int]) -> str:
    """Return the digest of prompts and answers at these places of a file."""
    rollouts = [answers.rollouts[place] for place in places]
    return prompt_digest([[one.id, [completion.text for completion in one.completions]] for one in rollouts])
