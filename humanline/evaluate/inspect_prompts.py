"""`humanline inspect-data` on a recipe whose rows are prompts: answers are drawn and scored, or read, and summed up."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from humanline.evaluate.answers import read_each_once
from humanline.evaluate.filters import UNUSED, JsonLines
from humanline.evaluate.model_files import files_of_rewards
from humanline.evaluate.prompt_rates import PromptRates, rates_as_json, rates_of
from humanline.evaluate.records import EvaluationError
from humanline.evaluate.run import prompts_of
from humanline.evaluate.score_rows import score_plan
from humanline.system.files import make_folder, output_path, write_text
from humanline.system.stop import StopSignal
from humanline.system.terminal import show
from humanline.train.config import TrainConfig
from humanline.train.data.rows import SetReader
from humanline.train.data.shapes import INSTRUCTING
from humanline.train.online.commands import Progress, Say, sample, score
from humanline.train.online.stages import read_rollouts, read_scores
from humanline.train.online.types import Rollout
from humanline.train.run.fingerprint import same_settings

NAME = "prompts.json"


def inspect_prompts(
    config: TrainConfig,
    *,
    out: str | None = None,
    scored: str | None = None,
    band: tuple[float, float] | None = None,
    stop: StopSignal | None = None,
    say: Say = show,
    progress: Callable[[str], Progress | None] = lambda what: None,
) -> PromptRates:
    """Return on how many prompts of data.train all answers score the same.

    Parameters
    ----------
    config : TrainConfig
        Whose source is rounds: its samples, sampling and scoring are taken.
    out : str, optional
        Folder for prompts.json, samples and scores; made if need be.
    scored : str, optional
        Answers that are scored already, of `humanline score` or `humanline evaluate`; default: they are drawn and
        scored here, into `out`, once.
    band : (low, high), optional
        Write the prompts whose pass rate lies in it, ends included, to `out`.
    stop, say
    progress : callable
        Returns what is called with (done, due), or None, for "prompts" and for "completions".

    Raises
    ------
    EvaluationError, ToolError, ValueError, OSError
        If there is no `out` where one is needed, or it has a prompts.json that is none of an inspection, such as the
        data; if `scored` is of other prompts, or scores are not 0 or 1 where a band is to be kept; or as sampling and
        scoring do.
    StopRequested
        If `stop` was asked; what is done is kept.
    """
    if config.rounds is None:
        raise EvaluationError("this recipe's source is not rounds, so its rows are no prompts to answer")
    if out is None and (scored is None or band is not None):
        what = "prompts that are kept" if scored is not None else "answers and scores (or give --scored FILE)"
        raise EvaluationError(f"give --out FOLDER, for {what}")
    lines = None if band is None else JsonLines(config.data.train)
    folder = None if out is None else output_path(out)
    made = folder is not None and not folder.exists()
    if folder is not None:
        if folder.exists() and not folder.is_dir():
            raise EvaluationError(f"--out {out!r} is a file; give a folder")
        _refuse_other_file(folder / NAME)
        make_folder(folder)
    try:
        file = Path(scored).expanduser() if scored is not None else _scored_here(config, folder, stop, say, progress)
        rollouts = read_rollouts(file) if scored is None else _asked_of(config, read_each_once(file))
        rates = rates_of(
            rollouts,
            read_scores(file, rollouts),
            failed=config.rounds.scoring.failed,
            truncated=config.rounds.truncated,
        )
    except BaseException:
        if made and folder is not None and not any(folder.iterdir()):
            folder.rmdir()  # of an inspection of which nothing was done
        raise
    if folder is not None:
        write_text(folder / NAME, json.dumps(rates_as_json(rates), indent=1, allow_nan=False) + "\n")
    if lines is not None and band is not None and folder is not None:
        label = f"kept-pass-rate-{band[0]:g}-{band[1]:g}"
        rest = UNUSED if scored is None else f"no answers in {scored}"
        say(str(lines.keep(_reasons(rates, band, lines), folder, label, rest)))
    return rates


def _refuse_other_file(file: Path) -> None:
    """Raise EvaluationError if what would be replaced is none of an inspection: prompts are often called so."""
    if not file.exists():
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        found = None
    if not (isinstance(found, dict) and {"rates", "too_few"} <= found.keys()):
        raise EvaluationError(f"{file} is there already, and is none of an inspection; choose another --out")


def _scored_here(
    config: TrainConfig,
    folder: Path | None,
    stop: StopSignal | None,
    say: Say,
    progress: Callable[[str], Progress | None],
) -> Path:
    """Draw and score answers, as far as that is not done, and return the file."""
    from humanline.train.online.rewards.check import check_scoring

    assert config.rounds is not None and folder is not None
    rounds = config.rounds
    drawn: dict[str, Any] = score_plan(config) | {
        "prompts": prompts_of(config.data.train),
        "data": config.data.as_planned(),
        "sampling": rounds.sampling.model_dump(mode="json"),
        "samples": rounds.samples,
        "seed": config.seed,
    }
    # As they are written down, so that no file name hangs on a secret.
    scoring = same_settings({"source": {"scoring": rounds.scoring.model_dump(mode="json")}})
    scoring |= {"files of rewards": files_of_rewards(rounds.scoring)}
    samples = folder / f"samples-{_digest(drawn)}.jsonl"
    target = folder / f"scored-{_digest(drawn | {'scoring': scoring})}.jsonl"
    if target.is_file():
        say(f"answers and scores are those in {target}; without it they are scored anew")
        return target
    if not samples.is_file():
        check = functools.partial(check_scoring, rounds.scoring)  # what cannot be scored is not drawn first
        sample(config, str(samples), stop=stop, say=say, progress=progress("prompts"), check=check)
    score(config, str(samples), str(target), stop=stop, say=say, progress=progress("completions"))
    return target


def _digest(plan: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]


def _asked_of(config: TrainConfig, rollouts: list[Rollout]) -> list[Rollout]:
    """Return answers; raise EvaluationError if they are to other prompts than those of data.train."""
    prompts = {example.id: example.prompt for example in SetReader.of(config.data, config.data.train, "prompt")}
    for rollout in rollouts:
        if rollout.id not in prompts:
            raise EvaluationError(
                f"{rollout.id!r} has answers that were scored, and is no row of {config.data.train}, whose rows are "
                f"called {next(iter(prompts), 'nothing')} and so on"
            )
        own = prompts[rollout.id]
        before, asked = rollout.prompt[: -len(own)], rollout.prompt[-len(own) :]
        if asked != own or any(turn.role not in INSTRUCTING for turn in before):  # of source.sampling.system_prompt
            raise EvaluationError(
                f"{rollout.id}: the answers that were scored are to another prompt than that row of "
                f"{config.data.train} holds"
            )
    return rollouts


def _reasons(rates: PromptRates, band: tuple[float, float], lines: JsonLines) -> dict[int, str | None]:
    """Return for each line why it leaves, or None."""
    if not rates.binary:
        raise EvaluationError("--keep-pass-rate needs scores of 0 and 1, and some of these are neither")
    low, high = band
    reasons: dict[int, str | None] = dict.fromkeys(map(lines.line_of, rates.too_few), "fewer than two scored answers")
    for one in rates.prompts:
        why = None
        if not low <= one.rate <= high:
            why = f"pass rate below {low:g}" if one.rate < low else f"pass rate above {high:g}"
        reasons[lines.line_of(one.id)] = why
    return reasons
