"""The paper's claims at every scale they were tried at: problems small enough to be exact, and each testbed."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from humanline.reproduce.paper import CLAIMS, ELSEWHERE
from humanline.reproduce.shown import markdown

#: Columns of a testbed's paper.csv that are read.
_NEEDED = ("where", "says", "objective", "verdict", "difference", "low", "high", "clipped", "why")
_EXACT = ("claim", "task", "objective", "rate", "effect", "half_width", "verdict")


def claims_table(exact: Path, testbeds: Mapping[str, Path]) -> str:
    """Return a row for each claim and objective, with what every scale says of it, as Markdown.

    Of the exact problems the settings are told in which every variant has its own best learning rate.

    Parameters
    ----------
    exact : Path
        claims.csv of `humanline sim`.
    testbeds : mapping of str to Path
        paper.csv of each testbed (`humanline reproduce`), by its name.

    Raises
    ------
    OSError
        If a file cannot be read.
    ValueError
        If it is no such table, or lacks a claim.
    """
    of_exact, of_testbeds = _read(exact, _EXACT), {name: _read(path, _NEEDED) for name, path in testbeds.items()}
    rows = []
    for claim in CLAIMS:
        for objective, number in claim.numbers.items():
            row = {"where": claim.where, "claim": claim.says, "objective": objective, "paper": number}
            row["exact problems"] = _exact_words(of_exact, claim.exact, objective)
            for name, found in of_testbeds.items():
                mine = [one for one in found if (one["says"], one["objective"]) == (claim.says, objective)]
                if len(mine) != 1:
                    raise ValueError(
                        f"{testbeds[name]}: {len(mine)} rows of {claim.says!r} for {objective}, not 1: write it anew "
                        f"with `humanline reproduce {name}`"
                    )
                row[name] = _words(mine[0])
            rows.append(row)
    elsewhere = "".join(f"- {where}: {why}.\n" for where, why in ELSEWHERE.items())
    return f"{markdown(rows)}\nWithout a row:\n\n{elsewhere}"


def _exact_words(rows: Sequence[Mapping[str, str]], claim: str, objective: str) -> str:
    """Return the verdicts of the exact problems in words; empty where none asks the same."""
    mine = [row for row in rows if (row["claim"], row["objective"], row["rate"]) == (claim, objective, "tuned")]
    return "; ".join(f"{row['task']}: {row['verdict']}{_effect(row)}" for row in mine)


def _effect(row: Mapping[str, str]) -> str:
    return f", {float(row['effect']):+.3f} ± {float(row['half_width']):.3f}" if row["effect"] else ""


def _words(row: Mapping[str, str]) -> str:
    verdict = row["verdict"]
    if not row["difference"]:
        return verdict
    numbers = f"{float(row['difference']):+.3f} ({float(row['low']):+.3f} .. {float(row['high']):+.3f})"
    return f"{verdict}, {numbers}" + (f"; {row['why']}" if verdict.startswith("not") else "")


def _read(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if missing := [name for name in needed if name not in (reader.fieldnames or ())]:
            raise ValueError(f"{path}: it has no column {missing[0]!r}")
        return list(reader)
