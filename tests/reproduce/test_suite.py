"""Runs of cells and suites of them: measured as they are, kept as they come, the same however they are stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch

from humanline.cli import main
from humanline.reproduce import suite as module
from humanline.reproduce.answers import Model, entropy, measure, temperature_of
from humanline.reproduce.cells import VARIANTS, Cell, around, core, paper
from humanline.reproduce.known import take_over
from humanline.reproduce.outcome import as_text, from_text
from humanline.reproduce.plan import SECONDS, grid_jobs, said_time
from humanline.reproduce.recipe import recipe
from humanline.reproduce.run import Job, run
from humanline.reproduce.start import (
    SCORE_SEED,
    Pairs,
    has_pairs,
    has_start,
    make_pairs,
    make_start,
    pairs_of,
    prompt_file,
    prompt_files,
)
from humanline.reproduce.subsets import some_pairs
from humanline.reproduce.suite import held, kept_results, run_suite
from humanline.reproduce.tables import read_outcomes, write_outcomes
from humanline.reproduce.testbeds.registry import OTHERS, TESTBEDS
from humanline.reproduce.versions import made_by
from humanline.system.files import OutputError
from humanline.system.stop import StopRequested
from humanline.train.config import TrainConfig
from humanline.train.data.messages import Message
from tests.helpers.dying import die, must_not_be_called
from tests.helpers.micro_testbed import MICRO

OFFLINE = Cell("dpo", "offline", 1e-3, beta=1.0)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with a start model and a draw of pairs, and these."""
    folder = tmp_path_factory.mktemp("micro")
    prompt_files(MICRO, folder / "starts")
    start = make_start(MICRO, "near", 0, folder / "starts")
    return folder, start, make_pairs(MICRO, "near", 0, 0, folder / "starts")


@pytest.fixture(scope="module")
def outcome(begun):
    """One run of a cell."""
    return run(Job(MICRO, OFFLINE, 0, 0), begun[0], keep_runs=True)


def test_every_cell_of_the_grid_is_a_recipe_that_training_takes(tmp_path):
    """Each variant has its transform, schedule and source; online runs ask the judge as often as the pairs did."""
    pairs = Pairs(tmp_path / "pairs.jsonl", 160, 1280, 0.5)
    seen = set()
    for cell in [*core(), *around(), *paper()]:
        paths = {"model": tmp_path, "prompts": tmp_path, "distance": tmp_path, "output": tmp_path}
        config = TrainConfig.model_validate(recipe(cell, MICRO, pairs=pairs, seed=0, **paths))
        transform = config.transform.kind
        schedule = config.reference.schedule
        seen.add((cell.variant, transform, schedule.kind))
        assert getattr(schedule, "every", None) == cell.every and config.optimizer.lr == cell.lr
        if cell.is_online:
            rounds = config.rounds
            assert rounds.contexts_per_round * rounds.count * rounds.samples == pairs.scorer_calls
        else:
            assert config.training.steps == 10 * cell.passes
        batch = 20 if cell.desirable else 32 if cell.objective == "kto" else 16
        assert config.training.batch_size == batch
    assert seen == {
        ("offline", "none", "never"),
        ("humanline", "clip", "before_step"),
        ("sync only", "none", "before_step"),
        ("clip only", "clip", "never"),
        ("trust region", "none", "after_step"),
        ("rejection", "beta_rejection", "before_step"),
        ("online", "none", "each_round"),
        ("online humanline", "clip", "before_step"),
    }
    assert {variant for variant, _, _ in seen} == set(VARIANTS)


def test_cells_have_names_that_tell_them_apart():
    """No two cells of the grid are called the same."""
    names = [cell.name for cell in [*core(), *around(), *paper()]]
    assert len(set(names)) == len(names)


def test_pairs_are_the_best_and_the_worst_of_eight_by_the_judge(begun):
    """Recomputed from answers drawn anew, of equals the first; cut answers and prompts without a gap are left out."""
    _, start, pairs = begun
    answers = Model(MICRO, start.model).draw("pairs", 8, 0)
    assert pairs.scorer_calls == 8 * 160 == len(answers.prompts)
    wanted, gaps = [], []
    for prompt in MICRO.task.prompts("pairs"):
        drawn = [one for of, one in zip(answers.prompts, answers.completions, strict=True) if of == prompt]
        texts = [one.text for one in drawn if one.finish != "length" and one.text.strip()]
        scores = [MICRO.task.judged(prompt, text) for text in texts]
        if scores and max(scores) - min(scores) >= 0.01:
            best, worst = texts[scores.index(max(scores))], texts[scores.index(min(scores))]
            wanted.append({"prompt": prompt, "chosen": best, "rejected": worst})
            gaps.append(max(scores) - min(scores))
    rows = [json.loads(line) for line in pairs.file.read_text().splitlines()]
    assert rows == wanted and 16 < len(rows) == pairs.count < 160
    assert pairs.gap == pytest.approx(sum(gaps) / len(gaps))


def test_a_cell_of_a_quarter_learns_from_the_answers_that_the_start_finds_least_likely(begun, tmp_path):
    """By the mean log-probability of both answers' tokens, here one row at a time: all below those left out."""
    _, start, pairs = begun
    (cell,) = [one for one in paper() if one.quartile == 1 and one.variant == "offline" and one.lr == 1e-4]
    found = some_pairs(cell, pairs, start.model, tmp_path / "data")
    kept, lines = set(found.file.read_text().splitlines()), pairs.file.read_text().splitlines()
    model = Model(MICRO, start.model)
    inside, outside = [], []
    for line in lines:
        total, tokens, row = 0.0, 0, json.loads(line)
        for text in (row["chosen"], row["rejected"]):
            one = model.renderer.encode((Message("user", row["prompt"]),), text)
            ids = torch.tensor([one.ids])
            with torch.no_grad():
                logprobs = model.model(ids).logits.float().log_softmax(-1)
            mine = logprobs[0, :-1].gather(-1, ids[0, 1:, None]).squeeze(-1)[one.prompt_length - 1 :]
            total, tokens = total + float(mine.sum()), tokens + len(mine)
        (inside if line in kept else outside).append(total / tokens)
    assert found.count == len(inside) == -(-len(lines) // 4) and max(inside) < min(outside)


def test_a_start_model_and_its_pairs_are_made_once(begun, monkeypatch):
    """What is there is taken as it is, unless the task has changed or it was not finished."""
    folder, start, pairs = begun
    monkeypatch.setattr("humanline.train.loop.train", must_not_be_called)
    assert make_start(MICRO, "near", 0, folder / "starts") == start
    assert make_pairs(MICRO, "near", 0, 0, folder / "starts") == pairs
    monkeypatch.undo()
    made = []
    monkeypatch.setattr("humanline.reproduce.start._train_start", lambda *a: made.append(a) or {})
    other = dataclasses.replace(MICRO, size=dataclasses.replace(MICRO.size, steps=13))
    copy = shutil.copytree(folder, folder.parent / "copy")
    with pytest.raises(KeyError):
        make_start(other, "near", 0, copy / "starts")
    assert len(made) == 1


@pytest.mark.parametrize("harm", ["no JSON", "no object", "no gap", "a line less", "no pairs", "a cut line"])
def test_what_is_damaged_is_made_anew(begun, monkeypatch, tmp_path, harm):
    """Pairs whose facts say nothing, or that are fewer than these say, are drawn again, and not trained on."""
    folder = shutil.copytree(begun[0] / "starts", tmp_path / "starts")
    place = folder / "micro" / "near-0" / "pairs-0"
    facts, pairs = place / "facts.json", place / "pairs.jsonl"
    whole = pairs.read_text()
    if harm == "no JSON":
        facts.write_text(facts.read_text()[:40])
    elif harm == "no object":
        facts.write_text("[1]")
    elif harm == "no gap":
        facts.write_text(facts.read_text().replace('"gap"', '"gab"'))
    elif harm == "no pairs":
        pairs.unlink()
    else:
        pairs.write_text("".join(whole.splitlines(True)[1:]) if harm == "a line less" else whole[:-9])

    def drawn(testbed, model, draw, place):
        (place / "pairs.jsonl").write_text(whole)
        return {"count": begun[2].count, "scorer_calls": 1280, "gap": 0.25}

    monkeypatch.setattr("humanline.reproduce.start._draw_pairs", drawn)
    assert make_pairs(MICRO, "near", 0, 0, folder).gap == 0.25 and pairs.read_text() == whole


def test_pairs_of_a_model_that_is_not_there_make_it_first(begun, tmp_path):
    """What a testbed's data are said to foretell asks for pairs of models that a suite of known runs never made."""
    _, start, pairs = begun
    prompt_files(MICRO, tmp_path)
    alone = make_pairs(MICRO, "near", 0, 0, tmp_path)
    assert alone.file.read_bytes() == pairs.file.read_bytes() and alone.gap == pairs.gap
    assert make_start(MICRO, "near", 0, tmp_path).measured == start.measured


def test_a_start_without_its_model_or_its_facts_is_made_anew(begun, monkeypatch, tmp_path):
    """Facts alone are no start model."""
    monkeypatch.setattr("humanline.reproduce.start._train_start", die_in_words)
    for number, harm in enumerate(("start/final", "facts.json")):
        folder = shutil.copytree(begun[0] / "starts", tmp_path / str(number))
        (folder / "micro" / "near-0" / harm).rename(tmp_path / f"gone-{number}")
        with pytest.raises(OSError, match="made anew"):
            make_start(MICRO, "near", 0, folder)


def die_in_words(*_):
    raise OSError("made anew")


@pytest.mark.parametrize("count", [0, 15])
def test_too_few_pairs_for_a_step_are_refused(begun, monkeypatch, tmp_path, count):
    """In words that name testbed, start model and draw; also when they are asked for again."""
    folder = shutil.copytree(begun[0] / "starts", tmp_path / "starts")
    rows = [{"prompt": "a", "chosen": "a", "rejected": "b"}] * count
    monkeypatch.setattr("humanline.reproduce.start.pairs_of", lambda *_: (rows, [0.5] * count))
    for _ in range(2):
        with pytest.raises(
            ValueError, match=rf"micro: {count} pairs come of 160 prompts \(start model near-0, draw 3\)"
        ):
            make_pairs(MICRO, "near", 0, 3, folder)


def test_an_outcome_is_what_its_model_says(begun, outcome):
    """Scores, length and entropy are recomputed from the model that the run has left; the start's are its own."""
    folder, start, _ = begun
    final = Model(MICRO, folder / "runs" / Job(MICRO, OFFLINE, 0, 0).name / "final")
    answers = final.draw("score", 4, SCORE_SEED)
    scores = [MICRO.task.score(p, one.text) for p, one in zip(answers.prompts, answers.completions, strict=True)]
    assert outcome.score == pytest.approx(sum(scores) / len(scores))
    assert outcome.judged == pytest.approx(
        sum(MICRO.task.judged(p, o.text) for p, o in zip(answers.prompts, answers.completions, strict=True)) / 40
    )
    assert outcome.length == pytest.approx(sum(len(one.ids) for one in answers.completions) / 40)
    assert outcome.start_score == start.measured.score and outcome.scorer_calls == 1280
    assert outcome.kl_to_start > 0 and outcome.kl_to_start_se > 0 and math.isnan(outcome.clipped)
    firsts = [answers.completions[place].logprobs for place in range(0, 40, 4)]
    logits = final.logits(answers.one_each())
    assert len(logits) == sum(map(len, firsts))
    found = logits.log_softmax(-1)
    ids = torch.tensor([token for place in range(0, 40, 4) for token in answers.completions[place].ids])
    drawn = torch.tensor([value for one in firsts for value in one])
    assert torch.allclose(found.gather(1, ids[:, None]).squeeze(1), drawn, atol=1e-4)  # each token's own place
    assert outcome.entropy == pytest.approx(float(-(found.exp() * found).sum(-1).mean()), abs=1e-6)


def test_the_temperature_gives_the_wanted_entropy():
    """Against a plain search; an entropy that no temperature gives ends at the nearer end."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(50, 20)
    wanted = entropy(logits, 1.7)
    assert temperature_of(logits, wanted) == pytest.approx(1.7, abs=5e-3)
    assert temperature_of(logits, 0.0) == 0.05 and temperature_of(logits, 3.1) == 20.0


def test_a_start_is_measured_at_its_own_temperature(begun):
    """Without a start to match the matched score is the score."""
    measured = measure(Model(MICRO, begun[1].model), SCORE_SEED)
    assert measured == begun[1].measured and measured.matched == measured.score and measured.temperature == 1.0


@pytest.mark.slow  # test_shared_answers.py has runs that are equal in several folders, and an online one
def test_the_same_seeds_give_the_same_numbers_online_too(begun, tmp_path):
    """A run of a cell in another folder is equal in everything but its time."""
    folder, _, _ = begun
    cell = Cell("grpo", "online humanline", 1e-3, clip_eps=0.15, every=8)
    shutil.copytree(folder / "starts", tmp_path / "starts")
    one, other = (run(Job(MICRO, cell, 0, 0), place, keep_runs=False) for place in (folder, tmp_path))
    assert dataclasses.replace(one, seconds=0.0) == dataclasses.replace(other, seconds=0.0)
    assert one.updates > 0 and one.clipped >= 0 and not (tmp_path / "runs" / "micro").joinpath(cell.name).exists()


def test_a_run_that_is_not_finite_any_more_is_an_outcome(begun, monkeypatch):
    """It has a status, no score, and no place among the errors."""
    from humanline.train.run.processes import NonFiniteError

    def broken(config, _):
        from pathlib import Path

        Path(config.output).mkdir(parents=True)
        (Path(config.output) / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n')
        raise NonFiniteError("nan")

    monkeypatch.setattr("humanline.reproduce.run.train_sharing", broken)
    found = run(Job(MICRO, OFFLINE, 0, 0), begun[0], keep_runs=False)
    assert found.status == "not finite" and math.isnan(found.score) and math.isnan(found.kl_to_start)
    assert found.updates == 1 and from_text(as_text(found)).status == "not finite"


def test_numbers_that_end_before_the_first_row_are_an_outcome(begun, monkeypatch):
    """As in the answers of a first round: there is no file of metrics yet."""
    from humanline.train.run.processes import NonFiniteError

    def broken(config, _):
        raise NonFiniteError("nan")

    monkeypatch.setattr("humanline.reproduce.run.train_sharing", broken)
    found = run(Job(MICRO, OFFLINE, 0, 0), begun[0], keep_runs=False)
    assert found.status == "not finite" and found.updates == 0


def test_a_last_step_that_breaks_the_policy_is_an_outcome(begun, monkeypatch):
    """No loss shows it any more, but its answers have no finite probabilities; the suite goes on."""
    from humanline.train.run.processes import NonFiniteError

    def broken(*_):
        raise NonFiniteError("nan")

    trained = SimpleNamespace(model=begun[1].model, final={})
    monkeypatch.setattr("humanline.reproduce.run.train_sharing", lambda *_: trained)
    monkeypatch.setattr("humanline.reproduce.run.measure", broken)
    found = run(Job(MICRO, OFFLINE, 0, 0), begun[0], keep_runs=False)
    assert found.status == "not finite" and math.isnan(found.score)


def test_rounds_that_leave_no_pair_are_an_outcome(begun):
    """A judge that finds all answers alike leaves nothing to train on: the policy is the start model, measured."""
    testbed = dataclasses.replace(MICRO, reward="tests.helpers.micro_testbed:indifferent")
    cell = Cell("dpo", "online", 1e-3, beta=1.0)
    found = run(Job(testbed, cell, 0, 0), begun[0], keep_runs=False)
    assert found.status == "done" and found.updates == 0
    assert found.score == found.start_score and found.kl_to_start == 0.0


def test_a_suite_keeps_what_it_has_and_goes_on(begun, outcome, monkeypatch, in_process):
    """Nothing is run twice; a failing run ends the suite when those before it are kept; order and values stay."""
    folder, _, _ = begun
    cells = [OFFLINE, Cell("dpo", "offline", 2e-3, beta=1.0), Cell("dpo", "offline", 3e-3, beta=1.0)]
    jobs, asked = [Job(MICRO, cell, 0, 0) for cell in cells], []

    def counted(job, place, *, keep_runs):
        asked.append(job)
        if job is jobs[2] and len(asked) < 4:
            raise OSError("no room")
        return dataclasses.replace(outcome, cell=job.cell)

    monkeypatch.setattr(module, "run", counted)
    out = folder / "suite"
    shutil.copytree(folder / "starts", out / "starts")
    with pytest.raises(OSError, match="no room"):
        run_suite(jobs, out)
    assert len(kept_results(jobs, out).outcomes) == 2
    told = []
    results = run_suite(jobs, out, progress=lambda done, total: told.append((done, total)))
    assert [one.cell for one in results.outcomes] == cells and results.older == 0
    assert asked == [*jobs, jobs[2]] and told == [(2, 3), (3, 3)]
    monkeypatch.setattr(module, "code_digest", lambda: "another")
    assert run_suite(jobs, out).older == 3 and len(asked) == 4


def test_runs_under_way_are_kept_when_no_other_is_to_begin(begun, outcome, monkeypatch, in_process):
    """What is asked before every start model, draw of pairs and run may end the suite; nothing finished is lost."""
    asked = []

    def enough():
        asked.append(True)
        if len(asked) > 1:
            raise StopRequested("--minutes 1")

    cells = [OFFLINE, Cell("dpo", "offline", 2e-3, beta=1.0)]
    jobs = [Job(MICRO, cell, 0, 0) for cell in cells]
    monkeypatch.setattr(module, "run", lambda job, *_, **__: dataclasses.replace(outcome, cell=job.cell))
    out = begun[0] / "enough"
    shutil.copytree(begun[0] / "starts", out / "starts")
    with pytest.raises(StopRequested, match="--minutes 1"):
        run_suite(jobs, out, before=enough)
    assert [one.cell for one in kept_results(jobs, out).outcomes] == cells[:1]


def test_a_suite_that_may_begin_one_thing_each_time_gets_to_its_end(outcome, monkeypatch, tmp_path, in_process):
    """What is there is not asked about: a start model, its pairs and two runs take four commands, and no more."""
    made = []

    def make(*one):
        made.append(one)

    monkeypatch.setattr(module, "make_start", make)
    monkeypatch.setattr(module, "make_pairs", make)
    for name in ("has_start", "has_pairs"):
        monkeypatch.setattr(module, name, lambda *one: one in made)
    monkeypatch.setattr(module, "run", lambda job, *_, **__: dataclasses.replace(outcome, cell=job.cell))
    jobs = [Job(MICRO, cell, 0, 0) for cell in (OFFLINE, Cell("dpo", "offline", 2e-3, beta=1.0))]
    for number in range(4):
        asked = []

        def one_alone(asked=asked):
            asked.append(True)
            if len(asked) > 1:
                raise StopRequested("--minutes 1")

        ended = pytest.raises(StopRequested) if number < 3 else contextlib.nullcontext()
        with ended:
            run_suite(jobs, tmp_path, before=one_alone)
        assert (len(made), len(kept_results(jobs, tmp_path).outcomes)) == [(1, 0), (2, 0), (2, 1), (2, 2)][number]


def test_what_is_there_is_told_from_what_is_not(begun, tmp_path):
    """A start model and pairs that would be taken as they are; not those of another seed, draw or task, nor too few."""
    folder = shutil.copytree(begun[0] / "starts", tmp_path / "starts")
    assert has_start(MICRO, "near", 0, folder) and has_pairs(MICRO, "near", 0, 0, folder)
    assert not has_start(MICRO, "near", 1, folder) and not has_pairs(MICRO, "near", 0, 1, folder)
    other = dataclasses.replace(MICRO, size=dataclasses.replace(MICRO.size, steps=13))
    assert not has_start(other, "near", 0, folder) and not has_pairs(other, "near", 0, 0, folder)
    place = folder / "micro" / "near-0" / "pairs-0"
    rows = place.joinpath("pairs.jsonl").read_text().splitlines(True)
    place.joinpath("pairs.jsonl").write_text("".join(rows[:15]))
    facts = json.loads(place.joinpath("facts.json").read_text())
    place.joinpath("facts.json").write_text(json.dumps(facts | {"count": 15}))
    assert not has_pairs(MICRO, "near", 0, 0, folder)  # `make_pairs` refuses them, and says why


def test_a_stop_is_seen_while_start_models_and_pairs_are_made(monkeypatch, tmp_path, in_process):
    """They take minutes, too: progress is called after each of them, and no other one is made."""
    made = []
    monkeypatch.setattr(module, "make_start", lambda *one: made.append(one))

    def stop(done, total):
        if made:
            raise StopRequested("SIGTERM")

    with pytest.raises(StopRequested):
        run_suite([Job(MICRO, OFFLINE, start, 0) for start in range(3)], tmp_path, progress=stop)
    assert len(made) == 1


def test_two_suites_in_one_folder_are_refused(tmp_path):
    """One would remove the folder in which the other one trains."""
    with held(tmp_path), pytest.raises(OutputError, match=r"is in use by another run"):
        run_suite([Job(MICRO, OFFLINE, 0, 0)], tmp_path)


def test_a_command_that_is_stopped_leaves_a_table_of_what_it_has(outcome, monkeypatch, tmp_path, capsys):
    """Partial results are to be committed as well: where the report would have it, and the message says so."""
    job = grid_jobs(["letters"], core(), 1, 1)[0]
    kept = dataclasses.replace(outcome, testbed="letters", cell=job.cell, task=made_by(job.testbed))

    def stopped(jobs, folder, *, before, **_):
        assert take_over(jobs, [kept], folder) == 1
        before()
        monkeypatch.setattr("time.monotonic", lambda: math.inf)
        before()

    monkeypatch.setattr(module, "run_suite", stopped)
    words = ["reproduce", "--starts", "1", "--draws", "1", "--out", str(tmp_path), "--quiet", "--minutes", "9"]
    assert main(words) == 75
    said = capsys.readouterr().err
    assert "stopped by --minutes 9" in said and str(tmp_path / "letters" / "runs.csv") in said
    assert read_outcomes(tmp_path / "letters" / "runs.csv")[0].cell == job.cell


def test_the_first_thing_begins_however_few_the_minutes_are(monkeypatch, tmp_path, capsys):
    """A command whose start takes longer than its minutes would else begin nothing, each time, for ever."""
    begun = []

    def slow(jobs, folder, *, before, **_):
        monkeypatch.setattr("time.monotonic", lambda: math.inf)
        for _ in range(2):
            before()
            begun.append(True)

    monkeypatch.setattr(module, "run_suite", slow)
    assert main(["reproduce", "--out", str(tmp_path), "--quiet", "--minutes", "0.0001"]) == 75
    assert len(begun) == 1 and "stopped by --minutes 0.0001" in capsys.readouterr().err


@pytest.mark.parametrize("reason", ["minutes", "signal"])
def test_what_is_inspected_heeds_the_minutes_and_signals(reason, outcome, monkeypatch, tmp_path, capsys):
    """Where all runs are kept, inspections of their data are what takes long: they are stopped as runs are."""
    kept = dataclasses.replace(outcome, testbed="letters")

    def find(*_, before, **__):
        before()  # the first
        monkeypatch.setattr("time.monotonic", lambda: math.inf)
        if reason == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        before()
        raise AssertionError("it was not stopped")

    monkeypatch.setattr(module, "run_suite", lambda *_, **__: module.Results([kept], 0))
    monkeypatch.setattr("humanline.cli.reproduce._report", lambda *_: [])
    monkeypatch.setattr("humanline.reproduce.foretold.find_levels", find)
    monkeypatch.setattr("humanline.reproduce.foretold.write_foretold", lambda place, outcomes, find: find([(0, 0)]))
    minutes = ["--minutes", "1"] if reason == "minutes" else []
    assert main(["reproduce", "--all", "--out", str(tmp_path), "--quiet", *minutes]) == 75
    assert ("stopped by --minutes 1" if minutes else "stopped by SIGTERM") in capsys.readouterr().err


@pytest.mark.parametrize(("words", "runs", "most"), [([], 456, 60), (["letters-gemma2"], 36, 60), (["--quick"], 16, 3)])
def test_what_is_run_by_default_is_counted_and_short(words, runs, most, monkeypatch, tmp_path, capsys):
    """Runs and minutes, two at a time, are told before the first: an hour at most, and three minutes of the demo."""
    asked = []

    def stopped(jobs, folder, **_):
        asked.extend(jobs)
        raise StopRequested("SIGTERM")

    for name in ("humanline.reproduce.suite.run_suite", "humanline.reproduce.quick.run_suite"):
        monkeypatch.setattr(name, stopped)
    assert main(["reproduce", *words, "--processes", "2", "--out", str(tmp_path / "out"), "--quiet"]) == 75
    assert len(asked) == runs
    minutes = float(re.search(r"take about (\d+) minutes, 2 at a time", said_time(asked, [], 2))[1])
    assert minutes <= most
    assert "--quick" in words or f"{runs} runs; the other {runs} take about {minutes:.0f} " in capsys.readouterr().out


@pytest.mark.parametrize(
    "more",
    [["--processes", "0"], ["--processes", "-2", "--quick"], ["--minutes", "nan"], ["--minutes", "0", "--quick"]],
)
def test_no_process_and_no_time_are_refused(more, capsys, tmp_path):
    """Before anything is printed or made."""
    assert main(["reproduce", "--out", str(tmp_path / "out"), *more]) == 2
    said = capsys.readouterr()
    assert f"{more[0]} must be " in said.err and not said.out and not (tmp_path / "out").exists()


def test_a_worker_that_dies_ends_the_suite_with_words(tmp_path, monkeypatch, capsys):
    """Nobody waits for a process that was killed: the command ends with 2 and says what happened and what to do."""
    monkeypatch.setattr(module, "make_start", die)
    monkeypatch.setattr(module, "prepare_worker", None)  # which takes seconds to import what no worker needs here
    assert main(["reproduce", "letters", "--starts", "1", "--draws", "1", "--out", str(tmp_path), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "a worker process has died" in said and "the same command goes on" in said


def test_runs_are_counted_and_their_time_is_told(outcome):
    """What is kept is taken off, and gives the time of the rest."""
    jobs = grid_jobs(["letters"], core(), 3, 3)
    count = 9 * len(core())
    assert len(jobs) == count and {job.start for job in jobs[: count // 3]} == {0, 1, 2}
    assert {job.draw for job in jobs[: count // 3]} == {0}
    assert said_time(jobs, [], 2).startswith(f"{count} runs; the other {count} take about ")
    done = [
        dataclasses.replace(outcome, testbed="letters", cell=job.cell, start=job.start, draw=job.draw) for job in jobs
    ]
    assert said_time(jobs, done, 2) == f"{count} runs, all of them kept"
    said = f"{count} runs, 1000 of them kept; the other {count - 1000} take"
    assert said_time(jobs, done[:1000], 2).startswith(said)
    for wrong in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="starts and draws must be >= 1"):
            grid_jobs(["letters"], core(), *wrong)
    with pytest.raises(ValueError, match="no testbed is called 'lettres'; there are letters"):
        grid_jobs(["lettres"], core(), 1, 1)


def test_every_testbed_has_its_seconds(monkeypatch):
    """What is said before a suite is of its own testbed: a start model, then its runs."""
    assert set(TESTBEDS | OTHERS) <= set(SECONDS)
    monkeypatch.setitem(SECONDS, "arithmetic", (10.0, 1000.0, 40.0))
    cells = [Cell("dpo", "offline", lr, beta=1.0) for lr in (1e-3, 2e-3)]
    assert "the other 2 take about 1 minutes" in said_time(grid_jobs(["arithmetic"], cells, 1, 1), [], 1)
    monkeypatch.setitem(SECONDS, "arithmetic", (10.0, 100.0, 40.0))
    said = said_time(grid_jobs(["arithmetic"], cells, 1, 3), [], 1)  # 6 runs, a start model, two further draws of pairs
    assert f"the other 6 take about {(6 * 10 + 40 + 2 * 90) / 60:.0f} minutes" in said
    monkeypatch.setitem(SECONDS, "arithmetic", (10.0, 1000.0, 100.0))
    assert "the other 2 take about 2 minutes" in said_time(grid_jobs(["arithmetic"], cells, 1, 1), [], 1)


def test_prompt_files_follow_the_task(tmp_path):
    """A file of another task's prompts is written anew, and one that is right is left alone."""
    prompt_files(MICRO, tmp_path)
    path = prompt_file(MICRO, "distance", tmp_path)
    wanted, written = path.read_text(), path.stat().st_mtime_ns
    prompt_files(MICRO, tmp_path)
    assert path.stat().st_mtime_ns == written
    path.write_text("{}\n")
    prompt_files(MICRO, tmp_path)
    assert path.read_text() == wanted
    assert [json.loads(line)["prompt"] for line in wanted.splitlines()] == MICRO.task.prompts("distance")


def test_held_out_pairs_are_of_the_prompts_asked_for(begun):
    """Pairs of another part have its prompts."""
    rows, gaps = pairs_of(Model(MICRO, begun[1].model), "score", 0)
    assert {row["prompt"] for row in rows} <= set(MICRO.task.prompts("score")) and len(rows) == len(gaps)


def test_runs_from_another_start_model_are_not_mixed_in(begun, outcome, tmp_path, monkeypatch, in_process):
    """A start model that scores otherwise is another one: runs from both are refused, before any run and if none is."""
    jobs = [Job(MICRO, OFFLINE, 0, 0), Job(MICRO, OFFLINE, 0, 1)]
    there, rounded = outcome.start_score, dataclasses.replace(outcome, start_score=float(f"{outcome.start_score:.6g}"))
    other = dataclasses.replace(outcome, start_score=there + 1e-4)
    monkeypatch.setattr(module, "run", lambda job, *_, **__: dataclasses.replace(outcome, draw=job.draw))
    for name, known in (("other", other), ("rounded", rounded)):
        shutil.copytree(begun[0] / "starts", tmp_path / name / "starts")
        take_over(jobs, [known], tmp_path / name)
    with pytest.raises(
        ValueError, match=rf"start model 0 of micro scores {there + 1e-4:.6g} \(1 of the runs\) and {there:.6g} \("
    ):
        run_suite(jobs, tmp_path / "other")
    assert len(kept_results(jobs, tmp_path / "other").outcomes) == 1
    assert len(run_suite(jobs, tmp_path / "rounded").outcomes) == 2
    take_over(jobs[:1], [other], tmp_path / "other")
    with pytest.raises(ValueError, match=r"\(the one that is here\)"):
        run_suite(jobs[:1], tmp_path / "other")  # none is missing
    take_over(jobs, [dataclasses.replace(other, draw=1), outcome], tmp_path / "whole")
    with pytest.raises(
        ValueError, match=r"scores .* \(1 of the runs\) and .* \(1 of the runs\): trained on another kind of processor"
    ):
        run_suite(jobs, tmp_path / "whole")


def test_runs_of_elsewhere_are_taken_over_where_the_task_is_the_same(begun, outcome, tmp_path, monkeypatch, in_process):
    """A committed table goes on where it stopped; results of another task are refused; other cells are not used."""
    jobs = [Job(MICRO, OFFLINE, 0, 0), Job(MICRO, OFFLINE, 0, 1)]
    write_outcomes(tmp_path / "runs.csv", [outcome, dataclasses.replace(outcome, draw=7)])
    known = read_outcomes(tmp_path / "runs.csv")
    assert take_over(jobs, known, tmp_path / "out") == 1
    asked = []
    monkeypatch.setattr(module, "run", lambda job, *_, **__: asked.append(job) or dataclasses.replace(outcome, draw=1))
    shutil.copytree(begun[0] / "starts", tmp_path / "out" / "starts")
    results = run_suite(jobs, tmp_path / "out")
    assert asked == [jobs[1]] and [one.draw for one in results.outcomes] == [0, 1] and results.older == 1
    assert results.outcomes[0].score == pytest.approx(outcome.score, rel=1e-5)
    monkeypatch.setattr("humanline.reproduce.versions.PROTOCOL", -1)  # the same task, run in another way
    with pytest.raises(ValueError, match="another micro task, or in another way"):
        take_over(jobs, known, tmp_path / "other")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="another micro task"):
        take_over(jobs, [outcome, dataclasses.replace(outcome, task="0")], tmp_path / "other")
    assert not (tmp_path / "other").exists()
