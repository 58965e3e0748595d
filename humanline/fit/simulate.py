"""Choices as a model would make them: to plan a study, to test a fit, and to see what a fit foretells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.likelihood import Likelihood
from humanline.fit.model import EQUIVALENTS, Model
from humanline.fit.result import Fit

KINDS = ("choices", "counts", EQUIVALENTS)
_LAPSE = "lie in [0, 1): 1 would be choices without any look at the options"


def simulate_choices(
    model: Model | Fit,
    problems: Choices | Any = None,
    *,
    values: Mapping[str, Any] | None = None,
    n: ArrayLike = 1,
    people: int | Sequence[Any] | None = None,
    kind: str | None = None,
    seed: int = 0,
    reference_point: float | None = None,
) -> Choices:
    """Draw responses to problems from a model.

    Each choice is the second option with the probability that the model gives it, independently of all others;
    a certainty equivalent is the model's plus a normal error of standard deviation ``noise``.

    Parameters
    ----------
    model : Model or Fit
    problems : Choices, or two options as `Choices.between` takes them, or prospects for certainty equivalents
        Of Choices the problems alone count. Those of the fit by default.
    values : mapping from name to float or (people,) array
        Of all free parameters; arrays hold each person's own. The fit's estimates by default.
    n : int >= 1, or (P,) int array
        Responses of each person to each problem.
    people : int or sequence of names, optional
        One by default, or as many as arrays of values are long.
    kind : str, optional
        "choices" (a row for each, the default), "counts" (a row for each problem and person) or "equivalents", which
        is the default with problems, or a fit, of that kind.
    seed : int
        The same gives the same responses.
    reference_point : float, optional
        That of the fit, or 0.

    Returns
    -------
    Choices
        Persons one after the other, each with all problems in order.

    Raises
    ------
    ValueError
        If there are no problems, or no pairs of them; people are a text, or none; a value of a free parameter is
        missing, of no parameter, not finite, not > 0 (unless its scale has no log), or above 1 where the parameter is a
        share; a lapse rate, free or fixed, is outside [0, 1); arrays of values differ in length from the people; or
        some n is not a whole number >= 1.
    DataError
        If the problems are faulty.

    Examples
    --------
    >>> options = ([[50.0, 0.0]] * 2, [[0.5, 0.5], [0.1, 0.9]]), ([[20.0]] * 2, [[1.0]] * 2)
    >>> model = Model(fixed={"loss_aversion": 1, "loss.gamma": 1})
    >>> values = {"curvature": 0.88, "gain.gamma": 0.61, "sensitivity": 0.2}
    >>> counts = simulate_choices(model, options, values=values, n=1000, kind="counts")
    >>> counts.response.astype(int).tolist(), counts.trials.astype(int).tolist()
    ([519, 835], [1000, 1000])
    """
    given = given_values(model, values)
    own = model.likelihood if isinstance(model, Fit) else None
    empty = as_problems(own.choices if problems is None and own is not None else problems, kind, model)
    kind = (EQUIVALENTS if empty.kind == EQUIVALENTS else "choices") if kind is None else kind
    _checks.one_of("kind", kind, KINDS)
    own_model = model.model if isinstance(model, Fit) else model
    check_values(own_model, given, empty.kind, lapse_from_zero=True)
    if empty.kind != EQUIVALENTS and own_model.fixed.get("lapse", 0.0) >= 1:
        raise _checks.fail("lapse", _LAPSE, own_model.fixed["lapse"])
    number = np.broadcast_to(np.asarray(n), (empty.problems,))
    _checks.no_element("n", "be a whole number >= 1", ~((number >= 1) & (number == np.floor(number))), number)
    names = _people(people, given)
    laid = _laid_out(empty, number.astype(np.int64), names, kind)
    zero = (own.reference_point if own is not None else 0.0) if reference_point is None else reference_point
    likelihood = Likelihood(
        laid,
        own_model,
        reference_point=zero,
        by_person=any(np.ndim(value) for value in given.values()),
    )
    if likelihood.by_person:
        given = {name: np.broadcast_to(value, (len(names),)) for name, value in given.items()}
    with np.errstate(divide="ignore"):  # a lapse rate of 0 has the logarithm -inf
        coordinates = likelihood.coordinates(given)
    predicted = likelihood.predicted(coordinates)
    rule = (
        "give finite certainty equivalents: of values that level off, a utility may lie beyond all of them (with "
        "separable weights, which may sum to more than 1), or too near their end for a float"
    )
    _checks.no_element("values", rule, ~np.isfinite(predicted), predicted)
    rng = np.random.default_rng(seed)
    if kind == "counts":
        response = rng.binomial(laid.trials.astype(np.int64), predicted).astype(np.float64)
    elif kind == EQUIVALENTS:
        noise = np.asarray(likelihood.natural(coordinates)["noise"], dtype=np.float64)
        response = predicted + (noise[laid.person] if noise.ndim else noise) * rng.standard_normal(len(laid))
    else:
        response = (rng.random(len(laid)) < predicted).astype(np.float64)
    return laid.with_answers(response=response)


def given_values(model: Model | Fit, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values of the free parameters, those of a fit where none are given."""
    if values is not None:
        return dict(values)
    if isinstance(model, Fit):
        return dict(model.estimates)
    if not model.free():
        return {}
    raise _checks.fail("values", f"be given with a model: {', '.join(model.free())}", values)


def as_problems(problems: Any, kind: str | None, model: Model | Fit) -> Choices:
    """Return problems as Choices with one response each that says nothing: a share of 1/2, or an equivalent of 0.

    Where no kind is named, a fit of certainty equivalents takes prospects for what it is of.
    """
    of_equivalents = isinstance(model, Fit) and model.choices.kind == EQUIVALENTS
    if kind is None and of_equivalents and not isinstance(problems, Choices):
        kind = EQUIVALENTS
    if problems is None:
        raise _checks.fail("problems", "be given with a model", problems)
    if isinstance(problems, Choices):
        if kind is not None and (kind == EQUIVALENTS) != (problems.kind == EQUIVALENTS):
            raise _checks.fail("kind", f"suit the problems, which are of {problems.kind}", kind)
        number, kind = problems.problems, EQUIVALENTS if problems.kind == EQUIVALENTS else "rates"
        return problems.with_answers(
            problem=np.arange(number),
            response=np.full(number, 0.5),
            trials=np.ones(number),
            kind=kind,
            person=np.zeros(number, np.int64),
            person_names=("everyone",),
        )
    if kind == EQUIVALENTS:
        _checked_pair("problems", problems, "a pair (outcomes, probs)")
        return Choices.equivalents(problems, np.zeros(len(problems[0])))
    _checked_pair("problems", problems, "Choices, or two options, each a pair (outcomes, probs)")
    first, second = problems
    for name, option in (("first option", first), ("second option", second)):
        _checked_pair(name, option, "a pair (outcomes, probs)")
    return Choices.between(first, second, np.full(len(first[0]), 0.5), kind="rates")


def _checked_pair(name: str, given: Any, what: str) -> None:
    if isinstance(given, (str, Mapping)) or not hasattr(given, "__len__") or len(given) != 2:
        raise _checks.fail(name, f"be {what}", given)


def check_values(model: Model, values: Mapping[str, Any], kind: str, *, lapse_from_zero: bool = False) -> None:
    """Raise unless values are there for all free parameters, for no others, and possible.

    A lapse rate of 0 has no logarithm, and so no derivative in it: only where none is needed is it possible.
    """
    free, specs = model.free(kind), model.parameters(kind)
    for name in values:
        if name not in free:
            raise _checks.unknown("free parameter", name, free)
    for name in free:
        if name not in values:
            raise _checks.fail("values", f"hold all free parameters ({', '.join(free)})", sorted(values))
        value = _numbers(name, values[name])
        positive, most = specs[name].scale == "log", specs[name].domain[1]
        if name == "lapse":
            good = ((value >= 0) if lapse_from_zero else (value > 0)) & (value < 1)
            rule = _LAPSE if lapse_from_zero else "lie strictly between 0 and 1"
        else:
            good = np.isfinite(value) & ((value > 0) | (not positive)) & (value <= most)
            rule = "be finite and > 0" if positive else "be finite"
            rule = rule if most == math.inf else f"be > 0 and <= {most:g}"
        _checks.no_element(name, rule, ~good, value)


def _numbers(name: str, value: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise _checks.fail(name, "be a number, or one for each person", value) from None


def _people(people: int | Sequence[Any] | None, values: Mapping[str, Any]) -> tuple[Any, ...]:
    arrays = {name: np.shape(value) for name, value in values.items() if np.ndim(value)}
    if people is None:
        people = 1 if not arrays else next(iter(arrays.values()))[0]
    if isinstance(people, str):
        raise _checks.fail("people", "be a number, or a sequence of names", people)
    names = tuple(range(people)) if isinstance(people, (int, np.integer)) else tuple(people)
    if not names:
        raise _checks.fail("people", "be at least one", people)
    for name, shape in arrays.items():
        _checks.same_shape(name, shape, "people", (len(names),))
    return names


def _laid_out(empty: Choices, number: NDArray[np.int64], names: tuple[Any, ...], kind: str) -> Choices:
    """Return the rows that responses will have: persons one after the other, each with all problems."""
    problem, trials = np.arange(empty.problems), number.astype(np.float64)
    if kind != "counts":
        problem = np.repeat(problem, number)
        trials = np.ones(len(problem))
    person = np.repeat(np.arange(len(names)), len(problem))
    return empty.with_answers(
        problem=np.tile(problem, len(names)),
        response=np.zeros(len(person)),
        trials=np.tile(trials, len(names)),
        kind=kind,
        person=person,
        person_names=names,
    )
