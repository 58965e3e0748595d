"""Sorting the letters of a word: the smallest testbed, and the demo's.

The score is the share of letters in the right place. A start model learns from answers in which letters are swapped; a
far one from answers in which letters are written over by others, which is about as wrong in another way; a better one
from answers with fewer swaps. The judge has no noise.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence

from humanline.reproduce.testbeds.base import Part, Size, Source, Testbed, last_text

LETTERS = "abcdefghij"
#: How many words each part has, in the order in which they are drawn.
PARTS: dict[Part, int] = {"train": 1500, "pairs": 2560, "score": 512, "distance": 640}
#: Of these numbers of mistakes each is as likely as another.
MISTAKES: dict[Source, tuple[int, ...]] = {"near": (0, 1, 1, 2), "far": (0, 1, 1, 2), "better": (0, 0, 0, 1)}


class Letters:
    """The task (`Task`)."""

    def rows(self, source: Source, seed: int) -> list[dict[str, str]]:
        """Return the words to learn from, each with its letters sorted but for mistakes."""
        rng = random.Random(f"{source} {seed}")
        rows = []
        for word in self.prompts("train"):
            answer = sorted(word)
            for _ in range(rng.choice(MISTAKES[source])):
                i, j = rng.randrange(len(answer)), rng.randrange(len(answer))
                if source == "far":
                    answer[i] = rng.choice(LETTERS)
                else:
                    answer[i], answer[j] = answer[j], answer[i]
            rows.append({"prompt": word, "completion": "".join(answer)})
        return rows

    def prompts(self, part: Part) -> list[str]:
        """Return words of 4 to 7 letters."""
        words = _words(sum(PARTS.values()))
        first = 0
        for name, count in PARTS.items():
            if name == part:
                return list(words[first : first + count])
            first += count
        raise ValueError(f"no part {part!r}")

    def score(self, prompt: str, answer: str) -> float:
        """Return the share of places in which the answer has the letter that sorting puts there, in [0, 1].

        Missing and surplus letters count against it.
        """
        target = "".join(sorted(prompt))
        hits = sum(a == b for a, b in zip(target, answer, strict=False))
        return hits / max(len(target), len(answer))

    def judged(self, prompt: str, answer: str) -> float:
        """Return the score."""
        return self.score(prompt, answer)


def letters_in_place(prompt: Sequence[Mapping[str, str]], completion: str) -> float:
    """Return the share of letters that a completion puts where sorting the word puts them: a reward for rounds.

    Parameters
    ----------
    prompt : sequence of {"role", "content"}
        Its last message is the word.
    completion : str

    Returns
    -------
    float
        In [0, 1]; missing and surplus letters count against it.
    """
    return Letters().judged(last_text(prompt), completion)


@functools.cache
def _words(count: int) -> tuple[str, ...]:
    rng = random.Random(1)
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(rng.choice(LETTERS) for _ in range(rng.randint(4, 7)))] = None
    return tuple(words)


SMALL = Testbed(
    name="letters",
    task=Letters(),
    size=Size(hidden_size=64, layers=2, heads=4, steps=700, batch_size=64, lr=2e-3),
    reward="humanline.reproduce.testbeds.letters:letters_in_place",
    max_tokens=12,
    max_length=48,
    vocab_size=300,
    description="sorting the letters of a word; the score is the share of letters in place",
)
