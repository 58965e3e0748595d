"""The table of what came of a campaign."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """What a table was made of: rows of another seed, way or version go into no table with it."""

    seed: int
    full: bool
    versions: str

    @classmethod
    def now(cls, seed: int, full: bool) -> Made:
        """Return the options and versions of a campaign that is played here."""
        names = ("humanline", "torch", "transformers")
        return cls(
            seed, full, ", ".join([f"Python {platform.python_version()}", *(f"{n} {version(n)}" for n in names)])
        )


def _case(row: Row) -> tuple[str, int]:
    kind, _, number = row["case"].partition(":")
    return kind, int(number)


def report(made: Made, rows: list[Row]) -> str:
    """Return the table as Markdown: a line for each kind, then what was found."""
    how = "begun afresh" if made.full else "forked from a warm process"
    lines = [
        "# What came of the campaign",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}; {made.versions}; seed {made.seed}; {len(rows)} cases, each run {how}.",
        "One case again, alone: `python -m tests.campaign --only KIND:NUMBER --seed SEED`.",
        "",
        "| kind | cases | numbers | runs | exit codes | beside | slowest run | most memory | findings |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    findings: list[str] = []
    for kind, of_kind in groupby(rows, lambda row: _case(row)[0]):
        group = list(of_kind)
        numbers = [_case(row)[1] for row in group]
        codes = Counter(code for row in group for code in row["codes"])
        notes: Counter[str] = sum((Counter(row["notes"]) for row in group), Counter())
        bad = [row for row in group if row["findings"]]
        cells = [
            kind,
            len(group),
            f"{min(numbers)}-{max(numbers)}",
            sum(codes.values()),
            ", ".join(f"{count} x {code}" for code, count in sorted(codes.items())),
            ", ".join(f"{count} {what}" for what, count in sorted(notes.items())),
            f"{max(row['seconds'] for row in group):.1f} s",
            f"{max(row['mib'] for row in group)} MiB",
            len(bad),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        findings += [f"- `{row['case']}` {row['name']}: {text}" for row in bad for text in row["findings"]]
    lines += ["", "Exit codes: 0 done, 2 refused with words, 3 a number not finite, 75 stopped, -9 killed by the case."]
    return "\n".join([*lines, "", "## Findings", "", *(findings or ["None."])]) + "\n"


def write(made: Made, rows: list[Row], folder: Path, kinds: Iterable[str]) -> None:
    """Write the table and its rows; rows that are there of other cases, made alike, stay.

    Parameters
    ----------
    made : Made
    rows : list of Row
    folder : Path
        Of results.md and results.json.
    kinds : iterable of str
        All kinds, in the order of the table.
    """
    path, order = folder / "results.json", list(kinds)
    earlier: list[Row] = []
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        earlier = kept.pop("rows")
        earlier = earlier if kept == asdict(made) else []
    by_case = {row["case"]: row for row in [*earlier, *rows]}
    merged = sorted(by_case.values(), key=lambda row: (order.index(_case(row)[0]), _case(row)[1]))
    text = ",\n".join(json.dumps(row) for row in merged)
    path.write_text(f'{json.dumps(asdict(made))[:-1]}, "rows": [\n{text}\n]}}\n', encoding="utf-8")
    (folder / "results.md").write_text(report(made, merged), encoding="utf-8")
