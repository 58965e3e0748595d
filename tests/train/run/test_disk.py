"""Disks that fill up, folders that vanish, file systems that cannot flush, and files that cannot be read."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from humanline.system import disk
from humanline.system.disk import of_run
from humanline.system.files import OutputError
from humanline.system.lock import is_lock
from humanline.system.stop import StopRequested
from humanline.train.loop import train
from humanline.train.run import saving
from humanline.train.run.checkpoint import CheckpointError, Position
from humanline.train.run.folder import RunFolder
from humanline.train.run.metrics import read_metrics
from humanline.train.run.saving import Saving
from tests.helpers.cases import SOME, AtStep, case, moved, stopped_run
from tests.helpers.files import leftovers, no_space
from tests.helpers.kills import result_of


@pytest.fixture
def small(server):
    """The process that forks runs, and where it alone sees a file system of 80 MiB mounted, where that is allowed."""
    if server.mount is None:
        pytest.skip("mounting is not allowed here")
    return server, server.mount


class TestARealFullDisk:
    @pytest.mark.parametrize(
        "steps,what",
        [
            pytest.param(
                12,
                r"/run/metrics\.jsonl cannot be written: No space left on device: \d+ bytes needed, .* free; ",
                marks=pytest.mark.slow,
            ),
            (
                7,
                r"finished model could not be written: .*/run/final cannot be written: .* needed, .* free; no check",
            ),
        ],
    )
    def test_a_run_ends_with_a_sentence_and_goes_on_to_the_same_bits(self, toy, small, tmp_path, steps, what):
        """The last line names file, need, what is free and --resume; then the run is bitwise as one left alone."""
        server, folder = small
        training = {"steps": steps, "batch_size": 8, "micro_batch_size": 4}
        one = case(toy, folder / "run", *SOME[0], training=training)
        whole = case(toy, tmp_path / "whole", *SOME[0], training=training)
        at = server.run(whole)["barriers"].index("step-00000004 named")
        ballast = folder / "ballast"
        outcome = server.run(one, fill_at=at, ballast=str(ballast), log=tmp_path / "log")
        assert outcome["code"] == 2, outcome["log"]
        last = outcome["log"].splitlines()[-1]
        assert re.search(what, last), last
        ending = "when there is space again, add --resume to the same command: the run goes on from step-00000004"
        assert last.endswith(ending), last
        server.shell("rm", ballast)
        assert server.run(one, resume=True, log=tmp_path / "log")["code"] == 0
        server.shell("cp", "-r", folder / "run", tmp_path / "copy")  # which is no part of what is mounted
        server.shell("rm", "-r", folder / "run")
        copy = moved(one, tmp_path / "copy")
        assert result_of(copy) == result_of(whole) and not leftovers(tmp_path / "copy")

    @pytest.mark.parametrize(
        "place",
        [
            pytest.param("metrics.jsonl renamed", marks=pytest.mark.slow),
            pytest.param("step-00000002 begun", marks=pytest.mark.slow),
            "step-00000004: policy-0",
        ],
    )
    def test_a_run_that_waits_goes_on_by_itself_to_the_same_bits(self, toy, small, tmp_path, place):
        """With training.disk_full: wait, wherever the disk fills, nothing is lost once there is space; it is said."""
        server, folder = small
        waits = {"steps": 7, "batch_size": 8, "micro_batch_size": 4, "disk_full": "wait"}
        one = case(toy, folder / "run", *SOME[0], training=waits)
        whole = case(toy, tmp_path / "whole", *SOME[0])
        barriers = server.run(whole)["barriers"]
        at = next(n for n, what in enumerate(barriers) if what.startswith(place))
        how = {"ballast": str(folder / "ballast"), "free_after": 1.0, "look_again": 0.3}
        outcome = server.run(one, fill_at=at, **how, log=tmp_path / "log")
        assert outcome["code"] == 0, outcome["log"]
        assert outcome["log"].count("training.disk_full is wait: it is tried again every 0.3 seconds") == 1
        assert outcome["log"].count("there is space on the disk again: the run goes on") == 1
        server.shell("cp", "-r", folder / "run", tmp_path / "copy")
        server.shell("rm", "-r", folder / "run")
        assert result_of(moved(one, tmp_path / "copy")) == result_of(whole) and not leftovers(tmp_path / "copy")

    def test_a_stop_while_waiting_ends_the_run_and_says_what_is_saved(self, toy, small, tmp_path):
        """SIGTERM while a run waits: exit code 75, the newest checkpoint by name, and the same bits after --resume."""
        server, folder = small
        waits = {"steps": 7, "batch_size": 8, "micro_batch_size": 4, "disk_full": "wait"}
        one = case(toy, folder / "run", *SOME[0], training=waits)
        whole = case(toy, tmp_path / "whole", *SOME[0])
        at = server.run(whole)["barriers"].index("step-00000004 named")
        outcome = server.run(
            one, fill_at=at, ballast=str(folder / "ballast"), stop_full_after=1.0, log=tmp_path / "log"
        )
        assert outcome["code"] == 75, outcome["log"]
        last = outcome["log"].splitlines()[-1]
        assert "stopped by SIGTERM while it waited for space: " in last and "--resume" in last, last
        assert last.endswith("the run goes on from step-00000004"), last
        server.shell("rm", folder / "ballast")
        assert server.run(one, resume=True, log=tmp_path / "log")["code"] == 0
        server.shell("cp", "-r", folder / "run", tmp_path / "copy")
        server.shell("rm", "-r", folder / "run")
        assert result_of(moved(one, tmp_path / "copy")) == result_of(whole)


def test_a_run_whose_files_may_not_grow_ends_with_a_sentence(toy, tmp_path, server):
    """Under a limit of file sizes, too, the last line names the metrics, what they needed and --resume."""
    one = case(toy, tmp_path / "run", *SOME[0], checkpoint={"every": None, "minutes": None})
    outcome = server.run(one, largest_file=2500)
    assert outcome["code"] == 2, outcome["log"]
    last = outcome["log"].splitlines()[-1]
    what = (
        r"/run/metrics\.jsonl cannot be written: File too large: \d+ bytes needed, .* free; when that is mended, add "
    )
    assert re.search(what + "--resume to the same command: the run goes on from its beginning", last), last
    rows = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert rows.endswith(b"\n") and list(read_metrics(tmp_path / "run" / "metrics.jsonl"))


def test_a_stop_of_another_process_while_both_wait(tmp_path, monkeypatch, capsys):
    """All that wait for space listen to each other meanwhile: a stop of one is obeyed within a part of the wait."""
    monkeypatch.setattr(disk, "LOOK_AGAIN", 0.5)
    monkeypatch.setattr(saving, "_LISTEN", 0.1)
    heard: list[float] = []

    def waits(stopped_at: int) -> tuple[bool, bool]:
        """Wait as one of two processes, of which the other says at that question that it was asked to stop."""
        heard.clear()

        def reduce(value: torch.Tensor, how: str) -> torch.Tensor:
            heard.append(float(value))
            return torch.ones(()) if len(heard) == stopped_at else value

        nothing: Any = SimpleNamespace(size=lambda: 1)
        one = Saving(
            target=tmp_path / "step-00000002",
            position=Position(2),
            contents=nothing,
            refuse_lost=lambda: None,
            ready=lambda: None,
            accelerator=None,
            meet=reduce,
        )
        with of_run("wait", None):
            return one.mended(no_space())

    assert waits(0) == (False, True)  # to be tried again
    assert capsys.readouterr().err.count("tried again every 0.5 seconds") == 1
    asked = len(heard)  # whether the folder is gone, the disk full, a wait stopped; then five parts
    with pytest.raises(StopRequested, match="a signal to another process while it waited for space"):
        waits(5)
    assert asked == 8 and len(heard) == 5


@pytest.fixture(scope="module")
def left_alone(toy, tmp_path_factory):
    """What a run comes to that keeps all its files."""
    one = case(toy, tmp_path_factory.mktemp("whole") / "run", *SOME[0])
    train(one, show_progress=False)
    return result_of(one)


class TestGone:
    @pytest.mark.parametrize(
        "what",
        [
            "folder",
            pytest.param("target of a link", marks=pytest.mark.slow),
            "checkpoints",
            "metrics",
            "replaced",
            pytest.param("everything but the metrics", marks=pytest.mark.slow),
        ],
    )
    def test_what_is_removed_while_a_run_goes_on_is_made_again(self, toy, tmp_path, capsys, what, left_alone):
        """The run says what was gone, makes it again with all metrics so far, saves, and can be resumed bitwise."""
        one = case(toy, tmp_path / "run", *SOME[0])
        folder = tmp_path / "run"
        if what == "target of a link":
            (tmp_path / "target").mkdir()
            folder.symlink_to(tmp_path / "target")

        def remove() -> None:
            if what in ("folder", "target of a link"):
                shutil.rmtree(folder.resolve())
            elif what == "checkpoints":
                shutil.rmtree(folder / "checkpoints")
            elif what == "metrics":
                (folder / "metrics.jsonl").unlink()
            elif what == "replaced":
                (folder / "other").write_text('{"step": 99}\n')
                (folder / "other").rename(folder / "metrics.jsonl")
            else:
                for path in folder.iterdir():
                    if path.name != "metrics.jsonl":
                        shutil.rmtree(path) if path.is_dir() else path.unlink()

        train(one, stop=AtStep(one.output, 4, remove), show_progress=False)
        said = capsys.readouterr().err
        if what == "folder":
            assert f"the output folder {folder} was gone while the run went on" in said
        if what in ("folder", "metrics"):
            assert f"{folder / 'metrics.jsonl'} was gone while the run went on: it is made again, with all" in said
        if what == "replaced":
            assert "another file was put in the place of" in said
            assert (folder / "metrics-other.jsonl").read_text() == '{"step": 99}\n'
        there = {path.name for path in folder.iterdir()}
        assert {"config.json", "data.json", "start.json", "metrics.jsonl", "final"} <= there
        assert result_of(one) == left_alone
        names = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert names[-1] == "step-00000006" and "disk" not in said
        shutil.rmtree(folder / "final")
        train(one, resume=True, show_progress=False)
        assert result_of(one) == left_alone

    def test_the_folder_that_a_link_leads_to_is_made_again(self, tmp_path, capsys):
        """An output that is a link, or lies behind one, whose target is removed: no lost weights, and both are named.

        A run that was taken up again makes its start.json again too.
        """
        for place, path in {"a": "link-a", "b/run": "link-b/run"}.items():
            target, link = tmp_path / place, tmp_path / path
            (tmp_path / f"link-{place[0]}").symlink_to(tmp_path / place[0])
            folder = RunFolder(link, resume=True)
            folder.take()  # which makes the target
            (target / "start.json").write_text("{}\n")
            folder.begin({"source": {"kind": "rounds"}}, {}, None, print)
            shutil.rmtree(tmp_path / place[0])
            assert disk.nearest(link) == tmp_path
            folder.remake()
            said = capsys.readouterr().err
            assert f"the output folder {link}, by links {target}, was gone while" in said
            assert {"config.json", "data.json", "start.json", "rounds"} <= {p.name for p in target.iterdir()}
            assert any(is_lock(p.name) for p in target.iterdir()) and "no longer mounted" not in said
            folder.release()

    def test_a_save_of_nothing_new_sees_that_the_checkpoint_is_gone(self, toy, tmp_path):
        """A stopped run says that all of it is in a checkpoint only if that is there; a removed one is made again."""
        one = case(toy, tmp_path / "run", *SOME[0], checkpoint={"every": 1})

        class Stop(AtStep):
            @property
            def requested(self) -> str | None:
                if self.act is None:
                    shutil.rmtree(tmp_path / "run", ignore_errors=True)
                    return "SIGTERM"
                return super().requested

        with pytest.raises(StopRequested, match=r"after 3 of 7 updates; all of it is in .*step-00000003;"):
            train(one, stop=Stop(one.output, 1, lambda: None), show_progress=False)
        assert (tmp_path / "run/checkpoints/step-00000003").is_dir()
        train(one, resume=True, show_progress=False)
        whole = moved(one, tmp_path / "whole")
        train(whole, show_progress=False)
        assert result_of(one) == result_of(whole)


@pytest.fixture(scope="module")
def stopped(toy, tmp_path_factory):
    """A run that was stopped after 5 of 7 updates, and the names of all its files."""
    one = stopped_run(toy, tmp_path_factory.mktemp("stopped"))
    return one, files_of(Path(one.output))


def files_of(folder: Path) -> list[str]:
    """Return all files of a run but its lock, whose number grows with each process that takes it."""
    return sorted(str(path) for path in folder.rglob("*") if not is_lock(path.name))


class TestUnreadable:
    """What cannot be read may be whole: it is named, nothing is changed, and no older checkpoint takes its place."""

    @pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
    @pytest.mark.parametrize("name", ["policy-0.safetensors", "manifest.json", "state.json", "checkpoints"])
    def test_a_checkpoint_that_cannot_be_read(self, stopped, monkeypatch, name, code):
        """The newest checkpoint's file, its manifest, or the folder of them all: the message has name and reason."""
        one, before = stopped
        newest = Path(one.output) / "checkpoints" / "step-00000005"
        self.refuse(monkeypatch, Path(one.output) / name if name == "checkpoints" else newest / name, code)
        with pytest.raises(CheckpointError) as error:
            train(one, resume=True, show_progress=False)
        monkeypatch.undo()
        assert name in str(error.value) and os.strerror(code) in str(error.value)
        assert "damaged" not in str(error.value) and "nothing was changed" in str(error.value)
        assert files_of(Path(one.output)) == before

    @staticmethod
    def refuse(monkeypatch, path: Path, code: int) -> None:
        """Make the file or folder, and it alone, refuse to be read."""
        import builtins

        def unless(real):
            def act(name, *rest, **more):
                if not isinstance(name, int) and Path(os.fsdecode(name)) == path:
                    raise OSError(code, os.strerror(code), str(name))
                return real(name, *rest, **more)

            return act

        for place, function in ((builtins, "open"), (io, "open"), (os, "scandir"), (os, "open")):
            monkeypatch.setattr(place, function, unless(getattr(place, function)))

    def test_a_finished_model_that_cannot_be_read(self, toy, tmp_path, monkeypatch):
        """It is not put aside as damaged, and not made again."""
        one = case(toy, tmp_path / "run", *SOME[0])
        train(one, show_progress=False)
        before = files_of(tmp_path / "run")
        self.refuse(monkeypatch, tmp_path / "run/final/model.safetensors", errno.EIO)
        with pytest.raises(OutputError, match=r"final cannot be read.*model\.safetensors .*Input/output error"):
            train(one, resume=True, show_progress=False)
        assert files_of(tmp_path / "run") == before
