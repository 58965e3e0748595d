"""The environment of worker processes that compute rewards: all variables but those that look like secrets.

That keeps keys out of what a reward logs, sends on or hands to its children. It is no wall: code that runs as the same
user can read the files of that user, and the environment of other processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from humanline.system.terminal import is_secret, looks_secret
from humanline.train.config.rounds import EnvironmentConfig


def worker_environment(
    config: EnvironmentConfig, environment: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return the environment of worker processes, and the names that look like secrets and are left out of it.

    Left out is what `config.drop` names; and what has a name that looks like a secret's, or a value that is
    a secret of the recipe, or holds the login of a URL or a token of known form, unless `config.keep` names it.

    Parameters
    ----------
    config : EnvironmentConfig
    environment : mapping, optional
        Default: that of this process.
    """
    given = dict(os.environ if environment is None else environment)
    kept = {name: value for name, value in given.items() if name in config.keep or not _is_secret(name, value)}
    left_out = sorted(given.keys() - kept.keys() - set(config.drop))
    return {name: value for name, value in kept.items() if name not in config.drop}, left_out


def _is_secret(name: str, value: str) -> bool:
    return bool(value) and (looks_secret(name) or is_secret(value))
