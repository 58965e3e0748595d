"""What tells one model from another without reading its weights."""

from __future__ import annotations

from pathlib import Path

from humanline.train.config.rounds import ModelReward, ScoringConfig
from humanline.train.policy.hub import HUB


def files_of(model: str) -> dict[str, str]:
    """Return sizes and times of a model's files: what changes when another model takes its place.

    Parameters
    ----------
    model : str
        A folder, or `hub:` and a name on the hub, of which the cache is looked at.

    Returns
    -------
    dict
        Empty where there are no such files.
    """
    folder = Path(model).expanduser()
    if model.startswith(HUB):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model.removeprefix(HUB), "config.json")
        if not isinstance(cached, str):
            return {}
        folder = Path(cached).parent  # of one revision
    if not folder.is_dir():
        return {}
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: f"{path.stat().st_size} {path.stat().st_mtime_ns}" for path in files}


def files_of_rewards(scoring: ScoringConfig) -> dict[str, dict[str, str]]:
    """Return the same of the reward models of a scoring, by their names."""
    return {one.model: files_of(one.model) for one in scoring.rewards if isinstance(one, ModelReward)}
