"""What can be said of a set of rows without a model: lengths, cuts, repeats, contradictions, ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from humanline.evaluate.score_rows import key_of
from humanline.train.data.sets import Report
from humanline.train.data.units import SIDES, Units

_END = 4  # tokens at the end of an answer among which its end token is: templates write a line end behind it
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The facts about a set.

    Attributes
    ----------
    report : Report
        What became of its rows: cut, left out, repeated, contradicted.
    rows : int
        That are kept.
    without_end : int
        Answers whose last tokens hold no special token, so that a model does not learn to end them.
    on_both_sides : tuple of (str, str)
        Rows of a chosen answer, and rows that have the same answer to the same prompt as the rejected one.
    """

    report: Report
    rows: int
    without_end: int
    on_both_sides: tuple[tuple[str, str], ...]


def facts_of(units: Units, report: Report, tokenizer: Any) -> FileFacts:
    """Look through the rows of a set."""
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= {tokenizer.eos_token_id}
    without_end, chosen, rejected = 0, dict[str, str](), dict[str, str]()
    for row in range(len(units.sequences)):
        prompt, answers = units.sequences.prompt_length(row), units.sequences.ids(row)
        for side, ids in enumerate(answers):
            without_end += special.isdisjoint(ids[max(prompt, len(ids) - _END) :].tolist())
            if len(answers) == len(SIDES):
                (chosen, rejected)[side].setdefault(key_of(ids, prompt), units.names[row])
    both = tuple((name, rejected[key]) for key, name in chosen.items() if key in rejected)
    return FileFacts(report, len(units.sequences), without_end, both)


def describe_facts(facts: FileFacts) -> Iterator[str]:
    """Yield the lines of what was found; counts of nothing are said too, since they were looked for."""
    lengths, repeats = facts.report.lengths, facts.report.duplicates
    yield f"file         {facts.report.path}: {lengths}"
    if facts.report.bad_rows:
        yield f"  {facts.report.bad_rows}"
    if facts.report.note:
        yield f"  {facts.report.note}"
    columns = facts.report.columns
    if columns is not None and (columns.ignored or columns.nowhere):
        yield f"  columns {columns}"
    yield (
        f"  {lengths.truncated} truncated, {repeats.duplicates} duplicates, "
        f"{repeats.contradictions} contradictions, {lengths.dropped_identical} identical answers, "
        f"{lengths.dropped_empty_completion} empty answers, {facts.without_end} answers without an end token, "
        f"{len(facts.on_both_sides)} answers chosen here and rejected there"
    )
    for what, found in (
        ("repeats", repeats.first_duplicates),
        ("contradicts", repeats.first_contradictions),
    ):
        for later, earlier in found[:_SHOWN]:
            yield f"  {later} {what} {earlier}"
    for better, worse in facts.on_both_sides[:_SHOWN]:
        yield f"  {better} has chosen what {worse} has rejected, of the same prompt"


def facts_as_json(facts: FileFacts) -> dict[str, Any]:
    """Return the facts as JSON can say them."""
    from dataclasses import asdict

    return {
        "path": facts.report.path,
        "rows": facts.rows,
        "prompts": facts.report.prompts,
        "lengths": asdict(facts.report.lengths),
        "bad_rows": asdict(facts.report.bad_rows) if facts.report.bad_rows else None,
        "columns": asdict(facts.report.columns) if facts.report.columns else None,
        "note": facts.report.note,
        "duplicates": facts.report.duplicates.duplicates,
        "contradictions": facts.report.duplicates.contradictions,
        "without_end": facts.without_end,
        "on_both_sides": [list(one) for one in facts.on_both_sides],
    }
