"""Answers of a model to a testbed's prompts: drawn, scored, and how sure the model was of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor

from humanline.reproduce.testbeds.base import Part, Testbed
from humanline.stats import mean_estimate
from humanline.train.config.rounds import GenerateEngine, SamplingConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.generate import GenerateSampler
from humanline.train.online.types import Completion
from humanline.train.policy.load import load_policy

BATCH = 512  # answers that are drawn together
SAMPLES = 4  # answers to a prompt that are scored
MATCHED = 2  # the same at the temperature that gives the start's entropy
#: Between these a temperature is sought that gives the start's entropy; one outside ends at the nearer of them.
TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to prompts, those to one prompt side by side.

    Parameters
    ----------
    prompts : list of str
        The prompt of each answer.
    completions : list of Completion
    """

    prompts: list[str]
    completions: list[Completion]

    def one_each(self) -> Answers:
        """Return the first answer to every prompt."""
        first = [place for place, prompt in enumerate(self.prompts) if not place or prompt != self.prompts[place - 1]]
        return Answers([self.prompts[i] for i in first], [self.completions[i] for i in first])

    def scores(self, testbed: Testbed) -> list[float]:
        """Return the true score of each."""
        return [testbed.task.score(p, one.text) for p, one in zip(self.prompts, self.completions, strict=True)]

    def judged(self, testbed: Testbed) -> list[float]:
        """Return the judge's score of each."""
        return [testbed.task.judged(p, one.text) for p, one in zip(self.prompts, self.completions, strict=True)]


class Model:
    """A model of a testbed, with its tokenizer.

    Parameters
    ----------
    testbed : Testbed
    path : Path
        The model's folder.

    Raises
    ------
    ModelError
        As `load_policy` does.
    """

    def __init__(self, testbed: Testbed, path: Path) -> None:
        self.testbed = testbed
        self.model, tokenizer = load_policy(str(path), dropout=False, max_length=testbed.max_length)
        self.renderer = Renderer(tokenizer, "chat", testbed.max_length)
        self._contexts: dict[str, Context] = {}  # by prompt: a measure asks for each of them several times

    def draw(self, part: Part, samples: int, seed: int, temperature: float = 1.0) -> Answers:
        """Return so many answers to every prompt of a part; the same random numbers for the same seed."""
        config = SamplingConfig(
            temperature=temperature, max_tokens=self.testbed.max_tokens, engine=GenerateEngine(batch_size=BATCH)
        )
        sampler = GenerateSampler(self.model, self.renderer, config)
        contexts = [self._context(prompt) for prompt in self.testbed.task.prompts(part)]
        found = Answers([], [])
        for rollouts in sampler.sample(contexts, samples, key=(seed,)):
            for rollout in rollouts:
                found.prompts.extend([rollout.prompt[-1].content] * samples)
                found.completions.extend(rollout.completions)
        return found

    def _context(self, prompt: str) -> Context:
        if prompt not in self._contexts:
            messages = (Message("user", prompt),)
            self._contexts[prompt] = Context(prompt, messages, tuple(self.renderer.render_prompt(messages)))
        return self._contexts[prompt]

    def logits(self, answers: Answers) -> Tensor:
        """Return the logits of every token of the answers: (N, V), float32."""
        found: list[Tensor] = []
        for start in range(0, len(answers.prompts), BATCH):
            part = slice(start, start + BATCH)
            pairs = zip(answers.prompts[part], answers.completions[part], strict=True)
            found.append(self._logits([(self._context(prompt).ids, one.ids) for prompt, one in pairs]))
        return torch.cat(found)

    def _logits(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tensor:
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask, counts = torch.zeros_like(ids), torch.zeros(len(rows), width, dtype=torch.bool)
        for row, (prompt, answer) in enumerate(rows):
            whole = [*prompt, *answer]
            ids[row, : len(whole)] = torch.tensor(whole)
            mask[row, : len(whole)] = 1
            counts[row, len(prompt) - 1 : len(whole) - 1] = True  # where the next token is one of the answer's
        with torch.no_grad():
            logits: Any = self.model(ids, attention_mask=mask, use_cache=False).logits
        chosen: Tensor = logits[counts].float()
        return chosen


def entropy(logits: Tensor, temperature: float = 1.0) -> float:
    """Return the mean entropy of softmax(logits / temperature), nats; logits are (N, V)."""
    logprobs = (logits / temperature).log_softmax(-1)
    return float(-(logprobs.exp() * logprobs).sum(-1).mean())


def temperature_of(logits: Tensor, wanted: float) -> float:
    """Return the temperature at which the mean entropy is the wanted one, nats, within `TEMPERATURES`."""
    low, high = TEMPERATURES
    if entropy(logits, low) >= wanted:
        return low
    if entropy(logits, high) <= wanted:
        return high
    return float(brentq(lambda t: entropy(logits, t) - wanted, low, high, xtol=1e-3))


@dataclass(frozen=True, slots=True)
class Measured:
    """What a model's answers to the prompts of the score say; fields as in `Outcome`."""

    score: float
    judged: float
    greedy: float
    matched: float
    temperature: float
    truncated: float
    length: float
    entropy: float


def measure(model: Model, seed: int, start_entropy: float | None = None) -> Measured:
    """Draw a model's answers and return what they say.

    Parameters
    ----------
    model : Model
    seed : int
        Of the draws.
    start_entropy : float, optional
        Of the start model, nats; default: the model is the start.
    """
    testbed = model.testbed
    answers = model.draw("score", SAMPLES, seed)
    logits = model.logits(answers.one_each())
    own = entropy(logits)
    temperature = 1.0 if start_entropy is None else temperature_of(logits, start_entropy)
    score = _mean(answers.scores(testbed))
    matched = score if start_entropy is None else _mean(model.draw("score", MATCHED, seed, temperature).scores(testbed))
    return Measured(
        score=score,
        judged=_mean(answers.judged(testbed)),
        greedy=_mean(model.draw("score", 1, seed, 0.0).scores(testbed)),
        matched=matched,
        temperature=temperature,
        truncated=_mean([float(one.truncated) for one in answers.completions]),
        length=_mean([float(len(one.ids)) for one in answers.completions]),
        entropy=own,
    )


def _mean(values: Sequence[float]) -> float:
    return mean_estimate(values).mean
