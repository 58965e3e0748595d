"""How often intervals of people cover what was true: `python -m tests.fit.people.coverage --full` prints it.

With ``--file FILE`` the result of each data set is a line of JSON, written as soon as it is there; data sets that the
file already has are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from humanline.fit import NotConverged
from humanline.fit.people import fit_people, posterior
from tests.helpers.people import crowd


def covered(
    seed: int, people: int, number: int, *, apart: float = 1.0, full: bool = False, **settings: Any
) -> dict[str, Any]:
    """Return the shares of people whose 95 % intervals cover, by method, (K,) each, of one made data set.

    Of chains that are refused there are twice the draws in a second try; then `NotConverged` is raised.
    """
    data, truth = crowd(seed, people, number, apart=apart)
    fit = fit_people(data)
    found: dict[str, Any] = {
        name: (np.abs(each.coordinates - truth) <= 1.96 * each.errors).mean(0)
        for name, each in (("plain", fit.plain), ("pooled", fit.pooled))
    }
    if full:
        refused, draws = "", None
        while draws is None:
            try:
                draws = posterior.sample_posterior(fit, **settings)
            except NotConverged as error:
                if refused:
                    raise
                # As the error says: once more, with twice the draws.
                refused = f"; refused with {settings['draws']} draws ({error})"
                settings = {**settings, "draws": 2 * settings["draws"]}
        flat = draws.coordinates.reshape(-1, *truth.shape)
        low, high = np.quantile(flat, [0.025, 0.975], axis=0)
        found["full"] = ((low <= truth) & (truth <= high)).mean(0)
        found["chains"] = (
            f"R-hat {draws.rhat:.3f}, effective {draws.effective:.0f}, diverged {draws.divergences}{refused}"
        )
    return found


def main() -> None:
    """Print coverage of each data set, then means over data sets with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--choices", type=int, default=100)
    parser.add_argument("--apart", type=float, default=1.0, help="times the usual spreads of people")
    parser.add_argument("--first", type=int, default=0, help="seed of the first data set")
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="the full posterior too (extra bayes)")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--target-accept", type=float, help="of the full posterior (default: its own)")
    parser.add_argument("--file", type=Path, help="read and written: what was found of each data set")
    asked = parser.parse_args()
    settings = {"chains": asked.chains, "warmup": asked.warmup, "draws": asked.draws} if asked.full else {}
    settings |= {"target_accept": asked.target_accept} if asked.full and asked.target_accept else {}
    same = {"people": asked.people, "choices": asked.choices, **settings}
    same |= {"apart": asked.apart} if asked.apart != 1 else {}
    known = found_before(asked.file, same)
    warnings.simplefilter("ignore")
    rows, failed = [], 0
    for seed in range(asked.first, asked.first + asked.sets):
        if seed not in known:
            begun, line = time.process_time(), {"seed": seed, **same}
            try:
                line["covered"] = covered(
                    seed, asked.people, asked.choices, apart=asked.apart, full=asked.full, **settings
                )
            except NotConverged as error:
                line["failed"] = str(error)
            line["seconds"] = round(time.process_time() - begun)
            # As JSON has them, whether from the file or new.
            known[seed] = json.loads(json.dumps(line, default=lambda each: each.tolist()))
            if asked.file is not None:
                with asked.file.open("a") as file:
                    file.write(json.dumps(known[seed]) + "\n")
        line = known[seed]
        if "failed" in line:
            failed += 1
            print(f"{seed} ({line['seconds']} s): {line['failed']}", flush=True)
            continue
        row = line["covered"]
        rows.append(row)
        print(f"{seed} ({line['seconds']} s):", told(row), row.get("chains", ""), flush=True)
    print(f"{len(rows)} data sets of {asked.people} people with {asked.choices} choices; {failed} failed")
    for name in [each for each in rows[0] if each != "chains"] if rows else []:
        values = np.array([row[name] for row in rows])
        spread = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else values[0] + np.nan
        ends = f"{values.min():.2f} to {values.max():.2f}"
        print(f"{name:<8} mean {values.mean(0).round(3)} error {spread.round(3)} single sets {ends}")


def found_before(file: Path | None, same: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the lines of a file by seed; a line of other settings is an error, as no mean over both says anything."""
    if file is None or not file.exists():
        return {}
    lines = [json.loads(each) for each in file.read_text().splitlines()]
    for number, line in enumerate(lines, start=1):
        found = ("seed", "covered", "failed", "seconds")
        if (other := {name: each for name, each in line.items() if name not in found}) != same:
            raise SystemExit(f"{file}:{number}: is of {other}, and what was asked of {same}; give another file")
    return {line["seed"]: line for line in lines}


def told(row: dict[str, Any]) -> str:
    """Return shares in a line."""
    return "; ".join(f"{name} {np.round(value, 3)}" for name, value in row.items() if name != "chains")


if __name__ == "__main__":
    main()
