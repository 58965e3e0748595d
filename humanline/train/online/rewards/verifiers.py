"""Rewards that only look at text: exact numbers, a pattern, tags."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from humanline.train.online.rewards.verdict import UNREAD, Verdict, shown

_TAGS = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_MOST_DIGITS = 1000
_CONTEXT = 60  # characters on each side of a number that are looked at
# A minus counts as a sign unless it stands behind something that a number can be subtracted from.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)\]}%])[-−–])?\\?[$€£]?(?P<late_sign>(?<=[$€£])[-−–])?"
    r"(?P<digits>(?:[0-9]++|(?<![.])\.[0-9]++)(?:[.,][0-9]++)*+)"
    r"(?:[eE](?P<exponent>[-+]?[0-9]++)|\s*(?:[×x*]|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*[({]?(?P<power>[-+−]?[0-9]++))?+"
    r"(?:[ \t]*+[/⁄][ \t]*+(?P<divisor>[0-9]++(?:\.[0-9]++|,[0-9]{3}(?![0-9])"
    r"|,[0-9]++(?![ \t]*[/⁄][ \t]*[0-9]))*+))?+"  # 1/2,1/3: two fractions; 3/1,000/day: one
)
# Of commas only those between thousands: 125,96 may be a decimal, a list or a slip, and is none of these by guess.
_DIGITS = re.compile(r"(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]*)(?P<decimals>\.[0-9]+)?")
# With a number on its line, or nothing behind it at all; a heading, "#### Step 2" or "#### 2. Add", marks no answer.
_HEADING = (
    r"[ \t]*+[*_]*+(?:(?:Step|Part|Case|Question|Problem|Section|Example|Task)[ \t]++[0-9]"
    r"|[0-9]{1,2}[.)][ \t]++[^\W\d])[^\n]{0,100}\n\s*+\S"
)
_MARKER = re.compile(
    rf"####(?=[^\n]{{0,100}}[0-9]|\s*+\Z)(?!{_HEADING})|^[ \t]*+A:",
    re.MULTILINE,
)
# A sign, and its number further on; not at the beginning of a line, where a dash is a bullet.
_APART = re.compile(r"(?:[=:([{,][ \t]*|\#[ \t]+)[-−–][ \t]*\\?[$€£]?[ \t]*$|(?:^|\n)[-−–]\\?[$€£][ \t]*$")
# What no number is read in: a mixed number, digits in groups without a comma, a power, a root, a part of a fraction in
# LaTeX.
_BEFORE = re.compile(
    r"(?P<apart>(?<![0-9])[0-9]{1,3}[ '’])$|\^\s*[({]*$|[0-9)\]}]\s?\*\*\s?[({]*$"
    r"|\\[dt]?frac\s*\{[^{}]*(?:\}\s*\{[^{}]*)?$|(?:√|\\sqrt\s*(?:\[[^\[\]]*\]?)?|\bsqrt)\s*[({]*$"
)
_BEHIND = re.compile(
    r"(?P<apart>[ '’][0-9]{3}(?![0-9]))|\s+[0-9]+\s*[/⁄]\s*[0-9]|\s?\^(?!\s*\{?\s*(?:\\circ|°))\s*[\w({+-]"
    r"|\s?\*\*\s?[0-9]|\s?(?:√|\\sqrt|π|\\pi)"
)
# Of what begins behind a marker the first number alone is no answer: it is to be calculated, or a range, or a ratio.
_GOES_ON = re.compile(
    r"[)\]}]?(?:\*\*)?+[ \t]*+(?:[-+−–*×x÷·/⁄:]|\\(?:times|cdot|div)(?![A-Za-z]))"
    r"[ \t]*+(?:\*\*)?+[({\[]?[ \t]*+(?:[-−–]?\\?[$€£]?\.?[0-9]|√|\\?sqrt|π|\\pi|\\[dt]?frac)"
)
_GROUPS = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,;:! ]|[\u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|\\[dt]?frac\s*([0-9])\s*([0-9])")


def format_verdict(completion: str, pattern: str) -> Verdict:
    """Return 1 if the whole completion matches the pattern, in which a dot matches line ends too, else 0."""
    return Verdict(float(re.fullmatch(pattern, completion, re.DOTALL) is not None))


def tag_count_verdict(completion: str) -> Verdict:
    """Return a quarter for each of Open-R1's four tags, with their line ends, that occurs exactly once."""
    return Verdict(sum(completion.count(tag) == 1 for tag in _TAGS) / len(_TAGS))


def number_verdict(completion: str, reference: Any) -> Verdict:
    r"""Return 1 if the completion's number is exactly that of the reference, else 0.

    A text's number is the first one behind its last marker, `####` before a number or a line's `A:`, and without a
    marker its last one. Thousands separators, currency and percent signs and units do not count; a/b and `\frac{a}{b}`
    are fractions, and 1e3 or 1 x 10^3 is 1000. No number is read where one may be meant that is not: of a comma between
    other digits than thousands (125,96), of digits in groups apart (1 000), a mixed number (2 1/2), a power (10^3), a
    root, or what is still to be calculated behind a marker (`#### 3 + 4`).

    Parameters
    ----------
    completion : str
    reference : str, int or float
        A number, or a solution that ends with one.

    Returns
    -------
    Verdict
        With the status "no_reference" if the reference holds no number.
    """
    expected = read_number(reference)
    if expected is None:
        return Verdict(None, "no_reference", f"the reference holds no number: {shown(repr(reference), 80)}")
    found = read_number(completion)
    if found is None:
        return Verdict(0.0, reason=f"{UNREAD}: no number")
    return Verdict(float(found == expected), reason=f"read as {_shown_number(found)}")


def read_number(given: Any) -> Fraction | None:
    """Return the number that a text gives as its answer (`number_verdict`), or a number itself; None if there is none.

    Numbers of more than 1000 digits, or with an exponent beyond 1000, are not read.
    """
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return None
    if not isinstance(given, str):
        try:
            return Fraction(str(given))  # the decimal that a float is written as
        except ValueError:  # nan, inf, too many digits
            return None
    given = _GROUPS.sub(",", given)
    given = _FRACTION.sub(lambda one: f"{' ' if given[: one.start()][-1:].isdigit() else ''}{_over(one)}", given)
    markers = list(_MARKER.finditer(given))
    if markers:
        match = _NUMBER.search(given, markers[-1].end())
        if match is not None and _GOES_ON.match(given, match.end()):
            return None
    else:
        match = None
        for match in _NUMBER.finditer(given):  # noqa: B007, the last one is wanted
            pass
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Fraction | None:
    if _is_part(match):
        return None
    digits, divisor = (_DIGITS.fullmatch(one) for one in (match["digits"], match["divisor"] or "1"))
    exponent = (match["exponent"] or match["power"] or "0").replace("−", "-")
    if digits is None or divisor is None or len(match[0]) > _MOST_DIGITS or abs(int(exponent)) > _MOST_DIGITS:
        return None
    above, below = (Fraction(one[0].replace(",", "")) for one in (digits, divisor))
    if not below:
        return None
    value = above * Fraction(10) ** int(exponent) / below
    apart = _APART.search(match.string[: match.start()][-_CONTEXT:])
    return -value if match["sign"] or match["late_sign"] or apart else value


def _is_part(match: re.Match[str]) -> bool:
    """Return whether digits are a part of something that is not read: a mixed number, a power, groups of digits."""
    before, behind = match.string[: match.start()][-_CONTEXT:], match.string[match.end() :][:_CONTEXT]
    if match["divisor"] is not None and re.search(r"[0-9]\s+$", before):
        return True
    first, last = _BEFORE.search(before), _BEHIND.match(behind)
    if first is not None and first[0].lstrip("0123456789)]} ").startswith("**") and behind.startswith("**"):
        first = None  # in bold, not a power
    if first is not None and (first["apart"] is None or len(match["digits"]) == 3):
        return True
    return last is not None and (last["apart"] is None or len(match["digits"]) <= 3)


def _over(match: re.Match[str]) -> str:
    above, below = (one for one in match.groups() if one is not None)
    return f"{above}/{below}"


def _shown_number(value: Fraction) -> str:
    return shown(str(value), 40)
