"""The Choice Prediction Competitions' format: two gambles a row as high outcome, a lottery around it, low outcome."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.choices import Choices
from humanline.fit.faults import Fault
from humanline.fit.formats.csv_table import CsvTable
from humanline.fit.formats.part import ChoiceFile, Part

#: What tells the format from others.
NEEDED = ("Ha", "pHa", "La", "Hb", "pHb", "Lb")
#: How a lottery spreads around the high outcome, and what choices13k writes for it.
SHAPES = ("-", "Symm", "R-skew", "L-skew")
MOST_OUTCOMES = 50
_BLOCK = re.compile(r"B\.([1-9]\d*)")
_OPTION = ("H", "pH", "L", "LotShape", "LotNum")
WITHOUT, WITH = "without-feedback", "with-feedback"
_TITLES = {WITHOUT: "without feedback", WITH: "with feedback"}


def lottery(
    high: float, prob: float, low: float, shape: str = "-", number: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the prospect that a gamble of the competitions stands for.

    With probability `prob` a lottery whose mean is `high`, else `low`.

    Parameters
    ----------
    high, low : float
    prob : float in [0, 1]
    shape : str
        "-": no lottery, `high` itself. "Symm": ``high - (n - 1)/2 + i`` with the binomial probabilities of i of n - 1
        fair coins. "R-skew": ``high - n - 1 + 2^i`` for i = 1 .. n with probability ``2^-i``, the last one's doubled.
        "L-skew": ``high + n + 1 - 2^i``, likewise.
    number : int in 1 .. 50
        n, how many outcomes the lottery has; 1 without one.

    Returns
    -------
    outcomes, probs : arrays
        Of positive probability; an outcome may be there twice.

    Raises
    ------
    ValueError
        If `high` or `low` is not finite, `prob` outside [0, 1], `shape` none of these, or `number` not one of its
        values.

    Notes
    -----
    Source: Erev, Ert, Plonsky, Cohen and Cohen (2017), Psychological Review 124, Appendix A.

    Examples
    --------
    >>> outcomes, probs = lottery(45, 0.75, -36, "R-skew", 5)
    >>> outcomes.tolist()
    [41.0, 43.0, 47.0, 55.0, 71.0, -36.0]
    >>> probs.tolist()
    [0.375, 0.1875, 0.09375, 0.046875, 0.046875, 0.25]
    """
    high, low = _checks.finite("high", high), _checks.finite("low", low)
    if not 0 <= _checks.finite("prob", prob) <= 1:
        raise _checks.fail("prob", "lie in [0, 1]", prob)
    _checks.one_of("shape", shape, SHAPES)
    if not (number == int(_checks.finite("number", number)) and 1 <= number <= MOST_OUTCOMES):
        raise _checks.fail("number", f"be a whole number from 1 to {MOST_OUTCOMES}", number)
    if shape == "-" and number != 1:
        raise _checks.fail("number", "be 1 where there is no lottery (shape '-')", number)
    if shape == "-":
        around, mass = np.array([high], dtype=float), np.ones(1)
    elif shape == "Symm":
        from scipy.special import binom

        count = np.arange(number)
        around = high - (number - 1) / 2 + count
        mass = binom(number - 1, count) * 0.5 ** (number - 1)
    else:
        power = 2.0 ** np.arange(1, number + 1)
        sign = 1 if shape == "R-skew" else -1
        around = high - sign * (number + 1) + sign * power
        mass = 1 / power
        mass[-1] *= 2
    outcomes, probs = np.append(around, low), np.append(prob * mass, 1 - prob)
    some = probs > 0
    return outcomes[some], probs[some]


def is_cpc(names: tuple[str, ...]) -> bool:
    """Return whether columns are those of this format."""
    return all(name in names for name in NEEDED)


def read_cpc(table: CsvTable, *, per_rate: int | None = None) -> ChoiceFile:
    """Return the choices in a table: rates without feedback apart from those with it, ambiguous rows dropped.

    Parameters
    ----------
    table : CsvTable
        Columns ``GameID`` or ``Problem``, ``Ha, pHa, La, Hb, pHb, Lb``, if lotteries are there ``LotShapeA, LotNumA,
        LotShapeB, LotNumB``, and of rates of choosing B either ``B.1, B.2, ...`` (the first is without feedback; of the
        others the mean is taken) or ``bRate`` with ``Feedback`` in every row. ``Amb`` and ``Corr`` may be there.
    per_rate : int, optional
        How many independent choices each rate is of, for the noise of the data: each that is fitted, so that it is of
        the mean of several blocks, too.

    Returns
    -------
    ChoiceFile

    Raises
    ------
    DataError
        With everything that is wrong, by line.
    """
    return _Reading(table, per_rate).file()


class _Reading:
    """A table on its way to choices, with the faults found so far."""

    def __init__(self, table: CsvTable, per_rate: int | None):
        self.table, self.per_rate = table, per_rate
        self.faults: list[Fault] = []
        self.wide = [name for name in table.names if _BLOCK.fullmatch(name)]
        self._check_columns()
        table.refuse(self.faults)
        self.id = "GameID" if "GameID" in table.names else "Problem"
        self.games = table.columns[self.id]

    def file(self) -> ChoiceFile:
        """Return the choices, or raise with all faults."""
        sides = [self._options(side) for side in "ab"]
        ambiguous = self._flag("Amb")
        related = self._correlations()
        self._check_ids(sides)
        rates = self._wide() if self.wide else self._long()
        self.table.refuse(self.faults)
        keep = ~ambiguous
        if not keep.any():
            self.table.refuse(
                [Fault(None, "Amb", "be 0 in some row: ambiguous options have no probabilities", "all 1")]
            )
        prospects = [[lottery(*row) if kept else None for row, kept in zip(side, keep, strict=True)] for side in sides]
        parts = tuple(self._part(name, prospects, keep & given, rate, noise) for name, given, rate, noise in rates)
        related &= keep
        table = self.table
        notes = ["Each option is valued alone, as prospect theory does: Corr does not enter"]
        if "Corr" in self.table.names:
            notes[0] += f" (it is not 0 in {int(related.sum())} of the {int(keep.sum())} rows that are kept)"
        return ChoiceFile(
            table.path,
            "cpc",
            table.size,
            table.sha256,
            len(table),
            {"ambiguous (Amb = 1)": int(ambiguous.sum())},
            tuple(notes),
            tuple(part for part in parts if part is not None),
        )

    def _check_columns(self) -> None:
        names = self.table.names
        for name in NEEDED:
            if name not in names:
                self.faults.append(Fault(None, name, "be there", f"columns {', '.join(names)}"))
        if ("GameID" in names) + ("Problem" in names) != 1:
            self.faults.append(Fault(None, "GameID or Problem", "be there, one of them", f"columns {', '.join(names)}"))
        if bool(self.wide) == ("bRate" in names):
            found = "both" if self.wide else f"columns {', '.join(names)}"
            self.faults.append(Fault(None, "B.1, B.2, ... or bRate", "be there, one of them", found))
        if "bRate" in names and "Feedback" not in names:
            self.faults.append(Fault(None, "Feedback", "be there beside bRate", "none"))
        for name in ("LotShape", "LotNum"):
            if name in names:
                rule = f"say whose it is: {name}B, of option B, as in the files of CPC15, or {name}A"
                self.faults.append(Fault(None, name, rule, name))
        for side in "AB":
            if (f"LotShape{side}" in names) != (f"LotNum{side}" in names):
                self.faults.append(Fault(None, f"LotShape{side} and LotNum{side}", "be there both or neither", "one"))

    def _options(self, side: str) -> list[Any]:
        """Return high, probability, low, shape and number of each row's option."""
        high, prob, low = (self.table.numbers(name + side, self.faults) for name in _OPTION[:3])
        outside = (prob < 0) | (prob > 1)
        hint = " (divide percentages by 100)" if (prob > 1.5).any() else ""
        self._each(outside, f"pH{side}", f"lie in [0, 1]{hint}")
        shape: Any = np.full(len(self.table), "-", dtype=object)
        number: Any = np.ones(len(self.table))
        if f"LotShape{side.upper()}" in self.table.names:
            shape = self._shapes(f"LotShape{side.upper()}")
            name = f"LotNum{side.upper()}"
            number = self.table.numbers(name, self.faults)
            whole = (number >= 1) & (number <= MOST_OUTCOMES) & (np.floor(number) == number)
            self._each(~whole & ~np.isnan(number), name, f"be a whole number from 1 to {MOST_OUTCOMES}")
            self._each((shape == "-") & (number != 1) & whole, name, "be 1 where there is no lottery (shape -)")
            number = np.where(whole, number, 1)
        return list(zip(high, prob, low, shape, number.astype(int), strict=True))

    def _shapes(self, name: str) -> Any:
        """Return the names of shapes: those of the competitions, or the numbers that choices13k has for them."""
        cells = self.table.columns[name]
        numbered = {str(number): shape for number, shape in enumerate(SHAPES)} if "bRate" in self.table.names else {}
        known = {**{shape: shape for shape in SHAPES}, **numbered}
        found = np.array([known.get(cell, "") for cell in cells], dtype=object)
        said = "be one of " + ", ".join(known)
        if not numbered and any(cell in "0123" for cell in cells if cell):
            said += ", by name: sets that number them do not agree on the numbers"
        self._each(found == "", name, said)
        return found

    def _flag(self, name: str) -> NDArray[np.bool_]:
        """Return a column of 0 and 1, or False and True."""
        if name not in self.table.names:
            return np.zeros(len(self.table), dtype=bool)
        known = {"0": False, "1": True, "false": False, "true": True, "0.0": False, "1.0": True}
        cells = self.table.columns[name]
        found = [known.get(cell.lower()) for cell in cells]
        self._each(np.array([each is None for each in found]), name, "be 0 or 1")
        return np.array([bool(each) for each in found])

    def _correlations(self) -> NDArray[np.bool_]:
        if "Corr" not in self.table.names:
            return np.zeros(len(self.table), dtype=bool)
        found = self.table.numbers("Corr", self.faults)
        self._each(~np.isin(found, (-1, 0, 1)) & ~np.isnan(found), "Corr", "be -1, 0 or 1")
        return np.asarray(found != 0)

    def _check_ids(self, sides: list[Any]) -> None:
        """See that rows of the same problem have the same options."""
        first: dict[str, int] = {}
        for row, game in enumerate(self.games):
            if not game:
                self.faults.append(self.table.fault(row, self.id, "be given", game))
                continue
            there = first.setdefault(game, row)
            line = int(self.table.line[there])
            if any(side[row] != side[there] for side in sides) and not any(
                np.isnan(side[row][:3]).any() for side in sides
            ):
                rule = f"have the outcomes and probabilities of the same problem on line {line}"
                self.faults.append(self.table.fault(row, self.id, rule, game))
            elif there != row and self.wide:
                self.faults.append(self.table.fault(row, self.id, f"be there once; it is on line {line}", game))

    def _rates(self, name: str) -> NDArray[np.float64]:
        found = self.table.numbers(name, self.faults)
        hint = " (divide percentages by 100)" if (found > 1.5).any() else ""
        self._each((found < 0) | (found > 1), name, f"lie in [0, 1]{hint}")
        return found

    def _wide(self) -> list[Any]:
        """Return each part: its name, which rows have a rate in it, the rates, and their sampling variances."""
        blocks = {name: self._rates(name) for name in self.wide}
        everywhere = np.ones(len(self.table), dtype=bool)
        with_feedback = [rate for name, rate in blocks.items() if name != "B.1"]
        found: list[Any] = []
        if "B.1" in blocks:
            found.append((WITHOUT, everywhere, blocks["B.1"], self._noise(blocks["B.1"])))
        if with_feedback:
            mean = np.mean(with_feedback, axis=0)
            found.append((WITH, everywhere, mean, self._noise(mean)))
        return found

    def _long(self) -> list[Any]:
        rate, feedback = self._rates("bRate"), self._flag("Feedback")
        noise = self._noise(rate)
        if noise is None and {"bRate_std", "n"} <= set(self.table.names):
            spread, people = (self.table.numbers(name, self.faults) for name in ("bRate_std", "n"))
            self._each(~(spread >= 0) & ~np.isnan(spread), "bRate_std", "be >= 0")
            self._each(~(people >= 2) & ~np.isnan(people), "n", "be >= 2")
            noise = spread**2 / np.maximum(people - 1, 1)
        found = [(WITHOUT, ~feedback, rate, noise), (WITH, feedback, rate, noise)]
        return [part for part in found if part[1].any()]

    def _noise(self, rate: NDArray[np.float64]) -> NDArray[np.float64] | None:
        return None if self.per_rate is None else rate * (1 - rate) / (self.per_rate - 1)

    def _part(self, name: str, prospects: Any, rows: Any, rate: Any, noise: Any) -> Part | None:
        if not rows.any():
            return None
        places = np.flatnonzero(rows)
        names, first, problem = np.unique(self.games[places].astype(str), return_index=True, return_inverse=True)
        sides = []
        for side in prospects:
            mine = [side[places[at]] for at in first]
            sides.append(([each[0] for each in mine], [each[1] for each in mine]))
        choices = Choices.between(
            sides[0], sides[1], rate[places], kind="rates", problem=problem, problem_names=names.tolist()
        )
        title = _TITLES[name]
        if self.wide:
            rest = [block for block in self.wide if block != "B.1"]
            several = f"the mean of {rest[0]} to {rest[-1]}" if len(rest) > 1 else "".join(rest)
            title += " (block B.1)" if name == WITHOUT else f" ({several})"
        if self.per_rate is not None:
            title += f", {self.per_rate} choices behind each rate"
        return Part(name, title, choices, None if noise is None else noise[places])

    def _each(self, bad: Any, column: str, rule: str) -> None:
        for row in np.flatnonzero(bad):
            self.faults.append(self.table.fault(row, column, rule, self.table.columns[column][row]))
