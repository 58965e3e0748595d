"""Worker processes that can be killed: a limit of time and memory an item, and no item harms another.

Why not a library's pool: multiprocessing's "spawn" runs the caller's main script again in every worker, its pools wait
for ever after a kill, and workers that are busy outlive a parent that was killed. Here everything happens in the
caller's thread, while it asks for results; texts travel as JSON, so nothing is unpickled.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from humanline.system.stop import sparing
from humanline.system.terminal import redact
from humanline.train.config.rounds import EnvironmentConfig, FunctionReward, ScoringConfig
from humanline.train.online.rewards.environment import worker_environment
from humanline.train.online.rewards.verdict import NOT_SCORED, Verdict

_START = 300.0  # seconds for a worker to import what it needs: torch on a busy network disk takes long
_FAILED_STARTS = 3
_LONGEST_REPLY = 2**16
_LONGEST_WAIT = 3600.0  # seconds of one look at the workers: the system's clocks take no limit of many days
_LAST = 15.0  # seconds for a keeper to end
_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from humanline.train.online.rewards.keeper import keep; keep(int(sys.argv[2])); "
    "from humanline.train.online.rewards.worker import main; main(int(sys.argv[2]))"
)


class PoolError(ValueError):
    """Worker processes that cannot be started."""


class Pool:
    """Worker processes for tasks of `online/rewards/worker.py`; started when first needed, replaced when killed.

    Parameters
    ----------
    workers : int
    seconds : float
        Limit of an item, from when a worker begins it; then the worker and all its children are killed.
    first_seconds : float
        Limit in place of `seconds` of a worker's calls of a callable until one has returned a value: what a callable
        imports when it is first called is no item's fault. Once three such calls have taken longer, the limit of later
        ones is that of an item and three times what the slowest of those took that did return.
    memory : int
        MiB of address space that a worker may have beyond what it took to start.
    functions : sequence of str
        Callables that tasks will name, `module:function`.
    beside : str, optional
        The recipe's folder, where they are looked for first (`system/own_code.py`).
    math : bool
        Whether tasks will need math-verify.
    environment : mapping, optional
        Of the workers; default: this process's, less what looks like a secret (`worker_environment`).
    sources : mapping, optional
        Digests of callables' files that all workers must find; default, for each: those that the first one finds.
    """

    def __init__(
        self,
        workers: int,
        *,
        seconds: float,
        memory: int,
        first_seconds: float = _START,
        functions: Sequence[str] = (),
        beside: str | None = None,
        math: bool = False,
        environment: Mapping[str, str] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self._size, self._seconds, self._first_seconds = workers, seconds, max(first_seconds, seconds)
        self._setup = {"memory": memory, "functions": list(functions), "beside": beside, "math": math}
        self._environment = worker_environment(EnvironmentConfig())[0] if environment is None else environment
        self._hung: collections.Counter[str] = collections.Counter()  # first calls that took too long, by callable
        self._slowest: dict[str, float] = {}  # seconds of those that returned
        self._workers: list[_Worker] = []
        self._functions: dict[str, Any] | None = None
        self._sources = dict(sources or {})
        self._failed_starts = 0
        self._running = False

    def functions(self) -> dict[str, Any]:
        """Return, for every callable, a string that says what is wrong with it, or an object of facts.

        These are ``source``, a digest of its file, and what its signature says (`described_signature`).

        Raises
        ------
        PoolError
            If no worker starts.
        """
        if self._functions is None:
            for _ in self.run([{"kind": "tag_count", "completion": ""}]):
                pass
        assert self._functions is not None
        return self._functions

    def run(self, tasks: Sequence[Mapping[str, Any]]) -> Iterator[list[tuple[int, Verdict]]]:
        """Do every task; if this is given up half-way, the workers still busy are killed.

        Yields
        ------
        list of (number of the task, Verdict)
            Those that have become known, in any order. The status is "timeout", "memory" or "crashed" where a task
            cost its worker, and whatever the worker said elsewhere.

        Raises
        ------
        PoolError
            If workers do not start three times in a row, or one finds other code than the first one did.
        RuntimeError
            If another `run` of this pool is under way.
        """
        if self._running:
            raise RuntimeError("this pool is busy; finish or close its earlier run first")
        self._running = True
        waiting = collections.deque(range(len(tasks)))
        try:
            while waiting or any(worker.task is not None for worker in self._workers):
                self._start(min(self._size, len(waiting) + sum(one.task is not None for one in self._workers)))
                for worker in self._workers:
                    if worker.ready and worker.task is None and waiting:
                        number = waiting.popleft()
                        worker.give(number, tasks[number], self._limit(worker, tasks[number]))
                if done := self._wait():
                    yield done
        finally:
            self._running = False
            for worker in [worker for worker in self._workers if worker.task is not None]:
                self._drop(worker)

    def close(self) -> None:
        """End all processes."""
        for worker in list(self._workers):
            self._drop(worker)

    def _start(self, wanted: int) -> None:
        while len(self._workers) < wanted:
            self._workers.append(_Worker(self._setup, self._environment))

    def _limit(self, worker: _Worker, task: Mapping[str, Any]) -> float:
        """Return the seconds that a worker has for a task."""
        call = task.get("call")
        if call is None or call in worker.called:
            return self._seconds
        if self._hung[call] < _FAILED_STARTS:
            return self._first_seconds
        return min(self._first_seconds, self._seconds + 3 * self._slowest.get(call, 0.0))

    def _timeout(self, worker: _Worker) -> Verdict:
        """Return the verdict on the task that a worker took too long for."""
        first = worker.call is not None and worker.call not in worker.called
        if first:
            self._hung[worker.call] += 1  # type: ignore[index]
        return Verdict(None, "timeout", f"longer than {worker.limit:g} seconds{' for a first call' if first else ''}")

    def _wait(self) -> list[tuple[int, Verdict]]:
        """Wait until something happens, and return the tasks that are done by it."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.output, selectors.EVENT_READ, worker)
                if worker.unsent:
                    selector.register(worker.input, selectors.EVENT_WRITE, worker)
            nearest = min((worker.deadline for worker in self._workers), default=math.inf)
            events = selector.select(min(_LONGEST_WAIT, max(0.0, nearest - time.monotonic())))
        done = []
        for key, _ in events:
            worker = key.data
            if worker not in self._workers:
                continue
            if key.fileobj == worker.input:
                worker.send()
                continue
            reply, ended = worker.receive()
            if reply is not None:
                done += self._replied(worker, reply)
            elif ended:
                done += self._died(worker)
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker.deadline <= now]:
            if worker.task is not None:
                done.append((worker.task, self._timeout(worker)))
                self._drop(worker)
            else:
                self._drop(worker)
                self._count_failed_start(f"it took longer than {_START:g} seconds")
        return done

    def _replied(self, worker: _Worker, reply: Any) -> list[tuple[int, Verdict]]:
        if not worker.ready:
            self._refuse_other_code(worker, reply)
            self._functions = reply
            self._failed_starts = 0
            worker.begin()
            return []
        task = worker.task
        try:
            verdict = Verdict(*reply)
            if task is None or len(worker.unsent) or not _is_verdict(verdict):
                raise ValueError
        except (TypeError, ValueError):
            self._drop(worker)
            return [] if task is None else [(task, Verdict(None, "crashed", "its worker process said something else"))]
        returned = verdict.value is not None or verdict.status == NOT_SCORED
        if worker.call is not None and returned and worker.call not in worker.called:
            worker.called.add(worker.call)
            self._slowest[worker.call] = max(self._slowest.get(worker.call, 0.0), worker.seconds)
        worker.rest()
        if verdict.status == "memory":
            self._drop(worker)
        # Workers do not know the secrets of the recipe, and a function may tell of what it was given.
        return [(task, verdict._replace(reason=redact(verdict.reason)) if verdict.reason else verdict)]

    def _refuse_other_code(self, worker: _Worker, functions: Mapping[str, Any]) -> None:
        """Raise PoolError if a worker, which imports callables when it starts, has found other code than expected."""
        for call, facts in functions.items():
            known, now = self._sources.get(call), None if isinstance(facts, str) else facts["source"]
            if known is not None and now != known:
                self._drop(worker)
                if isinstance(facts, str):
                    raise PoolError(
                        f"{call} was there when this began, and a worker that started later says: it {facts}. What is "
                        "scored is kept: mend that (if its code has changed, put the code of then back), and go on"
                    )
                raise PoolError(
                    f"the code of {call} has changed since this began, and answers would be scored by two versions of "
                    "it. What is scored is kept: put the code of then back, and go on; or begin anew"
                )
            if now is not None:
                self._sources[call] = now

    def _died(self, worker: _Worker) -> list[tuple[int, Verdict]]:
        task, started = worker.task, worker.ready
        how, timed_out = self._drop(worker)
        if task is not None:
            if timed_out:
                return [(task, self._timeout(worker))]
            return [(task, Verdict(None, "crashed", f"its worker process {how}"))]
        if not started:
            self._count_failed_start(f"it {how}")
        return []

    def _count_failed_start(self, how: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= _FAILED_STARTS:
            calls = ", ".join(self._setup["functions"])  # type: ignore[arg-type]
            raise PoolError(
                f"the worker processes of scoring do not start: {how}" + (f"; they import {calls}" if calls else "")
            )

    def _drop(self, worker: _Worker) -> tuple[str, bool]:
        self._workers.remove(worker)
        return worker.end()


def make_pool(config: ScoringConfig, sources: Mapping[str, str] | None = None) -> Pool:
    """Return the workers, not started yet, that a configuration's rewards need; `sources` as `Pool` takes them."""
    own = [reward for reward in config.rewards if isinstance(reward, FunctionReward)]
    return Pool(
        config.workers,
        seconds=config.seconds,
        memory=config.memory,
        first_seconds=config.first_seconds,
        functions=list(dict.fromkeys(reward.call for reward in own)),
        beside=own[0].beside if own else None,
        math=any(reward.kind == "math" for reward in config.rewards),
        environment=worker_environment(config.environment)[0],
        sources=sources,
    )


class _Worker:
    """One process and its keeper (`keeper.py`), seen from outside."""

    def __init__(self, setup: dict[str, Any], environment: Mapping[str, str]) -> None:
        # One pipe for each, since the kernel remembers for an open pipe, not for a process, whom to signal.
        theirs, self._lifeline = os.pipe()
        here = [path or os.getcwd() for path in sys.path]
        # A session of its own: Ctrl-C does not reach it.
        try:
            with sparing():  # a scheduler signals every process of a job, whatever its session
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, json.dumps(here), str(theirs)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs,),
                    env=environment,
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(theirs)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)
        self.ready = False
        self.task: int | None = None
        self.call: str | None = None  # what the task calls, if anything
        self.called: set[str] = set()  # what has returned a value here, so that it imports nothing any more
        self.limit = _START
        self.deadline = math.inf
        self.unsent = b""
        self._received = b""
        self._put(setup)

    def begin(self) -> None:
        """Note that the worker has started."""
        self.ready = True
        self.deadline = math.inf

    def give(self, number: int, task: Mapping[str, Any], seconds: float) -> None:
        """Give the worker a task."""
        self.task, self.call, self.limit = number, task.get("call"), seconds
        self._put({"seconds": seconds, "task": task})

    @property
    def seconds(self) -> float:
        """Return the seconds that the worker has been at its task."""
        return self.limit - (self.deadline - time.monotonic())

    def rest(self) -> None:
        """Note that the worker has done its task."""
        self.task = self.call = None
        self.deadline = math.inf

    def _put(self, what: Mapping[str, Any]) -> None:
        self.unsent = json.dumps(what).encode() + b"\n"
        self.send()

    def send(self) -> None:
        """Send as much as the pipe takes; the time for a task begins anew, since it cannot have begun."""
        self.deadline = time.monotonic() + self.limit
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(self.input, self.unsent[: 2**20]) :]
        except BlockingIOError:
            pass
        except OSError:  # it is dead, which its output will tell
            self.unsent = b""

    def receive(self) -> tuple[Any, bool]:
        """Return the worker's reply, if a whole one is there, and whether no more will come."""
        try:
            data = os.read(self.output, 2**16)
        except BlockingIOError:
            return None, False
        self._received += data
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None, not data or len(line) > _LONGEST_REPLY
        self._received = rest
        try:
            return json.loads(line), False
        except ValueError:
            return None, True

    def end(self) -> tuple[str, bool]:
        """Kill the worker and all that it started; return how it ended by itself, if it did, and if by its timer."""
        alone = self.process.poll()
        if alone is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # what it leaves open may outlast it by a moment
                alone = self.process.wait(1) if self._closed() else None
        os.close(self._lifeline)
        try:
            self.process.wait(_LAST)
        except subprocess.TimeoutExpired:
            self.process.kill()  # and the worker dies with it
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        if alone is None:
            return "was killed", False
        if alone >= 0:
            return f"exited with {alone}", False
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-alone).name}", -alone == signal.SIGALRM
        return f"was killed by signal {-alone}", False

    def _closed(self) -> bool:
        """Return whether its output has ended, so that it is about to exit."""
        try:
            return os.read(self.output, 1) == b""
        except OSError:
            return False


def _is_verdict(verdict: Verdict) -> bool:
    value, status, reason = verdict
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(status, str) and isinstance(reason, str) and (number if status == "ok" else value is None)
