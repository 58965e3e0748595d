"""What keeps parameters from being determined, said before a fit: all of it, with what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit.faults import Fault
from humanline.fit.likelihood import Likelihood
from humanline.fit.model import EQUIVALENTS
from humanline.fit.parameters import CAPACITY_PARAMETERS
from humanline.fit.scaled import scaled
from humanline.fit.starts import starting_points

#: Powers of outcomes up to this, at the largest curvature that is tried, are floats.
_LARGEST = 1e50
#: Below this share of the largest, an eigenvalue of the scaled information is one of rounding.
NOTHING = 1e-11
_MANY = {"gain": "gains", "loss": "losses"}


def fit_faults(likelihood: Likelihood) -> list[Fault]:
    """Return why a model cannot be fitted to data, one fault for each reason; none if it can.

    Parameters
    ----------
    likelihood : Likelihood
        Of everyone.

    Returns
    -------
    list of Fault
        Of a free parameter that no outcome or probability bears on; of problems that do not tell prospects apart; of
        too few problems, or responses of one kind only; of outcomes too large or too small for powers; of combinations
        of parameters whose information is zero, at the usual values and at others.
    """
    faults = _data_faults(likelihood) + _side_faults(likelihood)
    return faults or _rank_faults(likelihood)


def _data_faults(likelihood: Likelihood) -> list[Fault]:
    data, names = likelihood.choices, likelihood.names
    faults = []
    typical, largest = data.typical_size(likelihood.reference_point), float(np.abs(data.outcomes).max())
    if not (typical >= 1 / _LARGEST and largest <= _LARGEST):
        rule = f"be at most {_LARGEST:g}, and typically at least {1 / _LARGEST:g}: count them in another unit"
        faults.append(Fault(None, "outcomes", rule, largest if largest > _LARGEST else typical))
    if not names:  # nothing is to be determined
        return faults
    answered = np.unique(data.problem)
    if data.kind != EQUIVALENTS:
        answered = answered[~same_options(likelihood)[answered]]
        if not len(answered):
            rule = "differ in some problem: identical options say nothing of any parameter; give other problems"
            return [Fault(None, "options", rule, f"{data.problems} problems with identical options")]
        share = data.response / data.trials
        for end, which in ((0.0, "first"), (1.0, "second")):
            if (share == end).all():
                rule = (
                    "not be the same everywhere: no finite sensitivity is the most likely; give choices of both options"
                )
                faults.append(Fault(None, data.kind, rule, f"always the {which}"))
    if len(names) > len(answered):
        rule = f"be {len(names)} or more, one for each free parameter ({', '.join(names)}); fix some or add problems"
        faults.append(Fault(None, "problems", rule, len(answered)))
    return faults


def same_options(likelihood: Likelihood) -> NDArray[np.bool_]:
    """Return which problems have two options that are the same prospect, (P,)."""
    data = likelihood.choices
    table = data.prepared(likelihood.model.weights, likelihood.reference_point)
    number = data.problems
    same = np.ones(number, dtype=bool)
    for side in (table.gains, table.losses):
        first, second = side.count[:number], side.count[number:]
        equal = first == second
        # Nodes of problems whose options have as many: those of the first beside those of the second.
        one, other = (side.nodes(np.flatnonzero(equal) + shift)[1] for shift in (0, number))
        rows = np.repeat(np.flatnonzero(equal), first[equal])
        unequal = (side.outcome[one] != side.outcome[other]) | (side.prob[one] != side.prob[other])
        same &= equal
        same &= np.bincount(rows, weights=unequal, minlength=number) == 0
    return same


def _side_faults(likelihood: Likelihood) -> list[Fault]:
    model, names = likelihood.model, likelihood.names
    used = _used(likelihood)
    faults = []
    for kind, other in (("gain", "loss"), ("loss", "gain")):
        outcomes, probs = used[kind]
        own = [f"{kind}.{one.name}" for one in CAPACITY_PARAMETERS[model.family(kind)]]
        mine = own if kind == "gain" else [*own, "loss_aversion", "loss_curvature"]
        if not outcomes:
            for name in [name for name in mine if name in names and not _shared(likelihood, name, other)]:
                rule = f"be fixed, as no outcome is a {kind}: fixed={{{name!r}: ...}}"
                faults.append(Fault(None, name, rule, "free"))
            continue
        shape = [name for name in own if name in names]
        needed = max(2, len(shape))
        elsewhere = shape and _shared(likelihood, shape[0], other) and len(used[other][1]) >= needed
        if shape and len(probs) < needed and not elsewhere:
            rule = (
                f"be fixed, as {_MANY[kind]} have {len(probs)} different probabilities strictly between 0 and 1, and a "
                f"capacity needs {needed}: fixed={{{shape[0]!r}: ...}}, or gain='identity'"
            )
            faults.append(Fault(None, " and ".join(shape), rule, "free"))
    if "curvature" in names and not used["gain"][0] and model.source("loss_curvature") != "curvature":
        faults.append(Fault(None, "curvature", "be fixed, as no outcome is a gain: fixed={'curvature': ...}", "free"))
    return faults


def _used(likelihood: Likelihood) -> dict[str, tuple[int, NDArray[np.float64]]]:
    """Return, for each side, how many nodes problems with responses have, and the probabilities between 0 and 1."""
    data = likelihood.choices
    table = data.prepared(likelihood.model.weights, likelihood.reference_point)
    sides = 1 if data.kind == EQUIVALENTS else 2
    answered = np.unique(data.problem)
    rows = np.concatenate([answered + each * data.problems for each in range(sides)])
    found = {}
    for kind, side in (("gain", table.gains), ("loss", table.losses)):
        nodes = side.nodes(rows)[1]
        probs = np.unique(np.round(side.log_probs[side.prob[nodes]], 12))
        found[kind] = (len(nodes), probs[probs < 0])
    return found


def _shared(likelihood: Likelihood, name: str, other: str) -> bool:
    """Return whether some parameter of the other side is equal to this one."""
    source = likelihood.model.source
    theirs = [each for each in likelihood.specs if each.startswith(f"{other}.")]
    return any(source(each) == source(name) for each in [*theirs, *(["curvature"] if other == "gain" else [])])


def _rank_faults(likelihood: Likelihood) -> list[Fault]:
    """Return combinations of parameters whose expected information is zero wherever it is looked at."""
    if not likelihood.names:
        return []
    found: list[set[str]] = []
    for point in starting_points(likelihood, 4, seed=1):
        vectors = _null_space(likelihood.derivatives(point)[2])
        if not vectors.size:
            return []
        found.append({name for name, size in zip(likelihood.names, np.abs(vectors).max(1), strict=True) if size > 0.05})
    names = [name for name in likelihood.names if all(name in each for each in found)] or sorted(found[0])
    rule = "not all be free: these problems determine only combinations of them; fix one of them, or make two equal"
    return [Fault(None, " and ".join(names), rule, "free")]


def _null_space(information: NDArray[np.float64]) -> Any:
    found = scaled(information)
    return found.vectors[:, found.eigen < NOTHING * max(found.eigen[-1], 1.0)]
