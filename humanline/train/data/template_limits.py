"""Limits of what a chat template may take: CPU time, memory, and the length of what it writes.

A template comes with a model, and is a program. The sandbox that transformers runs it in keeps it from files and from
the interpreter, but not from loops in loops, nor from text that doubles. Here one thread looks, twenty times a second,
at the renderings that are under way, in whatever threads, and has one that took too much raise an exception; a healthy
rendering costs a microsecond. What one call of the interpreter does cannot be ended from outside, so operations that
can make much of little (`+`, `*`, `**`, `%`, joins, paddings) are looked at before they are done.

Memory is that of the whole process, since no system counts that of a thread: where another thread takes more than the
limit while a rendering is under way, for longer than two looks, that rendering is refused too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

SECONDS = 5.0  # of CPU, of one rendering
MEMORY = 1 << 29  # bytes by which the process may grow meanwhile
LONGEST = 20_000_000  # characters of a text
LARGEST = 1_000_000  # of a number that pads or repeats, and bits of a product
_LOOK = 0.05  # seconds between two looks
_IDLE = 100  # looks without anything to see until the thread ends
# Filters that make length of a number, and how many arguments after the filtered value may be that number.
_FILTERS = {"center": 1, "indent": 1, "batch": 1, "slice": 1, "round": 1, "tojson": 2}
# Functions and methods that do; any other may be given numbers of the data, such as an identifier or a time.
_FUNCTIONS = ("range", "lipsum")
_METHODS = {str: ("center", "ljust", "rjust", "zfill", "expandtabs"), int: ("to_bytes",)}
_METHODS[bytes] = _METHODS[str]
_WIDE = re.compile(r"\d{7,}|\*")  # a width or precision in a format
_TOO_LONG = f"it writes more than {LONGEST:,} characters"
T = TypeVar("T")


class TooMuchError(ValueError):
    """A rendering that takes more than a template may."""


class _Overrun(BaseException):
    """Raised in the thread of a rendering; no `except Exception` of a library's holds it up."""


class _Job:
    __slots__ = ("begun", "memory", "reason", "thread")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.reason = ""
        self.begun: float | None = None  # CPU seconds of the thread when it was first seen
        self.memory = 0  # bytes of the process at the look before


class _Watch:
    """Looks at renderings under way, as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], T]) -> T:
        job = _Job(threading.get_ident())
        try:
            try:
                self._add(job)
                return work()
            finally:
                self._forget(job)
        except _Overrun:
            self._forget(job)
            raise TooMuchError(job.reason) from None

    def _add(self, job: _Job) -> None:
        with self._lock:  # so that the thread that looks does not end at this moment
            self._jobs[job.thread] = job
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, name="humanline-templates", daemon=True)
                self._thread.start()

    def forked(self) -> None:
        """Begin anew in a process that was forked: none of the threads is there, and the lock may have been held."""
        self._lock, self._jobs, self._thread = threading.Lock(), {}, None

    def _forget(self, job: _Job) -> None:
        with self._lock:
            if self._jobs.get(job.thread) is job:
                del self._jobs[job.thread]
            if job.reason:  # what was raised and has not arrived shall not arrive elsewhere
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(job.thread), None)

    def _look(self) -> None:
        me, idle, now = threading.current_thread(), 0, _memory()
        while True:
            time.sleep(_LOOK)
            with self._lock:
                idle = 0 if self._jobs else idle + 1
                if self._thread is not me or idle > _IDLE:
                    self._thread = None if self._thread is me else self._thread
                    return
                before, now = now, _memory()
                for job in self._jobs.values():
                    if job.reason:
                        continue
                    if job.begun is None:
                        job.begun, job.memory = _cpu(job.thread), before  # it began after the last look
                        continue
                    if now - job.memory > MEMORY:
                        job.reason = f"it takes more than {MEMORY >> 20} MiB of memory"
                    elif _cpu(job.thread) - job.begun > SECONDS:
                        job.reason = f"it takes more than {SECONDS:g} s of CPU time"
                    if job.reason:
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(job.thread), ctypes.py_object(_Overrun)
                        )


_WATCH = _Watch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WATCH.forked)


def within_limits(work: Callable[[], str]) -> str:
    """Return a text that a template writes, compiled with `limited_templates`; raise TooMuchError beyond the limits."""
    text = _WATCH.run(work)
    if len(text) > LONGEST:
        raise TooMuchError(_TOO_LONG)
    return text


def _cpu(thread: int) -> float:
    if hasattr(time, "pthread_getcpuclockid"):
        with contextlib.suppress(OSError):
            return time.clock_gettime(time.pthread_getcpuclockid(thread))
    return time.monotonic()


def _memory() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


@contextlib.contextmanager
def limited_templates() -> Iterator[None]:
    """Make transformers compile templates, for a while, in a sandbox that checks operations that can make much."""
    from transformers.utils import chat_template_utils as library

    name = "ImmutableSandboxedEnvironment"
    before = getattr(library, name, None)
    if before is None:  # another version; time and memory are watched all the same
        yield
        return
    setattr(library, name, _limited(before))
    try:
        yield
    finally:
        setattr(library, name, before)


@functools.cache
def _limited(sandbox: Any) -> Any:
    """Return a sandbox of jinja's with these limits."""

    class Limited(sandbox):  # type: ignore[misc]
        intercepted_binops = frozenset({"+", "*", "**", "%"})
        concat = staticmethod(_join)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _look_at_operation(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __object: Any, *args: Any, **kwargs: Any) -> Any:
            if any(__object is __self.globals.get(name) for name in _FUNCTIONS):
                _look_at_numbers(*args, **kwargs)
            _look_at_method(__object, args, kwargs)
            return super().call(__context, __object, *args, **kwargs)

        def wrap_str_format(self, value: Any) -> Any:
            of = getattr(value, "__self__", None)
            if isinstance(of, str) and _WIDE.search(of):
                raise TooMuchError("it pads a text to more than a million characters")
            return super().wrap_str_format(value)

        def from_string(self, *args: Any, **kwargs: Any) -> Any:
            for name, most in _FILTERS.items():
                self.filters[name] = _looked_at(self.filters[name], functools.partial(_look_at_settings, most))
            for name, look in (("join", _look_at_join), ("replace", _look_at_replace), ("format", _look_at_format)):
                self.filters[name] = _looked_at(self.filters[name], look, whole=name == "join")
            template = super().from_string(*args, **kwargs)
            names = template.root_render_func.__globals__  # of the compiled template alone
            names |= {name: _join for name in ("concat", "str_join") if name in names}
            return template

    return Limited


def _join(parts: Iterable[Any]) -> str:
    """Join what a template writes, up to the limit; the pieces may be one text many times."""
    found = list(map(str, parts))
    if sum(map(len, found)) > LONGEST:
        raise TooMuchError(_TOO_LONG)
    return "".join(found)


def _look_at_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "%":
        if isinstance(left, str):
            _look_at_format(left)
    elif operator == "+":
        if hasattr(left, "__len__") and hasattr(right, "__len__") and len(left) + len(right) > LONGEST:
            raise TooMuchError(f"it joins more than {LONGEST:,} characters or items")
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > LARGEST:
            raise TooMuchError("it computes a number of more than a million bits")
    elif operator == "*":
        for times, of in ((left, right), (right, left)):
            if isinstance(times, int) and hasattr(of, "__len__") and times * len(of) > LARGEST:
                raise TooMuchError("it repeats something more than a million times")


def _look_at_numbers(*args: Any, **kwargs: Any) -> None:
    for value in (*args, *kwargs.values()):
        if type(value) is int and value > LARGEST:
            raise TooMuchError(f"it calls a function with a number above {LARGEST:,}")


def _look_at_settings(most: int, value: Any, *args: Any, fill_with: Any = None, **kwargs: Any) -> None:
    """Look at what a filter is told to do; what it does it to, and what it fills with, may be any number."""
    _look_at_numbers(*args[:most], **kwargs)


def _look_at_method(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    of, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if any(isinstance(of, kind) and name in names for kind, names in _METHODS.items()):
        _look_at_numbers(*args, **kwargs)
    if isinstance(of, str) and name == "join" and args:
        _look_at_join(args[0], of)
    elif isinstance(of, str) and name == "replace" and len(args) > 1:
        _look_at_replace(of, *args)


def _look_at_join(parts: Any, d: Any = "", *_: Any, **__: Any) -> None:
    between = str(d)
    if hasattr(parts, "__len__"):
        texts = parts if isinstance(parts, list | tuple) else ()
        if len(between) * len(parts) + sum(len(one) for one in texts if isinstance(one, str)) > LONGEST:
            raise TooMuchError(_TOO_LONG)


def _look_at_replace(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    if all(isinstance(one, str) for one in (text, old, new)) and len(text) + text.count(old) * len(new) > LONGEST:
        raise TooMuchError(_TOO_LONG)


def _look_at_format(text: Any, *_: Any, **__: Any) -> None:
    if (
        isinstance(text, str)
        and _WIDE.search(text)
        and any(_WIDE.search(part) for part in re.findall(r"%[^a-zA-Z%]*", text))
    ):
        raise TooMuchError("it pads a text to more than a million characters")


def _looked_at(act: Callable[..., Any], look: Callable[..., None], *, whole: bool = False) -> Callable[..., Any]:
    """Return a filter whose arguments are looked at first; it keeps what jinja has noted on it.

    `whole` makes a list of what it is given piece by piece, so that it can be counted.
    """
    skip = 1 if getattr(act, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(act)
    def looked(*args: Any, **kwargs: Any) -> Any:
        own, rest = args[:skip], list(args[skip:])
        if whole and rest and not hasattr(rest[0], "__len__"):
            rest[0] = list(rest[0])
        look(*rest, **kwargs)
        return act(*own, *rest, **kwargs)

    return looked
