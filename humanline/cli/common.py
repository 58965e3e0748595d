"""What all commands share: exit codes, messages, and how a recipe is named and read."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from humanline._checks import fail
from humanline.system.cores import usable_cores
from humanline.system.terminal import shorten, told

if TYPE_CHECKING:
    from humanline.system.progress import CountProgress
    from humanline.train.config import TrainConfig

Found = TypeVar("Found")
LONGEST_LINE = 4000  # characters of a message; names and texts from outside may be of any length
EXIT_FAULT = 1
EXIT_USER_ERROR = 2
EXIT_NOT_FINITE = 3
EXIT_BROKEN = 4
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141  # what a shell makes of SIGPIPE


def complain(options: argparse.Namespace, text: str) -> None:
    """Print a message that may hold names and texts from outside."""
    lines = told(f"humanline {options.command}: {text}", keep="\n").split("\n")
    try:
        print("\n".join(shorten(line, LONGEST_LINE) for line in lines), file=sys.stderr, flush=True)
    except OSError:  # nobody reads any more; the exit code says it all the same
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


class Parser(argparse.ArgumentParser):
    """A parser that shows no secret of the command line, and takes no empty word for a text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("type", None, _filled)

    def add_subparsers(self, **kwargs: Any) -> Any:
        """Add commands, whose own parsers look at the words behind them."""
        self.register("type", None, str)
        return super().add_subparsers(**kwargs)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, and end."""
        from humanline.train.config.secrets import hidden

        super().error(told(hidden(message, sent=True)))


def _filled(text: str) -> str:
    """Return a text of the command line; an empty one is a variable that nobody set, and had meant the default."""
    if not text:
        raise argparse.ArgumentTypeError("is empty, as a variable that is not set is; give a value, or leave it out")
    return text


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_recipe(command: argparse.ArgumentParser) -> None:
    """Add a recipe, and overrides of its values."""
    command.add_argument("recipe", help="YAML recipe, or the name of a shipped one")
    command.add_argument("overrides", nargs="*", metavar="section.key=value", help="replace values of the recipe")


def add_preset(command: argparse.ArgumentParser) -> None:
    """Add the choice of a preset."""
    from humanline.recipes import PRESETS

    command.add_argument("--preset", choices=PRESETS, help="the paper's numbers, or what its released code does")


def load(options: argparse.Namespace) -> TrainConfig:
    """Return the configuration that recipe, preset and overrides make, in this order."""
    from humanline.recipes import preset_overrides, resolve
    from humanline.train.config import load_config

    recipe = resolve(options.recipe)
    preset = preset_overrides(options.preset, recipe, options.overrides) if options.preset else []
    return load_config(recipe, [*preset, *options.overrides])


def quiet_libraries() -> None:
    """Keep libraries from printing what users need not read."""
    from humanline.system.imports import quiet_libraries as quiet

    quiet()


def set_up_allocator() -> None:
    """Set up how torch takes memory, for this process and those that it starts; before torch is imported."""
    from humanline.system.allocator import growing_segments

    os.environ |= growing_segments(os.environ, sys.platform)


def say(options: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a line to standard error, or nothing if the command is to be quiet."""
    return lambda text: None if options.quiet else print(told(text, keep="\n"), file=sys.stderr, flush=True)


def processes_of(options: argparse.Namespace) -> int:
    """Return how many runs go on at a time: --processes, or one for each core.

    Raises
    ------
    ValueError
        If --processes is < 1.
    """
    if options.processes is None:
        return usable_cores()
    if options.processes < 1:
        raise fail("--processes", "be >= 1", options.processes)
    return int(options.processes)


def folder_of(options: argparse.Namespace, usual: str) -> Path:
    """Return the folder to write to: --out, or the usual one."""
    return Path(usual if options.out is None else options.out)


def runs_until_stopped(
    options: argparse.Namespace,
    out: str | os.PathLike[str],
    work: Callable[[Callable[[int, int], None]], Found],
    *,
    keeps: bool = True,
) -> Found | None:
    """Do runs one by one; return what `work` returns, or None once it was stopped, which is said.

    Parameters
    ----------
    options : Namespace
        With `quiet`.
    out : path
        Where they are kept, for the message.
    work : callable
        Takes what it is to call with (done, total) at the beginning and after every run.
    keeps : bool
        Whether each is kept as soon as it is there.
    """
    from humanline.system.progress import CountProgress
    from humanline.system.stop import StopRequested, StopSignal

    progress = CountProgress("runs", show=not options.quiet)
    with StopSignal() as stop:

        def finished(done: int, total: int) -> None:
            progress(done, total)
            if stop.requested is not None:
                raise StopRequested(stop.requested)

        stop.hold()  # an exception in the middle of torch's or SQLite's work would be a fault
        try:
            with progress:
                return work(finished)
        except StopRequested as request:
            kept = f"{progress.done} of {progress.total} runs are kept in {out}; the same command goes on"
            complain(options, f"{request}: {kept if keeps else 'nothing is kept; the same command begins anew'}")
            return None


def until_stopped(options: argparse.Namespace, work: Callable[..., Sequence[str]]) -> int:
    """Do what can be stopped and gone on with, print its lines, and return the exit code: 0, or 75 once it was stopped.

    Parameters
    ----------
    options : Namespace
        With `quiet`.
    work : callable
        Takes `stop` (a StopSignal), `say` (prints a line to standard error) and `progress` (given what is counted, the
        display of it); returns lines that are fit to be shown.
    """
    from humanline.system.progress import CountProgress
    from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal

    with StopSignal() as stop:
        try:
            with contextlib.ExitStack() as shown:

                def counted(what: str) -> CountProgress:
                    return shown.enter_context(CountProgress(what, show=not options.quiet))

                lines = work(stop=stop, say=say(options), progress=counted)
        except StopRequested as request:
            complain(options, str(request))
            return EXIT_STOPPED
    for line in lines:
        print(line)
    return 0
