"""What a trainer does in a step, counted here: whether every micro-batch was clipped, and the update known before."""

from __future__ import annotations


class Steps:
    """Count losses and micro-batches of the step that is being taken, and stop a step whose counts do not agree.

    A trainer says by `accelerator.sync_gradients` that a micro-batch is its step's last one, and what is done once a
    step hangs on that. Were it never True, the reference would never be synced, and nobody would notice: so it is held
    against the updates that come.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Be in no step."""
        self.step: int | None = None
        self.micro_batches = 0  # that are through, without the last one of the step
        self.losses = 0
        self.last = False  # whether the trainer said so of the latest loss

    def begin(self, step: int) -> None:
        """Be in a step of which nothing was done yet: its count of updates before it."""
        self.forget()
        self.step = step

    def expect_loss(self, step: int, accumulation: int) -> None:
        """Raise RuntimeError if a loss that is about to be computed is one more than the step should have.

        Parameters
        ----------
        step : int
            The trainer's count of updates.
        accumulation : int
            Micro-batches of a whole step.
        """
        if self.step != step:
            raise RuntimeError(
                f"the trainer computes a loss of step {step}, which was not begun: humanline's callback is not told of "
                "steps, so the reference would not be synced when it should be. Leave it among the trainer's "
                "callbacks, and have a training loop of your own call on_step_begin"
            )
        if self.losses >= min(self.micro_batches + 1, accumulation):
            raise RuntimeError(
                f"step {step}: loss {self.losses + 1} came at micro-batch {self.micro_batches + 1} of {accumulation} "
                "(gradient_accumulation_steps), one more than there should be, so its reference might be another: take "
                "away what calls compute_loss more than once a micro-batch, or call it with the model in eval()"
            )

    def loss(self, last: bool) -> None:
        """Count a loss that was computed, and whether the trainer says that its micro-batch is the step's last one."""
        self.losses += 1
        self.last = last

    def micro_batch(self) -> None:
        """Count a micro-batch that no update followed; raise RuntimeError if its loss was not ours, or said to be last.

        In both cases weights have not moved yet.
        """
        self.micro_batches += 1
        self._clipped(self.micro_batches)
        if self.last:
            raise RuntimeError(
                f"step {self.step}: accelerator.sync_gradients was True at micro-batch {self.micro_batches}, which no "
                "update followed, so the reference was synced too early: take away what sets it (a callback, a "
                "subclass, accelerator.gradient_state); the trainer sets it itself"
            )

    def update(self) -> None:
        """Raise RuntimeError if the update of this step must not be: it is about to come, or has just come."""
        self._clipped(self.micro_batches + 1)
        if not self.last:
            raise RuntimeError(
                f"step {self.step}: an update came without accelerator.sync_gradients having been True at the last "
                "micro-batch before it, on which humanline's counts and syncs hang; the reference would stay what it "
                "was at the start, in silence. Take away what sets it (a callback, a subclass, "
                "accelerator.gradient_state); the trainer sets it itself"
            )

    def _clipped(self, wanted: int) -> None:
        if self.losses != wanted:
            raise RuntimeError(
                f"step {self.step}: {wanted - self.losses} of {wanted} micro-batches went without TRL's _compute_loss, "
                "so nothing was clipped there: take away what replaces compute_loss, training_step or _compute_loss"
            )
