"""The declared protocol: what a study's runs are made of and measured by does not change without being said.

Whoever changes one of these numbers says what was seen, and why, in the change log of studies/frontier/hypotheses.yaml.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from humanline.reproduce import answers, recipe, start
from humanline.reproduce.cells import around, core
from humanline.reproduce.rules import Rules
from humanline.reproduce.tables import read_outcomes
from humanline.reproduce.testbeds.instructions import HABITS
from humanline.reproduce.testbeds.registry import TESTBEDS
from humanline.reproduce.testbeds.registry import testbed as named
from humanline.reproduce.versions import PROTOCOL, made_by

STUDY = Path(__file__).parents[2] / "studies" / "frontier"
#: Hidden size, layers, heads; steps, batch size and learning rate of learning the task; tokens of an answer, of prompt
#: and answer, and of the vocabulary.
SIZES = {
    "letters": (64, 2, 4, 700, 64, 2e-3, 12, 48, 300),
    "letters-large": (128, 3, 4, 700, 64, 2e-3, 16, 48, 262),
    "arithmetic": (64, 2, 4, 1200, 32, 2e-3, 48, 80, 400),
    "instructions": (64, 2, 4, 1000, 32, 4e-3, 72, 112, 380),
    "instructions-large": (128, 3, 4, 800, 32, 2e-3, 72, 112, 400),
}
#: Of the language's numbers and the scorer's, as both are declared.
TASKS = {"instructions": "ada468921b5b71c0", "instructions-large": "53e4e27e064c8454"}
#: The number of the protocol, which says whether kept results are used, and what stands for it: every recipe of the
#: grid, and how starts, pairs and measures are made.
PROTOCOLS = {2: "578e78ab4c6092aa"}


def digest(of: object) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


def test_every_testbed_of_the_study_is_declared():
    """Nothing is looked at or held out that is not here."""
    rules = Rules()
    assert set(SIZES) == set(TESTBEDS) == {*rules.look, *rules.held_out}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_is_the_one_that_was_looked_at(name):
    """Start models have the size, the training and the limits with which they were found sound."""
    bed = named(name)
    assert (*asdict(bed.size).values(), bed.max_tokens, bed.max_length, bed.vocab_size) == SIZES[name]


@pytest.mark.parametrize("name", TASKS)
def test_a_scorer_is_the_one_that_was_looked_at(name):
    """Scores of instructions are in units of a start model's: of a task of these numbers and no others."""
    task = named(name).task
    habits = {source: asdict(habit) for source, habit in HABITS.items()}
    assert digest([asdict(task.language), asdict(task.scorer), habits]) == TASKS[name]


def test_another_protocol_has_another_number():
    """A recipe or a way of measuring that changes under the same number would mix results that are not comparable."""
    pairs, place = start.Pairs(Path("pairs"), 2560, 20480, 0.5), Path("place")
    paths = {"model": place, "prompts": place, "distance": place, "output": place}
    cells = (*core(), *around())
    recipes = [recipe.recipe(cell, named("letters"), pairs=pairs, seed=0, **paths) for cell in cells]
    numbers = [start.ANSWERS, start.MARGIN, start.SCORE_SEED, answers.BATCH, answers.SAMPLES, answers.MATCHED]
    assert PROTOCOLS.get(PROTOCOL) == digest([recipes, numbers, answers.TEMPERATURES])


def test_committed_runs_are_of_the_testbed_as_it_is():
    """The runs of letters that are committed go on: neither the task nor the protocol has changed since."""
    assert {outcome.task for outcome in read_outcomes(STUDY / "letters" / "runs.csv")} == {made_by(named("letters"))}
