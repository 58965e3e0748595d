"""Run the toy task in several processes, forked or under `python -m torch.distributed.run`: for test_distributed.py.

A job is {"config", "resume", "stop_after", "full", "expect"}: `stop_after` asks one process alone to stop once the log
has so many steps, `full` has the main process find so many times no space for a checkpoint, `expect` names the
exception that every process must raise. Two more are optional: `file_bytes` is how large a file of a model may be, and
`no_file` the number of the file of the finished model for which there is no space. Of each job every process prints how
often it ran the policy.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

from humanline.system import disk
from humanline.system import files as system_files
from humanline.system import folders as system_folders
from humanline.system.stop import StopRequested
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from humanline.train.policy import save
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.run import saving
from humanline.train.run.collapse import CollapseError


class StopOfOne:
    """A StopSignal that only the second process receives, after so many steps."""

    holding = True

    def __init__(self, metrics: Path, after: int) -> None:
        self.metrics, self.after = metrics, after

    def hold(self) -> None:
        """Do nothing: it never raises by itself."""

    @property
    def requested(self) -> str | None:
        text = self.metrics.read_text() if self.metrics.exists() else ""
        return "SIGTERM" if os.environ["RANK"] == "1" and text.count('"step"') >= self.after else None


def fill_disk(times: int) -> None:
    """Let the main process find no space for a checkpoint, so many times."""
    left, begin = [times], system_folders.begin_folder

    def begin_folder(folder: Path, *, room: int) -> Path:
        if left[0] and os.environ["RANK"] == "0":
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return begin(folder, room=room)

    saving.begin_folder, disk.LOOK_AGAIN = begin_folder, 0.2


def count_passes() -> list[int]:
    """Return a list of one number, which every pass of the policy raises."""
    passes, forward = [0], LogprobModel.forward

    def counted(self: LogprobModel, *inputs: Any) -> Any:
        passes[0] += 1
        return forward(self, *inputs)

    LogprobModel.forward = counted  # type: ignore[method-assign]
    return passes


def write_models(file_bytes: int, no_file: int) -> None:
    """Limit the files of a model, and have the main process find no space for one of them."""
    count = [0]

    def flush_or_fail(path: Path) -> None:
        count[0] += 1
        if count[0] == no_file:
            raise OSError(errno.ENOSPC, "No space left on device")
        system_files.flush(path)

    save.FILE_BYTES, save.flush = file_bytes, flush_or_fail


def run(job: dict[str, Any]) -> str:
    fill_disk(job["full"])
    write_models(job.get("file_bytes", 4 * 2**30), job.get("no_file", 0))
    config = TrainConfig.model_validate(job["config"])
    stop: Any = StopOfOne(Path(config.output) / "metrics.jsonl", job["stop_after"]) if job["stop_after"] else None
    try:
        train(config, resume=job["resume"], stop=stop, show_progress=False)
    except (StopRequested, CollapseError, ValueError) as error:
        print(f"rank {os.environ['RANK']}: {type(error).__name__}: {error}", file=sys.stderr)
        return type(error).__name__
    return ""


def main() -> None:
    passes = count_passes()
    for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        passes[0] = 0
        got = run(job)
        print(f"{job['config']['output']}: {passes[0]} passes\n", end="", file=sys.stderr)  # whole lines of several
        if got not in job["expect"]:
            print(f"{job}: got {got!r}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
    # Without its teardown: gloo aborts now and then in a finished process ("terminate called without an active
    # exception"), in a script of five lines of torch alone just as here, whether or not the group is destroyed first.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
