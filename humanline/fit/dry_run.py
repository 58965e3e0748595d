"""What a file of choices holds, and which parameters it can tell, before anything is fitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from humanline.fit.design import design_check
from humanline.fit.formats import ChoiceFile
from humanline.fit.identify import fit_faults, same_options
from humanline.fit.job import Asked
from humanline.fit.likelihood import Likelihood


def dry_run(file: ChoiceFile, asked: Asked) -> tuple[list[str], bool]:
    """Return what a file holds and which parameters its problems can tell, and whether the model can be fitted."""
    lines, good = file.told(), True
    for part in file.parts:
        data = part.choices
        likelihood = Likelihood(data, asked.model, reference_point=asked.reference_point, objective=asked.objective)
        lines += ["", f"{part.title}: {_counted(data)}", *_problems(likelihood)]
        faults = fit_faults(likelihood)
        good = good and not faults
        trials = np.bincount(data.problem, weights=data.trials, minlength=data.problems)
        kind = data.kind if data.kind == "equivalents" else None
        design = design_check(data, asked.model, n=trials, kind=kind, reference_point=asked.reference_point)
        if data.kind == "rates":
            lines.append(
                "Precision is told as if each rate were a single choice: it is better by the root of how many."
            )
        known = {fault.told() for fault in design.faults}
        lines += design.told()
        lines += [f"cannot be: {fault.told()}" for fault in faults if fault.told() not in known]
        if asked.compare:
            lines += _compared(data, asked)
    return lines, good


def _counted(data: Any) -> str:
    what = f"{len(data)} {data.kind} of {data.problems} problems"
    if data.kind == "counts":
        what += f", {data.trials.sum():.0f} choices"
    return what + (f", {data.people} people" if data.people > 1 else "")


def _problems(likelihood: Likelihood) -> list[str]:
    data, zero = likelihood.choices, likelihood.reference_point
    row = np.repeat(np.arange(len(data.start) - 1), np.diff(data.start)) % data.problems
    some = data.probs > 0
    gains, losses = (
        np.bincount(row[some & side], minlength=data.problems) > 0
        for side in (data.outcomes > zero, data.outcomes < zero)
    )
    least, most, size = data.outcomes[some].min(), data.outcomes[some].max(), np.diff(data.start).max()
    kinds = (gains & ~losses).sum(), (losses & ~gains).sum(), (gains & losses).sum()
    lines = [
        "Problems with gains alone {}, with losses alone {}, with both {}".format(*kinds)
        + f"; up to {size} outcomes an option, from {least:g} to {most:g}"
    ]
    if data.kind != "equivalents" and (same := same_options(likelihood)).any():
        lines.append(f"Identical options in {int(same.sum())} problems: they say nothing of any parameter")
    return lines


def _compared(data: Any, asked: Asked) -> Iterable[str]:
    for title, model in asked.models().items():
        likelihood = Likelihood(data, model, reference_point=asked.reference_point, objective=asked.objective)
        if faults := fit_faults(likelihood):
            yield f"Not to be compared: {title}: " + "; ".join(fault.told() for fault in faults)
