"""The command line. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from humanline.cli.answers import answer_commands
from humanline.cli.common import (
    EXIT_FAULT,
    EXIT_INTERRUPTED,
    EXIT_NOT_FINITE,
    EXIT_UNREAD,
    EXIT_USER_ERROR,
    Parser,
    complain,
)
from humanline.cli.fit import fit_commands
from humanline.cli.recipes import model_commands, recipe_commands
from humanline.cli.report import report_commands
from humanline.cli.reproduce import reproduce_commands
from humanline.cli.runs import run_commands
from humanline.cli.stages import stage_commands
from humanline.cli.studies import study_commands
from humanline.system.terminal import redact

__all__ = ["main"]

_PASSES = "A smaller training.micro_batch_size makes each pass smaller."
_REWARDS = "a smaller batch_size of a reward model scores fewer of them"
#: What takes less memory, by command; of the others nothing is known.
_SMALLER = dict.fromkeys(("train", "validate", "estimate"), _PASSES) | {
    "sample": "A smaller source.sampling.engine.batch_size draws fewer answers at a time.",
    "score": f"Of completions, {_REWARDS} at a time (source.scoring.rewards).",
    "evaluate": (
        f"A smaller evaluation.sampling.engine.batch_size draws fewer answers at a time, and {_REWARDS} "
        "(evaluation.scoring.rewards); under --reference it is evaluation.batch_size."
    ),
    "inspect-data": (
        "A smaller evaluation.batch_size, or training.micro_batch_tokens, makes each pass smaller, a lower batch_size "
        "of sampling.engine draws fewer answers at a time, and training.micro_batch_size is that of --probe."
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done, 1 a fault of humanline or a library, 2 bad input, or too little room on the disk or in memory, 3 a number
    not finite, or a fit without an optimum, 4 a training run that has broken and was to stop then (training.collapse),
    69 another process of a training run gone, failed or standing still (go on with --resume), 75 a training run or a
    study stopped on request with all of it saved, 130 another command interrupted, 141 the output not read to its end.
    A traceback, of a fault or of memory that ran out, goes to a log file, whose name is printed; with HUMANLINE_DEBUG=1
    in the environment it is raised.
    """
    try:
        from humanline.system.imports import shown_safely

        try:
            with shown_safely():
                return _run(arguments)
        finally:
            if sys.stdout is not None:  # it was closed before we began, as by `>&-`
                sys.stdout.flush()  # here, where it can be told that nobody reads any more, as behind `| head`
    except BrokenPipeError:
        if not _is_unread():
            raise
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the exit
        return EXIT_UNREAD


def _is_unread() -> bool:
    """Return whether the standard output is a pipe that nobody reads any more; taken for one where nothing can tell."""
    import select

    if not hasattr(select, "poll"):  # Windows
        return True
    try:
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in pipe.poll(0))
    except (OSError, ValueError):  # it is closed, or no file
        return False


def _run(arguments: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a narrow encoding is no reason to stop
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if hasattr(options, "overrides") and not any(word.startswith("-") for word in rest):
        options.overrides += rest  # overrides after an option, which argparse by itself does not take
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    from humanline.system.stop import EXIT_STOPPED, StopRequested

    try:
        return int(options.run(options))
    except StopRequested as request:  # before the command was ready for one
        complain(options, f"{request} before anything was begun")
        return EXIT_STOPPED
    except KeyboardInterrupt:
        complain(options, "interrupted; no model was saved")
        return EXIT_INTERRUPTED
    except FloatingPointError as error:
        complain(options, f"stopped: {error}")
        return EXIT_NOT_FINITE
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            raise
        if isinstance(error, OSError) or (isinstance(error, ValueError) and _is_for_users(error)):
            complain(options, str(error))
            return EXIT_USER_ERROR
        if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] != "humanline":
            complain(options, _missing(error, error.name.split(".")[0]))
            return EXIT_USER_ERROR
        if os.environ.get("HUMANLINE_DEBUG", "0") not in ("", "0"):
            raise
        from humanline.system.out_of_memory import is_out_of_memory

        complain(options, _report_fault(error, options, sys.argv[1:] if arguments is None else arguments))
        return EXIT_USER_ERROR if is_out_of_memory(error) else EXIT_FAULT


def _missing(error: ModuleNotFoundError, package: str) -> str:
    """Say which extra brings a package, what else that brings, and how it is installed; or that this is no POSIX."""
    from humanline.system.install import has_posix, install, needed_by

    extra, kind = ("plots", "plots") if package == "matplotlib" else ("train", "training")
    if extra == "train" and not has_posix():
        return "training, rounds and studies need Linux, or another POSIX system; on Windows, WSL is one"
    brings = ", ".join(needed_by(extra))
    why = "" if str(error).startswith("No module") else f"{error}: "
    needs = f" ({brings})" if brings and extra == "train" else ""
    return f"{why}the package {error.name!r} is missing; install the {kind} extra{needs}: {install(extra)}"


def _report_fault(error: Exception, options: argparse.Namespace, words: Sequence[str]) -> str:
    """Write the traceback to a log file and return what to say about it."""
    import shlex
    import tempfile
    import traceback
    from datetime import datetime

    from humanline import __version__
    from humanline.system.out_of_memory import MemoryRanOutError, is_out_of_memory
    from humanline.system.paths import absolute
    from humanline.train.config.secrets import hidden

    reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))
    what = f"a fault inside humanline or a library, not in your input: {reason[:400]}"
    if is_out_of_memory(error):
        what = "\n".join([f"out of memory: {reason[:400]}", *filter(None, [_SMALLER.get(options.command)])])
    if isinstance(error, MemoryRanOutError):
        what = redact(str(error))
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    head = f"{now}, version {__version__}: humanline {shlex.join(hidden(list(words), sent=True))}\n"
    text = redact(head + "".join(traceback.format_exception(error))) + "\n"
    # Set by a command that has an output folder.
    folder = Path(os.devnull)
    with contextlib.suppress(ValueError):  # a name that no folder can have may be what the fault is about
        folder = absolute(getattr(options, "folder", None) or os.devnull)
    is_run = (folder / "config.json").is_file() and (folder / "metrics.jsonl").is_file()
    with contextlib.suppress(OSError):
        if is_run:
            log = folder / "error.log"
            with open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        else:
            handle, name = tempfile.mkstemp(prefix="humanline-error-", suffix=".log")
            log = Path(name)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        return f"{what}\nThe traceback is in {log}"
    return f"{what}\n{text}"  # nowhere to write it


def _is_for_users(error: Exception) -> bool:
    """Return whether an error was raised by humanline about its input, so that its message alone is enough."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("humanline.")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="humanline", description="Perceptual alignment: humanline DPO, KTO and GRPO.")
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (
        run_commands,
        stage_commands,
        answer_commands,
        recipe_commands,
        model_commands,
        study_commands,
        fit_commands,
        reproduce_commands,
        report_commands,
    ):
        add(commands)
    return parser
