"""What tells one model from another without reading all of its weights."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from humanline.train.config import TrainConfig
from humanline.train.config.own_sources import REWARD_MODEL, REWARD_REVISION
from humanline.train.config.rounds import ModelReward, ScoringConfig
from humanline.train.policy.errors import ModelError
from humanline.train.policy.hub import HUB, fetch_settings

_TOLD = (".safetensors", ".json", ".model", ".txt", ".jinja")  # a card, or what somebody puts beside it, tells nothing
_PIECES, _PIECE = 16, 4096  # how many bytes of a file are read: 20 files of 5 GB take some milliseconds


def folder_of(model: str) -> Path:
    """Return the folder of a model, which need not exist; of one on the hub that in the cache, if that has it.

    Parameters
    ----------
    model : str
        A folder, or `hub:` and a name on the hub.
    """
    if not model.startswith(HUB):
        return Path(model).expanduser()
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model.removeprefix(HUB), "config.json")
    return Path(cached).parent if isinstance(cached, str) else Path(model)


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


def model_digest(folder: str) -> str:
    """Return what differs between models in folders, and not between copies of one: of weights, settings, tokenizer.

    Raises
    ------
    ModelError
        If there is no such folder.
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ModelError(f"model {folder!r}: there is no such folder")
    return _digest(path for path in place.iterdir() if path.suffix in _TOLD)


def weights_digest(base: str) -> str | None:
    """Return what differs between the weight files of models in folders, and not between copies; None of another."""
    files = list(Path(base).expanduser().glob("*.safetensors"))
    return _digest(files) if files else None


def _digest(files: Iterable[Path]) -> str:
    sha = hashlib.sha256()
    for path in sorted(files):
        sha.update(f"{path.name} {path.stat().st_size} {glance(path)}\n".encode())
    return sha.hexdigest()


def reward_models(config: TrainConfig) -> dict[str, str]:
    """Return digests of the models in folders that score a run's answers, by what tables call them.

    Raise as `model_digest` does.
    """
    models = [one.model for one in _scoring(config) if not one.model.startswith(HUB)]
    return {f"{REWARD_MODEL}: {model}": model_digest(model) for model in models}


def settle_reward_models(
    config: TrainConfig, begun: Mapping[str, Any], texts: Callable[[str], list[str]]
) -> dict[str, str]:
    """Return what the models are that score a run's answers, by what tables call them; no other is loaded from now on.

    Of those in folders the digest. Of those on the hub the commit: a run goes on with the one that it began with,
    whatever the hub has by now, since pages change more often than weights, and nobody can put an earlier one back.

    Parameters
    ----------
    config : TrainConfig
    begun : mapping
        The facts that the run began with; empty of one that begins.
    texts : callable
        Returns a text of each process, by rank; all of them take the main one's commits.

    Raises
    ------
    ModelError
        If there is no such folder, or the hub does not give a model.
    """
    found = reward_models(config)
    for one in _scoring(config):
        what = f"{REWARD_MODEL}: {one.model}"
        if one.model.startswith(HUB):
            what = f"{REWARD_REVISION}: {one.model}"
            mine = begun.get(what) or fetch_settings(one.model.removeprefix(HUB), f"reward model {one.model!r}")
            found[what] = texts(mine)[0]
        one.settle(found[what])
    return found


def refuse_changed_rewards(scoring: ScoringConfig) -> None:
    """Raise ModelError if a model in a folder is another than the one that a run has settled on."""
    models = [one for one in scoring.rewards if isinstance(one, ModelReward) and not one.model.startswith(HUB)]
    for one in models:
        if one.revision not in (None, model_digest(one.model)):
            raise ModelError(
                f"reward model {one.model!r} has changed since the run began, of which it is part: put that of then "
                "back, and add --resume to the same command; or start a new run in another folder"
            )


def _scoring(config: TrainConfig) -> list[ModelReward]:
    """Return the models that score a run's answers."""
    rewards = () if config.rounds is None else config.rounds.scoring.rewards
    return [one for one in rewards if isinstance(one, ModelReward)]
