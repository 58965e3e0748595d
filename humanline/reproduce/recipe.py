"""A cell of the grid as a configuration that `humanline train` takes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from humanline.reproduce.cells import Cell
from humanline.reproduce.start import ANSWERS, BATCH, MARGIN, Pairs
from humanline.reproduce.testbeds.base import Testbed
from humanline.theory import BetaRejection, ClipRange

LOG_EPS = (-1.5, 1.5)  # Table 1
#: Of rejection near that clip (Thm 4.3). Def. 4.2 wants no ratio beyond the bounds, 1.79 nats to either side; where one
#: is, nothing changes. The test whose bound it is keeps it, as it keeps all from 1 nat on but for one in 1e14, and the
#: other test, which is that of the clip's end on this side, decides on it as on any other.
CONCENTRATION, BOUND = 64, 6.0
ROUNDS = 5
KL_COEF = 0.01  # of GRPO's penalty
WARMUP = 0.1


def recipe(
    cell: Cell,
    testbed: Testbed,
    *,
    model: Path,
    pairs: Pairs,
    prompts: Path,
    distance: Path,
    output: Path,
    seed: int,
) -> dict[str, Any]:
    """Return the configuration of a run of a cell.

    Online runs take the prompts of the pairs in rounds, all of them once, with as many answers to each as the pairs
    were chosen from: as many questions to the judge, and a few steps less, since each round leaves its last pairs that
    fill no batch.

    Parameters
    ----------
    cell : Cell
    testbed : Testbed
    model : Path
        The start model.
    pairs : Pairs
    prompts, distance : Path
        Files of prompts: those of the pairs, and those on which distances are measured.
    output : Path
    seed : int
        Of the order of the data, or of prompts and samples.

    Raises
    ------
    ValueError
        If the prompts make no whole number of rounds.
    """
    batch = round(BATCH * _answers(cell))
    steps = max(1, pairs.count // BATCH) * cell.passes
    found: dict[str, Any] = {
        "model": str(model),
        "output": str(output),
        "seed": seed,
        "objective": _objective(cell),
        "transform": _transform(cell),
        "reference": _reference(cell),
        "data": {"train": str(pairs.file), "shape": pairs.shape, "max_length": testbed.max_length},
        "training": {
            "steps": steps,
            "batch_size": batch,
        },
        "optimizer": {"lr": cell.lr, "warmup_fraction": WARMUP},
        "evaluation": {
            "batch_size": 256,
            "distance": {"prompts": str(distance), "limit": 640, "samples": 2, "max_tokens": testbed.max_tokens},
        },
    }
    if cell.is_online:
        found["data"] = {"train": str(prompts), "max_length": testbed.max_length}
        found["training"] = {"batch_size": batch}
        found["source"] = _rounds(testbed, pairs)
    if cell.round_steps is not None:
        found["training"]["steps"] = _whole_rounds(cell, cell.round_steps, pairs.scorer_calls // ANSWERS)
        found["source"] = _groups(testbed, cell.round_steps)
    return found


def _answers(cell: Cell) -> float:
    """Return how many units a pair is: KTO learns from single answers, of which a part may be left out."""
    if cell.desirable is not None:
        return 1 + cell.desirable
    return 2 if cell.objective == "kto" else 1


def _transform(cell: Cell) -> dict[str, Any]:
    if cell.variant == "rejection":
        near = BetaRejection.near(ClipRange(*LOG_EPS), CONCENTRATION, policy_ratio_bound=BOUND, ref_ratio_bound=BOUND)
        shapes = {"policy": asdict(near.policy), "ref": asdict(near.ref)}
        return {"kind": "beta_rejection", **shapes, "policy_ratio_bound": BOUND, "ref_ratio_bound": BOUND}
    if cell.variant not in ("humanline", "clip only", "online humanline"):
        return {"kind": "none"}
    low, high = cell.log_eps_low, cell.log_eps_high
    return {
        "kind": "clip",
        "log_eps_low": LOG_EPS[0] if low is None else low,
        "log_eps_high": LOG_EPS[1] if high is None else high,
    }


def _objective(cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": cell.objective}
    found |= {} if cell.desirable is None else {"desirable_weight": 1 / cell.desirable}
    found |= {} if cell.beta is None else {"beta": cell.beta}
    found |= {} if cell.clip_eps is None else {"clip_eps": cell.clip_eps}
    return found | ({"kl_coef": KL_COEF} if cell.objective == "grpo" else {})


def _reference(cell: Cell) -> dict[str, Any]:
    if cell.variant in ("humanline", "sync only", "rejection"):
        return {"schedule": {"kind": "before_step", "every": cell.every}}
    if cell.variant == "trust region":
        return {"schedule": {"kind": "after_step", "every": cell.every}}
    if cell.variant == "online":
        return {"schedule": {"kind": "each_round"}}
    if cell.variant == "online humanline" and cell.round_steps is not None:  # as in the recipes of mathematics
        return {"schedule": {"kind": "before_step", "every": cell.every}, "round_start": "keep", "storage": "model"}
    if cell.variant == "online humanline":
        return {"schedule": {"kind": "before_step", "every": cell.every}, "round_start": "sync"}
    return {"schedule": {"kind": "never"}}


def _whole_rounds(cell: Cell, round_steps: int, contexts: int) -> int:
    """Return the steps that passes over the prompts give; raise ValueError if they are no whole number of rounds."""
    steps, left = divmod(contexts * cell.passes, BATCH)
    if left or steps % round_steps:
        raise ValueError(
            f"{cell.name}: {cell.passes} passes over {contexts} prompts, {BATCH} a step, are no whole number of rounds "
            f"of {round_steps} steps: change Cell.passes or Cell.round_steps"
        )
    return steps


def _rounds(testbed: Testbed, pairs: Pairs) -> dict[str, Any]:
    contexts = pairs.scorer_calls // ANSWERS
    return {
        **_sampled(testbed, contexts // ROUNDS),
        "count": ROUNDS,
        "select": "best_worst",
        "score_margin": MARGIN,
        "truncated": "drop",
        "too_few": "skip",
    }


def _groups(testbed: Testbed, round_steps: int) -> dict[str, Any]:
    """Return rounds of so many steps that keep every answer, so that rounds of any length make as many steps."""
    return {**_sampled(testbed, BATCH * round_steps), "steps": round_steps, "select": "all", "truncated": "keep"}


def _sampled(testbed: Testbed, contexts: int) -> dict[str, Any]:
    return {
        "kind": "rounds",
        "contexts_per_round": contexts,
        "samples": ANSWERS,
        "sampling": {"max_tokens": testbed.max_tokens, "engine": {"kind": "generate", "batch_size": 512}},
        "scoring": {"rewards": [{"kind": "function", "call": testbed.reward}], "workers": 1},
    }
