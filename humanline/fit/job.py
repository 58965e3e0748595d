"""A file fitted as `humanline fit` does it: read, said what it holds, fitted part by part, compared, and reported."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from humanline import _checks
from humanline.fit.bootstrap import bootstrap
from humanline.fit.compare import Comparison, compare_models
from humanline.fit.curves import Shown
from humanline.fit.estimate import fit_prospect
from humanline.fit.formats import ChoiceFile, Part
from humanline.fit.model import Model, standard_models
from humanline.fit.result import Fit
from humanline.fit.shown import FROM_ERRORS, FROM_PROFILES, comparison_lines, fit_lines, usual_errors
from humanline.fit.uncertainty import KINDS, ParameterInterval, profile_interval

#: Of the layout of what `FitReport.to_dict` returns.
VERSION = 1
INTERVALS = ("standard", "profile", "bootstrap")


@dataclass(frozen=True)
class More:
    """What else was found in a part: in lines, as JSON can hold it, and as tables.

    Parameters
    ----------
    lines : list of str
    found : mapping
    tables : mapping from the name of a file to its header and rows
    """

    lines: list[str]
    found: Mapping[str, Any]
    tables: Mapping[str, tuple[str, Iterable[Sequence[Any]]]] = field(default_factory=dict)


#: What else is asked of each part, of its fit and the kind of its errors.
Extra = Callable[[Part, Fit, str], More]


@dataclass(frozen=True)
class Asked:
    """What a person asks of a fit.

    Parameters
    ----------
    model : Model
    objective : str
        "likelihood" or "least squares".
    reference_point : float
    starts, seed : int
    errors : str
        A kind of standard errors, or "auto".
    intervals : str
        "standard", "profile" or "bootstrap".
    draws : int
        Of the bootstrap.
    confidence : float
    compare : bool
    folds : int
    held_out : str
        "problem" or "person".
    baseline : str, optional
        Of the comparison.
    """

    model: Model = field(default_factory=Model)
    objective: str = "likelihood"
    reference_point: float = 0.0
    starts: int = 10
    seed: int = 0
    errors: str = "auto"
    intervals: str = "standard"
    draws: int = 200
    confidence: float = 0.95
    compare: bool = False
    folds: int = 10
    held_out: str = "problem"
    baseline: str | None = None

    def __post_init__(self) -> None:
        _checks.one_of("errors", self.errors, ("auto", *KINDS))
        _checks.one_of("intervals", self.intervals, INTERVALS)
        if self.seed < 0:
            raise _checks.fail("seed", "be >= 0", self.seed)

    def models(self) -> dict[str, Model]:
        """Return the models of a comparison, with the value function, choice rule and lapses that are asked.

        The model that is asked for is the last of them, unless it is one of the others.
        """
        model = self.model
        found = standard_models(model.value, rule=model.rule, contextual=model.contextual, lapse=model.lapse)
        nameless = dataclasses.replace(model, name="")
        if all(dataclasses.replace(other, name="") != nameless for other in found.values()):
            found["the model asked for"] = model
        return found


@dataclass(frozen=True, eq=False)
class PartReport:
    """What was found in one part of a file.

    Parameters
    ----------
    part : Part
    fit : Fit
    errors : str
    intervals : mapping from name to ParameterInterval
    comparison : Comparison, optional
    extras : mapping from name to More
    """

    part: Part
    fit: Fit
    errors: str
    intervals: Mapping[str, ParameterInterval]
    comparison: Comparison | None
    extras: Mapping[str, More]

    def shown(self, seed: int) -> Shown:
        """Return the fit as its figures show it."""
        return Shown(self.fit, self.errors, seed, self.part.title, self.part.noise)


@dataclass(frozen=True, eq=False)
class FitReport:
    """What was found in a file; `fit_file` makes it."""

    file: ChoiceFile
    asked: Asked
    parts: tuple[PartReport, ...]

    @property
    def not_converged(self) -> tuple[str, ...]:
        """Models of the comparisons that came to no optimum, with their parts."""
        found = [(one.part.title, one.comparison) for one in self.parts if one.comparison is not None]
        return tuple(f"{title}: {model}" for title, comparison in found for model in comparison.not_converged)

    def lines(self) -> list[str]:
        """Return everything a person reads, tables first."""
        lines = [*self.file.told(), ""]
        for one in self.parts:
            units = {"problem": "problems", "person": "people"}[resampled(one.errors)]
            how = {
                "standard": FROM_ERRORS,
                "profile": FROM_PROFILES,
                "bootstrap": f"from {self.asked.draws} resamples of {units}",
            }
            source = self.file.path.name + (f", {one.part.title}" if self.file.format == "cpc" else "")
            lines += fit_lines(one.fit, one.errors, one.intervals, source=source, how=how[self.asked.intervals])
            lines.append("")
            if one.comparison is not None:
                lines += [*comparison_lines(one.comparison, source=source), ""]
            for more in one.extras.values():
                lines += [*more.lines, ""]
        return lines[:-1]

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; the same data, settings and seed give the same."""
        import scipy

        from humanline import __version__

        file = self.file
        settings = {
            **{each.name: getattr(self.asked, each.name) for each in dataclasses.fields(self.asked)},
            "model": self.asked.model.to_dict(),
        }
        found: dict[str, Any] = plain(
            {
                "made_by": "humanline fit",
                "version": VERSION,
                "versions": {"humanline": __version__, "numpy": np.__version__, "scipy": scipy.__version__},
                "data": {
                    "file": file.path.name, "bytes": file.size, "sha256": file.sha256, "format": file.format,
                    "rows": file.rows, "dropped": file.dropped, "notes": file.notes,
                },
                "settings": settings,
                "seed": self.asked.seed,
                "parts": [_part_dict(one, self.asked.intervals) for one in self.parts],
            }
        )  # fmt: skip
        return found


def fit_file(
    file: ChoiceFile,
    asked: Asked,
    *,
    extras: Mapping[str, Extra] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FitReport:
    """Fit what a file holds, part by part.

    Parameters
    ----------
    file : ChoiceFile
    asked : Asked
    extras : mapping from name to callable, optional
        What else is done with each part, its fit and the kind of its errors.
    progress : callable
        Given how many fits are done, and of how many.

    Returns
    -------
    FitReport

    Raises
    ------
    NotIdentified, NotConverged
        As `fit_prospect` does, for the model that is asked for.
    ValueError
        As `compare_models` and `profile_interval` do.
    """
    done = []
    for number, part in enumerate(file.parts):
        fit = fit_prospect(
            part.choices,
            asked.model,
            starts=asked.starts,
            seed=asked.seed,
            objective=asked.objective,
            reference_point=asked.reference_point,
        )
        errors = usual_errors(fit) if asked.errors == "auto" else asked.errors

        def counted(now: int, total: int, number: int = number) -> None:
            progress(number * total + now, len(file.parts) * total)

        comparison = None
        if asked.compare:
            comparison = compare_models(
                part.choices,
                asked.models(),
                baseline=asked.baseline,
                by=asked.held_out,
                folds=asked.folds,
                starts=asked.starts,
                seed=asked.seed,
                objective=asked.objective,
                reference_point=asked.reference_point,
                level=1 - asked.confidence,
                noise=part.noise,
                progress=counted,
            )
        more = {name: extra(part, fit, errors) for name, extra in (extras or {}).items()}
        done.append(PartReport(part, fit, errors, _intervals(fit, errors, asked), comparison, more))
    return FitReport(file, asked, tuple(done))


def resampled(errors: str) -> str:
    """Return what the bootstrap draws, "problem" or "person": what errors are clustered by, else problems."""
    return errors if errors in ("problem", "person") else "problem"


def _intervals(fit: Fit, errors: str, asked: Asked) -> dict[str, ParameterInterval]:
    level = asked.confidence
    if asked.intervals == "profile":
        return {name: profile_interval(fit, name, confidence=level) for name in fit.names}
    if asked.intervals == "bootstrap":
        found = bootstrap(fit, by=resampled(errors), draws=asked.draws, seed=asked.seed)
        return {name: found.interval(name, confidence=level) for name in fit.names}
    return {name: fit.interval(name, confidence=level, kind=errors) for name in fit.names}


# ---- what JSON can hold ---------------------------------------------------------------------------------------------


def _part_dict(one: PartReport, intervals: str) -> dict[str, Any]:
    found = {
        "name": one.part.name,
        "title": one.part.title,
        "fit": one.fit.to_dict(one.errors),
        "errors": one.errors,
        "intervals": {name: dataclasses.asdict(each) for name, each in one.intervals.items()},
        **({"resampled": resampled(one.errors)} if intervals == "bootstrap" else {}),
        **{name: more.found for name, more in one.extras.items()},
    }
    if one.comparison is not None:
        found["comparison"] = _comparison_dict(one.comparison)
    return found


def _comparison_dict(found: Comparison) -> dict[str, Any]:
    names = ("baseline", "measure", "by", "units", "folds", "seed", "level", "dispersion")
    return {
        **{name: getattr(found, name) for name in names},
        "floor": dataclasses.asdict(found.floor),
        "models": [
            {
                "title": row.title, "model": row.fit.model.to_dict(), "parameters": row.fit.parameters,
                "free": row.fit.names, "log_likelihood": row.fit.log_likelihood,
                **dict(zip(found.criteria, (row.aic, row.bic), strict=True)),
                "squared_error": row.fit.squared_error, "held_out": row.loss, "at_bound": row.fit.at_bound,
                "agreeing_starts": row.fit.starts.agreeing,
                "difference": None if row.difference is None else dataclasses.asdict(row.difference),
                "p": row.p, "holm_p": row.adjusted, "verdict": row.verdict,
            }
            for row in found.rows
        ],
        "missing": dict(found.missing),
        "not_converged": found.not_converged,
        "best": found.best.title,
        "not_distinguishable_from_best": found.alike,
        "pairs": found.pairs,
        "separated": [list(pair) for pair in found.separated],
    }  # fmt: skip


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: numbers that are not finite are None."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
