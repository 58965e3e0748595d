"""The Tversky-Kahneman capacity on large numpy arrays, beside the plain expression (11), and the theory's import."""

from __future__ import annotations

import subprocess
import sys
import warnings
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.interleave import interleave
from benchmarks.report import Result, Row, timing_row
from humanline.theory import TverskyKahneman

GAMMA = 0.61
#: A gamma so small that the plain expression overflows.
TINY_GAMMA = 1 / 1100


def plain(p: NDArray[np.float64], gamma: float = GAMMA) -> NDArray[np.float64]:
    """Write Eq. 3 as it stands."""
    return p**gamma / (p**gamma + (1 - p) ** gamma) ** (1 / gamma)


def import_seconds(statement: str) -> None:
    """Run a statement in a fresh interpreter."""
    subprocess.run([sys.executable, "-c", statement], check=True)


def benchmark_capacity(quick: bool) -> Result:
    """Compare one pass over uniform probabilities, and importing the theory with importing numpy alone."""
    size, rounds, warm_up, imports = (10_000, 6, 2, 2) if quick else (10_000_000, 30, 2, 10)
    p = np.random.default_rng(0).random(size)
    p[0], p[-1] = 0.0, 1.0
    capacity, out = TverskyKahneman(GAMMA), np.empty_like(p)
    calls = {
        "plain": lambda: plain(p),
        "humanline": lambda: capacity(p),
        "log": lambda: capacity.log(log_p),
        "copy": lambda: np.copyto(out, p),
    }
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    seconds = interleave(calls, rounds=rounds, warm_up=warm_up)
    ours = seconds["humanline"]
    difference = float(np.max(np.abs(capacity(p) - plain(p))))
    what = f"capacity of {size:.0e} float64 values, numpy"
    rows = [
        timing_row(
            "11",
            f"{what}: humanline / plain expression",
            ours,
            seconds["plain"],
            limit=1.0,
            note=f"stretch 0.6; largest difference between the two {difference:.1e}",
        ),
        timing_row("-", f"{what}: humanline / a copy", ours, seconds["copy"]),
        timing_row("-", f"{what}: its log, from log-probabilities / the capacity", seconds["log"], ours),
        _stability_row(),
    ]
    statements = {"theory": "import humanline.theory", "numpy": "import numpy, scipy.special"}
    starts = interleave(
        {name: lambda text=text: import_seconds(text) for name, text in statements.items()}, rounds=imports, warm_up=1
    )
    rows.append(
        timing_row(
            "-",
            "a fresh `import humanline.theory` / `import numpy, scipy.special`",
            starts["theory"],
            starts["numpy"],
            note=f"the theory itself takes {1000 * (median(starts['theory']) - median(starts['numpy'])):.0f} ms",
        )
    )
    settings = {"size": size, "gamma": GAMMA, "rounds": rounds, "warm_up": warm_up, "imports": imports}
    return Result(settings, rows, seconds | {f"import {name}": taken for name, taken in starts.items()})


def _stability_row() -> Row:
    """Evaluate both at a gamma at which the plain expression overflows."""
    with np.errstate(all="ignore"):
        other = float(plain(np.array([0.5]), TINY_GAMMA)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ours = TverskyKahneman(TINY_GAMMA).log(np.log([0.5]))
    exact = (1 - TINY_GAMMA - 1 / TINY_GAMMA) * float(np.log(2))
    return Row(
        "-",
        f"ln Omega(1/2) at gamma = 1/{1 / TINY_GAMMA:.0f}, relative error: humanline, plain expression",
        (f"{abs(float(ours[0]) / exact - 1):.1e}", "-inf" if other == 0 else f"{abs(np.log(other) / exact - 1):.1e}"),
    )
