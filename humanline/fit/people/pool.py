"""Fit people: each alone, as far as their choices allow, and all together, each drawn towards the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.estimate import fit_prospect
from humanline.fit.faults import DataError, Fault, NotIdentified
from humanline.fit.model import Model
from humanline.fit.people.integrate import LAWS, integrate
from humanline.fit.people.normal import Anchor, Normal, moments, shares
from humanline.fit.people.own import OwnLikelihoods, climb_each, people_of
from humanline.fit.people.population import CROWD, fit_population
from humanline.fit.people.result import Estimates, PeopleFit
from humanline.fit.people.undetermined import Undetermined, after, before
from humanline.fit.straight import Straight
from humanline.fit.table import as_choices

Array = NDArray[np.float64]
#: The spread of people, in nats, with which the search for their law begins.
_FIRST_SPREAD = 0.5


def fit_people(
    choices: Choices | Any,
    model: Model | None = None,
    *,
    seed: int = 0,
    reference_point: float = 0.0,
    anchor: Anchor | None = None,
    check: bool = True,
) -> PeopleFit:
    """Fit prospect theory to each of several people, alone and pooled.

    A person's coordinates (logs of the parameters, the sensitivity that at an outcome of typical size) are taken to
    follow one normal law, of which mean and full covariance are estimated: a person whose choices say little of a
    parameter is drawn towards the others, as far as they are alike.

    Parameters
    ----------
    choices : Choices, or a table in the long form with a column ``person`` (see `as_choices`)
        People may have answered different problems, and different numbers of them.
    model : Model, optional
        Cumulative prospect theory with the families of 1992, by default.
    seed : int
        Of all that is drawn: the same seed gives the same result.
    reference_point : float
        Zero of gain and loss.
    anchor : Anchor, optional
        Keeps the covariance of few people away from singular ones: by default as if there were one more person than
        parameters, each .3 nats away from the mean in each coordinate.
    check : bool
        Refuse, before fitting, what everyone's choices together cannot determine.

    Returns
    -------
    PeopleFit

    Raises
    ------
    DataError
        If the data are faulty, there is one person only, or people share a name.
    NotIdentified
        If everyone's choices together cannot determine some parameter, or every person always chose one side.
    NotConverged
        If the law of people does not come to a maximum of its likelihood.
    ValueError
        If the choices are bare rates, which have no likelihood, or the model has no free parameter.

    Notes
    -----
    Empirical Bayes: the integral of each person's likelihood over the law is a sum over points that are drawn around
    the Laplace approximation of the person's posterior, and weighted by what it misses. Plain empirical Bayes takes the
    estimated law for the true one; here a person's mean and error are averaged over laws that might be, each weighted
    by how likely it makes all responses (Kass and Steffey, 1989, Journal of the American Statistical Association 84,
    with the exact weights in place of a second-order term).

    A person whose own choices do not determine a parameter has no unpooled estimate: `PeopleFit.undetermined` says who
    and why.

    Examples
    --------
    >>> from humanline.fit import Likelihood
    >>> rng = np.random.default_rng(0)
    >>> first = rng.uniform(0, 100, (60, 2)), np.tile([0.2, 0.8], (60, 1))
    >>> second = rng.uniform(0, 100, (60, 2)), np.tile([0.6, 0.4], (60, 1))
    >>> who, what = np.repeat(np.arange(12), 60), np.tile(np.arange(60), 12)
    >>> same = {"loss_curvature": "curvature", "loss.gamma": "gain.gamma"}
    >>> model = Model(equal=same, fixed={"loss_aversion": 1, "curvature": 1})
    >>> likelihood = Likelihood(Choices.between(first, second, np.zeros(720), problem=what, person=who), model)
    >>> share = likelihood.predicted(likelihood.coordinates({"gain.gamma": 0.6, "sensitivity": 0.1}))
    >>> chosen = rng.random(720) < share
    >>> fit = fit_people(Choices.between(first, second, chosen, problem=what, person=who), model)
    >>> len(fit.people), fit.names
    (12, ('gain.gamma', 'sensitivity'))
    """
    data = as_choices(choices)
    model = Model() if model is None else model
    check_people(data, model)
    own = OwnLikelihoods(data, model, reference_point)
    together = fit_prospect(data, model, starts=3, seed=seed, reference_point=reference_point, check=check)
    undetermined = before(own)
    if check and all(undetermined.get(each, _FINE).kind == "one-sided" for each in own.all.tolist()):
        rule = "not each have chosen one side always: nothing tells how a person weighs; give people harder problems"
        raise NotIdentified("people", [Fault(None, "people", rule, f"{data.people} one-sided people")])
    everyone = Straight(own.everyone).there(together.coordinates)
    inside = np.clip(everyone, own.low + 0.1, own.high - 0.1)
    law = Normal(inside, _FIRST_SPREAD**2 * np.eye(len(inside)))
    settings: dict[str, Any] = {"anchor": anchor or Anchor(len(inside) + 1.0), "seed": seed}
    if crowded := data.people > CROWD:
        some = OwnLikelihoods(people_of(data, own.all[:: data.people // (CROWD // 2)]), model, reference_point)
        law = fit_population(some, law, **settings).law
    population = fit_population(own, law, **settings, near=crowded)
    plain = shares(population.points, population.law)[1]
    near = moments(population.points, plain)[0]
    alone, lost = _alone(own, [everyone, near], undetermined)
    integrated = integrate(population, seed=seed, laws=LAWS // 4 if crowded else LAWS)
    at = population.points.at
    natural = np.stack([own.natural_coordinates(at[:, each]) for each in range(at.shape[1])], axis=1)
    own_share = 1 - np.einsum("pii->pi", moments(population.points, plain)[1]) / np.diag(population.law.covariance)
    return PeopleFit(
        own=own,
        alone=alone,
        undetermined={**undetermined, **lost},
        plain=_estimates(natural, plain),
        pooled=_estimates(natural, integrated.share),
        weight=np.clip(own_share, 0.0, 1.0),
        population=population,
        integrated=integrated,
        seed=seed,
    )


_FINE = Undetermined("", "")


def check_people(data: Choices, model: Model) -> None:
    """Raise, as `fit_people` does, unless there are several people whose answers have a likelihood to pool by.

    Parameters
    ----------
    data : Choices
    model : Model

    Raises
    ------
    DataError
        If there is one person only, a person without an answer, or people share a name.
    ValueError
        If the choices are bare rates, or the model has no free parameter.
    """
    if data.kind == "rates":
        rule = "be choices, counts or certainty equivalents: bare rates have no likelihood to pool by; give counts"
        raise _checks.fail("choices", rule, data.kind)
    if not model.free(data.kind):
        raise _checks.fail("model", "have a free parameter", model.title)
    faults = []
    if data.people < 2:
        rule = "be two or more to be pooled (fit_prospect fits one)"
        if data.person_names == ("everyone",):  # what they are called where nobody said
            rule += "; nobody said who answered: give a column `person`, or `person=`"
        faults.append(Fault(None, "people", rule, data.people))
    for name, count in Counter(data.person_names).items():
        if count > 1:
            faults.append(Fault(None, "person", "be one person under one name", f"{name!r} for {count} people"))
    answers = np.bincount(data.person, minlength=data.people)
    for each in np.flatnonzero(answers == 0):
        faults.append(Fault(None, "person", "have answered something, or be left out", data.person_names[each]))
    if faults:
        raise DataError("people", faults, unit="response")


def _alone(own: OwnLikelihoods, starts: list[Array], known: dict[int, Undetermined]) -> tuple[Estimates, Any]:
    """Return the estimates from each person's own choices, nan where there is none, and who else has none."""
    number = len(own.names)
    found = np.full((own.choices.people, number), np.nan)
    errors = found.copy()
    people = np.array([each for each in own.all if each not in known], dtype=np.int64)
    if not len(people):
        return Estimates(found, errors), {}
    whole = [np.broadcast_to(start, (own.choices.people, number))[people] for start in starts]
    summits = [climb_each(own, start, people) for start in whole]
    best = summits[0].better(summits[1])
    at = np.tile(np.clip(starts[0], own.low, own.high), (own.choices.people, 1))
    at[people] = best.coordinates
    natural = own.natural_coordinates(at)
    hessian = own.hessian(natural)[people]
    lost = after(own, people, best, hessian)
    kept = np.array([each not in lost for each in people.tolist()])
    found[people[kept]] = natural[people[kept]]
    if kept.any():
        errors[people[kept]] = np.sqrt(np.einsum("pii->pi", np.linalg.inv(-hessian[kept])))
    return Estimates(found, errors), lost


def _estimates(natural: Array, share: Array) -> Estimates:
    mean = np.einsum("ps,psk->pk", share, natural)
    return Estimates(mean, np.sqrt(np.einsum("ps,psk->pk", share, (natural - mean[:, None]) ** 2)))
