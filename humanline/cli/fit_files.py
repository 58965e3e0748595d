"""What `humanline fit` leaves in its folder: all of it, or nothing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from humanline.fit.curves import by_problem
from humanline.fit.job import FitReport, PartReport
from humanline.plots import write_figure
from humanline.system.files import make_folder, refuse_used_folder, write_text
from humanline.system.folders import publish_folder

FIGURES = ("fit_curves", "fit_check")


def write_report(out: str, report: FitReport) -> list[Path]:
    """Write fit.json, tables and figures into a new folder; return the files, as they lie there.

    Parameters
    ----------
    out : str
        Nothing is there yet, or an empty folder. Several parts have a folder each, in it.
    report : FitReport

    Raises
    ------
    OutputError
        If something is there.
    WriteError
        If the disk fails; nothing is left of it then.
    """
    folder = refuse_used_folder(out)
    make_folder(folder.parent)
    names: list[Path] = []

    def fill(place: Path) -> None:
        names.clear()
        text = json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n"
        write_text(place / "fit.json", text)
        names.append(Path("fit.json"))
        for one in report.parts:
            inside = place if len(report.parts) == 1 else place / one.part.name
            make_folder(inside)
            names.extend(path.relative_to(place) for path in _write_part(inside, one, report.asked.seed))

    if folder.exists():
        folder.rmdir()  # empty, as was seen above
    publish_folder(folder, fill)
    return [folder / name for name in names]


def _write_part(place: Path, one: PartReport, seed: int) -> list[Path]:
    fit, errors = one.fit, one.fit.standard_errors(one.errors)
    rows: list[Sequence[Any]] = []
    for name, value in fit.parameters.items():
        ends = (one.intervals[name].low, one.intervals[name].high) if name in fit.names else (None, None)
        held = "" if name in fit.names else "equal" if name in fit.model.equal else "fixed"
        rows.append((name, value, errors.get(name), *ends, held, fit.at_bound.get(name, "")))
    paths = [_table(place / "parameters.csv", "parameter estimate error low high held bound", rows)]
    found = by_problem(fit, one.part.noise)
    columns = (found.names, found.observed, found.predicted, found.weight, found.deviation)
    paths.append(_table(place / "problems.csv", "problem observed predicted choices noise", zip(*columns, strict=True)))
    if one.comparison is not None:
        paths.append(_table(place / "comparison.csv", _COMPARED.format(*one.comparison.criteria), _compared(one)))
    for more in one.extras.values():
        paths += [_table(place / name, header, rows) for name, (header, rows) in more.tables.items()]
    for name in FIGURES:
        paths += write_figure(place, name, one.shown(seed))
    return paths


_COMPARED = "model parameters log_likelihood {} {} squared_error held_out difference error degrees p holm_p verdict why"


def _compared(one: PartReport) -> Iterable[Sequence[Any]]:
    assert one.comparison is not None
    for row in one.comparison.rows:
        off = row.difference
        yield (
            row.title, len(row.fit.names), row.fit.log_likelihood, row.aic, row.bic, row.fit.squared_error, row.loss,
            *((None, None, None) if off is None else (off.mean, off.error, off.degrees)), row.p, row.adjusted,
            row.verdict or "baseline", "",
        )  # fmt: skip
    for title, why in one.comparison.missing.items():
        yield (title, *[None] * 11, "not fitted", why)


def _table(path: Path, header: str, rows: Iterable[Sequence[Any]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header.split())
    writer.writerows([_cell(value) for value in row] for row in rows)
    write_text(path, text.getvalue())
    return path


def _cell(value: Any) -> Any:
    if value is None or value != value:
        return ""
    return f"{value + 0.0:.12g}" if isinstance(value, float) else value  # + 0.0: no minus before 0
