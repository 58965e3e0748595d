"""A few answers of the model itself to the prompts of a set: what its level is on text that it has written.

They are drawn by the sampler of `humanline sample`, at the temperature that log-probabilities are taken at and from the
whole distribution. Minus their level is then an estimate of the policy's entropy a token, the better the more answers
there are, and of its first tokens alone where answers are cut at their limit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from humanline.evaluate.run import reading_of
from humanline.evaluate.score_rows import Say, score_plan
from humanline.system.files import make_folder, write_text
from humanline.system.stop import StopSignal
from humanline.train.config import TrainConfig
from humanline.train.config.rounds import FormatReward, RoundsSource, SamplingConfig, ScoringConfig
from humanline.train.data.layout import shape_of
from humanline.train.data.rows import SetReader
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.units import Units
from humanline.train.online.commands import Progress, sample
from humanline.train.online.ledger import json_rows
from humanline.train.online.stages import read_rollouts

_DRAW = 23  # a key of its own for the draw of prompts


def own_answers(
    config: TrainConfig,
    units: Units,
    picked: Sequence[int] | np.ndarray,
    count: int,
    folder: Path,
    renderer: Any,
    *,
    stop: StopSignal | None = None,
    say: Say = lambda text: None,
    progress: Progress | None = None,
) -> list[TokenSequence]:
    """Draw one answer of the model to each of some prompts of a set, or read those that were drawn before.

    Parameters
    ----------
    config : TrainConfig
        Its evaluation.sampling says with which engine, and how long answers may be.
    units : Units
    picked : sequence of int
        Rows whose prompts are used.
    count : int >= 1
        Prompts, all different, drawn at random; all where there are fewer.
    folder : Path
        Where answers are kept.
    renderer : Renderer
    stop, say, progress

    Returns
    -------
    list of TokenSequence
        With the tokens as they were drawn.

    Raises
    ------
    ToolError, ValueError, OSError, StopRequested
        As `humanline.train.online.commands.sample` does.
    """
    rows = _prompts(config, {units.names[row] for row in _drawn(units, picked, count, config.seed)})
    asked = _asking(config)
    assert asked.rounds is not None
    sampling = asked.rounds.sampling.model_dump(mode="json")
    # Prompts are named by what they are, for their names are in the draws: a copy of the model answers as it does.
    prompts = folder / f"own-{_digest(rows)}.prompts.jsonl"
    plan = [score_plan(config), sampling, config.seed, reading_of(asked), rows]
    answers = folder / f"own-{_digest(plan)}.jsonl"
    if answers.is_file():
        say(f"the model's own answers are those in {answers}; without it they are drawn anew")
    else:
        make_folder(folder)
        write_text(prompts, json_rows(rows))
        asked = asked.model_copy(update={"data": asked.data.model_copy(update={"train": str(prompts)})})
        sample(asked, str(answers), stop=stop, say=say, progress=progress)
    found = []
    for rollout in read_rollouts(answers):
        prompt = renderer.render_prompt(rollout.prompt, rollout.given)
        for one in rollout.completions:
            if one.ids:
                found.append(TokenSequence((*prompt, *one.ids), len(prompt), one.truncated))
    return found


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _drawn(units: Units, picked: Sequence[int] | np.ndarray, count: int, seed: int) -> list[int]:
    """Return rows with different prompts."""
    hashes = units.sequences.prompt_hashes[np.asarray(picked)]
    _, first = np.unique(hashes, return_index=True)
    order = np.random.default_rng([seed, _DRAW]).permutation(np.sort(first))[:count]
    return [int(picked[place]) for place in np.sort(order)]


def _prompts(config: TrainConfig, names: set[str]) -> list[dict[str, Any]]:
    """Return the prompts of the rows of these names, as rows to sample from."""
    data = config.data
    shape = config.objective.reads_as(shape_of(config, data.train))
    rows = []
    for example in SetReader.of(data, data.train, shape):
        if example.id in names:
            prompt = [message.as_dict() for message in example.prompt]
            rows.append({"prompt": prompt} | example.given.columns())
    return rows


def _asking(config: TrainConfig) -> TrainConfig:
    """Return the configuration that answers are drawn with."""
    given = config.evaluation.sampling or SamplingConfig()
    how = {"temperature": config.training.temperature, "top_p": 1.0, "stop": (), "system_prompt": None}
    never_scored = ScoringConfig(rewards=(FormatReward(),))
    source = RoundsSource(scoring=never_scored).model_copy(
        update={"samples": 1, "sampling": given.model_copy(update=how)}
    )
    data = config.data.model_copy(update={"columns": {}, "ignore": (), "eval": None})
    return config.model_copy(update={"source": source, "data": data})
