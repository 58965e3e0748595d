"""Sorting letters: the score, and the sizes of the problem."""

from __future__ import annotations

import pytest

from humanline import demo
from humanline.reproduce.testbeds.letters import LARGE, SMALL, letters_in_place


def test_the_score_is_the_share_of_letters_in_place():
    """Missing and surplus letters count against an answer."""
    for task in (SMALL.task, LARGE.task):
        assert task.score("cab", "abc") == 1.0
        assert task.score("cab", "acb") == pytest.approx(1 / 3)
        assert task.score("cab", "abcd") == 0.75
        assert task.score("cab", "") == task.score("", "") == 0.0


def test_the_small_one_is_the_demos():
    """Its words are drawn as the demo's, and its reward is the demo's."""
    assert SMALL.task.prompts("train") == demo._words(1500, seed=1)
    for row in SMALL.task.rows("far", 0)[:100]:
        prompt = [{"role": "user", "content": row["prompt"]}]
        assert letters_in_place(prompt, row["completion"]) == demo.letters_in_place(prompt, row["completion"])


@pytest.mark.parametrize(("bed", "letters", "lengths"), [(SMALL, 10, range(4, 8)), (LARGE, 20, range(6, 11))])
def test_words_are_of_their_letters_and_lengths(bed, letters, lengths):
    """All letters of the alphabet and all lengths are there, and no others; the two problems share no word."""
    words = bed.task.prompts("pairs")
    assert {len(word) for word in words} == set(lengths)
    assert {letter for word in words for letter in word} == {chr(ord("a") + i) for i in range(letters)}
    other = SMALL if bed is LARGE else LARGE
    assert not set(words) & set(other.task.prompts("train"))
