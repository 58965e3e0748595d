"""verl's vanilla objective of clipped log-ratios, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from humanline.integrations.verl.settings import EVERY, HIGH, SYNC, Settings, plugin_settings
from humanline.theory import ClipRange


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Compute verl's vanilla objective of humanline-clipped log-ratios.

    ``vanilla(clip(log_prob - old_log_prob, low, high))``: tokens beyond the range get its bound and no gradient.

    Parameters
    ----------
    old_log_prob, log_prob : (B, T) floating tensors
        Token log-probabilities of the reference and of the policy, nats.
    advantages : (B, T) floating tensor
    response_mask : (B, T) tensor, True or 1 where a token counts
    loss_agg_mode, config, rollout_is_weights
        verl's own; they are handed on to its objective.

    Returns
    -------
    loss : 0-d tensor
    metrics : dict of floats
        verl's, where ``actor/ppo_kl`` is that of the log-ratios before they are clipped; under ``actor/humanline/`` the
        bounds (nats), the mini-batches between syncs (0 = off), whether syncing scored this mini-batch (1) or the start
        of the round (0), the shares of tokens clipped at each bound and the root mean square of the log-ratio. As verl
        does, they are means over a micro-batch, averaged over micro-batches.

    Raises
    ------
    ValueError
        If the environment is wrong (`plugin_settings`); ``clip_ratio_c`` is below exp(high), so that the dual clip
        would cut first; syncing is named together with rollout correction, or while verl's loop of mini-batches does
        not pass through it.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 1 and section 5.1. The objective is given the clipped log-ratio against zeros,
    which is exact; adding it to old_log_prob and subtracting that again would round.
    """
    settings = plugin_settings()
    _refuse_dual_clip(settings.clip, config)
    moved = _moved(rollout_is_weights) if settings.sync_every else False
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

    log_ratio = log_prob - old_log_prob
    clipped = settings.clip.clip(log_ratio)
    loss, metrics = compute_policy_loss_vanilla(
        old_log_prob=torch.zeros_like(clipped),
        log_prob=clipped,
        advantages=advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    return loss, {**metrics, **_counted(log_ratio.detach(), response_mask, settings, moved)}


def _counted(log_ratio: Tensor, response_mask: Tensor, settings: Settings, moved: bool) -> dict[str, float]:
    mask = response_mask.bool()
    z = torch.where(mask, log_ratio, 0.0)
    sums = torch.stack([-z.sum(), (z < settings.clip.low).sum(), (z > settings.clip.high).sum(), z.square().sum()])
    kl, low, high, square = (sums / mask.sum().clamp(min=1)).tolist()
    counted = {
        "log_eps_low": settings.clip.low,
        "log_eps_high": settings.clip.high,
        "sync_every": float(settings.sync_every),
        "synced": float(moved),
        "clipped_low": low,
        "clipped_high": high,
        "log_ratio_rms": math.sqrt(square),
    }
    return {"actor/ppo_kl": kl, **{f"actor/humanline/{name}": value for name, value in counted.items()}}


def _refuse_dual_clip(clip: ClipRange, config: Any) -> None:
    ceiling, most = config.get("clip_ratio_c", 3.0), math.exp(clip.high)
    if ceiling < most:
        raise ValueError(
            f"clip_ratio_c = {ceiling:g} is below exp({HIGH}) = exp({clip.high:g}) = {most:.6g}: "
            "for answers with a negative advantage verl's dual clip would cut off ratios that humanline's range keeps. "
            f"Set actor_rollout_ref.actor.clip_ratio_c={math.ceil(most * 100) / 100:.2f} or more, or lower {HIGH}."
        )


def _moved(rollout_is_weights: Tensor | None) -> bool:
    from humanline.integrations.verl import syncing

    if rollout_is_weights is not None:
        raise ValueError(
            f"{SYNC}=before_step with rollout correction is refused: its weights belong to the log-probabilities "
            "of the round's start, which syncing replaces. Set algorithm.rollout_correction.rollout_is=null, or unset "
            f"{SYNC} and {EVERY}."
        )
    if (moved := syncing.moved()) is None:
        raise ValueError(
            f"{SYNC}=before_step is named, and this loss was called outside of the loop that syncs: "
            f"{syncing.why_not()}. Use the verl version that docs/inside-verl.md names, or unset {SYNC} and "
            f"{EVERY}."
        )
    return moved
