"""Pure tensor functions: token log-probabilities, log-ratio transforms, losses and advantages (needs torch)."""

from humanline.objectives.advantages import group_advantages
from humanline.objectives.log_ratio import clip_marks, detach_rejected, rejection_marks, token_log_ratio
from humanline.objectives.logprobs import token_kl, token_logprobs
from humanline.objectives.losses import (
    apo_down_loss,
    apo_zero_loss,
    bco_loss,
    dpo_loss,
    grpo_loss,
    ipo_loss,
    kto_loss,
    nll_loss,
)
from humanline.objectives.reference_point import bco_reference_point, kto_reference_point

__all__ = [
    "apo_down_loss",
    "apo_zero_loss",
    "bco_loss",
    "bco_reference_point",
    "clip_marks",
    "detach_rejected",
    "dpo_loss",
    "group_advantages",
    "grpo_loss",
    "ipo_loss",
    "kto_loss",
    "kto_reference_point",
    "nll_loss",
    "rejection_marks",
    "token_kl",
    "token_log_ratio",
    "token_logprobs",
]
