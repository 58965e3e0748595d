"""annotations.json, read back: the package's win rate, its standard error, and what has no preference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.evaluate.alpaca_eval.files import free_file, objects, read_instructions, short, text_of
from humanline.evaluate.alpaca_eval.length_control import length_controlled_rate
from humanline.evaluate.records import Evaluation, EvaluationError, Item, prompt_digest, write_evaluation
from humanline.evaluate.summary import share_fact
from humanline.stats import mean_estimate
from humanline.system.files import publish_file
from humanline.system.terminal import show
from humanline.train.online.commands import Say

_TIES, _MISSING = (0.0, 1.5), -1.0
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotation: what was asked, and the preference in [1, 2], 2 for the model; None where there is none."""

    line: int
    instruction: str
    preference: float | None
    output: str  # the model's


@dataclass(frozen=True, slots=True)
class Annotations:
    """A file of annotations, of one model against one baseline by one annotator.

    Attributes
    ----------
    file : Path
    model, baseline, annotator : str
    rows : tuple of Annotation
    """

    file: Path
    model: str
    baseline: str
    annotator: str
    rows: tuple[Annotation, ...]


def read_annotations(path: str) -> Annotations:
    """Read an annotations.json of the package.

    Raises
    ------
    EvaluationError
        If it cannot be read or is no JSON list of annotations; with file and line, if a preference is neither null nor
        -1 nor 0 nor a number in [1, 2], an instruction is annotated twice, or there are several models, baselines or
        annotators.
    """
    rows: list[Annotation] = []
    whose: list[tuple[str, ...]] = []
    seen: dict[str, int] = {}
    for line, row in objects(path):
        where = f"{path}:{line}"
        instruction = text_of(row, "instruction", where)
        if instruction in seen:
            raise EvaluationError(
                f"{where}: {short(instruction)} is annotated twice, first in line {seen[instruction]}"
            )
        seen[instruction] = line
        preference = _preference(row, where)
        names = tuple(str(row.get(column, "")) for column in ("generator_2", "generator_1", "annotator"))
        if whose and names != whose[0]:
            raise EvaluationError(
                f"{where}: it is of {' / '.join(names)}, the lines before of {' / '.join(whose[0])} (model / baseline "
                "/ annotator); a file must be of one of each"
            )
        whose.append(names)
        output = row.get("output_2", "")
        rows.append(Annotation(line, instruction, preference, output if isinstance(output, str) else ""))
    model, baseline, annotator = whose[0]
    return Annotations(Path(path), model, baseline, annotator, tuple(rows))


def _preference(row: dict[str, Any], where: str) -> float | None:
    """Return a preference in [1, 2], or None where the annotator gave none."""
    if "preference" not in row:
        raise EvaluationError(f"{where}: no annotation: it has no preference")
    value = row["preference"]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(f"{where}: preference must be a number or null; got {value!r}")
    if math.isnan(value) or value == _MISSING:
        return None
    if value not in _TIES and not 1 <= value <= 2:
        raise EvaluationError(f"{where}: preference must be in [1, 2], 0 for a tie, or null; got {value!r}")
    return 1.5 if value in _TIES else float(value)


def summarise_annotations(found: Annotations) -> dict[str, Any]:
    """Return the package's numbers for its annotations.

    Returns
    -------
    dict
        ``win_rate`` (percent: 100 times the mean of preference - 1) and ``standard_error`` (percent; null for a single
        annotation), ``discrete_win_rate`` (percent; each preference rounded to a win or a loss, ties one half),
        ``n_wins``, ``n_wins_base``, ``n_draws``, ``n_total``, ``missing`` (annotations without a preference, which are
        in no number), ``avg_length`` (characters of the model's outputs, all of them); ``interval``, ours: the win rate
        as a share, with bounds.

    Raises
    ------
    EvaluationError
        If no annotation has a preference.

    Notes
    -----
    Source: alpaca_eval 0.6, `metrics`. The standard error is that of a mean, s / sqrt(n) with n - 1 in s.
    """
    values = [row.preference - 1 for row in found.rows if row.preference is not None]
    if not values:
        raise EvaluationError(f"{found.file}: none of {len(found.rows)} annotations has a preference")
    estimate = mean_estimate(values)
    wins, losses = sum(value > 0.5 for value in values), sum(value < 0.5 for value in values)
    draws = len(values) - wins - losses
    return {
        "win_rate": 100 * estimate.mean,
        "standard_error": 100 * estimate.error if math.isfinite(estimate.error) else None,
        "discrete_win_rate": 100 * (wins + draws / 2) / len(values),
        "n_wins": wins,
        "n_wins_base": losses,
        "n_draws": draws,
        "n_total": len(values),
        "missing": len(found.rows) - len(values),
        "avg_length": math.fsum(len(row.output) for row in found.rows) / len(found.rows),
        "interval": share_fact(values, 0.95, single=all(value in (0.0, 1.0) for value in values)),
    }


def evaluate_annotations(
    path: str,
    out: str,
    *,
    instructions: str | None = None,
    difficulty: str | None = None,
    name: str | None = None,
    say: Say = show,
) -> Path:
    """Read annotations back and write an evaluation file that `humanline compare` reads; return it.

    Parameters
    ----------
    path : str
        annotations.json.
    out : str
        File to make; it must be free.
    instructions : str, optional
        The evaluation set: its instructions that are not annotated at all are counted too.
    difficulty : str, optional
        df_gamed.csv of the package's data set, which the length-controlled rate needs, and the package with it.
    name : str, optional
        Of the model; default: its generator's.
    say : callable

    Raises
    ------
    EvaluationError
        As `read_annotations` and `summarise_annotations` do, and if the output exists, an instruction is none of the
        set, or the length-controlled rate was asked for and cannot be had.
    """
    target = free_file(out)
    found = read_annotations(path)
    summary = summarise_annotations(found)
    if instructions is not None:
        wanted = read_instructions(instructions)
        strange = [row for row in found.rows if row.instruction not in wanted]
        if strange:
            raise EvaluationError(
                f"{path}:{strange[0].line}: {short(strange[0].instruction)} is no instruction of {instructions}; "
                f"{len(strange)} are not"
            )
        summary["not_annotated"] = len(wanted) - len(found.rows)
    if difficulty is not None:
        summary["length_controlled_winrate"] = length_controlled_rate(path, difficulty)
    prompts = [prompt_digest(row.instruction) for row in found.rows]
    items = tuple(
        Item(
            prompt,
            prompt,
            (None if row.preference is None else row.preference - 1,),
            ("missing" if row.preference is None else "ok",),
        )
        for prompt, row in zip(prompts, found.rows, strict=True)
    )
    settings = {
        "prompts": prompt_digest(sorted(prompts)),
        "sampling": "given",
        "scoring": {"kind": "alpaca_eval", "annotator": found.annotator, "against": found.baseline},
    }
    partial = target.with_name(f".{target.name}.new")
    write_evaluation(partial, Evaluation(name or found.model or Path(path).stem, None, settings, items, summary))
    publish_file(partial, target)
    for line in _described(found, summary):
        say(line)
    return target


def _described(found: Annotations, summary: dict[str, Any]) -> list[str]:
    error, interval = summary["standard_error"], summary["interval"]
    lines = [
        f"{found.model} against {found.baseline}, by {found.annotator}: win rate {summary['win_rate']:.4f} %, standard "
        f"error {'not known' if error is None else f'{error:.4f}'}, {summary['n_total']} annotations "
        f"({summary['n_wins']} won, {summary['n_draws']} tied, {summary['n_wins_base']} lost); 95 % interval of the "
        f"rate {100 * interval['low']:.2f} to {100 * interval['high']:.2f} %"
    ]
    if summary["missing"]:
        where = [f"{found.file}:{row.line}" for row in found.rows if row.preference is None]
        more = ", ..." if len(where) > _SHOWN else ""
        lines.append(
            f"warning: {summary['missing']} annotations have no preference and are in no number: "
            f"{', '.join(where[:_SHOWN])}{more}"
        )
    if summary.get("not_annotated"):
        lines.append(f"warning: {summary['not_annotated']} instructions of the set are not annotated at all")
    if "length_controlled_winrate" in summary:
        lines.append(f"length-controlled win rate {summary['length_controlled_winrate']:.4f} %, by the package itself")
    else:
        lines.append(
            "no length-controlled rate: it needs the package alpaca_eval and df_gamed.csv of its data set, which is "
            "not fetched; where you have both, give --difficulty FILE"
        )
    return lines
