"""A run that is killed and resumed, against itself: the bits of its weights and its metrics must be the same.

A run goes on past its first checkpoint, notes the hash of its weights and kills itself. It is then resumed from that
checkpoint, which takes it to the same step. Where the two differ, the same steps are taken twice from the start, to see
whether the kernels of this machine repeat themselves at all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.inside import Inside
from benchmarks.large_run import LLAMA_8B, SHALLOW, configured, random_weights, workload_for
from benchmarks.parts import ROOT
from benchmarks.report import Result, Row, not_measured
from benchmarks.runs import Stepped, pausing_loop, prepare
from humanline.system.imports import quiet_libraries
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from humanline.train.run.fingerprint import trained_hash
from humanline.train.run.metrics import read_metrics

SIZES = {"shallow": replace(SHALLOW, layers=2, vocab=32_768), "8B": LLAMA_8B}  # checkpoints of 8 and of 33 GB
KEPT = {"shallow": "float32 masters", "8B": "bf16, 8-bit states"}
SAVED, STEPS = 2, 3  # a checkpoint after so many steps, the end of what is looked at
BYTES = {"float32 masters": 12, "bf16, 8-bit states": 4.1}  # of a checkpoint, for each weight
NUMBERS = ("loss", "grad_norm", "log_ratio_rms")


def kill_and_resume(quick: bool, size: str) -> Iterator[Result]:
    """Kill a run, resume it, and compare; each of the two is a process of its own."""
    workload, kept = workload_for(SIZES[size], quick), KEPT[size]
    name = "a tiny model" if quick else f"{workload.layers} layers"
    what = f"{name}, {kept}: a kill and a resume, weights and metrics of step {STEPS}"
    with tempfile.TemporaryDirectory() as folder:
        room = shutil.disk_usage(folder).free
        weights = workload.layers * 218e6 + 2 * workload.hidden * workload.vocab  # layers as wide as the 8B model's
        needed = 0 if quick else 1.1 * weights * BYTES[kept]
        if room < needed:
            why = f"a checkpoint takes about {needed / 1e9:.0f} GB, and the disk has {room / 1e9:.0f} GB"
            yield Result({}, [not_measured("-", what, why, "equal bits")])
            return
        base = prepare(Path(folder), workload, pairs=(STEPS + 2) * workload.batch, weights=False)
        started = time.monotonic()
        killed = _side(base, Path(folder) / "run", kept, resume=False)
        between = time.monotonic()
        resumed = _side(base, Path(folder) / "run", kept, resume=True)
        taken = f"{between - started:.0f} s to the kill, {time.monotonic() - between:.0f} s to resume"
        equal = killed["facts"] == resumed["facts"]
        note = f"resumed from {resumed['from']}; {taken}; weights {killed['facts']['weights'][:12]}"
        if not equal:
            shutil.rmtree(Path(folder) / "run")
            again = _side(base, Path(folder) / "again", kept, resume=False)
            same = again["facts"] == killed["facts"]
            note += f" and {resumed['facts']['weights'][:12]}; the same steps from the start, taken twice, are "
            note += "equal" if same else "not equal either: kernels of this machine do not repeat themselves"
    value = 0.0 if equal else 1.0
    yield Result({}, [Row("-", what, value=value, target="== 0", met=equal, note=f"0: equal bits; {note}")])


def _side(base: dict[str, Any], output: Path, kept: str, resume: bool) -> dict[str, Any]:
    """Run one of the two in a process, and return what it noted."""
    found = output.with_name(f"{output.name}-{resume}.json")
    given = json.dumps({"base": base, "output": str(output), "kept": kept, "resume": resume, "found": str(found)})
    command = [sys.executable, "-m", "benchmarks.resume", given]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode != -signal.SIGKILL or not found.exists():
        last = (answer.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise RuntimeError(f"{'the resumed' if resume else 'the first'} run ended with {answer.returncode}: {last}")
    noted: dict[str, Any] = json.loads(found.read_text())
    return noted


def run_side(base: dict[str, Any], output: str, kept: str, resume: bool, found: str) -> None:
    """Take the steps, note what there is then, and kill this process."""
    quiet_libraries()
    warnings.simplefilter("ignore")
    config = _config(base, Path(output), kept)
    checkpoints = Path(output) / "checkpoints"
    there = sorted(path.name for path in checkpoints.glob("step-*"))
    inside = Inside()
    with ExitStack() as stack:
        for context in (random_weights(), pausing_loop(), inside.looked_at()):
            stack.enter_context(context)
        run = Stepped(lambda: train(config, resume=resume, show_progress=False))
        done = -1
        while done < STEPS - 1:
            run.step()
            done = [row["step"] for row in read_metrics(Path(output) / "metrics.jsonl") if "step" in row][-1]
            if done == STEPS - 1:
                weights = trained_hash(inside.run.trained.policy)
        rows = [row for row in read_metrics(Path(output) / "metrics.jsonl") if "step" in row]
        facts = {"weights": weights, "metrics": [[row.get(name) for name in NUMBERS] for row in rows]}
        while not any(checkpoints.glob("step-*")):  # it may still be being written
            time.sleep(0.2)
        noted = {"facts": facts, "from": there[-1] if there else "the start"}
        Path(found).write_text(json.dumps(noted))
        os.kill(os.getpid(), signal.SIGKILL)


def _config(base: dict[str, Any], output: Path, kept: str) -> TrainConfig:
    config = configured(base, output, kept, "right", "ahead", STEPS + 2)
    return TrainConfig.model_validate(
        config.model_dump(mode="json")
        | {
            "checkpoint": {"every": SAVED, "minutes": None},
            "optimizer": config.optimizer.model_dump(mode="json") | {"lr": 1e-4},
        }
    )


if __name__ == "__main__":
    run_side(**json.loads(sys.argv[1]))
