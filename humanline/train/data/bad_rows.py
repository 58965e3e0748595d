"""Rows that cannot be read and are left out, as a recipe may ask: counted by reason, with the first places of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from humanline.train.data.source import PLACES, DataError

REASONS = 8  # that a line names; the rest is counted
_PLACE = re.compile(r"(.+?:(?:row )?\d+)(:\d+)?(?:#\w+)?: ")
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why rows are bad, without what differs from row to row; how many, and the first of them."""

    what: str
    rows: int
    places: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if self.rows > len(self.places) else ""
        return f"{self.rows} {self.what} ({', '.join(self.places)}{more})"


@dataclass(frozen=True, slots=True)
class BadRows:
    """Rows of a set that were left out, of how many, and the reasons, the most frequent first.

    A row with several problems counts under the first of them.
    """

    bad: int
    total: int
    reasons: tuple[Reason, ...]

    @property
    def share(self) -> float:
        """Return the share of the rows, from 0 to 1."""
        return self.bad / self.total if self.total else 0.0

    def __str__(self) -> str:
        others = sum(reason.rows for reason in self.reasons[REASONS:])
        listed = [*map(str, self.reasons[:REASONS]), *([f"{others} for other reasons"] if others else [])]
        return f"{self.bad} of {self.total} rows dropped as bad: {'; '.join(listed)}"


def count_bad(first: Sequence[str], right: int) -> BadRows:
    """Return the bad rows of which `first` is the first problem of each, with its place; `right` rows are good.

    A line stands for the row in it; its column is told too where lines hold several of the rows.
    """
    found = [(one, _PLACE.match(one)) for one in first]
    lines = [place[1] for _, place in found if place]
    shared = len({*lines}) < len(lines)
    reasons: dict[str, list[str]] = {}
    for problem, place in found:
        what = problem[place.end() :] if place else problem
        where = "" if place is None else place[1] + ((place[2] or "") if shared else "")
        reasons.setdefault(_NUMBERS.sub("N", what.split("; expected ")[0]), []).append(where)
    ordered = sorted(reasons.items(), key=lambda one: -len(one[1]))
    found_reasons = tuple(Reason(what, len(places), tuple(places[:PLACES])) for what, places in ordered)
    return BadRows(len(first), len(first) + right, found_reasons)


def counted_bad(
    problems: Sequence[str], first: Sequence[str], right: int, limit: float, name: str, advice: str = ""
) -> BadRows | None:
    """Return the bad rows of a set, if it has any, in which `right` rows are good.

    Parameters
    ----------
    problems : sequence of str
        All of them, for the message of an error.
    first : sequence of str
        The first one of each bad row.
    right : int
    limit : float
    name, advice : str
        Of the set, and what to do.

    Raises
    ------
    DataError
        If more of them are bad than may be left out, a share `limit`, or all of them are.
    """
    if not problems:
        return None
    bad = count_bad(first, right)
    if bad.bad == bad.total:
        raise DataError(f"{name}: all {bad.total} rows are bad", problems, advice)
    if bad.share > limit:
        what = f"{bad.bad} of {bad.total} rows are bad ({bad.share:.1%}), more than data.bad_rows_limit: {limit:g}"
        more = "Mend them, or raise data.bad_rows_limit if the rest is what you want to train on."
        raise DataError(f"{name}: {what}", problems, f"{more}\n{advice}" if advice else more)
    return bad
