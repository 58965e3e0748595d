"""What tells one model from another without reading all of its weights."""

from __future__ import annotations

from humanline.train.config.rounds import ModelReward, ScoringConfig
from humanline.train.policy.hub import HUB, fetch_settings
from humanline.train.policy.told_apart import folder_of, glance


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
