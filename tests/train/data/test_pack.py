"""Data that one process reads for all are what each would have read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from humanline.train.data.pack import pack, unpack
from humanline.train.data.run_data import read_data, renderer_of
from humanline.train.data.sequences import IdStore
from tests.helpers.support import config

CASES = {
    "pairs": ("dpo", "preference", "pairs"),
    "taken apart": ("kto", "preference", "pairs"),
    "labelled": ("kto", "unpaired", "unpaired"),
    "groups": ("grpo", "preference", "pairs"),
    "chosen": ({"kind": "nll"}, "preference", "pairs"),
}


@pytest.fixture
def toy(toy_data):
    return toy_data | {"model": "never loaded"}


def read_and_packed(given, tokenizer):
    renderer = renderer_of(given, tokenizer)
    data = read_data(given, renderer)
    return data, unpack(pack(data), given, renderer)


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_sets_come_out_as_they_went_in(toy, tokenizer, case, held_out):
    """Units, their order, names, labels and scores, held-out pairs and reports are equal, and so are their hashes."""
    objective, shape, name = CASES[case]
    data = {"train": toy[name], "shape": shape, "max_length": 40, "too_long": "drop"}
    given = config(toy, Path("unused"), objective, data=data | ({"eval": toy[name]} if held_out else {}))
    read, packed = read_and_packed(given, tokenizer)
    assert len(packed.sets.train) == len(read.sets.train) > 10
    assert packed == read
    assert bool(packed.sets.held_out_pairs) == (held_out and case == "taken apart")
    assert packed.hashes(given.objective) == read.hashes(given.objective)
    lengths = [[list(units.lengths()) for units in (one.sets.train, one.sets.train.pairs())] for one in (read, packed)]
    assert lengths[0] == lengths[1]


def test_prompts_come_out_as_they_went_in(toy, tokenizer, tmp_path):
    """Prompts of rounds keep their messages, with all keys, and the columns that rewards read."""
    call = {"function": {"name": "sort", "arguments": {"b": 1, "a": [None, 0.1]}}, "type": "function"}
    rows = [
        {"prompt": [{"role": "user", "content": f"{i} é\u2028"}], "answer": {"n": i / 3, "of": ["x", True]}}
        for i in range(12)
    ]
    rows[3]["prompt"].insert(0, {"role": "system", "content": "Sort.", "note": json.dumps(call)})
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    reward = {"kind": "function", "call": "tests.helpers.toy_rewards:digits"}
    given = config(
        toy,
        Path("unused"),
        "grpo",
        data={"train": str(file), "eval": str(file), "max_length": 64, "ignore": ["note"]},
        training={"batch_size": 4},
        reference={"schedule": {"kind": "before_step", "every": 2}},
        source={
            "kind": "rounds",
            "contexts_per_round": 12,
            "count": 1,
            "sampling": {"max_tokens": 8, "engine": {"kind": "generate"}},
            "scoring": {"rewards": [reward]},
        },
    )
    read, packed = read_and_packed(given, tokenizer)
    assert packed == read
    assert [one.prompt[0].place for one in packed.contexts] == [one.prompt[0].place for one in read.contexts]
    assert packed.hashes(given.objective) == read.hashes(given.objective)


@pytest.mark.parametrize("largest", [60_000, 70_000, 2**24, 2**32 - 1])
def test_ids_of_every_width(largest):
    """Token ids in chunks of two, three and four bytes, and those that are not packed yet, are read as before."""
    store, spans = IdStore(), []
    for start in range(0, 600_000, 50_000):
        ids = [(7919 * (start + i)) % (largest + 1) for i in range(50_000)]
        spans.append((store.add(ids), ids))
    again = IdStore.of_arrays(store.arrays())
    for start, ids in spans:
        assert again.read(start, len(ids)).tolist() == ids
    assert again.add([5, 6]) == store.add([5, 6])
    assert again.read(600_000, 2).tolist() == [5, 6]
