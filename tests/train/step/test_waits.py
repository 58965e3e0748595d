"""How often a step makes the host wait for the device: at most once a pass and twice a step, whatever is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from humanline.train.loop import take_steps
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.setup import Run, set_up
from tests.helpers.support import CLIP, EVERY_OBJECTIVE, PAIRS, REJECT, config
from tests.helpers.waits import Waits

BATCH_MAX = REJECT | {"policy_ratio_bound": "batch_max", "ref_ratio_bound": "batch_max"}
TRANSFORMS = {"none": {"kind": "none"}, "clip": CLIP, "reject": REJECT, "batch_max": BATCH_MAX}
BEFORE = {"kind": "before_step"}
LAYOUTS = {"padded": {"micro_batch_size": 4}, "packed": {"micro_batch_tokens": 150, "padding": "free"}}


class Counted:
    """The batches of a run, which note at the beginning of each step what was counted in the one before."""

    def __init__(self, run: Run, waits: Waits, passes: list[int]) -> None:
        self.batches, self.waits, self.passes = run.batches, waits, passes
        self.steps: list[tuple[int, list[str]]] = []  # passes and waits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)

    def prepare(self, step: int) -> bool:
        self.steps.append((self.passes[0], self.waits.seen[:]))
        more = self.batches.prepare(step)
        self.passes[0] = 0
        self.waits.seen.clear()
        return more


def steps_of(given, monkeypatch, change=lambda run: run) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """The passes and waits of each step of a run, and what would fail on a GPU."""
    passes, forward = [0], LogprobModel.forward

    def counted(self, *inputs):
        passes[0] += 1
        return forward(self, *inputs)

    monkeypatch.setattr(LogprobModel, "forward", counted)
    with set_up(given, show_progress=False) as ready:
        policy = ready.trained.policy
        with Waits([*policy.parameters(), *policy.buffers()]) as waits:
            batches = Counted(ready, waits, passes)
            for reference in ready.references:
                if hasattr(reference, "batches"):
                    reference.batches = batches
                if hasattr(reference, "copy"):
                    waits.mark(reference.copy)
            take_steps(change(replace(ready, batches=batches)))
    return batches.steps[1:], waits.mixed


def few(given, monkeypatch) -> None:
    """Assert that no step of a run waits more often than it may, and that all would run on a GPU."""
    taken, mixed = steps_of(given, monkeypatch)
    assert len(taken) == given.training.steps and not mixed, mixed
    reads_bounds = getattr(given.transform, "needs_batch_max", bool)()
    for passes, waits in taken:
        assert passes and len(waits) <= passes + 2, waits
        others = [wait for wait in waits if not wait.startswith("aten.nonzero.default at objectives/logprobs.py")]
        scored = sum("in settle" in wait for wait in others)
        assert scored <= 2 and len(others) <= 2 + scored + reads_bounds, waits


def training(layout: str, steps: int = 2) -> dict[str, Any]:
    return {"steps": steps, "batch_size": 8, **LAYOUTS[layout]}


def both_layouts(kinds) -> list:
    """Pair kinds with layouts, one of each with packed rows; the other pairs, which take the same paths, are slow.

    So are other losses of pairs than DPO's, and no transform, which is less than any other.
    """
    quick = {kind: "packed" if kind in ("kto", "reject") else "padded" for kind in kinds}
    slow = [(kind, "packed" if layout == "padded" else "padded") for kind, layout in quick.items()]
    slow += [(kind, quick.pop(kind)) for kind in [*PAIRS, "none"] if kind in quick]
    return [*quick.items(), *[pytest.param(*pair, marks=pytest.mark.slow) for pair in slow]]


@pytest.mark.parametrize("objective,layout", both_layouts(EVERY_OBJECTIVE))
def test_every_objective_waits_once_a_pass_and_twice_a_step(toy, tmp_path, monkeypatch, objective, layout):
    """With a reference scored ahead for one step, or without any."""
    changes = {} if objective == "nll" else {"transform": CLIP, "reference__schedule": BEFORE | {"every": 1}}
    few(config(toy, tmp_path, EVERY_OBJECTIVE[objective], training=training(layout), **changes), monkeypatch)


@pytest.mark.parametrize("objective", ["kto", *[pytest.param(one, marks=pytest.mark.slow) for one in ("dpo", "grpo")]])
@pytest.mark.parametrize("transform,layout", both_layouts(TRANSFORMS))
def test_so_does_every_transform(toy, tmp_path, monkeypatch, objective, transform, layout):
    """Clipping, Beta draws from the host, and bounds that are the largest ratios of a step, which is read."""
    reference = {"schedule": BEFORE | {"every": 4}}
    given = {"transform": TRANSFORMS[transform], "reference": reference, "training": training(layout, 6)}
    few(config(toy, tmp_path, objective, **given), monkeypatch)


@pytest.mark.parametrize(
    "changes",
    [
        {"reference": {"schedule": BEFORE | {"every": 1}, "storage": "model"}},
        pytest.param({"reference": {"schedule": {"kind": "never"}}}, marks=pytest.mark.slow),
        {"reference": {"schedule": BEFORE | {"every": 4}, "baseline": "initial"}},
        {"reference": {"schedule": BEFORE | {"every": 1}, "baseline": "initial"}, "adapter": {"rank": 4, "alpha": 8.0}},
        {"reference": {"schedule": {"kind": "after_step", "every": 2}}, "training__precision": "bf16"},
        {"training__activation_checkpointing": True},
    ],
    ids=["model", "never", "two", "adapter", "bf16", "checkpointing"],
)
def test_so_does_every_kind_of_reference(toy, tmp_path, monkeypatch, changes):
    """A second model, the data set scored once, two references, an adapter's base, and ways to save memory."""
    given = {"training": training("padded"), "transform": CLIP} | {k: v for k, v in changes.items() if "__" not in k}
    later = {key: value for key, value in changes.items() if "__" in key}
    few(config(toy, tmp_path, "grpo", **given, **later), monkeypatch)


def test_a_wait_more_is_seen(toy, tmp_path, monkeypatch):
    """What asks a tensor of the device for a number, in whatever way, is counted, and both sides in one are told."""
    asked = [
        lambda loss, mask: loss.item(),
        lambda loss, mask: bool(mask.any()),
        lambda loss, mask: mask.tolist(),
        lambda loss, mask: mask.cpu(),
        lambda loss, mask: mask.nonzero(),
        lambda loss, mask: mask[mask],
        lambda loss, mask: torch.repeat_interleave(mask.sum(1)),
        lambda loss, mask: torch.tensor([1.0], device=loss.device) * loss,
    ]

    class Asking:
        """An objective that asks for more than it needs."""

        def __init__(self, objective):
            self.objective = objective

        def __getattr__(self, name):
            return getattr(self.objective, name)

        def loss(self, facts, micro, *args):
            loss, metrics = self.objective.loss(facts, micro, *args)
            for ask in asked:
                ask(loss.detach(), micro.block.mask)
            return loss, metrics

    counts = []
    for change in (lambda run: run, lambda run: replace(run, objective=Asking(run.objective))):
        given = config(toy, tmp_path / str(len(counts)), training=training("padded", 1))
        taken, _ = steps_of(given, monkeypatch, change)
        counts.append(len(taken[0][1]))
    assert counts[1] == counts[0] + 2 * len(asked)  # in each of two passes
    with Waits([]) as waits:
        device = waits.mark(torch.ones(2))
        _ = device + 1.0 + torch.ones(()) + torch.ones(2)
    assert len(waits.mixed) == 1
