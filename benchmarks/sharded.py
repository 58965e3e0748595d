"""What sharing a policy out costs a step where nothing has to be sent: one process, sharded against whole."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.interleave import interleave
from benchmarks.machine import DEVICE
from benchmarks.report import Result, not_measured, timing_row
from benchmarks.runs import CPU, GPU, QUICK, REFERENCES, Stepped, pausing_loop, prepare, run_config
from humanline.train.loop import train


def benchmark_sharded(quick: bool) -> Result:
    """Run the real loop, scoring ahead, with a whole policy and with a sharded one, side by side, step by step."""
    workload = QUICK if quick else GPU if DEVICE == "cuda" else CPU
    rounds, warm_up = (6, 3) if quick else (40, 3)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        base = prepare(folder, workload)
        stack.enter_context(pausing_loop())
        runs: dict[str, Stepped] = {}
        for sharding in ("none", "full"):
            config = run_config(
                base,
                folder / sharding,
                REFERENCES["ahead"],
                steps=warm_up + rounds + 1,
                training={"sharding": sharding},
            )
            runs[sharding] = Stepped(lambda config=config: train(config, show_progress=False))  # type: ignore[misc]
            stack.callback(runs[sharding].close)
        seconds = interleave({key: run.step for key, run in runs.items()}, rounds=rounds, warm_up=warm_up)
    rows = [
        timing_row(
            "-",
            "step in one process: sharding full / none",
            seconds["full"],
            seconds["none"],
            limit=1.05,
            upper_end=True,
        ),
        not_measured(
            "-",
            "8B on 1, 2 and 8 GPUs: step, peak, communication that is not hidden",
            "needs GPUs",
            ">= 0.85 of linear",
        ),
    ]
    return Result(asdict(workload) | {"rounds": rounds, "warm_up": warm_up}, rows, seconds)
