"""The two data sets of a run: what is read from them, what is reported, and how both are refused."""

from __future__ import annotations

import json

import pytest

from humanline.train.config import TrainConfig
from humanline.train.data.render import Renderer
from humanline.train.data.sets import read_sets
from humanline.train.data.source import DataError
from humanline.train.data.text_ids import TextIds

LONG = "The cat sat on the mat. " * 9


@pytest.fixture
def sets(tmp_path, tokenizer):
    """Read a training set and a held-out set given as rows (or the held-out one as a file name)."""

    def read(train, held_out=None, objective="dpo", too_long="error", limit=None, **data):
        files = {}
        for name, rows in (("train", train), ("eval", held_out)):
            if isinstance(rows, list):
                (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
                rows = str(tmp_path / f"{name}.jsonl")
            if rows is not None:
                files[name] = rows
        config = TrainConfig.model_validate(
            {
                "model": "m",
                "output": "o",
                "objective": {"kind": objective} if isinstance(objective, str) else objective,
                "data": files | data,
                "training": {"steps": 1},
                "optimizer": {"lr": 1e-3},
                "evaluation": {"limit": limit},
            }
        )
        return read_sets(config, Renderer(tokenizer, "chat", 40, too_long))

    return read


SIDES = ("chosen", "rejected")


def pair(number, **changes):
    return {"prompt": f"Question {number}", "chosen": "yes", "rejected": "no"} | changes


def labelled(number, label, answer="yes"):
    return {"prompt": f"Question {number}", "completion": answer, "label": label}


def test_the_overlap_of_both_sets_is_reported(sets):
    """The report of the held-out set says how many of its prompts are also trained on, each counted once."""
    train = [pair(i) for i in range(6)] + [pair(0, rejected="maybe")]
    got = sets(train, [pair(4), pair(5), pair(5, rejected="never"), pair(6)])
    report = got.reports["held_out"]
    assert (report.prompts, report.prompts_in_training) == (3, 2)
    assert str(report).endswith("; 2 of 3 prompts also occur in the training set")
    assert (got.reports["train"].prompts, got.reports["train"].prompts_in_training) == (6, None)
    assert "training set" not in str(got.reports["train"])
    apart = sets([pair(1)], [pair(2)]).reports["held_out"]
    assert apart.prompts_in_training == 0 and "training set" not in str(apart)


def test_the_same_file_twice_is_reported_not_refused(sets, tmp_path):
    """Training and measuring on one file is allowed, and the report says that nothing is held out."""
    rows = [pair(i) for i in range(3)]
    got = sets(rows, str(tmp_path / "train.jsonl"))
    assert len(got.train) == len(got.held_out) == 3
    assert "3 of 3 prompts also occur in the training set" in str(got.reports["held_out"])


def test_without_a_held_out_set_there_is_one_report(sets):
    """A run without data.eval has a training set alone."""
    got = sets([pair(1)])
    assert (len(got.train), got.held_out, got.held_out_pairs, list(got.reports)) == (1, [], [], ["train"])


def test_held_out_pairs_are_kept_whole_for_kto(sets):
    """KTO on pairs trains on their halves and is measured on halves and pairs."""
    got = sets([pair(1), pair(2)], [pair(3)], "kto", shape="preference")
    assert [len(units) for units in (got.train, got.held_out, got.held_out_pairs)] == [4, 2, 1]
    assert len(got.held_out_pairs[0].sequences) == 2 and got.reports["held_out"].prompts == 1


@pytest.mark.parametrize("limit", [1, 3, 5, 100])
def test_a_limit_takes_the_first_held_out_rows_that_fit(sets, monkeypatch, limit):
    """They are those that a run without it has first; no other is tokenised, all are looked at as rows."""
    rows = [pair(i, chosen=f"long {'word ' * 60}" if i in (0, 2) else f"yes {i}") for i in range(8)]
    whole = sets(rows, rows, too_long="drop")
    texts: list[str] = []
    many = TextIds.many
    monkeypatch.setattr(TextIds, "many", lambda self, some: texts.extend(some) or many(self, some))
    got = sets([pair(9)], rows, too_long="drop", limit=limit)
    assert got.held_out == whole.held_out[:limit] and len(got.held_out) == min(limit, 6)
    looked_at = {1: 2, 3: 5, 5: 7, 100: 8}[limit]
    report = got.reports["held_out"]
    assert (report.lengths.total, report.beyond_limit) == (looked_at, 8 - looked_at)
    assert sum("Question" in text for text in texts) == looked_at + 1
    told = f"; {8 - looked_at} more rows are not used (evaluation.limit)"
    assert (told in str(report)) is (looked_at < 8)
    with pytest.raises(DataError, match=r"eval\.jsonl:9"):
        sets([pair(9)], [*rows, {"prompt": "a"}], too_long="drop", limit=limit)


def test_reports_name_files_in_full(sets, tmp_path):
    """A report names its file with its whole path, whatever way was written to it."""
    rows = [pair(1)]
    got = sets(rows, f"{tmp_path}/../{tmp_path.name}/./train.jsonl")
    assert got.reports["held_out"].path == str(tmp_path / "train.jsonl")


def test_problems_of_both_files_are_found_in_one_go(sets, tmp_path):
    """If neither set can be used, one error holds the problems of both, few lines of each."""
    bad = [pair(i, **{side: [{"role": f"{side}{i}", "content": "a"}] for side in SIDES}) for i in range(50)]
    with pytest.raises(DataError) as caught:
        sets(bad, bad[:1])
    text = str(caught.value)
    assert len(caught.value.problems) == 102 and len(text.splitlines()) <= 30
    assert f"data.train: {tmp_path / 'train.jsonl'}: 100 problems" in text and "and 92 more" in text
    assert f"data.eval: {tmp_path / 'eval.jsonl'}: 2 problems" in text
    with pytest.raises(DataError, match=r"data\.train: .*100 problems(.*\n)*data\.eval: .*no\.jsonl does not exist"):
        sets(bad, str(tmp_path / "no.jsonl"))
    with pytest.raises(FileNotFoundError, match=r"no\.jsonl does not exist"):
        sets([pair(1)], str(tmp_path / "no.jsonl"))


def test_a_single_label_is_an_error_unless_allowed(sets):
    """Rows of one label only are refused, with what to do, and read where that is asked for."""
    rows = [labelled(i, True) for i in range(3)]
    with pytest.raises(DataError, match=r"got 3 true and 0 false\nAdd rows with the other label, or set allow_single"):
        sets(rows, objective="kto", shape="unpaired")
    allowed = sets(rows, objective={"kind": "kto", "allow_single_label": True}, shape="unpaired")
    assert [unit.desirable for unit in allowed.train] == [True] * 3
    assert len(sets([*rows, labelled(3, False)], objective="kto", shape="unpaired").train) == 4


@pytest.mark.parametrize("label,which", [(True, "desirable"), (False, "undesirable")])
def test_answers_of_a_single_label_without_weight_are_refused(sets, label, which):
    """Every loss would be 0. Answers of both labels are read, and of the weight of held-out ones nothing is asked."""
    objective = {"kind": "kto", "allow_single_label": True, f"{which}_weight": 0}
    single, other = [labelled(i, label) for i in range(3)], labelled(3, not label)
    message = rf"train\.jsonl: all labels are {str(label).lower()}, and objective\.{which}_weight is 0, so that every"
    with pytest.raises(DataError, match=message):
        sets(single, objective=objective, shape="unpaired")
    assert len(sets([*single, other], single, objective=objective, shape="unpaired").held_out) == 3
    assert len(sets([other], objective=objective, shape="unpaired").train) == 1
    assert len(sets([pair(1)], objective=objective).train) == 2


def test_scores_of_some_pairs_alone_are_an_error_of_grpo(sets, tmp_path):
    """Where the others would count 1 and 0 beside them; none at all, and what does not read them, go on."""
    scores = {"chosen_score": 0.9, "rejected_score": 0.2}
    rows = [pair(0, **scores), pair(1), pair(2, **scores), pair(3)]
    with pytest.raises(
        DataError, match=r"2 of 4 pairs have no scores, the first of them .*2; .*\nGive every pair"
    ) as caught:
        sets(rows, objective="grpo")
    assert str(caught.value).startswith(f"{tmp_path / 'train.jsonl'}: ")
    with pytest.raises(DataError, match=r"eval\.jsonl: 1 of 2 pairs"):
        sets(rows[::2], rows[:2], objective="grpo")
    left_out = sets(rows, objective="grpo", ignore=list(scores))
    assert [unit.scores for unit in left_out.train] == [(1.0, 0.0)] * 4
    assert [unit.scores for unit in sets(rows[::2], objective="grpo").train] == [(0.9, 0.2)] * 2
    assert len(sets(rows).train) == 4


def test_a_label_lost_to_lengths_is_an_error_that_says_so(sets, tmp_path):
    """KTO data that keep one label only once long answers are left out are refused, with the counts."""
    rows = [labelled(0, True), labelled(1, True), labelled(2, False, LONG)]
    with pytest.raises(DataError) as caught:
        sets(rows, objective="kto", too_long="drop")
    first = str(caught.value).splitlines()[0]
    assert first.startswith(
        f"{tmp_path / 'train.jsonl'}: labels must hold both true and false; got 2 true and 0 false ("
    )
    assert "2 of 3 kept, 1 dropped: too long" in first
    assert len(sets(rows, objective="kto", too_long="truncate").train) == 3
    with pytest.raises(DataError, match=r"got 2 true and 0 false\nAdd rows with the other label"):
        sets(rows[:2], objective="kto")


def test_lengths_name_the_file(sets, tmp_path):
    """A set that does not fit its limits is named, with the examples."""
    with pytest.raises(
        DataError, match=r"train\.jsonl: 1 of 2 examples cannot be used with max_length 40\n  train.jsonl:2"
    ):
        sets([pair(1), pair(2, chosen=LONG)])


def test_kto_reads_pairs_without_a_setting(sets):
    """A first row that is a pair has KTO read pairs, each as two labelled answers."""
    got = sets([pair(1), pair(2)], [labelled(1, True), labelled(2, False)], objective="kto")
    assert [unit.desirable for unit in got.train] == [True, False, True, False]
    assert [unit.id for unit in got.train[:2]] == ["train.jsonl:1#chosen", "train.jsonl:1#rejected"]
    assert [unit.desirable for unit in got.held_out] == [True, False]


def test_kto_says_which_other_shape_it_reads(sets):
    """Pairs given to KTO as what they are not are refused with the way out, as are rows of no shape."""
    with pytest.raises(DataError, match=r"no column 'label'(.*\n)*.*data\.shape: preference; KTO also reads pref"):
        sets([pair(1)], objective="kto", shape="unpaired")
    with pytest.raises(DataError, match=r"no column 'label'(.*\n)*.*KTO also reads preference or unpaired rows"):
        sets([{"text": "a"}, {"text": "b"}], objective="kto")
