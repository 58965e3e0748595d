"""Sampling by transformers' continuous batching, in this process: completions that end make room for others at once.

For GPUs. Its random numbers are one stream for all, so that a completion depends on which others are under way: the
same seed gives the same completions only if nothing was stopped in between. Stop texts are not known to it: a
completion goes on to its end and is cut where the stop text was complete. Its key-value cache lives no longer than one
call of `sample`, since the weights change after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from humanline.system.stop import SamplingStopped
from humanline.system.terminal import visible
from humanline.train.config.rounds import ContinuousEngine, SamplingConfig
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.samplers.generate import end_tokens, sampling_mode
from humanline.train.online.types import Completion, Finish, Rollout, SamplerError
from humanline.train.policy.attention import refuse_paged

_SWITCH = "auto_switch_to_flash"  # a setting of transformers' continuous batching
LOOK = 0.2  # seconds between two looks at `stopping`
STOPPING = 60.0  # seconds that a pass through the model may still take when all is given up


class ContinuousSampler:
    """Draw completions with a model in this process, by continuous batching.

    Parameters
    ----------
    model
        A causal language model of transformers that supports it.
    renderer : Renderer
    config : SamplingConfig
        Its engine must be a ContinuousEngine.
    computing : callable, optional
        Gives the context in which the model computes, passes of other threads included; one for every `sample`.
    stopping : callable, optional
        Polled several times a second: whether to give up.

    Raises
    ------
    ValueError
        If the model does not support continuous batching, or would lose the soft cap of its attention by it.
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
        assert isinstance(config.engine, ContinuousEngine)
        if not hasattr(model, "init_continuous_batching"):
            raise ValueError(
                f"{type(model).__name__} does not support continuous batching; set "
                "source.sampling.engine.kind: generate"
            )
        refuse_paged(model)
        self.model, self.renderer, self.config, self.engine = model, renderer, config, config.engine
        self.computing, self.stopping = computing, stopping
        self.ends = end_tokens(model, renderer)

    def together(self, samples: int) -> None:
        """Return None: which contexts are drawn together is decided as they go."""

    def sample(self, contexts: Sequence[Context], samples: int, *, key: tuple[int, ...]) -> Iterator[list[Rollout]]:
        """Draw so many completions of every context (`Sampler`), one context at a time, in the order they get whole.

        Raises
        ------
        SamplerError
            If a request fails, such as one that does not fit the cache, or all of it.
        SamplingStopped
            If `stopping` said so.
        """
        if not contexts:
            return
        device = self.model.device
        devices = [device] if device.type == "cuda" else []
        # Sampling seeds torch's own random numbers, which are training's.
        with (
            torch.random.fork_rng(devices),
            sampling_mode(self.model),
            _no_kernels_fetched(self.model),
            self.computing(),
        ):
            manager = self._manager(key)
            try:
                manager.warmup()
                manager.start()
                yield from self._results(manager, contexts, samples)
            finally:
                manager.stop(block=True, timeout=STOPPING, hard_stop=True)
                manager.destroy()

    def close(self) -> None:
        """Do nothing: the model is the policy's."""

    def _manager(self, key: tuple[int, ...]) -> Any:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        config, engine = self.config, self.engine
        how: dict[str, Any] = {"do_sample": False}
        if config.temperature:
            how = {"do_sample": True, "temperature": config.temperature, "top_p": config.top_p, "top_k": 0}
        seed = hashlib.blake2b(json.dumps(list(key)).encode(), digest_size=4).digest()
        return self.model.init_continuous_batching(
            generation_config=GenerationConfig(**how, eos_token_id=sorted(self.ends)),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=engine.num_blocks,
                max_batch_tokens=engine.max_batch_tokens,
                return_logprobs=True,
                seed=int.from_bytes(seed, "big") >> 1,
                **({_SWITCH: False} if _has_switch() else {}),
            ),
        )

    def _results(self, manager: Any, contexts: Sequence[Context], samples: int) -> Iterator[list[Rollout]]:
        places = {}
        for index, context in enumerate(contexts):
            room = min(self.config.max_tokens, self.renderer.limits.max_length - len(context.ids))
            for number in range(samples):
                name = f"{index}-{number}"
                places[name] = index, number
                if manager.add_request(list(context.ids), request_id=name, max_new_tokens=room) is None:
                    raise SamplerError(f"continuous batching does not take requests: {_why(manager)}")
        parts: dict[int, dict[int, Completion]] = {}
        while places:
            if self.stopping():
                raise SamplingStopped
            result = manager.get_result(timeout=LOOK)
            if result is None:
                if not manager.is_running():
                    raise SamplerError(f"continuous batching broke off: {_why(manager)}")
                continue
            if not result.is_finished():
                continue
            index, number = places.pop(result.request_id)
            context = contexts[index]
            if result.error is not None:
                raise SamplerError(f"context {context.id!r}: continuous batching failed: {visible(result.error)[:400]}")
            part = parts.setdefault(index, {})
            part[number] = self._completion(list(result.generated_tokens), list(result.logprobs))
            if len(part) == samples:
                completions = tuple(part[i] for i in range(samples))
                yield [Rollout(context.id, context.prompt, completions, context.extra)]
                del parts[index]

    def _completion(self, ids: list[int], logprobs: list[float]) -> Completion:
        finish: Finish = "end" if ids and ids[-1] in self.ends else "length"
        spoken = ids[:-1] if finish == "end" else ids
        stopped = self._stopped(spoken)
        if stopped is not None:
            ids, finish = ids[:stopped], "stop"
            spoken = ids
        # They are of what was drawn from, which is the model's own distribution only without temperature and top-p.
        plain = self.config.temperature == 0 or (self.config.temperature == 1 and self.config.top_p == 1)
        told = tuple(logprobs[: len(ids)]) if plain and len(logprobs) >= len(ids) else None
        return Completion(text=self._text(spoken), ids=tuple(ids), finish=finish, logprobs=told)

    def _stopped(self, ids: list[int]) -> int | None:
        """Return after how many tokens the first stop text is complete; None if there is none."""

        def holds(count: int) -> bool:
            text = self._text(ids[:count])
            return any(stop in text for stop in self.config.stop)

        if not self.config.stop or not holds(len(ids)):
            return None
        low, high = 0, len(ids)  # holds(high), and not holds(low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high

    def _text(self, ids: list[int]) -> str:
        decode = self.renderer.tokenizer.decode
        return str(decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _has_switch() -> bool:
    from transformers import ContinuousBatchingConfig

    return _SWITCH in {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}


@contextlib.contextmanager
def _no_kernels_fetched(model: Any) -> Iterator[None]:
    """Keep continuous batching from other attention, for which it may download kernels.

    It has a switch for that. In versions that have none it looks for no other where the model's pages already.
    """
    if _has_switch():
        yield
        return
    before = model.config.get_text_config()._attn_implementation
    try:
        model.set_attn_implementation(f"paged|{before}")
        yield
    finally:
        model.set_attn_implementation(before)


def _why(manager: Any) -> str:
    error = getattr(manager.background_thread_status, "fatal_error", None)
    return visible(str(error or "its thread ended"))[:400]
