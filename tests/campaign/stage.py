"""Where a case is played, and what every case is held to."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.forked import MIB, SECONDS, Command, Outcome, no_network, run
from tests.campaign.world import World

_LONGEST_LINE, _MOST_LINES = 6000, 80  # of a message; a name that was given is given back whole
_BIDI = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")


class Stage:
    """One case: its kind, number and seed, a folder of its own, and what was found wrong.

    Attributes
    ----------
    name : str
        What the case is, in words; set by who plays it.
    complaints : list of str
        Empty where all promises were kept.
    canary : Path
        A file that a payload would make, were it run.
    """

    def __init__(self, kind: str, number: int, seed: int, world: World, folder: Path, *, fresh: bool = False) -> None:
        self.kind, self.number, self.seed, self.world, self.fresh = kind, number, seed, world, fresh
        self.folder = folder
        self.rng = random.Random(f"{kind} {number} {seed}")
        self.name = ""
        self.complaints: list[str] = []
        self.outcomes: list[Outcome] = []
        self.notes: dict[str, int] = {}
        self.canary = folder / "canary"
        self._network = folder / "network"

    def run(
        self,
        *words: str,
        allowed: Collection[int] = (0, 2),
        work: Callable[[], int] | None = None,
        before: tuple[Callable[[], object], ...] = (),
        env: dict[str, str] | None = None,
        kill_after: float | None = None,
        network: bool = False,
    ) -> Outcome:
        """Run a command of humanline, or other work, in the case's folder; complain of all that may never be."""
        before = (partial(no_network, self._network), *before)
        command = Command(words, work, before, env or {}, kill_after)
        outcome = run(command, self.folder, fresh=self.fresh)
        self.outcomes.append(outcome)
        what = " ".join(words[:1]) or getattr(work, "__name__", "work")
        self.complaints += [f"{what}: {one}" for one in faults(outcome, allowed)]
        if self.canary.exists():
            self.complain(f"{what}: code that a file or a text brought was run")
            self.canary.unlink()
        if self._network.exists():
            tried = " ".join(sorted(set(self._network.read_text().split("\n"))))
            self._network.unlink()
            if not network:
                self.complain(f"{what}: tried the network:{tried}")
        return outcome

    def complain(self, text: str) -> None:
        self.complaints.append(text)

    def count(self, what: str, by: int = 1) -> None:
        """Count something that the table of results has a column for."""
        self.notes[what] = self.notes.get(what, 0) + by

    def expect(self, right: Any, text: str) -> None:
        if not right:
            self.complain(text)


def faults(outcome: Outcome, allowed: Collection[int]) -> list[str]:
    """Say what of a command's outcome may never be."""
    found = []
    if outcome.over is not None:
        found.append(f"took {outcome.over}")
    elif outcome.code not in allowed:
        found.append(f"exit code {outcome.code}, where {sorted(allowed)} is right: {tail(outcome.err)}")
    if outcome.seconds > SECONDS and outcome.over is None and outcome.code >= 0:
        found.append(f"took {outcome.seconds:.0f} s")
    if outcome.mib > MIB and outcome.over is None:
        found.append(f"had {outcome.mib:.0f} MiB")
    for text in (outcome.out, outcome.err):
        if "Traceback (most recent call last)" in text:
            found.append(f"a traceback: {tail(text)}")
        if raw := sorted({char for char in text if not fit_to_show(char)}):
            found.append(f"raw {', '.join(map(ascii, raw[:5]))} in what it printed")
        if max(map(len, text.split("\n"))) > _LONGEST_LINE or text.count("\n") > _MOST_LINES:
            found.append(f"printed {len(text)} characters in {text.count(chr(10))} lines")
    if outcome.code == 2 and not outcome.err.strip():
        found.append("exit code 2 without a word")
    if outcome.left:
        found.append(f"left {outcome.left} process(es) behind")
    return found


def fit_to_show(char: str) -> bool:
    """Tell whether a terminal shows a character and does nothing else."""
    return char == "\n" or not (unicodedata.category(char) in ("Cc", "Cs") or char in _BIDI)


def tail(text: str) -> str:
    """Return the end of what was printed, on one line."""
    return " ".join(text.split())[-300:]
