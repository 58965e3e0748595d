"""Examples of a set that repeat or contradict earlier ones."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from humanline.train.data.shapes import Example, Group, Preference, Unpaired
from humanline.train.data.source import SHOWN


@dataclass(frozen=True, slots=True)
class DuplicateReport:
    """How many examples repeat or contradict an earlier one; the first 20 of each as (later id, earlier id)."""

    duplicates: int
    contradictions: int
    first_duplicates: tuple[tuple[str, str], ...]
    first_contradictions: tuple[tuple[str, str], ...]


class Duplicates:
    """Look for examples that repeat or contradict an earlier one, by 64 bits of each: no text is kept.

    The opposite of a labelled answer is the same answer with the other label; of a pair, the same pair swapped. For
    prompts only the prompt is compared, with what the row gives the template. Repeats of a contradiction count as
    duplicates.

    Two different examples agree in all 64 bits about once in 4e7 sets of a million; it would be a line too many in a
    report, and nothing else.
    """

    def __init__(self) -> None:
        self._contents, self._opposites = array("q"), array("q")

    def add(self, example: Example) -> None:
        """Add one more example."""
        content, opposite = _content(example)
        self._contents.append(content)
        self._opposites.append(opposite)

    def report(self, names: Sequence[str]) -> DuplicateReport:
        """Return the repeats and contradictions; `names` are those of the examples, in the order they were added."""
        import numpy as np  # a reader of rows alone needs none

        contents, opposites = (np.array(one, dtype=np.int64) for one in (self._contents, self._opposites))
        distinct, first, which = np.unique(contents, return_index=True, return_inverse=True)
        places = np.arange(len(contents))
        earlier = first[which]  # where the same content stands for the first time
        (repeats,) = np.nonzero(earlier != places)
        at = np.minimum(np.searchsorted(distinct, opposites), max(len(distinct) - 1, 0))
        opposed = (distinct[at] == opposites) & (first[at] < places) & (earlier == places)
        (against,) = np.nonzero(opposed)
        return DuplicateReport(
            len(repeats),
            len(against),
            tuple((names[i], names[earlier[i]]) for i in repeats[:SHOWN]),
            tuple((names[i], names[first[at[i]]]) for i in against[:SHOWN]),
        )


_NOTHING_ELSE = hash(())  # the content of no example


def _content(example: Example) -> tuple[int, int]:
    """Return a hash of what an example says, and of what would be its opposite."""
    prompt = hash((example.prompt, example.given))
    if isinstance(example, Preference):
        chosen, rejected = hash(example.chosen), hash(example.rejected)
        return hash((prompt, chosen, rejected)), hash((prompt, rejected, chosen))
    if isinstance(example, Unpaired):
        answer = hash(example.completion)
        opposite = _NOTHING_ELSE if example.label is None else hash((prompt, answer, not example.label))
        return hash((prompt, answer, example.label)), opposite
    if isinstance(example, Group):  # scores as text: -1.0 and -2.0 have one hash
        return hash((prompt, example.completions, tuple(map(repr, example.scores)))), _NOTHING_ELSE
    return prompt, _NOTHING_ELSE
