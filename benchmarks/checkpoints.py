"""Saving a checkpoint against writing as many bytes plainly and flushing them, and how long the steps wait for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import torch
from torch import Tensor

from benchmarks.interleave import interleave
from benchmarks.machine import DEVICE
from benchmarks.report import Result, not_measured, timing_row
from humanline.train.config.run import CheckpointConfig
from humanline.train.run.checkpoint import Contents, Position
from humanline.train.run.checkpoints import Checkpoints

_PIECE = 8 * 2**20  # bytes that the plain write writes at a time
_WIDTH = 4096


class _Part:
    """A state of so many matrices."""

    def __init__(self, kinds: tuple[str, ...], count: int, rows: int) -> None:
        one = torch.randn((rows, _WIDTH), device=DEVICE)
        self.tensors = {f"{kind}/layer.{number}": one + number for kind in kinds for number in range(count)}

    def state(self) -> Mapping[str, Tensor]:
        return self.tensors


class _Saves:
    """The checkpoints of a run whose updates are counted here."""

    def __init__(self, folder: Path, parts: Mapping[str, _Part], overlap: Literal["never", "always"]) -> None:
        self.updates = 0
        self.folder = folder / overlap
        (folder / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
        contents = Contents(
            shared=parts,  # type: ignore[arg-type]
            own={},
            config={},
            fingerprints={},
            software={},
            metrics=folder / "metrics.jsonl",
        )
        self.checkpoints = Checkpoints(
            self.folder,
            CheckpointConfig(every=1, minutes=None, overlap=overlap),
            contents,
            refuse_lost=lambda: None,
            ready=lambda: None,
            accelerator=SimpleNamespace(is_main_process=True),
            meet=lambda value, how: value,
        )

    def due(self) -> None:
        """Come to a safe point at which a checkpoint is due."""
        self.updates += 1
        self.checkpoints.save_if_due(Position(self.updates), lambda _: None)

    def settle(self) -> None:
        """Wait for what is under way."""
        with self.checkpoints:
            pass


def benchmark_checkpoints(quick: bool) -> Result:
    """Save float32 weights with two states each, and write their bytes to one file, in turn."""
    rounds, warm_up = (3, 2) if quick else (5, 2)
    count, rows = (4, 64) if quick else (43, 2048)  # 3 x 43 x 32 MiB
    parts = {"policy": _Part(("weight",), count, rows), "optimizer": _Part(("exp_avg", "exp_avg_sq"), count, rows)}
    tensors = [tensor for part in parts.values() for tensor in part.tensors.values()]
    size = sum(tensor.nbytes for tensor in tensors)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saves = _Saves(folder, parts, "never")
        seconds = interleave(
            {"checkpoint": saves.due, "plain": lambda: _plain(folder / "plain", tensors)},
            rounds=rounds,
            warm_up=warm_up,
        )
        table = [
            timing_row(
                "-",
                f"a checkpoint of {size / 2**30:.3g} GiB, hashed / its bytes written plainly and flushed",
                seconds["checkpoint"],
                seconds["plain"],
                limit=1.3,
            )
        ]
    what = "what a save that overlaps the steps holds them up / one that does not"
    if DEVICE == "cpu" and not quick:
        table.append(not_measured("-", what, "steps and hashes share the processors; needs a GPU"))
        return Result({"bytes": size, "rounds": rounds, "warm_up": warm_up}, table, seconds)
    with tempfile.TemporaryDirectory() as name:
        both = {how: _Saves(Path(name), parts, how) for how in ("always", "never")}
        held: dict[str, list[float]] = {how: [] for how in both}
        for number in range(warm_up + rounds):
            for how, one in both.items():
                taken = interleave({how: one.due}, rounds=1, warm_up=0)[how]
                one.settle()
                if number >= warm_up:
                    held[how] += taken
        table.append(timing_row("-", what, held["always"], held["never"]))
    return Result({"bytes": size, "rounds": rounds, "warm_up": warm_up}, table, seconds | held)


def _plain(path: Path, tensors: list[Tensor]) -> None:
    """Write all bytes to one file and flush it; the one before goes, as an old checkpoint does."""
    path.unlink(missing_ok=True)
    with open(path, "wb", buffering=0) as file:
        for tensor in tensors:
            data = memoryview(tensor.cpu().reshape(-1).view(torch.uint8).numpy())
            for at in range(0, len(data), _PIECE):
                file.write(data[at : at + _PIECE])
        os.fsync(file.fileno())
