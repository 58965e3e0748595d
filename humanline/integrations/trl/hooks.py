"""What is done at which moment of a trainer's life: its loss, the start of a step, its end, a checkpoint, a resume."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from humanline.integrations.trl import kept
from humanline.integrations.trl.counts import Counts
from humanline.integrations.trl.head import log_probs_alone
from humanline.integrations.trl.reference import Reference
from humanline.integrations.trl.refusals import MARK
from humanline.integrations.trl.stand_ins import ClippedPolicy, Replayed, Unscored, tell_grpo
from humanline.integrations.trl.steps import Steps
from humanline.schedule import Never, Snapshots
from humanline.theory import ClipRange


class Humanline(TrainerCallback):  # type: ignore[misc]
    """Keep the reference of a trainer, and stand between its loss and its models.

    Parameters
    ----------
    trainer : a trainer that `refuse` has let pass
    kind : str
        The name of its class in TRL.
    clip : ClipRange
    schedule : Snapshots
        One of humanline.schedule's.
    """

    def __init__(self, trainer: Any, kind: str, clip: ClipRange, schedule: Any) -> None:
        self.trainer, self.clip = trainer, clip
        self.schedule: Snapshots = schedule
        self.grpo = kind == "GRPOTrainer"
        self.reference = Reference(trainer.model)
        self.replayed = Replayed()
        self.counts = {"train": Counts(), "eval": Counts()}
        self.settings = {"clip": asdict(clip), "schedule": schedule.model_dump()}
        self.resumed: dict[int, dict[str, Tensor]] = {}  # by the step of the checkpoint
        self.steps = Steps()
        self.synced: int | None = None  # the last step before whose update the reference was taken
        self.first = True  # the first step of the training is not through

    def attach(self) -> None:
        """Put this into the trainer, and let go of the trainer's own reference."""
        trainer = self.trainer
        # TRL's copy of an adapter. Where TRL makes none, one of that name is the user's own, perhaps what is trained.
        copies = trainer.ref_model is None and (not self.grpo or trainer.beta != 0)
        if copies and "ref" in getattr(trainer.model, "peft_config", {}):
            trainer.model.delete_adapter("ref")
        # Where TRL has no reference, an adapter's, the loss would switch the adapter off in place of asking one.
        trainer.ref_model = (Unscored() if trainer.beta != 0 else None) if self.grpo else self.replayed
        trainer.accelerator.free_memory()  # its list of models, as train() does before it prepares everything
        gc.collect()  # TRL's own refers to itself: it would keep its memory until some later collection
        for name, around in (
            ("_compute_loss", self.loss),
            ("_save_checkpoint", self.save),
            ("_load_from_checkpoint", self.load),
        ):
            setattr(trainer, name, partial(around, getattr(trainer, name)))
        trainer.add_callback(self)
        setattr(trainer, MARK, self)

    def loss(self, theirs: Callable[..., Any], model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        """Compute TRL's loss of clipped log-probabilities; after that of a sync's last micro-batch let the copy go."""
        trainer = self.trainer
        mode = "train" if trainer.model.training else "eval"
        last, step = trainer.accelerator.sync_gradients, trainer.state.global_step
        in_step = mode == "train" and trainer.is_in_train
        if in_step:
            self.steps.expect_loss(step, trainer.args.gradient_accumulation_steps)
        if not self.reference.made:  # an evaluation before the training, or between a sync and its update
            self.reference.take()
        if mode == "train" and not trainer.is_in_train and torch.is_grad_enabled():
            self._refuse_own_loop()
        inputs = dict(inputs)
        tell = partial(tell_grpo, inputs, trainer.beta != 0) if self.grpo else self.replayed.tell
        policy = ClippedPolicy(
            model, self.reference, self.clip, self._scoring, tell, inputs.get("KL_input_ids"), in_step and self.first
        )
        self.first = self.first and not (in_step and last)
        self.replayed.scored.clear()
        loss = theirs(policy, inputs, *more, **named)
        if self.replayed.scored or not policy.scored:
            whom = "reference for what its policy scored" if policy.scored else "policy for token log-probabilities"
            raise RuntimeError(
                f"TRL's loss did not ask its {whom}: this is not the loss that humanline was tested with"
            )
        policy.count(self.counts[mode], inputs)
        if in_step:
            self.steps.loss(last)
        if mode == "eval" or last:
            self._log(mode)
        if in_step and last and self.schedule.copies_before_update(step):
            self.reference.take_later()
            self.synced = step
        return loss

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Have the reference be what was read, or the policy as it is."""
        if self.trainer.model is not self.reference.model:
            raise RuntimeError(
                "the trainer has another model than apply_humanline was given: make a new trainer with that model, and "
                "call apply_humanline after"
            )
        resumed, self.resumed = self.resumed, {}
        self.counts = {"train": Counts(), "eval": Counts()}  # an earlier run may have ended within a step
        self.steps.forget()
        self.synced, self.first = None, True
        if state.global_step in resumed:
            self.reference.become(resumed[state.global_step])
        elif resumed or state.global_step > 0:
            raise RuntimeError(
                f"training goes on at step {state.global_step}, but no reference of that step was read: give train() "
                "the whole folder of a checkpoint, with its trainer_state.json, as resume_from_checkpoint"
            )
        else:
            self.reference.forget()
            self.reference.take()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Notice weights that were frozen or unfrozen."""
        self.reference.check()
        self.steps.begin(state.global_step)

    def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Notice a micro-batch that was not clipped."""
        self.steps.micro_batch()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Notice a step that was not as it should be; take the copy of a sync, which is of the weights until now."""
        self.steps.update()
        if self.reference.due:
            self.reference.take()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Sync after the update, where the schedule says so; the trainer has counted the step by now."""
        step = state.global_step - 1
        self.steps.update()
        self.steps.forget()
        if self.schedule.copies_before_update(step) and (self.synced != step or self.reference.due):
            raise RuntimeError(
                f"step {step} was taken without the sync before it that {self.schedule} asks for: take away what "
                "changes the trainer's training loop, its on_pre_optimizer_step or its count of steps "
                "(state.global_step)"
            )
        if self.schedule.copies_after_update(step):
            self.reference.take()

    def save(self, theirs: Callable[..., Any], model: Any, trial: Any) -> Any:
        """Write the reference and then the checkpoint, which may remove an earlier one that is whole."""
        trainer = self.trainer
        self._refuse_save_within_step()
        if trainer.args.should_save:
            folder = Path(trainer._get_output_dir(trial=trial)).absolute()
            name = f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
            kept.write(folder / name, self.reference.tensors, trainer.state.global_step, self.settings)
        return theirs(model, trial)

    def load(self, theirs: Callable[..., Any], resume_from_checkpoint: Any, *more: Any, **named: Any) -> Any:
        """Read the reference before the weights, so that a checkpoint without it changes nothing."""
        checkpoint = Path(resume_from_checkpoint).absolute()
        kept.check_whole(checkpoint)
        step, resumed = kept.read(checkpoint, self.settings)
        result = theirs(resume_from_checkpoint, *more, **named)
        self.resumed = {step: resumed}
        return result

    def _refuse_save_within_step(self) -> None:
        """Raise RuntimeError if the reference is not the one that goes with the trainer's count of steps."""
        step, now = self.steps.step, self.trainer.state.global_step
        if step is None:
            return
        ahead = now == step == self.synced or self.reference.due  # the step's own reference is gone
        behind = now > step and self.schedule.copies_after_update(step)  # the sync after it is still to come
        if ahead or behind:
            raise RuntimeError(
                f"a checkpoint was to be saved within step {step}, when the reference is no longer, or not yet, the "
                f"one that goes with step {now}, so that a resumed run would go on with another: have the trainer save "
                "(save_steps, or control.should_save in a callback), and resume from the last checkpoint it saved"
            )

    def _refuse_own_loop(self) -> None:
        """Raise RuntimeError if weights are trained outside of train(), where nobody tells of steps to sync at."""
        if not isinstance(self.schedule, Never) and not self.reference.is_the_model():
            raise RuntimeError(
                "a loss with gradient was asked for outside of train(), and weights have moved since the reference was "
                "taken: a training loop of your own tells of no steps, so the reference would stay what it was at the "
                f"start, in silence, where {self.schedule} was asked for. Train with trainer.train(); to look at a "
                "loss, call it with the model in eval() or under torch.no_grad()"
            )

    def _log(self, mode: str) -> None:
        trainer = self.trainer
        taken = self.counts[mode].taken(lambda sums: trainer.accelerator.reduce(sums, reduction="sum"))
        for name, value in taken.items():
            trainer._metrics[mode][f"humanline/{name}"].append(value)

    @contextlib.contextmanager
    def _scoring(self) -> Iterator[None]:
        """Switch off, for the reference's pass, gradient checkpointing, which warns where there is no gradient.

        In the modules themselves: the model's own switch adds a hook to its embedding each time it is turned on, and
        takes none away, so that a long run would slow down.
        """
        on = [one for one in self.trainer.model.modules() if getattr(one, "gradient_checkpointing", False)]
        with log_probs_alone():
            try:
                for module in on:
                    module.gradient_checkpointing = False
                yield
            finally:
                for module in on:
                    module.gradient_checkpointing = True
