"""One process at a time works in a folder, on any file system, and a dead one stands in nobody's way."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from humanline.system import lock
from humanline.system.identity import Identity
from humanline.system.lock import FolderLock, LockHeldError, LockLostError
from humanline.system.stop import StopRequested
from tests.helpers.locks import held, names, refuse, waiting_clock


@pytest.fixture
def clock(monkeypatch):
    return waiting_clock(monkeypatch)


def take(folder: Path, *, wait: bool = True) -> tuple[FolderLock, list[str]]:
    said: list[str] = []
    one = FolderLock(folder)
    one.take(wait=wait, say=said.append)
    return one, said


def test_the_tests_locks_of_others_are_there_whole_at_once(tmp_path, monkeypatch):
    """Whoever looks while one is made sees none, or one with its holder: a thread may be looking all the time."""
    seen, write = [], Path.write_text

    def look(path, text):
        path.touch()
        seen.append(FolderLock(tmp_path)._highest())
        write(path, text)
        seen.append(FolderLock(tmp_path)._highest())

    monkeypatch.setattr(Path, "write_text", look)
    held(tmp_path, 2)
    assert seen == [None, None] and FolderLock(tmp_path)._highest().holder.host == "elsewhere"


class TestTaking:
    @pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("before", ["nothing", "free", "dead", "old format", "no links"])
    def test_of_many_at_once_exactly_one_wins(self, tmp_path, before, times, monkeypatch):
        """Four processes of four threads each want a folder at the same moment: one gets it."""
        if before == "no links":
            monkeypatch.setattr(os, "link", refuse(errno.EPERM))
        for attempt in range(times):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            if before == "free":
                take(folder)[0].release()
            elif before == "dead":
                held(folder, 3, **Identity.own().row() | {"started": "0"})
            elif before == "old format":
                (folder / "run.lock").write_text(f"process 1 on {platform.node()}\n")
            (begin, go), (wins, won), (end, done) = os.pipe(), os.pipe(), os.pipe()
            children = []
            for _ in range(4):
                children.append(os.fork())
                if not children[-1]:
                    os.close(go), os.close(done)
                    os.read(begin, 1)
                    self.race(folder, won, end)
            os.close(begin), os.close(won), os.close(end)
            os.close(go)
            got = b""
            while len(got) < 16:
                got += os.read(wins, 16)
            os.close(done)
            for child in children:
                os.waitpid(child, 0)
            os.close(wins)
            assert got.count(b"1") == 1, (attempt, got)
            assert len(names(folder)) == 1

    @staticmethod
    def race(folder, won, end):
        def attempt(_):
            try:
                take(folder)
                return b"1"
            except LockHeldError:
                return b"0"
            except BaseException as error:
                return type(error).__name__[:1].encode()

        with ThreadPoolExecutor(4) as pool:
            os.write(won, b"".join(pool.map(attempt, range(4))))
        os.read(end, 1)  # until all have tried
        os._exit(0)

    @pytest.mark.parametrize("how", ["gone", "zombie", "number used again"])
    def test_a_holder_that_is_dead_on_this_machine_is_followed_at_once(self, tmp_path, clock, how):
        """Killed and gone, killed and not asked after, or with a number that another process has: no waiting."""
        child = os.fork()
        if not child:
            take(tmp_path)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        if how != "zombie":
            os.waitpid(child, 0)
        if how == "number used again":
            row = json.loads((tmp_path / "run.lock.1").read_text())
            (tmp_path / "run.lock.1").write_text(json.dumps(row | {"process": os.getpid()}))
        one, said = take(tmp_path, wait=False)
        if how == "zombie":
            os.waitpid(child, 0)
        assert clock.now == 0 and names(tmp_path) == ["run.lock.2"]
        assert len(said) == 1 and re.fullmatch(r"took over the lock of process \d+ on .+, which is gone", said[0])
        one.release()

    def test_a_holder_that_is_alive_is_left_alone(self, tmp_path):
        """Its process is named, and nothing is left of the one that was refused."""
        one, said = take(tmp_path)
        with pytest.raises(
            LockHeldError, match=rf"in use by another run \(process {os.getpid()} on .*, last seen \d+ s"
        ):
            take(tmp_path)
        assert said == [] and names(tmp_path) == ["run.lock.1"]
        one.release()
        assert names(tmp_path) == ["run.lock.1"] and take(tmp_path)[1] == []

    OTHERS = ({}, {"boot": ""}, {"process": 2**40}, {"nonce": 3, "process": "x"})

    @pytest.mark.parametrize("of", [*OTHERS, "container", "empty"], ids=str)
    def test_another_machines_lock_is_followed_after_five_minutes(self, tmp_path, clock, of):
        """Not waiting, one is told for how long; waiting, one gets it when nothing was heard for five minutes."""
        own = Identity.own()
        changes = {"boot": own.boot, "namespace": "pid:[1]", "process": 1} if of == "container" else {}
        path = held(tmp_path, seconds_ago=100, **(of if isinstance(of, dict) else changes))
        if of == "empty":
            path.write_text("")
            os.utime(path, (time.time() - 100,) * 2)
        with pytest.raises(
            LockHeldError, match=r"last seen 1\d\d s ago\); it cannot be seen .* dead, (1\d\d|200) s until"
        ):
            take(tmp_path, wait=False)
        assert clock.now == 0 and names(tmp_path) == ["run.lock.1"]
        one, said = take(tmp_path)
        assert 100 <= clock.now <= 201 and names(tmp_path) == ["run.lock.2"]
        assert len(said) == 2 and "waiting until" in said[0]
        assert re.search(r"which has not renewed it for 30[01] s", said[1])
        one.release()

    @pytest.mark.parametrize("ago,wait", [(1000, False), (1000, True), (-1000, True)])
    def test_no_clock_but_our_own_is_believed_alone(self, tmp_path, clock, ago, wait):
        """A lock that looks old is watched for 75 seconds, one from the future for five minutes, before it is taken."""
        held(tmp_path, seconds_ago=ago)
        if ago < 0:
            with pytest.raises(LockHeldError, match="300 s until"):
                take(tmp_path, wait=False)
        take(tmp_path, wait=wait)[0].release()
        assert clock.now == (75 if ago > 0 else 300)

    @pytest.mark.parametrize("ago", [100, 1000])
    @pytest.mark.parametrize("how", ["content", "time", "taken", "freed"])
    def test_a_holder_that_shows_itself_is_refused_at_once(self, tmp_path, clock, ago, how):
        """Whatever its clock says: a renewal that we see ends the waiting; if it gives the lock back, we have it."""
        path = held(tmp_path, seconds_ago=ago)

        def renew():
            if how == "taken":
                held(tmp_path, 2)
            elif how == "time":
                os.utime(path, (5, 5))
            else:
                held(tmp_path, seconds_ago=ago, free=how == "freed", renewals=1)

        clock.events[20] = renew
        if how == "freed":
            assert len(take(tmp_path)[1]) == 1
        else:
            with pytest.raises(LockHeldError, match="it has just renewed its lock"):
                take(tmp_path)
        assert 20 <= clock.now <= 21

    def test_a_process_that_hangs_is_followed_too(self, tmp_path, clock):
        """A live process of this machine that has renewed nothing for long is watched, then followed."""
        held(tmp_path, seconds_ago=1000, **Identity.own().row())
        one, said = take(tmp_path, wait=False)
        assert clock.now == 75 and re.search(r"has not renewed it for 1\d\d\d s", said[1])
        one.release()

    def test_a_stop_ends_the_waiting_and_leaves_nothing(self, tmp_path, clock):
        """A signal while it waits passes through."""
        path = held(tmp_path)
        before = path.read_bytes()

        def stop():
            raise StopRequested("SIGTERM")

        clock.events[30] = stop
        with pytest.raises(StopRequested):
            take(tmp_path)
        assert names(tmp_path) == ["run.lock.1"] and path.read_bytes() == before


class TestOldFormat:
    """`run.lock` with a line, of versions that held it by flock."""

    def old(self, folder, process, host=None):
        path = folder / "run.lock"
        path.write_text(f"process {process} on {host or platform.node()}\n")
        os.utime(path, (5, 5))
        return path

    @pytest.mark.parametrize("host", [None, "elsewhere"])
    def test_flock_tells_whether_it_is_held(self, tmp_path, clock, host):
        """Held, it is refused however old it is; not held, it is taken over at once."""
        path = self.old(tmp_path, os.getpid(), host)
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(LockHeldError, match="in use by another run"):
                take(tmp_path)
        take(tmp_path)[0].release()
        assert clock.now == 0 and names(tmp_path) == ["run.lock.1"]

    def test_without_flock_the_process_tells(self, tmp_path, clock, monkeypatch):
        """A live process of this machine is refused, a dead one followed, another machine's after it was watched."""
        monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOSYS))
        self.old(tmp_path, os.getpid())
        with pytest.raises(LockHeldError, match="in use by another run"):
            take(tmp_path)
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        self.old(tmp_path, child)
        take(tmp_path)[0].release()
        assert clock.now == 0
        (tmp_path / "run.lock.1").unlink()
        self.old(tmp_path, 1, "elsewhere")
        take(tmp_path)[0].release()
        assert clock.now == 75


class TestHolding:
    def test_it_is_renewed(self, tmp_path, monkeypatch):
        """A thread renews it in place; where the file cannot be written, its time is set; errors end nothing."""
        monkeypatch.setattr(lock, "RENEW", 0.01)
        one, _ = take(tmp_path)
        path = tmp_path / "run.lock.1"

        def changes(what):
            before, until = what(), time.monotonic() + 20
            while what() == before:
                assert time.monotonic() < until
                time.sleep(0.005)

        size, inode = path.stat().st_size, path.stat().st_ino
        changes(path.read_bytes)
        assert (path.stat().st_size, path.stat().st_ino) == (size, inode)
        monkeypatch.setattr(os, "pwrite", refuse(errno.ENOSPC))
        changes(lambda: path.stat().st_mtime_ns)
        with monkeypatch.context() as patch:
            patch.setattr(os, "utime", refuse(errno.EIO))
            time.sleep(0.1)
        changes(lambda: path.stat().st_mtime_ns)
        assert one.lost() is None
        one.release()

    def test_a_lock_file_that_somebody_removed_is_made_again(self, tmp_path):
        """Alone, or with its folder: the lock is still ours."""
        one, _ = take(tmp_path)
        (tmp_path / "run.lock.1").unlink()
        one.refuse_lost()
        assert names(tmp_path) == ["run.lock.1"]
        with pytest.raises(LockHeldError):
            take(tmp_path)
        tmp_path.rename(tmp_path.with_name("aside"))
        one.refuse_lost()
        tmp_path.mkdir()
        one.refuse_lost()
        assert names(tmp_path) == ["run.lock.1"]

    @pytest.mark.parametrize("other", [1, 2, 9])
    def test_a_holder_that_was_asleep_notices_and_changes_nothing(self, tmp_path, clock, other):
        """After more than a minute it looks by itself, before a save always; giving back leaves the other's lock."""
        one, _ = take(tmp_path)
        (tmp_path / "run.lock.1").unlink()
        theirs = held(tmp_path, other)
        before = theirs.read_bytes()
        assert one.lost() is None
        clock.now += 61
        how = "was taken over by" if other > 1 else "was removed while the run went on, and"
        assert f"{how} process 7 on elsewhere" in one.lost()
        with pytest.raises(LockLostError, match="ends here and writes nothing more"):
            one.refuse_lost()
        one.release()
        assert theirs.read_bytes() == before and names(tmp_path) == [theirs.name]

    def test_a_slow_taker_that_makes_a_removed_number_again_has_not_won(self, tmp_path):
        """It saw number 1 dead, but by the time it makes number 2 that was followed by 3 and removed."""
        one = FolderLock(tmp_path)
        one._holder, one._nonce = Identity.own(), "y" * 32
        held(tmp_path, 3)
        assert not one._make(2)
        assert names(tmp_path) == ["run.lock.3"]


def test_threads_end_with_their_lock(tmp_path):
    """No thread goes on renewing what was given back."""
    one, _ = take(tmp_path)
    assert any(thread.name == "lock" for thread in threading.enumerate())
    one.release()
    assert not one._thread.is_alive()


def test_many_threads_that_look_at_a_lock_do_not_lose_it(tmp_path):
    """The lock's file is made again where it is gone, by one thread at a time."""
    one = FolderLock(tmp_path)
    one.take(wait=False, say=print)
    failed = []

    def look() -> None:
        for _ in range(30):
            (tmp_path / "run.lock.1").unlink(missing_ok=True)
            try:
                one.refuse_lost()
            except LockLostError as error:
                failed.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    one.release()


def test_a_lock_whose_file_goes_again_and_again_is_not_lost(tmp_path, monkeypatch):
    """A file that is gone as soon as it was made again has no new holder; the next look makes it once more."""
    one = FolderLock(tmp_path)
    one.take(wait=False, say=print)
    file, make = tmp_path / "run.lock.1", FolderLock._make

    def gone(self, number):
        made = make(self, number)
        file.unlink()
        return made

    file.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(FolderLock, "_make", gone)
        one.refuse_lost()
    one.refuse_lost()
    assert file.is_file()
    one.release()


def test_waiting_for_a_lock_is_no_standing_still(tmp_path, monkeypatch):
    """Whoever watches over processes sees that one waits for the lock, and that it looks every second."""
    monkeypatch.setattr(lock, "STALE", 0.5)
    monkeypatch.setattr(lock, "LOOK", 0.5)
    told = []
    monkeypatch.setattr(lock.HERE, "held_up", told.append)
    elsewhere = FolderLock(tmp_path)
    elsewhere.take(wait=False, say=print)
    elsewhere._ended.set()
    file = tmp_path / "run.lock.1"
    row = json.loads(file.read_text())
    file.write_text(json.dumps(row | {"host": "another", "boot": "another"}))
    one = FolderLock(tmp_path)
    one.take(wait=True, say=print)
    assert set(told) == {"waiting for the lock of the output folder", None} and told[-1] is None
    one.release()
