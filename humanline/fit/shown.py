"""Tables of a fit and of a comparison, in text: lines of at most 100 characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from humanline.fit.compare import SQUARED, Comparison, loss_name
from humanline.fit.result import Fit
from humanline.fit.uncertainty import ParameterInterval, clusters

#: The medians of Tversky and Kahneman (1992), of their families.
MEDIANS = {"curvature": 0.88, "loss_curvature": 0.88, "loss_aversion": 2.25, "gain.gamma": 0.61, "loss.gamma": 0.69}
#: How intervals are made, as the table says it.
FROM_ERRORS, FROM_PROFILES = "from these, made on the log scale", "from profiles"
#: Above it the data hardly tell some combination of parameters from another.
_ILL = 1e8
_WIDTH = 88


def usual_errors(fit: Fit) -> str:
    """Return which standard errors suit the data of a fit.

    Clustered by person if there are more than twice as many people as parameters, else by problem if problems have
    several answers; else what a fit has where no kind is asked for, as Python has it (`Fit.usual_kind`).
    """
    data = fit.choices
    if data.people > 2 * len(fit.names) and data.people > 1:
        return "person"
    if len(data) > data.problems > 2 * len(fit.names):
        return "problem"
    return fit.usual_kind


def fit_lines(fit: Fit, errors: str, intervals: Mapping[str, ParameterInterval], *, source: str, how: str) -> list[str]:
    """Return the table of a fit.

    Parameters
    ----------
    fit : Fit
    errors : str
        Which standard errors are shown, a kind of `Fit.covariance`.
    intervals : mapping from name to ParameterInterval
    source : str
        What the data are called.
    how : str
        What the intervals are made from.
    """
    data = fit.choices
    rule, line = "=" * _WIDTH, "-" * _WIDTH
    quasi = data.kind == "rates" and fit.likelihood.objective == "likelihood"
    score = "Quasi-log-likelihood" if quasi else "Log-likelihood"
    value = fit.log_likelihood
    if fit.likelihood.objective != "likelihood":
        score, value = "Half squared error", -value
    pairs = [
        ("Responses", f"{len(data)} {data.kind}", score, f"{value:.4f}"),
        ("Choices", "unknown" if data.kind == "rates" else f"{data.trials.sum():.0f}", "AIC", _or_none(fit.aic)),
        ("Problems", f"{data.problems}", "BIC", _or_none(fit.bic)),
        ("People", f"{data.people}", "Mean squared error", f"{fit.squared_error:.5f}"),
        ("Objective", fit.likelihood.objective, "Condition", f"{fit.condition:.3g}"),
        ("Errors", _errors(fit, errors), "Starts at the best", f"{fit.starts.agreeing} of {len(fit.starts.values)}"),
    ]
    lines = [_title(fit).center(_WIDTH).rstrip(), source.center(_WIDTH).rstrip(), rule]
    lines += [f"{a + ':':<11}{b:<36}{c + ':':<23}{d:>18}" for a, b, c, d in pairs]
    wide = max(16, *(len(name) for name in fit.model.parameters(data.kind)))
    first = next(iter(intervals.values()), None)
    confidence = 0.95 if first is None else first.confidence
    ends = [f"[{(1 - confidence) / 2:.3f}", f"{(1 + confidence) / 2:.3f}]"]
    lines += [rule, f"{'':<{wide}}{'estimate':>12}{'std err':>12}{ends[0]:>12}{ends[1]:>12}{'1992':>9}", line]
    error = fit.standard_errors(errors)
    missing: dict[str, list[str]] = {}
    for name, estimate in fit.parameters.items():
        if name in fit.names:
            found = intervals[name]
            numbers = [_number(x) for x in (estimate, error[name], found.low, found.high)]
            if found.why:
                missing.setdefault(f"no {'end of the ' if _half(found) else ''}interval, as {found.why}", []).append(
                    name
                )
            rest = "".join(f"{each:>12}" for each in numbers)
        else:
            rest = f"{_number(estimate):>12}  {_why_fixed(fit, name)}"
        median = MEDIANS.get(name)
        shown = f"{median:>9.2f}" if median is not None and name in fit.names and _is_classic(fit) else ""
        lines.append(f"{name:<{wide}}{rest}{shown}".rstrip())
    notes = [f"{', '.join(names)}: {why}." for why, names in missing.items()]
    return [*lines, rule, *_wrapped(_notes(fit, errors, how, notes), _WIDTH)]


def _errors(fit: Fit, errors: str) -> str:
    return f"{errors} ({clusters(fit, errors)} clusters)" if errors in ("problem", "person") else errors


def _title(fit: Fit) -> str:
    model = fit.model
    if model.name:
        return model.name[0].upper() + model.name[1:]
    families = model.gain if model.gain == model.loss_family else f"{model.gain} (gains), {model.loss_family} (losses)"
    how = [model.rule, *(["contextual"] if model.contextual else []), *(["lapses"] if model.lapse else [])]
    how = ["normal errors"] if fit.choices.kind == "equivalents" else how
    return f"{model.weights.capitalize()} prospect theory: {model.value} value, {families}; {', '.join(how)}"


def _notes(fit: Fit, errors: str, how: str, notes: Sequence[str]) -> list[str]:
    kinds = {
        "information": "from the information",
        "robust": "robust (sandwich)",
        "problem": "robust, clustered by problem",
        "person": "robust, clustered by person",
    }
    lines = [f"Standard errors {kinds[errors]}; intervals {how}."]
    if how == FROM_PROFILES and errors in ("problem", "person"):
        lines.append("Profiles take answers as independent, which these errors do not.")
    if not fit.names:
        lines = ["All parameters are fixed: nothing was estimated."]
    if fit.choices.kind == "rates" and fit.likelihood.objective == "likelihood":
        lines.append("Rates are fitted by fractional logit: a quasi-likelihood, of which there is no AIC or BIC.")
    lines += notes
    if (correlated := strongest(fit, errors)) is not None:
        lines.append(f"Strongest correlation of estimates: {correlated[0]} and {correlated[1]}, {correlated[2]:+.2f}.")
    if fit.condition > _ILL:
        lines.append("The data hardly tell some combination of the parameters from another (condition).")
    if fit.starts.agreeing * 2 < len(fit.starts.values):
        lines.append("Fewer than half of the starts ended at the best optimum: try more (--starts).")
    return lines


def strongest(fit: Fit, errors: str) -> tuple[str, str, float] | None:
    """Return the two parameters whose estimates are correlated most, and the correlation; None of fewer than two."""
    size = np.abs(np.nan_to_num(fit.correlations(errors))) - np.eye(len(fit.names))
    if len(fit.names) < 2 or size.max() <= 0:
        return None
    i, j = sorted(int(each) for each in np.unravel_index(size.argmax(), size.shape))
    return fit.names[i], fit.names[j], float(fit.correlations(errors)[i, j])


def comparison_lines(found: Comparison, *, source: str) -> list[str]:
    """Return the table of a comparison, and what it says in sentences."""
    wide = max(len(row.title) for row in found.rows) + 1
    name = loss_name(found)
    rule = "=" * (wide + 70)
    criteria = [name.upper() for name in found.criteria]
    title = f"Models of {source}; held out: {found.folds} folds of {found.units} {_units(found)}"
    columns = (("K", 2), ("log-lik", 11), (criteria[0], 10), (criteria[1], 10), ("held out", 10), ("differs", 10))
    head = "".join(f"{one:>{width}}" for one, width in (*columns, ("std err", 9), ("Holm p", 8)))
    lines = [title.center(len(rule)).rstrip(), rule, f"{'':<{wide}}{head}", "-" * len(rule)]
    for row in found.rows:
        fitted = f"{row.title:<{wide}}{len(row.fit.names):>2}{row.fit.log_likelihood:>11.2f}" + "".join(
            "-".rjust(10) if math.isnan(each) else f"{each:>10.1f}" for each in (row.aic, row.bic)
        )
        fitted += f"{row.loss:>10.5f}"
        if row.difference is None:
            lines.append(f"{fitted}{'baseline':>10}")
        else:
            lines.append(f"{fitted}{row.difference.mean:>+10.5f}{row.difference.error:>9.5f}{row.adjusted:>8.3f}")
    lines.append(rule)
    return [*lines, *_wrapped(verdicts(found, name), len(rule))]


def verdicts(found: Comparison, name: str) -> list[str]:
    """Return what a comparison says, in sentences."""
    lines = [
        f"Held out: mean {name}, smaller is better. Differences are to {found.baseline}, paired by {found.by}; "
        "p is two-sided, after Holm's correction.",
        f"Noise of the data alone: {_floor(found)}.",
    ]
    for verdict in ("better", "worse", "not distinguishable"):
        these = [row.title for row in found.rows if row.verdict == verdict]
        said = f"{verdict} than" if verdict != "not distinguishable" else "not distinguishable from"
        if these:
            lines.append(f"{said[0].upper()}{said[1:]} {found.baseline} ({len(these)}): {'; '.join(these)}.")
    if found.pairs:
        apart = len(found.separated)
        if apart * 2 < found.pairs:
            lines.append(
                f"{found.units} {_units(found)} cannot separate most of these models: of {found.pairs} pairs {apart} "
                "can be told apart (Holm over all pairs)."
            )
        else:
            lines.append(f"Of {found.pairs} pairs of models {apart} can be told apart (Holm over all pairs).")
        alike = found.alike
        least = f"The smallest loss is that of {found.best.title}"
        others = f"{len(alike)} {'other' if len(alike) == 1 else 'others'} cannot be told from it"
        lines.append(f"{least}; {others}." if alike else f"{least}, alone.")
    for title, why in found.missing.items():
        kind = "did not converge" if title in found.not_converged else "cannot be fitted to these data"
        lines.append(f"Not in the table: {title} {kind}: {why}")
    for row in found.rows:
        for parameter, end in row.fit.at_bound.items():
            lines.append(f"{row.title}: {parameter} is on its {end} bound.")
    return lines


def _floor(found: Comparison) -> str:
    floor = found.floor
    if floor.squared_error is None:
        return floor.why or "unknown for this kind of answers"
    part = f", {floor.why}" if floor.why else ""
    if found.measure == SQUARED:
        return f"{floor.squared_error:.5f}{part}"
    best = found.best
    weight = best.fit.choices.trials
    error = float(np.average(best.held_out.squared_error, weights=weight))
    squares = f"as squared error {floor.squared_error:.5f}, where {best.title} has {error:.5f}"
    return (f"at least {floor.log_loss:.5f}; {squares}" if floor.log_loss is not None else squares) + part


def _wrapped(sentences: Sequence[str], width: int) -> list[str]:
    import textwrap

    return [line for each in sentences for line in textwrap.wrap(each, width, subsequent_indent="  ")]


def _units(found: Comparison) -> str:
    return "problems" if found.by == "problem" else "people"


def _is_classic(fit: Fit) -> bool:
    return fit.model.value == "power" and fit.model.gain == fit.model.loss_family == "tversky-kahneman"


def _why_fixed(fit: Fit, name: str) -> str:
    return f"= {fit.model.source(name)}" if name in fit.model.equal else "fixed"


def _half(found: ParameterInterval) -> bool:
    return math.isnan(found.low) != math.isnan(found.high)


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.3e}"


def _or_none(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
