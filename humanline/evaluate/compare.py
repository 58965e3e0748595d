"""Comparison of models on the same items: joined by item and seed, tested as declared, and what the data could show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.evaluate.declared import Declared, Plan, Unit
from humanline.evaluate.records import Evaluation, EvaluationError, Item, repeated_prompts
from humanline.stats import (
    Equivalence,
    Estimate,
    Interval,
    NonInferiority,
    crossed_estimate,
    detectable_difference,
    equivalence,
    holm,
    mcnemar,
    mean_estimate,
    needed_crossed,
    needed_pairs,
    non_inferiority,
    rounding_of,
    sign_flip_test,
)

_SIDES = {"difference": 2, "non-inferiority": 1, "equivalence": 1}
#: Of a single one-sided test. Both of equivalence pass, for equal models, in at least 1 - 2 (1 - .9) of all cases.
_POWERS = {"difference": 0.8, "non-inferiority": 0.8, "equivalence": 0.9}
_Systems = Mapping[str, Mapping[int | None, Evaluation]]  # by name and seed


@dataclass(frozen=True, slots=True)
class Contrast:
    """One model against the baseline: differences are the model's value minus the baseline's.

    Attributes
    ----------
    name, baseline : str
    unit : "items", "seeds" or "both"
    items, seeds : int
        How many of each are in the comparison.
    mean, baseline_mean : float
        Over these items and seeds.
    estimate : Estimate
        Of the mean difference.
    interval : Interval
        Two-sided.
    how : str
        The test that p is from.
    p : float
        Of the declared test.
    adjusted : float or None
        The same, corrected for the family; None outside of it.
    margin : NonInferiority, Equivalence or None
    detectable : float
        The smallest difference that these data would have shown in 80 of 100 cases, as far as they go before a
        correction for the family; of a test with a margin, the smallest margin that they would have shown of models
        that are truly equal. Infinite where the test could show none of any size.
    needed : dict
        How many items, or seeds, the wanted difference, or margin, needs for that; None where no number does.
    left_out : dict
        Items, seeds and samples that are not in the comparison, by what is wrong with them; counts.
    """

    name: str
    baseline: str
    unit: Unit
    items: int
    seeds: int
    mean: float
    baseline_mean: float
    estimate: Estimate
    interval: Interval
    how: str
    p: float
    adjusted: float | None
    margin: NonInferiority | Equivalence | None
    detectable: float
    needed: Mapping[str, int | None]
    left_out: Mapping[str, int]

    def verdict(self, level: float) -> str:
        """Return what is shown at a level, in words; of a family at the corrected p-value.

        A difference is shown where the test finds it and the interval does not hold 0.
        """
        shown = (self.p if self.adjusted is None else self.adjusted) <= level
        if isinstance(self.margin, NonInferiority):
            return f"not worse by {self.margin.margin:g}" if shown and self.margin.holds else "not shown"
        if isinstance(self.margin, Equivalence):
            return f"equal within {self.margin.margin:g}" if shown and self.margin.holds else "not shown"
        shown = shown and self.interval.excludes_zero
        return ("better" if self.estimate.mean > 0 else "worse") if shown else "no difference shown"

    def at_odds(self, level: float) -> bool:
        """Return whether test and interval, which rest on different assumptions, disagree on a difference."""
        return self.margin is None and (self.p <= level) != self.interval.excludes_zero


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` has found."""

    declared: Declared
    baseline: str
    unit: Unit
    why_unit: str
    contrasts: tuple[Contrast, ...]
    remarks: tuple[str, ...]


def compare(evaluations: Sequence[Evaluation], declared: Declared | None = None) -> Comparison:
    """Compare models with a baseline, item by item and seed by seed.

    Parameters
    ----------
    evaluations : sequence of Evaluation
        Files of one name are seeds of one model; the first one's is the baseline, unless the plan names another.
    declared : Declared, optional

    Returns
    -------
    Comparison

    Raises
    ------
    EvaluationError
        If there are fewer than two models; if settings differ, by name; if one seed is there twice; if the plan names a
        model that is not there; if equal ids stand for different prompts; if no item, or no seed, is common to both; if
        the margin is not in the unit of the values; if there is a single item or seed where that is the unit.
    """
    declared = declared or Declared(Plan())
    plan, systems = declared.plan, _by_name(evaluations)
    _refuse_other_settings(evaluations)
    baseline = plan.baseline or evaluations[0].name
    for name in (baseline, *plan.family):
        if name not in systems:
            raise EvaluationError(f"the plan names {name!r}, but the files are of {', '.join(map(repr, systems))}")
    others = [name for name in systems if name != baseline]
    if not others:
        raise EvaluationError(f"all files are of {baseline!r}; there is nothing to compare it with")
    if baseline in plan.family:
        raise EvaluationError(f"the plan's family names the baseline, {baseline!r}; it is held against itself nowhere")
    unit, why = _unit(plan, systems)
    contrasts = [_contrast(name, systems[name], baseline, systems[baseline], unit, plan) for name in others]
    family = plan.family or tuple(others)
    adjusted = dict(zip(family, holm([one.p for name in family for one in contrasts if one.name == name]), strict=True))
    corrected = [
        replace(one, adjusted=float(adjusted[one.name]) if one.name in adjusted else None) for one in contrasts
    ]
    remarks = other_templates(evaluations)
    if unit != "seeds" and (repeated := max(repeated_prompts(one.items) for one in evaluations)):
        remarks.append(
            f"{repeated} items have the prompt of an earlier one; the test takes all for independent, and may find "
            "more than there is"
        )
    remarks += [f"{one.name}: {count} {what}, left out" for one in contrasts for what, count in one.left_out.items()]
    remarks += [
        f"{one.name}: {one.how} and Student's interval disagree; a difference counts as shown where both find it"
        for one in corrected
        if one.at_odds(plan.level)
    ]
    if len(family) == 1:
        remarks.append("the family has one member: there is nothing to correct for")
    remarks += [
        f"{one.name}: all differences are {one.estimate.mean:g}, which tells nothing of how much they vary; p, "
        "interval and the numbers above take them for all that there are"
        for one in corrected
        if one.estimate.error <= rounding_of(one.mean, one.baseline_mean)
    ]
    return Comparison(declared, baseline, unit, why, tuple(corrected), tuple(remarks))


def _by_name(evaluations: Sequence[Evaluation]) -> _Systems:
    systems: dict[str, dict[int | None, Evaluation]] = {}
    for one in evaluations:
        seeds = systems.setdefault(one.name, {})
        if one.seed in seeds:
            what = "without a seed" if one.seed is None else f"of seed {one.seed}"
            raise EvaluationError(f"two files of {one.name!r} {what}; give each its own seed, or another name")
        seeds[one.seed] = one
        if None in seeds and len(seeds) > 1:
            raise EvaluationError(f"some files of {one.name!r} have a seed and one has none")
    if len(systems) < 2:
        raise EvaluationError("there must be files of two models or more; `humanline evaluate --name` tells them apart")
    return systems


def _refuse_other_settings(evaluations: Sequence[Evaluation]) -> None:
    for one in evaluations[1:]:
        if unlike := not_alike(evaluations[0], one):
            raise EvaluationError(f"{unlike}. Evaluate both with the same prompts, sampling and scoring")


def not_alike(first: Evaluation, other: Evaluation) -> str:
    """Return why two evaluations, of which only names and settings are read, cannot be compared; empty if they can."""
    expected, found = _flat(first.settings), _flat(other.settings)
    names = sorted(name for name in expected | found if expected.get(name) != found.get(name))
    if not names:
        return ""
    listed = "; ".join(f"{name}: {_told(expected, name)} and {_told(found, name)}" for name in names[:5])
    why = f"{listed}; and {len(names) - 5} more" if len(names) > 5 else listed
    given = [one.name for one in (first, other) if one.settings.get("sampling") == "given"]
    if len(given) == 1:
        why = (
            f"the answers of {given[0]!r} were given, so that nobody knows how they were drawn; those of the other "
            "were sampled by the evaluation"
        )
    return f"{first.name!r} and {other.name!r} were not evaluated alike: {why}"


def other_templates(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return a remark where models were asked through different templates, as a chat model and its base may be."""
    found: dict[str, dict[str, None]] = {}
    for one in evaluations:  # of one name there may be several, which are its seeds
        if "template" in one.summary:
            found.setdefault(one.name, {})[str(one.summary["template"])] = None
    if len({template for own in found.values() for template in own}) < 2:
        return []
    told = "; ".join(f"{name}: {' and '.join(own)}" for name, own in found.items())
    return [f"prompts were put into different templates: {told}"]


def _told(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "not said"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        below = _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else None
        flat |= below if below is not None else {f"{prefix}{name}": value}
    return flat


def _unit(plan: Plan, systems: _Systems) -> tuple[Unit, str]:
    several = all(len(seeds) > 1 for seeds in systems.values())
    if plan.unit is not None:
        if plan.unit != "items" and not several:
            single = [name for name, seeds in systems.items() if len(seeds) == 1]
            raise EvaluationError(f"unit: {plan.unit} needs several seeds of each model; there is one of {single}")
        return plan.unit, "as declared"
    if several:
        return "both", "there are several seeds of each model"
    return "items", "there is one seed of a model: what is found holds for these runs, not for others of their kind"


def _contrast(
    name: str,
    model: Mapping[int | None, Evaluation],
    baseline: str,
    against: Mapping[int | None, Evaluation],
    unit: Unit,
    plan: Plan,
) -> Contrast:
    ours, theirs, left_out, binary = _joined(name, model, baseline, against)
    table = _differences(ours, theirs)
    items, seeds = table.shape
    _refuse_margin(plan, ours, theirs)
    short = [what for what, count in (("items", items), ("seeds", seeds)) if unit in (what, "both") and count < 2]
    if short:
        raise EvaluationError(
            f"{name!r} and {baseline!r} have one of {' and one of '.join(short)} in common; a comparison over {unit} "
            "needs at least two"
        )
    means = _means(table, rounding_of(ours, theirs), unit)
    estimate = crossed_estimate(table) if unit == "both" else mean_estimate(means.tolist())
    if unit == "both" and not means.any():
        estimate = replace(estimate, mean=0.0)
    confidence, margin = 1 - plan.level, _margin(plan, estimate)
    sides, power = _SIDES[plan.test], _POWERS[plan.test]
    p, how = (margin.p, "Student's t") if margin is not None else _difference(table, means, unit, estimate, binary)
    how += f", {estimate.degrees:.1f} degrees of freedom" if unit == "both" else ""
    return Contrast(
        name=name,
        baseline=baseline,
        unit=unit,
        items=items,
        seeds=seeds,
        mean=float(ours.mean()),
        baseline_mean=float(theirs.mean()),
        estimate=estimate,
        interval=estimate.interval(confidence),
        how=how,
        p=p,
        adjusted=None,
        margin=margin,
        detectable=math.inf
        if (seeds if unit == "seeds" else items) < _fewest(plan, unit)
        else detectable_difference(estimate, power=power, level=plan.level, sides=sides),
        needed=_needed(table, unit, estimate, plan),
        left_out=left_out,
    )


def _differences(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ours less theirs; what may be rounding alone is 0, or a test would find it."""
    table = ours - theirs
    table[np.abs(table) <= rounding_of(ours, theirs)] = 0.0
    return table


def _means(table: NDArray[np.float64], rounding: NDArray[np.float64], unit: Unit) -> NDArray[np.float64]:
    """Return the mean difference of each seed or, else, of each item; what may be rounding alone is 0 here, too.

    .4 less .3 and .2 less .3 are no opposites: their mean is 3e-17, and that of every item with such seeds.
    """
    over = 0 if unit == "seeds" else 1
    means: NDArray[np.float64] = table.mean(over)
    means[np.abs(means) <= rounding.mean(over)] = 0.0
    return means


def _margin(plan: Plan, estimate: Estimate) -> NonInferiority | Equivalence | None:
    if plan.margin is None:
        return None
    test = non_inferiority if plan.test == "non-inferiority" else equivalence
    return test(estimate, plan.margin, confidence=1 - plan.level)


def _difference(
    table: NDArray[np.float64], means: NDArray[np.float64], unit: Unit, estimate: Estimate, binary: bool
) -> tuple[float, str]:
    """Return the two-sided p-value of no difference, and the test it is from."""
    if unit == "both":
        return min(1.0, 2 * min(estimate.above(0.0), (-estimate).above(0.0))), "Student's t, items by seeds"
    if unit == "items" and binary and table.shape[1] == 1:
        return mcnemar(int((table > 0).sum()), int((table < 0).sum())), "McNemar's exact test"
    return float(sign_flip_test(means)), "sign flips"


def _needed(table: NDArray[np.float64], unit: Unit, estimate: Estimate, plan: Plan) -> dict[str, int | None]:
    """Return how many items, or seeds, show the wanted difference; nothing where none is wanted."""
    wanted, sides, power = plan.wanted or plan.margin, _SIDES[plan.test], _POWERS[plan.test]
    if not wanted:
        return {}
    if unit == "both":
        return {
            more: needed_crossed(table, wanted, more=more, power=power, level=plan.level, sides=sides)
            for more in ("items", "seeds")
        }
    count = table.shape[0 if unit == "items" else 1]
    deviation = estimate.error * math.sqrt(count)
    enough = needed_pairs(deviation, wanted, power=power, level=plan.level, sides=sides)
    return {unit: max(enough, _fewest(plan, unit))}


def _fewest(plan: Plan, unit: Unit) -> int:
    """Return how many items, or seeds, the test of a difference needs to show any at all.

    Sign flips and McNemar's test of n give no p-value below 2 / 2^n.
    """
    return 2 if plan.test != "difference" or unit == "both" else max(2, math.ceil(math.log2(2 / plan.level)))


def _joined(
    name: str, model: Mapping[int | None, Evaluation], baseline: str, against: Mapping[int | None, Evaluation]
) -> tuple[NDArray[np.float64], NDArray[np.float64], dict[str, int], bool]:
    """Return both's values on what they have in common, (items, seeds), what is left out, and if all are 0 or 1."""
    left_out: dict[str, int] = {}
    if len(model) == len(against) == 1:
        pairs = [(next(iter(model.values())), next(iter(against.values())))]
    else:
        common = sorted(seed for seed in model.keys() & against.keys() if seed is not None)
        if not common:
            raise EvaluationError(
                f"{name!r} and {baseline!r} have no seed in common: {sorted(map(str, model))} and "
                f"{sorted(map(str, against))}"
            )
        if (lost := len(model.keys() ^ against.keys())) > 0:
            left_out["seeds that only one of both has"] = lost
        pairs = [(model[seed], against[seed]) for seed in common]
    sides = [[{item.id: item for item in one.items} for one in pair] for pair in pairs]
    everywhere = set.intersection(*(set(one) for pair in sides for one in pair))
    somewhere = set.union(*(set(one) for pair in sides for one in pair))
    if len(somewhere) > len(everywhere):
        left_out["items that are not in all files"] = len(somewhere) - len(everywhere)
    kept: list[str] = []
    for item in sides[0][1]:
        if item in everywhere:
            _refuse_other_prompt([one[item] for pair in sides for one in pair], name, baseline)
            if all(one[item].known for pair in sides for one in pair):
                kept.append(item)
    if len(kept) < len(everywhere):
        left_out["items without a score on one side"] = len(everywhere) - len(kept)
    if not kept:
        raise EvaluationError(f"{name!r} and {baseline!r} have no scored item in common")
    lost = sum(len(one[i].values) - len(one[i].known) for pair in sides for one in pair for i in kept)
    if lost:
        left_out["single samples without a score"] = lost
    singles = [one[i].values for pair in sides for one in pair for i in kept]
    binary = all(len(values) == 1 and values[0] in (0, 1) for values in singles)
    ours, theirs = (
        np.array([[math.fsum(pair[side][i].known) / len(pair[side][i].known) for pair in sides] for i in kept])
        for side in (0, 1)
    )
    return ours, theirs, left_out, binary


def _refuse_other_prompt(items: Sequence[Item], name: str, baseline: str) -> None:
    if len({item.prompt for item in items}) > 1:
        raise EvaluationError(
            f"item {items[0].id!r} is another question for {name!r} than for {baseline!r}: they were not evaluated on "
            "the same prompts"
        )
    if len({len(item.values) for item in items}) > 1:
        raise EvaluationError(
            f"item {items[0].id!r} has {sorted({len(item.values) for item in items})} samples; give all of them as many"
        )


def _refuse_margin(plan: Plan, ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
    """Refuse a margin that any two models would pass."""
    values = np.concatenate([ours.ravel(), theirs.ravel()])
    if plan.margin is not None and plan.margin >= 1 and values.min() >= 0 and values.max() <= 1:
        raise EvaluationError(
            f"the margin is {plan.margin:g}, but all values are from 0 to 1: in their unit two percent are 0.02"
        )
