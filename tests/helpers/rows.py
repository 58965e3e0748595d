"""What training does with rows in several steps, in one call."""

from __future__ import annotations

from collections.abc import Sequence

from humanline.train.data.duplicates import DuplicateReport, Duplicates
from humanline.train.data.messages import NOTHING, Answer, Given, Messages
from humanline.train.data.render import Renderer
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.shapes import Example


def render(renderer: Renderer, prompt: Messages, completion: Answer, given: Given = NOTHING) -> TokenSequence:
    """The token ids of a prompt and its completion within the limits."""
    return renderer.limits.fit(renderer.encode(prompt, completion, given))


def duplicates_of(examples: Sequence[Example]) -> DuplicateReport:
    """The examples that repeat or contradict an earlier one."""
    found = Duplicates()
    for example in examples:
        found.add(example)
    return found.report([example.id for example in examples])
