"""Tables from elsewhere: what contradicts itself is taken over by no command, and no table loses runs to another."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

import pytest

from humanline.cli import main
from humanline.reproduce import known, report, suite, versions
from humanline.reproduce.cells import core
from humanline.reproduce.foretold import read_levels
from humanline.reproduce.known import check_known, refuse_loss, take_over, writers_elsewhere
from humanline.reproduce.plan import grid_jobs
from humanline.reproduce.run import Job
from humanline.reproduce.suite import STORE, kept_results
from humanline.reproduce.tables import outcomes_csv, read_outcomes, write_outcomes
from humanline.reproduce.testbeds.registry import testbed as bed_of
from humanline.system.kept import KeptResults
from tests.reproduce.test_further import grid, run_of


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Pictures of the frontier take most of a command's time, and no test here looks at one."""
    monkeypatch.setattr(report, "write_figure", lambda *_: [])


def write(path, outcomes):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_outcomes(path, outcomes)
    return str(path)


def command(*tables, out):
    words = [word for table in tables for word in ("--known", table)]
    return main(["reproduce", "letters", *words, "--out", str(out), "--quiet"])


def test_two_tables_that_contradict_each_other_are_refused(tmp_path, capsys):
    """The first had won, silently, and both were said to be taken over; nothing of either is kept."""
    right = write(tmp_path / "right.csv", grid())
    wrong = write(tmp_path / "wrong.csv", [replace(one, score=0.99) for one in grid()[:5]])
    for tables in ((wrong, right), (right, wrong)):
        assert command(*tables, out=tmp_path / "out") == 2
        said = capsys.readouterr().err
        assert "they are two runs; leave one of the tables out" in said and "right.csv" in said and "wrong.csv" in said
        assert not (tmp_path / "out" / STORE).exists()
    assert command(right, right, write(tmp_path / "again.csv", grid()), out=tmp_path / "out") == 0
    slower = [replace(one, seconds=9.0) for one in grid()]  # the time that a run took is no result
    assert command(right, write(tmp_path / "slower.csv", slower), out=tmp_path / "out") == 0
    assert command(wrong, out=tmp_path / "out") == 2  # it was taken over before
    assert "differ from those of" in capsys.readouterr().err


def test_runs_of_another_start_model_leave_nothing_behind(tmp_path, capsys):
    """Refused, they had stayed in the folder, and the right table was refused there ever after."""
    some = [one for one in grid() if one.cell.objective == "kto"]
    others = write(tmp_path / "others.csv", [replace(one, start_score=one.start_score + 0.01) for one in some])
    rest = write(tmp_path / "rest.csv", [one for one in grid() if one.cell.objective != "kto"])
    assert command(rest, others, out=tmp_path / "out") == 2 and "it is another model" in capsys.readouterr().err
    assert command(write(tmp_path / "right.csv", grid()), out=tmp_path / "out") == 0


def test_what_was_run_here_stays_as_it_is(tmp_path, capsys):
    """Numbers of one run differ a little between kinds of processors; how many do is said."""
    jobs, out = grid_jobs(["letters"], core(), 3, 1), tmp_path / "out"
    runs = {(one.cell, one.start): one for one in grid()}
    own = [replace(runs[job.cell, job.start], score=0.123) for job in jobs[:2]]
    out.mkdir()
    store = KeptResults(out / STORE)
    store.read()
    for job, one in zip(jobs, own, strict=False):
        store.keep(known.key_of(job), job.name, f"code {known.as_text(one)}")
    assert command(write(tmp_path / "table.csv", grid()), out=out) == 0
    assert "2 of these were run here before, with other numbers, and stay" in capsys.readouterr().out
    assert [one.score for one in kept_results(jobs[:2], out).outcomes] == [0.123] * 2


def test_a_table_is_not_written_anew_without_runs_that_it_has(tmp_path, capsys):
    """A table in --out that was named with --known had been overwritten by the part of it that the command needs."""
    table = tmp_path / "out" / "letters" / "runs.csv"
    file = write(table, [*grid(), *grid(draw=1)])
    before = table.read_bytes()
    assert command(file, out=tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "would be written anew without 456 of its 912 runs" in said and "take another --out, or move" in said
    assert table.read_bytes() == before
    assert command(file, out=tmp_path / "other") == 0
    assert command(file, out=tmp_path / "other") == 0  # its own table is kept, all of it
    jobs = grid_jobs(["letters"], core(), 3, 1)
    wider = write(tmp_path / "other" / "letters" / "runs.csv", [run_of(replace(core()[0], data="far"), 0.5, 0)])
    with pytest.raises(ValueError, match=r"without 1 of its 1 runs, which .*results\.sqlite does not keep"):
        refuse_loss(tmp_path / "other" / "letters" / "runs.csv", jobs, tmp_path / "other")
    table.write_text("no table\n")
    with pytest.raises(ValueError, match=r"is no table that could be: .* take another --out, or move the table away"):
        refuse_loss(table, jobs, tmp_path / "out")
    assert wider


def test_runs_on_data_whose_writer_is_not_kept_are_not_mixed(tmp_path):
    """Far and better pairs are written by models of their own, of which no table knows the score."""
    bed = bed_of("letters")
    cells = [replace(core()[0], data="far", lr=lr) for lr in (1e-4, 3e-4)]
    jobs = [Job(bed, core()[0], 0, 0), *(Job(bed, cell, 0, 0) for cell in cells)]
    assert writers_elsewhere(jobs, tmp_path) == set()
    take_over(jobs, [run_of(cells[0], 0.5, 0)], tmp_path)
    with pytest.raises(ValueError, match="some runs on far pairs of start model 0 of letters come from a table"):
        writers_elsewhere(jobs, tmp_path)
    assert writers_elsewhere(jobs[:2], tmp_path) == {("letters", "far", 0)}
    assert check_known(jobs, {"one": [run_of(cells[1], 0.5, 0)]}, tmp_path) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": "nan"}, "score must be a number where the status is done"),
        ({"kl_to_start": "nan"}, "kl_to_start must be a number where the status is done"),
        ({"length": -1.0}, "length must be >= 0; got '-1'"),
        ({"truncated": -0.5}, "truncated must be >= 0"),
    ],
)
def test_rows_that_no_run_leaves_are_refused(tmp_path, changes, said):
    """A finished run without its score had made its cells vanish, or counted as collapsed."""
    values = {name: float(value) for name, value in changes.items()}
    file = write(tmp_path / "runs.csv", [grid()[0], replace(grid()[1], **values)])
    with pytest.raises(ValueError, match=f"line 3: {said}"):
        read_outcomes(tmp_path / "runs.csv")
    assert file


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    """The last one had been taken."""
    lines = outcomes_csv(grid()[:2]).splitlines()
    (tmp_path / "runs.csv").write_text("\n".join([lines[0] + ",score", *(line + ",0.5" for line in lines[1:])]) + "\n")
    with pytest.raises(ValueError, match="no table of runs: it has the column 'score' twice"):
        read_outcomes(tmp_path / "runs.csv")


@pytest.mark.parametrize("name", ["torch", "transformers", "numpy", "tokenizers", "scipy"])
def test_every_library_that_decides_a_number_is_in_the_digest_of_the_code(monkeypatch, name):
    """Numpy orders rows, tokenizers makes tokens, scipy matches temperatures: results of others are "older"."""
    before = versions.code_digest()
    versions.code_digest.cache_clear()
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda one: "99" if one == name else real(one))
    assert versions.code_digest() != before
    monkeypatch.undo()
    versions.code_digest.cache_clear()
    assert versions.code_digest() == before


def test_the_mean_of_scores_is_in_the_digest_of_the_code(monkeypatch):
    """The statistics make every score of an answer's; a change there makes results of other code."""
    asked = []
    monkeypatch.setattr(versions, "_digest", lambda files, said="": asked.extend(files) or "")
    versions.code_digest.cache_clear()
    versions.code_digest()
    versions.code_digest.cache_clear()
    assert {"intervals.py", "loop.py", "losses.py"} <= {path.name for path in asked}


def test_studies_refuse_what_they_would_not_do(tmp_path, monkeypatch, capsys):
    """A setting of no effect."""
    monkeypatch.chdir(tmp_path)
    assert main(["sim", "--people", "--quick", "--processes", "2"]) == 2
    assert "--people goes on in one process" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_study_that_keeps_nothing_says_so_when_it_is_stopped(tmp_path, monkeypatch, capsys):
    """It had said that its runs were kept, and began anew."""
    from humanline.system.stop import StopRequested

    def stopped(*_, progress, **__):
        progress(1, 6)
        raise StopRequested("SIGTERM")

    monkeypatch.setattr("humanline.sim.people.study_people", stopped)
    assert main(["sim", "--people", "--quick", "--quiet", "--out", str(tmp_path)]) == 75
    assert "SIGTERM: nothing is kept; the same command begins anew" in capsys.readouterr().err


def test_what_would_be_mixed_is_refused_before_anything_is_kept(tmp_path):
    """Of one testbed: another one's runs on data of the same name are written by models of its own."""
    far = replace(core()[0], data="far")
    jobs = [Job(bed_of(name), cell, 0, 0) for name, cell in (("letters", far), ("instructions", far))]
    table = {"a table": [run_of(far, 0.5, 0)]}
    assert check_known(jobs, table, tmp_path) == {}
    more = [*jobs, Job(bed_of("letters"), replace(far, lr=1e-5), 0, 0)]
    with pytest.raises(ValueError, match="of letters come from a table, and others are to be made"):
        check_known(more, table, tmp_path)
    assert not (tmp_path / STORE).exists()


def test_a_table_of_the_task_as_it_was_is_written_anew(tmp_path):
    """Its runs are of no use any more, and `--known` would refuse them."""
    write(tmp_path / "runs.csv", [replace(one, task="1-0123456789abcdef") for one in grid()])
    refuse_loss(tmp_path / "runs.csv", grid_jobs(["letters"], core(), 3, 1), tmp_path)


def test_levels_that_are_no_table_are_named(tmp_path):
    """With the file, whatever is wrong in it."""
    cut_off = b"start,draw,data,level,own,gap,paper_side,own_side\n0,0,near,1,1,1,at,at\n0,0,far,1,1,1,at\n"
    for text in (b"start,draw,data\n0,0,near\n", b"start,more\n0,1\n", b"start\xff", cut_off):
        (tmp_path / "levels.csv").write_bytes(text)
        with pytest.raises(ValueError, match=r"levels\.csv: no table of levels: "):
            read_levels(tmp_path / "levels.csv")


def test_levels_that_are_no_table_are_named_before_anything_runs(monkeypatch, tmp_path, capsys):
    """They are needed at the end: a malformed one was named after hours of runs."""
    monkeypatch.setattr(suite, "run_suite", lambda *_, **__: pytest.fail("it began to run"))
    table = write(tmp_path / "runs.csv", grid())
    (tmp_path / "levels.csv").write_text("start,more\n0,1\n")
    words = ["reproduce", "letters", "--all", "--known", table, "--out", str(tmp_path / "out"), "--quiet"]
    assert main(words) == 2 and "levels.csv: no table of levels: " in capsys.readouterr().err
    assert not (tmp_path / "out" / STORE).exists()


def test_many_results_are_kept_together_or_not_at_all(tmp_path):
    """A table is taken over whole; a result that is there stays as it is."""
    store = KeptResults(tmp_path / STORE)
    store.read()
    store.keep("b", "b", "old")

    def breaking():
        yield "a", "a", "1"
        raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        store.keep_all(breaking())
    assert store.read() == {"b": "old"}
    store.keep_all([("a", "a", "1"), ("b", "b", "2")])
    assert store.read() == {"a": "1", "b": "old"}
