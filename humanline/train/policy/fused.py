"""Norms, rotary embeddings and gated activations of a model's layers by fused kernels: liger-kernel, an optional extra.

Between two matrix products a model's own code reads and writes its activations a dozen times; a fused kernel does so
once. Written for version 0.8.5 (https://github.com/linkedin/Liger-Kernel). Of that package its functions are taken, and
put into the modules of one model: its own way to apply itself changes the classes of transformers, and with them every
other model of the process. Its losses have no place for what happens to single tokens here. What it computes is not
taken on trust: `check_fused` compares it with the model's own code before a run begins.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from humanline.system.install import install
from humanline.train.policy.errors import ModelError
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.switched import Switched, switched_in, switched_off

# What the norm of a kind of model adds to its weights, and where it rounds, in the words of the package.
_NORMS = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), (0.0, "llama"))
_NORMS |= dict.fromkeys(("gemma", "gemma2"), (1.0, "gemma"))
_GATES = {"silu": "liger_swiglu", "gelu_pytorch_tanh": "liger_geglu"}
_ROTARY = "apply_rotary_pos_emb"  # under this name attention in transformers calls what rotates queries and keys


def refuse_missing_kernels(layers: str, device: torch.device) -> None:
    """Raise ModelError if `training.layers` names kernels that are not installed, or do not run on the device."""
    if layers == "plain":
        return
    if device.type != "cuda":
        raise ModelError(
            f"training.layers: liger has kernels for GPUs alone, and this run would train on {device.type}: set "
            "training.layers: plain"
        )
    _functions()


def refuse_unfusable(outline: Any) -> None:
    """Raise ModelError if fused kernels are not known to compute what a model's layers do; it may be an outline."""
    _replacements(outline, dict.fromkeys(("liger_rms_norm", "liger_rope", *_GATES.values()), _nothing))


def fuse(model: Any) -> None:
    """Let the layers of a model compute with fused kernels; its weights, and other models, are left as they are.

    Raises
    ------
    ModelError
        If the package cannot be imported, or as `refuse_unfusable` does.
    """
    for module, forward in _replacements(model, _functions()):
        vars(module)["forward"] = _Fused(module.forward, forward)


def check_fused(policy: LogprobModel, ids: Sequence[int], *, gradient: bool) -> None:
    """Compare a policy of fused layers with itself and with its plain layers, on a few tokens.

    Nothing is done where no layer is fused.

    Parameters
    ----------
    policy : LogprobModel
    ids : sequence of at least 2 token ids
    gradient : bool
        Whether the gradient at the first layer's input is compared too, which takes a backward pass.

    Raises
    ------
    ModelError
        If log-probabilities with and without gradient are not the same bits, or are farther from those of plain layers
        than rounding takes them: 32 roundings of the standard deviation of the logits, two of the largest, and a
        thousandth of that deviation; or if the gradients differ by more than 32 roundings of their norm (a
        thousandth in float32).
    """
    if not switched_in(policy.model, _Fused):
        return
    input_ids = torch.tensor([list(ids)], device=policy.model.device)
    mask = torch.ones((1, len(ids) - 1), dtype=torch.bool, device=input_ids.device)
    with torch.no_grad():
        scored = policy(input_ids, mask)
        with switched_off(policy.model, _Fused):
            logits, plain = policy.own_logits(input_ids), policy(input_ids, mask)
    trained, own = _with_gradient(policy, input_ids, mask, gradient)
    eps, deviation = torch.finfo(logits.dtype).eps, logits.float().std().item()
    allowed = (32 * eps + 1e-3) * deviation + 2 * eps * logits.abs().max().item() + 1e-5
    if not (gap := (scored - plain).abs().max().item()) <= allowed:
        raise ModelError(_fault(f"change log-probabilities by {gap:.3g} nats, where rounding may by {allowed:.3g}"))
    if not torch.equal(scored, trained):
        raise ModelError(
            _fault("give other log-probabilities with gradient than without, so that no log-ratio would be 0")
        )
    if own is None:
        return
    with switched_off(policy.model, _Fused):
        right = _with_gradient(policy, input_ids, mask, gradient)[1]
    assert right is not None
    share = ((own - right).norm() / right.norm()).item()
    if not share <= max(32 * eps, 1e-3):
        raise ModelError(_fault(f"change the gradient by {share:.3g} of its norm"))


def _with_gradient(
    policy: LogprobModel, input_ids: Tensor, mask: Tensor, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities of a pass with gradient, and if asked for that of their sum at the embeddings."""
    leaves: list[Tensor] = []

    def cut(_: Any, __: Any, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[0]

    hook = policy.model.get_input_embeddings().register_forward_hook(cut)
    try:
        with torch.enable_grad():
            logprobs = policy(input_ids, mask)
            found = torch.autograd.grad(logprobs.sum(), leaves[0])[0].float() if gradient else None
    finally:
        hook.remove()
    return logprobs.detach(), found


def _fault(what: str) -> str:
    return f"training.layers: liger: on this device its kernels {what}; set training.layers: plain"


class _Fused(Switched):
    """The pass of a module by a fused kernel; by its own code while it is switched off."""

    def __init__(self, own: Callable[..., Any], fused: Callable[..., Any]) -> None:
        super().__init__(own)
        self.fused = fused

    def __call__(self, *args: Any, **options: Any) -> Any:
        return (self.fused if self.on else self.own)(*args, **options)


_Functions = dict[str, Callable[..., Any]]


def _functions() -> _Functions:
    """Return the functions of the package."""
    try:
        found = importlib.import_module("liger_kernel.transformers.functional")
        return {name: getattr(found, name) for name in ("liger_rms_norm", "liger_rope", *_GATES.values())}
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"training.layers: liger needs the packages liger-kernel and triton ({install('kernels')}), or "
            f"set training.layers: plain, which needs neither ({error})"
        ) from error


def _nothing(*_: Any) -> None:
    """Stand in for a kernel where nothing is computed."""


def _replacements(model: Any, functions: _Functions) -> list[tuple[nn.Module, Callable[..., Any]]]:
    """Return the modules that have a fused pass, with it."""
    settings = model.config.get_text_config()
    kind, gate = settings.model_type, getattr(settings, "hidden_activation", None) or settings.hidden_act
    if kind not in _NORMS or gate not in _GATES:
        raise ModelError(
            f"training.layers: liger knows layers of {', '.join(_NORMS)} with {' or '.join(_GATES)}, and not of {kind} "
            f"with {gate}: set training.layers: plain"
        )
    found: dict[str, list[tuple[nn.Module, Callable[..., Any]]]] = {"RMSNorm": [], "MLP": [], "Attention": []}
    turned: dict[Any, FunctionType] = {}  # by class
    for module in model.get_decoder().modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            norm = functools.partial(_norm, functions["liger_rms_norm"], *_NORMS[kind])
            found["RMSNorm"].append((module, functools.partial(norm, module)))
        elif name.endswith("MLP"):
            found["MLP"].append((module, functools.partial(_gated, functions[_GATES[gate]], module)))
        elif name.endswith("Attention") and _ROTARY in _own_pass(type(module)).__code__.co_names:
            turned.setdefault(type(module), _with_rotary(functions["liger_rope"], type(module)))
            found["Attention"].append((module, MethodType(turned[type(module)], module)))
    if missing := [name for name, places in found.items() if not places]:
        raise ModelError(
            f"training.layers: liger: {type(model).__name__} has no {' and no '.join(missing)} in the form that this "
            "version of transformers is known by: set training.layers: plain"
        )
    return [place for places in found.values() for place in places]


def _norm(kernel: Callable[..., Tensor], plus: float, rounds: str, module: Any, hidden: Tensor) -> Tensor:
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return kernel(hidden, module.weight, eps, plus, rounds, False)  # not in place: others read this gradient too


def _gated(kernel: Callable[..., Tensor], module: Any, hidden: Tensor) -> Tensor:
    down: Tensor = module.down_proj(kernel(module.gate_proj(hidden), module.up_proj(hidden)))
    return down


def _own_pass(kind: type[nn.Module]) -> Any:
    """Return a class's pass without what transformers has wrapped around it, as for arguments that it has renamed."""
    return inspect.unwrap(kind.forward)


def _with_rotary(rotary: Callable[..., Any], kind: type[nn.Module]) -> FunctionType:
    """Return the pass of a class of attention, in which a name of its file stands for another function."""
    own = _own_pass(kind)
    other = FunctionType(own.__code__, {**own.__globals__, _ROTARY: rotary}, own.__name__, own.__defaults__, None)
    other.__kwdefaults__ = own.__kwdefaults__
    return other
