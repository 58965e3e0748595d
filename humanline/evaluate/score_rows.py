"""The log-probability of every answer of a set under a model: one forward pass over each, kept in a file.

Answers are scored as training scores them: read, rendered and cut by the same code, by the same passes. What is kept is
found again by the token ids of an answer and its prompt, so that a second look, another selection of rows or a file
that has grown costs only what is new.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.evaluate.model_files import files_at_hand
from humanline.system.files import make_folder
from humanline.system.stop import StopRequested, StopSignal
from humanline.train.config import TrainConfig
from humanline.train.data.sequences import TokenSequence
from humanline.train.online.ledger import LedgerError, append, read_lines

if TYPE_CHECKING:
    from humanline.train.step.reference import LogprobsOf

Say = Callable[[str], None]
Progress = Callable[[int, int], None]
BUDGET = 8192  # tokens of a pass, padding among them, where the recipe has no training.micro_batch_tokens


def key_of(ids: np.ndarray, prompt_length: int) -> str:
    """Return what an answer's score is found by: a hash of its ids, with its prompt's, and of where it begins."""
    sha = hashlib.sha256(np.asarray(ids, dtype="<i8").tobytes())
    sha.update(prompt_length.to_bytes(8, "little"))
    return sha.hexdigest()[:32]


def score_plan(config: TrainConfig) -> dict[str, Any]:
    """Return all that scores depend on besides token ids: the model and how it is computed."""
    training, folder = config.training, Path(config.model).expanduser()
    return {
        "model": str(folder.resolve()) if folder.is_dir() else config.model,
        "model files": files_at_hand(config.model),
        "seed of the adapter": None if config.adapter is None else config.seed,
        "adapter": None if config.adapter is None else config.adapter.model_dump(mode="json"),
        "kept in": config.kept_in,
        **training.model_dump(include={"precision", "padding", "logprobs", "layers", "temperature"}, mode="json"),
    }


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of an answer.

    Attributes
    ----------
    total : float
        Sum of the log-probabilities of its tokens, nats.
    octets : int
        Bytes of its text.
    """

    total: float
    octets: int


class ScoreBook:
    """The scores of answers under one model, in a JSON-lines file that is only appended to.

    Parameters
    ----------
    folder : Path
        Made when the first score is kept. Each plan has a file of its own in it.
    plan : mapping
        What scores depend on (`score_plan`).

    Raises
    ------
    LedgerError
        If a whole line of the file is no score.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        text = json.dumps(plan, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
        self._plan, self._scores = dict(plan), dict[str, Kept]()
        for number, row in enumerate(read_lines(self.path), start=1):
            if row.get("plan") == self._plan:
                continue  # the first line, or two: of processes that began at the same moment
            key, value, octets = row.get("key"), row.get("sum"), row.get("bytes")
            if not (isinstance(key, str) and isinstance(value, float) and isinstance(octets, int)) or not (
                math.isfinite(value)
            ):
                raise LedgerError(f"{self.path}:{number}: no score of an answer; remove the file to score anew")
            self._scores[key] = Kept(value, octets)

    def __contains__(self, key: str) -> bool:
        return key in self._scores

    def __getitem__(self, key: str) -> Kept:
        return self._scores[key]

    def add(self, found: Mapping[str, Kept]) -> None:
        """Keep scores by key; raise FloatingPointError, with none kept, if a log-probability is not finite."""
        if not all(math.isfinite(one.total) for one in found.values()):
            raise FloatingPointError(
                "the model gives answers log-probabilities that are not finite: look at its weights and at the scale "
                "of its logits, or compute in float32 (training.precision)"
            )
        new = [] if self.path.is_file() else [{"plan": self._plan}]
        if new:
            make_folder(self.path.parent)
        append(self.path, [*new, *({"key": key, "sum": one.total, "bytes": one.octets} for key, one in found.items())])
        self._scores.update(found)


def passes_of(lengths: Sequence[int], budget: int, *, padded: bool) -> Iterator[list[int]]:
    """Yield the places of sequences that are scored together: the longest first, within a budget of tokens.

    Parameters
    ----------
    lengths : sequence of int >= 1
        Tokens of each sequence.
    budget : int >= 1
        Tokens of a pass; a longer sequence has one of its own.
    padded : bool
        Whether each sequence takes as many tokens as the longest of its pass.
    """
    together: list[int] = []
    used = widest = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        cost = (widest or lengths[place]) if padded else lengths[place]
        if together and used + cost > budget:
            yield together
            together, used, widest = [], 0, 0
            cost = lengths[place]
        widest = widest or lengths[place]
        together.append(place)
        used += cost
    if together:
        yield together


@dataclass(frozen=True, slots=True)
class Due:
    """An answer that has no score yet."""

    key: str
    length: int
    sequence: Callable[[], TokenSequence]


def octets_of(tokenizer: Any, sequences: Sequence[TokenSequence]) -> list[int]:
    """Return the bytes, in UTF-8, of the text of each answer that is learned, special tokens left out."""
    answers = [[token for token, counts in zip(one.ids, one.mask, strict=True) if counts] for one in sequences]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [len(text.encode(errors="replace")) for text in texts]


def score_due(
    due: Sequence[Due],
    book: ScoreBook,
    logprobs_of: LogprobsOf,
    *,
    budget: int,
    padded: bool,
    pad_id: int,
    tokenizer: Any,
    device: Any,
    stop: StopSignal | None = None,
    say: Say = lambda text: None,
    progress: Progress | None = None,
) -> None:
    """Score answers pass by pass into a book.

    Parameters
    ----------
    due : sequence of Due
        With different keys.
    book : ScoreBook
    logprobs_of : callable
        Gives the policy's token log-probabilities of a block, without gradient.
    budget : int
        Tokens of a pass.
    padded : bool
    pad_id : int
    tokenizer
    device : torch.device
    stop : StopSignal, optional
    say : callable
        Told, after two passes, how long the rest will take.
    progress : callable, optional
        Called with the answers scored and those due.

    Raises
    ------
    FloatingPointError
        As `ScoreBook.add` does.
    StopRequested
        If `stop` was asked; what is scored is kept.
    """
    from humanline.train.data.batch import make_block

    lengths = [one.length for one in due]
    passes = list(passes_of(lengths, budget, padded=padded))
    if len(passes) > 2:  # the shortest first: what is slow only once is not taken for the speed of the rest
        passes = [passes[-1], *passes[:-1]]
    left, done = sum(lengths), 0
    for number, places in enumerate(passes):
        started = time.perf_counter()
        found = [due[place].sequence() for place in places]
        block = make_block(found, [due[place].key for place in places], pad_id).to(device)
        sums = logprobs_of(block).double().sum(1).tolist()
        facts = zip(places, sums, octets_of(tokenizer, found), strict=True)
        book.add({due[place].key: Kept(value, octets) for place, value, octets in facts})
        done, tokens = done + len(places), sum(lengths[place] for place in places)
        left -= tokens
        if number == 1 and left:
            seconds = (time.perf_counter() - started) * left / tokens
            ends = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
            say(f"{len(due) - done} answers of {left:,} tokens to go: about {seconds:,.0f} s, until {ends}")
        if progress is not None:
            progress(done, len(due))
        if stop is not None and stop.requested is not None and done < len(due):
            raise StopRequested(
                stop.requested,
                f"stopped by {stop.requested}; {done} of {len(due)} scores are kept in {book.path}, and the same "
                "command goes on with them",
            )
