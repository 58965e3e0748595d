"""The table of what came of a campaign."""

from __future__ import annotations

import json
import platform
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def _kind(row: Row) -> str:
    return str(row["case"].partition(":")[0])


def report(rows: list[Row], *, seed: int, full: bool, minutes: float) -> str:
    """Return the table as Markdown: a line for each kind, then what was found."""
    how = "begun afresh" if full else "forked from a warm process"
    versions = ", ".join(f"{name} {version(name)}" for name in ("humanline", "torch", "transformers"))
    lines = [
        "# What came of the campaign",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}; Python {platform.python_version()}, {versions}; seed {seed}; "
        f"{len(rows)} cases in {minutes:.0f} minutes, each run {how}.",
        "One case again, alone: `python -m tests.campaign --only KIND:NUMBER --seed SEED`.",
        "",
        "| kind | cases | numbers | runs | exit codes | beside | slowest run | most memory | findings |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    findings: list[str] = []
    for kind, of_kind in groupby(rows, _kind):
        group = list(of_kind)
        numbers = [int(row["case"].partition(":")[2]) for row in group]
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


def write(text: str, rows: list[Row], folder: Path) -> None:
    """Write the table, and a line for each case: its number, what it is, and the exit codes of its runs."""
    (folder / "results.md").write_text(text, encoding="utf-8")
    kept = [{name: row[name] for name in ("case", "name", "codes")} for row in rows]
    body = ",\n".join(json.dumps(row) for row in kept)
    (folder / "results.json").write_text(f"[\n{body}\n]\n", encoding="utf-8")
