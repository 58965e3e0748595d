"""Looks at held-out data and other rows of metrics as they are shown: what is a number, and which look is the best.

Whoever only reads a run's folder imports this, which needs no torch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from humanline.train.run.travel import SCORES

Z = 1.959963984540054  # standard normal quantile of .975
_LOWER_IS_BETTER = ("perplexity", "loss")
_MOST = 1 << 53  # of a count: what a float holds to the last digit


def count(row: Mapping[str, Any], name: str) -> int | None:
    """Return a number of a step, a round or updates from a row; None where there is none that a run has."""
    value = row.get(name)
    return value if type(value) is int and 0 <= value < _MOST else None


def updates_of(rows: Iterable[Mapping[str, Any]]) -> int:
    """Return how many updates were done, as far as rows of metrics tell."""
    return max([step + 1 for row in rows if (step := count(row, "step")) is not None], default=0)


def looks_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the looks at held-out data, each ``updates`` and ``metrics``, of which only finite numbers are kept."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        held_out, updates = row.get("held_out"), count(row, "updates")
        if isinstance(held_out, Mapping) and updates is not None:
            found[updates] = {"updates": updates, "metrics": numbers(held_out)}
    return [found[updates] for updates in sorted(found)]


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row, by name."""
    return {str(name): value for name, value in row.items() if is_number(value)}


def is_number(value: object) -> bool:
    """Return whether a value of JSON is a finite number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    with contextlib.suppress(OverflowError):
        return math.isfinite(float(value))
    return False


def best_look(looks: Sequence[Mapping[str, Any]]) -> tuple[str | None, Mapping[str, Any] | None]:
    """Return the metric by which looks are judged, and the best of them, the first of equal ones.

    It is the score or else the preference accuracy, of which more is better, or else perplexity or loss.
    """
    for name in (*SCORES, *_LOWER_IS_BETTER):
        having = [look for look in looks if name in look["metrics"]]
        if having:
            sign = -1 if name in _LOWER_IS_BETTER else 1
            return name, max(having, key=lambda look: sign * look["metrics"][name])
    return None, None


def interval(look: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Return the 95 % interval of a metric of a look, value +- 1.96 of its standard error.

    None where no error is known, or it is 0; and for the preference accuracy of the start, of which every pair is a
    tie by definition.
    """
    metrics = look["metrics"]
    is_certain = name == "accuracy" and not look["updates"]
    error = 0.0 if is_certain else metrics.get(f"{name}_se", 0.0)
    return (metrics[name] - Z * error, metrics[name] + Z * error) if error > 0 else None


def shown_metrics(metrics: Mapping[str, float]) -> list[str]:
    """Return the names of metrics that stand for themselves: what is another one's standard error is told with it."""
    return [name for name in metrics if not (name.endswith("_se") and name.removesuffix("_se") in metrics)]
