"""Parts of benchmarks, each in a process of its own: one that raises, hangs or runs out of memory costs only itself.

Nothing heavy is imported here: the process that starts the others holds no memory of an accelerator, and there is
little in it that could fail.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.report import Result, Row, failure, not_measured, replace_text
from humanline.system.out_of_memory import is_out_of_memory

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 300  # characters of a reason
_RUNNING: dict[int, str] = {}  # process groups of parts, and the folders that go with them
_ENDING = threading.Event()  # set before parts are killed because the command is asked to end


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is measured in a process of its own.

    Parameters
    ----------
    what : str
        What its rows are about, as the row says that is written where it fails.
    call : str
        "module:function"; the function returns a `Result`, or yields one after the other, each of what it has found
        since the last.
    arguments : dict
        Of the function, as JSON can hold them.
    needs : float
        Seconds that it takes on a machine that has nothing else to do; it is not begun where fewer are left.
    number, target : str
        Of the row of a failure.
    environment : dict
        Variables that differ from those of this process.
    """

    what: str
    call: str
    arguments: dict[str, Any] = field(default_factory=dict)
    needs: float = 10.0
    number: str = "-"
    target: str = ""
    environment: dict[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------------------
# One part


def run_part(part: Part, limit: float, tell: Callable[[Result], object] = lambda result: None) -> Result:
    """Run a part and return what it found; where it fails, that and a row which says why.

    Parameters
    ----------
    part : Part
    limit : float
        Seconds after which it is killed, with whatever it has started.
    tell : callable
        Called with what it has found so far, whenever that is more.
    """
    return _run(multiprocessing.get_context("spawn"), part, limit, tell)


def _run(context: Any, part: Part, limit: float, tell: Callable[[Result], object]) -> Result:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        file, said = Path(name) / "found.json", Path(name) / "said"
        process = context.Process(target=in_process, args=(part, file, said))
        process.start()
        _RUNNING[process.pid] = name
        try:
            timely = _wait(process, limit, file, tell)
            if _ENDING.is_set():  # it was killed because all end, and did not fail: what is written of it stays
                threading.Event().wait()
        finally:
            _kill(process)
            del _RUNNING[process.pid]
        result, reason = _read(file)
        if not timely:
            reason = f"took longer than the {limit:.0f} s it was given"
        elif process.exitcode < 0:
            reason = f"killed by signal {-process.exitcode}"
        elif not reason and (process.exitcode or not file.exists()):
            reason = _last_line(said) or f"ended with code {process.exitcode} and said nothing"
        if not reason:
            return result
        if timely:
            sys.stderr.write(_text(said)[-3000:])
        return result.with_more(Result({}, [failure(part.number, part.what, reason, part.target)]))


def _wait(process: BaseProcess, limit: float, file: Path, tell: Callable[[Result], object]) -> bool:
    """Wait for the end of a process; return whether it came in time."""
    end, seen = time.monotonic() + limit, 0
    while True:
        process.join(max(0.0, min(end - time.monotonic(), 0.5)))
        if process.exitcode is not None:
            return True
        if time.monotonic() >= end:
            return False
        result, _ = _read(file)
        if len(result.rows) > seen:
            seen = len(result.rows)
            tell(result)


def _kill(process: BaseProcess) -> None:
    """Kill what is left of a process and of those that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.kill()  # it may not have come so far as to lead a group
    process.join()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End this process and all parts at once where it is asked to end, in place of leaving them to themselves."""

    def end(number: int, _: object) -> None:
        _ENDING.set()
        for group, folder in list(_RUNNING.items()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.write(f"ended by {signal.Signals(number).name}; what was found until then is written\n")
        sys.stderr.flush()
        os._exit(128 + number)

    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _read(file: Path) -> tuple[Result, str]:
    """Return what a part has written down so far, and why it failed if it did."""
    if not file.exists():
        return Result({}, []), ""
    tree = json.loads(file.read_text(encoding="utf-8"))
    rows = [
        Row(**row | {"sides": tuple(row["sides"]), "interval": row["interval"] and tuple(row["interval"])})
        for row in tree["rows"]
    ]
    return Result(tree["settings"], rows, tree["seconds"]), tree["failed"]


def _text(said: Path) -> str:
    return said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""


def _last_line(said: Path) -> str:
    lines = _text(said).strip().splitlines()
    return shortened(lines[-1].strip()) if lines else ""


def shortened(text: str) -> str:
    """Return a reason without paths of this machine, and not too long for a table."""
    for path, name in ((str(ROOT), "."), (tempfile.gettempdir(), "TMP"), (str(Path.home()), "~")):
        text = text.replace(path, name)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def reason_of(error: BaseException) -> str:
    """Return in one line why something failed; first of all whether memory was what it lacked."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ... ".join(lines[:1] + lines[1:][-1:]) if lines and lines[0].endswith(":") else (lines or [""])[0]
    chain: BaseException | None = error
    while chain is not None:
        if is_out_of_memory(chain):
            return shortened(f"out of memory: {text or type(chain).__name__}")
        chain = chain.__cause__ or chain.__context__
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def as_results(found: Result | Iterable[Result]) -> Iterator[Result]:
    """Yield the results of a benchmark that returns one and of one that yields several."""
    if isinstance(found, Result):
        yield found
    else:
        yield from found


def in_process(part: Part, file: Path, said: Path) -> None:
    """Call a part's function, in the process that was made for it, and write what it finds after each of its results.

    Parameters
    ----------
    part : Part
    file, said : Path
        For what is found, and for what is printed.
    """
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with said.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.chdir(ROOT)
    # What a compiler has made serves the next part too; all else that is left behind goes with the folder.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"compiled-{os.getuid()}"))
    os.environ.update({"TMPDIR": str(file.parent)} | part.environment)
    tempfile.tempdir = None
    found = Result({}, [])

    def write(failed: str = "") -> None:
        replace_text(file, json.dumps(asdict(found) | {"failed": failed}))

    code = 0
    try:
        module, _, function = part.call.partition(":")
        for more in as_results(getattr(importlib.import_module(module), function)(**part.arguments)):
            found = found.with_more(more)
            write()
    except BaseException as error:
        code = 1
        traceback.print_exc()
        write(reason_of(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever threads or processes still hold on to


def _end_with_parent() -> None:
    """Wait for the end of the process that started this one, and end with it and all that this one has started."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


# ---------------------------------------------------------------------------------------------------------------------
# Several


class Clock:
    """The time that is left of so many minutes; parts that are still to come share it by what they need.

    Parameters
    ----------
    minutes : float
    workers : int
        How many parts run at a time.
    """

    def __init__(self, minutes: float, workers: int = 1) -> None:
        self.end, self.workers = time.monotonic() + 60 * minutes, workers

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()

    def limit(self, needs: float, later: float) -> float | None:
        """Return the seconds for a part that needs so many, as do those after it; None where too few are left.

        It is its share of what is left, and three times what it needs if that is more: machines differ.
        """
        left = self.left
        if left < needs:
            return None
        return min(left, max(3 * needs, left * self.workers * needs / (needs + later)))


def run_parts(
    parts: Sequence[Part], clock: Clock, tell: Callable[[int, Result, bool], object], *, shared_start: bool = False
) -> None:
    """Run parts in their order, as many at a time as the clock's workers are.

    Parameters
    ----------
    parts : sequence of Part
        In order of worth.
    clock : Clock
    tell : callable
        Called with a part's place, what it has found so far and whether it has ended; by one thread at a time, but for
        parts that run at a time.
    shared_start : bool
        Load the libraries once for all parts, whose processes are copies of the one that did; not where there is a GPU.
    """
    context: Any = multiprocessing.get_context("forkserver" if shared_start else "spawn")
    if shared_start:
        context.set_forkserver_preload(["benchmarks.heavy"])

    def run(place: int) -> None:
        part = parts[place]
        limit = clock.limit(part.needs, sum(one.needs for one in parts[place + 1 :]))
        if limit is None:
            why = f"{max(clock.left, 0):.0f} s were left of the time given, and it needs about {part.needs:.0f} s"
            tell(place, Result({}, [not_measured(part.number, part.what, why, part.target)]), True)
            return
        tell(place, _run(context, part, limit, lambda so_far: tell(place, so_far, False)), True)

    with ThreadPoolExecutor(clock.workers) as pool:
        for future in [pool.submit(run, place) for place in range(len(parts))]:
            future.result()
