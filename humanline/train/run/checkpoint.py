"""One checkpoint: all that a run needs to go on as if it had never stopped, bit for bit.

A checkpoint is a folder that `system/folders.py` publishes: tensors in safetensors, the rest JSON, nothing pickled.
What all processes share is written by the main one, but for tensors of which each holds some rows, which it writes
itself; what each has of its own (the log-probabilities of coming steps, its share of those of held-out data, its random
state) by itself too. The folder is on a file system that all processes see.

Any number of processes goes on from it: each takes what it needs of what all of those before had (`OfEach`). As many as
before go on to the same bits, others to the same up to rounding.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, overload

from torch import Tensor

from humanline.system.files import DamagedError, write_text
from humanline.system.folders import verify_folder
from humanline.train.run.fingerprint import comparable, differences, same_settings
from humanline.train.run.shares import Saved, file_of, is_shard, share_of
from humanline.train.run.state import Judging, OfEach, Stateful, held_by_one
from humanline.train.run.tensor_files import TensorFile

FORMAT = 3
_PART_BYTES = 2**30  # of the tensors in one file: several are written, and hashed, at a time
_STATE, _METRICS = "state.json", "metrics.jsonl"


class CheckpointError(ValueError):
    """A checkpoint that could not be written, or none that can be resumed."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands: updates done, whether the held-out metrics after them are in the log, first and last ones."""

    updates: int = 0
    evaluated: bool = False
    initial: dict[str, float] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the checkpoints of a run hold, as one of its processes writes and reads them.

    Parameters
    ----------
    shared : mapping of name to Stateful
        What all processes have alike.
    own : mapping of name to OfEach
        What this one has of its own.
    config, fingerprints, software : mapping
        A resumed run must have the same settings and fingerprints; other software is only remarked on.
    metrics : Path
        The run's metrics file; a checkpoint holds the lines so far, so that a resumed run continues them.
    rank, ranks : int
        The number of this process, and how many there are.
    """

    shared: Mapping[str, Stateful]
    own: Mapping[str, OfEach]
    config: Mapping[str, Any]
    fingerprints: Mapping[str, Any]
    software: Mapping[str, str]
    metrics: Path
    rank: int = 0
    ranks: int = 1

    @property
    def ahead(self) -> tuple[int, ...]:
        """Return, for each part of this process, the first step whose log-probabilities it has not computed yet."""
        return tuple(getattr(part, "next_step", 0) for part in self.own.values())

    def size(self) -> int:
        """Return the bytes that a checkpoint takes, over all processes."""
        room = _bytes(self.own) * self.ranks
        for name, tensor in _tensors(self.shared):
            room += tensor.nbytes * (self.ranks if held_by_one(name) else 1)
        with contextlib.suppress(OSError):
            room += self.metrics.stat().st_size
        return room

    def bytes_beside_host(self) -> int:
        """Return the bytes of what this process writes, 0 if all of it is in host memory already."""
        tensors = [tensor for file in self.files() for tensor in file.tensors.values()]
        return sum(tensor.nbytes for tensor in tensors) if any(tensor.is_cuda for tensor in tensors) else 0

    def files(self) -> list[TensorFile]:
        """Return the files that this process writes: what it has of its own, and its share of what all have."""
        files = [file for name, part in self.own.items() for file in _files(_own_name(self.rank, name), part.state())]
        for name, part in self.shared.items():
            state = part.state()
            slices = {key: tensor for key, tensor in state.items() if _is_slice(key, tensor)}
            if slices:
                files += _files(f"{name}-slices-{self.rank}", slices)
            if self.rank == 0:
                files += _files(name, {key: tensor for key, tensor in state.items() if key not in slices})
        return files

    def write_facts(self, folder: Path, position: Position) -> None:
        """Write all that is no tensor; called by the main process. Raise OSError where the disk refuses it."""
        shutil.copyfile(self.metrics, folder / _METRICS)
        facts = {
            "format": FORMAT,
            "processes": self.ranks,
            "position": asdict(position),
            "config": self.config,
            "fingerprints": self.fingerprints,
            "software": self.software,
        }
        (folder / _STATE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    def refuse(self, folder: Path) -> None:
        """Refuse a checkpoint that this run cannot go on from.

        Raises
        ------
        DamagedError
            If it is not whole, or a run must not go on from its states (`Judging`).
        CheckpointError
            If it belongs to another run, or cannot be read and may be whole.
        """
        try:
            verify_folder(folder)
            facts: dict[str, Any] = {}
            if (folder / _STATE).is_file():  # a file that is whole and tells whose it is
                facts = _facts(folder)
                self.refuse_another_run(folder, facts)
            processes = facts.get("processes", self.ranks)
            own_of_all = [_own_name(rank, name) for rank in range(processes) for name in self.own]
            expected = [_part(name, 0) for name in (*self.shared, *own_of_all)]
            missing = [name for name in (*expected, _STATE, _METRICS) if not (folder / name).is_file()]
            if missing:
                raise DamagedError(f"it has no {', '.join(missing)}")
            for name, part in self.shared.items():
                saved = _read(folder, name)
                if isinstance(part, Judging):
                    part.refuse_state(saved, facts["position"]["updates"])
        except OSError as error:
            raise CheckpointError(_unread(folder, error)) from None

    def refuse_another_run(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a checkpoint's facts (`state.json`) are of another run than this one."""
        if facts["format"] != FORMAT:
            raise CheckpointError(f"{folder} has format {facts['format']}; this version of humanline reads {FORMAT}")
        now = same_settings(self.config) | comparable(facts["fingerprints"], self.fingerprints)
        table = differences(same_settings(facts["config"]) | facts["fingerprints"], now)
        if table:
            raise CheckpointError(
                f"{folder} belongs to a run with other settings or data, so it cannot be resumed with these:\n{table}\n"
                "Use the values of then, or start a new run in another folder."
            )

    def load(self, folder: Path, say: Callable[[str], None]) -> Position:
        """Take over the states of a checkpoint that `refuse` let pass, and return where the run stands.

        Raises
        ------
        CheckpointError
            If a state does not fit this run or cannot be read.
        """
        facts = _facts(folder)
        told = {name: version for name, version in self.software.items() if name in facts["software"]}
        changed = differences(facts["software"], told)  # earlier versions told of fewer
        if changed:
            say(f"note: other software than the checkpoint's, so the last bits may differ:\n{changed}")
        before = facts["processes"]
        if before != self.ranks:
            say(
                f"note: {self.ranks} process(es) go on with a run of {before}: sums have another order, so that the "
                "last bits differ, and with dropout what is dropped"
            )
        loads = {name: functools.partial(self._load_shared, folder, name) for name in self.shared}
        loads |= {name: functools.partial(self._load_own, folder, name, before) for name in self.own}
        for name, load in loads.items():
            try:
                load()
            except DamagedError as error:
                raise CheckpointError(f"{folder}: {name} does not fit this run: {error}") from None
            except OSError as error:
                raise CheckpointError(_unread(folder, error)) from None
        return Position(**facts["position"])

    def restore_metrics(self, folder: Path) -> None:
        """Put the run's metrics back to the lines that a checkpoint has."""
        write_text(self.metrics, (folder / _METRICS).read_text(encoding="utf-8"))

    def renew(self, updates: int) -> None:
        """Let the parts that judge states make again what they must, once all states are taken over."""
        parts: list[Stateful | OfEach] = [*self.shared.values(), *self.own.values()]
        for part in parts:
            if isinstance(part, Judging):
                part.renew(updates, parts)

    def _load_shared(self, folder: Path, name: str) -> None:
        self.shared[name].load_state(_read(folder, name))

    def _load_own(self, folder: Path, name: str, processes: int) -> None:
        self.own[name].load_states(_StatesOfAll(folder, name, processes), self.rank)


class _StatesOfAll(Sequence[Mapping[str, Tensor]]):
    """What every process that wrote a checkpoint had of a part; a state is read when it is asked for."""

    def __init__(self, folder: Path, name: str, processes: int) -> None:
        self.folder, self.name, self.processes = folder, name, processes

    def __len__(self) -> int:
        return self.processes

    @overload
    def __getitem__(self, rank: int) -> Mapping[str, Tensor]: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[Mapping[str, Tensor]]: ...
    def __getitem__(self, rank: int | slice) -> Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]:
        if isinstance(rank, slice):
            return [self[one] for one in range(*rank.indices(self.processes))]
        return _read(self.folder, _own_name(rank, self.name))


def _own_name(rank: int, name: str) -> str:
    return f"rank-{rank}-{name}"


def _unread(folder: Path, error: OSError) -> str:
    return (
        f"{folder} cannot be read, and may be whole: {error.strerror or error}. No older checkpoint is taken in its "
        f"place, and nothing was changed: mend that (permissions, the file system) and try again; or rename {folder}, "
        "and the same command goes on from the one before it"
    )


def _files(stem: str, tensors: Mapping[str, Tensor]) -> list[TensorFile]:
    """Return the files, one at least, for what this process holds of some tensors."""
    files: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in tensors.items():
        its = share_of(tensor).rows.nbytes
        if files[-1] and size + its > _PART_BYTES:
            files.append({})
            size = 0
        files[-1][key] = tensor
        size += its
    return [file_of(_part(stem, number), held) for number, held in enumerate(files)]


def _read(folder: Path, name: str) -> Saved:
    """Return the state that the files of a part hold, those of slices too; raise as `Saved.in_files` does."""
    mine = re.compile(rf"{re.escape(name)}(-slices-\d+)?-\d+\.safetensors")
    return Saved.in_files(sorted(path for path in folder.iterdir() if mine.fullmatch(path.name)))


def _is_slice(key: str, tensor: Tensor) -> bool:
    """Return whether a process writes its own of a tensor that all share."""
    return is_shard(tensor) or held_by_one(key)


def _part(name: str, number: int) -> str:
    return f"{name}-{number}.safetensors"


def _tensors(parts: Mapping[str, Stateful | OfEach]) -> Iterator[tuple[str, Tensor]]:
    return (item for part in parts.values() for item in part.state().items())


def _bytes(parts: Mapping[str, Stateful | OfEach]) -> int:
    return sum(tensor.nbytes for _, tensor in _tensors(parts))


def fingerprints_in(folder: Path) -> dict[str, Any]:
    """Return the fingerprints of the run that made a checkpoint."""
    return dict(_facts(folder)["fingerprints"])


def _facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    return facts
