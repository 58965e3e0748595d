"""Sampling from a server that speaks OpenAI's protocol: vllm serve, SGLang, transformers serve (README.md beside this).

What a request says is in `dialect.py`, how it is sent in `http.py`, on an event loop in a thread of its own
(`under_way.py`), so that closing the iterator cancels all at once and the server stops working on them.
"""

from __future__ import annotations

import asyncio
import copy
import queue
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from humanline.system.disk import patient
from humanline.system.files import make_folder
from humanline.system.stop import SamplingStopped
from humanline.system.terminal import show, visible
from humanline.train.config.rounds import (
    ByAdapter,
    ByCommand,
    ByPath,
    ByRequest,
    BySglang,
    ByVllm,
    SamplingConfig,
    ServerEngine,
)
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.answers import Answer, Completer, read_answers
from humanline.train.online.samplers.copies import Copies
from humanline.train.online.samplers.dialect import Dialect, Weights
from humanline.train.online.samplers.given import Told, given_logprobs
from humanline.train.online.samplers.http import Client, Refused, Sleep, api_key
from humanline.train.online.samplers.new_weights import (
    Adapters,
    generation_settings,
    run_command,
    tell,
    to_load,
    to_sleep,
    wait_until_healthy,
)
from humanline.train.online.samplers.proof import Text
from humanline.train.online.samplers.under_way import LOOK, Running, finish
from humanline.train.online.trainable import Trainable, Untrainable
from humanline.train.online.types import Completion, Rollout, SamplerError

SHORT = 0.005  # seconds between two looks at whether what is whole was taken


class _Whole(NamedTuple):
    """All completions of a context, and how many answers were asked for again, by reason."""

    place: int  # of the context
    completions: tuple[Completion, ...]
    again: Counter[str]


class ServerSampler:
    """Draw completions from a server.

    Each request carries a seed that is derived from the key, the context's id and the sample's number; whether the same
    seed gives the same text is up to the server (transformers serve: no). What a context has got is kept until it is
    whole; completions of a context that is not are asked for again after a crash. Answers that cannot be trained on
    are asked for again, with other seeds, and counted.

    Parameters
    ----------
    config : SamplingConfig
        Its engine must be a ServerEngine.
    renderer : Renderer
    say : callable, optional
        Shows, once each, what may be wrong though work goes on.
    vocabulary : int, optional
        Token ids that the model has rows for; default: those that the tokenizer knows.
    stopping : callable, optional
        Polled several times a second: whether to give up.
    sleep : callable, optional
        Waits between attempts: `await sleep(seconds)`.

    Attributes
    ----------
    shown : str
        The server's root, fit to be shown.
    asleep : bool
        Whether it was put to sleep, and needs its weights again.

    Raises
    ------
    SamplerError
        If the URL is none, or the variable with the API key is not set.
    """

    def __init__(
        self,
        config: SamplingConfig,
        renderer: Renderer,
        *,
        vocabulary: int | None = None,
        say: Callable[[str], None] = show,
        stopping: Callable[[], bool] = lambda: False,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        assert isinstance(config.engine, ServerEngine)
        self.config, self.renderer, self.engine = config, renderer, config.engine
        self.stopping, self.asleep = stopping, False
        self._sleep = sleep
        self._key = api_key(config.engine)
        self.shown = self._client().shown  # says at once if the URL is none
        self._trainable = Trainable(renderer, config.max_tokens, vocabulary)
        self._completer = Completer(self._trainable, config.stop)
        self._weights = Weights(config.engine.model)
        self._adapters = Adapters()
        self._dialect = Dialect(config, renderer)
        self._copies = Copies(config, say)
        self._running: set[Running] = set()

    # -----------------------------------------------------------------------------------------------------------------
    # Sampling

    def sample(self, contexts: Sequence[Context], samples: int, *, key: tuple[int, ...]) -> Iterator[list[Rollout]]:
        """Draw so many completions of every context (`Sampler`), one context at a time, in the order they get whole.

        Raises
        ------
        SamplerError
            If the server stays away, refuses, or answers what cannot be used; it says which and what to do.
        SamplingStopped
            If `stopping` said so.
        """
        weights = self._weights
        if weights.model is None and isinstance(self.engine.new_weights, ByPath):
            raise SamplerError("new_weights: path names a folder in every request; publish one, or set engine.model")
        whole: queue.SimpleQueue[_Whole | BaseException] = queue.SimpleQueue()
        running = Running(self._ask_all(contexts, samples, key, weights, whole), whole.put)
        self._running.add(running)
        try:
            for _ in contexts:
                index, completions, again = self._next(whole)
                context = contexts[index]
                self._copies.refuse(context, completions)
                self._copies.look_for_greed([one.text for one in completions])
                yield [Rollout(context.id, context.prompt, completions, context.extra, weights.policy, again)]
        finally:
            running.stop()
            self._running.discard(running)

    def given_logprobs(self, texts: Mapping[str, Text]) -> Told | None:
        """Return the server's log-probabilities of given texts, None if it tells none; raise SamplerError if away."""
        found: list[Told | None] = []

        async def ask() -> None:
            found.append(await given_logprobs(self._client(), texts, self._weights.model, self.engine.concurrency))

        finish(ask(), self.stopping)
        return found[0]

    def greedy(self, max_tokens: int) -> ServerSampler:
        """Return a sampler of the most probable completions, from the weights that this one has now."""
        return self.under(self.config.model_copy(update={"temperature": 0.0, "top_p": 1.0, "max_tokens": max_tokens}))

    def under(self, config: SamplingConfig) -> ServerSampler:
        """Return a sampler with other settings than the engine's, from the weights that this one has now."""
        other = copy.copy(self)
        other.config = config
        other._trainable = Trainable(self.renderer, config.max_tokens, self._trainable.vocabulary)
        other._completer = Completer(other._trainable, config.stop)
        other._dialect, other._copies = self._dialect.under(other.config), self._copies.under(other.config)
        other._running = set()
        return other

    def close(self) -> None:
        """Cancel what is under way."""
        for running in tuple(self._running):
            running.stop()

    def together(self, samples: int) -> None:
        """Return None: every context is drawn alone."""

    def _next(self, whole: queue.SimpleQueue[_Whole | BaseException]) -> _Whole:
        while True:
            if self.stopping():
                raise SamplingStopped
            try:
                item = whole.get(timeout=LOOK)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                raise item
            return item

    async def _ask_all(
        self,
        contexts: Sequence[Context],
        samples: int,
        key: tuple[int, ...],
        weights: Weights,
        whole: queue.SimpleQueue[Any],
    ) -> None:
        size = self.engine.samples_per_request
        jobs = ((i, range(a, min(a + size, samples))) for i in range(len(contexts)) for a in range(0, samples, size))
        parts: dict[int, dict[int, Completion]] = {}
        again: dict[int, Counter[str]] = {}

        async def work() -> None:
            for index, numbers in jobs:
                while not whole.empty():  # it is written down first: after a crash it would be paid for again
                    await asyncio.sleep(SHORT)
                completions, bad = await self._ask(client, contexts[index], numbers, key, weights)
                part = parts.setdefault(index, {})
                part.update(zip(numbers, completions, strict=True))
                again.setdefault(index, Counter()).update(bad)
                if len(part) == samples:
                    whole.put(_Whole(index, tuple(part[number] for number in range(samples)), again.pop(index)))
                    del parts[index]

        async with self._client() as client, asyncio.TaskGroup() as group:
            for _ in range(self.engine.concurrency):
                group.create_task(work())

    async def _ask(
        self, client: Client, context: Context, numbers: range, key: tuple[int, ...], weights: Weights
    ) -> tuple[list[Completion], Counter[str]]:
        """Return a completion for every number, and how many answers were asked for again, by reason.

        A server that sends fewer than asked for, or some that cannot be trained on, is asked for the rest.
        """
        found: list[Completion] = []
        again: Counter[str] = Counter()
        in_vain = 0  # answers in a row without any that can be trained on
        room = self._trainable.room(len(context.ids))
        if room < 1:
            raise SamplerError(
                f"context {context.id!r}: its {len(context.ids)} prompt tokens leave no room for a completion within "
                f"data.max_length: {self.renderer.limits.max_length}"
            )
        while len(found) < len(numbers):
            rest = numbers[len(found) :]
            rest = rest[:1] if self._copies.one_by_one else rest

            def read(content: bytes, asked: int = len(rest)) -> list[Answer]:
                return read_answers(content, context, asked, self.config)

            path = self._dialect.path
            body = self._dialect.body(context, rest, key, again.total(), room, weights)
            try:
                answers = await client.post(path, body, read)
            except Refused as error:
                if not self._dialect.do_without(error, body):
                    raise SamplerError(f"context {context.id!r}: {error}") from None
                continue
            except SamplerError as error:
                raise SamplerError(f"context {context.id!r}: {error}") from None
            good, trouble = [], ""
            for answer in answers:
                try:
                    good.append(self._completer(answer, context))
                except Untrainable as error:
                    again[error.reason] += 1
                    trouble = str(error)
            found += self._copies.drawn_apart(good)
            in_vain = 0 if good else in_vain + 1
            if in_vain == self.engine.attempts:
                raise SamplerError(
                    f"context {context.id!r}: {client.shown}{path} sent {in_vain} times in a row "
                    f"(source.sampling.engine.attempts) what cannot be trained on; the last: {trouble}. Serve the "
                    "model and the tokenizer that are trained with, on a server that keeps to max_tokens"
                )
        return found, again

    # -----------------------------------------------------------------------------------------------------------------
    # New weights

    def publish(self, folder: Path, name: str) -> None:
        """Give the server new weights, wait until it answers, and sample with them from then on.

        Parameters
        ----------
        folder : Path
            A saved model, or an adapter where `new_weights` is adapter; the server must see it under the same path.
        name : str
            The policy's version, which rollouts carry; never used for other weights, since servers keep what they
            computed under a name.

        Raises
        ------
        SamplerError
            If the server refuses or does not come back within `source.sampling.engine.seconds`, or the command fails.
        """
        how, path = self.engine.new_weights, str(folder.absolute())
        if not folder.is_dir():
            raise SamplerError(f"new weights: {visible(path)!r} is no folder")
        model, generation = self.engine.model, None
        if isinstance(how, ByPath):
            if "@" in path:
                raise SamplerError(f"new weights: {visible(path)!r} holds an @, which servers read as a revision")
            end = self.renderer.tokenizer.eos_token_id
            model, generation = path, generation_settings(folder, end, self.config.temperature)
        elif isinstance(how, ByCommand):
            run_command(how, path, self.stopping)
        elif isinstance(how, ByAdapter):
            model = name
            finish(self._adapters.load(self._client(), name, path), self.stopping)
        else:
            marker = _marker(folder.parent)
            asleep = marker.exists()
            # First, so that whatever happens now, a server that is started anew is not woken.
            marker.unlink(missing_ok=True)
            finish(tell(self._client(), to_load(how, asleep=asleep), path, name), self.stopping)
        finish(wait_until_healthy(self._client(), model, self.engine.seconds, self._sleep), self.stopping)
        self._weights, self.asleep = Weights(model, name, generation), False

    def rest(self, served: Path) -> None:
        """Put the server to sleep, where the configuration says so: its GPU is free until it is given weights again.

        Parameters
        ----------
        served : Path
            The folder of the folders that are published.

        Raises
        ------
        SamplerError
            If the server refuses or stays away.
        """
        how, marker = self.engine.new_weights, _marker(served)
        if not isinstance(how, ByRequest | ByVllm | BySglang) or not (requests := to_sleep(how)):
            return
        if not self.asleep and not (marker.exists() and isinstance(how, BySglang)):
            finish(tell(self._client(), requests), self.stopping)
            make_folder(served)
            patient(marker, marker.touch)
        self.asleep = True

    def _client(self) -> Client:
        return Client(self.engine, self._key, self._sleep)


class OtherSettings:
    """Draw completions from a server with other settings than those of rounds (`Sampler`).

    Parameters
    ----------
    sampler : ServerSampler
        Of the rounds; its weights are those that it has when completions are drawn.
    config : SamplingConfig
        Of the same engine.
    """

    def __init__(self, sampler: ServerSampler, config: SamplingConfig) -> None:
        self.sampler, self.config = sampler, config

    def together(self, samples: int) -> None:
        """Return None: every context is drawn alone."""

    def sample(self, contexts: Sequence[Context], samples: int, *, key: tuple[int, ...]) -> Iterator[list[Rollout]]:
        """Draw so many completions of every context, as `ServerSampler.sample` does."""
        yield from self.sampler.under(self.config).sample(contexts, samples, key=key)

    def close(self) -> None:
        """Do nothing: what is under way ends with the iterator."""


def _marker(served: Path) -> Path:
    """Return the file that says, also to a run that is resumed, that the server was put to sleep."""
    return served / "asleep"
