"""The one page of plain torch trains what `humanline train` trains."""

from __future__ import annotations

import json
import runpy

import pytest
import torch
from transformers import AutoModelForCausalLM

from humanline.train.config import load_config
from humanline.train.loop import train
from tests.conftest import ROOT

STEPS = 12
PAGE = runpy.run_path(str(ROOT / "examples" / "minimal_loop.py"))


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_the_page_and_the_command_train_the_same(toy, tmp_path, every):
    """Losses agree to some units of float32's last place in every step, and the weights nearly everywhere.

    Both add the same numbers in another order, and a unit is 6e-8 at a loss near 0.6. Adam divides a gradient by its
    size, so that an entry whose gradient is rounding alone may move by as much as the learning rate: such are few.
    """
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model: {toy['model']}\noutput: {tmp_path / 'run'}\nobjective: {{kind: dpo, beta: 0.5}}\n"
        "transform: {kind: clip, log_eps_low: -0.04, log_eps_high: 0.02}\n"
        f"reference: {{schedule: {{kind: before_step, every: {every}}}}}\n"
        f"data: {{train: {toy['pairs']}, max_length: 64}}\n"
        f"training: {{steps: {STEPS}, batch_size: 16}}\noptimizer: {{lr: 3e-3}}\n"
    )
    result = train(load_config(recipe), show_progress=False)
    rows = [json.loads(line) for line in result.metrics_file.read_text(encoding="utf-8").splitlines()]
    metrics = [row for row in rows if "step" in row]
    assert max(row["clipped_high"] for row in metrics) > 0.05  # so that leaving the clip out would show
    with open(toy["pairs"], encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    losses, model = PAGE["train"](toy["model"], rows, steps=STEPS, lr=3e-3, beta=0.5, every=every, clip=(-0.04, 0.02))
    assert losses == pytest.approx([row["loss"] for row in metrics], abs=2e-6)
    trained = AutoModelForCausalLM.from_pretrained(result.model).state_dict()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            assert float(((weight - trained[name]).abs() > 1e-6).float().mean()) < 1e-3, name
