"""Sampling from a server that speaks OpenAI's protocol: vllm serve, SGLang, transformers serve (README.md beside this).

The requests run on an event loop in a thread of its own, so that closing the iterator cancels them at once and the
server stops working on them. Fields beyond OpenAI's are sent where they make sampling what the config says; a server
that refuses one by name is asked again without it, and from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import math
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from humanline.system.disk import patient
from humanline.system.files import make_folder
from humanline.system.stop import SamplingStopped
from humanline.system.terminal import redact, show, visible
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
from humanline.train.data.messages import Messages, to_json, tool_calls
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.answers import Answer, Completer, read_answers
from humanline.train.online.samplers.given import Told, score_given
from humanline.train.online.samplers.http import Client, Refused, Sleep, api_key, quoted
from humanline.train.online.samplers.new_weights import Adapters, run_command, tell, to_load, to_sleep
from humanline.train.online.samplers.proof import Text
from humanline.train.online.trainable import Trainable, Untrainable
from humanline.train.online.types import Completion, Rollout, SamplerError

LOOK = 0.2  # seconds between two looks at `stopping`
SHORT = 0.005  # seconds between two looks at whether what is whole was taken
GREEDY_AFTER = 4  # contexts whose completions are all alike before that is said
CHANCE = math.log(1e-12)  # of equal completions, below which they are copies


@dataclass(frozen=True, slots=True)
class Weights:
    """What a request is answered with: the model's name, the policy's version, generation settings for its folder."""

    model: str | None
    policy: str = ""
    generation: str | None = None


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
        Told, once each, what may be wrong though work goes on.
    vocabulary : int, optional
        Token ids that the model has rows for; by itself those that the tokenizer knows.
    stopping : callable, optional
        Asked several times a second whether to give up.
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
        self.say, self.stopping = say, stopping
        self.chat = (config.engine.endpoint or ("chat" if renderer.template == "chat" else "completions")) == "chat"
        self.asleep = False
        self._sleep = sleep
        self._key = api_key(config.engine)
        self.shown = self._client().shown  # says at once if the URL is none
        self._trainable = Trainable(renderer, config.max_tokens, vocabulary)
        self._completer = Completer(self._trainable, config.stop)
        self._weights = Weights(config.engine.model)
        self._adapters = Adapters()
        self._refused: set[str] = set()  # fields that this server does not take
        self._prompt_as_text = False
        self._no_tool_choice = False
        self._one_by_one = False  # whether this server draws the same n times
        self._alike: int | None = 0  # contexts whose completions were all the same; None once some were not
        self._running: set[_Running] = set()

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
        running = _Running(self._ask_all(contexts, samples, key, weights, whole), whole.put)
        self._running.add(running)
        try:
            for _ in contexts:
                index, completions, again = self._next(whole)
                context = contexts[index]
                self._refuse_copies(context, completions)
                self._look_for_greed([one.text for one in completions])
                yield [Rollout(context.id, context.prompt, completions, context.extra, weights.policy, again)]
        finally:
            running.stop()
            self._running.discard(running)

    def score_given(self, texts: Mapping[str, Text]) -> Told | None:
        """Return what the server says of given texts' tokens, None if it does not tell; raise SamplerError if away."""
        found: list[Told | None] = []

        async def ask() -> None:
            found.append(await score_given(self._client(), texts, self._weights.model, self.engine.concurrency))

        self._finish(ask())
        return found[0]

    def greedy(self, max_tokens: int) -> ServerSampler:
        """Return a sampler of the most probable completions, from the weights that this one has now."""
        other = copy.copy(self)
        other.config = self.config.model_copy(update={"temperature": 0.0, "top_p": 1.0, "max_tokens": max_tokens})
        other._trainable = Trainable(self.renderer, max_tokens, self._trainable.vocabulary)
        other._completer = Completer(other._trainable, self.config.stop)
        other._running = set()
        return other

    def close(self) -> None:
        """Cancel what is under way."""
        for running in tuple(self._running):
            running.stop()

    def together(self, samples: int) -> None:
        """Return None: every context is by itself."""

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
                f"data.max_length: {self.renderer.max_length}"
            )
        while len(found) < len(numbers):
            rest = numbers[len(found) :]
            rest = rest[:1] if self._one_by_one else rest

            def read(content: bytes, asked: int = len(rest)) -> list[Answer]:
                return read_answers(content, context, asked, self.config)

            path = "/v1/chat/completions" if self.chat else "/v1/completions"
            body = self._body(context, rest, key, again.total(), room, weights)
            try:
                answers = await client.post(path, body, read)
            except Refused as error:
                if not self._do_without(error, body):
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
            found += self._drawn_apart(good)
            in_vain = 0 if good else in_vain + 1
            if in_vain == self.engine.attempts:
                raise SamplerError(
                    f"context {context.id!r}: {client.shown}{path} sent {in_vain} times in a row "
                    f"(source.sampling.engine.attempts) what cannot be trained on; the last: {trouble}. Serve the "
                    "model and the tokenizer that are trained with, on a server that keeps to max_tokens"
                )
        return found, again

    def _drawn_apart(self, completions: list[Completion]) -> list[Completion]:
        """Return the completions of one request; only the first of them where the server drew it n times."""
        if not self._copies(completions):
            return completions
        if not self._one_by_one:
            self._one_by_one = True
            self.say(
                "the server draws the same completion n times (SGLang does so in its deterministic mode): from now on "
                "they are asked for one by one, as with source.sampling.engine.samples_per_request: 1"
            )
        return completions[:1]

    def _refuse_copies(self, context: Context, completions: Sequence[Completion]) -> None:
        """Raise SamplerError if completions that were asked for with seeds of their own are one and the same."""
        if self._copies(completions):
            raise SamplerError(
                f"context {context.id!r}: its {len(completions)} completions are the same though chance would not make "
                "them so: the server draws the same whatever the seed. SGLang does so in its deterministic mode where "
                "it does not read the seed: start it without --enable-deterministic-inference, or try the other "
                "source.sampling.engine.endpoint"
            )

    def _copies(self, completions: Sequence[Completion]) -> bool:
        """Return whether completions are equal that independent draws would make so less than once in 10^12 times."""
        if len(completions) < 2 or len({one.ids for one in completions}) > 1:
            return False
        logprobs = completions[0].logprobs
        if logprobs is None or self.config.temperature != 1 or self.config.top_p != 1:
            return False  # how probable they are is not known
        return (len(completions) - 1) * sum(logprobs) < CHANCE

    def _body(
        self, context: Context, numbers: range, key: tuple[int, ...], again: int, room: int, weights: Weights
    ) -> dict[str, Any]:
        config = self.config
        body: dict[str, Any] = {"temperature": config.temperature, "top_p": config.top_p, "max_tokens": room}
        if weights.model is not None:
            body["model"] = weights.model
        if len(numbers) > 1:
            body["n"] = len(numbers)
        if config.stop:
            body["stop"] = list(config.stop)
        extras: dict[str, Any] = {
            "seed": seed(key, context.id, numbers[0], again),
            "logprobs": True if self.chat else 1,
            "return_token_ids": True,  # vLLM, SGLang
            # Otherwise vLLM and SGLang take these from the model's generation_config.json.
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        if self.chat:
            body |= {"messages": as_requested(context.prompt), **context.given.columns()}
            if self._no_tool_choice and context.given.tools:
                body["tool_choice"] = "none"
        else:
            # Token ids leave nothing to the server's tokenizer; transformers serve takes only text.
            body["prompt"] = (
                self.renderer.prompt_text(context.prompt, context.given) if self._prompt_as_text else list(context.ids)
            )
            extras["add_special_tokens"] = False  # vLLM: the text has its begin token
        if config.stop:
            extras |= {"include_stop_str_in_output": True, "no_stop_trim": True}  # vLLM; SGLang
        if weights.generation is not None:
            extras["generation_config"] = weights.generation  # transformers serve
        return body | {name: value for name, value in extras.items() if name not in self._refused}

    def _do_without(self, error: Refused, body: dict[str, Any]) -> bool:
        """Leave out from now on what a refusal names; return whether there was anything."""
        if error.status not in (400, 422):
            return False
        if isinstance(body.get("prompt"), list) and "prompt" in error.reason and "string" in error.reason:
            self._prompt_as_text = True
            return True
        if "tools" in body and "tool_choice" not in body and re.search("tool[ _]choice", error.reason):
            self._no_tool_choice = True  # vLLM without a parser of tools; the prompt has them all the same
            return True
        named = {name for name in EXTRAS if name in body and re.search(rf"\b{name}\b", error.reason)}
        self._refused |= named
        return bool(named)

    def _look_for_greed(self, texts: Sequence[str]) -> None:
        if self._alike is None or self.config.temperature == 0 or len(texts) < 2:
            return
        self._alike = self._alike + 1 if len(set(texts)) == 1 else None
        if self._alike == GREEDY_AFTER:
            self.say(
                f"warning: the completions of each of the first {GREEDY_AFTER} prompts are all the same, though "
                f"source.sampling.temperature is {self.config.temperature:g}: the server seems to take the most "
                "probable token. transformers serve does so unless the model's generation_config.json has "
                '"do_sample": true; SGLang draws alike in its deterministic mode, for the n of a request '
                "(source.sampling.engine.samples_per_request) or where it does not read seeds"
            )

    # -----------------------------------------------------------------------------------------------------------------
    # New weights

    def publish(self, folder: Path, name: str) -> None:
        """Let the server have new weights, wait until it answers, and sample with them from then on.

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
            model, generation = path, self._generation(folder)
        elif isinstance(how, ByCommand):
            run_command(how, path, self.stopping)
        elif isinstance(how, ByAdapter):
            model = name
            self._finish(self._adapters.load(self._client(), name, path))
        else:
            marker = _marker(folder.parent)
            asleep = marker.exists()
            # First, so that whatever happens now, a server that is started anew is not woken.
            marker.unlink(missing_ok=True)
            self._finish(tell(self._client(), to_load(how, asleep=asleep), path, name))
        self._finish(self._wait(model))
        self._weights, self.asleep = Weights(model, name, generation), False

    def rest(self, served: Path) -> None:
        """Let the server leave its GPU to training until it is given weights again, where it is to do so.

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
            self._finish(tell(self._client(), requests))
            make_folder(served)
            patient(marker, marker.touch)
        self.asleep = True

    def _generation(self, folder: Path) -> str:
        """Return generation settings for transformers serve, which else takes the model's own, such as its top-k."""
        tokens: dict[str, Any] = {"eos_token_id": self.renderer.tokenizer.eos_token_id}
        try:
            own = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
            tokens |= {name: own[name] for name in ("eos_token_id", "pad_token_id") if own.get(name) is not None}
        except (OSError, ValueError, AttributeError):
            pass
        how = {"do_sample": True, "top_k": 0} if self.config.temperature else {"do_sample": False}
        return json.dumps(how | {"repetition_penalty": 1.0} | tokens)

    async def _wait(self, model: str | None) -> None:
        """Return when the server is healthy; raise SamplerError if that takes too long."""
        waited, wait, trouble = 0.0, 0.5, ""
        async with self._client() as client:
            while True:
                try:
                    status, _, content = await client.send("GET", "/health")
                    if status in (404, 405):
                        body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
                        body |= {} if model is None else {"model": model}
                        status, _, content = await client.send("POST", "/v1/chat/completions", body)
                    if 200 <= status < 300:
                        return
                    trouble = f"status {status} {quoted(content.decode('utf-8', 'replace'))}"
                except ConnectionError as error:
                    trouble = str(error)
                if waited >= self.engine.seconds:
                    break
                await self._sleep(wait)
                waited, wait = waited + wait, min(5.0, 2 * wait)
            raise SamplerError(
                f"{client.shown} did not come back within {self.engine.seconds:g} s (source.sampling.engine.seconds) "
                f"after it was given new weights; the last: {visible(redact(trouble))}. See to the server"
            )

    def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, whether or not the caller's thread has a loop (notebooks do)."""
        ended: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        running = _Running(work, ended.put)
        try:
            while running.alive:
                if self.stopping():
                    raise SamplingStopped
                running.wait(LOOK)
        finally:
            running.stop()
        if not ended.empty():
            raise ended.get()

    def _client(self) -> Client:
        return Client(self.engine, self._key, self._sleep)


EXTRAS = (
    "seed",
    "logprobs",
    "return_token_ids",
    "top_k",
    "min_p",
    "repetition_penalty",
    "add_special_tokens",
    "include_stop_str_in_output",
    "no_stop_trim",
    "generation_config",
)


def as_requested(prompt: Messages) -> list[dict[str, Any]]:
    """Return messages as OpenAI's protocol has them: the arguments of tool calls are text."""
    messages = [message.as_dict() for message in prompt]
    for call in tool_calls(messages):
        if not isinstance(call["arguments"], str):
            call["arguments"] = to_json(call["arguments"])
    return messages


def _marker(served: Path) -> Path:
    """Return the file that says, also to a run that is resumed, that the server was put to sleep."""
    return served / "asleep"


def seed(key: tuple[int, ...], context: str, sample: int, again: int = 0) -> int:
    """Return a request's seed, 0 to 2**31 - 1, which every server can hold; another one where it is asked again."""
    content = json.dumps([list(key), context, sample, *([again] if again else [])]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=4).digest(), "big") >> 1


# ---------------------------------------------------------------------------------------------------------------------
# An event loop beside the caller's thread


class _Running:
    """A coroutine in a thread of its own; what it raises goes to `failed`."""

    def __init__(self, work: Coroutine[Any, Any, None], failed: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work)
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="humanline-sampling", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except BaseExceptionGroup as group:
            self._failed(_first(group))
        except asyncio.CancelledError:
            self._failed(SamplerError("sampling was closed"))
        except BaseException as error:
            self._failed(error)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def stop(self) -> None:
        """Cancel it, and wait until it is gone."""
        with contextlib.suppress(RuntimeError):  # a closed loop: it is done
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Return whether it still runs."""
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait until it ends, but no longer than that."""
        self._thread.join(seconds)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
