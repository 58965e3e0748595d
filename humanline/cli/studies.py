"""Commands that show the method and the paper's claims on small problems."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

from humanline.cli.common import Commands, folder_of, processes_of, runs_until_stopped
from humanline.system.terminal import visible


def study_commands(commands: Commands) -> None:
    """Add what shows the method and the paper's claims on small problems."""
    from humanline.plots import FIGURES, NEED_TORCH

    sim = commands.add_parser("sim", help="judge the paper's claims on problems small enough to be exact")
    sim.add_argument("claims", nargs="*", metavar="CLAIM", help="judge these alone (default: all, with figures)")
    sim.add_argument("--quick", action="store_true", help="few seeds and one learning rate: a minute, wide intervals")
    sim.add_argument("--worlds", action="store_true", help="judge three claims in worlds closer to training instead")
    sim.add_argument("--people", action="store_true", help="judge whether perceiving as each person does helps instead")
    sim.add_argument(
        "--out",
        help="folder to write to (default: sim-out, sim-quick, sim-worlds or sim-people)",
    )
    sim.add_argument("--processes", type=int, help="runs at a time (default: one for each core)")
    sim.add_argument("--quiet", action="store_true", help="show no progress")
    sim.set_defaults(run=_sim)

    figures = commands.add_parser("figures", help="make the figures of theory and simulator: CSV, SVG, PNG")
    of_torch = f"{', '.join(NEED_TORCH)} need torch"
    figures.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(FIGURES)}; {of_torch}")
    figures.add_argument("--out", help="folder to write to, made if need be (default: figures)")
    figures.set_defaults(run=_figures)


def _sim(options: argparse.Namespace) -> int:
    from humanline.system.stop import EXIT_STOPPED

    if options.worlds and options.people:
        raise ValueError("--worlds and --people are two studies; ask for one of them")
    special = "worlds" if options.worlds else "people" if options.people else ""
    if special and options.claims:
        raise ValueError(f"--{special} judges claims of its own; name none with it")
    usual = f"sim-{special}" if special else "sim-quick" if options.quick else "sim-out"
    out = str(folder_of(options, usual))
    if options.people and options.processes is not None:
        raise ValueError("--people goes on in one process; leave --processes out")
    judged = {"worlds": _worlds, "people": _people}.get(special, _claims)
    work = functools.partial(judged, options, out)
    lines = runs_until_stopped(options, out, work, keeps=not options.people)
    for line in lines or ():
        print(line)
    return EXIT_STOPPED if lines is None else 0


def _worlds(options: argparse.Namespace, out: str, finished: Callable[[int, int], None]) -> list[str]:
    """Judge three claims in worlds closer to training; return lines that are fit to be shown."""
    from humanline.sim.worlds import FULL_WORLDS, QUICK_WORLDS, study_worlds

    scale = QUICK_WORLDS if options.quick else FULL_WORLDS
    found = study_worlds(out, scale=scale, processes=processes_of(options), progress=finished)
    told = [f"{turn.claim}, {turn.dial}, {turn.task}, {turn.objective}: {turn.words}" for turn in found.turns]
    return [*told, visible(str(Path(out) / "worlds.md"))]


def _people(options: argparse.Namespace, out: str, finished: Callable[[int, int], None]) -> list[str]:
    """Judge whether personal perception helps; return lines that are fit to be shown."""
    from humanline.sim.people import FULL_PEOPLE, QUICK_PEOPLE, study_people

    found = study_people(out, scale=QUICK_PEOPLE if options.quick else FULL_PEOPLE, progress=finished)
    told = [f"{one.claim.name:<30}  {one.verdict}" for one in found.judgements]
    return [*told, visible(str(Path(out) / "people.md"))]


def _claims(options: argparse.Namespace, out: str, finished: Callable[[int, int], None]) -> list[str]:
    """Judge claims of the paper, and draw all figures if none is named; return lines that are fit to be shown."""
    from humanline.sim.report import FULL, QUICK, study

    scale = QUICK if options.quick else FULL
    report = study(out, claims=options.claims, scale=scale, processes=processes_of(options), progress=finished)
    figures = []
    if not options.claims:
        from humanline.plots import write_study_figures

        figures = write_study_figures(out, report)
    width = max(len(judgement.claim.name) for judgement in report.judgements)
    wide = max(len(judgement.verdict) for judgement in report.judgements)
    told = [f"{one.claim.name:<{width}}  {one.verdict:<{wide}}  {one.summary}" for one in report.judgements]
    return [*told, *(visible(str(path)) for path in [Path(out) / "claims.md", *figures])]


def _figures(options: argparse.Namespace) -> int:
    from humanline.plots import write_figures

    for path in write_figures(folder_of(options, "figures"), options.names):
        print(visible(str(path)))
    return 0
