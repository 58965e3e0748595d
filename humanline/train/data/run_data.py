"""The data of a configuration: units, the batches of training, and how many steps there are.

The loop runs on them; `humanline validate` only checks that they can be made.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from humanline.train.config import TrainConfig
from humanline.train.config.objective import ObjectiveSection
from humanline.train.data.batch import Unit
from humanline.train.data.counting import Counting, uncounted
from humanline.train.data.messages import Message, Messages
from humanline.train.data.prompts import Context, Draw, contexts_hash, read_contexts
from humanline.train.data.render import Renderer
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.sets import DataSets, Report, read_sets
from humanline.train.data.stream import Stream
from humanline.train.data.travelled import read_travelled
from humanline.train.data.units import units_hash

_MANY = 20  # a pass that leaves out no more than one prompt in so many goes without a remark


def renderer_of(config: TrainConfig, tokenizer: Any) -> Renderer:
    """Return the template path of a run; raise ValueError as `Renderer` does."""
    data = config.data
    return Renderer(
        tokenizer, data.template, data.max_length, data.too_long, data.max_prompt_length, data.special_tokens, data.date
    )


@dataclass(frozen=True, slots=True)
class RunData:
    """What a run reads before it begins.

    Parameters
    ----------
    sets : DataSets
        In rounds its units are as long as those of a round can be, and stand for them.
    contexts, held_out : list of Context
        Prompts, in rounds.
    travelled : list of Context
        Prompts by whose answers the distance from the start is measured.
    """

    sets: DataSets
    contexts: list[Context] = field(default_factory=list)
    held_out: list[Context] = field(default_factory=list)
    travelled: list[Context] = field(default_factory=list)

    @property
    def probe(self) -> tuple[int, ...]:
        """Return a few token ids to try a model on."""
        return self.sets.train[0].sequences[0].ids[:16]

    def hashes(self, objective: ObjectiveSection) -> dict[str, str]:
        """Return the hashes that a resumed run of an objective must share."""
        # Log-probabilities computed ahead are of no use to a step that is cut into passes in another way.
        cut = {f"micro-batches of {objective.title}": "of rows (formerly of groups)"}
        passes = cut if objective.grouping is not None else {}
        if self.contexts:
            data = {"training data": contexts_hash(self.contexts), "held-out data": contexts_hash(self.held_out)}
        else:
            data = {"training data": units_hash(self.sets.train), "held-out data": units_hash(self.sets.held_out)}
        if self.travelled:
            data["prompts of evaluation.distance"] = contexts_hash(self.travelled)
        return data | passes


def read_data(config: TrainConfig, renderer: Renderer, counting: Counting = uncounted) -> RunData:
    """Read, check and tokenise all data of a run, and show how far reading is.

    Raises
    ------
    FileNotFoundError, DataError, ValueError
        As `read_sets`, `read_contexts` and `read_travelled` do.
    """
    if config.rounds is None:
        sets = read_sets(config, renderer, counting)
        if config.evaluation.distance is None:
            return RunData(sets)
        trained, scored = (_prompt_keys(units) for units in (sets.train, sets.held_out))
        found, sets.reports["distance"] = read_travelled(config, renderer, _key_of_ids, trained, scored, counting)
        return RunData(sets, travelled=found)
    contexts, report = read_contexts(config, config.data.train, renderer, counting)
    reports: dict[str, Report] = {"train": report}
    held_out: list[Context] = []
    if config.data.eval is not None:
        limit = config.evaluation.limit
        asking = config.asking
        held_out, reports["held_out"] = read_contexts(
            config, config.data.eval, renderer, counting, limit, sampling=asking
        )
        shared = _count_shared(held_out, contexts, (asking.system_prompt, config.rounds.sampling.system_prompt))
        reports["held_out"] = replace(reports["held_out"], prompts_in_training=shared)
    travelled: list[Context] = []
    if config.evaluation.distance is not None:
        asked = (config.rounds.sampling.system_prompt, config.asking.system_prompt)
        key = functools.partial(_bare, system=config.travelling.system_prompt)
        of_training, of_looks = (
            {_bare(one, system) for one in own} for own, system in zip((contexts, held_out), asked, strict=True)
        )
        travelled, reports["distance"] = read_travelled(config, renderer, key, of_training, of_looks, counting)
    sets = DataSets(rehearsal(config, contexts, renderer), reports=reports)
    return RunData(sets, contexts, held_out, travelled)


def _prompt_keys(units: Sequence[Unit]) -> set[int]:
    """Return what `_key_of_ids` gives of the prompts of units."""
    return {hash(unit.sequences[0].ids[: unit.sequences[0].prompt_length]) for unit in units}


def _key_of_ids(context: Context) -> int:
    return hash(context.ids)


def _bare(context: Context, system: str | None) -> Messages:
    """Return a prompt without the system prompt that was put before it."""
    return context.prompt[1:] if context.prompt[0] == Message("system", system or "") else context.prompt


def _count_shared(first: Sequence[Context], second: Sequence[Context], systems: tuple[str | None, str | None]) -> int:
    """Return how many prompts both sets have, whatever system prompt was put before those of each."""
    if systems[0] == systems[1]:
        return len({context.ids for context in first} & {context.ids for context in second})
    ours, theirs = (
        {_bare(one, system) for one in contexts} for contexts, system in zip((first, second), systems, strict=True)
    )
    return len(ours & theirs)


def stream_of(
    config: TrainConfig, data: RunData, renderer: Renderer, *, rank: int = 0, ranks: int = 1
) -> tuple[Stream, int]:
    """Return the batches of a run and how many steps it has; in rounds, batches that stand for others, and at most.

    Raises
    ------
    ValueError
        As `Stream` does; or if a round can never fill a batch, never has the other prompt that KTO needs, or needs more
        prompts than there are; or if there are more processes than rows in a step.
    """
    if config.rounds is not None:
        most, batch = config.units_a_round, config.training.batch_size
        if most < batch:
            raise ValueError(
                f"a round of {config.rounds.contexts_per_round} prompts gives at most {most} of the "
                f"training.batch_size {batch}: raise source.contexts_per_round or lower training.batch_size"
            )
        if config.objective.mismatched and config.rounds.contexts_per_round < 2:
            raise ValueError(
                f"{config.objective.title} takes z_0 from answers to other prompts, of which a round of one has none: "
                "source.contexts_per_round must be at least 2; got 1"
            )
        Draw(data.contexts, config.rounds.contexts_per_round, config.seed)
    rows = config.training.batch_size * config.rows_a_unit
    if rows < ranks:
        raise ValueError(
            f"{ranks} processes cannot share the {rows} rows of a step: raise training.batch_size, or start fewer"
        )
    stream = training_stream(config, data.sets.train, renderer, rank=rank, ranks=ranks)
    steps = run_length(config, stream) if config.rounds is None else round_steps(config, len(data.contexts))
    return stream, steps


def count_rounds(config: TrainConfig, prompts: int) -> int:
    """Return how many rounds a run has; without end where the length is given in steps."""
    rounds, epochs = config.rounds, config.training.epochs
    assert rounds is not None
    if rounds.count is not None:
        return rounds.count
    return sys.maxsize if epochs is None else max(1, math.floor(epochs * (prompts // rounds.contexts_per_round) + 1e-9))


def left_of_a_pass(config: TrainConfig, prompts: int) -> list[str]:
    """Return a remark where training.epochs counts passes in which whole rounds leave many prompts out, else nothing.

    Parameters
    ----------
    config : TrainConfig
    prompts : int
        Of the whole run.
    """
    rounds, epochs = config.rounds, config.training.epochs
    if rounds is None or epochs is None or (left := prompts % rounds.contexts_per_round) * _MANY <= prompts:
        return []
    whole = prompts // rounds.contexts_per_round
    return [
        f"training.epochs: {epochs:g} makes {count_rounds(config, prompts)} round(s): a pass has {whole} whole one(s), "
        f"of {rounds.contexts_per_round} prompts (source.contexts_per_round), and leaves out {left} of {prompts} "
        "prompts, others each time; make rounds smaller, or give their number as source.count"
    ]


def round_steps(config: TrainConfig, prompts: int) -> int:
    """Return the steps of a run in rounds, if none of them leaves anything out."""
    rounds = config.rounds
    assert rounds is not None
    return config.training.steps or count_rounds(config, prompts) * config.round_steps


def rehearsal(config: TrainConfig, contexts: Sequence[Context], renderer: Renderer) -> list[Unit]:
    """Return a batch of units as long as those of a round can be: the longest prompts, with answers of full length."""
    rounds, members = config.rounds, config.rows_a_unit
    assert rounds is not None
    longest = sorted(contexts, key=lambda context: -len(context.ids))
    taken = [longest[number % len(longest)] for number in range(config.training.batch_size)]
    if config.objective.mismatched and len({context.ids for context in taken}) == 1:  # the longest one is there often
        taken[-1] = next((context for context in longest if context.ids != taken[0].ids), taken[0])
    units = []
    for number, context in enumerate(taken):
        room = min(rounds.sampling.max_tokens, config.data.max_length - len(context.ids))
        sequence = TokenSequence((*context.ids, *(renderer.tokenizer.eos_token_id,) * room), len(context.ids))
        scores = tuple(float(member) for member in range(members)) if members > 1 else ()
        units.append(Unit(f"{context.id}@{number}", (sequence,) * members, desirable=number % 2 == 0, scores=scores))
    return units


def training_stream(
    config: TrainConfig,
    units: Sequence[Unit],
    renderer: Renderer,
    *,
    rank: int = 0,
    ranks: int = 1,
    seed: int | None = None,
) -> Stream:
    """Return the batches of training, drawn with the run's seed by default; raise ValueError as `Stream` does."""
    return Stream(
        units,
        config.objective,
        batch_size=config.training.batch_size,
        micro_batch_size=config.training.micro_batch_size,
        seed=config.seed if seed is None else seed,
        pad_id=pad_id(renderer),
        max_length=config.data.max_length,
        rank=rank,
        ranks=ranks,
        micro_batch_tokens=config.training.micro_batch_tokens,
        padding=config.training.padding,
    )


def run_length(config: TrainConfig, stream: Stream) -> int:
    """Return the number of steps of a run."""
    return config.training.steps or stream.steps(config.training.epochs or 0.0)


def pad_id(renderer: Renderer) -> int:
    """Return any token to pad with: what counts goes by position."""
    pad: int | None = renderer.tokenizer.pad_token_id
    return int(renderer.tokenizer.eos_token_id) if pad is None else pad
