"""Functions of tensors, recorded once as a list of kernels that runs again without vmap, autograd or Python in between.

Where tensors are small, what decides which kernel runs takes longer than the kernels do. The kernels are the same, in
the same order and on the same numbers, so that results are too, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem, itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: From tensors to tensors.
Function = Callable[..., tuple[Tensor, ...]]
#: Kernels whose result depends on the shape of their tensors alone.
_SHAPE_ONLY = frozenset({"aten::ones_like", "aten::zeros_like", "aten::full_like", "aten::new_zeros", "aten::new_ones"})
#: Kernels that return their tensor, as long as nothing is changed in place and no gradient is taken.
_SAME = frozenset({"aten::detach", "aten::alias", "aten::lift_fresh"})


def recorded(function: Function, example: Sequence[Tensor], fixed: Sequence[Tensor] = ()) -> Function | None:
    """Return a function with the results of another, bit for bit, that runs its kernels alone.

    Parameters
    ----------
    function : callable
        From tensors to a tuple of tensors without gradient; may take gradients and use vmap inside. What else than
        tensors it reads must be the same at each call, and so must every other tensor, which `fixed` names.
    example : sequence of tensors
        Arguments to record it with.
    fixed : sequence of tensors
        What the function reads and never changes, besides its arguments and tensors that it makes from numbers.

    Returns
    -------
    callable or None
        For arguments of the shapes and types of the example; its results are not to be changed in place. None where a
        list of kernels could give other results: the function reads a number from a tensor, draws random numbers,
        changes a tensor in place, or reads a tensor that nobody named; or where the list did give others at once.
    """
    given = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in example]  # no two are one
    recorder = _Recorder(given, fixed)
    with recorder:
        found = function(*given)
    if recorder.refused or not all(recorder.knows(tensor) for tensor in found):
        return None
    replay = recorder.replay(found)
    again = replay(*given)
    same = all(_bits(one) == _bits(other) for one, other in zip(found, again, strict=True))
    return replay if same else None


def _bits(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.detach().numpy().tobytes()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keep the kernels that run inside. A value is a *slot*: an argument, a constant, or what a kernel returned."""

    def __init__(self, given: Sequence[Tensor], fixed: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refused = False
        self._values: list[Any] = []
        self._constant: list[bool] = []
        self._slots: dict[int, int] = {}
        self._kept: list[Any] = []  # as long as a tensor lives no other has its id
        self._steps: list[tuple[Callable[..., Any], tuple[int, ...], dict[str, Any], int]] = []
        self._arguments = [self._add(tensor, constant=False) for tensor in given]
        for tensor in fixed:
            self._add(tensor, constant=True)

    def knows(self, tensor: Tensor) -> bool:
        """Return whether a tensor is an argument, fixed, or was returned by a kernel that was kept."""
        return id(tensor) in self._slots

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name
        if name == "aten::lift_fresh" and not self.knows(args[0]):
            self._add(args[0], constant=True)
        if self._unfit(func, args, kwargs, result):
            self.refused = True
        elif not self.refused:
            if name in _SAME:
                self._slots[id(result)] = self._slots[id(args[0])]
                self._kept.append(result)
            else:
                self._keep(func, args, kwargs, result, shape_only=name in _SHAPE_ONLY)
        return result

    def _unfit(self, func: Any, args: Any, kwargs: Any, result: Any) -> bool:
        """Return whether a kernel may do something else at the next call, or what is not written down."""
        tags, listed = func.tags, [each for each in args if isinstance(each, list)]
        tensors = [each for each in [*args, *(one for many in listed for one in many)] if isinstance(each, Tensor)]
        return (
            func._schema.is_mutable
            or torch.Tag.nondeterministic_seeded in tags
            or torch.Tag.data_dependent_output in tags
            or (torch.Tag.dynamic_output_shape in tags and not _by_place(func, tensors))
            or any(isinstance(each, Tensor) for each in kwargs.values())
            or not all(self.knows(tensor) for tensor in tensors)
            or not all(isinstance(each, Tensor) for each in (result if isinstance(result, tuple) else (result,)))
        )

    def _keep(self, func: Any, args: Any, kwargs: Any, result: Any, *, shape_only: bool = False) -> int:
        """Write down what makes a value of others, and return its slot; what is made of constants is one."""
        slots = tuple(self._slot(each) for each in args)
        constant = shape_only or all(self._constant[slot] for slot in slots)
        made = self._add(result, constant=constant)
        if not constant:
            self._steps.append((func, slots, kwargs, made))
        if isinstance(result, tuple):
            for place, part in enumerate(result):
                self._keep_part(made, place, part)
        return made

    def _keep_part(self, whole: int, place: int, part: Tensor) -> None:
        made = self._add(part, constant=self._constant[whole])
        if not self._constant[whole]:
            self._steps.append((getitem, (whole, self._add(place, constant=True)), {}, made))

    def _slot(self, argument: Any) -> int:
        """Return the slot of an argument of a kernel; a list of tensors is made of them before."""
        if isinstance(argument, Tensor):
            return self._slots[id(argument)]
        if isinstance(argument, list) and any(isinstance(each, Tensor) for each in argument):
            return self._keep(_listed, argument, {}, argument)
        return self._add(argument, constant=True)

    def _add(self, value: Any, *, constant: bool) -> int:
        self._values.append(value if constant else None)
        self._constant.append(constant)
        self._kept.append(value)
        if isinstance(value, Tensor):
            self._slots[id(value)] = len(self._values) - 1
        return len(self._values) - 1

    def replay(self, found: Sequence[Tensor]) -> Function:
        """Return the function that runs what the results need, and frees each value after its last use."""
        results = [self._slots[id(tensor)] for tensor in found]
        needed, steps = set(results), []
        for func, slots, kwargs, slot in reversed(self._steps):
            if slot in needed:
                over = tuple(each for each in set(slots) - needed if not self._constant[each])
                needed.update(slots)
                steps.append((func, _getter(slots), kwargs, slot, over))
        steps.reverse()
        constants, arguments = list(self._values), list(self._arguments)

        @torch.no_grad()
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = list(constants)
            for slot, tensor in zip(arguments, tensors, strict=True):
                values[slot] = tensor.contiguous()
            for func, get, kwargs, slot, over in steps:
                values[slot] = func(*get(values), **kwargs)
                for each in over:
                    values[each] = None
            return tuple(values[slot] for slot in results)

        return run


def _by_place(func: Any, tensors: Sequence[Tensor]) -> bool:
    """Return whether a kernel indexes by numbers, so that what it returns has the shape of its indices."""
    return bool(func._schema.name == "aten::index" and all(each.dtype == torch.int64 for each in tensors[1:]))


def _listed(*values: Any) -> list[Any]:
    return list(values)


def _getter(slots: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: tuple(values[slot] for slot in slots)
