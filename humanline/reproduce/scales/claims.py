"""What the runs of a plan say of the paper's claims, in the rows in which testbeds say it (`paper.PaperRow`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from humanline.reproduce.paper import ALPHA, MARGIN_SHARE, PaperRow, p_values, verdicts
from humanline.reproduce.paper_claims import CLAIMS, PaperClaim
from humanline.reproduce.scales.plan import Asked, Scale, stem
from humanline.reproduce.scales.read import Found, Values
from humanline.stats import crossed_estimate

_Array = NDArray[np.float64]
_FOLDS = 2


@dataclass(frozen=True, slots=True)
class _Side:
    """The runs of one kind: values of items by seeds, and how often they clip."""

    values: _Array
    lengths: _Array
    clipped: float


def scale_rows(scale: Scale, found: Mapping[str, Found]) -> list[PaperRow]:
    """Return what the runs of a plan say of every claim of the paper.

    Of several stems on a side the best by score on half of the prompts is taken for the other half, and the other way
    about, so that no run is chosen by what it is compared with. Differences are paired by prompt; over several seeds
    prompts are crossed with seeds (`humanline.stats.crossed_estimate`), and with one they hold for these runs alone.
    Alike means within 10 % of what online runs gain on the start model, or, in a plan without any, of what the second
    side does. Verdicts and Holm's correction are those of `humanline.reproduce.paper.paper_rows`.

    Parameters
    ----------
    scale : Scale
    found : mapping of str to Found
        Of every run, and of the starts, by name (`read.read_found`).
    """
    by_stem: dict[str, dict[str, Found]] = {}
    for name, one in found.items():
        by_stem.setdefault(stem(name), {})[name] = one
    asked = {(one.says, one.objective): one for one in scale.asked}
    rows = []
    for claim in CLAIMS:
        mine = []
        for objective, number in claim.numbers.items():
            row = PaperRow(scale.name, claim.where, claim.says, objective, number, "not run")
            row = replace(row, kind=claim.kind, of=claim.of, exact=claim.exact)
            plan = asked.get((claim.says, objective))
            mine.append(replace(row, why="not in this plan") if plan is None else _compared(claim, plan, row, by_stem))
        rows += verdicts(claim, mine)
    return rows


def _compared(claim: PaperClaim, asked: Asked, row: PaperRow, by_stem: Mapping[str, Mapping[str, Found]]) -> PaperRow:
    names = [*asked.first, *asked.second]
    row = replace(row, differs=asked.differs)
    states = {name: one for own in names for name, one in by_stem[own].items()}
    lacking = [name for name, one in states.items() if one.state != "evaluated"]
    if lacking:
        refused = [name for name in lacking if states[name].state == "refused"]
        some = f", {len(refused)} of them refused" if refused else ""
        return replace(row, why=f"{len(lacking)} of its {len(states)} runs have no result{some}: {lacking[0]}")
    if wrong := _uneven(states):
        return replace(row, verdict="undecided here", why=wrong)
    start = by_stem[asked.start][asked.start]
    items = sorted(set.intersection(*(set(one.values or ()) for one in states.values())))
    if claim.of == "length" and any(not one.lengths for one in states.values()):
        return replace(row, verdict="undecided here", why="lengths are known as means alone; see runs.csv")
    if len(items) < 2 * _FOLDS:
        return replace(row, verdict="undecided here", why=f"its runs have {len(items)} scored prompts in common")
    first, second = (_side([by_stem[own] for own in part], items) for part in (asked.first, asked.second))
    one, other = (side.lengths if claim.of == "length" else side.values for side in (first, second))
    estimate = crossed_estimate(one - other)
    margin = math.nan
    if claim.kind == "alike":
        margin = MARGIN_SHARE * _gain(by_stem.get(asked.online), second, start, items)
    half = estimate.interval(1 - ALPHA).half_width
    p, contrary = p_values(claim.kind, estimate, margin)
    clipping = second if claim.clips == "second" else first
    return replace(
        row,
        first=float(one.mean()),
        second=float(other.mean()),
        difference=estimate.mean,
        low=estimate.mean - half,
        high=estimate.mean + half,
        margin=margin,
        p=p,
        contrary=contrary,
        clipped=clipping.clipped,
        starts=one.shape[1],
    )


def _uneven(states: Mapping[str, Found]) -> str:
    """Return why runs cannot be compared: other prompts or scoring, or fewer seeds of one; nothing if they can."""
    settings = [one.evaluation.settings for one in states.values() if one.evaluation is not None]
    if any(one != settings[0] for one in settings):
        return "its runs were not asked or scored alike"
    prompts: dict[str, str] = {}
    for one in states.values():
        for item in one.evaluation.items if one.evaluation is not None else ():
            if prompts.setdefault(item.id, item.prompt) != item.prompt:
                return f"{item.id!r} is not the same prompt in all of its runs"
    return ""


def _side(candidates: Sequence[Mapping[str, Found]], items: Sequence[str]) -> _Side:
    """Return the candidate that is best on the other half of the items, for each half; items in their order."""
    scores = [_table(one, items, lambda found: found.values) for one in candidates]
    lengths = [_table(one, items, lambda found: found.lengths) for one in candidates]
    fold = np.arange(len(items)) % _FOLDS
    values, long = np.empty_like(scores[0]), np.empty_like(scores[0])
    taken = []
    for number in range(_FOLDS):
        here = fold == number
        best = int(np.argmax([table[~here].mean() for table in scores]))
        values[here], long[here] = scores[best][here], lengths[best][here]
        shares = [one.clipped or 0.0 for one in candidates[best].values()]
        taken.append(sum(shares) / len(shares))
    return _Side(values, long, sum(taken) / len(taken))


def _table(seeds: Mapping[str, Found], items: Sequence[str], read: Callable[[Found], Values | None]) -> _Array:
    """Return values of items by seeds; nan where there are none."""
    columns = [read(one) or {} for _, one in sorted(seeds.items())]
    return np.array([[column.get(item, math.nan) for column in columns] for item in items])


def _gain(online: Mapping[str, Found] | None, second: _Side, start: Found, items: Sequence[str]) -> float:
    """Return what online runs, or else the second side, gain on the start model; nan where that may be nothing."""
    if start.state != "evaluated" or start.values is None or not set(items) <= set(start.values):
        return math.nan
    table = second.values
    if online is not None:
        if any(one.state != "evaluated" or not set(items) <= set(one.values or ()) for one in online.values()):
            return math.nan
        table = _table(online, items, lambda found: found.values)
    begun = np.array([start.values[item] for item in items])[:, None]
    estimate = crossed_estimate(table - begun)
    return estimate.mean if estimate.mean > estimate.interval(1 - ALPHA).half_width else math.nan
