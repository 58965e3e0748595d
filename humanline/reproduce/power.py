"""Synthetic outcomes of the grid from a known curve, and what the verdicts say of them: calibration and power."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from humanline.reproduce.cells import Cell, core
from humanline.reproduce.hypotheses import Finding, judge
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.rules import Rules

#: Score of the start and of the peak of the known curve, those of the throw-away experiments on letters.
START, PEAK = 0.543, 0.73
#: KL of offline runs at the lowest learning rate, nats an answer, by beta or clip; its power of the learning rate.
NEAREST = {
    ("dpo", 0.1): 1.5,
    ("dpo", 1.0): 0.9,
    ("dpo", 5.0): 0.5,
    ("kto", 0.25): 0.6,
    ("kto", 1.0): 0.3,
    ("grpo", 0.15): 0.3,
    ("grpo", 0.5): 0.7,
    ("grpo", 1.0): 0.9,
}
GROWTH = 1.05
#: What syncing every k steps adds to log KL; what rounds add.
FURTHER = {1: 0.7, 8: 0.5, 32: 0.2}
ONLINE = 0.6


@dataclass(frozen=True, slots=True)
class World:
    """Where synthetic runs come from.

    Parameters
    ----------
    curve : "power" or "quadratic"
        ``start + a KL^.35 - b KL``, which no polynomial in log KL is, or a quadratic in log KL; same start and peak.
    starts, draws : int
    between_draws, between_cells, heights, start_errors : float >= 0
        Standard deviations of the score: between draws; between cells, shared by all starts; of the curve's height
        between starts; of the error of what is compared between starts.
    shift : float
        By how much humanline lies above the curve, as a share of (peak - start).
    online : float
        By how much online lies above it, as a share of (peak - start).
    """

    curve: str = "power"
    starts: int = 3
    draws: int = 3
    between_draws: float = 0.011
    between_cells: float = 0.019
    heights: float = 0.01
    start_errors: float = 0.0
    shift: float = 0.0
    online: float = 0.0


def known_curve(world: World, log_kl: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the score at a distance, without what starts, cells and draws add."""
    if world.curve == "quadratic":
        return np.asarray(PEAK - 0.07 * (log_kl - math.log(2)) ** 2)
    kl = np.exp(log_kl)
    # The power's peak is at KL = 2: .35 a 2^-.65 = b.
    a = (PEAK - START) / (2**0.35 - 0.35 * 2**0.35)
    return np.asarray(START + a * kl**0.35 - 0.35 * a * 2**-0.65 * kl)


def outcomes(world: World, seed: int) -> list[Outcome]:
    """Draw the outcomes of the whole grid from a known curve."""
    random = np.random.default_rng(seed)
    cells = core()
    shape = (len(cells), world.starts, world.draws)
    log_kl = np.array([_log_kl(cell) for cell in cells])[:, None, None]
    log_kl = log_kl + random.normal(0, 0.1, shape[:2])[..., None] + random.normal(0, 0.1, shape)
    scores = known_curve(world, log_kl) + random.normal(0, world.between_draws, shape)
    scores += random.normal(0, world.between_cells, (len(cells), 1, 1))
    scores += random.normal(0, world.heights, (1, world.starts, 1))
    gain = PEAK - START
    for variant, shift in (("humanline", world.shift), ("online", world.online)):
        for objective in ("dpo", "kto", "grpo"):
            these = [c.variant == variant and c.objective == objective for c in cells]
            scores[these] += shift * gain + random.normal(0, world.start_errors, (1, world.starts, 1))
    return list(_rows(cells, log_kl, scores))


def _log_kl(cell: Cell) -> float:
    scale = cell.beta if cell.beta is not None else cell.clip_eps
    log_kl = math.log(NEAREST[cell.objective, scale or 0.0]) + GROWTH * math.log(cell.lr / 1e-4)
    log_kl += FURTHER[cell.every] if cell.every is not None else 0.0
    return log_kl + (ONLINE if cell.is_online else 0.0)


def _rows(cells: list[Cell], log_kl: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> Iterator[Outcome]:
    known = {"testbed": "synthetic", "status": "done", "start_score": START, "updates": 150, "scorer_calls": 0}
    rest = {field.name: math.nan for field in fields(Outcome)}
    for cell, of_cell, score_of_cell in zip(cells, log_kl.tolist(), scores.tolist(), strict=True):
        for start, of_start in enumerate(of_cell):
            for draw, value in enumerate(of_start):
                score = score_of_cell[start][draw]
                numbers = {"score": score, "judged": score, "greedy": score, "matched": score}
                numbers |= {"kl_to_start": math.exp(value), "kl_to_start_se": 0.02 * math.exp(value)}
                numbers |= {"entropy": 1.0 - 0.1 * value, "length": 8.0 + 0.01 * score * draw}
                yield Outcome(**(rest | known | numbers | {"cell": cell, "start": start, "draw": draw}))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Share:
    """How often a hypothesis comes to what, over simulated grids.

    Attributes
    ----------
    hypothesis : str
    grids : int
    covered : float
        Share of intervals that hold the truth; nan for H5, whose truth no formula gives.
    differs : float
        Share of intervals that exclude 0.
    holds, fails, no_overlap : float
    """

    hypothesis: str
    grids: int
    covered: float
    differs: float
    holds: float
    fails: float
    no_overlap: float


def simulate(world: World, rules: Rules, *, grids: int, seed: int = 0) -> list[Share]:
    """Judge simulated grids, of the world's starts and draws, and count what comes of each hypothesis."""
    found: dict[str, list[Finding]] = {}
    rules = replace(rules, starts=tuple(range(world.starts)), draws=tuple(range(world.draws)))
    for number in range(grids):
        for one in judge(outcomes(world, seed + number), rules):
            found.setdefault(one.hypothesis, []).append(one)
    gain = PEAK - START
    truths = {"H1": world.shift, "H2": world.shift, "H3": world.shift, "H4": world.online}
    return [_share(name, ones, truths.get(name, math.nan) * gain) for name, ones in found.items()]


def _share(name: str, found: list[Finding], truth: float) -> Share:
    tested = [one for one in found if not math.isnan(one.low)]
    covered = _mean(one.low <= truth <= one.high for one in tested) if not math.isnan(truth) else math.nan
    verdicts = [_mean(one.verdict == verdict for one in found) for verdict in ("holds", "fails", "no overlap")]
    return Share(name, len(found), covered, _mean(one.differs for one in tested), *verdicts)


def _mean(values: Iterable[bool]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


def scenarios() -> dict[str, World]:
    """Return the worlds of the power table."""
    level, few = World(), World(between_cells=0.006, between_draws=0.006)
    # Offline cells of letters scatter by .025 (DPO) and .043 (KTO) around their own curves.
    rough = World(between_cells=0.038)
    return {
        "one curve": level,
        "one curve, quadratic": replace(level, curve="quadratic"),
        "one curve, same heights": replace(level, heights=0.0),
        "one curve, heights .02, starts differ": replace(level, heights=0.02, start_errors=0.01),
        "one curve, 5 starts, starts differ": replace(level, starts=5, start_errors=0.01),
        "one curve, a third of the scatter": few,
        "one curve, twice the scatter": rough,
        "humanline at + one margin": replace(level, shift=0.1),
        "humanline at + two margins": replace(level, shift=0.2, online=0.3),
        "humanline at + two margins, twice the scatter": replace(rough, shift=0.2, online=0.3),
        "humanline at - two margins": replace(level, shift=-0.2, online=0.15),
        "humanline at - two margins, quadratic, starts differ": replace(
            level, curve="quadratic", shift=-0.2, online=0.3, start_errors=0.01
        ),
        "humanline at - four margins": replace(level, shift=-0.4, online=-0.2),
        "humanline at - four margins, twice the scatter": replace(rough, shift=-0.4, online=-0.2),
    }


def power_table(rules: Rules, *, grids: int, seed: int = 0) -> str:
    """Return what simulated grids come to, in Markdown: the same text for the same arguments."""
    lines = [
        "| world | hypothesis | intervals that hold the truth | exclude 0 | holds | fails | no overlap |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, world in scenarios().items():
        for share in simulate(world, rules, grids=grids, seed=seed):
            numbers = (share.covered, share.differs, share.holds, share.fails, share.no_overlap)
            told = " | ".join("" if math.isnan(number) else f"{number:.2f}" for number in numbers)
            lines.append(f"| {name} | {share.hypothesis} | {told} |")
    return "\n".join(lines) + "\n"
