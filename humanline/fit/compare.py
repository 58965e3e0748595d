"""Models compared on the same data: scored on what they had not seen, against a baseline, with the noise as floor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.estimate import fit_prospect
from humanline.fit.faults import NotConverged, NotIdentified
from humanline.fit.folds import HeldOut, cross_validate, fold_of, units_of
from humanline.fit.model import EQUIVALENTS, Model, standard_models
from humanline.fit.noise import Floor, sampling_floor
from humanline.fit.result import Fit
from humanline.fit.table import as_choices
from humanline.stats import Estimate, holm, ratio_estimate

BETTER, WORSE, SAME = "better", "worse", "not distinguishable"
LOG_LOSS, SQUARED = "log-loss", "squared error"
_ENDLESS = (
    "without a fold, infinite certainty equivalents are foretold of {endless} of {responses} responses: utilities lie "
    "beyond all values, or at their end for a float; take values that do not level off, or cumulative weights"
)
#: Differences below this share of the baseline's loss are those of where climbs end, not of models.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Compared:
    """Hold what one model scores.

    Parameters
    ----------
    fit : Fit
        To all data.
    held_out : HeldOut
    loss : float
        The mean loss of responses that were held out (`Comparison.measure`), per choice.
    aic, bic : float
        Of rates with likelihood the quasi-criteria: ``2 K - 2 ln L / dispersion``.
    difference : Estimate or None
        Of the mean loss to the baseline's, below 0 where the model is better; its error is that of paired units. None
        for the baseline.
    p, adjusted : float
        Two-sided, and by Holm over all models that are compared; nan for the baseline.
    verdict : str
        "better", "worse" or "not distinguishable"; "" for the baseline.
    """

    fit: Fit
    held_out: HeldOut
    loss: float
    aic: float
    bic: float
    difference: Estimate | None
    p: float
    adjusted: float
    verdict: str

    @property
    def title(self) -> str:
        """The model's name."""
        return self.fit.model.title


@dataclass(frozen=True, eq=False)
class Comparison:
    """Hold models compared on the same data; `compare_models` makes it.

    Parameters
    ----------
    rows : tuple of Compared
        In the order of the models; those that have no fit are in `missing`.
    missing : mapping from title to str
        Models without a row, and why: these data do not determine them, or no start came to an optimum.
    not_converged : tuple of str
        Those of them that came to no optimum.
    baseline : str
    measure : str
        "log-loss" (nats per choice) or "squared error".
    by : str
        What was held out together, and what errors are paired over: "problem" or "person".
    units : int
        How many there are.
    folds, seed : int
    level : float
        Of the tests.
    dispersion : float
        Of rates; 1 where there is a likelihood.
    floor : Floor
    separated : tuple of pairs of titles
        Of all pairs of models those that these data tell apart (Holm over all pairs), the better first.
    """

    rows: tuple[Compared, ...]
    missing: Mapping[str, str]
    not_converged: tuple[str, ...]
    baseline: str
    measure: str
    by: str
    units: int
    folds: int
    seed: int
    level: float
    dispersion: float
    floor: Floor
    separated: tuple[tuple[str, str], ...]

    @property
    def criteria(self) -> tuple[str, str]:
        """What `aic` and `bic` of the rows are: of rates quasi-criteria, of another likelihood's unit."""
        return ("aic", "bic") if self.dispersion == 1.0 else ("qaic", "qbic")

    @property
    def best(self) -> Compared:
        """The model with the smallest loss, whether or not it can be told from others."""
        return min(self.rows, key=lambda row: row.loss)

    @property
    def pairs(self) -> int:
        """How many pairs of models there are."""
        return len(self.rows) * (len(self.rows) - 1) // 2

    @property
    def alike(self) -> tuple[str, ...]:
        """The models that cannot be told from the one with the smallest loss, without it."""
        best = self.best.title
        apart = {other for pair in self.separated if best in pair for other in pair}
        return tuple(row.title for row in self.rows if row.title not in {best, *apart})


def compare_models(
    choices: Choices | Any,
    models: Mapping[str, Model] | None = None,
    *,
    baseline: str | None = None,
    by: str = "problem",
    folds: int = 10,
    starts: int = 10,
    seed: int = 0,
    objective: str = "likelihood",
    reference_point: float = 0.0,
    level: float = 0.05,
    noise: ArrayLike | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Fit models to the same data, score each on what it had not seen, and test the differences.

    The loss is minus the log-likelihood of choices, counts and certainty equivalents; of bare rates, or with least
    squares, it is the squared error. The difference of mean losses is ``sum_i (l_i - b_i) / sum_i n_i`` over responses
    of n_i choices, with the error of sums over units that were held out together.

    Parameters
    ----------
    choices : Choices, or a table in the long form (see `as_choices`)
    models : mapping from title to Model, optional
        `standard_models` by default: expected value, expected utility, separable and cumulative prospect theory with
        all families.
    baseline : str, optional
        The first by default.
    by : str
        What is held out together: "problem" (does a model foretell other problems?) or "person" (other people?).
    folds : int
    starts, seed, objective, reference_point
        As `fit_prospect` has them; folds start from the estimates of all data.
    level : float in (0, 1)
        Of the tests, after Holm's correction.
    noise : (M,) array, optional
        The sampling variance of each response, for the floor.
    progress : callable
        Given how many fits are done, and of how many.

    Returns
    -------
    Comparison

    Raises
    ------
    DataError
        If the data are faulty.
    ValueError
        If the baseline is no model or in ``missing``, or there are fewer units than folds.

    Notes
    -----
    The error takes units as independent given the fits. Folds share training data, which it does not see; there is no
    unbiased estimate of that (Bengio and Grandvalet, 2004). A model without a fit, or one that foretells infinite
    certainty equivalents of what was held out, is in ``missing``, with the reason.
    """
    data = as_choices(choices)
    given = dict(standard_models() if models is None else models)
    first = next(iter(given), None) if baseline is None else baseline
    if first not in given:
        raise _checks.unknown("baseline", str(first), tuple(given))
    if not 0 < level < 1:
        raise _checks.fail("level", "lie strictly between 0 and 1", level)
    unit = units_of(data, by)
    fold = fold_of(unit, folds, seed)
    how: dict[str, Any] = {"starts": starts, "seed": seed, "objective": objective, "reference_point": reference_point}
    fits: dict[str, tuple[Fit, HeldOut]] = {}
    missing: dict[str, str] = {}
    lost: list[str] = []
    total = len(given) * (folds + 1)
    for number, (title, model) in enumerate(given.items()):
        done = number * (folds + 1)
        progress(done, total)
        model = dataclasses.replace(model, name=title)
        counted = iter(range(done + 2, done + folds + 2))
        try:
            fit = fit_prospect(data, model, **how)
            progress(done + 1, total)
            held_out = cross_validate(fit, fold, lambda counted=counted: progress(next(counted), total))  # type: ignore[misc]
            if endless := int(np.isinf(held_out.squared_error).sum()):
                missing[title] = _ENDLESS.format(endless=endless, responses=len(data))
            else:
                fits[title] = fit, held_out
        except NotConverged as error:
            missing[title] = str(error)
            lost.append(title)
        except NotIdentified as error:
            missing[title] = "; ".join(fault.told() for fault in error.faults)
    progress(total, total)
    if first not in fits:
        raise ValueError(f"the baseline, {first}, has no fit: {missing[first]}")
    measure = SQUARED if data.kind == "rates" or objective == "least squares" else LOG_LOSS
    return Comparison(
        rows=_rows(data, fits, first, unit, measure, level),
        missing=missing,
        not_converged=tuple(lost),
        baseline=first,
        measure=measure,
        by=by,
        units=int(unit.max()) + 1,
        folds=folds,
        seed=seed,
        level=level,
        dispersion=_dispersion(fits),
        floor=sampling_floor(data, noise),
        separated=_separated(data, fits, unit, measure, level),
    )


def _losses(data: Choices, held_out: HeldOut, measure: str) -> NDArray[np.float64]:
    """Return the loss of each response, summed over its choices."""
    return data.trials * held_out.squared_error if measure == SQUARED else -held_out.log_likelihood


def _rows(data: Choices, fits: Any, baseline: str, unit: Any, measure: str, level: float) -> tuple[Compared, ...]:
    losses = {title: _losses(data, held_out, measure) for title, (_, held_out) in fits.items()}
    weight = data.trials.sum()
    found = {title: _difference(data, loss, losses[baseline], unit) for title, loss in losses.items()}
    smallest = _ROUNDING * abs(losses[baseline].sum() / weight)
    p = np.array([math.nan if title == baseline else two_sided(found[title], smallest) for title in fits])
    adjusted = holm(p)
    dispersion = _dispersion(fits)
    rows = []
    for place, (title, (fit, held_out)) in enumerate(fits.items()):
        aic, bic = _criteria(fit, dispersion)
        estimate = None if title == baseline else found[title]
        verdict = "" if estimate is None else _verdict(estimate, float(adjusted[place]), level)
        rows.append(
            Compared(
                fit,
                held_out,
                float(losses[title].sum() / weight),
                aic,
                bic,
                estimate,
                float(p[place]),
                float(adjusted[place]),
                verdict,
            )
        )
    return tuple(rows)


def _verdict(estimate: Estimate, adjusted: float, level: float) -> str:
    if not adjusted < level:
        return SAME
    return BETTER if estimate.mean < 0 else WORSE


def _difference(data: Choices, ours: Any, theirs: Any, unit: NDArray[np.int64]) -> Estimate:
    """Return the difference of mean losses, with the error of paired sums over units."""
    sums = np.bincount(unit, weights=ours - theirs)
    return ratio_estimate(sums, np.bincount(unit, weights=data.trials), range(len(sums)))


def two_sided(estimate: Estimate, smallest: float = 0.0) -> float:
    """Return the p-value of no difference; 1 where the difference is no larger than what rounding makes."""
    if abs(estimate.mean) <= smallest or not math.isfinite(estimate.error):
        return 1.0
    return min(1.0, 2 * min(estimate.above(0.0), (-estimate).above(0.0)))


def _separated(data: Choices, fits: Any, unit: Any, measure: str, level: float) -> tuple[tuple[str, str], ...]:
    titles = list(fits)
    losses = [_losses(data, held_out, measure) for _, held_out in fits.values()]
    pairs = [(i, j) for i in range(len(titles)) for j in range(i)]
    if not pairs:
        return ()
    found = [_difference(data, losses[i], losses[j], unit) for i, j in pairs]
    size = [_ROUNDING * abs(losses[j].sum() / data.trials.sum()) for _, j in pairs]
    adjusted = holm([two_sided(each, least) for each, least in zip(found, size, strict=True)])
    return tuple(
        (titles[i], titles[j]) if each.mean < 0 else (titles[j], titles[i])
        for (i, j), each, p in zip(pairs, found, adjusted, strict=True)
        if p < level
    )


def _dispersion(fits: Any) -> float:
    """Return the dispersion of rates, that of the models with the most parameters; 1 for what has a likelihood.

    ``sum (y - p)^2 / (p (1 - p)) / (M - K)``, as McCullagh and Nelder (1989), section 4.5, estimate it; the least of
    these models' that are numbers, else nan. A rate of 0 or 1 that was foretold for certain adds nothing, another one
    that was foretold so makes it infinite.
    """
    any_fit: Fit = next(iter(fits.values()))[0]
    if any_fit.choices.kind != "rates" or any_fit.likelihood.objective != "likelihood":
        return 1.0
    most = max(len(fit.names) for fit, _ in fits.values())
    found = []
    for fit in (fit for fit, _ in fits.values() if len(fit.names) == most):
        p = fit.predicted()
        degrees = len(p) - most
        off = (fit.choices.response - p) ** 2
        with np.errstate(divide="ignore", over="ignore"):
            size = float(np.divide(off, p * (1 - p), out=np.zeros_like(off), where=off > 0).sum())
        found.append(size / degrees if degrees > 0 else math.nan)
    return min((each for each in found if not math.isnan(each)), default=math.nan)


def _criteria(fit: Fit, dispersion: float) -> tuple[float, float]:
    """Return AIC and BIC; with least squares those of normal errors of shares, with variances as 1/n of n choices."""
    number, choices = len(fit.names), float(fit.choices.trials.sum())
    if fit.likelihood.objective == "least squares":
        shares = len(fit.choices)
        fitted = shares * math.log(fit.squared_error) if fit.squared_error > 0 else -math.inf
        return fitted + 2 * (number + 1), fitted + math.log(shares) * (number + 1)
    if not 0 < dispersion < math.inf:  # all rates were foretold exactly, or one could not be at all
        return math.nan, math.nan
    fitted = -2 * fit.log_likelihood / dispersion
    return fitted + 2 * number, fitted + math.log(choices) * number


def loss_name(comparison: Comparison) -> str:
    """Return what the loss is, with its unit."""
    if comparison.measure == SQUARED:
        return SQUARED
    kind = comparison.rows[0].fit.choices.kind
    return "log-loss, nats an answer" if kind == EQUIVALENTS else "log-loss, nats a choice"
