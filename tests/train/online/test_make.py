"""Rounds are made once, whoever makes them: the run, its second process, or a run that goes on."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from humanline.system.files import write_text
from humanline.train.data.batch import Unit
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.online.ledger import json_rows, read_lines
from humanline.train.online.make import RoundMaker
from humanline.train.online.round_log import mismatch
from humanline.train.online.stages import read_rollouts, score_rows
from humanline.train.online.types import Completion, Rollout, Score
from humanline.train.run.processes import alone
from tests.helpers.rounds import online

CONTEXTS = [Context(f"c{i}", (Message("user", f"q {i}"),), (i, i + 1)) for i in range(16)]


class Stages:
    """Sample and score by rule, and note what was asked for."""

    def __init__(self) -> None:
        self.processes = alone(torch.device("cpu"))
        self.trainable = SimpleNamespace(check_rollout=lambda rollout, prompt: None)
        self.asked: list[str] = []
        self.says = "a"

    def sample(self, folder, contexts, key, policy):
        self.asked.append("sample")
        answers = tuple(Completion(f"{self.says}{n}", (7, n), "end", (-0.5, -0.25)) for n in range(2))
        rows = [Rollout(one.id, one.prompt, answers, one.extra, policy).row() for one in contexts]
        (folder / "samples-rank-0.journal.jsonl").touch()
        write_text(folder / "samples.jsonl", json_rows(rows))

    def score(self, folder, of):
        self.asked.append("score")
        rollouts = read_rollouts(folder / "samples.jsonl")
        table = [[Score(float(n), "ok", {}) for n in range(2)] for _ in rollouts]
        write_text(folder / "scores.jsonl", json_rows(score_rows(rollouts, table)))

    def rest(self):
        self.asked.append("rest")


@pytest.fixture
def make(toy, tmp_path):
    """What makes a maker of the same rounds each time, as processes that follow each other do."""
    settings = online(toy, toy["pairs"], tmp_path / "run", "dpo")

    def maker(second: bool = False) -> RoundMaker:
        made = RoundMaker(settings, CONTEXTS, tmp_path / "rounds", Stages(), print, second=second)
        made.open()
        return made

    return maker


def test_what_the_second_process_has_made_the_run_does_not_make_again(make, tmp_path):
    """The run plans, the other samples and scores beside it, and the run, whose ledger it read before, selects."""
    run = make()
    run.begin(0, "p")
    beside = make(second=True)
    beside.sample(0, "p")
    beside.score(0)
    folder = tmp_path / "rounds" / "00000"
    (folder / "weights.safetensors").touch()
    assert (folder / "samples-rank-0.journal.jsonl").exists()  # should its samples get lost, before the run has them
    report, data = run.finish(0, "p")
    assert beside.stages.asked == ["sample", "score"] and run.stages.asked == ["rest"]
    assert report["facts"]["kept_contexts"] == 16
    names = [f"c{i}#{n}" for i in range(16) for n in range(2)]
    assert set(data.behaviour) == set(names) and set(data.behaviour[names[0]]) == {-0.5, -0.25}
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in run.files(0))
    states = [row["state"] for row in read_lines(tmp_path / "rounds" / "ledger.jsonl")]
    assert states == ["PLANNED", "SAMPLED", "SCORED", "PAIRED"]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("plan.json", ["rest"]),
        ("samples.jsonl", ["sample"]),
        ("scores.jsonl", ["rest", "score"]),
        ("kept.jsonl", ["rest"]),
    ],
)
@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_what_is_gone_or_changed_is_made_again_and_nothing_else(make, tmp_path, name, asked, harm):
    """A maker that finds a file of a recorded state gone, or not as it was, makes that one to the same bytes."""
    first = make()
    first.begin(0, "p")
    _, data = first.finish(0, "p")
    before = {path: path.read_bytes() for path in first.files(0)}
    file = tmp_path / "rounds" / "00000" / name
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(before[file][:-1] + b" \n")
    later = make()
    later.begin(0, "p")
    _, again = later.finish(0, "p")
    assert later.stages.asked == asked
    assert {path: path.read_bytes() for path in later.files(0)} == before
    assert [unit.id for unit in again.units] == [unit.id for unit in data.units] and isinstance(again.units[0], Unit)


def test_samples_that_come_out_otherwise_are_scored_and_selected_anew(make, tmp_path):
    """A server may say something else the second time: what was scored and kept was another answer."""
    first = make()
    first.begin(0, "p")
    first.finish(0, "p")
    (tmp_path / "rounds" / "00000" / "samples.jsonl").unlink()
    later = make()
    later.stages.says = "b"
    later.begin(0, "p")
    later.finish(0, "p")
    assert later.stages.asked == ["sample", "score"]
    states = [row["state"] for row in read_lines(tmp_path / "rounds" / "ledger.jsonl")]
    assert states == ["PLANNED", "SAMPLED", "SCORED", "PAIRED", "SAMPLED"]  # of scores the same file came out


def test_forgotten_scores_are_given_again_to_the_same_samples(make):
    """A round whose scores were forgotten is scored and selected again, and not sampled."""
    first = make()
    first.begin(0, "p")
    first.finish(0, "p")
    first.forget_scores(0)
    later = make()
    later.begin(0, "p")
    later.finish(0, "p")
    assert later.stages.asked == ["rest", "score"]


def test_another_policy_puts_a_round_aside(make, tmp_path, capsys):
    """A round planned with another policy is kept under another name, and all of it is made anew."""
    first = make()
    first.begin(0, "p")
    first.finish(0, "p")
    later = make()
    later.begin(0, "q")
    later.finish(0, "q")
    assert later.stages.asked == ["sample", "score"]
    assert (tmp_path / "rounds" / "00000.before-1" / "samples.jsonl").exists()
    assert "round 0 was planned with another policy" in capsys.readouterr().out


def test_the_second_process_leaves_a_line_that_the_run_is_writing(make, tmp_path):
    """Half a line at the ledger's end is a kill's to the run, which cuts it, and the run's to its second process."""
    make().begin(0, "p")
    ledger = tmp_path / "rounds" / "ledger.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole + b'{"round": 0, "sta')
    assert make(second=True).is_sampled(0) is False
    assert ledger.read_bytes() == whole + b'{"round": 0, "sta'
    make()
    assert ledger.read_bytes() == whole
    one = make()
    one.begin(0, "p")
    one.finish(0, "p")
    assert make(second=True).is_sampled(0) is True


def test_a_mismatch_counts_the_tokens_that_the_sampler_told_of():
    """The root mean square is over tokens, not rows; rows without a word, and masked tokens, do not count."""
    ours = torch.tensor([[math.nan, -1.0, -2.0], [-3.0, -4.0, -5.0], [-6.0, math.nan, math.nan]])
    mask = torch.tensor([[False, True, True], [True, True, True], [True, False, False]])
    block = SimpleNamespace(names=["a", "b", "c"], on_host=SimpleNamespace(mask=mask))
    batch = SimpleNamespace(micro_batches=[SimpleNamespace(block=block)])
    found = mismatch("gap", {"a": (-1.5, -2.0), "c": (-4.0,)}, batch, lambda micro: ours, lambda value, how: value)
    assert found == {"gap_rms": pytest.approx(math.sqrt((0.25 + 4.0) / 3)), "gap_max": 2.0}
    assert mismatch("gap", {}, batch, lambda micro: ours, lambda value, how: value) == {}
