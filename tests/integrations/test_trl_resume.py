"""A run of TRL's with humanline goes on to the same bits, or not at all; two processes do what one does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed: pip install 'humanline[trl]'")

from transformers import TrainerCallback

from humanline.integrations.trl import TrainerError, apply_humanline, kept
from humanline.integrations.trl.kept import FOLDER, TENSORS
from humanline.schedule import AfterStep, BeforeStep
from humanline.theory import ClipRange
from tests.conftest import ROOT
from tests.helpers.processes import free_port
from tests.helpers.trl_runs import logged, trained, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL and what it loads warn of their own matters
CLIP = ClipRange(-0.02, 0.03)


def rows(count: int = 16) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)

    def ids(length: int) -> list[int]:
        return torch.randint(5, 200, (length,), generator=generator).tolist()

    return [{"prompt_ids": ids(3), "chosen_ids": ids(6), "rejected_ids": ids(4 + i % 4)} for i in range(count)]


def kto_rows() -> list[dict[str, Any]]:
    return [
        {
            "prompt_ids": row["prompt_ids"],
            "completion_ids": row["chosen_ids"],
            "KL_completion_ids": row["rejected_ids"],
            "label": place % 2 == 0,
        }
        for place, row in enumerate(rows())
    ]


def run(
    toy: dict[str, str],
    folder: Path,
    name: str = "DPO",
    every: int = 3,
    clip: ClipRange = CLIP,
    data: list[dict[str, Any]] | None = None,
    schedule: BeforeStep | AfterStep | None = None,
    **more: Any,
) -> Any:
    settings = {
        "max_steps": 8,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 5,
        "beta": 0.5,
    }
    data = data or (rows() if name == "DPO" else kto_rows())
    trainer = trainer_of(name, toy["model"], folder, data, **(settings | more))
    apply_humanline(trainer, clip, schedule or BeforeStep(every=every))
    return trainer


@pytest.mark.parametrize("name", ["DPO", "KTO"])
def test_a_run_goes_on_to_the_same_bits_from_the_middle_of_a_window(toy, tmp_path, name):
    """Resumed at step 5, within the window of steps 4 to 6, it has the losses and weights of the whole run."""
    whole = trained(run(toy, tmp_path / "run", name))
    resumed = run(toy, tmp_path / "run", name)
    trained(resumed, resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))
    for what in ("loss", "grad_norm", "humanline/log_ratio_rms"):
        assert logged(resumed, what) == logged(whole, what) and len(logged(whole, what)) == 8
    theirs = whole.model.state_dict()
    assert all(torch.equal(one, theirs[key]) for key, one in resumed.model.state_dict().items())
    now = whole._humanline.reference.tensors
    assert all(torch.equal(one, now[key]) for key, one in resumed._humanline.reference.tensors.items())


def test_another_reference_would_have_been_seen(toy, tmp_path):
    """A run that goes on with the checkpoint's weights as its reference has other losses: the test above can fail."""
    whole = trained(run(toy, tmp_path / "run"))
    folder = tmp_path / "run" / "checkpoint-5"
    resumed = run(toy, tmp_path / "run")
    load = resumed._humanline.reference.become
    resumed._humanline.reference.become = lambda values: (load(values), resumed._humanline.reference.take())
    trained(resumed, resume_from_checkpoint=str(folder))
    assert logged(resumed, "loss")[:5] == logged(whole, "loss")[:5]
    assert logged(resumed, "loss")[5] != logged(whole, "loss")[5]


def spoil(folder: Path, how: str) -> None:
    if how == "gone":
        shutil.rmtree(folder / FOLDER)
    elif how == "a byte":
        data = bytearray((folder / FOLDER / TENSORS).read_bytes())
        data[-1] ^= 1
        (folder / FOLDER / TENSORS).write_bytes(data)
    elif how == "a file":
        (folder / FOLDER / TENSORS).unlink()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("gone", "checkpoint-5 holds no humanline-reference.*Resume from a checkpoint that was saved with"),
        ("a byte", "humanline-reference cannot be used: reference.safetensors has other bytes than were written"),
        ("a file", "humanline-reference cannot be used: reference.safetensors is missing"),
        ("clip", "belongs to other settings.*clip was .*-0.02.* and is .*-1.5.*Give it the same"),
        ("every", "belongs to other settings.*schedule was .*3.* and is .*2"),
    ],
)
def test_a_checkpoint_without_its_reference_is_refused(toy, tmp_path, how, said):
    """One that lacks it, has a damaged one, or one of other settings is refused before a weight is read."""
    trained(run(toy, tmp_path / "run", max_steps=5))
    folder = tmp_path / "run" / "checkpoint-5"
    spoil(folder, how)
    trainer = run(
        toy, tmp_path / "run", every=2 if how == "every" else 3, clip=ClipRange(-1.5, 1.5) if how == "clip" else CLIP
    )
    before = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    with pytest.raises(TrainerError, match=f"(?s){said}"):
        trained(trainer, resume_from_checkpoint=str(folder))
    assert all(torch.equal(one, before[name]) for name, one in trainer.model.state_dict().items())


def test_a_reference_of_another_step_is_refused(toy, tmp_path, monkeypatch):
    """Where the trainer goes on at another step than the reference was saved at, it does not go on."""
    trained(run(toy, tmp_path / "run", max_steps=5))
    read = kept.read
    monkeypatch.setattr(kept, "read", lambda *arguments: (4, read(*arguments)[1]))
    with pytest.raises(RuntimeError, match="goes on at step 5, but no reference of that step was read"):
        trained(run(toy, tmp_path / "run"), resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))


def test_a_checkpoint_that_is_there_already_is_overwritten(toy, tmp_path):
    """A run that comes again to a step that was saved before leaves its own reference there."""
    trained(run(toy, tmp_path / "run", max_steps=5))
    again = trained(run(toy, tmp_path / "run", every=2, max_steps=5))
    settings = json.loads((tmp_path / "run" / "checkpoint-5" / FOLDER / "settings.json").read_text())
    assert settings["schedule"]["every"] == 2 and settings["step"] == 5 and again.state.global_step == 5


@pytest.mark.parametrize(
    ("schedule", "when", "first", "refused"),
    [
        (BeforeStep(every=1), "on_pre_optimizer_step", True, True),  # its step's own reference is gone
        (BeforeStep(every=1), "on_pre_optimizer_step", False, True),  # and is the next one's already
        (AfterStep(every=1), "on_step_end", True, True),  # the sync is still to come
        (AfterStep(every=1), "on_step_end", False, False),
        (BeforeStep(every=3), "on_pre_optimizer_step", True, False),
    ],
)
def test_a_callback_that_saves_within_a_step_saves_what_the_run_goes_on_with(
    toy, tmp_path, schedule, when, first, refused
):
    """What is resumed from has the losses of the whole run; where it would not have, nothing is saved."""
    trainer = run(toy, tmp_path / "run", schedule=schedule, save_strategy="no", max_steps=6)

    def save(args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 4:
            trainer._save_checkpoint(trainer.model, trial=None)

    saving = TrainerCallback()
    setattr(saving, when, save)
    trainer.callback_handler.callbacks.insert(0 if first else 99, saving)
    if refused:
        with pytest.raises(RuntimeError, match=r"within step [34], when the reference is no longer, or not yet"):
            trained(trainer)
        assert not (tmp_path / "run" / "checkpoint-4").exists()
        return
    trained(trainer)
    resumed = run(toy, tmp_path / "run", schedule=schedule, save_strategy="no", max_steps=6)
    trained(resumed, resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    for what in ("loss", "humanline/log_ratio_rms"):
        assert logged(resumed, what)[-2:] == logged(trainer, what)[-2:]


def test_training_twice_begins_anew(toy, tmp_path):
    """A second `train()` takes the policy as it is by then for its reference."""
    trainer = trained(run(toy, tmp_path / "run", save_strategy="no"))
    trained(trainer)
    assert logged(trainer, "loss")[0] == pytest.approx(0.6931472, abs=1e-6)
    assert logged(trainer, "humanline/log_ratio_rms")[0] == 0


def test_weights_that_are_frozen_on_the_way_are_noticed(toy, tmp_path):
    """Freezing a weight after training has begun is an error, not another reference."""
    from transformers import TrainerCallback

    class Freeze(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **_):
            next(model.parameters()).requires_grad_(False)

    trainer = run(toy, tmp_path / "run", save_strategy="no")
    trainer.add_callback(Freeze())
    with pytest.raises(RuntimeError, match="1 weights were frozen or unfrozen during training"):
        trained(trainer)


@pytest.mark.slow  # two processes that load torch and TRL
@pytest.mark.parametrize(("name", "left_over"), [("DPO", 0), ("KTO", 0), ("DPO", 3)])
def test_two_processes_have_the_losses_of_one(toy, tmp_path, name, left_over):
    """Under DDP losses, norms and metrics are those of one process with the same rows in a step.

    Where rows are left over at an epoch's end, the processes fill up their last step from its beginning.
    """
    more = {"save_strategy": "no", "gradient_accumulation_steps": 1}
    data = (rows() if name == "DPO" else kto_rows())[: 4 + left_over if left_over else None]
    filled = data + data[: 4 - left_over] if left_over else data
    one = trained(run(toy, tmp_path / "one", name, per_device_train_batch_size=4, data=filled, **more))
    out = tmp_path / "two.json"
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    result = subprocess.run(
        [
            sys.executable,
            *launcher,
            "-m",
            "tests.integrations.test_trl_resume",
            toy["model"],
            str(out),
            name,
            json.dumps(data),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(out.read_text())
    for what in ("loss", "grad_norm", "humanline/clipped_low", "humanline/clipped_high", "humanline/log_ratio_rms"):
        assert found[what] == pytest.approx(logged(one, what), abs=1e-5, rel=1e-4), what
    assert found["processes"] == 2 and sum(found["humanline/clipped_low"]) > 0.5


def main() -> None:
    """Be one of two processes, and write what was logged."""
    model, out, name, data = sys.argv[1:]
    more = {"save_strategy": "no", "gradient_accumulation_steps": 1, "data": json.loads(data)}
    trainer = trained(run({"model": model}, Path(out).parent / "two", name, per_device_train_batch_size=2, **more))
    if trainer.accelerator.is_main_process:
        names = ["loss", "grad_norm", *(f"humanline/{end}" for end in ("clipped_low", "clipped_high", "log_ratio_rms"))]
        found = {what: logged(trainer, what) for what in names} | {"processes": trainer.accelerator.num_processes}
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
