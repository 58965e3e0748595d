"""Units of examples made by chance, and streams of them, for tests of batches and of what is computed of these."""

from __future__ import annotations

import random

from humanline.train.config.objective import DpoObjective, GrpoObjective, KtoObjective
from humanline.train.data.batch import Unit
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.stream import Stream

OBJECTIVES = {
    "dpo": DpoObjective(kind="dpo", beta=0.5),
    "kto": KtoObjective(kind="kto", beta=0.5),
    "grpo": GrpoObjective(kind="grpo", clip_eps=0.2, kl_coef=0.1),
}


def sequence(rng: random.Random, length: int) -> TokenSequence:
    return TokenSequence(tuple(rng.randrange(3, 64) for _ in range(length)), rng.randint(1, length - 1))


def unit(rng: random.Random, number: int, lengths) -> Unit:
    return Unit(
        f"unit {number}",
        tuple(sequence(rng, length) for length in lengths),
        desirable=number % 2 == 0,
        scores=tuple(rng.random() for _ in lengths),
    )


def units_of(kind: str, count: int = 6) -> list[Unit]:
    """Units of very different lengths, up to two and a half windows of the Gemma model."""
    rng = random.Random(kind)
    members = {"nll": 1, "kto": 1, "dpo": 2, "grpo": 3}[kind]
    return [unit(rng, i, [rng.randint(3, 20) for _ in range(members)]) for i in range(count)]


def stream_of(units, objective, **changes) -> Stream:
    options = {"batch_size": len(units), "micro_batch_size": None, "seed": 0, "pad_id": 0, "max_length": 40}
    return Stream(units, objective, **options | changes)


LOCAL = GrpoObjective(kind="grpo", clip_eps=0.2, kl_coef=0.1, normalise="local")


def plain_advantages(scores) -> list[float]:
    mean = sum(scores) / len(scores)
    spread = (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5
    return [(score - mean) / spread if spread else 0.0 for score in scores]
