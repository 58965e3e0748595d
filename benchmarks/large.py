"""Humanline DPO of an 8B model with random weights on one GPU: does it fit, how long is a step (target 7).

The training loop is the real one. What is replaced: weights are made on the device in place of being read from 32 GB
of files, and the disk is not asked for room for a checkpoint. The work is done in a process of its own:
`python -m benchmarks.large '{"quick": true}'` prints what it found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.interleave import clock
from benchmarks.machine import DEVICE
from benchmarks.report import Result, Row, not_measured
from benchmarks.runs import REFERENCES, Stepped, Workload, pausing_loop, prepare, run_config, training_batches

# Prompt, answer and the token that ends it are 1024 tokens.
LLAMA_8B = Workload(
    hidden=4096,
    layers=32,
    heads=32,
    vocab=128_256,
    prompt=256,
    answer=767,
    batch=32,
    micro_batch=4,
    precision="bf16",
    shortest=1.0,
    inner=14_336,
    key_heads=8,
)
QUICK = Workload(64, 2, 4, 512, prompt=16, answer=47, batch=4, micro_batch=2, shortest=1.0, inner=128, key_heads=2)
STEPS, WARM_UP = 5, 2  # the first step scores two batches; both warm up the allocator
MOST_GIB, MOST_SECONDS = 135.0, 11.5
DATASHEET, REACHED = 989e12, 788e12  # bf16 FLOP/s of an H200: the data sheet's, and a large matmul's
WHAT = "8B, 32 pairs x 1024, humanline k = 1, float32 masters, full checkpointing, one GPU"


def forward_flops(workload: Workload, rows: int, width: int, counted: int) -> float:
    """Return the floating-point operations of one forward pass without padding.

    Parameters
    ----------
    workload : Workload
    rows, width : int
        Rows of how many tokens.
    counted : int
        Tokens whose log-probability is asked for: the output head sees no others.

    Returns
    -------
    float
        Two for each weight of a matrix and token, and causal attention's own products; nothing else.
    """
    hidden, inner = workload.hidden, workload.inner or 8 * round(workload.hidden / 3)
    of_keys = hidden * (workload.key_heads or workload.heads) // workload.heads
    layer = 2 * hidden * hidden + 2 * hidden * of_keys + 3 * hidden * inner
    attention = 2 * width * hidden  # two products, half of whose entries a causal model needs
    return rows * width * workload.layers * (2.0 * layer + attention) + 2.0 * counted * hidden * workload.vocab


def measure(quick: bool) -> dict[str, Any]:
    """Run the loop for a few steps; return seconds a step, GiB at the peak and FLOPs of one forward pass."""
    import torch

    import humanline.train.policy.build as policy
    from humanline.system.imports import quiet_libraries
    from humanline.train.loop import train
    from humanline.train.preflight.disk import Writes

    quiet_libraries()
    from transformers import AutoConfig, AutoModelForCausalLM

    workload = QUICK if quick else LLAMA_8B
    warnings.simplefilter("ignore")

    def random_weights(path: str, **_: Any) -> Any:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32)

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        base = prepare(Path(name), workload, pairs=(STEPS + WARM_UP + 1) * workload.batch, weights=False)
        config = run_config(
            base,
            Path(name) / "run",
            REFERENCES["ahead"],
            steps=STEPS + WARM_UP + 1,
            lr=1e-6,
            training={"activation_checkpointing": True},
            transform={"kind": "clip"},
        )
        blocks = [micro.block for micro in training_batches(config)[0]]
        (width,) = {length for block in blocks for length in block.lengths}
        rows, counted = sum(len(block.lengths) for block in blocks), sum(int(block.mask.sum()) for block in blocks)
        stack.enter_context(pausing_loop())
        stack.enter_context(patch.object(policy, "load_weights", random_weights))
        stack.enter_context(patch.object(policy, "refuse_missing_weights", lambda *_: None))
        stack.enter_context(patch.object(Writes, "refuse", lambda *_: None))
        run = Stepped(lambda: train(config, show_progress=False))
        stack.callback(run.close)
        seconds = []
        for _ in range(WARM_UP + STEPS):
            started = clock()
            run.step()
            seconds.append(clock() - started)
        gib = [0.0, 0.0]
        if DEVICE == "cuda":
            gib = [torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30]
    return {
        "seconds": seconds[WARM_UP:],
        "first_seconds": seconds[:WARM_UP],
        "allocated_gib": gib[0],
        "reserved_gib": gib[1],
        "forward_flops": forward_flops(workload, rows, width, counted),
        "tokens": rows * width,
    }


def benchmark_large(quick: bool) -> Result:
    """Measure in a fresh process, whose memory nothing else has cut to pieces."""
    settings = asdict(QUICK if quick else LLAMA_8B) | {"steps": STEPS, "warm_up": WARM_UP}
    target = f"<= {MOST_GIB:g} GiB, {MOST_SECONDS:g} s"
    if DEVICE == "cpu" and not quick:
        return Result(settings, [not_measured("7", WHAT, "needs a GPU with 140 GiB", target)])
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.large", json.dumps({"quick": quick})],
        cwd=Path(__file__).resolve().parent.parent,
        env=os.environ | dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True"),
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        if "OutOfMemoryError" not in answer.stderr:
            raise RuntimeError(f"the 8B run failed:\n{answer.stderr[-3000:]}")
        last = answer.stderr.strip().splitlines()[-1][:300]
        return Result(settings, [Row("7", f"{WHAT}: memory", target=target, met=False, note=f"does not fit: {last}")])
    found = json.loads(answer.stdout.strip().splitlines()[-1])
    step, forward = median(found["seconds"]), found["forward_flops"]
    meant = not quick
    fits = Row(
        "7",
        f"{WHAT}: peak memory, allocated and reserved" if meant else "a tiny model in its place: peak memory",
        (f"{found['allocated_gib']:.1f} GiB", f"{found['reserved_gib']:.1f} GiB"),
        found["reserved_gib"],
        target=f"<= {MOST_GIB:g} GiB",
        met=found["reserved_gib"] <= MOST_GIB if meant else None,
    )
    speed = Row(
        "7",
        f"{WHAT}: step" if meant else "a tiny model in its place: step",
        (f"{step:.4g} s", f"{found['tokens'] / step:.4g}/s"),
        step,
        target=f"<= {MOST_SECONDS:g} s",
        met=step <= MOST_SECONDS if meant else None,
        note=f"median of {STEPS}: {min(found['seconds']):.4g} to {max(found['seconds']):.4g} s; stretch 9.6 s",
    )
    used = [
        Row(
            "-",
            f"utilisation: {times} x forward FLOPs a step / {rate / 1e12:.0f} TFLOP/s",
            (f"{times * forward / 1e15:.4g} PFLOP", f"{rate / 1e12:.0f} T/s"),
            times * forward / step / rate,
            note=note,
        )
        for times, rate, note in (
            (3, DATASHEET, "forward and backward: the work of a step with ready-made log-probabilities"),
            (4, DATASHEET, "with the pass that scores ahead; what checkpointing does again is not counted"),
            (4, REACHED, "against what a large bf16 matmul reaches on an H200"),
        )
    ]
    return Result(settings | found, [fits, speed, *used], {"step": found["seconds"]})


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
