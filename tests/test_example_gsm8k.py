"""The GSM8K example: how its pairs are made, what it says without data, and the whole chain at tiny sizes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "gsm8k"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gsm8k_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=dict(os.environ))


pairs = load("pairs")
report = load("report")


@pytest.fixture(scope="module")
def graded(shared_data: Path) -> list[dict]:
    path = shared_data / "gsm8k-model-solutions.jsonl"
    if not path.is_file():
        pytest.skip(f"{path.name} is not among the public data sets")
    return pairs.read_lines(path)


def toy_rows(count: int) -> list[dict]:
    """Questions with two right and two wrong solutions, in every order of length."""
    rows = []
    for i in range(count):
        row: dict = {"question": f"question {i}"}
        for j, model in enumerate(pairs.MODELS):
            row[model] = {"is_correct": (i + j) % 2 == 0, "solution": f"{i} {model} " + "x" * ((i + 1) * (j + 3) % 7)}
        rows.append(row)
    return rows


def check_pairs(rows: list[dict], held_out: int) -> None:
    train, rest = pairs.build_pairs(rows, held_out=held_out, seed=0)
    solutions = {row["question"]: row for row in rows}
    for pair in (*train, *rest):
        row = solutions[pair["prompt"]]
        chosen, rejected = row[pair["chosen_model"]], row[pair["rejected_model"]]
        assert chosen["is_correct"] and chosen["solution"] == pair["chosen"]
        assert not rejected["is_correct"] and rejected["solution"] == pair["rejected"]
    questions = [pair["prompt"] for pair in (*train, *rest)]
    assert len(rest) == held_out and len(set(questions)) == len(questions)
    assert pairs.build_pairs(rows, held_out=held_out, seed=0) == (train, rest)
    assert pairs.build_pairs(rows, held_out=held_out, seed=1) != (train, rest)


def test_toy_pairs_have_one_right_and_one_wrong_solution_of_questions_that_the_split_keeps_apart():
    check_pairs(toy_rows(40), held_out=10)


def test_every_question_with_right_and_wrong_solutions_gives_one_pair(graded):
    train, rest = pairs.build_pairs(graded, held_out=200, seed=0)
    assert (len(train), len(rest)) == (531, 200)
    check_pairs(graded, held_out=200)


def test_the_choice_of_solutions_balances_length_model_and_verifier(graded):
    for part in pairs.build_pairs(graded, held_out=200, seed=0):
        for name in ("longer", "larger_model", "verified"):
            chosen, rejected = pairs.giveaways(part)[name]
            assert abs(chosen - rejected) <= 0.1, name


def test_no_question_of_a_pair_is_trained_on_as_next_tokens(graded, shared_data):
    trained = {row["question"].strip() for row in pairs.read_lines(shared_data / "gsm8k-train.jsonl")}
    assert not trained & {row["question"].strip() for row in graded}


def test_missing_data_are_named_with_their_source_and_the_way_to_give_them(tmp_path):
    (tmp_path / "train.jsonl").write_text("", encoding="utf-8")  # under its name at the source: found
    done = run("--data", str(tmp_path), "--work", str(tmp_path / "work"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "gsm8k-train.jsonl" not in done.stderr
    for part in ("gsm8k-model-solutions.jsonl", "example_model_solutions.jsonl", "MIT", "--data", pairs.SOURCE):
        assert part in done.stderr
    assert not (tmp_path / "work").exists()


def test_the_committed_page_is_made_of_the_committed_results():
    """Every number of results.md follows from results.json."""
    results = json.loads((EXAMPLE / "results.json").read_text(encoding="utf-8"))
    assert report.page(results) == (EXAMPLE / "results.md").read_text(encoding="utf-8")


def test_the_interval_is_students():
    mean, half = report.interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.302652729911275 / 3**0.5)
    assert report.interval([4.0, 4.0]) == (4.0, 0.0)


def test_offline_grpo_has_the_papers_clip_humanlines_and_the_widest(monkeypatch):
    """Offline GRPO is run at eps 0.15, 0.5 (Table 3) and 1, humanline at 0.15 (Table 3) and its k, all else equal."""
    from humanline.train.config import load_config

    monkeypatch.syspath_prepend(str(EXAMPLE))
    run_module = load("run")
    found = {}
    for variant, overrides in run_module.variants("GRPO, lr 3e-4").items():
        config = load_config(EXAMPLE / "grpo.yaml", list(overrides))
        objective = config.objective.model_dump()
        found[variant] = objective.pop("clip_eps"), getattr(config.reference.schedule, "every", None)
        assert objective == {"kind": "grpo", "kl_coef": 0.01, "normalise": "global"} | {
            "advantage_std": "population",
            "advantage_eps": 0.0,
        }
    offline = {f"offline, eps {eps:g}": (eps, None) for eps in (0.15, 0.5, 1.0)}
    assert found == offline | {f"humanline, k = {every}": (0.15, every) for every in (1, 8, 32)}
    assert list(run_module.variants("KTO, beta 0.1, lr 1e-3")) == ["offline", "humanline, k = 1"]
    assert load_config(EXAMPLE / "grpo.yaml").objective.clip_eps == 0.5


def cells(eps: dict[str, float], accuracy: dict[str, float], setting: str = "GRPO, lr 1") -> list[dict]:
    """Two seeds of each variant, a tenth apart; the loss is the accuracy again."""
    return [
        {
            "setting": setting,
            "variant": variant,
            "seed": seed,
            "objective": {"kind": "grpo", "clip_eps": eps[variant]},
            "initial": dict.fromkeys(report.METRICS, 0.0),
            "held_out": dict.fromkeys((*report.METRICS, report.SHARES[0]), value + seed / 10),
            "clip_share": 0.0 if variant.startswith("humanline") else None,
            "own_clip_share": 0.25,
        }
        for variant, value in accuracy.items()
        for seed in range(2)
    ]


def test_humanline_of_every_k_is_held_against_every_offline_variant_and_losses_at_one_clip_only():
    """Each offline variant has its difference to the same humanline runs; losses of two clips are not subtracted."""
    rows = cells(
        {"offline, eps 0.15": 0.15, "offline, eps 0.5": 0.5, "humanline, k = 1": 0.15, "humanline, k = 8": 0.15},
        {"offline, eps 0.15": 0.5, "offline, eps 0.5": 0.75, "humanline, k = 1": 0.625, "humanline, k = 8": 0.875},
    )
    lines = report._differences(rows, ["GRPO, lr 1"]).splitlines()
    assert [line.split(" | ")[:4] for line in lines if line.startswith("| GRPO")] == [
        ["| GRPO, lr 1, k = 1 (offline, eps 0.15)", "+0.125 ± 0.000", "+0.12 ± 0.00", "+0.1250 ± 0.0000"],
        ["| GRPO, lr 1, k = 1 (offline, eps 0.5)", "-0.125 ± 0.000", "-0.12 ± 0.00", "-"],
        ["| GRPO, lr 1, k = 8 (offline, eps 0.15)", "+0.375 ± 0.000", "+0.38 ± 0.00", "+0.3750 ± 0.0000"],
        ["| GRPO, lr 1, k = 8 (offline, eps 0.5)", "+0.125 ± 0.000", "+0.12 ± 0.00", "-"],
    ]
    verdict = report._verdict(rows, ["GRPO, lr 1"])
    assert "excludes 0: 8 of 8 here" in verdict  # four accuracies, four distances
    assert "k = 1 (offline, eps 0.15): **humanline better**" in verdict
    assert "k = 1 (offline, eps 0.5): **humanline worse**" in verdict
    assert "k = 1 (offline, eps 0.5): **humanline nearer**" in verdict
    assert report._cells(rows, ["GRPO, lr 1"]).count("25.00%") == 4


def test_variants_are_shown_from_near_to_far_within_their_objective():
    eps = {"offline, eps 0.5": 0.5, "humanline, k = 1": 0.15}
    rows = cells(eps, {"offline, eps 0.5": 0.75, "humanline, k = 1": 0.5}, "GRPO, lr 1")
    rows += cells(eps, {"offline, eps 0.5": 0.25}, "GRPO, lr 2")
    stopped = {"setting": "GRPO, lr 2", "variant": "humanline, k = 1", "seed": 0, "failed": "nan"}
    rows.append({**stopped, "objective": {"kind": "grpo"}})
    lines = report._by_distance(rows, ["GRPO, lr 1", "GRPO, lr 2"]).splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("| GRPO, lr")] == [
        "| GRPO, lr 2, offline, eps 0.5",
        "| GRPO, lr 1, humanline, k = 1",
        "| GRPO, lr 1, offline, eps 0.5",
    ]
    assert "lr 2, offline, eps 0.5 | 0.30 (0.25 .. 0.35) | 0.300 (0.250 .. 0.350) |" in "\n".join(lines)


@pytest.mark.slow
def test_the_quick_chain_runs_from_data_to_table_and_is_not_run_again(shared_data, tmp_path):
    pytest.importorskip("transformers")
    arguments = ("--quick", "--data", str(shared_data), "--work", str(tmp_path))
    first = run(*arguments)
    assert first.returncode == 0, first.stderr
    table = (tmp_path / "quick" / "results.md").read_text(encoding="utf-8")
    results = json.loads((tmp_path / "quick" / "results.json").read_text(encoding="utf-8"))
    perplexity = [point["perplexity"] for point in results["start"]["perplexity"]]
    assert perplexity == sorted(perplexity, reverse=True) and len(perplexity) > 2
    found = {(c["setting"].split(",")[0], c["variant"], c["objective"].get("clip_eps")) for c in results["cells"]}
    humanline = [f"humanline, k = {every}" for every in (1, 8, 32)]
    assert found == {(m, v, None) for m in ("DPO", "KTO") for v in ("offline", *humanline)} | {
        *(("GRPO", variant, 0.15) for variant in humanline),
        *(("GRPO", f"offline, eps {eps:g}", eps) for eps in (0.15, 0.5, 1)),
    }
    assert "offline" in table and "humanline" in table and "nan" not in table and str(tmp_path) not in table
    assert all(c["held_out"]["kl_to_start"] > 0 == c["initial"]["kl_from_start"] for c in results["cells"])

    # A cell that lost its model and one that was interrupted are run again; the others are not.
    runs = sorted((tmp_path / "quick" / "runs").iterdir())
    for folder, lost in zip(runs, ("final/model.safetensors", "done.json"), strict=False):
        (folder / lost).unlink()
    second = run(*arguments)
    assert second.returncode == 0, second.stderr
    assert second.stdout.count(": trained") == 2
    assert second.stdout.count(": was there") == len(runs)  # the random model, the start model, all cells but two
    assert (tmp_path / "quick" / "results.md").read_text(encoding="utf-8") == table
