"""What a plan is: runs of shipped recipes, each with what it replaces, in the order in which they are made."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from humanline.reproduce.cells import Objective

Evaluation = Literal["scored", "alpaca"]
#: Tokens that a run of 10K pairs learns from, about: 20K answers of some 350 tokens, with prompts of 200.
TOKENS = 1.1e7


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of a plan.

    Parameters
    ----------
    name : str
        Of words between slashes: ``--only`` takes whole words from the left, or a pattern.
    recipe : str
        A shipped one.
    overrides : tuple of "section.key=value"
        What is not as the recipe has it.
    differs : str
        What is not as in the paper.
    hours : float or None
        GPU hours, reckoned and not measured; None: nothing was even reckoned.
    """

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()
    differs: str = ""
    hours: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Which runs of a plan speak to a claim of the paper, for one objective; of several on a side the best is taken.

    Parameters
    ----------
    says : str
        As `PaperClaim.says`.
    objective : str
    first, second : tuple of str
        Stems of names, which runs of several seeds share.
    differs : str
    online : str
        Stem of the runs by whose gain over the start "alike" is measured; empty: by the second side's.
    start : str
        Of `Scale.starts`: the model that both sides begin with.
    """

    says: str
    objective: Objective
    first: tuple[str, ...]
    second: tuple[str, ...]
    differs: str = ""
    online: str = ""
    start: str = "start"


@dataclass(frozen=True, slots=True)
class Scale:
    """A plan.

    Parameters
    ----------
    name : str
    title : str
    runs : tuple of PlannedRun
        Names end in the seed, "/seed0", where a plan has several.
    asked : tuple of Asked
    evaluation : "scored" or "alpaca"
        How models are asked: `humanline evaluate` with a reward model, or AlpacaEval's instructions and annotator.
    hardware : str
        What hours are of.
    counted : str
        What the hours of a run are counted for.
    memory : str
        What a run takes, by `humanline estimate`.
    starts : mapping of str to str
        Names of models that are asked before any training, and of a run that begins with each.
    remarks : tuple of str
        What is to be known before a GPU is rented.
    """

    name: str
    title: str
    runs: tuple[PlannedRun, ...]
    asked: tuple[Asked, ...]
    evaluation: Evaluation
    hardware: str
    starts: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    counted: str = "training"
    memory: str = ""


def said_cost(scale: Scale, runs: Sequence[PlannedRun]) -> str:
    """Return how much time and memory runs take, in words that say that nothing of it was measured."""
    known = [run.hours for run in runs if run.hours is not None]
    rest = f"; of {len(runs) - len(known)} runs that sample, no time was reckoned" if len(known) < len(runs) else ""
    said = f"{sum(known):.0f} hours of {scale.hardware}, for {scale.counted}{rest}"
    return f"{said}. Memory: {scale.memory}" if scale.memory else said


def stem(name: str) -> str:
    """Return a run's name without its seed."""
    head, _, last = name.rpartition("/")
    return head if last.startswith("seed") and last.removeprefix("seed").isdigit() else name


def picked(scale: Scale, only: Sequence[str]) -> tuple[PlannedRun, ...]:
    """Return the runs that names or beginnings of names pick, in the plan's order; all of them without any.

    Raises
    ------
    ValueError
        With all of those that pick nothing, what they may have meant, and what there is.
    """
    if not only:
        return scale.runs
    found: set[str] = set()
    wrong = []
    for one in only:
        mine = {run.name for run in scale.runs if f"{run.name}/".startswith(f"{one.strip('/')}/")}
        found |= mine
        if not mine:
            wrong.append(one)
    if wrong:
        beginnings = _beginnings(scale)
        near = {name: difflib.get_close_matches(name.strip("/"), beginnings, n=2) for name in wrong}
        said = "; ".join(
            f"{name!r}{f' (did you mean {or_more(close)}?)' if close else ''}" for name, close in near.items()
        )
        groups = ", ".join(dict.fromkeys("/".join(run.name.split("/")[:2]) for run in scale.runs))
        raise ValueError(f"--only: nothing of the scale {scale.name!r} is called {said}; there are {groups}")
    return tuple(run for run in scale.runs if run.name in found)


def or_more(names: Sequence[str]) -> str:
    """Return names in words."""
    return " or ".join(names)


def _beginnings(scale: Scale) -> list[str]:
    parts = [run.name.split("/") for run in scale.runs]
    return sorted({"/".join(own[:count]) for own in parts for count in range(1, len(own) + 1)})


#: Operations a parameter and token: 6 to learn, 2 for passes that are made again, 2 for the reference; KTO has three
#: such passes, as `humanline estimate` counts them.
OPERATIONS: dict[Objective, float] = {"dpo": 10.0, "kto": 14.0, "grpo": 10.0}


def reckoned_hours(
    objective: Objective, parameters: float, *, answering: float = 0.0, teraflops: float = 100.0
) -> float:
    """Return about how long a run of 10K pairs takes one GPU, hours: reckoned, and not measured.

    Parameters
    ----------
    objective : "dpo", "kto" or "grpo"
    parameters : float
    answering : float
        Hours that its evaluation takes.
    teraflops : float
        10^12 operations a second, about a third of what such GPUs say of themselves.
    """
    return OPERATIONS[objective] * parameters * TOKENS / (teraflops * 1e12) / 3600 + answering
