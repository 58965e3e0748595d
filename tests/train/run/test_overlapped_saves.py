"""Checkpoints that a thread writes while steps are taken: what they hold, and what becomes of them whatever happens."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from humanline.system.activity import HERE
from humanline.system.disk import of_run
from humanline.system.folders import verify_folder
from humanline.system.lock import LockLostError
from humanline.system.stop import StopRequested
from humanline.train.config.run import CheckpointConfig
from humanline.train.loop import train
from humanline.train.run import saving
from humanline.train.run.checkpoint import Contents, Position
from humanline.train.run.checkpoints import Checkpoints
from humanline.train.run.found import checkpoints_in
from humanline.train.run.processes import NonFiniteError
from tests.helpers.cases import SOME, StopAt, case, moved
from tests.helpers.files import leftovers
from tests.helpers.kills import KILLED, result_of

OVERLAP = {"every": 2, "minutes": None, "overlap": "always"}


class Part:
    """A state of one tensor, which is changed in place."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(3)

    def state(self) -> dict[str, torch.Tensor]:
        return {"a": self.tensor}


class Held:
    """Checkpoints whose thread waits at its first file until it is let go on, and may fail there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, overlap: str = "always", ranks: int = 1) -> None:
        self.part, self.said, self.go, self.error = Part(), list[str](), threading.Event(), None
        self.lost: str | None = None
        (folder / "metrics.jsonl").write_text("1\n")
        write = saving.write_files

        def held(target: Path, files: Any, each: Any) -> Any:
            if threading.current_thread().name == "checkpoint":
                while not self.go.wait(0.01):
                    each()
                if self.error is not None:
                    raise self.error
            return write(target, files, each)

        monkeypatch.setattr(saving, "write_files", held)
        contents = Contents(
            shared={"policy": self.part},  # type: ignore[dict-item]
            own={},
            config={},
            fingerprints={},
            software={},
            metrics=folder / "metrics.jsonl",
            ranks=ranks,
        )
        self.folder = folder / "checkpoints"
        self.saves = Checkpoints(
            self.folder,
            CheckpointConfig(every=1, minutes=None, overlap=overlap),  # type: ignore[arg-type]
            contents,
            refuse_lost=self.refuse_lost,
            ready=lambda: None,
            accelerator=SimpleNamespace(is_main_process=True),
            meet=lambda value, how: value,
        )

    def refuse_lost(self) -> None:
        if self.lost is not None:
            raise LockLostError(self.lost)

    def point(self, updates: int) -> None:
        """Come to the safe point after so many updates, at which the state is that number."""
        self.part.tensor.fill_(updates)
        self.saves.save_if_due(Position(updates), self.said.append)

    def end(self) -> None:
        """Let the thread come to its end."""
        self.go.set()
        self.saves._under_way.saving._writing._thread.join()  # type: ignore[union-attr]

    def there(self) -> dict[int, float]:
        """Return the number in each checkpoint that has its name, by its updates; each is whole."""
        found = {}
        for one in checkpoints_in(self.folder):
            verify_folder(one)
            found[int(one.name[5:])] = float(load_file(one / "policy-0.safetensors")["a"].unique())
        return found


@pytest.fixture
def held(tmp_path, monkeypatch):
    return Held(tmp_path, monkeypatch)


def test_a_checkpoint_holds_the_moment_it_was_begun_at(held, tmp_path):
    """The state, the position and the metrics of then; it gets its name at the first safe point after it is written."""
    held.point(1)
    (tmp_path / "metrics.jsonl").write_text("1\n2\n")
    held.part.tensor.fill_(99)
    assert held.there() == {} and held.said == []
    held.end()
    assert held.there() == {}
    held.saves.settings = CheckpointConfig(minutes=None)  # and no other is due
    held.point(2)
    assert held.there() == {1: 1.0} and held.said == [f"checkpoint: {held.folder / 'step-00000001'}"]
    assert (held.folder / "step-00000001/metrics.jsonl").read_text() == "1\n"
    assert '"updates": 1' in (held.folder / "step-00000001/state.json").read_text()


def test_one_at_a_time_and_old_ones_go_once_the_new_one_has_its_name(held):
    """The next save waits for the one before it; of three the first goes when the third is there, not before."""
    for updates in (1, 2):
        held.point(updates)
        held.end()
        held.saves.save(Position(updates))  # which waits, and finds nothing new
        held.go.clear()
    held.point(3)
    assert held.there() == {1: 1.0, 2: 2.0}
    threading.Timer(0.2, held.go.set).start()
    held.point(4)  # it is due, and the third one is not yet written
    assert held.there() == {2: 2.0, 3: 3.0}
    held.end()
    with held.saves:
        pass  # the end of a run
    assert held.there() == {3: 3.0, 4: 4.0} and not leftovers(held.folder)


def test_a_stop_waits_and_then_saves_what_is_newer(held):
    """A save that is asked for has both: the one that was under way, and its own."""
    held.point(1)
    threading.Timer(0.2, held.go.set).start()
    held.part.tensor.fill_(1.5)
    assert held.saves.save(Position(1, evaluated=True), ending=True).name == "step-00000001.000001"
    assert sorted(one.name for one in checkpoints_in(held.folder)) == ["step-00000001", "step-00000001.000001"]


@pytest.mark.parametrize("mode", ["stop", "wait"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_thread_that_fails_is_told_and_the_run_goes_on(held, capsys, mode, code):
    """At the next safe point, as of any other save; where a full disk is to be waited for, all is saved there."""
    held.point(1)
    held.error = OSError(code, "no luck")
    with of_run(mode, held.folder):
        held.end()
        held.saves.settings = CheckpointConfig(minutes=None, overlap="always")
        held.point(2)
    assert "warning: no checkpoint could be written after 1 updates: no luck; there is no earlier one" in held.said[0]
    again = mode == "wait" and code == errno.ENOSPC
    assert held.there() == ({2: 2.0} if again else {}) and not leftovers(held.folder)
    assert len(held.said) == 1 + again
    held.error = None
    held.saves.settings = CheckpointConfig(every=1, minutes=None, overlap="always")
    held.point(3)
    held.end()
    held.saves.save(Position(3))
    assert held.there()[3] == 3.0


def test_a_folder_that_is_gone_is_made_again(held, tmp_path):
    """Where someone has removed it meanwhile, what is there now is saved at once."""
    held.point(1)
    for path in sorted(held.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    held.folder.rmdir()
    held.end()
    held.point(2)
    assert held.there() == {2: 2.0} and held.said[0].startswith("warning: ")


def test_nothing_is_named_once_the_folder_is_another_runs(held):
    """The lock is asked for again before the name is given, and what is there is left to the other run."""
    held.point(1)
    held.end()
    held.lost = "taken over"
    with pytest.raises(LockLostError), held.saves:
        held.point(2)
    assert held.there() == {}


@pytest.mark.parametrize("error,kept", [(None, True), (ValueError("x"), True), (KeyboardInterrupt(), False)])
def test_the_end_of_a_run_by_itself_or_by_an_error(held, error, kept):
    """One process alone writes to the end what is under way, unless it is interrupted, and leaves nothing half-done."""
    held.point(1)
    if kept:
        threading.Timer(0.2, held.go.set).start()
    raised: Any = None
    try:
        with held.saves:
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt) as found:
        raised = found
    assert raised is error
    assert held.there() == ({1: 1.0} if kept else {}) and not leftovers(held.folder)
    assert not any(thread.name == "checkpoint" for thread in threading.enumerate())


def test_an_error_of_one_process_of_several_meets_nobody(tmp_path, monkeypatch):
    """It ends its thread and asks the others nothing; what all know of is published by all."""
    held = Held(tmp_path, monkeypatch, ranks=2)
    held.point(1)

    def nobody(value: torch.Tensor, how: str) -> torch.Tensor:
        raise AssertionError("the others are not here")

    held.saves.meet = held.saves._under_way.saving.meet = nobody  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="mine alone"), held.saves:
        raise ValueError("mine alone")
    assert held.there() == {} and not any(thread.name == "checkpoint" for thread in threading.enumerate())


def test_numbers_that_are_not_finite_end_all_processes_and_the_save_under_way_is_published(tmp_path, monkeypatch):
    """They stop together, wherever the number was, so that the checkpoint of an earlier moment gets its name."""
    held = Held(tmp_path, monkeypatch, ranks=2)
    monkeypatch.setattr(saving, "gathered", lambda text, *_: [text])
    held.point(1)
    threading.Timer(0.2, held.go.set).start()
    with pytest.raises(NonFiniteError), held.saves:
        raise NonFiniteError("nan")
    assert held.there() == {1: 1.0} and not leftovers(held.folder)


def test_waiting_for_a_thread_that_gets_on_is_not_standing_still(held, monkeypatch):
    """What the thread writes is noted as done while it is waited for, and only then."""
    touched, waiting = [], []
    result = saving.Writing.result

    def touch() -> None:
        touched.append((threading.current_thread().name, bool(waiting)))
        if waiting and len(touched) > 2:
            held.go.set()

    def waited(writing: saving.Writing) -> Any:
        waiting.append(writing)
        return result(writing)

    held.point(1)
    monkeypatch.setattr(HERE, "touch", touch)
    monkeypatch.setattr(saving.Writing, "result", waited)
    given_up = threading.Timer(10, held.go.set)  # else it would wait for ever without a note
    given_up.start()
    time.sleep(0.05)  # in which the thread writes, and nobody waits for it
    assert not touched
    held.saves.save(Position(1))
    given_up.cancel()
    assert len(touched) > 2 and set(touched) == {(threading.main_thread().name, True)} and held.there() == {1: 1.0}


def test_a_wait_that_is_interrupted_leaves_no_thread_behind(held, monkeypatch):
    """Nobody writes into a folder that is being removed, or once the lock is given back."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    held.point(1)
    monkeypatch.setattr(saving.Writing, "result", interrupted)
    with pytest.raises(KeyboardInterrupt), held.saves:
        held.saves.save(Position(2))
    assert not any(thread.name == "checkpoint" for thread in threading.enumerate())
    assert held.there() == {} and not leftovers(held.folder)


def test_without_memory_for_a_copy_it_is_written_at_once(held, monkeypatch):
    """Where the memory is not to be had after all, the checkpoint has its name when the safe point is left."""

    def none(*_: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(held.saves._copies, "of", none)
    held.point(1)
    assert held.there() == {1: 1.0} and held.said == [f"checkpoint: {held.folder / 'step-00000001'}"]


@pytest.mark.parametrize(
    "overlap,gpu,room,waits",
    [
        ("never", True, True, False),
        ("auto", False, True, False),
        ("auto", True, False, False),
        ("auto", True, True, True),
    ],
)
def test_when_saves_overlap(tmp_path, monkeypatch, overlap, gpu, room, waits):
    """By default where states are on a GPU and the host has room for a copy; where not, memory for it is let go."""
    held = Held(tmp_path, monkeypatch, overlap)
    monkeypatch.setattr(Contents, "bytes_beside_host", lambda _: 12 * gpu)
    monkeypatch.setattr(saving, "room_for", lambda count, processes: (count, processes) == (12, 1) and room)
    held.point(1)
    assert held.there() == ({} if waits else {1: 1.0})
    if waits:
        held.end()
        with held.saves:
            pass
        assert held.there() == {1: 1.0}


def test_a_run_has_the_same_bits_and_checkpoints(toy, tmp_path, capsys):
    """With saves that overlap its steps a run ends with the same metrics, model and checkpoints, each of them whole."""
    plain = case(toy, tmp_path / "plain", *SOME[1])
    train(plain, show_progress=False)
    one = case(toy, tmp_path / "run", *SOME[1], checkpoint=OVERLAP)
    train(one)
    assert capsys.readouterr().err.count("checkpoint: ") == 3
    assert result_of(one) == result_of(plain) and not leftovers(tmp_path / "run")
    for name in ("step-00000004", "step-00000006"):
        verify_folder(tmp_path / "run/checkpoints" / name)
        for path in (tmp_path / "run/checkpoints" / name).glob("*.safetensors"):
            assert path.read_bytes() == (tmp_path / "plain/checkpoints" / name / path.name).read_bytes(), path.name


def test_a_stop_in_the_middle_of_a_save_goes_on_to_the_same_bits(toy, tmp_path, monkeypatch):
    """Stopped while a thread is writing, a run keeps that checkpoint and the one of the stop, and goes on from it."""
    one = case(toy, tmp_path / "run", *SOME[0], checkpoint=OVERLAP)
    plain = moved(one, tmp_path / "plain")
    train(plain, show_progress=False)
    write, begun = saving.write_files, []

    def slow(*arguments: Any) -> Any:
        begun.append(threading.current_thread().name)
        if begun[-1] == "checkpoint":
            stop.asked = True
            threading.Event().wait(0.3)
        return write(*arguments)

    class Stop:
        asked = False

        def hold(self) -> None:
            """There is something to save."""

        @property
        def requested(self) -> str | None:
            return "SIGTERM" if self.asked else None

    stop: Any = Stop()
    with monkeypatch.context() as patch, pytest.raises(StopRequested, match=r"all of it is in .*step-0000000[23]"):
        patch.setattr(saving, "write_files", slow)
        train(one, stop=stop, show_progress=False)
    assert begun[0] == "checkpoint" and (tmp_path / "run/checkpoints/step-00000002").is_dir()
    train(one, resume=True, show_progress=False)
    assert result_of(one) == result_of(plain) and not leftovers(tmp_path / "run")


@pytest.mark.parametrize("every", [47, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_a_write_changes_nothing(toy, tmp_path, server, every):
    """Killed at write barriers of the thread or of the run, and resumed, a run ends with the same bits."""
    one = case(toy, tmp_path / "whole", *SOME[0], checkpoint=OVERLAP)
    alone = server.run(one)
    assert alone["code"] == 0, alone["log"]
    expected = result_of(one)
    for number in range(8, len(alone["barriers"]) - 2, every):  # threads: how many there are differs by a few
        killed = moved(one, Path(f"{one.output}-{number}"))
        where = f"barrier {number}: {alone['barriers'][number]}"
        assert server.run(killed, kill_at=number)["code"] == KILLED, where
        resumed = server.run(killed, resume=True)
        assert resumed["code"] == 0, f"{where}\n{resumed['log']}"
        assert result_of(killed) == expected and not leftovers(Path(killed.output)), where


@pytest.mark.gpu
def test_on_a_gpu_a_thread_writes_and_a_stopped_run_goes_on_to_the_same_bits(toy, tmp_path, monkeypatch):
    """By default saves overlap there; a run that is stopped between two of them and resumed ends with the same bits."""
    one = case(toy, tmp_path / "run", *SOME[0], checkpoint={"every": 2, "minutes": None})
    plain = case(toy, tmp_path / "plain", *SOME[0], checkpoint={"every": 2, "minutes": None, "overlap": "never"})
    train(plain, show_progress=False)
    write, by = saving.write_files, []

    def noted(*arguments: Any) -> Any:
        by.append(threading.current_thread().name)
        return write(*arguments)

    monkeypatch.setattr(saving, "write_files", noted)
    with pytest.raises(StopRequested):
        train(one, stop=StopAt(9), show_progress=False)
    train(one, resume=True, show_progress=False)
    assert "checkpoint" in by and result_of(one) == result_of(plain)
