"""What a launcher of several processes (torchrun, accelerate launch) says in the environment."""

from __future__ import annotations

import os

LAUNCHED_BY = "HUMANLINE_LAUNCHED_BY"  # variable: the process of --processes that has started this one
_TO_STOP = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_LEAST = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0}


class LauncherError(ValueError):
    """Environment variables that no launcher sets so."""


def launched_processes() -> int:
    """Return how many processes share the run, 1 where no launcher says so.

    Raises
    ------
    LauncherError
        If WORLD_SIZE, RANK, LOCAL_WORLD_SIZE or LOCAL_RANK is no number, or too small or large a one, or there are
        several processes but this one is not told which it is: each would train the whole run by itself.
    """
    found: dict[str, int] = {}
    for name, least in _LEAST.items():
        text = os.environ.get(name)
        if text is None:
            continue
        try:
            found[name] = int(text)
        except ValueError:
            found[name] = least - 1
        if found[name] < least and not (name == "LOCAL_RANK" and text == "-1"):  # how some say: no launcher
            raise LauncherError(f"the environment variable {name} is {text!r}, no number from {least} on; unset it")
    count = found.get("WORLD_SIZE", 1)
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if found.get(rank, 0) >= found.get(size, count):
            raise LauncherError(f"the environment variable {rank} is {found[rank]}, but {size} is {found.get(size, 1)}")
    missing = [name for name in ("RANK", "LOCAL_RANK") if found.get(name, -1) < 0]
    if count > 1 and missing:
        raise LauncherError(
            f"the environment variable WORLD_SIZE is {count}, but {' and '.join(missing)} is not set: start the "
            "processes with torchrun or accelerate launch, or unset WORLD_SIZE"
        )
    return count


def refuse_launcher(asked: str) -> None:
    """Raise LauncherError if this process is one of several already, which cannot start others as `asked`."""
    count = launched_processes()
    if "WORLD_SIZE" in os.environ:
        raise LauncherError(
            f"{asked} inside of a launcher (the environment variable WORLD_SIZE is {count}): leave that out, since it "
            "has started the processes; or, if nothing has, unset WORLD_SIZE, RANK and LOCAL_RANK"
        )


def seconds_to_stop() -> float | None:
    """Return the seconds that torchrun or accelerate launch leave a run that is to stop; None without them."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    try:
        return float(os.environ[_TO_STOP])
    except (KeyError, ValueError):
        return 30.0  # torch's default; one given as --shutdown-timeout does not reach the processes


def too_slow_to_stop(seconds: float) -> str:
    """Return a warning about a save that took so many seconds, if a run that is to stop might be killed in it."""
    limit = seconds_to_stop()
    if limit is None or seconds < limit / 2:
        return ""
    return (
        f"warning: saving took {seconds:.0f} s, and the launcher kills a run that is to stop after {limit:g} s, which "
        f"would lose what was trained since the last checkpoint: set {_TO_STOP}={max(60, round(10 * seconds))} in its "
        "environment"
    )
