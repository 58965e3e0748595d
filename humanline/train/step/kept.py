"""Token log-probabilities kept by row, so that any number of processes finds those of its own rows again.

Kept are the tokens that count, under the name of their row and a checksum of what it says: not where a row stood in
which micro-batch of which process, nor how it was padded.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from humanline.system.files import DamagedError
from humanline.train.data.batch import Block, MicroBatch, find_indices
from humanline.train.data.transfer import to_device

_PARTS = ("rows", "mismatched")  # of micro-batches: their own rows, and under KTO the mismatched pairs
_SHOWN = 4  # names of rows in a message


@dataclass(frozen=True, slots=True)
class KeptLogprobs:
    """The log-probabilities of a block: of each row with a token that counts its key, their number, and the values."""

    keys: tuple[str, ...]
    counts: tuple[int, ...]
    values: Tensor  # (sum(counts),), nats, in host memory or, where they are few, on the device that computed them

    @classmethod
    def of(cls, block: Block, logprobs: Tensor) -> KeptLogprobs:
        """Keep what counts of a block's (R, T - 1) log-probabilities, on their device."""
        keys = keys_of(block)
        counts = {row: count for row, count in enumerate(block.on_host.mask.sum(1).tolist()) if count}
        rows, places = _counted(block)
        return cls(tuple(keys[row] for row in counts), tuple(counts.values()), logprobs[rows, places])

    def in_block(self, block: Block) -> Tensor:
        """Return the (R, T - 1) log-probabilities on the block's device; what does not count is 0."""
        values = to_device(self.values, block.mask.device)
        whole = torch.zeros(block.mask.shape, dtype=values.dtype, device=values.device)
        return whole.index_put_(_counted(block), values)

    def to_host(self) -> KeptLogprobs:
        """Return the same in host memory."""
        return replace(self, values=self.values.cpu())

    def not_finite(self) -> list[str]:
        """Return the names of the rows with a value that is not finite."""
        values = torch.split(self.values.cpu(), list(self.counts))
        finite = [bool(torch.isfinite(one).all()) for one in values]
        return [key.partition(" ")[2] for key, is_finite in zip(self.keys, finite, strict=True) if not is_finite]


Kept = tuple[KeptLogprobs, KeptLogprobs | None]  # of a micro-batch's rows, and of its mismatched pairs


def keys_of(block: Block) -> list[str]:
    """Return of each row what tells it from any other of a run: a checksum of its token ids, and its name."""
    ids = block.on_host.input_ids.cpu().numpy()
    return [
        f"{zlib.crc32(ids[row, :length].tobytes()):08x} {name}"
        for row, (name, length) in enumerate(zip(block.names, block.lengths, strict=True))
    ]


def kept_state(kept: Sequence[Kept], prefix: str) -> dict[str, Tensor]:
    """Return what is kept of some micro-batches as tensors, in order: `<prefix>rows/keys` (JSON), `counts`, `values`.

    Under KTO `<prefix>mismatched/...` too.
    """
    state = {}
    for part, blocks in zip(_PARTS, ([rows for rows, _ in kept], [other for _, other in kept if other]), strict=True):
        if blocks:
            keys = json.dumps([key for one in blocks for key in one.keys]).encode()
            state[f"{prefix}{part}/keys"] = torch.frombuffer(bytearray(keys), dtype=torch.uint8)
            state[f"{prefix}{part}/counts"] = torch.tensor([n for one in blocks for n in one.counts], dtype=torch.int64)
            state[f"{prefix}{part}/values"] = torch.cat([one.values for one in blocks]).cpu()
    return state


def find_kept(
    states: Iterable[Mapping[str, Tensor]], wanted: Mapping[str, Sequence[MicroBatch]]
) -> dict[str, list[Kept]]:
    """Return what several processes have kept of some micro-batches.

    Parameters
    ----------
    states : iterable of mapping of str to Tensor
        Made by `kept_state`, read as long as something is missing. A row that is twice under a prefix, at the seam of
        two epochs, is taken in the order in which it was kept.
    wanted : mapping of str to sequence of MicroBatch
        By prefix.

    Raises
    ------
    DamagedError
        If a row is in none of them; with its name.
    """
    open_rows = {
        f"{prefix}{part}/": _OpenRows([block for micro in micros if (block := _block(micro, part)) is not None])
        for prefix, micros in wanted.items()
        for part in _PARTS
    }
    for state in states:
        for place, rows in open_rows.items():
            rows.take(state, place)
        if not any(rows.missing for rows in open_rows.values()):
            break
    missing = [key.partition(" ")[2] for rows in open_rows.values() for key in rows.missing]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise DamagedError(f"it lacks the log-probabilities of {', '.join(missing[:_SHOWN])}{more}")
    found: dict[str, list[Kept]] = {}
    for prefix, micros in wanted.items():
        own, others = (iter(open_rows[f"{prefix}{part}/"].blocks()) for part in _PARTS)
        found[prefix] = [(next(own), None if micro.mismatched is None else next(others)) for micro in micros]
    return found


class _OpenRows:
    """The rows of some blocks, for each of which log-probabilities are looked for."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._counts = [block.mask.sum(1).tolist() for block in blocks]
        self._keys = [keys_of(block) for block in blocks]
        self._found: dict[tuple[int, int], Tensor] = {}
        self.missing: dict[str, list[tuple[int, int]]] = {}  # where a key's rows are, the last one first
        for place, (keys, counts) in enumerate(zip(self._keys, self._counts, strict=True)):
            for row, (key, count) in enumerate(zip(keys, counts, strict=True)):
                if count:
                    self.missing.setdefault(key, []).insert(0, (place, row))

    def take(self, state: Mapping[str, Tensor], place: str) -> None:
        """Take what is missing from a state, under a place in it."""
        if not self.missing or f"{place}keys" not in state:
            return
        keys = json.loads(state[f"{place}keys"].numpy().tobytes())
        counts = state[f"{place}counts"].tolist()
        values = torch.split(state[f"{place}values"], counts)
        for key, count, own in zip(keys, counts, values, strict=True):
            if key not in self.missing:
                continue
            block, row = self.missing[key].pop()
            if self._counts[block][row] != count:
                raise DamagedError(
                    f"it has {count} log-probabilities of {key.partition(' ')[2]}, not {self._counts[block][row]}"
                )
            self._found[block, row] = own
            if not self.missing[key]:
                del self.missing[key]

    def blocks(self) -> list[KeptLogprobs]:
        """Return what was found, block by block; nothing must be missing."""
        kept = []
        for place, (keys, counts) in enumerate(zip(self._keys, self._counts, strict=True)):
            rows = [row for row, count in enumerate(counts) if count]
            values = torch.cat([self._found[place, row] for row in rows]) if rows else torch.zeros(0)
            kept.append(KeptLogprobs(tuple(keys[row] for row in rows), tuple(counts[row] for row in rows), values))
        return kept


def _counted(block: Block) -> tuple[Tensor, Tensor]:
    """Return the rows and places of the labels that count."""
    indices = block.indices or find_indices(block.mask, block.lengths)
    return indices.rows, indices.places


def _block(micro: MicroBatch, part: str) -> Block | None:
    return micro.block if part == "rows" else micro.mismatched
