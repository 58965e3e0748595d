"""The quick-starts of TRL's documentation: their scripts run in TRL, and our recipes for them on the same files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from humanline.cli import main
from tests.conftest import ROOT
from tests.helpers.pages import blocks, settings_tables
from tests.helpers.trl_quickstarts import ON_CPU, SCRIPTS, file_of, make, rows

PAGE = ROOT / "docs" / "switch-from-trl.md"
NAMES = {"dpo": "ultrafeedback_binarized", "kto": "kto-mix-14k", "grpo": "DeepMath-103K"}
MODELS = {"dpo": "Qwen/Qwen3-0.6B", "kto": "Qwen/Qwen2-0.5B-Instruct", "grpo": "Qwen/Qwen2-0.5B-Instruct"}
#: Prints the fields of each configuration; where one says None and means True (bf16), what it means.
DEFAULTS = """
import dataclasses, json, trl
told = {}
for kind in ("DPOConfig", "KTOConfig", "GRPOConfig"):
    fields = {one.name: one for one in dataclasses.fields(getattr(trl, kind))}
    made = getattr(trl, kind)(output_dir="unused", use_cpu=True)
    factory = {name: one.default_factory for name, one in fields.items() if one.default is dataclasses.MISSING}
    told[kind] = {name: factory[name]() if name in factory else one.default for name, one in fields.items()}
    told[kind]["bf16"] = made.bf16
print(json.dumps(told, default=str))
"""
HAS_TRL = importlib.util.find_spec("trl") is not None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with all that the scripts name."""
    folder = tmp_path_factory.mktemp("trl")
    make(folder)
    return folder


@pytest.fixture
def here(made, monkeypatch):
    """That folder, as the current one."""
    monkeypatch.chdir(made)
    return made


def recipe(folder, kind: str) -> str:
    """Write the page's recipe of a quick-start, its two names on the hub replaced by those of files, and name it."""
    (block,) = [one for one in blocks(PAGE, "yaml") if f"runs/quick-{kind}\n" in one.text]
    text = block.text
    model, data = f"hub:{MODELS[kind]}", f'"hub:trl-lib/{NAMES[kind]}#train"'
    assert text.count(model) == text.count(data) == 1
    path = folder / f"{kind}.yaml"
    path.write_text(text.replace(model, MODELS[kind]).replace(data, file_of(NAMES[kind])), encoding="utf-8")
    return path.name


def trained(folder, output: str) -> list[dict]:
    """Return the rows of a run's steps, and see that it left a model."""
    assert (folder / output / "final" / "model.safetensors").is_file()
    found = [json.loads(line) for line in (folder / output / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [row for row in found if row["kind"] == "train"]


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_the_recipes_of_the_page_train_on_the_files(here, kind, capsys):
    """DPO and KTO take the published columns as they are, and pass over the rows three times."""
    path = recipe(here, kind)
    assert main(["validate", path]) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    count = len(rows()[NAMES[kind]])
    assert f"{count} of {count} kept" in told and "ignored: none" in told
    assert main(["train", path]) == 0, capsys.readouterr().err
    assert [row["step"] for row in trained(here, f"runs/quick-{kind}")] == list(range(3 * count // 8))


def test_a_reward_file_is_used_as_it_is(here, capsys):
    """A function of TRL's form, in a file beside the recipe, scores what GRPO samples for prompts of messages."""
    path = recipe(here, "grpo")
    letters = 'source.scoring.rewards=[{kind: function, call: "rewards:reward_num_unique_letters"}]'
    small = [letters, "output=runs/letters", "source.sampling.max_tokens=16"]
    assert main(["validate", path, *small]) == 0, capsys.readouterr().err
    assert "of TRL's form" in capsys.readouterr().out
    assert main(["train", path, *small]) == 0, capsys.readouterr().err
    assert len(trained(here, "runs/letters")) == 3 * len(rows()["DeepMath-103K"])
    found = [json.loads(line) for line in (here / "runs/letters/metrics.jsonl").read_text("utf-8").splitlines()]
    scores = [row["score"] for row in found if row["kind"] == "sample"]
    assert len(scores) == 12 and all(1 < score <= 16 * 8 for score in scores)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRL, reason="TRL is not here (the extra bench has it)")
def test_the_reward_of_the_quickstart_is_used_as_it_is(here, capsys):
    """accuracy_reward, imported from TRL, scores; a prompt whose solution it cannot read is left out, and said."""
    path = recipe(here, "grpo")
    assert main(["train", path]) == 0, capsys.readouterr().err
    assert len(trained(here, "runs/quick-grpo")) == 3 * len(rows()["DeepMath-103K"])
    lines = [{"prompt": [{"role": "user", "content": f"What is {n}?"}], "solution": "$2$" * (n != 1)} for n in range(2)]
    (here / "unread.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    small = ["data.train=unread.jsonl", "output=runs/unread", "source.sampling.max_tokens=16"]
    assert main(["train", path, *small]) == 0, capsys.readouterr().err
    assert capsys.readouterr().err.count("skipped: 8 of 8 completions have no score (8 not_scored)") == 3
    assert len(trained(here, "runs/unread")) == 3


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRL, reason="TRL is not here (the extra bench has it)")
def test_every_default_of_the_page_is_what_trl_starts_with(here):
    """Configurations made without a setting have the values of all tables, those of transformers among them."""
    ran = subprocess.run([sys.executable, "-c", DEFAULTS], cwd=here, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    made = json.loads(ran.stdout.splitlines()[-1])
    looked_at = []
    for heading, lines in settings_tables(PAGE).items():
        for names, defaults, *_ in lines:
            fields = re.findall(r"`(\w+)`", names)
            values = [defaults] if len(fields) == 1 else defaults.split(", ")
            if not defaults:
                continue
            assert len(fields) == len(values), names
            for field, value in zip(fields, values, strict=True):
                for kind in [heading] if heading in made else made:
                    assert str(made[kind][field]) == value.strip("`").replace('"', "'").strip("'"), (kind, field)
                looked_at.append(field)
    assert len(looked_at) > 40 and {"beta", "bf16", "num_train_epochs", "warmup_steps"} <= set(looked_at)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRL, reason="TRL is not here (the extra bench has it)")
@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_files_are_what_trl_takes(here, kind):
    """TRL's own script runs to its end on the files that our recipe names: nothing was made to suit us."""
    (here / "on_cpu.py").write_text(ON_CPU, encoding="utf-8")
    (here / f"train_{kind}.py").write_text(SCRIPTS[kind], encoding="utf-8")
    given = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(here / "cache")}
    ran = subprocess.run(
        [sys.executable, "on_cpu.py", f"train_{kind}.py"], cwd=here, env=given, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "'train_loss'" in ran.stdout and "12/12" in ran.stderr
