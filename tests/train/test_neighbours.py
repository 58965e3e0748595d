"""Of two processes of a run one is killed, fails or hangs: the other ends in time, says whom and what, and all goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.train.kills import result_of
from tests.train.support import config
from tests.train.test_distributed import free_port

QUICK = {"tick": 0.2, "unheard": 10, "unreachable": 10, "grace": 2.0, "patience": 4.0}
REWARD = {"kind": "function", "call": "tests.train.toy_rewards:digits"}


class Pairs:
    """A process that forks two for each run (`neighbours_run.py`)."""

    def __init__(self, model: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.neighbours_run", model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        )

    def run(self, settings: Any, *, resume: bool = False, periods: Any = QUICK, **job: Any) -> dict[str, Any]:
        recipe = Path(settings.output).with_suffix(".yaml")
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(json.dumps(settings.model_dump(mode="json")), encoding="utf-8")
        job |= {"recipe": str(recipe), "resume": resume, "port": free_port()}
        if periods is not None:
            job["periods"] = periods
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="module")
def pairs(toy):
    made = Pairs(toy["model"])
    yield made
    made.close()


def fixed(toy, folder, **changes: Any) -> Any:
    """A run on fixed data, with a checkpoint every two steps."""
    return config(
        toy,
        folder / "run",
        "dpo",
        data__eval=toy["held_out"],
        evaluation={"batch_size": 2, "every": 2},
        reference={"schedule": {"kind": "before_step", "every": 2}},
        checkpoint={"every": 2},
        training={"steps": 6, "batch_size": 8, "micro_batch_size": 2} | changes,
    )


def online(toy, folder) -> Any:
    """A run in three rounds of two steps."""
    return config(
        toy,
        folder / "run",
        "grpo",
        data={"train": toy["pairs"], "max_length": 64},
        rounds={"contexts_per_round": 16, "samples": 4, "count": 3, "steps": 2},
        sampling={"max_tokens": 8, "engine": {"kind": "generate", "batch_size": 8}},
        reference={"schedule": {"kind": "before_step", "every": 2}},
        scoring={"rewards": [REWARD], "workers": 1},
        training={"batch_size": 8, "micro_batch_size": 4},
    )


def fault(rank: int, place: str, how: str, after: int) -> dict[str, Any]:
    return {"rank": rank, "place": place, "how": how, "after": after}
