"""What a fit of people found: each person alone and pooled, the law they follow, and who could not be fitted alone."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.model import Model
from humanline.fit.people.integrate import Integrated
from humanline.fit.people.own import OwnLikelihoods
from humanline.fit.people.population import Population
from humanline.fit.people.undetermined import KINDS, Undetermined
from humanline.fit.straight import Straight
from humanline.fit.uncertainty import ParameterInterval, check_confidence

Array = NDArray[np.float64]
#: Below this share of the points, or of the laws, that were drawn, weighted sums over them are rough.
_ROUGH = 0.1


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates of people on the scale of estimation (logs, of parameters that are positive).

    Parameters
    ----------
    coordinates : (P, K) array
        nan where there is none.
    errors : (P, K) array
        Their standard errors.
    """

    coordinates: Array
    errors: Array


@dataclass(frozen=True, eq=False)
class PeopleFit:
    """Hold what was found of people; `fit_people` makes it.

    Parameters
    ----------
    own : OwnLikelihoods
        Of each person, with choices and model.
    alone : Estimates
        Unpooled: from each person's own choices, by maximum likelihood; nan for those who are `undetermined`.
    undetermined : dict from number of a person to Undetermined
        Who has no unpooled estimate, and why.
    plain : Estimates
        Pooled by plain empirical Bayes, as if the estimated law were the true one.
    pooled : Estimates
        Pooled, with what is not known of the law: means and standard deviations of posteriors.
    weight : (P, K) array in [0, 1]
        Of the person's own data: the share of the people's variance that their choices take away, ``1 - posterior
        variance / variance of people``; 0 where only the others speak. Of sensitivity at the typical outcome.
    population : Population
        The law of straight coordinates.
    integrated : Integrated
        Laws that might be.
    seed : int
    """

    own: OwnLikelihoods
    alone: Estimates
    undetermined: dict[int, Undetermined]
    plain: Estimates
    pooled: Estimates
    weight: Array
    population: Population
    integrated: Integrated
    seed: int

    @property
    def model(self) -> Model:
        """The model."""
        return self.own.model

    @property
    def choices(self) -> Choices:
        """The data."""
        return self.own.choices

    @property
    def names(self) -> tuple[str, ...]:
        """The K free parameters."""
        return self.own.names

    @property
    def people(self) -> tuple[Any, ...]:
        """The names of the P people."""
        return self.choices.person_names

    @property
    def typical(self) -> dict[str, float]:
        """The parameters of a person at the mean of the law."""
        inside = np.clip(self.population.law.mean, self.own.low, self.own.high)
        values = self.own.everyone.natural(Straight(self.own.everyone).back(inside))
        return {name: values[name] for name in self.names}

    @property
    def spread(self) -> dict[str, float]:
        """The standard deviation of people's coordinates (nats, of logs); of sensitivity at the typical outcome."""
        return dict(zip(self.names, np.sqrt(np.diag(self.population.law.covariance)).tolist(), strict=True))

    @property
    def correlations(self) -> Array:
        """How people's coordinates go together, (K, K)."""
        spread = np.sqrt(np.diag(self.population.law.covariance))
        return np.asarray(self.population.law.covariance / np.outer(spread, spread))

    def parameters(self, person: Any) -> dict[str, float]:
        """Return the values of all parameters of a person, by name, pooled."""
        place = self._number(person)
        values = {name: self._values["pooled"][name][place] for name in self.names}
        return {name: float(value) for name, value in self.model.complete(values, self.choices.kind).items()}

    def interval(self, person: Any, name: str, *, confidence: float = 0.95) -> ParameterInterval:
        """Return a person's pooled interval, ``mean -+ z error`` on the scale of estimation, shown on the natural one.

        Ends are no values that the parameter cannot have.

        Raises
        ------
        ValueError
            If there is no such person or free parameter, or the confidence is not strictly between 0 and 1.
        """
        from scipy.special import ndtri

        check_confidence(confidence)
        if name not in self.names:
            raise _checks.unknown("free parameter", name, self.names)
        place, spec = self._number(person), self.own.everyone.specs[name]
        k = self.names.index(name)
        at, reach = self.pooled.coordinates[place, k], ndtri((1 + confidence) / 2) * self.pooled.errors[place, k]
        return ParameterInterval(name, *spec.inside(at - reach, at + reach), confidence)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of this fit, in sentences."""
        found = []
        people, number = len(self.people), len(self.names)
        if self.undetermined:
            counts = Counter(each.kind for each in self.undetermined.values())
            told = "; ".join(f"{counts[kind]} {KINDS[kind]}" for kind in KINDS if counts[kind])
            found.append(f"{len(self.undetermined)} of {people} people have no estimate of their own: {told}.")
        if len(self.undetermined) == people:
            found.append("Nobody has an estimate of their own: what is known of each comes from all together.")
        if people < (needed := number * (number + 3) // 2):
            anchor = self.population.anchor
            found.append(
                f"{people} people are fewer than the {needed} numbers of a law of {number} parameters: its spread "
                f"rests on the assumed {anchor.spread} nats of {anchor.people:g} more people."
            )
        rough = int((self.population.effective < _ROUGH * self.population.points.at.shape[1]).sum())
        if rough:
            whom = "one person" if rough == 1 else f"{rough} people"
            found.append(f"Of {whom} the posterior is far from a normal one: their pooled numbers are rough.")
        if self.integrated.effective < _ROUGH * len(self.integrated.laws):
            found.append(
                "What is not known of the law is far from normal: all pooled estimates and errors are rough, and "
                "change with the seed."
            )
        alike = Counter(str(name).strip().casefold() for name in self.people)
        twins = [str(name) for name in self.people if alike[str(name).strip().casefold()] > 1]
        if twins:
            found.append(f"Names that differ by spaces or capitals alone were taken for different people: {twins[:6]}.")
        return tuple(found)

    def table(self, people: int = 10, confidence: float = 0.95) -> str:
        """Return a table to print: the law of people, then the first of them, then notes.

        Parameters
        ----------
        people : int
            How many people to show.
        confidence : float
            Of their intervals.
        """
        spread_errors = self.integrated.law_errors()[1]
        answers = np.bincount(self.choices.person, weights=self.choices.trials)
        lines = [
            f"{self.model.title}: {len(self.people)} people, {answers.min():g} to {answers.max():g} responses each",
            "",
            f"{'all people':<24}{'typical':>11}{'spread (log)':>14}{'error':>9}",
        ]
        for k, name in enumerate(self.names):
            spread = self.spread[name]
            lines.append(f"{name:<24}{self.typical[name]:>11.4g}{spread:>14.3f}{spread * spread_errors[k]:>9.3f}")
        reach = f"{100 * confidence:g} % interval"
        head = f"{'person':<16}{'parameter':<18}{'alone':>10}{'pooled':>10}{reach:>22}{'own weight':>12}"
        lines += ["", head]
        for place, person in enumerate(self.people[:people]):
            for k, name in enumerate(self.names):
                alone = self._values["alone"][name][place]
                ends = self.interval(person, name, confidence=confidence)
                who, told = str(person)[:15] if not k else "", "-" if math.isnan(alone) else f"{alone:.4g}"
                lines.append(
                    f"{who:<16}{name:<18}{told:>10}"
                    f"{self._values['pooled'][name][place]:>10.4g}"
                    f"{f'{ends.low:.4g} to {ends.high:.4g}':>22}{self.weight[place, k]:>12.2f}"
                )
            if place in self.undetermined:
                lines.append(f"{'':<16}no estimate of their own: {self.undetermined[place].why}")
        if len(self.people) > people:
            lines.append(
                f"... and {len(self.people) - people} more people (people.csv of the command, or to_dict, has all)"
            )
        return "\n".join([*lines, "", *self.notes])

    @functools.cached_property
    def _places(self) -> dict[Any, int]:
        return {name: place for place, name in enumerate(self.people)}

    @functools.cached_property
    def _values(self) -> dict[str, dict[str, list[float]]]:
        """The parameters of everyone, alone and pooled, on the natural scale: by name, a number for each person."""
        return {
            which: {name: self._natural(name, each.coordinates).tolist() for name in self.names}
            for which, each in (("alone", self.alone), ("pooled", self.pooled))
        }

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold: model, law, and each person alone and pooled, with errors, weight and reason."""
        mean_errors, spread_errors = self.integrated.law_errors()
        law = self.population.law
        responses = np.bincount(self.choices.person, minlength=len(self.people)).tolist()
        return {
            "model": self.model.to_dict(),
            "kind": self.choices.kind,
            "reference_point": self.own.reference_point,
            "responses": len(self.choices),
            "problems": self.choices.problems,
            "free": list(self.names),
            "seed": self.seed,
            "law": {
                "typical": self.typical,
                "typical_outcome": self.own.typical_size,
                "mean_of_coordinates": law.mean.tolist(),
                "mean_errors": mean_errors.tolist(),
                "spread": self.spread,
                "log_spread_errors": spread_errors.tolist(),
                "covariance_of_coordinates": law.covariance.tolist(),
                "anchor": {"people": self.population.anchor.people, "spread": self.population.anchor.spread},
            },
            "search": {
                "log_likelihood": list(self.population.path),
                "decrement": self.population.decrement,
                "moves": [None if math.isinf(each) else each for each in self.population.moves],
                "noise": self.population.noise,
                "least_effective_points": float(self.population.effective.min()),
                "points": int(self.population.points.at.shape[1]),
                "effective_laws": self.integrated.effective,
                "laws": len(self.integrated.laws),
            },
            "people": [self._person(place, responses[place]) for place in range(len(self.people))],
            "undetermined": dict(sorted(Counter(each.kind for each in self.undetermined.values()).items())),
            "notes": list(self.notes),
        }

    def _person(self, place: int, responses: int) -> dict[str, Any]:
        reason = self.undetermined.get(place)
        row: dict[str, Any] = {"person": self.people[place], "responses": responses}
        row["undetermined"] = None if reason is None else {"kind": reason.kind, "why": reason.why}
        for name, each in (("alone", self.alone), ("pooled", self.pooled)):
            if name == "alone" and reason is not None:
                row[name] = None
                continue
            row[name] = {
                "parameters": {one: self._values[name][one][place] for one in self.names},
                "coordinate_errors": dict(zip(self.names, each.errors[place].tolist(), strict=True)),
            }
        row["pooled"]["plain_coordinate_errors"] = dict(zip(self.names, self.plain.errors[place].tolist(), strict=True))
        row["own_weight"] = dict(zip(self.names, self.weight[place].tolist(), strict=True))
        return row

    def _natural(self, name: str, coordinates: Array) -> Array:
        return np.asarray(self.own.everyone.specs[name].natural(coordinates[:, self.names.index(name)]))

    def _number(self, person: Any) -> int:
        if person not in self._places:
            raise _checks.unknown("person", str(person), [str(each) for each in self.people[:20]])
        return self._places[person]
