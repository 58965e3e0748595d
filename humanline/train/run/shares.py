"""Tensors of which each process may hold some rows: written as slices, and read back by any number of processes.

A file of slices is a safetensors file whose metadata say, for each of its tensors, which tensor it is a part of and at
which row it begins. A process reads the rows that it needs and no others.

torch's distributed checkpoint, with its Hugging Face files, is not used: where a slice is missing it leaves the old
numbers in place and says nothing, it casts other types silently, wraps an error of the disk in a BaseException without
its number, so that a full disk could not be waited for, and holds what it writes twice more in host memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from humanline.system.files import DamagedError
from humanline.train.run.tensor_files import TensorFile

_AT_ONCE = 256 * 2**20  # bytes of a tensor that are in host memory while it is read
_SLICES = "slices"  # the key of the metadata


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of a tensor that this process holds.

    Parameters
    ----------
    rows : Tensor
        A plain tensor that shares its memory with the one it was taken from.
    start : int
        The place of the first one in the whole tensor.
    whole : tuple of int
        The shape of the whole tensor.
    """

    rows: Tensor
    start: int
    whole: tuple[int, ...]


def is_shard(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, of which a process may hold a part only."""
    return isinstance(tensor, DTensor)


def share_of(tensor: Tensor) -> Share:
    """Return the rows that this process holds of a tensor: all of them, unless it is a DTensor.

    Raises
    ------
    ValueError
        If it is a DTensor cut in any other way than by its rows, over one dimension of processes.
    """
    if not is_shard(tensor):
        return Share(tensor.detach(), 0, tuple(tensor.shape))
    sharded: Any = tensor.detach()
    if sharded.device_mesh.ndim != 1 or not sharded.placements[0].is_shard(0):
        raise ValueError(f"a tensor cut as {sharded.placements} over {sharded.device_mesh}: only rows can be written")
    rank, ranks = place_of(sharded)
    count = -(-sharded.shape[0] // ranks)  # as torch.chunk cuts: equal parts, a smaller one, and then empty ones
    start = min(rank * count, sharded.shape[0])
    rows = sharded.to_local()
    if len(rows) != min(count, sharded.shape[0] - start):
        raise ValueError(f"process {rank} of {ranks} holds {len(rows)} of {sharded.shape[0]} rows: not an equal part")
    return Share(rows, start, tuple(sharded.shape))


def place_of(sharded: Any) -> tuple[int, int]:
    """Return the number of this process among those that a DTensor is cut over, and how many these are."""
    return sharded.device_mesh.get_local_rank(), sharded.device_mesh.size()


def file_of(name: str, tensors: Mapping[str, Tensor]) -> TensorFile:
    """Return what a file is to hold for this process to write its rows of some tensors to it."""
    shares = {key: share_of(tensor) for key, tensor in tensors.items()}
    slices = {
        key: {"start": share.start, "whole": share.whole} for key, share in shares.items() if is_shard(tensors[key])
    }
    return TensorFile(
        name,
        {key: share.rows for key, share in shares.items()},
        {_SLICES: json.dumps(slices)} if slices else {},
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a tensor: those that one file, or the memory, holds."""

    place: str  # for messages
    rows: Any  # a tensor, or a slice of a file, of at least one dimension
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    whole: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.shape[0]


class Saved(Mapping[str, Tensor]):
    """A state that was written, whoever wrote which rows of it.

    An item is a whole tensor, read when it is asked for; `fill` reads rows of it into a tensor that is there.

    Parameters
    ----------
    pieces : mapping of name to list

    Raises
    ------
    DamagedError
        If the pieces of a tensor do not make up all of it, each row once.
    """

    def __init__(self, pieces: Mapping[str, list[_Piece]]) -> None:
        self._pieces = {name: _made_up(name, parts) for name, parts in pieces.items()}

    @classmethod
    def in_files(cls, paths: Iterable[Path]) -> Saved:
        """Return the state that some files hold.

        Raises
        ------
        DamagedError
            If one is no safetensors file, or as the class does.
        OSError
            If one cannot be opened.
        """
        pieces: dict[str, list[_Piece]] = {}
        for path in paths:
            for name, piece in _pieces_in(path):
                pieces.setdefault(name, []).append(piece)
        return cls(pieces)

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Saved:
        """Return a state that may be one of tensors in memory."""
        if isinstance(state, Saved):
            return state
        return cls({name: [_in_memory(tensor, "the state")] for name, tensor in state.items()})

    def __getitem__(self, name: str) -> Tensor:
        """Return a whole tensor, a copy of its own."""
        shape, dtype = self.kind(name)
        tensor = torch.empty(shape, dtype=dtype)
        self.fill(name, Share(tensor, 0, shape))
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def kind(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape of a whole tensor and its type."""
        piece = self._pieces[name][0]
        return piece.whole, piece.dtype

    def fill(self, name: str, share: Share) -> None:
        """Copy the rows of a tensor that a process holds into its share, which has its shape and type."""
        mine = share.rows if share.rows.ndim else share.rows.reshape(1)
        step = max(1, _AT_ONCE // max(1, mine[:1].nbytes))
        for piece in self._pieces[name]:
            low, high = max(share.start, piece.start), min(share.start + len(mine), piece.end)
            for at in range(low, high, step):
                end = min(at + step, high)
                mine[at - share.start : end - share.start].copy_(piece.rows[at - piece.start : end - piece.start])


def described(shape: Iterable[int], dtype: torch.dtype) -> str:
    """Return a tensor's type and shape in words, as in float32 (3, 2)."""
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"


def _in_memory(tensor: Tensor, place: str) -> _Piece:
    rows = tensor.detach() if tensor.ndim else tensor.detach().reshape(1)
    return _Piece(place, rows, tuple(rows.shape), tensor.dtype, 0, tuple(tensor.shape))


def _pieces_in(path: Path) -> Iterator[tuple[str, _Piece]]:
    """Return the pieces that a file holds; only its head is read."""
    try:
        file: Any = safe_open(path, framework="pt")
        slices = json.loads((file.metadata() or {}).get(_SLICES, "{}"))
        for name in file.keys():  # noqa: SIM118, not a mapping
            rows = file.get_slice(name)
            shape = tuple(rows.get_shape())
            if name in slices:
                start, whole = int(slices[name]["start"]), tuple(map(int, slices[name]["whole"]))
                yield name, _Piece(path.name, rows, shape, rows[:0].dtype, start, whole)
            elif shape:
                yield name, _Piece(path.name, rows, shape, rows[:0].dtype, 0, shape)
            else:
                yield name, _in_memory(file.get_tensor(name).clone(), path.name)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"{path.name} cannot be read: {error}") from None


def _made_up(name: str, pieces: list[_Piece]) -> list[_Piece]:
    """Return the pieces of a tensor in the order of their rows, of which each must be there once."""
    first = pieces[0]
    for piece in pieces:
        if (piece.whole, piece.dtype) != (first.whole, first.dtype):
            raise DamagedError(
                f"{name} is {described(first.whole, first.dtype)} in {first.place} and "
                f"{described(piece.whole, piece.dtype)} in {piece.place}"
            )
        if piece.shape[1:] != piece.whole[1:]:
            raise DamagedError(f"{name} is {piece.whole}, but {piece.shape} of it in {piece.place}")
    rows, at = first.whole[0] if first.whole else 1, 0
    pieces = sorted(pieces, key=lambda piece: (piece.start, piece.end))
    for piece in pieces:
        if piece.start < at or piece.end > rows:
            raise DamagedError(
                f"{name} has {rows} rows, of which {piece.place} holds {piece.start} to {piece.end - 1}: "
                f"{'beyond its end' if piece.end > rows else 'others hold some of these too'}"
            )
        if piece.start > at:
            break
        at = piece.end
    if at < rows:
        raise DamagedError(f"{name} lacks row {at} of its {rows}")
    return pieces
