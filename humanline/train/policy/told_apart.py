"""What tells one model from another without reading all of its weights."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from humanline.train.config import TrainConfig
from humanline.train.config.own_schedule import REWARD_MODEL
from humanline.train.policy.hub import HUB, fetch_settings

_PIECES, _PIECE = 16, 4096  # how many bytes of a file are read: 20 files of 5 GB take some milliseconds


def folder_of(model: str) -> tuple[Path, str]:
    """Return the folder of a model, and the revision of one on the hub, as far as the cache has its config.json.

    Parameters
    ----------
    model : str
        A folder, or `hub:` and a name on the hub.

    Returns
    -------
    folder : Path
        It need not exist.
    revision : str
        Empty for a folder, and of a model that the cache has nothing of.
    """
    if not model.startswith(HUB):
        return Path(model).expanduser(), ""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model.removeprefix(HUB), "config.json")
    if not isinstance(cached, str):
        return Path(model), ""
    return Path(cached).parent, Path(cached).parent.name


def glance(path: Path) -> str:
    """Return a digest of pieces of a file, from its beginning to its end: of all of it where it is small.

    Training moves nearly all weights, so that pieces spread over a file tell two of them apart; to read all of it would
    take as long as loading it.
    """
    sha, last = hashlib.sha256(), max(0, path.stat().st_size - _PIECE)
    with contextlib.suppress(PermissionError), open(path, "rb") as file:
        for number in range(_PIECES):
            file.seek(last * number // (_PIECES - 1))
            sha.update(file.read(_PIECE))
    return sha.hexdigest()[:16]


def model_digest(model: str) -> str:
    """Return what differs between models, and not between copies of one: its revision on the hub, or its files.

    Raises
    ------
    ModelError
        If it is on the hub, which does not give it.
    """
    if model.startswith(HUB):
        fetch_settings(model.removeprefix(HUB), f"model {model!r}")
    folder, revision = folder_of(model)
    if revision:
        return revision
    sha = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".md":  # a card may be edited
            sha.update(f"{path.name} {path.stat().st_size} {glance(path)}\n".encode())
    return sha.hexdigest()


def weights_digest(base: str) -> str | None:
    """Return what differs between the weight files of models in folders, and not between copies; None of another."""
    files = sorted(Path(base).expanduser().glob("*.safetensors"))
    if not files:
        return None
    return hashlib.sha256(
        "".join(f"{one.name} {one.stat().st_size} {glance(one)}\n" for one in files).encode()
    ).hexdigest()


def reward_models(config: TrainConfig) -> dict[str, str]:
    """Return digests of the models that score a run's answers, by what tables call them; raise as `model_digest`."""
    rewards = () if config.rounds is None else config.rounds.scoring.rewards
    return {f"{REWARD_MODEL}: {one.model}": model_digest(one.model) for one in rewards if one.kind == "model"}
