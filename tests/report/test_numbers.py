"""Every number that a page shows lies in the files beside it."""

from __future__ import annotations

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

from humanline.report.find import _PARTS
from humanline.report.studies import TABLES
from humanline.report.write import write_report
from tests.conftest import ROOT
from tests.report.support import answer_row, look, make_answers, make_run, settings, step

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
#: Of sentences of the page: 95 % intervals of 1.96 standard errors, SHA-256, means of neighbours beyond 200 steps.
OF_SENTENCES = {"95", "1.96", "200", "256"}


class Text(HTMLParser):
    """The text of a page but for its style and its charts, whose points are a file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in ("svg", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        if self.inside[-1:] == [tag]:
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.found.append(data)


def leaves(tree):
    """Yield every value of a tree, and every name."""
    if isinstance(tree, dict):
        yield from tree
    for one in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from leaves(one)
    if not isinstance(tree, dict | list):
        yield tree


def not_beside(page: Path) -> set[str]:
    """Return the numbers of a page that none of its tree, rounded to as many digits, is."""
    tree = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    texts, values = {page.with_suffix(".json").name}, set()
    for one in leaves(tree):
        if isinstance(one, str):
            texts.add(one)
        if isinstance(one, int | float) and not isinstance(one, bool):
            values.add(float(one))
    counts = {len(one) for one in nested(tree)}
    written = {number for text in texts for number in NUMBER.findall(text)}
    values |= {float(number) for number in written} | set(map(float, counts))
    rounded = {f"{value:.4g}" for value in values} | {str(value) for value in values} | written
    shown = {number for text in Text(page.read_text(encoding="utf-8")).found for number in NUMBER.findall(text)}
    assert len(shown) > 20
    return {one for one in shown - OF_SENTENCES if one not in rounded and f"{float(one):.4g}" not in rounded}


def nested(tree):
    """Yield every list of a tree: how many there are of something is said of runs, answers and rows."""
    if isinstance(tree, list):
        yield tree
    for one in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nested(one)


class Tables(HTMLParser):
    """The tables of a page, each a list of rows of the texts of their cells, heads first."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.in_cell = True
        elif tag == "br" and self.in_cell:
            self.tables[-1][-1][-1] += " "

    def handle_endtag(self, tag):
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self.in_cell:
            self.tables[-1][-1][-1] += data


def told(shown: str, written: str) -> bool:
    """Return whether a cell shows what a file has: its text, or its number with four digits."""
    if shown == written:
        return True
    try:
        return shown == f"{float(written):.4g}"
    except ValueError:
        return False


def not_in_place(page: Path, folder: Path) -> list[tuple[str, int, int, str]]:
    """Return, of the tables that a page shows of a study, each cell that its file does not have in that place."""
    found, tables = [], Tables(page.read_text(encoding="utf-8")).tables
    for name in TABLES:
        if not (folder / name).is_file():
            continue
        with open(folder / name, encoding="utf-8", newline="") as lines:
            rows = list(csv.reader(lines))
        (shown,) = [one for one in tables if one[0] and set(one[0]) <= set(rows[0]) and len(one) == min(len(rows), 201)
                    and len(one[0]) >= 6 and told(one[1][0], rows[1][rows[0].index(one[0][0])])]  # fmt: skip
        places = [rows[0].index(head) for head in shown[0]]
        for number, (mine, theirs) in enumerate(zip(shown, rows, strict=False)):
            wanted = [theirs[place] for place in places]
            found += [(name, number, at, one) for at, (one, own) in enumerate(zip(mine, wanted, strict=True))
                      if not told(one, own)]  # fmt: skip
    return found


def test_every_cell_of_a_study_stands_where_its_file_has_it(tmp_path, monkeypatch):
    """Row by row and column by column, from the files themselves; two numbers that change places are seen."""
    monkeypatch.setattr("humanline.report.write.inline", lambda *_: "<svg></svg>")
    folder = tmp_path / "letters"  # without its parts, which have tables of the same names
    shutil.copytree(ROOT / "studies" / "frontier" / "letters", folder, ignore=shutil.ignore_patterns(*_PARTS))
    page, *_ = write_report([str(folder)], str(tmp_path / "report.html"))
    assert not_in_place(page, folder) == []
    text = page.read_text(encoding="utf-8")
    first, second = "<td>0.7327</td>", "<td>0.7445</td>"  # a score, and the high end of its interval
    assert first in text and second in text
    swapped = text.replace(first, "<td>?</td>", 1).replace(second, first, 1).replace("<td>?</td>", second, 1)
    page.write_text(swapped, encoding="utf-8")
    assert not_beside(page) == set()  # which asks only whether a number is in the tree at all
    assert [one[-1] for one in not_in_place(page, folder)] == ["0.7445", "0.7327"]


def test_every_number_of_a_run_stands_where_its_rows_have_it(tmp_path, monkeypatch):
    """Of two runs, before and at the last look, each metric with its interval, worked out of the rows by hand.

    Before the first update there is no interval: policy and start are the same.
    """
    monkeypatch.setattr("humanline.report.write.draw", lambda *_: None)
    monkeypatch.setattr("humanline.report.write.inline", lambda *_: "<svg></svg>")
    rows = {
        "one": [look(0, 0.5), step(0), step(1), look(2, 0.8125), step(2), look(3, 0.75)],
        "two": [look(0, 0.4375), step(0), look(1, 0.625)],
    }
    runs = [make_run(tmp_path / name, rows=own) for name, own in rows.items()]
    page, *_ = write_report([str(run) for run in runs], str(tmp_path / "out" / "report.html"))
    tables = Tables(page.read_text(encoding="utf-8")).tables

    def interval(value):
        return f"{value:g} ({value - 1.96 * 0.05:.4g} to {value + 1.96 * 0.05:.4g})"

    head, *listed = tables[0]
    distance = "distance from the start KL(start || policy)"
    assert head == ["run", "method", "updates", "judged by", "before", "at the last look", distance]
    by = "preference accuracy"
    assert listed == [
        ["one", "DPO, offline", "3", by, "0.5", interval(0.75), "0.3"],
        ["two", "DPO, offline", "1", by, "0.4375", interval(0.625), "0.1"],
    ]
    held_out = [table for table in tables if "updates" in " ".join(table[0]) and table[0][0] == ""]
    best, plain = held_out
    assert best[0] == ["", "before 0 updates", "at best 2 updates", "at the end 3 updates"]
    assert plain[0] == ["", "before 0 updates", "at the end 1 updates"]
    assert [by, "0.5", interval(0.8125), interval(0.75)] in best and [by, "0.4375", interval(0.625)] in plain
    assert [row[1:] for row in best if row[0] == "loss"] == [["0.7"] * 3]


def test_every_number_of_a_page_is_in_the_tree_beside_it(tmp_path, monkeypatch):
    """Of runs of two kinds, answers with scores, and the committed suite with its claims."""
    monkeypatch.setattr("humanline.report.write.draw", lambda *_: None)
    monkeypatch.setattr("humanline.report.write.inline", lambda *_: "<svg></svg>")
    runs = [make_run(tmp_path / "one"), make_run(tmp_path / "two", settings("kto"))]
    answers = make_answers(tmp_path / "a.jsonl", answer_row("1", "2 + 2", "4", [0.123456]))
    paths = [*runs, answers, ROOT / "studies" / "frontier" / "letters"]
    page, tree, _ = write_report([str(path) for path in paths], str(tmp_path / "out" / "report.html"))
    assert not_beside(page) == set()
    text = page.read_text(encoding="utf-8").replace("<h2>Runs</h2>", "<h2>Runs 7.531</h2>")
    page.write_text(text, encoding="utf-8")
    assert not_beside(page) == {"7.531"}  # what is on the page alone is seen
    assert tree.is_file()
