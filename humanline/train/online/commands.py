"""Single stages of a round, on files: `humanline sample`, `humanline score`, `humanline pair`.

Work under way lies in a folder beside the output, `<output>.partial`, which one process at a time may hold; the same
command goes on with it, and the output appears when it is whole, if nothing else has taken its name by then.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline.system.files import publish_file, write_text
from humanline.system.folders import finish_removal, remove_folder
from humanline.system.lock import FolderLock, LockHeldError, is_lock
from humanline.system.paths import PathError, absolute
from humanline.system.stop import SamplingStopped, StopRequested, StopSignal
from humanline.system.terminal import show
from humanline.train.config import TrainConfig
from humanline.train.config.rounds import RoundsSource
from humanline.train.data.prompts import Context
from humanline.train.online.ledger import digest, each_line, json_rows, read_lines
from humanline.train.online.select import in_place_of, preference_rows, select
from humanline.train.online.stages import PoisonedError, checked_scores, read_rollouts, read_scores, score_share
from humanline.train.online.types import Rollout, saying_how_to_go_on
from humanline.train.run.processes import RoundError

if TYPE_CHECKING:  # which imports what takes seconds
    from humanline.train.data.render import Renderer
    from humanline.train.data.sets import Report

Say = Callable[[str], None]
Progress = Callable[[int, int], None]
_PLAN = "plan.json"


class ToolError(ValueError):
    """A stage that cannot work with its input."""


def sample(
    config: TrainConfig,
    out: str,
    *,
    limit: int | None = None,
    stop: StopSignal | None = None,
    say: Say = show,
    progress: Progress | None = None,
    told: Callable[[Report], None] = lambda report: None,
    check: Callable[[Sequence[Context]], object] = lambda contexts: None,
) -> Path:
    """Sample completions of the prompts in data.train with the model of a recipe, and return the file.

    Parameters
    ----------
    config : TrainConfig
        Whose source is rounds.
    out : str
        File to make; one row a prompt.
    limit : int, optional
        Take the first so many prompts only.
    stop : StopSignal, optional
    say, progress : callable
    told : callable
        Called with the report on the prompts: how many were left out, and why.
    check : callable
        Called with the prompts before any is asked; what it raises ends the stage.

    Raises
    ------
    ToolError, ValueError, OSError
        If the output exists, the recipe's source is not rounds, or model, prompts or sampler cannot be used.
    StopRequested
        If `stop` was asked; what is sampled is kept.
    """
    from humanline.train.data.prompts import read_contexts
    from humanline.train.policy.build import checked_model
    from humanline.train.run.processes import start_accelerator

    rounds = _rounds(config)
    target = _free_file(out)
    accelerator = start_accelerator()
    _alone(accelerator)
    with _claimed(out, target, stop, say) as work:
        renderer = checked_model(config, accelerator.device).renderer
        contexts, report = read_contexts(config, config.data.train, renderer)
        contexts = contexts[:limit]
        say(str(report))
        check(contexts)
        told(report)
        _sample_work(work, config, contexts, rounds, renderer, accelerator, say, progress)
        work.publish()
    asked_again: Counter[str] = Counter()
    for row in each_line(target):
        asked_again.update(row.get("asked_again", {}))
    if asked_again:
        say(in_place_of(asked_again))
    return target


def _sample_work(
    work: _Work,
    config: TrainConfig,
    contexts: Sequence[Context],
    rounds: RoundsSource,
    renderer: Renderer,
    accelerator: Any,
    say: Say,
    progress: Progress | None,
) -> None:
    """Load the policy, sample completions of prompts, as far as that is not done, and write them to `finished`."""
    import torch

    from humanline.train.data.prompts import contexts_hash
    from humanline.train.online.journal import gather_samples, sample_into
    from humanline.train.online.samplers import make_sampler, make_served
    from humanline.train.online.stages import served_name
    from humanline.train.online.trainable import Trainable, vocabulary_of
    from humanline.train.policy.build import build_policy
    from humanline.train.run.fingerprint import frozen_hash, model_hash, same_settings, trained_hash
    from humanline.train.run.processes import Meeting, Processes, over_ranks

    torch.manual_seed(config.seed)  # of an adapter's factors, so that the same command has the same policy
    scorer, adapter = build_policy(config, accelerator.device)
    scorer.eval()
    version = trained_hash(scorer)
    plan = {
        "model": model_hash(scorer.model),
        "policy": version,
        # Of an adapter `policy` is its factors, and the base is as good as any other that has its shapes.
        **({} if adapter is None else {"frozen weights": frozen_hash(scorer)}),
        "prompts": contexts_hash(contexts),
        "seed": config.seed,
        "samples": rounds.samples,
        **same_settings({"source": {"sampling": rounds.sampling.model_dump(mode="json")}}),
        "max_length": config.data.max_length,
        "precision": config.training.precision,
    }
    processes = Processes(accelerator, over_ranks(accelerator), lambda: None, work.stopping, Meeting(1))
    folder = work.begin(plan)
    with (
        saying_how_to_go_on("give the same command again"),
        contextlib.closing(make_sampler(config, scorer.model, renderer, processes, say)) as sampler,
    ):
        served = make_served(config, sampler, scorer, adapter, folder, processes, say)
        if served is not None:
            served.publish(served_name(version))
        journal = folder / "samples.journal.jsonl"
        sample_into(
            journal,
            contexts,
            rounds.samples,
            sampler,
            key=(config.seed, 0),
            policy=version,
            trainable=Trainable(renderer, rounds.sampling.max_tokens, vocabulary_of(scorer.model)),
            progress=progress,
        )
        if served is not None:
            served.sampled([journal], contexts)
        gather_samples(work.finished, [journal], contexts, version)


def score(
    config: TrainConfig,
    samples: str,
    out: str,
    *,
    stop: StopSignal | None = None,
    say: Say = show,
    progress: Progress | None = None,
) -> Path:
    """Score the completions of a samples file as a recipe says, and return the file: its rows, with scores.

    Parameters
    ----------
    config : TrainConfig
    samples : str
        File of `sample`, or of rows of the same kind from elsewhere.
    out : str
        File to make.
    stop, say, progress

    Raises
    ------
    ToolError, ValueError, OSError
        If the output exists, the samples cannot be read, or a reward cannot be given.
    RoundError
        If a larger share of completions than source.scoring.failed_share has no score; the other scores are kept.
    StopRequested
        If `stop` was asked; the scores so far are kept.
    """
    from humanline.train.online.rewards.check import check_scoring
    from humanline.train.online.rewards.scorer import build_scorer
    from humanline.train.run.fingerprint import same_settings
    from humanline.train.run.processes import start_accelerator

    scoring = _rounds(config).scoring
    source, target = _file(samples), _free_file(out)
    accelerator = start_accelerator()
    _alone(accelerator)
    with _claimed(out, target, stop, say) as work:
        rollouts = _read(source, config)
        for remark in check_scoring(scoring, rollouts):
            say(remark)
        settings = same_settings({"source": {"scoring": scoring.model_dump(mode="json")}})
        folder = work.begin({"samples": digest(source), **settings})
        with contextlib.closing(
            build_scorer(scoring, cache=folder / "cache.jsonl", device=accelerator.device)
        ) as scorer:
            found = list(score_share(rollouts, scorer, progress=progress, stopping=work.stopping))
            if work.stopping():
                raise SamplingStopped
        share_alone = scoring.model_copy(update={"failed": "drop"})  # what becomes of the rest, `pair` decides
        mend = "The other scores are kept: mend what scores, then give the same command again to have these scored."
        scored = checked_scores(rollouts, found, share_alone, of=samples, mend=mend)
        rows = [rollout.row() | {"scores": own["scores"]} for rollout, own in zip(rollouts, scored, strict=True)]
        write_text(work.finished, json_rows(rows))
        work.publish()
    lost = [one.status for _, _, one in found if one.value is None]
    if lost:
        listed = ", ".join(f"{lost.count(status)} {status}" for status in sorted(set(lost)))
        say(f"{len(lost)} of {len(found)} completions have no score: {listed}")
    return target


def pair(config: TrainConfig, scored: str, out: str, *, say: Say = show) -> Path:
    """Make preference pairs of scored completions, the best against the worst of each prompt; return the file.

    Parameters
    ----------
    config : TrainConfig
        Read are source.score_margin, source.truncated, source.scoring.failed and source.scoring.failed_share.
    scored : str
        File of `score`.
    out : str
        File to make; its rows are what offline training reads (data.shape: preference).
    say

    Raises
    ------
    ToolError, RoundError
        If the output exists, the rows cannot be read, more completions have no score than is allowed, or no pair is
        left; the message says by how much scores missed the margin.
    """
    rounds = _rounds(config)
    source, target = _file(scored), _free_file(out)
    with _claimed(out, target, None, say) as work:
        rollouts = _read(source, config)
        if any("scores" not in row for row in read_lines(source, whole=True)):
            raise ToolError(f"{scored!r} has rows without scores; `humanline score` adds them")
        scores = read_scores(source, rollouts)
        mend = "Mend what scores, then score the samples again: humanline score."
        selection = select(rollouts, scores, rounds, "best_worst", of=scored, mend=mend)
        pairs = list(preference_rows(selection.kept))
        rows = [row for row in pairs if row["chosen"].strip() and row["rejected"].strip()]
        blank = f"; {len(pairs) - len(rows)} with a blank answer left out" if len(rows) < len(pairs) else ""
        why = selection.why_so_few(rounds.score_margin)
        if not rows:
            raise RoundError(f"no pair is left of {len(rollouts)} prompts: {why}{blank}. Lower source.score_margin.")
        write_text(work.finished, json_rows(rows))
        work.publish()
    say(f"{len(rows)} pairs of {len(rollouts)} prompts; {why}{blank}")
    cut = sum(any(one.truncated for one in kept.completions) for kept in selection.kept)
    if cut:
        say(
            f"warning: {cut} pairs hold a truncated completion, behind which offline training will put an end token; "
            "source.truncated=drop leaves such completions out"
        )
    return target


def _read(source: Path, config: TrainConfig) -> list[Rollout]:
    """Return the rows of a samples file, if there are any and the model of the recipe can be trained on all of them."""
    try:
        rollouts = read_rollouts(source, _check_of(config))
    except PoisonedError as error:
        raise ToolError(
            f"{error}. No training must stand on such a row: leave it out, or sample it again with the recipe's own "
            "model, tokenizer and limits"
        ) from None
    if not rollouts:
        raise ToolError(f"{str(source)!r} has no rows")
    return rollouts


def _check_of(config: TrainConfig) -> Callable[[Rollout], None]:
    """Return a check that raises Untrainable for a rollout that the model of a recipe cannot be trained on."""
    from humanline.train.data.chat_template import RenderError
    from humanline.train.data.run_data import renderer_of
    from humanline.train.data.text_ids import UnknownText
    from humanline.train.online.trainable import Trainable, vocabulary_of
    from humanline.train.policy.load import load_outline, load_tokenizer

    @functools.cache
    def trainable() -> Trainable:
        renderer = renderer_of(config, load_tokenizer(config.model))
        return Trainable(renderer, _rounds(config).sampling.max_tokens, vocabulary_of(load_outline(config.model)))

    def check(rollout: Rollout) -> None:
        if not any(completion.ids for completion in rollout.completions):
            return  # of a file from elsewhere, with texts alone
        try:
            prompt = len(trainable().renderer.encode_prompt(rollout.prompt, rollout.given).ids)
        except (RenderError, UnknownText):  # this recipe does not sample from it; what is said of answers still holds
            prompt = 0
        trainable().check_rollout(rollout, prompt)

    return check


def _rounds(config: TrainConfig) -> RoundsSource:
    if config.rounds is None:
        raise ToolError("this recipe's source is not rounds; copy one whose source is: humanline cp tiny-online")
    return config.rounds


def _alone(accelerator: Any) -> None:
    if accelerator.num_processes > 1:
        raise ToolError("this command works in one process; humanline train shares the work of rounds among several")


def _path(path: str, option: str = "") -> Path:
    try:
        return absolute(path)
    except PathError as error:
        raise ToolError(f"{option}{path!r} {error}") from None


def _file(path: str) -> Path:
    file = _path(path)
    if not file.is_file():
        raise ToolError(f"{path!r} is no file")
    return file


def _free_file(path: str) -> Path:
    file = _path(path, "--out ")
    finish_removal(_under_way(file))  # of an earlier call of the same command, also if its output is there
    if file.exists():
        raise ToolError(f"--out {path!r} exists already; choose another name or remove it")
    if not file.parent.is_dir():
        raise ToolError(f"--out {path!r}: there is no folder {str(file.parent)!r}")
    return file


def _under_way(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


class _Work:
    """Work under way for an output, in a locked folder beside it; what it comes to is written to `finished` first."""

    def __init__(self, target: Path, folder: Path, lock: FolderLock, stop: StopSignal | None) -> None:
        self.target, self.folder, self.finished = target, folder, folder / "finished.jsonl"
        self.published, self._lock, self._stop = False, lock, stop

    def begin(self, plan: dict[str, Any]) -> Path:
        """Return the folder to work in; raise ToolError if there is work with another plan in it."""
        from humanline.train.run.fingerprint import as_planned, same_settings

        file, plan = self.folder / _PLAN, same_settings(plan)
        begun = not _is_unbegun(self.folder)
        if begun and (table := _unlike(file, plan)):
            raise ToolError(
                f"{self.folder} holds work begun with another model, other data or other settings; remove it, or "
                f"choose another --out\n{table}"
            )
        if not begun or not file.is_file():
            facts = as_planned(plan)
            write_text(file, json.dumps({"digest": facts["digest"], **facts["settings"]}, indent=1) + "\n")
        if self._stop is not None:
            self._stop.hold()
        return self.folder

    def stopping(self) -> bool:
        """Return whether the work shall end here."""
        return self._lock.lost() is not None or (self._stop is not None and self._stop.requested is not None)

    def publish(self) -> None:
        """Give what was written to `finished` its name; raise ToolError if that was taken meanwhile."""
        self._lock.refuse_lost()
        try:
            publish_file(self.finished, self.target)
        except FileExistsError:
            raise ToolError(
                f"{self.target} was made by something else meanwhile, and is left as it is; rename it, then give the "
                f"same command again: what was done for it is kept in {self.folder}"
            ) from None
        self.published = True

    def refuse_lost(self) -> None:
        """Raise LockLostError if another process has taken over the folder."""
        self._lock.refuse_lost()


@contextlib.contextmanager
def _claimed(out: str, target: Path, stop: StopSignal | None, say: Say) -> Iterator[_Work]:
    """Lock the folder for work under way, before any is done; remove it once the output is there, or if none was done.

    Work that was stopped is said to be kept, and is, though it be a plan alone.
    """
    folder = _under_way(target)
    lock = FolderLock(folder)
    try:
        while True:
            folder.mkdir(exist_ok=True)
            try:
                lock.take(wait=True, say=lambda text: say(f"--out {out!r}: {text}"))
                break
            except FileNotFoundError:  # gone with another process that has just finished
                continue
    except LockHeldError as error:
        raise ToolError(f"--out {out!r} is {error}") from None
    work, stopped = _Work(target, folder, lock, stop), False
    try:
        _free_file(out)  # still, now that nobody else is at it
        yield work
    except SamplingStopped:
        stopped = True
        work.refuse_lost()
        name = stop.requested if stop is not None and stop.requested is not None else "a signal"
        kept = f"what is done is kept in {folder}, and the same command goes on with it"
        raise StopRequested(name, f"stopped by {name}; {kept}") from None
    finally:
        with contextlib.suppress(OSError):
            if lock.lost() is None and (work.published or (_is_unbegun(folder) and not stopped)):
                remove_folder(folder)
        lock.release()


def _is_unbegun(folder: Path) -> bool:
    """Return whether no work was done in a folder: it holds a plan and empty files at most."""
    return all(
        path.name.startswith(".")
        or is_lock(path.name)
        or path.name == _PLAN
        or not (path.is_dir() or path.stat().st_size)
        for path in folder.iterdir()
    )


def _unlike(file: Path, plan: dict[str, Any]) -> str:
    """Return a table of what the plan in a file has otherwise, as far as it must be the same; empty if nothing."""
    from humanline.train.run.fingerprint import plan_differences

    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict):
        return f"  {file.name} there is damaged, or is gone"
    digest = {"digest": before.pop("digest")} if "digest" in before else {}
    return plan_differences({"settings": before, **digest}, plan)
