"""Cross-validation: each response scored by a fit that saw nothing of its problem, or of its person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.estimate import fit_prospect
from humanline.fit.faults import NotConverged, NotIdentified
from humanline.fit.result import Fit

Array = NDArray[np.float64]
UNITS = ("problem", "person")
STARTS = 10


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What was foretold of responses that a fit had not seen.

    Parameters
    ----------
    log_likelihood : (M,) array
        Of each response, in nats.
    squared_error : (M,) array
        Of each response's share (or certainty equivalent).
    """

    log_likelihood: Array
    squared_error: Array


def units_of(choices: Choices, by: str) -> NDArray[np.int64]:
    """Return the problem or the person of each response, numbered from 0 without gaps."""
    _checks.one_of("by", by, UNITS)
    labels = choices.problem if by == "problem" else choices.person
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def fold_of(unit: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each response: whole units, in equal numbers as far as that goes, drawn from a seed.

    Raises
    ------
    ValueError
        If there are fewer than 2 folds, or fewer units than folds.
    """
    number = int(unit.max()) + 1
    if not 2 <= folds <= number:
        raise _checks.fail("folds", f"be from 2 to the number of units, {number}", folds)
    places = np.random.default_rng(seed).permutation(number) % folds
    return np.asarray(places[unit])


def cross_validate(fit: Fit, fold: NDArray[np.int64], finished: Callable[[], None] = lambda: None) -> HeldOut:
    """Fit a model again without each fold, and score that fold.

    Every climb starts from the estimates of all data; if it comes to no optimum, from the usual starts.

    Parameters
    ----------
    fit : Fit
    fold : (M,) int array
    finished : callable
        Called after each fold.

    Raises
    ------
    NotConverged, NotIdentified
        If the rest of some fold has no fit; the message says which.
    """
    data, own = fit.choices, fit.likelihood
    share = data.response / data.trials
    log_likelihood, squared_error = np.empty(len(data)), np.empty(len(data))
    folds = int(fold.max()) + 1
    for number in range(folds):
        held = fold == number
        rest = data.take(~held, all_problems=True)
        how: dict[str, Any] = {"objective": own.objective, "reference_point": own.reference_point, "seed": fit.seed}
        try:
            try:
                again = fit_prospect(rest, fit.model, starts=1, start_from=fit.estimates, **how)
            except NotConverged:
                again = fit_prospect(rest, fit.model, starts=STARTS, **how)
        except NotConverged as error:
            raise NotConverged(f"without fold {number + 1} of {folds}: {error}") from None
        except NotIdentified as error:
            raise NotIdentified(f"without fold {number + 1} of {folds}: {fit.model.title!r}", error.faults) from None
        log_likelihood[held] = again.rows(data)[held]
        squared_error[held] = (share - again.predicted(data))[held] ** 2
        finished()
    return HeldOut(log_likelihood, squared_error)
