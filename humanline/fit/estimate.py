"""Fit a model to responses: what cannot be is said first, then seeded starts climb, and the best is checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.faults import Fault, NotConverged, NotIdentified
from humanline.fit.identify import fit_faults
from humanline.fit.likelihood import Likelihood
from humanline.fit.model import EQUIVALENTS, Model
from humanline.fit.result import Fit, Starts
from humanline.fit.starts import bounds, starting_points
from humanline.fit.straight import climb_straight
from humanline.fit.table import as_choices

#: Starts agree that end within this of the best, relative to 1 + its size.
AGREEMENT = 1e-8


#: A mean log-likelihood above minus this is that of a model that grows surer of each choice without end.
_SURE = 1e-6
_WITHOUT_ERROR = Fault(
    None,
    "choices",
    "not all be predicted without error: no finite sensitivity is then the most likely (the data are separable); fix "
    "the sensitivity, free fewer parameters, or add choices",
    "a perfect prediction",
)


def fit_prospect(
    choices: Choices | Any,
    model: Model | None = None,
    *,
    starts: int = 10,
    seed: int = 0,
    objective: str = "likelihood",
    reference_point: float = 0.0,
    check: bool = True,
    start_from: Any = None,
) -> Fit:
    """Fit prospect theory to responses.

    Parameters
    ----------
    choices : Choices, or a table in the long form (see `as_choices`)
        A data frame, or a dict of columns.
    model : Model, optional
        Cumulative prospect theory with the families of 1992, by default.
    starts : int >= 1
        Climbs, each from another start: the usual values first.
    seed : int
        Of the draws of the others.
    objective : str
        "likelihood" (Bernoulli, binomial; of rates fractional logit; of certainty equivalents normal), or "least
        squares" of shares.
    reference_point : float
        Zero of gain and loss.
    check : bool
        Refuse, before fitting, what these data cannot determine.
    start_from : mapping from name to float, optional
        Values of free parameters for the first start, in place of the usual ones.

    Returns
    -------
    Fit

    Raises
    ------
    DataError
        If the data are faulty, with everything that is wrong.
    NotIdentified
        If some parameter cannot be determined by such data, with every reason and what to do: before the fit, or after
        it where it predicts every choice without error.
    NotConverged
        If no start came to an optimum.
    ValueError
        If there is no start, `start_from` names what is not free or gives a value that cannot be, or the model has a
        part that such responses have no use for (`Likelihood`).
    TypeError
        If `model` is none.

    Notes
    -----
    Estimation is on the log scale within bounds; a parameter on its bound is named in ``at_bound``. With a value
    function whose slope is finite at the reference point, a certainty equivalent that is predicted to lie there has a
    kink: a fit whose optimum is at one does not converge.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> first = rng.uniform(0, 100, (400, 2)), np.tile([0.2, 0.8], (400, 1))
    >>> second = rng.uniform(0, 100, (400, 2)), np.tile([0.6, 0.4], (400, 1))
    >>> problems = Choices.between(first, second, np.zeros(400))
    >>> model = Model(equal={"loss_curvature": "curvature", "loss.gamma": "gain.gamma"}, fixed={"loss_aversion": 1})
    >>> truth = {"curvature": 0.9, "gain.gamma": 0.6, "sensitivity": 0.1}
    >>> likelihood = Likelihood(problems, model)
    >>> chosen = rng.random(400) < likelihood.predicted(likelihood.coordinates(truth))
    >>> fit = fit_prospect(Choices.between(first, second, chosen), model)
    >>> fit.starts.agreeing >= 5, fit.at_bound
    (True, {})
    """
    model = Model() if model is None else model
    _checks.instance("model", model, Model)
    if not (isinstance(starts, int) and starts >= 1):
        raise _checks.fail("starts", "be a whole number >= 1", starts)
    data = as_choices(choices)
    likelihood = Likelihood(data, model, reference_point=reference_point, objective=objective)
    if check and (faults := fit_faults(likelihood)):
        raise NotIdentified(f"the model {likelihood.model.title!r} cannot be fitted to these data", faults)
    low, high = bounds(likelihood)
    begins = starting_points(likelihood, starts, seed)
    if start_from is not None:
        begins[0] = _started(likelihood, begins[0], start_from)
    if not likelihood.names:
        value = likelihood.value(np.zeros(0))
        return Fit(likelihood, np.zeros(0), value, low, high, Starts((value,), 1), seed)
    found = [climb_straight(likelihood, begin, low, high) for begin in begins]
    arrived = [each for each in found if each.converged and np.isfinite(each.value)]
    if not arrived:
        steps = max(each.steps for each in found)
        raise NotConverged(
            f"none of {starts} starts of the model {likelihood.model.title!r} came to an optimum (the longest "
            f"took {steps} steps); try fewer free parameters, or other data"
        )
    best = max(arrived, key=lambda each: each.value)
    if check and _without_error(likelihood, best.value):
        raise NotIdentified(f"the model {model.title!r} cannot be fitted to these data", [_WITHOUT_ERROR])
    close = [abs(each.value - best.value) <= AGREEMENT * (1 + abs(best.value)) for each in arrived]
    values = tuple(each.value if each.converged else float("nan") for each in found)
    return Fit(likelihood, best.coordinates, best.value, low, high, Starts(values, sum(close)), seed)


def _started(likelihood: Likelihood, usual: Any, given: Any) -> Any:
    """Return the coordinates of a start of which some values are given."""
    for name, value in given.items():
        if name not in likelihood.names:
            raise _checks.unknown("free parameter", name, likelihood.names)
        likelihood.specs[name].checked(name, value)
    return likelihood.coordinates({**likelihood.natural(usual), **given})


def _without_error(likelihood: Likelihood, value: float) -> bool:
    """Return whether a log-likelihood is that of choices which are all as good as certain."""
    if likelihood.choices.kind == EQUIVALENTS or likelihood.objective != "likelihood":
        return False
    return value > -_SURE * float(likelihood.choices.trials.sum())
