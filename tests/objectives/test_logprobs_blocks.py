"""Gradients of token log-probabilities from narrow operands: made in blocks of rows and words, each written once."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from humanline.objectives import logprobs as module
from humanline.objectives import token_logprobs
from tests.objectives.test_logprobs import VARIANTS, N, plain, problem


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize(  # by threes there are several blocks, and one that is smaller
    "chunk_size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 100))]
)
def test_gradcheck(monkeypatch, options, chunk_size):
    """Gradients made in blocks agree with finite differences, whatever part of rows and words a block has."""
    monkeypatch.setattr(module, "_by_rows", module._by_blocks)  # as if float64 were narrow
    hidden, head, labels, mask = problem()
    run = lambda h, w: token_logprobs(h, w, labels, mask=mask, chunk_size=chunk_size, **options)  # noqa: E731
    assert torch.autograd.gradcheck(run, (hidden.requires_grad_(), head.requires_grad_()))


@pytest.mark.parametrize("dtype,blocks", [("bfloat16", True), ("float16", True), ("float32", False)])
def test_only_narrow_operands_are_in_blocks(monkeypatch, dtype, blocks):
    """Float32 operands, whose bits are those of chunks of rows, and float64 ones stay in chunks of rows."""
    called = []
    for name in ("_by_blocks", "_by_rows"):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, f=original, n=name: called.append(n) or f(*a))
    hidden, head, labels, _ = problem(getattr(torch, dtype))
    token_logprobs(hidden.requires_grad_(), head, labels).sum().backward()
    assert called == ["_by_blocks" if blocks else "_by_rows"]


@pytest.mark.parametrize("wants", [(True, False), (False, True)])
def test_either_gradient_alone(wants):
    """Either gradient alone is bitwise what it is beside the other; rows whose incoming gradient is 0 have none."""
    hidden, head, labels, _ = problem(torch.bfloat16)
    incoming = torch.arange(N).remainder(3).float()
    found = []
    for h, w in (wants, (True, True)):
        operands = hidden.clone().requires_grad_(h), head.clone().requires_grad_(w)
        token_logprobs(*operands, labels, chunk_size=3).backward(incoming)
        found.append([one.grad for one, wanted in zip(operands, wants, strict=True) if wanted])
    assert torch.equal(found[0][0], found[1][0])
    if wants[0]:
        assert torch.equal(found[0][0].any(1), incoming != 0)


def test_values_do_not_know_of_gradients():
    """Log-probabilities of narrow operands are bitwise the same with gradient and without."""
    hidden, head, labels, _ = problem(torch.bfloat16, n=50)
    with torch.no_grad():
        scored = token_logprobs(hidden, head, labels, chunk_size=16)
    assert torch.equal(scored, token_logprobs(hidden.requires_grad_(), head, labels, chunk_size=16))


@pytest.mark.parametrize("master", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "softcap": 20.0}])
def test_as_exact_as_chunks_of_rows(monkeypatch, master, options):
    """Gradients are no farther from float64 than those that are added up over chunks of rows.

    Both round a sum to bf16 once. What is left to chance is in which order float32 sums are taken: less than a
    thousandth of that, or, where a float32 head has a float32 gradient, than a millionth of the gradient.
    """
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(300, 64, generator=g).bfloat16()
    head, labels = torch.randn(1000, 64, generator=g).to(master) / 4, torch.randint(0, 1000, (300,), generator=g)
    incoming = torch.randn(300, generator=g)
    h, w = (one.bfloat16().double().requires_grad_() for one in (hidden, head))
    plain(h, w, labels, **options).backward(incoming.double())
    errors = []
    for backward in (module._by_rows, module._by_blocks):
        monkeypatch.setattr(module, "_by_blocks", backward)
        operands = [one.clone().requires_grad_() for one in (hidden, head)]
        token_logprobs(*operands, labels, chunk_size=16, **options).backward(incoming)
        gaps = (one.grad.double() - right.grad for one, right in zip(operands, (h, w), strict=True))
        errors.append([gap.square().mean().sqrt().item() for gap in gaps])
    for before, now, right in zip(*errors, (h.grad, w.grad), strict=True):
        size = right.square().mean().sqrt().item()
        assert now <= max(1.001 * before, 1e-6 * size) and before < 0.01 * size


class _Moved(TorchDispatchMode):
    """Count the bytes that operations read or write of tensors with a row for each of some words, a feature a column.

    Reading the head and making copies of it is left out.
    """

    def __init__(self, head: torch.Tensor, words: set[int]) -> None:
        super().__init__()
        self.width, self.words, self.bytes = head.shape[1], words, 0
        self.of_head = {head.untyped_storage()._cdata}
        self.alive: list[torch.UntypedStorage] = []  # one that is gone would lend its address to another

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func.is_view or "empty" in str(func):
            return output
        given = args[1:] if func is torch.ops.aten.copy_.default else args  # which does not read what it writes
        read = [one for one in (*given, *(kwargs or {}).values()) if isinstance(one, torch.Tensor)]
        self.alive += [one.untyped_storage() for one in (output, *read)]
        if func is torch.ops.aten._to_copy.default and read[0].untyped_storage()._cdata in self.of_head:
            self.of_head.add(output.untyped_storage()._cdata)
        for one in (*read, output):
            is_gradient = one.ndim == 2 and one.shape[1] == self.width and len(one) in self.words
            if is_gradient and one.untyped_storage()._cdata not in self.of_head:
                self.bytes += one.numel() * one.element_size()
        return output


@pytest.mark.parametrize("master,moved", [(torch.bfloat16, 10), (torch.float32, 12)])
@pytest.mark.parametrize("tokens", [30, 96])
def test_the_gradient_of_the_head_is_written_once(master, moved, tokens):
    """For each number in it a float32 sum is written and read, and the gradient written: 10 bytes in bf16.

    Added up over chunks of rows, each reads and writes it: beyond 100 bytes with 16 chunks.
    """
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(tokens, 24, generator=g).bfloat16().requires_grad_()
    head = torch.randn(640, 24, generator=g).to(master).requires_grad_()
    labels = torch.randint(0, 640, (tokens,), generator=g)
    logprobs = token_logprobs(hidden, head, labels, chunk_size=16)  # blocks of 101 words, and of all tokens
    with _Moved(head, {640, 101, 640 % 101}) as counter:
        logprobs.sum().backward()
    assert 0 < counter.bytes <= moved * head.numel()
