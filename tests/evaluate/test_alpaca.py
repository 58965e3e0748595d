"""AlpacaEval's files: outputs made of samples, and annotations read back without the package."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from humanline.cli import main
from humanline.evaluate.alpaca_eval.annotations import read_annotations, summarise_annotations
from humanline.evaluate.records import read_evaluation
from humanline.stats import clustered_share, wilson_interval

GIVEN = "ALPACA_EVAL_ANNOTATIONS"  # a folder with annotations.json, and the package's numbers in metrics.json


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def annotation(n: int, preference: Any, **more: Any) -> dict[str, Any]:
    return {
        "instruction": f"Instruction {n}\nof two lines",
        "output_1": "theirs",
        "generator_1": "baseline",
        "output_2": "x" * n,
        "generator_2": "ours",
        "annotator": "judge",
        "preference": preference,
    } | more


def write(name: str, rows: Any, indent: int | None = 2) -> str:
    Path(name).write_text(json.dumps(rows, indent=indent))
    return name


def test_numbers_are_those_of_the_definition():
    """Rate, error and counts equal exact arithmetic; ties are written either way, missing ones left out."""
    preferences = [1, 2, 1.5, 0, 1.25, 1.875, 2, None, -1, 1.0, float("nan"), 1.5000001]
    found = summarise_annotations(
        read_annotations(write("a.json", [annotation(n, p) for n, p in enumerate(preferences)]))
    )
    shares = [Fraction(p) - 1 if p else Fraction(1, 2) for p in preferences if p is not None and p == p and p != -1]
    mean = sum(shares) / len(shares)
    variance = sum((x - mean) ** 2 for x in shares) / (len(shares) - 1)
    assert found["win_rate"] == pytest.approx(float(100 * mean), abs=1e-12)
    assert found["standard_error"] == pytest.approx(100 * math.sqrt(variance / len(shares)), abs=1e-12)
    assert (found["n_wins"], found["n_draws"], found["n_wins_base"]) == (4, 2, 3)
    assert (found["n_total"], found["missing"]) == (9, 3)
    assert found["discrete_win_rate"] == pytest.approx(100 * (4 + 1) / 9, abs=1e-12)
    assert found["avg_length"] == statistics.fmean(range(12))
    Path("b.json").write_text("\ufeff" + Path("a.json").read_text())  # as some editors begin a file
    assert summarise_annotations(read_annotations("b.json")) == found


@pytest.mark.parametrize("preferences", [[1, 2, 2, 1.5, 1.25, 2, 1.75], [1, 2, 2, 2, 1, 2, 2]])
def test_the_interval_is_that_of_shares_or_wilson_s_for_yes_and_no(preferences, capsys):
    values = [one - 1 for one in preferences]
    file = write("a.json", [annotation(n, p) for n, p in enumerate(preferences)])
    found = summarise_annotations(read_annotations(file))["interval"]
    binary = all(value in (0, 1) for value in values)
    expected = wilson_interval(int(sum(values)), len(values)) if binary else clustered_share(values)
    assert (found["value"], found["low"], found["high"]) == (expected.share, expected.low, expected.high)
    assert main(["alpaca", "annotations", file, "--out", "a.eval.json"]) == 0
    said = capsys.readouterr().err
    assert f"95 % interval of the rate {100 * expected.low:.2f} to {100 * expected.high:.2f} %" in said
    assert f"win rate {100 * sum(values) / len(values):.4f} %" in said


def test_the_packages_own_annotations_give_its_published_rate():
    """Where a folder of the package's results is given, all of its numbers are found again to 1e-9."""
    folder = os.environ.get(GIVEN)
    if folder is None:
        pytest.skip(
            f"the package's annotations are not here: set {GIVEN} to a folder with annotations.json and metrics.json"
        )
    published = json.loads(Path(folder, "metrics.json").read_text())
    found = summarise_annotations(read_annotations(str(Path(folder, "annotations.json"))))
    for name in ("win_rate", "standard_error", "n_wins", "n_wins_base", "n_draws", "n_total", "discrete_win_rate"):
        if name in published:
            assert found[name] == pytest.approx(published[name], abs=1e-9), name


def test_missing_preferences_are_named_and_counted(capsys):
    """Each has a status, its line is said, and the file that is written can be compared item by item."""
    rows = [annotation(n, (2, None, 1, 1.5)[n % 4]) for n in range(12)]
    write("set.json", [{"instruction": row["instruction"]} for row in rows] + [{"instruction": "another"}])
    assert (
        main(["alpaca", "annotations", write("a.json", rows), "--out", "a.eval.json", "--instructions", "set.json"])
        == 0
    )
    said = capsys.readouterr().err
    assert "3 annotations have no preference" in said and "a.json:11," in said  # as it lies in the file
    assert Path("a.json").read_text().splitlines()[10] == "  {"
    assert "1 instructions of the set are not annotated" in said
    assert "no length-controlled rate: it needs the package" in said
    found = read_evaluation("a.eval.json")
    assert [item.values[0] for item in found.items[:4]] == [1.0, None, 0.0, 0.5]
    assert found.items[1].status == ("missing",) and found.name == "ours"
    other = [annotation(n, 2, generator_2="other") for n in range(12)]
    assert main(["alpaca", "annotations", write("b.json", other), "--out", "b.eval.json", "--quiet"]) == 0
    assert main(["compare", "a.eval.json", "b.eval.json"]) == 0
    assert main(["alpaca", "annotations", "a.json", "--out", "a.eval.json"]) == 2  # nothing is overwritten


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([annotation(0, 1), annotation(1, "2")], "a.json:11: preference must be a number or null; got '2'"),
        ([annotation(0, 1), annotation(1, True)], "a.json:11: preference must be a number or null"),
        ([annotation(0, 1), annotation(1, 2.5)], r"a.json:11: preference must be in [1, 2]"),
        ([annotation(0, 1), annotation(1, 0.5)], r"a.json:11: preference must be in [1, 2]"),
        ([annotation(0, 1), annotation(0, 2)], "a.json:11: 'Instruction 0 of two lines' is annotated twice"),
        ([annotation(0, 1), annotation(1, 2, generator_2="b")], "a.json:11: it is of b / baseline / judge"),
        ([annotation(0, 1), annotation(1, 2, annotator="b")], "a.json:11: it is of ours / baseline / b"),
        ([annotation(0, None)], "none of 1 annotations has a preference"),
        ([annotation(0, 1), {"instruction": "x"}], "a.json:11: no annotation"),
        ([annotation(0, 1), {"preference": 1}], "a.json:11: must have a text 'instruction'"),
        ([annotation(0, 1), 3], "a.json:11: must be an object"),
        ([], "the list is empty"),
        ({}, "must be a JSON list"),
    ],
)
def test_annotations_that_are_none_are_refused_with_their_line(rows, message, capsys):
    assert main(["alpaca", "annotations", write("a.json", rows), "--out", "out.json"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.json").exists()


@pytest.mark.parametrize("text", ["[{}", "[{} {}]", "[{},", "[{}] x", "[{'a'}]", "", "["])
def test_a_torn_list_is_refused(text, capsys):
    Path("a.json").write_text(text)
    assert main(["alpaca", "annotations", "a.json", "--out", "out.json"]) == 2
    assert "a.json" in capsys.readouterr().err


def samples(prompts: dict[str, list[str]], name: str = "samples.jsonl") -> str:
    rows = [
        {
            "id": str(n),
            "policy": "",
            "prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": prompt}],
            "extra": {},
            "completions": [{"text": text, "ids": [], "finish": "length", "logprobs": None} for text in texts],
        }
        for n, (prompt, texts) in enumerate(prompts.items())
    ]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def outputs(*words: str) -> int:
    return main(["alpaca", "outputs", "samples.jsonl", "--instructions", "set.json", "--out", "outputs.json", *words])


def test_outputs_are_in_the_order_of_the_instructions(capsys):
    """Each has the exact instruction, the output, a generator and the set's own name of its part."""
    write("set.json", [{"instruction": f"Do {n}.", "dataset": "helpful", "output": "x"} for n in range(4)])
    samples({f"Do {n}.": [f"done {n}\n"] for n in (2, 0, 3, 1)})
    assert outputs("--name", "ours") == 0
    rows = json.loads(Path("outputs.json").read_text())
    assert rows == [
        {"instruction": f"Do {n}.", "output": f"done {n}\n", "generator": "ours", "dataset": "helpful"}
        for n in range(4)
    ]
    assert "4 of them truncated, 0 blank" in capsys.readouterr().err
    assert outputs() == 2 and "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "words", "message"),
    [
        ({"Do 0.": ["a"]}, (), "1 of 2 instructions have no answer, such as 'Do 1.'"),
        ({"Do 0.": ["a"], "Do 1.": ["b"], "Do 2.": ["c"]}, (), "1 answers are to none of them, such as 'Do 2.'"),
        ({"Do 0.": ["a"], "Do  1.": ["b"]}, (), "1 of these differ from one in white space alone"),
        ({"Do 0.": ["a"], "Do 1.": ["b", "c"]}, (), "samples.jsonl:2: '1' has 2 answers"),
        ({"Do 0.": ["a"], "Do 1.": ["b", "c"]}, ("--answer", "2"), "--answer 2 is none of them"),
    ],
)
def test_samples_that_do_not_answer_the_set_are_refused(asked, words, message, capsys):
    """What is missing, repeated or changed is what the package drops, doubles or makes nan of."""
    write("set.json", [{"instruction": f"Do {n}."} for n in range(2)])
    samples(asked)
    assert outputs(*words) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in Path().iterdir() if "outputs" in path.name] == []


def test_repeated_instructions_are_refused(capsys):
    write("set.json", [{"instruction": f"Do {n}."} for n in (0, 1, 0)])
    samples({"Do 0.": ["a"], "Do 1.": ["b"]})
    assert outputs() == 2
    assert "set.json:8: the instruction 'Do 0.' is there twice" in capsys.readouterr().err
    write("set.json", [{"instruction": f"Do {n}."} for n in range(2)])
    rows = Path("samples.jsonl").read_text().splitlines()
    Path("samples.jsonl").write_text("\n".join([*rows, rows[0].replace('"id": "0"', '"id": "9"')]) + "\n")
    assert outputs() == 2
    assert "samples.jsonl:3: the instruction 'Do 0.' is there twice" in capsys.readouterr().err


class TestLengthControl:
    """The package computes it, from a file in place of its download; a stand-in with its signature is asked here."""

    @pytest.fixture
    def package(self, monkeypatch) -> types.ModuleType:
        pytest.importorskip("pandas")
        module = types.ModuleType("alpaca_eval.metrics.glm_winrate")
        module.hf_hub_download = lambda **_: pytest.fail("it asked the network")  # type: ignore[attr-defined]

        def rate(annotations, glm_name="length_controlled_v1", save_weights_dir="auto", **_):
            assert save_weights_dir is None and next(iter(annotations.columns)) == "instruction"
            file = module.hf_hub_download(repo_id="tatsu-lab/alpaca_eval", filename=module.wanted, repo_type="dataset")
            return {"length_controlled_winrate": float(Path(file).read_text())}

        module.get_length_controlled_winrate, module.wanted = rate, "df_gamed.csv"  # type: ignore[attr-defined]
        for name in ("alpaca_eval", "alpaca_eval.metrics"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        write("a.json", [annotation(n, 1 + n % 2) for n in range(4)])
        return module

    def read(self) -> int:
        return main(["alpaca", "annotations", "a.json", "--out", "out.json", "--difficulty", "gamed.csv"])

    def test_the_package_is_handed_the_file(self, package, capsys):
        Path("gamed.csv").write_text("41.5")
        assert self.read() == 0
        assert "length-controlled win rate 41.5000 %" in capsys.readouterr().err
        assert read_evaluation("out.json").summary["length_controlled_winrate"] == 41.5

    @pytest.mark.parametrize(
        ("file", "wanted", "message"),
        [("nan", "df_gamed.csv", "is nan"), ("x", "df_gamed.csv", "fails on"), ("1", "other.csv", "wants to fetch")],
    )
    def test_what_it_cannot_compute_is_an_error(self, package, file, wanted, message, capsys):
        Path("gamed.csv").write_text(file)
        package.wanted = wanted
        assert self.read() == 2
        assert message in capsys.readouterr().err and not Path("out.json").exists()

    def test_without_file_or_package_it_says_so(self, package, monkeypatch, capsys):
        assert self.read() == 2
        assert "is no file; it is df_gamed.csv" in capsys.readouterr().err
        Path("gamed.csv").write_text("1")
        monkeypatch.setitem(sys.modules, "alpaca_eval.metrics.glm_winrate", None)
        assert self.read() == 2
        assert "pip install alpaca_eval" in capsys.readouterr().err
