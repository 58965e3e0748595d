"""Prepared prospects beside plain calls of the theory, fits of large sets, their memory, and what importing costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.capacity import import_seconds
from benchmarks.interleave import interleave
from benchmarks.peak import peak_mib
from benchmarks.report import Result, Row, timing_row
from humanline.fit import Choices, Likelihood, Model, fit_prospect, prepare
from humanline.theory import PowerValue, TverskyKahneman, subjective_utility

MOST, STARTS = 9, 10
VALUE, GAIN, LOSS = PowerValue(0.8, 0.7, 2.0), TverskyKahneman(0.61), TverskyKahneman(0.69)
TRUTH = {"curvature": 0.8, "loss_aversion": 1.8, "gain.gamma": 0.6, "loss.gamma": 0.7, "sensitivity": 0.2}
Array = NDArray[np.float64]


def prospects(number: int, *, hundredths: bool = True, whole: bool = True, seed: int = 0) -> tuple[Array, Array]:
    """Return prospects of one to nine outcomes, equally often, padded: (R, 9) outcomes and probabilities.

    Outcomes are whole numbers from -50 to 100, unless not `whole`; probabilities whole hundredths, as in most public
    sets, or any.
    """
    rng = np.random.default_rng(seed)
    z = rng.integers(-50, 101, (number, MOST)) + (0.0 if whole else rng.random((number, MOST)))
    there = np.arange(MOST) < rng.integers(1, MOST + 1, number)[:, None]
    if not hundredths:
        p = rng.random((number, MOST)) * there
        return z, p / p.sum(1, keepdims=True)
    cuts = 1 + np.argsort(rng.random((number, 99)), axis=1)[:, : MOST - 1]
    cuts = np.sort(np.where(there[:, 1:], cuts, 100), axis=1)
    return z, np.diff(cuts, axis=1, prepend=0, append=100) / 100


def large_set(pairs: int) -> Callable[[], object]:
    """Return the work of making, preparing and judging a set of pairs once, with all derivatives."""

    def work() -> object:
        size = min(50_000, 2 * pairs)
        parts = [prospects(size, seed=seed) for seed in range(2 * pairs // size)]
        z, p = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        del parts
        data = Choices.between((z[:pairs], p[:pairs]), (z[pairs:], p[pairs:]), np.arange(pairs) % 2)
        del z, p
        likelihood = Likelihood(data, Model())
        return likelihood.derivatives(likelihood.coordinates(TRUTH))

    return work


def benchmark_fits(quick: bool) -> Result:
    """Compare utilities with all derivatives to plain calls; time ten starts; measure memory and the import."""
    pairs, many, rounds, imports = (200, 1000, 6, 2) if quick else (15_000, 1_000_000, 40, 10)
    rows, seconds = [], {}
    for hundredths, whole in ((True, True), (False, True), (False, False)):
        made = f"{'hundredths' if hundredths else 'any'} as probabilities, {'whole' if whole else 'any'} outcomes"
        found = _prepared_and_plain(pairs, rounds, hundredths=hundredths, whole=whole)
        what = f"utilities and all derivatives, {pairs} pairs, {made} / two presorted calls"
        note = "stretch 0.05" if hundredths else "no probability twice: nothing is saved by evaluating each once"
        rows.append(timing_row("fit 1", what, found["prepared"], found["plain"], limit=0.1, note=note))
        seconds |= {f"{name}, {made}": taken for name, taken in found.items()}
    rows += _fit_rows(pairs, 2 if quick else 3, seconds)
    mib = peak_mib("benchmarks.fits:large_set", fresh=not quick, pairs=many)
    what = f"peak memory of making, preparing and judging {many:.0e} pairs, with derivatives"
    rows.append(Row("fit 4", what, (f"{mib:.0f} MiB", "2048 MiB"), mib / 2048, target="<= 1", met=mib <= 2048))
    rows.append(_import_row(imports, seconds))
    return Result({"pairs": pairs, "many": many, "rounds": rounds, "starts": STARTS}, rows, seconds)


def _prepared_and_plain(pairs: int, rounds: int, **kind: bool) -> dict[str, list[float]]:
    z, p = prospects(2 * pairs, **kind)
    order = np.argsort(z, axis=1, kind="stable")
    z, p = np.take_along_axis(z, order, 1), np.take_along_axis(p, order, 1)
    table = prepare(z, p)
    human: dict[str, Any] = {"value": VALUE, "gain": GAIN, "loss": LOSS}

    def plain() -> None:
        for half in (slice(None, pairs), slice(pairs, None)):
            subjective_utility(z[half], p[half], presorted=True, **human)

    return interleave({"prepared": lambda: table.jacobian(**human), "plain": plain}, rounds=rounds, warm_up=3)


def _fit_rows(pairs: int, rounds: int, seconds: dict[str, list[float]]) -> list[Row]:
    """Return the rows of fits of ten starts, preparation included, and of how many came to one optimum."""
    z, p = prospects(2 * pairs, seed=1)
    sides = (z[:pairs], p[:pairs]), (z[pairs:], p[pairs:])
    likelihood = Likelihood(Choices.between(*sides, np.zeros(pairs)), Model())
    chosen = np.random.default_rng(2).random(pairs) < likelihood.predicted(likelihood.coordinates(TRUTH))
    taken, agreeing = [], 0
    for _ in range(rounds):
        started = time.perf_counter()
        agreeing = fit_prospect(Choices.between(*sides, chosen), starts=STARTS).starts.agreeing
        taken.append(time.perf_counter() - started)
    seconds["ten starts"] = taken
    what, quickest = f"a fit of {pairs} pairs, {STARTS} starts, preparation included", min(taken)
    sides_shown = f"{median(taken):.2f} s", "5 s"
    note = f"the quickest {quickest:.2f} s; meant for two quiet cores"
    share = agreeing / STARTS
    what_share = "starts that agree to 1e-8 in the log-likelihood / all"
    return [
        Row("fit 2", what, sides_shown, median(taken) / 5, target="<= 1", met=median(taken) <= 5, note=note),
        Row("fit 3", what_share, (str(agreeing), str(STARTS)), share, target=">= 0.5", met=share >= 0.5),
    ]


def _import_row(imports: int, seconds: dict[str, list[float]]) -> Row:
    statements = {"humanline.fit": "import humanline.fit", "numpy": "import numpy"}
    calls = {name: lambda text=text: import_seconds(text) for name, text in statements.items()}
    found = interleave(calls, rounds=imports, warm_up=1)
    seconds |= {f"import {name}": taken for name, taken in found.items()}
    note = f"meant to be below 0.5 s on two quiet cores: quickest {min(found['humanline.fit']):.2f} s"
    return timing_row(
        "-", "a fresh `import humanline.fit` / `import numpy`", found["humanline.fit"], found["numpy"], note=note
    )
