"""What a comparison is to show, said in a file before the data are seen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from humanline.train.config.base import NonEmpty, NonNegative, Section
from humanline.train.config.read import ConfigError, read_section

Unit = Literal["items", "seeds", "both"]
Test = Literal["difference", "non-inferiority", "equivalence"]


class Plan(Section):
    """A comparison: against what, over what, with which margin."""

    test: Test = "difference"
    """Whether models differ, are not worse than the baseline by more than the margin, or differ by less than it."""
    margin: NonNegative | None = None
    """Largest loss that is acceptable, in the unit of the values (a share of .02 is .02); no test of a difference."""
    baseline: NonEmpty | None = None
    """Name of the model that the others are held against; default: that of the first file."""
    family: Annotated[tuple[NonEmpty, ...], Field(strict=False)] = ()
    """Names of the models whose p-values are corrected together; default: all but the baseline."""
    unit: Unit | None = None
    """What is a sample of more: items, seeds or both; default: both where there are several seeds."""
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Level of the tests, one-sided for a margin; intervals have a confidence of one minus it."""
    wanted: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """A difference for which the needed number of items or seeds is told; default: the margin."""

    @field_validator("margin", mode="before")
    @classmethod
    def _has_no_sign(cls, margin: Any) -> Any:
        if isinstance(margin, int | float) and margin < 0:
            raise ValueError(f"how large a loss is acceptable has no sign: write {-margin:g}")
        return margin

    @model_validator(mode="after")
    def _fits(self) -> Plan:
        if self.test == "difference" and self.margin is not None:
            raise ValueError("margin: a test of a difference has none; set test: non-inferiority or equivalence")
        if self.test != "difference" and self.margin is None:
            raise ValueError(f"margin is missing, which {self.test} is held against")
        if self.test == "equivalence" and self.margin == 0:
            raise ValueError("margin must be > 0 for equivalence")
        if len(set(self.family)) < len(self.family):
            raise ValueError("family names a model twice")
        return self


@dataclass(frozen=True, slots=True)
class Declared:
    """A plan, and when it was made: from a file with its digest and date, or by options, after the data were there."""

    plan: Plan
    file: str | None = None
    sha256: str | None = None
    changed: str | None = None

    @property
    def label(self) -> str:
        """Return a line about when it was chosen."""
        if self.file is None:
            return "chosen by options, afterwards" if self.plan != Plan() else "no plan: what follows was not declared"
        return f"declared in {self.file}, sha256 {str(self.sha256)[:12]}, last changed {self.changed}"


def read_plan(path: str | Path) -> Declared:
    """Read a plan from a YAML file; raise ConfigError, which lists all problems with their places."""
    plan = read_section(Plan, path)
    try:
        data, stat = Path(path).read_bytes(), Path(path).stat()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    changed = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds")
    return Declared(plan, Path(path).name, hashlib.sha256(data).hexdigest(), changed)


def declared_by(file: str | None, options: Mapping[str, Any]) -> Declared:
    """Return the plan of a file, or that of options of the command line, chosen when the data were there.

    Raises
    ------
    ConfigError
        If there are both, or as `read_plan` does.
    """
    if file is not None:
        if options:
            raise ConfigError(
                f"--plan {file} says how to compare; leave out {', '.join(f'--{name}' for name in options)}"
            )
        return read_plan(file)
    try:
        return Declared(Plan.model_validate(dict(options)))
    except ValidationError as error:
        texts = []
        for one in error.errors():
            place = f"--{one['loc'][0]}: " if one["loc"] else ""
            texts.append(place + one["msg"].removeprefix("Value error, "))
        raise ConfigError("; ".join(texts)) from None
