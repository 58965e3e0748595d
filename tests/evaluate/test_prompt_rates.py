"""Prompts by the scores of answers to them."""

from __future__ import annotations

import json
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


def test_what_makes_no_sense_of_prompts_is_refused(recipe, capsys):
    for words, message in [
        ([], "give --out FOLDER"),
        (["--rows", "3", "--out", "o"], "--rows is not for prompts"),
        (["--keep-quartiles", "2", "--out", "o"], "--keep-quartiles is not for prompts"),
        (["--scored", "none.jsonl"], "none.jsonl is missing"),
        (["--scored", "none.jsonl", "--out", "o"], "none.jsonl is missing"),
        (["model=nowhere", "--out", "o"], "nowhere"),
        (["--keep-pass-rate", "2:1", "--out", "o"], "LOW:HIGH"),
    ]:
        assert main(["inspect-data", recipe, *words, "--quiet"]) == 2, words
        assert message in capsys.readouterr().err
    assert not Path("o").exists()
