"""What a run is and what came of it, as plain JSON: what its model's card says, and what reports of runs are made of.

Nothing in it depends on when or where a run was made: the folders of models and files are left out, and no time is
told, so that runs that are equal bit for bit have equal facts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from humanline.train.config.describe import config_in_words, describe_variant
from humanline.train.config.run import TrainConfig
from humanline.train.run.fingerprint import same_settings
from humanline.train.run.looks import best_look, looks_of, updates_of

FORMAT = 1
#: Lines of a configuration in words that name no folder, no server and nothing that may change on --resume.
_WORDS = ("variant", "transform", "reference", "training", "rounds", "adapter")
_HASHES = {"train": "training data", "held_out": "held-out data", "distance": "prompts of evaluation.distance"}
#: A whole path in a sentence: in quotes, or up to what ends a word. The double slash of an address begins none.
_SIGNS = r"[^\s'\"`<>|:;,()\[\]{}]"
_PATH = re.compile(
    r"""(?<=')[~/][^'\n]*(?=')|(?<=")[~/][^"\n]*(?=")"""
    # A slash and a word alone may be a share, as in "3 /4 nats": a whole path has more of it, or a name with an ending.
    rf"|(?<![\w/.~\\-])(?:file://)?(?:~[\w.-]*/(?!/)|/(?!/)(?={_SIGNS}*[/.]\w)){_SIGNS}+"
)
_LEFT_OUT = {
    "dropped_too_long": "too long",
    "dropped_prompt_too_long": "prompt too long",
    "dropped_empty_completion": "empty answer",
    "dropped_identical": "equal answers",
    "dropped_special_token": "special tokens in the text",
}


def facts_of(
    config: Mapping[str, Any],
    data: Mapping[str, Any],
    start: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    software: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what can be told of a run.

    Parameters
    ----------
    config, data, start : mapping
        As config.json, data.json and start.json of its folder have them; of another version of humanline, or damaged,
        they say less.
    rows : sequence of mapping
        Of its metrics.jsonl.
    software : mapping, optional
        As `humanline.train.run.fingerprint.software` tells it.

    Returns
    -------
    dict
        ``title`` and ``words`` (of a configuration that this version cannot read: None and empty), ``objective`` and
        its ``kind`` in words, which runs that can be drawn on the same axes share, ``model``, ``weights`` ("whole" or
        "adapter"), ``settings`` (by dotted name, without those that may change on --resume), ``data`` (a list, one a
        file), ``updates`` (done), ``looks`` (``first``, ``best`` and ``last`` of the held-out ones, each with
        ``updates`` and ``metrics``), ``count`` of looks, ``judged_by``, ``broke``, ``software``.
    """
    words = _in_words(config)
    looks, objective = looks_of(rows), _inside(config, "objective", "kind")
    kind = words["variant"].partition(",")[0] if words else objective.upper() if isinstance(objective, str) else None
    judge, best = best_look(looks)
    settings = {name: placeless(value) for name, value in same_settings(config).items() if name != "model"}
    model = config.get("model")
    return {
        "format": FORMAT,
        "title": words.get("variant"),
        "words": {name: text for name, text in words.items() if name in _WORDS},
        "objective": objective if isinstance(objective, str) else None,
        "kind": kind,
        "model": placeless(model) if isinstance(model, str) else None,
        "weights": "adapter" if isinstance(config.get("adapter"), Mapping) else "whole",
        "settings": settings,
        "data": [_set_facts(name, data[name], start) for name in _HASHES if isinstance(data.get(name), Mapping)],
        "updates": updates_of(rows),
        "looks": {"first": looks[0], "best": best, "last": looks[-1]} if looks else {},
        "count": len(looks),
        "judged_by": judge,
        "broke": next((row["broke"] for row in rows if isinstance(row.get("broke"), Mapping)), None),
        "software": dict(software or {}),
    }


def placeless(value: Any) -> Any:
    """Return a setting, of the whole path of a file or folder its name alone: where it lay is nobody else's matter."""
    if isinstance(value, str) and (value.startswith(("/", "~")) or PurePath(value).is_absolute()):
        parts = [part for part in PurePath(value).parts if part != "/"]
        return "/".join(["...", *parts[-2:]])
    if isinstance(value, list):
        return [placeless(one) for one in value]
    return {name: placeless(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def placeless_text(text: str) -> str:
    """Return a message with whole paths in it shortened as `placeless` does it; one with spaces where it is quoted."""
    return _PATH.sub(lambda found: placeless(found[0].removeprefix("file://")), text)


def json_numbers(value: Any) -> Any:
    """Return a tree of JSON with nan and infinity, which JSON does not have, as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: json_numbers(one) for name, one in value.items()}
    return [json_numbers(one) for one in value] if isinstance(value, list | tuple) else value


def _in_words(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration in words; nothing where it is none of this version's."""
    try:
        tree = TrainConfig.model_validate(dict(config))
        return config_in_words(tree) | {"variant": describe_variant(tree)}
    except Exception:  # whatever another version, or a person, has made of it
        return {}


def _set_facts(name: str, report: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told of one set of rows."""
    path, found = report.get("path"), start.get(_HASHES[name])
    left_out = {words: _inside(report, "lengths", key) for key, words in _LEFT_OUT.items()}
    left_out = {"bad rows (data.bad_rows)": _inside(report, "bad_rows", "bad"), **left_out}
    counts = {
        "rows": _inside(report, "lengths", "total"),
        "kept": _inside(report, "lengths", "kept"),
        "truncated": _inside(report, "lengths", "truncated"),
        "prompts": report.get("prompts"),
        "prompts_in_training": report.get("prompts_in_training"),
        "duplicates": _inside(report, "duplicates", "duplicates"),
    }
    return {
        "set": name,
        "path": placeless(path) if isinstance(path, str) else None,
        **{key: value for key, value in counts.items() if type(value) is int},
        "left_out": {words: count for words, count in left_out.items() if type(count) is int and count},
        "sha256": found if isinstance(found, str) else None,
    }


def _inside(tree: Any, *names: str) -> Any:
    for name in names:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree
