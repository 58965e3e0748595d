"""Arithmetic in a required form: what is right, what the form is, and how rows go wrong."""

from __future__ import annotations

import math
import re

import pytest

from humanline.reproduce.testbeds.arithmetic import LARGEST, SLIPS, SMALL, Arithmetic, right_in_form, solution
from humanline.train.config.rounds import FormatReward
from humanline.train.online.rewards.verifiers import format_verdict
from humanline.train.policy.new_tokenizer import train_tokenizer

TASK = Arithmetic()


def answered(number: str, thoughts: str = "x") -> str:
    return f"<think>\n{thoughts}\n</think>\n<answer>\n{number}\n</answer>"


def reckoned(text: str) -> int:
    """Return what a sum of numbers and signs comes to, read from left to right."""
    total, sign = 0, 1
    for part in re.split("([+-])", text):
        if part in "+-":
            sign = 1 if part == "+" else -1
        else:
            total += sign * int(part)
    return total


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (answered("13"), 1.0),
        (answered("13", "07+18=25\n25-12=13"), 1.0),
        (answered("13", "nonsense"), 1.0),  # only the answer is verified
        (answered(" 13.0 "), 1.0),  # the same number
        (answered("14"), 0.2),
        (answered("-13"), 0.2),
        (answered(""), 0.2),
        (answered("it is 13"), 1.0),  # as every number is read: the last one
        (answered("13 or 14"), 0.2),
        (answered("13\n14"), 0.1),  # two lines are another form; its tags are there
        (answered("13") + "\n", 0.1),
        ("so\n" + answered("13"), 0.1),
        (answered("13").replace("\n</think>", ""), 0.075),
        (answered("13").replace("<answer>\n", ""), 0.075),
        ("<answer>\n13\n</answer>\n<think>\nx\n</think>", 0.05),
        (answered("13", "<think>\nx"), 0.075),
        ("13", 0.0),
        ("", 0.0),
    ],
)
def test_an_answer_is_right_only_in_the_form(answer, score):
    """Right and in form 1; in form 0.2; else a fortieth for each tag that stands there once with its line ends."""
    assert TASK.score("07+18-12", answer) == pytest.approx(score)


def test_the_form_is_one_that_the_recipes_ask_for():
    """What has the form here matches the pattern of the format reward, whose default is the paper's."""
    pattern = FormatReward().pattern
    for row in TASK.rows("near", 0)[:500]:
        assert TASK.has_form(row["completion"]) == bool(format_verdict(row["completion"], pattern).value)
    assert not TASK.has_form(answered("13", "</think>\n<answer>"))


def test_solutions_are_those_of_another_reckoning():
    """Every problem comes to what reading it from left to right gives, and no step leaves 0 .. LARGEST."""
    for problem in TASK.prompts("score"):
        assert solution(problem) == reckoned(problem)
        numbers = [int(number) for number in re.findall("[0-9]+", problem)]
        assert len(numbers) in (2, 3) and all(1 <= number <= LARGEST for number in numbers)
        assert 0 <= reckoned(problem[:5]) <= LARGEST and 0 <= reckoned(problem) <= LARGEST


@pytest.mark.parametrize("prompt", ["", "7+8", "07+18-12-01", "07*18", "07+18 ", "٠٧+18", "x07+18"])
def test_a_prompt_that_is_no_problem_is_an_error(prompt):
    """A reward that is asked about something else says so instead of calling it wrong."""
    with pytest.raises(ValueError, match="is no problem such as"):
        right_in_form([{"role": "user", "content": prompt}], answered("13"))


@pytest.mark.parametrize("source", SLIPS)
def test_slips_are_of_their_source(source):
    """Steps go wrong as often as declared, by 1 or 10 or by the sign; results are gone on from; forms go wrong too."""
    rows = TASK.rows(source, 0)
    steps = wrong = formless = 0
    for row in rows:
        result = int(row["prompt"][:2])
        for before, term, after in re.findall(r"(-?[0-9]+)([+-][0-9]{2})=(-?[0-9]+)", row["completion"]):
            assert int(before) == result
            slip = int(after) - int(before) - int(term)
            steps, wrong, result = steps + 1, wrong + (slip != 0), int(after)
            assert slip in ((0, -2 * int(term)) if source == "far" else (0, -10, -1, 1, 10))
        formless += not TASK.has_form(row["completion"])
        assert f"{result:02d}" in row["completion"].splitlines()
    for found, count, expected in ((wrong, steps, SLIPS[source][0]), (formless, len(rows), SLIPS[source][1])):
        assert abs(found / count - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


def test_every_number_is_one_token():
    """The tokenizer that start models get has a token for each number, so that sums are of two tokens."""
    rows = TASK.rows("near", 0)
    tokenizer = train_tokenizer([text for row in rows for text in row.values()], SMALL.vocab_size)
    assert all(len(tokenizer(f"{number:02d}").input_ids) == 1 for number in range(LARGEST + 1))
    assert len(tokenizer) < SMALL.vocab_size  # every word of theirs has a token, and none is left out
