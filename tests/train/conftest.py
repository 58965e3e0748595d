"""A tokenizer for every test of training, built here: nothing is downloaded; and what starts runs to kill them.

What a room needs alone is imported here within its fixture: tests of data make no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tests.helpers.kills import Server

TEXTS = [
    "The cat sat on the mat, and the dog sat on the cat. What is the cat on? The mat.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 2))  # 4\n",
    "Two and two make four; four and four make eight. Grüße aus Köln, 東京 и Москва. 🙂",
]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Offer a byte-level tokenizer with a chat template; tests that change it make a copy."""
    from humanline.train.policy.new_tokenizer import train_tokenizer

    return train_tokenizer(TEXTS * 3, vocab_size=400)


@pytest.fixture(scope="session")
def prompts(toy) -> str:
    """The toy's prompts, alone."""
    return toy["prompts"]


@pytest.fixture
def write(tmp_path):
    """Write rows to rows.jsonl."""

    def to_file(*rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return to_file


@pytest.fixture(scope="session")
def server(toy, tmp_path_factory) -> Iterator[Server]:
    """Start runs in processes of their own, without the time it takes to import what they need.

    They have a small file system that they alone see, where mounting is allowed.
    """
    from tests.helpers.kills import Server, mounts_are_allowed

    folder = tmp_path_factory.mktemp("small")
    with Server(toy["model"], mount=folder if mounts_are_allowed(folder) else None) as server:
        yield server
