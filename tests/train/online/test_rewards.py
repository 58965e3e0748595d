"""Verifiers: what is read out of a text, and what it is worth."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import pytest

from humanline.train.config.rounds import FormatReward
from humanline.train.online.rewards.math_answer import _is_prose, last_box, math_verdict, readable_reference
from humanline.train.online.rewards.verdict import shown
from humanline.train.online.rewards.verifiers import format_verdict, number_verdict, read_number, tag_count_verdict


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
        ("1e3", 1000),
        ("#### 1.5e3", 1500),
        ("2E-2", Fraction(1, 50)),
        ("#### 1e400", 10**400),
        ("1e9999", None),
        ("#### 1.2 × 10^3", 1200),
        (r"5 \times 10^{-1}", Fraction(1, 2)),
        ("3 eggs", 3),
        ("3e", 3),
        ("125, 96", 96),
        ("125,96", None),
        ("#### 125,96", None),
        ("1,2,3", None),
        ("10,20", None),
        ("1234,567", None),
        ("1,234,56", None),
        ("0,500", None),
        ("1.234,5", None),
        ("1.234.567", None),
        ("wait...5", 5),
        ("no number", None),
        ("", None),
        ("18\n####", None),
        ("x = - 5", -5),
        ("x = –5", -5),
        (r"so -\$5", -5),
        ("-$ 5", -5),
        ("3 - 5", 5),
        ("pages 3–5", 5),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac{\pi}{2}", None),
        ("2 1/2", None),
        (r"2\frac{1}{2}", None),
        ("#### 3 3/4", None),
        ("10^3", None),
        ("2^10 = 1024", 1024),
        ("3 ** 2", None),
        ("1{,}000", 1000),
        (r"1\,000", 1000),
        ("1\u202f000", 1000),
        ("1 000", None),
        ("1'000", None),
        ("1 000 000", None),
        ("#### 1 000", None),
        ("in 2020 300 people", 300),
        ("#### Step 2: Add\n3+4=7. The answer is 7", 7),
        ("#### 4. Conclusion\nTotal: **18**", 18),
        ("#### 4.5", Fraction(9, 2)),
        ("A: 18 eggs in 3 boxes", 18),
        ("The answer is **72** (rounded).", 72),
        ("Total (in dollars) **72**", 72),
        (r"The angle is $72^\circ$.", 72),
        (r"#### 45^{\circ}", 45),
        ("Answer:\n- 42", 42),
        ("- 42 apples", 42),
        ("#### **72**\n\nCheck: 3*24", 72),
        ("#### \\boxed{72}\nCheck: 3", 72),
        ("#### Answer: 72\n(3 boxes)", 72),
        ("#### Summary\n3+4=7. So 7", 7),
        ("2^{10}", None),
        *[(text, Fraction(3, 4)) for text in ("3 / 4", "#### 3 / 4", "A: 3 /4", "3/ 4 of it", "3⁄4", "so x = 3 / 4.")],
        ("#### 1.5 / 2.5", Fraction(3, 5)),
        ("3/1,000", Fraction(3, 1000)),
        ("#### -3 / 4", Fraction(-3, 4)),
        ("#### 3 / 0", None),
        ("#### 3 / 4,5", None),
        ("#### 2 3 / 4", None),
        ("2 3 / 4", None),
        ("#### 60 / hour", 60),
        ("#### 18\n- 3 boxes", 18),
        ("#### 72 - that is all", 72),
        *[(f"#### {text}", None) for text in ("3 + 4", "3*4", "3 × 4 = 12", "3-4", "3/4/5", "(3)/(4)", "3:4", "3 ÷ 4")],
        *[(rf"#### {text}", None) for text in (r"3 \times 4", r"3 \cdot 4", "10 - $5", r"2\sqrt{3}", r"2\pi")],
        *[
            (rf"#### {text}", None)
            for text in (r"2 \cdot \sqrt{3}", "1 + √5", "2 * sqrt(3)", r"3 - \pi", r"2 - \frac{x}{3}")
        ],
        *[(f"#### {text}", None) for text in ("**3** - 1", "3 + **4**", "**3*4**")],
        *[(text, None) for text in ("#### sqrt(2)", r"\sqrt{2}", "√2", r"\sqrt[3]{2}", r"#### \sqrt[3]{8}")],
        ("1/2,1/3", Fraction(1, 3)),
        ("1/2,1 / 3", Fraction(1, 3)),
        *[(text, Fraction(3, 1000)) for text in ("#### $3/1,000/day", "It is 3/1,000/day", "#### 3/1,000 / day")],
        ("#### 3/1,000/2", None),
        ("#### 3*\n- 4 boxes", 3),
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


def test_a_fraction_is_its_value_whatever_the_spaces():
    assert number_verdict("#### 3 / 4", "0.75").value == 1
    assert number_verdict("#### 3 / 4", "3").value == number_verdict("3 / 4", "4").value == 0


def test_numbers_are_compared_exactly():
    """Equal values match however they are written, and nothing else does, not even by a rounding error of floats."""
    assert number_verdict("#### 70000", "A: 70,000").value == 1
    assert number_verdict("0.50", "1/2").value == 1
    assert number_verdict("0.30000000000000004", "0.3").value == 0
    assert number_verdict("12345678901234567891", "12345678901234567890").value == 0
    assert number_verdict("nothing", "3").value == 0
    assert number_verdict("#### 1e400", "1").value == 0
    assert number_verdict("#### 1e3", "1000").value == 1


@pytest.mark.parametrize("reference", ["125", "96", "125.96", "12596", "125,960", "125,96"])
def test_a_comma_that_may_mean_several_things_is_no_right_answer(reference):
    """125,96 is neither of its two numbers, nor a decimal, nor a number with a slip: as a reference it is none."""
    assert number_verdict("#### 125,96", reference).value in (0, None)
    assert number_verdict("so it is 125,96", reference).value in (0, None)
    assert (number_verdict("#### 125,96", reference).value is None) == (reference == "125,96")


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


# Answer, reference, whether the one is right by the other.
NOTATION = [
    # A full stop, and an answer that is said to be rounded.
    ("36.", "36", 1),
    ("36.", "37", 0),
    ("36..", "36", 0),
    ("0.333...", "0.333", 0),
    ("(1,2).", "(1,2)", 1),
    (r"\text{Evelyn}.", "Evelyn", 1),
    (r"\approx 36", "36", 1),
    ("≈ 36.", "36", 1),
    (r"x \approx 36.", "36", 1),
    (r"\approx 36", "37", 0),
    (r"\approx 36", "36.1", 0),
    (r"\approx 3.14", r"\pi", 0),
    ("36", r"\approx 36.", 1),
    # Bases: the digits and the base must be those of the reference; an answer that names no base has its digits.
    ("52_8", "52_9", 0),
    ("52_8", "52_8", 1),
    ("52_{8}", "52_8", 1),
    (r"52_{\text{eight}}", "52_8", 1),
    (r"52_{\text{nine}}", r"52_{\text{eight}}", 0),
    ("(52)_8", "52_8", 1),
    ("52₈", "52_8", 1),
    (r"52\text{ (base 8)}", "52_8", 1),
    (r"52\text{ (base 9)}", "52_8", 0),
    (r"52\text{ base }8", "52_8", 1),
    ("52 base 9", "52_8", 0),
    ("x = 52_8", "52_9", 0),
    ("-52_8", "52_8", 0),
    ("52", "52_8", 1),
    ("42", "52_8", 0),  # what it is worth in base ten, which is what such a problem gives
    ("52_8", "42", 0),
    ("52_8", "52", 0),
    ("42_{10}", "52_8", 0),
    ("52_{10}", "52", 1),
    ("52", r"52_{\text{ten}}", 1),
    ("101_2", "5", 0),
    ("1a4_{16}", "1A4_{16}", 1),
    ("4A1_{16}", "1A4_{16}", 0),
    ("1A4_{12}", "1A4_{16}", 0),
    ("12_3, 22_3", "22_3, 12_3", 1),
    ("12_3, 22_4", "22_3, 12_3", 0),
    (r"\frac{52_8}{2}", r"\frac{52_9}{2}", 0),
    ("52_b", "52_c", 0),
    *[(rf"\Xi_{{{number}}}", "52_8", 0) for number in (0, 1, 1000, 1001)],  # what stands for it meanwhile
    ("x^2_1", "x_1^2", 1),
    (r"\log_2 8", "3", 1),
    # A letter at the end is a variable, and a unit only behind a single number where the reference has no letters.
    ("6+9c", "9c+6", 1),
    ("6+9c", "15", 0),
    ("6+9c", "6+9d", 0),
    ("15", "6+9c", 0),
    ("6-9m", "-9m+6", 1),
    ("x^2 + c", "c+x^2", 1),
    ("x^2 + c", "x^2", 0),
    ("9", "9c", 0),
    ("9d", "9c", 0),
    ("2k", "2", 0),
    ("3ab", "3ba", 1),
    ("3ab", "3bc", 0),
    ("3ab", "3", 0),
    ("2t", "t+t", 1),
    (r"2\pi", r"2\pi r", 0),
    ("5 m", "5", 1),
    ("x = 5 m", "5", 1),
    (r"\frac{1}{2} m", "0.5", 1),
    (r"2\sqrt{3} m", r"2\sqrt{3}", 1),
    ("5 m", "6", 0),
    ("5 cm", r"5\text{ cm}", 1),
    # Line ends.
    ("\\text{even\nfunction}", r"\text{even function}", 1),
    (r"\text{Evelyn\\}", "Evelyn", 1),
    (r"\text{Evelyn}\\", "Evelyn", 1),
    ("\\text{odd\nfunction}", r"\text{even function}", 0),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", 1),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", 0),
    # Powers of ten.
    ("1e3", "1000", 1),
    ("1.2345e2", "123.45", 1),
    ("1e3", "3", 0),
    ("1e400", "1", 0),
    ("1e3", "3e", 0),
    ("e^2", "e^2", 1),
    ("1e+3", "1000", 1),
    ("1000", "1e+3", 1),
    ("1e+3", "1001", 0),
    ("1e+22", "10^{22}", 1),
    ("2e+22", r"2 \times 10^{22}", 1),  # as programs write it
    ("2e+16", "2e+16", 1),
    ("2e+15", "16e+15", 0),
    (r"2 \times 10^{-10}", 2e-10, 1),
    (r"2 \cdot 10^{-19}", "2e-19", 1),
    ("-10 + 2e", "2e-10", 1),
    (".0000000003", "2e-10", 0),
    ("2e+3", "2003", 0),
    ("2.5e+2", "250", 1),
    ("-1e+3", "1000", 0),
    ("2e+3", "2e+3", 1),
    ("1e-3", ".001", 1),
    ("5e-4", "0.0005", 1),
    ("-1.25e-2", "-0.0125", 1),
    ("0.001", "1e-3", 1),
    ("0.00005", 5e-05, 1),
    ("2e-9", r"2\cdot 10^{-9}", 1),
    ("x = 1e-3", "0.001", 1),
    ("1e-3 m", "0.001", 1),
    ("1e-3", ".01", 0),
    ("1e-3", "1000", 0),
    ("-1e-3", ".001", 0),
    ("1e-8", ".00000002", 0),
    ("1e-8", "2e-8", 0),
    ("1e-400", "0", 0),
    ("1e-3", "3", 0),
    ("1.0004e-3", ".0010004", 1),
    ("1.0004e-3", ".001", 0),
    ("2e-3", "2e - 3", 1),  # Euler's number, which a reference may mean
    ("-3 + 2e", "2e-3", 1),
    ("0.002", "2e-3", 0),
    # A comma without a space is read as between the members of a list, or between thousands, and never as a decimal.
    ("125,96", "96, 125", 1),
    ("125,96", "125.96", 0),
    ("125.96", "125,96", 0),
    ("125,96", "125", 0),
    ("125,96", "96", 0),
    ("125,96", "12596", 0),
    ("125{,}96", "125.96", 0),
    ("125,960", "125960", 1),
]


@pytest.mark.parametrize(("answer", "reference", "right"), NOTATION)
def test_notation_is_read_as_it_is_meant(answer, reference, right):
    """Every way of writing that math-verify alone misreads is right where it should be, and wrong elsewhere."""
    assert math_verdict(rf"\boxed{{{answer}}}", reference)[:2] == (right, "ok")


@pytest.mark.parametrize(
    ("completion", "reference", "right"),
    [
        ("so it is $\\text{even\nfunction}$", r"\text{even function}", 1),
        ("so it is $\\text{odd\nfunction}$", r"\text{even function}", 0),
        (r"\boxed{\text{even function}}", "It is $\\text{even\nfunction}$", 1),
        (r"so it is $\approx 36.$", "36", 1),
        ("so it is $52_8$", "52_9", 0),
        ("so it is $52_8$", "It is $52_8$.", 1),
        ("so it is $6+9c$", "$9c+6$", 1),
        ("so it is $6+9c$", "15", 0),
        ("so it is $5 m$", "$5$", 1),
    ],
)
def test_notation_outside_a_box_is_read_alike(completion, reference, right):
    """The same holds for the last formula of a text without a box, and for references that are such texts."""
    assert math_verdict(completion, reference)[:2] == (right, "ok")


def test_changed_answers_of_math_500_are_wrong(shared_data):
    """With a digit changed, or a letter, a base, a sign or a power added, no number of MATH-500 is right any more."""
    rng = random.Random(0)
    answers = [row["answer"] for row in rows(shared_data, "math500-test.jsonl")]
    plain = [one for one in answers if one.isdigit() and int(one)]
    for answer in rng.sample(plain, 40):
        place = rng.randrange(len(answer))
        other = answer[:place] + str((int(answer[place]) + rng.randint(1, 9)) % 10) + answer[place + 1 :]
        wrong = [other, f"{other}.", rf"\approx {other}", f"{answer}_7", f"-{answer}.", f"{answer}+2c", f"{answer}e1"]
        for one in wrong:
            assert math_verdict(rf"\boxed{{{one}}}", answer).value == 0, (one, answer)
        assert math_verdict(rf"\boxed{{{answer}.}}", answer).value == 1


@pytest.mark.parametrize("reference", ["", "  ", r"\boxed{}", None, True, ["5"]])
def test_a_reference_that_cannot_be_read_is_no_zero(reference):
    """Where the reference cannot be read there is a status in place of a value, and the check before a run sees it."""
    assert math_verdict(r"\boxed{5}", reference)[:2] == (None, "no_reference")
    assert not readable_reference(reference)
    assert readable_reference("5")


@pytest.mark.parametrize(
    ("reference", "box"),
    [
        ("Janet has 16 - 3 - 4 = <<16-3-4=9>>9 eggs, of $2 each.\n#### 18", "18"),
        ("#### 72", "72"),
        ("3 cm", "3"),
        ("3 and 5", "3, 5"),
        ("n=3 and n=7", "3, 7"),
        ("[2, infinity)", r"[2, \infty)"),
        ("abc+2", "2+abc"),
        (r"\operatorname{arcsinh}(2)", r"\operatorname{arcsinh}(2)"),
        ("Evelyn", "Evelyn"),
        ("2xy", "2xy"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ],
)
def test_a_reference_may_be_a_solution_of_gsm8k_or_have_a_unit(reference, box):
    assert math_verdict(rf"\boxed{{{box}}}", reference)[:2] == (1, "ok")
    assert readable_reference(reference)


@pytest.mark.parametrize("reference", ["72 clips", "The answer is 72.", "Answer: 72", "18 dollars", "1/2 cup", "pi/2"])
def test_a_sentence_is_no_reference(reference):
    """It would be read as a product of letters, which no right answer has."""
    assert math_verdict(r"\boxed{72}", reference)[:2] == (None, "no_reference")
    assert not readable_reference(reference)


def test_every_reference_of_gsm8k_is_read(shared_data):
    """A right answer in a box scores 1, where it scored 0 without a word."""
    answers = [row["answer"] for row in rows(shared_data, "gsm8k-test.jsonl")][:40]
    boxed = [rf"\boxed{{{answer.rpartition('####')[2].strip()}}}" for answer in answers]
    assert [math_verdict(one, answer).value for one, answer in zip(boxed, answers, strict=True)] == [1] * 40


def test_no_reference_of_math_500_is_a_sentence(shared_data):
    assert not [row["answer"] for row in rows(shared_data, "math500-test.jsonl") if _is_prose(row["answer"])]


@pytest.mark.parametrize("space", [r"\,", r"\ ", "~", r"\;"])
def test_a_space_between_thousands_is_no_product(space):
    assert math_verdict(rf"\boxed{{10{space}000}}", "10000").value == 1
    assert math_verdict(r"\boxed{10000}", f"10{space}000").value == 1
    assert math_verdict(r"\boxed{(1,\ 200)}", "(1,200)").value == 1


def test_want_of_memory_is_no_verdict(monkeypatch):
    """Neither in reading nor in comparing: the answer may be right."""
    import math_verify

    for name in ("verify", "parse"):
        with monkeypatch.context() as patched:
            patched.setattr(math_verify, name, lambda *_, **__: (_ for _ in ()).throw(MemoryError))
            with pytest.raises(MemoryError):
                math_verdict(r"\boxed{x+1}", "1+x")


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
