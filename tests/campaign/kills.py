"""SIGKILL at every barrier of several kinds of runs and at random moments; resumed, each has the same bits."""

from __future__ import annotations

from functools import partial

from tests.campaign.stage import Stage
from tests.campaign.undisturbed import RUNS, finish_and_compare, recipe, whole
from tests.helpers.barriers import kill_at

COUNT = 516  # more than the barriers of all runs; the other cases kill at random moments
KILLED = -9
_AGAIN = 3  # a run is killed so often at random before it is left alone


def play(stage: Stage) -> None:
    names = list(RUNS)
    name, turn = names[stage.number % len(names)], stage.number // len(names)
    undisturbed = whole(stage, name)
    recipe(stage, name)
    if turn < len(undisturbed.barriers):
        where = f"barrier {turn}, {undisturbed.barriers[turn]}"
        stage.name = f"{name}: SIGKILL at {where}"
        outcome = stage.run("train", "recipe.yaml", allowed=(KILLED,), before=(partial(kill_at, turn),))
        stage.count("kills at barriers", outcome.code == KILLED)
    else:
        where = "kills at random moments"
        stage.name = f"{name}: {where}"
        for _ in range(_AGAIN):
            after = stage.rng.uniform(0, undisturbed.seconds)
            outcome = stage.run("train", "recipe.yaml", "--resume", allowed=(0, KILLED), kill_after=after)
            stage.count("kills at random", outcome.code == KILLED)
    finish_and_compare(stage, name, where)
