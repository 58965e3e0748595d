"""Every number that a page shows lies in the files beside it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from humanline.report.write import write_report
from tests.conftest import ROOT
from tests.report.support import answer_row, make_answers, make_run, settings

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
