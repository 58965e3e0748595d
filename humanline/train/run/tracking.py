"""Metrics shown elsewhere: tensorboard, trackio, Weights & Biases, through accelerate's own tracker classes.

Nothing is tracked unless `tracking.trackers` names a tracker, and nothing here opens a connection. What a tracker does
with what it is given is its own affair: tensorboard writes files below the run's folder; trackio writes to its own
folder of this machine, or to a Space or server where its environment variables name one; wandb sends metrics, the
configuration (paths included, secrets taken out) and facts about the machine to its service.

A tracker must never cost a run. Each works in a thread of its own that is fed by a queue, so that training waits for it
at two moments only, its start and its end, and there for `PATIENCE` seconds at most. One that raises, that has not
answered for that long or that falls 10 000 steps behind is reported once in one line and dropped; the others go on. A
call that hangs inside a library cannot be ended from outside; its thread is left behind and ends with the process.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from humanline.system.terminal import redact, redacted, told
from humanline.train.config import TrainConfig
from humanline.train.config.run import TrackingConfig
from humanline.train.config.secrets import written

PATIENCE = 60.0  # seconds
BACKLOG = 10_000  # steps that may wait for a slow tracker, about 1 kB each
FOLDER = "tracking"  # below the run's folder

_PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "trackio": ("trackio",), "wandb": ("wandb",)}
_END = object()


class TrackerError(ValueError):
    """A tracker that is named and cannot be used."""


def check_trackers(config: TrackingConfig) -> None:
    """Refuse trackers that are named but not installed; nothing is imported.

    Raises
    ------
    TrackerError
        With the command that installs all that are missing.
    """
    missing = [name for name in config.trackers if not any(map(find_spec, _PACKAGES[name]))]
    if missing:
        raise TrackerError(
            f"tracking.trackers names {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed: pip install {' '.join(missing)}"
        )


def start_trackers(
    config: TrainConfig,
    folder: Path,
    accelerator: Any,
    say: Callable[[str], None] | None = None,
    *,
    first_step: int | None = None,
) -> Trackers:
    """Start the trackers that a run names; on every process but the main one, none.

    Parameters
    ----------
    config : TrainConfig
    folder : path
        The run's folder, which exists.
    accelerator : Accelerator
        Tells which process this is.
    say : callable, optional
        Shows one line about a tracker that failed; None = on standard error.
    first_step : int, optional
        Where a continued run goes on; tensorboard then forgets what an earlier life of the run logged after it.
        Default: at the beginning, where an earlier life may have been killed before it was saved; all is forgotten.

    Raises
    ------
    TrackerError
        If one is not installed. Nothing else is raised: a tracker that fails is reported and dropped.
    """
    check_trackers(config.tracking)
    names = dict.fromkeys(config.tracking.trackers if accelerator.is_main_process else ())
    return Trackers([_Worker(name, _starter(name, config, folder, first_step)) for name in names], say or _to_stderr)


def _starter(name: str, config: TrainConfig, folder: Path, first_step: int | None) -> Callable[[], Any]:
    """Return a function that makes and starts a tracker; to be called in its thread."""
    project = redact(config.tracking.project, everywhere=True)

    def start() -> Any:
        from accelerate import tracking

        from humanline.train.run.fingerprint import flat

        make: Any = tracking.LOGGER_TYPE_TO_CLASS[name]
        if name == "tensorboard":  # numbers only
            # Held-out metrics of `first_step` itself may be there and stay; its training metrics come again, equal.
            tracker = make(FOLDER, folder, purge_step=0 if first_step is None else first_step + 1)
        else:
            given: dict[str, Any] = {
                "name": redact(folder.name, everywhere=True),
                "config": redacted(flat(written(config)), everywhere=True),
            }
            if name == "wandb":
                (folder / FOLDER).mkdir(exist_ok=True)
                given |= {"dir": str(folder / FOLDER), "save_code": False}
                given["settings"] = {"console": "off", "disable_git": True, "disable_code": True}
            else:
                given |= {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
            tracker = make(project, **given)
        tracker.start()
        return tracker

    return start


class _Worker:
    """One tracker in its own thread: started, fed and finished there and nowhere else."""

    def __init__(self, name: str, start: Callable[[], Any]) -> None:
        self.name = name
        self.problem: str | None = None
        self.work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.busy_since: float | None = time.monotonic()  # when the call that is under way began
        self.started = threading.Event()
        self.dropped = False
        self._start = start
        self.thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        doing = "starting"
        try:
            tracker = self._start()
            self.busy_since = None
            self.started.set()
            while (item := self.work.get()) is not _END and not self.dropped:
                self.busy_since, doing = time.monotonic(), "logging"
                tracker.log(item[0], step=item[1])
                self.busy_since = None
            self.busy_since, doing = time.monotonic(), "finishing"
            tracker.finish()
        except BaseException as error:  # a tracker may even call exit()
            reason = " ".join(str(error).split())[:300]
            self.problem = f"failed while {doing}: {type(error).__name__}: {reason}"
        finally:
            self.busy_since = None
            self.started.set()

    def look(self) -> str | None:
        """Return the reason why the tracker is of no more use, if there is one."""
        since = self.busy_since
        if self.problem is None and since is not None and time.monotonic() - since > PATIENCE:
            return f"has not answered for {PATIENCE:.0f} seconds"
        if self.problem is None and self.work.qsize() > BACKLOG:
            return f"is {BACKLOG} steps behind"
        return self.problem


class Trackers:
    """The trackers of a run that still work. Nothing that they do reaches the caller.

    Parameters
    ----------
    workers : sequence of _Worker
    say : callable
        Shows one line about a tracker that failed.
    """

    def __init__(self, workers: Sequence[_Worker], say: Callable[[str], None]) -> None:
        self.workers, self.say = list(workers), say
        deadline = time.monotonic() + PATIENCE
        for worker in self.workers:
            if not worker.started.wait(max(0.0, deadline - time.monotonic())):
                worker.problem = f"has not started within {PATIENCE:.0f} seconds"
        self._drop()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the trackers that are still in use."""
        return tuple(worker.name for worker in self.workers)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Hand numbers over and return at once; what is not a finite number is left out.

        Parameters
        ----------
        values : mapping of str to float
            Names may hold a slash, which trackers show as a group: "held_out/loss".
        step : int
            Not smaller than the step of the call before.
        """
        if not self.workers:
            return
        self._drop()
        numbers = {
            name: value for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)
        }
        for worker in self.workers:
            worker.work.put((numbers, step))

    def close(self) -> None:
        """Let every tracker finish what it was given, for `PATIENCE` seconds at most; a second call does nothing."""
        deadline = time.monotonic() + PATIENCE
        for worker in self.workers:
            worker.work.put(_END)
        for worker in self.workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))
            if worker.thread.is_alive():
                worker.problem = f"has not finished within {PATIENCE:.0f} seconds"
        self._drop()
        self.workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drop(self) -> None:
        """Report and drop the trackers that failed."""
        for worker in list(self.workers):
            problem = worker.look()
            if problem is not None:
                self.workers.remove(worker)
                worker.dropped = True
                worker.work.put(_END)  # a thread that comes back to life ends by itself
                self.say(told(f"tracker {worker.name} {problem}; training goes on without it"))


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
