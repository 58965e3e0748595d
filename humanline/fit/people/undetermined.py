"""People whose choices alone do not determine their parameters: who they are, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from humanline.fit.choices import Choices
from humanline.fit.faults import Fault
from humanline.fit.identify import fit_faults
from humanline.fit.likelihood import Likelihood
from humanline.fit.model import EQUIVALENTS
from humanline.fit.people.own import OwnLikelihoods, Summits
from humanline.fit.uncertainty import tells_apart

Array = NDArray[np.float64]

#: Why a person's own choices do not determine the parameters, in words for a count of people.
KINDS = {
    "one-sided": "always chose the same option",
    "problems": "answered problems that cannot determine the parameters",
    "separable": "chose as a model without any error would",
    "bound": "have estimates that run away to a bound",
    "flat": "have choices that tell only combinations of parameters",
    "not found": "have estimates that the search did not find",
}
#: Choices that a model can predict with a log-likelihood above this are separable: it rises to 0 for ever.
_PREDICTED = -1e-3
_AT_BOUND = 1e-6


@dataclass(frozen=True)
class Undetermined:
    """Why there is no estimate from a person's own choices.

    Parameters
    ----------
    kind : str
        "one-sided", "problems", "separable", "bound", "flat" or "not found".
    why : str
        In words, with the parameters concerned.
    """

    kind: str
    why: str


def before(own: OwnLikelihoods) -> dict[int, Undetermined]:
    """Return the people whose data alone show that some parameter has no estimate, by number."""
    choices = own.choices
    found: dict[int, Undetermined] = {}
    for people, rows in _by_problems(choices):
        faults = _problem_faults(own, choices.take(rows, all_problems=True))
        if faults:
            why = "; ".join(f"{fault.column} must {fault.rule}" for fault in faults)
            found |= dict.fromkeys(people, Undetermined("problems", why))
    if choices.kind != EQUIVALENTS:
        seconds, trials = (
            np.bincount(choices.person, weights=each, minlength=choices.people)
            for each in (choices.response, choices.trials)
        )
        for which, same_side in (("first", seconds == 0), ("second", seconds == trials)):
            why = f"chose the {which} option each time, so that no finite sensitivity is the most likely"
            found = {**dict.fromkeys(np.flatnonzero(same_side).tolist(), Undetermined("one-sided", why)), **found}
    return found


def _by_problems(choices: Choices) -> list[tuple[list[int], NDArray[np.int64]]]:
    """Return the people who answered the same problems, by number, with their responses: group after group."""
    order = np.lexsort((choices.problem, choices.person))
    problem, edges = choices.problem[order], np.searchsorted(choices.person[order], np.arange(choices.people + 1))
    groups: dict[bytes, list[int]] = {}
    for person in range(choices.people):
        groups.setdefault(np.unique(problem[edges[person] : edges[person + 1]]).tobytes(), []).append(person)
    return [
        (people, np.sort(np.concatenate([order[edges[each] : edges[each + 1]] for each in people])))
        for people in groups.values()
    ]


def after(own: OwnLikelihoods, people: NDArray[np.int64], summits: Summits, hessian: Array) -> dict[int, Undetermined]:
    """Return the people whose climbs ran away, or ended where their choices do not tell parameters apart, by number.

    Parameters
    ----------
    own : OwnLikelihoods
    people : (P,) int array
    summits : Summits
        Of these people.
    hessian : (P, K, K) array
        Second derivatives of their log-likelihoods there.
    """
    found: dict[int, Undetermined] = {}
    for place, person in enumerate(people.tolist()):
        at = summits.coordinates[place]
        sides = {name: "lower" if at[k] - own.low[k] < _AT_BOUND else "upper" for k, name in enumerate(own.names)
                 if min(at[k] - own.low[k], own.high[k] - at[k]) < _AT_BOUND}  # fmt: skip
        if own.choices.kind != EQUIVALENTS and summits.value[place] > _PREDICTED:
            why = "some parameters predict every choice, and the more so the higher the sensitivity"
            found[person] = Undetermined("separable", why)
        elif sides:
            told = " and ".join(f"{name} up to its {side} bound" for name, side in sides.items())
            found[person] = Undetermined("bound", f"the likelihood rises with {told}")
        elif not tells_apart(-hessian[place]):
            found[person] = Undetermined("flat", "the information of these choices cannot be inverted")
        elif not summits.converged[place]:
            found[person] = Undetermined("not found", "no climb came to an optimum")
    return found


def _problem_faults(own: OwnLikelihoods, choices: Choices) -> list[Fault]:
    faults = fit_faults(Likelihood(choices, own.model, reference_point=own.reference_point))
    return [fault for fault in faults if fault.column != choices.kind]  # that choices are one-sided is said of people
