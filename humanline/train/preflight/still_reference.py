"""Whether a run ends before its schedule has synced the reference once."""

from __future__ import annotations

from humanline.train.config import TrainConfig


def still_reference(config: TrainConfig, steps: int) -> list[str]:
    """Return a remark where a schedule that syncs leaves the start as the reference of every step, else nothing.

    Where each round begins with a synced reference, a round says it of itself (`RoundLog`). A schedule of one's own may
    go back to the start, and nothing is said of it.

    Parameters
    ----------
    config : TrainConfig
    steps : int >= 0
        Of the whole run; with rounds, at most.
    """
    schedule = config.reference.schedule
    if not config.objective.needs_reference or schedule.kind in ("never", "function") or steps < 1:
        return []
    if config.rounds is not None and (config.reference.round_start == "sync" or schedule.kind == "each_round"):
        return []
    if schedule.snapshot(steps - 1):
        return []
    set_to = ", ".join(f"{name}: {value}" for name, value in schedule.model_dump().items())
    return [
        f"reference.schedule: {{{set_to}}} does not sync before the run's {steps} step(s) are over: the "
        "start is the reference of every step, as with {kind: never}. Give it more steps, or sync more often"
    ]
