"""Token log-probabilities, and divergences, from hidden states, without ever holding the logits of a whole batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from humanline import _checks
from humanline._shapes import Bool, Float, Integer

# The logits that exist at a time, in bytes. On a CPU they are small beside any model with a large vocabulary, and a
# vocabulary of a few thousand is one matmul. A GPU reads the head, of gigabytes, once for every chunk: with 2048 rows
# a chunk at 128k tokens that takes no time beside the matmul, and the head's weights and gradient take more memory.
_CHUNK_BYTES = 1 << 27
_CHUNK_BYTES_OF_GPU = 1 << 30
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
    itself), ``logprob = logit[label] - logsumexp(logit)``, in nats. Logits are float32 whatever the operands are, as
    many exist at a time as `chunk_size` tokens have, and the backward pass computes them again: of those tokens
    together, or, from bf16 or float16 operands, of more tokens and a part of the vocabulary, so that the head's
    gradient is written once. Rows under a False mask never reach the matmul; rows whose incoming gradient is exactly
    zero (clipped or detached tokens) are skipped in the backward pass. Under ``torch.no_grad()`` nothing is kept:
    that is the forward-only mode of references, and its values are bitwise those of training.

    Parameters
    ----------
    hidden : (N, H) floating tensor
        Hidden states, one row a token.
    head_weight : (V, H) floating tensor
        The head. Where its type differs from that of `hidden` it is read in the type of `hidden` (bf16 compute over
        float32 masters); its gradient is accumulated in float32 and returned in its own type, rounded once.
    labels : (N,) integer tensor
        The token each row has to predict, in [0, V). Under a False mask any integer is allowed.
    mask : (N,) bool tensor, optional
        True = the token counts. Masked rows yield 0 and no gradient.
    temperature : float, > 0
    softcap : float > 0, optional
        Gemma 2's soft cap on the logits.
    chunk_size : int >= 1, optional
        Tokens a chunk; the default bounds one chunk's logits to 128 MiB, on a GPU to 1 GiB.

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
        size = _CHUNK_BYTES_OF_GPU if hidden.is_cuda else _CHUNK_BYTES
        chunk_size = _whole_tiles(max(1, size // (head_weight.shape[0] * wide.itemsize)))
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


def token_kl(
    hidden: Float[Tensor, "N H"],
    head_weight: Float[Tensor, "V H"],
    other_hidden: Float[Tensor, "N G"],
    other_head_weight: Float[Tensor, "V G"],
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    chunk_size: int | None = None,
) -> Float[Tensor, " N"]:
    """Return KL(p || q), exact over the vocabulary, of the next-token distributions of two models at every token.

    ``kl = sum_v p_v (log p_v - log q_v) - p_v + q_v``: the last two terms add up to 0, and with them every term of the
    sum is >= 0 and an error in a normaliser is lost to first order, which near 0 decides. Logits are float32 and exist
    for `chunk_size` tokens at a time, as in `token_logprobs`; there is no gradient.

    Parameters
    ----------
    hidden, head_weight : (N, H) and (V, H) floating tensors
        Of p: hidden states, one row a token, and its head.
    other_hidden, other_head_weight : (N, G) and (V, G) floating tensors
        Of q.
    temperature : float, > 0
    softcap : float > 0, optional
        Of both, as in `token_logprobs`.
    chunk_size : int >= 1, optional
        Tokens a chunk; the default bounds what exists of one to the bytes of a chunk of `token_logprobs`.

    Returns
    -------
    (N,) tensor
        Nats, >= 0 up to rounding, exactly 0 where both compute the same bits; float32 (float64 where `hidden` is).

    Raises
    ------
    ValueError
        If shapes do not fit, types are wrong, temperature or softcap is not > 0, or chunk_size < 1.

    Notes
    -----
    Source: none in arXiv 2509.24207; the sum of these along an answer that p has drawn is the conditional expectation,
    position by position, of its log-ratio (Rao-Blackwell), and has the same mean and a smaller variance.
    """
    labels = torch.zeros(len(hidden), dtype=torch.long)
    temperature, softcap = checked(hidden, head_weight, labels, temperature, softcap)
    checked(other_hidden, other_head_weight, labels, temperature, softcap)
    if len(head_weight) != len(other_head_weight):
        raise ValueError(f"two vocabularies, of {len(head_weight)} and {len(other_head_weight)} words, have no KL")
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    if chunk_size is None:
        size = _CHUNK_BYTES_OF_GPU if hidden.is_cuda else _CHUNK_BYTES
        chunk_size = _whole_tiles(max(1, size // (3 * head_weight.shape[0] * wide.itemsize)))
    elif chunk_size < 1:
        raise _checks.fail("chunk_size", "be >= 1", chunk_size)
    result = torch.empty(len(hidden), dtype=wide, device=hidden.device)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        numbers = min(chunk_size, len(hidden)) * len(head_weight)
        own, other, spare = (hidden.new_empty(numbers, dtype=wide) for _ in range(3))
        p_head = _Head(head_weight, hidden, own, temperature, softcap)
        q_head = _Head(other_head_weight, other_hidden, other, temperature, softcap)
        for rows in _slices(len(hidden), chunk_size):
            p_log, q_log = p_head.logits(hidden[rows])[0], q_head.logits(other_hidden[rows])[0]
            p = spare[: p_log.numel()].view(p_log.shape)
            for log in (p_log, q_log):
                log.sub_(log.amax(1, keepdim=True))
                log.sub_(torch.exp(log, out=p).sum(1, keepdim=True).log_())
            torch.exp(p_log, out=p)
            p_log.sub_(q_log).mul_(p).sub_(p).add_(q_log.exp_())
            result[rows] = p_log.sum(1)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """What `_TokenLogprobs` is called with, which its backward pass needs again."""

    hidden: Float[Tensor, "N H"]
    head_weight: Float[Tensor, "V H"]
    labels: Integer[Tensor, " N"]
    temperature: float
    softcap: float | None
    chunk_size: int
    wide: torch.dtype

    def head(self) -> _Head:
        """Return the whole head, with room for the logits of a chunk."""
        size = min(self.chunk_size, len(self.hidden)) * len(self.head_weight)
        buffer = self.hidden.new_empty(size, dtype=self.wide)
        return _Head(self.head_weight, self.hidden, buffer, self.temperature, self.softcap)


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
        head = _Given(hidden, head_weight, labels, temperature, softcap, chunk_size, wide).head()
        normaliser = torch.empty(len(labels), dtype=wide, device=hidden.device)
        chosen = torch.empty_like(normaliser)
        for rows in _slices(len(labels), chunk_size):
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
        *tensors, normaliser = ctx.saved_tensors
        given = _Given(*tensors, *ctx.options)
        gradients = _by_rows if given.hidden.dtype == given.wide else _by_blocks
        hidden_grad, head_grad = gradients(grad, given, normaliser, *ctx.needs_input_grad[:2])
        return hidden_grad, head_grad, None, None, None, None, None


_Gradients = tuple[Tensor | None, Tensor | None]  # of hidden states and head, None where it is not wanted


def _by_rows(
    grad: Float[Tensor, " N"], given: _Given, normaliser: Float[Tensor, " N"], wants_hidden: bool, wants_head: bool
) -> _Gradients:
    """Return the gradients from logits of some rows at a time: each adds to the gradient of the whole head."""
    hidden, weight, head = given.hidden, given.head_weight, given.head()
    hidden_grad = torch.zeros_like(hidden) if wants_hidden else None
    head_grad = torch.zeros(weight.shape, dtype=given.wide, device=weight.device) if wants_head else None
    wanted = grad.nonzero().squeeze(1)
    for rows in torch.split(wanted, given.chunk_size) if len(wanted) else ():  # none where every advantage is 0
        part, row_grad = hidden[rows], grad[rows, None] / -given.temperature
        error = head.error(part, given.labels[rows], normaliser[rows])
        if hidden_grad is not None:
            hidden_grad[rows] = (row_grad * (error @ head.weight)).to(hidden.dtype)
        if head_grad is not None:
            head_grad.addmm_(error.T, row_grad * part)
    if head_grad is not None:
        head_grad = head_grad.to(weight.dtype)
    return hidden_grad, head_grad


def _by_blocks(
    grad: Float[Tensor, " N"], given: _Given, normaliser: Float[Tensor, " N"], wants_hidden: bool, wants_head: bool
) -> _Gradients:
    """Return the gradients from blocks of logits, of many rows and a part of the vocabulary.

    A block of the head's gradient is added up over all rows before the next begins, and then rounded and written,
    once, so that there is never a wide gradient of the whole head. `_by_rows` reads and writes one for every chunk of
    rows, which on a GPU takes longer than the matmul.
    """
    hidden, weight, wide = given.hidden, given.head_weight, given.wide
    wanted = grad.nonzero().squeeze(1)
    hidden_grad = torch.zeros_like(hidden) if wants_hidden else None
    if not len(wanted):  # every advantage is 0
        return hidden_grad, torch.zeros_like(weight) if wants_head else None
    part, labels, normaliser = hidden[wanted], given.labels[wanted], normaliser[wanted]
    row_grad = grad[wanted, None] / -given.temperature  # multiplies the narrow factors of both products, not the logits
    vocabulary, most = len(weight), given.chunk_size * len(weight)
    width = min(vocabulary, _whole_tiles(math.isqrt(most)))
    height = min(len(part), _whole_tiles(most // width))
    buffer = part.new_empty(height * width, dtype=wide)
    hidden_sum = torch.zeros_like(part, dtype=wide) if wants_hidden else None
    head_grad = torch.empty_like(weight) if wants_head else None
    scaled = (row_grad * part).to(_operands(part, wide)) if wants_head else None
    for words in _slices(vocabulary, width):
        head = _Head(weight[words], part, buffer, given.temperature, given.softcap)
        head_sum = None
        for rows in _slices(len(part), height):
            error = head.error(part[rows], labels[rows] - words.start, normaliser[rows])
            if hidden_sum is not None:
                hidden_sum[rows].add_(_product(error, head.weight, wide))
            if scaled is not None:
                product = _product(error.T, scaled[rows], wide)
                head_sum = product if head_sum is None else head_sum.add_(product)
        if head_grad is not None and head_sum is not None:
            head_grad[words] = head_sum
    if hidden_grad is not None and hidden_sum is not None:
        hidden_grad[wanted] = hidden_sum.mul_(row_grad).to(hidden.dtype)
    return hidden_grad, head_grad


class _Head:
    """A linear head, or a block of one, that writes float32 (or float64) logits into one buffer, again and again."""

    def __init__(
        self,
        weight: Float[Tensor, "V H"],
        hidden: Float[Tensor, "N H"],
        buffer: Float[Tensor, " S"],
        temperature: float,
        softcap: float | None,
    ) -> None:
        # Rounded to the type of `hidden`.
        self.weight = weight.detach().to(hidden.dtype).to(_operands(hidden, buffer.dtype))
        self.buffer, self.temperature, self.softcap = buffer, temperature, softcap

    def logits(
        self, hidden: Float[Tensor, "N H"], with_slope: bool = False
    ) -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"] | None]:
        """Return the logits, valid until the next call, and if asked for the slope of the soft cap."""
        hidden, slope = hidden.to(self.weight.dtype), None
        logits = self.buffer[: len(hidden) * len(self.weight)].view(len(hidden), len(self.weight))
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

    def error(
        self, hidden: Float[Tensor, "N H"], labels: Integer[Tensor, " N"], normaliser: Float[Tensor, " N"]
    ) -> Float[Tensor, "N V"]:
        """Return - d logprob / d logits, but for the temperature, in the type of the weights.

        That is softmax(logits) - onehot(label), times the slope of the soft cap, built in place over the logits. A
        label that is no word of this block has no entry in it.
        """
        logits, slope = self.logits(hidden, with_slope=True)
        error = logits.sub_(normaliser[:, None]).exp_()
        last = error.shape[1] - 1
        inside = (labels >= 0) & (labels <= last)
        error.scatter_add_(1, labels.clamp(0, last)[:, None], -inside.to(error.dtype)[:, None])
        if slope is not None:
            error.mul_(slope)
        return error.to(self.weight.dtype)


def _operands(hidden: Float[Tensor, "N H"], wide: torch.dtype) -> torch.dtype:
    """Return the type of what is multiplied: only CUDA multiplies narrow operands into a wide result."""
    return hidden.dtype if hidden.is_cuda else wide


def _product(one: Float[Tensor, "A B"], other: Float[Tensor, "B C"], wide: torch.dtype) -> Float[Tensor, "A C"]:
    """Return the product of two matrices, in a wide type."""
    # Not addmm: not every version of torch lets it add to what is wider than its operands.
    return one @ other if one.dtype == wide else torch.mm(one, other, out_dtype=wide)


def _whole_tiles(count: int) -> int:
    """Return as many of a count as make whole tiles, if one fits."""
    return count - count % _TILE if count > _TILE else count


def _slices(count: int, size: int) -> Iterator[slice]:
    """Yield what cuts so many into parts of a size; the last may be smaller."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
