"""How rows are read, besides their shape, the names of their columns and what is left out of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

from humanline._checks import fail, one_of

if TYPE_CHECKING:  # which takes numpy
    from humanline.train.config.data import DataConfig

Format = Literal["hh"]
Turns = Literal["last", "all"]
OnBadRow = Literal["error", "drop"]


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are read.

    Parameters
    ----------
    format : "hh" or None
        "hh": texts are whole conversations between the marks of HH-RLHF, and become messages.
    turns : "last" or "all"
        Which of the assistant's turns are answers where an answer has several.
    bad_rows : "error" or "drop"
        What becomes of rows that cannot be read.
    bad_rows_limit : float in [0, 1)
        Share of the rows above which bad ones are an error all the same.

    Raises
    ------
    ValueError
        If an argument is outside its domain.
    """

    format: Format | None = None
    turns: Turns = "last"
    bad_rows: OnBadRow = "error"
    bad_rows_limit: float = 0.1

    def __post_init__(self) -> None:
        if self.format is not None:
            one_of("format", self.format, get_args(Format))
        one_of("turns", self.turns, get_args(Turns))
        one_of("bad_rows", self.bad_rows, get_args(OnBadRow))
        if not 0 <= self.bad_rows_limit < 1:
            raise fail("bad_rows_limit", "be in [0, 1)", self.bad_rows_limit)

    @classmethod
    def of(cls, data: DataConfig) -> Self:
        """Return what the section data of a recipe says."""
        return cls(data.format, data.turns, data.bad_rows, data.bad_rows_limit)
