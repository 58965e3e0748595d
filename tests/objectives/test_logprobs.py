"""Chunked token log-probabilities."""

from __future__ import annotations

import pytest
import torch

from humanline.objectives import token_logprobs
from tests import oracles_loss as oracle

N, H, V = 11, 6, 17
VARIANTS = [{}, {"temperature": 0.7}, {"softcap": 1.5}, {"temperature": 1.3, "softcap": 2.0}]


def problem(dtype=torch.float64, seed=0, n=N, h=H, v=V):
    g = torch.Generator().manual_seed(seed)
    hidden, head = torch.randn(n, h, generator=g, dtype=dtype), torch.randn(v, h, generator=g, dtype=dtype)
    return hidden, head, torch.randint(0, v, (n,), generator=g), torch.rand(n, generator=g) < 0.6


def plain(hidden, head, labels, temperature=1.0, softcap=None):
    logits = hidden @ head.T
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    return torch.log_softmax(logits / temperature, -1).gather(1, labels[:, None]).squeeze(1)


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("chunk_size", [1, 4, 100, None])
def test_values_equal_plain_python(options, chunk_size):
    """Values equal a plain Python log-softmax for every chunk size, temperature and soft cap."""
    hidden, head, labels, _ = problem()
    result = token_logprobs(hidden, head, labels, chunk_size=chunk_size, **options)
    settings = {"temperature": 1.0, "softcap": None, **options}
    expected = [
        oracle.token_logprob(row, head.tolist(), label, **settings)
        for row, label in zip(hidden.tolist(), labels.tolist(), strict=True)
    ]
    assert result.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("options", VARIANTS)
def test_gradcheck(options):
    """Gradients for hidden states and head agree with finite differences, masked rows included."""
    hidden, head, labels, mask = problem()
    run = lambda h, w: token_logprobs(h, w, labels, mask=mask, chunk_size=3, **options)  # noqa: E731
    assert torch.autograd.gradcheck(run, (hidden.requires_grad_(), head.requires_grad_()))


@pytest.mark.parametrize("options", VARIANTS)
def test_gradients_equal_the_plain_formula(options):
    """Gradients equal those of log_softmax and gather."""
    hidden, head, labels, _ = problem()
    weights = torch.randn(N, dtype=torch.float64)
    grads = []
    for function in (token_logprobs, plain):
        h, w = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        (function(h, w, labels, **options) * weights).sum().backward()
        grads.append((h.grad, w.grad))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-11, atol=1e-12)


def test_masked_rows_may_hold_anything():
    """Nan hidden states and labels out of range under a False mask yield 0 and no gradient."""
    hidden, head, labels, mask = problem()
    dirty = torch.where(mask[:, None], hidden, torch.nan).requires_grad_()
    head.requires_grad_()
    result = token_logprobs(dirty, head, torch.where(mask, labels, -100), mask=mask)
    result.sum().backward()
    assert torch.equal(result[~mask], torch.zeros(int((~mask).sum()), dtype=torch.float64))
    assert torch.isfinite(head.grad).all() and torch.equal(dirty.grad[~mask], torch.zeros_like(dirty.grad[~mask]))
    expected = token_logprobs(hidden[mask], head, labels[mask])
    torch.testing.assert_close(result[mask], expected, rtol=1e-13, atol=1e-13)


def test_nothing_counts():
    """An all-False mask gives zeros and zero gradients."""
    hidden, head, labels, mask = problem()
    hidden.requires_grad_(), head.requires_grad_()
    token_logprobs(hidden, head, labels, mask=torch.zeros_like(mask)).sum().backward()
    assert not hidden.grad.any() and not head.grad.any()


@pytest.mark.parametrize("count", [4, 0])
def test_rows_without_gradient_are_skipped(monkeypatch, count):
    """The backward pass recomputes logits only for rows whose incoming gradient is not exactly zero, or not at all."""
    from humanline.objectives import logprobs as module

    hidden, head, labels, _ = problem()
    hidden.requires_grad_()
    weights = torch.tensor([1.0] * count + [0.0] * (N - count), dtype=torch.float64)
    loss = (token_logprobs(hidden, head, labels) * weights).sum()
    seen, original = [], module._Head.logits
    monkeypatch.setattr(module._Head, "logits", lambda self, h, **kw: seen.append(len(h)) or original(self, h, **kw))
    loss.backward()
    assert seen == [count] * bool(count)
    assert not hidden.grad[count:].any() and hidden.grad[:count].any() == bool(count)


@pytest.mark.parametrize("fitting,chunk", [(300, 256), (256, 256), (130, 128), (128, 128), (100, 100)])
def test_the_default_chunk_is_whole_tiles(monkeypatch, fitting, chunk):
    """Of the rows that fit into the bound as many are taken at a time as make whole tiles of 128, if one fits."""
    from humanline.objectives import logprobs as module

    hidden, head, labels, _ = problem(torch.float32, n=600)
    monkeypatch.setattr(module, "_CHUNK_BYTES", fitting * V * 4)
    seen, original = [], module._Head.logits
    monkeypatch.setattr(module._Head, "logits", lambda self, h, **kw: seen.append(len(h)) or original(self, h, **kw))
    token_logprobs(hidden, head, labels)
    assert seen == [chunk] * (600 // chunk) + [600 % chunk] * (600 % chunk > 0)


def test_forward_only_is_bitwise_training():
    """Under no_grad the values are bitwise those computed with gradient, and nothing requires gradient."""
    hidden, head, labels, mask = problem(torch.float32)
    with_grad = token_logprobs(hidden.requires_grad_(), head.requires_grad_(), labels, mask=mask, chunk_size=4)
    with torch.no_grad():
        without = token_logprobs(hidden, head, labels, mask=mask, chunk_size=4)
    assert torch.equal(with_grad, without) and not without.requires_grad


@pytest.mark.parametrize("master", [torch.bfloat16, torch.float32])
def test_bf16_operands_give_float32_logits(master):
    """From bf16 operands the error against float64 on the same operands is below 1e-5 rms."""
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(64, 256, generator=g).bfloat16()
    head = (torch.randn(1000, 256, generator=g) / 16).to(master)
    labels = torch.randint(0, 1000, (64,), generator=g)
    result = token_logprobs(hidden, head, labels)
    exact = plain(hidden.double(), head.bfloat16().double(), labels)
    assert result.dtype == torch.float32
    assert (result.double() - exact).square().mean().sqrt() <= 1e-5
    rounded = plain(hidden, head.bfloat16(), labels).double()
    assert (rounded - exact).square().mean().sqrt() > 1e-3  # what bf16 logits would have cost


def test_head_gradient_keeps_the_type_of_the_head():
    """A float32 head under bf16 hidden states gets a float32 gradient, and bf16 hidden states a bf16 one."""
    hidden, head, labels, _ = problem(torch.float32)
    narrow = hidden.bfloat16().requires_grad_()
    head.requires_grad_()
    token_logprobs(narrow, head, labels).sum().backward()
    assert head.grad.dtype == torch.float32 and narrow.grad.dtype == torch.bfloat16
    w = head.detach().bfloat16().float().requires_grad_()
    plain(hidden.bfloat16().float(), w, labels).sum().backward()
    torch.testing.assert_close(head.grad, w.grad, rtol=1e-4, atol=1e-4)


def test_autocast_changes_nothing():
    """Under autocast float32 operands still give float32 logits."""
    hidden, head, labels, _ = problem(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = token_logprobs(hidden, head, labels)
    assert torch.equal(inside, token_logprobs(hidden, head, labels))


@pytest.mark.wrong_shapes
@pytest.mark.parametrize(
    "change,message",
    [
        ({"hidden": torch.ones(N, H + 1)}, r"hidden and head_weight must be \(N, H\) and \(V, H\)"),
        ({"hidden": torch.ones(N, H, dtype=torch.long)}, "must be floating"),
        ({"labels": torch.zeros(N - 1, dtype=torch.long)}, "labels must have the shape of"),
        ({"labels": torch.zeros(N)}, "labels must be integers"),
        ({"mask": torch.ones(N)}, "mask must be bool"),
        ({"mask": torch.ones(N + 1, dtype=torch.bool)}, "mask must have the shape of labels"),
        ({"temperature": 0.0}, "temperature must be > 0"),
        ({"softcap": -1.0}, "softcap must be > 0"),
        ({"chunk_size": 0}, "chunk_size must be >= 1"),
    ],
)
def test_bad_arguments_are_named(change, message):
    """Every refused argument is named with its rule and its value."""
    hidden, head, labels, mask = problem(torch.float32)
    arguments = {"hidden": hidden, "head_weight": head, "labels": labels, "mask": mask} | change
    with pytest.raises(ValueError, match=message):
        token_logprobs(**arguments)


@pytest.mark.gpu
def test_cuda_matches_float64():
    """On a GPU bf16 operands multiply into float32 logits with an rms error below 1e-5, gradients included."""
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(512, 256, generator=g).bfloat16().cuda().requires_grad_()
    head = (torch.randn(4000, 256, generator=g) / 16).bfloat16().cuda().requires_grad_()
    labels = torch.randint(0, 4000, (512,), generator=g).cuda()
    result = token_logprobs(hidden, head, labels, chunk_size=100)
    exact = plain(hidden.detach().double(), head.detach().double(), labels)
    assert (result.double() - exact).square().mean().sqrt() <= 1e-5
    result.sum().backward()
    h, w = hidden.detach().double().requires_grad_(), head.detach().double().requires_grad_()
    plain(h, w, labels).sum().backward()
    torch.testing.assert_close(hidden.grad.double(), h.grad, rtol=3e-2, atol=3e-3)
    torch.testing.assert_close(head.grad.double(), w.grad, rtol=3e-2, atol=3e-3)  # added up over the chunks
