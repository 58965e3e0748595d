"""The card of a finished model."""

from __future__ import annotations

import json

import pytest
from markdown_it import MarkdownIt
from ruamel.yaml import YAML

from humanline.system.folders import verify_folder
from humanline.train.loop import train
from humanline.train.policy.merge import merge
from humanline.train.run.card import card, card_files
from humanline.train.run.facts import facts_of
from humanline.train.run.looks import best_look, interval
from humanline.train.run.metrics import read_metrics
from tests.helpers.support import CLIP, SCHEDULES, config

HELD_OUT = {"evaluation": {"every": 2, "batch_size": 8}}


def short(toy, output, **changes):
    data = {"train": toy["pairs"], "eval": toy["pairs"], "max_length": 64, "shape": "preference"}
    return config(toy, output, data=data, training={"steps": 4, "batch_size": 8}, transform=CLIP, **HELD_OUT, **changes)


def head_of(text: str) -> dict:
    return YAML(typ="safe").load(text.split("---\n")[1])


@pytest.fixture(scope="module")
def finished(toy, tmp_path_factory):
    output = tmp_path_factory.mktemp("card") / "run"
    reference = {"schedule": SCHEDULES["before_1"]}
    return train(short(toy, output, reference=reference), show_progress=False)


def test_a_finished_model_has_a_card_of_its_run(finished):
    """It says method, data with hash and counts, the held-out numbers of the metrics with intervals, and versions."""
    text = (finished.model / "README.md").read_text(encoding="utf-8")
    assert head_of(text)["library_name"] == "transformers" and "dpo" in head_of(text)["tags"]
    assert "# DPO, humanline" in text
    facts = json.loads((finished.model / "humanline.json").read_text(encoding="utf-8"))
    start = json.loads((finished.model.parent / "start.json").read_text(encoding="utf-8"))
    assert start["training data"] in text and facts["data"][0]["sha256"] == start["training data"]
    looks = [row for row in read_metrics(finished.metrics_file) if "held_out" in row]
    assert facts["looks"]["first"]["metrics"] == looks[0]["held_out"] == finished.initial
    assert facts["looks"]["last"]["metrics"] == looks[-1]["held_out"] == finished.final
    assert facts["count"] == len(looks) == 3 and facts["updates"] == 4
    assert all(f"| {name} | {version} |" in text for name, version in [("torch", facts["software"]["torch"])])


def test_a_merged_model_whose_base_was_in_4_bits_says_whose_numbers_it_has():
    rows = [{"updates": n, "held_out": {"loss": 0.5}} for n in (0, 4)]
    settings = {"adapter.base": "nf4"}
    said = "These numbers are of the adapter on its base in 4 bits"
    for weights, there in (("merged", True), ("adapter", False)):
        facts = facts_of({}, {}, {}, rows) | {"weights": weights, "settings": settings}
        assert (said in card(facts)) == there
    assert said not in card(facts_of({}, {}, {}, rows) | {"weights": "merged"})


def test_intervals_are_of_the_standard_errors_that_the_run_has_measured():
    """They are 1.96 standard errors to either side; none is told of a start's accuracy, which is 1/2 by definition."""
    rows = [
        {"updates": n, "held_out": {"accuracy": 0.5, "accuracy_se": 0.1, "score": 1, "score_se": 0.0}} for n in (0, 4)
    ]
    facts = facts_of({}, {}, {}, rows)
    assert interval(facts["looks"]["last"], "accuracy") == pytest.approx((0.304, 0.696), abs=1e-4)
    assert interval(facts["looks"]["first"], "accuracy") is interval(facts["looks"]["last"], "score") is None
    assert "| preference accuracy | 0.5 | 0.5 (0.304 to 0.696) |" in card(facts)


@pytest.mark.parametrize("looked", [True, False])
def test_a_run_that_broke_says_so_and_the_card_goes_on(looked):
    """By what it broke stands in a block of its own, with held-out numbers or without, and the rest is as ever."""
    broke = {"what": "loss", "of": "step", "value": 9.5, "limit": 5.7, "before": 0.7}
    rows = [{"updates": n, "held_out": {"loss": 0.5}} for n in (0, 4) if looked] + [{"updates": 3, "broke": broke}]
    text = card(facts_of({"seed": 1}, {}, {}, rows))
    tokens = MarkdownIt("commonmark").enable("table").parse(text.split("---\n", 2)[2])
    blocks = [token.content for token in tokens if token.type == "fence"]
    assert len(blocks) == 3 and json.loads(blocks[1]) == broke and blocks[2] == "seed: 1\n"
    assert [token.type for token in tokens].count("heading_open") == 7
    assert ("The run had no held-out data." in text) != looked


def test_a_card_may_be_edited_and_the_model_is_whole(finished):
    """What people make of the card damages no model; the facts beside it are sealed as weights are."""
    before = (finished.model / "README.md").read_text(encoding="utf-8")
    sealed = json.loads((finished.model / "manifest.json").read_text())["files"]
    (finished.model / "README.md").write_text("mine")
    verify_folder(finished.model, foreign=True)
    (finished.model / "README.md").write_text(before, encoding="utf-8")
    assert "humanline.json" in sealed and "README.md" not in sealed


def test_equal_runs_have_equal_cards(toy, finished, tmp_path):
    """A run in another folder, saved at other times, has the same card, byte for byte."""
    other = short(toy, tmp_path / "other", reference={"schedule": SCHEDULES["before_1"]}, checkpoint={"every": 2})
    again = train(other, show_progress=False)
    for name in ("README.md", "humanline.json"):
        assert (again.model / name).read_bytes() == (finished.model / name).read_bytes()


def test_an_adapter_says_so_and_its_merged_model_otherwise(toy, tmp_path):
    """The card of an adapter says how it is loaded; that of the merged one has the same numbers, and whole weights."""
    result = train(short(toy, tmp_path / "run", adapter={"rank": 2}), show_progress=False)
    text = (result.model / "README.md").read_text(encoding="utf-8")
    assert "AutoPeftModelForCausalLM" in text and head_of(text)["library_name"] == "peft"
    merged = merge(str(result.model), str(tmp_path / "whole"))
    whole = (merged / "README.md").read_text(encoding="utf-8")
    assert "AutoPeft" not in whole and head_of(whole)["library_name"] == "transformers" and "made one" in whole
    assert whole.split("## Data")[1] == text.split("## Data")[1]
    (result.model / "humanline.json").write_text('{"format": 99}')
    assert not (merge(str(result.model), str(tmp_path / "older")) / "README.md").exists()


HOSTILE = "a|b<script>alert(1)</script>`x`\x1b[31m\u202e[y](http://z)\n# head"


def test_names_are_shown_and_are_no_markup():
    """A name with markup, escapes and line ends stays text, as a Markdown parser reads it: no HTML, link or heading."""
    settings = {"model": HOSTILE, "objective": {"kind": "dpo"}, "data": {"train": HOSTILE}}
    data = {"train": {"path": HOSTILE, "lengths": {"kept": 3}, "prompts": HOSTILE}}
    text = card(facts_of(settings, data, {"training data": HOSTILE}, [], {HOSTILE: HOSTILE}))
    assert "\x1b" not in text and "\u202e" not in text
    assert head_of(text)["tags"] == ["humanline", "dpo"] and "base_model" not in head_of(text)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text.split("---\n", 2)[2])
    inside = [one for token in tokens for one in token.children or ()]
    kinds = [token.type for token in [*tokens, *inside]]
    assert {one.content for one in [*tokens, *inside] if one.type.startswith("html")} <= {"<!-- -->"}
    assert not {"link_open", "image", "em_open"} & set(kinds)
    assert kinds.count("heading_open") == 7 and kinds.count("td_open") == 5 + 2
    cells = [one.content for one in inside if one.type == "text"]
    assert any("<script>alert(1)</script>" in one for one in cells)


def test_a_model_and_set_of_the_hub_are_named_to_it():
    """Names on the hub are told in the head as it reads them, without revision, subset or split."""
    settings = {"model": "hub:org/base@main", "objective": {"kind": "kto"}}
    data = {"train": {"path": "hub:org/rows/part@0123#train"}}
    head = head_of(card(facts_of(settings, data, {}, [])))
    assert (head["base_model"], head["base_model_relation"]) == ("org/base", "finetune")
    assert head["datasets"] == ["org/rows"]


def test_no_folder_of_this_machine_is_told():
    """Of whole paths, the end alone is in card and facts."""
    settings = {"model": "/home/me/secret/base/final", "data": {"train": "/home/me/x/rows.jsonl"}}
    files = card_files(facts_of(settings, {"train": {"path": "/home/me/x/rows.jsonl"}}, {}, []))
    assert all("/home" not in text and "base/final" in text and "x/rows.jsonl" in text for text in files.values())


def test_what_is_damaged_or_of_another_version_makes_a_card_all_the_same():
    """Whatever the files of a run hold, a card is made: no model is lost for want of one."""
    rows = [
        {"updates": True, "held_out": {"loss": 1}},
        {"updates": 0, "held_out": {"loss": float("nan"), "x": 10**400}},
    ]
    broken = facts_of(
        {"objective": 3, "model": 5, "adapter": []}, {"train": {"lengths": 7}}, {"training data": 3}, rows
    )
    assert "## Held out" in card(broken) and broken["looks"]["first"]["metrics"] == {}


def test_numbers_that_json_does_not_have_cost_no_model():
    """Settings may be infinite where another version wrote them: the facts are JSON, and the card is made."""
    files = card_files(facts_of({"clip": float("inf")}, {"train": {"bad_rows": {"bad": 3}}}, {}, []))
    assert json.loads(files["humanline.json"])["settings"] == {"clip": "inf"}
    assert "3 bad rows (data.bad\\_rows)" in files["README.md"]


def test_the_best_look_is_the_highest_score_and_the_lowest_loss():
    """Of accuracy more is better, of loss less, and the earlier of two equal ones is taken."""
    looks = [
        {"updates": n, "metrics": {"loss": loss, "accuracy": acc}} for n, loss, acc in [(0, 1, 2), (1, 0, 3), (2, 5, 3)]
    ]
    assert best_look(looks) == ("accuracy", looks[1])
    losses = [{"updates": n, "metrics": {"loss": value}} for n, value in enumerate((2.0, 1.0, 1.0))]
    assert best_look(losses) == ("loss", losses[1])
    assert best_look([]) == (None, None)
