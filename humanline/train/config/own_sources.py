"""Which parts of a run are the user's own, and of which files and reward models they are made."""

from __future__ import annotations

from humanline.system.own_code import digests_of
from humanline.train.config.base import OwnPart
from humanline.train.config.run import TrainConfig

OWN_CODE, REWARD_CODE = "own code", "code of rewards"  # what tables call their files
REWARD_MODEL = "reward model"  # and those of a model that scores
REWARD_REVISION = "revision of reward model"  # and that of one on the hub


def own_parts(config: TrainConfig) -> list[OwnPart]:
    """Return the sections of a configuration whose functions the run itself calls."""
    parts = (config.objective, config.transform, config.reference.schedule)
    return [part for part in parts if isinstance(part, OwnPart)]


def own_sources(config: TrainConfig) -> dict[str, str]:
    """Return the SHA-256 of each file of the user's own that a run computes with, by what a table calls it.

    Raises
    ------
    OwnCodeError
        As `OwnPart.load` does.
    """
    return {f"{OWN_CODE}: {name}": digest for part in own_parts(config) for name, digest in part.load().sources.items()}


def own_digests(config: TrainConfig) -> dict[str, str]:
    """Return what `own_sources` and `reward_sources` do, as far as the files are there; none is imported."""
    own = {
        f"{OWN_CODE}: {name}": digest
        for part in own_parts(config)
        for name, digest in digests_of(part.call, part.beside).items()
    }
    return own | reward_sources(config)


def reward_sources(config: TrainConfig) -> dict[str, str]:
    """Return the SHA-256 of each file that the function rewards of a run's rounds are made of; none is imported."""
    rewards = () if config.rounds is None else config.rounds.scoring.rewards
    called = [one for one in rewards if one.kind == "function"]
    return {
        f"{REWARD_CODE}: {name}": digest for one in called for name, digest in digests_of(one.call, one.beside).items()
    }
