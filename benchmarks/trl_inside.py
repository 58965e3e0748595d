"""TRL's trainers with humanline in them (`apply_humanline`) against themselves without it: time and peak memory.

Both sides are TRL's with the same rows, in one process and in turns; TRL keeps its default, a fixed reference model.
The processor's own seconds are compared too, which other work on the machine does not add to.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.interleave import interleave
from benchmarks.machine import DEVICE, installed
from benchmarks.peak import peak_mib
from benchmarks.report import Result, Row, not_measured, timing_row
from benchmarks.runs import GPU, QUICK, Workload, pausing_loop, prepare
from benchmarks.trl_steps import CPU, OBJECTIVES, start

SIDES = ("TRL humanline", "TRL")
TIME, MEMORY = 1.05, "<= 1"
MAPPED = (
    "both hold as many bytes of tensors; TRL's reference is mapped from its file, and of its embedding only rows that "
    "were read are in memory, where humanline's is written as a whole"
)


def benchmark_trl_inside(quick: bool) -> Result:
    """Compare the steps of all three objectives, then their peak memory."""
    workload = QUICK if quick else GPU if DEVICE == "cuda" else CPU
    rounds, warm_up = (3, 1) if quick else (30, 2)
    settings = asdict(workload) | {"rounds": rounds, "warm_up": warm_up, "objectives": OBJECTIVES}
    if installed("trl") is None:
        return Result(settings, [not_measured("TRL", one, "trl is not installed") for one in OBJECTIVES])
    rows: list[Row] = []
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = prepare(Path(name), workload, pairs=16 * workload.batch)
        for objective in OBJECTIVES:
            rows += _times(base, Path(name), workload, objective, rounds, warm_up, seconds)
        rows += [_peak(base, Path(name), workload, objective) for objective in OBJECTIVES]
    return Result(settings, rows, seconds)


def _times(
    base: dict[str, Any],
    folder: Path,
    workload: Workload,
    objective: str,
    rounds: int,
    warm_up: int,
    seconds: dict[str, list[float]],
) -> list[Row]:
    """Run both sides in turns; add to `seconds`."""
    used: dict[str, list[float]] = {side: [] for side in SIDES}

    def counted(side: str, step: Callable[[], object]) -> None:
        before = time.process_time()
        step()
        used[side].append(time.process_time() - before)

    with ExitStack() as stack:
        stack.enter_context(pausing_loop())
        stack.enter_context(patch.dict(os.environ, {"TQDM_DISABLE": "1"}))
        variants: dict[str, Callable[[], object]] = {}
        for side in SIDES:
            steps = warm_up + rounds + 1
            run = start(base, folder / f"{objective} {side}", workload, objective, side, steps=steps).run
            stack.callback(run.close)
            variants[side] = partial(counted, side, run.step)
        taken = interleave(variants, rounds=rounds, warm_up=warm_up)
    used = {side: one[warm_up:] for side, one in used.items()}
    seconds |= {f"{objective}, {side}": one for side, one in taken.items()}
    seconds |= {f"{objective}, {side}, of the processor": one for side, one in used.items()}
    inside, theirs = SIDES
    found = [timing_row("TRL", f"{objective}: a step", taken[inside], taken[theirs], limit=TIME)]
    if DEVICE == "cpu":
        what = f"{objective}: a step, seconds of the processor"
        found.append(timing_row("TRL", what, used[inside], used[theirs], limit=TIME))
    return found


def _peak(base: dict[str, Any], folder: Path, workload: Workload, objective: str) -> Row:
    """Compare peak memory, each side in a process of its own."""
    given = {"base": base, "workload": asdict(workload), "objective": objective, "folder": str(folder / "peaks")}
    try:
        inside, theirs = (
            peak_mib("benchmarks.trl_steps:prepare_steps", given_back=True, side=side, **given) for side in SIDES
        )
    except RuntimeError as error:  # the times before it took minutes
        return not_measured("TRL", f"{objective}: peak memory", str(error).strip().splitlines()[-1], MEMORY)
    return Row(
        "TRL",
        f"{objective}: peak memory",
        (f"{inside:.1f} MiB", f"{theirs:.1f} MiB"),
        inside / theirs,
        target=MEMORY,
        met=inside <= theirs,
        note=MAPPED if DEVICE == "cpu" else "",
    )
