"""What a look at the policy says of its distance from the start: how far, and whether further than the best look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: What a look is judged by, higher being better, and its name in words; the first that there is.
SCORES = {"score": "held-out score", "accuracy": "held-out preference accuracy"}
_ERRORS = 2.0  # standard errors of a difference below which two scores are called level


@dataclass(frozen=True, slots=True)
class _Look:
    updates: int
    distance: float
    score: float | None
    error: float


class Travel:
    """Say at each look how far the policy has travelled, beside where its best look so far was.

    Score against distance rises to a peak and falls behind it (studies/frontier): a look that is further out than the
    best one, and lower, says that the run is past it. A preference accuracy is no score of answers, and need not fall
    where these get worse.

    Parameters
    ----------
    rows : iterable of mapping
        Rows of the metrics so far, of a run that goes on.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._looks: list[_Look] = []
        for row in rows:
            if "held_out" in row:
                self.said(row["updates"], row["held_out"])

    def words(self, updates: int, metrics: Mapping[str, float]) -> str:
        """Take a look in and return it in words: its metrics, and the line about its distance where there is one."""
        text = f"held out after {updates} updates: " + "  ".join(f"{k} {v:.4g}" for k, v in metrics.items())
        line = self.said(updates, metrics)
        return text if line is None else f"{text}\n{line}"

    def said(self, updates: int, metrics: Mapping[str, float]) -> str | None:
        """Take a look in and return the line about it; None if it has no distance, or is the start itself.

        Parameters
        ----------
        updates : int
        metrics : mapping
            Of the look: ``kl_from_start``, with ``score`` or ``accuracy`` where there is one.
        """
        if "kl_from_start" not in metrics:
            return None
        name = next((name for name in SCORES if name in metrics), None)
        score = None if name is None else metrics[name]
        look = _Look(updates, metrics["kl_from_start"], score, metrics.get("score_se", 0.0) if name == "score" else 0.0)
        best = max((one for one in self._looks if one.score is not None), key=_by_score, default=None)
        self._looks = [one for one in self._looks if one.updates != updates] + [look]
        if not updates:
            return None
        error = f" ± {metrics['kl_from_start_se']:.2g}" if "kl_from_start_se" in metrics else ""
        line = f"{look.distance:.3g}{error} nats an answer from the start"
        if name is None or look.score is None or best is None or best.score is None:
            return line
        return f"{line}; {_beside(look, look.score, best, best.score, SCORES[name])}"


def _by_score(look: _Look) -> float:
    assert look.score is not None
    return look.score


def _beside(look: _Look, score: float, best: _Look, best_score: float, name: str) -> str:
    """Return how a look compares with the best one before it."""
    if score > best_score:
        return f"its {name} {score:.3g} is the highest so far"
    where = "further out" if look.distance > best.distance else "nearer"
    was = f"{best.distance:.3g} nats" if best.updates else "the start"
    height = "lower"
    if best_score - score <= _ERRORS * (look.error**2 + best.error**2) ** 0.5 or score == best_score:
        height = "level within its error"
    return f"{where} than the best look so far ({name} {best_score:.3g}, at {was}), and {height}: {score:.3g}"
