"""What an answer to an instruction is worth: a hidden scorer of several features, and a judge who sees it with noise.

The scorer stands for what people value in an answer. Part of it can be read in the prompt (is all that was asked for
there?), part is plain quality (grammar, no repetition), and part is a taste that no prompt names. Its features
saturate, or turn where there is too much of a thing: more is not always better, and a policy that goes on after one of
them loses others. The unit is one standard deviation of the start model's answers, whose mean is about 0.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from humanline.reproduce.testbeds.instruction_language import WORDS, Language, Wishes

FEATURES = ("coverage", "topic", "unwanted", "fluency", "variety", "length", "style", "voice", "charm")


@dataclass(frozen=True, slots=True)
class Scorer:
    """A hidden scorer and its judge.

    Parameters
    ----------
    weights : mapping
        Of each feature (`FEATURES`).
    mean, sd : float
        Of the weighted sum over the answers of a start model, measured once and written down: the score's zero and
        unit.
    longer : float
        The best length, in parts of the wished one.
    voice : float
        The best surplus of liked over disliked particles, a sentence.
    repeats : float
        Share of repeated pairs of words that costs all of "variety".
    noise : float
        Standard deviation of the judge's noise, in units of the score.
    length_bias : float
        What the judge gives, at most, for a long answer, and takes for a short one, in units of the score.
    seed : int
        Of the noise.
    """

    weights: Mapping[str, float]
    mean: float
    sd: float
    longer: float
    voice: float
    repeats: float
    noise: float
    length_bias: float
    seed: int

    def score(self, language: Language, prompt: str, answer: str) -> float:
        """Return the true score: (sum of weight x feature - mean) / sd.

        Any text is an answer; one without a word gets the lowest of most features.
        """
        features = self.features(language, language.wishes(prompt), answer)
        return (sum(self.weights[name] * features[name] for name in FEATURES) - self.mean) / self.sd

    def judged(self, language: Language, prompt: str, answer: str) -> float:
        """Return what the judge says: score + length_bias * tanh(2 ln((n + 1) / (w + 1))) + noise * z.

        n is the words of the answer, w those of the wished length. z is standard normal, a function of the prompt and
        the words of the answer, so that the judge asked twice says the same.
        """
        words = answer.split()
        wished = WORDS * language.wishes(prompt).sentences
        bias = self.length_bias * math.tanh(2 * math.log((len(words) + 1) / (wished + 1)))
        return self.score(language, prompt, answer) + bias + self.noise * self._normal(prompt, " ".join(words))

    def features(self, language: Language, wishes: Wishes, answer: str) -> dict[str, float]:
        """Return the features of an answer.

        Counts are of words; s is the number of sentences (what full stops close, and a rest without one, if any).

        - coverage: (1 - .7^m) / (1 - .7^a), where m of a asked words are there: each further one gives less.
        - topic: share of the nouns that are of the topic, 0 without nouns.
        - unwanted: 2^-u, where u is how often unwanted words are there.
        - fluency: share of sentences that obey the grammar, squared.
        - variety: 1 - (share of pairs of neighbouring words that were there before) / repeats, at least -1.
        - length: exp(-4 ln(n / (longer * w))^2), where n words are there and w are wished.
        - style: exp(-(r - t)^2), where r is the modifiers a sentence, and t = 1.4 if rich, else 0.3.
        - voice: 1 - ((v - voice) / voice)^2, at least -1, where v is (liked - disliked particles) a sentence: it turns.
        - charm: (l - d) / (2 + l + d), where l and d count different liked and all disliked modifiers.

        Particles and modifiers are liked at the even places of the language's list, which is in no order, and disliked
        at the odd ones. Without a word, coverage to style are 0 but for unwanted, which is 1; voice and charm are 0.
        """
        sentences = [part.split() for part in answer.split(".")]
        closed = sentences[:-1] + ([sentences[-1]] if sentences[-1] else [])
        words = [word for sentence in sentences for word in sentence]
        if not words:
            return dict.fromkeys(FEATURES, 0.0) | {"unwanted": 1.0}
        asked = sum(word in set(words) for word in wishes.asked)
        unwanted = sum(word in wishes.unwanted for word in words)
        nouns = [word for word in words if language.kinds.get(word) == "N"]
        right = sum(map(language.is_sentence, sentences[:-1]))
        modifiers = [word for word in words if language.kinds.get(word) == "M"]
        particles = [word for word in words if language.kinds.get(word) == "P"]
        liked, disliked = _tastes(language.words["particle"], particles)
        charming, plain = _tastes(language.words["modifier"], modifiers)
        voice = (len(liked) - len(disliked)) / len(closed)
        charm = len(set(charming))
        long = len(words) / (self.longer * WORDS * wishes.sentences)
        return {
            "coverage": (1 - 0.7**asked) / (1 - 0.7 ** len(wishes.asked)),
            "topic": sum(word in language.words[wishes.topic] for word in nouns) / max(1, len(nouns)),
            "unwanted": 0.5 ** min(unwanted, 60),
            "fluency": (right / len(closed)) ** 2,
            "variety": max(-1.0, 1 - _repeated(words) / self.repeats),
            "length": math.exp(-4 * math.log(long) ** 2),
            "style": math.exp(-((len(modifiers) / len(closed) - (1.4 if wishes.rich else 0.3)) ** 2)),
            "voice": max(-1.0, 1 - ((voice - self.voice) / self.voice) ** 2),
            "charm": (charm - len(plain)) / (2 + charm + len(plain)),
        }

    def _normal(self, prompt: str, answer: str) -> float:
        text = f"{self.seed}\n{prompt}\n{answer}".encode("utf-8", "surrogatepass")
        drawn = int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")
        return NormalDist().inv_cdf((drawn + 0.5) / 2**48)


def _repeated(words: Sequence[str]) -> float:
    """Return the share of pairs of neighbours that stood earlier in the text."""
    pairs = list(itertools.pairwise(words))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


def _tastes(words: Sequence[str], found: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which of the words found are at even places of `words`, and which at odd ones."""
    even = set(words[::2])
    return [word for word in found if word in even], [word for word in found if word not in even]
