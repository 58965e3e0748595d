"""What a round takes when the next one is sampled meanwhile, by a second process (target 13)."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

from benchmarks.interleave import clock
from benchmarks.machine import DEVICE
from benchmarks.report import Result, Row, timing_row
from benchmarks.runs import GPU, QUICK, Workload, prepare
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from humanline.train.online.rounds import Rounds
from humanline.train.run.metrics import read_metrics

CPU = Workload(hidden=192, layers=3, heads=4, vocab=4096, prompt=32, answer=64, batch=8, micro_batch=8)
ROUNDS = 6  # of which the first, sampled alone, and the last, with nothing left to sample, are not looked at


def benchmark_overlap(quick: bool) -> Result:
    """Run the real loop with and without overlap, one after the other, several times."""
    workload = QUICK if quick else GPU if DEVICE == "cuda" else CPU
    repetitions = 1 if quick else 5
    prompts = workload.batch if quick else 2 * workload.batch
    alone: list[float] = []  # the longer of sampling and training, by themselves, of a round
    one_after_the_other: list[float] = []
    together: list[float] = []
    sampling: list[float] = []
    training: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = prepare(folder, workload)
        for repetition in range(repetitions):
            for overlap in (False, True):
                run = _config(base, folder / f"{repetition}-{overlap}", workload, prompts, overlap)
                whole, sampled, trained = _rounds(run)
                if overlap:
                    together.append(whole)
                else:
                    one_after_the_other.append(whole)
                    alone.append(max(sampled, trained))
                    sampling.append(sampled)
                    training.append(trained)
    rows: list[Row] = [
        timing_row(
            "13",
            "a round with overlap / the longer of its sampling and its training, each alone",
            together,
            alone,
            limit=1.05,
            note=f"alone: sampling and scoring {mean(sampling):.3g} s, training {mean(training):.3g} s a round; one "
            "thread for each process",
        ),
        timing_row("-", "a round with overlap / one after the other", together, one_after_the_other),
    ]
    settings = {"prompts a round": prompts, "samples": 4, "rounds": ROUNDS, "repetitions": repetitions}
    seconds = {"overlap": together, "one after the other": one_after_the_other, "alone": alone}
    return Result(settings, rows, seconds)


def _config(base: dict[str, Any], output: Path, workload: Any, prompts: int, overlap: bool) -> TrainConfig:
    data = Path(base["data"]["train"])
    file = data.with_name("prompts.jsonl")
    if not file.exists():
        rows = [json.loads(line) for line in data.read_text().splitlines()]
        file.write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in rows))
    return TrainConfig.model_validate(
        {
            **base,
            "output": str(output),
            "objective": {"kind": "grpo", "kl_coef": 0.0},
            "reference": {"schedule": {"kind": "each_round"}},
            "data": {"train": str(file), "template": "plain", "max_length": workload.prompt + workload.answer + 8},
            "source": {
                "kind": "rounds",
                "contexts_per_round": prompts,
                "samples": 4,
                "count": ROUNDS,
                "overlap": overlap,
                "sampling": {"max_tokens": workload.answer, "engine": {"kind": "generate", "batch_size": 4 * prompts}},
                "scoring": {"rewards": [{"kind": "format"}], "workers": 1},
            },
            "training": {
                "batch_size": max(1, prompts // 2),
                "micro_batch_size": max(4, workload.micro_batch),
                "precision": workload.precision,
            },
            "checkpoint": {"minutes": None},
        }
    )


def _rounds(config: TrainConfig) -> tuple[float, float, float]:
    """Return the mean seconds of a round, of its sampling and scoring, and of its training."""
    opened: list[float] = []
    start = Rounds._open

    def noted(self: Rounds, *args: Any) -> None:
        opened.append(clock())
        start(self, *args)

    with patch.object(Rounds, "_open", noted):
        result = train(config, show_progress=False)
    rows = list(read_metrics(result.metrics_file))
    rounds = [row for row in rows if "round" in row][1:-1]
    steps = [row["seconds"] for row in rows if "step" in row]
    each = len(steps) // ROUNDS
    trained = [sum(steps[number * each : (number + 1) * each]) for number in range(1, ROUNDS - 1)]
    whole = [after - before for before, after in itertools.pairwise(opened[1:])]
    return mean(whole), mean(row["seconds"] for row in rounds), mean(trained)
