"""The function from hidden states to token log-probabilities in training: our own, or an optional kernel.

Cut cross-entropy (https://github.com/apple/ml-cross-entropy, version 25.1.1 of the package index) fuses the matmul with
the log-sum-exp, so that logits never leave the chip. Its defaults would not do here:

- it leaves out small gradients (its gradient filter), which is switched off;
- it rounds each product of the label's logit to the narrow type before summing them up, an error of about 1e-3 nats in
  bf16; a float32 copy of the rounded head, which takes 4 bytes a weight, makes these products exact;
- it knows no temperature; hidden states are divided by it, in their own type, which for bf16 ones is one more rounding
  of 2^-9 unless it is a power of 2. A soft cap would then cap other logits, so that the two do not go together.

What remains: it sums across blocks of the vocabulary in whatever order they finish, so neither two passes nor two runs
are equal to the last bit, and log-ratios at an unchanged policy are about 1e-6 where ours are exactly 0; it adds up
gradients in the narrow type where ours are added in float32; with a soft cap c the columns that fill up its last block
of a vocabulary count as logits of -c, which matters only where all of a row's logits are close to -c.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import torch
from torch import Tensor

from humanline import _checks
from humanline.objectives import token_logprobs
from humanline.objectives.logprobs import checked
from humanline.system.install import install

_NARROW = (torch.bfloat16, torch.float16)


class LogprobsError(ValueError):
    """A way to compute token log-probabilities that does not work here."""


class TokenLogprobs(Protocol):
    """What a policy calls; `humanline.objectives.token_logprobs` is one."""

    def __call__(
        self,
        hidden: Tensor,
        head_weight: Tensor,
        labels: Tensor,
        *,
        temperature: float = 1.0,
        softcap: float | None = None,
    ) -> Tensor:
        """Return (N,) log-probabilities, nats, of (N,) labels from (N, H) hidden states and a (V, H) head."""


def logprob_function(name: str, *, device: str | torch.device = "cpu", precision: str = "float32") -> TokenLogprobs:
    """Return the function that `training.logprobs` names, or say why it cannot run here.

    Parameters
    ----------
    name : "chunked" or "cut_cross_entropy"
    device : str or torch.device
        Where training will run.
    precision : "float32" or "bf16"
        What it will compute in.

    Raises
    ------
    ValueError
        If the name is unknown.
    LogprobsError
        If the package of cut cross-entropy, or triton, cannot be imported, or training would run it in float32 on a
        GPU, where its backward pass has no kernel for it.
    """
    _checks.one_of("training.logprobs", name, ("chunked", "cut_cross_entropy"))
    if name == "chunked":
        return token_logprobs
    _linear_cross_entropy()
    if torch.device(device).type == "cuda" and precision != "bf16":
        raise LogprobsError(_float32_message())
    return cut_cross_entropy_logprobs


def refuse_softcap(name: str, temperature: float, softcap: float | None) -> None:
    """Raise LogprobsError if `training.logprobs` cannot have `training.temperature` over a model with a soft cap."""
    if name == "cut_cross_entropy" and temperature != 1 and softcap is not None:
        raise LogprobsError(
            f"training.logprobs: cut_cross_entropy cannot divide logits by training.temperature ({temperature:g}) "
            f"after the model's soft cap on them ({softcap:g}): set training.logprobs: chunked, or leave the "
            "temperature at 1"
        )


def cut_cross_entropy_logprobs(
    hidden: Tensor,
    head_weight: Tensor,
    labels: Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
) -> Tensor:
    """Return the log-probability of every label under a linear language-model head, by cut cross-entropy.

    The same numbers as `humanline.objectives.token_logprobs` up to rounding. On a CPU, where the kernel does not run,
    the package's compiled plain version takes its place: it needs a C++ compiler and holds all logits, and serves to
    try things out.

    Parameters
    ----------
    hidden : (N, H) tensor, bfloat16 or float16; float32 too on a CPU
        Hidden states, one row a token.
    head_weight : (V, H) floating tensor
        The head; it is read in the type of `hidden`, and gets its gradient in its own.
    labels : (N,) integer tensor
        The token each row has to predict, in [0, V), which is not checked.
    temperature : float, > 0
        Logits are divided by it.
    softcap : float > 0, optional
        Gemma 2's soft cap on the logits.

    Returns
    -------
    (N,) float32 tensor
        Nats.

    Raises
    ------
    ValueError
        If shapes do not fit, types are wrong, or temperature or softcap is not > 0.
    LogprobsError
        If the package cannot be imported, `hidden` is float32 on a GPU, or there is a soft cap and a temperature
        other than 1.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 1 and section 5.1 (token-wise ratios, in log space); the module's text says how the
    kernel's numbers differ from ours.
    """
    temperature, softcap = checked(hidden, head_weight, labels, temperature, softcap)
    if hidden.dtype not in (*_NARROW, torch.float32):
        raise _checks.fail("hidden", "be bfloat16, float16 or float32", hidden.dtype)
    refuse_softcap("cut_cross_entropy", temperature, softcap)
    if hidden.is_cuda and hidden.dtype not in _NARROW:
        raise LogprobsError(_float32_message())
    kernel = _linear_cross_entropy()

    hidden = hidden if temperature == 1 else hidden / temperature
    head = head_weight.to(hidden.dtype).float()  # rounded, then widened: see above
    if not len(labels):
        return (hidden.float() @ head[:1].T).squeeze(1)  # none, in the graph all the same
    how = "cce" if hidden.is_cuda else "torch_compile"
    states = hidden if hidden.is_cuda else hidden.float()  # the plain version has logits of its operands' type
    logprobs: Tensor = -kernel(states, head, labels, reduction="none", softcap=softcap, filter_eps=None, impl=how)
    return logprobs


def _linear_cross_entropy() -> Any:
    """Return the function of the package."""
    try:
        return importlib.import_module("cut_cross_entropy").linear_cross_entropy
    except ImportError as error:
        raise LogprobsError(
            "training.logprobs: cut_cross_entropy needs the packages cut-cross-entropy and triton "
            f"({install('kernels')}), or set training.logprobs: chunked, which needs neither ({error})"
        ) from error


def _float32_message() -> str:
    return (
        "training.logprobs: cut_cross_entropy has no backward pass in float32 on a GPU: set training.precision: bf16, "
        "or training.logprobs: chunked"
    )
