"""Attention over rows laid end to end, in bf16: one kernel of torch on a GPU, a call for each row on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from humanline.train.policy import packing
from humanline.train.policy.packing import packed_attention
from tests.helpers.gpu import LENGTHS

WINDOWS = {"cuda": (None, 1, 33, 128, 1000), "cpu": (None, 1, 5, 16, 100)}


def tensors(device: str, groups: int, size: int = 64, heads: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    total = sum(LENGTHS[device])
    shapes = [(1, heads if i == 0 else heads // groups, total, size) for i in range(3)]
    return [torch.randn(shape, generator=generator).bfloat16().to(device) for shape in shapes]


def within_segments(query: Tensor, key: Tensor, value: Tensor, window: int | None, lengths: tuple[int, ...]) -> Tensor:
    """Attention of one segment after another, written from the definition, (1, N, heads, D)."""
    outputs, groups = [], query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    for q, k, v in zip(*(torch.split(x, list(lengths), 2) for x in (query, key, value)), strict=True):
        distance = torch.arange(q.shape[2], device=q.device)[:, None] - torch.arange(q.shape[2], device=q.device)
        seen = (distance >= 0) & (distance < (window or q.shape[2]))
        logits = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
        outputs.append(torch.where(seen, logits, -torch.inf).softmax(3) @ v)
    return torch.cat(outputs, 2).transpose(1, 2)


def attend(given: list[Tensor], window: int | None, lengths: tuple[int, ...]) -> Tensor:
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=given[0].device)
    options = {"sliding_window": window, "segment_lengths": lengths, "segment_bounds": bounds}
    return packed_attention(torch.nn.Module(), *given, None, **options)[0]


@pytest.fixture
def kernels(monkeypatch) -> list[int]:
    """Note each call of the kernel over segments: how many rows it was given."""
    seen, inner = [], packing._in_one_kernel

    def counted(*args):
        seen.append(len(args[6]))
        return inner(*args)

    monkeypatch.setattr(packing, "_in_one_kernel", counted)
    return seen


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("number", range(len(WINDOWS["cpu"])))
def test_windows_heads_and_gradients_are_those_of_each_row_alone(device, kernels, number, groups, size):
    """Outputs and gradients are within some roundings of bf16 of float64 attention of each row alone.

    Weights, products of weights and values, and what is returned are each rounded to 9 bits, 2^-9 of themselves at
    most; a gradient passes through twice as many.
    """
    window, lengths = WINDOWS[device][number], LENGTHS[device]
    narrow = [x.requires_grad_() for x in tensors(device, groups, size)]
    wide = [x.detach().double().requires_grad_() for x in narrow]
    truth = within_segments(*wide, window, lengths)
    probe = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    mine = attend(narrow, window, lengths)
    assert mine.dtype == torch.bfloat16 and mine.shape == truth.shape
    assert (mine.double() - truth).norm() <= 2**-7 * truth.norm()
    expected = torch.autograd.grad(truth, wide, probe.double())
    for gradient, wanted in zip(torch.autograd.grad(mine, narrow, probe), expected, strict=True):
        # Under a window of 1 weights are 1 whatever query and key are, and their gradients rounding alone.
        assert (gradient.double() - wanted).norm() <= 2**-6 * max(wanted.norm(), 1e-3 * probe.double().norm())
    assert kernels == ([len(lengths)] if device == "cuda" else [])


@pytest.mark.parametrize("number", range(len(WINDOWS["cpu"])))
def test_the_forward_pass_has_the_same_bits_with_and_without_gradient(device, number):
    """Attention without gradient is bit for bit attention with it, and the same twice."""
    window, lengths, given = WINDOWS[device][number], LENGTHS[device], tensors(device, 4)
    with torch.no_grad():
        alone, again = (attend(given, window, lengths) for _ in range(2))
    trained = attend([x.requires_grad_() for x in given], window, lengths)
    assert trained.requires_grad and torch.equal(alone, trained.detach()) and torch.equal(alone, again)


def test_rows_do_not_reach_each_other(device):
    """Another row's queries, keys and values leave a row's output and its gradients as they were, to the bit."""
    lengths, given = LENGTHS[device], tensors(device, 4)
    first = slice(0, lengths[0])
    found = []
    for change in (0.0, 1.0):
        changed = [x.clone() for x in given]
        for x in changed:
            x[:, :, lengths[0] :] += change
        mine = [x.requires_grad_() for x in changed]
        output = attend(mine, None, lengths)[:, first]
        found.append((output.detach(), *(x[:, :, first] for x in torch.autograd.grad(output.sum(), mine)[1:])))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
