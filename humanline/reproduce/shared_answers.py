"""Answers of a start model that its runs share.

Before its first update every run draws the same answers of its start, by which `kl_from_start` is measured: they follow
from the start's weights, the prompts, the seed and how they are drawn, and take a tenth of a run of arithmetic. Where
one run from a start has drawn them the next one takes them, and is the same run bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from humanline.system.files import make_folder

if TYPE_CHECKING:
    from humanline.train.config import TrainConfig
    from humanline.train.run.result import RunResult


def train_sharing(config: TrainConfig, folder: Path) -> RunResult:
    """Train as `humanline.train.loop.train` does, with the start's answers that a run like it has left in a folder.

    The run looks at them itself: where they are damaged, to other prompts or of other weights it draws them anew. A
    disk that is full, or a folder that cannot be written, costs the next run its time and this one nothing.

    Parameters
    ----------
    config : TrainConfig
        With a section evaluation.distance.
    folder : Path
        Of one start model. A file in it for each seed and way of drawing.

    Raises
    ------
    ModelError, DataError, OutputError, ValueError, NonFiniteError, OSError
        As `train` does.
    """
    from humanline.train.loop import take_steps
    from humanline.train.run.result import RunResult
    from humanline.train.setup import set_up

    kept = folder / f"{_how_drawn(config)}.jsonl"
    with set_up(config, show_progress=False) as run:
        if isinstance(run, RunResult):
            return run
        assert run.distance is not None
        own = run.distance.file
        with contextlib.suppress(OSError):  # it draws its own
            if kept.is_file():
                make_folder(own.parent)
                shutil.copyfile(kept, own)
        result = take_steps(run)
    with contextlib.suppress(OSError):  # the next one draws its own
        if not kept.is_file() or kept.read_bytes() != own.read_bytes():
            make_folder(folder)
            partial = kept.with_name(f".{kept.name}.{os.getpid()}")  # other workers may be writing the same
            shutil.copyfile(own, partial)
            os.replace(partial, kept)
    return result


def _how_drawn(config: TrainConfig) -> str:
    """Return a digest of what decides them beside weights and prompts, which the file itself names."""
    evaluation, sampling = config.evaluation.model_dump(mode="json"), config.travelling.model_dump(mode="json")
    said = json.dumps([config.seed, evaluation, sampling], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]
