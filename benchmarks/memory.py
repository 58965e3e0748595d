"""What the references cost in memory (target 3b)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import DEVICE
from benchmarks.peak import peak_mib
from benchmarks.report import Result, Row, not_measured
from benchmarks.runs import CPU_WEIGHTS, GPU_WEIGHTS, QUICK, REFERENCES, prepare, run_config


def prepare_run(folder: str, base: dict[str, Any], reference: str, checkpointing: bool = False) -> Callable[[], object]:
    """Return a short run, for `benchmarks.peak`; a tiny one has loaded every library before."""
    from humanline.train.loop import train

    with tempfile.TemporaryDirectory() as name:
        tiny = prepare(Path(name), QUICK)
        train(run_config(tiny, Path(name) / "run", REFERENCES[reference], steps=1), show_progress=False)
    training = {"activation_checkpointing": checkpointing}
    output = Path(folder) / f"{reference}{'-checkpointing' if checkpointing else ''}"
    config = run_config(base, output, REFERENCES[reference], steps=3, training=training)
    return lambda: train(config, show_progress=False)


def benchmark_memory(quick: bool) -> Result:
    """Compare the peak memory of whole runs, each in its own process."""
    workload = QUICK if quick else GPU_WEIGHTS if DEVICE == "cuda" else CPU_WEIGHTS
    with tempfile.TemporaryDirectory() as folder:
        base = prepare(Path(folder), workload)
        weights = (Path(folder) / "model" / "model.safetensors").stat().st_size / 2**20
        call, given = "benchmarks.memory:prepare_run", {"folder": folder, "base": base}
        peaks = {key: peak_mib(call, fresh=not quick or key == "ahead", reference=key, **given) for key in REFERENCES}
        narrow_ahead = peak_mib(call, fresh=not quick, reference="ahead", checkpointing=True, **given)
    ahead, second = peaks["ahead"], peaks["second"]
    rows = [
        Row(
            "-",
            f"peak memory of a run: scoring ahead / {what}",
            (f"{ahead:.0f} MiB", f"{peaks[key]:.0f} MiB"),
            ahead / peaks[key] if peaks[key] else None,
            note=f"{peaks[key] - ahead:.0f} MiB saved; the float32 weights take {weights:.0f} MiB",
        )
        for key, what in (
            ("second", "second model synced every step"),
            ("live", "second model that never moves"),
            ("free", "precomputed offline"),
        )
    ]
    sides = (f"{narrow_ahead:.0f} MiB", f"{ahead:.0f} MiB")
    ratio = narrow_ahead / ahead if ahead else None
    rows.append(Row("-", "peak memory of a run, scoring ahead: activation checkpointing / without", sides, ratio))
    what, target = "GPU memory saved by scoring ahead / bf16 weights", ">= .95"
    if DEVICE == "cuda":
        saved, narrow = second - ahead, weights / 2
        sides = (f"{saved:.0f} MiB", f"{narrow:.0f} MiB")
        rows.append(Row("3b", what, sides, saved / narrow, target=target, met=saved >= 0.95 * narrow))
    else:
        rows.append(not_measured("3b", what, "needs a GPU", target))
    return Result(asdict(workload), rows)
