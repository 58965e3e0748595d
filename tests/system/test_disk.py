"""Writes to a disk that fills up, is cut or cannot flush: whole in the end, or refused with a sentence."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from humanline.system import disk
from humanline.system import files as system_files
from humanline.system import folders as system_folders
from humanline.system.disk import StoppedWaiting, WriteError, of_run
from humanline.system.files import write_text
from humanline.system.stop import StopRequested, StopSignal
from humanline.train.online.ledger import append, read_lines
from humanline.train.online.rewards.cache import ScoreCache, content_key
from humanline.train.online.rewards.verdict import Verdict
from humanline.train.run.metrics import MetricsLog, read_metrics
from tests.helpers.files import leftovers, no_space


class Refusing:
    """os.write that takes half and then refuses, so many times, as a full disk does."""

    def __init__(self, times: int) -> None:
        self.times, self.real, self.half = times, os.write, False

    def __call__(self, handle: int, data: bytes) -> int:
        if self.half or not self.times:
            if self.half:
                self.half = False
                self.times -= 1
                raise no_space()
            return self.real(handle, data)
        self.half = True
        return self.real(handle, bytes(data)[: len(data) // 2])


class TestWrites:
    @pytest.fixture
    def quick(self, monkeypatch):
        monkeypatch.setattr(disk, "LOOK_AGAIN", 0.01)

    def write_everywhere(self, folder: Path) -> dict[str, str]:
        """Write a file of each kind, and return what is in it."""
        key = content_key("a")
        write_text(folder / "text", ["one\n", "two\n"])
        append(folder / "ledger.jsonl", [{"round": 0, "state": "PLANNED"}])
        cache = ScoreCache(folder / "cache.jsonl")
        cache.put(key, Verdict(1.0))
        cache.close()
        with MetricsLog(folder / "metrics.jsonl") as log:
            log.write({"step": 0})
        system_folders.publish_folder(folder / "final", lambda place: write_text(place / "model", "weights"))
        assert ScoreCache(folder / "cache.jsonl").get(key) == Verdict(1.0)
        system_folders.verify_folder(folder / "final")
        names = ("text", "ledger.jsonl", "metrics.jsonl", "final/model")
        return {name: (folder / name).read_text() for name in names}

    def test_every_write_waits_and_is_whole(self, tmp_path, monkeypatch, quick, capsys):
        """A disk that is full at each write of each file, half-way, leaves the same files once there is space."""
        (tmp_path / "plain").mkdir()
        plain = self.write_everywhere(tmp_path / "plain")
        phases: list[str | None] = []
        for number in range(1, 4):
            folder = tmp_path / str(number)
            folder.mkdir()
            with of_run("wait", None, phase=phases.append), monkeypatch.context() as patch:
                patch.setattr(system_files.os, "write", Refusing(number))
                assert self.write_everywhere(folder) == plain
        said = capsys.readouterr().err
        assert said.count("it is tried again every") == 3 and said.count("the run goes on") == 3  # once for a wait
        assert phases.count(None) == 3 and set(phases) == {disk.PHASE, None}

    def test_what_cannot_be_written_is_named_and_leaves_nothing(self, tmp_path, monkeypatch):
        """Without a wait each write says file, need and space, and its file is as it was."""
        log = MetricsLog(tmp_path / "metrics.jsonl")
        log.write({"step": 0})
        append(tmp_path / "ledger.jsonl", [{"a": 1}])
        write_text(tmp_path / "text", "before")
        cache = ScoreCache(tmp_path / "cache.jsonl")
        cache.put(content_key("a"), Verdict(1.0))
        for name, act in {
            "metrics.jsonl": lambda: log.write({"step": 1}),
            "ledger.jsonl": lambda: append(tmp_path / "ledger.jsonl", [{"a": 2}]),
            "text": lambda: write_text(tmp_path / "text", "afterwards"),
            "cache.jsonl": cache.flush,
        }.items():
            with monkeypatch.context() as patch, pytest.raises(WriteError) as error:
                patch.setattr(system_files.os, "write", Refusing(1))
                act()
            assert re.search(rf"{name} cannot be written: No space .*: \d+ bytes needed, .* free$", str(error.value))
        cache.close()  # says nothing more
        log.flush()  # as the save of a run that fails does
        log.__exit__(ValueError, None, None)
        assert list(read_metrics(tmp_path / "metrics.jsonl")) == [{"kind": "train", "step": 0}]
        assert read_lines(tmp_path / "ledger.jsonl") == [{"a": 1}]
        assert (tmp_path / "text").read_text() == "before" and not leftovers(tmp_path)

    def test_the_way_on_is_true_when_it_is_shown(self, tmp_path, monkeypatch):
        """A checkpoint that is saved after the failure, and before its message is read, is the one it names."""
        with monkeypatch.context() as patch, pytest.raises(WriteError) as error, of_run("stop", tmp_path):
            patch.setattr(system_files.os, "write", Refusing(1))
            write_text(tmp_path / "text", "a")
        assert str(error.value).endswith("the run goes on from its beginning, as there is no checkpoint")
        (tmp_path / "step-00000004").mkdir()
        assert str(error.value).endswith("the run goes on from step-00000004")

    def test_metrics_that_never_reached_the_disk_are_no_success(self, tmp_path, monkeypatch):
        """A last flush that fails ends a good run with an error, and does not hide another one."""

        def broken(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(system_files.os, "fsync", broken)
        words = r"metrics\.jsonl cannot be written: Input/output error"
        with pytest.raises(WriteError, match=words), MetricsLog(tmp_path / "metrics.jsonl") as log:
            log.write({"step": 0})
        with pytest.raises(ZeroDivisionError), MetricsLog(tmp_path / "metrics.jsonl") as log:
            log.write({"step": 1 // 0})

    def test_a_flush_that_failed_is_not_believed_the_second_time(self, tmp_path, monkeypatch, quick):
        """After a flush that found no space the bytes are written again: a second flush alone would call them safe."""
        failed = iter([True])

        def fsync(handle: int) -> None:
            if next(failed, False):
                os.ftruncate(handle, 0)  # what the system may do with what it could not write
                raise no_space()

        monkeypatch.setattr(system_files.os, "fsync", fsync)
        with of_run("wait", None):
            append(tmp_path / "ledger.jsonl", [{"a": 1}])
        assert read_lines(tmp_path / "ledger.jsonl") == [{"a": 1}]

    def test_a_stop_while_waiting(self, tmp_path, monkeypatch):
        """A request to stop ends the wait and says what is saved; of metrics that is told where all can stop."""
        stop = StopSignal()
        stop.requested = "SIGTERM"
        (tmp_path / "step-00000004").mkdir()
        monkeypatch.setattr(system_files.os, "write", Refusing(100))
        words = "SIGTERM while it waited for space: .*text cannot be written: No space.*goes on from step-00000004"
        with pytest.raises(StopRequested, match=words), of_run("wait", tmp_path, stop):
            with pytest.raises(StoppedWaiting), MetricsLog(tmp_path / "metrics.jsonl") as log:
                log.write({"step": 0})  # told where all processes can stop
            write_text(tmp_path / "text", "a")

    @pytest.mark.parametrize("kind", ["folders", "files"])
    @pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
    def test_file_systems_that_cannot_flush_are_put_up_with(self, tmp_path, monkeypatch, capsys, code, kind):
        """EINVAL and ENOTSUP of a flush, as FUSE and SMB give for folders, are said once; EIO is an error."""
        real = os.fsync

        def fsync(handle: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{handle}") is (kind == "folders"):
                raise OSError(code, os.strerror(code))
            real(handle)

        monkeypatch.setattr(system_files, "_untold", {"files", "folders"})
        monkeypatch.setattr(system_files.os, "fsync", fsync)
        for name in ("one", "two"):
            write_text(tmp_path / name, "a")
        assert capsys.readouterr().err.count(f"cannot flush {kind}") == 1
        code = errno.EIO
        with pytest.raises(WriteError, match="Input/output error"):
            write_text(tmp_path / "three", "a")
        assert (tmp_path / "one").read_text() == "a" and not leftovers(tmp_path)

    def test_a_library_of_rust_that_cannot_write_is_a_full_disk_too(self):
        """Safetensors and tokenizers have exceptions of their own, with the system's number in their text."""
        with pytest.raises(OSError) as error, system_files.disk_errors():
            raise Exception("No space left on device (os error 28)")
        assert disk.is_full(error.value)
        with pytest.raises(ValueError), system_files.disk_errors():
            raise ValueError("something else")


def test_metrics_that_are_cut_are_told(tmp_path, capsys):
    """A file that was cut in its place is gone on with, and how much is lost is said."""
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.write({"step": 0})
        os.truncate(tmp_path / "metrics.jsonl", 0)
        log.write({"step": 1})
    assert "was cut while the run went on: 29 bytes of metrics are lost" in capsys.readouterr().err
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == [{"kind": "train", "step": 1}]
