"""One checkpoint on its way to its name: begun, its tensors written here and now or by a thread, then published.

Where a thread writes, it writes copies, and does nothing else: whatever processes agree on, and whatever gives a
checkpoint its name, happens where the run calls, at its safe points.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from humanline.system.activity import HERE
from humanline.system.files import flush, partial_of
from humanline.system.folders import begin_folder, drop_partial, seal_folder
from humanline.train.run.checkpoint import Contents, Position
from humanline.train.run.processes import Reduce, gathered, on_main
from humanline.train.run.tensor_files import HostCopies, TensorFile, write_files

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
Facts = dict[str, dict[str, Any]]  # size and SHA-256 of files, by their names


@dataclass(slots=True, kw_only=True)
class Saving:
    """A checkpoint that is being written; all processes of a run have one, and call its methods alike.

    Parameters
    ----------
    target : Path
        Its folder.
    position : Position
    contents : Contents
    refuse_lost, ready, accelerator, meet
        As in `Checkpoints`.
    """

    target: Path
    position: Position
    contents: Contents
    refuse_lost: Callable[[], None]
    ready: Callable[[], None]
    accelerator: Any
    meet: Reduce
    _writing: Writing | None = field(default=None, init=False)

    def at_once(self) -> None:
        """Write all of it and give it its name.

        Raises
        ------
        OSError
            If the disk fails this process, or another one; in the others MainProcessError where it fails the main one.
        LockLostError
            If another run has taken over the folder, in the main process; MainProcessError in the others.
        """
        self._begin()
        self._publish(lambda: write_files(self.target, self.contents.files(), HERE.touch))

    def start(self, copies: HostCopies) -> bool:
        """Begin it, copy what it holds, leave the writing to a thread, and return True; raise as `at_once` does.

        Where the memory for the copies is not to be had in every process, write it at once, and return False.
        """
        self._begin()
        files = self.contents.files()
        try:
            held = copies.of(files)
        except (MemoryError, RuntimeError):  # what torch raises; if it means anything else, writing meets it again
            held = []
        if self.meet(torch.tensor(float(not held)), "max").item():
            copies.let_go()
            self._publish(lambda: write_files(self.target, files, HERE.touch))
            return False
        self._writing = Writing(self.target, held)
        return True

    def is_written(self) -> bool:
        """Return whether the threads of all processes have ended, whatever has become of their files."""
        busy = self._writing is not None and not self._writing.ended
        return not self.meet(torch.tensor(float(busy)), "max").item()

    def finish(self) -> float:
        """Wait for the threads of all processes, give the checkpoint its name, and return how long writing took.

        Raises as `at_once` does.
        """
        writing = self._writing
        assert writing is not None
        self._publish(writing.result)
        return writing.seconds

    def give_up(self) -> None:
        """End the thread of this process; what it has written stays, hidden, until `drop` or the next start."""
        if self._writing is not None:
            self._writing.give_up()

    def drop(self) -> None:
        """Remove what the main process sees of it."""
        if self.accelerator.is_main_process:
            drop_partial(self.target)

    def _begin(self) -> None:
        on_main(self.accelerator, self.meet, self._begin_folder)

    def _begin_folder(self) -> None:
        self.ready()
        folder = self.target.parent
        if not folder.is_dir():
            folder.mkdir()
            flush(folder.parent)
        begin_folder(self.target, room=self.contents.size())
        self.contents.write_facts(partial_of(self.target), self.position)

    def _publish(self, write: Callable[[], Facts]) -> None:
        written = dict(together(write, self.meet, OSError("another process could not write its part")))
        for facts in gathered(json.dumps(written), self.contents.rank, self.contents.ranks, self.meet):
            written.update(json.loads(facts))
        on_main(self.accelerator, self.meet, lambda: self._seal(written))

    def _seal(self, written: Facts) -> None:
        self.refuse_lost()
        seal_folder(self.target, written)


class GivenUpError(Exception):
    """What ends a thread that writes what nobody wants any more."""


class Writing:
    """A thread that writes tensor files.

    Parameters
    ----------
    target : Path
        The checkpoint that they belong to.
    files : sequence of TensorFile
        Of tensors that do not change meanwhile.
    """

    def __init__(self, target: Path, files: Sequence[TensorFile]) -> None:
        self.seconds = 0.0  # that it took
        self._target, self._files, self._began = target, files, time.monotonic()
        self._unwanted = threading.Event()
        self._facts: Facts = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Return whether it has come to an end, good or bad."""
        return not self._thread.is_alive()

    def result(self) -> Facts:
        """Wait for it and return what `write_files` returned; raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._facts

    def give_up(self) -> None:
        """End it within a few pieces."""
        self._unwanted.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._facts = write_files(self._target, self._files, self._refuse_unwanted)
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - self._began

    def _refuse_unwanted(self) -> None:
        if self._unwanted.is_set():
            raise GivenUpError


def together(act: Callable[[], T], reduce: Reduce, elsewhere: E) -> T:
    """Run `act` in every process; where it raises such an error in one, raise `elsewhere` in the others."""
    result: list[T] = []
    error = None
    try:
        result.append(act())
    except type(elsewhere) as own:
        error = own
    if reduce(torch.tensor(float(error is not None)), "max").item():
        raise error or elsewhere
    return result[0]
