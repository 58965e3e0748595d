"""What a run depends on, in a form that can be compared: a resumed run must be the same run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from humanline.system.terminal import HIDDEN, redacted
from humanline.train.config import TrainConfig
from humanline.train.config.data import DataConfig
from humanline.train.config.objective import OBJECTIVES
from humanline.train.config.own_sources import (
    REWARD_CODE,
    REWARD_MODEL,
    REWARD_REVISION,
    own_sources,
    reward_sources,
)
from humanline.train.config.rounds import EARLIER
from humanline.train.config.secrets import hidden, settings_digest
from humanline.train.run.processes import Processes, Reduce
from humanline.train.run.shares import Share, is_shard, share_of

# Sections and fields that change where a run writes, what it shows, whom it asks and what it puts up with, never what
# it computes from the same samples and scores.
_FREE = (
    "output",
    "checkpoint",
    "tracking",
    "training.sharding",
    "training.disk_full",
    "training.stall_minutes",
    "training.collapse",
    "data.bad_rows_limit",
    "evaluation.scoring",
    "evaluation.distance.to_start",
    "source.too_few",
    "source.scoring.failed",
    "source.scoring.failed_share",
    "source.scoring.workers",
    "source.scoring.seconds",
    "source.scoring.first_seconds",
    "source.scoring.memory",
    "source.scoring.environment",
    *(
        f"{section}.{name}"
        for section in ("source.sampling", "evaluation.sampling")
        for name in (
            "engine.url",
            "engine.allow_hosts",
            "engine.key_variable",
            "engine.concurrency",
            "engine.seconds",
            "engine.attempts",
            "engine.proof",
            "mismatch_limit",
        )
    ),
)
_FREE_ON_FIXED_DATA = ("evaluation.samples", "evaluation.sampling")  # where `humanline evaluate` alone reads them


# Settings that came later, with the value that says what held before: runs from before them go on.
_LATER: dict[str, Any] = (
    {
        "data.ignore": [],
        "evaluation.distance": None,
        "evaluation.limit": None,
        "evaluation.samples": 1,
        "evaluation.sampling": None,
        "optimizer.schedule": "constant",
        "training.layers": "plain",
        "source.sampling.engine.new_weights.requests": [],
        "source.sampling.engine.new_weights.sleep": [],
    }
    | {f"data.{name}": value for name, value in DataConfig.later.items()}
    | {f"objective.{name}": value for one in OBJECTIVES for name, value in one.later.items()}
)

_REWARDS = "source.scoring.rewards"
_LATER_OF_REWARDS: dict[str, Any] = {"signature": None}  # the same, of the entries of a list


# Settings of a model that are its name, or the type its weights happen to be in.
_KEPT = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "quantization_config")


def tokenizer_hash(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer: its rules where it can tell them, its vocabulary and special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    facts = [
        backend.to_str() if backend is not None else None,
        sorted(tokenizer.get_vocab().items()),
        sorted((name, str(token)) for name, token in tokenizer.special_tokens_map.items()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def model_hash(model: Any) -> str:
    """Return the SHA-256 of a model's settings: what it computes besides its weights."""
    facts = {k: v for k, v in model.config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def base_hash(model: Any) -> str:
    """Return the SHA-256 of a model's settings but for what its weights are kept in, and what differs from run to run.

    Only settings that are not the defaults of its kind count, so that other versions of transformers agree.
    """

    def plain(tree: Any) -> Any:
        return {k: plain(v) for k, v in tree.items() if k not in _KEPT} if isinstance(tree, dict) else tree

    facts = plain(model.config.to_diff_dict())
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def trained_hash(module: nn.Module, reduce: Reduce | None = None) -> str:
    """Return a SHA-256 of the parameters that are trained (`frozen_hash`): the version of a policy."""
    return _hash({name: one for name, one in module.named_parameters() if one.requires_grad}, reduce)


def frozen_hash(module: nn.Module, reduce: Reduce | None = None) -> str:
    """Return a SHA-256 of the parameters that are not trained: of names, shapes and weighted sums of their bits.

    It does not depend on how many processes share the parameters out.

    Parameters
    ----------
    module : nn.Module
    reduce : callable, optional
        Sums over these processes, all of which then call this alike; needed where they share parameters out.

    Raises
    ------
    ValueError
        If it is missing then.
    """
    return _hash({name: one for name, one in module.named_parameters() if not one.requires_grad}, reduce)


def run_facts(
    config: TrainConfig, tokenizer: Any, policy: Any, hashes: Mapping[str, Any], processes: Processes
) -> dict[str, Any]:
    """Return the facts that a resumed run must share, beside its settings.

    Parameters
    ----------
    config : TrainConfig
    tokenizer, policy
        Of the run.
    hashes : mapping
        Of its chat template, its data and its reward models.
    processes : Processes
        All of which call this alike.
    """
    facts: dict[str, Any] = {
        **hashes,
        "tokenizer": tokenizer_hash(tokenizer),
        "model settings": model_hash(policy.model),
        **own_sources(config),
        **reward_sources(config),
    }
    if config.adapter is not None:
        facts["frozen weights"] = frozen_hash(policy, processes.reduce)
    if config.objective.grouping is not None and config.objective.grouping.whole:
        # The loss is a mean of each micro-batch, and what is in one depends on how many processes share a step.
        facts["processes (their micro-batches are in the loss: normalise: local)"] = processes.ranks
    return facts


def comparable(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of now that those of a run, as it wrote them, can tell: earlier versions kept fewer."""
    later = (REWARD_CODE, REWARD_MODEL, REWARD_REVISION)
    untold = tuple(kind for kind in later if not any(name.startswith(kind) for name in then))
    return {name: one for name, one in now.items() if not name.startswith(untold)}


def _hash(parameters: Mapping[str, nn.Parameter], reduce: Reduce | None) -> str:
    sums = {name: _checksum(share_of(parameter)) for name, parameter in parameters.items()}
    sharded = [name for name, parameter in parameters.items() if is_shard(parameter)]
    if sharded:
        if reduce is None:
            raise ValueError("the parameters are shared out over processes, whose sums must be added")
        own = torch.tensor([sums[name] for name in sharded])  # of int64, which wraps as the sums do
        sums |= dict(zip(sharded, reduce(own, "sum").tolist(), strict=True))
    sha = hashlib.sha256()
    for name, parameter in parameters.items():
        sha.update(f"{name} {tuple(parameter.shape)} {parameter.dtype} {sums[name] % 2**64}".encode())
        kept = getattr(parameter, "quant_state", None)  # of 4-bit codes: what they stand for
        for part, tensor in sorted(kept.as_dict(packed=True).items()) if kept is not None else ():
            sha.update(f"{part} {_checksum(share_of(tensor)) % 2**64}".encode())
    return sha.hexdigest()


_PIECE = 1 << 25  # bytes that are summed together: there may be no room for a copy of a whole tensor


def _checksum(share: Share) -> int:
    """Return the sum of a tensor's bytes, eight at a time, each times its place, as a signed number of 64 bits.

    Of a share it is what these rows add to that of the whole tensor: a word of eight bytes that lies in two shares is
    the sum of its parts.
    """
    bits = share.rows.contiguous().flatten().view(torch.uint8)
    first = share.start * (bits.numel() // max(1, len(share.rows))) if share.start else 0
    before = first % 8  # bytes of the first word that lie in another share
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, before + bits.numel(), _PIECE):
        left, right = max(start - before, 0), min(start + _PIECE - before, bits.numel())
        missing = left - (start - before)
        words = torch.nn.functional.pad(bits[left:right], (missing, -(missing + right - left) % 8)).view(torch.int64)
        place = (first - before + start) // 8 + 1
        total += (words * torch.arange(place, place + len(words), device=words.device)).sum()
    return int(total)


#: The order of rows is numpy's, tokens are tokenizers', and the others compute or keep what is trained, where they are.
_ALSO = ("numpy", "tokenizers", "peft", "torchao", "bitsandbytes", "liger-kernel")


def software() -> dict[str, str]:
    """Return the versions that the last bits of a result depend on."""
    from importlib.metadata import PackageNotFoundError, version

    import accelerate
    import transformers

    import humanline

    more = {}
    for name in _ALSO:
        with contextlib.suppress(PackageNotFoundError):
            more[name] = version(name)
    return {
        "humanline": humanline.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "accelerate": accelerate.__version__,
        **more,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "threads": str(torch.get_num_threads()),
    }


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as dotted names and plain values."""
    result: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = value
    return result


def same_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a dumped configuration, by dotted name, that a resumed run must share.

    They may be of an earlier version, and dotted names already. Secrets are left out: a key may be replaced.
    """
    settings = _named_now(flat(hidden(config)))
    if isinstance(rewards := settings.get(_REWARDS), list | tuple):
        settings[_REWARDS] = [_as_before(reward, _LATER_OF_REWARDS) for reward in rewards]
    fixed = settings.get("source.kind") == "fixed"
    if "reference.round_start" in settings and (fixed or settings.get("reference.schedule.kind") == "each_round"):
        settings["reference.round_start"] = "sync"  # `keep`, which did nothing here, is refused today
    names = _FREE + (_FREE_ON_FIXED_DATA if fixed else ())
    free = tuple(f"{name}." for name in names)
    return {
        name: value
        for name, value in settings.items()
        if not f"{name}.".startswith(free) and not (name in _LATER and value == _LATER[name])
    }


def _as_before(entry: Any, later: Mapping[str, Any]) -> Any:
    """Return an entry of a list of sections without the settings that say what held before there were such."""
    if not isinstance(entry, Mapping):
        return entry
    return {name: value for name, value in entry.items() if not (name in later and value == later[name])}


def _named_now(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name under the names of today.

    Earlier versions had rounds (null on fixed data), sampling and scoring in place of source.
    """
    fixed = "rounds" in settings and settings["rounds"] is None
    result = {"source.kind": "fixed" if fixed else "rounds"} if fixed or "rounds.contexts_per_round" in settings else {}
    for name, value in settings.items():
        section, _, rest = name.partition(".")
        if section not in EARLIER:
            result[name] = value
        elif not fixed:
            result[f"{EARLIER[section]}.{rest}"] = value
    return result


def as_planned(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings (`same_settings`) as a plan has them: fit to be read, and a digest of what they truly are."""
    return {"settings": redacted(settings), "digest": settings_digest(settings)}


_UNSEEN = "in what is hidden here as a secret, or in how a number is written: 1 is not 1.0"


def is_planned(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a plan (`as_planned`, or one of an earlier version) has these settings."""
    return not plan_differences(before, now)


def plan_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a table of what a plan (`as_planned`, or one of an earlier version) has otherwise; empty if nothing.

    The digest tells where both have the same names: what is written down depends on what the environment calls secret.
    Other versions have other names, or no digest; then the settings themselves are compared.
    """
    settings = before["settings"]
    if "digest" in before and settings.keys() == now.keys():
        same = bool(before["digest"] == settings_digest(now))
        return "" if same else differences(settings, now) or f"  ({_UNSEEN})"
    return differences(same_settings(settings), now)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a table of the names whose values differ, empty if none does; secrets aside.

    What is written down has `***` where a text was a secret on that day (`terminal.redact`); with another key, or in
    another environment, the same text is none. So `***` on one side agrees with any text in its place on the other.
    """
    before, now = redacted(before), redacted(now)
    rows = [
        (name, *_shown(before.get(name, _ABSENT), now.get(name, _ABSENT)))
        for name in dict.fromkeys([*before, *now])
        if not _agree(before.get(name, _ABSENT), now.get(name, _ABSENT))
    ]
    if not rows:
        return ""
    rows.insert(0, ("what", "then", "now"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"  {name:<{widths[0]}}  {then:<{widths[1]}}  {today}" for name, then, today in rows)


_ABSENT = object()


def _shown(then: Any, now: Any) -> tuple[str, str]:
    """Return two values that differ as texts of some 40 characters which differ too."""
    long = [_text(then), _text(now)]
    if long[0] == long[1]:  # a text and a number, or what is absent
        long = [json.dumps(one) if isinstance(one, str) else _text(one) for one in (then, now)]
    short = [text if len(text) <= 40 else f"{text[:12]}...{text[-24:]}" for text in long]
    if short[0] == short[1]:  # they differ in between: paths of two seeds, one number of a list
        parted = (place for place, (one, other) in enumerate(zip(*long, strict=False)) if one != other)
        start = max(0, next(parted, min(map(len, long))) - 12)
        before, end = "..." if start else "", start + 34
        short = [f"{before}{text[start:end]}{'...' if len(text) > end else ''}" for text in long]
    return short[0], short[1]


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "(absent)"
    return value if isinstance(value, str) else json.dumps(value)


def _agree(then: Any, now: Any) -> bool:
    """Return whether two values are the same, but for texts that one of them hides."""
    if isinstance(then, str) and isinstance(now, str):
        return then == now or _stands_for(then, now) or _stands_for(now, then)
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        return then.keys() == now.keys() and all(_agree(value, now[key]) for key, value in then.items())
    if isinstance(then, list | tuple) and isinstance(now, list | tuple):
        return len(then) == len(now) and all(map(_agree, then, now))
    return bool(then == now)


def _stands_for(written: str, text: str) -> bool:
    """Return whether a text is what was written, with something in place of each `***`."""
    first, *parts = written.split(HIDDEN)
    if not parts or not text.startswith(first):
        return False
    at = len(first)
    for part in parts[:-1]:  # the earliest place of each leaves most room for the others
        at = text.find(part, at + 1)
        if at < 0:
            return False
        at += len(part)
    return len(text) - len(parts[-1]) > at and text.endswith(parts[-1])
