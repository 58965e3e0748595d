"""Sorting letters: the score, and the sizes of the problem."""

from __future__ import annotations

import pytest

from humanline.reproduce.testbeds.letters import LARGE, SMALL, letters_in_place


def test_the_score_is_the_share_of_letters_in_place():
    """Missing and surplus letters count against an answer."""
    for task in (SMALL.task, LARGE.task):
        assert task.score("cab", "abc") == 1.0
        assert task.score("cab", "acb") == pytest.approx(1 / 3)
        assert task.score("cab", "abcd") == 0.75
        assert task.score("cab", "") == task.score("", "") == 0.0


def test_the_reward_is_the_score_of_the_last_message():
    """Rounds give messages: the word is in the last of them."""
    prompt = [{"role": "system", "content": "Sort."}, {"role": "user", "content": "cab"}]
    assert letters_in_place(prompt, "abd") == pytest.approx(2 / 3) and letters_in_place(prompt, "") == 0.0


@pytest.mark.parametrize(("bed", "letters", "lengths"), [(SMALL, 10, range(4, 8)), (LARGE, 20, range(6, 11))])
def test_words_are_of_their_letters_and_lengths(bed, letters, lengths):
    """All letters of the alphabet and all lengths are there, and no others; the two problems share no word."""
    words = bed.task.prompts("pairs")
    assert {len(word) for word in words} == set(lengths)
    assert {letter for word in words for letter in word} == {chr(ord("a") + i) for i in range(letters)}
    other = SMALL if bed is LARGE else LARGE
    assert not set(words) & set(other.task.prompts("train"))
