"""A task for lm-evaluation-harness: the same prompts, the same room, the same scores."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from humanline.cli import main
from humanline.evaluate.harness import mean_of_known, result_of
from humanline.evaluate.records import read_evaluation
from humanline.train.online.ledger import read_lines
from humanline.train.policy.load import load_tokenizer
from tests.helpers.recipes import recipe_that_evaluates

NUMBER = {"rewards": [{"kind": "number"}], "workers": 1}


@pytest.fixture
def recipe(toy, tmp_path, monkeypatch) -> str:
    """A recipe in the current folder that asks 48 prompts with a digit as the right answer once each."""
    prompts = [row | {"answer": str(number % 10)} for number, row in enumerate(read_lines(Path(toy["prompts"])))]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    monkeypatch.chdir(tmp_path)
    evaluation = {"sampling": {"max_tokens": 20}, "scoring": NUMBER}
    return recipe_that_evaluates(toy, tmp_path, data={"eval": "prompts.jsonl"}, evaluation=evaluation)


def run(*words: str) -> int:
    return main(list(words))


def read_task(path: str) -> dict:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: node.value)
    return yaml.load(Path(path).read_text(encoding="utf-8"), Loader)


def test_a_task_has_the_prompts_the_model_would_be_sampled_from(recipe, toy, capsys):
    """The text of each is that of its token ids; room, temperature and seed are the recipe's."""
    words = ("evaluation.sampling.temperature=0.5", 'evaluation.sampling.stop=["é😀"]', "seed=7")
    assert run("evaluate", recipe, *words, "--harness-task", "--out", "my task") == 0
    task = read_task("my task/task.yaml")
    assert task["task"] == "humanline_my_task" and task["process_results"] == "metric.process_results"
    how = task["generation_kwargs"]
    assert (how["until"], how["max_gen_toks"], how["do_sample"]) == (["é😀"], 20, True)
    assert (how["temperature"], how["top_p"], how["repetition_penalty"]) == (0.5, 1.0, 1.0)
    assert [metric["metric"] for metric in task["metric_list"]] == ["score", "without_score"]
    rows = read_lines(Path("my task/prompts.jsonl"))
    assert task["dataset_kwargs"]["data_files"]["test"] == str(Path("my task/prompts.jsonl").absolute())
    assert [row["target"] for row in rows] == [str(number % 10) for number in range(48)]
    tokenizer = load_tokenizer(toy["model"])
    for row in rows[:4]:
        asked = json.loads(row["row"])["prompt"]
        assert row["text"] == tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    command = shlex.split(Path("my task/command.txt").read_text())
    settings = command[command.index("--model_args") + 1]
    assert settings == f"pretrained={toy['model']},dtype=float32,max_length=64,add_bos_token=False"
    assert command[command.index("--seed") + 1] == "7"
    assert "lm-eval run" in capsys.readouterr().err


def test_an_answer_is_scored_as_evaluate_scores_it():
    """One that no reward can score is none of the mean, and is counted."""
    doc = {"row": json.dumps({"id": "1", "prompt": [{"role": "user", "content": "?"}], "extra": {"answer": "4"}})}
    lost = {"row": json.dumps({"id": "2", "prompt": [{"role": "user", "content": "?"}], "extra": {}})}
    results = [result_of(NUMBER, doc, ["It is 4."]), result_of(NUMBER, doc, ["5"]), result_of(NUMBER, lost, ["5"])]
    assert [one["without_score"] for one in results] == [0.0, 0.0, 1.0]
    assert mean_of_known([one["score"] for one in results]) == 0.5
    assert math.isnan(mean_of_known([math.nan]))
    with pytest.raises(ValueError, match="unpack"):
        result_of(NUMBER, doc, ["4", "5"])


def test_what_the_harness_cannot_do_is_refused(recipe, capsys):
    server = '{"kind": "server", "url": "http://127.0.0.1:1", "new_weights": {"kind": "path"}}'
    cases = [
        (["evaluation.samples=2"], "set evaluation.samples=1"),
        ([f"evaluation.sampling.engine={server}"], "leave evaluation.sampling.engine out"),
        (["--name", "a"], "leave out --name"),
        (["--preferences", "none.jsonl", "--reference", "m"], "leave out --preferences, --reference"),
        (["data.eval=null"], "there are no prompts"),
    ]
    for words, message in cases:
        assert run("evaluate", recipe, *words, "--harness-task", "--out", "task", "--quiet") == 2, words
        assert message in capsys.readouterr().err
        assert not os.path.exists("task"), words
    Path("task").mkdir()
    assert run("evaluate", recipe, "--harness-task", "--out", "task", "--quiet") == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed")
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_harness_and_this_package_agree(recipe, tmp_path, temperature):
    """Of the answers that the harness has got both have the same accuracy; the most probable ones are ours, too."""
    words = [recipe, f"evaluation.sampling.temperature={temperature}"]
    assert run("evaluate", *words, "--harness-task", "--out", "task", "--quiet") == 0
    command = shlex.split(Path("task/command.txt").read_text())
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    subprocess.run([sys.executable, "-m", "lm_eval", *command[1:]], check=True, env=os.environ | offline)
    (found,) = tmp_path.glob("task/results/**/results_*.json")
    theirs = json.loads(found.read_text())["results"]["humanline_task"]
    (logged,) = tmp_path.glob("task/results/**/samples_*.jsonl")
    texts = {row["doc"]["id"]: row["resps"][0][0] for row in read_lines(logged)}

    assert run("evaluate", *words, "--out", "own", "--quiet") == 0
    rows = read_lines(Path("own/samples.jsonl"))
    if temperature == 0:
        assert [texts[row["id"]] for row in rows] == [row["completions"][0]["text"] for row in rows]
    for row in rows:
        row["completions"] = [{"text": texts[row["id"]], "ids": [], "finish": "end", "logprobs": None}]
    Path("given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("evaluate", *words, "--samples", "given.jsonl", "--out", "given", "--quiet") == 0
    ours = read_evaluation("given").summary
    assert theirs["score,none"] == pytest.approx(ours["score"]["value"], abs=1e-12)
    assert theirs["without_score,none"] == 0.0 and (temperature == 0 or 0 < ours["score"]["value"] < 1)
