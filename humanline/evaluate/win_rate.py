"""`humanline win-rate`: how often one file's answers are better than another's, by a judge or by their scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from humanline.evaluate.answers import Answers, Joined, digest_of_answers, join, read_answers, texts
from humanline.evaluate.folder import held_folder
from humanline.evaluate.judge import WORDS, Judge, Question, Words
from humanline.evaluate.judge_config import JudgeConfig
from humanline.evaluate.preference import (
    Judged,
    Orders,
    describe_verdicts,
    items_of_verdicts,
    summarise_verdicts,
    verdict_of_scores,
    worth,
)
from humanline.evaluate.records import NAME, Evaluation, EvaluationError, prompt_digest, write_evaluation
from humanline.evaluate.summary import mean_fact
from humanline.system.files import output_path, write_text
from humanline.system.stop import SamplingStopped, StopRequested, StopSignal
from humanline.system.terminal import show
from humanline.train.online.commands import Progress, Say
from humanline.train.online.ledger import json_rows
from humanline.train.online.rewards.verdict import Verdict
from humanline.train.online.types import Score

VERDICTS = "verdicts.jsonl"


def win_rate(
    model: str,
    baseline: str,
    out: str,
    *,
    judge: JudgeConfig | None = None,
    words: Sequence[str] = (),
    name: str | None = None,
    seed: int | None = None,
    stop: StopSignal | None = None,
    say: Say = show,
    progress: Progress | None = None,
) -> Path:
    """Say how often a model's answers are better than a baseline's to the same prompts; return the evaluation file.

    The folder `out` then holds evaluation.json, whose items are worth 1, 0.5 or 0, or between them where the orders
    disagree; verdicts.jsonl, a row a pair of answers; and, of a judge, words.jsonl, what it has said. The same command
    goes on with a folder that was begun, and asks what has no answer yet.

    Parameters
    ----------
    model, baseline : str
        Files of `humanline sample` or `humanline score`, or folders of `humanline evaluate`; joined by prompts' ids.
    out : str
        Folder to make, or to go on with.
    judge : JudgeConfig, optional
        Is shown each pair in both orders; equal answers are a tie without it. Default: the answers' scores decide,
        which both files must hold, and scores that are equal, rounding aside, are a tie.
    words : sequence of str
        Other folders, or their files words.jsonl: what the judge has said there is not asked again.
    name, seed : optional
        Of the model, for `humanline compare`; default: what its file tells.
    stop : StopSignal, optional
    say : callable
    progress : callable, optional
        Called with (done, due) of a judge's questions.

    Raises
    ------
    EvaluationError, JudgeError, LedgerError, SamplerError, OSError
        If a file cannot be read; if the two have no prompt in common, or an id stands for different prompts; if the
        folder holds another evaluation; if the judge refuses every request; if no pair has a verdict.
    StopRequested
        If `stop` was asked; what the judge has said is kept.
    """
    ours, theirs = read_answers(model), read_answers(baseline)
    joined = join(ours, theirs)
    rule = _rule(ours, theirs, judge)
    if judge is None:
        _refuse_other_columns(ours, theirs, joined)
    unknown = [str(one.file) for one in (ours, theirs) if judge is None and one.scoring is None]
    against = digest_of_answers(theirs, [one.baseline for one in joined])
    settings = {
        "prompts": prompt_digest([[one.id, one.prompt] for one in joined]),
        "sampling": "given",
        "scoring": {**rule, "against": against},
    }
    plan = {**rule, "answers": digest_of_answers(ours, [one.model for one in joined]), "against": against}
    folder, begun = output_path(out), [output_path(file) for file in words]
    with _held(folder, plan, stop, say):
        if judge is None:
            pairs: list[list[Orders]] = [_by_scores(ours, theirs, one) for one in joined]
        else:
            asked = Judge(judge, Words(folder / WORDS, begun))
            pairs = _by_judge(asked, ours, theirs, joined, stop, progress)
            say(f"{asked.sent} requests were sent to the judge")
        judged = [Judged(one.id, one.prompt, tuple(own)) for one, own in zip(joined, pairs, strict=True)]
        summary = summarise_verdicts(judged)
        if judge is None:
            summary["margin"] = mean_fact(_margins(ours, theirs, joined), 0.95)
        left_out = {"baseline": len(theirs.rollouts) - len(joined), "model": len(ours.rollouts) - len(joined)}
        summary["only_one_has"] = left_out
        write_text(folder / VERDICTS, json_rows([_row(one) for one in judged]))
        write_evaluation(
            folder / NAME,
            Evaluation(
                name or ours.name, ours.seed if seed is None else seed, settings, items_of_verdicts(judged), summary
            ),
        )
    for line in describe_verdicts(summary):
        say(line)
    if unknown:
        say(
            f"warning: how {' and '.join(unknown)} {'was' if len(unknown) == 1 else 'were'} scored is not known; the "
            "rate means something only where the same rewards scored both (folders of humanline evaluate say it)"
        )
    if any(left_out.values()):
        say(f"left out: {left_out['model']} prompts that only the model answered, {left_out['baseline']} the baseline")
    if judge is not None and summary["without_verdict"]:
        say(_why_lost(judged))
    if judge is not None and set(summary["without_verdict"]) & {"server", "not_asked"}:
        say("give the same command again to ask for what has no answer yet")
    return folder / NAME


def _rule(ours: Answers, theirs: Answers, judge: JudgeConfig | None) -> dict[str, Any]:
    """Return what verdicts depend on besides the answers; raise EvaluationError if scores are not comparable."""
    if judge is not None:
        return {"kind": "judge", **judge.rule()}
    for one in (ours, theirs):
        if one.scores is None:
            raise EvaluationError(
                f"{one.file} has no scores, and no judge was named: humanline score adds scores, --judge names a judge"
            )
    parts = [
        sorted({part for own in one.scores or () for score in own for part in score.parts}) for one in (ours, theirs)
    ]
    if parts[0] and parts[1] and parts[0] != parts[1]:
        raise EvaluationError(
            f"{ours.file} was scored by {', '.join(parts[0])} and {theirs.file} by {', '.join(parts[1])}; only scores "
            "of the same rewards can be compared"
        )
    if ours.scoring is not None and theirs.scoring is not None and ours.scoring != theirs.scoring:
        differ = sorted(
            key for key in {*ours.scoring, *theirs.scoring} if ours.scoring.get(key) != theirs.scoring.get(key)
        )
        raise EvaluationError(f"{ours.file} and {theirs.file} were not scored alike: {', '.join(differ)}")
    if ours.scoring is None or theirs.scoring is None:
        return {"kind": "scores", "of": parts[0] or parts[1], "scored": "not known"}
    return {"kind": "scores", "of": parts[0] or parts[1], **ours.scoring}


def _refuse_other_columns(ours: Answers, theirs: Answers, joined: Sequence[Joined]) -> None:
    """Raise EvaluationError if both answers to a prompt were scored against, or asked with, other columns of it."""
    for one in joined:
        mine, other = ours.rollouts[one.model].extra, theirs.rollouts[one.baseline].extra
        if differ := [name for name in {*ours.columns, *theirs.columns} if mine.get(name) != other.get(name)]:
            raise EvaluationError(
                f"{ours.file} and {theirs.file}: {one.id!r} has another {', '.join(sorted(differ))} in each, which "
                "answers were scored against or asked with; only scores of the same can be compared"
            )


@contextlib.contextmanager
def _held(folder: Path, plan: dict[str, Any], stop: StopSignal | None, say: Say) -> Iterator[None]:
    """Hold the folder of an evaluation, and stop at safe points only."""
    try:
        with held_folder(folder, plan, say):
            if stop is not None:
                stop.hold()
            yield
    except SamplingStopped:
        name = stop.requested if stop is not None and stop.requested is not None else "a signal"
        kept = f"what was said is kept in {folder}, and the same command goes on with it"
        raise StopRequested(name, f"stopped by {name}; {kept}") from None


def _by_judge(
    judge: Judge,
    ours: Answers,
    theirs: Answers,
    joined: Sequence[Joined],
    stop: StopSignal | None,
    progress: Progress | None,
) -> list[list[Orders]]:
    """Return the verdicts on all pairs, each shown in both orders; equal answers are tied unseen.

    Where the asking ended early, equal answers are counted as far as others were asked: all of them would draw the rate
    to one half. They are not where the judge gave no verdict at all.
    """
    pairs = [
        (place, number, ours.rollouts[one.model].prompt, *both)
        for place, one in enumerate(joined)
        for number, both in enumerate(texts(ours, theirs, one))
    ]
    found: dict[tuple[int, int], Orders] = {
        (place, number): (Verdict(0.5, reason="the answers are the same"),)
        for place, number, _, model, baseline in pairs
        if model == baseline
    }
    # By content, so that those which a spent budget leaves out are a random part, whatever the order of the prompts.
    due = sorted((pair for pair in pairs if pair[:2] not in found), key=lambda pair: prompt_digest(pair[3:]))
    questions = [
        question
        for _, _, prompt, model, baseline in due
        for question in (Question(prompt, model, baseline), Question(prompt, baseline, model))
    ]
    verdicts = iter(
        judge.ask(
            questions,
            stopping=lambda: stop is not None and stop.requested is not None,
            progress=progress,
        )
    )
    equal = sorted((prompt_digest(pair[3:]), pair[:2]) for pair in pairs if pair[:2] in found)
    ended: tuple[str, Verdict] | None = None
    for place, number, _, model, baseline in due:
        shown_first, shown_second = next(verdicts), next(verdicts)
        turned = None if shown_second.value is None else 1.0 - shown_second.value
        found[place, number] = (shown_first, shown_second._replace(value=turned))
        lost = next((one for one in (shown_first, shown_second) if one.status == "not_asked"), None)
        if lost is not None and ended is None:
            ended = prompt_digest([model, baseline]), lost
    if due and all(worth(found[pair[:2]]) is None for pair in due):
        ended = "", ended[1] if ended is not None else _failed(found[due[0][:2]])
    if ended is not None:  # equal answers behind it would be ties among pairs of which nobody was asked
        found |= {pair: (ended[1],) for digest, pair in equal if digest >= ended[0]}
    return [
        [found[place, number] for number in range(len(ours.rollouts[one.model].completions))]
        for place, one in enumerate(joined)
    ]


def _failed(orders: Orders) -> Verdict:
    """Return the first verdict of a pair that is none."""
    return next(verdict for verdict in orders if verdict.value is None)


def _why_lost(judged: Sequence[Judged]) -> str:
    """Return a line about pairs on which a judge has given no verdict."""
    flat = [orders for one in judged for orders in one.pairs]
    lost = next(orders for orders in flat if worth(orders) is None)
    tied = sum(len(orders) == 1 and worth(orders) is not None for orders in flat)
    more = f"; {tied} pairs of equal answers are tied all the same, which draws the rate to one half" if tied else ""
    return f"one without a verdict: {_failed(lost).reason}{more}"


def _by_scores(ours: Answers, theirs: Answers, one: Joined) -> list[Orders]:
    """Return the verdicts of scores on the answers to a prompt."""
    return [(verdict_of_scores(*both),) for both in _scores(ours, theirs, one)]


def _scores(ours: Answers, theirs: Answers, one: Joined) -> list[tuple[Score, Score]]:
    assert ours.scores is not None and theirs.scores is not None
    mine, other = ours.scores[one.model], theirs.scores[one.baseline]
    return list(zip(mine, other * (len(mine) // len(other)), strict=True))


def _margins(ours: Answers, theirs: Answers, joined: Sequence[Joined]) -> list[float]:
    """Return the mean differences of scores of prompts, of those that have any."""
    differences = [
        [a.value - b.value for a, b in _scores(ours, theirs, one) if a.value is not None and b.value is not None]
        for one in joined
    ]
    return [sum(own) / len(own) for own in differences if own]


def _row(one: Judged) -> dict[str, Any]:
    """Return the row of a prompt: of each pair, what was said with the model's answer first, and with it second."""
    names = ("value", "status", "reason")
    return {"id": one.id, "pairs": [[dict(zip(names, verdict, strict=True)) for verdict in own] for own in one.pairs]}
