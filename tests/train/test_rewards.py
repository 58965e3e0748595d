"""Verifiers: what is read out of a text, and what it is worth."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from humanline.train.rewards.math_answer import last_box, math_verdict, readable_reference
from humanline.train.rewards.verdict import shown
from humanline.train.rewards.verifiers import format_verdict, number_verdict, read_number, tag_count_verdict
from humanline.train.round_config import FormatReward


def rows(folder, name):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", 18),
        ("so 3 + 4 = 7\n#### 1,234,567.50", Fraction("1234567.5")),
        ("A: $2,125", 2125),
        ("first 5\nA: 18 eggs in 3 boxes", 18),
        ("A: 5\nA: 6", 6),
        ("the answer is 18.", 18),
        ("it costs $18.00", 18),
        ("it grew by 20%", 20),
        ("-7", -7),
        ("−7", -7),
        ("-$7.5", Fraction(-15, 2)),
        ("$-7.5", Fraction(-15, 2)),
        ("16-3", 3),
        ("(16)-3", 3),
        (".5", Fraction(1, 2)),
        ("A: 7/14", Fraction(1, 2)),
        ("1/0", None),
        ("0.1", Fraction(1, 10)),
        ("0018", 18),
        ("1,2,3", 3),
        ("10,20", 20),
        ("1234,567", 567),
        ("no number", None),
        ("", None),
        ("18\n####", None),
        ("\x1b[31m18\x00", 18),
        ("\ud800 18", 18),
        ("9" * 5000, None),
        (18, 18),
        (0.1, Fraction(1, 10)),
        (float("nan"), None),
        (True, None),
        (None, None),
        ([18], None),
    ],
)
def test_a_number_is_read_as_people_mean_it(text, number):
    """The number is behind the last marker, or the last one; separators, currencies and units are no part of it."""
    assert read_number(text) == number


def test_numbers_are_compared_exactly():
    """Equal values match however they are written, and nothing else does, not even by a rounding error of floats."""
    assert number_verdict("#### 70000", "A: 70,000").value == 1
    assert number_verdict("0.50", "1/2").value == 1
    assert number_verdict("0.30000000000000004", "0.3").value == 0
    assert number_verdict("12345678901234567891", "12345678901234567890").value == 0
    assert number_verdict("nothing", "3").value == 0


def test_a_reference_without_a_number_is_no_zero():
    """Where the reference cannot be read there is a status in place of a value."""
    assert number_verdict("18", "unknown")[:2] == (None, "no_reference")


def test_every_answer_of_gsm8k_is_its_own(shared_data):
    """All 8792 published solutions have the number that stands behind their marker, and match themselves."""
    for name, count in (("gsm8k-train.jsonl", 7473), ("gsm8k-test.jsonl", 1319)):
        answers = [row["answer"] for row in rows(shared_data, name)]
        assert sum(number_verdict(answer, answer).value == 1 for answer in answers) == count
        ends = [Fraction(answer.rpartition("####")[2].strip().replace(",", "")) for answer in answers]
        assert [read_number(answer) for answer in answers] == ends


def test_the_published_marks_of_gsm8k_are_found_again(shared_data):
    """All 5276 solutions of four models are marked as their publishers marked them."""
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    marks = [
        (number_verdict(row[model]["solution"], row["ground_truth"]).value == 1, row[model]["is_correct"])
        for row in rows(shared_data, "gsm8k-model-solutions.jsonl")
        for model in models
    ]
    assert len(marks) == 5276
    assert sum(ours == theirs for ours, theirs in marks) == 5276


# ---------------------------------------------------------------------------------------------------------------------
# Format


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>\na\nb\n</think>\n<answer>\n1\n</answer>", 1),
        ("<think>\na\n</think>\n<answer>\n1\n</answer>\n", 0),
        (" <think>\na\n</think>\n<answer>\n1\n</answer>", 0),
        ("<think>a</think><answer>1</answer>", 0),
        ("", 0),
    ],
)
def test_the_format_is_that_of_the_whole_completion(text, value):
    """The default pattern allows line ends inside, and nothing before or behind."""
    assert format_verdict(text, FormatReward().pattern).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>\na\n</think>\n\n<answer>\n1\n</answer>", 1.0),
        ("<think>\na\n</think>\n<answer>\n1\n</answer>", 1.0),  # one line end serves two tags
        ("<think>\n<think>\na\n</think>\n\n<answer>\n1\n</answer>", 0.75),
        ("<think>\na", 0.25),
        ("<think>a</think><answer>1</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_each_tag_counts_a_quarter_if_it_occurs_once(text, value):
    """A tag that is missing, or there twice, or without its line end, costs a quarter."""
    assert tag_count_verdict(text).value == value


# ---------------------------------------------------------------------------------------------------------------------
# Mathematics


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{5} no, \boxed{6}", "6"),
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"$\boxed{1}$, $\boxed{2}$ or $\boxed{3}$", "1, 2, 3"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{5} } \boxed{6", "5"),
        (r"\boxed{x \boxed{5} y}", r"x \boxed{5} y"),
        (r"\boxed{", None),
        (r"\mbox{5}", None),
        ("5", None),
    ],
)
def test_the_last_box_is_found(text, box):
    """Braces are matched, escaped ones are not, and boxes joined by a comma or a word belong together."""
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("completion", "reference", "value"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5", 1),
        (r"\boxed{0.5}", r"so it is \boxed{\frac12}.", 1),
        (r"\boxed{5} no, \boxed{6}", "6", 1),
        (r"\boxed{5} no, \boxed{6}", "5", 0),
        (r"\boxed{1} and \boxed{2}", r"\{2, 1\}", 1),
        (r"the answer is $5$", "5", 1),
        (r"\boxed{(x+1)^2}", "x^2 + 2x + 1", 1),
        (r"\boxed{x=5}", "5", 1),
        (r"\boxed{1,000}", "1000", 1),
        (r"\boxed{5}", "The answer is $5$.", 1),
        (r"\boxed{5}", 5, 1),
        (r"\boxed{18}", "$18", 1),
        (r"\boxed{\text{Evelyn}}", "Evelyn", 1),
        (r"\boxed{}", "5", 0),
        (r"\boxed{1/0}", "5", 0),
        ("5", "5", 0),
        ("", "5", 0),
        ("\\boxed{\x00\x1b[31m5}", "5", 0),
        ("\\boxed{\ud800 6}", "5", 0),
    ],
)
def test_answers_count_by_their_value(completion, reference, value):
    """However it is written, what stands in the last box decides; what cannot be read is wrong."""
    assert math_verdict(completion, reference)[:2] == (value, "ok")


@pytest.mark.parametrize("reference", ["", "  ", r"\boxed{}", None, True, ["5"]])
def test_a_reference_that_cannot_be_read_is_no_zero(reference):
    """Where the reference cannot be read there is a status in place of a value, and the check before a run sees it."""
    assert math_verdict(r"\boxed{5}", reference)[:2] == (None, "no_reference")
    assert not readable_reference(reference)
    assert readable_reference("5")


def test_long_boxes_are_not_read():
    """A box of more than 2000 characters has a status, and the limit itself is read."""
    assert math_verdict(r"\boxed{" + "1" * 2001 + "}", "5")[:2] == (None, "too_long")
    assert math_verdict(r"\boxed{" + "1" * 2000 + "}", "5")[:2] == (0, "ok")


def test_no_text_is_evaluated(monkeypatch, tmp_path):
    """Code in an answer is not run: with sympy's evaluation of texts made to fail, all results are the same."""
    import sympy.parsing.sympy_parser as parser

    def refuse(*args):
        raise AssertionError("a text was evaluated")

    made = tmp_path / "made"
    code = f"__import__('os').system('touch {made}')"
    for text in (
        rf"\boxed{{{code}}}",
        f"${code}$",
        rf"\[{code}\]",
        rf"\boxed{{\text{{{code}}}}}",
        f"the answer is {code}",
    ):
        assert math_verdict(text, "5").value == 0
        assert not made.exists()
    monkeypatch.setattr(parser, "eval_expr", refuse)
    assert math_verdict(r"\boxed{1.50}", r"\frac{3}{2}").value == 1
    assert math_verdict(r"\boxed{1E3}", "1000").value == 1
    with pytest.raises(AssertionError, match="evaluated"):
        parser.parse_expr("1")  # sympy's own reader is back


@pytest.mark.slow
def test_every_answer_of_math_500_is_that_of_its_solution(shared_data):
    """All 500 answers, in a box, have the value of their solutions, and the solutions that of their answers."""
    problems = rows(shared_data, "math500-test.jsonl")
    boxed = [rf"\boxed{{{problem['answer']}}}" for problem in problems]
    assert sum(math_verdict(a, p["solution"]).value == 1 for a, p in zip(boxed, problems, strict=True)) == 500
    assert sum(math_verdict(p["solution"], p["answer"]).value == 1 for p in problems) == 500
    others = [*problems[1:], problems[0]]
    same = [p["answer"] == o["answer"] for p, o in zip(problems, others, strict=True)]
    right = [math_verdict(a, other["solution"]).value == 1 for a, other in zip(boxed, others, strict=True)]
    assert sum(right) <= sum(same) + 1  # "5" is the answer to a question that asks for x = 5


def test_reasons_are_fit_to_be_shown():
    """Foreign text in a reason is one short line without control characters."""
    assert shown("a\n\x1b[31mb") == r"a \x1b[31mb"
    assert shown("a" * 1000, 10) == "a" * 9 + "…"
    assert len(shown("\x00" * 1000, 50)) == 50
