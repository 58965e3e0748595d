"""The folder of a run: what can be none, whose it is, and that a run which lost it leaves it alone."""

from __future__ import annotations

import os
import shutil
import sys
import time

import pytest

from humanline.system import lock
from humanline.system.lock import LockLostError
from humanline.train.loop import train
from humanline.train.run.folder import RunFolder
from humanline.train.run.metrics import MetricsError
from humanline.train.run.result import RunResult
from tests.helpers.kills import KILLED, result_of
from tests.helpers.locks import held, names, waiting_clock
from tests.helpers.support import config


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("~nobody-is-called-so/a", "user who is not known"),
        ("a\0b", "NUL character"),
        ("round/a", "too many levels of symbolic links"),
        ("a" * 300, "file name too long"),
    ],
)
def test_impossible_paths_are_refused_before_anything_is_made(monkeypatch, tmp_path, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(ValueError, match=message):
        RunFolder(path, resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["round"]


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_a_folder_within_one_whose_name_is_not_utf8_is_refused(monkeypatch, tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="not UTF-8"):
        RunFolder("a", resume=False)


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory, server):
    """A run that was left alone, and the number of its write barriers."""
    one = config(toy, tmp_path_factory.mktemp("whole") / "run", **SHORT)
    return one, len(server.run(one)["barriers"])


SHORT = {"checkpoint": {"every": 2, "minutes": None}, "training__steps": 5}


@pytest.mark.parametrize("moments", [[2], pytest.param([1, 2, 3, 4, 5, 6, 7, 8, 9], marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize(
    "answer", ["ENOSYS", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ENOLCK", "EOPNOTSUPP"))]
)
def test_a_killed_run_goes_on_where_there_is_no_flock(toy, tmp_path, server, whole, answer, moments):
    """SIGKILL on such a file system, at each tenth of a run: --resume enters, and ends with the same bits."""
    one, count = whole
    for tenth in moments:
        killed = config(toy, tmp_path / str(tenth), **SHORT)
        assert server.run(killed, flock=answer, kill_at=count * tenth // 10)["code"] == KILLED
        resumed = server.run(killed, flock=answer, resume=True)
        assert resumed["code"] == 0 and "took over the lock of process" in resumed["log"], resumed["log"]
        assert result_of(killed) == result_of(one)


def test_a_new_run_does_not_wait_and_a_resumed_one_does(toy, tmp_path, monkeypatch, capsys):
    """Where another machine's lock is young, the former is refused with the seconds, the latter goes on after them."""
    clock = waiting_clock(monkeypatch)
    one = config(toy, tmp_path / "run", training__steps=1)
    (tmp_path / "run").mkdir()
    held(tmp_path / "run", seconds_ago=10)
    with pytest.raises(ValueError, match=r"output '.*run' is in use .* 7 on elsewhere.* if it is dead, 2\d\d s"):
        train(one)
    train(one, resume=True)
    said = capsys.readouterr().err
    assert "waiting until" in said and "took over the lock of process 7 on elsewhere" in said and 200 < clock.now < 291
    assert (tmp_path / "run" / "final").is_dir()


SETTINGS = {"source": {"kind": "fixed"}}


class TestARunThatWokeUp:
    """A run that was stopped while another took over its folder leaves what the other has written as it is."""

    @pytest.fixture
    def folder(self, toy, tmp_path):
        folder = RunFolder(tmp_path / "run", resume=False)
        folder.take()
        folder.begin(SETTINGS, {}, {}, print)
        yield folder
        folder.release()

    @staticmethod
    def as_if_asleep(folder, seconds=600):
        """Make the lock look as if it had not been renewed for so long."""
        lock = folder._lock
        lock._ended.set()
        lock._renewed -= seconds

    def test_it_writes_no_metrics_over_those_of_the_run_that_took_over(self, folder, tmp_path):
        with pytest.raises(LockLostError, match="taken over"), folder.open_log(True) as log:
            log.write({"step": 0})
            (tmp_path / "run" / "run.lock.2").write_text("the other's")
            folder.metrics.unlink()
            folder.metrics.write_text('{"kind": "train", "step": 0, "of": "the other"}\n')
            self.as_if_asleep(folder)
            log.write({"step": 1})
        assert folder.metrics.read_text() == '{"kind": "train", "step": 0, "of": "the other"}\n'
        assert not list(folder.path.glob("metrics-other*")) and folder.lost() is not None

    def test_a_folder_that_was_removed_and_begun_anew_is_not_touched(self, folder):
        with pytest.raises(LockLostError, match="was removed while the run went on"), folder.open_log(True) as log:
            log.write({"step": 0})
            shutil.rmtree(folder.path)
            other = RunFolder(folder.path, resume=False)
            other.take()
            other.begin(SETTINGS, {}, {}, print)
            with other.open_log(True) as theirs:
                theirs.write({"step": 0, "of": "the other"})
                log.write({"step": 1})
        other.release()
        assert folder.metrics.read_text() == '{"kind": "train", "step": 0, "of": "the other"}\n'
        assert not list(folder.path.glob("metrics-other*"))

    def test_its_settings_are_not_written_again_either(self, folder, tmp_path):
        (tmp_path / "run" / "run.lock.2").write_text("the other's")
        folder.config.unlink()
        with pytest.raises(LockLostError, match="taken over"):
            folder.remake()
        assert not folder.config.exists()


def test_a_run_that_lost_its_folder_ends_before_it_writes(toy, tmp_path, monkeypatch):
    """At its next safe point or, if it has not noticed, at its next save: no checkpoint and no model of its own."""
    for noticed, every in ((True, None), (False, 2), (False, None)):
        output = tmp_path / f"run-{noticed}-{every}"
        monkeypatch.setattr(lock, "RENEW", 0.01 if noticed else 30.0)

        class Steal:
            def __init__(self, metrics):
                self.metrics = metrics

            def hold(self):
                pass

            @property
            def requested(self):
                if self.metrics.exists() and '"step": 2' in self.metrics.read_text():
                    held(self.metrics.parent, 2)  # first: a look between the two would find no holder to name
                    (self.metrics.parent / "run.lock.1").unlink(missing_ok=True)
                    time.sleep(0.1)

        one = config(toy, output, checkpoint={"every": every, "minutes": None}, training__steps=6)
        with pytest.raises(LockLostError, match="taken over by process 7 on elsewhere"):
            train(one, stop=Steal(output / "metrics.jsonl"), show_progress=False)
        kept = [path.name for path in (output / "checkpoints").glob("*")]
        assert kept == (["step-00000002"] if every else []) and not (output / "final").exists()
        assert (output / "metrics.jsonl").read_text().count('"step"') == (3 if noticed else 4 if every else 6)
        assert "run.lock.2" in names(output)


@pytest.mark.parametrize("line", [b'{"kind": "tr', b"\xff\n", b"[1]\n", b"\n"])
def test_a_finished_run_with_a_damaged_line_of_metrics_says_which(tmp_path, line):
    """Read in Python or by --resume, it is bad input, named by file and line, and no fault of the program."""
    folder = RunFolder(tmp_path, resume=True)
    folder.metrics.write_bytes(b'{"updates": 0, "held_out": {"loss": 1.0}}\n' + line)
    with pytest.raises(MetricsError, match=r"metrics\.jsonl:2: is no row of metrics"):
        RunResult.read(folder)
