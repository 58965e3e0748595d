"""Figure 7's question: runs that differ in how often they sample and in nothing else, and what is said of them."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import math
import re

import numpy as np
import pytest
from scipy import stats

from humanline.cli import main
from humanline.reproduce.cells import Cell, around, core, sampling
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.plan import SECONDS, expected_seconds
from humanline.reproduce.recipe import recipe
from humanline.reproduce.rules import grid_digest, read_section
from humanline.reproduce.run import Job, run
from humanline.reproduce.sampling import (
    CLAIMS,
    SYNCED,
    SamplingRules,
    difference_rows,
    judge_sampling,
    overall,
    variant_of,
)
from humanline.reproduce.sampling_report import write_sampling_report
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
    """The keys of the grid's runs are those under which results were kept before cells said how often to sample."""
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


RULES = SamplingRules()
#: Scores of the variants, by how often they sample and k; starts have .5, so that the margin is .03.
PAPER = {(1, None): 0.8, (64, None): 0.7, (64, 1): 0.3, (64, 12): 0.8, (64, 20): 0.79}


def world(scores=PAPER, noise=0.002, starts=RULES.starts):
    """Return runs whose scores are those of their variant, best at the middle rate, with normal noise of each run."""
    rng = np.random.default_rng(0)
    values = {"testbed": "letters", "updates": 320, "scorer_calls": 40960, "start_score": 0.5}
    off = {1e-4: 0.05, 3e-4: 0.0, 1e-3: 0.1}
    return [
        dataclasses.replace(
            OUTCOME,
            **values,
            cell=cell,
            start=start,
            score=scores[variant_of(cell)] - off[cell.lr] + noise * float(rng.normal()),
        )
        for start in starts
        for cell in sampling()
    ]


def verdicts(rows):
    return {one.claim: one.verdict for one in judge_sampling(rows, RULES)}


def test_the_committed_file_says_what_the_code_does():
    """Numbers, claims and the names of the cells are those of the code."""
    path = ROOT / "studies" / "frontier" / "sampling.yaml"
    assert read_section(path, SamplingRules) == RULES
    assert (RULES.cells, RULES.digest) == (len(sampling()), grid_digest(sampling()))
    text = path.read_text(encoding="utf-8")
    assert all(re.search(rf"^  {name}:$", text, re.MULTILINE) for name in CLAIMS) and len(CLAIMS) == 3
    assert set(SYNCED.values()) <= {variant_of(cell) for cell in sampling()}


def test_the_figure_holds_where_its_claims_do():
    """Estimates, intervals and p-values are those of paired t-tests over start models, computed here by hand."""
    rows = world()
    findings = judge_sampling(rows, RULES)
    assert [one.verdict for one in findings] == ["holds"] * 3 and overall(findings) == "holds"
    score = {(variant_of(one.cell), one.start): one.score for one in rows if one.cell.lr == 3e-4}
    fresh = np.array([score[(1, None), start] for start in RULES.starts])
    margin = 0.1 * (fresh.mean() - 0.5)
    for one, variant in zip(findings, [(64, None), (64, 12), (64, 20)], strict=True):
        difference = np.array([score[variant, start] for start in RULES.starts]) - fresh
        side = "less" if one.claim == "S1" else "greater"
        test = stats.ttest_1samp(difference, -margin, alternative=side)
        interval = stats.ttest_1samp(difference, 0).confidence_interval(0.95)
        found = (one.estimate, one.low, one.high, one.margin, one.p)
        assert found == pytest.approx((difference.mean(), *interval, margin, test.pvalue), rel=1e-6)


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({(64, None): 0.8}, ["fails", "holds", "holds"]),  # no gap
        ({(64, 12): 0.7, (64, 20): 0.9}, ["holds", "fails", "holds"]),  # better is no loss
        ({(64, 12): 0.77, (64, 20): 0.77, (64, None): 0.77}, ["undecided"] * 3),  # all at the margin
        ({(1, None): 0.5}, ["undecided"] * 3),  # nothing gained
    ],
)
def test_the_figure_fails_or_stays_undecided(changed, wanted):
    """One claim that fails is enough; what lies at the margin decides nothing."""
    findings = judge_sampling(world(PAPER | changed), RULES)
    assert [one.verdict for one in findings] == wanted
    assert overall(findings) == ("fails" if "fails" in wanted else "undecided")


def test_a_variant_is_taken_at_its_own_learning_rate_chosen_on_other_starts():
    """A rate at which a run collapsed is not chosen; luck at one start model is not reported there."""
    rows = world(noise=0.0)
    for place, one in enumerate(rows):
        if variant_of(one.cell) == (64, 12):
            if one.cell.lr == 3e-4 and one.start == 5:
                rows[place] = dataclasses.replace(one, status="not finite", score=math.nan, kl_to_start=math.nan)
            if one.cell.lr == 1e-3 and one.start == 2:
                rows[place] = dataclasses.replace(one, score=0.99)
    found = {one.claim: one for one in judge_sampling(rows, RULES)}["S2"]
    assert found.estimate == pytest.approx(-0.05)  # 1e-4, and .99 nowhere
    assert found.verdict == "fails"
    all_gone = [
        dataclasses.replace(one, status="not finite", score=math.nan) if variant_of(one.cell) == (64, 12) else one
        for one in rows
    ]
    gone = {one.claim: one for one in judge_sampling(all_gone, RULES)}["S2"]
    assert gone.verdict == "undecided" and "every 64, humanline, k = 12: fewer than two" in gone.reason


def test_what_is_missing_decides_nothing():
    """Counted; runs of other starts, draws and cells are not looked at."""
    rows = world()
    findings = judge_sampling(rows[1:], RULES)
    assert {one.verdict for one in findings} == {"undecided"}
    assert all("1 of 120 runs are missing" in one.reason for one in findings)
    others = [dataclasses.replace(rows[0], start=9), dataclasses.replace(rows[0], draw=1), OUTCOME]
    assert judge_sampling([*rows, *others], RULES) == judge_sampling(rows, RULES)
    one_start = judge_sampling(rows[:15], RULES)
    assert {one.verdict for one in one_start} == {"undecided"} and "fewer than two start models" in one_start[0].reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scorer_calls": 20480}, "differ in updates and in answers that were scored"),
        ({"updates": 319}, "differ in updates and in answers that were scored"),
        ({"testbed": "arithmetic"}, "must be of one testbed"),
        ({"start": 1}, "a run is there twice"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(change, said):
    """A run of fewer steps or more questions to the judge would answer another question."""
    rows = world()
    rows[0] = dataclasses.replace(rows[0], **change)
    with pytest.raises(ValueError, match=said):
        judge_sampling(rows, RULES)
    with pytest.raises(ValueError, match="none is of the sampling cells"):
        judge_sampling([OUTCOME], RULES)


def test_differences_are_shown_at_equal_learning_rates(tmp_path):
    """Of every variant less both that do not sync; the report has each number in a file."""
    rows = world(noise=0.0)
    shown = difference_rows(rows, RULES)
    told = {(one["variant"], one["less"], one["lr"], one["of"]): one for one in shown}
    assert len(told) == len(shown) == 7 * 10
    one = told["every 64, humanline, k = 1", "every 64", "0.001", "score"]
    assert (one["estimate"], one["starts"]) == (pytest.approx(-0.4), 8)
    written = write_sampling_report(tmp_path / "sampling", rows, RULES)
    assert all(path.is_file() for path in written)
    assert read_outcomes(tmp_path / "sampling" / "runs.csv")[0].cell == rows[0].cell
    with open(tmp_path / "sampling" / "findings.csv") as lines:
        assert [row["verdict"] for row in csv.DictReader(lines)] == ["holds"] * 3
    text = (tmp_path / "sampling" / "sampling.md").read_text()
    assert "claim **holds** here" in text and "320 updates and 40960 answers scored" in text
    assert "this testbed was looked at" in text and "120 runs of 15 cells, 8 start models, 1 draw of" in text


def test_the_command_runs_its_own_cells(monkeypatch, tmp_path, capsys):
    """Eight start models, one draw, a folder of its own; it is no part of the grid or of the demo."""
    asked = []

    def stopped(jobs, folder, **_):
        asked.extend(jobs)
        raise OSError("enough")

    monkeypatch.setattr("humanline.reproduce.suite.run_suite", stopped)
    words = ["reproduce", "--sampling", "--out", str(tmp_path / "out"), "--quiet"]
    assert main(words) == 2 and "enough" in capsys.readouterr().err
    assert [job.cell for job in asked[:15]] == sampling() and {job.draw for job in asked} == {0}
    assert len(asked) == 120 and {job.start for job in asked} == set(RULES.starts)
    for more, said in (("--all", "--all is of the grid"), ("--quick", "leave it out, or with it --sampling")):
        assert main([*words, more]) == 2 and said in capsys.readouterr().err


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


@pytest.mark.slow
def test_runs_take_as_many_steps_and_ask_the_judge_as_often(ran):
    """Counted from what they did; and what they did differs."""
    outcomes: list[Outcome] = ran[0]
    assert {(one.status, one.updates, one.scorer_calls) for one in outcomes} == {("done", 10, 1280)}
    assert len({one.kl_to_start for one in outcomes}) == 3


def test_the_time_of_runs_is_that_of_their_kind():
    """Kept runs of the grid say nothing of runs that keep all answers, nor rounds of one length of those of another."""
    jobs = [Job(SMALL, cell, 0, 0) for cell in sampling()[:2]]
    usual = expected_seconds(jobs[0], [])
    kept = dataclasses.replace(
        OUTCOME, testbed="letters", cell=Cell("grpo", "online", 1e-3, clip_eps=0.15), seconds=9.0
    )
    assert expected_seconds(jobs[0], [kept]) == usual > 2 * SECONDS["letters"][1]
    kept = dataclasses.replace(kept, cell=jobs[0].cell, seconds=50.0)
    assert [expected_seconds(job, [kept]) for job in jobs] == [50.0, usual]
