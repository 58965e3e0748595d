"""Rows -> examples: what is read, and what is refused."""

from __future__ import annotations

import json

import pytest

from humanline.train.data.messages import Message
from humanline.train.data.rows import read_rows
from humanline.train.data.shapes import Group, Preference, PromptOnly, Unpaired, group_scores, pairs_to_unpaired
from humanline.train.data.source import DataError
from tests.helpers.rows import duplicates_of

USER, ANSWER, OTHER = (
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a"), ("assistant", "b"))
)
SYSTEM = {"role": "system", "content": "be brief"}
NEXT = {"role": "user", "content": "and then?"}
PROMPT = (Message("user", "q"),)


@pytest.fixture
def write(tmp_path):
    """Write lines (dicts as JSON, strings and bytes as they are) to rows.jsonl."""

    def to_file(*lines):
        raw = [
            line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
            for line in lines
        ]
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b"\n".join(raw))
        return path

    return to_file


@pytest.fixture
def problem(write):
    """Return the one problem that reading some lines reports, without the file name."""

    def read(shape, *lines, columns=None):
        with pytest.raises(DataError) as caught:
            read_rows(write(*lines), shape, columns=columns)
        (only,) = caught.value.problems
        assert only in str(caught.value)
        return only.removeprefix("rows.jsonl:")

    return read


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]},
        {"prompt": [USER], "chosen": "a", "rejected": "b"},
        {"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
        {"prompt": "q", "chosen": [ANSWER], "rejected": [USER, OTHER]},
        {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
    ],
    ids=["plain", "messages", "messages and strings", "answers repeat the prompt", "one answer does", "no prompt"],
)
def test_every_form_of_a_pair_reads_the_same(write, row):
    """Strings, message lists and mixtures of them give the same example."""
    assert read_rows(write(row), "preference") == [Preference("rows.jsonl:1", PROMPT, "a", "b")]


def test_the_common_beginning_is_the_prompt(write):
    """Without a prompt column the prompt is everything before the last turn, earlier answers included."""
    row = {"chosen": [SYSTEM, USER, ANSWER, NEXT, ANSWER], "rejected": [SYSTEM, USER, ANSWER, NEXT, OTHER]}
    (pair,) = read_rows(write(row), "preference")
    assert [message.role for message in pair.prompt] == ["system", "user", "assistant", "user"]
    assert (pair.chosen, pair.rejected) == ("a", "b")


def test_a_string_prompt_may_follow_a_system_message_of_the_answers(write):
    """A system message in front of the repeated prompt becomes part of the prompt."""
    row = {"prompt": "q", "chosen": [SYSTEM, USER, ANSWER], "rejected": [SYSTEM, USER, OTHER]}
    (pair,) = read_rows(write(row), "preference")
    assert pair.prompt == (Message("system", "be brief"), *PROMPT)


@pytest.mark.parametrize("names", [("chosen_score", "rejected_score"), ("score_chosen", "score_rejected")])
def test_scores_are_read_under_both_names(write, names):
    """Scores are kept as floats, whichever of the two common names the file uses."""
    row = {"prompt": "q", "chosen": "a", "rejected": "b", names[0]: 3, names[1]: 1.5}
    (pair,) = read_rows(write(row), "preference")
    assert (pair.chosen_score, pair.rejected_score) == (3.0, 1.5)


@pytest.mark.parametrize(
    ("label", "meaning"), [(True, True), (False, False), (1, True), (0, False), (1.0, True), (0.0, False)]
)
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "completion": "a"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"prompt": "q", "completion": [USER, ANSWER]},
        {"completion": [USER, ANSWER]},
        {"messages": [USER, ANSWER]},
    ],
)
def test_every_form_of_a_labelled_answer_reads_the_same(write, row, label, meaning):
    """Strings and message lists give the same labelled example; 1 and 0 are labels too, as 1.0 and 0.0 are."""
    assert read_rows(write(row | {"label": label}), "unpaired") == [Unpaired("rows.jsonl:1", PROMPT, "a", meaning)]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "completion": "a"},
        {"prompt": "q", "completion": "a", "label": True},
        {"messages": [USER, ANSWER]},
        {"prompt": "something else", "messages": [USER, ANSWER]},
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
    ],
)
def test_every_form_of_a_completion_reads_the_same(write, row):
    """Next-token training takes completions, conversations and the chosen answer of a pair."""
    assert read_rows(write(row), "completion") == [Unpaired("rows.jsonl:1", PROMPT, "a", None)]


def test_prompts_keep_the_other_columns(write):
    """A prompt keeps every other column, under our name where one is given."""
    row = {"question": "q", "gold": "4", "level": [1, None]}
    (prompt,) = read_rows(write(row), "prompt", columns={"prompt": "question", "answer": "gold"})
    assert prompt == PromptOnly("rows.jsonl:1", PROMPT, {"answer": "4", "level": [1, None]})


def test_a_mapped_column_wins_over_one_with_our_name(write):
    """A column named in `columns` is used even if the file has another one under our name."""
    row = {"prompt": "wrong", "question": "q", "completion": "a"}
    assert read_rows(write(row), "completion", columns={"prompt": "question"})[0].prompt == PROMPT


def test_marks_blank_lines_and_line_ends_do_not_matter(write):
    """A byte order mark, blank lines, CRLF and U+2028 inside a string are read; blank lines count as lines."""
    row = b'{"prompt": "q", "completion": "a\xe2\x80\xa8b"}'
    examples = read_rows(write(b"\xef\xbb\xbf" + row + b"\r", b"", b"  ", row, b""), "completion")
    assert [example.id for example in examples] == ["rows.jsonl:1", "rows.jsonl:4"]
    assert examples[0].completion == "a\u2028b"


def test_spaces_are_kept(write):
    """Indentation and repeated spaces of an answer survive reading."""
    answer = "def f():\n    return  1\n"
    assert read_rows(write({"prompt": "q", "completion": answer}), "completion")[0].completion == answer


PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
LABELLED = {"prompt": "q", "completion": "a", "label": True}


def pair(**changes):
    return PAIR | changes


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (pair(prompt=None), "1:12: 'prompt' is null; expected a string or a list of messages"),
        (pair(prompt=7), "1:12: 'prompt' is a number; expected a string or a list of messages"),
        (pair(prompt=[]), "1:12: 'prompt' is an empty list; expected a string or a list of messages"),
        (pair(prompt=""), "1:12: 'prompt' is empty; expected some text"),
        (pair(chosen=" \n"), "1:27: 'chosen' is blank; expected some text"),
        (pair(rejected={"text": "b"}), "1:44: 'rejected' is an object; expected a string or a list of messages"),
        (pair(rejected="\ud800"), "1:44: 'rejected' holds half a surrogate pair"),
        (pair(rejected="a"), "1:44: 'chosen' and 'rejected' are the same; expected two answers"),
        (pair(chosen=["a"]), "1:28: 'chosen' message 1 is a string; expected a message"),
        (
            pair(chosen=[{"from": "gpt", "value": "a"}]),
            "1:28: 'chosen' message 1 is an object of the keys 'from', 'value'; expected a message",
        ),
        (
            pair(chosen=[{"role": "bot", "content": "a"}]),
            "1:37: 'chosen' message 1 has the role \"bot\"; expected one of system, user, assistant",
        ),
        (
            pair(chosen=[USER, {"role": "assistant", "content": None}]),
            "1:95: the content of 'chosen' message 2 is null; expected a string",
        ),
        (
            pair(prompt=[SYSTEM, {"role": "user", "content": ""}]),
            "1:84: the content of 'prompt' message 2 is empty; expected some text",
        ),
        (pair(chosen=[USER]), "1:27: 'chosen' ends with the user's turn; expected the assistant's"),
        (
            pair(chosen=[NEXT, ANSWER]),
            "1:27: 'chosen' begins with other turns than 'prompt'; expected the prompt's own turns, or the answer",
        ),
        (
            {"chosen": [USER, ANSWER], "rejected": [NEXT, OTHER]},
            "1:99: the two answers begin with different turns; expected the same prompt in both, or a prompt column",
        ),
        (
            {"chosen": [USER, ANSWER, NEXT, ANSWER], "rejected": [USER, OTHER]},
            "1:12: the two answers part 3 turns before the end of 'chosen'; expected them to differ in their last turn",
        ),
        (
            pair(prompt=[USER, ANSWER], chosen="x", rejected="y"),
            "1:97: the turn before the answer in 'chosen' is the assistant's too; expected the user's",
        ),
        (
            {"chosen": "a", "rejected": "b"},
            "1:1: no column 'prompt' among 'chosen', 'rejected'; expected a string or a list of messages (or ",
        ),
        (pair(chosen_score=1.0), "1:65: 'chosen_score' stands alone; expected both scores or none"),
        (pair(chosen_score=1, rejected_score=None), "1:86: 'rejected_score' is null; expected a finite number"),
        (pair(score_chosen=1, score_rejected="0"), "1:86: 'score_rejected' is a string; expected a finite number"),
        (pair(chosen_score=True, rejected_score=0), "1:65: 'chosen_score' is true or false; expected a finite number"),
        (pair(chosen_score=10**400, rejected_score=0), "1:65: 'chosen_score' is not finite; expected a finite number"),
        (
            pair(chosen_score=1, rejected_score=2),
            "1:65: the chosen score 1 is below the rejected one 2; expected chosen >= rejected",
        ),
        ('{"prompt": "q","chosen": "a", "rejected": "b", "chosen_score": NaN, "rejected_score": 0}', "1:64: NaN is"),
        ('{"prompt": "q","chosen": "a", "rejected": "b", "chosen_score": 1e999, "rejected_score": 0}', "1:64: 'chose"),
        ('{"prompt": "q", "prompt": "r", "chosen": "a", "rejected": "b"}', "1:17: the key 'prompt' appears twice"),
        ('{"prompt": "q" "chosen": "a"}', "1:16: not valid JSON (Expecting ',' delimiter); expected one complete JSON"),
        ('["q", "a", "b"]', "1:1: the row is a list; expected one JSON object per line"),
        ("[" * 100_000, "1:1: nested too deeply; expected one complete JSON object per line"),
        (b'{"prompt": "\xff"}', "1:13: byte 0xff is not UTF-8; expected UTF-8 text"),
    ],
)  # fmt: skip
def test_a_wrong_pair_is_named_by_line_and_reason(problem, row, expected):
    """Each way a preference row can be wrong has a message with line, finding and what was expected."""
    assert problem("preference", row).startswith(expected)


@pytest.mark.parametrize(
    ("shape", "row", "expected"),
    [
        ("unpaired", LABELLED | {"label": None}, "1:45: 'label' is null; expected true or false"),
        ("unpaired", LABELLED | {"label": "true"}, "1:45: 'label' is \"true\"; expected true or false"),
        ("unpaired", LABELLED | {"label": 2}, "1:45: 'label' is 2; expected true or false"),
        ("unpaired", LABELLED | {"label": 0.5}, "1:45: 'label' is 0.5; expected true or false"),
        (
            "unpaired",
            {"prompt": "q", "completion": "a"},
            "1:1: no column 'label' among 'prompt', 'completion'; expected",
        ),
        (
            "unpaired",
            {"completion": [ANSWER], "label": True},
            "1:16: 'completion' has no turn before the answer, so there",
        ),
        (
            "completion",
            LABELLED | {"label": False},
            "1:45: 'label' is false; expected desirable answers only; leave the",
        ),
        ("completion", LABELLED | {"label": "no"}, "1:45: 'label' is \"no\"; expected true or false"),
        (
            "completion",
            {"messages": [USER, ANSWER, NEXT]},
            "1:14: 'messages' ends with the user's turn; expected the ass",
        ),
        (
            "completion",
            {"prompt": "q"},
            "1:1: no column 'completion' among 'prompt'; expected a string or a list of mes",
        ),
        (
            "prompt",
            {"question": "q"},
            "1:1: no column 'prompt' among 'question'; expected a string or a list of messag",
        ),
        ("prompt", {"prompt": [USER, ANSWER]}, "1:12: 'prompt' ends with the assistant's turn; expected the user's"),
    ],
)
def test_a_wrong_row_of_the_other_shapes_is_named_by_line_and_reason(problem, shape, row, expected):
    """Each way a row of the other shapes can be wrong has a message with line, finding and what was expected."""
    assert problem(shape, row).startswith(expected)


def test_a_mapped_column_that_is_missing_lists_what_the_row_has(problem):
    """A column named in `columns` that a row lacks is reported with the columns that the row does have."""
    got = problem("completion", {"q": "q", "completion": "a"}, columns={"prompt": "question"})
    assert got == "1:1: no column 'question' (named in columns); expected it among the row's columns: 'q', 'completion'"


def test_problems_name_the_column_as_the_file_does(problem):
    """A problem in a renamed column is reported under the file's name for it."""
    got = problem("completion", {"question": None, "completion": "a"}, columns={"prompt": "question"})
    assert got == "1:14: 'question' is null; expected a string or a list of messages"


def test_unknown_names_in_columns_are_refused(write):
    """A name that the shape does not have is an error that lists those it has."""
    with pytest.raises(ValueError, match=r"columns must map our names.*prompt, chosen, rejected.*got 'promt'"):
        read_rows(write(PAIR), "preference", columns={"promt": "prompt"})


def test_an_unknown_shape_is_refused(write):
    """A shape that does not exist is an error that lists those that do."""
    with pytest.raises(ValueError, match="shape must be one of 'preference', 'unpaired', 'completion', 'prompt'"):
        read_rows(write(PAIR), "pairs")


def test_all_problems_are_found_and_twenty_are_listed(write):
    """Every problem of the file is collected; the message lists 20, counts the rest and shows a right row."""
    turns = [[{"role": f"r{i}", "content": "a"}] for i in range(60)]
    lines = [PAIR, *({"prompt": turns[i], "chosen": turns[30 + i], "rejected": "b"} for i in range(30))]
    with pytest.raises(DataError) as caught:
        read_rows(write(*lines), "preference")
    assert len(caught.value.problems) == 60
    text = str(caught.value).splitlines()
    assert text[0].endswith("rows.jsonl: 60 problems, 1 right rows")
    assert sum(line.startswith("  rows.jsonl:") for line in text) == 20
    assert text[-2:] == ["  and 40 more", f"A right row of shape 'preference': {json.dumps(PAIR | RIGHT)}"]


def test_equal_problems_are_one_line_with_a_count_and_the_first_places(write):
    """What is wrong in many rows in the same way is said once, with the first three places; others keep their line."""
    blank = {"prompt": " ", "chosen": "a", "rejected": "b"}
    lines = [PAIR, *[blank] * 3, PAIR | {"chosen": 1}, *[blank] * 40, PAIR | {"chosen": 2}]
    with pytest.raises(DataError) as caught:
        read_rows(write(*lines), "preference")
    assert len(caught.value.problems) == 45
    assert str(caught.value).splitlines()[1:3] == [
        "  rows.jsonl:2:12: 'prompt' is blank; expected some text (43 times in all, also at rows.jsonl:3:12, "
        "rows.jsonl:4:12, ...)",
        "  rows.jsonl:5:27: 'chosen' is a number; expected a string or a list of messages (2 times in all, also at "
        "rows.jsonl:46:27)",
    ]
    assert len(str(caught.value).splitlines()) == 4


def test_problems_without_a_place_are_not_put_together():
    """Problems of no row, and those of rows that differ in more than a count of tokens, each keep their line."""
    problems = [
        "no row",
        "no row",
        "f.jsonl:1: 'a' is 3",
        "f.jsonl:2: 'a' is 4",
        "s:row 3: has 5 tokens",
        "s:row 9: has 7 tokens",
    ]
    assert DataError("h", problems).text(9).splitlines() == [
        "h",
        *(f"  {problem}" for problem in problems[:4]),
        "  s:row 3: has 5 tokens (2 times in all, also at s:row 9)",
    ]
    assert DataError("h", problems).text(4).splitlines()[-1] == "  and 2 more"


RIGHT = {"prompt": "What is 2+2?", "chosen": "4", "rejected": "5"}


@pytest.mark.parametrize("shape", ["preference", "unpaired", "completion", "prompt"])
def test_the_right_row_in_the_message_is_right(write, shape):
    """The example row that an error shows for a shape is read without an error."""
    with pytest.raises(DataError) as caught:
        read_rows(write("{}"), shape)
    right = str(caught.value).splitlines()[-1].split(": ", 1)[1]
    assert len(read_rows(write(right), shape)) == 1


def test_line_numbers_count_bad_and_blank_lines(write):
    """Each problem carries its own line number, whatever came before it."""
    with pytest.raises(DataError) as caught:
        read_rows(write(PAIR, "", "{", b"\xff\xfe", PAIR, "null", ' {"prompt": }'), "preference")
    places = [problem.split(" ")[0] for problem in caught.value.problems]
    assert places == ["rows.jsonl:3:2:", "rows.jsonl:4:1:", "rows.jsonl:6:1:", "rows.jsonl:7:13:"]


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_rows_is_an_error(write, content):
    """An empty file is an error that names the file and shows a right row."""
    with pytest.raises(DataError, match=r"rows\.jsonl has no rows; expected one JSON object per line\nA right row"):
        read_rows(write(content), "unpaired")


def test_a_missing_file_is_named_with_the_nearest_name(write, tmp_path):
    """A missing file is reported with its full path and, where there is one, a file of nearly that name."""
    write(PAIR)
    with pytest.raises(FileNotFoundError, match=r"row\.jsonl does not exist; did you mean rows\.jsonl\?") as caught:
        read_rows(tmp_path / "row.jsonl", "preference")
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="does not exist; relative paths start at"):
        read_rows(tmp_path / "entirely-different", "preference")
    with pytest.raises(FileNotFoundError, match="neither does its directory"):
        read_rows(tmp_path / "no" / "rows.jsonl", "preference")
    with pytest.raises(FileNotFoundError, match="is a directory; expected a file"):
        read_rows(tmp_path, "preference")


def test_pairs_split_into_labelled_answers():
    """A pair becomes a desirable and an undesirable example whose ids name the side."""
    assert pairs_to_unpaired([Preference("f:1", PROMPT, "a", "b")]) == [
        Unpaired("f:1#chosen", PROMPT, "a", True),
        Unpaired("f:1#rejected", PROMPT, "b", False),
    ]


def test_the_scores_of_a_pair_are_its_own_or_1_and_0():
    """As a group of two a pair has its own scores, and 1 and 0 where it has none."""
    assert group_scores(Preference("f:1", PROMPT, "a", "b")) == (1.0, 0.0)
    assert group_scores(Preference("f:2", PROMPT, "a", "b", 7.5, 0.0)) == (7.5, 0.0)


def test_duplicates_and_contradictions_are_reported():
    """Repeats and opposites are counted with the ids of both examples, and nothing is raised."""
    labelled = [
        Unpaired(f"f:{i}", PROMPT, answer, label)
        for i, (answer, label) in enumerate([("a", True), ("a", True), ("b", True), ("a", False)])
    ]
    report = duplicates_of(labelled)
    assert (report.duplicates, report.first_duplicates) == (1, (("f:1", "f:0"),))
    assert (report.contradictions, report.first_contradictions) == (1, (("f:3", "f:0"),))
    pairs = [
        Preference("f:1", PROMPT, "a", "b"),
        Preference("f:2", PROMPT, "b", "a"),
        Preference("f:3", PROMPT, "a", "c"),
    ]
    report = duplicates_of(pairs)
    assert (report.duplicates, report.contradictions) == (0, 1)
    unlabelled = [Unpaired("f:1", PROMPT, "a"), Unpaired("f:2", PROMPT, "a")]
    assert (duplicates_of(unlabelled).duplicates, duplicates_of(unlabelled).contradictions) == (1, 0)
    prompts = [PromptOnly("f:1", PROMPT, {"x": [1]}), PromptOnly("f:2", PROMPT, {})]
    assert duplicates_of(prompts).duplicates == 1
    groups = [Group(pair.id, PROMPT, (pair.chosen, pair.rejected), (1.0, 0.0)) for pair in pairs] * 2
    assert duplicates_of(groups).duplicates == 3


def test_duplicate_reports_stay_small():
    """All repeats are counted, and at most 20 are named."""
    report = duplicates_of([Unpaired(f"f:{i}", PROMPT, "a", True) for i in range(100)])
    assert report.duplicates == 99
    assert len(report.first_duplicates) == 20


def test_a_public_data_set_reads_with_renamed_columns(shared_data):
    """The 7473 training problems of GSM8K read as completions and as prompts once their columns are named."""
    file = shared_data / "gsm8k-train.jsonl"
    completions = read_rows(file, "completion", columns={"prompt": "question", "completion": "answer"})
    assert len(completions) == 7473
    assert completions[0].id == "gsm8k-train.jsonl:1"
    assert "####" in completions[-1].completion
    prompts = read_rows(file, "prompt", columns={"prompt": "question"})
    assert all(prompt.extra.keys() == {"answer"} for prompt in prompts)
    with pytest.raises(DataError, match=r"gsm8k-train.jsonl:1:1: no column 'prompt' among 'question', 'answer'"):
        read_rows(file, "prompt")
