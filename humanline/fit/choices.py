"""Responses to problems: choices, counts and rates between two prospects, or certainty equivalents of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.fit.faults import DataError, Fault, is_absent
from humanline.fit.flat import as_flat, check_prospects, grown
from humanline.fit.prepared import Prepared, prepare

KINDS = ("choices", "counts", "rates", "equivalents")
_ANSWERS = ("problem", "response", "trials", "kind", "person", "person_names")


@dataclass(frozen=True, eq=False)
class Choices:
    """Hold problems and the responses to them; `Choices.between` and `Choices.equivalents` make it.

    Parameters
    ----------
    outcomes, probs : (N,) arrays
        Of all options, one after the other: the first of every problem, then the second of every problem (certainty
        equivalents: only one).
    start : (options + 1,) int array
        Where each option begins.
    problem : (M,) int array
        Which problem each response is to.
    response : (M,) array
        Choices: 1 if the second was chosen, else 0. Counts: how often it was. Rates: how large a share. Equivalents:
        the sure outcome.
    trials : (M,) array
        Counts: of how many. Else 1.
    kind : str
        "choices", "counts", "rates" or "equivalents".
    person : (M,) int array
        Which person each response is of; all 0 if nobody said.
    problem_names, person_names : tuples
        What they were called.
    """

    outcomes: NDArray[np.float64]
    probs: NDArray[np.float64]
    start: NDArray[np.int64]
    problem: NDArray[np.int64]
    response: NDArray[np.float64]
    trials: NDArray[np.float64]
    kind: str
    person: NDArray[np.int64]
    problem_names: tuple[Any, ...]
    person_names: tuple[Any, ...] = ("everyone",)
    # What was prepared of this object; not of what `dataclasses.replace` makes of it, which begins with none.
    _tables: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.problem)

    @property
    def problems(self) -> int:
        """The number of problems."""
        return len(self.problem_names)

    @property
    def people(self) -> int:
        """The number of people."""
        return len(self.person_names)

    @classmethod
    def between(
        cls,
        first: tuple[Any, Any],
        second: tuple[Any, Any],
        response: ArrayLike,
        *,
        kind: str = "choices",
        trials: ArrayLike | None = None,
        problem: ArrayLike | None = None,
        person: ArrayLike | None = None,
        problem_names: Sequence[Any] | None = None,
    ) -> Choices:
        """Return choices between two prospects.

        Parameters
        ----------
        first, second : pairs (outcomes, probs)
            Each as `prepare` takes them: (P, N) arrays or P lists of any lengths.
        response : (M,) array
            Of the second option: 1 or 0, how often it was chosen (counts), or how large a share (rates).
        kind : str
            "choices", "counts" or "rates".
        trials : (M,) int array
            With counts alone, how many choices they are of.
        problem : (M,) int array, optional
            To which problem each response is; by default the first to the first, and so on.
        person : (M,) array of names, optional
        problem_names : P names, optional
            0, 1, ... by default.

        Raises
        ------
        DataError
            With everything that is wrong: prospects that are none, a response out of its range, shapes that differ.
        """
        _checks.one_of("kind", kind, KINDS[:3])
        made: Choices = _made(cls, [first, second], response, kind, trials, problem, person, problem_names)
        return made

    @classmethod
    def equivalents(
        cls,
        prospects: tuple[Any, Any],
        equivalent: ArrayLike,
        *,
        problem: ArrayLike | None = None,
        person: ArrayLike | None = None,
        problem_names: Sequence[Any] | None = None,
    ) -> Choices:
        """Return certainty equivalents: the sure outcomes that people found as good as prospects (as in `between`)."""
        made: Choices = _made(cls, [prospects], equivalent, "equivalents", None, problem, person, problem_names)
        return made

    def prepared(self, weights: str = "cumulative", reference_point: float = 0.0) -> Prepared:
        """Return the options of all problems, prepared: the first of each, then the second of each. Kept."""
        found: Prepared = self._kept(
            ("options", weights, reference_point),
            lambda: prepare(
                self.outcomes, self.probs, start=self.start, weights=weights, reference_point=reference_point
            ),
        )
        return found

    def prepared_by_person(
        self, weights: str = "cumulative", reference_point: float = 0.0
    ) -> tuple[Prepared, NDArray[np.int64], NDArray[np.int64]]:
        """Return each person's problems, prepared with the person as group; the problem of each; that of responses."""

        def made() -> Any:
            pairs, place = np.unique(self.person * self.problems + self.problem, return_inverse=True)
            problem, person = pairs % self.problems, pairs // self.problems
            sides = 1 if self.kind == "equivalents" else 2
            rows = np.concatenate([problem + side * self.problems for side in range(sides)])
            table = self.prepared(weights, reference_point)
            return table.for_groups(rows, np.tile(person, sides), self.people), problem, place

        found: tuple[Prepared, NDArray[np.int64], NDArray[np.int64]]
        found = self._kept(("people", weights, reference_point), made)
        return found

    def _kept(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._tables:
            self._tables[key] = make()
        return self._tables[key]

    def take(self, responses: ArrayLike, *, all_problems: bool = False) -> Choices:
        """Return some of the responses: a fold, a resample (repeats are kept), one person's.

        Parameters
        ----------
        responses : (K,) int array, or (M,) bool array
        all_problems : bool
            Keep problems (and people) without a response, so that their numbers and prepared tables stay.
        """
        index = np.asarray(responses)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        problem, person = self.problem[index], self.person[index]
        rows: dict[str, Any] = {"response": self.response[index], "trials": self.trials[index], "kind": self.kind}
        if all_problems:
            return self.with_answers(problem=problem, person=person, **rows)
        used, problem = np.unique(problem, return_inverse=True)
        people, person = np.unique(person, return_inverse=True)
        sides = (len(self.start) - 1) // self.problems
        options = np.concatenate([used + side * self.problems for side in range(sides)])
        start, nodes = grown(self.start, options)
        return Choices(
            self.outcomes[nodes],
            self.probs[nodes],
            start,
            problem,
            **rows,
            person=person,
            problem_names=tuple(self.problem_names[at] for at in used),
            person_names=tuple(self.person_names[at] for at in people),
        )

    def with_answers(self, **changes: Any) -> Choices:
        """Return the same problems with other answers; what was prepared of the problems stays.

        Parameters
        ----------
        **changes
            Of ``problem``, ``response``, ``trials``, ``kind``, ``person`` and ``person_names`` those that change.

        Raises
        ------
        ValueError
            If something else is to change.
        """
        for name in changes:
            if name not in _ANSWERS:
                raise _checks.unknown("part of answers", name, _ANSWERS)
        found = dataclasses.replace(self, **changes)
        found._tables.update({key: table for key, table in self._tables.items() if key[0] in ("options", "size")})
        return found

    def of_person(self, person: int) -> Choices:
        """Return the responses of one person, by number."""
        return self.take(self.person == person)

    @property
    def size(self) -> float:
        """The typical size of an outcome, counted from 0."""
        return self.typical_size(0.0)

    def typical_size(self, reference_point: float) -> float:
        """Return the median distance of outcomes from the reference point, of those that differ from it, or 1."""

        def found() -> float:
            sizes = np.abs(self.outcomes[self.probs > 0] - reference_point)
            return float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 1.0

        return float(self._kept(("size", reference_point), found))


def _made(cls: Any, sides: Any, response: Any, kind: str, trials: Any, problem: Any, person: Any, names: Any) -> Any:
    parts = [as_flat(outcomes, probs, None) for outcomes, probs in sides]
    number = len(parts[0][2]) - 1
    _checks.same_shape("second", (len(parts[-1][2]) - 1,), "first", (number,))
    outcomes = np.concatenate([part[0] for part in parts])
    probs = np.concatenate([part[1] for part in parts])
    start = np.concatenate([parts[0][2], *(part[2][1:] + len(parts[0][0]) for part in parts[1:])])
    check_prospects(outcomes, probs, start)
    try:
        given = np.asarray(response, dtype=np.float64)
    except (TypeError, ValueError):
        raise _checks.fail("response", "hold one number for each response", response) from None
    place = np.arange(number, dtype=np.float64) if problem is None else _places(problem)
    _checks.same_shape("response", given.shape, "problem", place.shape)
    if (kind == "counts") != (trials is not None):
        rule = "be given with counts" if trials is None else f"be left out with {kind}; of counts they are the choices"
        raise _checks.fail("trials", rule, trials)
    try:
        counted = np.ones(given.shape) if trials is None else np.asarray(trials, dtype=np.float64)
        of = np.broadcast_to(counted, given.shape)
    except (TypeError, ValueError):
        raise _checks.fail("trials", "be one number, or one for each response", trials) from None
    faults = response_faults(given, of, kind)
    good = (place >= 0) & (place < number) & (np.floor(place) == place)
    rule = f"be a whole number in 0 .. {number - 1}"
    faults += [Fault(int(at), "problem", rule, float(place[at])) for at in np.flatnonzero(~good)]
    if not len(given):
        faults.append(Fault(None, "response", "be there at least once", "nothing"))
    people, number_of = (np.array(["everyone"]), np.zeros(len(given), np.int64))
    if person is not None:
        _checks.same_shape("person", np.shape(person), "response", given.shape)
        faults += [Fault(at, "person", "be given", who) for at, who in enumerate(person) if is_absent(who)]
        if not faults:
            people, number_of = np.unique(np.asarray(person), return_inverse=True)
    if names is not None and len(names) != number:
        faults.append(Fault(None, "problem_names", f"be {number} names", len(names)))
    if faults:
        raise DataError("responses", faults, unit="response")
    named = tuple(range(number)) if names is None else tuple(names)
    return cls(
        outcomes, probs, start, place.astype(np.int64), given, of, kind, number_of, named, tuple(people.tolist())
    )


def _places(problem: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(problem, dtype=np.float64)
    except (TypeError, ValueError):
        rule = "say by number, counted from 0, which problem each response is to; names go into problem_names"
        raise _checks.fail("problem", rule, problem) from None


def response_faults(response: NDArray[np.float64], trials: NDArray[np.float64], kind: str) -> list[Fault]:
    """Return what is wrong with responses of a kind."""
    whole = np.floor(response) == response
    rules = {
        "choices": ("be 0 or 1", (response == 0) | (response == 1)),
        "counts": ("be a whole number from 0 to its trials", whole & (response >= 0) & (response <= trials)),
        "rates": ("lie in [0, 1]", (response >= 0) & (response <= 1)),
        "equivalents": ("be finite", np.isfinite(response)),
    }
    rule, good = rules[kind]
    faults = [Fault(int(at), kind, rule, float(response[at])) for at in np.flatnonzero(~good)]
    bad = ~((trials >= 1) & (np.floor(trials) == trials))
    return faults + [
        Fault(int(at), "trials", "be a whole number >= 1", float(trials[at])) for at in np.flatnonzero(bad)
    ]
