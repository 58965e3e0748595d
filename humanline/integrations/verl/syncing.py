"""Humanline syncing for verl: within a round, the weights before an update score the mini-batches that follow it.

verl scores a whole round with the weights at its start and then takes several updates. Here the mini-batches pass
through `synced` on their way from verl's iterator to verl's loop. Before it hands over that of a sync step, it has the
engine score the next k with the weights of that moment, so no second model is held. Nothing outlives a round, so a run
that verl resumes goes on as it would have. Tested in verl's own loop with a stand-in engine and with verl's FSDP
engines on the CPU, untried on a GPU. Only `HUMANLINE_VERL_SYNC=before_step` loads this module.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import Any

import torch

from humanline.integrations.verl.settings import EVERY, SYNC, plugin_settings
from humanline.schedule import BeforeStep

_worker: ContextVar[Any] = ContextVar("worker of the round", default=None)
_moved: ContextVar[bool | None] = ContextVar("whether the mini-batch at work was scored here", default=None)
_failure: list[str] = []


def moved() -> bool | None:
    """Return whether the mini-batch at work was scored by syncing; None where it did not come through `synced`."""
    return _moved.get()


def why_not() -> str:
    """Say why no round is under way."""
    return f"it could not be installed ({_failure[0]})" if _failure else "verl's workers took another way to the loss"


def synced(batches: Iterable[Any], every: int, score: Callable[[Any], Any]) -> Iterator[tuple[Any, bool]]:
    """Yield a round's mini-batches with the reference that `BeforeStep(every)` gives each, and whether `score` gave it.

    Parameters
    ----------
    batches : iterable
        In order, with the reference of the round's start in place.
    every : int, >= 1
        Mini-batches between syncs; counted from the start of the round, whose first sync is verl's own.
    score : callable
        Returns a mini-batch with the present weights as its reference. Called before the update of a sync step.
    """
    schedule, rest, waiting = BeforeStep(every=every), iter(batches), deque[tuple[Any, bool]]()
    for step in range(10**15):
        waiting.extend((batch, False) for batch in islice(rest, every + 1 - len(waiting)))
        if not waiting:
            return
        at_work = waiting.popleft()
        if step > 0 and schedule.copies_before_update(step):
            waiting = deque((score(later), True) for later, _ in waiting)
        yield at_work


@functools.cache
def install() -> None:
    """Lead the mini-batches of verl's policy through `synced`; a failure is kept for the loss to tell.

    An error here would be hidden by verl, which imports plug-ins in silence; the loss refuses where no round is begun.
    A second call does nothing.
    """
    try:
        from verl.utils import tensordict_utils
        from verl.workers.engine_workers import TrainingWorker

        tensordict_utils.make_iterator = _through(tensordict_utils.make_iterator)
        TrainingWorker.train_mini_batch = _with_worker(TrainingWorker.train_mini_batch)
    except Exception as error:
        _failure[:] = [f"{type(error).__name__}: {error}"]


def _with_worker(train_mini_batch: Callable[..., Any]) -> Callable[..., Any]:
    # Ray reads how to call the method from an attribute of it, which `wraps` copies.
    @functools.wraps(train_mini_batch)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_policy(self) or plugin_settings().sync_every == 0:
            return train_mini_batch(self, *args, **kwargs)
        _refuse(self)
        tokens = _worker.set(self), _moved.set(None)
        try:
            return train_mini_batch(self, *args, **kwargs)
        finally:
            _worker.reset(tokens[0])
            _moved.reset(tokens[1])

    return wrapped


def _through(make_iterator: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make_iterator)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        batches, worker = make_iterator(*args, **kwargs), _worker.get()
        return batches if worker is None else _round(batches, worker, plugin_settings().sync_every)

    return wrapped


def _round(batches: Iterable[Any], worker: Any, every: int) -> Iterator[Any]:
    count, ever = 0, False
    for batch, here in synced(map(_refuse_bypass, batches), every, functools.partial(scored, worker)):
        _moved.set(here)
        count, ever = count + 1, ever or here
        yield batch
    if not ever:
        enough = f"Set {EVERY}={count - 2} or less" if count > 2 else "Take at least 3 mini-batches a round"
        warnings.warn(
            f"{SYNC}=before_step moved no reference in a round of {count} mini-batches: with {EVERY}={every} it first "
            f"moves for mini-batch {every + 2}. {enough} (ppo_mini_batch_size, ppo_epochs), or unset {SYNC}.",
            stacklevel=2,
        )


def _refuse_bypass(batch: Any) -> Any:
    sampled, old = batch.get("rollout_log_probs", None), batch["old_log_probs"]
    flat = [(one.values() if one.is_nested else one).float() for one in (sampled, old) if one is not None]
    if len(flat) == 2 and torch.equal(*flat):
        raise ValueError(
            f"{SYNC}=before_step with algorithm.rollout_correction.bypass_mode=true is refused: old_log_probs are "
            "those of the server that sampled, so that a round would begin with references of another engine than it "
            f"goes on with. Set bypass_mode=false, or unset {SYNC} and {EVERY}."
        )
    return batch


def _is_policy(worker: Any) -> bool:
    # The same class trains the critic, whose loss has no policy loss in its configuration.
    config = getattr(worker.loss_fn, "keywords", {}).get("config")
    policy_loss = getattr(config, "policy_loss", None)
    return policy_loss is not None and policy_loss.get("loss_mode") == "humanline"


def _refuse(worker: Any) -> None:
    strategy = worker.engine_config.strategy
    wrong = []
    if strategy not in ("fsdp", "fsdp2"):
        wrong.append(f"the engine {strategy!r}; use actor_rollout_ref.actor.strategy=fsdp2")
    if worker.engine_config.get("ulysses_sequence_parallel_size", 1) > 1:
        wrong.append("sequence parallelism; set ulysses_sequence_parallel_size=1")
    if wrong:
        raise ValueError("HUMANLINE_VERL_SYNC=before_step does not work with " + ", nor with ".join(wrong))


def scored(worker: Any, batch: Any) -> Any:
    """Return a mini-batch whose old_log_probs are those of the worker's present weights, float32.

    The pass is verl's own for old_log_probs, with the micro-batches of training and not those of inference.
    """
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

    asked = batch.copy()  # verl writes settings of a pass into the batch, and the one of training is still to come
    tu.assign_non_tensor(
        asked,
        calculate_entropy=False,
        compute_loss=False,
        distillation_use_topk=False,
        disable_auto_offload=True,
        max_token_len_per_gpu=worker.engine_config.max_token_len_per_gpu,
        micro_batch_size_per_gpu=worker.engine_config.micro_batch_size_per_gpu,
    )
    log_probs = tu.get(worker.infer_batch(asked), "log_probs").to(batch["old_log_probs"].device)
    nested = batch["old_log_probs"].is_nested
    answers = (
        response_from_nested(log_probs, batch["response_mask"]) if nested else no_padding_2_padding(log_probs, batch)
    )
    if answers.shape[0] != batch.shape[0] or (not nested and answers.shape != batch["old_log_probs"].shape):
        raise ValueError(f"verl scored {tuple(answers.shape)} where old_log_probs are {batch['old_log_probs'].shape}")
    result = batch.copy()
    result["old_log_probs"] = answers.float()
    return result
