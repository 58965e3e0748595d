"""What sections of a configuration are made of: their base, and types of numbers and texts."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from humanline.system.own_code import CALL, Loaded, OwnCodeError, load_call

_SMALLEST, _LARGEST = 1.2e-38, 3e38  # of float32, in which a run computes: beyond them lie 0 and infinity


def _in_float32(value: float) -> float:
    """Refuse a number that float32 would turn into 0 or infinity."""
    if value and not _SMALLEST <= abs(value) <= _LARGEST:
        raise ValueError(f"must be 0 or from {_SMALLEST:g} to {_LARGEST:g} in size, which float32 holds; got {value!r}")
    return value


IN_FLOAT32 = AfterValidator(_in_float32)
Finite = Annotated[float, Field(allow_inf_nan=False), IN_FLOAT32]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), IN_FLOAT32]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), IN_FLOAT32]
Fraction = Annotated[float, Field(ge=0, lt=1), IN_FLOAT32]
Temperature = Annotated[float, Field(ge=1e-3, le=1e3)]  # logits divided by less are infinite, or all alike
NonEmpty = Annotated[str, Field(min_length=1)]
Call = Annotated[str, Field(pattern=CALL)]
Plain = bool | int | Finite | str | None
BESIDE = "beside"  # the recipe's folder, in the context in which sections are read


class Section(BaseModel):
    """Frozen and strict; unknown keys are errors, and the string below a field says what it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class OwnCodeSection(Section):
    """A section that names a function of the user's own; `system/own_code.py` says where it is looked for."""

    _beside: str | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Note the folder of the recipe that is read, if one is."""
        self._beside = (context or {}).get(BESIDE)

    @property
    def beside(self) -> str | None:
        """Return the folder of the recipe; None for a configuration that was made in Python."""
        return self._beside


class OwnPart(OwnCodeSection):
    """A part of a run that is a function of the user's own, in the run's own process; docs/own-parts.md shows each."""

    place: ClassVar[str]
    """What messages call the section."""
    call: Call
    """`module:function`, looked for next to the recipe, then in the current folder, then where Python looks."""
    options: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], Plain | list[Plain]] = Field(default={})
    """What the function gets by keyword, besides what it is always given."""

    _loaded: Loaded | None = PrivateAttr(default=None)
    _metrics: tuple[str, ...] | None = PrivateAttr(default=None)

    def load(self, *, anew: bool = False) -> Loaded:
        """Return the function, imported once, so that a run computes with one text of it and records that one.

        Parameters
        ----------
        anew : bool
            Look at its files again: a run does so when it begins.

        Raises
        ------
        OwnCodeError
            If it cannot be imported, or is of no file, so that nobody could tell whether it has changed.
        """
        if self._loaded is None or anew:
            try:
                loaded = load_call(self.call, self.beside)
            except OwnCodeError as error:
                raise OwnCodeError(f"{self.place}: {self.call} {error}") from None
            if not loaded.sources:
                raise OwnCodeError(
                    f"{self.place}: {self.call} is of no Python file, as what a notebook defines: a resumed run could "
                    "not tell whether it has changed; write it into a file, and name that"
                )
            self._loaded, self._metrics = loaded, None
        return self._loaded

    def first_metrics(self, names: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return the metrics that it was first seen to return since it was imported: if none were, those given."""
        if self._metrics is None and names is not None:
            self._metrics = names
        return self._metrics or ()
