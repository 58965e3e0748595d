"""Passes of modules that stand in the place of their own, and can be switched off for a while."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import nn


class Switched(ABC):
    """A pass that stands in the place of a module's own, and calls that while it is not `on`.

    Parameters
    ----------
    own : callable
        The `forward` that was there before.
    """

    def __init__(self, own: Callable[..., Any]) -> None:
        functools.update_wrapper(self, own)  # transformers looks at what a module takes
        self.own, self.on = own, True

    @abstractmethod
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Take what the module takes, and return what it returns."""


_Kind = TypeVar("_Kind", bound=Switched)


def switched_in(model: nn.Module, kind: type[_Kind]) -> list[_Kind]:
    """Return the passes of a kind that a model's modules have."""
    return [one for module in model.modules() if isinstance(one := vars(module).get("forward"), kind)]


@contextlib.contextmanager
def switched_off(model: nn.Module, kind: type[Switched]) -> Iterator[None]:
    """Let a model's modules do without the passes of a kind for as long as the context lasts."""
    switched = switched_in(model, kind)
    try:
        for one in switched:
            one.on = False
        yield
    finally:
        for one in switched:
            one.on = True
