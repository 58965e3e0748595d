"""How often intervals of people cover what was true: `python -m tests.fit.people.coverage --full` prints it."""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

from humanline.fit import NotConverged
from humanline.fit.people import fit_people, posterior
from tests.helpers.people import crowd


def covered(seed: int, people: int, number: int, *, full: bool = False, **settings: Any) -> dict[str, Any]:
    """Return the shares of people whose 95 % intervals cover, by method, (K,) each, of one made data set."""
    data, truth = crowd(seed, people, number)
    fit = fit_people(data)
    found: dict[str, Any] = {
        name: (np.abs(each.coordinates - truth) <= 1.96 * each.errors).mean(0)
        for name, each in (("plain", fit.plain), ("pooled", fit.pooled))
    }
    if full:
        draws = posterior.sample_posterior(fit, **settings)
        flat = draws.coordinates.reshape(-1, *truth.shape)
        low, high = np.quantile(flat, [0.025, 0.975], axis=0)
        found["full"] = ((low <= truth) & (truth <= high)).mean(0)
        found["chains"] = f"R-hat {draws.rhat:.3f}, effective {draws.effective:.0f}, diverged {draws.divergences}"
    return found


def main() -> None:
    """Print coverage of each data set, then means over data sets with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--choices", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first data set")
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="the full posterior too (extra bayes)")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--draws", type=int, default=500)
    asked = parser.parse_args()
    settings = {"chains": asked.chains, "warmup": asked.warmup, "draws": asked.draws} if asked.full else {}
    warnings.simplefilter("ignore")
    rows, failed = [], 0
    for seed in range(asked.first, asked.first + asked.sets):
        begun = time.process_time()
        try:
            row = covered(seed, asked.people, asked.choices, full=asked.full, **settings)
        except NotConverged as error:
            failed += 1
            print(f"{seed}: {error}", flush=True)
            continue
        rows.append(row)
        print(f"{seed} ({time.process_time() - begun:.0f} s):", told(row), row.get("chains", ""), flush=True)
    print(f"{len(rows)} data sets of {asked.people} people with {asked.choices} choices; {failed} failed")
    for name in [each for each in rows[0] if each != "chains"] if rows else []:
        values = np.array([row[name] for row in rows])
        spread = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else values[0] + np.nan
        ends = f"{values.min():.2f} to {values.max():.2f}"
        print(f"{name:<8} mean {values.mean(0).round(3)} error {spread.round(3)} single sets {ends}")


def told(row: dict[str, Any]) -> str:
    """Return shares in a line."""
    return "; ".join(f"{name} {np.round(value, 3)}" for name, value in row.items() if name != "chains")


if __name__ == "__main__":
    main()
