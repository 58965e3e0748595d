"""What a second model costs in memory (target 3b)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.machine import DEVICE
from benchmarks.peak import peak_mib
from benchmarks.report import Result, Row, not_measured
from benchmarks.runs import CPU_WEIGHTS, GPU_WEIGHTS, QUICK, REFERENCES, prepare, run_config


def prepare_run(folder: str, base: dict[str, object], reference: str) -> Callable[[], object]:
    """Return a short run, for `benchmarks.peak`."""
    from humanline.train.loop import train

    config = run_config(base, Path(folder) / reference, REFERENCES[reference], steps=3)
    return lambda: train(config, show_progress=False)


def benchmark_memory(quick: bool) -> Result:
    """Compare the peak memory of whole runs, each in its own process."""
    workload = QUICK if quick else GPU_WEIGHTS if DEVICE == "cuda" else CPU_WEIGHTS
    with tempfile.TemporaryDirectory() as folder:
        base = prepare(Path(folder), workload)
        weights = (Path(folder) / "model" / "model.safetensors").stat().st_size / 2**20
        ahead, second = (
            peak_mib("benchmarks.memory:prepare_run", folder=folder, base=base, reference=key)
            for key in ("ahead", "second")
        )
    rows = [
        Row(
            "-",
            "peak memory of a run: scoring ahead / second model",
            (f"{ahead:.0f} MiB", f"{second:.0f} MiB"),
            ahead / second if second else None,
            note=f"{second - ahead:.0f} MiB saved; the float32 weights take {weights:.0f} MiB",
        )
    ]
    what, target = "GPU memory saved by scoring ahead / bf16 weights", ">= .95"
    if DEVICE == "cuda":
        saved, narrow = second - ahead, weights / 2
        sides = (f"{saved:.0f} MiB", f"{narrow:.0f} MiB")
        rows.append(Row("3b", what, sides, saved / narrow, target=target, met=saved >= 0.95 * narrow))
    else:
        rows.append(not_measured("3b", what, "needs a GPU", target))
    what = "8B, 32 pairs x 1024, float32 masters, full checkpointing, one H200"
    why = "needs a GPU" if DEVICE == "cpu" else "the loop does not offer activation checkpointing"
    rows.append(not_measured("7", what, why, "<= 135 GiB, 11.5 s"))
    return Result(asdict(workload), rows)
