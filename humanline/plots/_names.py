"""How figures call what studies of the simulator name by short ids."""

from __future__ import annotations

TASKS = {"bandit": "bandits", "sequence": "sequences, graded", "verifiable": "sequences, right or wrong"}


def setting(name: str) -> tuple[str, str]:
    """Return the problem and the objective of ``task, objective`` in words."""
    task, _, objective = name.partition(", ")
    return TASKS[task], objective.upper()
