"""What a comparison has found, as a table for people and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from humanline.evaluate.compare import Comparison, Contrast
from humanline.stats import Equivalence, NonInferiority
from humanline.system.files import claim_folder, write_text

FORMAT = 1


def describe(comparison: Comparison) -> list[str]:
    """Return the lines of a comparison: how it was made, one line a model, and what was left out."""
    plan = comparison.declared.plan
    lines = [
        comparison.declared.label,
        f"unit: {comparison.unit}, {comparison.why_unit}",
        f"differences are the model's value minus that of {comparison.baseline!r}; "
        f"intervals of {100 * (1 - plan.level):g} %",
    ]
    head = ["model", "items", "seeds", "mean", "baseline", "difference", "interval", "p", "of family", "verdict"]
    rows = [head, *(_cells(one, plan.level) for one in comparison.contrasts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    corrected = sum(one.adjusted is not None for one in comparison.contrasts)
    for one in comparison.contrasts:
        alone = (
            f", before the correction for {corrected} comparisons" if one.adjusted is not None and corrected > 1 else ""
        )
        lines.append(f"{one.name}: {one.how}; {_could_have_shown(one)}{alone}{_needs(one, plan.wanted or plan.margin)}")
    return [*lines, *(f"note: {remark}" for remark in comparison.remarks)]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON can say it; numbers that are infinite are null."""
    declared = comparison.declared
    return {
        "format": FORMAT,
        "plan": declared.plan.model_dump(mode="json"),
        "declared": {
            "before": declared.file is not None,
            "file": declared.file,
            "sha256": declared.sha256,
            "changed": declared.changed,
        },
        "baseline": comparison.baseline,
        "unit": comparison.unit,
        "why_unit": comparison.why_unit,
        "contrasts": [
            _finite(asdict(one) | {"verdict": one.verdict(declared.plan.level)}) for one in comparison.contrasts
        ],
        "remarks": list(comparison.remarks),
    }


def write_comparison(out: str | Path, comparison: Comparison) -> Path:
    """Write comparison.json to a folder that is made, and return its path.

    Raises
    ------
    OutputError
        If the folder is in use (`claim_folder`).
    """
    path = claim_folder(out) / "comparison.json"
    write_text(path, json.dumps(as_json(comparison), indent=1, allow_nan=False) + "\n")
    return path


def _cells(one: Contrast, level: float) -> list[str]:
    bounds = "not known"
    if math.isfinite(one.interval.half_width):
        low, high = one.estimate.mean - one.interval.half_width, one.estimate.mean + one.interval.half_width
        bounds = f"{low:+.4f} to {high:+.4f}"
    return [
        one.name,
        str(one.items),
        str(one.seeds),
        f"{one.mean:.4f}",
        f"{one.baseline_mean:.4f}",
        f"{one.estimate.mean:+.4f}",
        bounds,
        f"{one.p:.2g}",
        "-" if one.adjusted is None else f"{one.adjusted:.2g}",
        one.verdict(level),
    ]


def _could_have_shown(one: Contrast) -> str:
    if not math.isfinite(one.detectable):
        return "these data could show no difference of any size"
    size = f"{one.detectable:.2g}"
    if isinstance(one.margin, NonInferiority):
        return f"with 80 % power these data show a model that is as good to be not worse by {size}"
    if isinstance(one.margin, Equivalence):
        return f"with 80 % power these data show models that are equal to be so within {size}"
    return f"with 80 % power these data show a difference of {size}"


def _needs(one: Contrast, wanted: float | None) -> str:
    if not one.needed:
        return ""
    enough = [f"{count} {what}" for what, count in one.needed.items() if count is not None]
    never = [f"no number of {what} is enough for {wanted:g}" for what, count in one.needed.items() if count is None]
    return "".join(f"; {part}" for part in ([f"{wanted:g} needs {' or '.join(enough)}"] if enough else []) + never)


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree
