"""A testbed whose start model and runs take a second: echoing a word; a module of its own, so that workers find it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from humanline.reproduce.testbeds.base import Part, Size, Source, Testbed, last_text

WORDS = ["".join(letters) for letters in itertools.product("abc", repeat=5)]
PARTS: dict[Part, slice] = {
    "train": slice(0, 40),
    "pairs": slice(40, 200),
    "score": slice(200, 210),
    "distance": slice(210, 218),
}


class Echo:
    """The task: the share of places in which the answer has the word's letter."""

    def rows(self, source: Source, seed: int) -> list[dict[str, str]]:
        rng = random.Random(f"{source} {seed}")
        rows = [{"prompt": word, "completion": word} for word in self.prompts("train") for _ in range(4)]
        rng.shuffle(rows)
        return rows

    def prompts(self, part: Part) -> list[str]:
        return WORDS[PARTS[part]]

    def score(self, prompt: str, answer: str) -> float:
        return sum(a == b for a, b in zip(prompt, answer, strict=False)) / max(len(prompt), len(answer))

    def judged(self, prompt: str, answer: str) -> float:
        return self.score(prompt, answer) + 0.001 * (len(answer) % 3)


def judged(prompt: Sequence[Mapping[str, str]], completion: str) -> float:
    """Return what the judge says: a reward for rounds."""
    return Echo().judged(last_text(prompt), completion)


def indifferent(prompt: Sequence[Mapping[str, str]], completion: str) -> float:
    """Return the same of every answer: rounds are left without a pair."""
    return 0.5


MICRO = Testbed(
    name="micro",
    task=Echo(),
    size=Size(hidden_size=16, layers=1, heads=2, steps=12, batch_size=32, lr=1e-2),
    reward="tests.helpers.micro_testbed:judged",
    max_tokens=7,
    max_length=32,
    vocab_size=280,
    description="echoing a word",
)
