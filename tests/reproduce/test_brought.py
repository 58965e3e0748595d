"""Start models brought along with a table of runs count when they measure as they are said to, and not before."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from humanline.cli import main
from humanline.reproduce import suite as module
from humanline.reproduce.answers import Model
from humanline.reproduce.brought import bring, starts_beside
from humanline.reproduce.cells import Cell
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.plan import SECONDS
from humanline.reproduce.run import Job
from humanline.reproduce.start import (
    has_pairs,
    has_start,
    kept_start,
    make_pairs,
    make_start,
    pairs_of,
    prompt_files,
    told_start,
)
from humanline.reproduce.suite import held, kept_results
from humanline.reproduce.tables import read_outcomes, write_outcomes
from humanline.reproduce.testbeds.registry import TESTBEDS
from humanline.reproduce.versions import made_by
from humanline.reproduce.worker import prepare_worker
from humanline.system.files import OutputError
from humanline.system.folders import MANIFEST, publish_folder
from tests.helpers.dying import must_not_be_called
from tests.helpers.micro_testbed import MICRO

OFFLINE = Cell("dpo", "offline", 1e-3, beta=1.0)
STARTS = Path(__file__).parents[2] / "studies" / "frontier" / "starts"
COMMITTED = sorted(place.name for place in STARTS.iterdir())


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """The folder of a suite elsewhere, with two start models of a testbed, and a draw of pairs of the first."""
    starts = tmp_path_factory.mktemp("there") / "starts"
    prompt_files(MICRO, starts)
    for seed in (0, 1):
        make_start(MICRO, "near", seed, starts)
    make_pairs(MICRO, "near", 0, 0, starts)
    return starts.parent


def an_outcome(start_score, draw=0):
    numbers = {field.name: 0.5 for field in dataclasses.fields(Outcome) if field.type == "float"}
    numbers |= {field.name: 1 for field in dataclasses.fields(Outcome) if field.type == "int"}
    names = {"testbed": "micro", "cell": OFFLINE, "start": 0, "draw": draw, "status": "done"}
    return Outcome(**(numbers | names | {"start_score": start_score, "task": made_by(MICRO)}))


def test_it_is_the_same_start_and_nothing_is_trained(there, tmp_path, monkeypatch):
    """A copy counts once it has been measured; pairs come along; what is there already is left alone."""
    start, pairs = make_start(MICRO, "near", 0, there / "starts"), make_pairs(MICRO, "near", 0, 0, there / "starts")
    assert bring(there / "starts", MICRO, [0, 0, 2], tmp_path) == ["near-0"]
    assert bring(there / "starts", MICRO, [0], tmp_path) == [] and not has_start(MICRO, "near", 0, tmp_path)
    monkeypatch.setattr("humanline.train.loop.train", must_not_be_called)
    monkeypatch.setattr("humanline.reproduce.start.pairs_of", must_not_be_called)
    mine = make_start(MICRO, "near", 0, tmp_path)
    assert mine.measured == start.measured and mine.model != start.model and has_start(MICRO, "near", 0, tmp_path)
    assert make_pairs(MICRO, "near", 0, 0, tmp_path).gap == pairs.gap
    assert bring(there / "starts", MICRO, [0, 1], tmp_path) == ["near-1"]
    assert bring(tmp_path, MICRO, [0, 1], tmp_path) == []


def test_draws_of_pairs_that_are_missing_come_to_the_same_model(there, tmp_path):
    """A suite that was begun with fewer draws learns from those of the table; another model's would not be its own."""
    theirs = shutil.copytree(there / "starts", tmp_path / "theirs")
    mine, other = tmp_path / "mine", tmp_path / "other"
    shutil.rmtree(theirs / "micro" / "near-0" / "pairs-0")
    assert bring(theirs, MICRO, [0], mine) == ["near-0"] and not has_pairs(MICRO, "near", 0, 0, mine)
    assert bring(there / "starts", MICRO, [0], mine) == ["near-0/pairs-0"] and has_pairs(MICRO, "near", 0, 0, mine)
    assert not has_start(MICRO, "near", 0, mine)  # pairs prove nothing of the model
    assert bring(there / "starts", MICRO, [0], mine) == []
    manifest = theirs / "micro" / "near-0" / "start" / "final" / MANIFEST
    for said in (json.loads(manifest.read_text()) | {"digest": "0" * 64}, {}):
        manifest.write_text(json.dumps(said))
        shutil.copytree(theirs, other, dirs_exist_ok=True)
        assert bring(there / "starts", MICRO, [0], other) == [] and not has_pairs(MICRO, "near", 0, 0, other)


def test_a_draw_is_one_set_of_pairs(there, tmp_path):
    """Where a model's pairs are others here than beside the table, runs of both are not mixed; nothing changes."""
    assert bring(there / "starts", MICRO, [0], tmp_path) == ["near-0"]
    file = tmp_path / "micro" / "near-0" / "pairs-0" / "pairs.jsonl"
    lines = file.read_text().splitlines(True)
    file.write_text("".join([lines[1], lines[0], *lines[2:]]))
    mine = file.read_bytes()
    with pytest.raises(ValueError, match=r"near-0/pairs-0: these pairs are others than those in .*new folder as --out"):
        bring(there / "starts", MICRO, [0], tmp_path)
    assert file.read_bytes() == mine
    shutil.rmtree(file.parent)
    assert bring(there / "starts", MICRO, [0], tmp_path) == ["near-0/pairs-0"]


def test_a_copy_may_be_written_where_theirs_may_not(there, tmp_path):
    """A mounted folder of data lets nobody write; what was copied from it is the suite's own."""
    theirs = shutil.copytree(there / "starts", tmp_path / "theirs")
    for one in (theirs, *theirs.rglob("*")):
        one.chmod(0o555 if one.is_dir() else 0o444)
    assert bring(theirs, MICRO, [0], tmp_path / "mine") == ["near-0"]
    copied = list((tmp_path / "mine" / "micro" / "near-0").rglob("*"))
    assert {one.stat().st_mode & 0o200 for one in copied} == {0o200} and len(copied) > 5
    make_start(MICRO, "near", 0, tmp_path / "mine")
    assert has_pairs(MICRO, "near", 0, 0, tmp_path / "mine")
    for one in (theirs, *theirs.rglob("*")):
        one.chmod(0o755)  # so that it can be removed


def test_a_copy_that_broke_off_is_gone(there, tmp_path, monkeypatch):
    """Whatever folders it has copied from one that may only be read; the next copy is not in its way."""
    theirs = shutil.copytree(there / "starts", tmp_path / "theirs")
    folders = [one for one in (theirs, *theirs.rglob("*")) if one.is_dir()]
    for one in folders:
        one.chmod(0o555)
    copy, remove = shutil.copytree, shutil.rmtree

    def breaks_off(*args, **options):
        copy(*args, **options)
        raise OSError(errno.ENOSPC, "no room")

    def removes_what_it_may(folder, **_):  # as for who is not root, who may remove anything
        if all(one.stat().st_mode & 0o200 for one in (folder, *folder.rglob("*")) if one.is_dir()):
            remove(folder)

    monkeypatch.setattr(shutil, "rmtree", removes_what_it_may)
    with monkeypatch.context() as within:
        within.setattr(shutil, "copytree", breaks_off)
        with pytest.raises(OSError, match="no room"):
            bring(theirs, MICRO, [0], tmp_path / "mine")
    assert not list((tmp_path / "mine" / "micro").iterdir())
    assert bring(theirs, MICRO, [0], tmp_path / "mine") == ["near-0"]
    for one in folders:
        one.chmod(0o755)  # so that they can be removed


def test_one_of_another_task_stays_where_it_is(there, tmp_path):
    """And so does one that is not whole."""
    other = dataclasses.replace(MICRO, max_tokens=6)
    assert bring(there / "starts", other, [0], tmp_path) == []
    copy = shutil.copytree(there / "starts", tmp_path / "copy")
    (copy / "micro" / "near-0" / "pairs-0" / "facts.json").unlink()
    assert bring(copy, MICRO, [0], tmp_path / "without") == ["near-0"]
    assert not (tmp_path / "without" / "micro" / "near-0" / "pairs-0").exists()
    shutil.rmtree(copy / "micro" / "near-0" / "start" / "final")
    assert bring(copy, MICRO, [0], tmp_path) == []


@pytest.mark.parametrize("harm", ["a byte", "another's weights", "score", "entropy", "no number"])
def test_one_that_is_not_what_is_said_of_it_is_refused(there, tmp_path, harm):
    """By the manifest where a file has changed, and by its own measure where the model is another one."""
    copy = shutil.copytree(there / "starts", tmp_path / "copy")
    place = copy / "micro" / "near-0"
    final, facts = place / "start" / "final", json.loads((place / "facts.json").read_text())
    if harm == "a byte":
        weights = bytearray((final / "model.safetensors").read_bytes())
        weights[-1] ^= 64
        (final / "model.safetensors").write_bytes(weights)
    elif harm == "another's weights":
        shutil.rmtree(final)
        shutil.rmtree(place / "pairs-0")
        other = copy / "micro" / "near-1" / "start" / "final"
        publish_folder(final, lambda to: shutil.copytree(other, to, dirs_exist_ok=True, ignore=lambda *_: [MANIFEST]))
    elif harm == "no number":
        facts["measured"] |= {"score": math.nan, "entropy": math.nan}
        (place / "facts.json").write_text(json.dumps(facts))
    else:
        facts["measured"]["score" if harm == "score" else "entropy"] *= 1.5 if harm == "score" else 1.002
        (place / "facts.json").write_text(json.dumps(facts))
    assert bring(copy, MICRO, [0], tmp_path / "mine") == ["near-0"]
    wanted = (
        "is damaged: .*model.safetensors" if harm == "a byte" else "is not the one that its facts speak of: it scores"
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=f"near-0: this start model was brought from elsewhere and {wanted}"):
            make_start(MICRO, "near", 0, tmp_path / "mine")
    assert not has_start(MICRO, "near", 0, tmp_path / "mine")


@pytest.mark.parametrize("harm", ["swapped", "a word", "no JSON", "another model's"])
def test_pairs_that_have_changed_are_refused_and_nothing_is_left(there, tmp_path, harm):
    """The judge is asked again; a folder that was begun is gone."""
    copy = shutil.copytree(there / "starts", tmp_path / "copy")
    file = copy / "micro" / "near-0" / "pairs-0" / "pairs.jsonl"
    lines = file.read_text().splitlines(True)
    row = json.loads(lines[3])
    row |= {"swapped": {"chosen": row["rejected"], "rejected": row["chosen"]}, "a word": {"rejected": "b"}}.get(
        harm, {}
    )
    lines[3] = "{\n" if harm == "no JSON" else json.dumps(row) + "\n"
    file.write_text("".join(lines))
    if harm == "another model's":
        shutil.copytree(
            there / "starts" / "micro" / "near-1" / "start", copy / "micro" / "near-0" / "start", dirs_exist_ok=True
        )
        shutil.copy(there / "starts" / "micro" / "near-0" / "pairs-0" / "pairs.jsonl", file)
    with pytest.raises(
        ValueError, match=r"pairs-0: these pairs are not those that were drawn: the.*anew, or remove it"
    ):
        bring(copy, MICRO, [0], tmp_path / "mine")
    assert not list((tmp_path / "mine" / "micro").iterdir())


def test_the_nearest_folder_that_has_them_is_theirs(tmp_path):
    """A table lies in a testbed's folder of a suite, or one below; farther up it is no part of it."""
    deep = tmp_path / "out" / "micro" / "further"
    deep.mkdir(parents=True)
    assert starts_beside(deep / "runs.csv", MICRO) is None
    (tmp_path / "starts" / "micro").mkdir(parents=True)
    assert starts_beside(deep / "runs.csv", MICRO) is None
    (tmp_path / "out" / "starts" / "micro").mkdir(parents=True)
    assert starts_beside(deep / "runs.csv", MICRO) == tmp_path / "out" / "starts"
    assert starts_beside(tmp_path / "out" / "runs.csv", MICRO) == tmp_path / "out" / "starts"
    assert starts_beside(deep / "runs.csv", dataclasses.replace(MICRO, name="nano")) is None


def test_known_runs_bring_their_start_model_along(there, tmp_path, monkeypatch, capsys, in_process):
    """Others go on from the same model without a copy by hand, and one that gives other scores is refused."""
    score = make_start(MICRO, "near", 0, there / "starts").measured.score
    jobs = [Job(MICRO, OFFLINE, 0, 0), Job(MICRO, OFFLINE, 0, 1)]
    monkeypatch.setitem(SECONDS, "micro", (1.0, 1.0, 1.0))
    monkeypatch.setattr("humanline.cli.reproduce._jobs", lambda options: jobs)
    monkeypatch.setattr("humanline.cli.reproduce._report", lambda *_: [])
    monkeypatch.setattr(module, "run", lambda job, *_, **__: an_outcome(score, job.draw))
    monkeypatch.setattr("humanline.train.loop.train", must_not_be_called)
    (there / "micro").mkdir(exist_ok=True)
    table = there / "micro" / "runs.csv"

    def command(out):
        words = ["reproduce", "--known", str(table), "--out", str(tmp_path / out), "--processes", "1", "--quiet"]
        return main(words), "".join(capsys.readouterr())

    write_outcomes(table, [an_outcome(score)])
    code, said = command("mine")
    assert code == 0 and "near-0 taken over; start models are measured before they are used" in said, said
    assert has_start(MICRO, "near", 0, tmp_path / "mine" / "starts")
    code, said = command("mine")
    assert code == 0 and "near-0" not in said
    write_outcomes(table, [an_outcome(score + 0.01)])
    monkeypatch.setattr("humanline.reproduce.start.measure", must_not_be_called)  # what is told is reason enough
    code, said = command("other")
    assert code == 2 and "start model 0 of micro scores" in said and "with --known naming their table" in said
    one = an_outcome(score)
    monkeypatch.setattr("humanline.cli.reproduce._read_known", lambda path: [dataclasses.replace(one, testbed="nano")])
    monkeypatch.setattr("humanline.cli.reproduce._taken", lambda *_: 1)
    code, said = command("another")
    # its table is of another testbed: nothing is brought, so that one is to be trained
    assert code == 1 and "near-0 taken over" not in said and "was begun" in said
    with held(tmp_path / "busy"), pytest.raises(OutputError):
        from humanline.cli.reproduce import _bring_starts

        monkeypatch.setattr("humanline.system.lock.FolderLock.take", busy)
        _bring_starts(table, jobs, tmp_path / "busy")


def test_start_models_beside_a_table_of_other_runs_come_along(there, tmp_path, monkeypatch, capsys):
    """A command whose cells the table has none of begins from its start models, which is said; twice is no error."""
    score = make_start(MICRO, "near", 0, there / "starts").measured.score
    monkeypatch.setattr("humanline.cli.reproduce._jobs", lambda options: [Job(MICRO, OFFLINE, 0, 1)])
    monkeypatch.setattr("humanline.cli.reproduce._grid", lambda *_: None)
    (there / "micro").mkdir(exist_ok=True)
    table, out = there / "micro" / "runs.csv", tmp_path / "out"
    words = ["reproduce", "--known", str(table), "--out", str(out), "--quiet"]
    write_outcomes(table, [an_outcome(score)])
    for also in ("near-0 taken over", ""):
        assert main(words) == 0
        said = "".join(capsys.readouterr())
        none = f"--known {table}: none of its 1 runs (of micro) is one of this command's 1; only start models that"
        assert none in said and also in said, said
        assert told_start(MICRO, "near", 0, out / "starts") is not None  # to be measured
    alone = tmp_path / "elsewhere.csv"
    write_outcomes(alone, [an_outcome(score)])
    assert main([*words[:2], str(alone), *words[3:]]) == 2
    assert "is one of this command's 1: name their testbed" in "".join(capsys.readouterr())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_tables_each_brings_what_its_own_runs_are_of(there, tmp_path, monkeypatch, capsys, order):
    """Both have both start models beside them, and whichever is named first, runs go on from those they began with."""
    scores = [make_start(MICRO, "near", number, there / "starts").measured.score for number in (0, 1)]
    tables = []
    for number in (0, 1):
        place = tmp_path / f"of-{number}"
        shutil.copytree(there / "starts", place / "starts")
        for name in ("near-0", "near-1"):
            facts = place / "starts" / "micro" / name / "facts.json"
            facts.write_text(json.dumps(json.loads(facts.read_text()) | {"whose": number}))
        tables.append(place / "runs.csv")
        write_outcomes(tables[-1], [dataclasses.replace(an_outcome(scores[number]), start=number)])
    jobs = [Job(MICRO, OFFLINE, number, 0) for number in (0, 1)]
    monkeypatch.setattr("humanline.cli.reproduce._jobs", lambda options: jobs)
    monkeypatch.setattr("humanline.cli.reproduce._grid", lambda *_: None)
    known = [word for number in order for word in ("--known", str(tables[number]))]
    assert main(["reproduce", *known, "--out", str(tmp_path / "mine"), "--quiet"]) == 0, capsys.readouterr().err
    for number in (0, 1):
        told = tmp_path / "mine" / "starts" / "micro" / f"near-{number}" / "told.json"
        assert json.loads(told.read_text())["whose"] == number


def test_where_pairs_are_refused_no_run_is_taken_over(there, tmp_path, monkeypatch, capsys):
    """Of two tables whose pairs are not the same neither's runs are kept, so that nothing mixes them later."""
    score = make_start(MICRO, "near", 0, there / "starts").measured.score
    words = ["reproduce", "--out", str(tmp_path / "mine"), "--quiet"]
    for draw in (0, 1):
        place = tmp_path / f"of-{draw}"
        shutil.copytree(there / "starts", place / "starts")
        write_outcomes(place / "runs.csv", [an_outcome(score, draw)])
        words += ["--known", str(place / "runs.csv")]
    file = place / "starts" / "micro" / "near-0" / "pairs-0" / "pairs.jsonl"
    file.write_text("".join(reversed(file.read_text().splitlines(True))))
    jobs = [Job(MICRO, OFFLINE, 0, draw) for draw in (0, 1, 2)]
    monkeypatch.setattr("humanline.cli.reproduce._jobs", lambda options: jobs)
    monkeypatch.setattr("humanline.cli.reproduce._grid", must_not_be_called)
    assert main(words) == 2 and "these pairs are others than those in" in capsys.readouterr().err
    assert not kept_results(jobs, tmp_path / "mine").outcomes


def busy(*_, **__):
    from humanline.system.lock import LockHeldError

    raise LockHeldError("in use")


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_start_models_are_of_the_task_as_it_is(name):
    """Three with their pairs, further ones without, and of the runs in the tables beside them, as far as there are."""
    own, numbers = {}, {int(folder.name.removeprefix("near-")) for folder in (STARTS / name).iterdir()}
    for number in numbers:
        kept = kept_start(TESTBEDS[name], "near", number, STARTS)
        assert kept is not None
        own[number] = kept.measured.score
    assert all(has_pairs(TESTBEDS[name], "near", number, draw, STARTS) for number in (0, 1, 2) for draw in (0, 1, 2))
    compared = set()
    for table in (STARTS.parent / name).rglob("*.csv"):
        if table.name in ("runs.csv", "so-far.csv") and table.parent.name != "set-aside":
            for one in read_outcomes(table):
                if one.start in own:
                    assert one.start_score == pytest.approx(own[one.start], rel=1e-5)
                    compared.add((table.parent.name, one.start))
    whole = (STARTS.parent / name / "runs.csv").is_file()  # of others there may be no run yet
    assert {(name, number) for number in ((0, 1, 2) if whole else (0,))} <= compared


@pytest.mark.slow
def test_a_committed_start_model_is_what_is_said_of_it_on_this_processor(tmp_path, monkeypatch):
    """Measured here, whatever the processor."""
    monkeypatch.setattr("humanline.train.loop.train", must_not_be_called)
    assert bring(STARTS, TESTBEDS["arithmetic"], [0], tmp_path) == ["near-0"]
    assert make_start(TESTBEDS["arithmetic"], "near", 0, tmp_path).measured.score == pytest.approx(0.455896, abs=1e-6)


def drawn_again(name, number, draw):
    """Pairs of a committed start model, drawn from its weights; for a prepared worker."""
    kept = kept_start(TESTBEDS[name], "near", number, STARTS)
    return pairs_of(Model(TESTBEDS[name], kept.model), "pairs", draw)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMITTED)
def test_committed_pairs_are_what_their_start_model_answers(name):
    """Drawn again by its own path of code; another processor may take another token here and there."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, initializer=prepare_worker) as worker:
        rows = worker.submit(drawn_again, name, 0, 0).result()
    lines = make_pairs(TESTBEDS[name], "near", 0, 0, STARTS).file.read_text(encoding="utf-8").splitlines()
    mine, committed = ({tuple(sorted(row.items())) for row in them} for them in (rows, map(json.loads, lines)))
    assert len(committed) == len(lines) > 2000
    assert len(mine ^ committed) <= 0.02 * len(committed), f"{len(committed - mine)} of {len(lines)} are others"
