"""Attention over rows laid end to end, so that training needs no padding.

Rows of different lengths become segments of one long row, and every token attends to the tokens of its own segment
only. Lengths reach each layer as a keyword argument of the model's forward pass: activation checkpointing keeps such
arguments for its second forward pass, which runs in the middle of the backward pass.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from humanline.train.policy.attention import attention_softcap_of
from humanline.train.policy.errors import ModelError
from humanline.train.policy.in_order import in_order
from humanline.train.policy.logprobs import PACKED

_UNSAID = -1  # of a window: the model says nothing about it, as opposed to None
_HARMLESS = ("position_ids", "cache_position")  # keyword arguments that change nothing here
_FLASH = (8, 0)  # the compute capability that torch's kernel takes
_LAYERS = ("full_attention", "sliding_attention")
_INSTEAD = "set training.padding: right"


def pack(model: Any) -> None:
    """Switch a loaded model over to attention within segments; `LogprobModel(model, packed=True)` then runs it.

    Parameters
    ----------
    model : a causal language model of transformers
        Changed in place; the folder it may be saved to later does not show it.

    Raises
    ------
    ModelError
        If the model cannot be trained so (`refuse_unpackable`), or drops out attention.
    """
    if problems := _problems(model):
        raise ModelError(f"{type(model).__name__} {'; '.join(problems)}: {_INSTEAD}")
    if any(getattr(module, "attention_dropout", 0.0) for module in model.modules()):
        raise ModelError(
            f"{type(model).__name__} drops out attention, which padding-free attention cannot: set training.dropout: "
            f"false, or {_INSTEAD}"
        )
    _switch(model, packed_attention)


def refuse_unpackable(path: str, outline: Any, device: torch.device | str = "cpu") -> None:
    """Refuse a model that cannot be trained without padding, before its weights are loaded.

    Parameters
    ----------
    path : str
        For the message.
    outline
        The model on the meta device; left as it was.
    device : torch.device
        Where it would be trained.

    Raises
    ------
    ModelError
        If its attention cannot be replaced, some layers are no attention (state-space, linear, convolution) or attend
        in chunks, it is not causal, or it asks its attention for something that is not supported (sinks, biases; on a
        GPU soft caps).
    """
    problems = _problems(outline)
    if torch.device(device).type == "cuda" and attention_softcap_of(outline) is not None:
        problems.append(
            "caps attention's logits softly, which no kernel over rows laid end to end does, so that a GPU would take "
            "one row after another, in float32"
        )
    if problems:
        raise ModelError(f"model {path!r} cannot be trained without padding: it {'; '.join(problems)}; {_INSTEAD}")
    try:
        _try_out(outline, packed_attention)
    except (ModelError, TypeError) as error:  # the latter from a model that takes no further keyword arguments
        raise ModelError(f"model {path!r} cannot be trained without padding: {error}") from None


def _try_out(outline: Any, attention: Callable[..., Any]) -> None:
    """Run an outline over two segments with an attention function, as far as it can run without weights."""
    before, was_training = outline.config._attn_implementation, outline.training
    longest = getattr(outline.config.get_text_config(), "sliding_window", None) or 1
    lengths = (2, longest + 1)
    try:
        _switch(outline.eval(), attention)  # dropout is switched off later, if at all, and `pack` looks at it
        with torch.no_grad():
            outline.get_decoder()(
                input_ids=torch.zeros((1, sum(lengths)), dtype=torch.long, device=outline.device),
                position_ids=torch.zeros((1, sum(lengths)), dtype=torch.long, device=outline.device),
                use_cache=False,
                segment_lengths=lengths,
            )
    except (RuntimeError, NotImplementedError):
        pass  # some layers cannot run without weights (experts, say); `check_logprobs` looks again once they are there
    finally:
        _switch(outline, packed_attention)
        outline.train(was_training).set_attn_implementation(before)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = _UNSAID,
    softcap: float | None = None,
    is_causal: bool | None = None,
    segment_lengths: Sequence[int] | None = None,
    segment_bounds: Tensor | None = None,
    **features: Any,
) -> tuple[Tensor, None]:
    """Attend causally within each segment: the attention function that `pack` gives to a model.

    Parameters
    ----------
    module : nn.Module
        The attention layer.
    query, key, value : (1, heads, N, D) tensors
        Keys and values may have fewer heads than queries, which then share them in groups.
    attention_mask : None
    dropout : 0
    scaling : float, optional
        Factor of the logits; default: D^-1/2.
    sliding_window : int, optional
        How many tokens, itself included, a token attends to at most.
    softcap : float, optional
        Gemma 2's soft cap on the logits.
    is_causal : bool, optional
    segment_lengths : sequence of int
        Sum N.
    segment_bounds : (S + 1,) int32 tensor, optional
        The sums of none, one, two, ... of the lengths, on the device.
    **features
        Other keyword arguments of the model.

    Returns
    -------
    output : (1, N, heads, D) tensor
    weights : None

    Raises
    ------
    ModelError
        If no lengths, or lengths that do not fit, reach the layer, or the model asks for what is not done here.

    Notes
    -----
    On CUDA in bf16 or float16 one kernel of torch serves all segments. Elsewhere each segment is a call of torch's
    attention; where logits are soft-capped, plain float32 attention, which holds the logits of one segment after
    another. No mask is ever built but of one segment that is longer than its window.
    """
    wanted = [name for name, asked in features.items() if name not in _HARMLESS and _is_set(asked)]
    wanted += ["dropout"] if dropout else []
    wanted += ["attention_mask"] if attention_mask is not None else []
    if is_causal is False or (is_causal is None and getattr(module, "is_causal", True) is False):
        wanted.append("is_causal=False")
    if wanted:
        raise ModelError(f"padding-free attention does not do what {_name(module)} asks for: {wanted}; {_INSTEAD}")
    if segment_lengths is None or query.shape[0] != 1 or sum(segment_lengths) != query.shape[2]:
        raise ModelError(
            f"padding-free attention needs one row and the lengths of its segments; {_name(module)} got a query of "
            f"shape {tuple(query.shape)} and lengths {segment_lengths}; if its model does not pass them on, {_INSTEAD}"
        )
    longest = max(segment_lengths)
    if sliding_window == _UNSAID:
        sliding_window = getattr(getattr(module, "config", None), "sliding_window", None) or None  # 0 is none
        if sliding_window is not None and longest > sliding_window:
            raise ModelError(
                f"padding-free attention is not told by {_name(module)} whether it slides over {sliding_window} "
                f"tokens, and there are rows of {longest}: {_INSTEAD}"
            )

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _attend(query, key, value, scaling, sliding_window, softcap, segment_lengths, segment_bounds)

    return in_order(attend, query, key, value) if query.is_cuda else attend(query, key, value), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    lengths: Sequence[int],
    bounds: Tensor | None,
) -> Tensor:
    if softcap is None and bounds is not None and (kernel := _kernel(query, value)) is not None:
        return _in_one_kernel(kernel, query, key, value, scaling, window, lengths, bounds)
    return _per_segment(query, key, value, scaling, window, softcap, lengths)


def _in_one_kernel(
    kernel: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    lengths: Sequence[int],
    bounds: Tensor,
) -> Tensor:
    longest = max(lengths)
    options: dict[str, Any] = {}
    if key.shape[1] != query.shape[1]:
        if "enable_gqa" in inspect.signature(kernel).parameters:
            options["enable_gqa"] = True
        else:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    # The kernel counts the tokens to the left of the query's own.
    left = -1 if window is None or window >= longest else window - 1
    query, key, value = (x.squeeze(0).transpose(0, 1).contiguous() for x in (query, key, value))
    output = kernel(
        query, key, value, bounds, bounds, longest, longest, scale=scaling, window_size=(left, 0), **options
    )
    return output.unsqueeze(0)


def _per_segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    lengths: Sequence[int],
) -> Tensor:
    outputs = []
    # Cut by one split each: its gradient is one concatenation, where slices would each fill a whole row with zeros.
    segments = zip(*(torch.split(x, list(lengths), 2) for x in (query, key, value)), strict=True)
    for q, k, v in segments:
        slides = window is not None and q.shape[2] > window
        if softcap is not None or slides:
            mask = torch.ones((q.shape[2], q.shape[2]), dtype=torch.bool, device=q.device).tril()
            if window is not None and slides:
                mask = mask.triu(1 - window)
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            if softcap is not None:
                outputs.append(_soft_capped(q, k, v, mask, scaling, softcap))
            else:
                outputs.append(scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling))
        else:
            shared = k.shape[1] != q.shape[1]
            outputs.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=shared))
    return torch.cat([output.transpose(1, 2) for output in outputs], 1)


def _soft_capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None, softcap: float
) -> Tensor:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits = query.to(wide) @ key.to(wide).transpose(2, 3) * scale
    logits = torch.tanh(logits / softcap) * softcap
    weights = logits.masked_fill(~mask, -torch.inf).softmax(3)
    return (weights @ value.to(wide)).to(query.dtype)


def _kernel(query: Tensor, value: Tensor) -> Callable[..., Tensor] | None:
    """Return torch's attention over segments where it can be used."""
    if not query.is_cuda or _without_kernel(query.device, query.dtype, query.shape[3], value.shape[3]) is not None:
        return None
    return _varlen()


def _without_kernel(device: torch.device, dtype: torch.dtype, size: int, value_size: int) -> str | None:
    """Say why a GPU cannot have torch's attention over segments, for heads of so many numbers; None if it can."""
    if torch.cuda.get_device_capability(device) < _FLASH:
        name = torch.cuda.get_device_name(device)
        return f"{name} is older than compute capability {'.'.join(map(str, _FLASH))}"
    if dtype not in (torch.bfloat16, torch.float16):
        return "it computes in bf16 alone (training.precision)"
    if size % 8 or size > 256 or value_size != size:
        sizes = f"{size}" if value_size == size else f"{size}, of values {value_size}"
        return f"heads of {sizes} numbers do not fit it (multiples of 8, up to 256, values alike)"
    return None if _varlen() is not None else "this version of torch has none that slides and scales"


def slower_without_kernel(outline: Any, device: torch.device, precision: str) -> str | None:
    """Say so if rows laid end to end would be attended to one after another on a GPU, with the same results.

    Parameters
    ----------
    outline
        A model, or one on the meta device, that `refuse_unpackable` lets through; left as it was.
    device : torch.device
        Where it will be trained.
    precision : {"float32", "bf16"}
        What is computed in.

    Returns
    -------
    str or None
        None where one kernel serves all rows, and on a CPU.
    """
    if device.type != "cuda":
        return None
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    whys = {why for sizes in _head_sizes(outline) if (why := _without_kernel(device, dtype, *sizes)) is not None}
    if not whys:
        return None
    return (
        "training.padding: free: attention takes one row after another here, which is slower where rows are short, and "
        f"not one kernel for all: {'; '.join(sorted(whys))}; results are those of any other way, and training.padding: "
        "right does without"
    )


def _head_sizes(outline: Any) -> set[tuple[int, int]]:
    """Return how many numbers heads have in a model's attention: of queries and keys, and of values."""
    found: set[tuple[int, int]] = set()

    def look(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        found.add((query.shape[3], value.shape[3]))
        return packed_attention(module, query, key, value, *args, **options)

    _try_out(outline, look)
    return found


@functools.cache
def _varlen() -> Callable[..., Tensor] | None:
    """Return torch's attention over segments, if this torch has it in a form that can be causal and scaled."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    usable = {"scale", "window_size"} <= known.keys() and torch.backends.cuda.is_flash_attention_available()
    return varlen_attn if usable else None  # type: ignore[return-value]


def _switch(model: Any, attention: Callable[..., Any]) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, attention)
    model.set_attn_implementation(PACKED)


def _problems(model: Any) -> list[str]:
    """Say in which ways a model, whole or an outline, is built unfit for rows laid end to end."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    settings = base.config.get_text_config()
    problems = []
    if not getattr(type(base), "_supports_attention_backend", False):
        problems.append("computes attention in code of its own, which cannot be replaced")
    others = sorted(set(getattr(settings, "layer_types", None) or ()) - set(_LAYERS))
    if others:
        problems.append(f"has layers that would mix one row with the next: {', '.join(others)}")
    elif getattr(type(base), "_is_stateful", False):
        problems.append("has layers with a running state, which would mix one row with the next")
    if getattr(settings, "is_causal", True) is False or getattr(settings, "use_bidirectional_attention", False):
        problems.append("is not causal")
    return problems


def _is_set(asked: Any) -> bool:
    """Tell whether a keyword argument asks for anything."""
    return isinstance(asked, Tensor) or asked not in (None, False, 0)


def _name(module: nn.Module) -> str:
    return type(module).__name__
