"""One pass of training without its memory: how many bytes it would hold and how much it would compute.

The model is the real one, in a real policy, but its tensors are fake: shapes and types without numbers. A meter
sees every operation and every storage come and go. No formula knows an architecture, so precision, adapters,
recomputation and the layout of rows count as what they are. Deep models are run at two smaller depths, and the rest
is a straight line: layers repeat.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from humanline.train.config import TrainConfig
from humanline.train.data.batch import Block
from humanline.train.policy.build import outfit
from humanline.train.policy.layers import layer_list
from humanline.train.policy.load import TYPES, turn_off_dropout
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.precision import compute_in, narrowed

Quantities = dict[str, float]

# What is live is looked at apart in these stretches of a pass; each of them is a straight line in the depth.
BACKWARD = ("last layers backward", "middle layers backward", "first layers backward")
_ALONE = threading.RLock()  # what a dry run switches is switched for the whole process
STRETCHES = ("forward", "head", "head backward", *BACKWARD)


class DryRunError(ValueError):
    """A model that cannot be run without numbers."""


def dry_run(
    config: TrainConfig,
    outline: Any,
    block: Block,
    *,
    backward: bool,
    accumulates: bool,
    cuda: bool,
    shares: bool = False,
) -> Quantities:
    """Run one forward pass of the policy, and a backward pass if asked for, on fake tensors.

    Parameters
    ----------
    config : TrainConfig
    outline
        The model on the meta device; left as it was.
    block : Block
        What the pass runs on; of its numbers only the mask is looked at.
    backward : bool
        False is a pass without gradient.
    accumulates : bool
        Gradients are there already, from an earlier micro-batch of the step, and are not part of what is counted.
    cuda : bool
        The head computes as it does on CUDA, narrow operands into a wide result, in larger chunks.
    shares : bool
        Copies of all weights in the type of the computation are there already, and are not part of what is counted.

    Returns
    -------
    dict
        The largest number of bytes live at a time beyond weights (and gradients if they accumulate) in each of
        `STRETCHES`, the bytes `held` when the decoder is done, and by kind the floating-point operations, two for a
        multiplication and addition: `linear` and `attention` of the `forward` and the `backward` pass and of what is
        computed `again` for it ("forward linear"); those of the head are left out. The backward pass of attention is
        twice the forward pass, and half of causal attention is not computed.

    Raises
    ------
    DryRunError
        If the model does something that depends on numbers.
    """
    found = in_depth(outline, lambda depth: _run(config, outline, block, depth, backward, accumulates, cuda, shares))
    if _is_extended(outline):
        found["middle layers backward"] = 0.0  # what is live there lies between what is live before and after
    return found


def in_depth(outline: Any, run: Callable[[int | None], Quantities]) -> Quantities:
    """Return what a run says of a model of some depth, of deep models from two smaller ones: layers repeat.

    Parameters
    ----------
    outline
        The model on the meta device.
    run : callable
        Of a number of layers; None where a model's layers cannot be found.
    """
    layers = layer_list(outline)
    with _quiet():
        if layers is None:
            return run(None)
        depth, period = len(layers), _period(outline)
        less, more = 2 * period, 3 * period  # the first, the last and, once, what lies between
        if depth <= more:
            return run(depth)
        small, large = run(less), run(more)
    slope = (depth - less) / (more - less)
    return {name: small[name] + slope * (large[name] - small[name]) for name in small}


def _is_extended(outline: Any) -> bool:
    layers = layer_list(outline)
    return layers is not None and len(layers) > 3 * _period(outline)


def _run(
    config: TrainConfig,
    outline: Any,
    block: Block,
    depth: int | None,
    backward: bool,
    accumulates: bool,
    cuda: bool,
    shares: bool = False,
) -> Quantities:
    meter = Meter(counted=int(block.mask.sum()), tokens=sum(block.lengths))
    with without_numbers(config, outline, depth, meter, train=backward) as policy, contextlib.ExitStack() as sharing:
        if shares and config.training.precision != "float32":
            sharing.enter_context(narrowed(policy, TYPES[config.training.precision]))
        ids, mask = (
            torch.empty(block.input_ids.shape, dtype=torch.long),
            torch.empty(block.mask.shape, dtype=torch.bool),
        )
        for tensor in (*policy.parameters(), ids, mask):
            meter.leave_out(tensor)
        if accumulates:  # a gradient is there for as long as it takes to add it to what is there already
            for parameter in policy.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]
        head = _head_of_cuda() if cuda else contextlib.nullcontext()
        with meter, head, torch.set_grad_enabled(backward):
            with _marks(policy, meter):
                logprobs = policy(ids, mask, block.lengths)
            if backward:
                meter.stretch = "head backward"
                logprobs.backward(torch.empty_like(logprobs))
    flops = {name: float(meter.flops[name]) for name in FLOPS}
    return {name: float(meter.peaks[name]) for name in STRETCHES} | {"held": float(meter.held)} | flops


@contextlib.contextmanager
def without_numbers(
    config: TrainConfig, outline: Any, depth: int | None, meter: Meter, *, train: bool, masks: bool = False
) -> Iterator[LogprobModel]:
    """Give a run's policy of so many layers on fake tensors, of which none is counted; raise DryRunError.

    With `masks` attention has those that rows of different lengths need, which nothing else of a run makes.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = _outfitted(config, _shortened(outline, depth))
    try:
        untraced = contextlib.nullcontext() if masks else _as_untraced()
        with FakeTensorMode(allow_non_fake_inputs=True), untraced, _grouped_by_name():
            model.to_empty(device="cpu")
            model.tie_weights()
            policy = LogprobModel(model, packed=config.training.padding == "free").train(train)
            if config.training.precision != "float32":
                compute_in(policy, TYPES[config.training.precision])
            for tensor in (*policy.parameters(), *policy.buffers()):
                meter.leave_out(tensor)
            yield policy
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DryRunError(f"{type(outline).__name__} cannot be run without numbers: {reason}") from error


FLOPS = tuple(f"{when} {kind}" for when in ("forward", "backward", "again") for kind in ("linear", "attention"))


def update_temporaries(config: TrainConfig, parameter: Tensor) -> int:
    """Return the bytes beyond weights, gradients and states that an update on the CPU holds for a parameter.

    Parameters
    ----------
    config : TrainConfig
    parameter : Tensor
        The largest one that is trained; only its shape and type are read.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from humanline.train.policy.optimizer import make_optimizer

    def stepped(copied: nn.Parameter) -> torch.optim.Optimizer:
        """Return an optimizer that has made its states."""
        optimizer = make_optimizer([copied], config.optimizer, config.training.weights)
        copied.grad = torch.empty_like(copied)
        optimizer.step()
        return optimizer

    meter = Meter(counted=0, tokens=0)
    with _quiet():
        stepped(nn.Parameter(torch.zeros(1 << 12, dtype=parameter.dtype)))  # tables are made from numbers, once
        with FakeTensorMode(allow_non_fake_inputs=True):
            copied = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))
            optimizer = stepped(copied)
            assert copied.grad is not None
            meter.leave_out(copied)
            meter.leave_out(copied.grad)
            with meter:
                optimizer.step()
    return meter.peaks["forward"]


# ---------------------------------------------------------------------------------------------------------------------
# The model of a pass


def _outfitted(config: TrainConfig, model: Any) -> Any:
    """Make of an outline, in place, what `build_policy` makes of a model."""
    if not config.training.dropout:
        turn_off_dropout(model)
    # What is kept in 4 bits is computed with in the type of the computation.
    model.to(TYPES[config.training.precision if config.kept_in == "nf4" else config.kept_in])
    outfit(model, config)
    return model


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def _shortened(outline: Any, depth: int | None) -> Any:
    """Return a copy with the first `depth` layers alone."""
    layers = layer_list(outline)
    if layers is None or depth is None or depth == len(layers):
        return copy.deepcopy(outline)
    whole = list(layers)
    del layers[depth:]
    try:
        model = copy.deepcopy(outline)
    finally:
        layers.extend(whole[depth:])
    model.config.get_text_config().num_hidden_layers = depth
    return model


def _period(model: Any) -> int:
    """Return after how many layers their kinds repeat."""
    kinds = list(getattr(model.config.get_text_config(), "layer_types", None) or [])
    return next((n for n in range(1, len(kinds)) if kinds[n:] == kinds[:-n]), 1)


@contextlib.contextmanager
def _marks(policy: LogprobModel, meter: Meter) -> Iterator[None]:
    """Let the meter know where a pass is, by hooks on what a model calls."""
    decoder, layers, period = policy.model.get_decoder(), layer_list(policy.model), _period(policy.model)

    def begins(stretch: str) -> Any:
        def mark(_: Any) -> None:
            meter.stretch = stretch

        return mark

    def decoded(_: Any, __: Any, output: Any) -> None:
        meter.held, meter.stretch = meter.live, "head"
        hidden = output.last_hidden_state
        if hidden.requires_grad:
            hidden.register_hook(begins("last layers backward"))

    def layer_done(stretch: str) -> Any:
        seen = False

        def mark(_: Any, __: Any, output: Any) -> None:
            nonlocal seen
            hidden = output[0] if isinstance(output, tuple) else output
            if not seen and hidden.requires_grad:  # not when it is computed again
                hidden.register_hook(begins(stretch))
            seen = True

        return mark

    handles = [decoder.register_forward_hook(decoded)]
    if layers is not None and len(layers) >= 2 * period:
        handles.append(layers[-period - 1].register_forward_hook(layer_done("middle layers backward")))
        handles.append(layers[period - 1].register_forward_hook(layer_done("first layers backward")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# ---------------------------------------------------------------------------------------------------------------------
# What sees every operation


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count live bytes and floating-point operations, and answer what would take numbers to know.

    Parameters
    ----------
    counted : int
        How many labels count in the loss.
    tokens : int
        How many tokens there are without padding.
    """

    def __init__(self, counted: int, tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted, self.tokens = counted, tokens
        self.stretch, self.live, self.held = "forward", 0, 0
        self.peaks: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self._known: set[int] = set()
        self._stacks: set[tuple[int, ...]] = set()  # shapes of weights of experts, either way round
        self._true, self._false = torch.tensor(True), torch.tensor(False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch._subclasses.fake_tensor import FakeTensor

        if any(kind not in (Tensor, nn.Parameter, FakeTensor) for kind in types):
            return NotImplemented  # a tensor made of others, which are seen one by one
        aten = torch.ops.aten
        if func is aten.nonzero.default:
            output = args[0].new_empty((self.counted, args[0].ndim), dtype=torch.long)
        elif func is aten.repeat_interleave.Tensor:
            output = args[0].new_empty(self.tokens)
        elif func is aten.all.default:
            return self._true  # what is asked is whether all is plain
        elif func is aten.any.default:
            return self._false  # or anything wrong
        elif func is aten._local_scalar_dense.default and (args[0] is self._true or args[0] is self._false):
            return args[0] is self._true
        else:
            output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, Tensor):
                self._see(tensor)
        if "head" not in self.stretch:
            self._count(func, args, kwargs or {}, output)
        return output

    def leave_out(self, tensor: Tensor) -> None:
        """Count a tensor that outlives the meter as none of what is live."""
        self._known.add(id(tensor.untyped_storage()))
        if tensor.ndim == 3:
            self._stacks |= {tuple(tensor.shape), tuple(tensor.mT.shape)}

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) not in self._known:
            size = storage.nbytes()
            self._known.add(id(storage))
            self.live += size
            weakref.finalize(storage, self._gone, id(storage), size)
        self.peaks[self.stretch] = max(self.peaks[self.stretch], self.live)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def _count(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        from torch.utils.flop_counter import flop_registry

        name = func.overloadpacket.__name__
        direction = "forward"
        if "backward" in self.stretch:  # there, gradients are on only where something is computed again
            direction = "again" if torch.is_grad_enabled() else "backward"
        if "attention" in name and "scaled_dot_product" in name:
            # Torch's own table lacks the kernel of the CPU, and counts what a backward pass computes again.
            named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
            query, key, value = named["query"], named["key"], named["value"]
            pairs = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
            flops = 2 * pairs * (query.shape[3] + value.shape[3]) // (2 if named.get("is_causal") else 1)
            self.flops[f"{direction} attention"] += flops * (2 if name.endswith("backward") else 1)
        elif name.startswith("grouped_mm_fallback"):  # rows (S, K), each times one of the experts' (E, K, N)
            rows, weight = args[:2]
            flops = 2 * rows.shape[0] * weight.shape[1] * weight.shape[2]
            self.flops[f"{direction} linear"] += flops * (2 if name.endswith("backward") else 1)
        elif func.overloadpacket in flop_registry:
            # What is as large as the experts' weights belongs to their adapter, and does not grow with pairs of tokens.
            of_experts = any(isinstance(x, Tensor) and tuple(x.shape) in self._stacks for x in args)
            kind = "attention" if name in ("bmm", "baddbmm") and not of_experts else "linear"
            self.flops[f"{direction} {kind}"] += flop_registry[func.overloadpacket](*args, **kwargs, out_val=output)


@contextlib.contextmanager
def _head_of_cuda() -> Iterator[None]:
    """Let the head believe that its operands are on CUDA: it is what asks it of rows of hidden states."""
    from torch._subclasses.fake_tensor import FakeTensor

    FakeTensor.is_cuda = property(lambda tensor: tensor.ndim == 2 and tensor.is_floating_point())  # type: ignore
    try:
        yield
    finally:
        del FakeTensor.is_cuda


@contextlib.contextmanager
def _as_untraced() -> Iterator[None]:
    """Let transformers build the masks it builds for tensors with numbers, not those of a traced graph."""
    from transformers import masking_utils

    before = getattr(masking_utils, "is_tracing", None)
    if before is None:
        yield
        return
    masking_utils.is_tracing = lambda *_: False
    try:
        yield
    finally:
        masking_utils.is_tracing = before


@contextlib.contextmanager
def _grouped_by_name() -> Iterator[None]:
    """Let transformers multiply rows by experts with its own operation: torch's takes no float32 without numbers."""
    from transformers.integrations import moe

    instead: dict[str, Any] = {"_can_use_grouped_mm": lambda *_: False}
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback_backward"):  # whose backward pass asks for numbers
        by_experts: Any = _ByExperts.apply
        instead["_grouped_mm"] = lambda rows, weight, offs: by_experts(rows.to(weight.dtype), weight, offs)
    before = {name: getattr(moe, name) for name in instead if hasattr(moe, name)}
    try:
        for name in before:
            setattr(moe, name, instead[name])
        yield
    finally:
        for name, own in before.items():
            setattr(moe, name, own)


class _ByExperts(torch.autograd.Function):
    """Rows times experts by transformers' operation, and in the backward pass as many products as its own makes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, offs)
        product: Tensor = torch.ops.transformers.grouped_mm_fallback(rows, weight, offs)
        return product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        _, weight, offs = ctx.saved_tensors
        multiply = torch.ops.transformers.grouped_mm_fallback
        multiply(grad, weight.mT, offs)  # in the place of the weights' gradient, for which there is no such operation
        return multiply(grad, weight.mT, offs), torch.empty_like(weight), None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what libraries say of a run that is none to themselves, leave random numbers alone, and be the only one.

    An adapter is made of random numbers; if making one here used any up, a run would depend on its being estimated.
    """
    import logging
    import warnings

    with _ALONE:
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(before)
