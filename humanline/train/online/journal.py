"""Journals of sampling: work under way, appended context by context, gone on with, and gathered into one file.

A journal outlives the process that writes it: what is in it is not sampled again, unless it is another policy's or
cannot be trained on.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from humanline.system.files import Lines, write_text
from humanline.train.data.prompts import Context
from humanline.train.online.ledger import LedgerError, append, cut_torn_end, parse_line
from humanline.train.online.trainable import Trainable, Untrainable
from humanline.train.online.types import Rollout, Sampler, SamplerError

Progress = Callable[[int, int], None]  # done, due


def sample_into(
    journal: Path,
    contexts: Sequence[Context],
    samples: int,
    sampler: Sampler,
    *,
    key: tuple[int, ...],
    policy: str,
    trainable: Trainable | None = None,
    rank: int = 0,
    ranks: int = 1,
    earlier: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Sample this rank's share of contexts into a journal, from which what is there already is not sampled again.

    Parameters
    ----------
    journal : Path
        One row a context, appended as soon as it is whole.
    contexts : sequence of Context
        All of them, in the order of the plan: batches are cut from it, the same ones however often work was stopped.
    samples : int
        Completions a context.
    sampler : Sampler
    key : tuple of int
        (seed, round).
    policy : str
        Version of the weights, written into each row.
    trainable : Trainable, optional
        A rollout that does not pass is not written, and is sampled again where the journal holds it already.
    rank, ranks : int
    earlier : Path, optional
        A journal that nobody appends to, of which nothing is sampled again either.
    progress : callable, optional
        Called with the number of this rank's contexts that are done.

    Raises
    ------
    SamplerError, SamplingStopped
        As the sampler does, or if it gives what cannot be trained on.
    LedgerError
        If the journal is damaged.
    """
    prompts = {one.id: len(one.ids) for one in contexts}
    done: set[str] = set()
    poisoned: dict[str, str] = {}
    for entry in itertools.chain(() if earlier is None else _entries(earlier), _entries(journal)):
        if entry.policy != policy:
            continue
        fault = None if trainable is None else _fault(entry, trainable, prompts.get(entry.id, 0))
        if fault is None:
            done.add(entry.id)
        else:
            poisoned[entry.id] = fault
    size = sampler.together(samples)
    share = _share(contexts, size, rank, ranks)
    if size is None:
        batches = [[one for one in cut if one.id not in done] for cut in share]
    else:
        batches = [cut for cut in share if any(one.id not in done for one in cut)]
    wanted = {one.id for cut in share for one in cut}
    for batch in batches:
        if not batch:
            continue
        for rollouts in sampler.sample(batch, samples, key=key):
            fresh = [replace(one, policy=policy) for one in rollouts if one.id not in done]
            for one in fresh:
                if len(one.completions) != samples:
                    raise SamplerError(f"{one.id}: {len(one.completions)} completions came, {samples} were asked for")
                try:
                    if trainable is not None:
                        trainable.check_rollout(one, prompts[one.id])
                except Untrainable as error:
                    raise SamplerError(f"{one.id}: what was sampled cannot be trained on: {error}") from None
            append(journal, [_counting(one, poisoned.get(one.id)).row() for one in fresh])
            done |= {one.id for one in fresh}
            if progress is not None:
                progress(len(done & wanted), len(wanted))


def regroup(
    there: Sequence[Path], journals: Sequence[Path], earlier: Path, contexts: Sequence[Context], size: int | None
) -> None:
    """Move journals of which one has another process's work into one that all processes read (`earlier`).

    That is so where another number of processes goes on with a round. For the main process, before any other samples.

    Parameters
    ----------
    there : sequence of Path
        The journals that exist, the earlier one first.
    journals : sequence of Path
        Of today's processes, in their order.
    earlier : Path
    contexts : sequence of Context
        All of them.
    size : int or None
        How many go through the model together.
    """
    shares = {
        journal: {one.id for cut in _share(contexts, size, rank, len(journals)) for one in cut}
        for rank, journal in enumerate(journals)
    }
    moved = [journal for journal in there if journal != earlier]
    if all(entry.id in shares.get(journal, ()) for journal in moved for entry in _entries(journal)):
        return

    def lines() -> Iterator[str]:
        for journal in there:
            with open(journal, encoding="utf-8", newline="\n") as file:
                yield from file

    write_text(earlier, Lines(lines))
    for journal in moved:
        journal.unlink()


def gather_samples(target: Path, journals: Iterable[Path], contexts: Sequence[Context], policy: str) -> None:
    """Write the rows of journals into one file, in the order of the plan.

    Raises
    ------
    LedgerError
        If a context was not sampled from that policy.
    """
    found = {entry.id: entry for journal in journals for entry in _entries(journal) if entry.policy == policy}
    missing = [context.id for context in contexts if context.id not in found]
    if missing:
        raise LedgerError(f"{target.parent}: {len(missing)} prompts were not sampled, such as {missing[0]}")

    def lines() -> Iterator[str]:
        for context in contexts:
            entry = found[context.id]
            with open(entry.journal, "rb") as file:
                file.seek(entry.start)
                yield file.read(entry.end - entry.start).decode()

    write_text(target, Lines(lines))


def rollout_of(row: Mapping[str, Any], place: str, advice: str) -> Rollout:
    """Return the rollout of a row; raise LedgerError, with place and advice, if it is none."""
    try:
        return Rollout.from_row(row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise LedgerError(f"{place}: no row of samples ({why}); {advice}") from None


def _share(contexts: Sequence[Context], size: int | None, rank: int, ranks: int) -> list[list[Context]]:
    """Return the contexts that a rank samples, by the batches in which they go through the model, if by any."""
    if size is None:
        return [list(contexts[rank::ranks])]
    return [list(contexts[i : i + size]) for i in range(0, len(contexts), size)][rank::ranks]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A context in a journal: whose samples they are, and where."""

    id: str
    policy: str
    journal: Path
    number: int  # of its line
    start: int
    end: int


def _entries(journal: Path) -> Iterator[_Entry]:
    """Yield the entries of a journal, reading no more of each row than that; a torn end is cut off.

    Raises
    ------
    LedgerError
        If a row has no id or policy.
    """
    if not journal.is_file():
        return
    cut_torn_end(journal)
    decoder, start = json.JSONDecoder(), 0
    with open(journal, "rb") as file:
        for number, line in enumerate(file, start=1):
            end = start + len(line)
            head = line[:4096].decode("ascii", "replace")
            try:
                name, at = decoder.raw_decode(head, _behind('{"id": ', head, 0))
                policy, _ = decoder.raw_decode(head, _behind(', "policy": ', head, at))
            except ValueError:  # in another order, or damaged
                row = parse_line(journal, number, line)
                name, policy = row.get("id"), row.get("policy")
            if not isinstance(name, str) or not isinstance(policy, str):
                raise LedgerError(f"{journal}:{number}: damaged: no id; remove the file to do its work again")
            yield _Entry(name, policy, journal, number, start, end)
            start = end


def _behind(expected: str, text: str, at: int) -> int:
    """Return where what is expected at a place of a text ends; raise ValueError if something else stands there."""
    if not text.startswith(expected, at):
        raise ValueError(f"no {expected}")
    return at + len(expected)


def _fault(entry: _Entry, trainable: Trainable, prompt: int) -> str | None:
    """Return why a row of a journal cannot be trained on, if it cannot; raise LedgerError if it is none."""
    with open(entry.journal, "rb") as file:
        file.seek(entry.start)
        row = parse_line(entry.journal, entry.number, file.read(entry.end - entry.start))
    rollout = rollout_of(row, f"{entry.journal}:{entry.number}", "remove the file to do its work again")
    try:
        trainable.check_rollout(rollout, prompt)
    except Untrainable as error:
        return error.reason
    return None


def _counting(rollout: Rollout, fault: str | None) -> Rollout:
    """Return a rollout that counts the one in whose place it was sampled, if there was one."""
    if fault is None:
        return rollout
    return replace(rollout, asked_again=Counter(rollout.asked_again) + Counter([fault]))
