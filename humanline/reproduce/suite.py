"""Many runs, a few at a time: start models first, then pairs, then the cells; kept as they come."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from humanline._workers import as_made, worker_processes
from humanline.reproduce.cells import Cell
from humanline.reproduce.outcome import Outcome, as_text, from_text
from humanline.reproduce.run import Job, run
from humanline.reproduce.start import (
    Pairs,
    has_pairs,
    has_start,
    kept_start,
    make_pairs,
    make_start,
    prompt_files,
    told_start,
)
from humanline.reproduce.testbeds.base import Source, Testbed
from humanline.reproduce.versions import code_digest, made_by
from humanline.reproduce.worker import prepare_worker
from humanline.sim.world import whole
from humanline.system.files import OutputError, make_folder
from humanline.system.kept import KeptResults
from humanline.system.lock import FolderLock, LockHeldError
from humanline.system.terminal import show

STORE = "results.sqlite"
Progress = Callable[[int, int], None]
ELSEWHERE = "elsewhere"  # in place of a digest of the code, of a result that was taken over
_NEAR: tuple[Source, ...] = ("near",)  # where every run starts
_THEN = "what is finished is kept, and the same command goes on"


@dataclass(frozen=True, slots=True)
class Results:
    """Outcomes of a suite.

    Parameters
    ----------
    outcomes : list of Outcome
        In the order of the jobs; those that were not run are left out.
    older : int
        How many of them other code of training has made than is there now.
    """

    outcomes: list[Outcome]
    older: int


@contextlib.contextmanager
def held(folder: Path) -> Iterator[FolderLock]:
    """Make the folder of a suite, and keep every other process out of it meanwhile.

    Raises
    ------
    OutputError
        If another process works in it.
    OSError
        If it cannot be written.
    """
    make_folder(folder)
    lock = FolderLock(folder)
    try:
        lock.take(wait=True, say=lambda text: show(f"{folder}: {text}"))
    except LockHeldError as error:
        raise OutputError(f"{folder} is {error}") from None
    try:
        yield lock
    finally:
        lock.release()


def run_suite(
    jobs: Sequence[Job],
    folder: Path,
    *,
    processes: int = 1,
    keep_runs: bool = False,
    progress: Progress | None = None,
    before: Callable[[], object] | None = None,
    beside: Iterable[Outcome] = (),
) -> Results:
    """Run every job that is not kept yet, and return all outcomes.

    Parameters
    ----------
    jobs : sequence of Job
        In the order in which they are begun.
    folder : Path
        Start models, pairs and results lie there, and no other process may work in it meanwhile. A result is kept as
        soon as it is there, by all settings of the run and by the task; by which code it was made is kept with it.
    processes : int >= 1
        Runs at a time, one thread each.
    keep_runs : bool
        Whether the runs' own folders stay.
    progress : callable, optional
        Called with (done, total) of all runs, at the beginning and after every start model, draw of pairs and run
        that was not there already. What it raises ends those under way.
    before : callable, optional
        Called before each of these is begun; if it raises, those under way are finished and kept first. It is not
        called for what is there, so that one which lets a single thing begin gets on each time.
    beside : iterable of Outcome, optional
        Of other runs that these are compared with: they must have begun from the same start models.

    Raises
    ------
    WorkerError
        If a worker process dies.
    OutputError
        If another process works in the folder.
    LockLostError
        If another process has taken the folder over meanwhile.
    ValueError
        If kept runs of one start began from another start model than others, or than the one that is there.
    OSError, ValueError, ModelError
        If `processes` < 1; as `run` does: runs under way are finished and kept before.
    """
    processes, code = whole("processes", processes, 1), code_digest()
    told, others = progress or (lambda done, total: None), list(beside)

    def refuse_others(kept: Mapping[str, str]) -> None:
        refuse_other_starts([*others, *read_results(jobs, kept, code).outcomes], start_scores(jobs, folder / "starts"))

    with held(folder) as lock:
        store = KeptResults(folder / STORE)
        kept = store.read()
        keys = {job: key_of(job) for job in jobs}
        missing = [job for job, key in keys.items() if key not in kept]
        refuse_others(kept)
        done = len(jobs) - len(missing)
        told(done, len(jobs))
        if missing:
            for testbed in dict.fromkeys(job.testbed for job in missing):
                prompt_files(testbed, folder / "starts")  # here, for runs begin at the same time
            at_once = min(processes, len(missing))
            with worker_processes(at_once, begin=prepare_worker, then=_THEN) as pool:
                for make, wanted in _first(missing, folder / "starts"):
                    begin = partial(_begin, pool, make, folder / "starts")
                    for _ in as_made(wanted, begin, at_once=at_once, before=before):
                        told(done, len(jobs))
                    refuse_others(kept)
                begin_run = partial(_begin_run, pool, folder, keep_runs)
                for job, outcome in as_made(missing, begin_run, at_once=at_once, before=before):
                    lock.refuse_lost()  # whoever took it over may have removed what this was made of
                    kept[keys[job]] = f"{code} {as_text(outcome)}"
                    store.keep(keys[job], job.name, kept[keys[job]])
                    done += 1
                    told(done, len(jobs))
    return read_results(jobs, kept, code)


def kept_results(jobs: Sequence[Job], folder: Path) -> Results:
    """Return the outcomes of those jobs that a folder keeps; nothing is run."""
    store = KeptResults(folder / STORE)
    return read_results(jobs, store.read() if store.path.is_file() else {}, code_digest())


def refuse_other_starts(outcomes: Iterable[Outcome], here: Mapping[tuple[str, int], float] | None = None) -> None:
    """Raise if runs of one start began from different start models: what they differ in is not their settings alone.

    Parameters
    ----------
    outcomes : iterable of Outcome
    here : mapping, optional
        Scores of the start models that further runs are to begin from, by testbed and number.

    Raises
    ------
    ValueError
    """
    runs: dict[tuple[str, int], Counter[str]] = {}
    for outcome in outcomes:
        runs.setdefault((outcome.testbed, outcome.start), Counter())[_in_table(outcome.start_score)] += 1
    for (testbed, start), scores in runs.items():
        said = [f"{score} ({count} of the runs)" for score, count in scores.items()]
        own = (here or {}).get((testbed, start))
        if own is not None and _in_table(own) not in scores:
            said.append(f"{_in_table(own)} (the one that is here)")
        if len(said) > 1:
            raise ValueError(
                f"start model {start} of {testbed} scores {' and '.join(said)}: trained on another kind of processor, "
                f"with other libraries or by an older version, it is another model, and its runs cannot stand for one "
                f"start. Go on where the others were made, or in a new folder with --known naming their table where it "
                f"lies, with its folder starts/{testbed} beside it; or leave the runs of one of the models out"
            )


def _in_table(score: float) -> str:
    """Return a score as tables have it, with the digits by which models are told apart."""
    return f"{score:.6g}"


def start_scores(jobs: Iterable[Job], folder: Path) -> dict[tuple[str, int], float]:
    """Return the scores of the start models of jobs that are there, and those told of models that were brought."""
    found: dict[tuple[str, int], float] = {}
    for testbed, number in dict.fromkeys((job.testbed, job.start) for job in jobs):
        which = testbed, _NEAR[0], number, folder
        if (start := kept_start(*which) or told_start(*which)) is not None:
            found[testbed.name, number] = start.measured.score
    return found


def place_of(job: Job) -> tuple[str, Cell, int, int]:
    """Return where a job's outcome belongs."""
    return job.testbed.name, job.cell, job.start, job.draw


def read_results(jobs: Iterable[Job], kept: Mapping[str, str], code: str) -> Results:
    """Return the outcomes of jobs among kept results."""
    texts = [kept[key] for key in map(key_of, jobs) if key in kept]
    parts = [text.split(" ", 1) for text in texts]
    return Results([from_text(text) for _, text in parts], sum(maker != code for maker, _ in parts))


def _first(jobs: Sequence[Job], folder: Path) -> Iterator[tuple[Callable[..., object], list[tuple[Any, ...]]]]:
    """Yield what makes start models, with what tells each apart that is not there, and then the same of pairs."""
    starts = ((job.testbed, source, job.start) for job in jobs for source in (*_NEAR, job.cell.data))
    yield make_start, [one for one in dict.fromkeys(starts) if not has_start(*one, folder)]
    pairs = ((job.testbed, job.cell.data, job.start, job.draw) for job in jobs)
    yield make_pairs, [one for one in dict.fromkeys(pairs) if not has_pairs(*one, folder)]


def _begin(
    pool: ProcessPoolExecutor, make: Callable[..., object], starts: Path, one: tuple[Any, ...]
) -> Future[object]:
    return pool.submit(make, *one, starts)


def _begin_run(pool: ProcessPoolExecutor, folder: Path, keep_runs: bool, job: Job) -> Future[Outcome]:
    return pool.submit(run, job, folder, keep_runs=keep_runs)


def pairs_at(testbed: Testbed, source: Source, start: int, draw: int, starts: Path) -> Pairs:
    """Return the pairs of a place; these and start models that are not there are made as suites make them."""
    if not (has_start(testbed, "near", start, starts) and has_pairs(testbed, source, start, draw, starts)):
        with worker_processes(1, begin=prepare_worker, then=_THEN) as pool:
            pool.submit(make_start, testbed, "near", start, starts).result()
            pool.submit(make_pairs, testbed, source, start, draw, starts).result()
    return make_pairs(testbed, source, start, draw, starts)


def key_of(job: Job) -> str:
    """Return the key of a run's result: of all its settings, and of the task as it is."""
    said = f"{job.testbed.name!r}, {job.cell.settings}, {job.start}, {job.draw}, {made_by(job.testbed)!r}"
    return hashlib.sha256(f"({said})".encode()).hexdigest()
