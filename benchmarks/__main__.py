"""Run the benchmarks: `python -m benchmarks [names] [--quick] [--minutes M] [--out FOLDER]`, or draw: `--plot`.

Each runs in a process of its own. Its results are written as it finds them, and what fails is a row that says why.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.large import parts_of_large, rows_of_large
from benchmarks.parts import Clock, Part, ended_by_signals, reason_of, run_part, run_parts
from benchmarks.plot import plot_results
from benchmarks.report import Result, not_measured, print_rows, write_result

RESULTS = Path(__file__).resolve().parent / "results"
QUICK_MINUTES, MINUTES = 1.9, 240.0


@dataclass(frozen=True, slots=True)
class Known:
    """A benchmark: its function, and the seconds that it needs: quick, on two idle cores, and on a GPU."""

    call: str
    quick: float
    cpu: float
    gpu: float


KNOWN = {
    "steps": Known("benchmarks.steps:benchmark_steps", 4, 300, 100),
    "equality": Known("benchmarks.steps:benchmark_equality", 4, 20, 40),
    "memory": Known("benchmarks.memory:benchmark_memory", 12, 120, 90),
    "trl": Known("benchmarks.trl_steps:benchmark_trl", 8, 1200, 600),
    "trl-inside": Known("benchmarks.trl_inside:benchmark_trl_inside", 8, 300, 300),
    "packed": Known("benchmarks.packed:benchmark_packed", 3, 90, 45),
    "overlap": Known("benchmarks.overlap:benchmark_overlap", 14, 300, 90),
    "batches": Known("benchmarks.batches:benchmark_batches", 3, 60, 60),
    "checkpoints": Known("benchmarks.checkpoints:benchmark_checkpoints", 2, 300, 120),
    "sharded": Known("benchmarks.sharded:benchmark_sharded", 4, 120, 60),
    "large": Known("", 0, 0, 0),  # its rows are parts of their own
    "logprobs": Known("benchmarks.logprobs:benchmark_logprobs", 6, 240, 60),
    "beta": Known("benchmarks.beta:benchmark_beta", 3, 60, 60),
    "capacity": Known("benchmarks.capacity:benchmark_capacity", 4, 60, 60),
    "fits": Known("benchmarks.fits:benchmark_fits", 6, 120, 120),
    "people": Known("benchmarks.people:benchmark_people", 8, 300, 300),
    "simulator": Known("benchmarks.simulator:benchmark_simulator", 5, 400, 400),
    "reading": Known("benchmarks.reading:benchmark_reading", 18, 900, 900),
}


@dataclass
class Benchmark:
    """A benchmark on its way: its parts, what they have found so far, and the file that says so at every moment."""

    name: str
    parts: list[Part]
    folder: Path
    facts: dict[str, Any]
    quick: bool = False
    found: dict[int, Result] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def result(self) -> Result:
        """Return what there is so far; a part that has found nothing yet has a row that says so."""
        whole = Result({"quick": True} if self.quick else {}, [])
        for place, part in enumerate(self.parts):
            found = self.found.get(place, Result({}, []))
            if place not in self.ended:
                why = "it was not reached" if place not in self.found else "the rest of it was not reached"
                found = found.with_more(Result({}, [not_measured(part.number, part.what, why, part.target)]))
            whole = whole.with_more(found)
        if self.name.partition("-")[0] == "large":
            whole = whole.with_more(Result({}, rows_of_large(whole.settings)))
        return whole

    def write(self) -> Path:
        """Write what there is so far."""
        return write_result(self.folder, self.name, self.result(), self.facts)


def main(arguments: list[str] | None = None) -> int:
    """Run what is named, print a table for each, write the results, and return 0 if nothing failed."""
    chosen = _parsed(arguments)
    if chosen.plot:
        print(f"written: {', '.join(str(path) for path in plot_results(chosen.out or RESULTS))}")
        return 0
    with ended_by_signals():
        return _run(chosen)


def _run(chosen: argparse.Namespace) -> int:
    minutes = chosen.minutes or (QUICK_MINUTES if chosen.quick else MINUTES)
    clock = Clock(minutes, workers=2 if chosen.quick else 1)
    facts, failed = _machine(clock)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    if chosen.quick:
        print("quick: it runs; at these sizes no target means anything")
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.out or (Path(scratch) if chosen.quick else RESULTS)
        benchmarks = [
            Benchmark(_stem(name, chosen), _parts(name, chosen, bool(facts["gpu"])), folder, facts, chosen.quick)
            for name in chosen.names or KNOWN
        ]
        failed |= _run_all(benchmarks, clock, bool(chosen.out or not chosen.quick), chosen.quick and not facts["gpu"])
    if not chosen.quick and not chosen.out:
        try:
            print(f"  drawn: {plot_results(folder)[0]}")
        except Exception as error:  # the numbers are there
            print(f"  not drawn: {reason_of(error)}")
    return 1 if failed else 0


def _run_all(benchmarks: list[Benchmark], clock: Clock, written: bool, shared_start: bool) -> bool:
    """Run all parts of all benchmarks; return whether any failed."""
    places = [(one, place) for one in benchmarks for place in range(len(one.parts))]
    lock, failed, started = threading.Lock(), False, time.monotonic()

    def close(one: Benchmark) -> None:
        print_rows(f"{one.name} (after {time.monotonic() - started:.0f} s)", one.result().rows)
        if written:
            print(f"  written: {one.write()}", flush=True)

    def tell(number: int, result: Result, ended: bool) -> None:
        nonlocal failed
        one, place = places[number]
        with lock:
            one.found[place] = result
            if ended:
                one.ended.add(place)
                failed |= any(row.failed for row in result.rows)
            one.write()
            if len(one.ended) == len(one.parts):
                close(one)

    for one in benchmarks:
        one.write()
        if not one.parts:
            close(one)
    run_parts([one.parts[place] for one, place in places], clock, tell, shared_start=shared_start)
    return failed


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed and memory, side by side.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which ones, by default all: {', '.join(KNOWN)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to see that it runs")
    parser.add_argument(
        "--minutes", type=float, help=f"for all together (default: {MINUTES:g}, quick {QUICK_MINUTES:g})"
    )
    parser.add_argument("--objective", choices=("dpo", "kto", "grpo"), default="dpo", help="of `steps`")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="of `large`: leave out its first N parts")
    parser.add_argument("--out", type=Path, help="folder of the results (default: benchmarks/results; quick: none)")
    parser.add_argument("--plot", action="store_true", help="measure nothing, only draw the results that are there")
    chosen = parser.parse_args(arguments)
    for name in chosen.names:
        if name not in KNOWN:
            parser.error(f"unknown benchmark {name!r}; known: {', '.join(KNOWN)}")
    if chosen.minutes is not None and not chosen.minutes > 0:
        parser.error(f"--minutes must be > 0; got {chosen.minutes:g}")
    chosen.names = list(dict.fromkeys(chosen.names))
    return chosen


def _stem(name: str, chosen: argparse.Namespace) -> str:
    if name == "large" and chosen.skip:
        return f"large-after-{chosen.skip}"
    return f"{name}-{chosen.objective}" if name == "steps" and chosen.objective != "dpo" else name


def _parts(name: str, chosen: argparse.Namespace, gpu: bool) -> list[Part]:
    """Return what of a benchmark runs in processes of its own."""
    known, quick = KNOWN[name], chosen.quick
    if name == "large":
        return parts_of_large(quick, gpu)[max(0, chosen.skip) :]
    arguments = {"quick": quick} | ({"objective": chosen.objective} if name == "steps" else {})
    on_gpu = known.gpu if not quick else 2.5 * known.quick  # where each loads its libraries itself
    needs = on_gpu if gpu else known.quick if quick else known.cpu
    return [Part(f"{name}: all that was not found before", known.call, arguments, needs=needs)]


def _machine(clock: Clock) -> tuple[dict[str, Any], bool]:
    """Return the facts about this machine, and whether they could not be had."""
    found = run_part(Part("the machine", "benchmarks.machine:machine_result"), min(60.0, clock.left))
    if not found.rows:
        return found.settings, False
    print_rows("machine", found.rows)
    return {"cpu": "not known", "torch_threads": "not known", "gpu": None, "versions": {"torch": "not known"}}, True


if __name__ == "__main__":
    sys.exit(main())
