"""Sampling by transformers' generate, in this process, with the policy's own weights.

Which token is drawn depends on the key (seed, round), the context's id, the sample's number and the token's place, and
on nothing else that is random: every completion has uniform numbers of its own, and a token is where they fall in the
cumulative distribution. A run that was stopped draws the same again; only the batch a prompt is in may change its last
bits. The model's own generation_config is not asked (Qwen's, for example, has a repetition penalty).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from humanline.system.stop import SamplingStopped
from humanline.train.config.rounds import GenerateEngine, SamplingConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.types import Completion, Finish, Rollout
from humanline.train.run.processes import NonFiniteError


class GenerateSampler:
    """Draw completions with a model in this process.

    Parameters
    ----------
    model
        A causal language model of transformers; its attention may be `PACKED`, which is put aside while it samples.
    renderer : Renderer
    config : SamplingConfig
        Its engine must be a GenerateEngine.
    computing : callable, optional
        Gives the context in which the model computes; one for every batch.
    stopping : callable, optional
        Polled after every token: whether to give up.

    Raises
    ------
    SamplingStopped
        From `sample`, if `stopping` said so; the batch under way is lost.
    NonFiniteError
        From `sample`, if a sampled token's log-probability is not finite.
    """

    def __init__(
        self,
        model: Any,
        renderer: Renderer,
        config: SamplingConfig,
        *,
        computing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        assert isinstance(config.engine, GenerateEngine)
        self.model, self.renderer, self.config, self.engine = model, renderer, config, config.engine
        self.computing, self.stopping = computing, stopping
        self.ends = end_tokens(model, renderer)

    def together(self, samples: int) -> int:
        """Return how many contexts go through the model together; which ones they are may change the last bits."""
        return max(1, self.engine.batch_size // samples)

    def sample(self, contexts: Sequence[Context], samples: int, *, key: tuple[int, ...]) -> Iterator[list[Rollout]]:
        """Draw so many completions of every context (`Sampler`), a batch at a time."""
        size = self.together(samples)
        for start in range(0, len(contexts), size):
            batch = contexts[start : start + size]
            rows = [(context, number) for context in batch for number in range(samples)]
            # a context with more samples than a batch holds takes several passes
            passes = [rows[i : i + self.engine.batch_size] for i in range(0, len(rows), self.engine.batch_size)]
            completions = [one for part in passes for one in self._generate(part, key)]
            yield [
                Rollout(
                    id=context.id,
                    prompt=context.prompt,
                    completions=tuple(completions[i * samples : (i + 1) * samples]),
                    extra=context.extra,
                )
                for i, context in enumerate(batch)
            ]

    def close(self) -> None:
        """Do nothing: the model is the policy's."""

    def _generate(self, rows: Sequence[tuple[Context, int]], key: tuple[int, ...]) -> list[Completion]:
        from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

        width = max(len(context.ids) for context, _ in rows)
        room = [min(self.config.max_tokens, self.renderer.limits.max_length - len(context.ids)) for context, _ in rows]
        pad, device = min(self.ends), self.model.device
        ids = torch.tensor([[pad] * (width - len(c.ids)) + list(c.ids) for c, _ in rows], device=device)
        mask = torch.tensor([[0] * (width - len(c.ids)) + [1] * len(c.ids) for c, _ in rows], device=device)
        draws = torch.tensor(np.stack([uniforms(key, c.id, n, max(room)) for c, n in rows]), device=device)
        picker = _Picker(width, draws, self.config.temperature, self.config.top_p)
        ending = _Ending(width, self.ends, room, self.config.stop, self.renderer.tokenizer, self.stopping)
        settings = GenerationConfig(max_new_tokens=max(room), pad_token_id=pad, do_sample=False, use_cache=True)
        with sampling_mode(self.model), self.computing(), torch.no_grad():
            output = self.model.generate(
                ids,
                attention_mask=mask,
                generation_config=settings,
                logits_processor=LogitsProcessorList([picker]),
                stopping_criteria=StoppingCriteriaList([ending]),
            )
        tokens, logprobs = output[:, width:].tolist(), torch.stack(picker.logprobs, 1).tolist()
        completions = [
            self._completion(tokens[row][:length], logprobs[row][:length], finish)
            for row, (length, finish) in enumerate(ending.found())
        ]
        for (context, _), one in zip(rows, completions, strict=True):
            if one.logprobs is not None and not all(map(math.isfinite, one.logprobs)):
                raise NonFiniteError(
                    f"{context.id}: sampled tokens have log-probabilities that are not finite, so the policy's "
                    "weights are of no use any more; nothing of this batch is kept. Lower optimizer.lr."
                )
        return completions

    def _completion(self, ids: list[int], logprobs: list[float], finish: Finish) -> Completion:
        spoken = ids[:-1] if finish == "end" else ids
        text = self.renderer.tokenizer.decode(spoken, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        # A millionth of a nat is about what float32 tells, and half the characters of a file of them.
        return Completion(text=text, ids=tuple(ids), finish=finish, logprobs=tuple(round(one, 6) for one in logprobs))


def end_tokens(model: Any, renderer: Renderer) -> frozenset[int]:
    """Return the tokens that end an answer: the tokenizer's, the model's own, and that of the template."""
    own = getattr(model, "generation_config", None)
    own = own.eos_token_id if own is not None else None
    listed = [own] if isinstance(own, int) else list(own or ())
    of_template = renderer.encode((Message("user", "a"),), "a").ids[-1]
    return frozenset([renderer.tokenizer.eos_token_id, of_template, *listed])


def uniforms(key: tuple[int, ...], context: str, sample: int, count: int) -> np.ndarray:
    """Return the uniform numbers of one completion's tokens, keyed by (key, context, sample)."""
    name = int.from_bytes(hashlib.blake2b(context.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng([*key, name, sample]).random(count)


class _Picker:
    """Draw each row's token with its own uniform number; note its log-probability at temperature 1."""

    def __init__(self, width: int, draws: Tensor, temperature: float, top_p: float) -> None:
        from transformers import TopPLogitsWarper

        self.width, self.draws, self.temperature = width, draws, temperature
        self.nucleus = TopPLogitsWarper(top_p) if top_p < 1 else None
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        plain = torch.log_softmax(scores.float(), -1)
        if self.temperature == 0:
            token = plain.argmax(-1, keepdim=True)
        else:
            warped = plain / self.temperature
            if self.nucleus is not None:
                warped = self.nucleus(input_ids, warped)
            token = inverse_cdf(torch.softmax(warped.double(), -1), self.draws[:, input_ids.shape[1] - self.width])
        self.logprobs.append(plain.gather(-1, token).squeeze(-1))
        return torch.full_like(scores, -torch.inf).scatter_(-1, token, 0.0)  # of which generate takes the largest


def inverse_cdf(probs: Tensor, draws: Tensor) -> Tensor:
    """Return for each row the first place at which the cumulative probability exceeds its draw.

    Parameters
    ----------
    probs : (B, V) tensor
        Rows sum to 1 up to rounding.
    draws : (B,) tensor
        In [0, 1).

    Returns
    -------
    (B, 1) integer tensor
        Never a place of probability 0.
    """
    cumulative = probs.cumsum(-1)
    found = torch.searchsorted(cumulative, (draws[:, None] * cumulative[:, -1:]), right=True)
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).long().argmax(-1, keepdim=True)
    return torch.minimum(found, last)  # where a draw next to 1 was rounded up


class _Ending:
    """Say which rows are done, and note at which length and why; a stopping criterion of transformers."""

    def __init__(
        self,
        width: int,
        ends: frozenset[int],
        room: Sequence[int],
        stop: Sequence[str],
        tokenizer: Any,
        stopping: Callable[[], bool],
    ) -> None:
        from transformers import StopStringCriteria

        self.width, self.room, self.stopping = width, list(room), stopping
        self.eos_token_id = sorted(ends)  # under this name generate looks whether finished rows are to be padded
        self.texts = StopStringCriteria(tokenizer, list(stop)) if stop else None
        self.done: dict[int, tuple[int, Finish]] = {}

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        if self.stopping():
            raise SamplingStopped
        length, device = input_ids.shape[1] - self.width, input_ids.device
        ended = torch.isin(input_ids[:, -1], torch.tensor(self.eos_token_id, device=device)).tolist()
        texts = [False] * len(ended)
        if self.texts is not None:  # looks at the completion alone: a stop text may not begin in the prompt
            texts = self.texts(input_ids[:, self.width :], scores, **options).tolist()
        for row, (end, text) in enumerate(zip(ended, texts, strict=True)):
            if row not in self.done:
                if end:
                    self.done[row] = length, "end"
                elif text:
                    self.done[row] = length, "stop"
                elif length >= self.room[row]:
                    self.done[row] = length, "length"
        return torch.tensor([row in self.done for row in range(len(ended))], device=device)

    def found(self) -> list[tuple[int, Finish]]:
        """Return length and reason of every row."""
        return [self.done[row] for row in range(len(self.room))]


@contextlib.contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Evaluate, with the usual attention and without the model's own generation settings, and put all back."""
    from transformers import GenerationConfig

    from humanline.train.policy.attention import usual_attention
    from humanline.train.policy.logprobs import PACKED

    before = model.training, model.generation_config, model.config.get_text_config()._attn_implementation
    try:
        model.eval()
        model.generation_config = GenerationConfig()
        if before[2] == PACKED:
            model.set_attn_implementation(usual_attention(model))
        yield
    finally:
        model.train(before[0])
        model.generation_config = before[1]
        if before[2] == PACKED:
            model.set_attn_implementation(before[2])
