"""What ages without a sync do to GRPO, by its own clip: `python studies/simulator/own_clip.py`, about a minute.

Prints, for each problem and each clip range of GRPO, the score of syncing every 15 steps minus that of a reference that
has the same ages and is never synced, as a share of what there is to gain: mean and 95 % interval over 100 seeds, or as
many as are given (`own_clip.py 4`).
"""

from __future__ import annotations

import sys
from dataclasses import replace

from humanline.sim.objectives import Grpo
from humanline.sim.run import simulate
from humanline.sim.threads import one_thread
from humanline.sim.variants import OBJECTIVES, make_run
from humanline.stats import mean_interval

SETTINGS = ("bandit", 0.1), ("sequence", 0.3)  # problem, learning rate
CLIPS = 0.15, 0.5, 0.9  # the first is the study's
SYNCED, NEVER_SYNCED = "sync only k=15", "never synced, of the same ages"


def difference(task: str, rate: float, clip_eps: float, seeds: range, steps: int = 256) -> list[float]:
    """Return how much higher the synced runs end than those never synced, for each seed."""
    objective = OBJECTIVES["grpo"]
    assert isinstance(objective, Grpo)
    ends = []
    for variant in (SYNCED, NEVER_SYNCED):
        run = make_run(task, "grpo", rate, variant, steps=steps)
        with one_thread():
            trace = simulate(replace(run, objective=replace(objective, clip_eps=clip_eps)), seeds)
        start, end = trace.scores[:, 0], trace.scores[:, -1]
        ends.append((end - start) / (trace.world.best_score() - start))
    return (ends[0] - ends[1]).tolist()


def main(seeds: int = 100) -> None:
    """Print the table."""
    for task, rate in SETTINGS:
        for clip_eps in CLIPS:
            found = mean_interval(difference(task, rate, clip_eps, range(seeds)))
            print(f"{task}, lr {rate:g}, clip {clip_eps:g}: {found.mean:+.3f} ± {found.half_width:.3f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
