"""The demo: a few cells of the grid on the letters task, what the whole grid lets expect of them, and what came.

A start model learns to sort letters from noisy examples. Its own answers, best against worst of eight, make the pairs.
Each cell takes one pass over them, in two orders. Two orders tell little apart, so that nothing is called better here:
the whole grid is for that (studies/frontier).
"""

from __future__ import annotations

import filecmp
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from humanline.plots import write_figure
from humanline.plots.frontier import Picture
from humanline.reproduce.answers import Model
from humanline.reproduce.cells import Cell
from humanline.reproduce.frontier import is_finite
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.report import series_of
from humanline.reproduce.rule import Rule, read_rule
from humanline.reproduce.run import Job
from humanline.reproduce.start import Start, make_start, pairs_of, write_rows
from humanline.reproduce.suite import Progress, held, pairs_at, run_suite
from humanline.reproduce.tables import write_outcomes
from humanline.reproduce.testbeds.base import as_rows
from humanline.reproduce.testbeds.letters import SMALL
from humanline.sim.world import whole
from humanline.system.files import make_folder, write_text
from humanline.system.folders import MANIFEST, publish_folder, remove_folder
from humanline.system.terminal import show

LR = 3e-4
#: GRPO's own clip is the paper's: .5 offline and .15 otherwise (Table 3).
CELLS = (
    Cell("grpo", "offline", LR, clip_eps=0.5),
    Cell("grpo", "humanline", LR, clip_eps=0.15, every=1),
    Cell("grpo", "humanline", LR, clip_eps=0.15, every=32),
    Cell("grpo", "online", LR, clip_eps=0.15),
    Cell("dpo", "offline", LR, beta=0.1),
    Cell("dpo", "humanline", LR, beta=0.1, every=32),
    Cell("dpo", "offline", LR, beta=1.0),
    Cell("dpo", "humanline", LR, beta=1.0, every=32),
)
ORDERS = 2
HELD_OUT = 192  # words that are left behind for recipes


def demo_jobs() -> list[Job]:
    """Return the demo's runs: every cell in both orders, from one start model."""
    return [Job(SMALL, cell, 0, order) for order in range(ORDERS) for cell in CELLS]


def quick(
    folder: Path,
    *,
    processes: int = 2,
    progress: Progress | None = None,
    before: Callable[[], object] | None = None,
) -> list[Outcome]:
    """Run the demo in a folder, and print what is expected and what came.

    The folder may hold a demo that was stopped: it goes on.

    Parameters
    ----------
    folder : Path
    processes : int >= 1
        Runs at a time, one thread each.
    progress, before : callable, optional
        As `run_suite` takes them.

    Returns
    -------
    list of Outcome

    Raises
    ------
    WorkerError, OSError, ValueError
        As `run_suite` does.
    """
    started, processes = time.perf_counter(), whole("processes", processes, 1)
    rule = read_rule()
    show("1. a start model learns to sort the letters of words, from noisy examples; its answers make the pairs")
    show("2. expected, by the whole grid of runs on this same task (so these are no predictions of something new):")
    show("\n".join(expected_lines(rule)))
    jobs = demo_jobs()
    show(f"3. {len(jobs)} alignment runs, one pass each, {processes} at a time")
    results = run_suite(jobs, folder, processes=processes, keep_runs=True, progress=progress, before=before)
    with held(folder):
        pairs_at(SMALL, "near", 0, 0, folder / "starts")  # where all runs were kept, these may not be there
        start = make_start(SMALL, "near", 0, folder / "starts")
        leave_for_recipes(folder, start)
    text = "\n".join(found_lines(results.outcomes, rule))
    write_outcomes(folder / "runs.csv", results.outcomes)
    write_text(folder / "table.txt", text + "\n")
    figure = write_figure(folder, "frontier", demo_picture(results.outcomes, rule))
    untrained, trained = start.perplexity
    show(f"   the start model: held-out perplexity {untrained:.0f} -> {trained:.2f}, score {start.measured.score:.3f}")
    show(f"4. what came\n{text}")
    if results.older:
        show(f"{results.older} of the runs were kept from other code of training or other libraries than are here now")
    there = sum((folder / "runs" / job.name).is_dir() for job in jobs)
    models = f"model and metrics of {'every run' if there == len(jobs) else f'{there} of the {len(jobs)} runs'}"
    show(
        f"table {folder / 'table.txt'}, figure {figure[-1]}, all numbers {folder / 'runs.csv'}, {models} in "
        f"{folder / 'runs'}; the whole grid: studies/frontier; {time.perf_counter() - started:.0f} s"
    )
    return results.outcomes


def expected_lines(rule: Rule) -> list[str]:
    """Return what the rule expects: of each cell its distance and score, and where the peak is."""
    rows = [("cell", "distance", "offline curve", "grid", "")]
    for cell in CELLS:
        expected = rule.expected(cell)
        if expected is None:
            rows.append((words_of(cell), "?", "?", "?", "the grid does not know this cell"))
            continue
        distance, score = expected
        own = f"{rule.scores[cell.name]:.3f}"
        rows.append((words_of(cell), f"{distance:.2f}", f"{score:.3f}", own, _place(rule, cell, distance)))
    return [*_columns(rows), "", *_reading(rule)]


def _place(rule: Rule, cell: Cell, distance: float) -> str:
    """Return where a distance is on the curve, in words."""
    at, _ = rule.peak(cell.objective)
    low, high = (rule.curves[cell.objective][end][0] for end in (0, -1))
    if not low <= distance <= high:
        return f"{'nearer' if distance < low else 'further'} than every offline cell of the grid: the curve's end"
    near = abs(np.log(distance / at)) < np.log(1.25)
    return "about at the peak" if near else "short of the peak" if distance < at else "past the peak"


def _reading(rule: Rule) -> list[str]:
    peaks = [(name.upper(), rule.peak(name)) for name, points in rule.curves.items() if points]
    said = "; ".join(f"{name} {score:.3f} at {distance:.1f}" for name, (distance, score) in peaks)
    return [
        "distance: KL(policy || start), nats an answer. offline curve: the score at that distance of runs on given",
        f"pairs whose reference never moves; the start has {rule.start:.3f}; the curves' peaks, with their distances:",
        f"{said}.",
        "grid: the cell's own mean score there. Where the two differ, distance alone does not tell.",
    ]


def found_lines(outcomes: Sequence[Outcome], rule: Rule) -> list[str]:
    """Return what came of each cell, run by run, beside what was expected; nothing is called better."""
    rows = [("cell", "distance", "in the grid", "score", "offline curve", "in the grid", "greedy", "clipped")]
    for cell in CELLS:
        runs = [outcome for outcome in outcomes if outcome.cell == cell]
        clipped = [run.clipped for run in runs if is_finite(run) and math.isfinite(run.clipped)]
        expected = rule.expected(cell)
        distance, score = ("?", "?") if expected is None else (f"{expected[0]:.2f}", f"{expected[1]:.3f}")
        own = f"{rule.scores[cell.name]:.3f}" if cell.name in rule.scores else "?"
        rows.append(
            (
                words_of(cell),
                _both([run.kl_to_start for run in runs], 2),
                distance,
                _both([run.score for run in runs], 3),
                score,
                own,
                _both([run.greedy for run in runs], 3),
                f"{np.mean(clipped):.1%}" if clipped else "",
            )
        )
    collapsed = sum(not is_finite(outcome) for outcome in outcomes)
    return [
        *_columns(rows),
        "",
        "score: share of letters in place in answers to words never seen, sampled at temperature 1; greedy: at 0. Each",
        "number pair is of two orders of the data, from one start model: too few to call one cell better than another.",
        *([f"{collapsed} of {len(outcomes)} runs collapsed: their numbers are no longer finite."] if collapsed else []),
    ]


def words_of(cell: Cell) -> str:
    """Return a cell in words."""
    scale = f"eps {cell.clip_eps:g}" if cell.beta is None else f"beta {cell.beta:g}"
    return f"{cell.objective.upper():4} {scale:8} {series_of(cell)}"


def _both(values: Sequence[float], digits: int) -> str:
    return " ".join("nan" if np.isnan(value) else f"{value:.{digits}f}" for value in values)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def demo_picture(outcomes: Sequence[Outcome], rule: Rule) -> Picture:
    """Return what the demo's figure shows: every run, and the curves of the whole grid."""
    cells: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for outcome in outcomes:
        if is_finite(outcome):
            series = cells.setdefault(outcome.cell.objective.upper(), {}).setdefault(series_of(outcome.cell), [])
            series.append((outcome.kl_to_start, outcome.score))
    return Picture(rule.start, {name.upper(): points for name, points in rule.curves.items()}, cells)


def leave_for_recipes(folder: Path, start: Start) -> None:
    """Leave what the recipes tiny and tiny-online begin from: start model, pairs, and words.

    The model is there last and whole, so that whatever a demo of another start model, or one that was killed, has left
    is made anew, and lies beside nothing else.
    """
    model, held_out_pairs = folder / "start" / "final", folder / "pairs-held-out.jsonl"
    is_left = held_out_pairs.is_file() and _is_copy(model, start.model)
    if not is_left and model.is_dir():
        remove_folder(model)
    first = folder / "starts" / SMALL.name / "near-0" / "pairs-0" / "pairs.jsonl"
    write_text(folder / "pairs.jsonl", first.read_text(encoding="utf-8"))
    held_out = SMALL.task.prompts("score")[:HELD_OUT]
    write_rows(folder / "words.jsonl", as_rows(SMALL.task.prompts("pairs")))
    write_rows(folder / "words-held-out.jsonl", as_rows(held_out))
    if is_left:
        return
    rows, _ = pairs_of(Model(SMALL, start.model), "score", 0)
    write_rows(held_out_pairs, [row for row in rows if row["prompt"] in set(held_out)])
    make_folder(model.parent)
    listed = shutil.ignore_patterns(MANIFEST)  # a folder that is published has one of its own

    def fill(into: Path) -> None:
        shutil.copytree(start.model, into, ignore=listed, dirs_exist_ok=True)

    publish_folder(model, fill)


def _is_copy(copy: Path, of: Path) -> bool:
    """Return whether a folder has the files of another one, byte for byte, whatever manifests say."""
    names = [
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST}
        for folder in (copy, of)
    ]
    return names[0] == names[1] and all(filecmp.cmp(copy / name, of / name, shallow=False) for name in names[1])
