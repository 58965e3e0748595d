"""Save a state that two processes share out, in forked processes that are killed: `fork_server.py` calls `run`.

For test_shares.py. A job is {"folder", "store", "overlap", "kill": [rank, number]}, where a process is killed
at a write barrier of its third save, which with "overlap" a thread writes; with "starved", a process, that one cannot
write files until the save is tried again.
Its outcome is the exit codes, and the barriers that each process passed in that save.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from humanline.train.config.run import CheckpointConfig
from humanline.train.run.checkpoint import CheckpointError, Contents, Position
from humanline.train.run.checkpoints import Checkpoints
from humanline.train.run.shares import share_of
from tests.helpers.barriers import do_at, send
from tests.helpers.forked_ranks import exit_codes
from tests.helpers.ranks import as_rank, rows_of

RANKS = 2


class Part:
    """A matrix and a vector that are shared out, and a number that is not."""

    def __init__(self, mesh: Any, number: int) -> None:
        self.mesh, self.number = mesh, number

    def state(self) -> dict[str, torch.Tensor]:
        whole = state_after(self.number)
        return {name: rows_of(t, self.mesh) if t.ndim and self.mesh is not None else t for name, t in whole.items()}


class Own:
    """A number that one process has for itself."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def state(self) -> dict[str, torch.Tensor]:
        return {"rank": torch.tensor(self.rank)}

    def load_states(self, states: Sequence[Mapping[str, torch.Tensor]], rank: int) -> None:
        assert int(states[rank]["rank"]) == self.rank


def state_after(number: int) -> dict[str, torch.Tensor]:
    """Return the state after so many updates."""
    fill = torch.arange(15.0).reshape(5, 3) + 100 * number
    return {"matrix": fill, "vector": fill.flatten()[:7].bfloat16(), "number": torch.tensor(number)}


def reduced(value: torch.Tensor, how: str) -> torch.Tensor:
    value = value.clone()
    dist.all_reduce(value, dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM)
    return value


def checkpoints(folder: Path, part: Part, rank: int, ranks: int) -> Checkpoints:
    """Return the checkpoints of a run of which this is one process."""
    contents = Contents(
        shared={"policy": part},
        own={"own": Own(rank)},
        config={},
        fingerprints={},
        software={},
        metrics=folder / "metrics.jsonl",
        rank=rank,
        ranks=ranks,
    )
    return Checkpoints(
        folder / "checkpoints",
        CheckpointConfig(keep=2),
        contents,
        refuse_lost=lambda: None,
        ready=lambda: None,
        accelerator=SimpleNamespace(is_main_process=rank == 0),
        meet=reduced if ranks > 1 else lambda value, how: value,
    )


def child(job: dict[str, Any], rank: int) -> None:
    """Save after one, two and three updates, and note the barriers of the third save."""
    folder = Path(job["folder"])
    dist.init_process_group("gloo", store=dist.FileStore(job["store"], RANKS), rank=rank, world_size=RANKS)
    part = Part(init_device_mesh("cpu", (RANKS,)), 0)
    saves = checkpoints(folder, part, rank, RANKS)
    for part.number in (1, 2):
        saves.save(Position(part.number))
    part.number = 3  # and the first of them goes
    victim, number = job["kill"]
    note = os.open(folder / f"{rank}.killed", os.O_CREAT | os.O_WRONLY) if rank == victim else -1
    passed = do_at({number: partial(killed, note)} if rank == victim else {})
    if rank == job.get("starved"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        third(saves, part, job["overlap"])
    except CheckpointError as error:
        (folder / f"{rank}.refused").write_text(str(error)[:99])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        saves.save(Position(3))
    (folder / f"{rank}.barriers").write_text(json.dumps(passed))


def killed(note: int) -> None:
    """Say in a file that is open already that the barrier was reached, and end there."""
    os.write(note, b"here")
    send(signal.SIGKILL)


def third(saves: Checkpoints, part: Part, overlap: bool) -> None:
    """Save once more; with `overlap` by a thread, while the state changes, until a later safe point."""
    if not overlap:
        saves.save(Position(3))
        return
    said: list[str] = []
    saves.settings = CheckpointConfig(every=3, minutes=None, keep=2, overlap="always")
    with saves:
        saves.save_if_due(Position(3), said.append)
        part.number = 77
        while not said:
            saves.save_if_due(Position(4), said.append)
    part.number = 3
    if said[0].startswith("warning: "):
        raise CheckpointError(said[0])


@functools.cache
def warm_up() -> None:
    """Import what torch imports where it is first needed, and all that `do_at` looks through."""
    import humanline.train.loop  # noqa: F401

    with as_rank(0, 1) as mesh:
        list(map(share_of, Part(mesh, 0).state().values()))


def run(job: dict[str, Any]) -> dict[str, Any]:
    warm_up()
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                child(job, rank)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        pids.append(pid)
    codes = exit_codes(pids)
    barriers = [path.read_text() for path in sorted(Path(job["folder"]).glob("*.barriers"))]
    return {"codes": codes, "barriers": [json.loads(text) for text in barriers]}
