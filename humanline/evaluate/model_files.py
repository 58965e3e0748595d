"""What an evaluation notes of the models it is of, so that others in their place are noticed."""

from __future__ import annotations

from humanline.train.config.rounds import ModelReward, ScoringConfig
from humanline.train.policy.hub import HUB, fetch_settings
from humanline.train.policy.told_apart import folder_of, glance, model_digest

COMMIT = "commit"  # among a model's files, what the hub's page was at


def files_of(model: str) -> dict[str, str]:
    """Return what changes when another model takes a model's place: its files' sizes, times and some of their bytes.

    Copying, packing and unpacking may give other weights of the same size the same time; pieces of the files tell them
    apart (`humanline.train.policy.told_apart.glance`).

    Parameters
    ----------
    model : str
        A folder, or `hub:` and a name on the hub, of which the cache is looked at.

    Returns
    -------
    dict
        Empty where there are no such files. Of a model on the hub its `config.json` alone: other files are in the cache
        as far as somebody has asked for them.
    """
    folder = folder_of(model)
    if not folder.is_dir():
        return {}
    alone = [folder / "config.json"] if model.startswith(HUB) else folder.iterdir()
    files = sorted(path for path in alone if path.is_file())
    return {path.name: f"{path.stat().st_size} {path.stat().st_mtime_ns} {glance(path)}" for path in files}


def files_at_hand(model: str) -> dict[str, str]:
    """Return the same before and after a model of the hub was fetched: its config.json is asked for first.

    And the commit of the hub that it is of, under `COMMIT`: other weights may come with the same config.json.

    Raises
    ------
    ModelError
        If that cannot be had.
    """
    if not model.startswith(HUB):
        return files_of(model)
    commit = fetch_settings(model.removeprefix(HUB), f"model {model!r}")
    return files_of(model) | {COMMIT: commit}


def files_of_rewards(scoring: ScoringConfig) -> dict[str, dict[str, str]]:
    """Return the same of the reward models of a scoring, by their names."""
    return {one.model: files_at_hand(one.model) for one in _models(scoring)}


def identity_of(model: str) -> str:
    """Return what tells a model from others wherever it lies: its commit on the hub, or a digest of its folder.

    Raises
    ------
    ModelError
        If there is no such model.
    """
    return files_at_hand(model)[COMMIT] if model.startswith(HUB) else model_digest(model)


def settle_rewards(scoring: ScoringConfig) -> dict[str, str]:
    """Return the same of the reward models of a scoring, by their names; those of the hub are loaded as such from now.

    Between this and their loading may be hours of sampling, and a page of the hub can change.
    """
    found = {}
    for one in _models(scoring):
        found[one.model] = identity_of(one.model)
        if one.model.startswith(HUB):
            one.settle(found[one.model])
    return found


def _models(scoring: ScoringConfig) -> list[ModelReward]:
    return [one for one in scoring.rewards if isinstance(one, ModelReward)]
