"""The plug-in's settings, which stand in the environment: verl's configuration has no room for those of a plug-in."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from humanline import _checks
from humanline.theory import ClipRange

PREFIX = "HUMANLINE_VERL_"
LOW, HIGH, SYNC, EVERY = (PREFIX + name for name in ("LOG_EPS_LOW", "LOG_EPS_HIGH", "SYNC", "SYNC_EVERY"))
#: verl's vanilla objective holds log-ratios to this many nats, without gradient beyond.
VERL_LIMIT = 20.0


@dataclass(frozen=True)
class Settings:
    """Hold what the environment says: the clip range (nats) and mini-batches between syncs, 0 where verl's hold."""

    clip: ClipRange
    sync_every: int


def plugin_settings() -> Settings:
    """Return the settings in the environment.

    `HUMANLINE_VERL_LOG_EPS_LOW` and `..._HIGH` are the clip bounds in nats, -20 <= low <= 0 <= high <= 20.
    `HUMANLINE_VERL_SYNC` is unset or `before_step`, then `HUMANLINE_VERL_SYNC_EVERY` mini-batches apart (unset: 1).

    Raises
    ------
    ValueError
        If a bound is missing or outside its range, a value is of another kind, `SYNC_EVERY` is set without `SYNC`, or
        a variable has the prefix and none of these names. The bounds have no default: a worker that the environment
        did not reach would otherwise train with another range, or without syncing, in silence.
    """
    return _read(tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(PREFIX))))


@functools.lru_cache(maxsize=8)
def _read(found: tuple[tuple[str, str], ...]) -> Settings:
    given, wrong = dict(found), []
    for name in given.keys() - {LOW, HIGH, SYNC, EVERY}:
        wrong.append(str(_checks.unknown("variable", name, [LOW, HIGH, SYNC, EVERY])))
    bounds = []
    for name, least, most in ((LOW, -VERL_LIMIT, 0.0), (HIGH, 0.0, VERL_LIMIT)):
        bound = _number(given.get(name))
        if bound is None or not least <= bound <= most:
            wrong.append(
                f"{name} must be a number of nats from {least:g} to {most:g}; got {given.get(name, 'nothing')!r}"
            )
        else:
            bounds.append(bound)
    every = given.get(EVERY, "1")
    if given.get(SYNC) not in (None, "before_step"):
        wrong.append(f"{SYNC} must be unset or before_step; got {given[SYNC]!r}")
    if SYNC not in given and EVERY in given:
        wrong.append(f"{EVERY} counts for nothing without {SYNC}=before_step; set that too, or unset this one")
    if not (every.isascii() and every.isdigit() and 1 <= int(every) <= 10**9):
        wrong.append(f"{EVERY} must be a whole number of mini-batches, 1 or more; got {every!r}")
    if wrong:
        raise ValueError(
            "the policy loss `humanline` reads its settings from the environment of every worker:\n  - "
            + "\n  - ".join(wrong)
            + "\nOn one machine, export them before verl starts; else docs/inside-verl.md says how they reach all."
        )
    return Settings(ClipRange(*bounds), int(every) if SYNC in given else 0)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
