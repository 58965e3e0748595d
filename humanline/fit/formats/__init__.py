"""Files of choices: the format of the Choice Prediction Competitions, and a long one."""

from __future__ import annotations

from pathlib import Path

from humanline import _checks
from humanline.fit.faults import Fault
from humanline.fit.formats.cpc import NEEDED, is_cpc, lottery, read_cpc
from humanline.fit.formats.csv_table import read_csv, refuse
from humanline.fit.formats.long import is_long, read_long
from humanline.fit.formats.part import ChoiceFile, Part
from humanline.fit.table import NEEDED as LONG_NEEDED

__all__ = ["FORMATS", "SAY_WHICH", "ChoiceFile", "Part", "lottery", "read_choices"]

FORMATS = ("cpc", "long")
#: What a message tells callers of `read_choices` to do; the command names its option in place of it.
SAY_WHICH = "say which with format='cpc' or format='long'"


def read_choices(
    path: str | Path, *, format: str | None = None, least_responses: int = 1, per_rate: int | None = None
) -> ChoiceFile:
    """Read choices from a file.

    Parameters
    ----------
    path : path
        Comma-separated values (or semicolons, or tabs), UTF-8.
    format : str, optional
        "cpc" or "long"; told by the columns by default.
    least_responses : int
        How many each person of a file in the long format must have given.
    per_rate : int >= 2, optional
        How many independent choices each rate is of, in place of what the file says of its noise.

    Returns
    -------
    ChoiceFile

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If `format` or `per_rate` is none, or there is a `per_rate` and the file has no rates.
    DataError
        With everything that is wrong in the file, by line, up to a dozen faults and their number.
    """
    if format is not None:
        _checks.one_of("format", format, FORMATS)
    if per_rate is not None and per_rate < 2:
        raise _checks.fail("per_rate", "be >= 2", per_rate)
    table = read_csv(path)
    kinds = [name for name, fits in (("cpc", is_cpc), ("long", is_long)) if fits(table.names)]
    chosen = format or (kinds[0] if len(kinds) == 1 else None)
    if chosen is None:
        rule = (
            f"be those of one format: {', '.join(NEEDED)} (cpc), or {', '.join(LONG_NEEDED)} and a response (long); "
            f"or {SAY_WHICH}"
        )
        refuse(table.path, [Fault(None, "columns", rule, ", ".join(table.names))])
    if chosen == "cpc":
        return read_cpc(table, per_rate=per_rate)
    return read_long(table, least_responses=least_responses, per_rate=per_rate)
