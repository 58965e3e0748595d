"""Tensor files in the safetensors format, written in pieces, several at a time, and hashed while they are written.

safetensors' own writer is not used: it takes the bytes of a whole file at once, so that a file's tensors would be in
host memory once more, and what it has written would have to be read again to be hashed. It is what reads the files.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from humanline.system.files import barrier, partial_of
from humanline.system.hashing import BEHIND, at_once, write_hashed

PIECE = 2**20  # bytes that are written at a time: few enough to be still in a cache when they are hashed
# The types of elements, in the order in which the format's own writer puts tensors into a file.
_TYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ORDER = {kind: place for place, kind in enumerate(_TYPES)}


@dataclass(frozen=True, slots=True)
class TensorFile:
    """What one file is to hold.

    Parameters
    ----------
    name : str
        Of the file.
    tensors : mapping of name to Tensor
        Plain ones, on any device.
    metadata : mapping of str to str
    """

    name: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def head(self) -> bytes:
        """Return what comes before the tensors: the length of a text, and the text, which says where each one is.

        Raises
        ------
        TypeError
            If the format has no name for a tensor's type.
        """
        said: dict[str, Any] = {"__metadata__": dict(self.metadata)} if self.metadata else {}
        at = 0
        for name, tensor in self.ordered():
            if tensor.dtype not in _TYPES:
                raise TypeError(f"{name}: tensors of {tensor.dtype} cannot be written to a safetensors file")
            end = at + tensor.nbytes
            said[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # so that tensors begin where any type may
        return len(text).to_bytes(8, "little") + text

    def ordered(self) -> list[tuple[str, Tensor]]:
        """Return the tensors as they lie in the file: large elements first, so that each lies at a multiple of its."""
        return sorted(self.tensors.items(), key=lambda item: (_ORDER.get(item[1].dtype, -1), item[0]))


def write_files(
    folder: Path, files: Sequence[TensorFile], each: Callable[[], None] = lambda: None
) -> dict[str, dict[str, Any]]:
    """Write tensor files to the hidden folder in which `folder` is prepared, and flush them.

    Tensors in host memory are written from where they are; others pass through `PIECE` * (`BEHIND` + 1) bytes of it for
    each file that is being written.

    Parameters
    ----------
    folder : Path
    files : sequence of TensorFile
    each : callable
        Called by several threads before each piece; what it raises ends the write.

    Returns
    -------
    dict
        Size and SHA-256 of each by its name, for the manifest.

    Raises
    ------
    OSError
        If the disk fails; files, or parts of them, may be there.
    TypeError
        As `TensorFile.head` does.
    """
    partial, facts = partial_of(folder), {}
    _wait_for_device(files)

    def write(file: TensorFile) -> dict[str, Any]:
        return write_hashed(partial / file.name, _bytes_of(file), each)

    with ThreadPoolExecutor(at_once(), thread_name_prefix="write") as pool:
        for file, its in zip(files, pool.map(write, files), strict=True):
            facts[file.name] = its
            barrier(f"{folder.name}: {file.name} flushed")
    return facts


class HostCopies:
    """Copies, in host memory, of what tensor files are to hold; the memory is kept for the next ones."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Return the bytes that are kept."""
        return sum(tensor.nbytes for tensor in self._kept.values())

    def of(self, files: Iterable[TensorFile]) -> list[TensorFile]:
        """Return files of copies, which hold until this is called again."""
        _wait_for_device(files := list(files))
        room = {}
        for file in files:
            for name, tensor in file.tensors.items():
                mine = self._kept.pop((file.name, name), None)
                if mine is None or (mine.shape, mine.dtype) != (tensor.shape, tensor.dtype):
                    mine = torch.empty(tensor.shape, dtype=tensor.dtype)
                room[file.name, name] = mine
        self._kept = room

        def copied(file: TensorFile) -> TensorFile:
            stage = _Stage()
            for name, tensor in file.tensors.items():
                target, at = room[file.name, name].reshape(-1).view(torch.uint8).numpy(), 0
                for piece in _pieces_of(tensor, stage):
                    np.copyto(target[at : at + len(piece)], piece)
                    at += len(piece)
            return replace(file, tensors={name: room[file.name, name] for name in file.tensors})

        with ThreadPoolExecutor(at_once(), thread_name_prefix="copy") as pool:
            return list(pool.map(copied, files))

    def let_go(self) -> None:
        """Keep no memory."""
        self._kept = {}


def _wait_for_device(files: Iterable[TensorFile]) -> None:
    """Wait until what is to be copied has been computed: other threads copy than the one that asked for it."""
    elsewhere = not all(_in_host_memory(tensor) for file in files for tensor in file.tensors.values())
    if elsewhere and torch.accelerator.is_available():
        torch.accelerator.synchronize()


class _Stage:
    """A few buffers in host memory, used in turn: page-locked ones, which a GPU copies to several times as fast."""

    def __init__(self) -> None:
        self._buffers: Iterator[Tensor] | None = None

    def next(self, pinned: bool) -> Tensor:
        if self._buffers is None:
            self._buffers = itertools.cycle(
                [torch.empty(PIECE, dtype=torch.uint8, pin_memory=pinned) for _ in range(BEHIND + 1)]
            )
        return next(self._buffers)


def _bytes_of(file: TensorFile) -> Iterator[memoryview]:
    """Return all bytes of a file; a piece holds until `BEHIND` + 1 more are asked for."""
    yield memoryview(file.head())
    stage = _Stage()
    for _, tensor in file.ordered():
        for piece in _pieces_of(tensor, stage):
            yield memoryview(piece)


def _pieces_of(tensor: Tensor, stage: _Stage) -> Iterator[Any]:
    """Return the bytes of a tensor in host memory, as arrays; those of another device are the stage's."""
    rows = tensor.detach() if tensor.ndim else tensor.detach().reshape(1)
    if not rows.is_contiguous():
        step = max(1, PIECE // max(1, rows[:1].nbytes))
        for at in range(0, len(rows), step):
            yield from _pieces_of(rows[at : at + step].contiguous(), stage)
        return
    flat = rows.reshape(-1).view(torch.uint8)
    here: Any = torch.cuda.device_of
    for at in range(0, len(flat), PIECE):
        piece = flat[at : at + PIECE]
        if not _in_host_memory(piece):
            # A thread begins with the first GPU as its own, whatever the process's is. Nothing is yielded within: who
            # gives up this generator may end it in another thread, whose GPU would be changed.
            with here(flat):
                piece = stage.next(pinned=piece.is_cuda)[: len(piece)].copy_(piece)
        yield piece.numpy()


def _in_host_memory(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"
