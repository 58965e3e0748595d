"""`humanline evaluate`: sample answers, score them, and sum up; or sum up what is scored already."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline.evaluate.answers import SAMPLES, SCORED, read_each_once
from humanline.evaluate.folder import LEFT_OUT, held_folder
from humanline.evaluate.model_files import files_at_hand, files_of, files_of_rewards, settle_rewards
from humanline.evaluate.records import NAME, Evaluation, EvaluationError, in_full, prompt_digest, write_evaluation
from humanline.evaluate.summary import describe_summary, items_of, key_of, summarise
from humanline.system.files import output_path, write_text
from humanline.system.folders import finish_removal, remove_folder
from humanline.system.stop import StopSignal
from humanline.system.terminal import show
from humanline.train.config import TrainConfig
from humanline.train.config.rounds import RoundsSource, SamplingConfig, ScoringConfig
from humanline.train.online.commands import Progress, Say, sample, score
from humanline.train.online.ledger import digest
from humanline.train.online.stages import read_rollouts, read_scores
from humanline.train.online.types import Rollout
from humanline.train.run.fingerprint import flat, same_settings

if TYPE_CHECKING:
    from humanline.train.data.sets import Report

_WHOLE = "model"  # of an adapter and its base


def evaluate(
    config: TrainConfig,
    out: str,
    *,
    prompts: str | None = None,
    samples: str | None = None,
    name: str | None = None,
    seed: int | None = None,
    ks: Sequence[int] = (),
    stop: StopSignal | None = None,
    say: Say = show,
    progress: Callable[[str], Progress | None] = lambda what: None,
) -> Path:
    """Ask the model of a recipe, score its answers, and write what it reached; return the evaluation file.

    The folder `out` then holds samples.jsonl, scored.jsonl and evaluation.json; and left-out.json where some prompts of
    the file were not asked, whose counts by reason the summary has too (``left_out``). The same command goes on with a
    folder that was begun: nothing is sampled or scored twice.

    Parameters
    ----------
    config : TrainConfig
        Read are its model (a folder may hold an adapter, which is asked as one model with its base), template, limits,
        and the section evaluation (sampling and scoring default to those of source).
    out : str
        Folder to make, or to go on with.
    prompts : str, optional
        File of prompts; default: data.eval.
    samples : str, optional
        Answers that are there already, of `humanline sample` or of the same form: they are only scored.
    name, seed : optional
        Of the model and of its training run, for `humanline compare`; default: what the model's folder tells.
    ks : sequence of int
        Of pass@k and majority@k (`summarise`).
    stop : StopSignal, optional
    say : callable
    progress : callable
        Returns what is called with (done, due), or None, for "prompts" and for "completions".

    Raises
    ------
    EvaluationError, ToolError, ModelError, ValueError, OSError
        If the folder holds an evaluation of something else, there is nothing to ask or no way to score, there are both
        `prompts` and `samples`, or as
        `humanline.train.online.commands.sample` and `score` do.
    StopRequested
        If `stop` was asked; what is done is kept.
    """
    if prompts is not None and samples is not None:
        raise EvaluationError("answers that are there have their prompts with them: give prompts or samples, not both")
    prepared = as_rounds(config, prompts, samples)
    folder = output_path(out)
    source = None if samples is None else _file(samples)
    plan, rewards = _plan(prepared, source), settle_rewards(scoring_of(prepared))
    target = folder / NAME
    asked = source or folder / SAMPLES
    with held_folder(folder, plan, say):
        if (folder / SCORED).is_file():
            say(kept_in(folder))
        else:
            with _whole_model(prepared, folder, say) as whole:
                if not asked.is_file():
                    _sample_noting(whole, asked, folder / LEFT_OUT, stop, say, progress("prompts"))
                score(whole, str(asked), str(folder / SCORED), stop=stop, say=say, progress=progress("completions"))
        rollouts, scoring = read_rollouts(folder / SCORED), scoring_of(prepared)
        _say_uneven(rollouts, prepared, say)
        scores = read_scores(folder / SCORED, rollouts)
        summary = summarise(rollouts, scores, key=key_of(scoring), ks=ks)
        summary |= {} if source is not None else {"template": prepared.data.template}
        if source is None and (folder / LEFT_OUT).is_file():
            summary["left_out"] = json.loads((folder / LEFT_OUT).read_text(encoding="utf-8"))
        found_name, found_seed = whose(Path(config.model))
        write_evaluation(
            target,
            Evaluation(
                name or found_name,
                found_seed if seed is None else seed,
                _settings(prepared, rollouts, given=source is not None) | with_rewards(rewards),
                items_of(rollouts, scores),
                summary,
            ),
        )
    for line in describe_summary(summary):
        say(line)
    return target


def _sample_noting(
    config: TrainConfig, answers: Path, left_out: Path, stop: StopSignal | None, say: Say, progress: Progress | None
) -> None:
    """Sample answers, and write beside them, before the first, how many prompts are not asked and why, if any is not.

    Before: of a call that was killed between the two the next one would find the answers alone. And before both it is
    seen that answers can be scored: the folder is of this way to score, so that none of them would be of use.
    """
    from humanline.train.online.rewards.check import check_scoring

    def note(report: Report) -> None:
        counts = unread(report) | {"bad_rows": bad_rows_of(report)}
        if any(counts.values()):
            write_text(left_out, json.dumps(counts) + "\n")

    check = functools.partial(check_scoring, scoring_of(config))
    sample(config, str(answers), stop=stop, say=say, progress=progress, told=note, check=check)


def unread(report: Report) -> dict[str, int]:
    """Return how many rows of a report no model reads, by reason."""
    lengths = report.lengths
    return {
        "too_long": lengths.dropped_prompt_too_long + lengths.dropped_too_long,
        "special_tokens": lengths.dropped_special_token,
    }


def bad_rows_of(report: Report) -> int:
    """Return how many rows of a report were dropped as bad."""
    return report.bad_rows.bad if report.bad_rows else 0


def as_rounds(config: TrainConfig, prompts: str | None, samples: str | None = None) -> TrainConfig:
    """Return the configuration with the source that an evaluation samples and scores with; `samples` has its prompts.

    Raises
    ------
    EvaluationError
        If nothing says how answers are scored, or there are no prompts.
    """
    asked, source = config.evaluation, config.rounds
    sampling = asked.sampling or (source.sampling if source is not None else SamplingConfig())
    scoring = asked.scoring or (source.scoring if source is not None else None)
    if scoring is None:
        raise EvaluationError(
            "nothing says how answers are scored: set evaluation.scoring, for example "
            "evaluation.scoring='{rewards: [{kind: math}]}'"
        )
    path = next((one for one in (prompts, config.data.eval, samples) if one is not None), None)
    if path is None:
        raise EvaluationError("there are no prompts to ask: give --prompts FILE, or set data.eval")
    # What rounds forbid, one sample or temperature 0, would leave nothing to learn from; it can be evaluated.
    rounds = RoundsSource(scoring=scoring).model_copy(update={"samples": asked.samples, "sampling": sampling})
    parts: dict[str, Any] = {"source": rounds, "data": config.data.model_copy(update={"train": path})}
    if sampling.engine.kind == "server" and sampling.engine.new_weights.kind != "adapter":
        parts["adapter"] = None  # it would be a new one, which changes nothing, in place of the model
    return config.model_copy(update=parts)


@contextlib.contextmanager
def _whole_model(config: TrainConfig, folder: Path, say: Say) -> Iterator[TrainConfig]:
    """Give the configuration with a whole model: an adapter's, made one with its base for as long as it is asked."""
    base = base_of(config.model)
    if base is None:
        yield config
        return
    assert config.rounds is not None
    engine = config.rounds.sampling.engine
    if engine.kind == "server" and engine.new_weights.kind == "adapter":
        raise EvaluationError(
            f"{config.model} is an adapter, which is asked as one model with its base: a server must then take whole "
            "models, so that evaluation.sampling.engine.new_weights cannot be of kind adapter"
        )
    from humanline.train.policy.merge import merge

    whole = folder / _WHOLE
    finish_removal(whole)
    if whole.exists():  # of a call that was killed
        remove_folder(whole)
    say(f"{config.model} is an adapter of {base}: the model of both is asked, and kept in {whole} meanwhile")
    try:
        merge(str(Path(config.model).expanduser()), str(whole))
        yield config.model_copy(update={"model": str(whole), "adapter": None})
    finally:
        if whole.exists():
            remove_folder(whole)


def base_of(model: str) -> str | None:
    """Return the base that a folder's adapter names; None where it holds none."""
    folder = Path(model).expanduser()
    if not (folder / "adapter_config.json").is_file():
        return None
    from humanline.train.policy.adapter import adapter_base

    return adapter_base(folder)


def scoring_of(config: TrainConfig) -> ScoringConfig:
    """Return the scoring of a configuration that `as_rounds` has made."""
    assert config.rounds is not None
    return config.rounds.scoring


def _settings(config: TrainConfig, rollouts: Sequence[Rollout], *, given: bool) -> dict[str, Any]:
    """Return what must be equal for two evaluations to be compared: prompts, how they are asked, how scored.

    Of the engine nothing: who computes the same distribution does not matter. Of answers that were given nobody knows
    how they were drawn.
    """
    assert config.rounds is not None
    sampling = config.rounds.sampling.model_dump(mode="json", exclude={"engine", "mismatch_limit"})
    scoring = same_settings({"source": {"scoring": config.rounds.scoring.model_dump(mode="json")}})
    return {
        "prompts": prompt_digest([[one.id, [message.as_dict() for message in one.prompt]] for one in rollouts]),
        "columns": _columns(config, rollouts),
        "sampling": "given" if given else sampling | {"samples": config.rounds.samples},
        **({} if given else {"limits": limits_of(config)}),
        "scoring": {name.removeprefix("source.scoring."): value for name, value in scoring.items()},
    }


def with_rewards(rewards: Mapping[str, str]) -> dict[str, Any]:
    """Return what `_settings` and their like say of reward models (`settle_rewards`): nothing where there is none."""
    return {"reward models": dict(rewards)} if rewards else {}


def limits_of(config: TrainConfig) -> dict[str, int | None]:
    """Return what cuts answers besides `max_tokens`, and prompts: how many tokens both, and a prompt, may have."""
    return {"max_length": config.data.max_length, "max_prompt_length": config.data.max_prompt_length}


def _columns(config: TrainConfig, rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Return digests of the columns that answers were scored against or asked with, such as reference answers."""
    from humanline.train.data.prompts import offers_columns, scored_columns

    offered = offers_columns(config)
    named = {name for one in rollouts for name in (one.extra if offered else one.given.columns())}
    named.update(scored_columns(config))
    return {name: prompt_digest([one.extra.get(name) for one in rollouts]) for name in sorted(named)}


def _plan(config: TrainConfig, samples: Path | None) -> dict[str, Any]:
    """Return what an evaluation is of: model, prompts or samples, and settings."""
    assert config.rounds is not None
    plan: dict[str, Any] = {
        "scoring": same_settings({"source": {"scoring": config.rounds.scoring.model_dump(mode="json")}}),
        "files of rewards": files_of_rewards(config.rounds.scoring),
    }
    if samples is not None:
        return flat(plan | {"samples": digest(samples)})
    base = base_of(config.model)
    return flat(
        plan
        | {
            "model": config.model,
            "model files": files_at_hand(config.model),
            **({} if base is None else {"base": base, "base files": files_of(base)}),
            "prompts": prompts_of(config.data.train),
            "sampling": config.rounds.sampling.model_dump(mode="json", exclude={"engine"}),
            "engine": config.rounds.sampling.engine.kind,
            "answers a prompt": config.rounds.samples,
            "seed": config.seed,
            "data": reading_of(config),
            "precision": config.training.precision,
            # Of other types the model computes the same numbers, in that precision; an adapter is asked whole.
            **({"kept in": "nf4"} if config.kept_in == "nf4" and base is None else {}),
        }
    )


def kept_in(folder: Path) -> str:
    """Return a line about scores that are not made again: nobody knows whether a function has changed since."""
    return f"answers and scores are those in {folder / SCORED}; in another --out they are made anew"


def reading_of(config: TrainConfig) -> dict[str, Any]:
    """Return how rows are read and turned into tokens: what else than the file makes answers other ones."""
    return {name: value for name, value in config.data.as_planned().items() if name not in ("train", "eval", "shape")}


def prompts_of(path: str) -> str:
    """Return the digest of a file, or the name of a set that is none."""
    file = Path(path).expanduser()
    return digest(file) if file.is_file() else path


def whose(model: Path) -> tuple[str, int | None]:
    """Return name and seed of a model: those of its run for the `final` of one."""
    model = Path(os.path.abspath(model.expanduser()))  # so that "final" and "." have a name and a parent with one
    run = model.parent / "config.json"
    if model.name == "final" and run.is_file():
        try:
            return model.parent.name, int(json.loads(run.read_text(encoding="utf-8"))["seed"])
        except (OSError, ValueError, KeyError, TypeError):
            return model.parent.name, None
    return model.name or str(model), None


def _say_uneven(rollouts: Sequence[Rollout], config: TrainConfig, say: Say) -> None:
    """Say how many prompts have more or fewer answers than were asked for."""
    assert config.rounds is not None
    wanted = config.rounds.samples
    fewer, more = (sum(test(len(one.completions)) for one in rollouts) for test in (wanted.__gt__, wanted.__lt__))
    if fewer or more:
        say(
            f"warning: evaluation.samples is {wanted}, but {fewer} prompts have fewer answers and {more} have more; "
            "all of them are counted"
        )


def _file(path: str) -> Path:
    file = in_full(path)
    if not file.is_file():
        raise EvaluationError(f"{path!r} is no file")
    read_each_once(file)  # before anything is scored
    return file
