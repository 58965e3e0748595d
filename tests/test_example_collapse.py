"""The collapse example: its runs find their data, and no counts are written where some of them have no outcome."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "collapse"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("collapse_run", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def quiet(example, tmp_path, monkeypatch):
    """Let the example run nothing, over a start model that is there, and leave the process as it is."""
    monkeypatch.setattr(example, "warm_up", lambda model: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("PYTHONPATH", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "")
    begun = tmp_path / "work" / "start" / "final"
    begun.mkdir(parents=True)
    (begun / "manifest.json").write_text("{}", encoding="utf-8")
    return ["--work", str(tmp_path / "work"), "--results", str(tmp_path), "--set", "first"]


def test_every_run_reads_what_the_start_leaves(example):
    """Rows of the start model lie where it is made; all other files are those left for the recipes."""
    from humanline.reproduce.start import _start_place
    from humanline.reproduce.testbeds.letters import SMALL

    begun = _start_place(SMALL, "near", 0, Path("starts"))
    left = {"pairs.jsonl", "pairs-held-out.jsonl", "words.jsonl", "words-held-out.jsonl"}
    left |= {str(begun / name) for name in ("train.jsonl", "held-out.jsonl")}
    for name in example.SETS:
        for job in example.jobs(name):
            assert {job.tree["data"][part] for part in ("train", "eval") if part in job.tree["data"]} <= left, job.name


def finished(example, work, folder, **outcome):
    """Leave what a finished run leaves."""
    job = next(one for one in example.jobs("first") if one.name == folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    config = example.config_of(work, job, folder)
    (folder / "config.used.json").write_text(config.model_dump_json(), encoding="utf-8")
    (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")


def test_what_was_run_with_other_settings_is_run_again(example, quiet, tmp_path, monkeypatch):
    """Not so after a change of the limits alone, by which the same rows are judged."""
    work, again = tmp_path / "work", []
    for job in example.jobs("first"):
        finished(example, work, work / "first" / job.name)
    for name, section, key, value in (
        ("nll-0", "optimizer", "lr", 0.5),
        ("kto-offline-0", "training", "steps", 39),
        ("nll-1", "training", "collapse", None),
    ):
        file = work / "first" / name / "config.used.json"
        tree = json.loads(file.read_text(encoding="utf-8"))
        tree[section][key] = value
        file.write_text(json.dumps(tree), encoding="utf-8")
    monkeypatch.setattr(example, "in_child", lambda act, log: again.append(log.stem))
    monkeypatch.setattr(example, "judge", lambda job, folder: {"name": job.name, "broken": job.is_broken, "line": None})
    assert example.main(quiet) == 1  # since nothing was run here
    assert sorted(again) == ["kto-offline-0", "nll-0"]


def test_a_faulty_configuration_is_no_outcome(example, tmp_path, monkeypatch):
    """A run ends by itself where a number is not finite, and by no other error."""
    from humanline.train import loop
    from humanline.train.run.processes import NonFiniteError

    job, folder = example.jobs("first")[0], tmp_path / "run"

    def ending(error):
        def train(config):
            folder.mkdir()
            raise error

        monkeypatch.setattr(loop, "train", train)
        example.run(tmp_path, job, folder)

    ending(NonFiniteError("loss is nan"))
    assert example.read(folder / "outcome.json") == {"error": "loss is nan"}
    with pytest.raises(ValueError, match="no such setting"):
        ending(ValueError("no such setting"))
    assert not (folder / "outcome.json").exists()


def test_a_run_without_an_outcome_leaves_the_results_alone(example, quiet, tmp_path, monkeypatch, capsys):
    """Where one run of a set has failed the exit code is 1, and the results that were there stay."""
    kept = tmp_path / "results.json"
    kept.write_text(json.dumps({"first": [], "second": []}), encoding="utf-8")
    before = kept.read_bytes()

    def in_child(act, log):
        folder = Path(str(log).removesuffix(".log"))
        if folder.name != "nll-1":
            folder.mkdir(parents=True)
            finished(example, tmp_path / "work", folder)

    monkeypatch.setattr(example, "in_child", in_child)
    monkeypatch.setattr(example, "judge", lambda job, folder: {"name": job.name, "broken": job.is_broken, "line": None})
    assert example.main(quiet) == 1
    assert kept.read_bytes() == before and not (tmp_path / "results.md").exists()
    said = capsys.readouterr().out
    assert f"nll-1 has no outcome with these settings: see {tmp_path / 'work' / 'first' / 'nll-1.log'}" in said
    assert "Runs without an outcome: 1. Nothing is written" in said


@pytest.mark.slow
def test_a_run_of_next_tokens_has_an_outcome(example, tmp_path):
    """The whole way once: the start model, a run of the example, and its verdict."""
    command = [sys.executable, str(FOLDER / "run.py"), "--work", str(tmp_path / "work"), "--results", str(tmp_path)]
    command += ["--set", "first", "--only", "nll-0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert result.returncode == 0, result.stdout + result.stderr
    assert '"name": "nll-0"' in result.stdout and '"score": ' in result.stdout
