"""A write, flush, rename or removal that fails once or from then on: said, nothing lost, resumed to the same bits."""

from __future__ import annotations

import errno

from tests.campaign.faults import WRITES, Faults
from tests.campaign.stage import Stage
from tests.campaign.undisturbed import RUNS, compare, finish_and_compare, output, recipe, whole

COUNT = 192
_ERRORS = ("ENOSPC", "EIO", "EROFS", "EINVAL", "ENOTSUP", "ESTALE")
_NAMES = ("DPO, scored ahead", "rounds", "LoRA", "KTO")


def play(stage: Stage) -> None:
    name = _NAMES[stage.number % len(_NAMES)]
    what = WRITES[stage.number // len(_NAMES) % len(WRITES)]
    error = _ERRORS[stage.number // len(_NAMES) // len(WRITES) % len(_ERRORS)]
    stays = bool(stage.rng.randrange(2))
    at = stage.rng.randrange(max(1, whole(stage, name).changes[what]))
    stage.name = f"{name}: {error} at {what} {at}{' and all after it' if stays else ''}"
    recipe(stage, name)
    fault = Faults(str(output(stage.folder)), what, at, getattr(errno, error), stays)
    outcome = stage.run("train", "recipe.yaml", before=(fault,))
    if outcome.code == 0:
        compare(stage, name, "finished in spite of it")
        stage.count("went on")
    else:
        stage.count("refused with words")
        finish_and_compare(stage, name, stage.name)


assert all(name in RUNS for name in _NAMES)
