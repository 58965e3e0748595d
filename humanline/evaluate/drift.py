"""What some steps of training do to the tokens of rows: how far their log-ratios drift, and how many are clipped.

All of it is arithmetic on sums over tokens; `probe.py` trains and counts them. A token counts once for each step that
its row was in, as it does in the metrics of these steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.stats import Estimate, ratio_estimate
from humanline.train.data.levels import Floats, Ints, estimate_as_json, told_as

#: Marks of a transform.
ACTS = {
    "none": (),
    "clip": ("clipped_low", "clipped_high"),
    "beta_rejection": ("detached",),
    "function": ("transformed",),
}


@dataclass(frozen=True, slots=True, eq=False)
class TokenSums:
    """Sums over the tokens of R rows with A answers each, over some steps.

    Parameters
    ----------
    prompts : (R,) int array
        Equal where rows share a prompt.
    tokens : (R, A) int array
        Tokens in the losses; 0 where a row was in no step.
    sums, sizes : (R, A) float arrays
        Of their untransformed log-ratios, policy against reference, and of these without their sign; nats.
    marks : mapping of str to (R, A) int array
        By name how many of them the transform has acted on.
    """

    prompts: Ints
    tokens: Ints
    sums: Floats
    sizes: Floats
    marks: Mapping[str, Ints]

    def take(self, rows: NDArray[np.bool_]) -> TokenSums:
        """Return the rows that a mask (R,) marks."""
        marks = {name: counts[rows] for name, counts in self.marks.items()}
        return TokenSums(self.prompts[rows], self.tokens[rows], self.sums[rows], self.sizes[rows], marks)

    def part(self, answer: int) -> TokenSums:
        """Return one answer of each row."""
        only = slice(answer, answer + 1)
        marks = {name: counts[:, only] for name, counts in self.marks.items()}
        return TokenSums(self.prompts, self.tokens[:, only], self.sums[:, only], self.sizes[:, only], marks)


@dataclass(frozen=True, slots=True)
class Drift:
    """What became of the tokens of a set of rows.

    Attributes
    ----------
    rows, seen, tokens : int
        Rows, how many of them were in a step, and their tokens there.
    mean, size : Estimate or None
        Of log-ratios, and of log-ratios without their sign, nats, clustered by prompt; None where no row was in a step.
    share : Estimate or None
        Of the tokens that the transform acted on.
    counts : dict of str to int
        These tokens, by what was done to them.
    """

    rows: int
    seen: int
    tokens: int
    mean: Estimate | None
    size: Estimate | None
    share: Estimate | None
    counts: dict[str, int]

    @property
    def acted(self) -> int:
        """Return how many tokens the transform acted on."""
        return sum(self.counts.values())


def drift_of(tokens: TokenSums, kind: str) -> Drift:
    """Return what became of the tokens of rows under a transform of a kind (`ACTS`)."""
    per_row = tokens.tokens.sum(1)
    seen = per_row > 0
    marks = {name: tokens.marks[name].sum(1)[seen] for name in ACTS[kind]}
    counts = {name: int(one.sum()) for name, one in marks.items()}
    if not seen.any():
        return Drift(len(seen), 0, 0, None, None, None, counts)
    own, clusters = per_row[seen], tokens.prompts[seen].tolist()

    def mean_of(sums: Floats | Ints) -> Estimate:
        return ratio_estimate(sums, own, clusters)

    acted = np.sum([*marks.values(), np.zeros(len(own), dtype=np.int64)], axis=0)
    means = mean_of(tokens.sums.sum(1)[seen]), mean_of(tokens.sizes.sum(1)[seen])
    return Drift(len(seen), int(seen.sum()), int(own.sum()), *means, mean_of(acted), counts)


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """What a few steps of training did to the tokens of a set.

    Attributes
    ----------
    steps, of_steps : int
        Taken, and of the whole run.
    kind : {"none", "clip", "beta_rejection", "function"}
        Of the transform.
    how : tuple of str
        Lines that say what was trained, with what, and what was switched off.
    parts : tuple of str
        Of a row: ("chosen", "rejected"), or ("answer",).
    tokens : TokenSums
        Of all rows of the set.
    scored : (S,) int array
        Which of these rows have a level.
    still : tuple of int
        Steps in which the reference was the policy itself, so that log-ratios are 0, but for dropout.
    by_step : tuple of dict
        Of each step its `step` from 0 on, its `tokens`, how many of them have which mark, and the `log_ratio_size`:
        the mean of log-ratios without their sign.
    broke : str or None
        How the run seems to have broken, in words.
    """

    steps: int
    of_steps: int
    kind: str
    how: tuple[str, ...]
    parts: tuple[str, ...]
    tokens: TokenSums
    scored: Ints
    still: tuple[int, ...]
    by_step: tuple[dict[str, float], ...]
    broke: str | None

    def drifts(self, numbers: Ints | None, labels: Ints | None) -> dict[str, Drift]:
        """Return what became of all rows, of each part or label, of each quartile, and of rows without a level.

        Parameters
        ----------
        numbers : (S,) int array or None
            The quartile, from 1 on, of each row that has a level; None where there are no quartiles.
        labels : (S,) int array or None
            1 for desirable answers and 0 for undesirable ones.
        """
        tokens = self.tokens
        groups = {"all": tokens}
        if len(self.parts) > 1:
            groups |= {name: tokens.part(answer) for answer, name in enumerate(self.parts)}
        of_scored = [("desirable", labels, 1), ("undesirable", labels, 0)]
        of_scored += [(f"quartile {number}", numbers, number) for number in (1, 2, 3, 4)]
        for name, values, value in of_scored:
            if values is not None:
                groups[name] = tokens.take(self._marked(values == value))
        if len(self.scored) < len(tokens.prompts):
            groups[_UNSCORED] = tokens.take(~self._marked(np.ones(len(self.scored), dtype=np.bool_)))
        return {name: drift_of(one, self.kind) for name, one in groups.items()}

    def _marked(self, own: NDArray[np.bool_]) -> NDArray[np.bool_]:
        marked = np.zeros(len(self.tokens.prompts), dtype=np.bool_)
        marked[self.scored[own]] = True
        return marked


def describe_probe(probe: Probe, drifts: Mapping[str, Drift]) -> Iterator[str]:
    """Yield the lines of a probe, with what its numbers do not say."""
    whole = drifts["all"]
    yield f"probe        {probe.steps} of the run's {probe.of_steps} steps, on a copy of the model that is thrown away"
    yield from (f"  {line}" for line in probe.how)
    yield f"  {whole.seen} of {whole.rows} rows were in these steps, {whole.rows - whole.seen} in none"
    if probe.still:
        own = [one for one in probe.by_step if one["step"] in probe.still]
        tokens, moved = sum(one["tokens"] for one in own), any(one["log_ratio_size"] for one in own)
        named = ", ".join(map(str, probe.still[:_SHOWN])) + (", ..." if len(probe.still) > _SHOWN else "")
        yield (
            f"  in {len(probe.still)} of the steps (counted from 0: {named}) the reference is the policy itself, so "
            f"that log-ratios are 0 there{', but for dropout' if moved else ''}: {tokens:,} of {whole.tokens:,} "
            "tokens, which are in all numbers below"
        )
    yield from (f"  {line}" for line in _table(probe.kind, drifts))
    yield "  log-ratios are policy against reference, before the transform, nats a token; 95 % intervals by prompt, of"
    yield "  these steps: another order of the data, or a later step, is not in them"
    if _UNSCORED in drifts:
        yield f"  rows {_UNSCORED} were trained on and not scored (--rows)"
    if probe.kind == "none":
        yield "  nothing is clipped by this recipe, which has no transform"
    elif not whole.acted:
        yield f"  no token was {_done(probe.kind)} in these steps; log-ratios may go further later in the run"
    if whole.size is not None and not whole.size.mean:
        yield "  every log-ratio is exactly 0: these steps have not moved the policy (optimizer.lr, warm-up)"
    if probe.broke is not None:
        yield f"  {probe.broke}"


def _table(kind: str, drifts: Mapping[str, Drift]) -> Iterator[str]:
    head = ["", "log-ratio", "absolute", *([_done(kind), *map(_short, ACTS[kind])] if ACTS[kind] else [])]
    rows = [[*head, "tokens", "rows"]]
    for name, one in drifts.items():
        cells = ["-" if value is None else told_as(value, form) for value, form in _values(one)]
        acts = [_percent(one), *(f"{count:,}" for count in one.counts.values())] if ACTS[kind] else []
        rows.append([name, *cells, *acts, f"{one.tokens:,}", f"{one.seen} of {one.rows}"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _values(one: Drift) -> tuple[tuple[Estimate | None, str], tuple[Estimate | None, str]]:
    return (one.mean, "+.4f"), (one.size, ".4f")


def _percent(one: Drift) -> str:
    """Return the share of tokens that the transform acted on, and its interval."""
    if one.share is None:
        return "-"
    tree = _share_as_json(one, one.share)
    low, high = tree["low"], tree["high"]
    known = "" if low is None or high is None else f" ({100 * low:.2f} to {100 * high:.2f})"
    return f"{100 * one.share.mean:.2f} %{known}"


def _share_as_json(one: Drift, share: Estimate) -> dict[str, float | None]:
    """Return a share, with bounds from 0 to 1; where it is none or all of the tokens, nothing tells its error."""
    tree = estimate_as_json(share)
    if one.acted in (0, one.tokens):
        return tree | dict.fromkeys(("se", "low", "high"))
    bounds = {name: value for name in ("low", "high") if (value := tree[name]) is not None}
    return tree | {name: min(1.0, max(0.0, value)) for name, value in bounds.items()}


def _done(kind: str) -> str:
    return {"clip": "clipped", "beta_rejection": "detached", "function": "changed", "none": "clipped"}[kind]


def _short(mark: str) -> str:
    return {"detached": "count", "transformed": "count"}.get(mark, mark.removeprefix("clipped_"))


def probe_as_json(probe: Probe, drifts: Mapping[str, Drift]) -> dict[str, Any]:
    """Return a probe as JSON can say it; numbers that are not known are null."""
    return {
        "steps": probe.steps,
        "of_steps": probe.of_steps,
        "transform": probe.kind,
        "how": list(probe.how),
        "still_steps": list(probe.still),
        "drift": {name: _as_json(one) for name, one in drifts.items()},
        "by_step": list(probe.by_step),
        "broke": probe.broke,
    }


def _as_json(one: Drift) -> dict[str, Any]:
    means = {"log_ratio": one.mean, "log_ratio_size": one.size}
    tree = {name: None if value is None else estimate_as_json(value) for name, value in means.items()}
    share = None if one.share is None else _share_as_json(one, one.share)
    counts = {"rows": one.rows, "seen": one.seen, "tokens": one.tokens, "acted": one.acted, **one.counts}
    return {**counts, **tree, "share": share}


_SHOWN = 6
_UNSCORED = "without level"
