"""Rows as others publish them: answers that hold their prompt, HH-RLHF, JSON lists, pairs of the released code."""

from __future__ import annotations

import json
import re

import pytest

from humanline.train.config import TrainConfig
from humanline.train.data.json_array import JsonArray
from humanline.train.data.messages import Message
from humanline.train.data.prompts import read_contexts
from humanline.train.data.reading import Reading
from humanline.train.data.rows import SetReader, read_rows
from humanline.train.data.run_data import renderer_of
from humanline.train.data.sets import read_units
from humanline.train.data.shapes import Preference, PromptOnly, Unpaired
from humanline.train.data.source import DataError
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import source
from humanline.train.run.fingerprint import same_settings

HH = Reading(format="hh")
DROP = Reading(bad_rows="drop", bad_rows_limit=0.5)
ASKED = "\n\nHuman: Which way is north?\n\nAssistant:"
MORE = f"{ASKED} Up.\n\nHuman: On a map?\n\nAssistant:"
USER, ANSWER, OTHER = (
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a"), ("assistant", "b"))
)
PROMPT = (Message("user", "q"),)


@pytest.fixture
def write(tmp_path):
    """Write rows as JSON lines, and a text as it is."""

    def to_file(*rows, name="rows.jsonl"):
        path = tmp_path / name
        lines = rows if isinstance(rows[0], str) else map(json.dumps, rows)
        path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
        return path

    return to_file


def texts(chosen, rejected, **more):
    return {"chosen": chosen, "rejected": rejected} | more


def placed(expected, row):
    """Put line and column of a row's value in place of @ and its name."""
    name = expected[1:].split(":")[0]
    key = json.dumps(name) + ": "
    return (
        expected.replace(f"@{name}", f"1:{json.dumps(row).index(key) + len(key) + 1}")
        if expected[0] == "@"
        else expected
    )


def problems_of(path, shape="preference", **more):
    with pytest.raises(DataError) as caught:
        read_rows(path, shape, **more)
    return [problem.split(":", 1)[1] for problem in caught.value.problems]


# ---------------------------------------------------------------------------------------------------------------------
# Answers that hold their prompt as text


@pytest.mark.parametrize(
    ("chosen", "rejected", "cut"),
    [
        (f"{ASKED} Up.", f"{ASKED} Down.", ASKED),
        (f"{MORE} Up.", f"{MORE} Uphill.", MORE),  # the common beginning goes on into the answer
        (f"{ASKED} Up.", f"{ASKED} Upwards, and so on", ASKED),
        ("Q: how many? A: four", "Q: how many? A: five", "Q: how many? A:"),
        ("Q: how many?\nfour", "Q: how many?\nfive", "Q: how many?\n"),
        ("Name one. Yes", "Name one. Yes indeed", "Name one."),  # one answer begins the other
        ("数える 四", "数える 五", "数える"),
    ],
)
def test_texts_are_cut_where_their_prompt_ends(write, chosen, rejected, cut):
    """The prompt is the common beginning up to its last turn mark, or else its last white space; no character goes."""
    (got,) = read_rows(write(texts(chosen, rejected)), "preference")
    assert got == Preference("rows.jsonl:1", (Message("user", cut),), chosen[len(cut) :], rejected[len(cut) :])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (texts("a", "b"), "1:1: no column 'prompt' among 'chosen', 'rejected'; expected a string or a list of"),
        (texts("one two", "two one"), "1:1: no column 'prompt'"),
        (texts("one two", "one three", question="?"), "1:1: no column 'prompt' among 'chosen', 'rejected', 'question'"),
        (texts(" a", " b"), "1:1: no column 'prompt'"),  # a beginning of white space alone is no prompt
        (texts("one two", "one two"), "@rejected: 'chosen' and 'rejected' are the same; expected two answers"),
        (texts("", "b"), "@chosen: 'chosen' is empty; expected some text"),
        (texts(f"{ASKED} Up.", ASKED), "@rejected: the answer in 'rejected' is empty; expected some text"),
        (texts(f"{ASKED} Up.", f"{ASKED} "), "@rejected: the answer in 'rejected' is blank; expected some text"),
        (
            texts(f"{ASKED} Up.\n\nHuman: Why?\n\nAssistant: So.", f"{ASKED} Down."),
            "@chosen: the two answers part 3 turns before the end of 'chosen'; expected them to differ in",
        ),
        (
            texts("\n\nHuman: A?\n\nAssistant: a", "\n\nHuman: B?\n\nAssistant: b"),
            "@chosen: the two answers part 2 turns before the end of 'chosen'",
        ),
    ],
)  # fmt: skip
def test_texts_without_one_prompt_are_named(write, row, expected):
    """Of texts that have no prompt in common, or more than one answer after it, there is one problem each."""
    (problem,) = problems_of(write(row))
    assert problem.startswith(placed(expected, row)), problem


def test_a_row_that_lost_its_prompt_is_not_given_one_of_its_answers(write):
    """Where some rows have a prompt, the others have lost theirs: what both answers begin with is not it."""
    given = {"prompt": "What is the capital of France?", "chosen": "Paris", "rejected": "Rome"}
    lost = {"chosen": "The capital is Paris", "rejected": "The capital is Rome"}
    behind = write(*[given] * 19, lost)
    with pytest.raises(DataError, match="1 problem, 19 right rows") as caught:
        read_rows(behind, "preference")
    assert re.match(r"rows\.jsonl:20:1: no column 'prompt' among .*, which 19 rows before", caught.value.problems[0])
    reader = SetReader(behind, "preference", how=Reading(bad_rows="drop"))
    assert len(list(reader)) == 19 and reader.left_out().bad == 1
    before = write(lost, lost, given, name="before.jsonl")
    with pytest.raises(DataError, match="2 rows have no prompt, and 1 behind them have one") as caught:
        read_rows(before, "preference", how=Reading(bad_rows="drop"))
    assert list(caught.value.problems) == [f"before.jsonl:{n}: no column 'prompt'" for n in (1, 2)]
    assert len(read_rows(write(lost, lost, name="none.jsonl"), "preference")) == 2


def test_scores_that_are_ignored_are_not_read(write):
    """Neither taken over nor checked: preferences alone are left."""
    names = ("chosen_score", "rejected_score")
    row = {"prompt": "q", "chosen": "a", "rejected": "b", "chosen_score": 2, "rejected_score": 3}
    (found,) = read_rows(write(row), "preference", ignore=names)
    assert (found.chosen_score, found.rejected_score) == (None, None)
    with pytest.raises(DataError, match="the chosen score 2 is below the rejected one 3"):
        read_rows(write(row), "preference")
    with pytest.raises(DataError, match="'rejected_score' stands alone"):
        read_rows(write(row), "preference", ignore=names[:1])


def test_other_rules_hold_for_texts_that_were_cut(write):
    """Scores, tools and the system prompt are read as of any other pair."""
    row = texts("q a", "q b", score_chosen=2, score_rejected=1, tools=[{"name": "f"}], system="be brief")
    (got,) = read_rows(write(row), "preference", columns={"system": "system"})
    assert got.prompt == (Message("system", "be brief"), Message("user", "q"))
    assert (got.chosen_score, got.rejected_score, got.given.tools) == (2.0, 1.0, '[{"name": "f"}]')


# ---------------------------------------------------------------------------------------------------------------------
# HH-RLHF


def test_hh_becomes_messages(write):
    """Turn marks become roles, and the spaces around each turn go."""
    (got,) = read_rows(write(texts(f"{MORE} Up.", f"{MORE} Left.\n")), "preference", how=HH)
    roles = [(turn.role, turn.content) for turn in got.prompt]
    assert roles == [("user", "Which way is north?"), ("assistant", "Up."), ("user", "On a map?")]
    assert (got.chosen, got.rejected) == ("Up.", "Left.")


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        ("preference", {"prompt": ASKED, "chosen": "Up.", "rejected": "Down."}),
        ("preference", {"prompt": "Which way is north?", "chosen": "Up.", "rejected": " Down."}),
        ("preference", {"prompt": ASKED, "chosen": f"{ASKED} Up.", "rejected": f"{ASKED} Down."}),
        ("completion", {"prompt": ASKED, "completion": "Up."}),
        ("completion", {"completion": f"{ASKED} Up."}),
        ("completion", {"messages": f"{ASKED.strip()} Up."}),
        ("unpaired", {"prompt": ASKED, "completion": " Up.", "label": 1}),
        ("prompt", {"prompt": ASKED}),
    ],
)
def test_hh_is_read_in_every_column(write, shape, row):
    """A prompt with marks may end in the opening of the answer; texts without marks are one turn, spaces apart."""
    (got,) = read_rows(write(row), shape, how=HH)
    assert got.prompt == (Message("user", "Which way is north?"),)
    answer = {"preference": "chosen", "prompt": "prompt"}.get(shape, "completion")
    assert shape == "prompt" or getattr(got, answer) == "Up."
    assert shape != "preference" or got.rejected == "Down."


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (texts("Up.", f"{ASKED} Down."), r"@chosen: 'chosen' does not begin with a turn; expected \n\nHuman: or"),
        (texts(f"{ASKED} Up.", ASKED), "@rejected: the content of 'rejected' message 2 (assistant) is empty"),
        (texts(f"{ASKED} Up.", f"{ASKED} Up."), "@rejected: 'chosen' and 'rejected' are the same"),
        (texts(f"{ASKED} Up.\n\nHuman: Hm.", f"{ASKED} Down."), "@chosen: 'chosen' ends with the user's turn"),
        (texts(f"{MORE} Up.", f"{ASKED} Down."), "@chosen: the two answers part 3 turns before the end of 'chosen'"),
        (texts("\n\nAssistant: Hi.", "\n\nAssistant: Ho."), "@rejected: the two answers begin with different turns"),
        (texts("Up.", " Up.\n", prompt=ASKED), "@rejected: 'chosen' and 'rejected' are the same"),
        (texts("Up.", "Down.", prompt="\n\nAssistant:"), "@prompt: 'prompt' has no turn but the opening of an answer"),
    ],
)  # fmt: skip
def test_bad_rows_of_hh_are_named(write, row, expected):
    """Blank answers, pairs that part early and texts without marks are problems with their place."""
    assert problems_of(write(row), how=HH)[0].startswith(placed(expected, row))


# ---------------------------------------------------------------------------------------------------------------------
# The released code's pairs, and the system prompt


@pytest.mark.parametrize("label", [1, 0])
@pytest.mark.parametrize("form", [list, str])
def test_pairs_of_the_released_code_are_read(write, label, form):
    """output_A is the chosen answer where the label is 1, and output_B where it is 0; rewards are their scores."""
    sides = {"output_A": [ANSWER], "output_B": [OTHER]} if form is list else {"output_A": "a", "output_B": "b"}
    rewards = {"reward_A": 2.5 if label else -1, "reward_B": 1.5}
    row = {"prompt_id": 3, "prompt": [USER], **sides, "label": label, **rewards, "type": "pairwise_feedback"}
    reader = SetReader(write(row), "preference")
    (got,) = reader
    answers, scores = (("a", "b"), (2.5, 1.5)) if label else (("b", "a"), (1.5, -1.0))
    assert got == Preference("rows.jsonl:1", PROMPT, *answers, *scores)
    assert reader.columns.ignored == ("prompt_id", "type")


def test_labelled_answers_of_the_released_code_are_read(write):
    """Their column is called output."""
    row = {"prompt": [USER], "output": [ANSWER], "label": 0, "reward": 0.1, "type": "binary_feedback"}
    assert read_rows(write(row), "unpaired") == [Unpaired("rows.jsonl:1", PROMPT, "a", False)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"label": 2}, "@label: 'label' is 2; expected true or false"),
        ({"label": "A"}, "@label: 'label' is \"A\"; expected true or false"),
        ({"output_B": "a"}, "@output_B: 'output_A' and 'output_B' are the same"),
        ({"output_B": ""}, "@output_B: 'output_B' is empty"),
        ({"reward_A": 1, "reward_B": 2}, "@reward_A: the chosen score 1 is below the rejected one 2"),
    ],
)
def test_pairs_of_the_released_code_are_checked(write, changes, expected):
    """A label that is neither 0 nor 1, equal answers and rewards against the label are problems."""
    row = {"prompt": "q", "output_A": "a", "output_B": "b", "label": 1} | changes
    assert problems_of(write(row))[0].startswith(placed(expected, row))


def test_pairs_of_the_released_code_need_a_label(write):
    """Without one nobody can tell which answer is the better one."""
    (problem,) = problems_of(write({"prompt": "q", "output_A": "a", "output_B": "b"}))
    assert problem.startswith(
        "1:1: no column 'label' among 'prompt', 'output_A', 'output_B'; expected 1 where output_A"
    )


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        ("preference", {"prompt": "q", "chosen": "a", "rejected": "b"}),
        ("preference", {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]}),
        ("unpaired", {"prompt": "q", "completion": "a", "label": True}),
        ("completion", {"messages": [USER, ANSWER]}),
        ("prompt", {"prompt": [USER]}),
    ],
)
def test_a_system_column_comes_before_every_prompt(write, shape, row):
    """A column named in columns as system is the first turn; a blank one is none, and one beside another is refused."""
    rows = [row | {"sys": "be brief"}, row | {"sys": " "}]
    first, second = read_rows(write(*rows), shape, columns={"system": "sys"})
    assert first.prompt == (Message("system", "be brief"), *PROMPT)
    assert second.prompt == PROMPT
    (unasked, _) = read_rows(write(*rows), shape)
    assert unasked.prompt == PROMPT
    system = {"role": "system", "content": "x"}
    lists = {name: [system, *value] for name, value in row.items() if isinstance(value, list)}
    twice = row | (lists or {"prompt": [system, USER]})
    (problem,) = problems_of(write(twice | {"sys": "be brief"}), shape, columns={"system": "sys"})
    assert "'sys' holds a system prompt, and the messages begin with the system's turn" in problem


def test_a_system_column_must_hold_text(write):
    """Anything but a text or nothing is a problem, and a column that is not there another."""
    row = {"prompt": "q", "chosen": "a", "rejected": "b"}
    assert problems_of(write(row | {"s": 7}), columns={"system": "s"}) == ["1:54: 's' is a number; expected a string"]
    (problem,) = problems_of(write(row), columns={"system": "s"})
    assert problem.startswith("1:1: no column 's' (named in columns)")
    (got,) = read_rows(write(row | {"s": None}), "preference", columns={"system": "s"})
    assert got.prompt == PROMPT


# ---------------------------------------------------------------------------------------------------------------------
# JSON lists

ROW = '{"prompt": "q", "chosen": "a", "rejected": "b"}'


@pytest.mark.parametrize(
    "text", [f"[{ROW}]", f"\n [\n  {ROW}\n]\n", f"\ufeff[{ROW}]", json.dumps([json.loads(ROW)], indent=2)]
)
def test_a_json_list_is_read(write, text):
    """A .json file may be one list of rows, however it is laid out, with a byte order mark too."""
    assert read_rows(write(text, name="rows.json"), "preference") == [Preference("rows.json:row 1", PROMPT, "a", "b")]


def test_a_json_file_of_lines_is_read_line_by_line(write):
    """A .json file that begins with an object holds JSON lines, as many published ones do."""
    got = read_rows(write(ROW, "", ROW.replace("q", "r"), name="rows.json"), "preference")
    assert [row.id for row in got] == ["rows.json:1", "rows.json:3"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[\n{ROW},\n7\n]", ["3:1: item 2 is a number; expected one list of objects"]),
        (f"[\n[{ROW}]]", ["2:1: item 1 is a list; expected one list of objects"]),
        (f'[{ROW},\n {{"prompt": "q", "chosen": "", "rejected": "b"}}]', ["2:28: 'chosen' is empty; expected some"]),
        (f'[{ROW},\n {{"prompt": "q", "prompt": "r"}}]', ["2:18: the key 'prompt' appears twice; expected one"]),
        (f'[{ROW},\n {{"prompt": NaN}}]', ["2:13: NaN is not a JSON number; expected one list of objects"]),
        (f'[{ROW},\n {{"prompt": {"9" * 5000}}}]', ["2:13: a whole number of 5000 digits is more than can be read"]),
        (f'[{ROW},\n {{"prompt": }}]', ["2:13: not valid JSON (Expecting value); expected one list of objects"]),
        (f"[{ROW}\n{ROW}]", ["2:1: no comma between two items of the list"]),
        (f"[{ROW},\n", ["2:1: not valid JSON (Expecting value)"]),
        (f"[{ROW}\n", ["2:1: the file ends inside the list"]),
        (f"[{ROW}]\n[{ROW}]", ["2:1: the file goes on after the list"]),
        (f"[{'[' * 100_000}", ["1:2: nested too deeply"]),
    ],
)  # fmt: skip
def test_a_wrong_json_list_is_named_by_line_and_column(write, text, expected):
    """Each way a list can be wrong has a message with its place, and what can be read is still checked."""
    got = problems_of(write(text, name="rows.json"))
    assert len(got) == len(expected) and all(a.startswith(b) for a, b in zip(got, expected, strict=True)), got


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[]", r"rows\.json has no rows"),
        (b"", r"rows\.json has no rows"),
        (f"[{ROW}]".encode("utf-16"), r"is UTF-16 text"),
        (f"[{ROW}]".encode("utf-16-le"), r"begins with NUL bytes, as UTF-16 without a mark"),
        (b'[{"prompt": "K\xf6ln"}]', r"rows\.json:1:15: byte 0xf6 is not UTF-8"),
        (b'{\n"data": [' + ROW.encode() + b"]}", r"1:1: one JSON object over 2 lines"),
    ],
)
def test_a_json_file_of_another_kind_is_refused(tmp_path, content, expected):
    """Empty lists, other encodings and an object around the list say what they are."""
    (tmp_path / "rows.json").write_bytes(content)
    with pytest.raises(DataError, match=expected):
        read_rows(tmp_path / "rows.json", "preference")


def test_a_json_list_too_large_for_memory_is_refused(write, monkeypatch):
    """A list is read as a whole, so there is a size beyond which it has to be written as lines."""
    monkeypatch.setattr("humanline.train.data.json_array.LARGEST", 10)
    with pytest.raises(DataError, match=r"would be in memory as a whole(.*\n)*.*jq -c '\.\[\]' OLD > NEW\.jsonl"):
        read_rows(write(f"[{ROW}]", name="rows.json"), "preference")


# ---------------------------------------------------------------------------------------------------------------------
# Bad rows


def good(count):
    return [{"prompt": f"q{n}", "chosen": "a", "rejected": "b"} for n in range(count)]


def test_bad_rows_are_dropped_counted_and_named(write):
    """What is left is what a file without them gives; each reason has its rows and the first places."""
    rows = good(12)
    rows[2:2] = [texts("a", "a", prompt="q")]
    rows[5:5] = [texts("", "a", prompt="q"), texts("a", " ", prompt="q")]
    rows[9:9] = [texts("a", "a", prompt="q"), {"messages": [USER, ANSWER]}]
    lines = [json.dumps(row) for row in rows] + ["{", '{"prompt": 1}']
    reader = SetReader(write(*lines), "preference", how=DROP)
    assert [row.prompt[0].content for row in reader] == [row["prompt"] for row in good(12)]
    bad = reader.left_out()
    assert bad is not None and (bad.bad, bad.total) == (7, 19)
    found = {reason.what: (reason.rows, reason.places) for reason in bad.reasons}
    assert found == {
        "'chosen' and 'rejected' are the same": (2, ("rows.jsonl:3", "rows.jsonl:10")),
        "'chosen' is empty": (1, ("rows.jsonl:6",)),
        "'rejected' is blank": (1, ("rows.jsonl:7",)),
        "no column 'chosen' among 'messages'": (1, ("rows.jsonl:11",)),
        "not valid JSON (Expecting property name enclosed in double quotes)": (1, ("rows.jsonl:18",)),
        "no column 'chosen' among 'prompt'": (1, ("rows.jsonl:19",)),
    }
    assert str(bad).startswith("7 of 19 rows dropped as bad: 2 'chosen' and 'rejected' are the same (rows.jsonl:3, ")


def test_too_many_bad_rows_are_an_error_all_the_same(write):
    """Nobody trains on what is left of a broken file unaware: above the limit all problems are listed."""
    path = write(*good(8), {"prompt": "q"}, {"prompt": "q"})
    how = Reading(bad_rows="drop", bad_rows_limit=0.2)
    assert len(read_rows(path, "preference", how=how)) == 8
    with pytest.raises(DataError, match=r"2 of 10 rows are bad \(20\.0%\), more than data\.bad_rows_limit: 0\.19") as e:
        read_rows(path, "preference", how=Reading(bad_rows="drop", bad_rows_limit=0.19))
    assert len(e.value.problems) == 4 and "rows.jsonl:9:" in e.value.problems[0]
    with pytest.raises(DataError, match="all 1 rows are bad"):
        read_rows(write({"prompt": "q"}), "preference", how=Reading(bad_rows="drop", bad_rows_limit=0.99))


def test_a_file_that_breaks_off_is_never_dropped_from(write):
    """Rows that cannot be told apart any more are no bad rows: what comes after them would be lost unseen."""
    pretty = json.dumps(good(1)[0], indent=1)
    with pytest.raises(DataError, match=r"1 problem, after which nothing can be read, 40 right rows"):
        read_rows(write(*map(json.dumps, good(40)), pretty), "preference", how=DROP)
    cut = f"[{', '.join(map(json.dumps, good(40)))}, {{"
    with pytest.raises(DataError, match=r"1 problem, after which nothing can be read, 40 right rows"):
        read_rows(write(cut, name="rows.json"), "preference", how=DROP)


def test_a_set_without_bad_rows_reads_the_same_either_way(write):
    """Where nothing is bad, dropping changes nothing and reports nothing."""
    path = write(*good(3))
    reader = SetReader(path, "preference", how=DROP)
    assert list(reader) == read_rows(path, "preference")
    assert reader.left_out() is None


def test_prompts_may_be_dropped_too(write):
    """Other shapes follow the same rule."""
    path = write({"prompt": "q"}, {"prompt": ""}, {"prompt": "r"})
    assert [row.id for row in read_rows(path, "prompt", how=DROP)] == ["rows.jsonl:1", "rows.jsonl:3"]
    assert isinstance(read_rows(path, "prompt", how=DROP)[0], PromptOnly)


# ---------------------------------------------------------------------------------------------------------------------
# Hints


def recipe(path, objective="dpo", rounds=False, **data):
    drawn = {
        "kind": "rounds",
        "contexts_per_round": 1,
        "samples": 2,
        "sampling": {"max_tokens": 8},
        "scoring": {"rewards": [{"kind": "format", "pattern": "."}]},
    }
    more = {"source": drawn, "reference": {"storage": "model"}} if rounds else {}
    return TrainConfig.model_validate(
        {
            "model": "m",
            "output": "o",
            "objective": {"kind": objective},
            "data": {"train": str(path)} | data,
            "training": {"steps": 1},
            "optimizer": {"lr": 1e-3},
            **more,
        }
    )


@pytest.mark.parametrize(
    ("objective", "row", "hint"),
    [
        ("grpo", {"prompt": "q", "answer": "a"}, r"to which the policy gives answers in rounds: source: {kind: rounds"),
        ("dpo", {"prompt": [USER]}, r"source: {kind: rounds, \.\.\.} \(humanline cp tiny-online"),
        ("dpo", {"prompt": "q", "completion": "a", "label": 1}, r"look like unpaired rows, which .* kto or bco reads"),
        ("grpo", {"messages": [USER, ANSWER]}, r"look like completion rows, which objective\.kind: nll reads"),
        ("kto", {"prompt": "q", "completion": "a"}, r"look like completion rows, which objective\.kind: nll reads"),
    ],
)
def test_rows_of_another_shape_name_the_cure(write, tokenizer, objective, row, hint):
    """The error of rows that look like another shape ends in what reads them."""
    config = recipe(write(row), objective)
    with pytest.raises(DataError, match=hint):
        read_units(config, config.data.train, renderer_of(config, tokenizer))


def test_pairs_in_rounds_name_the_cure(write, tokenizer):
    """Rounds read prompts; rows that are none are told what trains on them."""
    config = recipe(write({"chosen": [USER, ANSWER], "rejected": [USER, OTHER]}), rounds=True)
    with pytest.raises(DataError, match=r"In rounds rows are prompts; these look like preference rows"):
        read_contexts(config, config.data.train, renderer_of(config, tokenizer))


def test_right_shapes_get_no_hint(write, tokenizer):
    """An error of rows that look as they should says nothing of other shapes."""
    config = recipe(write({"prompt": "q", "chosen": "", "rejected": "b"}))
    with pytest.raises(DataError) as caught:
        read_units(config, config.data.train, renderer_of(config, tokenizer))
    assert "look like" not in str(caught.value) and "rounds" not in str(caught.value)


def test_what_the_demo_makes_is_said(tmp_path, monkeypatch):
    """The model and the rows that tiny begins from are made by humanline demo, and their errors say so."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"check the path; humanline demo makes it"):
        read_rows("demo-out/pairs.jsonl", "preference")
    with pytest.raises(ModelError, match=r"on the hub; humanline demo makes it"):
        source("demo-out/start/final")
    with pytest.raises(FileNotFoundError, match=r"check the path$"):
        read_rows("other/pairs.jsonl", "preference")


def test_a_system_column_that_is_not_named_is_pointed_out(write):
    """A column called system is read only where columns says so, and what was ignored says how."""
    reader = SetReader(write({"prompt": "q", "chosen": "a", "rejected": "b", "system": "x"}), "preference")
    list(reader)
    assert "ignored: 'system' (columns: {system: system} puts it before the prompt)" in str(reader.columns)


def test_settings_of_before_are_the_plan_of_before():
    """What came later is in no plan while it says what held before, so that answers of earlier versions are found."""
    data = recipe("x.jsonl").data
    assert not {"format", "turns", "bad_rows", "bad_rows_limit"} & data.as_planned().keys()
    assert recipe("x.jsonl", turns="all").data.as_planned()["turns"] == "all"
    settings = same_settings({"data": data.model_dump(mode="json")})
    assert not [name for name in settings if name.split(".")[1] in data.later]
    assert same_settings({"data": recipe("x.jsonl", bad_rows="drop").data.model_dump()})["data.bad_rows"] == "drop"
    assert same_settings({"data": recipe("x.jsonl", bad_rows_limit=0.5).data.model_dump()}) == settings


# ---------------------------------------------------------------------------------------------------------------------
# Rows that share a line, other ends of lines, marks in odd places


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("bad", [{"chosen": ""}, {"chosen": "", "prompt": ""}])
def test_rows_of_a_list_are_counted_whatever_lines_they_are_on(write, indent, bad):
    """All rows on one line are as many as they are, and a row with problems on two lines is one."""
    good = {"prompt": "q", "chosen": "a", "rejected": "b"}
    path = write(json.dumps([good] * 7 + [good | bad] * 3, indent=indent), name="rows.json")
    reader = SetReader(path, "preference", how=Reading(bad_rows="drop", bad_rows_limit=0.3))
    assert len(list(reader)) == 7
    left_out = reader.left_out()
    assert (left_out.bad, left_out.total) == (3, 10) and len({*left_out.reasons[0].places}) == 3
    with pytest.raises(DataError, match=r"3 of 10 rows are bad \(30\.0%\), more than data\.bad_rows_limit: 0\.29"):
        read_rows(path, "preference", how=Reading(bad_rows="drop", bad_rows_limit=0.29))


@pytest.mark.parametrize("indent", [None, 2])
def test_places_in_a_list_are_those_of_a_plain_count(write, indent):
    """Line and column of any place are those that splitting the text gives, forwards and back again."""
    rows = [{"prompt": "é" * number, "chosen": "a", "tools": [{"n": number}]} for number in range(6)]
    text = json.dumps(rows, indent=indent, ensure_ascii=False)
    source = JsonArray(write(text, name="rows.json"))
    values = source.rows([])
    for number, _ in enumerate(values):
        for key in ("tools", "prompt", "chosen", "prompt"):
            _, line, column = source.place(key).split(":")
            before = text.split("\n")[: int(line) - 1]
            at = sum(len(one) + 1 for one in before) + int(column) - 1
            wanted = json.dumps(rows[number][key], ensure_ascii=False)[:1]
            assert text[at] == wanted and text[:at].rstrip().endswith(f'"{key}":')
            assert text[:at].count('"prompt"') == number + (1 if number >= 0 else 0)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_turn_marks_of_files_with_other_line_ends(write, end):
    """A file that went through Windows is cut and split at the same marks; no word of an answer becomes prompt."""
    chosen, rejected = (f"{ASKED} I {word}".replace("\n", end) for word in ("know.", "wonder."))
    (cut,) = read_rows(write(texts(chosen, rejected)), "preference")
    assert (cut.prompt[0].content, cut.chosen) == (ASKED.replace("\n", end), " I know.")
    (split,) = read_rows(write(texts(chosen, rejected)), "preference", how=HH)
    assert (split.prompt, split.chosen) == ((Message("user", "Which way is north?"),), "I know.")


@pytest.mark.parametrize("column", ["prompt", "chosen"])
def test_marks_behind_other_text_are_no_part_of_a_turn(write, column):
    """Under format: hh a text that holds turns and does not begin with one is no single message."""
    row = {"prompt": "q", "chosen": "a", "rejected": "b"} | {column: f"Be brief.{ASKED} Up."}
    (problem,) = problems_of(write(row), how=HH)
    assert f"'{column}' does not begin with a turn" in problem


def test_texts_that_part_early_are_told_both_settings(write):
    """`turns: all` does nothing for texts, which are turned into turns by `format: hh` alone."""
    path = write(texts(f"{ASKED} Up.\n\nHuman: Sure?\n\nAssistant: Yes.", f"{ASKED} No."))
    (problem,) = problems_of(path, how=Reading(turns="all"))
    assert problem.endswith("or data.format: hh and data.turns: all")
    assert len(read_rows(path, "preference", how=Reading(format="hh", turns="all"))) == 1


def test_an_answer_that_puts_instructions_before_the_prompt_learns_none_of_it(write):
    """Under turns: all the prompt's own turns are prompt, also where the answer begins with a system turn."""
    prompt = [USER, ANSWER]
    answer = [{"role": "system", "content": "s"}, *prompt, USER, OTHER]
    row = {"prompt": prompt, "completion": answer, "label": True}
    (found,) = read_rows(write(row), "unpaired", how=Reading(turns="all"))
    assert [one.content for one in found.prompt] == ["s", "q", "a", "q"] and found.completion == "b"
