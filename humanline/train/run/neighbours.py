"""The processes of one run, watching each other: whoever is gone, fails or stands still is named, and ends them all.

A process that waits for another inside a collective cannot look around, so two threads of its own do. One exchanges
cards with the others through torch.distributed's store, over a connection of its own: who it is, what it is doing, for
how long nothing got done. The other judges what came and never touches the network, so that nothing can hold it up.
Time is counted in looks, not by a clock: a process, a job or a machine that was suspended has missed none.

A process of the same machine is asked for by its id; it is gone when it is gone, and as long as it is there, its
silence means nothing. One elsewhere is taken for gone when its card has not changed for 15 looks.

Whoever finds something tells the others: those that watch it, and, since the first one of all puts its number where
everyone looks, the others at their next look. The thread that trains is left some time to end by itself, as it does
where gloo raises, and is left alone while it writes what the others wait for; then the process is ended.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch

from humanline.system.activity import EXIT_NEIGHBOUR, HERE, NeighbourError
from humanline.system.files import OutputError
from humanline.system.identity import Identity
from humanline.system.out_of_memory import MemoryRanOutError
from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal, ending_at_once
from humanline.system.terminal import redact, told
from humanline.train.run.checkpoint import CheckpointError
from humanline.train.run.collapse import CollapseError
from humanline.train.run.processes import Meeting, NonFiniteError, is_agreed, start_accelerator

_WATCHED = 16  # processes that each one watches: the next ones, in a circle
_BUSY = 0.02  # of a core: less CPU time than that gets nothing read or written
_GO_ON = (
    "\nWhat was trained up to the newest checkpoint is kept: start all processes again with --resume to go on from it."
)
# What torch.distributed raises, a RuntimeError each, when another process can no longer be talked to.
_TALK = re.compile(r"gloo|nccl|closed by peer|reset by peer|broken pipe|timed out|TCPStore|socket", re.IGNORECASE)
_ELSEWHERE = "a signal to another process"
_COLLECTIVES = f"{os.sep}torch{os.sep}distributed{os.sep}"  # in the name of a file
_BACKWARD = "_engine_run_backward"  # a function of torch
_LINES, _LONGEST = 20, 2000  # lines and characters of a traceback that go to the others
_RUNS = itertools.count()  # of this process; all processes of a run have had the same number of them


@dataclass(frozen=True, slots=True)
class Periods:
    """How often the processes look at each other, and for how long they put up with what they see.

    Attributes
    ----------
    tick : float
        Seconds between two looks.
    unheard : int
        Looks without news after which a process elsewhere is taken for gone.
    unreachable : int
        Looks without any exchange after which the store is.
    grace : float
        Seconds that a process has to end by itself once another one is gone.
    patience : float
        Seconds that it has where another one has failed with an error that it may come to by itself.
    """

    tick: float = 2.0
    unheard: int = 15
    unreachable: int = 12
    grace: float = 10.0
    patience: float = 40.0


PERIODS = Periods()


@dataclass(frozen=True, slots=True)
class Card:
    """What a process publishes about itself.

    Attributes
    ----------
    who : Identity
    looks : int
        How often it has looked around; rises as long as it lives.
    still : float
        Seconds for which nothing got done.
    waiting : bool
        Whether it waits for the others.
    doing, where : str
        In words, and in code.
    end : {"", "agreed", "failed", "stopped"}
        How it has ended: as all do, by an error or a signal of its own, or not yet.
    words, trace : str
        Of that error; in place of its traceback, of one that stands still, where it stands.
    found : str
        What it has found out about another process, for which it ends.
    asked : bool
        Whether that is no fault, but that a process was asked to stop while the run loaded.
    """

    who: Identity
    looks: int = 0
    still: float = 0.0
    waiting: bool = False
    doing: str = "loading"
    where: str = ""
    end: str = ""
    words: str = ""
    trace: str = ""
    found: str = ""
    asked: bool = False

    def of(self, rank: int) -> str:
        """Return the name of a process in words."""
        return f"process {rank} ({self.who.host}, process id {self.who.process})"

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Read what another process has written of itself."""
        return cls(**row | {"who": Identity.from_row(row["who"])})


@contextlib.contextmanager
def joined(stall_minutes: float, stop: StopSignal | None) -> Iterator[tuple[Any, Meeting]]:
    """Give the accelerator of a run and its processes' meeting; they watch each other for the length of the context.

    One process alone has nobody to watch, and nothing is done.

    Parameters
    ----------
    stall_minutes : float
        Minutes without anything done after which a process is said to stand still; 0: never.
    stop : StopSignal, optional
        Tells signals that all processes have agreed on from one that one of them obeyed alone.
    waits
        Of `start_accelerator`.

    Raises
    ------
    NeighbourError
        In place of an error that comes of it, if another process is gone, has failed or stands still. Where this one
        cannot raise, since it waits inside a collective, it ends with the exit code 69, and says the same.
    StopRequested
        If another process has left since it was asked to stop before anything was held; where this one cannot raise,
        it ends with the exit code 75.
    """
    HERE.begin()
    with contextlib.nullcontext() if stop is None else ending_at_once():
        accelerator = start_accelerator(stall_minutes=stall_minutes)
    if accelerator.num_processes == 1:
        yield accelerator, Meeting(1)
        return
    watch = _Watch(accelerator.process_index, accelerator.num_processes, 60 * stall_minutes or math.inf)
    try:
        meeting = Meeting(accelerator.num_processes)
        yield accelerator, meeting
        meeting.reduce(torch.zeros(()), "max")  # none leaves before all are here
        meeting.close()
    except BaseException as error:
        agreed = is_agreed(error, accelerator.num_processes)
        agreed |= isinstance(error, CheckpointError | CollapseError | OutputError | NonFiniteError)
        stopped = isinstance(error, StopRequested)
        agreed |= stopped and stop is not None and stop.holding
        found = None if agreed else watch.behind(error)
        if found is not None and watch.asked and not stopped:
            watch.leave("stopped", found=found)
            raise StopRequested((stop and stop.requested) or _ELSEWHERE, found) from error
        if found is not None and not watch.asked:
            watch.leave("failed", found=found)
            raise NeighbourError(found + _GO_ON) from error
        words = " ".join(f"{'' if stopped else type(error).__name__ + ': '}{error}".split())
        trace = (
            ""
            if isinstance(error, StopRequested | ValueError | OSError | MemoryRanOutError)
            else _tail(traceback.format_exception(error))
        )
        watch.leave("agreed" if agreed else "stopped" if stopped else "failed", HERE.at(error), words, trace=trace)
        raise
    finally:
        watch.close()


class _Watch:
    """What one process knows of those that it watches.

    Parameters
    ----------
    rank, ranks : int
    limit : float
        Seconds after which a process stands still.
    """

    def __init__(self, rank: int, ranks: int, limit: float) -> None:
        self.rank, self.limit, self.periods = rank, limit, PERIODS
        self.others = [(rank + n) % ranks for n in range(1, min(ranks - 1, _WATCHED) + 1)]
        self.prefix = f"humanline/{next(_RUNS)}"
        self.card = Card(Identity.own())
        self.cards: dict[int, Card] = {}
        self.frozen = dict.fromkeys(self.others, 0)  # looks at which a card was as before
        self.gone_since: dict[int, int] = {}  # exchanges when a process was first missed
        self.exchanges = self.silent = 0  # and looks since the last one
        self.trains = threading.get_ident()
        self.found = ""
        self.was = ""  # what this process was doing when it heard of the end of another
        self.stopping = False
        self.asked = False  # whether what was found is that a process was asked to stop while the run loaded
        self._seen = (-1, 0.0, 0)  # of what is done, CPU time, exchanges
        self._knows, self._over, self._wanted, self._told = (threading.Event() for _ in range(4))
        self.threads = [
            threading.Thread(target=act, name=f"humanline-{act.__name__.strip('_')}", daemon=True)
            for act in (self._exchange, self._judge)
        ]
        for thread in self.threads:
            thread.start()

    def behind(self, error: BaseException) -> str | None:
        """Return the fate of another process, in words, if that has caused an error of this one; None if not."""
        talk = isinstance(error, RuntimeError) and _TALK.search(str(error)) is not None
        if not talk and not isinstance(error, StopRequested):
            return None
        self.stopping, self.was = not talk, HERE.at(error)
        looks = self.periods.unheard + self.periods.unreachable if talk else 3
        self._wanted.set()
        if self._knows.wait(looks * self.periods.tick):
            return self.found
        return f"another process can no longer be talked to: {' '.join(str(error).split())[:400]}" if talk else None

    def leave(self, end: str, doing: str | None = None, words: str = "", found: str = "", trace: str = "") -> None:
        """Tell the others how this process ends; one that keeps the store for them lets them read it."""
        self.card = replace(
            self.card,
            end=end,
            doing=doing or str(HERE),
            words=redact(words)[:400],
            trace=trace,
            found=found or self.found,
        )
        self._told.clear()
        self._wanted.set()
        if self.silent < 2:
            self._told.wait(3 * self.periods.tick)
        if end != "agreed" and self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            time.sleep(2.5 * self.periods.tick)

    def close(self) -> None:
        """End the threads: one that is inside torch when Python ends would abort the process."""
        self._over.set()
        self._wanted.set()
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(5 * self.periods.tick)

    # The thread that talks.

    def _exchange(self) -> None:
        default: Any = torch.distributed.distributed_c10d._get_default_store()
        store = default.clone()
        store.set_timeout(timedelta(seconds=10))
        while not self._over.is_set():
            try:
                mine = self.trade(store)
                self.exchanges += 1
                if mine.end:
                    self._told.set()
            except torch.distributed.DistNetworkError:
                return  # and the other thread counts
            except Exception:  # late, which may pass
                pass
            new = len(self.cards) < len(self.others)  # first they are looked for more often
            self._wanted.wait(self.periods.tick / 10 if new else self.periods.tick)
            self._wanted.clear()

    def trade(self, store: Any) -> Card:
        """Write this process's card, which is returned, and read the others'; add who knew of a fault first to them."""
        mine, first = self.card, self._key("first")
        store.set(self._key(self.rank), json.dumps(asdict(mine)))
        if mine.found or mine.end in ("failed", "stopped"):
            store.compare_set(first, "", str(self.rank))
        if store.check([first]):
            knew = int(store.get(first))
            if knew != self.rank and knew not in self.others:
                self.frozen[knew] = 0
                self.others.append(knew)
        for other in self.others:
            if other in self.cards or store.check([self._key(other)]):
                self.cards[other] = Card.from_row(json.loads(store.get(self._key(other))))
        return mine

    def _key(self, which: int | str) -> str:
        return f"{self.prefix}/{which}"

    # The thread that judges.

    def _judge(self) -> None:
        known: dict[int, int] = {}
        while not self._over.wait(self.periods.tick):
            self._look(known)
            verdict = self._verdict()
            if verdict is not None:
                self._give_up(*verdict)
                return

    def _look(self, known: dict[int, int]) -> None:
        """Notice what got done here, and what is new elsewhere."""
        count, spent, exchanges = self._seen
        busy = HERE.alone or not {"loading", "saving"}.isdisjoint(HERE.phases)
        now, cpu = HERE.count, time.process_time()
        done = now != count or (busy and cpu - spent > _BUSY * self.periods.tick)
        self.silent = 0 if self.exchanges != exchanges else self.silent + 1
        self._seen = (now, cpu, self.exchanges)
        if not self.card.end:
            still = 0.0 if done else self.card.still + self.periods.tick
            where, inside = ("", False) if done else _where(self.trains)
            late = still >= self.limit / 2
            self.card = replace(
                self.card,
                looks=self.card.looks + 1,
                still=still,
                waiting=HERE.waiting or inside,
                doing=str(HERE),
                where=where,
                trace=_tail(traceback.format_stack(sys._current_frames().get(self.trains))) if late else "",
                found=self.found,
            )
        for other in self.others:
            card = self.cards.get(other)
            looks = -1 if card is None else card.looks
            asleep = card is not None and card.who.is_suspended()  # which is nobody's fault
            if asleep or known.get(other, -1) != looks:
                self.frozen[other] = 0
            elif not self.silent:  # without an exchange there could be no news
                self.frozen[other] += 1
            known[other] = looks

    def _verdict(self) -> tuple[str, float] | None:
        """Return a fault of another process, and for how many seconds to put up with it; None if there is none."""
        grace, patience = self.periods.grace, self.periods.patience
        cards = dict(self.cards)
        for card in cards.values():
            if card.found and not card.asked:
                return card.found, grace
        for rank, card in cards.items():
            if card.end == "failed":
                failed = f"{card.of(rank)} failed while {card.doing}: {card.words}\n{card.trace}".rstrip()
                return failed, grace if HERE.waiting else patience
        for rank, card in cards.items():
            if not card.end and self._is_gone(rank, card):
                return f"{card.of(rank)} is gone: it was killed or has crashed; {self._last(card)}", grace
        for rank, card in cards.items():
            if (card.asked or card.end == "stopped") and not self.stopping:
                return self._asked(rank, card), grace
            if card.end and HERE.waiting and self.card.still >= patience:
                return f"{card.of(rank)} has left while {card.doing} {card.words}".rstrip(), grace
        seconds = self.periods.tick * self.periods.unheard
        for rank in self.others:
            heard = cards.get(rank)
            if self.frozen[rank] < self.periods.unheard or (heard and (heard.end or heard.who.fate() == "alive")):
                continue
            if heard is None:
                return f"process {rank} has never been heard of, for {seconds:g} s", grace
            gone = f"has not been heard of for {seconds:g} s: it, its machine or the network is gone"
            return f"{heard.of(rank)} {gone}; {self._last(heard)}", grace
        if self.silent >= self.periods.unreachable:
            seconds, was = self.silent * self.periods.tick, self.was or str(HERE)
            gone = f"cannot be reached for {seconds:g} s: it, its machine or the network is gone"
            host = os.environ.get("MASTER_ADDR", "another machine")
            return f"the store of the launcher, or of process 0, on {host} {gone}; this process was {was}", grace
        return self._standing(cards)

    def _standing(self, cards: dict[int, Card]) -> tuple[str, float] | None:
        """Return who stands still while the others wait; all of them, if all wait for each other."""
        tick = self.periods.tick
        everyone = {self.rank: self.card} | {
            rank: replace(card, still=card.still + tick * self.frozen[rank]) for rank, card in cards.items()
        }
        late = {rank: card for rank, card in everyone.items() if card.still >= self.limit and not card.end}
        guilty = {rank: card for rank, card in late.items() if not card.waiting}
        if not guilty and len(late) < len(everyone):
            return None
        lines = [
            f"{card.of(rank)} stands still: nothing got done for {card.still / 60:.3g} minutes while {card.doing}"
            + (f", at {card.where}" if card.where else "")
            + (f"\n{card.trace}" if card.trace and guilty else "")
            for rank, card in sorted((guilty or late).items())
        ]
        how = f"(training.stall_minutes: {self.limit / 60:g} allows no more; 0 would wait for ever)"
        return "\n".join([*lines, how]), self.periods.grace

    def _asked(self, rank: int, card: Card) -> str:
        """Take note that a process was asked to stop before there was anything to save, which is no fault; say it."""
        self.asked = True
        return card.found or f"stopped by {_ELSEWHERE}: {card.of(rank)} was {card.words}"

    def _last(self, card: Card) -> str:
        """Say what a process was doing that says nothing any more, and, since that is fresher, this one."""
        return f"it was last seen {card.doing}; this process was {self.was or HERE}"

    def _is_gone(self, rank: int, card: Card) -> bool:
        """Return whether a process of this machine has ended, and what it had to say has been read."""
        if card.who.fate() != "dead":
            return False
        since = self.gone_since.setdefault(rank, self.exchanges)
        return self.exchanges >= since + 2 or self.silent >= 2

    def _give_up(self, found: str, grace: float) -> None:
        """Let the thread that trains end by itself, then end the process."""
        self.found = found
        self.card = replace(self.card, found=found, asked=self.asked)
        self._knows.set()
        self._wanted.set()
        known: dict[int, int] = {}
        while grace > 0 or (HERE.alone and self.card.still < self.limit):
            if self._over.wait(self.periods.tick):
                return
            self._look(known)
            grace -= self.periods.tick
        shown = "\x1b[?25h\n" if os.isatty(2) else ""  # the cursor, which a progress bar hides
        text = f"{found} while loading; no step was begun by this call" if self.asked else found + _GO_ON
        with contextlib.suppress(OSError):
            os.write(2, f"{shown}humanline train: {told(text, keep=chr(10))}\n".encode())
        os._exit(EXIT_STOPPED if self.asked else EXIT_NEIGHBOUR)


def _tail(lines: list[str]) -> str:
    """Return the end of a traceback or of where a thread is, as it may be shown to others."""
    text = redact("".join(lines)).rstrip()
    return "\n".join(text[-_LONGEST:].splitlines()[-_LINES:])


def _where(thread: int) -> tuple[str, bool]:
    """Return where a thread is in humanline's code, and in whose code it has called from there; whether it waits there.

    Gradients are reduced over processes inside backward, and sharded weights gathered inside forward: a process there
    waits for another one, or may.
    """
    frame = sys._current_frames().get(thread)
    innermost = inner = None
    waits = False
    while frame is not None:
        code = frame.f_code
        if innermost is None:
            waits = _COLLECTIVES in code.co_filename or code.co_name == _BACKWARD
        place = f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
        innermost = innermost or place
        if f"{os.sep}humanline{os.sep}" in code.co_filename:
            inner = place
            break
        frame = frame.f_back
    if inner is None or inner == innermost:
        return innermost or "", waits
    return f"{inner}, inside {innermost}", waits
