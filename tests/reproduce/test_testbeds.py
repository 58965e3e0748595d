"""Every testbed: its parts, its rows, its scores, and that its answers fit."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
from itertools import combinations
from typing import get_args

import pytest

from humanline.reproduce.rules import Rules
from humanline.reproduce.testbeds.base import Part, Source, dealt
from humanline.reproduce.testbeds.registry import TESTBEDS
from humanline.reproduce.testbeds.registry import testbed as named
from humanline.reproduce.versions import task_digest
from humanline.train.data.messages import Message
from humanline.train.data.render import Renderer
from humanline.train.policy.new_tokenizer import train_tokenizer

PARTS, SOURCES = get_args(Part), get_args(Source)
HOSTILE = (
    "",
    " ",
    "\n" * 20_000,
    "\x00\ud800\u202e",
    "abc" * 30_000,
    "<think>\n" * 10_000,
    "<think>\n" + "\n</think>\n<answer>\n" * 5_000,
    "<think>\n1\n</think>\n<answer>\n" + "1," * 50_000 + "\n</answer>",
    "<think>\n1\n</think>\n<answer>\n" + "9" * 100_000 + "\n</answer>",
    "<think>\n1\n</think>\n<answer>\n1e999999999/0\n</answer>",
)
every = pytest.mark.parametrize("name", TESTBEDS)
every_quickly = pytest.mark.parametrize(  # of tasks that come in two sizes, which are one class, the large one is slow
    "name", [pytest.param(name, marks=pytest.mark.slow if name.endswith("-large") else ()) for name in TESTBEDS]
)


def reward_of(name: str):
    """Return the function that a testbed names as its reward."""
    module, _, function = named(name).reward.partition(":")
    return getattr(importlib.import_module(module), function)


@every
def test_no_prompt_is_in_two_parts(name):
    """Parts have the prompts that the protocol needs, none of them twice, and none in common."""
    prompts = {part: named(name).task.prompts(part) for part in PARTS}
    assert len(prompts["pairs"]) == 2560 and len(prompts["score"]) == 512 and len(prompts["distance"]) >= 256
    assert all(len(set(found)) == len(found) for found in prompts.values())
    assert not any(set(prompts[a]) & set(prompts[b]) for a, b in combinations(PARTS, 2))


@pytest.mark.parametrize(  # what makes rows of instructions takes seconds, from whatever source
    "source,name",
    [
        pytest.param(source, name, marks=pytest.mark.slow if name.endswith("-large") or (i and long) else ())
        for i, source in enumerate(SOURCES)
        for name in TESTBEDS
        for long in [name.startswith("instructions")]
    ],
)
def test_rows_are_answers_to_the_prompts_to_learn_from(name, source):
    """Rows are the same at every call, differ between seeds, and hold no prompt of another part."""
    task = named(name).task
    rows = task.rows(source, 0)
    assert rows == task.rows(source, 0) and rows != task.rows(source, 1)
    assert {row["prompt"] for row in rows} <= set(task.prompts("train"))


@every
def test_what_is_asked_for_cannot_be_changed(name):
    """A caller that alters a list of prompts alters nobody else's."""
    task = named(name).task
    task.prompts("score").clear()
    assert len(task.prompts("score")) == 512


@every_quickly
def test_better_answers_are_better(name):
    """By the true score, the better model learns from better rows than near, and far from rows about as good."""
    task = named(name).task
    mean = {}
    for source in SOURCES:
        rows = task.rows(source, 0)[:500]
        mean[source] = math.fsum(task.score(row["prompt"], row["completion"]) for row in rows) / len(rows)
    assert mean["better"] > mean["near"] + 0.1
    assert abs(mean["far"] - mean["near"]) < 0.1


@every
def test_any_answer_has_a_score(name):
    """Scores are finite numbers, whatever the answer, and the same when asked again."""
    task, reward = named(name).task, reward_of(name)
    prompt = task.prompts("score")[0]
    for answer in HOSTILE:
        scores = task.score(prompt, answer), task.judged(prompt, answer)
        assert all(type(score) is float and math.isfinite(score) for score in scores)
        assert scores == (task.score(prompt, answer), task.judged(prompt, answer))
        assert reward([{"role": "user", "content": prompt}], answer) == scores[1]


@every
def test_the_reward_is_the_judge(name):
    """The reward that rounds call is the judge's score for the last message, whatever stands before it."""
    task, reward = named(name).task, reward_of(name)
    for row in task.rows("near", 3)[:100]:
        messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": row["prompt"]}]
        assert reward(messages, row["completion"]) == task.judged(row["prompt"], row["completion"])


@every_quickly
def test_answers_fit(name):
    """The longest rows fit into the limits of answers and of sequences, with room to answer longer."""
    bed = named(name)
    rows = bed.task.rows("near", 0)
    renderer = Renderer(train_tokenizer([text for row in rows for text in row.values()], bed.vocab_size), "chat", 10**6)
    rows = sorted(rows, key=lambda row: -len(row["prompt"] + row["completion"]))[:100]
    for row in rows:
        prompt = (Message("user", row["prompt"]),)
        before = len(renderer.render_prompt(prompt))
        answer = len(renderer.encode(prompt, row["completion"]).ids) - before
        assert answer <= bed.max_tokens and before + bed.max_tokens <= bed.max_length


@every
def test_a_testbed_can_be_a_key(name):
    """Runs are keys of tables, so that all that they are made of must be hashable."""
    assert {named(name): name}[named(name)] == name


#: Of all prompts and of the rows of seed 0. Results kept of earlier runs hold for these alone.
DIGESTS = {
    "letters": "d9c4f7b91f445081",
    "letters-large": "cb92cf0f3353c91f",
    "arithmetic": "133812d45692d61c",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_tasks_stay_what_they_are(name):
    """Prompts and rows are the same on every machine and in every version."""
    task = named(name).task
    held = [[task.prompts(part) for part in PARTS], [task.rows(source, 0) for source in SOURCES]]
    assert hashlib.sha256(json.dumps(held).encode()).hexdigest()[:16] == DIGESTS[name]


def test_another_family_leaves_what_llamas_are_kept_by():
    """Results of letters are kept by the text of its size, in which no family stands; Gemma 2 has one of its own."""
    llama, gemma = named("letters"), named("letters-gemma2")
    size = "Size(hidden_size=64, layers=2, heads=4, steps=700, batch_size=64, lr=0.002)"
    assert (repr(llama.size), llama.size.family, gemma.size.family) == (size, "llama", "gemma2")
    assert repr(gemma.size).startswith("Gemma2Size(") and gemma.task is llama.task
    assert task_digest(gemma) != task_digest(llama)
    assert gemma.name not in (*Rules().look, *Rules().held_out) and "none of those" in Rules().seen(gemma.name)


def test_parts_are_dealt_in_turn():
    """Parts take what is drawn in order, repeats aside; too little is an error."""
    sizes = {"train": 2, "pairs": 1, "score": 1, "distance": 0}
    assert dealt("aabacd", sizes) == {"train": ["a", "b"], "pairs": ["c"], "score": ["d"], "distance": []}
    with pytest.raises(ValueError, match="only 3 different prompts are drawn, and the parts need 4"):
        dealt("abcab", sizes)


def test_an_unknown_testbed_is_named():
    """A name that no testbed has is answered with those there are."""
    with pytest.raises(
        ValueError, match=r"no testbed is called 'letter'; there are letters, letters-large, arithmetic"
    ):
        named("letter")
