"""run.sh and the configurations of a plan: what is there is not made again, and what fails is said at the end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from humanline.cli import main
from humanline.reproduce.scales.registry import SCALES
from humanline.reproduce.scales.write import config_file, prepare, settings_of
from humanline.train.config import load_config

#: In place of `humanline` and `alpaca_eval`: it notes its words, fails where it is told, and makes what it should.
STAND_IN = """\
#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "$NOTED"
if [[ -n ${FAIL:-} && "$*" == *"$FAIL"* ]]; then exit "${CODE:-3}"; fi
out=
case "$1" in
  train) out=runs/${2#configs/}; out=${out%.yaml}/final/x ;;
  --model_outputs) out=$(dirname "$2")/$4/annotations.json ;;
  validate) exit 0 ;;
  *) while (($#)); do if [[ $1 == --out ]]; then out=$2; fi; shift; done
     if [[ $out != *.json ]]; then out=$out/evaluation.json; fi ;;
esac
mkdir -p "$(dirname "$out")" && touch "$out"
"""


def plan_of(scale: str, folder: Path, *only: str) -> Path:
    assert main(["reproduce", "--scale", scale, "--only", *only, "--out", str(folder)]) == 0
    return folder


def run(folder: Path, tmp_path: Path, **environment: str) -> tuple[int, list[str], str]:
    """Return the exit code of run.sh, the commands that it gave to stand-ins, and what it said of errors."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("humanline", "alpaca_eval"):
        (tools / name).write_text(STAND_IN)
        (tools / name).chmod(0o755)
    noted = tmp_path / "noted"
    noted.write_text("")
    own = {"PATH": f"{tools}:{os.environ['PATH']}", "NOTED": str(noted), **environment}
    done = subprocess.run([str(folder / "run.sh")], env=own, capture_output=True, text=True)
    return done.returncode, noted.read_text().splitlines(), done.stderr


@pytest.mark.parametrize(
    ("scale", "only"), [("small", "grpo"), pytest.param("paper", "figure5", marks=pytest.mark.slow)]
)
def test_every_file_of_a_plan_reads_as_the_configuration_that_was_checked(scale, only, tmp_path, capsys):
    folder = plan_of(scale, tmp_path / "out", only)
    plan = prepare(SCALES[scale](), folder)
    files = [config_file(folder, run_.name) for run_ in plan.runs if run_.name.startswith(only)]
    assert sorted(files) == sorted(folder.glob(f"configs/{only}/**/*.yaml")) != []
    for run_ in (one for one in plan.runs if one.name.startswith(only)):
        read = load_config(config_file(folder, run_.name))
        assert settings_of(read) == settings_of(plan.configs[run_.name])
        assert read.evaluation == plan.configs[run_.name].evaluation and read.output == f"runs/{run_.name}"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    plan_of(scale, folder, only)  # the same command changes nothing
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = capsys.readouterr().out
    assert "48 not begun" in said and "Reckoned, and not measured: " in said and "Memory: " in said
    assert "# Reckoned, and not measured: " in (folder / "run.sh").read_text()


def test_what_is_there_is_not_made_again(tmp_path):
    folder = plan_of("small", tmp_path / "out", "dpo/offline/lr5e-6")
    code, first, _ = run(folder, tmp_path)
    assert code == 0 and len(first) == 1 + 2 * 2  # the start is asked; two seeds are trained and asked
    assert first[1] == "humanline train configs/dpo/offline/lr5e-6/seed0.yaml --resume"
    assert "model=runs/dpo/offline/lr5e-6/seed0/final" in first[2] and "hub:Qwen" in first[0]
    assert run(folder, tmp_path)[:2] == (0, [])
    (folder / "evaluations/dpo/offline/lr5e-6/seed1/evaluation.json").unlink()
    code, again, _ = run(folder, tmp_path)
    assert code == 0 and again == [first[4]]


def test_a_run_that_fails_is_named_at_the_end_and_the_others_are_made(tmp_path):
    folder = plan_of("small", tmp_path / "out", "dpo/offline/lr5e-6")
    code, given, said = run(folder, tmp_path, FAIL="train configs/dpo/offline/lr5e-6/seed0")
    assert code == 1 and said.strip() == "not done: dpo/offline/lr5e-6/seed0"
    assert [words.split()[1] for words in given] == ["evaluate", "train", "train", "evaluate"]


def test_a_command_that_makes_nothing_has_failed(tmp_path):
    folder = plan_of("small", tmp_path / "out", "dpo/offline/lr5e-6/seed0")
    code, _, said = run(folder, tmp_path, FAIL="train", CODE="0")
    assert code == 1 and "runs/dpo/offline/lr5e-6/seed0/final is still missing" in said


def test_a_run_that_was_stopped_stops_the_script(tmp_path):
    folder = plan_of("small", tmp_path / "out", "dpo/offline/lr5e-6")
    code, given, _ = run(folder, tmp_path, FAIL="train", CODE="75")
    assert code == 75 and [words.split()[1] for words in given] == ["evaluate", "train"]


def test_alpacaeval_is_asked_in_four_steps_and_processes_are_handed_on(tmp_path):
    folder = plan_of("paper", tmp_path / "out", "table3/dpo/humanline")
    code, given, _ = run(folder, tmp_path, GPUS="4")
    words = [line.split() for line in given if "table3" in line]
    assert code == 0 and words[0][-3:] == ["--resume", "--processes", "4"]
    assert [one[:3] for one in words[1:]] == [
        ["humanline", "evaluate", "configs/answers.yaml"],
        ["humanline", "alpaca", "outputs"],
        ["alpaca_eval", "--model_outputs", "evaluations/table3/dpo/humanline/model_outputs.json"],
        ["humanline", "alpaca", "annotations"],
    ]
    assert sum("start/llama3-8b" in line for line in given) == 4 and not any("gemma" in line for line in given)


def test_a_dry_run_checks_every_configuration_and_starts_none(tmp_path):
    folder = plan_of("paper", tmp_path / "out", "table3/dpo")
    code, given, _ = run(folder, tmp_path, DRY_RUN="1")
    names = ("offline", "humanline", "online", "online-humanline")
    assert (code, given) == (0, [f"humanline validate --no-data configs/table3/dpo/{name}.yaml" for name in names])
    code, _, said = run(folder, tmp_path, DRY_RUN="1", FAIL="offline.yaml")
    assert code == 1 and said.strip() == "not done: configs/table3/dpo/offline.yaml"
    assert main(["validate", "--no-data", str(folder / "configs/table3/dpo/offline.yaml")]) == 0


def test_instructions_in_alpacaevals_form_are_asked(toy, tmp_path, monkeypatch):
    """The configuration of the answers reads the package's list of instructions, and its outputs are made of them."""
    folder = plan_of("paper", tmp_path / "out", "table3/dpo/offline")
    rows = [{"instruction": f"say {n}", "output": "no", "generator": "other", "dataset": "some"} for n in range(3)]
    (folder / "alpaca_eval.json").write_text(json.dumps(rows))
    monkeypatch.chdir(folder)
    (folder / "runs/table3/dpo/offline").mkdir(parents=True)
    (folder / "runs/table3/dpo/offline/final").symlink_to(toy["model"])
    tree = json.loads((folder / "plan.json").read_text())
    _, asked, outputs, *_ = tree["runs"][0]["commands"]
    short = ["data.max_length=64", "training.precision=float32", "evaluation.sampling.max_tokens=6"]
    assert main([*asked[1:3], *short, *asked[3:], "--quiet"]) == 0
    assert main([*outputs[1:], "--quiet"]) == 0
    made = json.loads((folder / "evaluations/table3/dpo/offline/model_outputs.json").read_text())
    assert [one["instruction"] for one in made] == ["say 0", "say 1", "say 2"]
    assert {one["generator"] for one in made} == {"table3/dpo/offline"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["letters", "--scale", "small", "--starts", "2"], "leave out a testbed and --starts"),
        (["--only", "table3"], "--only: of --scale small or --scale paper alone"),
        (["--scale", "paper", "--only", "table9"], "'table9' (did you mean"),
        (["--scale", "small", "--set", "optimizer.lr=-1"], "dpo/k1/lr5e-6/seed0 and 45 more: 1 problem"),
        (
            ["--scale", "small", "--set", "seed=3"],
            "makes 2 runs of the plan the same run (dpo/offline/lr5e-6/seed0, dpo/",
        ),
        (["--scale", "small", "--set", "training.steps=9", "--set", "optimizer.lr=1e-6"], "replaces what tells them"),
        (["--scale", "small", "--set", "output=elsewhere"], "--set output: a plan says itself where its runs go"),
        (["--scale", "small", "--only", "dpo", "--only", "dqo"], "nothing of the scale 'small' is called 'dqo'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(words, said, tmp_path, capsys):
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert said in shown and not (tmp_path / "out").exists() and len(shown.splitlines()) <= 12


def test_what_is_given_twice_is_added(tmp_path, capsys):
    """Names after a second --only, and changes after a second --set, are no others than after the first."""
    words = ["--scale", "paper", "--only", "table3/dpo/offline", "--only", "table3/kto/offline"]
    words += ["--set", "training.precision=float32", "--set", "evaluation.every=7"]
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 0
    assert sorted(path.parent.name for path in tmp_path.glob("out/configs/table3/*/*.yaml")) == ["dpo", "kto"]
    tree = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert tree["changes"] == ["training.precision=float32", "evaluation.every=7"]
