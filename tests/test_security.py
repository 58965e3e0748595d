"""SECURITY.md promises what tests show."""

from __future__ import annotations

import re

from tests.conftest import ROOT


def test_every_promise_names_a_test_that_is_there():
    """Each test that SECURITY.md names exists, each defended line names one, and the page stays short."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)", tests))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 15 and not named - there
    defended = text.split("\n## ")[2]
    assert defended.startswith("What is defended")
    assert all("`test_" in line for line in re.split(r"\n- ", defended)[1:])
    assert len(text.splitlines()) <= 90
