"""What tells one model from another without reading all of its weights."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from humanline.train.config.rounds import ModelReward, ScoringConfig
from humanline.train.policy.hub import HUB, fetch_settings

_PIECES, _PIECE = 16, 4096  # how many bytes of a file are read: 20 files of 5 GB take some milliseconds


def files_of(model: str) -> dict[str, str]:
    """Return what changes when another model takes a model's place: its files' sizes, times and some of their bytes.

    Copying, packing and unpacking may give other weights of the same size the same time. Training moves nearly all
    weights, so that pieces spread over a file tell them apart; to read all of it would take as long as loading it.

    Parameters
    ----------
    model : str
        A folder, or `hub:` and a name on the hub, of which the cache is looked at.

    Returns
    -------
    dict
        Empty where there are no such files. Of a model on the hub its `config.json` and its `revision`, which name all
        others: those are in the cache as far as somebody has asked for them.
    """
    folder, revision = Path(model).expanduser(), {}
    if model.startswith(HUB):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model.removeprefix(HUB), "config.json")
        if not isinstance(cached, str):
            return {}
        folder, revision = Path(cached).parent, {"revision": Path(cached).parent.name}
    if not folder.is_dir():
        return {}
    files = [folder / "config.json"] if revision else sorted(path for path in folder.iterdir() if path.is_file())
    found = {path.name: f"{path.stat().st_size} {path.stat().st_mtime_ns} {_glance(path)}" for path in files}
    return found | revision


def files_at_hand(model: str) -> dict[str, str]:
    """Return the same before and after a model of the hub was fetched: its config.json is asked for first.

    Raises
    ------
    ModelError
        If that cannot be had.
    """
    if model.startswith(HUB):
        fetch_settings(model.removeprefix(HUB), f"model {model!r}")
    return files_of(model)


def files_of_rewards(scoring: ScoringConfig) -> dict[str, dict[str, str]]:
    """Return the same of the reward models of a scoring, by their names."""
    return {one.model: files_at_hand(one.model) for one in scoring.rewards if isinstance(one, ModelReward)}


def _glance(path: Path) -> str:
    """Return a digest of pieces of a file, from its beginning to its end: of all of it where it is small."""
    sha, last = hashlib.sha256(), max(0, path.stat().st_size - _PIECE)
    with contextlib.suppress(PermissionError), open(path, "rb") as file:
        for number in range(_PIECES):
            file.seek(last * number // (_PIECES - 1))
            sha.update(file.read(_PIECE))
    return sha.hexdigest()[:16]
