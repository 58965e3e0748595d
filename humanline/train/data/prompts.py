"""A set of prompts -> the contexts that rounds sample from, and which of them each round takes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from humanline.train.config import TrainConfig
from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.counting import Counting, uncounted
from humanline.train.data.duplicates import Duplicates
from humanline.train.data.layout import with_hint
from humanline.train.data.messages import Given, Message, Messages
from humanline.train.data.render import Renderer
from humanline.train.data.rows import SetReader
from humanline.train.data.sets import Report
from humanline.train.data.shapes import INSTRUCTING, Example, PromptOnly, Shape
from humanline.train.data.source import DataError
from humanline.train.data.tokenize import Tokenizing, in_batches
from humanline.train.data.units import Names


def read_contexts(
    config: TrainConfig,
    path: str,
    renderer: Renderer,
    counting: Counting = uncounted,
    limit: int | None = None,
    *,
    sampling: SamplingConfig | None = None,
    shape: Shape = "prompt",
) -> tuple[list[Context], Report]:
    """Read, check and tokenise a set of prompts.

    Parameters
    ----------
    config : TrainConfig
        Whose source is rounds, unless `sampling` is given.
    path : str
        A file or a set of the hub, as `read_set` takes it.
    renderer : Renderer
    counting : Counting
        Shown how far reading is.
    limit : int, optional
        Prompts that are used, the first that fit; the others are read and checked as rows.
    sampling : SamplingConfig, optional
        Its system_prompt is put before prompts that begin with no message of the system or the developer; default:
        source.sampling.
    shape : {"prompt", "preference", "unpaired", "completion"}
        What a row holds; of one that holds more than a prompt nothing else is used.

    Raises
    ------
    FileNotFoundError, DataError, ValueError
        As `read_set` and `tokenize`.
    """
    reader = SetReader.of(config.data, path, shape, counting)
    if sampling is None:
        assert config.rounds is not None
        sampling = config.rounds.sampling
    system, name = sampling.system_prompt, reader.source.name
    names, duplicates = Names(), Duplicates()
    tokenizing: Tokenizing[PromptOnly] = Tokenizing(renderer, dropping=reader.dropping)
    kept: list[PromptOnly] = []
    problems: list[str] = []

    def prompts(rows: Iterable[Example]) -> Iterator[PromptOnly]:
        for row in rows:
            extra, wrong = _plain(row.extra if isinstance(row, PromptOnly) else row.given.columns())
            problems.extend(
                f"{row.id}: column {column!r} holds {what}, which is no JSON" for column, what in wrong.items()
            )
            prompt = PromptOnly(row.id, with_system(row.prompt, system), extra, row.given)
            names.append(prompt.id)
            duplicates.add(prompt)
            yield prompt

    try:
        with contextlib.closing(iter(reader)) as rows, contextlib.closing(in_batches(prompts(rows))) as batches:
            for batch in batches:
                kept += tokenizing.add_some(batch, limit)
    except DataError as error:
        raise with_hint(error, config, shape, reader.there) from None
    if problems:
        advice = (
            "Samples are kept as JSON with the columns of their prompt: make these columns text, or leave them out "
            "(data.ignore)."
        )
        raise DataError(f"{name}: {len(problems)} values cannot be kept", problems, advice)
    bad = reader.left_out(tokenizing.dropped)
    try:
        lengths = tokenizing.finish()
    except DataError as error:
        raise DataError(f"{name}: {error.heading}", error.problems, error.advice) from None
    contexts = [
        Context(row.id, row.prompt, sequence.ids, row.extra)
        for row, (sequence,) in zip(kept, tokenizing.sequences.rows(), strict=True)
    ]
    different = len({context.ids for context in contexts})
    columns = reader.columns.also_read(scored_columns(config), config.data.columns, offered=offers_columns(config))
    beyond = len(names) - len(tokenizing.dropped) - lengths.total
    found = duplicates.report(names)
    report = Report(name, lengths, found, different, columns=columns, beyond_limit=beyond)
    return contexts, replace(report, bad_rows=bad)


def scored_columns(config: TrainConfig) -> list[str]:
    """Return the columns that rewards read, by our names."""
    from humanline.train.config.rounds import columns_of

    rewards = () if config.rounds is None else config.rounds.scoring.rewards
    return [name for reward in rewards for name in columns_of(reward)]


def offers_columns(config: TrainConfig) -> bool:
    """Return whether a reward may be a function of TRL's form that is given all columns; only its import tells."""
    rewards = () if config.rounds is None else config.rounds.scoring.rewards
    return any(one.kind == "function" and one.signature != "ours" and not one.columns for one in rewards)


def _plain(extra: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return columns as they come back from JSON, and what those hold that do not."""
    plain, wrong = {}, {}
    for name, value in extra.items():
        try:
            plain[name] = json.loads(json.dumps(value, allow_nan=False))
        except ValueError:  # of a number, that may be inside of a list
            wrong[name] = "nan or an infinite number"
        except (TypeError, RecursionError):
            wrong[name] = f"a {type(value).__name__}"
    return plain, wrong


def with_system(prompt: Messages, system: str | None) -> Messages:
    """Return a prompt that begins with instructions, unless it has some or there are none to give."""
    if system is None or prompt[0].role in INSTRUCTING:
        return prompt
    return (Message("system", system), *prompt)


def contexts_hash(contexts: Sequence[Context]) -> str:
    """Return the SHA-256 of prompts and their columns, in order."""
    sha = hashlib.sha256()
    for context in contexts:
        sha.update(json.dumps([context.id, context.ids, dict(context.extra)]).encode())
    return sha.hexdigest()


class Draw:
    """Which contexts each round takes: without replacement, pass by pass, from a permutation keyed by (seed, pass).

    A pass has as many whole rounds as fit; the few prompts left over wait for the next pass, which is shuffled anew.

    Parameters
    ----------
    contexts : sequence of Context
    per_round : int
    seed : int

    Raises
    ------
    ValueError
        If a round needs more contexts than there are.
    """

    def __init__(self, contexts: Sequence[Context], per_round: int, seed: int) -> None:
        if per_round > len(contexts):
            raise ValueError(
                f"source.contexts_per_round {per_round} is larger than the data: {len(contexts)} prompts to use"
            )
        self.contexts, self.per_round, self.seed = list(contexts), per_round, seed
        self.rounds_a_pass = len(contexts) // per_round

    def round(self, number: int) -> list[Context]:
        """Return the contexts of a round, the longest prompts first, so that batches hold prompts of like length."""
        pass_, place = divmod(number, self.rounds_a_pass)
        order = np.random.default_rng([self.seed, pass_, 1]).permutation(len(self.contexts))
        drawn = [self.contexts[i] for i in order[place * self.per_round : (place + 1) * self.per_round]]
        return sorted(drawn, key=lambda context: -len(context.ids))


@dataclass(frozen=True, slots=True)
class Context:
    """A prompt to sample from: its messages, its token ids, and the other columns of its row."""

    id: str
    prompt: Messages
    ids: tuple[int, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> Given:
        """Return the tools and arguments that its columns give the chat template."""
        return Given.of(self.extra)
