"""Rows of tables: the frontiers, the findings, and what is shown beside the verdicts and decides none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from humanline.reproduce.cells import OBJECTIVES, Objective, core
from humanline.reproduce.curves import Array, fit_curves
from humanline.reproduce.excess import excess, mean_excess
from humanline.reproduce.frontier import Frontier, Table, arrange, moved
from humanline.reproduce.frontier import log_distance as log_distance_of
from humanline.reproduce.hypotheses import Comparison, Finding, compare
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.rules import Rules
from humanline.stats import Estimate, mean_estimate

Row = dict[str, Any]
#: Other scores that are shown in place of the true one at temperature 1.
OTHER_SCORES: Mapping[str, Callable[[Outcome], float]] = {
    "judged": lambda run: run.judged,
    "greedy": lambda run: run.greedy,
    "matched": lambda run: run.matched,
}
#: What is added to the prediction error's regression.
COVARIATES: Mapping[str, Callable[[Outcome], float]] = {
    "log lr": lambda run: math.log(run.cell.lr),
    "entropy": lambda run: run.entropy,
    "log length": lambda run: math.log(run.length) if run.length > 0 else math.nan,
}
#: Which variants are held against which objectives' curves.
SHOWN = ("humanline", "online", "online humanline")


def finding_rows(findings: Iterable[Finding]) -> list[Row]:
    """Return a row for each finding, of numbers and texts alone."""
    rows = []
    for one in findings:
        row = asdict(one)
        row["cells"] = " ".join(one.cells)
        row["left_out"] = "; ".join(f"{name}: {why}" for name, why in one.left_out.items())
        row["differs"] = one.differs
        rows.append(row)
    return rows


def frontier_rows(outcomes: Iterable[Outcome], rules: Rules) -> list[Row]:
    """Return a row for each objective and start model: the offline curve's coefficients, peak, distance and scatter.

    Coefficients are of powers of (log KL - centre). GRPO's curve is that of the clips that tuning kept. `scatter` is
    the standard deviation of cells about the curve, from the mean residuals over starts; `kl_at_peak` is in nats an
    answer, and `at_end` says whether the peak is at an end of the range, where it is no maximum.
    """
    rows = list(outcomes)
    table = arrange(rows, core(), rules)
    found = []
    for objective in OBJECTIVES:
        front = compare(table, objective, "humanline", rules).front
        found += _rows_of(rows[0].testbed, objective, front, rules)
    return found


def _rows_of(testbed: str, objective: Objective, front: Frontier, rules: Rules) -> list[Row]:
    common: Row = {"testbed": testbed, "objective": objective, "cells": len(front.offline.cells)}
    common["left_out"] = "; ".join(f"{name}: {why}" for name, why in front.left_out.items())
    if front.curves is None:
        return [{**common, "start": start, "degree": math.nan} for start in front.offline.starts]
    curves = front.curves
    peaks, places = curves.peaks()
    scatter = float(np.sqrt(np.square(curves.residuals.mean(1)).sum() / curves.spare))
    rows = []
    for number, start in enumerate(front.offline.starts):
        row: Row = {**common, "start": start, "degree": curves.degree, "centre": float(curves.centres[number])}
        for power, value in enumerate(curves.coefficients[number][::-1].tolist()):
            row[f"c{power}"] = value
        low, high, place = (float(values[number]) for values in (curves.low, curves.high, places))
        row |= {"kl_low": math.exp(low), "kl_high": math.exp(high), "peak": float(peaks[number])}
        row |= {"kl_at_peak": math.exp(place), "at_end": place in (low, high), "gain": float(front.gain[number])}
        rows.append(row | {"scatter": scatter, "margin": front.margin(rules)})
    return rows


def shown_rows(outcomes: Iterable[Outcome], rules: Rules) -> list[Row]:
    """Return rows of what is shown and tests nothing: mean excess over the curve with a 95 % interval.

    For each objective and variant by the true score, by other scores in its place (over a curve of the same score of
    the same cells) and with covariates: the mean by which compared cells lie above offline ones in a regression of the
    error on log learning rate, entropy and log length, one for each start, with the coefficients.
    """
    rows = list(outcomes)
    table = arrange(rows, core(), rules)
    found: list[Row] = []
    for objective in OBJECTIVES:
        for variant in SHOWN:
            one = compare(table, objective, variant, rules)
            common: Row = {"testbed": rows[0].testbed, "objective": objective, "variant": variant}
            common["cells"] = len(one.found.inside.cells)
            if one.part is None:
                found.append({**common, "outcome": "score", "reason": one.found.reason})
                continue
            found.append({**common, "outcome": "score", **_told(mean_excess([one.part]), rules)})
            for name, read in OTHER_SCORES.items():
                found.append({**common, "outcome": name, **_of_other(one, read, rules)})
            found.append({**common, "outcome": "score, covariates", **_adjusted(one, rules)})
    return found


def _told(estimate: Estimate, rules: Rules) -> Row:
    half = estimate.interval(1 - rules.alpha).half_width
    return {"estimate": estimate.mean, "low": estimate.mean - half, "high": estimate.mean + half, "reason": ""}


def _of_other(one: Comparison, read: Callable[[Outcome], float], rules: Rules) -> Row:
    """Return the excess by another score, over a curve of that score of the same degree."""
    offline = moved(one.front.offline, rules, read)
    theirs = moved(one.found.inside, rules, read)
    if one.front.curves is None or any(np.isnan(values).all(2).any() for values in (offline, theirs)):
        return {"reason": "a cell without this score"}
    log_kl = np.nanmean(one.front.offline.values(log_distance_of(rules)), axis=2)
    curves = fit_curves(log_kl, np.nanmean(offline, axis=2), one.front.curves.degree)
    distances = np.where(np.isnan(theirs), np.nan, one.found.inside.values(log_distance_of(rules)))
    return _told(mean_excess([excess(curves, distances, theirs)]), rules)


def _adjusted(one: Comparison, rules: Rules) -> Row:
    """Return the mean over starts of what belonging to the compared cells adds, and of the covariates' coefficients."""
    curves = one.front.curves
    if curves is None or one.part is None:
        return {"reason": one.found.reason}
    errors = np.concatenate([curves.residuals, one.part.errors])
    compared = np.arange(len(errors)) >= len(curves.residuals)
    values = {
        name: np.concatenate([_means(table, rules, read) for table in (one.front.offline, one.found.inside)])
        for name, read in COVARIATES.items()
    }
    if lacking := [name for name, value in values.items() if not np.isfinite(value).all()]:
        return {"reason": f"not every cell has a finite {' and '.join(lacking)}"}
    if len(errors) < len(values) + 3:
        return {"reason": "too few cells for a regression"}
    fits = []
    for start in range(errors.shape[1]):
        centred = (value[:, start] - value[:, start].mean() for value in values.values())
        columns = [np.ones(len(errors)), compared, *centred]
        fits.append(np.linalg.lstsq(np.stack(columns, axis=1), errors[:, start], rcond=None)[0])
    estimates = [mean_estimate(column) for column in np.array(fits).T.tolist()]
    told = {f"per {name}": estimate.mean for name, estimate in zip(values, estimates[2:], strict=True)}
    return {**_told(estimates[1], rules), **told}


def _means(table: Table, rules: Rules, read: Callable[[Outcome], float]) -> Array:
    values = moved(table, rules, read)
    present = ~np.isnan(values)
    with np.errstate(invalid="ignore"):  # of a cell without a value: nan
        return np.asarray(np.where(present, values, 0.0).sum(2) / present.sum(2))


def markdown(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown, numbers with four digits; a column for every name that a row has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append(f"| {' | '.join(_cell(row.get(name, '')) for name in names)} |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float) and not math.isnan(value):
        return f"{value:.4g}"
    return "" if isinstance(value, float) else str(value).replace("|", "\\|")
