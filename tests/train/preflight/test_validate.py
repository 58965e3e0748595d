"""`humanline validate` finds what would keep a run from starting, all of it, and changes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from humanline.cli import main
from humanline.system.terminal import shorten
from humanline.train.config.describe import describe_config, describe_variant
from humanline.train.policy.load import load_outline, load_policy
from humanline.train.preflight import validate
from humanline.train.preflight.disk import Writes
from humanline.train.preflight.memory import static_bytes
from humanline.train.preflight.validate import NotReadyError
from humanline.train.run import tracking
from tests.conftest import ROOT
from tests.helpers.support import CLIP, OBJECTIVES, REJECT, SCHEDULES, config, run

RECIPES = [*sorted(ROOT.glob("humanline/recipes/*.yaml")), *sorted(ROOT.glob("examples/*/*.yaml"))]


def files(folder: Path) -> dict[str, tuple[int, float]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def recipe(toy, tmp_path):
    """A good recipe with held-out data."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"model: {toy['model']}\n"
        f"output: {tmp_path / 'run'}\n"
        "objective: {kind: dpo}\n"
        f"data: {{train: {toy['pairs']}, eval: {toy['held_out']}, max_length: 64}}\n"
        "training: {epochs: 1, batch_size: 8, micro_batch_size: 4}\n"
        "optimizer: {lr: 1e-3}\n"
    )
    return path


def test_a_good_recipe_is_ready(recipe, tmp_path, capsys):
    """A recipe that would train ends with the command to do so and exit code 0, and no file appears or changes."""
    before = files(tmp_path)
    assert main(["validate", str(recipe), "optimizer.lr=2e-3"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"ready: humanline train {recipe} optimizer.lr=2e-3"
    for expected in (
        "variant      DPO, offline",
        "48 of 48 kept",
        "9 of 9 kept",
        "no duplicates or contradictions",
        "6 of 8 pairs (1.00 epochs)",
        "2 pass(es) a step",
        "SHA-256 ",
        "pad '<|pad|>', eos '<|end|>'",
        f"{tmp_path / 'run'}: free",
    ):
        assert expected in out, out
    assert files(tmp_path) == before and not (tmp_path / "run").exists()


@pytest.mark.parametrize("normalise", ["global", "local"])
def test_micro_batches_of_grpo_are_told_in_rows(recipe, capsys, normalise):
    """Of 8 groups of two, 6 answers a pass make 3 passes; two processes share 4, for which the largest is halved."""
    words = [f"objective={{kind: grpo, normalise: {normalise}}}", "training.micro_batch_size=6"]
    for processes, a_step in ((1, "3 pass(es) a step"), (2, "2 pass(es) a step on each of 2 processes")):
        assert main(["validate", str(recipe), *words, "--processes", str(processes)]) == 0
        out = capsys.readouterr().out
        assert "of 8 groups of answers, 6 rows a pass and process" in out and a_step in out, out


def test_what_counts_in_the_loss_is_marked(recipe, capsys):
    """The example shows both answers of a pair, each with its end token, inside the marks, and the prompt outside."""
    assert main(["validate", str(recipe)]) == 0
    out = capsys.readouterr().out
    shown = [line.removeprefix("  | ") for line in out.splitlines() if line.startswith("  | ")]
    assert len([line for line in shown if "«" in line]) == 2 and "".join(shown).count("<|end|>»") == 2
    assert shown[0].startswith("<|bos|><|user|>") and "[the same prompt] «" in out
    row = json.loads(Path(config_of(recipe).data.train).read_text().splitlines()[0])
    assert f"«{row['chosen']}<|end|>»" in out and f"«{row['rejected']}<|end|>»" in out
    assert f"0 {row['prompt'].split()[1]}<|end|>" in out


def config_of(recipe):
    from humanline.train.config import load_config

    return load_config(recipe)


@pytest.mark.parametrize(
    "objective,data,labels",
    [
        ("nll", "completions", ["answer"]),
        ("nll", "pairs", ["answer"]),
        ("dpo", "pairs", ["chosen", "rejected"]),
        ("kto", "unpaired", ["desirable"]),
        ("kto", "pairs", ["desirable"]),
        ("grpo", "pairs", ["answer with score 1", "answer with score 0"]),
    ],
)
def test_every_objective_is_shown(toy, tmp_path, capsys, objective, data, labels):
    """Examples of every objective are shown with all their answers; tokens in the loss are what the mask counts."""
    shape = {"completions": "completion", "pairs": "preference", "unpaired": "unpaired"}[data]
    given = config(
        toy,
        tmp_path / "run",
        {"kind": "nll"} if objective == "nll" else objective,
        data={"train": toy[data], "eval": toy[data], "max_length": 64, "shape": shape},
    )
    validate.validate(given)
    out = capsys.readouterr().out
    shown = [line.strip().partition(":")[0] for line in out.splitlines() if line.endswith(" in the loss")]
    assert shown == labels and out.count("«") == len(labels) + 1


def test_texts_are_made_harmless_and_shortened(toy, tmp_path, capsys):
    """Control characters are shown as escapes, long texts lose their middle, and the marks are ones the text lacks."""
    rows = [{"prompt": "\x1b[2J\u202e" + "p" * 900, "chosen": "«a»\x07", "rejected": "b\n- ready: yes"}] * 8
    train = tmp_path / "rows.jsonl"
    train.write_text("".join(json.dumps({**row, "prompt": f"{row['prompt']}{i}"}) + "\n" for i, row in enumerate(rows)))
    given = config(toy, tmp_path / "run", data={"train": str(train), "max_length": 128, "too_long": "error"})
    with pytest.raises(NotReadyError, match=r"data: .*no example is left"):
        validate.validate(given)
    capsys.readouterr()
    model = tmp_path / "model"
    shutil.copytree(toy["model"], model)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 4096}))
    validate.validate(
        given.model_copy(update={"model": str(model), "data": given.data.model_copy(update={"max_length": 2048})})
    )
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\u202e") and r"\x1b[2J\u202e" in out and "characters ...]" in out
    assert r"⟦«a»\x07<|end|>⟧" in out and "\n  | - ready: yes<|end|>⟧\n" in out  # no line of a text stands alone


def test_a_terminal_shows_colour_in_place_of_marks(recipe, monkeypatch, capsys):
    """On a terminal what counts is green and nothing else changes; with NO_COLOR the marks are back."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["validate", str(recipe)]) == 0
    out = capsys.readouterr().out
    assert out.count("\x1b[32m") == 2 and "«" not in out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["validate", str(recipe)]) == 0
    plain = capsys.readouterr().out
    assert plain.count("«") == 3 and "\x1b[32m" not in plain


def test_shorten():
    """A text is whole up to the limit; beyond it, its ends and the count of what is left out add up to its length."""
    assert shorten("x" * 600) == "x" * 600
    assert shorten("a" * 300 + "b" * 1234 + "c" * 300) == "a" * 300 + " [... 1,234 characters ...] " + "c" * 300


def test_the_outline_is_the_model(toy):
    """Parameters counted without weights are those of the loaded model, and nothing of the outline is in memory."""
    whole, outline = load_policy(toy["model"], dropout=False, max_length=64)[0], load_outline(toy["model"])
    assert {n: p.shape for n, p in outline.named_parameters()} == {n: p.shape for n, p in whole.named_parameters()}
    assert all(parameter.is_meta for parameter in outline.parameters())


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes


def edit(folder, file, change):
    path = folder / file
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def no_end(model):
    edit(model, "tokenizer_config.json", lambda tree: tree.update(eos_token=None))


def no_template(model):
    (model / "chat_template.jinja").unlink()


def truncated(model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def no_weights(model):
    (model / "model.safetensors").unlink()


def small_vocabulary(model):
    edit(model, "config.json", lambda tree: tree.update(vocab_size=100))


def no_model_but_an_adapter(model):
    (model / "config.json").unlink()
    (model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "base"}))


def quantised(model):
    edit(model, "config.json", lambda tree: tree.update(quantization_config={"quant_method": "bitsandbytes"}))


def untied_head(model):
    edit(model, "config.json", lambda tree: tree.update(tie_word_embeddings=False))


def other_width(model):
    edit(model, "config.json", lambda tree: tree.update(intermediate_size=24))


def fewer_layers(model):
    edit(model, "config.json", lambda tree: tree.update(num_hidden_layers=1))


def integer_weights(model):
    weights = load_file(model / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"] = weights["model.layers.0.mlp.up_proj.weight"].to(torch.int8)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def no_causal_model(model):
    edit(model, "config.json", lambda tree: tree.update(model_type="clip", architectures=["CLIPModel"]))


def broken_config(model):
    (model / "config.json").write_text("{")


def no_tokenizer(model):
    for path in model.glob("tokenizer*"):
        path.unlink()


BAD: dict[str, tuple] = {  # how many problems, what is damaged, arguments, what the message holds
    "model missing": (1, None, ["model=./nowhere"], ["model './nowhere': no config.json in"]),
    "model without end token": (1, no_end, [], ["model: the tokenizer", "no end token"]),
    "model without template": (1, no_template, [], ["template: the tokenizer has no chat template"]),
    "weights truncated": (1, truncated, [], ["model.safetensors is damaged"]),
    "weights missing": (1, no_weights, [], ["model.safetensors is missing"]),
    "vocabulary too small": (
        2,
        small_vocabulary,
        [],
        ["embeds only 100", "has the shape (320, 16), where config.json"],
    ),
    "head missing": (1, untied_head, [], ["lm_head.weight is missing"]),
    "other shapes": (1, other_width, [], ["gate_proj.weight has the shape (40, 16), where config.json makes it (24,"]),
    "layers too many": (
        1,
        fewer_layers,
        [],
        ["hold what config.json has no place for: model.layers.1.input_layernorm.weight, ", "fewer layers there"],
    ),
    "integer weights": (1, integer_weights, [], ["model.layers.0.mlp.up_proj.weight is of the type I8"]),
    "unknown target": (1, None, ["adapter={targets: [q_porj]}"], ["no such linear layer", "did you mean q_proj"]),
    "head as a target": (1, None, ["adapter={targets: [lm_head]}"], ["lm_head: the output head and the embedding"]),
    "adapter as model": (1, no_model_but_an_adapter, [], ["is an adapter of 'base'", "humanline merge"]),
    "budget too small": (
        1,
        None,
        ["training.micro_batch_tokens=8", "training.micro_batch_size=null"],
        ["micro_batch_tokens is 8, but pairs.jsonl:"],
    ),
    "stored quantised": (1, quantised, [], ["stored quantised", "adapter.base: nf4 for QLoRA"]),
    "no causal model": (1, no_causal_model, [], ["cannot be loaded"]),
    "broken model config": (1, broken_config, [], ["cannot be loaded"]),
    "no tokenizer": (1, no_tokenizer, [], ["its tokenizer cannot be loaded"]),
    "too many positions": (1, None, ["data.max_length=5000"], ["data.max_length 5000 exceeds the 128 positions"]),
    "data missing": (1, None, ["data.train=nowhere.jsonl"], ["data: ", "nowhere.jsonl"]),
    "held-out data missing": (1, None, ["data.eval=nowhere.jsonl"], ["data: ", "nowhere.jsonl"]),
    "data too long": (1, None, ["data.max_length=8"], ["data.train: ", "data.eval: ", "no example is left"]),
    "wrong shape": (1, None, ["objective={kind: kto}", "data.shape=unpaired"], ["data.train: ", "no column 'label'"]),
    "batch larger than data": (
        1,
        None,
        ["training.batch_size=1000"],
        ["training.batch_size 1000 is larger than the data: 48"],
    ),
    "uneven processes": (1, None, ["--processes", "3"], ["3 processes cannot share evenly"]),
    "more processes than rows": (
        1,
        None,
        ["objective={kind: grpo}", "training.batch_size=1", "--processes", "3"],
        ["training: 3 processes cannot share the 2 rows of a step"],
    ),
    "group in pieces": (
        1,
        None,
        ["objective={kind: grpo, normalise: local}", "training.micro_batch_size=1"],
        ["training.micro_batch_size counts rows and is 1, but pairs.jsonl:", "to at least 2, or objective.normalise"],
    ),
    "no processes": (0, None, ["--processes", "0"], ["--processes must be >= 1"]),
    "output is a file": (1, None, ["output=recipe.yaml"], ["output 'recipe.yaml'"]),
    "output below a file": (1, None, ["output=recipe.yaml/run"], ["output 'recipe.yaml/run'", "is no folder"]),
    "output of no user": (
        1,
        None,
        ["output=~nobody-of-this-name/run"],
        ["output '~nobody-of-this-name/run'", "home folder"],
    ),
    "output in use": (1, None, ["output=."], ["output '.' holds no run"]),
    "tracker missing": (1, None, ["tracking.trackers=[wandb]"], ["tracking.trackers names wandb", "pip install wandb"]),
    "several": (
        5,
        no_template,
        ["data.train=nowhere.jsonl", "data.eval=nowhere2.jsonl", "output=.", "tracking.trackers=[wandb]"],
        ["tracking.trackers names", "template: ", "data.train: ", "data.eval: ", "output '.'"],
    ),
    "configuration": (
        0,
        None,
        ["trainer=1", "training.batch_size=0", "optimizer.lr=fast", "objective.kind=simpo"],
        ["4 problem(s)", "did you mean training?", "training.batch_size", "optimizer.lr", "no humanline variant"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_named_and_change_nothing(toy, recipe, tmp_path, monkeypatch, capsys, case):
    """Every mistake is named under what it is about, with exit code 2; nothing is called ready or changed on disk."""
    count, damage, arguments, messages = BAD[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    if damage is not None:
        shutil.copytree(toy["model"], tmp_path / "model")
        damage(tmp_path / "model")
        arguments = [*arguments, "model=model"]
    before = files(tmp_path)
    assert main(["validate", str(recipe), *arguments]) == 2
    out, err = capsys.readouterr()
    for message in messages:
        assert message in err, err
    assert "ready:" not in out and "Traceback" not in err and err.startswith("humanline validate: ")
    assert files(tmp_path) == before
    if count:  # one mistake does not show up as several
        assert f"not ready, {count} problem{'s' if count > 1 else ''}:\n" in err and err.count("\n- ") == count, err


def test_a_bad_target_is_counted_as_no_adapter(recipe, capsys):
    """Where one of two targets is unknown nothing is said of how large the adapter is; else it is: 2 x 2 x 4 x 32."""
    assert main(["validate", str(recipe), "adapter={rank: 4, targets: [q_proj, q_porj]}"]) == 2
    assert "of an adapter" not in capsys.readouterr().out
    assert main(["validate", str(recipe), "adapter={rank: 4, targets: [q_proj]}"]) == 0
    assert " and 256 of an adapter" in capsys.readouterr().out


def test_a_temperature_is_told(recipe, capsys):
    """That logits are divided by a temperature is said where it is not 1."""
    for value, told in (("1.0", False), ("0.7", True)):
        assert main(["validate", "--no-data", str(recipe), f"training.temperature={value}"]) == 0
        assert ("logits divided by 0.7" in capsys.readouterr().out) is told


def test_a_full_disk_is_foreseen(recipe, monkeypatch, capsys):
    """A run whose checkpoints would not fit on the file system is not ready."""
    usage = shutil.disk_usage(recipe)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    assert main(["validate", str(recipe)]) == 2
    assert "disk: output" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_foreseen(recipe, tmp_path, capsys):
    """An output folder that cannot be created is not ready."""
    (tmp_path / "locked").mkdir(mode=0o500)
    assert main(["validate", str(recipe), f"output={tmp_path / 'locked' / 'run'}"]) == 2
    assert "no permission" in capsys.readouterr().err


def test_a_run_that_can_be_resumed_is_told_from_one_that_cannot(toy, tmp_path, capsys):
    """A folder that holds this run is ready with --resume; with other settings it is not ready."""
    result = run(toy, tmp_path / "run", training__steps=1)
    before = files(tmp_path)
    given = config(toy, tmp_path / "run", training__steps=1)
    assert validate.validate(given).resumable
    assert "holds a finished run" in capsys.readouterr().out
    shutil.rmtree(result.model)
    validate.validate(given)
    assert "--resume would continue" in capsys.readouterr().out
    with pytest.raises(NotReadyError, match="other settings"):
        validate.validate(config(toy, tmp_path / "run", training__steps=2))
    assert files(tmp_path) == {path: facts for path, facts in before.items() if "/final/" not in path}


def test_a_run_that_resuming_would_refuse_for_its_data_is_not_ready(toy, tmp_path):
    """What `train --resume` says is said before; of a finished run nothing is read."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(Path(toy["pairs"]).read_text())
    given = config(toy, tmp_path / "run", training__steps=1, data__train=str(rows))
    result = run(toy, tmp_path / "run", training__steps=1, data__train=str(rows))
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join([*lines[1:], lines[0]]))
    assert validate.validate(given).resumable
    shutil.rmtree(result.model)
    with pytest.raises(NotReadyError, match=r"began with other data or code .*(.|\n)*training data"):
        validate.validate(given)
    rows.write_text("".join(lines))
    assert validate.validate(given).resumable


def test_the_disk_estimate():
    """Two checkpoints and a third one, each with the metrics, then the metrics, the model, rounds and trackers."""
    writes = Writes("run", keep=2, checkpoint=1000, metrics=10, model=300, rounds=7, trackers=5)
    assert writes.total == 3 * (1000 + 10) + 10 + 300 + 7 + 5


@pytest.mark.parametrize(
    "checkpoint,kept",
    [
        ({}, 2),
        ({"keep": 10**6}, 9),
        ({"keep": 10**6, "every": 3}, 9),
        ({"keep": 10**6, "every": 3, "minutes": None}, 4),
        ({"keep": 3, "every": 1, "minutes": None}, 3),
        ({"keep": 10**6, "minutes": None}, 2),
    ],
)
def test_no_more_checkpoints_are_counted_than_a_run_makes(toy, tmp_path, capsys, checkpoint, kept):
    """A large `keep`, which means all of them, is no reason against a run of eight steps."""
    validate.validate(config(toy, tmp_path / "run", checkpoint=checkpoint))
    assert f" for {kept} checkpoints, a further one" in capsys.readouterr().out


@pytest.mark.parametrize("schedule", ["never", "before_step"])
def test_absurd_lengths_are_refused_alike(recipe, capsys, schedule):
    """Steps whose metrics or scores fill any disk are refused by both commands, with the same number of bytes."""
    changes = ["training.epochs=null", "training.steps=1000000000000", f"reference.schedule={{kind: {schedule}}}"]
    said = []
    for command in ("validate", "train"):
        assert main([command, str(recipe), *changes]) == 2
        text = capsys.readouterr().err
        said.append(re.search(r"does not fit on the disk: (it needs about .*, and the model), and 64.0 MiB", text)[1])
    assert said[0] == said[1] and " of metrics" in said[0]


@pytest.mark.parametrize(
    "storage,schedule,baseline,window,models",
    [
        ("score_ahead", "never", "reference", 20, 0),
        ("score_ahead", "before_3", "reference", 4, 0),
        ("score_ahead", "round_4", "initial", 25, 0),
        ("model", "before_3", "reference", 0, 1),
        ("model", "before_3", "initial", 0, 2),
    ],
)
def test_what_a_checkpoint_holds(toy, tmp_path, storage, schedule, baseline, window, models):
    """Scores wait until the next sync, for the initial policy until the end; second models are counted."""
    reference = {"storage": storage, "schedule": SCHEDULES[schedule], "baseline": baseline}
    given = config(toy, tmp_path, "grpo", reference=reference)
    assert (given.window_steps(20), given.second_models) == (window, models)


def test_an_estimate_covers_a_real_checkpoint(toy, tmp_path):
    """What a run leaves of a checkpoint is between four fifths of the estimate and all of it, metadata apart."""
    given = config(toy, tmp_path / "run", checkpoint={"every": 4}, reference={"schedule": SCHEDULES["before_3"]})
    run(toy, tmp_path / "run", checkpoint={"every": 4}, reference={"schedule": SCHEDULES["before_3"]})
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    tensors = sum(path.stat().st_size for path in newest.glob("*.safetensors"))
    sizes = static_bytes(given, load_outline(given.model))
    needed = sizes.weights + sizes.states
    assert 0.8 * tensors <= needed <= 1.2 * tensors


# ---------------------------------------------------------------------------------------------------------------------
# The configuration alone


@pytest.mark.parametrize(
    "objective,transform,schedule,name",
    [
        ("dpo", None, "never", "DPO, offline"),
        ("kto", CLIP, "before_1", "KTO, humanline"),
        ("grpo", REJECT, "before_3", "GRPO, humanline sampling"),
        ("dpo", None, "before_1", "DPO, sync only (no transform)"),
        ("dpo", CLIP, "never", "DPO, clip only (no sync)"),
        ("dpo", None, "after_2", "DPO, trust region"),
        ("dpo", CLIP, "round_4", "DPO, clip with each_round"),
    ],
)
def test_variants_have_the_papers_names(toy, tmp_path, objective, transform, schedule, name):
    """Objective, transform and schedule are named as in the paper."""
    changes = {"reference": {"schedule": SCHEDULES[schedule]}} | ({"transform": transform} if transform else {})
    given = config(toy, tmp_path, OBJECTIVES[objective], **changes)
    assert describe_variant(given) == name and len(describe_config(given).splitlines()) <= 12


@pytest.mark.parametrize(
    "template,why", [("chat", "this chat template writes no day"), ("plain", "plain writes no day")]
)
def test_a_day_that_nothing_writes_is_told(toy, tmp_path, capsys, template, why):
    """`data.date` changes no token there; `validate` and the run say so, and not where no day is set."""
    for day in ("2026-11-28", None):
        given = config(toy, tmp_path / f"{day}", data__template=template, data__date=day, training__steps=1)
        said = [one for one in validate.validate(given).remarks if "data.date" in one]
        assert [why in one for one in said] == [True] * (day is not None)
        capsys.readouterr()
        recipe = tmp_path / f"{day}.yaml"
        recipe.write_text(given.model_dump_json())
        assert main(["train", str(recipe)]) == 0
        assert ("data.date (2026-11-28) has no effect" in "".join(capsys.readouterr())) is (day is not None)


def test_sharding_is_told_and_what_it_does_in_one_process(toy, tmp_path, capsys):
    """Weights that are shared out are said to be; one process alone is told that it has nobody to share with."""
    given = config(toy, tmp_path / "run", "dpo", training={"sharding": "full", "steps": 1, "batch_size": 4})
    for processes in (1, 2):
        remarks = validate.validate(given, processes=processes).remarks
        assert any("one process alone has nobody to share with" in one for one in remarks) is (processes == 1), remarks
        assert "each process with its share of weights, gradients and optimizer states" in capsys.readouterr().out
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(given.model_dump_json())
    assert main(["train", str(recipe)]) == 0  # the run says so too, for it may not have been validated
    assert "remark: training.sharding: one process alone" in "".join(capsys.readouterr())
    with pytest.raises(ValueError, match="no-model"):
        validate.validate(given.model_copy(update={"model": str(tmp_path / "no-model")}))
    assert "one process alone has nobody to share with" in capsys.readouterr().out
    assert main(["validate", "--no-data", "tiny-online", "--processes", "4"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("humanline train tiny-online --processes 4")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_without_model_and_data(path, capsys):
    """Each shipped recipe and example passes the check of the configuration, which needs neither model nor network."""
    assert main(["validate", "--no-data", str(path)]) == 0
    assert "the configuration is valid" in capsys.readouterr().out


def test_the_configuration_alone_loads_nothing_heavy(recipe):
    """--no-data imports neither torch nor transformers nor rich."""
    code = (
        f"import sys; from humanline.cli import main; assert main(['validate', '--no-data', {str(recipe)!r}]) == 0\n"
        "print({'torch', 'transformers', 'accelerate', 'rich'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.stdout.splitlines()[-1] == "set()", result.stderr


def test_a_set_of_real_size(toy, tmp_path, capsys):
    """531 and 200 pairs, as many as the GSM8K example has, are looked at under the example's own recipe."""
    rows = [json.loads(line) for line in Path(toy["pairs"]).read_text().splitlines()]
    for name, count in (("train", 531), ("eval", 200)):
        lines = [{**rows[i % 48], "prompt": f"{name} {i} " + rows[i % 48]["prompt"]} for i in range(count)]
        lines = [{k: v + " abc" * 20 for k, v in line.items()} for line in lines]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    changes = [f"data.{name}={tmp_path / f'{name}.jsonl'}" for name in ("train", "eval")]
    changes += ["data.max_length=128", "data.too_long=truncate", f"model={toy['model']}", f"output={tmp_path / 'o'}"]
    changes += [f"evaluation.distance.prompts={toy['prompts']}", "evaluation.distance.max_tokens=64"]
    assert main(["validate", str(ROOT / "examples" / "gsm8k" / "dpo.yaml"), *changes]) == 0
    out = capsys.readouterr().out
    assert "531 of 531 kept" in out and "200 of 200 kept" in out and "66 of 8 pairs" in out


# ---------------------------------------------------------------------------------------------------------------------
# The schema


SCHEMA = ROOT / "humanline" / "recipes" / "schema.json"


def test_the_committed_schema_is_current():
    """recipes/schema.json is what the configuration's classes say; renew it with `humanline schema > PATH`."""
    from humanline.train.config.schema import schema_text

    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), f"humanline schema > {SCHEMA.relative_to(ROOT)}"


def test_the_schema_explains_every_field():
    """Every field of every section has a description, except tags and those named like their section."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    sections = {"TrainConfig": schema, **schema["$defs"]}
    bare = [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, field in section["properties"].items()
        if key != "kind" and "description" not in field
    ]
    assert bare == ["Beta.a", "Beta.b"]
    assert all(section["additionalProperties"] is False and section["description"] for section in sections.values())


@pytest.fixture(scope="module")
def errors():
    """Check a recipe, as a text, with the schema; return what is wrong with it."""
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")
    from ruamel.yaml import YAML

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    return lambda text: list(validator.iter_errors(YAML(typ="safe").load(text)))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_good_recipes_fit_the_schema(errors, path):
    """Every shipped recipe and example is valid by the schema."""
    assert not errors(path.read_text(encoding="utf-8"))


GOOD = """\
model: m
output: o
objective: {kind: dpo}
data: {train: t}
training: {steps: 3}
optimizer: {lr: 5e-6}
"""


@pytest.mark.parametrize(
    "old,new",
    [
        ("model: m\n", ""),
        ("model: m", "modle: m\nmodel: m"),
        ("kind: dpo", "kind: simpo"),
        ("{kind: dpo}", "{beta: 0.1}"),
        ("kind: dpo", "kind: dpo, clip_eps: 0.1"),
        ("kind: dpo", "kind: dpo, beta: -1"),
        ("lr: 5e-6", "lr: fast"),
        ("steps: 3", "steps: 3, epochs: 1"),
        ("steps: 3", "batch_size: 3"),
        ("steps: 3", "steps: 3.5"),
        ("train: t", "train: t, shape: pairs"),
        ("model: m", "model: m\ntransform: {log_eps_low: -1}"),
        ("model: m", "model: m\nreference: {schedule: {kind: before_step, every: 0}}"),
        ("model: m", "model: m\ncheckpoint: {keep: 1}"),
        ("model: m", "model: m\ntracking: {trackers: [mlflow]}"),
    ],
)
def test_bad_recipes_do_not_fit_the_schema(errors, old, new):
    """An editor marks a missing or unknown key, a wrong kind, type or range, a missing tag, both lengths or none."""
    assert not errors(GOOD) and errors(GOOD.replace(old, new))


@pytest.mark.parametrize("new", ["steps: 3, epochs: null", "epochs: 0.5", "epochs: 2, steps: null"])
def test_one_length_is_enough(errors, new):
    """Exactly one of steps and epochs is given; the other may be null, which is how an override takes it back."""
    assert not errors(GOOD.replace("steps: 3", new))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("config.json", {"num_hidden_layers": 1e9}, "num_hidden_layers is 1000000000"),
        ("config.json", {"num_hidden_layers": 0}, "a model without layers"),
        ("config.json", {"hidden_size": 10**12}, "hidden_size is 1000000000000"),
        ("config.json", {"num_labels": 10**9}, "num_labels is 1000000000"),
        ("config.json", {"transformers_weights": 5}, "transformers_weights is 5, no name of a file"),
        ("tokenizer_config.json", {"model_max_length": "x"}, "model_max_length is 'x', no number"),
        ("generation_config.json", "[" * 6000, "generation_config.json cannot be loaded"),
        ("model.safetensors.index.json", {"weight_map": {}}, "weight_map does not give the name of a file"),
        ("model.safetensors.index.json", {"weight_map": {"a": 5}}, "weight_map does not give the name of a file"),
        ("model.safetensors.index.json", "[" * 6000, "model.safetensors.index.json cannot be read"),
    ],
)
def test_files_of_a_model_that_make_no_sense_are_named_quickly(toy, tmp_path, capsys, file, change, message):
    """By validate and train alike, before anything is made of them."""
    model = tmp_path / "model"
    shutil.copytree(toy["model"], model)
    if file.endswith("index.json"):
        (model / "model.safetensors").unlink()
    if isinstance(change, dict):
        there = json.loads((model / file).read_text()) if (model / file).exists() else {}
        change = json.dumps(there | change)
    (model / file).write_text(change)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(config(toy | {"model": str(model)}, tmp_path / "out").model_dump_json())
    before = time.process_time()
    for command in ("validate", "train"):
        assert main([command, str(recipe)]) == 2
        assert message in capsys.readouterr().err
    assert time.process_time() - before < 30  # one of these would take days
    assert not (tmp_path / "out").exists()


def test_a_model_whose_outputs_have_no_names_is_trained_all_the_same(toy, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(toy["model"], model)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"return_dict": False}))
    named = run(toy, tmp_path / "named", training__steps=2)
    unnamed = run(toy | {"model": str(model)}, tmp_path / "unnamed", training__steps=2)
    assert (named.model / "model.safetensors").read_bytes() == (unnamed.model / "model.safetensors").read_bytes()


def test_validate_looks_at_what_train_would_refuse(monkeypatch, toy, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "abc")
    with pytest.raises(NotReadyError, match="WORLD_SIZE is 'abc'"):
        validate.validate(config(toy, tmp_path / "run"))
