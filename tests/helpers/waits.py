"""What would make the host wait for a GPU, or fail on one, counted on a CPU over real steps of training.

A CPU has no device of its own, so that nothing shows there by itself. Here the weights, what `to_device` returns and
what is made on a device that is named belong to the device, and so does all that is computed of these; the rest belongs
to the host. Counted is what asks the device for a number, or for a size that depends on numbers, and what gives it
numbers from memory that is not pinned. Where one operation is given tensors of both sides it is said too: on a GPU it
fails.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from humanline.train.data import transfer

aten = torch.ops.aten
_ASKS = {  # whatever the arguments: a number, or a size that depends on numbers
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
}
_INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# What operations do not show: a list made of a tensor, a copy that is none on a CPU, the name of a device.
_TAKES = ("tolist", "cpu", "numpy", "__array__")  # methods of tensors, to the host
_GIVES = ("tensor", "as_tensor", "asarray")  # functions of torch
_MAKES = ("zeros", "ones", "full", "empty", "arange", "rand", "randn")


class Waits:
    """Count waits for as long as the context lasts.

    Attributes
    ----------
    seen : list of str
        Of each wait what waits, and where.
    mixed : list of str
        Of each operation on tensors of both sides the same.
    """

    def __init__(self, of_device: Iterable[Tensor]) -> None:
        self.seen: list[str] = []
        self.mixed: list[str] = []
        self._storages: dict[int, StorageWeakRef] = {}
        for tensor in of_device:
            self.mark(tensor)

    def mark(self, value: Any) -> Any:
        """Take the tensors in a value for some of the device's."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                ref = StorageWeakRef(tensor.untyped_storage())
                self._storages[ref.cdata] = ref  # which keeps its number from being given to another one
        return value

    def marked(self, tensor: Any) -> bool:
        """Return whether something is a tensor of the device."""
        return isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata in self._storages

    def __enter__(self) -> Waits:
        self._stack = ExitStack()
        original = transfer.to_device

        def to_device(tensor: Tensor, device: torch.device) -> Tensor:
            return self.mark(tensor if self.marked(tensor) else tensor.clone())

        for name, module in list(sys.modules.items()):
            if name.startswith("humanline.") and getattr(module, "to_device", None) is original:
                self._stack.enter_context(patch.object(module, "to_device", to_device))
        self._stack.enter_context(_Operations(self))
        for name in _TAKES:
            self._stack.enter_context(patch.object(Tensor, name, self._taking(name)))
        for name in _GIVES + _MAKES:
            self._stack.enter_context(patch.object(torch, name, self._making(name)))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _taking(self, name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        def take(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not self.marked(tensor):
                return method(tensor, *args, **kwargs)
            self.seen.append(_here(name))
            if name != "cpu":
                return method(tensor, *args, **kwargs)
            with _disable_current_modes():  # else the copy would be the device's
                return tensor.detach().clone()

        return take

    def _making(self, name: str) -> Callable[..., Any]:
        function = getattr(torch, name)

        def make(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") is None:
                return function(*args, **kwargs)
            if name in _GIVES and not self.marked(args[0]):
                self.seen.append(_here(name))
            return self.mark(function(*args, **kwargs))

        return make


def _here(name: str) -> str:
    ours = [f for f in traceback.extract_stack() if "/humanline/" in f.filename]
    last = ours[-1] if ours else traceback.extract_stack()[-4]
    return f"{name} at {last.filename.rpartition('/humanline/')[2]}:{last.lineno} in {last.name}: {last.line}"


class _Operations(TorchDispatchMode):
    """Sees every operation, also those of backward passes."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, waits = kwargs or {}, self.waits
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        own = [tensor for tensor in tensors if waits.marked(tensor)]
        if own:
            masks = [one for one in tree_leaves(args[1:2]) if isinstance(one, Tensor) and one.dtype == torch.bool]
            sized = func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
            if func in _ASKS or (func in _INDEXES and masks) or sized:
                waits.seen.append(_here(str(func)))
            elif any(tensor.ndim for tensor in tensors if not waits.marked(tensor)):
                waits.mixed.append(_here(str(func)))
        output = func(*args, **kwargs)
        if own and func is not aten._local_scalar_dense.default:
            waits.mark(output)
        return output
