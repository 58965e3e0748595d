"""What a person sees of a run: a progress bar in a terminal, a few lines elsewhere.

`RunProgress` hears of whatever gets done, in every process, and so notes it for the other processes too.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from humanline.system.activity import HERE
from humanline.system.log import LOG
from humanline.system.terminal import told

_NARROWEST, _WIDEST = 5, 40  # characters of a bar


class _Stderr(io.TextIOBase):
    """Standard error, until whoever reads it has gone, and silence from then on: a display must not end a run."""

    gone = False

    def write(self, text: str) -> int:
        """Write what can be written."""
        if not self.gone:
            try:
                return self._file.write(text)
            except OSError:  # a terminal that was closed, a pipe that nobody reads
                self.gone = True
        return len(text)

    def flush(self) -> None:
        """Flush, where there is somebody to see it."""
        if not self.gone:
            try:
                self._file.flush()
            except OSError:
                self.gone = True

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._file.isatty()

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._file.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return its encoding, by which the bar chooses its characters."""
        return self._file.encoding or "utf-8"

    @property
    def _file(self) -> TextIO:
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # a bar puts itself in the place of sys.stderr


def _console() -> Console:
    return Console(file=cast(TextIO, _Stderr()))


class _RunBar(Progress):
    """A bar that keeps its count and the time left where a terminal is narrow, and drops facts, then itself, first."""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Give the one task's line, as wide as the terminal lets it be."""
        if not self.tasks:
            return
        task, width = self.tasks[0], self.console.width
        count, left = MofNCompleteColumn(), TimeRemainingColumn()
        needed = [cell_len(task.description), *(len(one.render(task)) for one in (count, left))]
        room = width - sum(needed) - 2
        shown: list[ProgressColumn] = [TextColumn("{task.description}")]
        if room < 0:  # the words go too
            shown, room = [], room + needed[0] + 1
        facts = ""
        for fact in task.fields["facts"]:
            longer = f"{facts}  {fact}" if facts else fact
            if len(longer) + 1 > room:
                break
            facts = longer
        room -= len(facts) + 1 if facts else 0
        shown += [BarColumn(min(room - 1, _WIDEST))] if room > _NARROWEST else []
        self.columns = (*shown, count, *([TextColumn(escape(facts))] if facts else []), left)
        yield self.make_tasks_table(self.tasks)


class RunProgress:
    """Show step, loss, margin, clip share, speed and time left.

    Parameters
    ----------
    steps : int
    show : bool
        False prints nothing (other ranks, tests, callers with a display of their own).
    """

    def __init__(self, steps: int, show: bool) -> None:
        self.steps, self.show = steps, show
        self.console = _console()
        self.bar = _RunBar(console=self.console, disable=not (show and self.console.is_terminal))
        self.task = self.bar.add_task("training", total=steps, facts=())
        self.lines = {round(steps * i / 10) - 1 for i in range(1, 11)}
        self.first, self.started = 0, time.perf_counter()

    def __enter__(self) -> Self:
        self.bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.__exit__(kind, error, trace)

    def begin(self, updates: int) -> None:
        """Count the updates that an earlier process has done."""
        HERE.trained(updates)
        self.first, self.started = updates, time.perf_counter()
        self.bar.update(self.task, completed=updates)

    def scoring(self, done: int, due: int) -> None:
        """Show that log-probabilities of coming steps are being computed, if they are many enough to wait for."""
        HERE.touch()
        if due > 1:
            self.bar.update(self.task, description=f"scoring ahead {done + 1}/{due}")
        if done == 0 and due > 100 and not self.console.is_terminal:
            self.say(f"scoring {due} steps ahead")

    def working(self, what: str, done: int, due: int) -> None:
        """Show how far the sampling or scoring of a round is."""
        HERE.touch()
        self.bar.update(self.task, description=f"{what} {done}/{due}")

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Show one finished step; ten of them are kept in the log, too."""
        HERE.trained(step + 1)
        parts = [f"loss {metrics['loss']:.4f}"]
        if "margin" in metrics:
            parts.append(f"margin {metrics['margin']:+.3f}")
        if "clipped_low" in metrics:
            parts.append(f"clipped {metrics['clipped_low']:.1%} low {metrics['clipped_high']:.1%} high")
        parts.append(f"{metrics['tokens_per_second']:,.0f} tok/s")
        self.bar.update(self.task, description="training", completed=step + 1, facts=parts)
        if step in self.lines:
            left = (time.perf_counter() - self.started) / (step + 1 - self.first) * (self.steps - step - 1)
            line = f"step {step + 1}/{self.steps}  {'  '.join(parts)}  {left:,.0f} s left"
            (LOG.note if self.console.is_terminal else self.say)(line)  # in a terminal the bar says so

    def say(self, text: str) -> None:
        """Print one line, or several, with control characters of names and texts from outside shown as escapes."""
        LOG.note(text)
        if self.show:
            self.console.print(told(text, keep="\n"), highlight=False, markup=False, emoji=False, soft_wrap=True)


class CountProgress:
    """Show how many of a number of equal things are done: a bar in a terminal, ten lines elsewhere.

    Parameters
    ----------
    what : str
        What is counted.
    show : bool
    """

    def __init__(self, what: str, show: bool) -> None:
        self.what, self.show = what, show
        self.console = _console()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not (show and self.console.is_terminal),
        )
        self.task = self.bar.add_task(what, total=None)
        self.done, self.total, self.first = 0, 0, -1

    def __enter__(self) -> Self:
        self.bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.__exit__(kind, error, trace)

    def __call__(self, done: int, total: int) -> None:
        """Take note of what is done; what was done before the first call counts for nothing in the time left."""
        is_new = self.first < 0 or done != self.done
        if self.first < 0:
            self.first, self.started = done, time.perf_counter()
        self.done, self.total = done, total
        self.bar.update(self.task, completed=done, total=total)
        due = {round(total * i / 10) for i in range(1, 11)} | {self.first}
        if self.show and not self.console.is_terminal and is_new and done in due:
            rate = (time.perf_counter() - self.started) / (done - self.first) if done > self.first else 0.0
            left = f"  about {rate * (total - done):,.0f} s left" if rate else ""
            self.console.print(f"{self.what} {done}/{total}{left}", highlight=False)


class ReadingProgress:
    """Show how many rows of a set are read: a bar in a terminal, elsewhere a line now and then once it takes long.

    Parameters
    ----------
    show : bool
    clock : callable
        Seconds.
    """

    def __init__(self, show: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.show, self.clock = show, clock
        self.console = _console()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[Callable[[int, float], None]]:
        """Show the reading of a set while it lasts; gives what is told the rows read, and their share of the whole."""
        name = told(name)
        drawn = self.show and self.console.is_terminal
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}")
        with Progress(*columns, console=self.console, disable=not drawn, transient=True) as bar:
            task = bar.add_task(escape(f"reading {name}"), total=1.0, facts="", visible=False)
            started = said = self.clock()

            def tell(rows: int, share: float) -> None:
                nonlocal said
                now = self.clock()
                if not self.show or now - started < _UNSEEN:
                    return
                about = f" of about {_round(rows / share):,}" if 0 < share < 1 else ""
                if drawn:
                    bar.update(task, completed=share, facts=f"{rows:,}{about} rows", visible=True)
                elif share < 1 and now - said >= _BETWEEN:
                    said = now
                    left = f", about {(now - started) * (1 - share) / share:,.0f} s left" if share else ""
                    self._say(f"reading {name}: {rows:,}{about} rows{left}")
                elif share >= 1 and said > started:
                    self._say(f"reading {name}: {rows:,} rows, {now - started:,.0f} s")

            yield tell

    def _say(self, text: str) -> None:
        LOG.note(text)
        self.console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


_UNSEEN = 1.0  # seconds in which a set may be read without a word
_BETWEEN = 10.0  # seconds between two lines where there is no terminal


def _round(number: float) -> int:
    """Round an estimate to two digits."""
    return int(float(f"{number:.2g}"))
