"""How probable the policy that a run starts from finds the run's own data, from scores that step 0 has anyway.

Nothing is run, and the device is not waited for, on its account. Where the reference is scored ahead, the start policy
scores the first steps of the run at its beginning: all steps under a reference that never moves, k + 1 under one that
moves every k steps. Else it is the pass of the first step itself. Rows come in the order of training, which is drawn at
random, so that those of the first steps are a random sample of the data.

In rounds nothing is said: the answers are the policy's own, and so lie at its own level by construction.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from humanline.train.config import TrainConfig
from humanline.train.data.batch import MicroBatch, Row
from humanline.train.data.levels import (
    PAPER_RANGE,
    Level,
    RowScores,
    against_paper,
    deciding_part,
    estimate_as_json,
    levels_by_part,
    quarters_of,
    side_of_paper,
    told,
)
from humanline.train.data.transfer import to_device
from humanline.train.data.units import SIDES
from humanline.train.run.folder import RunFolder
from humanline.train.run.processes import Processes
from humanline.train.step.finite import Suspect

FORMAT = 1
FEWEST = 40  # rows of a sample from which quartiles are taken, ten each


class DataLevel:
    """Collect what the start policy scores of the data, and tell it once step 0 is over.

    Parameters
    ----------
    units : int
        Of the data.
    labelled : bool
        Whether answers are desirable or not.
    exact : bool
        Whether a pass of training gives the policy's own log-probabilities: there is no dropout.
    folder : RunFolder
        Keeps what is told.
    processes : Processes
        They put together what each of them has scored, once.
    say : callable
    """

    def __init__(
        self,
        units: int,
        *,
        labelled: bool,
        exact: bool,
        folder: RunFolder,
        processes: Processes,
        say: Callable[[str], None],
    ) -> None:
        self.units, self.labelled, self.exact = units, labelled, exact
        self.folder, self.processes, self.say = folder, processes, say
        self._open, self._steps = True, 0
        self._sums: list[Tensor] = []  # log-probabilities of answers, on the device until step 0 is read
        self._count = 0  # of these
        self._places, self._facts, self._seen = array("q"), array("q"), set[int]()  # of each answer that is new in them

    def begin(self, updates: int) -> None:
        """Go on from so many updates; what an earlier process of the run has told is said again, and stands."""

        def look() -> int:
            kept = self.folder.kept_levels()
            self._say(kept)
            return kept is not None

        if self.processes.on_main(look) or updates:
            self.close()

    def close(self) -> None:
        """Collect nothing more, and tell nothing."""
        self._open, self._sums = False, []
        self._places, self._facts, self._seen = array("q"), array("q"), set()

    def hear(self, step: int, batch: MicroBatch, logprobs: Tensor) -> None:
        """Take note of what the start policy gives a micro-batch of a step; of an answer that comes again the first.

        Parameters
        ----------
        step : int
        batch : MicroBatch
        logprobs : (R, T - 1) tensor
            0 where labels do not count, nats.
        """
        if not self._open:
            return
        self._steps = max(self._steps, step + 1)
        known = len(self._places)
        for place, row in enumerate(batch.rows, start=self._count):
            name = _number(row.name)
            if name not in self._seen:
                self._seen.add(name)
                self._places.append(place)
                self._facts.extend(_facts(row))
        if len(self._places) > known:
            precise = torch.float32 if logprobs.device.type == "mps" else torch.float64  # which mps lacks
            self._sums.append(to_device(logprobs.detach().sum(1, dtype=precise), self.processes.device))
            self._count += len(logprobs)

    def unread(self, suspects: Sequence[Suspect]) -> list[Tensor]:
        """Return what `take` wants to know, on the device; once step 0 is over nothing.

        Parameters
        ----------
        suspects : sequence of Suspect
            The micro-batches of step 0 with their log-probabilities.
        """
        if self._open and self.exact:
            for one in suspects:
                self.hear(0, one.batch, one.logprobs)
        return self._sums

    def take(self, values: Sequence[float]) -> None:
        """Tell what the values of `unread` say, at the end of step 0; all processes call it alike."""
        if not self._open:
            return
        sums = np.array(values, dtype=np.float64)[np.array(self._places)]
        facts, steps = np.array(self._facts).reshape(-1, _FACTS), self._steps
        self.close()
        rows = self._together(np.column_stack([facts, sums.view(np.int64)]))
        if self.processes.rank == 0:
            scores, labels = _scores_of(rows)
            tree = level_tree(scores, labels if self.labelled else None, units=self.units, steps=steps)
            self.folder.keep_levels(tree)
            self._say(tree)

    def _say(self, tree: Mapping[str, Any] | None) -> None:
        for line in described(tree or {}, self.folder.config):
            self.say(line)

    def _together(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of all processes."""
        reduce, ranks = self.processes.meeting.reduce, self.processes.ranks
        if ranks == 1:
            return rows
        counts = torch.zeros(ranks, dtype=torch.int64)
        counts[self.processes.rank] = len(rows)
        counts = reduce(counts, "sum")
        table = torch.zeros((ranks, int(counts.max()), rows.shape[1]), dtype=torch.int64)
        table[self.processes.rank, : len(rows)] = torch.from_numpy(rows)
        table = reduce(table, "sum")
        return np.concatenate([table[rank, :count].numpy() for rank, count in enumerate(counts.tolist())])


def data_level_of(
    config: TrainConfig, units: int, folder: RunFolder, processes: Processes, say: Callable[[str], None]
) -> DataLevel:
    """Return what tells the level of a run's data; in rounds it tells nothing."""
    dropout = config.training.dropout or (config.adapter is not None and config.adapter.dropout)
    labelled = config.objective.unit == "example"
    level = DataLevel(units, labelled=labelled, exact=not dropout, folder=folder, processes=processes, say=say)
    if config.rounds is not None:
        level.close()
    return level


_FACTS = 5


def _number(text: str) -> int:
    """Return 64 bits of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _facts(row: Row) -> list[int]:
    """Return the unit, member, label, prompt and tokens of an answer, as numbers that processes can exchange."""
    sequence = row.sequence
    prompt = hash(sequence.ids[: sequence.prompt_length])  # of whole numbers: alike in all processes
    return [_number(row.unit.id), row.member, int(row.unit.desirable), prompt, sequence.learned]


def _scores_of(rows: np.ndarray) -> tuple[RowScores, np.ndarray]:
    """Return the units of which all answers are there, and their labels (1 or 0)."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    again = np.zeros(len(rows), dtype=bool)
    again[1:] = (rows[1:, :2] == rows[:-1, :2]).all(1)  # in two processes, at the seam of two epochs
    rows = rows[~again]
    members = int(rows[:, 1].max(initial=0)) + 1
    _, at, counts = np.unique(rows[:, 0], return_inverse=True, return_counts=True)
    whole = rows[(counts == members)[at]].reshape(-1, members, rows.shape[1])
    _, _, labels, prompts, tokens, sums = (np.ascontiguousarray(whole[:, :, n]) for n in range(_FACTS + 1))
    scores = RowScores(
        parts=SIDES if members == len(SIDES) else ("answer",),
        prompts=prompts[:, 0],
        sums=sums.view(np.float64),
        tokens=tokens,
        octets=np.zeros_like(tokens),  # nobody has asked the tokenizer
    )
    return scores, labels[:, 0]


def level_tree(scores: RowScores, labels: np.ndarray | None, *, units: int, steps: int) -> dict[str, Any]:
    """Return the level of rows, overall and by quartile, as `levels.json` in the run's folder holds it.

    The mean of all rows and of each part has the 95 % interval of `humanline inspect-data`, clustered by prompt. Of
    quartiles none is given: where the rows are a sample so are the edges, which such an interval takes for known.

    Parameters
    ----------
    scores : RowScores
        Of the rows that were scored.
    labels : (R,) int array or None
        1 for desirable answers and 0 for undesirable ones, where they have labels.
    units : int
        Rows of the data, those included that were not scored.
    steps : int
        To which the scored ones belong, from the first on.
    """
    rows = len(scores)
    tree: dict[str, Any] = {"format": FORMAT, "rows": rows, "of": units, "steps": steps}
    if not rows:
        return tree
    few = rows < min(FEWEST, units)
    quarters = [] if few else quarters_of(scores)
    levels, decides = levels_by_part(scores, labels), deciding_part(scores)
    return tree | {
        "decides": decides,
        "levels": {name: _level(one) for name, one in levels.items()},
        "quartiles": [
            {"nats_per_token": one.level.nats.mean, "from": one.low, "to": one.high}
            | {"rows": one.level.rows, "tokens": one.level.tokens}
            for one in quarters
        ]
        or None,
        "no_quartiles": "few rows" if few else None if quarters else "equal levels",
        "paper": {"range": list(PAPER_RANGE), "side": side_of_paper(levels[decides].nats.mean)},
    }


def _level(level: Level) -> dict[str, Any]:
    return {"nats_per_token": estimate_as_json(level.nats), "rows": level.rows, "tokens": level.tokens}


def described(tree: Mapping[str, Any], recipe: object) -> list[str]:
    """Return the lines that say what `level_tree` holds; none for what another version has made, or nobody.

    Parameters
    ----------
    tree : mapping
    recipe : path or str
        What `humanline inspect-data` is to be given.
    """
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return list(_lines(tree, recipe)) if tree["format"] == FORMAT else []
    return []


def _lines(tree: Mapping[str, Any], recipe: object) -> Iterator[str]:
    inspect = f"humanline inspect-data {shlex.quote(str(recipe))} --own-samples 50"
    if not tree["rows"]:
        yield (
            "level of the data: not known, since the pass of the first step has dropout in it (training.dropout, "
            f"adapter.dropout); {inspect} measures it"
        )
        return
    decides, levels = tree["decides"], tree["levels"]
    yield f"level of the data: {_told(levels[decides])} nats per token before training, of {_rows_of(tree)}"
    parts = [f"{name} {_told(one)}" for name, one in levels.items() if name != decides]
    if parts:
        yield f"  {', '.join(parts)}"
    if tree["quartiles"]:
        means = ", ".join(f"{one['nats_per_token']:.3f}" for one in tree["quartiles"])
        yield f"  quartiles of these {_noun(tree)}s: {means}"
    elif tree["no_quartiles"] == "few rows":
        yield f"  too few for quartiles: {FEWEST} {_noun(tree)}s are wanted"
    else:
        yield "  no quartiles: so few levels differ that one would be empty"
    yield f"  {against_paper(levels[decides]['nats_per_token']['value'])}"
    yield f"  the yardstick for any model is the level of its own answers, which {inspect} measures"


def _noun(tree: Mapping[str, Any]) -> str:
    return "pair" if tree["decides"] == "pair" else "answer"


def _rows_of(tree: Mapping[str, Any]) -> str:
    """Return in words which rows were scored."""
    rows, units, steps, noun = tree["rows"], tree["of"], tree["steps"], _noun(tree)
    if rows == units:
        return f"all {units:,} {noun}s"
    first = "step" if steps == 1 else f"{steps:,} steps"
    return f"{rows:,} of {units:,} {noun}s, drawn at random: those of the first {first}"


def _told(level: Mapping[str, Any]) -> str:
    nats = level["nats_per_token"]
    return told(nats["value"], float("inf") if nats["high"] is None else nats["high"] - nats["value"])
