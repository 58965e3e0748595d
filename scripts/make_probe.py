"""Write studies/frontier/probe.csv and probe.md: how well a run's first part tells how far it will end.

`python scripts/make_probe.py DIR` runs the cells, start models and pairs lying in DIR as `humanline reproduce` leaves
them there; `python scripts/make_probe.py` makes probe.md of probe.csv alone, and with --check says whether it is that.
"""

from __future__ import annotations

import math
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from humanline.reproduce.cells import FEW_SCALE, LRS, OBJECTIVES, Cell
from humanline.reproduce.probe import Journey, probe_table, read_journeys, write_journeys
from humanline.reproduce.run import Job, configured
from humanline.reproduce.testbeds.registry import testbed
from humanline.system.committed import leave, options

FOLDER = Path(__file__).resolve().parent.parent / "studies" / "frontier"
LOOKS = 10
STARTS = 3
SYNCS = (8, 32)
TEXT = f"""# How far will this run end? Told early

`python scripts/make_probe.py DIR` makes [probe.csv](probe.csv), and this file of it: {LOOKS} looks at
KL(policy || start) during runs of the letters task, one run of each of 36 cells (three objectives, four learning
rates; offline, humanline with k = 8 and 32), in turn from the three start models. The rate warms up over the first
tenth of a run and is constant then. Cells, forecasts and numbers were fixed before the first of these runs.

Three forecasts of the distance at the end are made after a fifth and two fifths of the steps: by the power law through
the run's own looks then and at half that time; by the mean growth, in log KL, of all other cells from there; by that of
the other cells of its kind. "Factor" is how many times too far or too near: 1.2 is 20 % off. "Bias" above 1 tells too
far. "Order" is the rank correlation of what was told with what came: what counts in choosing between settings.

"""


def cells() -> list[Cell]:
    """Return the cells, each of which is run once."""
    found = []
    for objective in OBJECTIVES:
        for lr in LRS:
            found.append(Cell(objective, "offline", lr, **FEW_SCALE[objective]))  # type: ignore[arg-type]
            for every in SYNCS:
                found.append(Cell(objective, "humanline", lr, every=every, **FEW_SCALE[objective]))  # type: ignore[arg-type]
    return found


def journey(job: Job, folder: Path) -> Journey | None:
    """Run a job with looks on its way; None if it did not stay finite."""
    import torch

    from humanline.train.config import TrainConfig
    from humanline.train.loop import train
    from humanline.train.run.metrics import read_metrics
    from humanline.train.run.processes import NonFiniteError

    torch.set_num_threads(1)
    config = configured(job, folder)
    steps = config["training"]["steps"]
    config["evaluation"]["every"] = round(steps / LOOKS)
    config["evaluation"]["distance"]["to_start"] = "looks"
    shutil.rmtree(config["output"], ignore_errors=True)
    try:
        metrics = train(TrainConfig.model_validate(config), show_progress=False).metrics_file
    except NonFiniteError:
        return None
    looks = {row["updates"]: row["held_out"]["kl_to_start"] for row in read_metrics(metrics) if "held_out" in row}
    shutil.rmtree(config["output"])
    kind = job.cell.variant + (f", k = {job.cell.every}" if job.cell.every else "")
    found = sorted((updates / steps, distance) for updates, distance in looks.items() if updates)
    if any(not math.isfinite(distance) or distance <= 0 for _, distance in found):
        return None
    shares, distances = zip(*found, strict=True)
    return Journey(job.cell.name, kind, shares, distances)


def main() -> int:
    """Run the cells if a folder is given, and write or check probe.md."""
    parser = options("Write how well a run's first part tells how far it will end.")
    parser.add_argument("folder", nargs="?", type=Path, help="run the cells, from start models that lie there")
    given = parser.parse_args()
    if given.folder is not None:
        jobs = [Job(testbed("letters"), cell, place % STARTS, 0) for place, cell in enumerate(cells())]
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            found = list(pool.map(journey, jobs, [given.folder] * len(jobs)))
        print(f"{sum(one is None for one in found)} of {len(found)} runs did not stay finite, and are left out")
        write_journeys(FOLDER / "probe.csv", [one for one in found if one is not None])
    return leave(FOLDER / "probe.md", TEXT + probe_table(read_journeys(FOLDER / "probe.csv")), check=given.check)


if __name__ == "__main__":
    sys.exit(main())
