"""`humanline reproduce`: the declared grid on testbeds made on the spot, kept as it goes, judged at the end."""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline._checks import positive
from humanline.cli.common import (
    EXIT_USER_ERROR,
    Commands,
    complain,
    folder_of,
    processes_of,
    quiet_libraries,
    runs_until_stopped,
)
from humanline.system.paths import DEMO
from humanline.system.terminal import show, visible

if TYPE_CHECKING:
    from humanline.reproduce.chosen import Choice
    from humanline.reproduce.foretold import DataLevel
    from humanline.reproduce.outcome import Outcome
    from humanline.reproduce.run import Job

_OF_GRIDS = ("known", "starts", "draws", "chosen", "minutes")


def reproduce_commands(commands: Commands) -> None:
    """Add what runs the paper in miniature, and the demo, which is the smallest part of it."""
    parser = commands.add_parser("reproduce", help="run the declared grid on tasks made on the spot, and judge claims")
    parser.add_argument("testbeds", nargs="*", metavar="TESTBED", help="run these alone (default: letters)")
    parser.add_argument("--quick", action="store_true", help="eight cells of the letters task in two orders: the demo")
    parser.add_argument(
        "--sampling", action="store_true", help="in place of the grid: GRPO sampled every step, or every 64 (Figure 7)"
    )
    parser.add_argument(
        "--further",
        action="store_true",
        help="beside the grid: offline cells of a weaker anchor or of four passes, and what humanline gains on these",
    )
    parser.add_argument(
        "--chosen",
        type=int,
        metavar="N",
        help="in place of the grid: N draws from each start model of the cells that the grid's draws chose (study: 10)",
    )
    parser.add_argument("--out", help="folder to write to, or to go on with (default: reproduce-out, or demo-out)")
    parser.add_argument("--starts", type=int, help="start models (default: 3; with --sampling 8)")
    draws = "draws of the pairs from each (default: 1; the study: 3); with --chosen those that choose (default: 3)"
    parser.add_argument("--draws", type=int, help=draws)
    parser.add_argument("--all", action="store_true", help="also what else the paper's figures and tables vary")
    known = "take runs over from such a table, and start models that lie beside it, and run the rest; can be repeated"
    parser.add_argument("--known", metavar="RUNS.csv", action="append", help=known)
    parser.add_argument(
        "--minutes",
        type=float,
        help="begin nothing after so many minutes, but the first thing, and finish what is begun; the same goes on",
    )
    scales = "in place of testbeds: write, check and read the runs of larger models; run.sh there makes them"
    parser.add_argument("--scale", choices=("small", "paper"), help=scales)
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="of --scale: runs, or beginnings of their names, such as table3/dpo",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        metavar="section.key=value",
        help="of --scale: replace values in every configuration",
    )
    _common(parser)
    parser.set_defaults(run=_reproduce)

    demo = commands.add_parser("demo", help="the same as reproduce --quick: align tiny models on one task")
    demo.add_argument("--out", help="folder to write to, or to go on with (default: demo-out)")
    _common(demo)
    demo.set_defaults(run=_reproduce, quick=True, testbeds=[], all=False, sampling=False, further=False)
    demo.set_defaults(**dict.fromkeys((*_OF_GRIDS, "scale", "only", "set")))


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, help="runs at a time (default: one for each core)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _reproduce(options: argparse.Namespace) -> int:
    if options.scale is not None:
        return _scale(options)
    if given := [f"--{name}" for name in ("only", "set") if getattr(options, name) is not None]:
        raise ValueError(f"{' and '.join(given)}: of --scale small or --scale paper alone")
    quiet_libraries()
    from humanline.plots import check as check_figures
    from humanline.system.stop import EXIT_STOPPED, StopRequested

    _refuse_what_excludes(options)
    check_figures()  # now, and not when all is run
    folder = folder_of(options, DEMO if options.quick else "reproduce-out")
    jobs, processes = _jobs(options), processes_of(options)
    until = math.inf if options.minutes is None else time.monotonic() + 60 * positive("--minutes", options.minutes)
    is_first = True

    def in_time() -> None:
        nonlocal is_first  # it begins whatever the time, or a command whose start takes as long would never get on
        if not is_first and time.monotonic() > until:
            raise StopRequested(f"--minutes {options.minutes:g}")
        is_first = False

    def work(finished: Callable[[int, int], None]) -> bool:
        nonlocal jobs
        how: dict[str, Any] = {"processes": processes, "progress": finished, "before": in_time}
        if options.quick:
            _refuse_loss(options, jobs, folder)
            _demo(folder, how)
            return True
        jobs, choices = _prepared(options, jobs, folder)
        _refuse_loss(options, jobs, folder)
        _grid(options, jobs, choices, folder, how)
        return True

    if runs_until_stopped(options, folder, work):
        return 0
    for path in _leave_tables(jobs, folder, options):
        complain(options, f"the runs that are kept, as a table: {path}")
    return EXIT_STOPPED


def _scale(options: argparse.Namespace) -> int:
    """Write a plan of larger models, or go on with it, and read what has come of it."""
    from humanline.reproduce.scales.read import read_found
    from humanline.reproduce.scales.registry import SCALES
    from humanline.reproduce.scales.report import counted, write_scale_report
    from humanline.reproduce.scales.write import SCRIPT, prepare, reckoned, write_plan

    others = {"a testbed": bool(options.testbeds), "--all": options.all, "--quick": options.quick}
    others |= {"--sampling": options.sampling, "--further": options.further}
    others |= {f"--{name}": getattr(options, name) is not None for name in (*_OF_GRIDS, "processes")}
    if given := [name for name, is_given in others.items() if is_given]:
        raise ValueError(f"--scale is of larger models, and starts none of them; leave out {' and '.join(given)}")
    quiet_libraries()
    folder = folder_of(options, f"{options.scale}-out")
    plan = prepare(SCALES[options.scale](), folder, options.only or (), options.set)
    found = read_found(plan)
    paths = [*write_plan(plan), *write_scale_report(plan, found)]
    show(
        f"{len(plan.runs)} runs in {folder / SCRIPT}, each configuration valid; of all of this scale: {counted(found)}"
    )
    show(reckoned(plan))
    refused = {name: one.note for name, one in found.items() if one.state == "refused"}
    for name, why in refused.items():
        complain(options, f"{name}: {why}")
    for path in paths:
        print(visible(str(path)))
    return EXIT_USER_ERROR if refused else 0


def _refuse_what_excludes(options: argparse.Namespace) -> None:
    asked = {"a testbed": bool(options.testbeds), "--all": options.all, "--sampling": options.sampling}
    asked |= {"--further": options.further}
    asked |= {f"--{name}": getattr(options, name) is not None for name in _OF_GRIDS[:4]}
    given = [name for name, is_given in asked.items() if is_given]
    if options.quick and given:
        raise ValueError(
            f"--quick is of the letters task and of its own runs; leave it out, or with it {' and '.join(given)}"
        )
    if options.sampling and options.all:
        raise ValueError("--all is of the grid, in whose place --sampling runs cells of its own; leave one of them out")
    if options.further and (given := [name for name in ("--all", "--sampling") if asked[name]]):
        raise ValueError(f"--further has a table of its own; leave it out, or {' and '.join(given)}")
    given = [name for name in ("--all", "--sampling", "--further") if asked[name]]
    if options.chosen is not None and given:
        raise ValueError(
            f"--chosen is of the cells that the grid chose, and {' and '.join(given)} of other runs; leave out one or "
            "the other"
        )


def _jobs(options: argparse.Namespace) -> list[Job]:
    """Return the runs that are asked for; with --chosen those of the grid that choose."""
    from humanline.reproduce.cells import core, further, sampling
    from humanline.reproduce.chosen import choosing_jobs
    from humanline.reproduce.plan import cells_of, grid_jobs
    from humanline.reproduce.quick import demo_jobs
    from humanline.reproduce.testbeds.registry import OTHERS

    if options.quick:
        return demo_jobs()
    starts = (8 if options.sampling else 3) if options.starts is None else options.starts
    draws = (1 if options.chosen is None else 3) if options.draws is None else options.draws
    jobs = []
    for name in dict.fromkeys(options.testbeds or ["letters"]):
        if options.chosen is not None:
            jobs += choosing_jobs(name, starts, draws, options.chosen)
            continue
        if options.further:
            if name in OTHERS:
                raise ValueError(f"--further is beside the grid, and {name} has a few cells of it alone: leave it out")
            cells = [*core(), *further()]
        else:
            cells = sampling() if options.sampling else cells_of(name, everything=options.all)
        jobs += grid_jobs([name], cells, starts, draws)
    return jobs


def _demo(folder: Path, how: dict[str, Any]) -> None:
    from humanline.reproduce.quick import quick

    quick(folder, **how)


def _prepared(options: argparse.Namespace, jobs: list[Job], folder: Path) -> tuple[list[Job], dict[str, Choice]]:
    """Take known runs over; return the runs to make, and, with --chosen, by testbed which cells they are of."""
    from humanline.reproduce.chosen import choose, chosen_jobs
    from humanline.reproduce.known import check_known
    from humanline.reproduce.suite import kept_results, refuse_other_starts, start_scores

    known = {path: _read_known(path) for path in options.known or ()}
    for name in {job.testbed.name for job in jobs} if options.all else ():
        _levels_known(known, name)  # they are needed once all has run: what is no table of levels is named before
    _bring_all(known, jobs, folder)  # first: where start models or pairs are refused no run has been taken over
    tables = {f"--known {path}": outcomes for path, outcomes in known.items()}
    own = Counter(check_known(jobs, tables, folder))
    used = {path: _taken(path, outcomes, jobs, folder) for path, outcomes in known.items()}
    choices = {}
    if options.chosen is not None:
        for name in dict.fromkeys(job.testbed.name for job in jobs):
            mine = [job for job in jobs if job.testbed.name == name]
            found = kept_results(mine, folder).outcomes
            refuse_other_starts(found, start_scores(mine, folder / "starts"))
            choices[name] = choose(mine, found, options.chosen)
        jobs = [job for choice in choices.values() for job in chosen_jobs(choice)]
        _bring_all(known, jobs, folder)
        own.update(check_known(jobs, tables, folder))
        used = {path: used[path] + _taken(path, outcomes, jobs, folder) for path, outcomes in known.items()}
    for path, count in used.items():
        _show_taken(path, known[path], count, jobs)
        if differ := own[f"--known {path}"]:
            show(f"{differ} of these were run here before, with other numbers, and stay as they are here")
    return jobs, choices


def _show_taken(path: str, outcomes: list[Outcome], count: int, jobs: list[Job]) -> None:
    """Say how many runs of a table were taken over; raise ValueError where it was of no use at all."""
    from humanline.reproduce.brought import has_any_beside

    if count:
        show(f"{count} runs of {path} are taken over")
        return
    of = {outcome.testbed for outcome in outcomes}
    here = f"none of its {len(outcomes)} runs (of {', '.join(sorted(of)) or 'nothing'}) is one of this command's"
    if not has_any_beside(Path(path), {(job.testbed, job.start) for job in jobs if job.testbed.name in of}):
        raise ValueError(f"--known {path}: {here} {len(jobs)}: name their testbed, or leave --known out")
    show(f"--known {path}: {here} {len(jobs)}; only start models that lie beside it are used")


def _bring_all(known: dict[str, list[Outcome]], jobs: list[Job], folder: Path) -> None:
    """Take over what lies beside tables of these jobs' testbeds, first that of those that have some of their runs."""
    having = {path: outcomes for path, outcomes in known.items() if _has_any(path, outcomes, jobs)}
    for path, outcomes in having.items():
        theirs = {(outcome.testbed, outcome.start) for outcome in outcomes}
        _bring_starts(Path(path), [job for job in jobs if (job.testbed.name, job.start) in theirs], folder)
    for path, outcomes in {**having, **known}.items():  # then those that no table has runs of
        of = {outcome.testbed for outcome in outcomes}
        _bring_starts(Path(path), [job for job in jobs if job.testbed.name in of], folder)


def _bring_starts(table: Path, jobs: list[Job], folder: Path) -> None:
    """Take over the start models, with their pairs, that lie beside a table of known runs of the same testbeds."""
    from humanline.reproduce.brought import bring, starts_beside
    from humanline.reproduce.suite import held

    for testbed in dict.fromkeys(job.testbed for job in jobs):
        if (beside := starts_beside(table, testbed)) is None:
            continue
        with held(folder):
            names = bring(beside, testbed, {job.start for job in jobs}, folder / "starts")
        if names:
            taken = f"{', '.join(names)} taken over; start models are measured before they are used"
            show(f"{beside / testbed.name}: {taken}")


def _read_known(path: str) -> list[Outcome]:
    from humanline.reproduce.tables import read_outcomes

    try:
        return read_outcomes(Path(path))
    except OSError as error:
        raise ValueError(f"--known {path}: it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"--known {error}") from None


def _has_any(path: str, outcomes: list[Outcome], jobs: list[Job]) -> bool:
    """Return whether a table has outcomes of these jobs."""
    from humanline.reproduce.known import of_jobs

    with _naming(path):
        return bool(of_jobs(jobs, outcomes))


def _taken(path: str, outcomes: list[Outcome], jobs: list[Job], folder: Path) -> int:
    """Keep the outcomes of a table that are of these jobs, and return how many are."""
    from humanline.reproduce.known import take_over

    with _naming(path):
        return take_over(jobs, outcomes, folder)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say of which table a ValueError speaks."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"--known {path}: {error}") from None


def _grid(
    options: argparse.Namespace, jobs: list[Job], choices: dict[str, Choice], folder: Path, how: dict[str, Any]
) -> None:
    from humanline.reproduce.plan import said_time
    from humanline.reproduce.suite import kept_results, run_suite

    before = [one for choice in choices.values() for one in choice.before]
    show(said_time(jobs, [*before, *kept_results(jobs, folder).outcomes], how["processes"]))
    results = run_suite(jobs, folder, beside=before, **how)
    if results.older:
        show(f"{results.older} of these runs were made by other code of training or other libraries than are here now")

    def between() -> None:
        how["progress"](len(jobs), len(jobs))
        how["before"]()

    for name, outcomes in _by_testbed(results.outcomes).items():
        place = _report_folder(options, folder, name)
        paths = _report(options, place, outcomes, choices.get(name))
        mine = [job for job in jobs if job.testbed.name == name]
        for path in [*paths, *_foretold(options, folder, place, mine, outcomes, between)]:
            print(visible(str(path)))


def _refuse_loss(options: argparse.Namespace, jobs: list[Job], folder: Path) -> None:
    """Raise before hours of runs if the tables at their end would take the place of ones that have more."""
    from humanline.reproduce.known import refuse_loss

    for name in dict.fromkeys(job.testbed.name for job in jobs):
        mine = [job for job in jobs if job.testbed.name == name]
        refuse_loss(_report_folder(options, folder, name) / "runs.csv", mine, folder)


def _report_folder(options: argparse.Namespace, folder: Path, testbed: str) -> Path:
    if options.quick:
        return folder
    if options.sampling:
        return folder / testbed / "sampling"
    return folder / testbed / ("further" if options.further else "" if options.chosen is None else "chosen")


def _report(options: argparse.Namespace, folder: Path, outcomes: list[Outcome], choice: Choice | None) -> list[Path]:
    from humanline.reproduce.cells import further
    from humanline.reproduce.chosen import ChosenRules
    from humanline.reproduce.chosen_report import write_chosen_report
    from humanline.reproduce.further import write_further_report
    from humanline.reproduce.paper_report import write_paper_report
    from humanline.reproduce.report import write_report
    from humanline.reproduce.rules import Rules
    from humanline.reproduce.sampling import SamplingRules
    from humanline.reproduce.sampling_report import write_sampling_report

    if options.sampling:
        return write_sampling_report(folder, outcomes, SamplingRules())
    if options.further:
        wider = set(further())
        more = [one for one in outcomes if one.cell in wider]
        return write_further_report(folder, [one for one in outcomes if one.cell not in wider], more)
    if choice is not None:
        return write_chosen_report(folder, choice, outcomes, ChosenRules())
    return [*write_report(folder, outcomes, Rules()), *write_paper_report(folder, outcomes)]


def _foretold(
    options: argparse.Namespace,
    folder: Path,
    place: Path,
    jobs: list[Job],
    outcomes: list[Outcome],
    before: Callable[[], object],
) -> list[Path]:
    """Write whether what is said of data foretells a run's end, where runs on several sets were asked for."""
    if not options.all:
        return []
    from humanline.reproduce.foretold import find_levels, write_foretold
    from humanline.reproduce.known import writers_elsewhere
    from humanline.reproduce.suite import refuse_other_starts, start_scores

    bed, starts = jobs[0].testbed, folder / "starts"
    kept = folder / "levels" / bed.name
    elsewhere = writers_elsewhere(jobs, folder)
    beside = _levels_known({path: _read_known(path) for path in options.known or ()}, bed.name) if elsewhere else []
    if elsewhere and not beside:
        show(
            f"{bed.name}: what is said of its data is not told: no levels.csv lies beside the table that was taken "
            "over, and the models that wrote far and better pairs are not kept"
        )
        return []

    def find(places: Sequence[tuple[int, int]]) -> list[DataLevel]:
        if elsewhere:
            return [one for one in beside if (one.start, one.draw) in places]
        levels = find_levels(bed, places, starts, kept, before=before)
        refuse_other_starts(outcomes, start_scores(jobs, starts))  # where none had to be there for the runs
        return levels

    return write_foretold(place, outcomes, find)


def _levels_known(known: Mapping[str, Sequence[Outcome]], testbed: str) -> list[DataLevel]:
    """Return what is said of a testbed's data beside the tables that have runs of it."""
    from humanline.reproduce.foretold import levels_beside

    return levels_beside(
        Path(path) for path, outcomes in known.items() if any(one.testbed == testbed for one in outcomes)
    )


def _leave_tables(jobs: list[Job], folder: Path, options: argparse.Namespace) -> list[Path]:
    """Write what is kept of some runs as the tables in which a finished command leaves them; return the files."""
    from humanline.reproduce.suite import kept_results
    from humanline.reproduce.tables import write_outcomes
    from humanline.system.files import make_folder

    paths = []
    for name, outcomes in _by_testbed(kept_results(jobs, folder).outcomes).items():
        paths.append(_report_folder(options, folder, name) / "runs.csv")
        make_folder(paths[-1].parent)
        write_outcomes(paths[-1], outcomes)
    return paths


def _by_testbed(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.testbed, []).append(outcome)
    return found
