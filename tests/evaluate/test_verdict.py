"""Where data lies against a model's own level and the paper's range."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from humanline.evaluate.inspect_run import inspect_data
from humanline.evaluate.verdict import Own, describe_verdict, judge, verdict_as_json
from humanline.stats import ratio_difference, ratio_estimate
from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.levels import RowScores, quartiles_of, told_as
from tests.helpers.support import config, run


def rows(level: float, prompts: range = range(40)) -> RowScores:
    """Return rows of one answer of 10 tokens whose levels lie .2 nats around one, by prompt."""
    around = level + 0.2 * np.sin(np.arange(len(prompts)))
    tokens = np.full((len(prompts), 1), 10)
    return RowScores(("answer",), np.array(prompts), around[:, None] * tokens, tokens, tokens)


@pytest.mark.parametrize(
    ("data", "own", "side", "paper", "disagree"),
    [
        (-2.0, -0.5, "below", "below", False),
        (-0.5, -2.0, "above", "within", True),
        (-2.0, -2.0, "at", "below", True),
        (-0.3, -0.05, "below", "above", True),
        (-0.2, -0.2, "at", "above", False),
        (-0.7, -0.4, "below", "within", False),
    ],
)
def test_the_verdict_flips_where_levels_cross(data, own, side, paper, disagree):
    """Below, at and above the own level; and the paper's range, which may say something else, with a reason then."""
    ours, theirs = rows(data), Own(rows(own, range(100, 130)), truncated=3)
    found = judge(ours, quartiles_of(ours.levels).numbers, theirs)
    assert (found.own, found.paper, found.disagree) == (side, paper, disagree)
    said = "\n".join(describe_verdict(found, theirs))
    assert ("disagree" in said) == disagree and "not good or bad" in said and "3 of them cut" in said
    assert len(found.gaps) == 4 and found.gaps[0].mean < found.gaps[3].mean
    json.dumps(verdict_as_json(found, theirs), allow_nan=False)


def test_words_go_no_further_than_intervals():
    """An edge of the range inside the interval is said; own answers not told apart are not called low too."""
    found = judge(rows(-1.0), None, None)
    assert found.paper == "within" and found.level.mean - found.level.interval().half_width < -1.03
    assert "holds an edge of that range" in "\n".join(describe_verdict(found, None))
    found = judge(rows(-0.7), None, None)
    assert "holds an edge" not in "\n".join(describe_verdict(found, None))
    said = "\n".join(describe_verdict(judge(rows(-0.7, range(1)), None, None), None))
    assert "its interval is not known" in said and "holds an edge" not in said
    few = rows(-0.5, range(100, 103))
    few.sums[:] = [[-1.0], [-1.0], [-8.0]]  # -1/3 nats per token, and next to nothing is known of it
    found = judge(rows(-0.5), None, Own(few, 0))
    assert (found.own, found.paper, found.disagree) == ("at", "within", True) and found.own_level.mean > -0.36
    said = "\n".join(describe_verdict(found, Own(few, 0)))
    assert "not told apart from that of this model's own answers (-0.333 ± " in said and "so is" not in said


def test_numbers_are_written_as_they_are():
    """Value, bounds and gap with their signs, of all rows and of each quartile, which holds its own rows alone."""
    ours, theirs = rows(-2.0), Own(rows(-0.5, range(100, 130)), 0)
    numbers = quartiles_of(ours.levels).numbers
    found = judge(ours, numbers, theirs)
    tree = verdict_as_json(found, theirs)["own"]
    own = theirs.scores.levels
    assert tree["level"]["value"] == pytest.approx(own.mean(), abs=1e-12)
    assert tree["gap"]["value"] == pytest.approx(ours.levels.mean() - own.mean(), abs=1e-12)
    half = scipy.stats.t.ppf(0.975, 29) * math.hypot(
        *(one.std(ddof=1) / math.sqrt(len(one)) for one in (ours.levels, own))
    )
    assert [tree["gap"]["low"], tree["gap"]["high"]] == pytest.approx(
        [tree["gap"]["value"] - half, tree["gap"]["value"] + half], abs=1e-12
    )
    for number, gap in enumerate(tree["gap_by_quartile"], start=1):
        assert gap["value"] == pytest.approx(ours.levels[numbers == number].mean() - own.mean(), abs=1e-12)
        assert gap["low"] < gap["value"] < gap["high"]
    assert told_as(found.gap, "+.3f") == f"{tree['gap']['value']:+.3f} ± {half:.3f}"


def test_without_own_answers_the_paper_s_range_alone_is_said():
    found = judge(rows(-2.0), None, None)
    assert (found.own, found.disagree, found.gap) == ("unknown", False, None)
    assert "--own-samples" in "\n".join(describe_verdict(found, None))


def test_one_prompt_tells_no_side():
    found = judge(rows(-2.0, range(1)), None, Own(rows(-0.5, range(1)), 0))
    assert found.own == "unknown" and not found.disagree
    json.dumps(verdict_as_json(found, Own(rows(-0.5, range(1)), 0)), allow_nan=False)


def test_the_error_of_a_difference_is_that_of_both():
    """Of sides without a common cluster the root of the summed squares; of a side and itself 0."""
    draw = np.random.default_rng(1)
    x, y, groups = draw.normal(size=30), draw.integers(1, 5, size=30), (np.arange(30) // 3).tolist()
    u, v, others = draw.normal(size=20), draw.integers(1, 5, size=20), [f"o{i}" for i in range(20)]
    first, second = ratio_estimate(x, y, groups), ratio_estimate(u, v, others)
    apart = ratio_difference((x, y, groups), (u, v, others))
    assert apart.mean == pytest.approx(first.mean - second.mean, abs=1e-15)
    assert apart.error == pytest.approx(math.hypot(first.error, second.error), rel=1e-12)
    assert apart.degrees == 9
    assert ratio_difference((x, y, groups), (x, y, groups)).error == 0


@pytest.fixture(scope="module")
def learnt(toy, tmp_path_factory) -> str:
    """A model that has learnt the toy's answers somewhat, so that its own are not noise."""
    folder = tmp_path_factory.mktemp("learnt")
    data = {"train": toy["completions"], "max_length": 64}
    how = {"steps": 60, "batch_size": 16, "micro_batch_size": 16}
    return str(run(toy, folder / "run", {"kind": "nll"}, data=data, training=how, optimizer__lr=2e-2).model)


def answered(toy, model: str, folder: Path) -> str:
    """Return a file of a model's answers to the toy's prompts."""
    from humanline.train.online.commands import sample
    from humanline.train.online.ledger import read_lines
    from tests.helpers.rounds import online

    asked = online(toy, toy["prompts"], folder / "none", sampling={"max_tokens": 16}, model=model, seed=7)
    lines = read_lines(sample(asked, str(folder / "samples.jsonl"), say=lambda text: None))
    answers = [(row["prompt"], one["text"]) for row in lines for one in row["completions"] if one["finish"] == "end"]
    file = folder / "answers.jsonl"
    rows = [{"prompt": prompt, "completion": text} for prompt, text in answers if text.strip()]
    assert len(rows) > 30
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_own_answers_lie_at_the_own_level_and_others_below(toy, learnt, tmp_path):
    """A file of the model's own answers has a gap whose interval holds 0; the toy's rejected answers, one far below."""
    settings = config(
        toy,
        tmp_path / "run",
        {"kind": "nll"},
        model=learnt,
        data={"train": answered(toy, learnt, tmp_path), "max_length": 64, "too_long": "drop", "special_tokens": "drop"},
        evaluation={"sampling": SamplingConfig(max_tokens=16)},
    )
    # 99.99 %: a fixed seed draws other answers on another CPU at most.
    mine = inspect_data(settings, out=str(tmp_path / "mine"), own_samples=48, say=lambda text: None)
    assert not mine.verdict.gap.interval(0.9999).excludes_zero
    assert mine.own is not None and len(mine.own.scores) >= 40
    (drawn,) = (one for one in (tmp_path / "mine/scores").glob("own-*.jsonl") if "prompts" not in one.name)
    ends = [one["finish"] for line in drawn.read_text().splitlines() for one in json.loads(line)["completions"]]
    assert mine.own.truncated == ends.count("length") < len(ends) == len(mine.own.scores)
    assert {*mine.own.scores.prompts.tolist()} == {*mine.scores.prompts.tolist()}  # so that they share clusters
    distant = tmp_path / "distant.jsonl"
    pairs = [json.loads(line) for line in Path(toy["pairs"]).read_text().splitlines()]
    distant.write_text(
        "".join(json.dumps({"prompt": row["prompt"], "completion": row["rejected"]}) + "\n" for row in pairs)
    )
    other = settings.model_copy(update={"data": settings.data.model_copy(update={"train": str(distant)})})
    theirs = inspect_data(other, out=str(tmp_path / "theirs"), own_samples=48, say=lambda text: None)
    assert theirs.verdict.own == "below" and theirs.verdict.gap.interval(0.9999).excludes_zero
