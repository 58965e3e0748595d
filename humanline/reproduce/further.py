"""Offline cells that may go further than the grid's, beside humanline: what the runs of both leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from humanline.reproduce.best import best_rows
from humanline.reproduce.cells import OBJECTIVES, PASSES, Cell, Objective, Variant, core, further
from humanline.reproduce.edges import SAYS as EDGES
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.paper import ALPHA, PaperRow, paper_rows
from humanline.reproduce.paper_claims import PaperClaim
from humanline.reproduce.paper_report import row_shown
from humanline.reproduce.report import MEANS, cell_rows
from humanline.reproduce.shown import markdown
from humanline.reproduce.tables import as_written, rows_csv, write_outcomes
from humanline.system.files import make_folder, write_text

WHERE = "Offline, further"
_Side = dict[Objective, list[Cell]]


def further_claims() -> tuple[PaperClaim, ...]:
    """Return what is asked: none of it is the paper's, and cells of several kinds are chosen as its are."""
    grid, once, every = _cells("offline", core()), _all_offline(passes=1), _all_offline()
    asked: tuple[tuple[str, _Side, _Side], ...] = (
        ("offline of a weaker anchor is better than offline of the grid", _weaker(), grid),
        ("offline of four passes is better than offline of the grid", _passes("offline"), grid),
        ("offline + humanline, its own k, is better than offline of one pass", _cells("humanline", core()), once),
        ("offline + humanline, its own k, is better than all offline", _cells("humanline", core()), every),
        ("offline + humanline of four passes is better than all offline", _passes("humanline"), every),
        ("offline + humanline of four passes is better than offline of four", _passes("humanline"), _passes("offline")),
        ("offline + humanline of four passes is better than of one", _passes("humanline"), _cells("humanline", core())),
        ("online is better than all offline", _cells("online", core()), every),
    )
    return tuple(
        PaperClaim(WHERE, says, "more", first.__getitem__, second.__getitem__, dict.fromkeys(OBJECTIVES, ""))
        for says, first, second in asked
    )


def _cells(variant: Variant, cells: Iterable[Cell]) -> _Side:
    mine = [cell for cell in cells if cell.variant == variant]
    return {objective: [cell for cell in mine if cell.objective == objective] for objective in OBJECTIVES}


def _weaker() -> _Side:
    return _cells("offline", [cell for cell in further() if cell.passes == 1])


def _passes(variant: Variant) -> _Side:
    return _cells(variant, [cell for cell in further() if cell.passes > 1])


def _all_offline(passes: int = PASSES) -> _Side:
    """Return the offline cells of the grid and beside it of at most so many passes."""
    return _cells("offline", [cell for cell in (*core(), *further()) if cell.passes <= passes])


def write_further_report(folder: Path, grid: Iterable[Outcome], more: Sequence[Outcome]) -> list[Path]:
    """Write what offline runs say that may go further, beside those of the grid; return the files.

    Written are runs.csv (the further runs alone), cells.csv (means over these), further.csv (what is asked),
    best.csv (tuned cells) and further.md (all of it to read).

    Parameters
    ----------
    folder : Path
        Made if it is not there; files of these names in it are replaced.
    grid : iterable of Outcome
        Of the grid; those of draws that no further run has are left out.
    more : sequence of Outcome
        Runs of `cells.further`, of one testbed.

    Raises
    ------
    ValueError
        As `paper_rows`, before anything is written.
    OSError
        If something cannot be written.
    """
    more = as_written(more)
    wanted, draws = set(core()), {one.draw for one in more}
    outcomes = [*(one for one in as_written(list(grid)) if one.draw in draws and one.cell in wanted), *more]
    rows = paper_rows(outcomes, further_claims())
    best, cells = _tuned(outcomes), cell_rows(more)
    make_folder(folder)
    write_outcomes(folder / "runs.csv", more)
    tables = {"cells": cells, "further": [asdict(row) for row in rows], "best": best}
    for name, found in tables.items():
        write_text(folder / f"{name}.csv", rows_csv(found))
    write_text(folder / "further.md", _words(more, rows, best, cells))
    return [folder / "runs.csv", *(folder / f"{name}.csv" for name in tables), folder / "further.md"]


def _tuned(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the tuned cells of each side."""
    sides = {
        "offline, of the grid": _cells("offline", core()),
        "offline, weaker anchor": _weaker(),
        "offline, four passes": _passes("offline"),
        "offline, all of one pass": _all_offline(passes=1),
        "offline, all": _all_offline(),
        "humanline, its own k": _cells("humanline", core()),
        "humanline, four passes": _passes("humanline"),
        "online": _cells("online", core()),
    }
    rows = [
        best_rows(outcomes, dict.fromkeys(cells[objective], name))
        for objective in OBJECTIVES
        for name, cells in sides.items()
    ]
    return [row for found in rows for row in found]


def _words(
    more: Sequence[Outcome],
    rows: Sequence[PaperRow],
    best: Sequence[dict[str, Any]],
    cells: Sequence[dict[str, Any]],
) -> str:
    """Return differences, tuned cells and further cells as Markdown."""
    testbed = rows[0].testbed
    starts, draws = ({getattr(one, name) for one in more} for name in ("start", "draw"))
    counted = f"draw{'s' if len(draws) > 1 else ''} {', '.join(map(str, sorted(draws)))}"
    asked = [{key: value for key, value in row_shown(row).items() if not key.startswith("paper")} for row in rows]
    listed = ("cell", "runs", "collapsed", *MEANS, "sd_of_score")
    return "\n".join(
        [
            f"# Offline, further: {testbed}",
            "",
            "Is what humanline gains what any run gains that goes as far, or is given as many steps? "
            f"{len(more)} runs of {len(cells)} cells that the grid has not: offline ones of a weaker anchor, which is "
            "a smaller beta, or for GRPO, whose widest clip the grid has, a higher rate; and of four passes, offline "
            f"and with humanline; {len(starts)} start models, {counted} of the pairs. Of several cells "
            "on a side the best by the *other* start models is taken; differences are means over start models with "
            f"their 95 % interval, uncorrected; verdicts by Holm's correction over the objectives, level {ALPHA:g}. "
            f"It decides no hypothesis of the grid. {EDGES}",
            "",
            "## What is asked",
            "",
            markdown(asked),
            "## The best cell of each side, chosen on the other start models",
            "",
            markdown([dict(row) for row in best]),
            "## Cells, means over runs",
            "",
            markdown([{name: row[name] for name in listed} for row in cells]),
        ]
    )
