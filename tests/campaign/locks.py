"""File systems whose locks fail: a run is refused with words or goes on, and a killed one can be resumed there."""

from __future__ import annotations

import errno
from functools import partial

from tests.campaign.faults import Faults
from tests.campaign.stage import Stage
from tests.campaign.undisturbed import compare, finish_and_compare, output, recipe, whole
from tests.helpers.barriers import kill_at

FAULTS = [("flock", error) for error in ("ENOSYS", "ENOLCK", "EOPNOTSUPP", "EIO", "EINVAL", "ESTALE")]
FAULTS += [("link", error) for error in ("EPERM", "ENOSYS", "EOPNOTSUPP", "EMLINK", "EIO")]
FAULTS += [("utime", error) for error in ("EPERM", "EIO", "EROFS")]
COUNT = 2 * len(FAULTS)
_RUN = "DPO, scored ahead"


def play(stage: Stage) -> None:
    what, error = FAULTS[stage.number % len(FAULTS)]
    killed = stage.number // len(FAULTS) % 2 == 1
    fault = Faults(str(output(stage.folder)), what, 0, getattr(errno, error), stays=True)
    stage.name = f"{what} gives {error}{', and SIGKILL' if killed else ''}"
    recipe(stage, _RUN)
    if not killed:
        if stage.run("train", "recipe.yaml", before=(fault,)).code == 0:
            compare(stage, _RUN, "finished in spite of it")
        else:
            finish_and_compare(stage, _RUN, stage.name)
        return
    barriers = len(whole(stage, _RUN).barriers)
    at = partial(kill_at, stage.rng.randrange(barriers // 4, barriers))
    if stage.run("train", "recipe.yaml", allowed=(2, -9), before=(fault, at)).code == -9:
        outcome = stage.run("train", "recipe.yaml", "--resume", allowed=(0,), before=(fault,))
        if outcome.code == 0:
            compare(stage, _RUN, stage.name)
    else:
        finish_and_compare(stage, _RUN, stage.name)
