"""Passes of a policy that the main process asks for while it talks to a server, and that all processes make with it.

Where a policy is shared out every pass is a collective, but only the main process knows which texts it needs, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from humanline.train.online.samplers.proof import Text, Values
from humanline.train.run.processes import Processes

Logprobs: TypeAlias = Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class Said:
    """What a policy says of texts: log-probabilities of the tokens that count, nats, by the text's name.

    Parameters
    ----------
    policy : mapping of name to array
    rounded : mapping of name to array, optional
        With the policy's weights rounded to bf16; None where they, or what it computes in, are narrow already.
    """

    policy: Logprobs
    rounded: Logprobs | None


class AskedPasses:
    """Let the main process ask for what the policy says of texts, in the middle of what it does alone.

    Parameters
    ----------
    processes : Processes
    compute : callable
        Makes the passes, which are collectives where the policy is shared out.
    shared : bool
        Whether it is.
    """

    def __init__(self, processes: Processes, compute: Callable[[Mapping[str, Text]], Said], *, shared: bool) -> None:
        self.processes, self.compute = processes, compute
        self._followed = shared and processes.ranks > 1
        self._within_pass = False

    def __call__(self, texts: Mapping[str, Text]) -> Said:
        """Return what the policy says of texts; for the main process, within `on_main`."""
        if self._followed and texts:
            self.processes.told_by_main(_numbers(texts))
        self._within_pass = True
        said = self.compute(texts)
        self._within_pass = False
        return said

    def on_main(self, act: Callable[[], None]) -> None:
        """Run `act` in the main process, which may ask for passes; all processes call this, and make them too.

        Raises
        ------
        Exception
            As `Processes.on_main` does. What a pass raises, in its process alone.
        """
        if not self._followed:
            self.processes.on_main(act)
        elif self.processes.rank == 0:
            error = self._lead(act)
            self.processes.on_main(lambda: _raise(error))
        else:
            while texts := _texts(self.processes.told_by_main([])):
                self.compute(texts)
            self.processes.on_main(lambda: None)

    def _lead(self, act: Callable[[], None]) -> Exception | None:
        """Run `act` and tell the others that it is over; return what it raised."""
        error = None
        try:
            act()
        except Exception as raised:
            if self._within_pass:  # where the others are too, and hear nothing
                raise
            error = raised
        self.processes.told_by_main([])
        return error


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _numbers(texts: Mapping[str, Text]) -> list[int]:
    """Return texts as numbers: of each its length, where it begins to count, and its ids."""
    return [number for text in texts.values() for number in (len(text.ids), text.start, *text.ids)]


def _texts(numbers: list[int]) -> dict[str, Text]:
    """Return the texts of `_numbers`, under names of their own."""
    texts: dict[str, Text] = {}
    left = iter(numbers)
    for length in left:
        start = next(left)
        texts[str(len(texts))] = Text(tuple(islice(left, length)), start)
    return texts
