"""What a step of training costs: scoring ahead, a second model, and the loop itself (targets 1, 2, 4 and 14)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

from benchmarks.interleave import clock, interleave
from benchmarks.machine import DEVICE
from benchmarks.report import Result, Row, not_measured, timing_row
from benchmarks.runs import CPU, GPU, QUICK, REFERENCES, Stepped, Workload, bare_dpo, pausing_loop, prepare, run_config
from humanline.train.loop import train
from humanline.train.step.reference import SecondModel


def benchmark_steps(quick: bool, objective: str = "dpo") -> Iterator[Result]:
    """Run the real loop under four references, and a bare loop, side by side, step by step."""
    workload = QUICK if quick else GPU if DEVICE == "cuda" else CPU
    rounds, warm_up = (6, 3) if quick else (32, 3)
    steps = warm_up + rounds + 1  # a run's last step has nothing left to score ahead, so it is not timed
    syncs: list[float] = []
    before_update = SecondModel.before_update

    def timed_sync(self: SecondModel, step: int) -> None:
        if not self.schedule.copies_before_update(step):
            return before_update(self, step)
        started = clock()
        before_update(self, step)
        syncs.append(clock() - started)

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        base = prepare(folder, workload)
        stack.enter_context(pausing_loop())
        stack.enter_context(patch.object(SecondModel, "before_update", timed_sync))
        runs: dict[str, Stepped] = {}
        for key, reference in REFERENCES.items():
            config = run_config(base, folder / key, reference, steps=steps, objective=objective)
            runs[key] = Stepped(lambda config=config: train(config, show_progress=False))  # type: ignore[misc]
        if objective == "dpo":
            config = run_config(base, folder / "bare", REFERENCES["free"], steps=steps)
            runs["bare"] = Stepped(lambda: bare_dpo(config))
        for run in runs.values():
            stack.callback(run.close)
        seconds = interleave({key: run.step for key, run in runs.items()}, rounds=rounds, warm_up=warm_up)
        for run in runs.values():
            run.close()
        syncs = syncs[warm_up : warm_up + rounds]
    rows = [
        timing_row(
            "1", "step: scoring ahead / live reference", seconds["ahead"], seconds["live"], limit=1.02, upper_end=True
        ),
        timing_row(
            "2",
            "step: scoring ahead / precomputed offline",
            seconds["ahead"],
            seconds["free"],
            limit=None if objective == "kto" else 1.36,
            note="KTO's mismatched pairs are scored too: 6 / 4 in theory, not 4 / 3" if objective == "kto" else "",
        ),
        timing_row("-", "step: scoring ahead / second model synced every step", seconds["ahead"], seconds["second"]),
        timing_row(
            "4",
            "one sync of the second model / its step",
            syncs,
            seconds["second"],
            limit=0.005,
            note="the share falls as 1 / tokens per step",
        ),
    ]
    what = "step: the loop / a bare loop of the same forward, backward, clip, step"
    if "bare" in seconds:
        rows.append(timing_row("14", what, seconds["free"], seconds["bare"], limit=1.03, upper_end=True))
    else:
        rows.append(not_measured("14", what, "the bare loop is written for DPO only", "upper end <= 1.03"))
    settings = asdict(workload) | {"rounds": rounds, "warm_up": warm_up, "objective": objective}
    yield Result(settings, rows, seconds | {"sync": syncs})
    if objective == "dpo":
        yield _with_checkpointing(workload, rounds, warm_up)


def _with_checkpointing(workload: Workload, rounds: int, warm_up: int) -> Result:
    """Compare scoring ahead with precomputed log-probabilities where activations are computed again."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        base = prepare(Path(name), workload)
        stack.enter_context(pausing_loop())
        runs: dict[str, Stepped] = {}
        for key in ("ahead", "free"):
            config = run_config(
                base,
                Path(name) / key,
                REFERENCES[key],
                steps=warm_up + rounds + 1,
                training={"activation_checkpointing": True},
            )
            runs[key] = Stepped(lambda config=config: train(config, show_progress=False))  # type: ignore[misc]
            stack.callback(runs[key].close)
        variants = {key: run.step for key, run in runs.items()}
        seconds = interleave(variants, rounds=min(rounds, 20), warm_up=warm_up)
    what = "step, activation checkpointing: scoring ahead / precomputed offline"
    row = timing_row("2", what, seconds["ahead"], seconds["free"], limit=1.28)
    return Result({}, [row], {f"{key}, checkpointing": values for key, values in seconds.items()})


def benchmark_equality(quick: bool) -> Iterator[Result]:
    """Compare the weights of whole runs: scoring ahead against a second model; and log-ratios at rate 0 (3 and 6)."""
    from safetensors.torch import load_file

    from humanline.train.run.metrics import read_metrics

    steps = 4 if quick else 12

    def of(row: Row) -> Result:
        return Result(asdict(QUICK) | {"steps": steps}, [row])

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = prepare(folder, QUICK)
        for every in (1, 4):
            weights = []
            for storage in ("score_ahead", "model"):
                reference = {"schedule": {"kind": "before_step", "every": every}, "storage": storage}
                result = train(
                    run_config(base, folder / f"{storage}-{every}", reference, steps=steps, lr=1e-3),
                    show_progress=False,
                )
                weights.append(load_file(result.model / "model.safetensors"))
            gap = max(float((weights[0][key] - weights[1][key]).abs().max()) for key in weights[0])
            yield of(
                Row(
                    "3",
                    f"parameters after {steps} steps: scoring ahead, second model; k = {every}",
                    value=gap,
                    target="largest gap == 0",
                    met=gap == 0 if DEVICE == "cpu" else None,
                    note="" if DEVICE == "cpu" else "the target is for float32 on the CPU",
                )
            )
        config = run_config(base, folder / "rate-0", REFERENCES["ahead"], steps=steps, lr=0.0)
        metrics = read_metrics(train(config, show_progress=False).metrics_file)
        largest = max(row["log_ratio_rms"] for row in metrics if "step" in row)
        what = f"largest log-ratio rms over {steps} steps at learning rate 0"
        yield of(Row("6", what, value=largest, target="== 0", met=largest == 0))
