"""Padding-free batches beside right padding: the step's time against the padding that is left out (target 8)."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.interleave import interleave, ratio_interval
from benchmarks.machine import DEVICE
from benchmarks.report import Result, Row
from benchmarks.runs import REFERENCES, Stepped, Workload, pausing_loop, prepare, run_config, training_batches
from humanline.train.loop import train
from humanline.train.run.metrics import read_metrics

# One micro-batch a step, so that sorting by length cannot help, and a small head, which sees no padding in either.
QUICK = Workload(64, 2, 2, vocab=512, prompt=8, answer=56, batch=4, micro_batch=4, shortest=0.05)
CPU = Workload(256, 4, 4, vocab=512, prompt=16, answer=240, batch=8, micro_batch=8, shortest=0.1)
GPU = Workload(
    1024, 16, 16, vocab=2048, prompt=64, answer=960, batch=32, micro_batch=32, precision="bf16", shortest=0.1
)
TARGET = 0.9


def benchmark_packed(quick: bool) -> Result:
    """Run the real loop on the same batches both ways, side by side, step by step."""
    workload = QUICK if quick else GPU if DEVICE == "cuda" else CPU
    rounds, warm_up = (4, 1) if quick else (16, 2)
    steps = warm_up + rounds + 1
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        base = prepare(folder, workload, pairs=16 * workload.batch)
        stack.enter_context(pausing_loop())
        configs = {
            padding: run_config(base, folder / padding, REFERENCES["free"], steps=steps, training={"padding": padding})
            for padding in ("right", "free")
        }
        blocks = [micro_batches[0].block for micro_batches in training_batches(configs["right"])]
        runs = {
            padding: Stepped(lambda config=config: train(config, show_progress=False))  # type: ignore[misc]
            for padding, config in configs.items()
        }
        for run in runs.values():
            stack.callback(run.close)
        seconds = interleave({padding: run.step for padding, run in runs.items()}, rounds=rounds, warm_up=warm_up)
        losses = {
            padding: [row["loss"] for row in read_metrics(folder / padding / "metrics.jsonl") if "step" in row]
            for padding in runs
        }
    padded = [block.input_ids.numel() for block in blocks[warm_up : warm_up + rounds]]
    real = [sum(block.lengths) for block in blocks[warm_up : warm_up + rounds]]
    speed_up = ratio_interval(seconds["right"], seconds["free"])
    share = sum(real) / sum(padded)
    reached = ratio_interval(
        [taken * count for taken, count in zip(seconds["right"], real, strict=True)],
        [taken * count for taken, count in zip(seconds["free"], padded, strict=True)],
    )
    sides = (f"{median(seconds['right']):.4g} s", f"{median(seconds['free']):.4g} s")
    gap = max(abs(one - other) for one, other in zip(losses["right"], losses["free"], strict=True))
    rows = [
        Row(
            "-",
            f"step, {share:.0%} real tokens: right padding / padding-free",
            sides,
            speed_up.ratio,
            (speed_up.low, speed_up.high),
        ),
        Row(
            "8",
            f"padding-free: speed-up / (padded / real tokens), {share:.0%} real",
            (f"{speed_up.ratio:.3f}", f"{1 / share:.3f}"),
            reached.ratio,
            (reached.low, reached.high),
            f">= {TARGET:g}",
            reached.ratio >= TARGET,
        ),
        Row("-", f"losses of {len(losses['right'])} steps, right padding and padding-free: largest gap", value=gap),
    ]
    return Result(asdict(workload) | {"rounds": rounds, "warm_up": warm_up, "real_share": share}, rows, seconds)
