"""One example of a run, printed as the loss sees it: its text with what counts marked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from humanline.system.terminal import shorten, visible
from humanline.train.config import TrainConfig

if TYPE_CHECKING:
    from rich.console import Console

    from humanline.train.data.batch import Unit
    from humanline.train.data.render import Renderer
    from humanline.train.data.run_data import RunData
    from humanline.train.data.sequences import TokenSequence


def shown_unit(data: RunData) -> Unit:
    """Return the first unit of training; in rounds, the first prompt."""
    from humanline.train.data.batch import Unit
    from humanline.train.data.sequences import TokenSequence

    if not data.contexts:
        return data.sets.train[0]
    first = data.contexts[0]
    return Unit(first.id, (TokenSequence(first.ids, len(first.ids)),))


def show_example(console: Console, config: TrainConfig, unit: Unit, renderer: Renderer) -> None:
    """Print the text of a unit with what counts in the loss marked: by colour, or between marks the text lacks."""
    from rich.text import Text

    colour = console.is_terminal and not console.no_color and console.color_system is not None
    parts = [_parts(renderer, sequence) for sequence in unit.sequences]
    whole = "".join(text for one in parts for text, _ in one)
    opening, closing = next(m for m in ("«»", "⟦⟧", "⸢⸥", "⁅⁆", "┫┣") if not set(m) & set(whole) or m == "┫┣")
    legend = "green" if colour else f"between {opening} and {closing}"
    console.print(Text(f"example      {visible(unit.id)}; what counts in the loss is {legend}:"))
    seen = None
    for name, sequence, runs in zip(_names(config, unit), unit.sequences, parts, strict=True):
        prompt = sequence.ids[: sequence.prompt_length]
        counted = sequence.learned
        cut = ", cut at max_length" if sequence.truncated else ""
        console.print(Text(f"  {name}: {len(sequence.ids)} tokens, {counted} in the loss{cut}"))
        shown = Text()
        for index, (text, counts) in enumerate(runs):
            if index == 0 and not counts and prompt == seen:
                shown.append("[the same prompt] ", style="dim")
                continue
            text = visible(shorten(text), keep="\n\t").replace("\t", "    ")
            marked = text if colour or not counts else f"{opening}{text}{closing}"
            shown.append(marked, style="green" if colour and counts else "")
        for line in shown.split("\n", allow_blank=True):
            console.print(Text("  | ") + line)
        seen = prompt


def _names(config: TrainConfig, unit: Unit) -> list[str]:
    if not unit.tokens:
        return ["prompt"]
    if config.objective.unit == "pair":
        return ["chosen", "rejected"]
    if unit.scores:
        return [f"answer with score {score:g}" for score in unit.scores]
    if config.objective.unit == "example":
        return ["desirable" if unit.desirable else "undesirable"]
    return ["answer"] * len(unit.sequences)


def _parts(renderer: Renderer, sequence: TokenSequence) -> list[tuple[str, bool]]:
    """Return the text of a sequence in runs of tokens that count in the loss, or do not."""
    parts, end, before = [], 0, ""
    for counts, run in groupby(sequence.mask):
        start, end = end, end + len(list(run))
        so_far = _text(renderer, sequence.ids[:end])
        # A decoder may treat the first token of a text in its own way, so the run is what the text grows by.
        grown = so_far[len(before) :] if so_far.startswith(before) else _text(renderer, sequence.ids[start:end])
        parts.append((grown, counts))
        before = so_far
    return parts


def _text(renderer: Renderer, ids: Sequence[int]) -> str:
    text: Any = renderer.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return str(text)
