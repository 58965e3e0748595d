"""What a run leaves to be read: run.log, the kind of each row, and where it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from humanline.cli import main
from humanline.system.lock import FolderLock
from humanline.system.log import LOG, TextLog, kept_log
from humanline.system.stop import StopRequested
from humanline.system.terminal import remember
from humanline.train.loop import train
from humanline.train.run import metrics
from humanline.train.run.metrics import read_metrics
from humanline.train.run.status import StatusError, read_status
from tests.helpers.support import config

STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  ")


def said(folder) -> list[str]:
    lines = (folder / "run.log").read_text(encoding="utf-8").splitlines()
    assert all(STAMP.match(line) for line in lines)
    return [STAMP.sub("", line, count=1) for line in lines]


def run_of(toy, output, **changes):
    held_out = {"train": toy["pairs"], "eval": toy["pairs"], "max_length": 64, "shape": "preference"}
    return config(toy, output, training__steps=6, checkpoint={"every": 2, "minutes": None}, data=held_out, **changes)


class AfterThree:
    """A stop signal that is given once the metrics hold three steps."""

    def __init__(self, output: str) -> None:
        self.metrics, self.holding = Path(output) / "metrics.jsonl", False

    def hold(self) -> None:
        self.holding = True

    @property
    def requested(self) -> str | None:
        there = self.metrics.is_file() and '"step": 2,' in self.metrics.read_text()
        return "SIGTERM" if there else None


@pytest.mark.parametrize("shown", [True, False])
def test_a_run_that_was_stopped_and_resumed_leaves_one_log(toy, tmp_path, capsys, shown):
    """It holds what the terminal showed, shown or not, with a mark for each process and how that ended."""
    given = run_of(toy, tmp_path / "run")
    with pytest.raises(StopRequested):
        train(given, stop=AfterThree(given.output), show_progress=shown)
    status = read_status(given.output)
    assert (status.state, status.updates, status.steps) == ("not finished", 3, 6)
    assert status.ended.startswith("StopRequested: ") and "after 3 of 6 updates" in status.ended
    train(given, resume=True, show_progress=shown)
    lines = said(tmp_path / "run")
    marks = [line for line in lines if line.startswith("----")]
    assert [mark.split()[1] for mark in marks] == ["begun", "ended:", "resumed", "ended:"]
    assert f"by process {os.getpid()}, humanline " in marks[0] and marks[3] == "---- ended: finished"
    assert [line.split("  ")[0] for line in lines if line.startswith("step ")] == [f"step {i}/6" for i in range(1, 7)]
    assert any(line.startswith("going on after 3 updates") for line in lines)
    noise = ("Loading weights", "Writing model")  # bars of a library, which no line of the run is
    shown_lines = [one for one in capsys.readouterr().err.splitlines() if one.strip() and not one.startswith(noise)]
    assert bool(shown_lines) is shown
    assert [line for line in shown_lines if line not in lines] == []
    status = read_status(given.output)
    assert (status.state, status.updates, status.ended[:8]) == ("finished", 6, "finished")


def test_every_row_says_what_it_is(toy, tmp_path):
    """Rows have a kind; those of earlier versions, without one, are read as if they had."""
    result = train(run_of(toy, tmp_path / "run"), show_progress=False)
    written = [json.loads(line) for line in result.metrics_file.read_text().splitlines()]
    assert [row["kind"] for row in written] == ["look", *["train"] * 6, "look"]
    old = tmp_path / "old.jsonl"
    rows = [*written, {"round": 0, "steps": 4, "score": 0.5}, {"updates": 6, "broke": {"what": "x"}}, {"more": 1}]
    old.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "kind"}) + "\n" for row in rows))
    kinds = [row["kind"] for row in read_metrics(old)]
    assert kinds == [*(row["kind"] for row in written), "sample", "break", "other"]
    assert list(read_metrics(result.metrics_file)) == written


def test_a_run_of_an_earlier_version_goes_on(toy, tmp_path, monkeypatch):
    """Its rows have no kind; new ones have, and all are read alike."""
    given = run_of(toy, tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(StopRequested):
        patch.setattr(metrics, "with_kind", lambda row: row)
        train(given, stop=AfterThree(given.output), show_progress=False)
    result = train(given, resume=True, show_progress=False)
    lines = [json.loads(line) for line in result.metrics_file.read_text().splitlines()]
    assert {"kind" in line for line in lines} == {True, False}
    assert [row["kind"] for row in read_metrics(result.metrics_file)] == ["look", *["train"] * 6, "look"]
    assert (read_status(given.output).updates, result.metrics_file.read_text().count('"step"')) == (6, 6)


class TestLog:
    def test_what_is_said_is_plain_and_without_secrets(self, tmp_path):
        """Control characters are escapes, secrets are hidden, and every line has its time."""
        remember(["a-secret-of-the-recipe"])
        log = TextLog()
        log.note("before \x1b[31mthe folder\x1b[0m")
        log.open(tmp_path / "run.log", "---- begun")
        log.note("key a-secret-of-the-recipe\nhf_abcdefghijklmnopqrstuvwxyz\r\x07")
        log.close("---- ended: a-secret-of-the-recipe")
        text = (tmp_path / "run.log").read_bytes().decode()
        assert re.fullmatch(r"[ -~\n]*", text) and "a-secret" not in text and "hf_" not in text
        assert said(tmp_path)[:2] == ["---- begun", r"before \x1b[31mthe folder\x1b[0m"]
        log.note("after")  # of nobody's run
        assert len(said(tmp_path)) == 5

    def test_a_log_that_cannot_be_written_costs_nothing(self, tmp_path, monkeypatch):
        """Lines wait for space and for their folder; a torn line is left alone, and what was too much is counted."""
        log, path = TextLog(), tmp_path / "gone" / "run.log"
        log.open(path, "---- begun")
        log.note("one")
        assert not path.parent.exists()
        path.parent.mkdir()
        path.write_text("2026-01-01 00:00:00 UTC  torn")
        log.note("two")
        assert said(path.parent) == ["torn", "---- begun", "one", "two"]
        write, room = os.write, [3]

        def little(file, data):
            if not room:
                raise OSError(28, "No space left on device")
            return write(file, data[: room.pop()])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", little)
            for number in range(1100):
                log.note(f"line {number}")
        assert said(path.parent) == ["torn", "---- begun", "one", "two"]
        log.note("there is room")
        assert said(path.parent)[4:6] == ["line 0", "line 1"]
        assert said(path.parent)[-1] == "101 lines are left out: they could not be written"

    def test_a_folder_of_another_run_is_not_written_to(self, tmp_path):
        """Once the lock is lost nothing is added."""
        log, lost = TextLog(), []
        log.open(tmp_path / "run.log", "---- begun", lambda: lost or None)
        lost.append("taken over")
        log.note("one")
        log.close("---- ended")
        assert said(tmp_path) == ["---- begun"]

    def test_the_last_line_is_how_it_ended(self, tmp_path):
        """An error is named, and goes on."""
        with pytest.raises(ValueError, match="no\nluck"), kept_log():
            LOG.open(tmp_path / "run.log", "---- begun")
            raise ValueError("no\nluck")
        assert said(tmp_path) == ["---- begun", "---- ended: ValueError: no luck"]


# ---------------------------------------------------------------------------------------------------------------------
# humanline status


def written(folder, rows, **files):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, tree in files.items():
        (folder / f"{name}.json").write_text(json.dumps(tree))
    return folder


STEPS = [{"kind": "train", "step": i, "loss": 0.5, "seconds": 2.0} for i in range(40)]
LOOKS = [{"kind": "look", "updates": n, "held_out": {"score": s, "score_se": 0.1}} for n, s in ((0, 0), (20, 3))]


def lines_of(folder) -> dict[str, str]:
    return {line[:13].strip(): line[13:] for line in read_status(folder).lines()}


def test_status_tells_of_a_run_while_it_goes_on(tmp_path, capsys):
    """Step, total, time left, looks and the lock's holder, from a folder that is being written to."""
    looks = [*LOOKS, {"kind": "look", "updates": 30, "held_out": {"score": 2.5, "score_se": 0.1}}]
    folder = written(tmp_path / "run", [*STEPS, *looks], config={}, data={"steps": 100})
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')  # it is being written
    lock = FolderLock(folder)
    lock.take(wait=False, say=print)
    try:
        found = lines_of(folder)
    finally:
        lock.release()
    assert found["state"] == "going on" and found["step"].startswith("40 of 100 (40.0%); last row written ")
    assert found["time left"] == "about 2 min, at 2 s a step"
    assert found["last look"] == "after 30 updates: score 2.5 ± 0.1"
    assert found["best look"] == "after 20 updates: score 3 ± 0.1; judged by score"
    assert found["lock"].startswith(f"held by process {os.getpid()}") and "ended" not in found
    after = lines_of(folder)
    assert after["state"] == "not finished" and "given back" in after["lock"]
    assert after["time left"].endswith("once it is resumed") and "nothing says by what" in after["ended"]
    capsys.readouterr()
    assert main(["status", str(folder)]) == 0
    assert "40 of 100" in capsys.readouterr().out


def test_status_counts_the_time_of_rounds(tmp_path):
    """Each step has its share of what rounds took."""
    rounds = [{"kind": "sample", "round": i, "steps": 4, "seconds": 40.0} for i in range(10)]
    folder = written(tmp_path / "run", [*STEPS, *rounds], config={}, data={"steps": 50})
    assert read_status(folder).seconds == pytest.approx(2 + 10)


@pytest.mark.parametrize("source", [{"source": {"kind": "rounds"}}, {"rounds": {"samples": 4}}])
def test_steps_that_rounds_may_not_give_are_called_the_most(tmp_path, source):
    """A finished run is not told to be at a share of them, nor one that goes on to take all of their time."""
    passes = {"training": {"epochs": 1, "steps": None}}
    folder = written(tmp_path / "run", STEPS, config=passes | source, data={"steps": 100})
    assert lines_of(folder)["step"].startswith("40 of at most 100; last row")
    assert lines_of(folder)["time left"].startswith("at most about 2 min, at 2 s a step")
    for steps, changed in ((100, source), (None, {"source": {"kind": "fixed"}})):
        written(folder, STEPS, config={"training": {"steps": steps}} | changed)
        assert lines_of(folder)["step"].startswith("40 of 100 (40.0%); last row")


def test_status_of_damaged_and_old_folders(tmp_path):
    """What is missing is said to be unknown; a folder without a run is refused."""
    folder = written(tmp_path / "run", [{"step": 0, "loss": 1.0}])
    found = lines_of(folder)
    assert found["step"].startswith("1 of an unknown number") and found["time left"] == "not known yet"
    assert found["last look"] == "none yet" and found["lock"] == "none"
    written(folder, STEPS, config={"training": {"steps": 80}}, data=[1])
    assert lines_of(folder)["step"].startswith("40 of 80")
    with pytest.raises(StatusError, match="holds no run"):
        read_status(tmp_path)
    assert main(["status", str(tmp_path / "nowhere")]) == 2


def test_models_and_checkpoints_are_no_runs(tmp_path):
    """They have files of the same names; of one in a run's folder the run is named, and no killed run is made up."""
    run = written(tmp_path / "run", STEPS, config={"training": {"steps": 80}})
    for name in ("final", "checkpoints/step-00000002"):
        (run / name).mkdir(parents=True)
    (run / "final" / "config.json").write_text('{"model_type": "llama"}')
    written(run / "checkpoints" / "step-00000002", STEPS[:2], manifest={})
    for name, what in (("final", "a model"), ("checkpoints/step-00000002", "a checkpoint of a run")):
        with pytest.raises(StatusError, match=f"holds {what}, not a run: name '{run}'"):
            read_status(run / name)
    (run / "metrics.jsonl").rename(tmp_path / "metrics.jsonl")
    with pytest.raises(StatusError, match=r"holds a model, not a run$"):
        read_status(run / "final")
    assert main(["status", str(run / "final")]) == 2
    assert lines_of(run)["step"].startswith("0 of 80")


def test_an_error_of_0_is_not_told(tmp_path):
    """Where all held-out pairs agree, or at the start, which is a tie by definition, nobody knows the error."""
    looks = [
        {"updates": n, "held_out": {"accuracy": a, "accuracy_se": e}} for n, a, e in ((0, 0.5, 0.1), (4, 1.0, 0.0))
    ]
    assert lines_of(written(tmp_path / "run", looks))["last look"] == "after 4 updates: accuracy 1"
    assert lines_of(written(tmp_path / "run", looks[:1]))["last look"] == "after 0 updates: accuracy 0.5"


def test_a_finished_run_without_a_log_was_not_killed(tmp_path):
    """One of a version that kept no log has finished; a folder `final` without a manifest is no finished model."""
    folder = written(tmp_path / "run", STEPS)
    (folder / "final").mkdir()
    assert read_status(folder).state == "not finished" and "was killed" in lines_of(folder)["ended"]
    (folder / "final" / "manifest.json").write_text("{}")
    assert lines_of(folder)["state"] == "finished" and "ended" not in lines_of(folder)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e308, 10**400, -5.0, True, "2"])
def test_times_and_counts_that_are_none_are_left_out(tmp_path, wrong):
    """A second that no clock gives, or a step that no run has, costs no status and is not counted."""
    rows = [*STEPS, {"kind": "train", "step": 40, "seconds": wrong}, {"kind": "train", "step": wrong, "seconds": 2.0}]
    folder = written(tmp_path / "run", rows, config={}, data={"steps": wrong if wrong == 10**400 else 61})
    assert read_status(folder).seconds == pytest.approx(2.0) and read_status(folder).updates == 41
    assert lines_of(folder)["time left"].startswith("not known" if wrong == 10**400 else "about 40 s")


def test_status_is_told_without_torch():
    """Nothing heavy is imported for it, which would take longer than all the rest."""
    code = "import sys, humanline.train.run.status; print({'torch', 'numpy', 'pydantic'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout == b"set()\n"


def test_what_another_process_began_has_not_ended(tmp_path):
    """The end of an earlier process is not that of a later one that was killed."""
    folder = written(tmp_path / "run", STEPS)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC  ")
    log = [f"{stamp}---- begun", f"{stamp}---- ended: StopRequested: x", f"{stamp}---- resumed by", f"{stamp}step 3"]
    (folder / "run.log").write_text("\n".join(log) + "\n")
    assert read_status(folder).ended == ""
    (folder / "run.log").write_text("\n".join(log[:2]) + "\n")
    assert read_status(folder).ended.startswith("StopRequested: x, at ")
