"""Every statement of the paper is cited by the code that implements it and by a test that checks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

STATEMENTS = (
    *("Def. 3.1", "Def. 3.2", "Def. 3.3", "Def. 4.2", "Prop. 3.4", "Prop. 4.1", "Thm 4.3", "Fig. 2", "Alg. 1"),
    *(f"Eq. {number}" for number in range(1, 8)),
)

KINDS = {"def": "Def.", "eq": "Eq.", "prop": "Prop.", "th": "Thm", "alg": "Alg.", "fig": "Fig."}
NUMBER = r"\d+(?:\.\d+)?"
CITATION = re.compile(
    r"\b(Definition|Def|Equation|Eq|Proposition|Prop|Theorem|Thm|Algorithm|Alg|Figure|Fig)s?\.?\s+"
    rf"({NUMBER}(?:(?:,\s+|,?\s+and\s+|\s+to\s+|-){NUMBER}\b(?!\s*%))*)"
)
SOURCE = re.compile(r"^\s*Source: arXiv 2509\.24207, (.*?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


def citations(text: str) -> set[str]:
    """The statements that a text names: kinds abbreviated or not, single, listed or as a range of equations."""
    found = set()
    for kind, numbers in CITATION.findall(text):
        label = next(label for start, label in KINDS.items() if kind.lower().startswith(start))
        parts = re.findall(NUMBER, numbers)
        for first, between, last in re.findall(rf"(?=\b({NUMBER})(\s+to\s+|-)({NUMBER}))", numbers):
            if between and "." not in first + last:
                parts += [str(number) for number in range(int(first), int(last) + 1)]
        found |= {f"{label} {part}" for part in parts}
    return found


def documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name and docstring of a module and of everything in it, to any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "name", ""), ast.get_docstring(node) or ""


def public(tree: ast.AST) -> Iterator[ast.AST]:
    """Public functions and classes of a module, and public methods of those classes."""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node)


def cited_by_code(folder: Path) -> set[str]:
    """What the Source paragraphs of public functions, classes and methods cite."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in public(ast.parse(text)) if "Source: arXiv" in text else ():
            for source in SOURCE.findall(ast.get_docstring(node) or ""):
                found |= citations(source)
    return found


def cited_by_tests(folder: Path) -> set[str]:
    """What the docstrings of test modules and of the tests in them cite."""
    found: set[str] = set()
    for path in folder.rglob("test_*.py"):
        code = path.read_text(encoding="utf-8")
        if path.name != Path(__file__).name and CITATION.search(code):  # most have none, and need not be parsed
            for name, text in documented(ast.parse(code)):
                if not name or name.startswith("test_"):
                    found |= citations(text)
    return found


def problems(code: Path, tests: Path) -> list[str]:
    """One line for each statement without code or without a test."""
    by_code, by_tests = cited_by_code(code), cited_by_tests(tests)
    lines = []
    for statement in STATEMENTS:
        missing = [side for side, found in (("code", by_code), ("tests", by_tests)) if statement not in found]
        lines += [f"{statement}: cited by no {side}" for side in missing]
    return lines


def test_every_statement_has_code_and_a_test():
    """Each definition, equation, proposition and theorem, Figure 2 and Algorithm 1: by public code and by a test."""
    assert problems(ROOT / "humanline", ROOT / "tests") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Eq. 3.", {"Eq. 3"}),
        ("Definition 4.2 and Thm 4.3", {"Def. 4.2", "Thm 4.3"}),
        ("Eqs. 2-4", {"Eq. 2", "Eq. 3", "Eq. 4"}),
        ("Eq. 1, 6 and 7", {"Eq. 1", "Eq. 6", "Eq. 7"}),
        ("Definitions 3.1 to 3.3", {"Def. 3.1", "Def. 3.3"}),
        ("Figure 2; Proposition\n    3.4, corrected", {"Fig. 2", "Prop. 3.4"}),
        ("Theorem 4.3's family", {"Thm 4.3"}),
        ("defined in section 5.1, 3 times", set()),
    ],
)
def test_citations_are_read(text, expected):
    """Long and short names, lists and ranges of equations are all understood; other numbers are not."""
    assert citations(text) == expected


def test_the_check_can_fail(tmp_path):
    """A statement missing from the code, from the tests or only in private or unsourced text is reported."""
    code, tests = tmp_path / "code", tmp_path / "tests"
    code.mkdir()
    tests.mkdir()
    source = 'def {name}():\n    """Do it.\n\n    Notes\n    -----\n    {text}\n    """\n'
    sourced = ", ".join(STATEMENTS)
    everything = source.format(name="f", text=f"Source: arXiv 2509.24207, {sourced}.")
    (code / "a.py").write_text(everything)
    (tests / "test_a.py").write_text(f'"""{sourced}"""\n')
    assert problems(code, tests) == []

    def code_line(name, text):
        (code / "a.py").write_text(source.format(name=name, text=text))
        return [line for line in problems(code, tests) if "Eq. 5" in line]

    missing = ["Eq. 5: cited by no code"]
    assert code_line("f", "Source: arXiv 2509.24207, Eq. 6.") == missing
    assert code_line("_f", "Source: arXiv 2509.24207, Eq. 5.") == missing
    assert code_line("f", "See Eq. 5.") == missing
    assert code_line("f", "Source: arXiv 2509.24207, Eq. 6.\n\n    Unlike Eq. 5.") == missing
    assert code_line("f", "Source: arXiv 2509.24207, Eq. 5.") == []

    (code / "a.py").write_text(everything)
    (tests / "test_a.py").write_text('def helper():\n    """Fig. 2"""\n\n\ndef test_x():\n    """Eq. 1-7"""\n')
    lines = problems(code, tests)
    assert "Fig. 2: cited by no tests" in lines
    assert not any(line.startswith("Eq.") for line in lines)
