"""Tables of runs: read as they were written, and refused where they are damaged or of something else."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from humanline.cli import main
from humanline.reproduce.cells import Cell, core
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.tables import read_outcomes, write_outcomes

OUTCOME = Outcome(
    testbed="micro",
    cell=Cell("dpo", "offline", 1e-3, beta=1.0),
    start=0,
    draw=0,
    status="done",
    start_score=0.5,
    score=2 / 3,
    judged=0.61,
    greedy=0.7,
    matched=0.6543217,
    temperature=0.9,
    kl_to_start=1.5,
    kl_to_start_se=0.01,
    kl_from_start=1.7,
    kl_from_start_se=0.02,
    truncated=0.0,
    length=6.1,
    entropy=0.3,
    clipped=math.nan,
    saturation=0.4,
    updates=9,
    scorer_calls=1280,
    seconds=1.25,
    task="2-0123456789abcdef",
)


def test_a_table_of_runs_is_read_as_it_was_written(tmp_path):
    """Six digits of every number; what is unknown stays unknown; a foreign file is refused with its place."""
    broken = dataclasses.replace(OUTCOME, status="not finite", score=math.nan, cell=core()[-1])
    path = tmp_path / "runs.csv"
    write_outcomes(path, [OUTCOME, broken])
    first, second = read_outcomes(path)
    assert first.cell == OUTCOME.cell and second.cell == core()[-1] and math.isnan(second.score)
    for field in dataclasses.fields(OUTCOME):
        wanted, found = getattr(OUTCOME, field.name), getattr(first, field.name)
        assert found == (pytest.approx(wanted, rel=1e-5, nan_ok=True) if isinstance(wanted, float) else wanted)
    text = path.read_text()
    path.write_text(text.replace(",done,", ",done,x"))
    with pytest.raises(ValueError, match=r"runs.csv, line 2: could not convert"):
        read_outcomes(path)
    path.write_text(text.replace("kl_to_start_se", "other"))
    with pytest.raises(ValueError, match="it has no column 'kl_to_start_se'"):
        read_outcomes(path)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda text: text[: text.rindex(",")], "line 3: it has fewer values than there are columns, or more"),
        (lambda text: text[:-5], "line 3: task must be a number and 16 hexadecimal digits"),
        (lambda text: text + text.splitlines(True)[1], "line 4: this run is in line 2 already"),
        (
            lambda text: text.replace(",done,", ",fine,"),
            "line 2: status must be one of 'done', 'not finite'; got 'fine'",
        ),
        (lambda text: text + '"' + "a" * 200_000, "no table of runs: field larger than field limit"),
        (lambda text: text.encode() + b"\xff\xfe", "no table of runs: 'utf-8' codec can't decode"),
        (lambda text: b"", "no table of runs: it has no column"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, harm, said):
    """With file and line, whatever it is: no row is read as if what it lacks were not known."""
    path = tmp_path / "runs.csv"
    write_outcomes(path, [OUTCOME, dataclasses.replace(OUTCOME, draw=1)])
    harmed = harm(path.read_text())
    path.write_bytes(harmed if isinstance(harmed, bytes) else harmed.encode())
    with pytest.raises(ValueError, match=f"runs.csv.*{re.escape(said)}"):
        read_outcomes(path)


def test_a_table_of_other_runs_is_not_taken_over(tmp_path, capsys):
    """A command that would begin all anew says so instead; so does one whose task has changed, with the file's name."""
    path = tmp_path / "runs.csv"
    words = ["reproduce", "--known", str(path), "--out", str(tmp_path / "out"), "--quiet"]
    assert main(words) == 2
    assert f"--known {path}: it cannot be read: No such file" in capsys.readouterr().err
    path.write_text("a,b\n")
    assert main(words) == 2
    assert f"--known {path}: no table of runs" in capsys.readouterr().err
    write_outcomes(path, [OUTCOME])
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"--known {path}: none of its 1 runs (of micro) is one of this command's" in said
    assert not (tmp_path / "out").exists()
    write_outcomes(path, [dataclasses.replace(OUTCOME, testbed="letters", cell=core()[0])])
    assert main(words) == 2
    assert f"--known {path}: letters/{core()[0].name}" in capsys.readouterr().err
