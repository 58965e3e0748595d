"""A policy loss named `humanline` for verl, which finds it where this package is installed beside it.

`actor_rollout_ref.actor.policy_loss.loss_mode=humanline` chooses it, and `docs/inside-verl.md` says how to set it up.

Nothing is imported but torch, verl and `humanline.theory` (syncing, where it is named, adds `humanline.schedule`):
verl's transformers is older than ours. verl imports a plug-in while it is being imported itself, and hides what goes
wrong then; so nothing is checked at that time. The loss checks, where an error ends the run.
"""

from __future__ import annotations

import os
from typing import Any

from humanline.integrations.verl.loss import policy_loss
from humanline.integrations.verl.settings import SYNC, Settings, plugin_settings

__all__ = ["Settings", "plugin_settings", "policy_loss"]


def __getattr__(name: str) -> Any:
    # The entry point names `plugin`. Asked for it, this package registers the loss; importing it does nothing.
    if name != "plugin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from verl.trainer.ppo.core_algos import register_policy_loss

    if SYNC in os.environ:
        from humanline.integrations.verl import syncing

        syncing.install()
    return register_policy_loss("humanline")(policy_loss)
