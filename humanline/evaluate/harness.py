"""A task of lm-evaluation-harness that asks the prompts of an evaluation and scores answers as this package does.

Written are, in a folder of their own:

    task.yaml      the task, for `--include_path`; its name is humanline_ and that of the folder
    prompts.jsonl  a prompt a row: its text, through the recipe's template, and what its score needs
    metric.py      the score; humanline must be installed beside the harness
    command.txt    the command for the recipe's model

The harness asks once a prompt, cuts stop texts off (`humanline sample` keeps them) and draws random numbers of its own:
answers at temperature 0 are the same up to rounding, others are not.
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from humanline.evaluate.records import EvaluationError
from humanline.evaluate.run import as_rounds, base_of
from humanline.system.files import OutputError, output_path, write_text
from humanline.system.terminal import show
from humanline.train.config import TrainConfig
from humanline.train.config.rounds import MathReward, NumberReward, ScoringConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.online.commands import Say
from humanline.train.online.types import Completion, Rollout

_METRIC = '''"""Scores as `humanline evaluate` gives them."""

from humanline.evaluate.harness import mean_of_known, result_of

SCORING = {scoring!r}


def process_results(doc, results):
    return result_of(SCORING, doc, results)
'''


def write_task(config: TrainConfig, out: str, *, prompts: str | None = None, say: Say = show) -> Path:
    """Write a task of lm-evaluation-harness and its command, and return the task's file.

    Parameters
    ----------
    config : TrainConfig
        As for `humanline.evaluate.run.evaluate`; the model may be an adapter.
    out : str
        Folder to make.
    prompts : str, optional
        File of prompts; default: data.eval.
    say : callable

    Raises
    ------
    EvaluationError
        If several answers a prompt are wanted, no room is left for an answer, a server is to be asked, or the model's
        path holds a comma or an equals sign, which the harness takes for its own.
    OutputError
        If the folder is there.
    ModelError, DataError, RewardError, ValueError, OSError
        If model, prompts or rewards cannot be used.
    """
    from humanline.train.data.prompts import read_contexts
    from humanline.train.data.run_data import renderer_of
    from humanline.train.online.rewards.check import check_scoring
    from humanline.train.policy.load import load_tokenizer

    rounds = as_rounds(config, prompts)
    assert rounds.rounds is not None
    sampling, scoring = rounds.rounds.sampling, rounds.rounds.scoring
    if rounds.rounds.samples > 1:
        raise EvaluationError("the harness asks once a prompt: set evaluation.samples=1")
    if sampling.engine.kind == "server":
        raise EvaluationError("the harness asks a model in its own process: leave evaluation.sampling.engine out")
    folder = output_path(out)
    if folder.exists():
        raise OutputError(f"--out {out!r} exists already; choose another name or remove it")
    base = base_of(config.model)
    renderer = renderer_of(rounds, load_tokenizer(base or config.model))
    contexts, report = read_contexts(rounds, rounds.data.train, renderer)
    say(str(report))
    for remark in check_scoring(scoring, contexts):
        say(remark)
    room = min(sampling.max_tokens, config.data.max_length - max(len(context.ids) for context in contexts))
    if room < 1:
        raise EvaluationError(f"data.max_length: {config.data.max_length} leaves the longest prompt no answer")
    if room < sampling.max_tokens:
        say(f"answers have {room} tokens at most, which the longest prompt leaves of data.max_length")
    name = "humanline_" + (re.sub(r"\W+", "_", folder.name, flags=re.ASCII) or "task")
    command = _command(rounds, base, folder, name)
    folder.mkdir(parents=True)
    write_text(folder / "prompts.jsonl", (json.dumps(_row(one, renderer, scoring)) + "\n" for one in contexts))
    alone = scoring.model_copy(update={"workers": 1})
    write_text(folder / "metric.py", _METRIC.format(scoring=alone.model_dump(mode="json")))
    write_text(folder / "command.txt", command + "\n")
    task = folder / "task.yaml"
    write_text(task, _task(name, folder, rounds, room))  # last: with it the task is whole
    say(command)
    return task


def _row(context: Context, renderer: Renderer, scoring: ScoringConfig) -> dict[str, str]:
    """Return a prompt as the harness reads it: columns of text alone, so that rows may differ in what they hold."""
    gold = [context.extra.get(one.answer) for one in scoring.rewards if isinstance(one, MathReward | NumberReward)]
    known = {"id": context.id, "prompt": [message.as_dict() for message in context.prompt], "extra": context.extra}
    return {
        "id": context.id,
        "text": renderer.writer.prompt_text(context.prompt, context.given),
        "target": str(gold[0]) if gold else "",
        "row": json.dumps(known),
    }


def _task(name: str, folder: Path, config: TrainConfig, room: int) -> str:
    """Return the task's file: JSON, which YAML can read, but for the tags of functions."""
    assert config.rounds is not None
    sampling = config.rounds.sampling
    how: dict[str, Any] = {"do_sample": False}
    if sampling.temperature:
        how = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    mean, score = "!function metric.mean_of_known", "!function metric.process_results"
    text = json.dumps(
        {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "prompts.jsonl")}},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{text}}",
            "doc_to_target": "{{target}}",
            "num_fewshot": 0,
            "repeats": 1,
            # Without these the model's own settings would hold, such as a penalty of repetitions.
            "generation_kwargs": {"until": list(sampling.stop), "max_gen_toks": room, "repetition_penalty": 1.0, **how},
            "process_results": score,
            "metric_list": [
                {"metric": "score", "aggregation": mean, "higher_is_better": True},
                {"metric": "without_score", "aggregation": "mean", "higher_is_better": False},
            ],
            "metadata": {"version": 1},
        },
        ensure_ascii=False,  # YAML knows no pairs of surrogates
        indent=1,
    )
    for function in (mean, score):
        text = text.replace(f'"{function}"', function)
    return text


def _command(config: TrainConfig, base: str | None, folder: Path, name: str) -> str:
    """Return the command that asks the model of a recipe."""
    model = (
        str(Path(config.model).expanduser().absolute()) if Path(config.model).expanduser().is_dir() else config.model
    )
    settings = {
        "pretrained": (model if base is None else base).removeprefix("hub:"),
        **({} if base is None else {"peft": model}),
        "dtype": "bfloat16" if config.training.precision == "bf16" else "float32",
        "max_length": config.data.max_length,
        "add_bos_token": False,  # the template has written it
    }
    for what in ("pretrained", "peft"):
        if set(str(settings.get(what, ""))) & set(",="):
            raise EvaluationError(f"{settings[what]}: the harness cannot be given a path with a comma or equals sign")
    words = ["lm-eval", "run", "--model", "hf", "--model_args", ",".join(f"{k}={v}" for k, v in settings.items())]
    words += ["--include_path", str(folder), "--tasks", name, "--batch_size", "8", "--log_samples"]
    words += ["--output_path", str(folder / "results"), "--seed", str(config.seed)]
    return shlex.join(words)


def result_of(scoring: Mapping[str, Any], doc: Mapping[str, str], results: Sequence[str]) -> dict[str, float]:
    """Return the score of an answer that the harness has got, NaN where it has none, and whether it has none (1 or 0).

    Parameters
    ----------
    scoring : mapping
        The section scoring of a recipe.
    doc : mapping
        Row of prompts.jsonl.
    results : sequence of str
        The only answer to it.

    Raises
    ------
    ValueError
        If there are more answers, or none.
    """
    (text,) = results
    row = json.loads(doc["row"])
    answers = (Completion(text, (), "end"),)
    rollout = Rollout(row["id"], tuple(map(Message.of, row["prompt"])), answers, row["extra"])
    ((_, _, score),) = _scorer(json.dumps(scoring)).score([rollout])
    return {"score": math.nan if score.value is None else score.value, "without_score": float(score.value is None)}


@functools.cache
def _scorer(scoring: str) -> Any:
    from humanline.train.online.rewards.scorer import build_scorer

    scorer = build_scorer(ScoringConfig.model_validate_json(scoring))
    atexit.register(scorer.close)
    return scorer


def mean_of_known(values: Sequence[float]) -> float:
    """Return the mean of the values that are numbers; NaN if none is."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
