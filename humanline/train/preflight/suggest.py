"""Changes that make a run fit, the one that costs its user least first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from humanline.train.config import TrainConfig
from humanline.train.data.stream import why_uneven
from humanline.train.preflight.memory import Estimate, Estimator
from humanline.train.preflight.workload import Workload


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that makes a run smaller, as words of the command line, and what is needed then.

    The words make the change alone, after those suggestions before it that have `together`, and after all before it.
    """

    overrides: tuple[str, ...]
    what: str
    alone: Estimate
    together: Estimate | None  # with those before it that have one; None once these are enough, or if it adds nothing


def suggest(
    estimator: Estimator, config: TrainConfig, workload: Workload, memory: float, *, aside: float = 0.0
) -> list[Suggestion]:
    """Return changes that make a run smaller, the cheapest for its user first, and only those that help.

    Parameters
    ----------
    estimator : Estimator
    config : TrainConfig
    workload : Workload
    memory : float
        Bytes that the run should fit into.
    aside : float
        Bytes of it that are taken by something else.
    """
    start = estimator.estimate(config, workload).peak
    suggestions: list[Suggestion] = []
    so_far, so_far_work, so_far_peak = config, workload, float(start)
    listed = config  # with every suggestion, which a user may take all together
    for what, changes in _CHANGES:
        new = changes(config, workload)
        alone, after_all = _changed(config, workload, new), _changed(listed, workload, new)
        if alone is None or after_all is None:
            continue
        if (estimate := _estimated(estimator, alone)) is None or estimate.peak > 0.99 * start:
            continue
        words, together = _words((config, so_far, listed), new), None
        if so_far_peak + aside > memory:
            joined = _changed(so_far, so_far_work, new)
            together = None if joined is None else _estimated(estimator, joined)
            if joined is None or together is None or together.peak > 0.99 * so_far_peak:
                together = None
            else:
                so_far, so_far_work = joined
                so_far_peak = together.peak
        suggestions.append(Suggestion(words, what, estimate, together))
        listed = after_all[0]
    return suggestions


def smaller_passes(
    estimator: Estimator, config: TrainConfig, workload: Workload, memory: float, *, aside: float = 0.0
) -> Suggestion | None:
    """Return the largest passes, smaller than those there are, with which a run fits; None where there are none.

    Parameters
    ----------
    estimator, config, workload, memory, aside
        As in `suggest`.
    """
    training = config.training
    least = next(iter(_smaller_passes(config, workload).values()), 0)
    if training.micro_batch_tokens is not None:
        name, now, share = "training.micro_batch_tokens", training.micro_batch_tokens, 0
    else:
        share = -(-training.batch_size // workload.ranks) * (
            1 if config.objective.grouping is None else config.rows_a_unit
        )
        name, now = "training.micro_batch_size", min(training.micro_batch_size or share, share)
    what = "another loss" if _is_mean_of_passes(config) else "equal results up to rounding"
    while 0 < least < now and (now := max(least, _next_smaller(now, share))):
        changed = _changed(config, workload, {name: now})
        estimate = None if changed is None else _estimated(estimator, changed)
        if changed is not None and estimate is not None and estimate.peak + aside <= memory:
            return Suggestion(_words((config,), {name: now}), what, estimate, None)
    return None


def _next_smaller(size: int, share: int) -> int:
    """Return about half a size; of a share that is cut into parts of one size, such a part."""
    return next((one for one in range(size // 2, 0, -1) if not share or share % one == 0), 1)


def gpus_needed(
    estimator: Estimator, config: TrainConfig, workload: Workload, memory: float, *, aside: float = 0.0
) -> tuple[int, Estimate] | None:
    """Return how many GPUs of a size hold a run with `training.sharding: full`, and what each of them holds then.

    Looked at are powers of two above the number of processes there is, of which each has a pass to compute.

    Parameters
    ----------
    estimator, config, workload, memory, aside
        As in `suggest`.

    Returns
    -------
    (int, Estimate) or None
        None where there is no such number.
    """
    sharded = _changed(config, workload, {"training.sharding": "full"})
    config = config if sharded is None else sharded[0]
    if config.training.sharding != "full":  # refused in this configuration
        return None
    every = workload.passes * workload.ranks  # over all processes
    for gpus in (2**power for power in range(1, 11)):
        if gpus <= workload.ranks or config.training.batch_size % gpus or _is_uneven(config, gpus):
            continue
        if gpus > every:
            break
        passes = -(-every // gpus)
        shared = replace(workload, ranks=gpus, passes=passes, later=workload.later if passes > 1 else None)
        estimate = _estimated(estimator, (config, shared))
        if estimate is not None and estimate.peak + aside <= memory:
            return gpus, estimate
    return None


_Changes = dict[str, Any]
_Changed = tuple[TrainConfig, Workload]


def _more_passes(config: TrainConfig, workload: Workload) -> _Changes:
    """Make passes smaller where that changes rounding alone."""
    return {} if _is_mean_of_passes(config) else _smaller_passes(config, workload)


def _other_passes(config: TrainConfig, workload: Workload) -> _Changes:
    """Make passes smaller where that changes the loss."""
    return _smaller_passes(config, workload) if _is_mean_of_passes(config) else {}


def _is_mean_of_passes(config: TrainConfig) -> bool:
    groups = config.objective.grouping
    return groups is not None and groups.whole


def _smaller_passes(config: TrainConfig, workload: Workload) -> _Changes:
    """Make passes as small as they may be; none of the processes is to have more of them than others."""
    training = config.training
    if training.micro_batch_tokens is not None:
        least = config.rows_together * config.data.max_length  # which alone has to fit
        return {} if training.micro_batch_tokens <= least else {"training.micro_batch_tokens": least}
    least = 1 if config.objective.grouping is None else config.rows_together
    most = config.rows_a_pass(workload.ranks)  # at least the pieces of a pass
    size = next((size for size in range(least, most + 1) if not _is_uneven(config, workload.ranks, size)), None)
    return {} if size in (None, training.micro_batch_size) else {"training.micro_batch_size": size}


def _is_uneven(config: TrainConfig, ranks: int, size: int | None = None) -> bool:
    """Return whether so many processes cannot share the micro-batches of a step, of another size if one is given."""
    training, groups = config.training, config.objective.grouping
    if groups is not None and not groups.whole:  # rows are dealt one by one
        return False
    size = size or training.micro_batch_size
    return bool(why_uneven(size, training.micro_batch_tokens, training.batch_size, ranks, groups is not None))


def _fewer_together(config: TrainConfig, _: Workload) -> _Changes:
    """Draw fewer completions at a time, where this process draws them."""
    if config.rounds is None or config.rounds.sampling.engine.kind != "generate":
        return {}
    return {"source.sampling.engine.batch_size": max(1, config.rounds.sampling.engine.batch_size // 4)}


def _narrow_weights(config: TrainConfig, _: Workload) -> _Changes:
    if config.adapter is not None:
        return {"optimizer.states": "8bit"}
    return {"training.precision": "bf16", "training.weights": "bf16", "optimizer.states": "8bit"}


def _lora(config: TrainConfig, _: Workload) -> _Changes:
    if config.adapter is not None:
        return {}
    wide = {"training.weights": "float32", "optimizer.states": "float32"}
    return {"adapter": {"rank": 16}, "training.precision": "bf16"} | wide


def _qlora(config: TrainConfig, _: Workload) -> _Changes:
    whole = {"training.sharding": "none"}  # 4 bits cannot be shared out
    if config.adapter is not None:
        return {"adapter.base": "nf4"} | whole
    adapter = {"adapter": {"rank": 16, "base": "nf4"}, "training.precision": "bf16", "training.weights": "float32"}
    return adapter | whole


def _shards(_: TrainConfig, workload: Workload) -> _Changes:
    return {"training.sharding": "full"} if workload.ranks > 1 else {}


# What costs a user least first: nothing, time, rounding, then another loss and what is trained.
_CHANGES: tuple[tuple[str, Any], ...] = (
    ("each GPU holds its share of weights, gradients and states; equal results", _shards),
    ("fewer completions drawn together, equal but for the last bits", _fewer_together),
    ("no second model, equal results", lambda c, w: {"reference.storage": "score_ahead"}),
    ("up to a third more work", lambda c, w: {"training.activation_checkpointing": True}),
    ("more and smaller passes", _more_passes),
    ("no padding, equal results", lambda c, w: {"training.padding": "free"}),
    ("bf16 compute", lambda c, w: {"training.precision": "bf16"}),
    ("bf16 weights and 8-bit optimizer states, rounded stochastically", _narrow_weights),
    ("smaller passes, which are part of the loss under normalise: local", _other_passes),
    ("LoRA: additions are trained, not the weights", _lora),
    ("QLoRA: and the weights kept in 4 bits", _qlora),
)


def _changed(config: TrainConfig, workload: Workload, changes: _Changes) -> _Changed | None:
    """Return configuration and workload with some values changed; None if nothing changes, or it is none any more."""
    if not _words((config,), changes):
        return None
    tree = config.model_dump(mode="json")
    for name, value in changes.items():
        within, key = _place(tree, name)
        within[key] = value
    try:
        changed = TrainConfig.model_validate(tree)
    except ValueError:  # not in this configuration
        return None
    if _is_uneven(changed, workload.ranks) and not _is_uneven(config, workload.ranks):
        return None
    now, then = _a_pass(config, workload), _a_pass(changed, workload)
    return changed, workload if now == then else workload.with_rows(then / now)


def _words(configs: Iterable[TrainConfig], changes: _Changes) -> tuple[str, ...]:
    """Return the words for those of some changes that are one to any of the configurations."""
    words, trees = [], [config.model_dump(mode="json") for config in configs]
    for name, value in changes.items():
        places = [_place(tree, name) for tree in trees]
        if all(within.get(key) == value for within, key in places):
            continue
        shown = value if not isinstance(value, dict) else "{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}"
        shown = str(shown).lower() if isinstance(shown, bool) else shown
        words.append(f'{name}="{shown}"' if isinstance(value, dict) else f"{name}={shown}")
    return tuple(words)


def _place(tree: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """Return the section of a configuration in which a name is, and its key there."""
    *sections, key = name.split(".")
    for section in sections:
        tree = tree[section]
    return tree, key


def _a_pass(config: TrainConfig, workload: Workload) -> float:
    """Return how much of a step one pass has, in a unit of which only ratios count."""
    rows, tokens = config.rows_a_pass(workload.ranks), config.training.micro_batch_tokens
    return float(rows if tokens is None else min(tokens, rows * config.data.max_length))  # no more than a step has


def _estimated(estimator: Estimator, changed: _Changed) -> Estimate | None:
    try:
        return estimator.estimate(changed[0], changed[1])
    except ValueError:  # the model cannot be packed, say
        return None
