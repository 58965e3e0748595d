"""The output head with narrow operands: the numbers of float64, and the same bits with and without gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from humanline.objectives import token_logprobs

HIDDEN, VOCABULARY = 128, 2000
ROWS = (1, 127, 128, 129, 300)  # around a tile of 128 rows; chunks of 100 and of the default's size


def problem(device: str, rows: int, head_type: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, head, labels and incoming gradient, a third of it exactly zero."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn((rows, HIDDEN), generator=generator).to(device, torch.bfloat16)
    head = (torch.randn((VOCABULARY, HIDDEN), generator=generator) / HIDDEN**0.5).to(device, head_type)
    labels = torch.randint(0, VOCABULARY, (rows,), generator=generator).to(device)
    upstream = torch.randn(rows, generator=generator) * (torch.rand(rows, generator=generator) < 2 / 3)
    return hidden, head, labels, upstream.to(device)


def exact(hidden: Tensor, head: Tensor, labels: Tensor, softcap: float | None, temperature: float) -> Tensor:
    logits = hidden @ head.T
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    return torch.log_softmax(logits / temperature, -1).gather(1, labels[:, None]).squeeze(1)


@pytest.mark.parametrize("softcap,temperature", [(None, 1.0), (3.0, 0.7)])
@pytest.mark.parametrize("head_type", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_narrow_operands_have_the_numbers_of_float64(device, rows, head_type, softcap, temperature):
    """From bf16 operands values err by at most 1e-5 rms; gradients, whose factors are rounded to bf16, by 2^-7.

    Of a gradient's factors one is rounded to 9 bits, and so is the result where its own type is bf16: each by at most
    2^-9 of itself, and the errors of sums are smaller beside them.
    """
    hidden, head, labels, upstream = problem(device, rows, head_type)
    wide = hidden.double().requires_grad_(), head.bfloat16().double().requires_grad_()
    truth = exact(*wide, labels, softcap, temperature)
    expected = torch.autograd.grad(truth, wide, upstream.double())
    for chunk in (None, 100):
        mine = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        values = token_logprobs(*mine, labels, softcap=softcap, temperature=temperature, chunk_size=chunk)
        assert values.dtype == torch.float32 and values.device.type == device
        assert (values.detach().double() - truth.detach()).square().mean().sqrt() <= 1e-5
        gradients = torch.autograd.grad(values, mine, upstream)
        for gradient, operand, wanted in zip(gradients, mine, expected, strict=True):
            assert gradient.dtype == operand.dtype
            assert (gradient.double() - wanted).norm() <= 2**-7 * wanted.norm()


@pytest.mark.parametrize("head_type", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_the_forward_pass_has_the_same_bits_with_and_without_gradient(device, rows, masked, head_type):
    """What a reference computes without gradient is bit for bit what training computes, whatever counts, twice over."""
    hidden, head, labels, _ = problem(device, rows, head_type)
    mask = (torch.arange(rows, device=device) % 3 > 0) if masked else None
    with torch.no_grad():
        alone = token_logprobs(hidden, head, labels, mask=mask)
        again = token_logprobs(hidden, head, labels, mask=mask)
    trained = token_logprobs(hidden.requires_grad_(), head.requires_grad_(), labels, mask=mask)
    assert trained.requires_grad or (masked and rows == 1)
    assert torch.equal(alone, trained.detach()) and torch.equal(alone, again)


def test_gradients_have_the_same_bits_twice(device):
    """The head's backward pass depends on no order in which threads finish."""
    hidden, head, labels, upstream = problem(device, 300, torch.float32)
    found = []
    for _ in range(3):
        mine = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        found.append(torch.autograd.grad(token_logprobs(*mine, labels), mine, upstream))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
