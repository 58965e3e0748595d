"""Where tuned cells lie at an edge of what was tried: worked cases, and every committed table told anew."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from humanline.reproduce.best import best_rows
from humanline.reproduce.cells import Cell
from humanline.reproduce.edges import edges
from humanline.reproduce.outcome import Outcome

STUDY = Path(__file__).resolve().parents[2] / "studies" / "frontier"
LEAST = {"lr": 0.0, "beta": 0.0, "clip_eps": 0.0, "every": 1.0, "passes": 1.0}


def grid(lrs, betas=(1.0,), **settings) -> list[Cell]:
    return [Cell("dpo", "offline", lr, beta=beta, **settings) for lr in lrs for beta in betas]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ((1e-4, 1.0), ""),
        ((3e-5, 1.0), "lr lowest"),
        ((3e-4, 1.0), "lr highest"),
        ((3e-4, 5.0), "lr highest, beta highest"),
        ((3e-5, 0.1), "lr lowest, beta lowest"),
    ],
)
def test_an_edge_is_where_nothing_was_tried_on_one_side(chosen, said):
    tried = grid((3e-5, 1e-4, 3e-4), (0.1, 1.0, 5.0))
    lr, beta = chosen
    assert edges(dict.fromkeys(range(3), Cell("dpo", "offline", lr, beta=beta)), tried) == said


def test_a_neighbour_differs_in_one_setting_alone():
    """A beta of 25 was tried at two rates: the lower of these is an edge, though lower ones were tried at others."""
    tried = [*grid((3e-5, 1e-4, 3e-4), (1.0, 5.0)), *grid((1e-4, 3e-4), (25.0,))]
    assert edges({0: Cell("dpo", "offline", 1e-4, beta=25.0)}, tried) == "lr lowest, beta highest"
    alone = [*grid((1e-4, 3e-4)), *grid((1e-4,), (0.03,))]
    assert edges({0: alone[-1]}, alone) == "lr lowest, lr highest, beta lowest"


def test_start_models_that_chose_otherwise_are_counted_and_what_cannot_be_lower_has_no_edge():
    tried = [*grid((1e-4, 3e-4, 1e-3)), *grid((1e-4, 3e-4, 1e-3), passes=4)]
    once, four = tried[1], tried[-1]
    assert edges({0: once, 1: once, 2: four}, tried) == "lr highest (1 of 3), passes highest (1 of 3)"
    synced = [Cell("dpo", "humanline", 1e-4, beta=1.0, every=k) for k in (1, 8, 32)]
    assert edges({0: synced[0], 1: synced[0]}, synced) == ""  # k = 1 is the least there is
    assert edges({0: synced[2], 1: synced[1]}, synced) == "every highest (1 of 2)"
    assert edges({0: once, 1: once}, [once]) == ""  # nothing was tuned
    assert edges({}, tried) == ""


def test_a_cell_that_collapsed_was_tried_and_one_without_all_start_models_was_not():
    """Beyond 1e-4 lies 3e-4: collapsed there it tells that more is too much, missing it tells nothing."""
    cells = grid((3e-5, 1e-4, 3e-4))
    values = dict.fromkeys(Outcome.__dataclass_fields__, math.nan) | {"testbed": "letters", "status": "done"}
    runs = [
        Outcome(**values | {"cell": cell, "start": start, "draw": 0, "score": cell.lr, "kl_to_start": 1.0, "task": ""})
        for cell in cells
        for start in range(3)
    ]
    broken = [dataclasses.replace(one, status="not finite") if one.cell == cells[2] else one for one in runs]
    for mine, said in ((runs, "lr highest"), (broken, ""), (runs[:-1], "lr highest")):
        (row,) = best_rows(mine, dict.fromkeys(cells, "offline"))
        assert row["edges"] == said, said


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def in_core(row: dict[str, str]) -> bool:
    plain = not any(row[name] for name in ("log_eps_low", "log_eps_high", "quartile", "desirable"))
    return plain and row["passes"] == "1" and row["data"] == "near"


def of_kind(row: dict[str, str], wanted: dict[str, str]) -> bool:
    variant, _, k = wanted["series"].partition(", k = ")
    return (row["objective"], row["variant"]) == (wanted["objective"], variant) and k in ("", row["every"])


def told(row: dict[str, str], cells: list[dict[str, str]]) -> set[str]:
    """The edges of a row of best.csv, from the cells' own columns: nothing on one side in a line through the cell."""
    names = re.findall(r"([^ ;]+)(?: \((\d+)\))?(?:; |$)", row["chosen"])
    by_name, found = {cell["cell"]: cell for cell in cells}, Counter()
    for setting, least in LEAST.items():
        if len({cell[setting] for cell in cells}) == 1:
            continue
        others = [name for name in LEAST if name != setting]
        for name, count in names:
            mine = by_name[name]
            line = [float(one[setting]) for one in cells if all(one[each] == mine[each] for each in others)]
            if min(line) == float(mine[setting]) > least:
                found[f"{setting} lowest"] += int(count or 1)
            if max(line) == float(mine[setting]):
                found[f"{setting} highest"] += int(count or 1)
    assert sum(int(count or 1) for _, count in names) == int(row["starts"])
    return {
        side if count == int(row["starts"]) else f"{side} ({count} of {row['starts']})" for side, count in found.items()
    }


SIDES = {
    "offline, of the grid": lambda cell, more: cell["variant"] == "offline" and not more,
    "offline, weaker anchor": lambda cell, more: cell["variant"] == "offline" and more and cell["passes"] == "1",
    "offline, four passes": lambda cell, more: cell["variant"] == "offline" and cell["passes"] == "4",
    "offline, all of one pass": lambda cell, more: cell["variant"] == "offline" and cell["passes"] == "1",
    "offline, all": lambda cell, more: cell["variant"] == "offline",
    "humanline, its own k": lambda cell, more: cell["variant"] == "humanline" and not more,
    "humanline, four passes": lambda cell, more: cell["variant"] == "humanline" and more,
    "online": lambda cell, more: cell["variant"] == "online",
}
COMPARED = {
    "offline of a weaker anchor is better than offline of the grid": ("offline, weaker anchor", "offline, of the grid"),
    "offline of four passes is better than offline of the grid": ("offline, four passes", "offline, of the grid"),
    "offline + humanline, its own k, is better than offline of one pass": (
        "humanline, its own k",
        "offline, all of one pass",
    ),
    "offline + humanline, its own k, is better than all offline": ("humanline, its own k", "offline, all"),
    "offline + humanline of four passes is better than all offline": ("humanline, four passes", "offline, all"),
    "offline + humanline of four passes is better than offline of four": (
        "humanline, four passes",
        "offline, four passes",
    ),
    "offline + humanline of four passes is better than of one": ("humanline, four passes", "humanline, its own k"),
    "online is better than all offline": ("online", "offline, all"),
}


@pytest.mark.parametrize("bed", sorted(path.parents[1].name for path in STUDY.glob("*/further/best.csv")))
def test_committed_edges_of_further_cells_are_those_of_the_cells(bed):
    """On both sides of every comparison, too."""
    cells = [(cell, False) for cell in rows_of(STUDY / bed / "cells.csv") if in_core(cell)]
    cells += [(cell, True) for cell in rows_of(STUDY / bed / "further" / "cells.csv")]
    rows = rows_of(STUDY / bed / "further" / "best.csv")
    assert {row["series"] for row in rows} == set(SIDES)
    for row in rows:
        inside = SIDES[row["series"]]
        mine = [cell for cell, more in cells if cell["objective"] == row["objective"] and inside(cell, more)]
        assert set(filter(None, row["edges"].split(", "))) == told(row, mine), (row["objective"], row["series"])
    by_side = {(row["objective"], row["series"]): row["edges"] for row in rows}
    for row in rows_of(STUDY / bed / "further" / "further.csv"):
        first, second = COMPARED[row["says"]]
        sides = [by_side[row["objective"], side] for side in (first, second)]
        assert [row["first_edges"], row["second_edges"]] == sides, row["says"]


@pytest.mark.parametrize("bed", sorted(path.parent.name for path in STUDY.glob("*/best.csv")))
def test_committed_edges_are_those_of_the_cells(bed):
    cells = [cell for cell in rows_of(STUDY / bed / "cells.csv") if in_core(cell)]
    for row in rows_of(STUDY / bed / "best.csv"):
        mine = [cell for cell in cells if of_kind(cell, row)]
        assert set(filter(None, row["edges"].split(", "))) == told(row, mine), row["series"]
