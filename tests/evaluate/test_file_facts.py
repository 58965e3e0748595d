"""What is seen of rows without a model: ends of answers, and answers on both sides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from humanline.evaluate.file_facts import facts_of

EOS, TURN, NEWLINE = 1, 2, 3


def facts(rows: list[tuple[list[int], list[list[int]]]]):
    """Facts about rows of a prompt and its answers, as tokens; 1 and 2 are special."""
    added = {TURN: SimpleNamespace(special=True), NEWLINE: SimpleNamespace(special=False)}
    tokenizer = SimpleNamespace(added_tokens_decoder=added, eos_token_id=EOS)

    class Sequences:
        def __len__(self) -> int:
            return len(rows)

        def prompt_length(self, row: int) -> int:
            return len(rows[row][0])

        def ids(self, row: int) -> list[np.ndarray]:
            return [np.array([*rows[row][0], *answer]) for answer in rows[row][1]]

    units = SimpleNamespace(sequences=Sequences(), names=[f"f:{n}" for n in range(1, len(rows) + 1)])
    return facts_of(units, None, tokenizer)


@pytest.mark.parametrize(
    ("answer", "lacking"),
    [
        ([7, 8, EOS], 0),
        ([7, 8, TURN, NEWLINE], 0),
        ([7, TURN, NEWLINE, NEWLINE, NEWLINE], 0),
        ([TURN, NEWLINE, 7, 8, 9], 1),  # it begins a turn, and does not end it
        ([7, 8, NEWLINE], 1),
        ([7], 1),  # what its prompt ends with is no end of it
    ],
)
def test_answers_without_an_end_are_counted(answer, lacking):
    found = facts([([5, 5, 5, TURN], [answer])])
    assert (found.without_end, found.rows, found.on_both_sides) == (lacking, 1, ())


def test_an_answer_is_on_both_sides_of_one_prompt_alone():
    """The first row of each side is named, the chosen one first; other prompts have answers of their own."""
    good, bad, end = [7, EOS], [8, EOS], [9, EOS]
    rows = [([5], [good, bad]), ([6], [bad, good]), ([5], [good, end]), ([5], [end, good]), ([6], [end, good])]
    found = facts(rows)
    assert set(found.on_both_sides) == {("f:1", "f:4"), ("f:4", "f:3")}
    assert found.without_end == 0
