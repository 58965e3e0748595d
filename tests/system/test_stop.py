"""What a process does with the five signals that ask it to save and end, and with those that follow."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time

import pytest

from humanline.system import stop
from humanline.system.stop import StopRequested, StopSignal, ending_at_once, outlive, sparing

ALL = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGXCPU")


class Ended(BaseException):
    pass


@pytest.fixture
def exits(monkeypatch):
    def end(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(stop, "ECHO", 0.3)


class TestSignals:
    @pytest.mark.parametrize("name", ALL)
    def test_the_first_asks_and_what_was_there_comes_back(self, name, capfd):
        """Before there is something to save it raises, later it sets `requested`; afterwards all is as before."""
        number = getattr(signal, name)
        before = {one: signal.getsignal(one) for one in stop.STOPPING}
        with pytest.raises(StopRequested, match=name), StopSignal():
            signal.raise_signal(number)
        with StopSignal() as asked:
            asked.hold()
            signal.raise_signal(number)
            assert asked.requested == name
        later = ", 2 seconds from now," if name == "SIGHUP" else ""
        said = f"{name}: saving at the next safe point; once more{later} ends the run at once"
        assert said in capfd.readouterr().err
        assert {one: signal.getsignal(one) for one in stop.STOPPING} == before

    @pytest.mark.parametrize("second", ["SIGHUP", "SIGTERM"])
    def test_a_hangup_that_comes_twice_is_one(self, exits, second):
        """The shell and the kernel both send it, with a SIGTERM behind: that ends nothing; a later one does."""
        with StopSignal() as asked:
            asked.hold()
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(getattr(signal, second))
            assert asked.requested == "SIGHUP"
            time.sleep(0.4)
            with pytest.raises(Ended, match=str(128 + getattr(signal, second))):
                signal.raise_signal(getattr(signal, second))

    def test_a_hangup_behind_a_sigterm_is_an_echo(self, exits):
        """As where a session is ended: SIGTERM, and at once SIGHUP."""
        with StopSignal() as asked:
            asked.hold()
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            assert asked.requested == "SIGTERM"
            time.sleep(0.4)
            with pytest.raises(Ended, match="129"):
                signal.raise_signal(signal.SIGHUP)

    @pytest.mark.parametrize("first", ALL)
    def test_a_second_signal_has_its_default_effect(self, first):
        """So that it ends the process inside a long computation, too; but SIGXCPU, which repeats itself, does not."""
        with StopSignal() as asked:
            asked.hold()
            signal.raise_signal(getattr(signal, first))
            for second in ("SIGTERM", "SIGINT", "SIGUSR1"):
                now = signal.getsignal(getattr(signal, second))
                assert now == (asked._handle if first == "SIGHUP" else signal.SIG_DFL)
            for _ in range(3):
                signal.raise_signal(signal.SIGXCPU)

    def test_a_blocked_signal_is_let_through(self):
        """Whatever started us with it blocked: the request that has waited arrives, and the mask comes back."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        try:
            signal.raise_signal(signal.SIGUSR1)  # to this thread
            with pytest.raises(StopRequested, match="SIGUSR1"), StopSignal():
                pass
            assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_what_they_start_can_be_ended():
    """A process that outlives signals hands that on neither to a fork nor to a program."""
    child = os.fork()
    if not child:
        with sparing():
            outlive()
        for name in ALL:
            signal.raise_signal(getattr(signal, name))
        begun, there = os.pipe()
        grandchild = os.fork()
        if not grandchild:
            os.write(there, b".")
            time.sleep(60)
            os._exit(3)
        os.read(begun, 1)  # a signal that comes before it runs is still one of ours
        os.kill(grandchild, signal.SIGTERM)
        died = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == -signal.SIGTERM
        program = subprocess.Popen(["sleep", "60"])
        program.send_signal(signal.SIGHUP)
        died &= program.wait() == -signal.SIGHUP
        os._exit(0 if died else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_signal_ends_a_process_that_a_library_holds():
    """Where Python does not come to its handler, a process that has nothing to save ends as stopped all the same."""
    child = os.fork()
    if not child:
        with StopSignal(), ending_at_once():
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # so that it does not interrupt the wait
            ctypes.CDLL(None).sleep(20)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 75
