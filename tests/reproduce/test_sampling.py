"""Figure 7's question: runs that differ in how often they sample and in nothing else, and what is said of them."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from humanline.reproduce.cells import Cell, around, core, sampling
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.recipe import recipe
from humanline.reproduce.run import Job, run
from humanline.reproduce.start import BATCH, Pairs, make_pairs, make_start, prompt_files
from humanline.reproduce.suite import key_of
from humanline.reproduce.tables import read_outcomes, write_outcomes
from humanline.reproduce.testbeds.letters import SMALL
from humanline.train.config import TrainConfig
from tests.conftest import ROOT
from tests.helpers.micro_testbed import MICRO
from tests.reproduce.test_tables import OUTCOME


def config_of(cell, pairs, tmp_path, testbed=SMALL):
    paths = dict.fromkeys(("model", "prompts", "distance", "output"), tmp_path)
    return TrainConfig.model_validate(recipe(cell, testbed, pairs=pairs, seed=0, **paths))


def test_variants_differ_in_when_they_sample_and_in_the_reference(tmp_path):
    """As many steps, prompts and answers; the transform, the reference and the length of a round tell them apart."""
    pairs, seen = Pairs(tmp_path / "pairs.jsonl", 2500, 8 * 2560, 0.5), set()
    rates = {cell.lr for cell in sampling()}
    for cell in sampling():
        config = config_of(cell, pairs, tmp_path)
        rounds, schedule = config.rounds, config.reference.schedule
        assert config.training.steps == 320 and config.training.batch_size == BATCH and config.optimizer.lr == cell.lr
        assert (rounds.contexts_per_round, rounds.steps) == (BATCH * cell.round_steps, cell.round_steps)
        assert (rounds.samples, rounds.select, rounds.truncated) == (8, "all", "keep") and 320 % rounds.steps == 0
        assert config.objective.clip_eps == 0.2 and config.reference.round_start == ("keep" if cell.every else "sync")
        seen.add((rounds.steps, config.transform.kind, schedule.kind, getattr(schedule, "every", None)))
    assert seen == {
        (1, "none", "each_round", None),
        (64, "none", "each_round", None),
        *((64, "clip", "before_step", every) for every in (1, 12, 20)),
    }
    assert len(sampling()) == 5 * len(rates) == len({cell.name for cell in [*sampling(), *core(), *around()]}) - 206


@pytest.mark.parametrize(("contexts", "passes", "round_steps"), [(2560, 1, 64), (2561, 2, 1), (160, 2, 3)])
def test_rounds_that_are_not_whole_are_refused(tmp_path, contexts, passes, round_steps):
    """A round that is cut would make a run of fewer steps, or of more questions to the judge, than the others."""
    pairs = Pairs(tmp_path / "pairs.jsonl", 2500, 8 * contexts, 0.5)
    cell = Cell("grpo", "online", 1e-3, clip_eps=0.2, passes=passes, round_steps=round_steps)
    with pytest.raises(ValueError, match=f"{passes} passes over {contexts} prompts.* of {round_steps} steps"):
        config_of(cell, pairs, tmp_path)


def test_results_from_before_are_still_found():
    """The keys of the grid's runs are those under which results are kept since before cells said how often to sample."""
    keys = [key_of(Job(SMALL, cell, 1, 2)) for cell in [*core(), *around()]]
    assert keys[0] == "067fd057f634650e4b32757c825d732a5afb1248b20e031c91f89158f64216ff"
    found = hashlib.sha256("".join(keys).encode()).hexdigest()
    assert found == "4d72ebc3f23b937302aaef637bb05353e33e2ca68be507b5218df9cd7c16897f"
    one, other = (dataclasses.replace(core()[0], round_steps=steps) for steps in (1, 64))
    assert len({key_of(Job(SMALL, cell, 1, 2)) for cell in (core()[0], one, other)}) == 3


def test_tables_from_before_are_read_and_written_as_they_are(tmp_path):
    """The column is in tables of runs that have it; one such run among others gives it to all."""
    committed = ROOT / "studies" / "frontier" / "letters" / "runs.csv"
    outcomes, path = read_outcomes(committed), tmp_path / "runs.csv"
    write_outcomes(path, outcomes)
    assert path.read_bytes() == committed.read_bytes() and not any(one.cell.round_steps for one in outcomes)
    both = [OUTCOME, *(dataclasses.replace(OUTCOME, cell=cell) for cell in sampling())]
    write_outcomes(path, both)
    assert [one.cell for one in read_outcomes(path)] == [one.cell for one in both]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs of a testbed that takes a second: sampled every step, every five, and every five with humanline."""
    folder = tmp_path_factory.mktemp("micro")
    prompt_files(MICRO, folder / "starts")
    make_start(MICRO, "near", 0, folder / "starts")
    make_pairs(MICRO, "near", 0, 0, folder / "starts")
    shared = {"clip_eps": 0.2, "passes": 1}
    cells = [
        Cell("grpo", "online", 1e-2, round_steps=1, **shared),
        Cell("grpo", "online", 1e-2, round_steps=5, **shared),
        Cell("grpo", "online humanline", 1e-2, every=2, round_steps=5, **shared),
    ]
    return [run(Job(MICRO, cell, 0, 0), folder, keep_runs=True) for cell in cells], folder


def test_runs_take_as_many_steps_and_ask_the_judge_as_often(ran):
    """Counted from what they did; and what they did differs."""
    outcomes: list[Outcome] = ran[0]
    assert {(one.status, one.updates, one.scorer_calls) for one in outcomes} == {("done", 10, 1280)}
    assert len({one.kl_to_start for one in outcomes}) == 3
