"""Cut cross-entropy as training calls it: what it is asked for, and, where it is installed, what it answers."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from humanline.objectives import token_logprobs
from humanline.train.logprobs import LogprobsError, cut_cross_entropy_logprobs, logprob_function

N, H, V = 30, 24, 70


def problem(dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, float32 head, labels (nonsense under the mask), mask and incoming gradient with zeros in it."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, H, generator=generator).to(dtype)
    head = torch.randn(V, H, generator=generator) / H**0.5
    mask = torch.rand(N, generator=generator) < 0.6
    labels = torch.randint(0, V, (N,), generator=generator).masked_fill(~mask, -100)
    upstream = torch.randn(N, generator=generator) * (torch.rand(N, generator=generator) < 0.7)
    return hidden, head, labels, mask, upstream


def with_gradients(function: Any, hidden: Tensor, head: Tensor, labels: Tensor, upstream: Tensor, **more: Any) -> tuple:
    """Return values and the gradients of hidden states and head."""
    hidden, head = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    values = function(hidden, head, labels, **more)
    return values.detach(), *torch.autograd.grad(values, (hidden, head), upstream.to(values))


@pytest.fixture
def calls(monkeypatch) -> list[dict[str, Any]]:
    """Put a plain stand-in in the package's place; it notes what it is asked for."""
    seen: list[dict[str, Any]] = []

    def linear_cross_entropy(e: Tensor, c: Tensor, targets: Tensor, **options: Any) -> Tensor:
        seen.append({"e": e.detach(), "c": c.detach(), "targets": targets, **options})
        logits, cap = e.float() @ c.T, options["softcap"]
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        return torch.nn.functional.cross_entropy(logits, targets, reduction=options["reduction"])

    monkeypatch.setitem(sys.modules, "cut_cross_entropy", SimpleNamespace(linear_cross_entropy=linear_cross_entropy))
    return seen


class TestTheCall:
    @pytest.mark.parametrize("softcap", [None, 2.0])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_values_and_gradients_are_those_of_our_own_function(self, calls, dtype, softcap):
        """Mask, soft cap, rounding of the head and the way back through it agree with token_logprobs.

        The stand-in computes in float32 from the same rounded operands: 1e-5 is its rounding, and gradients of bf16
        hidden states may differ by one step of bf16 (2^-8 of their size).
        """
        hidden, head, labels, mask, upstream = problem(dtype)
        options = {"mask": mask, "softcap": softcap}
        theirs = with_gradients(cut_cross_entropy_logprobs, hidden, head, labels, upstream, **options)
        ours = with_gradients(token_logprobs, hidden, head, labels, upstream, **options)
        narrow = 1e-5 if dtype == torch.float32 else 2**-8
        for mine, other, tolerance in zip(ours, theirs, (1e-5, narrow, narrow), strict=True):
            assert mine.dtype == other.dtype and mine.shape == other.shape
            torch.testing.assert_close(other.float(), mine.float(), rtol=tolerance, atol=tolerance * mine.abs().max())
        assert theirs[0].dtype == torch.float32 and not theirs[0][~mask].any() and not theirs[1][~mask].any()

    def test_small_gradients_and_exact_products_are_asked_for(self, calls):
        """The gradient filter is off, only rows that count arrive, and the head is float32 holding bf16 numbers."""
        hidden, head, labels, mask, _ = problem(torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cut_cross_entropy_logprobs(hidden, head, labels, mask=mask)
        (call,) = calls
        assert call["filter_eps"] is None and call["reduction"] == "none" and call["impl"] == "torch_compile"
        assert torch.equal(call["targets"], labels[mask]) and torch.equal(call["e"], hidden[mask].float())
        assert call["c"].dtype == torch.float32 and torch.equal(call["c"], head.bfloat16().float())

    def test_nothing_that_counts_is_nothing_but_zeros(self, calls):
        """Under a mask of False everywhere the kernel is not called, and gradients are zeros."""
        hidden, head, labels, mask, upstream = problem(torch.bfloat16)
        none = torch.zeros_like(mask)
        values, *gradients = with_gradients(cut_cross_entropy_logprobs, hidden, head, labels, upstream, mask=none)
        assert not calls and not values.any() and not any(g.any() for g in gradients)

    @pytest.mark.parametrize(
        "changes, message",
        [
            ({"hidden": torch.zeros(N, H + 1)}, "must be \\(N, H\\) and \\(V, H\\)"),
            ({"hidden": torch.zeros(N, H, dtype=torch.float64)}, "bfloat16, float16 or float32"),
            ({"labels": torch.zeros(N)}, "labels must be integers"),
            ({"labels": torch.zeros(N - 1, dtype=torch.long)}, "labels"),
            ({"mask": torch.zeros(N)}, "mask must be bool"),
            ({"softcap": 0.0}, "softcap"),
        ],
        ids=["shape", "float64", "float labels", "few labels", "float mask", "soft cap"],
    )
    def test_arguments_that_make_no_sense_are_refused(self, calls, changes, message):
        """Shapes, types and the soft cap are checked, since the kernel itself would read outside its tensors."""
        hidden, head, labels, mask, _ = problem(torch.float32)
        given = {"hidden": hidden, "head_weight": head, "labels": labels.clamp(min=0), "mask": mask} | changes
        with pytest.raises(ValueError, match=message):
            cut_cross_entropy_logprobs(**given)
        assert not calls


class TestChoosing:
    def test_a_name_gives_its_function(self, calls):
        """Each name of training.logprobs leads to its function."""
        assert logprob_function("chunked", device="cuda") is token_logprobs
        assert logprob_function("cut_cross_entropy") is cut_cross_entropy_logprobs
        assert logprob_function("cut_cross_entropy", device="cuda:1", precision="bf16") is cut_cross_entropy_logprobs
        with pytest.raises(ValueError, match="must be one of"):
            logprob_function("cce")

    def test_a_missing_package_is_named_with_its_remedy(self, monkeypatch):
        """Without the package, or without triton, the message names the extra to install and the way to do without."""
        monkeypatch.setitem(sys.modules, "cut_cross_entropy", None)
        with pytest.raises(LogprobsError, match=r"humanline\[kernels\].*training.logprobs: chunked"):
            logprob_function("cut_cross_entropy")

    def test_float32_on_a_gpu_is_refused(self, calls):
        """The kernel has no backward pass in float32, which is said before anything is loaded."""
        with pytest.raises(LogprobsError, match=r"training\.precision: bf16"):
            logprob_function("cut_cross_entropy", device="cuda", precision="float32")


@pytest.fixture
def package() -> None:
    """Skip where the real package cannot be imported."""
    pytest.importorskip("triton", reason="needs the extra `kernels`: triton is not installed")
    pytest.importorskip("cut_cross_entropy", reason="needs the extra `kernels`: cut-cross-entropy is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_version_equals_ours(package, dtype, softcap):
    """The real package on a CPU gives our values and gradients: float32 sums of the same rounded operands."""
    hidden, head, labels, mask, upstream = problem(dtype)
    options = {"mask": mask, "softcap": softcap}
    theirs = with_gradients(cut_cross_entropy_logprobs, hidden, head, labels, upstream, **options)
    ours = with_gradients(token_logprobs, hidden, head, labels, upstream, **options)
    narrow = 1e-5 if dtype == torch.float32 else 2**-8
    for mine, other, tolerance in zip(ours, theirs, (1e-5, narrow, narrow), strict=True):
        torch.testing.assert_close(other.float(), mine.float(), rtol=tolerance, atol=tolerance * mine.abs().max())


@pytest.mark.gpu
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_the_kernel_is_as_exact_as_it_is_said_to_be(package, softcap):
    """From bf16 inputs the kernel's values err by at most 1e-5 rms; gradients by some steps of bf16 (2^-8)."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(512, 1024, generator=generator).bfloat16().cuda()
    head = (torch.randn(4096, 1024, generator=generator) / 32).cuda()
    labels = torch.randint(0, 4096, (512,), generator=generator).cuda()
    upstream = torch.randn(512, generator=generator).cuda()

    def exact(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        logits = hidden @ head.T
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return torch.log_softmax(logits, -1).gather(1, labels[:, None]).squeeze(1)

    truth = with_gradients(exact, hidden.double(), head.bfloat16().double(), labels, upstream)
    theirs = with_gradients(cut_cross_entropy_logprobs, hidden, head, labels, upstream, softcap=softcap)
    assert (theirs[0].double() - truth[0]).square().mean().sqrt() <= 1e-5
    for mine, other in zip(truth[1:], theirs[1:], strict=True):
        assert (other.double() - mine).norm() <= 2**-6 * mine.norm()  # sums over blocks, each rounded to 2^-9
