"""What a person sees of a run in terminals of any width."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from humanline.system import progress
from humanline.system.progress import RunProgress

METRICS = {"loss": 0.6931, "margin": 0.123, "clipped_low": 0.01, "clipped_high": 0.02, "tokens_per_second": 12345.0}
FACTS = ("loss 0.6931", "margin +0.123", "clipped 1.0% low 2.0% high", "12,345 tok/s")


@pytest.fixture
def drawn(monkeypatch):
    """Draw the line of a run, half-way through its steps, in a terminal so wide."""

    def line(width: int, steps: int = 1000, description: str | None = None) -> str:
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(progress, "_console", lambda: console)
        shown = RunProgress(steps, show=True)
        shown.begin(steps // 2 - 2)
        for step in (steps // 2 - 2, steps // 2 - 1):
            shown.step(step, METRICS)
        if description is not None:
            shown.working(description, 128, 1024)
        with console.capture() as capture:
            console.print(shown.bar.get_renderable())
        (line,) = capture.get().splitlines()
        assert len(line) <= width
        return line

    return line


def test_a_narrow_terminal_shows_step_total_and_time_left(drawn):
    """At 40 columns all three are whole; facts go first, from the last one on, then the bar, then the word."""
    for width in (20, 30, 40, 60, 80, 120, 200):
        line = drawn(width)
        assert re.search(r"\b500/1000\b.* (\d+:\d\d:\d\d|-:--:--)$", line.rstrip()), (width, line)
    assert "training" in drawn(40) and "training" not in drawn(20)
    assert re.search(r"\b500000/1000000\b.* (\S*:\d\d|-:--:--)$", drawn(40, 10**6).rstrip())
    assert re.search(r"500/1000.* \S+:\S+$", drawn(40, description="sampling completions of a long round").rstrip())


def test_facts_are_dropped_from_the_last_one_on(drawn):
    """What is shown of them is whole, and the first of them."""
    shown = {width: [fact for fact in FACTS if fact in drawn(width)] for width in (30, 40, 60, 80, 120)}
    assert [len(shown[width]) for width in (30, 40, 60, 80, 120)] == [0, 1, 2, 2, 4]
    assert all(found == list(FACTS[: len(found)]) for found in shown.values())
