"""What a launcher of several processes (torchrun, accelerate launch, srun) says in the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

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


def local_processes() -> int:
    """Return how many processes of the run are on this host: all of them, where no launcher says so; raise as above."""
    count = launched_processes()
    return int(os.environ.get("LOCAL_WORLD_SIZE", count))


def from_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a launcher for one of several tasks that srun has started; none for anything else.

    Where a launcher's variables are there already, they hold. A batch script, which Slurm tells how many tasks it may
    start, is none of them: only in a step there is SLURM_STEP_NUM_TASKS.

    Parameters
    ----------
    environment : mapping

    Raises
    ------
    LauncherError
        If srun has not said which task this is, and where the first one is.
    """
    count = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if count == "1" or any(name in environment for name in _LEAST):
        return {}
    try:
        node, nodes = int(environment.get("SLURM_NODEID", "0")), environment["SLURM_STEP_NODELIST"]
        job, step = int(environment.get("SLURM_JOB_ID", "0")), int(environment.get("SLURM_STEP_ID", "0"))
        found = {
            "WORLD_SIZE": count,
            "RANK": environment["SLURM_PROCID"],
            "LOCAL_RANK": environment["SLURM_LOCALID"],
            "LOCAL_WORLD_SIZE": str(_each_node(environment["SLURM_STEP_TASKS_PER_NODE"])[node]),
        }
    except (KeyError, ValueError, IndexError) as error:
        raise LauncherError(
            f"srun has started {count} tasks (SLURM_STEP_NUM_TASKS), but its other variables make no sense ({error}); "
            "set WORLD_SIZE, RANK, LOCAL_WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each of them"
        ) from None
    place = {"MASTER_ADDR": _first_host(nodes), "MASTER_PORT": str(20_000 + (16 * job + step) % 20_000)}
    return found | {name: environment.get(name, value) for name, value in place.items()}


def _each_node(text: str) -> list[int]:
    """Return how many tasks each node has, of a text such as 8(x2),4."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts


def _first_host(nodes: str) -> str:
    """Return the first of some hosts, as Slurm writes them: gpu[003-006,9],login1."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0] if first else nodes)


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
