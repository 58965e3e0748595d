"""Cut cross-entropy as training calls it: what it is asked for, and, where it is installed, what it answers."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from humanline.objectives import token_logprobs
from humanline.train.policy.build import checked_model
from humanline.train.policy.head import LogprobsError, cut_cross_entropy_logprobs, logprob_function
from tests.helpers.paper_models import write_paper_model
from tests.helpers.support import config

N, H, V = 30, 24, 70


def problem(dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, float32 head, labels and incoming gradient with zeros in it."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, H, generator=generator).to(dtype)
    head = torch.randn(V, H, generator=generator) / H**0.5
    labels = torch.randint(0, V, (N,), generator=generator)
    upstream = torch.randn(N, generator=generator) * (torch.rand(N, generator=generator) < 0.7)
    return hidden, head, labels, upstream


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
    @pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"temperature": 0.5}], ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_values_and_gradients_are_those_of_our_own_function(self, calls, dtype, options):
        """Soft cap, temperature, rounding of the head and the way back through it agree with token_logprobs.

        The stand-in computes in float32 from the same rounded operands: 1e-5 is its rounding, and gradients of bf16
        hidden states may differ by one step of bf16 (2^-8 of their size).
        """
        hidden, head, labels, upstream = problem(dtype)
        theirs = with_gradients(cut_cross_entropy_logprobs, hidden, head, labels, upstream, **options)
        ours = with_gradients(token_logprobs, hidden, head, labels, upstream, **options)
        narrow = 1e-5 if dtype == torch.float32 else 2**-8
        for mine, other, tolerance in zip(ours, theirs, (1e-5, narrow, narrow), strict=True):
            assert mine.dtype == other.dtype and mine.shape == other.shape
            torch.testing.assert_close(other.float(), mine.float(), rtol=tolerance, atol=tolerance * mine.abs().max())
        assert theirs[0].dtype == torch.float32

    def test_a_temperature_costs_one_rounding_of_the_hidden_states(self, calls):
        """At another temperature than a power of 2 values are those of hidden states divided by it and rounded."""
        hidden, head, labels, _ = problem(torch.bfloat16)
        values = cut_cross_entropy_logprobs(hidden, head, labels, temperature=0.7)
        rounded = token_logprobs((hidden.double() / 0.7).bfloat16(), head, labels)
        torch.testing.assert_close(values, rounded, rtol=0, atol=1e-5)  # float32 sums of 24 products of order 1
        exact = token_logprobs(hidden, head, labels, temperature=0.7)
        torch.testing.assert_close(values, exact, rtol=0, atol=2**-5)  # a few logits of order 1, each off by 2^-9

    def test_a_temperature_over_a_soft_cap_is_refused(self, calls):
        """The kernel caps what is divided already, so that both settings are named and it is not called."""
        hidden, head, labels, _ = problem(torch.float32)
        with pytest.raises(
            LogprobsError, match=r"training\.logprobs: cut_cross_entropy .* training\.temperature \(0\.7\)"
        ):
            cut_cross_entropy_logprobs(hidden, head, labels, temperature=0.7, softcap=2.0)
        assert not calls

    def test_small_gradients_and_exact_products_are_asked_for(self, calls):
        """The gradient filter is off, hidden states arrive as they are, and the head is float32 of bf16 numbers."""
        hidden, head, labels, _ = problem(torch.bfloat16)
        cut_cross_entropy_logprobs(hidden, head, labels)
        (call,) = calls
        assert call["filter_eps"] is None and call["reduction"] == "none" and call["impl"] == "torch_compile"
        assert torch.equal(call["targets"], labels) and torch.equal(call["e"], hidden.float())
        assert call["c"].dtype == torch.float32 and torch.equal(call["c"], head.bfloat16().float())

    def test_no_rows_give_no_values_and_gradients_of_zeros(self, calls):
        """Where no label counts the kernel is not called, and gradients exist, as other processes wait for them."""
        hidden, head, labels, upstream = problem(torch.bfloat16)
        hidden, labels, upstream = hidden[:0], labels[:0], upstream[:0]
        values, *gradients = with_gradients(cut_cross_entropy_logprobs, hidden, head, labels, upstream)
        assert not calls and values.shape == (0,)
        assert [g.shape for g in gradients] == [hidden.shape, head.shape] and not gradients[1].any()

    @pytest.mark.wrong_shapes
    @pytest.mark.parametrize(
        "changes, message",
        [
            ({"hidden": torch.zeros(N, H + 1)}, "must be \\(N, H\\) and \\(V, H\\)"),
            ({"hidden": torch.zeros(N, H, dtype=torch.float64)}, "bfloat16, float16 or float32"),
            ({"labels": torch.zeros(N)}, "labels must be integers"),
            ({"labels": torch.zeros(N - 1, dtype=torch.long)}, "labels"),
            ({"softcap": 0.0}, "softcap"),
            ({"temperature": 0.0}, "temperature"),
        ],
        ids=["shape", "float64", "float labels", "few labels", "soft cap", "temperature"],
    )
    def test_arguments_that_make_no_sense_are_refused(self, calls, changes, message):
        """Shapes, types and the soft cap are checked, since the kernel itself would read outside its tensors."""
        hidden, head, labels, _ = problem(torch.float32)
        given = {"hidden": hidden, "head_weight": head, "labels": labels} | changes
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
        with pytest.raises(LogprobsError, match=r"\[kernels\].*training.logprobs: chunked"):
            logprob_function("cut_cross_entropy")

    def test_float32_on_a_gpu_is_refused(self, calls):
        """The kernel has no backward pass in float32, which is said before anything is loaded."""
        with pytest.raises(LogprobsError, match=r"training\.precision: bf16"):
            logprob_function("cut_cross_entropy", device="cuda", precision="float32")

    @pytest.mark.parametrize("changes", [{}, {"logprobs": "chunked"}, {"temperature": 1.0}], ids=str)
    def test_a_temperature_over_a_soft_cap_is_refused_before_weights_are_read(self, calls, tmp_path, changes):
        """By its outline alone a model with a soft cap is refused cut cross-entropy at a temperature, nothing else."""
        folder = write_paper_model(tmp_path / "gemma2", "gemma2")
        training = {"steps": 1, "logprobs": "cut_cross_entropy", "temperature": 0.7} | changes
        given = config({"model": folder, "pairs": "none"}, tmp_path / "run", training=training)
        refused = nullcontext() if changes else pytest.raises(LogprobsError, match=r"soft cap on them \(5\)")
        with refused:
            checked_model(given, torch.device("cpu"))


@pytest.fixture
def package() -> None:
    """Skip where the real package cannot be imported."""
    pytest.importorskip("triton", reason="needs the extra `kernels`: triton is not installed")
    pytest.importorskip("cut_cross_entropy", reason="needs the extra `kernels`: cut-cross-entropy is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"temperature": 0.5}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_version_equals_ours(package, dtype, options):
    """The real package on a CPU gives our values and gradients: float32 sums of the same rounded operands."""
    hidden, head, labels, upstream = problem(dtype)
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
