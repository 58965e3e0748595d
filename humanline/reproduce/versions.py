"""What a result depends on besides its settings: how runs are made and measured here, the task, and all other code."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from humanline.reproduce.testbeds.base import Testbed

_PACKAGE = Path(__file__).parent.parent
#: Raised when what a run is, or how it is measured, changes: results kept under an older number are not used.
PROTOCOL = 2
#: Modules of this room that decide it.
_DECIDE = ("answers", "recipe", "run", "shared_answers", "start", "subsets", "worker")


@functools.cache
def task_digest(testbed: Testbed) -> str:
    """Return a digest of a testbed: its settings and prompts, what is learned from, and what the judge says of it."""
    task = testbed.task
    limits = (testbed.max_tokens, testbed.max_length, testbed.vocab_size)
    prompts = [task.prompts(part) for part in ("train", "pairs", "score", "distance")]
    rows = [task.rows(source, 0) for source in ("near", "far", "better")]
    some = [row for of_source in rows for row in of_source[:100]]
    scores = [(task.score(*row.values()), task.judged(*row.values())) for row in some]
    said = json.dumps([testbed.name, repr(testbed.size), limits, prompts, rows, scores])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def made_by(testbed: Testbed) -> str:
    """Return what an outcome must share with another to be of the same experiment: the task, and how it is run."""
    return f"{PROTOCOL}-{task_digest(testbed)}"


@functools.cache
def code_digest() -> str:
    """Return a digest of the code that trains and measures and of the libraries' versions: kept with each result.

    Results of other code are used and counted: most changes there change no number.
    """
    from importlib.metadata import version

    parts = ("train", "objectives", "theory", "stats")
    files = [path for part in parts for path in sorted((_PACKAGE / part).rglob("*.py"))]
    files += [_PACKAGE / "reproduce" / f"{name}.py" for name in _DECIDE]
    # numpy orders rows, tokenizers makes tokens of them, scipy finds the temperature of matched answers.
    libraries = " ".join(version(name) for name in ("torch", "transformers", "numpy", "tokenizers", "scipy"))
    return _digest([*files, _PACKAGE / "schedule.py"], libraries)


def _digest(files: Iterable[Path], said: str = "") -> str:
    digest = hashlib.sha256(said.encode())
    for path in files:
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]
