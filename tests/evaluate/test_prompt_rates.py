"""Prompts by the scores of answers to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from humanline.cli import main
from humanline.evaluate.prompt_rates import describe_rates, rates_as_json, rates_of
from humanline.evaluate.records import EvaluationError
from humanline.train.data.messages import Message
from humanline.train.online.ledger import read_lines
from humanline.train.online.types import Completion, Rollout, Score
from tests.helpers.rounds import DRAWN, SCORED


def prompts(values: list[list[float | None]]):
    """Return rollouts and scores; None is an answer without one."""
    rollouts = [
        Rollout(
            f"p.jsonl:{i}",
            (Message("user", f"q{i}"),),
            tuple(Completion(str(n), (1,), "end") for n, _ in enumerate(own)),
        )
        for i, own in enumerate(values, start=1)
    ]
    return rollouts, [[Score(v) if v is not None else Score(None, "timeout") for v in own] for own in values]


def test_prompts_whose_answers_score_the_same_are_counted():
    """By pass rate; answers without a score are in no rate, and prompts with fewer than two scores in no number."""
    found = rates_of(*prompts([[0, 0, 0, 0], [1, 1, None, 1], [0, 1, 0, 0], [1, 0, 1, 1], [None, 1, None, None]]))
    assert [(one.rate, one.equal) for one in found.prompts] == [(0, True), (1, True), (0.25, False), (0.75, False)]
    assert (found.equal.share, found.band, found.too_few) == (0.5, (0.25, 0.75), ("p.jsonl:5",))
    assert found.without_score == {"timeout": 4}
    said = "\n".join(describe_rates(found))
    assert "0.25 to 0.75" in said and "4 timeout" in said and "1 prompts have fewer" in said
    json.dumps(rates_as_json(found), allow_nan=False)


def test_scores_equal_up_to_rounding_teach_nothing():
    found = rates_of(*prompts([[0.1 + 0.2, 0.3], [0.3, 0.31]]))
    assert [one.equal for one in found.prompts] == [True, False]
    assert not found.binary and found.band is None
    assert "no pass rates" in "\n".join(describe_rates(found))


def test_prompts_without_two_scores_tell_nothing():
    with pytest.raises(EvaluationError, match="none of 2 prompts"):
        rates_of(*prompts([[1.0], [None, None, 0.0]]))


def test_answers_without_a_score_count_as_training_counts_them():
    """source.scoring.failed may be a number, and source.truncated may drop answers."""
    rollouts, scores = prompts([[1, None], [1, 1, 0], [None, None]])
    found = rates_of(rollouts, scores, failed=0.0)
    assert [(one.id, one.values, one.equal) for one in found.prompts] == [
        ("p.jsonl:1", (1.0, 0.0), False),
        ("p.jsonl:2", (1.0, 1.0, 0.0), False),
        ("p.jsonl:3", (0.0, 0.0), True),
    ]
    assert found.without_score == {"timeout": 3} and found.too_few == ()
    assert "3 timeout; counted as 0 (source.scoring.failed)" in "\n".join(describe_rates(found))
    cut = Completion("9", (1,), "length")
    assert cut.truncated
    shorter = [rollouts[0], replace(rollouts[1], completions=(*rollouts[1].completions[:2], cut)), rollouts[2]]
    found = rates_of(shorter, scores, truncated="drop")
    assert [(one.id, one.equal) for one in found.prompts] == [("p.jsonl:2", True)]
    assert found.too_few == ("p.jsonl:1", "p.jsonl:3") and found.truncated == 1
    assert "1 truncated answers are left out" in "\n".join(describe_rates(found))
    assert not rates_of(shorter, scores).prompts[0].equal


@pytest.fixture
def recipe(toy, tmp_path, monkeypatch) -> str:
    """A recipe in rounds in the current folder, whose verifier passes about half of the answers."""
    Path(tmp_path / "prompts.jsonl").write_bytes(Path(toy["prompts"]).read_bytes())
    tree = {
        "model": toy["model"],
        "output": str(tmp_path / "run"),
        "objective": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
        "data": {"train": "prompts.jsonl", "max_length": 64},
        "source": {
            "kind": "rounds",
            "contexts_per_round": 16,
            "samples": 2,
            "count": 1,
            "sampling": DRAWN,
            "scoring": SCORED | {"rewards": [{"kind": "format", "pattern": "(?s).*[a-h].*"}]},
        },
        "reference": {"schedule": {"kind": "each_round"}},
        "training": {"batch_size": 8, "micro_batch_size": 4},
        "optimizer": {"lr": 1e-3},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    monkeypatch.chdir(tmp_path)
    return "recipe.yaml"


def test_prompts_of_a_band_are_kept(recipe, capsys, monkeypatch):
    """Answers are drawn and scored once; what is kept are lines of the file; a file of scores does as well."""
    words = ["inspect-data", recipe, "--out", "found"]
    assert main([*words, "--keep-pass-rate", "0.5:0.5", "--quiet"]) == 0
    tree = json.loads(Path("found/prompts.json").read_text())
    (scored,) = Path("found").glob("scored-*.jsonl")
    means = {row["id"]: sum(s["value"] for s in row["scores"]) / 2 for row in read_lines(scored)}
    assert {one["id"]: one["mean"] for one in tree["rates"]} == means
    assert tree["equal"]["share"] == sum(mean != 0.5 for mean in means.values()) / 48
    lines = Path("prompts.jsonl").read_bytes().splitlines(keepends=True)
    wanted = [line for n, line in enumerate(lines, start=1) if means[f"prompts.jsonl:{n}"] == 0.5]
    assert 0 < len(wanted) < 48
    assert Path("found/kept-pass-rate-0.5-0.5.jsonl").read_bytes() == b"".join(wanted)
    left = {row["row"]: row["why"] for row in read_lines(Path("found/kept-pass-rate-0.5-0.5.left.jsonl"))}
    assert left == {
        name: "pass rate below 0.5" if mean < 0.5 else "pass rate above 0.5"
        for name, mean in means.items()
        if mean != 0.5
    }
    from humanline.evaluate import inspect_prompts

    for stage in ("sample", "score"):
        monkeypatch.setattr(inspect_prompts, stage, lambda *_, **__: pytest.fail("asked again"))
    capsys.readouterr()
    assert main(["inspect-data", recipe, "--scored", str(scored)]) == 0
    assert "all answers score the same on" in capsys.readouterr().out
    rows = read_lines(scored)
    rows[3]["scores"][0] |= {"value": None, "status": "timeout", "parts": {}}
    Path("lost.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    band = ["--keep-pass-rate", "0:1", "--quiet"]
    assert main(["inspect-data", recipe, "--scored", "lost.jsonl", "--out", "lost", *band]) == 0
    left = read_lines(Path("lost/kept-pass-rate-0-1.left.jsonl"))
    assert left == [{"row": rows[3]["id"], "why": "fewer than two scored answers"}]
    Path("prompts.jsonl").write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    assert main([*words, "--scored", str(scored), "--keep-pass-rate", "0:1"]) == 2
    assert "prompts.jsonl:1: the answers that were scored are to another prompt" in capsys.readouterr().err


def test_scored_answers_are_to_the_prompts_of_the_recipe_each_once(recipe, capsys):
    """Else the share is that of other prompts, or of some there twice; a prompt without answers is named so."""
    rows = []
    for number, line in enumerate(read_lines(Path("prompts.jsonl"))[:10], start=1):
        asked = line["prompt"] if isinstance(line["prompt"], str) else line["prompt"][-1]["content"]
        answer = {"text": "x", "ids": [], "finish": "end", "logprobs": None}
        values = [{"value": float(n), "status": "ok", "parts": {}} for n in range(2)]
        row = {"id": f"prompts.jsonl:{number}", "policy": "p", "prompt": [{"role": "user", "content": asked}]}
        rows.append(row | {"extra": {}, "completions": [answer, answer], "scores": values})

    def look(name: str, given: list[dict], *more: str) -> int:
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in given))
        return main(["inspect-data", recipe, "--scored", name, "--out", f"of-{name}", *more])

    assert look("foreign.jsonl", [row | {"id": f"other:{n}"} for n, row in enumerate(rows)]) == 2
    assert "'other:0' has answers that were scored, and is no row of prompts.jsonl" in capsys.readouterr().err
    assert look("twice.jsonl", [*rows, rows[0]]) == 2
    assert "is there twice" in capsys.readouterr().err
    assert look("part.jsonl", rows, "--keep-pass-rate", "0.2:0.8") == 0
    assert "kept 10 of 48 rows; 38 left: no answers in part.jsonl" in capsys.readouterr().err


def test_scored_answers_are_to_all_turns_of_a_prompt(recipe, capsys):
    """Conversations that end alike are other prompts; a system prompt that sampling has put before one is none."""
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "go on"},
    ]
    Path("prompts.jsonl").write_text(json.dumps({"prompt": turns}) + "\n")
    answer = {"text": "x", "ids": [], "finish": "end", "logprobs": None}
    values = [{"value": float(n), "status": "ok", "parts": {}} for n in range(2)]

    def look(name: str, prompt: list[dict]) -> int:
        row = {"id": "prompts.jsonl:1", "policy": "p", "prompt": prompt, "extra": {}}
        Path(name).write_text(json.dumps(row | {"completions": [answer, answer], "scores": values}) + "\n")
        return main(["inspect-data", recipe, "--scored", name])

    assert look("same.jsonl", turns) == 0
    assert look("instructed.jsonl", [{"role": "system", "content": "s"}, *turns]) == 0
    for name, prompt in (
        ("other.jsonl", [{"role": "user", "content": "c"}, *turns[1:]]),
        ("more.jsonl", turns[:2] + turns),
    ):
        assert look(name, prompt) == 2
        assert "to another prompt than that row of prompts.jsonl holds" in capsys.readouterr().err


def test_data_are_never_replaced_by_what_is_found_in_them(recipe, capsys):
    """Prompts may be called as the inspection is; an inspection itself is replaced by a later one."""
    before = Path("prompts.jsonl").read_bytes()
    Path("prompts.json").write_bytes(before)
    assert main(["inspect-data", recipe, "data.train=prompts.json", "--out", ".", "--quiet"]) == 2
    assert "prompts.json is there already" in capsys.readouterr().err
    assert Path("prompts.json").read_bytes() == before
    Path("found").mkdir()
    Path("found/prompts.json").write_text('{"rates": [], "too_few": []}')
    assert main(["inspect-data", recipe, "--out", "found", "--quiet"]) == 0
    assert len(json.loads(Path("found/prompts.json").read_text())["rates"]) == 48


def test_what_makes_no_sense_of_prompts_is_refused(recipe, capsys):
    for words, message in [
        ([], "give --out FOLDER"),
        (["--rows", "3", "--out", "o"], "--rows is not for prompts"),
        (["--keep-quartiles", "2", "--out", "o"], "--keep-quartiles is not for prompts"),
        (["--scored", "none.jsonl"], "none.jsonl is missing"),
        (["--scored", "none.jsonl", "--out", "o"], "none.jsonl is missing"),
        (["model=nowhere", "--out", "o"], "nowhere"),
        (["--keep-pass-rate", "2:1", "--out", "o"], "LOW:HIGH"),
        (["source.scoring={rewards: [{kind: number, answer: gold}]}", "--out", "o"], "gold: the prompts have"),
    ]:
        assert main(["inspect-data", recipe, *words, "--quiet"]) == 2, words
        assert message in capsys.readouterr().err
    assert not Path("o").exists()
