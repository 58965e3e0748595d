"""Kill training runs at chosen moments, resume them, and compare what comes out with a run that was left alone."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from humanline.train.config import TrainConfig
from humanline.train.config.own_sources import own_parts
from humanline.train.run.metrics import read_metrics
from tests.helpers.processes import Answering, free_port
from tests.helpers.support import without_timing

KILLED = -9


def mounts_are_allowed(folder: Path) -> bool:
    """Return whether a process of ours can have a file system that nobody else sees."""
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        return subprocess.run(words, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


class Server:
    """A process that forks one child a run; one thread each, so that results are the same bit for bit.

    With `mount`, a folder, it has a file system of its own there, of 80 MiB, which nobody else sees.
    """

    def __init__(self, model: str, mount: Path | None = None) -> None:
        self.model, self.mount = model, mount

    def __enter__(self) -> Self:
        mount = 'mount -t tmpfs -o size=80m tmpfs "$0" && exec "$@"'
        small = ["unshare", "-rm", "sh", "-c", mount, str(self.mount)] if self.mount is not None else []
        self.process = Answering("tests.helpers.fork_server", self.model, before=small)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.close(at_once=True)

    def run(self, config: TrainConfig, *, resume: bool = False, **when: Any) -> dict[str, Any]:
        """Run a configuration; `kill_at=n` kills it at its n-th write barrier, `kill_after`, `stop_after` in seconds.

        `stop_after` sends `signal` (SIGTERM), `signal_at=[n, ...]` at write barriers; the clock starts when the path
        `once_there` exists. `ignored` names signals that the run finds ignored, `flock` the error that flock gives.
        `largest_file` (bytes) makes longer writes fail, `slow_to_save` makes a save take a minute. `fill_at=n` fills
        the disk by a file `ballast` at the n-th barrier; it is removed after `free_after` seconds, or the run stopped
        after `stop_full_after`, and `look_again` is how long it waits for space. `log` is where its standard error
        goes, by itself beside the output. Returns exit code (-9 when killed, 75 when stopped), seconds, log, and the
        barriers passed by one that ended.
        """
        log = Path(when.pop("log", Path(config.output).with_suffix(".log")))
        log.parent.mkdir(exist_ok=True, parents=True)
        beside = next((part.beside for part in own_parts(config)), None)
        job = {"config": config.model_dump(), "beside": beside, "resume": resume, "log": str(log)}
        outcome = self.process.ask(job | when)
        outcome["log"] = log.read_text(encoding="utf-8") if log.exists() else ""
        barriers = log.with_suffix(".barriers")
        outcome["barriers"] = json.loads(barriers.read_text()) if barriers.exists() else []
        barriers.unlink(missing_ok=True)
        return outcome

    def ranks(self, module: str, *words: object, folder: Path, ranks: int = 2, imports: Iterable[str] = ()) -> str:
        """Run the `main` of a module in processes that share a run (`forked_ranks.py`), and return what they said."""
        job = {"module": module, "words": list(map(str, words)), "folder": str(folder), "ranks": ranks}
        outcome = self.play("tests.helpers.forked_ranks", job | {"port": free_port(), "imports": list(imports)})
        said = "".join(outcome["said"])
        assert outcome["codes"] == [0] * ranks, f"{outcome['codes']}: {said[-9000:]}"
        return said

    def play(self, module: str, job: dict[str, Any]) -> dict[str, Any]:
        """Have a module's `run` play a job."""
        return self.process.ask({"by": module, **job})

    def shell(self, *words: object) -> None:
        """Run a command where the server's file system can be seen."""
        assert self.process.ask({"shell": list(map(str, words))})["code"] == 0, words


def result_of(config: TrainConfig) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the checksums of the finished model's files and of `levels.json`, and the metrics without timings."""
    folder = Path(config.output)
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in [*(folder / "final").iterdir(), *folder.glob("levels.json")]
        if path.name != "manifest.json"
    }
    return files, without_timing(list(read_metrics(folder / "metrics.jsonl")))
