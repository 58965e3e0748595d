"""Results from elsewhere, such as a committed table: taken over where they agree, and lost to no table written anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from humanline.reproduce.outcome import Outcome, as_text, from_text
from humanline.reproduce.run import Job
from humanline.reproduce.suite import ELSEWHERE, STORE, held, key_of, place_of, refuse_other_starts, start_scores
from humanline.reproduce.tables import as_written, read_outcomes
from humanline.reproduce.versions import made_by
from humanline.system.kept import KeptResults


def of_jobs(jobs: Sequence[Job], outcomes: Iterable[Outcome]) -> list[tuple[Job, Outcome]]:
    """Return those of outcomes from elsewhere, such as a committed table, that are of these jobs, each with its job.

    Raises
    ------
    ValueError
        If one is of a task that has changed since.
    """
    wanted, found = {place_of(job): job for job in jobs}, []
    for outcome in outcomes:
        job = wanted.get((outcome.testbed, outcome.cell, outcome.start, outcome.draw))
        if job is None:
            continue
        if outcome.task != (now := made_by(job.testbed)):
            raise ValueError(
                f"{job.name} was run on another {job.testbed.name} task, or in another way ({outcome.task}), than "
                f"now ({now}): its result says nothing of this one; run it anew"
            )
        found.append((job, outcome))
    return found


def take_over(jobs: Sequence[Job], outcomes: Iterable[Outcome], folder: Path) -> int:
    """Keep outcomes `of_jobs` as if they had been run here, unless there is a result already; return how many.

    Raises
    ------
    ValueError
        As `of_jobs` does; then, as where none is used, nothing is written.
    OutputError
        If another process works in the folder.
    OSError
        If they cannot be kept.
    """
    if used := of_jobs(jobs, outcomes):
        with held(folder):
            store = KeptResults(folder / STORE)
            store.read()
            store.keep_all((key_of(job), job.name, f"{ELSEWHERE} {as_text(outcome)}") for job, outcome in used)
    return len(used)


def check_known(jobs: Sequence[Job], tables: Mapping[str, Sequence[Outcome]], folder: Path) -> dict[str, int]:
    """Look at tables together, before anything of them is kept; return how many runs of each the folder made otherwise.

    Such runs stay as they are: numbers of the same run differ a little between kinds of processors.

    Parameters
    ----------
    jobs : sequence of Job
    tables : mapping
        What each table has, by its name.
    folder : Path
        Of the suite.

    Raises
    ------
    ValueError
        If two tables, or a table and one that was taken over before, have different numbers of one run; if runs of one
        start began from different start models; as `of_jobs` and `writers_elsewhere` do.
    """
    kept = _kept(folder)
    there = {job: kept[key].split(" ", 1) for job in jobs if (key := key_of(job)) in kept}
    numbers = dict(zip(there, _numbers([from_text(text) for _, text in there.values()]), strict=True))
    said = {job: (str(folder), numbers[job]) for job, (maker, _) in there.items() if maker == ELSEWHERE}
    own, began = Counter[str](), [from_text(text) for _, text in there.values()]
    for name, outcomes in tables.items():
        used = of_jobs(jobs, outcomes)
        for (job, outcome), written in zip(used, _numbers([one for _, one in used]), strict=True):
            if job in there and job not in said:
                own[name] += numbers[job] != written
                continue
            where, before = said.setdefault(job, (name, written))
            if before != written:
                raise ValueError(
                    f"{job.name}: its score is {outcome.score:.6g} in {name}, with numbers that differ from those of "
                    f"{where}: they are two runs; leave one of the tables out, or take another --out"
                )
            began.append(outcome)
    refuse_other_starts(began, start_scores(jobs, folder / "starts"))
    writers_elsewhere(jobs, folder, set(said))
    return dict(own)


def _numbers(outcomes: Sequence[Outcome]) -> list[str]:
    """Return outcomes as tables have them, in a form that can be compared (nan too), but for the time they took."""
    return [repr(replace(one, seconds=0.0)) for one in as_written(outcomes)]


def _kept(folder: Path) -> dict[str, str]:
    store = KeptResults(folder / STORE)
    return store.read() if store.path.is_file() else {}


def writers_elsewhere(jobs: Sequence[Job], folder: Path, also: Collection[Job] = ()) -> set[tuple[str, str, int]]:
    """Return of which testbeds, data and start models runs were taken over that learned from other models' answers.

    The models that wrote far and better pairs are not kept beside tables, and nothing tells them from those of the same
    seed on another kind of processor.

    Parameters
    ----------
    jobs : sequence of Job
    folder : Path
        Of the suite.
    also : collection of Job
        Those whose outcomes are about to be taken over, too.

    Raises
    ------
    ValueError
        If other jobs on the same data are still to be run: they would learn from answers of other models.
    """
    kept = _kept(folder)
    known, missing = set[tuple[str, str, int]](), set[tuple[str, str, int]]()
    for job in jobs:
        if job.cell.data != "near":
            maker = ELSEWHERE if job in also else kept.get(key_of(job), "").split(" ", 1)[0]
            {ELSEWHERE: known, "": missing}.get(maker, set()).add((job.testbed.name, job.cell.data, job.start))
    if both := sorted(known & missing):
        testbed, data, start = both[0]
        raise ValueError(
            f"some runs on {data} pairs of start model {start} of {testbed} come from a table, and others are to be "
            "made: the model that wrote these pairs does not lie beside it, so that they would be other pairs; leave "
            "out --all, or --known with another --out"
        )
    return known


def refuse_loss(table: Path, jobs: Sequence[Job], folder: Path) -> None:
    """Raise if a table that is to be written anew has runs that its folder does not keep.

    Runs of a task as it was before are of no use any more, and not counted.

    Raises
    ------
    ValueError
        With how many, and what to do.
    """
    if not table.is_file():
        return
    testbeds, kept = {job.testbed.name: job.testbed for job in jobs}, _kept(folder)
    advice = "take another --out, or move the table away"
    try:
        outcomes = read_outcomes(table)
    except (OSError, ValueError) as error:
        raise ValueError(f"{table} would be written anew, and is no table that could be: {error}; {advice}") from None
    lost = [
        one
        for one in outcomes
        if one.testbed not in testbeds
        or (
            one.task == made_by(testbeds[one.testbed])
            and key_of(Job(testbeds[one.testbed], one.cell, one.start, one.draw)) not in kept
        )
    ]
    if lost:
        raise ValueError(
            f"{table} would be written anew without {len(lost)} of its {len(outcomes)} runs, which {folder / STORE} "
            f"does not keep: {advice}"
        )
