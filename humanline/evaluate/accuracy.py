"""Preference accuracy: on how many pairs the chosen answer is rated above the rejected one, and by how much.

What rates them is the recipe's scoring, a reward model as a rule; or the policy itself, by its implicit reward, the
log-ratio of an answer's probability under it and under a reference model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from humanline.evaluate.answers import SAMPLES, SCORED
from humanline.evaluate.folder import held_folder
from humanline.evaluate.model_files import files_at_hand, files_of_rewards, identity_of, settle_rewards
from humanline.evaluate.preference import Judged, items_of_verdicts, summarise_verdicts, verdict_of_scores
from humanline.evaluate.records import NAME, Evaluation, EvaluationError, prompt_digest, write_evaluation
from humanline.evaluate.run import (
    as_rounds,
    bad_rows_of,
    kept_in,
    prompts_of,
    reading_of,
    scoring_of,
    unread,
    whose,
    with_rewards,
)
from humanline.evaluate.summary import mean_fact
from humanline.system.files import output_path, write_text
from humanline.system.stop import StopSignal
from humanline.system.terminal import show
from humanline.train.config import TrainConfig
from humanline.train.data.bad_rows import BadRows
from humanline.train.online.commands import Progress, Say, score
from humanline.train.online.ledger import json_rows
from humanline.train.online.stages import read_rollouts, read_scores
from humanline.train.online.types import Completion, Rollout, Score
from humanline.train.run.fingerprint import flat, same_settings

if TYPE_CHECKING:
    from humanline.train.data.sets import Report

_NAMES = ("chosen", "rejected")


class Pair(NamedTuple):
    """A preference and how its answers are rated; `prompt` is a digest, and `answers` that of both."""

    id: str
    prompt: str
    answers: str
    chosen: Score
    rejected: Score


def evaluate_preferences(
    config: TrainConfig,
    preferences: str,
    out: str,
    *,
    reference: str | None = None,
    name: str | None = None,
    seed: int | None = None,
    stop: StopSignal | None = None,
    say: Say = show,
    progress: Callable[[str], Progress | None] = lambda what: None,
) -> Path:
    """Rate the pairs of a preference file, and write accuracy and margin; return the evaluation file.

    Parameters
    ----------
    config : TrainConfig
        Without a reference its evaluation.scoring (default: source.scoring) rates the answers; with one its model does.
    preferences : str
        File, or set of the hub, of preference rows.
    out : str
        Folder to make, or to go on with.
    reference : str, optional
        Model that the recipe's model is held against, the one that it was trained from: an answer's rating is then its
        sequence log-ratio, in nats, end token in and prompt out (beta times it is DPO's implicit reward).
    name, seed : optional
        Of what rates, for `humanline compare`; default: what the model's folder tells.
    stop, say, progress

    Raises
    ------
    EvaluationError, DataError, ModelError, ToolError, ValueError, OSError
        If the rows, a model or a reward cannot be used, the folder holds another evaluation, or no pair could be rated.
    StopRequested
        If `stop` was asked; of scoring, what is done is kept.
    """
    folder = output_path(out)
    plan: dict[str, Any] = {"preferences": prompts_of(preferences)}
    if reference is None:
        prepared = as_rounds(config, preferences)
        rule = same_settings({"source": {"scoring": scoring_of(prepared).model_dump(mode="json")}})
        rule = {key.removeprefix("source.scoring."): value for key, value in rule.items()}
        plan |= {
            "scoring": rule,
            "files of rewards": files_of_rewards(scoring_of(prepared)),
            "data": reading_of(config),
        }
        raters = with_rewards(settle_rewards(scoring_of(prepared)))
    else:
        rule = {"kind": "implicit", "reference": reference, "max_length": config.data.max_length}
        if config.training.temperature != 1:
            rule |= {"temperature": config.training.temperature}
        files = {"files": files_at_hand(config.model), "of reference": files_at_hand(reference)}
        plan |= rule | {"model": config.model} | files
        raters = {"reference model": identity_of(reference)}
    with held_folder(folder, flat(plan), say):
        if reference is None:
            pairs, dropped = _by_scoring(prepared, preferences, folder, stop, say, progress)
            unrated: dict[str, int] = {}  # rewards read pairs of any length
        else:
            pairs, report = by_implicit_reward(config, preferences, reference, say=say, progress=progress("pairs"))
            dropped, unrated = bad_rows_of(report), _unrated(report)
        judged = _by_prompt(pairs)
        summary = summarise_pairs(judged, pairs) | {"dropped_rows": dropped, "left_out": unrated}
        found_name, found_seed = whose(Path(config.model))
        settings = {
            "prompts": prompt_digest([[one.id, one.prompt] for one in judged]),
            "answers": prompt_digest([[one.id, one.answers] for one in pairs]),
            "sampling": "given",
        }
        write_evaluation(
            folder / NAME,
            Evaluation(
                name or found_name,
                found_seed if seed is None else seed,
                settings | {"scoring": rule} | raters,
                items_of_verdicts(judged),
                summary,
            ),
        )
    for line in _described(summary):
        say(line)
    return folder / NAME


def summarise_pairs(judged: Sequence[Judged], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Summarise rated pairs, prompt by prompt: pairs of one prompt are not independent of each other.

    Returns
    -------
    dict
        ``problems``, ``pairs``, ``without_verdict`` (count by status), ``without_verdict_share``; ``accuracy`` (share
        of pairs whose chosen answer is rated higher, a tie counting one half); ``margin`` (mean rating of chosen minus
        rejected), ``chosen``, ``rejected`` (mean ratings), each over prompts with ``se``, ``low``, ``high``; ``ties``.
    """
    found = summarise_verdicts(judged)
    summary = {key: found[key] for key in ("problems", "pairs", "without_verdict", "without_verdict_share", "ties")}
    summary["accuracy"] = found["win_rate"]
    rated: dict[str, list[tuple[float, float]]] = {}
    for pair in pairs:
        if pair.chosen.value is not None and pair.rejected.value is not None:
            rated.setdefault(pair.prompt, []).append((pair.chosen.value, pair.rejected.value))
    means = [[sum(values) / len(own) for values in zip(*own, strict=True)] for own in rated.values()]
    summary["margin"] = mean_fact([chosen - rejected for chosen, rejected in means], 0.95)
    for place, which in enumerate(_NAMES):
        summary[which] = mean_fact([both[place] for both in means], 0.95)
    return summary


def _by_prompt(pairs: Sequence[Pair]) -> list[Judged]:
    """Return the verdicts on pairs, those of one prompt together, under the id of its first pair."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.prompt, []).append(pair)
    return [
        Judged(own[0].id, prompt, tuple((verdict_of_scores(one.chosen, one.rejected, _NAMES),) for one in own))
        for prompt, own in groups.items()
    ]


def _by_scoring(
    prepared: TrainConfig,
    preferences: str,
    folder: Path,
    stop: StopSignal | None,
    say: Say,
    progress: Callable[[str], Progress | None],
) -> tuple[list[Pair], int]:
    """Score chosen and rejected answers as any others are; return them, and how many rows were dropped as bad."""
    rollouts, bad = _as_rollouts(prepared, preferences)
    if bad is not None:
        say(f"{preferences}: {bad}")
    if not (folder / SAMPLES).is_file():
        write_text(folder / SAMPLES, json_rows([one.row() for one in rollouts]))
    if (folder / SCORED).is_file():
        say(kept_in(folder))
    else:
        try:
            score(
                prepared,
                str(folder / SAMPLES),
                str(folder / SCORED),
                stop=stop,
                say=say,
                progress=progress("completions"),
            )
        except BaseException:
            if not any(folder.glob(f"{SCORED}*")):  # nothing was scored, and the rest is the rows once more
                (folder / SAMPLES).unlink(missing_ok=True)
            raise
    rollouts = read_rollouts(folder / SCORED)
    pairs = [
        Pair(
            one.id,
            prompt_digest([turn.as_dict() for turn in one.prompt]),
            prompt_digest([answer.text for answer in one.completions]),
            *own,
        )
        for one, own in zip(rollouts, read_scores(folder / SCORED, rollouts), strict=True)
    ]
    return pairs, 0 if bad is None else bad.bad


def _as_rollouts(config: TrainConfig, preferences: str) -> tuple[list[Rollout], BadRows | None]:
    """Return preference rows as prompts with two answers, the chosen one first, and the rows that were dropped."""
    from humanline.train.data.rows import SetReader
    from humanline.train.data.shapes import Preference

    rollouts = []
    reader = SetReader.of(config.data, preferences, "preference")
    for row in reader:
        assert isinstance(row, Preference)
        texts = [answer for answer in (row.chosen, row.rejected) if isinstance(answer, str)]
        if len(texts) < 2:
            raise EvaluationError(
                f"{row.id}: an answer is more than a text, such as a call of a tool, which no reward reads"
            )
        answers = tuple(Completion(text=text, ids=(), finish="end") for text in texts)
        rollouts.append(Rollout(row.id, row.prompt, answers, row.given.columns()))
    return rollouts, reader.left_out()


def by_implicit_reward(
    config: TrainConfig, preferences: str, reference: str, *, say: Say = show, progress: Progress | None = None
) -> tuple[list[Pair], Report]:
    """Return the pairs of a preference file, rated by sequence log-ratios of a recipe's model and a reference.

    And the report on its rows, which tells those that are in no pair.

    One model is in memory at a time. Rows go through the recipe's template and limits, as in training.

    Parameters
    ----------
    config : TrainConfig
    preferences, reference : str
    say : callable
    progress : callable, optional
        Called with (done, due) of pairs, each of which two models read.

    Raises
    ------
    EvaluationError
        If the reference has another tokenizer.
    DataError, ModelError, ValueError
        As training does.
    """
    from humanline.train.config.objective import PairObjective
    from humanline.train.data.run_data import pad_id
    from humanline.train.data.sets import read_units
    from humanline.train.data.stream import Stream
    from humanline.train.policy.build import checked_model
    from humanline.train.policy.load import load_tokenizer
    from humanline.train.run.fingerprint import tokenizer_hash
    from humanline.train.run.processes import start_accelerator

    device = start_accelerator().device
    own = config.model_copy(update={"objective": PairObjective()})
    renderer = checked_model(config, device).renderer
    if tokenizer_hash(load_tokenizer(reference)) != tokenizer_hash(renderer.tokenizer):
        raise EvaluationError(
            f"--reference {reference!r} has another tokenizer than {config.model!r}, so that probabilities of tokens "
            "cannot be held against each other; name the model that this one was trained from"
        )
    units, report = read_units(own, preferences, renderer)
    say(str(report))
    stream = Stream(
        units,
        own.objective,
        batch_size=len(units),
        micro_batch_size=min(config.evaluation.batch_size, len(units)),
        seed=None,
        pad_id=pad_id(renderer),
        max_length=config.data.max_length,
        whole_units=True,
    )
    batches = stream.step(0).micro_batches
    due, done = 2 * len(units), 0

    def counting(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, due)

    policy = _sums(config, batches, device, counting)
    plain = config.model_copy(update={"model": reference, "adapter": None})
    before = _sums(plain, batches, device, counting)
    pairs = []
    for unit, ours, theirs in zip((unit for batch in batches for unit in batch.units), policy, before, strict=True):
        sequence = unit.sequences[0]
        prompt = prompt_digest([int(token) for token in sequence.ids[: len(sequence.ids) - sequence.completion_length]])
        answers = prompt_digest([[int(token) for token in one.ids] for one in unit.sequences])
        ratings = (_rated(a - b) for a, b in zip(ours, theirs, strict=True))
        pairs.append(Pair(unit.id, prompt, answers, *ratings))
    return pairs, report


def _unrated(report: Report) -> dict[str, int]:
    """Return how many pairs have no part in any number, by reason."""
    lengths = report.lengths
    counts = unread(report)
    counts |= {"empty_answers": lengths.dropped_empty_completion, "same_answers": lengths.dropped_identical}
    return {reason: count for reason, count in counts.items() if count}


def _rated(value: float) -> Score:
    return Score(value) if math.isfinite(value) else Score(None, "not_finite", reason=f"its log-ratio is {value}")


def _sums(config: TrainConfig, batches: Sequence[Any], device: Any, count: Callable[[int], None]) -> list[list[float]]:
    """Return of each pair the log-probabilities of its two answers under a model, in nats."""
    from humanline.train.policy.build import build_policy
    from humanline.train.step.reference import logprobs_pass

    policy, _ = build_policy(config, device)
    logprobs_of = logprobs_pass(policy.to(device))
    found: list[list[float]] = []
    for batch in batches:
        half = len(batch.units)
        totals = logprobs_of(batch.block.to(device)).double().sum(1).tolist()  # prompts and padding have 0
        found += [[chosen, rejected] for chosen, rejected in zip(totals[:half], totals[half:], strict=True)]
        count(half)
    return found


def _described(summary: dict[str, Any]) -> list[str]:
    lines = [f"{summary['pairs']} pairs of {summary['problems']} prompts"]
    if summary["dropped_rows"]:
        lines.append(f"{summary['dropped_rows']} rows were dropped as bad, and are in no number")
    if summary["left_out"]:
        parts = [f"{count} {reason.replace('_', ' ')}" for reason, count in summary["left_out"].items()]
        lines.append(f"{sum(summary['left_out'].values())} pairs were left out ({', '.join(parts)})")
    for name in ("accuracy", "margin", *_NAMES):
        fact = summary[name]
        known = "interval not known" if fact["low"] is None else f"{fact['low']:.4f} to {fact['high']:.4f}"
        lines.append(f"{name}: {fact['value']:.4f} ({known})")
    parts = [f"{count} {status}" for status, count in summary["without_verdict"].items()]
    if parts:
        lines.append(f"without a rating {summary['without_verdict_share']:.1%} ({', '.join(parts)})")
    return lines
