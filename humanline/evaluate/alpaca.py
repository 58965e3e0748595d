"""AlpacaEval's files: model_outputs.json made of samples, and annotations.json read back without the package.

The package (alpaca_eval 0.6) joins outputs to its instructions by their exact text. An instruction that is missing,
there twice or changed is dropped or doubled with a line in a log, and where its difficulty is then looked up, the
length-controlled rate is nan: so all of these are refused here. What its annotations hold: `preference` is 1 where the
baseline's output is better, 2 where the model's is, between them for a weighted preference, 1.5 or 0 for a tie, and
null, or -1 in the file that it caches, where the annotator's answer was not understood. Nothing here asks the network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.evaluate.answers import read_answers
from humanline.evaluate.records import Evaluation, EvaluationError, Item, prompt_digest, write_evaluation
from humanline.evaluate.summary import share_fact
from humanline.stats import mean_estimate
from humanline.system.files import output_path, publish_file, write_text
from humanline.system.paths import PathError, absolute
from humanline.system.terminal import show
from humanline.train.online.commands import Say
from humanline.train.online.types import Rollout

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


def write_model_outputs(
    samples: str,
    instructions: str,
    out: str,
    *,
    name: str | None = None,
    answer: int | None = None,
    say: Say = show,
) -> Path:
    """Make a model_outputs.json of a file of answers, in the order of the package's instructions; return it.

    Parameters
    ----------
    samples : str
        File of `humanline sample` or of the same form, or a folder of `humanline evaluate`.
    instructions : str
        The package's evaluation set, alpaca_eval.json or another JSON list of objects with `instruction`.
    out : str
        File to make; it must be free.
    name : str, optional
        The generator's; default: what the samples tell.
    answer : int >= 1, optional
        Which of several answers is taken; default: there must be one.
    say : callable

    Raises
    ------
    EvaluationError, LedgerError
        If a file cannot be read; if an instruction of the set has no answer or two, or answers are to prompts that are
        none of its instructions; if a prompt is no single question; if there are several answers and none was chosen.
    FileExistsError, OSError
        If the output exists or cannot be written.
    """
    target = _free(out)
    found = read_answers(samples)
    order = _instructions(instructions)
    asked: dict[str, str] = {}
    cut = blank = 0
    for number, rollout in enumerate(found.rollouts, start=1):
        where = f"{found.file}:{number}"
        instruction, one = _instruction(rollout, where), _chosen(rollout, answer, where)
        if instruction in asked:
            raise EvaluationError(f"{where}: the instruction {_short(instruction)} is there twice")
        asked[instruction] = one.text
        cut, blank = cut + one.truncated, blank + (not one.text.strip())
    _refuse_others(list(order), list(asked), str(found.file), instructions)
    generator = name or found.name
    rows = [
        {"instruction": text, "output": asked[text], "generator": generator}
        | ({"dataset": row["dataset"]} if "dataset" in row else {})
        for text, row in order.items()
    ]
    partial = target.with_name(f".{target.name}.new")
    write_text(partial, json.dumps(rows, indent=2, ensure_ascii=True) + "\n")
    publish_file(partial, target)
    say(f"{len(rows)} outputs of {generator!r}; {cut} of them truncated, {blank} blank")
    return target


def _free(out: str) -> Path:
    target = output_path(out)
    if target.exists():
        raise EvaluationError(f"--out {out!r} exists already; choose another name or remove it")
    if not target.parent.is_dir():
        raise EvaluationError(f"--out {out!r}: there is no folder {str(target.parent)!r}")
    return target


def _refuse_others(wanted: Sequence[str], asked: Sequence[str], samples: str, instructions: str) -> None:
    """Raise EvaluationError unless the same instructions are in both."""
    missing = [one for one in wanted if one not in set(asked)]
    strange = [one for one in asked if one not in set(wanted)]
    if not (missing or strange):
        return
    by_words = {" ".join(one.split()): one for one in missing}
    changed = [one for one in strange if " ".join(one.split()) in by_words]
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(wanted)} instructions have no answer, such as {_short(missing[0])}")
    parts += [f"{len(strange)} answers are to none of them, such as {_short(strange[0])}"] if strange else []
    parts += [f"{len(changed)} of these differ from one in white space alone"] if changed else []
    raise EvaluationError(
        f"{samples} does not answer {instructions} instruction by instruction, which the package joins by their exact "
        f"text: {'; '.join(parts)}. Sample from that file's own instructions, unchanged"
    )


def _instructions(path: str) -> dict[str, dict[str, Any]]:
    """Return the rows of an evaluation set by instruction; raise EvaluationError if one is there twice."""
    rows: dict[str, dict[str, Any]] = {}
    for line, row in _objects(path):
        text = _text(row, "instruction", f"{path}:{line}")
        if text in rows:
            raise EvaluationError(f"{path}:{line}: the instruction {_short(text)} is there twice")
        rows[text] = row
    return rows


def _instruction(rollout: Rollout, where: str) -> str:
    turns = [turn for turn in rollout.prompt if turn.role not in ("system", "developer")]
    if len(turns) != 1 or turns[0].role != "user":
        raise EvaluationError(f"{where}: the prompt of {rollout.id!r} is no single question of a user")
    return turns[0].content


def _chosen(rollout: Rollout, answer: int | None, where: str) -> Any:
    count = len(rollout.completions)
    if answer is None and count > 1:
        raise EvaluationError(
            f"{where}: {rollout.id!r} has {count} answers; the package takes one: choose which with --answer, or "
            "sample with evaluation.samples=1"
        )
    if answer is not None and not 1 <= answer <= count:
        raise EvaluationError(f"{where}: {rollout.id!r} has {count} answers; --answer {answer} is none of them")
    return rollout.completions[(answer or 1) - 1]


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
    for line, row in _objects(path):
        where = f"{path}:{line}"
        instruction = _text(row, "instruction", where)
        if instruction in seen:
            raise EvaluationError(
                f"{where}: {_short(instruction)} is annotated twice, first in line {seen[instruction]}"
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
    target = _free(out)
    found = read_annotations(path)
    summary = summarise_annotations(found)
    if instructions is not None:
        wanted = _instructions(instructions)
        strange = [row for row in found.rows if row.instruction not in wanted]
        if strange:
            raise EvaluationError(
                f"{path}:{strange[0].line}: {_short(strange[0].instruction)} is no instruction of {instructions}; "
                f"{len(strange)} are not"
            )
        summary["not_annotated"] = len(wanted) - len(found.rows)
    if difficulty is not None:
        from humanline.evaluate.length_control import length_controlled_rate

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


def _objects(path: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects of a JSON list with the lines that they begin in."""
    try:
        text = absolute(path).read_text(encoding="utf-8")
    except PathError as error:
        raise EvaluationError(f"{path!r} {error}") from None
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise EvaluationError(f"{path}: cannot be read: {reason}") from None
    rows = list(_each(path, text))
    if not rows:
        raise EvaluationError(f"{path}: the list is empty")
    return rows


def _each(path: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    decoder, line, at = json.JSONDecoder(), 1, 0

    def space(begin: int) -> int:
        while begin < len(text) and text[begin] in " \t\r\n":
            begin += 1
        return begin

    at = space(0)
    if text[at : at + 1] != "[":
        raise EvaluationError(f"{path}: must be a JSON list of objects")
    counted, at = 0, space(at + 1)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            row, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise EvaluationError(f"{path}:{line}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise EvaluationError(f"{path}:{line}: must be an object; got {type(row).__name__}")
        yield line, row
        at = space(end)
        if text[at : at + 1] == ",":
            at = space(at + 1)
        elif text[at : at + 1] != "]":
            raise EvaluationError(f"{path}:{line}: the list breaks off, or has no comma, behind what begins here")
    if space(at + 1) < len(text):
        raise EvaluationError(f"{path}: something stands behind the list")


def _text(row: dict[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise EvaluationError(f"{where}: must have a text {name!r}; got {value!r:.40}")
    return value


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else line[:59] + "…")
