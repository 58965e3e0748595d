"""What an inspection of data has found, in lines for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from humanline.evaluate.drift import Drift, Probe, describe_probe, probe_as_json
from humanline.evaluate.file_facts import FileFacts, describe_facts, facts_as_json
from humanline.evaluate.levels import histogram_lines, longer_rejected, preferred_of
from humanline.evaluate.verdict import Own, Verdict, describe_verdict, judge, verdict_as_json
from humanline.train.data.levels import (
    Ints,
    Level,
    Quartiles,
    RowScores,
    deciding_part,
    estimate_as_json,
    levels_by_part,
    quarters_of,
    quartiles_of,
    told_as,
)

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found of a set.

    Attributes
    ----------
    model : str
    how : str
        Template and limits that rows were read with, and what logits were divided by if not by 1.
    facts : FileFacts
    names : tuple of str
        Of the rows that were scored.
    scores : RowScores
        Of these rows.
    labels : (R,) int array or None
        1 for desirable answers and 0 for undesirable ones, where rows have labels.
    example : str
        One row as the loss sees it.
    own : Own or None
        The model's own answers.
    probe : Probe or None
        What some steps of training did to the rows' tokens.
    """

    model: str
    how: str
    facts: FileFacts
    names: tuple[str, ...]
    scores: RowScores
    labels: Ints | None
    example: str
    own: Own | None = None
    probe: Probe | None = None

    @property
    def deciding(self) -> str:
        """Return what the level of a row is taken of."""
        return deciding_part(self.scores)

    @property
    def quartiles(self) -> Quartiles | None:
        """Return the quartiles of the rows' levels, if they exist."""
        return quartiles_of(self.scores.levels)

    @property
    def verdict(self) -> Verdict:
        """Return where the rows lie against what they are held against."""
        found = self.quartiles
        return judge(self.scores, None if found is None else found.numbers, self.own)

    def levels(self) -> dict[str, Level]:
        """Return the level of each part by its name, the deciding one last."""
        return levels_by_part(self.scores, self.labels)

    def drifts(self, probe: Probe) -> dict[str, Drift]:
        """Return what a probe did to the tokens of all rows, of their parts and of their quartiles."""
        found = self.quartiles
        return probe.drifts(None if found is None else found.numbers, self.labels)


def describe(inspection: Inspection) -> Iterator[str]:
    """Yield the lines of an inspection."""
    facts, scores = inspection.facts, inspection.scores
    yield from describe_facts(facts)
    yield inspection.example
    drawn = "" if len(scores) == facts.rows else f", drawn at random of {facts.rows}"
    prompts = len(np.unique(scores.prompts))
    yield f"model        {inspection.model}: {inspection.how}"
    yield f"level        of {len(scores)} rows{drawn} with {prompts} prompts, before any training; 95 % intervals"
    yield "             by prompt; tokens are those of the loss: end token in, prompt out"
    yield from _level_lines(inspection)
    yield from _quartile_lines(inspection)
    if len(scores.parts) == 2:
        found = preferred_of(scores)
        yield (
            f"chosen answer more probable than the rejected one: {found.whole} as whole answers, {found.per_token} "
            f"per token (mean over {prompts} prompts; ties count one half)"
        )
        yield f"rejected answers are longer than chosen ones by {told_as(longer_rejected(scores), '+.2f')} tokens"
    yield f"histogram of rows by level ({inspection.deciding}, nats per token):"
    yield from (f"  {line}" for line in histogram_lines(scores.levels))
    yield from describe_verdict(inspection.verdict, inspection.own, probed=inspection.probe is not None)
    if inspection.probe is not None:
        yield from describe_probe(inspection.probe, inspection.drifts(inspection.probe))


def _level_lines(inspection: Inspection) -> Iterator[str]:
    head = ("", "nats per token", "bits per byte", "tokens")
    rows = [head]
    for name, level in inspection.levels().items():
        bits = "no text" if level.bits_per_byte is None else told_as(level.bits_per_byte)
        decides = " (decides)" if name == inspection.deciding else ""
        rows.append((f"{name}{decides}", told_as(level.nats), bits, f"{level.tokens:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _quartile_lines(inspection: Inspection) -> Iterator[str]:
    found = quarters_of(inspection.scores)
    if not found:
        values = inspection.scores.levels
        yield (
            f"no quartiles: levels of {len(values)} rows from {values.min():.6f} to {values.max():.6f}, so few of them "
            "different that one would be empty; rows of one level share a quartile"
        )
    for number, one in enumerate(found, start=1):
        span = f"rows from {one.low:.3f} to {one.high:.3f}; {one.level.rows} rows"
        yield f"  quartile {number}  {told_as(one.level.nats)}  {span}"


def as_json(inspection: Inspection) -> dict[str, Any]:
    """Return an inspection as JSON can say it; numbers that are not known are null."""
    scores, quarters = inspection.scores, quarters_of(inspection.scores)
    tree: dict[str, Any] = {
        "format": FORMAT,
        "model": inspection.model,
        "how": inspection.how,
        "file": facts_as_json(inspection.facts),
        "rows": len(scores),
        "prompts": len(np.unique(scores.prompts)),
        "decides": inspection.deciding,
        "levels": {name: _level(level) for name, level in inspection.levels().items()},
        "quartiles": [_level(one.level) | {"from": one.low, "to": one.high} for one in quarters] or None,
        "verdict": verdict_as_json(inspection.verdict, inspection.own),
    }
    if inspection.probe is not None:
        tree["probe"] = probe_as_json(inspection.probe, inspection.drifts(inspection.probe))
    if len(scores.parts) == 2:
        preferred = preferred_of(scores)
        tree["chosen_more_probable"] = {"whole": asdict(preferred.whole), "per_token": asdict(preferred.per_token)}
        tree["rejected_longer_by_tokens"] = estimate_as_json(longer_rejected(scores))
    return tree


def _level(level: Level) -> dict[str, Any]:
    bits = None if level.bits_per_byte is None else estimate_as_json(level.bits_per_byte)
    nats = estimate_as_json(level.nats)
    return {"nats_per_token": nats, "bits_per_byte": bits, "rows": level.rows, "tokens": level.tokens}
