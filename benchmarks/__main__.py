"""Run the benchmarks: `python -m benchmarks [names] [--quick] [--objective dpo] [--out FOLDER]`, or draw: `--plot`."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.beta import benchmark_beta
from benchmarks.capacity import benchmark_capacity
from benchmarks.checkpoints import benchmark_checkpoints
from benchmarks.large import benchmark_large
from benchmarks.logprobs import benchmark_logprobs
from benchmarks.machine import machine
from benchmarks.memory import benchmark_memory
from benchmarks.overlap import benchmark_overlap
from benchmarks.packed import benchmark_packed
from benchmarks.plot import plot_results
from benchmarks.reading import benchmark_reading
from benchmarks.report import Result, print_rows, write_result
from benchmarks.sharded import benchmark_sharded
from benchmarks.simulator import benchmark_simulator
from benchmarks.steps import benchmark_equality, benchmark_steps
from benchmarks.trl_steps import benchmark_trl

RESULTS = Path(__file__).resolve().parent / "results"


def main(arguments: list[str] | None = None) -> None:
    """Run what is named, print a table for each and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed and memory, side by side.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help="which ones, by default all: steps, equality, memory, trl, packed, overlap, sharded, large, "
        "logprobs, beta, capacity, simulator, reading, checkpoints",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to see that it runs; writes no results")
    parser.add_argument("--objective", choices=("dpo", "kto", "grpo"), default="dpo", help="of `steps`")
    parser.add_argument("--out", type=Path, help="folder of the results (default: benchmarks/results)")
    parser.add_argument("--plot", action="store_true", help="measure nothing, only draw the results that are there")
    chosen = parser.parse_args(arguments)
    registry: dict[str, Callable[[bool], Result]] = {
        "steps": lambda quick: benchmark_steps(quick, chosen.objective),
        "equality": benchmark_equality,
        "memory": benchmark_memory,
        "trl": benchmark_trl,
        "packed": benchmark_packed,
        "overlap": benchmark_overlap,
        "sharded": benchmark_sharded,
        "large": benchmark_large,
        "logprobs": benchmark_logprobs,
        "beta": benchmark_beta,
        "capacity": benchmark_capacity,
        "simulator": benchmark_simulator,
        "reading": benchmark_reading,
        "checkpoints": benchmark_checkpoints,
    }
    for name in chosen.names:
        if name not in registry:
            parser.error(f"unknown benchmark {name!r}; known: {', '.join(registry)}")
    if chosen.plot:
        print(f"written: {', '.join(str(path) for path in plot_results(chosen.out or RESULTS))}")
        return
    warnings.filterwarnings("ignore", category=FutureWarning)
    facts = machine()
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    if chosen.quick:
        print("quick: it runs; at these sizes no target means anything")
    for name in chosen.names or registry:
        started = time.perf_counter()
        result = registry[name](chosen.quick)
        print_rows(f"{name} ({time.perf_counter() - started:.0f} s)", result.rows)
        if chosen.out or not chosen.quick:
            stem = f"{name}-{chosen.objective}" if name == "steps" and chosen.objective != "dpo" else name
            print(f"  written: {write_result(chosen.out or RESULTS, stem, result, facts)}")
    if not chosen.quick:
        print(f"  drawn: {plot_results(chosen.out or RESULTS)[0]}")


if __name__ == "__main__":
    main()
