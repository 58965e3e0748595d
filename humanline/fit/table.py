"""Tables in the long form: one row for each outcome of each option of each problem, and of each person."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit.choices import Choices
from humanline.fit.faults import DataError, Fault, is_absent
from humanline.theory._arrays import SUM_TOLERANCE

#: The response of a table, by the column that has it.
RESPONSES = {"choice": "choices", "count": "counts", "rate": "rates", "equivalent": "equivalents"}
NEEDED = ("problem", "option", "outcome", "probability")
#: A whole number, and as it is written where a tool took it for a float.
_WHOLE = re.compile(r"(-?\d+)(?:\.0*)?")


def as_choices(table: Any, *, least_responses: int = 1) -> Choices:
    """Return choices from a table in the long form; choices as they are.

    Parameters
    ----------
    table : Choices, data frame, or dict from column to values
        A row for each outcome of each option of each problem, and for each person and trial again. Columns: ``problem``
        and ``option`` (names of any kind), ``outcome``, ``probability``; one of ``choice`` (1 on all rows of the option
        that was chosen, 0 on the other's), ``count`` (how often the option was chosen), ``rate`` (how large a share) or
        ``equivalent`` (of problems with one option: the sure outcome that was as good); and, if there are several,
        ``person`` and ``trial``, which tells answers of a person to the same problem apart. Counts may have ``n``, of
        how many choices those of both options are together. Other columns are passed over.
    least_responses : int
        How many each person must have given.

    Returns
    -------
    Choices
        Whose second option is, of each problem, the one that the table names later.

    Raises
    ------
    TypeError
        If it is no such table.
    DataError
        With everything that is wrong: columns missing, doubled, or of two kinds of responses; text or nan for numbers;
        names that are missing, or the same number written in two ways; probabilities outside [0, 1], or that miss 1;
        other than two options; responses out of their range, that differ within an option, or do not make a whole, or
        ``n``, over the two; problems that differ between answers; a person with too few responses.

    Examples
    --------
    >>> data = as_choices({
    ...     "problem": [1, 1, 1], "option": ["A", "A", "B"],
    ...     "outcome": [10, 0, 4], "probability": [0.5, 0.5, 1], "rate": [0.25, 0.25, 0.75],
    ... })
    >>> data.kind, data.response.tolist()
    ('rates', [0.75])
    """
    if isinstance(table, Choices):
        return table
    return _Reading(table).choices(least_responses)


def one_number(rows: Sequence[int] | NDArray[np.int64], total: NDArray[np.float64]) -> str:
    """Return the rule that n breaks which is not the same on the rows of an answer, with the rows."""
    found = ", ".join(f"{total[row]:g} in row {row}" for row in rows)
    return f"be the same on all rows of an answer ({found})"


class _Reading:
    """A table on its way to choices, with the faults found so far."""

    def __init__(self, table: Any):
        self.faults: list[Fault] = []
        if not (hasattr(table, "keys") and hasattr(table, "__getitem__")):
            rule = "be a data frame, a dict of columns or Choices (read_choices reads a file)"
            raise TypeError(f"table must {rule}; got a {type(table).__name__}")
        names = [str(name) for name in table.keys()]  # noqa: SIM118
        for name, count in Counter(names).items():
            if count > 1:
                self._fault(None, name, "be there once", f"{count} columns")
        kinds = [name for name in RESPONSES if name in names]
        if len(kinds) != 1:
            self._fault(None, " or ".join(RESPONSES), "be there, one of them", kinds or "none")
        for name in NEEDED:
            if name not in names:
                self._fault(None, name, "be there", f"columns {', '.join(names) or 'none'}")
        if self.faults:
            raise DataError("table", self.faults)
        self.column = kinds[0]
        self.kind = RESPONSES[self.column]
        more = ("person", "trial", "n") if self.column == "count" else ("person", "trial")
        read = [*NEEDED, self.column, *(name for name in more if name in names)]
        columns = {name: np.asarray(table[name]) for name in read}
        sizes = {name: len(values) if values.ndim == 1 else values.shape for name, values in columns.items()}
        if len(set(sizes.values())) != 1:
            raise DataError("table", [Fault(None, "columns", "be equally long", sizes)])
        if not len(columns["problem"]):
            raise DataError("table", [Fault(None, "rows", "be there", 0)])
        self.outcome, self.probability, self.given = (
            self._numbers(name, columns[name]) for name in ("outcome", "probability", self.column)
        )
        self.total = self._numbers("n", columns["n"]) if "n" in columns else None
        self.problem, self.problem_names = self._codes("problem", columns["problem"])
        self.option, self.option_names = self._codes("option", columns["option"])
        some = columns.get("person", np.zeros(len(self.problem)))
        self.person, self.person_names = self._codes("person", some)
        self.trial, _ = self._codes("trial", columns.get("trial", np.zeros(len(self.problem))))
        self.named = "person" in columns

    def choices(self, least_responses: int) -> Choices:
        """Return the choices, or raise with all faults."""
        answer = np.stack([self.problem, self.person, self.trial], axis=1)
        _, block = np.unique(answer, axis=0, return_inverse=True)
        block = block.reshape(-1)  # of two axes in numpy 2.0.0
        order = np.lexsort((self.probability, self.outcome, self.option, block))
        block, option = block[order], self.option[order]
        edge = np.flatnonzero(np.diff(block, prepend=-1) | np.diff(option, prepend=-1))
        size = np.diff(edge, append=len(order))
        segment = np.repeat(np.arange(len(edge)), size)
        first_row = np.minimum.reduceat(order, edge)
        problem, which = self.problem[order][edge], option[edge]
        self._check_agreement(order, segment, edge, size, problem * len(self.option_names) + which, first_row)
        self._check_laws(order, edge, first_row)
        response = self.given[order][edge]
        differing = np.maximum.reduceat(self.given[order], edge) != np.minimum.reduceat(self.given[order], edge)
        differing &= ~np.isnan(np.add.reduceat(self.given[order], edge))
        self._each(first_row[differing], self.column, "be the same on all rows of an option", self.given)
        self._check_range(response, first_row)
        self._check_number(order, block)
        pairs = self._pairs(block[edge], problem, first_row)
        if self.faults:
            raise DataError("table", self.faults)
        return self._made(order, edge, size, problem, response, pairs, first_row, least_responses)

    def _made(
        self, order: Any, edge: Any, size: Any, problem: Any, response: Any, pairs: Any, first_row: Any, least: int
    ) -> Choices:
        earlier, later = pairs[:, 0], pairs[:, -1]
        self._check_totals(response[earlier] + response[later], first_row[earlier])
        who = self.person[first_row[earlier]]
        few = np.flatnonzero(np.bincount(who, minlength=len(self.person_names)) < least)
        for person in few:
            row = int(first_row[earlier][who == person][0])
            self._fault(row, "person", f"have {least} responses or more", self.person_names[person])
        if self.faults:
            raise DataError("table", self.faults)
        used, place, where = np.unique(problem[earlier], return_index=True, return_inverse=True)
        first, second = (self._prospects(order, edge, size, side[place]) for side in (earlier, later))
        names = [self.problem_names[at] for at in used]
        people = np.asarray(self.person_names, dtype=object)[who].astype(str) if self.named else None
        if self.kind == "equivalents":
            return Choices.equivalents(first, response[earlier], problem=where, person=people, problem_names=names)
        trials = response[earlier] + response[later] if self.kind == "counts" else None
        return Choices.between(
            first,
            second,
            response[later],
            kind=self.kind,
            trials=trials,
            problem=where,
            person=people,
            problem_names=names,
        )

    def _prospects(self, order: Any, edge: Any, size: Any, segments: Any) -> tuple[list[Any], list[Any]]:
        outcomes, probs = self.outcome[order], self.probability[order]
        ends = [slice(edge[at], edge[at] + size[at]) for at in segments]
        return [outcomes[each] for each in ends], [probs[each] for each in ends]

    def _check_laws(self, order: Any, edge: Any, first_row: Any) -> None:
        p = self.probability
        self._each(np.flatnonzero((p < 0) | (p > 1)), "probability", "lie in [0, 1]" + self._percent(), p)
        total = np.add.reduceat(p[order], edge)
        missed = np.abs(total - 1) > SUM_TOLERANCE
        for at in np.flatnonzero(missed):
            twice = abs(total[at] - round(total[at])) < SUM_TOLERANCE and 1 < total[at] < 1000 and not self._percent()
            hint = "; several answers to a problem each need a person or a trial" if twice else ""
            rule = f"sum to 1 over the rows of an option{hint}"
            self._fault(int(first_row[at]), "probability", rule, float(total[at]))

    def _percent(self) -> str:
        whole = self.probability[np.isfinite(self.probability)]
        return " (divide percentages by 100)" if len(whole) and whole.max() > 1.5 else ""

    def _check_agreement(self, order: Any, segment: Any, edge: Any, size: Any, option: Any, first_row: Any) -> None:
        """See that each option of a problem is the same wherever it stands."""
        _, canonical, which = np.unique(option, return_index=True, return_inverse=True)
        model = canonical[which]
        differs = size != size[model]
        offset = np.arange(len(order)) - edge[segment]
        other = edge[model[segment]] + np.minimum(offset, size[model[segment]] - 1)
        for values in (self.outcome[order], self.probability[order]):
            unequal = (values != values[other]) & ~(np.isnan(values) & np.isnan(values[other]))
            differs |= np.bincount(segment, weights=unequal, minlength=len(edge)) > 0
        bad = np.zeros(len(self.problem), dtype=bool)
        bad[[fault.row for fault in self.faults if fault.row is not None]] = True
        unsure = np.bincount(segment, weights=bad[order], minlength=len(edge)) > 0
        for at in np.flatnonzero(differs & ~unsure & ~unsure[model]):
            row, there = int(first_row[at]), int(first_row[model[at]])
            rule = f"have the outcomes and probabilities of the same option in row {there}"
            name = f"{self.problem_names[self.problem[row]]}, option {self.option_names[self.option[row]]}"
            self._fault(row, "problem", rule, name)

    def _pairs(self, block: Any, problem: Any, first_row: Any) -> NDArray[np.int64]:
        """Return, for each answer, the segments of its options, in the order in which the problem first names them."""
        wanted = 1 if self.kind == "equivalents" else 2
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        count = np.diff(starts, append=len(block))
        for at in starts[count != wanted]:
            row = int(first_row[at])
            found = int(count[np.searchsorted(starts, at)])
            self._fault(row, "option", f"name {wanted} options in each answer to a problem", found)
        if (count != wanted).any():
            return np.zeros((0, wanted), np.int64)
        pairs = starts[:, None] + np.arange(wanted)
        names = self.option[first_row[pairs]]
        for at in np.flatnonzero(_differ_within(problem[starts], names)):
            self._fault(int(first_row[starts[at]]), "option", "be those of the problem's other answers", "others")
        if wanted == 1:
            return pairs
        earliest = np.full((problem.max() + 1, len(self.option_names)), len(self.problem))
        np.minimum.at(earliest, (problem, self.option[first_row]), first_row)
        seen = earliest[problem[pairs], names]
        return np.asarray(np.where((seen[:, :1] <= seen[:, 1:]), pairs, pairs[:, ::-1]))

    def _check_range(self, value: Any, first_row: Any) -> None:
        rule, good = {
            "choice": ("be 0 or 1", (value == 0) | (value == 1)),
            "count": ("be a whole number >= 0", (value >= 0) & (np.floor(value) == value)),
            "rate": ("lie in [0, 1]", (value >= 0) & (value <= 1)),
            "equivalent": ("be finite", np.isfinite(value)),
        }[self.column]
        self._each(first_row[~(good | np.isnan(value))], self.column, rule, self.given)

    def _check_totals(self, total: Any, row: Any) -> None:
        if self.column == "equivalent":
            return
        whole = total >= 1 if self.column == "count" else np.abs(total - 1) <= 1e-6
        said = "be 1 or more" if self.column == "count" else "be 1"
        for at in np.flatnonzero(~whole):
            self._fault(int(row[at]), self.column, f"{said} over both options together", float(total[at]))
        if self.total is not None:
            for at in np.flatnonzero(total != self.total[row]):
                rule = f"sum to n, {self.total[row[at]]:g}, over the options"
                self._fault(int(row[at]), self.column, rule, float(total[at]))

    def _check_number(self, order: Any, block: Any) -> None:
        """See that the column n, where there is one, is the same in each answer, and that no count is above it."""
        if self.total is None:
            return
        begin, number = np.flatnonzero(np.diff(block, prepend=-1)), self.total[order]
        uneven = np.maximum.reduceat(number, begin) != np.minimum.reduceat(number, begin)
        uneven &= ~np.isnan(np.add.reduceat(number, begin))
        ends = np.append(begin[1:], len(order))
        for at in np.flatnonzero(uneven):
            rows = np.sort(order[begin[at] : ends[at]])
            self._fault(int(rows[0]), "n", one_number(rows, self.total), float(self.total[rows[0]]))
        for row in np.flatnonzero(self.given > self.total):
            self._fault(int(row), self.column, f"be at most n, {self.total[row]:g}", float(self.given[row]))

    def _numbers(self, name: str, column: NDArray[Any]) -> NDArray[np.float64]:
        if column.dtype.kind in "cmM":  # complex numbers and dates, which numpy would make floats
            for row, value in enumerate(column):
                self._fault(row, name, "be a number", value)
            return np.zeros(len(column))
        try:
            found = column.astype(np.float64)
        except (TypeError, ValueError):
            found = np.full(len(column), np.nan)
            for row, value in enumerate(column):
                try:
                    found[row] = float(value)
                except (TypeError, ValueError):
                    self._fault(row, name, "be a number", value)
                    found[row] = 0.0
                    continue
        self._each(np.flatnonzero(~np.isfinite(found)), name, "be finite", found)
        return np.asarray(found)

    def _codes(self, name: str, column: NDArray[Any]) -> tuple[NDArray[np.int64], list[Any]]:
        if column.dtype.kind == "U":
            named = [str(one) for one in np.unique(column).tolist() if is_absent(one)]
            missing = np.flatnonzero(np.isin(column, named)).tolist()
        else:
            missing = [row for row, one in enumerate(column if column.dtype.kind in "Of" else ()) if is_absent(one)]
        for row in missing:
            text = isinstance(column[row], str) and column[row] != ""
            self._fault(row, name, "be a name, not a missing one" if text else "be given", column[row])
        values = np.array([str(one) for one in column]) if column.dtype == object else column
        names, codes = np.unique(values, return_inverse=True)
        written: dict[str, str] = {}
        for each in names.tolist() if values.dtype.kind == "U" else ():
            if (whole := _WHOLE.fullmatch(each)) and written.setdefault(whole[1], each) != each:
                self._fault(None, name, "be written in one way", f"{written[whole[1]]} and {each}")
        return codes.astype(np.int64), names.tolist()

    def _each(self, rows: Any, column: str, rule: str, values: NDArray[np.float64]) -> None:
        for row in rows:
            self._fault(int(row), column, rule, float(values[row]))

    def _fault(self, row: int | None, column: str, rule: str, value: Any) -> None:
        self.faults.append(Fault(row, column, rule, value))


def _differ_within(problem: NDArray[Any], names: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which answers have other names of options than the first answer to their problem."""
    _, first, where = np.unique(problem, return_index=True, return_inverse=True)
    return np.asarray((names != names[first[where]]).any(-1))
