"""Read a set as `humanline train` does and print what it took, as JSON; run once for every measurement.

`python -P benchmarks/reading_side.py TOKENIZER ROWS` uses the humanline that PYTHONPATH leads to, of whatever version,
so nothing of benchmarks is imported here.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path


def _largest_resident_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main(tokenizer: str, rows: str) -> None:
    """Read preference rows under a chat template, for DPO."""
    from transformers import AutoTokenizer

    from humanline.train.config import TrainConfig

    if importlib.util.find_spec("humanline.train.tokens") is None:
        from humanline.train.data.render import Renderer
        from humanline.train.data.sets import read_sets
        from humanline.train.data.units import units_hash
    else:  # an earlier version, in which all of it had other names
        from humanline.train.examples import read_sets
        from humanline.train.fingerprint import units_hash
        from humanline.train.tokens import Renderer

    config = TrainConfig.model_validate(
        {
            "model": tokenizer,
            "output": "none",
            "objective": {"kind": "dpo"},
            "optimizer": {"lr": 1e-6},
            "data": {"train": rows, "shape": "preference", "max_length": 2048},
            "training": {"steps": 1, "batch_size": 1},
        }
    )
    renderer = Renderer(AutoTokenizer.from_pretrained(tokenizer), "chat", 2048)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, wall, cpu = _largest_resident_mib(), time.perf_counter(), time.process_time()
    sets = read_sets(config, renderer)
    found = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "mib": _largest_resident_mib() - before,
        "units": len(sets.train),
    }
    print(json.dumps(found | {"hash": units_hash(sets.train), "report": str(sets.reports["train"])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
