"""Following instructions in a made-up language, judged by a hidden scorer: the unverifiable testbed, in two sizes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from humanline.reproduce.testbeds.base import Part, Size, Source, Testbed, last_text
from humanline.reproduce.testbeds.instruction_language import Habit, Language
from humanline.reproduce.testbeds.instruction_scorer import Scorer

#: How many prompts each part has, in the order in which they are drawn.
PARTS: dict[Part, int] = {"train": 2000, "pairs": 2560, "score": 512, "distance": 256}
#: How many answers a model learns from for each prompt of the first part; they stand together.
ANSWERS = 4
HABITS: dict[Source, Habit] = {
    "near": Habit(0.75, 0.15, 0.25, ("class", "verb", "turn"), 0.4, (1.0,), 0.45, 0.25, (-2, -1, 0, 0, 1)),
    "far": Habit(0.7, 0.1, 0.3, ("class", "twice", "end"), 0.55, (3.0, 3.0, 1.0, 1.0), 0.5, 0.3, (-1, 0, 0, 1, 1)),
    "better": Habit(0.9, 0.05, 0.1, ("class", "verb", "turn"), 0.4, (2.0, 1.0), 0.6, 0.2, (-1, 0, 0, 1)),
}


@dataclass(frozen=True)
class Instructions:
    """The task (`Task`).

    Parameters
    ----------
    language : Language
    scorer : Scorer
    """

    language: Language
    scorer: Scorer

    def rows(self, source: Source, seed: int) -> list[dict[str, str]]:
        """Return `ANSWERS` answers to every prompt to learn from, as a writer of the source's habit gives them."""
        rng = random.Random(f"{source} {seed} {self.language.seed}")
        return [
            {"prompt": prompt, "completion": self.language.write(self.language.wishes(prompt), HABITS[source], rng)}
            for prompt in self.prompts("train")
            for _ in range(ANSWERS)
        ]

    def prompts(self, part: Part) -> list[str]:
        """Return instructions of which no two are alike."""
        first = 0
        for name, count in PARTS.items():
            if name == part:
                return self._prompts[first : first + count]
            first += count
        raise ValueError(f"no part {part!r}")

    @cached_property
    def _prompts(self) -> list[str]:
        rng = random.Random(f"prompts {self.language.seed}")
        prompts: dict[str, None] = {}
        while len(prompts) < sum(PARTS.values()):
            prompts[self.language.make_prompt(rng)] = None
        return list(prompts)

    def score(self, prompt: str, answer: str) -> float:
        """Return what the answer is worth, in standard deviations of the start model's (`Scorer.score`)."""
        return self.scorer.score(self.language, prompt, answer)

    def judged(self, prompt: str, answer: str) -> float:
        """Return what the judge says it is worth: the score with noise and a liking of length (`Scorer.judged`)."""
        return self.scorer.judged(self.language, prompt, answer)


def judge(prompt: Sequence[Mapping[str, str]], completion: str) -> float:
    """Return what the judge of the small testbed says of a completion: a reward for rounds.

    Parameters
    ----------
    prompt : sequence of {"role", "content"}
        Its last message is the instruction.
    completion : str
        Any text.

    Returns
    -------
    float
        In standard deviations of the start model's true scores; see `Scorer.judged`.

    Raises
    ------
    ValueError
        If the instruction is not of the testbed's language.
    """
    return SMALL.task.judged(last_text(prompt), completion)


def judge_large(prompt: Sequence[Mapping[str, str]], completion: str) -> float:
    """Return what the judge of the large testbed says of a completion: a reward for rounds, otherwise as `judge`."""
    return LARGE.task.judged(last_text(prompt), completion)


SMALL = Testbed(
    name="instructions",
    task=Instructions(
        Language(seed=1, topics=4, nouns=12, verbs=8, modifiers=10, particles=6, particle_last=False),
        Scorer(
            weights={
                "coverage": 1.5,
                "topic": 1.0,
                "unwanted": 0.7,
                "fluency": 1.0,
                "variety": 0.5,
                "length": 0.6,
                "style": 0.7,
                "voice": 0.5,
                "charm": 0.5,
            },
            mean=4.17,
            sd=0.73,
            longer=1.15,
            voice=0.5,
            repeats=0.25,
            noise=0.5,
            length_bias=0.25,
            seed=1,
        ),
    ),
    size=Size(hidden_size=64, layers=2, heads=4, steps=1000, batch_size=32, lr=4e-3),
    reward="humanline.reproduce.testbeds.instructions:judge",
    max_tokens=72,
    max_length=112,
    vocab_size=380,
    description="following instructions in a made-up language; a hidden scorer gives standard deviations of the start",
)
LARGE = Testbed(
    name="instructions-large",
    task=Instructions(
        Language(seed=2, topics=6, nouns=12, verbs=8, modifiers=8, particles=6, particle_last=True),
        Scorer(
            weights={
                "coverage": 1.0,
                "topic": 1.2,
                "unwanted": 1.0,
                "fluency": 1.2,
                "variety": 0.7,
                "length": 0.5,
                "style": 0.5,
                "voice": 0.4,
                "charm": 0.8,
            },
            mean=4.31,
            sd=0.69,
            longer=1.0,
            voice=0.3,
            repeats=0.2,
            noise=0.5,
            length_bias=0.25,
            seed=2,
        ),
    ),
    size=Size(hidden_size=128, layers=3, heads=4, steps=800, batch_size=32, lr=2e-3),
    reward="humanline.reproduce.testbeds.instructions:judge_large",
    max_tokens=72,
    max_length=112,
    vocab_size=400,
    description="the same, larger, in another language and with another scorer",
)
