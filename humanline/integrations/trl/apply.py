"""The one call that puts humanline into a trainer of TRL.

What a trainer does is left alone but for three of its methods, which are wrapped on the instance: the loss gets
stand-ins for its models, a checkpoint gets the reference beside it, and resuming reads it back. TRL is not imported.
"""

from __future__ import annotations

from typing import Any

from humanline.integrations.trl.refusals import refuse, warn_of_another_reference
from humanline.schedule import AfterStep, BeforeStep, EachRound, Never
from humanline.theory import ClipRange


def apply_humanline(
    trainer: Any,
    clip: ClipRange = ClipRange(-1.5, 1.5),  # noqa: B008
    schedule: Never | BeforeStep | AfterStep | EachRound = BeforeStep(every=1),  # noqa: B008
) -> None:
    """Train with humanline: clip each token's log-ratio upstream of the loss, and sync the reference before the update.

    ``log pi -> log pi_ref + clip(log pi - log pi_ref)`` for every token, with the reference of step s being theta_t,
    t = schedule.snapshot(s).

    Parameters
    ----------
    trainer : trl.DPOTrainer, trl.KTOTrainer or trl.GRPOTrainer
        As made, before `train()`. Its own reference model is let go; its losses, log and checkpoints stay its own.
    clip : ClipRange
        Nats.
    schedule : Never, BeforeStep, AfterStep or EachRound
        Which earlier weights are the reference; `EachRound` with its `round_steps`. Steps are the trainer's optimizer
        steps (`state.global_step`).

    Raises
    ------
    TrainerError
        If the trainer is of another kind, TRL of another version, a setting would change what the method is or has not
        been tried with it, or humanline is in it already; all that is wrong at once, and nothing is changed then.

    Warns
    -----
    UserWarning
        If the trainer was given a reference model with other weights than its model, since that is let go.

    Notes
    -----
    Source: arXiv 2509.24207, section 5.1. The reference is a copy of the trainable tensors alone, called through the
    policy's own module. GRPO's ratio is taken against it in place of the generation's snapshot, and its KL term is that
    of the unclipped ratio to it. Each checkpoint holds it in `humanline-reference`; one without it is not resumed from.
    Logged: `humanline/clipped_low`, `humanline/clipped_high` (shares of a step's tokens) and `humanline/log_ratio_rms`
    (nats). What differs from `humanline train`: docs/inside-trl.md.
    """
    kind = refuse(trainer, clip, schedule)
    warn_of_another_reference(trainer)
    from humanline.integrations.trl.hooks import Humanline  # transformers, which has to be here by now

    Humanline(trainer, kind, clip, schedule).attach()
