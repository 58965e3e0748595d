"""Token log-probabilities from hidden states, without ever holding the logits of a whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from humanline import _checks
from humanline._shapes import Bool, Float, Integer

# One chunk's float32 logits, in bytes: small beside any model with a large vocabulary, large enough that a
# vocabulary of a few thousand is one matmul.
_CHUNK_BYTES = 1 << 27
_TILE = 128  # rows that matrix products are cut into on a GPU; a chunk a little larger would waste most of a tile


def token_logprobs(
    hidden: Float[Tensor, "N H"],
    head_weight: Float[Tensor, "V H"],
    labels: Integer[Tensor, " N"],
    *,
    mask: Bool[Tensor, " N"] | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    chunk_size: int | None = None,
) -> Float[Tensor, " N"]:
    """Return the log-probability of every label under a linear language-model head.

    ``logit = softcap * tanh(hidden @ head_weight.T / softcap) / temperature`` (without a soft cap: the product
    itself), ``logprob = logit[label] - logsumexp(logit)``, in nats. Logits are float32 whatever the operands are,
    they exist for `chunk_size` tokens at a time, and the backward pass computes them again. Rows under a False mask
    never reach the matmul; rows whose incoming gradient is exactly zero (clipped or detached tokens) are skipped in
    the backward pass. Under ``torch.no_grad()`` nothing is kept: that is the forward-only mode of references, and its
    values are bitwise those of training.

    Parameters
    ----------
    hidden : (N, H) floating tensor
        Hidden states, one row a token.
    head_weight : (V, H) floating tensor
        The head. Where its type differs from that of `hidden` it is read in the type of `hidden` (bf16 compute over
        float32 masters); its gradient is accumulated in float32 and returned in its own type.
    labels : (N,) integer tensor
        The token each row has to predict, in [0, V). Under a False mask any integer is allowed.
    mask : (N,) bool tensor, optional
        True = the token counts. Masked rows yield 0 and no gradient.
    temperature : float, > 0
    softcap : float > 0, optional
        Gemma 2's soft cap on the logits.
    chunk_size : int >= 1, optional
        Tokens a chunk; the default bounds one chunk's logits to 128 MiB.

    Returns
    -------
    (N,) tensor
        Nats, float32 (float64 where `hidden` is float64).

    Raises
    ------
    ValueError
        If shapes do not fit, types are wrong, temperature or softcap is not > 0, or chunk_size < 1.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 1 and section 5.1 (token-wise ratios, in log space). Float32 logits are our choice:
    at one step's distance log-ratios are about 1e-3 nats and bf16 logits are wrong by 1e-2.
    A label outside [0, V) raises on the CPU; on a GPU it is the device-side assertion of the gather.
    """
    temperature, softcap = checked(hidden, head_weight, labels, temperature, softcap)
    if mask is not None:
        _checks.same_shape("mask", mask.shape, "labels", labels.shape)
        if mask.dtype != torch.bool:
            raise _checks.fail("mask", "be bool", mask.dtype)
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    if chunk_size is None:
        chunk_size = max(1, _CHUNK_BYTES // (head_weight.shape[0] * wide.itemsize))
        chunk_size -= chunk_size % _TILE if chunk_size > _TILE else 0
    elif chunk_size < 1:
        raise _checks.fail("chunk_size", "be >= 1", chunk_size)

    rows = None
    if mask is not None:
        rows = mask.nonzero().squeeze(1)
        hidden, labels = hidden.index_select(0, rows), labels.index_select(0, rows)
    with torch.autocast(hidden.device.type, enabled=False):
        logprobs: Tensor = _TokenLogprobs.apply(hidden, head_weight, labels, temperature, softcap, chunk_size, wide)  # type: ignore[no-untyped-call]
    if mask is None or rows is None:
        return logprobs
    return torch.zeros(mask.shape, dtype=wide, device=hidden.device).index_copy(0, rows, logprobs)


def checked(
    hidden: Float[Tensor, "N H"],
    head_weight: Float[Tensor, "V H"],
    labels: Integer[Tensor, " N"],
    temperature: float,
    softcap: float | None,
) -> tuple[float, float | None]:
    """Return temperature and soft cap as floats; raise ValueError unless they and the tensors are as documented above.

    For other functions that take what `token_logprobs` takes.
    """
    if hidden.ndim != 2 or head_weight.ndim != 2 or hidden.shape[1] != head_weight.shape[1]:
        raise ValueError(
            f"hidden and head_weight must be (N, H) and (V, H); got {tuple(hidden.shape)}, {tuple(head_weight.shape)}"
        )
    if not hidden.is_floating_point() or not head_weight.is_floating_point():
        raise ValueError(f"hidden and head_weight must be floating; got {hidden.dtype} and {head_weight.dtype}")
    _checks.same_shape("labels", labels.shape, "hidden's rows", hidden.shape[:1])
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise _checks.fail("labels", "be integers", labels.dtype)
    return _checks.positive("temperature", temperature), None if softcap is None else _checks.positive(
        "softcap", softcap
    )


class _TokenLogprobs(torch.autograd.Function):
    """token_logprobs over rows that all count: chunked forward, recomputing backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "N H"],
        head_weight: Float[Tensor, "V H"],
        labels: Integer[Tensor, " N"],
        temperature: float,
        softcap: float | None,
        chunk_size: int,
        wide: torch.dtype,
    ) -> Float[Tensor, " N"]:
        head = _Head(head_weight, hidden, chunk_size, temperature, softcap, wide)
        normaliser = torch.empty(len(labels), dtype=wide, device=hidden.device)
        chosen = torch.empty_like(normaliser)
        for start in range(0, len(labels), chunk_size):
            rows = slice(start, start + chunk_size)
            logits, _ = head.logits(hidden[rows])
            chosen[rows] = logits.gather(1, labels[rows, None]).squeeze(1)
            # The log-sum-exp in place: a chunk's logits are not needed again, and a copy would double the memory.
            top = logits.amax(1, keepdim=True)
            normaliser[rows] = logits.sub_(top).exp_().sum(1).log_().add_(top.squeeze(1))
        ctx.save_for_backward(hidden, head_weight, labels, normaliser)
        ctx.options = temperature, softcap, chunk_size, wide
        return chosen - normaliser

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, " N"]) -> Any:
        hidden, head_weight, labels, normaliser = ctx.saved_tensors
        temperature, softcap, chunk_size, wide = ctx.options
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        head = _Head(head_weight, hidden, chunk_size, temperature, softcap, wide)
        hidden_grad = torch.zeros_like(hidden) if wants_hidden else None
        head_grad = torch.zeros(head_weight.shape, dtype=wide, device=head_weight.device) if wants_head else None
        wanted = grad.nonzero().squeeze(1)
        for rows in torch.split(wanted, chunk_size) if len(wanted) else ():  # none where every advantage is 0
            part, row_grad = hidden[rows], grad[rows, None] / -temperature
            logits, slope = head.logits(part, with_slope=True)
            # -d logprob / d logits = softmax(logits) - onehot(label), built in place over the logits; the incoming
            # gradient multiplies the narrow factors of both products instead.
            error = logits.sub_(normaliser[rows, None]).exp_()
            error.scatter_add_(1, labels[rows, None], error.new_full((len(rows), 1), -1.0))
            if slope is not None:
                error.mul_(slope)
            error = error.to(head.weight.dtype)
            if hidden_grad is not None:
                hidden_grad[rows] = (row_grad * (error @ head.weight)).to(hidden.dtype)
            if head_grad is not None:
                scaled = (row_grad * part).to(head.weight.dtype)
                if scaled.dtype == wide:
                    head_grad.addmm_(error.T, scaled)
                else:
                    torch.addmm(head_grad, error.T, scaled, out_dtype=wide, out=head_grad)  # no wide temporary
        if head_grad is not None:
            head_grad = head_grad.to(head_weight.dtype)
        return hidden_grad, head_grad, None, None, None, None, None


class _Head:
    """A linear head that writes float32 (or float64) logits into one buffer, again and again."""

    def __init__(
        self,
        weight: Float[Tensor, "V H"],
        hidden: Float[Tensor, "N H"],
        chunk_size: int,
        temperature: float,
        softcap: float | None,
        wide: torch.dtype,
    ) -> None:
        # Rounded to the type of `hidden`; only CUDA multiplies narrow operands into a wide result.
        weight = weight.detach().to(hidden.dtype)
        self.weight = weight if hidden.is_cuda else weight.to(wide)
        self.temperature, self.softcap = temperature, softcap
        shape = (min(chunk_size, len(hidden)), len(weight))
        self.buffer = torch.empty(shape, dtype=wide, device=hidden.device)

    def logits(
        self, hidden: Float[Tensor, "N H"], with_slope: bool = False
    ) -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"] | None]:
        """Return the logits, valid until the next call, and if asked for the slope of the soft cap."""
        hidden, logits, slope = hidden.to(self.weight.dtype), self.buffer[: len(hidden)], None
        if hidden.dtype == logits.dtype:
            torch.mm(hidden, self.weight.T, out=logits)
        else:
            torch.mm(hidden, self.weight.T, out_dtype=logits.dtype, out=logits)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_()
            if with_slope:
                slope = logits.square().neg_().add_(1.0)
            logits.mul_(self.softcap)
        if self.temperature != 1.0:
            logits.div_(self.temperature)
        return logits, slope
