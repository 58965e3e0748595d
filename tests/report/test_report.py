"""A page about runs: what is on it, what it is made of, and what becomes of folders that are not as they should be."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from html.parser import HTMLParser

import pytest

from humanline.cli import main
from humanline.evaluate.records import Evaluation, EvaluationError, Item, read_evaluation, write_evaluation
from humanline.plots import frontier, learning_curves
from humanline.plots._table import read
from humanline.report.find import MOST, ReportError, find
from humanline.report.write import write_report
from humanline.system.install import install
from humanline.system.lock import FolderLock
from humanline.train.run.facts import placeless_text
from humanline.train.run.status import read_status
from tests.conftest import ROOT
from tests.report.support import DATA, ROWS, START, answer_row, look, make_answers, make_run, settings, step

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of a page; elements that are not closed in order are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text, self.open = "", []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.text += " " if tag == "br" else ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


@pytest.fixture
def draws():
    """Have charts drawn."""


@pytest.fixture(autouse=True)
def charts(request, monkeypatch):
    """Draw nothing, which takes longer than all else, but in tests that are about charts."""
    if "draws" not in request.fixturenames:
        monkeypatch.setattr("humanline.report.write.draw", lambda *_: None)
        monkeypatch.setattr("humanline.report.write.inline", lambda *_: "<svg></svg>")


def report(tmp_path, *paths, **how) -> tuple[Page, dict]:
    page, facts, _ = write_report([str(path) for path in paths], str(tmp_path / "out" / "report.html"), **how)
    return Page(page.read_text(encoding="utf-8")), json.loads(facts.read_text())


def plain(page: Page) -> str:
    return " ".join(page.text.split())


def test_a_page_shows_method_data_curves_and_numbers_with_intervals(tmp_path, draws):
    """Of a run it says what it is, its data with counts and hash, its looks with intervals, its machine."""
    page, facts = report(tmp_path, make_run(tmp_path / "mine"))
    text = plain(page)
    for said in ("DPO, offline", "mine", "11", "1 too long", START["training data"], "torch 2.13.0", "x86_64"):
        assert said in text
    assert "0.75 (0.652 to 0.848)" in text and "0.8125 (0.7145 to 0.9105)" in text
    assert "at best 2 updates" in text and "flatters" in text
    titles = [attributes["aria-label"] for tag, attributes in page.elements if tag == "figure"]
    assert {"loss", "margin (chosen over rejected), times beta", "held out: preference accuracy"} <= set(titles)
    assert len([tag for tag, _ in page.elements if tag == "svg"]) == len(titles) + 1  # and one line in the legend
    (run,) = facts["runs"]
    assert run["ends"][-1]["value"] == 0.75 and run["state"] == "finished" and run["notes"] == []


def test_the_points_of_the_curves_are_those_of_the_metrics(tmp_path):
    """The CSV beside the page holds every step and look, and the ends of its intervals."""
    report(tmp_path, make_run(tmp_path / "mine"))
    with open(tmp_path / "out" / "report-curves.csv", newline="") as file:
        rows = list(csv.DictReader(file))

    def points(panel):
        return [(float(row["x"]), float(row["y"])) for row in rows if row["panel"] == panel]

    assert points("loss") == [(0, 0.7), (1, 0.6), (2, 0.5)]
    assert points("held out: preference accuracy") == [(0, 0.5), (2, 0.8125), (3, 0.75)]
    assert points("held out: preference accuracy, low end") == [
        pytest.approx((2, 0.8125 - 1.96 * 0.05), abs=1e-5),
        pytest.approx((3, 0.75 - 1.96 * 0.05), abs=1e-5),
    ]
    assert points("held-out preference accuracy and distance") == [(0, 0.5), (0.2, 0.8125), (0.3, 0.75)]


def test_a_long_run_is_drawn_by_means_of_neighbours(tmp_path):
    """Of more steps than a line has points each is the mean of as many neighbours: nothing is left out."""
    rows = [step(number) | {"loss": float(number % 2)} for number in range(1000)]
    report(tmp_path, make_run(tmp_path / "long", rows=rows))
    with open(tmp_path / "out" / "report-curves.csv", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["panel"] == "loss"]
    assert len(found) == 200 and sum(float(row["x"]) for row in found) / 200 == pytest.approx(499.5)


def test_what_a_curve_shows_is_named_as_what_it_is(tmp_path):
    """A margin of training is times beta, one held out in nats; the KL penalty's is that from its own anchor."""
    rows = [look(0, 0.5, margin=0.0), step(0, kl=0.1), step(1, kl=0.2), look(2, 0.75, margin=3.0)]
    page, _ = report(tmp_path, make_run(tmp_path / "mine", rows=rows))
    titles = [attributes["aria-label"] for tag, attributes in page.elements if tag == "figure"]
    assert [one for one in titles if "margin" in one] == [
        "margin (chosen over rejected), times beta",
        "held out: margin, nats",
    ]
    assert next(one for one in titles if "KL" in one) == "KL from the anchor of the penalty, nats a token"


def test_as_many_runs_as_a_page_takes_are_told_apart():
    """No two lines of a group look alike: neither their colour and dashes nor, of one colour, their dashes' lengths."""
    assert len({(colour, tuple(map(float, dashes.split()))) for colour, dashes in learning_curves.LOOKS}) >= MOST


def test_a_run_of_one_step_is_seen_beside_a_longer_one(tmp_path):
    """Its only point is a marker, where the other run has a line."""
    lines = {"long": {0: {"loss": 0.7}, 1: {"loss": 0.6}}, "short": {0: {"loss": 0.5}}}
    rows = learning_curves.rows(learning_curves.Lines(name, own, [], {}) for name, own in lines.items())
    (axis,) = learning_curves.draw(rows, "loss", list(lines)).axes
    assert [line.get_marker() for line in axis.lines] == ["None", "o"]


def test_the_same_folders_give_the_same_bytes(tmp_path, draws):
    """A report made twice is the same, byte for byte; the second takes the place of the first."""
    run = make_run(tmp_path / "mine", rows=[step(0), step(1)])
    files = write_report([str(run)], str(tmp_path / "r.html"))
    before = [file.read_bytes() for file in files]
    write_report([str(run)], str(tmp_path / "r.html"))
    assert [file.read_bytes() for file in files] == before


HOSTILE = (
    "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`${{ 7*7 }}\x00\x1b[31m\u202etxt\u2028$x$"
)


def test_text_of_models_and_data_is_shown_as_text(tmp_path):
    """Markup, templates, control and bidirectional characters of models, data and names stay text."""
    config = settings(model=HOSTILE, data=settings()["data"] | {"train": HOSTILE})
    data = {"train": DATA["train"] | {"path": HOSTILE, "lengths": {"kept": HOSTILE}}}
    rows = [*ROWS, look(9, 0.6, **{HOSTILE: 1.5}), {"broke": {HOSTILE: HOSTILE}, "updates": 3}]
    run = make_run(tmp_path / "<b>run$&'\"", config, rows, data=data, start={"training data": HOSTILE},
                   software={HOSTILE: HOSTILE, "humanline": HOSTILE})  # fmt: skip
    one = make_answers(tmp_path / "<i>a.jsonl", answer_row("1", HOSTILE, HOSTILE))
    two = make_answers(tmp_path / "b.jsonl", answer_row("1", HOSTILE, "mine"))
    page, facts = report(tmp_path, run, one, two)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "b", "i", "iframe", "object"}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text and "{{ 7*7 }}" in page.text and r"\x1b[31m\u202etxt" in page.text
    for file in ("report.html", "report.json", "report-curves.csv"):
        raw = (tmp_path / "out" / file).read_text(encoding="utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", raw), file
    assert facts["answers"][0]["prompts"][0]["answers"][0]["text"] == HOSTILE


def test_a_page_asks_for_nothing_and_runs_nothing(tmp_path, draws):
    """It has no script and no link that leaves its folder, and its policy forbids whatever would be fetched."""
    suite = tmp_path / "suite"
    suite.mkdir()
    for name in ("frontier.csv", "best.csv"):
        shutil.copy(ROOT / "studies" / "frontier" / "letters" / name, suite)
    (suite / "runs.csv").write_text("cell,score\n")
    page, _ = report(tmp_path, make_run(tmp_path / "mine", rows=[step(0), step(1)]), suite)
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "script-src" not in policy
    wanted = [value for _, a in page.elements for name, value in a.items() if name.split(":")[-1] in ("src", "href")]
    assert wanted and all(value.startswith(("#", "data:,", "report")) for value in wanted)
    raw = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"@import|url\((?!#)", raw) and "width=device-width" in raw and "prefers-color-scheme" in raw
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    inside = [value[1:] for value in wanted if value.startswith("#")] + re.findall(r"url\(#([^)]*)\)", raw)
    assert set(inside) <= set(ids)


def test_runs_of_one_kind_share_axes_and_others_have_their_own(tmp_path):
    """DPO and KTO are drawn apart, two DPO runs together; a page of both kinds says each run's own method."""
    names = {"a": "dpo", "b": "dpo", "c": "kto"}
    runs = [make_run(tmp_path / name, settings(kind)) for name, kind in names.items()]
    page, facts = report(tmp_path, *runs)
    assert facts["groups"] == [{"title": "DPO", "names": ["a", "b"]}, {"title": "KTO", "names": ["c"]}]
    titles = [attributes["aria-label"] for tag, attributes in page.elements if tag == "figure"]
    assert titles.count("loss") == 2 and "KTO, offline" in page.text


def test_two_runs_of_one_name_are_told_apart_and_one_named_twice_is_one(tmp_path):
    """Folders of one name are called by the folder above too; a run that is named twice is there once."""
    runs = [make_run(tmp_path / one / "tiny") for one in ("x", "y")]
    assert [one.name for one in find([*map(str, runs), f"{runs[0]}/../tiny"])] == ["x/tiny", "y/tiny"]


def test_a_name_that_is_no_utf_8_is_shown_with_its_bytes(tmp_path):
    """Folders of an older system have such names: all three files of the report are written, and tell them apart."""
    runs = [make_run(tmp_path / os.fsdecode(name)) for name in (b"r\xff", b"r\xfe")]
    page, facts = report(tmp_path, *runs)
    names = [run["name"] for run in facts["runs"]]
    assert names == [r"r\udcff", r"r\udcfe"] and all(name in page.text for name in names)
    curves = (tmp_path / "out" / "report-curves.csv").read_text(encoding="utf-8")
    assert all(f"loss,{name},0,0.7" in curves for name in names)


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path):
    """Where a folder is no run itself, those in it are taken, and what is none of them is left alone."""
    for name in ("a", "b"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes").mkdir()
    assert [one.name for one in find([str(tmp_path / "runs")])] == ["a", "b"]


def test_what_looks_like_a_run_in_a_folder_and_is_none_is_named(tmp_path):
    """A run that lost its metrics and a suite without tables are left out with the reason; what else there is, too."""
    runs = tmp_path / "runs"
    for name in ("good", "lost"):
        make_run(runs / name)
    (runs / "lost" / "metrics.jsonl").unlink()
    for name, file in (("suite", "results.sqlite"), ("bare", "runs.csv"), ("notes", "notes.txt")):
        (runs / name).mkdir()
        (runs / name / file).write_text("")
    page, facts = report(tmp_path, runs, runs, runs / "good")
    assert [run["name"] for run in facts["runs"]] == ["good"]
    assert [note.partition(":")[0] for note in facts["notes"]] == [
        "runs/bare is left out; it holds runs.csv and no table made of it",
        "runs/lost is left out; it holds a config.json, but no metrics.jsonl",
        "runs/suite is left out; it is a suite that has no tables yet",
    ]
    assert all(note in page.text for note in facts["notes"])


def refused(tmp_path, name: str) -> str:
    with pytest.raises(ReportError) as error:
        write_report([str(tmp_path / name)], str(tmp_path / "report.html"))
    assert not (tmp_path / "report.html").exists()
    return str(error.value)


def test_what_is_no_run_is_refused_in_words(tmp_path, capsys):
    """A folder that is not there, an empty one, a file, a model and a run's own model are refused, each with why."""
    make_run(tmp_path / "run")
    shutil.copy(tmp_path / "run" / "config.json", tmp_path / "run" / "final")
    (tmp_path / "empty").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    assert "there is no such folder" in refused(tmp_path, "nowhere")
    assert "is no run (config.json and metrics.jsonl)" in refused(tmp_path, "empty")
    assert "no metrics.jsonl" in refused(tmp_path, "model")
    assert "not the run: name" in refused(tmp_path, "run/final")
    assert "no file of answers" in refused(tmp_path, "notes.txt")
    assert "is a file of a run, not the run: name its folder" in refused(tmp_path, "run/metrics.jsonl")
    assert main(["report", str(tmp_path / "empty"), "--out", str(tmp_path / "r.html")]) == 2
    assert "humanline report: " in capsys.readouterr().err


def test_a_suite_without_tables_is_refused_with_what_to_do(tmp_path):
    """One that is still running, or was stopped: what is kept is no table, and runs alone say nothing."""
    suite = tmp_path / "suite"
    (suite / "letters").mkdir(parents=True)
    (suite / "results.sqlite").write_bytes(b"")
    assert "is a suite that has no tables yet" in refused(tmp_path, "suite")
    (suite / "letters" / "runs.csv").write_text("cell,score\n")
    assert "is a suite that has no tables yet" in refused(tmp_path, "suite")
    said = refused(tmp_path, "suite/letters")
    assert "holds runs.csv and no table made of it" in said and "goes on" in said


def test_the_folder_of_a_suite_stands_for_its_tables(tmp_path):
    """Those of the grid, and of what has tables of its own beside it."""
    places = ("letters", "letters/chosen", "letters/further", "arithmetic/sampling")
    for place, table in zip(places, ("findings", "chosen", "further", "findings"), strict=True):
        folder = tmp_path / "suite" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "runs.csv").write_text("cell,score\na,0.5\n")
        (folder / f"{table}.csv").write_text("says,verdict,draws,task\nS1,holds,7,x\n")
    (tmp_path / "suite" / "results.sqlite").write_bytes(b"")
    page, facts = report(tmp_path, tmp_path / "suite")
    assert [one["name"] for one in facts["studies"]] == ["letters", "sampling", "chosen", "further"]
    (chosen,) = [one for one in facts["studies"][2]["tables"] if one["file"] == "chosen.csv"]
    assert chosen["head"] == ["says", "verdict", "draws"] and chosen["rows"] == [["S1", "holds", "7"]]
    (further,) = [one for one in facts["studies"][3]["tables"] if one["file"] == "further.csv"]
    assert further["head"] == ["says", "verdict"] and further["rows"] == [["S1", "holds"]]
    assert facts["studies"][1]["claims"]["S1"].startswith("sampling every 64 steps loses more")
    assert "Tuned cells on draws that did not choose them" in page.text
    _, facts = report(tmp_path, tmp_path / "suite" / "letters")
    assert [one["name"] for one in facts["studies"]] == ["letters", "chosen", "further"]


def test_runs_in_every_state_of_every_kind_and_age_make_one_page(tmp_path, capsys):
    """Finished, going on, stopped, of yesterday's version and unreadable, of three objectives, answers and a suite."""
    make_run(tmp_path / "done")
    make_run(tmp_path / "stopped", settings("kto"), finished=False)
    make_run(tmp_path / "yesterday", settings("grpo"), software={"humanline": "0.0.9"})
    make_run(tmp_path / "unreadable", {"model": "x", "unheard_of": 3}, finished=False)
    going = make_run(tmp_path / "going", settings("kto"), finished=False)
    answers = make_answers(tmp_path / "a.jsonl", answer_row("1", "question", "answer", [0.5]))
    names = ("done", "stopped", "yesterday", "unreadable", "going")
    paths = [*(tmp_path / name for name in names), answers, ROOT / "studies" / "frontier" / "letters"]
    lock = FolderLock(going)
    lock.take(wait=False, say=print)
    try:
        assert main(["report", *map(str, paths), "--out", str(tmp_path / "r.html")]) == 0
    finally:
        lock.release()
    facts = json.loads((tmp_path / "r.json").read_text())
    states = [run["state"] for run in facts["runs"]]
    assert states == ["finished", "not finished", "finished", "not finished", "going on"]
    assert [one["names"] for one in facts["groups"]] == [["done"], ["stopped", "going"], ["yesterday"], ["unreadable"]]
    assert len({one["title"] for one in facts["groups"]}) == 4
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    for said in (
        "Made by version 0.0.9",
        "cannot be read by this version",
        "It is still going on",
        "letters: score and",
    ):
        assert said in page.text
    assert len(facts["answers"]) == 1
    assert [one["name"] for one in facts["studies"]] == ["letters", "sampling", "chosen", "further"]
    further = facts["studies"][3]["tables"][0]
    assert further["file"] == "further.csv" and {"first_edges", "second_edges"} <= set(further["head"])
    assert main(["report", *map(str, paths), str(tmp_path / "nowhere"), "--out", str(tmp_path / "s.html")]) == 2
    assert "nowhere" in capsys.readouterr().err and not (tmp_path / "s.html").exists()


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path):
    """While a process holds its folder a run is going on, and the line that is being written is not there yet."""
    run = make_run(tmp_path / "run", finished=False)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    lock = FolderLock(run)
    lock.take(wait=False, say=print)
    try:
        _, facts = report(tmp_path, run)
    finally:
        lock.release()
    assert facts["runs"][0]["state"] == "going on" and "first 3 updates" in facts["runs"][0]["notes"][0]
    _, facts = report(tmp_path, run)
    assert facts["runs"][0]["state"] == "not finished" and "stopped, killed, or failed" in facts["runs"][0]["notes"][0]


def test_a_checkpoint_that_goes_while_it_is_looked_at_is_no_error(tmp_path, monkeypatch):
    """A run that goes on keeps few checkpoints: one that was there when they were listed is read past."""
    run = make_run(tmp_path / "a", finished=False)
    listed = [run / "checkpoints" / f"step-{step}" / "state.json" for step in (1, 2, 3)]
    listed[1].parent.mkdir(parents=True)
    listed[1].write_text(json.dumps({"software": {"humanline": "0.0.7"}}))
    glob = type(run).glob
    monkeypatch.setattr(
        type(run), "glob", lambda self, what: listed if what.startswith("checkpoints/") else glob(self, what)
    )
    _, facts = report(tmp_path, run)
    assert facts["runs"][0]["software"] == {"humanline": "0.0.7"}


def test_a_run_that_failed_or_broke_says_how(tmp_path):
    """The last line of an error log, and the row of a break, are on the page."""
    rows = [*ROWS, {"updates": 3, "broke": {"what": "score", "of": "held_out", "value": 0.1}}]
    run = make_run(tmp_path / "run", rows=rows, finished=False)
    (run / "error.log").write_text("Traceback\n  in f\nRuntimeError: it went <wrong>\n\n")
    page, _ = report(tmp_path, run)
    assert "RuntimeError: it went <wrong>" in page.text and "seen to break: what score" in page.text


LOG = "2026-01-01 00:00:00 UTC  ---- {}\n"


@pytest.mark.parametrize(
    ("log", "fault_is", "said"),
    [
        ("begun", "newer", ["The last line of its error.log: RuntimeError: broke"]),
        ("resumed", "older", ["The last line of its error.log, older than that of its run.log: RuntimeError: broke"]),
        ("ended: stopped by SIGTERM", "older", ["It ended by: stopped by SIGTERM, at 2026-01-01 00:00:00 UTC"]),
        ("ended: RuntimeError: broke", "newer", ["It ended by: RuntimeError: broke, at 2026-01-01 00:00:00 UTC"]),
        (
            "ended: stopped by SIGTERM",
            "newer",
            [
                "It ended by: stopped by SIGTERM, at 2026-01-01 00:00:00 UTC",
                "The last line of its error.log: RuntimeError: broke",
            ],
        ),
    ],
)
def test_a_run_says_what_its_last_process_ended_by(tmp_path, log, fault_is, said):
    """As `humanline status` does; an error log, to which lines are only added, counts where it is newer or alone."""
    run = make_run(tmp_path / "run", finished=False)
    (run / "error.log").write_text("RuntimeError: broke\n")
    (run / "run.log").write_text(LOG.format("begun") + LOG.format("ended: RuntimeError: old") + LOG.format(log))
    os.utime(run / "error.log", (1000, 1000))
    os.utime(run / "run.log", (2000, 2000) if fault_is == "older" else (500, 500))
    _, facts = report(tmp_path, run)
    assert facts["runs"][0]["notes"][1:] == said


def test_a_finished_run_whose_folder_is_held_goes_on(tmp_path):
    """A report and `humanline status` say the same of it."""
    run = make_run(tmp_path / "run")
    lock = FolderLock(run)
    lock.take(wait=False, say=print)
    try:
        _, facts = report(tmp_path, run)
        assert facts["runs"][0]["state"] == read_status(run).state == "going on"
    finally:
        lock.release()
    _, facts = report(tmp_path, run)
    assert facts["runs"][0]["state"] == read_status(run).state == "finished"


def test_no_place_on_this_machine_is_on_a_page(tmp_path):
    """Of whole paths in messages two parts stay, in quotes and out of them, of runs, evaluations and suites."""
    place = tmp_path / "Jane Roe" / "private"
    run = make_run(place / "run", finished=False)
    (run / "error.log").write_text(f"OSError: [Errno 5] cannot read '{place}/a b.json', file://{tmp_path}/c/d\n")
    answers = make_answers(place / "answers" / "scored.jsonl", answer_row("1", "question", "mine"))
    (answers.parent / "evaluation.json").write_text("{}")
    (run / "rounds" / "00001" / "samples.jsonl").mkdir(parents=True)
    (place / "rows.jsonl").write_text("{}\n")
    suite = place / "suite"
    (suite / "frontier.csv").mkdir(parents=True)
    (suite / "runs.csv").write_text("cell,score\n")
    (suite / "best.csv").mkdir()
    page, facts = report(tmp_path, run, answers.parent, place / "rows.jsonl", suite)
    assert "cannot read '.../private/a b.json', .../c/d" in page.text and "answers: no evaluation file" in page.text
    assert str(tmp_path) not in page.text and str(tmp_path) not in json.dumps(facts) and "Jane" not in page.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/b/c/d.json: item 3", ".../c/d.json: item 3"),
        ("at (~/runs/one/x.py:3), ~me/x", "at (.../one/x.py:3), .../~me/x"),
        ("in \"/a b/c d/e f\" or '~/a/b c'", "in \".../c d/e f\" or '.../a/b c'"),
        ("file:///a/b/c", ".../b/c"),
        ("https://host/a/b, 3 tokens/s, and/or, 1 / 2, a/b/c, ./a/b, -1/2, 3 /4 nats, loss /step.", None),
    ],
)
def test_whole_paths_in_messages_are_shortened(text, expected):
    """Addresses, shares and paths that are not whole stay."""
    assert placeless_text(text) == (text if expected is None else expected)


def test_damaged_lines_are_counted_and_left_out(tmp_path):
    """Lines of metrics.jsonl that are no rows are named, numbers that are none are not drawn, and the rest is shown."""
    run = make_run(tmp_path / "run", rows=[step(0), step(1) | {"loss": float("nan")}, step(2)])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], '{"step": 1', "[]", *lines[1:]]) + "\n")
    _, facts = report(tmp_path, run)
    assert facts["runs"][0]["notes"] == ["metrics.jsonl is damaged: 2 lines are no rows and left out (line 2, 3)."]
    assert "nan" not in (tmp_path / "out" / "report-curves.csv").read_text()


def test_what_a_look_lacks_is_not_taken_from_another(tmp_path):
    """Where the last look has no score, none is shown there; where the first is lost, no other is the start."""
    late = make_run(tmp_path / "late", rows=[look(0, 0.5, score=0.1), step(0), look(1, 0.6, score=0.9), look(2, 0.7)])
    early = make_run(tmp_path / "early", rows=[look(0, 0.5), step(0), look(1, 0.6, score=0.9), look(2, 0.7, score=0.3)])
    lost = make_run(tmp_path / "lost", rows=[step(0), look(1, 0.6, score=0.9), look(2, 0.7, score=0.3)])
    only = make_run(tmp_path / "only", rows=[step(0), look(1, 0.6, score=0.9)])
    _, facts = report(tmp_path, late, early, lost, only)
    ends = [[end and end["value"] for end in run["ends"]] for run in facts["runs"]]
    assert ends == [[0.1, None], [None, 0.3], [None, 0.3], [None, 0.9]]
    assert [run["columns"][0]["name"] for run in facts["runs"]] == ["before"] * 2 + ["first look"] * 2


def test_distances_of_one_column_have_one_direction(tmp_path):
    """That of the policy's own answers where all runs have it, else the other one; what none shares names its own."""
    both = make_run(tmp_path / "both", rows=[look(0, 0.5), step(0), look(1, 0.6, kl_to_start=0.7)])
    more = make_run(tmp_path / "more", rows=[look(0, 0.5), step(0), look(1, 0.6, kl_to_start=0.9)])
    data = make_run(tmp_path / "data", rows=[look(0, 0.5), step(0), look(1, 0.6)])
    none = make_run(tmp_path / "none", rows=[step(0)])
    own = {"updates": 1, "held_out": {"accuracy": 0.6, "kl_to_start": 0.8}}
    only = make_run(tmp_path / "only", rows=[look(0, 0.5), step(0), own])

    def shown(*runs):
        page, facts = report(tmp_path, *runs)
        found = [run["distance"] and (run["distance"]["which"], run["distance"]["value"]) for run in facts["runs"]]
        return plain(page).partition("Learning curves")[0], found

    to, of = "policy || start", "start || policy"
    text, found = shown(both, more, none)
    assert found == [(to, 0.7), (to, 0.9), None] and f"distance from the start KL({to})" in text and of not in text
    text, found = shown(both, data, none)
    assert found == [(of, 0.1), (of, 0.1), None] and f"distance from the start KL({of})" in text and to not in text
    text, found = shown(both, data, only)
    assert found == [(to, 0.7), (of, 0.1), (to, 0.8)] and "distance from the start both" in text
    assert f"0.7 KL({to})" in text and f"0.1 KL({of})" in text and "neither was measured in all" in text


def test_numbers_that_json_does_not_have_are_texts(tmp_path):
    """Settings of a damaged or changed config.json may be infinite; the tree beside the page is JSON all the same."""
    _, facts = report(tmp_path, make_run(tmp_path / "run", settings() | {"clip": [float("inf"), float("nan")]}))
    assert facts["runs"][0]["settings"]["clip"] == ["inf", "nan"]
    assert "Infinity" not in (tmp_path / "out" / "report.json").read_text()


def test_numbers_too_large_to_be_drawn_are_counted(tmp_path, draws):
    """A gradient of 1.7e308 and losses whose differences no float holds leave a page, with all else that it shows."""
    rows = [step(0), step(1, grad_norm=1.7e308), step(2, loss=-9e307), step(3, loss=9e307), step(4, loss=-1e300)]
    rows += [look(0, 0.5), look(5, 0.5, margin=1.0, margin_se=1.7e308), look(6, 0.5, margin=-1.7e308)]
    page, facts = report(tmp_path, make_run(tmp_path / "run", rows=rows))
    said = "Numbers beyond 1e+300 are in no curve: 1 of grad_norm, 2 of loss, 1 of margin, 1 of margin_se."
    assert facts["runs"][0]["notes"] == [said] and said in page.text and "-1.7e+308" in page.text
    assert "e+307" not in (tmp_path / "out" / "report-curves.csv").read_text()


def test_steps_that_no_run_has_are_left_out(tmp_path):
    """A number of a step below 0, or beyond what a float holds, is none."""
    rows = [*ROWS, step(0) | {"step": 10**400}, step(0) | {"step": -4}, look(0, 0.5) | {"updates": 10**400}]
    _, facts = report(tmp_path, make_run(tmp_path / "run", rows=rows))
    assert facts["runs"][0]["updates"] == 3 and facts["runs"][0]["looks"] == 3


def test_rows_that_were_dropped_as_bad_are_counted(tmp_path):
    """What data.bad_rows has left out stands beside what was too long."""
    bad = {"bad": 7, "total": 19, "reasons": [{"what": "is empty", "rows": 7, "places": ["/data/pairs.jsonl:1"]}]}
    run = make_run(tmp_path / "run", data=DATA | {"train": DATA["train"] | {"bad_rows": bad}})
    page, _ = report(tmp_path, run)
    assert "7 bad rows (data.bad_rows), 1 too long" in plain(page)


def test_metrics_that_cannot_be_read_are_said_to_be_so(tmp_path):
    """They are not taken for metrics without a row."""
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    _, facts = report(tmp_path, run)
    assert facts["runs"][0]["notes"] == ["metrics.jsonl cannot be read: Is a directory."]
    assert main(["status", str(run)]) == 2


def test_a_run_of_another_version_is_read_or_said_to_be_one(tmp_path):
    """One whose settings this version reads is shown with its version; another one's are shown as they are."""
    yesterday = make_run(tmp_path / "yesterday", software={"humanline": "0.0.9"})
    old = settings() | {"rounds": None, "sampling": {"n": 1}, "unheard_of": 3}
    older = make_run(tmp_path / "older", old, finished=False)
    page, facts = report(tmp_path, yesterday, older)
    assert "Made by version 0.0.9 of humanline" in page.text
    assert any("cannot be read by this version" in note for note in facts["runs"][1]["notes"])
    assert facts["runs"][1]["settings"]["unheard_of"] == 3 and "Not written down in this folder" in page.text
    assert {one["title"] for one in facts["groups"]} == {"DPO"}


def test_a_folder_with_nothing_in_its_files_is_shown_all_the_same(tmp_path):
    """A run that has just begun, with files that are empty or something else, gives a page that says so."""
    run = make_run(tmp_path / "run", config=[], rows=[], data=7, start=None, finished=False)
    page, facts = report(tmp_path, run)
    assert len(facts["runs"][0]["notes"]) == 5 and "Nothing to draw yet" in page.text


def test_answers_to_the_same_prompts_stand_side_by_side(tmp_path):
    """The first prompts that all models have are shown, with the first answer of each and its score."""
    make_answers(
        tmp_path / "start.jsonl",
        *[answer_row(str(n), f"question {n}", f"start {n}", [0.25]) for n in range(6)],
    )
    make_answers(tmp_path / "ours.jsonl", *[answer_row(str(n), f"question {n}", f"ours {n}") for n in (5, 3, 1, 7)])
    _, facts = report(tmp_path, tmp_path / "start.jsonl", tmp_path / "ours.jsonl", prompts=2)
    (block,) = facts["answers"]
    assert block["names"] == ["start", "ours"] and [one["prompt"][0][1] for one in block["prompts"]] == [
        "question 1",
        "question 3",
    ]
    first, second = block["prompts"][0]["answers"]
    assert (first["text"], first["score"], second["text"], second["score"]) == ("start 1", 0.25, "ours 1", None)


def test_a_file_and_a_folder_of_one_name_are_told_apart(tmp_path):
    """Answers in s.jsonl and in a folder s beside it have names of their own, and no path of this machine."""
    row = answer_row("1", "question", "mine")
    paths = [make_answers(tmp_path / "s.jsonl", row), make_answers(tmp_path / "s" / "samples.jsonl", row).parent]
    assert [one.name for one in find(list(map(str, paths)))] == ["s.jsonl", "s"]


def test_files_that_hold_no_answers_say_so(tmp_path):
    """An empty file and one of training data make a page that says what they are not, and no fault."""
    data = {"prompt": "what?", "chosen": "this", "rejected": "that"}
    empty, rows = make_answers(tmp_path / "empty.jsonl"), make_answers(tmp_path / "rows.jsonl", data)
    _, facts = report(tmp_path, empty, rows)
    (nothing,), (other,) = (one["notes"] for one in facts["evaluations"])
    assert nothing == "empty.jsonl holds no answers" and "rows.jsonl: row 1 is none of answers" in other
    assert "object with role and content" in other


def make_evaluation(folder, summary, name="a", **settings):
    """A folder of `humanline evaluate` with a single scored item."""
    folder.mkdir(parents=True)
    items = (Item("1", "p", (0.5,), ("ok",)),)
    write_evaluation(folder / "evaluation.json", Evaluation(name, None, settings, items, summary))
    make_answers(folder / "scored.jsonl", answer_row("1", "question", "mine"))
    return folder


SCORE = {"score": {"value": 0.5, "low": 0.4, "high": 0.6, "se": 0.05, "problems": 8}}
ALIKE = {"prompts": "p1", "sampling": {"temperature": 0.7}, "scoring": {"rewards": ["/home/me/x/y.py:f"]}}


def test_evaluations_that_are_not_alike_are_said_to_be_so(tmp_path):
    """What `humanline compare` refuses is named where numbers of one name stand in one table; settings are kept."""
    asked = {"one": ALIKE, "two": ALIKE, "three": ALIKE | {"sampling": {"temperature": 1.0}}}
    paths = [make_evaluation(tmp_path / name, SCORE, **settings) for name, settings in asked.items()]
    other = make_evaluation(tmp_path / "win", {"win_rate": SCORE["score"]}, prompts="p2")
    page, facts = report(tmp_path, *paths, other)
    (said,) = facts["evaluation_notes"]
    assert said == "'one' and 'three' were not evaluated alike: sampling.temperature: 0.7 and 1.0" and said in page.text
    assert facts["evaluations"][0]["settings"]["sampling"] == {"temperature": 0.7}
    assert facts["evaluations"][0]["settings"]["scoring"] == {"rewards": [".../x/y.py:f"]}
    _, facts = report(tmp_path, *paths[:2], other)
    assert facts["evaluation_notes"] == []


def test_templates_that_differ_are_said(tmp_path):
    """As `humanline compare` remarks it."""
    paths = [make_evaluation(tmp_path / name, SCORE | {"template": how}) for name, how in (("a", "x"), ("b", "y"))]
    assert report(tmp_path, *paths)[1]["evaluation_notes"] == ["prompts were put into different templates: a: x; b: y"]


def test_a_biased_judge_and_answers_without_a_score_are_on_the_page(tmp_path):
    """A judge that goes by the place of an answer is named with its counts; answers without a value by their status."""
    position = {"pairs": 8, "lean_first": 7, "lean_second": 0, "p": 0.0156, "biased": True}
    position["disagree"] = SCORE["score"] | {"value": 0.875}
    summary = {"win_rate": SCORE["score"], "without_verdict": {"timeout": 3}, "position": position}
    biased = make_evaluation(tmp_path / "biased", summary)
    older = make_evaluation(tmp_path / "older", summary | {"position": {"biased": True}})
    fair = make_evaluation(tmp_path / "fair", summary | {"position": position | {"biased": False}})
    page, facts = report(tmp_path, biased, older, fair)
    told, short, none = (one["notes"] for one in facts["evaluations"])
    assert told[0].startswith("the judge is biased to the answer shown first: it leans to the first on 7 prompts")
    assert short == ["the judge is biased to the place at which an answer is shown"] and none == []
    text = plain(page)
    assert "without verdict: timeout 3" in text and "position: disagree 0.875" in text and told[0] in text


def test_an_evaluation_with_a_number_beyond_what_a_float_holds_is_said_to_be_none(tmp_path):
    """As nan and infinity are."""
    folder = make_evaluation(tmp_path / "a", SCORE)
    text = (folder / "evaluation.json").read_text()
    (folder / "evaluation.json").write_text(text.replace("[0.5]", f"[1{'0' * 400}]"))
    with pytest.raises(EvaluationError, match="'1' must have a finite number where its status is ok"):
        read_evaluation(folder)
    _, facts = report(tmp_path, folder)
    assert facts["evaluations"][0]["notes"][0].startswith("a: item 1: '1' must have a finite number")


def test_runs_that_were_measured_on_other_data_are_told_apart(tmp_path):
    """Where hashes of held-out data differ a note says which runs have which; what is not known is no difference."""
    hashes = {"a": "ab" * 32, "b": "cd" * 32, "c": "ab" * 32}
    runs = [make_run(tmp_path / name, start=START | {"held-out data": digest}) for name, digest in hashes.items()]
    runs.append(make_run(tmp_path / "old", start={}))
    page, facts = report(tmp_path, *runs)
    (said,) = facts["run_notes"]
    assert said.endswith(": SHA-256 abababababab a, c; SHA-256 cdcdcdcdcdcd b.") and "held out" in said
    assert said in page.text
    assert report(tmp_path, runs[0], *runs[2:])[1]["run_notes"] == []


def test_runs_whose_scores_are_of_other_rewards_or_answers_are_told_apart(tmp_path):
    """Rewards, and how held-out answers are drawn, by a section of its own or as in rounds, are held together."""

    def scored(name, pattern="a+", evaluation=None, rows=None, **sampling):
        source = {
            "kind": "rounds",
            "contexts_per_round": 8,
            "sampling": {"max_tokens": 9} | sampling,
            "scoring": {"rewards": [{"kind": "format", "pattern": pattern}]},
        }
        tree = {"source": source, "evaluation": evaluation or {}, "data": {"train": "a.jsonl", "eval": "b.jsonl"}}
        tree |= {"reference": {"schedule": {"kind": "each_round"}}}
        own = [look(0, 0.5, score=1.0), look(3, 0.5, score=2.0)] if rows is None else rows
        return make_run(tmp_path / name, settings("grpo", **tree), own)

    alike = [scored("a"), scored("b", temperature=0.5, evaluation={"sampling": {"max_tokens": 9}})]
    alike += [make_run(tmp_path / "fixed"), scored("none", pattern="c", rows=ROWS)]
    assert report(tmp_path, *alike)[1]["run_notes"] == []
    page, facts = report(tmp_path, *alike, scored("c", pattern="b+"), scored("d", temperature=0.5))
    rewards, drawn = facts["run_notes"]
    assert rewards.startswith("The scores of these runs are of other rewards") and '"a+"' in rewards
    assert re.search(r"] a, b, d; \[\{.*] c\.$", rewards)
    assert drawn.endswith("held-out answers (temperature), and cannot be held against each other: 1.0 a, b, c; 0.5 d.")
    assert rewards in page.text and drawn in page.text


def test_rounds_show_what_the_policy_answered_first_and_last(tmp_path):
    """Of a run in rounds the answers of its first and last round are shown, with scores; a damaged file is named."""
    run = make_run(tmp_path / "run")
    for number in range(3):
        folder = run / "rounds" / f"{number:05}"
        make_answers(folder / "samples.jsonl", answer_row("1", "question", f"round {number}"))
        make_answers(folder / "scores.jsonl", {"id": "1", "scores": [{"value": number / 2, "status": "ok"}]})
    _, facts = report(tmp_path, run)
    (block,) = facts["answers"]
    answers = block["prompts"][0]["answers"]
    assert block["names"] == ["run, round 0, its start", "run, round 2"]
    assert [(one["text"], one["score"]) for one in answers] == [("round 0", 0.0), ("round 2", 1.0)]
    (run / "rounds" / "00002" / "samples.jsonl").write_text("{}\n")
    page, _ = report(tmp_path, run)
    assert "row 1 is none of answers" in page.text


def test_a_suite_of_runs_is_shown_with_its_tables_and_figure(tmp_path):
    """The tables of humanline reproduce are on the page, its figure is drawn from its CSV, a panel an objective."""
    page, facts = report(tmp_path, ROOT / "studies" / "frontier" / "letters")
    study = facts["studies"][0]
    assert {"findings.csv", "paper.csv", "cells.csv", "runs.csv"} <= {table["file"] for table in study["tables"]}
    (claims,) = [table for table in study["tables"] if table["file"] == "paper.csv"]
    assert claims["head"][:5] == ["where", "says", "objective", "paper", "verdict"]
    assert claims["rows"][1][3:6] == ["24.82, 18.07", "does not hold here", "0.651429"]
    titles = [attributes["aria-label"] for tag, attributes in page.elements if tag == "figure"]
    assert titles == ["DPO", "KTO", "GRPO"] and "undecided" in page.text
    assert "online runs lie above the offline curve" in page.text
    with open(ROOT / "studies" / "frontier" / "letters" / "frontier.csv", newline="") as file:
        assert len(study["points"]) == sum(row["panel"] != "setting" for row in csv.DictReader(file)) + 3


def test_a_plan_of_larger_models_is_shown_with_its_claims(tmp_path):
    """Its folder has runs and claims and no figure; a short row stays short."""
    folder = tmp_path / "small-out"
    folder.mkdir()
    (folder / "runs.csv").write_text("run,state,score\na,evaluated,0.5\n")
    (folder / "paper.csv").write_text("testbed,where,says,verdict\nsmall,Figure 8,<b>,not run\nsmall\n")
    page, facts = report(tmp_path, folder)
    assert "small-out: runs and claims" in page.text and "<b>" in page.text
    assert facts["studies"][0]["tables"][0]["rows"] == [["Figure 8", "<b>", "not run"], []]


def test_what_is_cut_or_beyond_a_float_in_a_suite_is_not_lost_in_silence(tmp_path):
    """Of a long text it is said how much more there is; a number that no float holds is shown as it is written."""
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "runs.csv").write_text("cell,score\na,1.23456e999\nb,-0.123456\n")
    (folder / "paper.csv").write_text("says\na\n")
    (folder / "table.txt").write_text("x" * 21_234)
    page, facts = report(tmp_path, folder)
    assert facts["studies"][0]["text"] == "x" * 20_000 + " [... 1,234 more characters]"
    assert "1.23456e999" in page.text and "-0.1235" in page.text and "1,234 more characters" in page.text


def test_points_that_a_figure_has_no_place_for_are_counted(tmp_path, draws):
    """On an axis of logarithms a KL of 0 or less is no point: the chart says how many of which series are not drawn."""
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "runs.csv").write_text("cell,score\n")
    points = {"setting,start": "nan,0.1", "DPO,offline": "0.5,0.2", "DPO,online": "-0.01,0.3", "KTO,online": "2,0.3"}
    rows = [f"{name},{point}" for name, point in points.items()] + ["DPO,online,0,0.4"]
    (folder / "frontier.csv").write_text("\n".join(["panel,series,x,y", *rows]) + "\n")
    page, _ = report(tmp_path, folder)
    assert page.text.count("Not drawn") == 1 and "Not drawn, as their KL is not above 0: 2 of online." in page.text
    figure = frontier.draw(read(folder / "frontier.csv"))
    figure.draw_without_rendering()
    (legend,) = figure.legends  # which it is a part of: they would lie on each other
    assert legend.get_title().get_text() == "Not drawn, as their KL is not above 0: 2 of online (DPO)."
    below = min(axis.get_tightbbox().y0 for axis in figure.axes)
    assert 0 <= legend.get_window_extent().y0 < legend.get_window_extent().y1 <= below


def test_a_suite_whose_figure_is_damaged_is_shown_without_it(tmp_path):
    """A frontier.csv that is no such table is said to be none, and the tables stay."""
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "runs.csv").write_text("cell,score\na,0.123456\n")
    for text in ("", "a,b\n1,2\n", "panel,series,x,y\nDPO,$x^{,1,2\n"):
        (folder / "frontier.csv").write_text(text)
        page, facts = report(tmp_path, folder)
        assert "frontier.csv cannot be drawn" in page.text and "0.1235" in page.text
        assert facts["studies"][0]["tables"][0]["rows"] == [["a", "0.123456"]]


def test_nothing_that_is_no_report_is_replaced(tmp_path):
    """A page, tree or table of someone else's in its place is left alone, and a name that is no page's is refused."""
    run = make_run(tmp_path / "run")
    mine = {"a.html": 'about <meta name="generator" content="humanline report">', "b.json": '["humanline report"]'}
    mine |= {"c-curves.csv": "mine", "d.json": '{"format": "humanline report of mine"}'}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ReportError, match="none of a report"):
            write_report([str(run)], str(tmp_path / f"{name[0]}.html"))
        assert (tmp_path / name).read_text() == text
    for name in ("report.txt", "report", "."):
        with pytest.raises(ReportError, match=r"must end in .html"):
            write_report([str(run)], str(tmp_path / name))


def test_without_matplotlib_it_is_said_what_to_install(tmp_path, monkeypatch, capsys):
    """Where no figure can be drawn the command says so before it reads anything, and writes nothing."""
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(tmp_path / "nowhere"), "--out", str(tmp_path / "r.html")]) == 2
    assert install("plots") in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_folder_of_a_run_is_left_as_it_is(tmp_path):
    """A report changes nothing in what it reads."""
    run = make_run(tmp_path / "run", finished=False)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    report(tmp_path, run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
