"""What a step's batch costs the thread that trains: made there when it is asked for, or in another one ahead of time.

Both sides are one step of training each, scored one step ahead, so that two batches are asked for.
"""

from __future__ import annotations

import time
from unittest.mock import patch

import numpy as np

from benchmarks.report import Result, Row, timing_row
from humanline.train.config.objective import DpoObjective, KtoObjective, ObjectiveSection
from humanline.train.data import batch
from humanline.train.data.batch import Unit
from humanline.train.data.sequences import Sequences
from humanline.train.data.stream import FixedBatches, Stream
from humanline.train.data.units import Names, Units

LIMIT = 0.06
VOCABULARY = 32_000


class Earlier(Stream):
    """A stream as it was: the permutation of an epoch is drawn again for each batch."""

    def _draw(self, start: int, count: int) -> list[Unit]:
        drawn: list[Unit] = []
        size = len(self.units)
        for position in range(start, start + count):
            epoch, place = divmod(position, size)
            if place == 0 or not drawn:
                order = self._shuffled(epoch)
            drawn.append(self.units[order[place]])
        return drawn


def benchmark_batches(quick: bool) -> Result:
    """Ask for the batches of steps that are scored one step ahead, both ways, side by side, step by step."""
    settings = {"units": 2_000, "batch": 8} if quick else {"units": 60_000, "batch": 32}
    settings |= {"micro_batch": 4, "prompt": 200, "answer": 300, "rounds": 8 if quick else 100, "warm_up": 2}
    rows: list[Row] = []
    seconds: dict[str, list[float]] = {}
    for objective in (DpoObjective(), KtoObjective()):
        earlier, ready = _asked(_units(objective, settings), objective, settings)
        seconds |= {f"{objective.kind}, when asked": earlier, f"{objective.kind}, ahead": ready}
        what = f"a step's batch in the thread that trains, {settings['units']} units, {objective.title}: ahead / before"
        rows.append(timing_row("-", what, ready, earlier, limit=LIMIT))
    return Result(settings, rows, seconds)


def _asked(units: Units, objective: ObjectiveSection, settings: dict[str, int]) -> tuple[list[float], list[float]]:
    """Return the seconds that asking for the batches of a step takes, as it was and as it is."""
    options = {"micro_batch_size": settings["micro_batch"], "seed": 0, "pad_id": 0, "max_length": 512}
    before = Earlier(units, objective, batch_size=settings["batch"], **options)  # type: ignore[arg-type]
    steps = settings["warm_up"] + settings["rounds"]
    now = FixedBatches(
        Stream(units, objective, batch_size=settings["batch"], **options),  # type: ignore[arg-type]
        steps + 1,
    )
    order = np.random.default_rng(0)
    taken: tuple[list[float], list[float]] = ([], [])
    now.prepare(0)
    for step in range(steps):
        for side in order.permutation(2):
            started = time.perf_counter()
            if side:
                now.prepare(step)
                batches = now.step(step + 1), now.step(step)  # scored, and trained on
            else:
                with patch.object(batch, "find_indices", lambda *_: None):  # which passes found for themselves
                    batches = before.step(step + 1), before.step(step)
            took = time.perf_counter() - started
            del batches
            if step >= settings["warm_up"]:
                taken[side].append(took)
            time.sleep(max(0.05, 3 * took))  # for which a step computes: hundreds of times as long on a large model
    now.close()
    return taken


def _units(objective: ObjectiveSection, settings: dict[str, int]) -> Units:
    rng = np.random.default_rng(0)
    sequences, names = Sequences(), Names()
    for number in range(settings["units"]):
        prompt, *answers = (
            rng.integers(VOCABULARY, size=rng.integers(most // 10, most)).tolist()
            for most in (settings["prompt"], *[settings["answer"]] * objective.members)
        )
        start = sequences.store.add(prompt)
        spans = [(sequences.store.add(answer), len(answer)) for answer in answers]
        sequences.add((start, len(prompt)), number, spans, [0] * len(spans))
        names.append(f"rows.jsonl:{number + 1}")
    return Units(sequences, names)
