"""Build a sharded policy under `python -m torch.distributed.run`, and write the most bytes of tensors that were alive.

    start_run.py OUT CONFIG.json

Tensors are counted, since resident memory keeps pages that were freed. `OUT/peak-RANK.json` gets {"peak", "kept"}.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from humanline.train.config import TrainConfig
from humanline.train.policy.build import build_sharded_policy


def is_mapped(address: int) -> bool:
    """Return whether memory is that of a weight file: pages that the system may drop."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, end = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= address < end:
            return line.endswith(".safetensors")
    return False


class Meter(TorchDispatchMode):
    """Count the bytes of the tensors that operations read or make, for as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[int] = set()
        self.live = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a tensor made of others, which are seen one by one
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, output)):
            if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) and not leaf.is_meta:
                self.see(leaf)
        return output

    def see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) not in self.known and not is_mapped(storage.data_ptr()):
            self.known.add(id(storage))
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self.gone, id(storage), storage.nbytes())

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def main() -> None:
    """Count while the policy is built."""
    out, given = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    torch.distributed.init_process_group("gloo")
    with Meter() as meter:
        policy, _ = build_sharded_policy(TrainConfig.model_validate(given), torch.device("cpu"))
    rows = sum(parameter.to_local().nbytes for parameter in policy.parameters())
    found = {"peak": meter.peak, "rows": rows}
    (out / f"peak-{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    main()
