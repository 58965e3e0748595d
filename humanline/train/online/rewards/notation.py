r"""Answers in LaTeX, rewritten where math-verify would misread them; nothing here imports it.

It takes no answer with a full stop, such as `36.`, or behind `\approx`; it drops the base of a number, so that `52_8`
equals `52_9`; it takes a letter at the end for a unit, so that `6+9c` is 15; it reads `1e3` as 3 times Euler's number,
and `1e-3` as 3 less than that, `1e+3` as 3 more; it takes the space in `10\,000` for a product; and it finds no formula
in dollar signs that has a line end, even inside `\text`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

_DIGITS = r"[0-9][0-9A-Fa-f]*(?:\.[0-9A-Fa-f]+)?(?:\\[,!][0-9A-Fa-f]+)*"
_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASES = {word: str(number) for number, word in enumerate(_WORDS, start=2)} | {"sixteen": "16", "twenty": "20"}
_BASE = rf"[0-9]{{1,3}}|{'|'.join(_BASES)}"
_TEXT = r"\\(?:text(?:rm|bf|it|normal)?|mbox|math(?:rm|bf|it))\s*"
# A number with a subscript, which is no exponent, name or subscript itself; or with its base in words.
_IN_BASE = re.compile(
    rf"(?<![A-Za-z0-9._^\\}}])(?:{_TEXT}|\\underline\s*)?(?P<open>[({{])?(?P<digits>{_DIGITS})(?(open)[)}}])"
    rf"(?:[\s~]*+(?:\\[,!][\s~]*+)?_\s*+"
    rf"(?:(?P<plain>[0-9]+|[A-Za-z])|(?:{_TEXT})?\{{(?P<braced>[^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*)\}})"
    rf"|[\s~]*{_TEXT}\{{[\s~(]*(?:in\s+)?base[\s~-]*(?:(?P<inside>{_BASE})[\s)]*\}}|\}}[\s~]*(?P<behind>{_BASE})\b)"
    rf"|[\s~]+\(?(?:in\s+)?base[\s~-]+(?P<spoken>{_BASE})\b\)?)"
)
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SMALL_SUBSCRIPTS = re.compile("[₀-₉]+")
_ROUGHLY = re.compile(r"(^\s*|\$\s*|\\[(\[]\s*|\\boxed\s*\{\s*)(?:\\(?:approx|simeq)(?![A-Za-z])|[≈≃])\s*")
_FULL_STOP = re.compile(r"(?<=[0-9A-Za-z)}\]%])\s*\.(?=\s*(?:\$|\\\)|\\\]|$))")
_LAST_LINE_END = re.compile(r"(?:\s*(?:\\\\|\\newline(?![A-Za-z])))+\s*(?=\}*\s*$)")
_BETWEEN_THREES = re.compile(r"(?<=[0-9])(?:\\[,;: ]|~)(?=[0-9]{3}(?![0-9]))|(?<=[0-9])\s*\\[,;:! ]\s*(?=\\%)")
_IN_TEXT = re.compile(rf"{_TEXT}\{{[^{{}}]*\}}")
_POWER_OF_TEN = re.compile(r"(?<![\w.\\])([0-9]+)(?:\.([0-9]+))?e([0-9]{1,3})(?![\w.])")
_SIGNED_POWER = re.compile(
    r"(?<![\w.\\^_,])(?P<digits>[0-9]+(?:\.[0-9]+)?)e(?P<sign>[-+])(?P<power>[0-9]{1,3})(?![\w.])"
)
_DECIMAL = re.compile(r"(?<![\w.\\^_,])[0-9]*\.[0-9]+(?![\w.])")
_COMMANDS = re.compile(rf"{_TEXT}\{{[^{{}}]*\}}|\\[A-Za-z]+")
# Their arguments are names, and no text that stands in an answer by itself.
_NAMES = re.compile(r"\\(?:math[a-z]+|operatorname\*?|begin|end)\s*\{[^{}]*\}")
# Of four letters or more with a vowel, or a common shorter one, standing alone: others are products of letters.
_WORD = re.compile(
    r"(?<![A-Za-z0-9\\^_])(?!(?:and|or|if|otherwise|inf|infty|infinity)\b)"
    r"(?=[A-Za-z]*[aeiouyAEIOUY])(?:[A-Za-z]{4,}|(?:the|are|cup|box|day|egg|cat|dog|pen|pie|pi)s?\b)"
)
_LAST_WORD = re.compile(r"(?:[0-9}]|\s)\s*(?P<word>[A-Za-z]{1,2})\s*$")
_UNITS_OF_TWO_LETTERS = frozenset(["cc", "cm", "dm", "ft", "gm", "hr", "kg", "km", "lb", "mm", "pm", "am", "yr"])


def tidy(text: str) -> str:
    """Return an answer, or a text with one, without what is no part of it, and powers of ten written out."""
    text = _SMALL_SUBSCRIPTS.sub(lambda match: f"_{{{match[0].translate(_SUBSCRIPTS)}}}", text)
    text = _IN_TEXT.sub(lambda match: re.sub(r"[\r\n]+", " ", match[0]), text)
    text = _BETWEEN_THREES.sub("", text)
    text = _ROUGHLY.sub(r"\1", _FULL_STOP.sub("", _LAST_LINE_END.sub("", text)))
    return _POWER_OF_TEN.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    return _times_ten(f"{match[1]}.{match[2] or ''}", int(match[3]))


def _times_ten(digits: str, exponent: int) -> str:
    """Return a decimal number times a power of ten, written out."""
    whole, _, decimals = digits.partition(".")
    if len(decimals) <= exponent:
        return whole + decimals + "0" * (exponent - len(decimals))
    return f"{whole}{decimals[:exponent]}.{decimals[exponent:]}"


def has_signed_powers(text: str) -> bool:
    """Return whether a text holds what may be a power of ten with a sign, as `1e-3` or `1e+5`."""
    return _SIGNED_POWER.search(text) is not None


def has_words_and_digits(text: str) -> bool:
    """Return whether words stand beside digits in an answer, besides those of LaTeX: a sentence, or a unit."""
    plain = _COMMANDS.sub(" ", _NAMES.sub(" ", text))
    return re.search(r"[0-9]", plain) is not None and _WORD.search(plain) is not None


def in_fractions(text: str, *, sure: bool) -> str:
    """Return a text with its decimals, and its powers such as `1e-3`, as fractions: these are compared exactly.

    Parameters
    ----------
    text : str
    sure : bool
        Leave alone what Euler's number may be meant in: `2e-3`, and not `1e-3`, `2.5e-3`, `2e-03`, or `2e+22` and
        `2e-10`, as programs write numbers from 1e16 on and below 1e-9.
    """

    def one(match: re.Match[str]) -> str:
        digits, power = match["digits"], match["power"]
        plus = match["sign"] == "+"
        by_program = power.startswith("0") or int(power) > (15 if plus else 9)
        if sure and digits != "1" and "." not in digits and not by_program:
            return match[0]
        if plus:
            return _times_ten(digits, int(power))
        return _fraction(digits, int(power))

    return _DECIMAL.sub(lambda match: _fraction(match[0], 0), _SIGNED_POWER.sub(one, text))


def _fraction(digits: str, power: int) -> str:
    """Return a decimal number divided by a power of ten."""
    whole, _, decimals = digits.partition(".")
    return rf"\frac{{{(whole + decimals).lstrip('0') or '0'}}}{{1{'0' * (len(decimals) + power)}}}"


class Bases:
    """The numbers with a base in two answers that are compared; each gets a variable in place of its value.

    Values would not do: whoever is asked to write 42 in base 8 must not be right with 42.

    Parameters
    ----------
    texts : str
        The answers; none of the variables is in them.
    """

    def __init__(self, *texts: str) -> None:
        self._symbols: dict[tuple[str, str], str] = {}
        written = set(re.findall("[0-9]+", " ".join(texts)))
        self._free = (rf"\Xi_{{{number}}}" for number in itertools.count(1000) if str(number) not in written)

    def named(self, text: str) -> bool:
        """Return whether a text holds a number with another base than ten."""
        return any(base not in (None, "10") for base in map(_base, _IN_BASE.finditer(text)))

    def symbols(self, text: str) -> str:
        """Return a text with a symbol for every number with a base, the same for the same digits and base."""
        return _replaced(text, self._symbol)

    def dropped(self, text: str) -> str:
        """Return a text without the bases of numbers, for an answer that names none: the question has named it."""
        return _replaced(text, lambda digits, base: digits if _is_decimal(digits) else self._symbol(digits, base))

    def _symbol(self, digits: str, base: str) -> str:
        if base == "10" and _is_decimal(digits):
            return digits
        key = (digits.upper().lstrip("0"), base)
        if key not in self._symbols:
            self._symbols[key] = next(self._free)
        return self._symbols[key]


def _is_decimal(digits: str) -> bool:
    return not re.search("[A-Fa-f]", digits)


def _base(match: re.Match[str]) -> str | None:
    """Return the base of a match, "8" or the name of a variable, or None if it is none."""
    given = next(match[name] for name in ("plain", "braced", "inside", "behind", "spoken") if match[name] is not None)
    label = re.sub(r"\\[A-Za-z]+|[^0-9A-Za-z]", "", given).lower().removeprefix("base")
    return _BASES.get(label, label.lstrip("0")) or None


def _replaced(text: str, how: Callable[[str, str], str]) -> str:
    def one(match: re.Match[str]) -> str:
        base = _base(match)
        return match[0] if base is None else how(re.sub(r"\\[,!]", "", match["digits"]), base)

    return _IN_BASE.sub(one, text)


def ends_in_variable(text: str) -> bool:
    """Return whether a letter or two at the end of an answer would be taken for a unit, and may be variables."""
    match = _LAST_WORD.search(_COMMANDS.sub("}", text))
    return match is not None and (len(match["word"]) == 1 or match["word"].lower() not in _UNITS_OF_TWO_LETTERS)


def is_quantity(text: str) -> bool:
    """Return whether an answer that ends in a letter is one number or term with a unit: `5 m`, not `x+5m` or `5am`."""
    plain = _COMMANDS.sub("}", text).rpartition("=")[2]
    match = _LAST_WORD.search(plain)
    if match is None or len(match["word"]) > 1:
        return False
    rest = plain[: match.start("word")].strip().lstrip("-+")
    return not re.search(r"[A-Za-z+-]", rest)


def has_variables(text: str) -> bool:
    r"""Return whether letters stand in an answer outside commands and words in `\text`."""
    return re.search("[A-Za-z]", _COMMANDS.sub("", text)) is not None
