"""What the runs on a testbed begin from: start models, and the pairs that are made of a model's answers.

Both are made once and kept: a folder that holds what it should is taken as it is, and anything else in its place, left
by a run that was killed, is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from humanline.reproduce.answers import Measured, Model, measure
from humanline.reproduce.testbeds.base import Part, Source, Testbed, as_rows
from humanline.reproduce.versions import PROTOCOL, task_digest
from humanline.system.files import DamagedError, make_folder, write_text
from humanline.system.folders import MANIFEST, verify_folder
from humanline.train.policy.errors import ModelError

Kept = TypeVar("Kept")
BATCH = 16  # pairs a step, or groups of two
ANSWERS = 8  # to a prompt, of which the best and the worst make a pair
MARGIN = 0.01  # by which their scores must differ
SCORE_SEED = 7  # of the draws that are scored: one for all models, so that they differ in nothing else
_HELD_OUT = 100  # rows of the start model's
FACTS = "facts.json"
PAIRS = "pairs.jsonl"
#: Facts of a start model that was brought from elsewhere, until its own measure has borne them out (`_prove`).
TOLD = "told.json"
#: Folder beside a start model of the answers that its runs share (`shared_answers`).
ANSWERS_OF_START = "answers"
#: What rounding on another processor may change in that measure: of the score, and of the mean entropy as a share.
#: On the paths of AVX-512, AVX2 and neither not one answer of arithmetic's first start model differs, and its entropy
#: by 1e-7; one trained on another path differs in entropy by 1.5 %.
_SCORE_BY, _ENTROPY_BY = 5e-4, 1e-3
_ANEW = "Remove the folder, and copy it anew from where its runs lie"


@dataclass(frozen=True, slots=True)
class Start:
    """A start model.

    Parameters
    ----------
    model : Path
    perplexity : (float, float)
        Held-out, before and after it learned the task.
    measured : Measured
    """

    model: Path
    perplexity: tuple[float, float]
    measured: Measured


@dataclass(frozen=True, slots=True)
class Pairs:
    """Preference pairs of a model's answers, best against worst by the judge.

    Parameters
    ----------
    file : Path
    count : int
    scorer_calls : int
    gap : float
        Mean difference of the judge's scores.
    shape : "preference" or "unpaired"
        Of the file's rows; of the latter `count` is how many pairs they were made of.
    """

    file: Path
    count: int
    scorer_calls: int
    gap: float
    shape: Literal["preference", "unpaired"] = "preference"


def make_start(testbed: Testbed, source: Source, seed: int, folder: Path) -> Start:
    """Return the start model of that kind and seed, trained from random weights unless the folder has it.

    Raises
    ------
    ValueError
        If the folder has one from elsewhere, and that is not what it is said to be.
    """
    place = _start_place(testbed, source, seed, folder)
    if told_start(testbed, source, seed, folder) is not None:
        _prove(testbed, place)
    start = kept_start(testbed, source, seed, folder)
    if start is None:
        new_folder(place)
        facts = {"made_of": _made_of(testbed, source, seed), **_train_start(testbed, source, seed, place)}
        write_text(place / FACTS, json.dumps(facts, indent=1) + "\n")
        start = _read_start(place, facts)
    return start


def kept_start(testbed: Testbed, source: Source, seed: int, folder: Path) -> Start | None:
    """Return the start model that `make_start` would find made, if there is one."""
    return _kept(_start_place(testbed, source, seed, folder), _made_of(testbed, source, seed), _read_start)


def _prove(testbed: Testbed, place: Path) -> None:
    """Let a start model from elsewhere count, if its files are whole and it measures as its facts say; else raise."""
    facts = json.loads((place / TOLD).read_text(encoding="utf-8"))
    told, model = _read_start(place, facts).measured, place / "start" / "final"
    try:
        verify_folder(model, foreign=True)  # the card is left to edit, and not of the manifest
        own = measure(Model(testbed, model), SCORE_SEED)
    except (DamagedError, ModelError) as error:
        raise ValueError(
            f"{place}: this start model was brought from elsewhere and is damaged: {error}. {_ANEW}"
        ) from None
    alike = abs(own.score - told.score) <= _SCORE_BY and abs(own.entropy - told.entropy) <= _ENTROPY_BY * told.entropy
    if not alike:  # also where a number that is told is none
        raise ValueError(
            f"{place}: this start model was brought from elsewhere and is not the one that its facts speak of: it "
            f"scores {own.score:.6g} with an entropy of {own.entropy:.6g} nats a token, and they say "
            f"{told.score:.6g} and {told.entropy:.6g}. {_ANEW}"
        )
    os.replace(place / TOLD, place / FACTS)


def told_start(testbed: Testbed, source: Source, seed: int, folder: Path) -> Start | None:
    """Return the start model that was brought and that `make_start` would measure, as it is told to be, if any is."""
    return _kept(_start_place(testbed, source, seed, folder), _made_of(testbed, source, seed), _read_start, TOLD)


def has_start(testbed: Testbed, source: Source, seed: int, folder: Path) -> bool:
    """Return whether `make_start` would find the start model made."""
    return kept_start(testbed, source, seed, folder) is not None


def _start_place(testbed: Testbed, source: Source, seed: int, folder: Path) -> Path:
    return folder / testbed.name / f"{source}-{seed}"


def _read_start(place: Path, facts: Mapping[str, Any]) -> Start:
    """Return the start model of a folder; raise a ValueError or KeyError if it is not whole."""
    (before, after), model = facts["perplexity"], place / "start" / "final"
    if not model.is_dir():
        raise ValueError(f"{model} is not there")
    return Start(model, (before, after), Measured(**facts["measured"]))


def _train_start(testbed: Testbed, source: Source, seed: int, place: Path) -> dict[str, Any]:
    from humanline.train.config import TrainConfig
    from humanline.train.loop import train
    from humanline.train.policy.new_model import new_model

    rows, size = testbed.task.rows(source, seed), testbed.size
    text = write_rows(place / "train.jsonl", rows[:-_HELD_OUT])
    blank = new_model(
        place / "blank",
        text=text,
        vocab_size=testbed.vocab_size,
        hidden_size=size.hidden_size,
        layers=size.layers,
        heads=size.heads,
        max_length=testbed.max_length,
        seed=seed,
        family=size.family,
    )
    config = TrainConfig.model_validate(
        {
            "model": str(blank),
            "output": str(place / "start"),
            "seed": seed,
            "objective": {"kind": "nll"},
            "data": {
                "train": text,
                "eval": write_rows(place / "held-out.jsonl", rows[-_HELD_OUT:]),
                "max_length": testbed.max_length,
            },
            "training": {"steps": size.steps, "batch_size": size.batch_size},
            "optimizer": {"lr": size.lr, "warmup_fraction": 0.05},
        }
    )
    result = train(config, show_progress=False)
    measured = measure(Model(testbed, result.model), SCORE_SEED)
    return {"perplexity": [result.initial["perplexity"], result.final["perplexity"]], "measured": asdict(measured)}


def make_pairs(testbed: Testbed, source: Source, start: int, draw: int, folder: Path) -> Pairs:
    """Return pairs of answers that a model of that kind gives, made first where it is not there (`make_start`).

    Answers are drawn at temperature 1. A prompt gives the best and the worst of 8 by the judge, and none if these
    differ by less than .01.

    A suite draws them in a prepared worker (`humanline.reproduce.worker`). Elsewhere torch may take another path, on
    which one pair of 1500 is another, enough to change the digits of every run.

    Raises
    ------
    ValueError
        If these are too few for a step.
    """
    place, made_of = folder / testbed.name / f"{source}-{start}" / f"pairs-{draw}", _made_of(testbed, source, start)
    pairs = _kept(place, made_of, _read_pairs)
    if pairs is None:
        model = make_start(testbed, source, start, folder).model  # before the folder: one that is made empties its own
        new_folder(place)
        facts = _draw_pairs(testbed, model, draw, place)
        facts["model"] = model_digest(place.parent)
        write_text(place / FACTS, json.dumps({"made_of": made_of, **facts}, indent=1) + "\n")
        pairs = _read_pairs(place, facts)
    if pairs.count < BATCH:
        raise ValueError(
            f"{testbed.name}: {pairs.count} pairs come of {pairs.scorer_calls // ANSWERS} prompts (start model "
            f"{source}-{start}, draw {draw}), and a step takes {BATCH}: to the others no two whole answers of "
            f"{ANSWERS} differ by {MARGIN:g} in the judge's score. The start model has learned too much or "
            f"too little, or its answers are cut at {testbed.max_tokens} tokens: change the testbed's size or limits"
        )
    return pairs


def model_digest(place: Path) -> str:
    """Return the digest of the weights and all else of a start model's folder, as its manifest tells it."""
    said: str = json.loads((place / "start" / "final" / MANIFEST).read_text(encoding="utf-8"))["digest"]
    return said


def has_pairs(testbed: Testbed, source: Source, start: int, draw: int, folder: Path) -> bool:
    """Return whether `make_pairs` would find the pairs drawn, and enough of them."""
    place, made_of = folder / testbed.name / f"{source}-{start}" / f"pairs-{draw}", _made_of(testbed, source, start)
    pairs = _kept(place, made_of, _read_pairs)
    return pairs is not None and pairs.count >= BATCH


def _draw_pairs(testbed: Testbed, model: Path, draw: int, place: Path) -> dict[str, Any]:
    rows, gaps = pairs_of(Model(testbed, model), "pairs", draw)
    write_rows(place / PAIRS, rows)
    calls = ANSWERS * len(testbed.task.prompts("pairs"))
    return {"count": len(rows), "scorer_calls": calls, "gap": sum(gaps) / max(1, len(gaps))}


def _read_pairs(place: Path, facts: Mapping[str, Any]) -> Pairs:
    """Return the pairs of a folder; raise a ValueError, KeyError or FileNotFoundError if they are not whole."""
    found = Pairs(place / PAIRS, facts["count"], facts["scorer_calls"], facts["gap"])
    if (lines := found.file.read_bytes().count(b"\n")) != found.count:
        raise ValueError(f"{found.file} has {lines} whole lines, and {found.count} were written")
    return found


def pairs_of(model: Model, part: Part, draw: int) -> tuple[list[dict[str, str]], list[float]]:
    """Return pairs of a model's answers to a part's prompts, and by how much the judge's scores differ in each.

    Chosen as rounds choose: of answers that the judge finds alike the first drawn, none that ran into its limit.
    """
    answers = model.draw(part, ANSWERS, draw)
    judged = answers.judged(model.testbed)
    rows, gaps = [], []
    for first in range(0, len(judged), ANSWERS):
        places = [
            place
            for place in range(first, first + ANSWERS)
            if not answers.completions[place].truncated and answers.completions[place].text.strip()
        ]
        if not places:
            continue
        best, worst = max(places, key=judged.__getitem__), min(places, key=judged.__getitem__)  # of equals the first
        if (gap := judged[best] - judged[worst]) >= MARGIN:
            chosen, rejected = answers.completions[best].text, answers.completions[worst].text
            rows.append({"prompt": answers.prompts[first], "chosen": chosen, "rejected": rejected})
            gaps.append(gap)
    return rows, gaps


def prompt_files(testbed: Testbed, folder: Path) -> None:
    """Write the files of prompts that runs read (`prompt_file`), unless they are there."""
    make_folder(folder / testbed.name)
    for part in ("pairs", "distance"):
        path = prompt_file(testbed, part, folder)
        text = "".join(json.dumps(row) + "\n" for row in as_rows(testbed.task.prompts(part)))
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)


def prompt_file(testbed: Testbed, part: Part, folder: Path) -> Path:
    """Return the file of a part's prompts."""
    return folder / testbed.name / f"{part}.jsonl"


def new_folder(place: Path) -> None:
    """Make a folder anew, whatever a run that was killed has left in its place."""
    shutil.rmtree(place, ignore_errors=True)
    make_folder(place)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as JSON lines and return the file's path."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _kept(place: Path, made_of: str, read: Callable[[Path, Mapping[str, Any]], Kept], name: str = FACTS) -> Kept | None:
    """Return what a folder keeps, if that is whole and what would be made now."""
    try:
        facts = json.loads((place / name).read_text(encoding="utf-8"))
        return read(place, facts) if facts["made_of"] == made_of else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # damaged, or of another version
        return None


def _made_of(testbed: Testbed, source: Source, seed: int) -> str:
    """Return a digest of all that decides what a start model and its pairs are, but for the code of training."""
    said = (task_digest(testbed), source, seed, ANSWERS, MARGIN, SCORE_SEED, PROTOCOL)
    return hashlib.sha256(repr(said).encode()).hexdigest()
