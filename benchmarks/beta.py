"""Beta draws and distribution functions with one shape equal to 1, beside numpy and scipy (12)."""

from __future__ import annotations

import numpy as np
from scipy import special, stats

from benchmarks.interleave import interleave
from benchmarks.report import Result, timing_row
from humanline.theory import BetaShape

#: The first is Proposition 4.1's; what numpy needs depends on the shapes.
SHAPES = ((0.61, 1.0), (1.0, 0.61), (3.0, 1.0))
LIMIT = 1 / 8
NOTE = "betainc has a shortcut of its own where a shape is 1; the next row is its general method"
FLOOR = "the floor of exp(-E / a); a uniform number is drawn quicker, but its power takes longer: as long in all"


def benchmark_beta(quick: bool) -> Result:
    """Compare draws with numpy's generator, and distribution functions with scipy's two."""
    size = 10_000 if quick else 1_000_000
    rounds, warm_up = (6, 2) if quick else (30, 3)
    rng = np.random.default_rng(0)
    x, exponential = rng.random(size), np.empty(size)
    rows, seconds = [], {}
    for a, b in SHAPES:
        shape, frozen = BetaShape(a, b), stats.beta(a, b)
        found = interleave(
            {
                "draws, humanline": lambda shape=shape: shape.sample(rng, size),
                "draws, numpy": lambda a=a, b=b: rng.beta(a, b, size),
                "exponential numbers": lambda: rng.standard_exponential(out=exponential),
                "cdf, humanline": lambda shape=shape: shape.cdf(x),
                "cdf, scipy.special.betainc": lambda a=a, b=b: special.betainc(a, b, x),
                "cdf, betainc's general method": lambda a=a, b=b: special.betainc(a + 1e-4, b + 1e-4, x),
                "cdf, scipy.stats.beta": lambda frozen=frozen: frozen.cdf(x),
            },
            rounds=rounds,
            warm_up=warm_up,
        )
        law = f"Beta({a:g}, {b:g})"
        what = f"{size} draws of {law}: humanline / numpy"
        rows.append(timing_row("12", what, found["draws, humanline"], found["draws, numpy"], limit=LIMIT))
        what = f"{size} standard exponential numbers, of which draws are made / numpy's draws of {law}"
        rows.append(timing_row("-", what, found["exponential numbers"], found["draws, numpy"], note=FLOOR))
        for other in ("scipy.special.betainc", "betainc's general method", "scipy.stats.beta"):
            what = f"{size} values of the cdf of {law}: humanline / {other}"
            note = NOTE if other == "scipy.special.betainc" else ""
            sides = found["cdf, humanline"], found[f"cdf, {other}"]
            target = not other.startswith("betainc's")
            rows.append(timing_row("12" if target else "-", what, *sides, limit=LIMIT if target else None, note=note))
        seconds |= {f"{law} {name}": values for name, values in found.items()}
    settings = {"size": size, "shapes": [list(shape) for shape in SHAPES], "rounds": rounds, "warm_up": warm_up}
    return Result(settings, rows, seconds)
