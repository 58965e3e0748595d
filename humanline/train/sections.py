"""What sections of a configuration are made of: their base, and types of numbers and texts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
NonEmpty = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """Frozen and strict; unknown keys are errors, and the string below a field says what it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
