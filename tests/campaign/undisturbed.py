"""Runs that nobody disturbs, and what must be the same of one that was: model, metrics and the rounds' files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from humanline.train.config import TrainConfig, load_config
from tests.campaign.stage import Stage
from tests.campaign.world import online, tree_of, write_recipe
from tests.helpers.barriers import at_barriers
from tests.helpers.cases import case
from tests.helpers.files import leftovers
from tests.helpers.kills import result_of
from tests.helpers.rounds import round_files

BARRIERS, CHANGES = "barriers.txt", "changes.txt"


def _resumable(objective: str, schedule: str, storage: str, **changes: Any) -> Callable[..., TrainConfig]:
    return lambda toy, output: case(toy, output, objective, schedule, storage, **changes)


_SCRAMBLED = {"kind": "function", "call": "tests.helpers.toy_rewards:scrambled", "columns": ["answer"]}
RUNS: dict[str, Callable[..., TrainConfig]] = {
    "DPO, scored ahead": _resumable("dpo", "before_3", "score_ahead"),
    "KTO": _resumable("kto", "before_1", "score_ahead"),
    "a second model": _resumable("grpo", "after_2", "model"),
    "LoRA": _resumable("dpo", "before_3", "score_ahead", adapter={"rank": 2}),
    "rounds": lambda toy, output: online(toy, output),
    "rounds of pairs": lambda toy, output: online(
        toy,
        output,
        "dpo",
        scoring={"rewards": [_SCRAMBLED], "workers": 1, "seconds": 20.0},
        data__eval=toy["held_out_prompts"],
        evaluation={"every": 2},
    ),
}


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: its result, how long it took, and the barriers and changes of the disk that it passed."""

    result: Any
    seconds: float
    barriers: list[str]
    changes: Counter[str]


def output(folder: Path) -> Path:
    return folder / "run"


def recipe(stage: Stage, name: str) -> str:
    """Write the recipe of a run into the stage's folder; return its name."""
    one = RUNS[name](stage.world.toy, output(stage.folder))
    return write_recipe(tree_of(one), stage.folder / "recipe.yaml").name


def result(folder: Path) -> Any:
    """Return the results that must be the same bit for bit, of a run whose recipe is in a folder."""
    rounds = round_files(output(folder))
    return result_of(load_config(folder / "recipe.yaml")), rounds


def whole(stage: Stage, name: str) -> Whole:
    """Return the undisturbed run; it is made once in each process, so that processes check each other."""
    from tests.campaign.faults import Faults

    kept = stage.world.kept
    if name not in kept:
        folder = stage.folder / "whole"
        folder.mkdir()
        alone = Stage(stage.kind, stage.number, stage.seed, stage.world, folder, fresh=stage.fresh)
        words = ("train", recipe(alone, name))
        marks = partial(note_barriers, folder / BARRIERS)
        changes = Faults(under=str(output(folder)), note=str(folder / CHANGES))
        outcome = alone.run(*words, allowed=(0,), before=(marks, changes))
        if alone.complaints:
            raise RuntimeError(f"the undisturbed run fails: {alone.complaints}")
        kept[name] = Whole(
            result(folder),
            outcome.seconds,
            (folder / BARRIERS).read_text().splitlines(),
            Counter((folder / CHANGES).read_text().splitlines()),
        )
    return kept[name]


def note_barriers(path: Path) -> None:
    """Write down the name of every barrier that this process passes."""
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def act(what: str) -> None:
        file.write(what + "\n")
        file.flush()

    at_barriers(act)


def finish_and_compare(stage: Stage, name: str, where: str) -> None:
    """Resume a run that was disturbed, undisturbed; it must end, with the same bits, and leave nothing beside them."""
    if stage.run("train", "recipe.yaml", "--resume", allowed=(0,)).code != 0:
        stage.complain(f"not resumed after: {where}")
    else:
        compare(stage, name, where)
        stage.expect(not (left := leftovers(output(stage.folder))), f"left behind after {where}: {left}")


def compare(stage: Stage, name: str, where: str) -> None:
    """Complain if a run's result is not that of the undisturbed one."""
    expected, found = whole(stage, name).result, result(stage.folder)
    if found == expected:
        return
    parts = {"model": [r[0][0] for r in (expected, found)], "metrics": [r[0][1] for r in (expected, found)]}
    parts["files of rounds"] = [r[1] for r in (expected, found)]
    differing = [part for part, (a, b) in parts.items() if a != b]
    detail = json.dumps(sorted(k for k in {*expected[1], *found[1]} if expected[1].get(k) != found[1].get(k)))
    stage.complain(f"{where}: other {', '.join(differing)} than undisturbed {detail}")
