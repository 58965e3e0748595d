"""The line about how far a policy has travelled."""

from __future__ import annotations

import pytest

from humanline.train.run.travel import Travel


def look(distance: float, **more: float) -> dict[str, float]:
    return {"kl_from_start": distance, "kl_from_start_se": 0.04, **more}


def test_a_look_is_told_beside_the_best_before_it():
    """Further or nearer, higher, lower or level; the start is a look like any other, and its own line says nothing."""
    travel = Travel()
    assert travel.said(0, look(0.0, score=0.50, score_se=0.01)) is None
    first = travel.said(10, look(2.0, score=0.70, score_se=0.01))
    assert first == "2 ± 0.04 nats an answer from the start; its held-out score 0.7 is the highest so far"
    assert travel.said(20, look(5.0, score=0.60, score_se=0.01)) == (
        "5 ± 0.04 nats an answer from the start; further out than the best look so far (held-out score 0.7, at 2 "
        "nats), and lower: 0.6"
    )
    assert "nearer than the best" in travel.said(30, look(1.0, score=0.69, score_se=0.01))
    assert travel.said(30, look(1.0, score=0.69, score_se=0.01)).endswith("and level within its error: 0.69")
    assert travel.said(40, look(6.0, score=0.671, score_se=0.01)).endswith("and lower: 0.671")  # 2.05 errors


def test_a_start_that_was_best_is_named():
    """A run that only lost says so."""
    travel = Travel()
    travel.said(0, look(0.0, accuracy=0.5))
    line = travel.said(10, look(3.0, accuracy=0.4))
    wanted = "further out than the best look so far (held-out preference accuracy 0.5, at the start), and lower: 0.4"
    assert line.endswith(wanted)


@pytest.mark.parametrize(
    "metrics, said",
    [
        ({"loss": 1.0}, None),
        ({"kl_from_start": 2.5}, "2.5 nats an answer from the start"),
        ({"kl_from_start": 2.5, "loss": 1.0}, "2.5 nats an answer from the start"),
    ],
)
def test_what_is_not_known_is_not_told(metrics, said):
    """Without a distance there is no line, without a score none to compare."""
    assert Travel().said(10, metrics) == said


def test_a_run_that_goes_on_remembers_its_looks():
    """The rows of its metrics are taken in; a look that is taken again is not compared with itself."""
    rows = [{"step": 0}, {"updates": 0, "held_out": look(0.0, score=0.5)}]
    rows += [{"updates": 10, "held_out": look(2.0, score=0.7)}]
    assert "at 2 nats), and lower" in Travel(rows).said(20, look(4.0, score=0.6))
    assert Travel(rows).said(10, look(2.0, score=0.7)) is not None
