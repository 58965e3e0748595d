"""The math reward: does an answer have the value of its reference? By math-verify, on what stands in boxes.

Runs in worker processes only: sympy can take any time and memory. What a model wrote is never evaluated as code:
sympy's own reader of texts, which is Python's `eval`, is replaced by a reader of numbers meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from humanline.train.online.rewards.notation import (
    Bases,
    ends_in_variable,
    has_signed_powers,
    has_variables,
    has_words_and_digits,
    in_fractions,
    is_quantity,
    tidy,
)
from humanline.train.online.rewards.verdict import UNREAD, Verdict, shown
from humanline.train.online.rewards.verifiers import read_number

LONGEST_ANSWER = 2000  # characters of a box
_BOX = r"\boxed{"
_TAIL = 4000  # characters at the end in which an answer without a box is looked for
_TOKEN = re.compile(r"\\f?box(?:ed)?\s*\{|\\.|[{}]", re.DOTALL)
_JOINED = re.compile(r"[\s$]*(?:,\s*(?:and|or)?|and|or|\\text\{\s*(?:and|or)\s*\})[\s$]*")
_LATEX = re.compile(r"\$|\\\(|\\\[")
_PLAIN_NUMBER = re.compile(r"[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,4})?")


def math_verdict(completion: str, reference: Any) -> Verdict:
    r"""Return 1 if the completion's answer has the value of the reference, else 0.

    Parameters
    ----------
    completion : str
        Its answer is what stands in its last `\boxed{}` (or in the last few, joined by commas, "and" or "or"); without
        a box, what math-verify takes for it: a formula in dollar signs or the like behind "answer is", else the last.
    reference : str, int or float
        An answer, or a solution whose last box holds it, or which ends with `####` and an answer, as those of GSM8K.
        Without a box or dollar signs it is no sentence: words beside digits must be a unit that does not count.

    Returns
    -------
    Verdict
        0 if there is no answer or it cannot be read; with the status "no_reference" if the reference cannot be read,
        and "too_long" if a box holds more than 2000 characters.
    """
    with _quiet(), _nothing_evaluated():
        expected = _reference_text(reference)
        if expected is None:
            return Verdict(None, "no_reference", f"the reference cannot be read: {shown(repr(reference), 80)}")
        boxed = last_box(completion)
        if boxed is not None and len(boxed) > LONGEST_ANSWER:
            return Verdict(
                None, "too_long", f"the box holds {len(boxed)} characters; at most {LONGEST_ANSWER} are read"
            )
        given = tidy(completion[-_TAIL:]) if boxed is None else _in_box(boxed)
        gold, answer = _read(expected, given)
        if not answer:
            return Verdict(0.0, reason=f"{UNREAD}: {'no box' if boxed is None else _quoted(boxed)}")
        right = _equal(gold, answer)
        if not right and (has_signed_powers(expected) or has_signed_powers(given)):
            # Not in decimals: math-verify takes these for equal where six places are.
            gold, answer = _read(in_fractions(expected, sure=True), in_fractions(given, sure=False))
            right = _equal(gold, answer)
        return Verdict(float(right), reason="no box" if boxed is None else f"read {_quoted(boxed)}")


def _equal(gold: list[Any], answer: list[Any]) -> bool:
    """Return whether an answer has the value of a reference; what cannot be computed has not, but for want of memory.

    That is no verdict on the answer: MemoryError is raised.
    """
    from math_verify import verify

    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:
        return False


def readable_reference(reference: Any) -> bool:
    """Return whether a reference can be read; what `math_verdict` needs."""
    with _quiet(), _nothing_evaluated():
        return _reference_text(reference) is not None


def last_box(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{}` or `\fbox{}` of a text, or None.

    Boxes right before it that are joined to it ("\boxed{1} and \boxed{2}") come with it, separated by commas.
    """
    boxes: list[tuple[int, int, int]] = []  # where a box begins, where its content does, where that ends
    opened: list[tuple[int, int] | None] = []  # for every open brace, where its box began, if it is a box's
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            opened.append(None)
        elif token[0] == "}":
            begun = opened.pop() if opened else None
            if begun is not None:
                while boxes and boxes[-1][0] > begun[0]:  # boxes inside this one
                    boxes.pop()
                boxes.append((*begun, token.start()))
        elif token[0].endswith("{") and len(token[0]) > 2:
            opened.append((token.start(), token.end()))
    if not boxes:
        return None
    contents = [text[boxes[-1][1] : boxes[-1][2]]]
    for (_, begin, end), (later, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        if not _JOINED.fullmatch(text, end + 1, later):
            break
        contents.append(text[begin:end])
    return ", ".join(reversed(contents))


def _reference_text(reference: Any) -> str | None:
    """Return a text that can be parsed and in which a reference is the answer, or None if it cannot be read."""
    if isinstance(reference, int | float) and not isinstance(reference, bool):
        reference = str(reference).replace("e+", "e")  # no power of Euler's number
    if not isinstance(reference, str) or not reference.strip():
        return None
    boxed = last_box(reference)
    if boxed is not None:
        texts = [_in_box(boxed)]
    elif _LATEX.search(answer := answer_in(reference)):
        texts = [tidy(answer), _in_box(answer)]
    elif _is_prose(answer):
        return None
    else:
        texts = [_in_box(answer)]
    return next((text for text in texts if _parse(Bases(text).symbols(text))), None)


def answer_in(reference: str) -> str:
    """Return the answer of a solution that ends with one behind `####`, and any other reference as it is."""
    _, marker, answer = reference.rpartition("####")
    answer = answer.strip()
    return answer if marker and answer and "\n" not in answer else reference.strip()


def _is_prose(reference: str) -> bool:
    """Return whether words stand beside digits that are no unit: a product of letters would be read in them."""
    if not has_words_and_digits(reference):
        return False
    number = read_number(reference)
    if number is None:
        return True
    return not _equal(*_read(_in_box(reference), _in_box(rf"\frac{{{number.numerator}}}{{{number.denominator}}}")))


def _in_box(answer: str) -> str:
    return f"{_BOX}{tidy(answer)}}}"


def _read(expected: str, given: str) -> tuple[list[Any], list[Any]]:
    """Return a reference and an answer as expressions that can be compared."""
    bases = Bases(expected, given)
    given_names_none = not bases.named(given)
    expected = bases.dropped(expected) if given_names_none else bases.symbols(expected)
    given = bases.symbols(given)
    asked, said = _formula(expected), _formula(given)
    # A letter at the end of the reference is a variable; at the end of an answer it is a unit where none is expected.
    units = not ends_in_variable(asked)
    units_given = not ends_in_variable(said) or (not has_variables(asked) and is_quantity(said))
    return _parse(expected, units=units), _parse(given, units=units and units_given)


def _formula(text: str) -> str:
    """Return the formula that is read in a text."""
    if text.startswith(_BOX):
        return text[len(_BOX) : -1]
    found = _parse(text, units=False)
    return found[-1] if found and isinstance(found[-1], str) else ""


def _parse(text: str, *, units: bool = True) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    # Its other extraction, of plain expressions, would give what the model wrote to sympy's parse_expr.
    how = LatexExtractionConfig(boxed_match_priority=0)
    if not units:
        how = replace(how, normalization_config=replace(how.normalization_config, units=False))
    try:
        found: list[Any] = parse(text, extraction_config=[how], parsing_timeout=None, raise_on_error=True)
    except MemoryError:
        raise
    except Exception:  # what cannot be read
        return []
    return [one for one in found if not isinstance(one, str) or one.strip()]


@contextlib.contextmanager
def _nothing_evaluated() -> Iterator[None]:
    """Let sympy read numbers from text, and nothing else."""
    import sympy.parsing.sympy_parser as parser
    import sympy.physics.units  # noqa: F401, simplify imports it, and reads its own names from text then

    before = parser.parse_expr
    parser.parse_expr = _number
    try:
        yield
    finally:
        parser.parse_expr = before


def _number(text: str, *_: Any, **__: Any) -> Any:
    import sympy

    text = text.strip()
    if not _PLAIN_NUMBER.fullmatch(text):
        raise ValueError("only numbers are read from text")
    return sympy.Integer(int(text)) if text.isdigit() else sympy.Float(text)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep math-verify from warning that its own time limits are off: the worker has one."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _quoted(text: str) -> str:
    return shown(repr(text), 80)
