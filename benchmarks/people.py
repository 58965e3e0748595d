"""A thousand people with a hundred choices each, pooled, beside one pass over all their choices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import Result, Row, timing_row
from humanline.fit import Choices, Likelihood, Model
from humanline.fit.people import fit_people

MEAN = np.log([0.8, 1.8, 0.6, 0.7, 0.2])  # curvature, loss aversion, gamma of gains and of losses, sensitivity
SPREAD = np.array([0.2, 0.3, 0.2, 0.2, 0.4])
#: Passes over all choices that one side of a comparison times.
PASSES = 20


def made(people: int, number: int) -> tuple[Choices, Likelihood, np.ndarray]:
    """Return what people of a normal law of logs choose in the same problems, their likelihood and coordinates."""
    rng = np.random.default_rng(0)
    outcomes = rng.integers(-40, 60, (2 * number, 4)).astype(float)
    count = rng.integers(1, 5, 2 * number)
    probs = rng.integers(1, 20, (2 * number, 4)) * (np.arange(4) < count[:, None])
    probs = probs / probs.sum(1, keepdims=True)
    sides = (outcomes[:number], probs[:number]), (outcomes[number:], probs[number:])
    settings = {"problem": np.tile(np.arange(number), people), "person": np.repeat(np.arange(people), number)}
    empty = Likelihood(Choices.between(*sides, np.zeros(people * number), **settings), Model(), by_person=True)
    truth = np.maximum(rng.normal(MEAN, SPREAD, (people, 5)), [-np.inf, -np.inf, np.log(0.2793), np.log(0.2793), -9.0])
    chosen = rng.random(people * number) < empty.predicted(truth)
    data = Choices.between(*sides, chosen.astype(float), **settings)
    return data, Likelihood(data, Model(), by_person=True), truth


def processor_seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call, which other work on the machine hardly moves."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def benchmark_people(quick: bool) -> Result:
    """Compare a pooled fit of everyone with passes over their choices, turn by turn, in processor time."""
    people, number, rounds = (40, 30, 1) if quick else (1000, 100, 3)
    data, likelihood, truth = made(people, number)
    found: dict[str, list[float]] = {"pooled": [], "pass": []}
    load = []
    for _ in range(rounds):
        load.append(os.getloadavg()[0])
        passes = processor_seconds(lambda: [likelihood.value(truth) for _ in range(PASSES)])
        found["pass"].append(passes / PASSES)
        found["pooled"].append(processor_seconds(lambda: fit_people(data, Model())))
    what = f"{people} people x {number} choices, five parameters, in processor time"
    told = f"median {np.median(found['pooled']):.3g} s of one core; load {min(load):.1f} to {max(load):.1f}"
    rows = [
        timing_row("-", f"{what}: pooled fit / one pass over all choices", found["pooled"], found["pass"], note=told)
    ]
    if not quick:
        most = float(np.median(found["pooled"]))
        rows.append(Row("25", f"{what}: pooled fit", (f"{most:.3g} s", "60 s"), most, None, "<= 60 s", most <= 60))
    return Result({"people": people, "choices": number, "rounds": rounds}, rows, found)
