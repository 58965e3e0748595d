"""What sections of a configuration are made of: their base, and types of numbers and texts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from humanline.system.own_code import CALL

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
