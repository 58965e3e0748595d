"""One process in the place of each of several in turn: for what they do without talking to each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[DeviceMesh]:
    """Be one of several processes whose collectives do nothing, and return their mesh."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


def rows_of(whole: Tensor, mesh: DeviceMesh) -> DTensor:
    """Return a tensor of which each process of a mesh holds its rows, as `fully_shard` deals them."""
    pieces = torch.chunk(whole, mesh.size())
    rank = mesh.get_local_rank()
    own = pieces[rank].clone() if rank < len(pieces) else whole[:0].clone()
    return DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())
