"""Whether the processes of a run were all given the same, looked at before data and weights are read.

Each of them has read a recipe and imported libraries by itself, maybe on a machine of its own: with another version of
the recipe or of a library, or another disk under the same path, they would compute something that nobody asked for, or
wait for each other for ever. They compare what differs from machine to machine, and the main process says what does.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from humanline.system.disk import nearest
from humanline.system.identity import Identity
from humanline.system.own_code import OwnCodeError
from humanline.system.paths import absolute
from humanline.system.terminal import shorten
from humanline.train.config import TrainConfig
from humanline.train.config.own_sources import own_sources, reward_sources
from humanline.train.config.secrets import settings_digest
from humanline.train.run.fingerprint import flat, software
from humanline.train.run.processes import Processes

_OWN = ("device", "threads")  # of `software`: what may differ
PATIENCE = 5.0  # seconds that a network file system has to show a new file
_SHOWN = 12  # differences


class UnlikeError(ValueError):
    """The processes of a run were not given the same."""


def refuse_unlike(config: TrainConfig, settings: Mapping[str, Any], resume: bool, processes: Processes) -> None:
    """Raise an error in all processes unless they have the same settings, software and files, and one output folder.

    Parameters
    ----------
    config : TrainConfig
    settings : mapping
        The configuration as it is written down.
    resume : bool
        Whether this process was told to go on with a run.
    processes : Processes

    Raises
    ------
    UnlikeError
        In the main process, with what differs between which; MainProcessError in the others.
    """
    if processes.ranks == 1:
        return
    meeting, token = processes.meeting, ""
    if processes.rank == 0:
        with contextlib.suppress(OSError):  # a finished run that can only be read is left as it is
            token = _leave_token(config.output)
    try:
        sees = _sees(config.output, meeting.texts(token)[0])
        mine = {"host": Identity.own().host, "sees": sees, "facts": _facts(config, settings, resume)}
        found = [json.loads(text) for text in meeting.texts(json.dumps(mine))]
    finally:
        if token:
            with contextlib.suppress(OSError):
                (nearest(config.output) / token).unlink()

    def compare() -> None:
        unlike = [*_unseen(config.output, found), *_differences(found)]
        if unlike:
            more = f"\n  and {len(unlike) - _SHOWN} more" if len(unlike) > _SHOWN else ""
            raise UnlikeError(
                "the processes of this run were not given the same:\n  "
                + "\n  ".join(unlike[:_SHOWN])
                + f"{more}\nGive all of them the same recipe, software and files. Nothing was begun."
            )

    processes.on_main(compare)


def _leave_token(output: str) -> str:
    """Make a file where the run will write, or as near to it as there is a folder, and return its name."""
    name = f".seen-{secrets.token_hex(8)}.partial"
    (nearest(output) / name).touch(exist_ok=False)
    return name


def _sees(output: str, token: str) -> bool:
    """Return whether this process sees what the main one has left, if that could leave anything."""
    until = time.monotonic() + PATIENCE
    while token and not (nearest(output) / token).exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _facts(config: TrainConfig, settings: Mapping[str, Any], resume: bool) -> dict[str, str]:
    """Return what must be the same everywhere, by name."""
    facts = {name: version for name, version in software().items() if name not in _OWN}
    facts |= {name: json.dumps(value, default=str) for name, value in flat(settings).items()}
    facts |= {"--resume": str(resume), "the settings as a whole": settings_digest(config.model_dump(mode="json"))[:12]}
    for what, given in (("model", config.model), ("data.train", config.data.train), ("data.eval", config.data.eval)):
        if given is not None and not given.startswith("hub:"):
            facts[f"the size of {what}"] = _size(given)
    with contextlib.suppress(OwnCodeError):  # that is said by itself
        facts |= own_sources(config)
    return facts | reward_sources(config)


def _size(given: str) -> str:
    """Return the size of a file, or of all files of a folder together, in words."""
    try:
        path = absolute(given)
        files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        sizes = [os.stat(one).st_size for one in files]
    except (OSError, ValueError):
        return "not there"
    return f"{sum(sizes):,} bytes" + (f" in {len(sizes)} files" if path.is_dir() else "")


def _unseen(output: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, in words, which processes have another folder under the output's name."""
    away = [rank for rank, one in enumerate(found) if not one["sees"]]
    if not away:
        return []
    return [
        f"the output folder: {_named(found, away)} does not see what {_named(found, [0])} writes at "
        f"{str(Path(output).expanduser().absolute())!r}; it must be on a file system that all of them share"
    ]


def _differences(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, in words, what differs between which processes."""
    every: dict[str, None] = {}
    for one in found:
        every |= dict.fromkeys(one["facts"])
    lines = []
    for name in every:
        values: dict[str, list[int]] = {}
        for rank, one in enumerate(found):
            values.setdefault(one["facts"].get(name, "(absent)"), []).append(rank)
        if len(values) > 1:
            shown = [f"{shorten(value, 60)} in {_named(found, ranks)}" for value, ranks in values.items()]
            lines.append(f"{name}: {', '.join(shown)}")
    whole = [line for line in lines if line.startswith("the settings as a whole")]
    return lines if lines == whole else [line for line in lines if line not in whole]


def _named(found: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> str:
    """Return the first of some processes in words, and how many others there are."""
    first = f"process {ranks[0]} ({found[ranks[0]]['host']})"
    return first if len(ranks) == 1 else f"{first} and {len(ranks) - 1} more"
