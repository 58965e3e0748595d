"""Commands that show the method and the paper's claims on small problems."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from humanline.cli.common import Commands, complain
from humanline.system.terminal import visible


def study_commands(commands: Commands) -> None:
    """Add what shows the method and the paper's claims on small problems."""
    from humanline.plots import FIGURES

    sim = commands.add_parser("sim", help="judge the paper's claims on problems small enough to be exact")
    sim.add_argument("claims", nargs="*", metavar="CLAIM", help="judge these alone (default: all, with figures)")
    sim.add_argument("--quick", action="store_true", help="few seeds and one learning rate: a minute, wide intervals")
    sim.add_argument("--worlds", action="store_true", help="judge three claims in worlds closer to training instead")
    sim.add_argument("--out", help="folder to write to (default: sim-out, or sim-quick; with --worlds sim-worlds)")
    sim.add_argument("--processes", type=int, help="runs at a time (default: one for each core)")
    sim.add_argument("--quiet", action="store_true", help="show no progress")
    sim.set_defaults(run=_sim)

    figures = commands.add_parser("figures", help="make the figures of theory and simulator: CSV, SVG, PNG")
    figures.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(FIGURES)}")
    figures.add_argument("--out", default="figures", help="folder to write to, made if need be (default: figures)")
    figures.set_defaults(run=_figures)


def _sim(options: argparse.Namespace) -> int:
    from humanline.sim.report import FULL, QUICK, study
    from humanline.sim.worlds import FULL_WORLDS, QUICK_WORLDS, study_worlds
    from humanline.system.progress import CountProgress
    from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal

    processes = options.processes if options.processes is not None else len(os.sched_getaffinity(0))
    if options.worlds and options.claims:
        raise ValueError("--worlds judges claims of its own; name none with it")
    out = options.out or ("sim-worlds" if options.worlds else "sim-quick" if options.quick else "sim-out")
    scale = QUICK if options.quick else FULL
    progress = CountProgress("runs", show=not options.quiet)
    with StopSignal() as stop:

        def finished(done: int, total: int) -> None:
            progress(done, total)
            if stop.requested is not None:
                raise StopRequested(stop.requested)

        stop.hold()  # an exception in the middle of torch's or SQLite's work would be a fault
        try:
            with progress:
                if options.worlds:
                    worlds = QUICK_WORLDS if options.quick else FULL_WORLDS
                    found = study_worlds(out, scale=worlds, processes=processes, progress=finished)
                    for turn in found.turns:
                        print(f"{turn.claim}, {turn.dial}, {turn.task}, {turn.objective}: {turn.words}")
                    print(visible(str(Path(out) / "worlds.md")))
                    return 0
                report = study(out, claims=options.claims, scale=scale, processes=processes, progress=finished)
        except StopRequested as request:
            kept = f"{progress.done} of {progress.total} runs are kept in {out}; the same command goes on"
            complain(options, f"{request}: {kept}")
            return EXIT_STOPPED
        figures = []
        if not options.claims:
            from humanline.plots import write_study_figures

            figures = write_study_figures(out, report)
    width = max(len(judgement.claim.name) for judgement in report.judgements)
    wide = max(len(judgement.verdict) for judgement in report.judgements)
    for judgement in report.judgements:
        print(f"{judgement.claim.name:<{width}}  {judgement.verdict:<{wide}}  {judgement.summary}")
    for path in [Path(out) / "claims.md", *figures]:
        print(visible(str(path)))
    return 0


def _figures(options: argparse.Namespace) -> int:
    from humanline.plots import write_figures

    for path in write_figures(options.out, options.names):
        print(visible(str(path)))
    return 0
