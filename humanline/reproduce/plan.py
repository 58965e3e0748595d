"""Which runs a grid takes, in which order, and how long they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from humanline.reproduce.cells import Cell, around, core, figure_9, paper
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.run import Job
from humanline.reproduce.testbeds.registry import OTHERS, testbed

#: CPU seconds, machine busy: of a run of one pass offline, of an online one, and of a start model with a draw of its
#: pairs. The first two are means of the committed runs of a grid (of letters less what workers have saved since); the
#: third is measured, but for instructions and instructions-large. Kept runs replace the first two (`expected_seconds`).
SECONDS: dict[str, tuple[float, float, float]] = {
    "letters": (8.0, 17.0, 40.0),
    "letters-large": (29.0, 47.0, 116.0),
    "arithmetic": (23.0, 50.0, 66.0),
    "letters-gemma2": (34.0, 50.0, 113.0),  # of one run each
    "instructions": (20.0, 59.0, 100.0),
    "instructions-large": (51.0, 130.0, 300.0),
}

#: How many times as long an online run takes a pass where it keeps all answers to a prompt, and not two of them.
GROUPS = 2.5


def cells_of(name: str, *, everything: bool) -> list[Cell]:
    """Return the cells of a testbed: the grid, or of one that no hypothesis is about those that Figure 9 needs.

    Parameters
    ----------
    name : str
    everything : bool
        The whole grid, and what else the paper's figures and tables vary.
    """
    if everything:
        return [*core(), *around(), *paper()]
    return figure_9() if name in OTHERS else core()


def grid_jobs(names: Sequence[str], cells: Sequence[Cell], starts: int, draws: int) -> list[Job]:
    """Return the runs of cells on testbeds, so ordered that what is stopped has all cells of whole draws.

    Parameters
    ----------
    names : sequence of str
        Of testbeds.
    cells : sequence of Cell
    starts, draws : int >= 1
        Start models, and draws of the pairs from each.

    Raises
    ------
    ValueError
        If there is no such testbed, or a number is < 1.
    """
    if starts < 1 or draws < 1:
        raise ValueError(f"starts and draws must be >= 1, got {starts} and {draws}")
    beds = [testbed(name) for name in dict.fromkeys(names)]
    return [
        Job(bed, cell, start, draw)
        for bed in beds
        for draw in range(draws)
        for start in range(starts)
        for cell in cells
    ]


def said_time(jobs: Sequence[Job], kept: Sequence[Outcome], processes: int) -> str:
    """Return how many runs there are to do, and about how long they take, in words.

    A further draw of the pairs takes what an online run, which draws as many answers, takes more than an offline one.
    """
    done = {(one.testbed, one.cell, one.start, one.draw) for one in kept}
    due = [job for job in jobs if (job.testbed.name, job.cell, job.start, job.draw) not in done]
    if not due:
        return f"{len(jobs)} runs, all of them kept"
    seconds = sum(expected_seconds(job, kept) for job in due)
    drawn = {(job.testbed.name, job.cell.data, job.start, job.draw) for job in due}
    first = {one[:3] for one in drawn}
    seconds += sum(SECONDS[name][2] for name, *_ in first)
    further = Counter(name for name, *_ in drawn) - Counter(name for name, *_ in first)
    seconds += sum(count * (SECONDS[name][1] - SECONDS[name][0]) for name, count in further.items())
    minutes = seconds / 60 / processes
    kept_words = f", {len(jobs) - len(due)} of them kept" if len(due) < len(jobs) else ""
    return f"{len(jobs)} runs{kept_words}; the other {len(due)} take about {minutes:.0f} minutes, {processes} at a time"


def expected_seconds(job: Job, kept: Sequence[Outcome]) -> float:
    """Return how long a run takes: as long as kept ones of its kind, or as is usual in its testbed (`SECONDS`)."""
    alike = [
        one.seconds / one.cell.passes
        for one in kept
        if one.testbed == job.testbed.name
        and one.cell.is_online == job.cell.is_online
        and one.cell.round_steps == job.cell.round_steps
    ]
    usual = SECONDS[job.testbed.name][job.cell.is_online] * (1.0 if job.cell.round_steps is None else GROUPS)
    return job.cell.passes * (sum(alike) / len(alike) if alike else usual)
