"""`humanline inspect-data`: read a set as training would, score its answers, and say what they are to the model."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from humanline.evaluate.file_facts import FileFacts, facts_of
from humanline.evaluate.filters import Filtered, JsonLines
from humanline.evaluate.inspection import Inspection, as_json
from humanline.evaluate.own_answers import own_answers
from humanline.evaluate.probe import plan_probe, refuse_probe, run_probe
from humanline.evaluate.records import EvaluationError
from humanline.evaluate.score_rows import BUDGET, Due, Progress, ScoreBook, key_of, score_due, score_plan
from humanline.evaluate.verdict import Own
from humanline.system.files import free_name, output_path, publish_file, write_text
from humanline.system.stop import StopSignal
from humanline.system.terminal import show
from humanline.train.config import TrainConfig
from humanline.train.config.secrets import written
from humanline.train.data.counting import Counting, uncounted
from humanline.train.data.layout import looks_like
from humanline.train.data.levels import RowScores
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.source import DataError
from humanline.train.data.sources import open_source
from humanline.train.data.units import SIDES, Units
from humanline.train.online.commands import Say

NAME = "inspection.json"
_DRAW = 19  # a key of its own for the draw of rows


def inspect_data(
    config: TrainConfig,
    *,
    out: str | None = None,
    rows: int | None = None,
    own_samples: int = 0,
    probe: int | None = None,
    keep_quartiles: Sequence[int] = (),
    stop: StopSignal | None = None,
    say: Say = show,
    counting: Counting = uncounted,
    progress: Callable[[str], Progress | None] = lambda what: None,
) -> Inspection:
    """Score the answers of data.train under the model of a recipe, and return what they tell.

    Every score is kept as soon as it is there: beside the data in FILE.scores, or in `out`. Nothing is trained but, if
    asked for, a copy that is thrown away.

    Parameters
    ----------
    config : TrainConfig
        Read are its model, data, template, limits, precision and layout of passes; for a probe all of it.
    out : str, optional
        Folder for inspection.json and scores; made if need be.
    rows : int >= 1, optional
        Score so many rows, drawn at random.
    own_samples : int >= 0
        Answers of the model itself, to as many of the prompts, whose level the data's is held against.
    probe : int >= 2, optional
        Train a throw-away copy for so many steps, and look at the tokens of each row (`probe.py`).
    keep_quartiles : sequence of int in 1 .. 4
        Write the rows of these quartiles to `out`; default: none are written.
    stop : StopSignal, optional
    say, counting : callable
    progress : callable
        Returns what is called with (done, due), or None, for "prompts", for "answers" and for "steps".

    Raises
    ------
    EvaluationError, DataError, ModelError, ValueError, OSError
        If the recipe's rows are prompts, or data or model cannot be used; if a probe would tell nothing; if rows are to
        be kept, and there is no `out`, only some are scored, they are no lines of a file, or there are no quartiles.
    FloatingPointError
        If the model gives an answer no finite log-probability, or the probe's training is not finite.
    StopRequested
        If `stop` was asked; what is scored is kept.
    """
    from humanline.train.data.sets import read_units
    from humanline.train.policy.build import checked_model
    from humanline.train.run.processes import start_accelerator

    if probe is not None:
        refuse_probe(config, probe)
    if config.rounds is not None:
        raise EvaluationError("this recipe's rows are prompts, whose answers do not exist yet: see `inspect_prompts`")
    lines = None
    if keep_quartiles:
        if out is None or rows is not None:
            raise EvaluationError(
                "--keep-quartiles writes to --out FOLDER, and needs the levels of all rows: no --rows"
            )
        lines = JsonLines(config.data.train)
    place = _place_of(config, out)
    accelerator = start_accelerator()
    if accelerator.num_processes > 1:
        raise EvaluationError("this command works in one process: start it without a launcher")
    checked = checked_model(config, accelerator.device)
    units, report = read_units(config, config.data.train, checked.renderer, counting=counting)
    facts = facts_of(units, report, checked.tokenizer)
    picked = _picked(facts, rows, config.seed)
    planned = None if probe is None else plan_probe(config, units, checked, accelerator.device, probe, say)
    book = ScoreBook(place, score_plan(config))
    own: list[TokenSequence] = []
    if own_samples:
        own = own_answers(
            config,
            units,
            picked,
            own_samples,
            place,
            checked.renderer,
            stop=stop,
            say=say,
            progress=progress("prompts"),
        )
    keys, due = _due(units, picked, own, book)
    if due:
        _score(config, due, book, checked, accelerator.device, stop, say, progress("answers"))
    else:
        say(f"the scores of all answers are in {book.path}")
    probed = None
    if planned is not None:
        probed = run_probe(config, units, picked, planned, stop=stop, progress=progress("steps"))
    data, divisor = config.data, config.training.temperature
    divided = "" if divisor == 1 else f", logits divided by {divisor:g}"
    found = Inspection(
        model=config.model,
        how=f"template {data.template}, at most {data.max_length} tokens, too long: {data.too_long}{divided}",
        facts=facts,
        names=tuple(units.names[row] for row in picked),
        scores=_row_scores(units, picked, keys, book),
        labels=np.frombuffer(bytes(units.labels), dtype=np.uint8).astype(np.int64)[picked] if units.labels else None,
        example=_example(config, units, checked.renderer),
        own=Own(_own_scores(own, book), sum(one.truncated for one in own)) if own else None,
        probe=probed,
    )
    if out is not None:
        if probed is None:
            _put_probe_aside(place.parent / NAME, say)
        write_text(place.parent / NAME, json.dumps(as_json(found), indent=1, allow_nan=False) + "\n")
    elif probe is not None:
        say(f"the probe is kept in {_keep_probe(config, found, probe, place)}")
    if lines is not None:
        say(str(_keep(lines, found, keep_quartiles, place.parent)))
    return found


def _put_probe_aside(path: Path, say: Say) -> None:
    """Give the inspection of a folder another name if it holds a probe, which took steps of training."""
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(earlier, dict) and earlier.get("probe") is not None:
        aside = free_name(path.parent, f"{path.stem}-with-probe{path.suffix}")
        publish_file(path, aside)
        say(f"the earlier inspection held a probe, and this one has none: it is now {aside}")


def _keep_probe(config: TrainConfig, found: Inspection, steps: int, folder: Path) -> Path:
    """Write a probe beside the scores, with its recipe, in the place of an earlier one of the same; return its file."""
    recipe = written(config)
    plan = json.dumps([score_plan(config), recipe, steps, len(found.names)], sort_keys=True)
    path = folder / f"probe-{hashlib.sha256(plan.encode()).hexdigest()[:16]}.json"
    tree = {"recipe": recipe, "inspection": as_json(found)}
    write_text(path, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    return path


def _keep(lines: JsonLines, found: Inspection, wanted: Sequence[int], folder: Path) -> Filtered:
    """Write the rows of some quartiles to a folder."""
    quartiles = found.quartiles
    if quartiles is None:
        raise EvaluationError(f"{lines.path}: there are no quartiles to keep: too few rows, or too many of one level")
    reasons = {
        lines.line_of(name): None if number in wanted else f"quartile {number}"
        for name, number in zip(found.names, quartiles.numbers.tolist(), strict=True)
    }
    return lines.keep(reasons, folder, f"kept-quartiles-{'-'.join(map(str, wanted))}")


def _place_of(config: TrainConfig, out: str | None) -> Path:
    """Return the folder of scores."""
    if out is not None:
        folder = output_path(out)
        if folder.exists() and not folder.is_dir():
            raise EvaluationError(f"--out {out!r} is a file; give a folder")
        return folder / "scores"
    file = Path(config.data.train).expanduser()
    if config.data.train.startswith("hub:"):
        raise EvaluationError(f"{config.data.train} is no file that scores could be kept beside: give --out FOLDER")
    folder = file.with_name(f"{file.name}.scores")
    if file.is_file() and not os.access(folder if folder.exists() else file.parent, os.W_OK):
        raise EvaluationError(f"nothing can be written beside {file}, where scores are kept: give --out FOLDER")
    return folder


def _picked(facts: FileFacts, rows: int | None, seed: int) -> np.ndarray:
    """Return the numbers of the rows to look at, in order."""
    if rows is None or rows >= facts.rows:
        return np.arange(facts.rows)
    return np.sort(np.random.default_rng([seed, _DRAW]).choice(facts.rows, rows, replace=False))


def _due(
    units: Units, picked: Sequence[int] | np.ndarray, own: Sequence[TokenSequence], book: ScoreBook
) -> tuple[list[list[str]], list[Due]]:
    """Return the keys of all answers, row by row, and what has no score yet, of these and of the model's own."""
    keys, due = [], dict[str, Due]()
    for row in picked:
        mine = [key_of(ids, units.sequences.prompt_length(row)) for ids in units.sequences.ids(row)]
        for member, key in enumerate(mine):
            if key not in book:
                length = units.sequences.lengths(row)[member]
                due[key] = Due(key, length, functools.partial(_sequence, units, row, member))
        keys.append(mine)
    for one in own:
        key = _own_key(one)
        if key not in book:
            due[key] = Due(key, len(one.ids), functools.partial(_itself, one))
    return keys, list(due.values())


def _sequence(units: Units, row: int, member: int) -> TokenSequence:
    return units.sequences.row(row)[member]


def _itself(one: TokenSequence) -> TokenSequence:
    return one


def _own_key(one: TokenSequence) -> str:
    return key_of(np.array(one.ids), one.prompt_length)


def _score(
    config: TrainConfig,
    due: Sequence[Due],
    book: ScoreBook,
    checked: Any,
    device: Any,
    stop: StopSignal | None,
    say: Say,
    progress: Progress | None,
) -> None:
    """Say what scoring will take, load the model, and score; raise as `score_due` does."""
    from humanline.train.data.run_data import pad_id
    from humanline.train.policy.build import build_policy
    from humanline.train.policy.logprobs import check_logprobs
    from humanline.train.preflight.hardware import seconds_here
    from humanline.train.step.reference import logprobs_pass

    tokens = sum(one.length for one in due)
    parameters = sum(one.numel() for one in checked.outline.parameters())
    work = 2.0 * parameters * tokens
    seconds = seconds_here(work, device, config.training.precision)
    say(
        f"{len(due)} answers of {tokens:,} tokens are to be scored: {work:.2g} operations (2 for each parameter and "
        f"token), about {max(1, round(seconds)):,} s here"
    )
    policy, _ = build_policy(config, device)
    policy.to(device)
    check_logprobs(policy, due[0].sequence().ids[:16])
    if stop is not None:
        stop.hold()
    pair = 2 * config.data.max_length
    score_due(
        due,
        book,
        logprobs_pass(policy),
        budget=config.training.micro_batch_tokens or min(BUDGET, pair * config.evaluation.batch_size),
        padded=config.training.padding != "free",
        pad_id=pad_id(checked.renderer),
        tokenizer=checked.tokenizer,
        device=device,
        stop=stop,
        say=say,
        progress=progress,
    )


def _row_scores(units: Units, picked: Sequence[int] | np.ndarray, keys: list[list[str]], book: ScoreBook) -> RowScores:
    sequences = units.sequences
    kept = [[book[key] for key in own] for own in keys]
    tokens = [sequences.learned(row) for row in picked]
    return RowScores(
        parts=SIDES if len(keys[0]) == len(SIDES) else ("answer",),
        prompts=sequences.prompt_hashes[np.asarray(picked)],
        sums=np.array([[one.total for one in own] for own in kept]),
        tokens=np.array(tokens, dtype=np.int64),
        octets=np.array([[one.octets for one in own] for own in kept], dtype=np.int64),
    )


def _own_scores(own: Sequence[TokenSequence], book: ScoreBook) -> RowScores:
    kept = [book[_own_key(one)] for one in own]
    return RowScores(
        parts=("answer",),
        prompts=np.array([hash(one.ids[: one.prompt_length]) or 1 for one in own]),  # as of rows
        sums=np.array([[one.total] for one in kept]),
        tokens=np.array([[one.completion_length] for one in own], dtype=np.int64),
        octets=np.array([[one.octets] for one in kept], dtype=np.int64),
    )


def _example(config: TrainConfig, units: Units, renderer: Any) -> str:
    """Return one row as the loss sees it."""
    from rich.console import Console

    from humanline.train.preflight.example import show_example

    text = io.StringIO()
    show_example(Console(file=text, width=100), config, units[0], renderer)
    return text.getvalue().rstrip("\n")


def config_of_file(file: str, model: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration that a file and a model are inspected with where there is no recipe.

    Pairs, or what the keys of its first row tell; the tokenizer's chat template where it has one; at most 1024 tokens
    or what the model has room for; examples that do not fit are left out and counted. Overrides replace any of that.

    Raises
    ------
    ConfigError, ModelError
        If the model cannot be read, or an override makes no sense.
    """
    import tempfile

    from humanline.train.config import load_config
    from humanline.train.policy.load import load_outline, load_tokenizer

    tokenizer, settings = load_tokenizer(model), load_outline(model).config.get_text_config()
    room = getattr(settings, "max_position_embeddings", None) or _LENGTH
    objective, shape = _kind_of(file, _columns(overrides))
    tree: dict[str, Any] = {
        "model": model,
        "output": "nowhere",
        "objective": objective,
        "data": {
            "shape": shape,
            "train": file,
            "template": "chat" if getattr(tokenizer, "chat_template", None) else "plain",
            "max_length": min(_LENGTH, room),
            "too_long": "drop",
            "special_tokens": "drop",
        },
        "training": {"steps": 1},
        "optimizer": {"lr": 0.0},
    }
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "inspect-data.yaml"
        recipe.write_text(json.dumps(tree), encoding="utf-8")  # JSON is YAML
        return load_config(recipe, list(overrides))


def _columns(overrides: Sequence[str]) -> dict[str, str]:
    """Return what overrides say of the names of columns, ours and the file's; what is wrong with them, reading says."""
    from ruamel.yaml import YAML

    columns: dict[str, Any] = {}
    for override in overrides:
        key, _, text = override.partition("=")
        if not key.strip().startswith("data.columns"):
            continue
        with contextlib.suppress(Exception):
            value = YAML(typ="safe").load(text)
            names = key.strip().split(".")[2:]
            columns = {**columns, names[0]: value} if names else dict(value)
    return {str(name): one for name, one in columns.items() if isinstance(one, str)}


def _kind_of(file: str, columns: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Return an objective that reads the rows of a file, and their shape; pairs where its first row does not tell."""
    try:
        source = open_source(file)
        rows: Any = source.rows([], None)
        with contextlib.closing(rows):
            first = next(rows, None)
    except (DataError, FileNotFoundError):  # as reading the file will say
        first = None
    there = [] if first is None else source.columns(first[1])
    looks = "preference" if "rejected" in {*there, *columns} else looks_like(there, columns)
    if looks == "unpaired":
        return {"kind": "kto", "allow_single_label": True}, "unpaired"
    if looks == "completion":
        return {"kind": "nll"}, "completion"
    return {"kind": "dpo"}, "preference"


_LENGTH = 1024
