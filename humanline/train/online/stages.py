"""The stages of a round on files: sampling into a journal (`journal.py`), scoring, and reading both back.

Rounds and the commands `humanline sample` and `humanline score` run the same code. A stage's work is shared by ranks
without communication: every rank knows its own share from the plan, or from the content.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from humanline.system.activity import HERE
from humanline.system.files import write_text
from humanline.train.config.rounds import ScoringConfig
from humanline.train.data.prompts import Context
from humanline.train.online.journal import Progress, gather_samples, regroup, rollout_of, sample_into
from humanline.train.online.ledger import LedgerError, each_line, json_rows, read_lines
from humanline.train.online.select import refuse_unscored
from humanline.train.online.trainable import Trainable, Untrainable
from humanline.train.online.types import Rollout, Sampler, Score, Scorer, saying_how_to_go_on
from humanline.train.run.processes import Processes

BY_RESUMING = (
    "All samples and the other scores are kept: mend what scores, then add --resume to the same command to have these "
    "scored again. (A function's own code, and a reward model in a folder, may not change within a run.)"
)


class PoisonedError(LedgerError):
    """Samples that must not be trained on."""


def read_rollouts(path: Path, check: Callable[[Rollout], None] | None = None) -> list[Rollout]:
    """Return the rows of a samples file.

    Parameters
    ----------
    path : Path
    check : callable, optional
        Raises Untrainable for a rollout that cannot be trained on.

    Raises
    ------
    LedgerError
        If there is no such file, or a row is none of samples, with its place.
    PoisonedError
        (A LedgerError.) If a row does not pass, with its place.
    """
    if not path.is_file():
        raise LedgerError(f"{path} is missing")
    found: list[Rollout] = []
    numbers: dict[int, int] = {}  # one object for equal token ids: 8 bytes a token in place of 36
    for number, row in enumerate(each_line(path, whole=True), start=1):
        rollout = rollout_of(row, f"{path}:{number}", "`humanline sample` writes them")
        try:
            if check is not None:
                check(rollout)
        except Untrainable as error:
            raise PoisonedError(f"{path}:{number}: {rollout.id}: {error}") from None
        slim = tuple(
            replace(
                one,
                ids=tuple(numbers.setdefault(token, token) for token in one.ids),
                logprobs=None if one.logprobs is None else array("d", one.logprobs),
            )
            for one in rollout.completions
        )
        found.append(replace(rollout, completions=slim))
    return found


def score_share(
    rollouts: Sequence[Rollout],
    scorer: Scorer,
    *,
    rank: int = 0,
    ranks: int = 1,
    progress: Progress | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, int, Score]]:
    """Score this rank's share of completions: equal ones of equal prompts are always the same rank's.

    Yields
    ------
    (index of the rollout, number of the completion, Score)
    """
    places = [
        [n for n, one in enumerate(rollout.completions) if ranks == 1 or _share(rollout, one.text, ranks) == rank]
        for rollout in rollouts
    ]
    share = [
        replace(rollout, completions=tuple(rollout.completions[n] for n in own))
        for rollout, own in zip(rollouts, places, strict=True)
    ]
    total = sum(map(len, places))
    for done, (index, number, score) in enumerate(scorer.score(share), start=1):
        yield index, places[index][number], score
        if progress is not None:
            progress(done, total)
        if stopping():
            return


def _share(rollout: Rollout, text: str, ranks: int) -> int:
    key = json.dumps([[message.content for message in rollout.prompt], text]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") % ranks


def score_table(rollouts: Sequence[Rollout], scores: Iterable[tuple[int, int, Score]]) -> list[list[Score]]:
    """Return for every rollout the scores of its completions.

    Raises
    ------
    LedgerError
        If a completion has no score at all, not even a status.
    """
    found = {(index, number): score for index, number, score in scores}
    for index, rollout in enumerate(rollouts):
        for number in range(len(rollout.completions)):
            if (index, number) not in found:
                raise LedgerError(f"{rollout.id}: completion {number + 1} was not scored")
    return [[found[i, n] for n in range(len(rollout.completions))] for i, rollout in enumerate(rollouts)]


def checked_scores(
    rollouts: Sequence[Rollout],
    scores: Iterable[tuple[int, int, Score]],
    scoring: ScoringConfig,
    *,
    of: str,
    mend: str,
) -> list[dict[str, Any]]:
    """Return one JSON row a rollout with the scores of its completions, if enough of them have one.

    Raises
    ------
    LedgerError
        As `score_table` does.
    RoundError
        As `refuse_unscored` does, which takes the other parameters.
    """
    table = score_table(rollouts, scores)
    refuse_unscored(rollouts, table, scoring, of=of, mend=mend)
    return score_rows(rollouts, table)


def score_rows(rollouts: Sequence[Rollout], table: Sequence[Sequence[Score]]) -> list[dict[str, Any]]:
    """Return one JSON row a rollout with the scores of its completions."""
    return [
        {"id": rollout.id, "scores": [_score_row(score) for score in own]}
        for rollout, own in zip(rollouts, table, strict=True)
    ]


def _score_row(score: Score) -> dict[str, Any]:
    row: dict[str, Any] = {"value": score.value, "status": score.status, "parts": dict(score.parts)}
    return row | ({"reason": score.reason} if score.reason else {})


def _score_of(row: Mapping[str, Any]) -> Score:
    value = row["value"]
    if value is not None and (isinstance(value, bool) or not math.isfinite(value)):
        raise ValueError(f"a score must be a finite number or null; got {value}")
    if (value is None) == (row["status"] == "ok"):
        raise ValueError(
            f"a score must be a number where its status is ok, and null elsewhere; got {value} with {row['status']!r}"
        )
    return Score(row["value"], row["status"], row["parts"], row.get("reason", ""))


def read_scores(path: Path, rollouts: Sequence[Rollout]) -> list[list[Score]]:
    """Return the scores of rollouts, in their order, from rows that `score_rows` made.

    Raises
    ------
    LedgerError
        If they are not the scores of these rollouts.
    """
    if not path.is_file():
        raise LedgerError(f"{path} is missing")
    rows = read_lines(path, whole=True)
    if [row.get("id") for row in rows] != [rollout.id for rollout in rollouts]:
        raise LedgerError(f"{path} does not hold the scores of these samples")
    try:
        found = [[_score_of(one) for one in row["scores"]] for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{path}: no rows of scores ({type(error).__name__}: {error})") from None
    if any(len(own) != len(rollout.completions) for own, rollout in zip(found, rollouts, strict=True)):
        raise LedgerError(f"{path} does not hold a score for every completion")
    return found


def served_name(policy: str) -> str:
    """Return the name under which a server is given a version of the policy."""
    return f"policy-{policy[:16]}"


def served_folder(rounds: Path, name: str) -> Path:
    """Return the folder in which a server finds the weights of a name, in the folder of all rounds."""
    return rounds / "served" / name


class Served(Protocol):
    """A way to give a server the policy's weights, with proof that it has them (`samplers.served.ServedWeights`).

    All processes of a run call its methods alike.
    """

    def publish(self, name: str) -> None:
        """Give the server the weights as they are now; raise SamplerError if it does not take them."""

    def write(self, name: str) -> Path:
        """Write the weights as they are now, for the server, unless they are there; return their folder."""

    def sampled(self, journals: Sequence[Path], contexts: Sequence[Context]) -> None:
        """Check samples of the server; raise SamplerError if they are not from these weights."""

    def facts(self, name: str) -> dict[str, Any]:
        """Return the facts found when the server was given the weights of that name."""

    def rest(self) -> None:
        """Put the server to sleep, where it is to leave its GPU to scoring and training."""


class SamplingStages:
    """Sample in a folder, over all processes of a run.

    Parameters
    ----------
    samples : int
        Completions a context.
    seed : int
    sampler : Sampler
    processes : Processes
    trainable : Trainable
        The check that samples must pass.
    served : ServedWeights, optional
        Gives a server the policy's weights, under a name; only the main process samples then.
    progress : callable, optional
        Called with (what, done, due).
    """

    def __init__(
        self,
        samples: int,
        seed: int,
        sampler: Sampler,
        processes: Processes,
        *,
        trainable: Trainable,
        served: Served | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.samples, self.seed, self.sampler, self.trainable = samples, seed, sampler, trainable
        self.processes, self.served, self.progress = processes, served, progress

    @HERE.doing("sampling")
    def sample(
        self, folder: Path, contexts: Sequence[Context], key: int, policy: str, samples: int | None = None
    ) -> None:
        """Write `samples.jsonl`, from journals that are gone on with.

        Parameters
        ----------
        folder : Path
        contexts : sequence of Context
        key : int
            Number of the round.
        policy : str
            Version of the weights.
        samples : int, optional
            Completions a context; default: as many as a round has.
        """
        with saying_how_to_go_on("add --resume to the same command"):
            self._sample(folder, contexts, key, policy, samples)

    def _sample(self, folder: Path, contexts: Sequence[Context], key: int, policy: str, samples: int | None) -> None:
        served, by_server = self.served, self.served is not None
        if served is not None:
            served.publish(served_name(policy))
        rank, ranks = (0, 1) if by_server else (self.processes.rank, self.processes.ranks)
        journals = [folder / f"samples-rank-{number}.journal.jsonl" for number in range(ranks)]
        earlier, samples = folder / "samples-earlier.journal.jsonl", samples or self.samples
        size = self.sampler.together(samples)

        def there() -> list[Path]:
            return sorted(folder.glob("samples-*.journal.jsonl"))  # the earlier one first: of two rows the last counts

        def act() -> None:
            if by_server and self.processes.rank:
                return
            sample_into(
                journals[rank],
                contexts,
                samples,
                self.sampler,
                key=(self.seed, key),
                policy=policy,
                trainable=self.trainable,
                rank=rank,
                ranks=ranks,
                earlier=earlier,
                progress=self._told("sampling"),
            )

        self.processes.on_main(lambda: regroup(there(), journals, earlier, contexts, size))
        self.processes.each(act)
        if served is not None:
            served.sampled(there(), contexts)
        self.processes.on_main(lambda: gather_samples(folder / "samples.jsonl", there(), contexts, policy))
        self.rest()

    def rest(self) -> None:
        """Free the sampler's GPU for scoring and training, where the configuration says so."""
        if self.served is not None:
            self.served.rest()

    def close(self) -> None:
        """Close the sampler."""
        self.sampler.close()

    def _told(self, what: str) -> Progress | None:
        if self.progress is None:
            return None
        tell = self.progress
        return lambda done, due: tell(what, done, due)


class RoundStages(SamplingStages):
    """Sample and score in a round's folder, over all processes of a run.

    Parameters
    ----------
    samples, seed, sampler, processes, trainable, served, progress
        As in `SamplingStages`.
    make_scorer : callable
        Returns the Scorer; called when there is something to score, and so when the run's folder is its own.
    scoring : ScoringConfig
        Says how many completions may have no score.
    """

    def __init__(
        self,
        samples: int,
        seed: int,
        sampler: Sampler,
        make_scorer: Callable[[], Scorer],
        processes: Processes,
        *,
        scoring: ScoringConfig,
        trainable: Trainable,
        served: Served | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        super().__init__(samples, seed, sampler, processes, trainable=trainable, served=served, progress=progress)
        self.make_scorer, self.scoring = make_scorer, scoring
        self._scorer: Scorer | None = None

    @property
    def scorer(self) -> Scorer:
        """Return the scorer."""
        self._scorer = self._scorer or self.make_scorer()
        return self._scorer

    @HERE.doing("scoring completions")
    def score(self, folder: Path, of: str) -> None:
        """Write `scores.jsonl`; what was scored before comes from the scorer's cache.

        Parameters
        ----------
        folder : Path
        of : str
            Name of the samples in it, for messages.

        Raises
        ------
        RoundError
            If more completions have no score than is allowed; the file is not written, so that they are scored again.
        """
        rollouts = read_rollouts(folder / "samples.jsonl")
        rank, ranks = self.processes.rank, self.processes.ranks
        found: list[tuple[int, int, Score]] = []

        def part(number: int) -> Path:
            return folder / f"scores-rank-{number}.part.jsonl"

        def act() -> None:
            found.extend(
                score_share(
                    rollouts,
                    self.scorer,
                    rank=rank,
                    ranks=ranks,
                    progress=self._told("scoring"),
                    stopping=self.processes.stopping,
                )
            )
            if ranks > 1:
                rows = [{"place": [index, number], "score": _score_row(score)} for index, number, score in found]
                write_text(part(rank), json_rows(rows))

        def gather() -> None:
            if ranks > 1:
                found[:] = [
                    (*row["place"], _score_of(row["score"]))
                    for number in range(ranks)
                    for row in read_lines(part(number))
                ]
            rows = checked_scores(rollouts, found, self.scoring, of=of, mend=BY_RESUMING)
            write_text(folder / "scores.jsonl", json_rows(rows))
            for path in folder.glob("scores-rank-*.part.jsonl"):  # of more processes too, if there were more
                path.unlink(missing_ok=True)

        self.processes.each(act)
        self.processes.on_main(gather)

    def close(self) -> None:
        """Close sampler and scorer."""
        super().close()
        if self._scorer is not None:
            self._scorer.close()
