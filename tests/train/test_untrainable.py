"""Answers that cannot be trained on: `humanline train` against a server that sends them, and against files with them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from humanline.cli import main
from humanline.train.ledger import read_lines
from humanline.train.metrics import read_metrics
from humanline.train.model import load_tokenizer
from tests.train.scripted_server import Asked, Reply, serving

LIMIT = 12  # sampling.max_tokens


@pytest.fixture(scope="module")
def tokenizer(toy):
    return load_tokenizer(toy["model"])


@pytest.fixture
def recipe(toy, tmp_path, monkeypatch):
    """A recipe of one round of one step that samples from a server, and its prompts; the current folder has both."""
    lines = Path(toy["pairs"]).read_text().splitlines()[:6]
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": json.loads(line)["prompt"]}) + "\n" for line in lines)
    )
    tree = {
        "model": toy["model"],
        "output": str(tmp_path / "run"),
        "objective": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
        "data": {"train": "prompts.jsonl", "max_length": 64},
        "training": {"batch_size": 3, "micro_batch_size": 3},
        "optimizer": {"lr": 1e-3},
        "reference": {"schedule": {"kind": "each_round"}},
        "rounds": {"contexts_per_round": 3, "samples": 2, "count": 1},
        "sampling": {
            "max_tokens": LIMIT,
            "engine": {"kind": "server", "url": "", "attempts": 2, "concurrency": 2, "new_weights": {"kind": "path"}},
        },
        "scoring": {
            "rewards": [{"kind": "function", "call": "tests.train.toy_rewards:digits"}],
            "workers": 1,
            "seconds": 60.0,
        },
        "checkpoint": {"minutes": None},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    monkeypatch.chdir(tmp_path)
    return "recipe.yaml"


def healthy(tokenizer, asked: Asked, name: str = "token_ids") -> dict:
    """An answer whose text follows from the seed, with its own token ids."""
    text = f"{asked.body['seed'] % 10_000:04d}"
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    message = {"role": "assistant", "content": text}
    return {"index": 0, "message": message, "finish_reason": "stop", name: ids}


def outside(tokenizer, choice):
    return choice | {"token_ids": [10**6, *choice["token_ids"][1:]]}


def negative(tokenizer, choice):
    return choice | {"token_ids": [-1, *choice["token_ids"][1:]]}


def another_text(tokenizer, choice):
    return choice | {"token_ids": [*tokenizer.encode("abc", add_special_tokens=False), tokenizer.eos_token_id]}


def another_text_of_sglang(tokenizer, choice):
    wrong = another_text(tokenizer, choice)
    return {name: value for name, value in wrong.items() if name != "token_ids"} | {
        "response_token_ids": wrong["token_ids"]
    }


def too_many(tokenizer, choice):
    text = "9 a" * LIMIT
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > LIMIT
    return choice | {"message": {"content": text}, "token_ids": ids, "finish_reason": "length"}


def too_many_untold(tokenizer, choice):
    return {"index": 0, "message": {"content": "9 a" * 2000}, "finish_reason": "stop"}


WRONG = {
    "ids_outside_vocabulary": (outside, r"token id 1000000 is none of the model's, which are 0 to 319"),
    "negative": (negative, r"token id -1 is none"),
    "ids_of_another_text": (another_text, r"its token ids say 'abc'"),
    "under SGLang's name": (another_text_of_sglang, r"its token ids say 'abc'"),
    "too_many_tokens": (too_many, rf"tokens, where sampling.max_tokens {LIMIT}"),
    "too many, of a text alone": (too_many_untold, rf"tokens, where sampling.max_tokens {LIMIT}"),
}


def answers(tokenizer, spoil=None, *, each: int = 1):
    """Answer as told, every so many-th completion spoiled; the n-th answer counts from 1."""
    given = 0

    def answer(asked: Asked) -> Reply:
        nonlocal given
        if not asked.path.endswith("/completions"):
            return Reply({})
        given += 1
        choice = healthy(tokenizer, asked)
        if spoil is not None and given % each == 0:
            choice = spoil(tokenizer, choice)
        return Reply({"choices": [choice]})

    return answer


def train(recipe: str, url: str, *words: str) -> int:
    return main(["train", recipe, f"sampling.engine.url={url}", *words])


def samples(folder: Path) -> list[dict]:
    return read_lines(folder / "run" / "rounds" / "00000" / "samples.jsonl")


def right(tokenizer, row: dict) -> bool:
    """Whether every completion of a row is one that the healthy server sends."""
    return all(
        tokenizer.decode(one["ids"], skip_special_tokens=True) == one["text"] and len(one["ids"]) <= LIMIT
        for one in row["completions"]
    )


@pytest.mark.parametrize("kind", WRONG)
def test_a_server_of_bad_answers_ends_the_run_and_a_healthy_one_goes_on(recipe, tokenizer, tmp_path, capsys, kind):
    """Bad answers alone end with a sentence and nothing of them on the disk; --resume with good ones ends with 0."""
    spoil, sentence = WRONG[kind]
    with serving(answers(tokenizer, spoil)) as server:
        assert train(recipe, server.url) == 2
        asked = server.completions()
    said = " ".join(capsys.readouterr().err.split())
    assert "2 times in a row (sampling.engine.attempts) what cannot be trained on" in said
    assert re.search(sentence, said), said
    assert len({one.body["seed"] for one in asked}) == len(asked)  # asked again with another seed
    assert not [path for path in (tmp_path / "run").rglob("samples*")]
    with serving(answers(tokenizer)) as server:
        assert train(recipe, server.url, "--resume") == 0
    assert len(samples(tmp_path)) == 3 and all(right(tokenizer, row) for row in samples(tmp_path))


def test_some_bad_answers_are_asked_for_again_and_counted(recipe, tokenizer, tmp_path, capsys):
    """Every third answer bad: the run ends with 0 on good ones alone, counts by reason on the terminal and in metrics."""
    spoils = [outside, another_text, too_many]
    turn = iter(range(1000))
    with serving(answers(tokenizer, lambda *one: spoils[next(turn) % 3](*one), each=3)) as server:
        assert train(recipe, server.url, "sampling.engine.concurrency=1") == 0
    rows = samples(tmp_path)
    assert all(right(tokenizer, row) and len(row["completions"]) == 2 for row in rows)
    counts = sum((Counter(row.get("asked_again", {})) for row in rows), Counter())
    assert counts.total() == 2  # of 8 answers, the third and the sixth
    (row,) = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if "round" in row]
    assert row["asked_again"] == 2 and {name: row[f"asked_again/{name}"] for name in counts} == counts
    said = " ".join(capsys.readouterr().err.split())
    assert "2 answers could not be trained on and were asked for again (1 ids outside vocabulary, 1 ids of" in said
    report = json.loads((tmp_path / "run/rounds/00000/report.json").read_text())
    assert report["facts"]["asked_again"] == 2


@pytest.mark.parametrize("name", ["token_ids", "response_token_ids"])
def test_ids_that_are_told_are_the_ones_trained_on(recipe, tokenizer, tmp_path, name):
    """Under vLLM's name and under SGLang's the ids are kept as told, though another split of the text is the usual one."""
    split = [tokenizer.convert_tokens_to_ids(letter) for letter in "ab"]
    assert tokenizer.encode("ab", add_special_tokens=False) != split

    def answer(asked: Asked) -> Reply:
        if not asked.path.endswith("/completions"):
            return Reply({})
        text = {"message": {"content": "ab"}, "index": 0, "finish_reason": "stop"}
        return Reply({"choices": [text | {name: [*split, tokenizer.eos_token_id]}]})

    with serving(answer) as server:
        assert train(recipe, server.url) == 0
    got = {tuple(one["ids"]) for row in samples(tmp_path) for one in row["completions"]}
    assert got == {(*split, tokenizer.eos_token_id)}
