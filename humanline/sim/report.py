"""A study from the names of its runs to the judgement of every claim."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import humanline
from humanline.sim.claims import Claim, chosen
from humanline.sim.findings import Judgement
from humanline.sim.judging import judge_all
from humanline.sim.lookup import Setting, Study
from humanline.sim.run import Run
from humanline.sim.study import Result, run_study
from humanline.sim.tables import markdown, write_findings, write_runs
from humanline.sim.variants import GROUPS, OBJECTIVES, RATES, SYNC_EVERY, TASKS, VARIANTS, make_run
from humanline.sim.world import whole

Cell = tuple[str, str, float, str]  # task, objective, rate, variant


@dataclass(frozen=True)
class Scale:
    """Say how large a study is.

    Parameters
    ----------
    seeds, steps : int
    rates : tuple of float
        Learning rates of every variant.
    beyond : tuple of float
        Learning rates outside `rates` that a variant is run with, from the nearest on, as long as its best one is the
        least or the largest of those it has.
    disturbance : float
        By how much the start parameters of a second run of everything are disturbed, relatively; 0 for no such run.
    """

    seeds: int
    steps: int
    rates: tuple[float, ...]
    beyond: tuple[float, ...] = ()
    disturbance: float = 0.0


FULL = Scale(seeds=200, steps=256, rates=RATES, beyond=(0.001, 0.003, 3.0, 10.0), disturbance=1e-13)
#: Small enough to wait for; its intervals are wide and its runs short.
QUICK = Scale(seeds=24, steps=80, rates=(0.1,), disturbance=1e-13)
#: What the figures need beyond the claims: (tasks, objectives, variants).
DIAGRAMS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (("verifiable",), ("grpo",), tuple(f"online+humanline every=64 k={k}" for k in SYNC_EVERY)),
    (("verifiable",), ("grpo",), ("online every=1", "online every=4", "online every=16", "online every=64")),
    (("sequence",), ("dpo", "grpo"), ("offline", *(f"offline+humanline k={k}" for k in SYNC_EVERY))),
    (("bandit", "sequence"), ("dpo", "dpo beta 1", "dpo beta 10"), ("offline", "offline+humanline", "online")),
)


def cells_of(claims: Sequence[Claim], scale: Scale, *, diagrams: bool = True) -> dict[Cell, Run]:
    """Return the runs that these claims, and the figures if asked for, need."""
    wanted = [(claim.tasks, claim.objectives, claim.variants) for claim in claims]
    wanted += DIAGRAMS if diagrams else ()
    names = dict.fromkeys(
        (task, objective, rate, variant)
        for tasks, objectives, variants in wanted
        for task in tasks
        for objective in objectives
        for rate in scale.rates
        for variant in variants
    )
    return {name: make_run(*name, steps=scale.steps) for name in names}


def settings_of(claim: Claim, scale: Scale) -> list[Setting]:
    """Return the settings that a claim is judged in: every learning rate, and each variant's best."""
    rates = [*scale.rates, None] if len(scale.rates) > 1 else [*scale.rates]
    return [Setting(task, objective, rate) for task in claim.tasks for objective in claim.objectives for rate in rates]


def cells_beyond(claims: Sequence[Claim], scale: Scale, results: Mapping[Cell, Result]) -> dict[Cell, Run]:
    """Return the runs with the next learning rate beyond the edge that a variant's best one lies at.

    Variants of the claims' tuned settings alone are looked at.
    """
    found = Study(results)
    names: dict[Cell, None] = {}
    for claim in claims:
        for setting in settings_of(claim, scale):
            for variant in claim.variants if setting.rate is None else ():
                for edge in found.edges(setting, variant):
                    lowest = edge == found.rates(setting, variant)[0]
                    further = [rate for rate in scale.beyond if (rate < edge if lowest else rate > edge)]
                    if further:
                        rate = max(further) if lowest else min(further)
                        names[setting.task, setting.objective, rate, variant] = None
    return {name: make_run(*name, steps=scale.steps) for name in names}


@dataclass(frozen=True)
class Report:
    """Hold a finished study; the results are those without a disturbance."""

    scale: Scale
    results: dict[Cell, Result]
    judgements: list[Judgement]


def study(
    out: str | Path,
    *,
    claims: Sequence[str] = (),
    scale: Scale = FULL,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Run what some claims need, judge them, and write the results.

    Parameters
    ----------
    out : path
        Folder, made if need be. ``study.sqlite`` in it keeps every finished run: the same call goes on where it was
        stopped. ``claims.md``, ``claims.csv``, ``runs.csv`` and ``settings.json`` are written at the end.
    claims : sequence of str
        Names of `CLAIMS`; all, and what the figures need beyond them, if empty.
    scale : Scale
    processes : int >= 1
    progress : callable, optional
        Called with (done, total) runs; the total grows when rates beyond an edge are added.

    Raises
    ------
    ValueError
        If a claim is unknown (the nearest is suggested) or `processes` < 1; nothing is then run or written.
    OSError
        If the folder, or the file in it, cannot be written.
    """
    wanted, processes = chosen(claims), whole("processes", processes, 1)
    cells = cells_of(wanted, scale, diagrams=not claims)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[Cell, Result] = {}
    while len(results) < len(cells):
        results, disturbed = _results(cells, scale, folder / "study.sqlite", processes, progress)
        cells |= cells_beyond(wanted, scale, results)
    questions = [(claim, settings_of(claim, scale)) for claim in wanted]
    judgements = judge_all(questions, Study(results), disturbed=Study(disturbed) if disturbed else None)
    write_findings(folder / "claims.csv", judgements)
    write_runs(folder / "runs.csv", results)
    (folder / "settings.json").write_text(json.dumps(settings(scale), indent=1) + "\n", encoding="utf-8")
    (folder / "claims.md").write_text(markdown(judgements, made=_made(scale)), encoding="utf-8")
    return Report(scale, results, judgements)


def _results(
    cells: Mapping[Cell, Run],
    scale: Scale,
    store: Path,
    processes: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[Cell, Result], dict[Cell, Result]]:
    """Return the results of the runs, and those of the same runs disturbed: none if the scale asks for none."""
    runs = {(cell, False): run for cell, run in cells.items()}
    if scale.disturbance:
        runs |= {(cell, True): replace(run, disturbance=scale.disturbance) for cell, run in cells.items()}
    named = {"/".join(map(str, [*cell, "disturbed" * second])): (cell, second) for cell, second in runs}
    found = run_study(
        {name: runs[key] for name, key in named.items()},
        range(scale.seeds),
        store,
        processes=processes,
        progress=progress,
    )
    both: tuple[dict[Cell, Result], dict[Cell, Result]] = ({}, {})
    for name, (cell, second) in named.items():
        both[second][cell] = found[name]
    return both


def _made(scale: Scale) -> str:
    flags = {FULL: "", QUICK: " --quick"}.get(scale, " (a part or a scale of its own)")
    rates, beyond = (", ".join(f"{rate:g}" for rate in some) for some in (scale.rates, scale.beyond))
    further = f"; {beyond} where a variant's best is at the edge" if beyond else ""
    return (
        f"Made by `humanline sim{flags}`. {scale.seeds} seeds, {scale.steps} optimizer steps, learning rates {rates} "
        f"(Adam{further}), on contextual bandits, sequences of tokens with a graded score, and sequences that are "
        "right or wrong."
    )


def settings(scale: Scale) -> dict[str, object]:
    """Return everything that the numbers depend on."""
    return {
        "humanline": humanline.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "seeds": f"0 to {scale.seeds - 1}",
        "steps": scale.steps,
        "learning rates": list(scale.rates),
        "learning rates beyond an edge": list(scale.beyond),
        "disturbance of the second run": scale.disturbance,
        "tasks": {name: repr(task) for name, task in TASKS.items()},
        "groups a step, responses a group": {
            name: list(GROUPS.get(name, (Run.groups, Run.group_size))) for name in TASKS
        },
        "objectives": {name: repr(objective) for name, objective in OBJECTIVES.items()},
        "variants": {name: repr(variant) for name, variant in VARIANTS.items()},
    }
