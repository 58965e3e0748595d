"""Preference accuracy and margin: by a reward, and by a policy's implicit reward."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from pathlib import Path

import pytest
import torch

from humanline.cli import main
from humanline.evaluate.records import read_evaluation
from humanline.train.config import load_config
from humanline.train.data.run_data import pad_id
from humanline.train.data.sets import read_units
from humanline.train.policy.build import build_policy, checked_model
from humanline.train.step.held_out import Evaluator
from humanline.train.step.reference import logprobs_pass
from tests.helpers.recipes import recipe_that_evaluates
from tests.helpers.rounds import SCORED
from tests.helpers.toy_rewards import digits


@pytest.fixture
def recipe(toy, tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    return recipe_that_evaluates(toy, tmp_path, data={}, evaluation={"scoring": SCORED, "batch_size": 5})


@pytest.fixture(scope="module")
def changed(toy, tmp_path_factory) -> str:
    """The toy model with other weights, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(tmp_path_factory.mktemp("changed"))
    model = AutoModelForCausalLM.from_pretrained(toy["model"])
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=random)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(toy["model"]).save_pretrained(folder)
    return folder


FIXED = {"chosen": "7", "rejected": "8 9"}


def run(*words: str) -> int:
    return main(["evaluate", *words, "--quiet"])


def write(rows: list[dict[str, str]]) -> str:
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "pairs.jsonl"


def test_a_reward_rates_both_answers(recipe):
    """Accuracy and margin are those of the rewards of the texts; pairs of one prompt count as one."""
    texts = [("p", "1 2 3", "1"), ("p", "x", "4 5"), ("q", "7", "8"), ("r", "1 2", "no")]
    pairs = write([{"prompt": p, "chosen": c, "rejected": r} for p, c, r in texts])
    assert run(recipe, "--preferences", pairs, "--out", "a") == 0
    found = read_evaluation("a")
    rated = [(p, digits("", c), digits("", r)) for p, c, r in texts]
    wins = [[0.5 * ((c > r) + (c >= r)) for q, c, r in rated if q == p] for p in "pqr"]
    margins = [statistics.fmean(c - r for q, c, r in rated if q == p) for p in "pqr"]
    assert [list(item.values) for item in found.items] == wins
    assert found.summary["accuracy"]["value"] == pytest.approx(statistics.fmean(map(statistics.fmean, wins)), abs=1e-12)
    assert found.summary["margin"]["value"] == pytest.approx(statistics.fmean(margins), abs=1e-12)
    for name, place in (("chosen", 1), ("rejected", 2)):
        means = [statistics.fmean(one[place] for one in rated if one[0] == p) for p in "pqr"]
        assert found.summary[name]["value"] == pytest.approx(statistics.fmean(means), abs=1e-12)
    error = statistics.stdev(margins) / 3**0.5
    assert found.summary["margin"]["se"] == pytest.approx(error, rel=1e-9)
    assert (found.summary["pairs"], found.summary["problems"]) == (4, 3)
    before = Path("a/scored.jsonl").read_bytes()
    assert run(recipe, "--preferences", pairs, "--out", "a") == 0  # nothing is scored twice
    assert Path("a/scored.jsonl").read_bytes() == before and read_evaluation("a") == found


@pytest.mark.parametrize("reference", [[], ["--reference", "changed"]], ids=["reward", "implicit"])
def test_pairs_with_other_answers_are_not_compared(recipe, changed, capsys, reference):
    """Of the same prompts in the same lines of a file of the same name."""
    reference = [changed if word == "changed" else word for word in reference]
    for name, texts in (("a", ("1 2", "x")), ("b", ("x", "1 2"))):
        pairs = write([{"prompt": "p", "chosen": texts[0], "rejected": texts[1]}, {"prompt": "q"} | FIXED])
        assert run(recipe, "--preferences", pairs, *reference, "--out", name, "--name", name) == 0
    assert main(["compare", "a", "b"]) == 2
    assert "were not evaluated alike: answers" in capsys.readouterr().err


def test_ratings_at_another_temperature_are_not_compared(recipe, toy, changed, capsys):
    """training.temperature divides logits, and so what log-ratios come to; evaluations at 1 do not speak of it."""
    pairs = write([{"prompt": "p", "chosen": "1 2", "rejected": "3"}, {"prompt": "q"} | FIXED])
    for name, words in (("a", ()), ("b", ("training.temperature=0.5",)), ("c", ("training.temperature=0.5",))):
        named = ("--preferences", pairs, "--reference", changed, "--out", name, "--name", name)
        assert run(recipe, *words, *named) == 0
    assert "temperature" not in read_evaluation("a").settings["scoring"]
    assert main(["compare", "b", "c"]) == 0
    assert main(["compare", "a", "b"]) == 2
    assert "were not evaluated alike: scoring.temperature: not said and 0.5" in capsys.readouterr().err


@pytest.mark.parametrize("reference", [[], ["--reference", "changed"]], ids=["reward", "implicit"])
def test_rows_that_are_dropped_are_counted(recipe, changed, capsys, reference):
    """And named, and again where answers and scores are there already."""
    reference = [changed if word == "changed" else word for word in reference]
    rows = [{"prompt": "p", "chosen": "x"}, *({"prompt": f"q{n}"} | FIXED for n in range(9))]
    words = [recipe, "data.bad_rows=drop", "--preferences", write(rows), *reference, "--out", "a"]
    for _ in range(2):
        assert main(["evaluate", *words]) == 0
        said = capsys.readouterr().err
        assert "1 of 10 rows dropped as bad" in said and "1 rows were dropped as bad, and are in no number" in said
        assert read_evaluation("a").summary["dropped_rows"] == 1
        assert read_evaluation("a").summary["pairs"] == 9


def test_pairs_that_no_model_reads_are_counted(recipe, changed, capsys):
    """A reward reads any pair; a model none that is longer than the recipe lets it be."""
    long = {"prompt": "p", "chosen": "1 " * 500, "rejected": "2"}
    pairs = write([long, *({"prompt": f"q{n}"} | FIXED for n in range(4))])
    words = "evaluate", recipe, "data.too_long=drop", "data.max_length=64", "--preferences", pairs
    assert main([*words, "--reference", changed, "--out", "a"]) == 0
    assert "1 pairs were left out (1 too long)" in capsys.readouterr().err
    found = read_evaluation("a").summary
    assert found["pairs"] == 4 and found["left_out"] == {"too_long": 1}
    assert main([*words, "--out", "b"]) == 0
    assert "left out" not in capsys.readouterr().err
    found = read_evaluation("b").summary
    assert found["pairs"] == 5 and found["left_out"] == {}


def test_the_implicit_reward_is_that_of_training(recipe, toy, changed):
    """Accuracy and margin equal those that a run measures on its held-out pairs, against the model it began with."""
    words = "--preferences", toy["held_out"], "--reference", toy["model"], "--name", "changed"
    assert run(recipe, f"model={changed}", *words, "--out", "a") == 0
    found = read_evaluation("a")
    config = load_config(recipe)
    cpu = torch.device("cpu")
    renderer = checked_model(config, cpu).renderer
    units, _ = read_units(config, toy["held_out"], renderer)
    models = [build_policy(config.model_copy(update={"model": path}))[0] for path in (toy["model"], changed)]
    evaluator = Evaluator(
        config.objective,
        units,
        [],
        logprobs_of=logprobs_pass(models[0]),
        reduce=lambda value, how: value,
        batch_size=3,
        pad_id=pad_id(renderer),
        max_length=64,
        device=cpu,
    )
    evaluator.start()
    evaluator.logprobs_of = logprobs_pass(models[1])
    told = evaluator()
    assert 0 < told["accuracy"] < 1 and abs(told["margin"]) > 0.1
    assert found.summary["accuracy"]["value"] == pytest.approx(told["accuracy"], abs=1e-12)
    assert found.summary["margin"]["value"] == pytest.approx(told["margin"], abs=1e-5)
    assert found.summary["pairs"] == 9 and found.summary["without_verdict"] == {}


def test_pairs_of_one_prompt_are_one_problem_under_a_reference_too(recipe, toy, changed, capsys):
    """Log-ratios are sums over the answer and its end token alone, from plain passes; means are over prompts."""
    from transformers import AutoModelForCausalLM

    texts = [("1 ab", "ab", "bca"), ("1 ab", "abcd", "b"), ("2 c", "c", "dddddd"), ("3 dab", "abd", "d")]
    pairs = write([{"prompt": p, "chosen": c, "rejected": r} for p, c, r in texts])
    assert run(recipe, f"model={changed}", "--preferences", pairs, "--reference", toy["model"], "--out", "a") == 0
    found = read_evaluation("a")
    assert (found.summary["pairs"], found.summary["problems"]) == (4, 3)
    assert sorted(len(item.values) for item in found.items) == [1, 1, 2]
    config = load_config(recipe)
    units, _ = read_units(config, pairs, checked_model(config, torch.device("cpu")).renderer)
    ours, theirs = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (changed, toy["model"]))

    def total(model, one) -> float:
        ids = torch.tensor([one.ids])
        with torch.no_grad():
            logprobs = model(ids).logits[0].double().log_softmax(-1)
        return sum(logprobs[i - 1, one.ids[i]].item() for i in range(one.prompt_length, len(one.ids)))

    rated = [[total(ours, one) - total(theirs, one) for one in unit.sequences] for unit in units]
    by_prompt = [rated[:2], rated[2:3], rated[3:]]
    for name, value in (
        ("chosen", lambda pair: pair[0]),
        ("rejected", lambda pair: pair[1]),
        ("margin", lambda pair: pair[0] - pair[1]),
        ("accuracy", lambda pair: float(pair[0] > pair[1])),
    ):
        wanted = statistics.fmean(statistics.fmean(map(value, own)) for own in by_prompt)
        assert found.summary[name]["value"] == pytest.approx(wanted, abs=1e-5), name
    # Another reference, or another limit, is another evaluation.
    words = "--preferences", pairs, "--out", "a"
    assert run(recipe, f"model={changed}", *words, "--reference", changed) == 2
    assert "--out" in capsys.readouterr().err
    assert run(recipe, f"model={changed}", *words, "--reference", toy["model"], "data.max_length=60") == 2


def test_another_model_in_the_place_of_the_reference_is_another_evaluation(recipe, toy, capsys):
    shutil.copytree(toy["model"], "reference")
    words = "--preferences", toy["held_out"], "--reference", "reference", "--out", "a"
    assert run(recipe, *words) == 0
    os.utime("reference/model.safetensors", (1, 1))
    assert run(recipe, *words) == 2
    assert "holds an evaluation of another model" in capsys.readouterr().err
    weights = bytearray(Path("reference/model.safetensors").read_bytes())
    weights[-1] ^= 1
    Path("reference/model.safetensors").write_bytes(weights)
    assert run(recipe, *words[:-1], "b", "--name", "b") == 0
    assert main(["compare", "a", "b"]) == 2
    assert "not evaluated alike: reference model: " in capsys.readouterr().err


def test_a_rating_that_is_no_number_is_counted_and_no_verdict(recipe, toy, monkeypatch):
    """Its pair is in no mean, and its share is of all pairs."""
    from humanline.evaluate import accuracy

    sums = accuracy._sums

    def broken(*args):
        found = sums(*args)
        found[3][1] = float("inf")
        return found

    monkeypatch.setattr(accuracy, "_sums", broken)
    assert run(recipe, "--preferences", toy["held_out"], "--reference", toy["model"], "--out", "a") == 0
    found = read_evaluation("a").summary
    assert found["without_verdict"] == {"not_finite": 1} and found["without_verdict_share"] == pytest.approx(1 / 9)
    assert found["margin"]["problems"] == found["accuracy"]["problems"] == 8 == found["ties"]


def test_a_model_is_no_better_than_itself(recipe, toy):
    assert run(recipe, "--preferences", toy["held_out"], "--reference", toy["model"], "--out", "a") == 0
    found = read_evaluation("a").summary
    assert (found["accuracy"]["value"], found["margin"]["value"], found["ties"]) == (0.5, 0.0, 9)


def test_what_cannot_be_rated_leaves_nothing(recipe, toy, tmp_path, capsys):
    tool = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    user = {"role": "user", "content": "hi"}
    Path("tools.jsonl").write_text(
        json.dumps({"prompt": [user], "chosen": [tool], "rejected": [{"role": "assistant", "content": "no"}]}) + "\n"
    )
    nowhere = "[{kind: function, call: 'nowhere:f'}]"
    cases = [
        (["--preferences", "none.jsonl"], "none.jsonl"),
        (["--preferences", toy["prompts"]], "chosen"),
        (["--preferences", "tools.jsonl"], "is more than a text"),
        (["--preferences", toy["pairs"], "evaluation.scoring=null"], "nothing says how answers are scored"),
        (["--preferences", toy["pairs"], f"evaluation.scoring.rewards={nowhere}"], "nowhere:f cannot be imported"),
        (["--preferences", toy["pairs"], "--samples", "x"], "leave out --prompts, --samples and --k"),
        (["--preferences", toy["pairs"], "--reference", "nowhere"], "nowhere"),
        (["--reference", toy["model"]], "--reference is for --preferences"),
    ]
    for words, message in cases:
        assert run(recipe, *words, "--out", "bad") == 2, words
        assert message in capsys.readouterr().err, words
        assert not Path("bad").exists(), words
