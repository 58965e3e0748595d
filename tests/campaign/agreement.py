"""What validate says is ready, train begins."""

from __future__ import annotations

import os
import signal

from tests.campaign.stage import Stage, tail

STOPPED, NOT_FINITE = 75, 3
# What only training finds, since it takes the weights: validate says so in its docstring.
BY_WEIGHTS = (
    "hold what config.json has no place for",
    "token log-probabilities from the last hidden state",
    "its log-probabilities are not finite",
)


def stop_after_a_step() -> None:
    """Ask this process to stop once it has taken a step: it shows that a run starts, however long it would be."""
    from humanline.train.run.metrics import MetricsLog

    write = MetricsLog.write

    def writing(self: MetricsLog, row: dict) -> None:
        write(self, row)
        if "step" in row:
            os.kill(os.getpid(), signal.SIGTERM)

    MetricsLog.write = writing  # type: ignore[method-assign]


def validate_and_train(
    stage: Stage,
    *words: str,
    refused: bool = False,
    may_refuse: bool = False,
    begin: bool = True,
    env: dict[str, str] | None = None,
    network: bool = False,
) -> None:
    """Validate a recipe and train it for a step; both refuse it, or neither.

    Parameters
    ----------
    refused : bool
        Whether refusing is all that is right.
    may_refuse : bool
        Whether training may say no though validating did not: where what is sampled decides.
    begin : bool
        Whether to train at all.
    """
    codes = (2,) if refused else (0, 2)
    said = stage.run("validate", "recipe.yaml", *words, allowed=codes, env=env, network=network)
    ready = said.code == 0
    stage.count("ready" if ready else "refused")
    if not begin:
        return
    begun = (0, STOPPED, NOT_FINITE)
    outcome = stage.run(
        "train", "recipe.yaml", *words, allowed=(*begun, 2), before=(stop_after_a_step,), env=env, network=network
    )
    if ready and outcome.code == 2 and not may_refuse and not any(one in outcome.err for one in BY_WEIGHTS):
        stage.complain(f"train refuses what validate calls ready: {tail(outcome.err)}")
    if not ready and outcome.code in begun and said.code == 2:
        stage.complain(f"validate refuses what train begins: {' '.join(said.err.split())[:300]}")
