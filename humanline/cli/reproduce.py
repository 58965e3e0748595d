"""`humanline reproduce`: the declared grid on testbeds made on the spot, kept as it goes, judged at the end."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from humanline.cli.common import Commands, quiet_libraries, runs_until_stopped
from humanline.system.terminal import show, visible


def reproduce_commands(commands: Commands) -> None:
    """Add what runs the paper in miniature, and the demo, which is the smallest part of it."""
    parser = commands.add_parser("reproduce", help="run the declared grid on tasks made on the spot, and judge claims")
    parser.add_argument("testbeds", nargs="*", metavar="TESTBED", help="run these alone (default: letters)")
    parser.add_argument("--quick", action="store_true", help="eight cells of the letters task in two orders: the demo")
    parser.add_argument("--out", help="folder to write to, or to go on with (default: reproduce-out, or demo-out)")
    parser.add_argument("--starts", type=int, default=3, help="start models (default: 3)")
    parser.add_argument("--draws", type=int, default=3, help="draws of the pairs from each start model (default: 3)")
    parser.add_argument("--all", action="store_true", help="also parts alone, trust region, more passes, other data")
    parser.add_argument("--known", metavar="RUNS.csv", help="take runs over from such a table, and run the rest")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes; the same command goes on")
    _common(parser)
    parser.set_defaults(run=_reproduce)

    demo = commands.add_parser("demo", help="the same as reproduce --quick: align tiny models on one task")
    demo.add_argument("--out", help="folder to write to, or to go on with (default: demo-out)")
    _common(demo)
    demo.set_defaults(run=_reproduce, quick=True, testbeds=[], minutes=None, known=None)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, help="runs at a time (default: one for each core)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _reproduce(options: argparse.Namespace) -> int:
    quiet_libraries()
    from humanline.system.stop import EXIT_STOPPED, StopRequested

    if options.quick and (options.testbeds or options.known):
        raise ValueError("--quick is of the letters task and of its own runs; name no testbed and no table with it")
    folder = Path(options.out or ("demo-out" if options.quick else "reproduce-out"))
    processes = options.processes if options.processes is not None else len(os.sched_getaffinity(0))
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes

    def work(finished: Callable[[int, int], None]) -> bool:
        def looked_at(done: int, total: int) -> None:
            finished(done, total)
            if until is not None and time.monotonic() > until and done < total:
                raise StopRequested(f"--minutes {options.minutes:g}")

        _run(options, folder, processes, looked_at)
        return True

    return 0 if runs_until_stopped(options, folder, work) else EXIT_STOPPED


def _run(options: argparse.Namespace, folder: Path, processes: int, finished: Callable[[int, int], None]) -> None:
    from humanline.reproduce.cells import around, core
    from humanline.reproduce.plan import grid_jobs, said_time
    from humanline.reproduce.quick import quick
    from humanline.reproduce.report import write_report
    from humanline.reproduce.rules import Rules
    from humanline.reproduce.suite import kept_results, run_suite, take_over
    from humanline.reproduce.tables import read_outcomes

    if options.quick:
        quick(folder, processes=processes, progress=finished)
        return
    names = list(dict.fromkeys(options.testbeds or ["letters"]))
    jobs = grid_jobs(names, [*core(), *(around() if options.all else ())], options.starts, options.draws)
    if options.known is not None:
        used = take_over(jobs, read_outcomes(Path(options.known)), folder)
        show(f"{used} runs of {options.known} are taken over")
    show(said_time(jobs, kept_results(jobs, folder).outcomes, processes))
    results = run_suite(jobs, folder, processes=processes, progress=finished)
    if results.older:
        show(f"{results.older} of these runs were made by other code of training or other libraries than are here now")
    for name in names:
        of_testbed = [outcome for outcome in results.outcomes if outcome.testbed == name]
        for path in write_report(folder / name, of_testbed, Rules()):
            print(visible(str(path)))
