"""Optimizers in narrow types: rounding that is right on average and the same for the same seed, states in 8 bits."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch

from humanline.train.config.run import OptimizerConfig
from humanline.train.policy.optimizer import make_optimizer, same_rounding

needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao (extra low-memory) is not installed")


@needs_torchao
@pytest.mark.parametrize("states", ["float32", "8bit"])
def test_rounding_is_right_on_average(device, states):
    """Updates of a sixteenth and of three and a quarter bf16 steps move the mean of the weights by just that.

    Weights start at 1, above which bf16 steps are 2^-7; AdamW's first update of a constant gradient is lr. Each weight
    moves by one of the two neighbouring numbers of steps, independently, so by Hoeffding the mean is off by more than
    sqrt(ln(2 / 1e-9) / 2 N) steps with probability below 1e-9.
    """
    size, step = 2**18, 2**-7
    for steps in (1 / 16, 3.25):
        weight = torch.nn.Parameter(torch.ones(size, dtype=torch.bfloat16, device=device))
        optimizer = make_optimizer([weight], OptimizerConfig(lr=steps * step, states=states), "bf16")
        weight.grad = -torch.ones_like(weight)
        with same_rounding(0, 0, "bf16", weight.device):
            optimizer.step()
        moved = (weight.detach().double() - 1) / step
        assert set(moved.unique().tolist()) == {math.floor(steps), math.floor(steps) + 1.0}
        assert abs(moved.mean().item() - steps) < math.sqrt(math.log(2e9) / (2 * size))


@needs_torchao
def test_the_same_seed_rounds_the_same(device):
    """Rounding depends on seed and step alone, whatever was drawn before, and draws none of the run's own numbers."""
    ends = []
    for drawn, seed, step in ((0, 3, 7), (5, 3, 7), (0, 3, 8), (0, 4, 7)):
        torch.manual_seed(drawn)
        torch.rand(drawn, device=device)
        weight = torch.nn.Parameter(torch.ones(2**14, dtype=torch.bfloat16, device=device))
        optimizer = make_optimizer([weight], OptimizerConfig(lr=2**-11), "bf16")
        weight.grad = torch.ones_like(weight)
        expected = torch.rand(4, device=device) if drawn else None
        if drawn:
            torch.manual_seed(drawn)
            torch.rand(drawn, device=device)
        with same_rounding(seed, step, "bf16", weight.device):
            optimizer.step()
        if expected is not None:
            assert torch.equal(torch.rand(4, device=device), expected)
        ends.append(weight.detach())
    assert torch.equal(ends[0], ends[1]) and len(ends[0].unique()) == 2
    assert not torch.equal(ends[0], ends[2]) and not torch.equal(ends[0], ends[3])


@needs_torchao
@pytest.mark.parametrize("weights", ["float32", "bf16"])
def test_eight_bit_states_follow_adamw(device, weights):
    """With 8-bit states ten updates stay close to those of float64 AdamW, and the states are bytes."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn((64, 256), generator=generator)
    changes = torch.randn((10, 64, 256), generator=generator)
    ends = {}
    for name, dtype in (("ours", torch.float32 if weights == "float32" else torch.bfloat16), ("exact", torch.float64)):
        weight = torch.nn.Parameter(start.to(device, dtype, copy=True))
        if name == "ours":
            settings = OptimizerConfig(lr=1e-2, states="8bit", weight_decay=0.1)
            optimizer = make_optimizer([weight], settings, weights)
        else:
            optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.1)
        for step, change in enumerate(changes):
            weight.grad = change.to(weight)
            with same_rounding(0, step, weights, weight.device):
                optimizer.step()
        ends[name] = weight.detach().double() - start.to(device, dtype).double()
        if name == "ours":
            kept = optimizer.state[weight]["exp_avg"]
            assert kept.codes.dtype == torch.uint8 and kept.codes.device.type == device
    # Codes are rounded to about 1 part in 100 of their block's largest; bf16 weights to 2^-9 of themselves, as large
    # as a tenth of ten updates, but by chance up or down.
    cosine = torch.nn.functional.cosine_similarity(ends["ours"].flatten(), ends["exact"].flatten(), dim=0)
    assert cosine > (0.99 if weights == "float32" else 0.97)


def test_float32_updates_are_adamw(device):
    """The fused update of float32 weights is AdamW's, up to float32 rounding."""
    generator = torch.Generator().manual_seed(0)
    start, changes = torch.randn((64, 64), generator=generator), torch.randn((10, 64, 64), generator=generator)
    ours, exact = torch.nn.Parameter(start.to(device, copy=True)), torch.nn.Parameter(start.to(device).double())
    settings = OptimizerConfig(lr=1e-3, weight_decay=0.1)
    pair = (
        (ours, make_optimizer([ours], settings, "float32")),
        (exact, torch.optim.AdamW([exact], 1e-3, weight_decay=0.1)),
    )
    for change in changes:
        for weight, optimizer in pair:
            weight.grad = change.to(weight)
            optimizer.step()
    torch.testing.assert_close(ours.detach().double(), exact.detach(), rtol=0, atol=1e-5)
