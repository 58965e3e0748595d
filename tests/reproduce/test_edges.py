"""Where tuned cells lie at an edge of what was tried: worked cases, and every committed table told anew."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from pathlib import Path

import pytest

from humanline.reproduce.best import best_rows
from humanline.reproduce.cells import Cell, core
from humanline.reproduce.chosen import choose, choosing_jobs
from humanline.reproduce.edges import edges, edges_of_both
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.paper import paper_rows
from humanline.reproduce.paper_claims import PaperClaim
from tests.reproduce.edges_again import told

STUDY = Path(__file__).resolve().parents[2] / "studies" / "frontier"


def grid(lrs, betas=(1.0,), **settings) -> list[Cell]:
    return [Cell("dpo", "offline", lr, beta=beta, **settings) for lr in lrs for beta in betas]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ((1e-4, 1.0), "none"),
        ((3e-5, 1.0), "lr lowest"),
        ((3e-4, 1.0), "lr highest"),
        ((3e-4, 5.0), "lr highest, beta highest"),
        ((3e-5, 0.1), "lr lowest, beta lowest"),
    ],
)
def test_an_edge_is_where_nothing_was_tried_on_one_side(chosen, said):
    tried = grid((3e-5, 1e-4, 3e-4), (0.1, 1.0, 5.0))
    lr, beta = chosen
    assert edges(dict.fromkeys(range(3), Cell("dpo", "offline", lr, beta=beta)), tried, tried) == said


def test_a_neighbour_differs_in_one_setting_alone():
    """A beta of 25 was tried at two rates: the lower of these is an edge, though lower ones were tried at others."""
    tried = [*grid((3e-5, 1e-4, 3e-4), (1.0, 5.0)), *grid((1e-4, 3e-4), (25.0,))]
    assert edges({0: Cell("dpo", "offline", 1e-4, beta=25.0)}, tried, tried) == "lr lowest, beta highest"
    alone = [*grid((1e-4, 3e-4)), *grid((1e-4,), (0.03,))]
    assert edges({0: alone[-1]}, alone, alone) == "lr lowest, lr highest, beta lowest"


def test_what_another_side_tried_is_no_edge_and_what_a_side_holds_fixed_is_not_named():
    """Weaker anchors are chosen among themselves, and stronger ones were run all the same."""
    weaker, usual = grid((1e-4, 3e-4), (0.01, 0.03)), grid((1e-4, 3e-4, 1e-3), (0.1, 1.0))
    highest = Cell("dpo", "offline", 3e-4, beta=0.03)
    assert edges({0: highest}, weaker, weaker) == "lr highest, beta highest"
    assert edges({0: highest}, weaker, [*weaker, *usual]) == "lr highest"
    synced = [Cell("dpo", "humanline", 1e-4, beta=1.0, every=k) for k in (1, 8, 32)]
    assert edges({0: synced[2]}, synced[2:], synced) == "none"  # k = 32 was not chosen there
    other = dataclasses.replace(synced[0], every=None)  # and None is no k that is lower
    assert edges({0: synced[2]}, synced, [*synced, other]) == "every highest"
    assert edges({0: other}, [other], [*synced, other]) == "none"


def test_start_models_that_chose_otherwise_are_counted_and_what_cannot_be_lower_has_no_edge():
    tried = [*grid((1e-4, 3e-4, 1e-3)), *grid((1e-4, 3e-4, 1e-3), passes=4)]
    once, four = tried[1], tried[-1]
    assert edges({0: once, 1: once, 2: four}, tried, tried) == "lr highest (1 of 3), passes highest (1 of 3)"
    synced = [Cell("dpo", "humanline", 1e-4, beta=1.0, every=k) for k in (1, 8, 32)]
    assert edges({0: synced[0], 1: synced[0]}, synced, synced) == "none"  # k = 1 is the least there is
    assert edges({0: synced[2], 1: synced[1]}, synced, synced) == "every highest (1 of 2)"
    assert edges({}, tried, tried) == ""
    assert edges_of_both("beta highest, lr lowest", "none") == {"at an edge": "first: beta highest, lr lowest"}
    assert edges_of_both("none", "lr lowest") == {"at an edge": "second: lr lowest"}
    assert edges_of_both("none", "none") == edges_of_both("", "") == {}


def outcomes(cells: list[Cell], **values) -> list[Outcome]:
    nothing = dict.fromkeys(Outcome.__dataclass_fields__, math.nan)
    usual = {"testbed": "letters", "status": "done", "task": "", "draw": 0, "kl_to_start": 1.0, "start_score": 0.0}
    usual |= {"updates": 1, "scorer_calls": 1}
    return [
        Outcome(**nothing | usual | {"cell": cell, "start": start, "score": cell.lr} | values)
        for cell in cells
        for start in range(3)
    ]


def test_a_cell_that_collapsed_was_tried_and_one_without_all_start_models_was_not():
    """Beyond 1e-4 lies 3e-4: collapsed there it tells that more is too much, missing it tells nothing."""
    cells = grid((3e-5, 1e-4, 3e-4))
    runs = outcomes(cells)
    broken = [dataclasses.replace(one, status="not finite") if one.cell == cells[2] else one for one in runs]
    claim = PaperClaim("x", "lower rates alone", "more", lambda _: cells, lambda _: cells[:2], {"dpo": ""})
    for mine, first, second in (
        (runs, "lr highest", "none"),
        (broken, "none", "none"),
        (runs[:-1], "lr highest", "lr highest"),
    ):
        (row,) = best_rows(mine, dict.fromkeys(cells, "offline"))
        assert row["edges"] == first
        (row,) = paper_rows(mine, [claim])
        assert [row.first_edges, row.second_edges] == [first, second]


def test_so_it_is_where_fresh_draws_are_compared():
    """The best DPO cell offline has 3e-4, and 1e-3 was tried though it collapsed."""
    (whole, broken) = ([dataclasses.replace(one, draw=0) for one in outcomes(core())] for _ in range(2))
    broken = [dataclasses.replace(one, status="not finite") if one.cell.lr == 1e-3 else one for one in broken]
    jobs = choosing_jobs("letters", 3, 1, 2)
    kind = ("dpo", "offline")
    assert choose(jobs, whole, 2).edges[kind] == "lr highest, beta lowest"
    assert choose(jobs, broken, 2).edges[kind] == "beta lowest"


def rows_of(*place: str) -> list[dict[str, str]]:
    with open(STUDY.joinpath(*place), encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def chosen_of(row: dict[str, str], cells: list[dict[str, str]]) -> list[dict[str, str]]:
    """The cells that a row of best.csv names, one for each start model."""
    by_name = {cell["cell"]: cell for cell in cells}
    named = re.findall(r"([^ ;]+)(?: \((\d+)\))?(?:; |$)", row["chosen"])
    found = [by_name[name] for name, count in named for _ in range(int(count or 1))]
    assert len(found) == int(row["starts"])
    return found


def of_kind(cell: dict[str, str], row: dict[str, str]) -> bool:
    variant, *more = row["series"].split(", ")
    wanted = {"k = ": "every", "sampled every ": "round_steps"}
    asked = {name: text.removeprefix(said) for text in more for said, name in wanted.items() if text.startswith(said)}
    plain = all(not cell[name] for name in ("log_eps_low", "log_eps_high", "quartile", "desirable"))
    usual = plain and cell["data"] == "near" and (bool(cell.get("round_steps")) or cell["passes"] == "1")
    theirs = (cell["objective"], cell["variant"]) == (row["objective"], variant)
    return usual and theirs and all(cell[name] == value for name, value in asked.items())


@pytest.mark.parametrize("place", sorted(str(path.parent.relative_to(STUDY)) for path in STUDY.glob("**/best.csv")))
def test_committed_edges_are_those_of_the_cells(place):
    """Of the grids, of Figure 7, and of the cells that were chosen for fresh draws, whose k is of their own."""
    if place.endswith("further"):
        pytest.skip("has sides of its own (below)")
    folder = place.removesuffix("/chosen")
    cells = rows_of(folder, "cells.csv")
    tried = cells if folder == place else [cell for cell in cells if cell["passes"] == "1"]  # those that chose
    for row in rows_of(place, "best.csv"):
        mine = [cell for cell in cells if of_kind(cell, row)]
        assert set(row["edges"].split(", ")) == told(chosen_of(row, cells), mine, tried), row["series"]


def test_comparisons_on_fresh_draws_have_the_edges_of_their_sides():
    by_side = {(row["objective"], row["series"]): row["edges"] for row in rows_of("letters", "chosen", "best.csv")}
    sides = {
        "offline + humanline, its own k, is better than offline": ("humanline", "offline"),
        "offline + humanline is on par with online": ("humanline", "online"),
        "online is better than offline": ("online", "offline"),
        "online + humanline is slightly better than online": ("online humanline", "online"),
    }
    rows = rows_of("letters", "chosen", "chosen.csv")
    assert {row["says"] for row in rows} == set(sides)
    for row in rows:
        wanted = [by_side[row["objective"], side] for side in sides[row["says"]]]
        assert [row["first_edges"], row["second_edges"]] == wanted, row["says"]


SIDES = {
    "offline, of the grid": lambda cell, more: cell["variant"] == "offline" and not more,
    "offline, weaker anchor": lambda cell, more: cell["variant"] == "offline" and more and cell["passes"] == "1",
    "offline, four passes": lambda cell, more: cell["variant"] == "offline" and more and cell["passes"] == "4",
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
    names = {cell.name for cell in core()}
    cells = [(cell, False) for cell in rows_of(bed, "cells.csv") if cell["cell"] in names]
    cells += [(cell, True) for cell in rows_of(bed, "further", "cells.csv")]
    rows, every = rows_of(bed, "further", "best.csv"), [cell for cell, _ in cells]
    assert {row["series"] for row in rows} == set(SIDES)
    for row in rows:
        inside = SIDES[row["series"]]
        mine = [cell for cell, more in cells if cell["objective"] == row["objective"] and inside(cell, more)]
        assert set(row["edges"].split(", ")) == told(chosen_of(row, every), mine, every), row
    by_side = {(row["objective"], row["series"]): row["edges"] for row in rows}
    for row in rows_of(bed, "further", "further.csv"):
        sides = [by_side[row["objective"], side] for side in COMPARED[row["says"]]]
        assert [row["first_edges"], row["second_edges"]] == sides, row["says"]
