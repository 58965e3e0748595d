"""A made-up language in which instructions are given and followed: its words, its grammar, its prompts, its writers.

A prompt names a topic and what is wished of the answer:

    ? ka 2 ! + du ri me - fo

is about the topic ka, of middle length (1 short, 2 middle, 3 long), in a rich style (``!``; ``,`` is plain), with the
words after ``+`` and without those after ``-``. An answer is some sentences, each closed by a full stop:

    [particle] subject [modifier] verb object [modifier].

or, in a language whose particles come last, with the particle before the full stop. Subject and object are nouns, of
the topic if all is well, and the verb is of its subject's class. A great many answers to a prompt are right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

VOWELS = "aeiou"
CONSONANTS = "bdfgklmnprstvzhjwycx"
#: Sentences that a wished length comes to, and words that a sentence comes to.
SENTENCES = {"1": 4, "2": 6, "3": 8}
WORDS = 4.5
RICH, PLAIN = "!", ","
_PROMPT = re.compile(r"\? (\w+) ([123]) ([!,]) \+((?: \w+)+) -((?: \w+)+)")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a prompt asks for.

    Parameters
    ----------
    topic : str
    sentences : int
    rich : bool
    asked, unwanted : tuple of str
        Words to use and words not to use.
    """

    topic: str
    sentences: int
    rich: bool
    asked: tuple[str, ...]
    unwanted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Habit:
    """How a writer of answers writes.

    Parameters
    ----------
    heed : float
        Chance that a word asked for is used, and that one unwanted is left out.
    stray : float
        Chance that another noun is of another topic.
    slip : float
        Chance that a sentence breaks the grammar.
    slips : tuple of str
        How: "class" (a verb of the other class), "verb" (none), "turn" (object before verb), "twice" (a verb and then
        another), "end" (no object).
    particle : float
        Chance that a sentence has a particle.
    likes : tuple of float
        Weights of the language's particles, and in the same order of its modifiers, over and over.
    rich, plain : float
        Chance that a noun has a modifier, in either style.
    lengths : tuple of int
        Sentences too many, each as likely.
    """

    heed: float
    stray: float
    slip: float
    slips: tuple[str, ...]
    particle: float
    likes: tuple[float, ...]
    rich: float
    plain: float
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Language:
    """Words of two letters, dealt to kinds by a seed.

    Parameters
    ----------
    seed : int
    topics, nouns : int
        How many topics, and how many nouns each has.
    verbs, modifiers, particles : int
    particle_last : bool
        Whether a particle closes a sentence or opens it.
    """

    seed: int
    topics: int
    nouns: int
    verbs: int
    modifiers: int
    particles: int
    particle_last: bool

    @cached_property
    def words(self) -> dict[str, tuple[str, ...]]:
        """Return the words of each kind: "topic", "verb", "modifier", "particle", and of every topic its nouns."""
        every = [c + v for c in CONSONANTS for v in VOWELS]
        sizes = {"topic": self.topics, "verb": self.verbs, "modifier": self.modifiers, "particle": self.particles}
        count = sum(sizes.values()) + self.topics * self.nouns
        if count > len(every):
            raise ValueError(f"the language wants {count} words; there are {len(every)}")
        dealt = every[:count]  # as few consonants as will do, so that a small tokenizer has a token for every word
        random.Random(f"words {self.seed}").shuffle(dealt)
        words: dict[str, tuple[str, ...]] = {}
        for kind, size in sizes.items():
            words[kind], dealt = tuple(dealt[:size]), dealt[size:]
        for topic in words["topic"]:
            words[topic], dealt = tuple(dealt[: self.nouns]), dealt[self.nouns :]
        return words

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Return a letter for the kind of every word that answers have: N, V, M or P."""
        letters = {"verb": "V", "modifier": "M", "particle": "P"}
        kinds = {word: letter for kind, letter in letters.items() for word in self.words[kind]}
        return kinds | {noun: "N" for topic in self.words["topic"] for noun in self.words[topic]}

    @cached_property
    def classes(self) -> dict[str, int]:
        """Return the class, 0 or 1, of every noun and verb: the first half of a topic's nouns, and so on."""
        groups = [self.words[topic] for topic in self.words["topic"]] + [self.words["verb"]]
        return {word: int(2 * place >= len(group)) for group in groups for place, word in enumerate(group)}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("NM?VNM?P?" if self.particle_last else "P?NM?VNM?")

    def is_sentence(self, words: Sequence[str]) -> bool:
        """Return whether words are a sentence by the grammar, agreement of subject and verb included."""
        kinds = [self.kinds.get(word, "?") for word in words]
        if not self._pattern.fullmatch("".join(kinds)):
            return False
        return self.classes[words[kinds.index("N")]] == self.classes[words[kinds.index("V")]]

    def make_prompt(self, rng: random.Random) -> str:
        """Return a prompt drawn at random."""
        topic = rng.choice(self.words["topic"])
        nouns = rng.sample(self.words[topic], rng.choice((3, 4)) + 1)
        others = rng.sample(self.words["verb"], 1) + rng.sample(self.words["modifier"], 1)
        asked = [*sorted(nouns[1:]), others[0]]
        unwanted = [nouns[0], others[1]][: rng.choice((1, 2))]
        wish = f"{rng.choice(tuple(SENTENCES))} {rng.choice((RICH, PLAIN))}"
        return f"? {topic} {wish} + {' '.join(asked)} - {' '.join(unwanted)}"

    def wishes(self, prompt: str) -> Wishes:
        """Return what a prompt asks for.

        Raises
        ------
        ValueError
            If the prompt is not of this language.
        """
        found = _PROMPT.fullmatch(prompt)
        if found is None or found[1] not in self.words["topic"]:
            raise ValueError(f"not an instruction of this language: {prompt[:80]!r}")
        asked, unwanted = tuple(found[4].split()), tuple(found[5].split())
        return Wishes(found[1], SENTENCES[found[2]], found[3] == RICH, asked, unwanted)

    def write(self, wishes: Wishes, habit: Habit, rng: random.Random) -> str:
        """Return an answer as somebody of this habit writes it."""
        count = wishes.sentences + rng.choice(habit.lengths)
        asked = [word for word in wishes.asked if rng.random() < habit.heed]
        shunned = {word for word in wishes.unwanted if rng.random() < habit.heed}
        nouns = self._nouns(wishes, habit, rng, asked, shunned, 2 * count)
        wanted = [word for word in asked if self.kinds[word] == "V"]
        sentences = []
        for place in range(count):
            subject, thing = nouns[2 * place : 2 * place + 2]
            own = self.classes[subject]
            verb = rng.choice([word for word in self.words["verb"] if self.classes[word] == own])
            if wanted and self.classes[wanted[0]] == own:
                verb = wanted.pop()
            rate = habit.rich if wishes.rich else habit.plain
            head, tail = (self._modifier(rate, habit, rng, shunned) for _ in range(2))
            words = [subject, *head, verb, thing, *tail]
            if rng.random() < habit.slip:
                words = self._slip(rng.choice(habit.slips), subject, verb, thing, rng)
            if rng.random() < habit.particle:
                particle = _choose(self.words["particle"], habit.likes, rng)
                words = [*words, particle] if self.particle_last else [particle, *words]
            sentences.append(" ".join(words) + ".")
        return " ".join(sentences)

    def _nouns(
        self, wishes: Wishes, habit: Habit, rng: random.Random, asked: list[str], shunned: set[str], count: int
    ) -> list[str]:
        own = [word for word in self.words[wishes.topic] if word not in shunned]
        topics = [topic for topic in self.words["topic"] if topic != wishes.topic]
        nouns = [
            rng.choice(self.words[rng.choice(topics)]) if rng.random() < habit.stray else rng.choice(own)
            for _ in range(count)
        ]
        wanted = [word for word in asked if self.kinds[word] == "N"]
        for place, word in zip(rng.sample(range(count), len(wanted)), wanted, strict=True):
            nouns[place] = word
        return nouns

    def _modifier(self, rate: float, habit: Habit, rng: random.Random, shunned: set[str]) -> list[str]:
        word = _choose(self.words["modifier"], habit.likes, rng)
        return [word] if rng.random() < rate and word not in shunned else []

    def _slip(self, how: str, subject: str, verb: str, thing: str, rng: random.Random) -> list[str]:
        other = [word for word in self.words["verb"] if self.classes[word] != self.classes[verb]]
        broken = {
            "class": [subject, rng.choice(other), thing],
            "verb": [subject, thing],
            "turn": [subject, thing, verb],
            "twice": [subject, verb, rng.choice(self.words["verb"]), thing],
            "end": [subject, verb],
        }
        return broken[how]


def _choose(words: Sequence[str], likes: Sequence[float], rng: random.Random) -> str:
    weights = [likes[place % len(likes)] for place in range(len(words))]
    return rng.choices(words, weights)[0]
