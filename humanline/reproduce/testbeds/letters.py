"""Sorting the letters of a word: the smallest testbed, and the demo's; and the same with longer words of more letters.

The score is the share of letters in the right place. A start model learns from answers in which letters are swapped; a
far one from answers in which letters are written over by others, which is about as wrong in another way; a better one
from answers with fewer swaps. The judge has no noise.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from humanline.reproduce.testbeds.base import Gemma2Size, Part, Size, Source, Testbed, dealt, last_text

#: How many words each part has besides those to learn from.
PARTS: dict[Part, int] = {"pairs": 2560, "score": 512, "distance": 640}


@dataclass(frozen=True, slots=True)
class Letters:
    """The task (`Task`).

    Parameters
    ----------
    letters : str
        Of which words are made, in their order.
    shortest, longest : int
        Letters of a word.
    learned : int
        Words to learn from; `PARTS` has the sizes of the other parts.
    mistakes : mapping of Source to tuple of int
        Numbers of mistakes in an answer to learn from, of which each is as likely as another.
    """

    letters: str
    shortest: int
    longest: int
    learned: int
    mistakes: Mapping[Source, tuple[int, ...]] = field(hash=False)

    def rows(self, source: Source, seed: int) -> list[dict[str, str]]:
        """Return the words to learn from, each with its letters sorted but for mistakes."""
        rng = random.Random(f"{source} {seed}")
        rows = []
        for word in self.prompts("train"):
            answer = sorted(word)
            for _ in range(rng.choice(self.mistakes[source])):
                i, j = rng.randrange(len(answer)), rng.randrange(len(answer))
                if source == "far":
                    answer[i] = rng.choice(self.letters)
                else:
                    answer[i], answer[j] = answer[j], answer[i]
            rows.append({"prompt": word, "completion": "".join(answer)})
        return rows

    def prompts(self, part: Part) -> list[str]:
        """Return words."""
        return list(_words(self.letters, self.shortest, self.longest, self.learned)[part])

    def score(self, prompt: str, answer: str) -> float:
        """Return the share of places in which the answer has the letter that sorting puts there, in [0, 1].

        Missing and surplus letters count against it.
        """
        target = "".join(sorted(prompt))
        hits = sum(a == b for a, b in zip(target, answer, strict=False))
        return hits / max(len(target), len(answer), 1)

    def judged(self, prompt: str, answer: str) -> float:
        """Return the score."""
        return self.score(prompt, answer)


SMALL = Testbed(
    name="letters",
    task=Letters(
        letters="abcdefghij",
        shortest=4,
        longest=7,
        learned=1500,
        mistakes={"near": (0, 1, 1, 2), "far": (0, 1, 2, 3), "better": (0, 0, 0, 1)},
    ),
    size=Size(hidden_size=64, layers=2, heads=4, steps=700, batch_size=64, lr=2e-3),
    reward="humanline.reproduce.testbeds.letters:letters_in_place",
    max_tokens=12,
    max_length=48,
    vocab_size=300,
    description="sorting the letters of a word; the score is the share of letters in place",
)
LARGE = Testbed(
    name="letters-large",
    task=Letters(
        letters="abcdefghijklmnopqrst",
        shortest=6,
        longest=10,
        learned=3000,
        mistakes={"near": (0, 1, 2, 3), "far": (0, 2, 3, 4), "better": (0, 0, 0, 1)},
    ),
    size=Size(hidden_size=128, layers=3, heads=4, steps=700, batch_size=64, lr=2e-3),
    reward="humanline.reproduce.testbeds.letters:letters_in_place",
    max_tokens=16,
    max_length=48,
    vocab_size=262,
    description="sorting the letters of longer words of twice as many letters, by a larger model",
)

#: The small task's words for a larger model of another family (the paper's Figure 9). It is none of the hypotheses'.
GEMMA2 = Testbed(
    name="letters-gemma2",
    task=SMALL.task,
    size=Gemma2Size(hidden_size=128, layers=4, heads=4, steps=700, batch_size=64, lr=1e-3),
    reward="humanline.reproduce.testbeds.letters:letters_in_place",
    max_tokens=12,
    max_length=48,
    vocab_size=300,
    description="sorting the letters of a word, as letters, by a larger model of another family: a tiny Gemma 2",
)


def letters_in_place(prompt: Sequence[Mapping[str, str]], completion: str) -> float:
    """Return the share of letters that a completion puts where sorting the word puts them: a reward for rounds.

    Parameters
    ----------
    prompt : sequence of {"role", "content"}
        Its last message is the word, of any letters.
    completion : str

    Returns
    -------
    float
        In [0, 1]; missing and surplus letters count against it.
    """
    return SMALL.task.judged(last_text(prompt), completion)


@functools.cache
def _words(letters: str, shortest: int, longest: int, learned: int) -> dict[Part, list[str]]:
    """Return the words of every part."""
    rng = random.Random(1)
    drawn = ("".join(rng.choice(letters) for _ in range(rng.randint(shortest, longest))) for _ in itertools.count())
    return dealt(drawn, {"train": learned, **PARTS})
