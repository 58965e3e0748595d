"""Padding-free batches beside right padding: the step's time against the padding that is left out (target 8).

What a step does besides its passes forward and backward (batch, clip, update, checks, metrics) takes as long without
padding as with it, so that the target cannot be had beyond a limit, which is measured too: the time of a right-padded
step whose passes alone fell with the padding.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.interleave import Interval, clock, interleave, ratio_interval
from benchmarks.machine import DEVICE
from benchmarks.report import Result, Row
from benchmarks.runs import REFERENCES, Stepped, Workload, pausing_loop, prepare, run_config, training_batches
from humanline.train.loop import train
from humanline.train.policy.spread import Whole
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
        passes = stack.enter_context(timed_passes())
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
        timed = slice(warm_up, warm_up + rounds)  # one micro-batch a step
        inside = {padding: passes[run][timed] for padding, run in runs.items()}
        losses = {
            padding: [row["loss"] for row in read_metrics(folder / padding / "metrics.jsonl") if "step" in row]
            for padding in runs
        }
    padded = [block.input_ids.numel() for block in blocks[timed]]
    real = [sum(block.lengths) for block in blocks[timed]]
    rows = _rows(seconds, inside, padded, real, losses)
    settings = asdict(workload) | {"rounds": rounds, "warm_up": warm_up, "real_share": sum(real) / sum(padded)}
    passes_of = {f"{padding}, passes": values for padding, values in inside.items()}
    return Result(settings, rows, seconds | passes_of)


def _rows(
    seconds: dict[str, list[float]],
    inside: dict[str, list[float]],
    padded: list[int],
    real: list[int],
    losses: dict[str, list[float]],
) -> list[Row]:
    """Compare steps, their passes, and what steps could be at best; tokens and seconds are those of each step."""
    speed_up = ratio_interval(seconds["right"], seconds["free"])
    share = sum(real) / sum(padded)
    reached = per_padding(seconds["right"], seconds["free"], padded, real)
    alone = per_padding(inside["right"], inside["free"], padded, real)
    least = [
        step - spent + spent * few / many
        for step, spent, few, many in zip(seconds["right"], inside["right"], real, padded, strict=True)
    ]
    limit, of_limit = per_padding(seconds["right"], least, padded, real), ratio_interval(least, seconds["free"])
    rest = [step - spent for step, spent in zip(seconds["right"], inside["right"], strict=True)]
    besides = ratio_interval(rest, seconds["right"])
    sides = (f"{median(seconds['right']):.4g} s", f"{median(seconds['free']):.4g} s")
    gap = max(abs(one - other) for one, other in zip(losses["right"], losses["free"], strict=True))
    return [
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
        Row("-", "the same, passes forward and backward alone", value=alone.ratio, interval=(alone.low, alone.high)),
        Row(
            "-",
            "the limit of 8: passes fall with the padding, the rest of a step stays",
            value=limit.ratio,
            interval=(limit.low, limit.high),
            note=f"the rest is {besides.ratio:.1%} of a right-padded step ({besides.low:.1%} to {besides.high:.1%})",
        ),
        Row("-", "padding-free: speed-up / that limit's", value=of_limit.ratio, interval=(of_limit.low, of_limit.high)),
        Row("-", f"losses of {len(losses['right'])} steps, right padding and padding-free: largest gap", value=gap),
    ]


def per_padding(right: Sequence[float], free: Sequence[float], padded: Sequence[int], real: Sequence[int]) -> Interval:
    """Return the speed-up right / free over padded / real tokens, step by step."""
    return ratio_interval(
        [taken * count for taken, count in zip(right, real, strict=True)],
        [taken * count for taken, count in zip(free, padded, strict=True)],
    )


@contextmanager
def timed_passes() -> Iterator[dict[threading.Thread, list[float]]]:
    """Time the passes forward and backward of each micro-batch, by the thread that runs the loop."""
    seconds: dict[threading.Thread, list[float]] = {}
    accumulating = Whole.accumulating

    @contextmanager
    def timed(self: Whole, last: bool) -> Iterator[Any]:
        started = clock()
        with accumulating(self, last) as given:
            yield given
        seconds.setdefault(threading.current_thread(), []).append(clock() - started)

    with patch.object(Whole, "accumulating", timed):
        yield seconds
