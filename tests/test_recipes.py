"""The shipped recipes, presets and launch scripts: the paper's numbers, and that everything runs."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from humanline import recipes
from humanline.cli import main
from humanline.recipes import RecipeError
from humanline.train.config import load_config
from humanline.train.loop import train
from tests.conftest import ROOT

NAMES = recipes.names()
PAPER = [name for name in NAMES if not name.startswith("tiny")]
MATH = [name for name in PAPER if "math" in name]
ONLINE = [name for name in PAPER if "online" in name and name not in MATH]
OFFLINE = [name for name in PAPER if name not in (*ONLINE, *MATH)]
HALOS = [*OFFLINE, *ONLINE]  # whose released code is a fork of HALOs
SCRIPTS = ROOT / "scripts" / "8b"

# Typed from the paper, independently of scripts/make_recipes.py.
# Table 1: batch size in the paper's unit (pairs for DPO, sequences for KTO and GRPO) and number of examples.
TABLE_1 = {"dpo": (32, 10_000), "kto": (64, 20_000), "grpo": (64, 20_000)}
# Table 3: LR, beta, max norm, LC-WR, WR, length; KTO also lambda_D, lambda_U, GRPO epsilon.
TABLE_3 = """
offline   kto  5.0e-6 0.25 1.0 17.40 14.13 1658 1.1 1
humanline kto  5.0e-6 0.25 4.0 22.19 14.70 1407 1.1 1
offline   dpo  5.0e-6 0.10 1.0 18.07 16.07 1767
humanline dpo  5.0e-6 0.10 1.0 24.82 20.18 1637
offline   grpo 5.0e-6 0.01 1.0 15.52 12.61 1648 0.50
humanline grpo 5.0e-6 0.01 1.0 25.24 18.11 1488 0.15
"""
# The same of its online rows.
TABLE_3_ONLINE = """
online           kto  2.5e-6 0.25 0.5 22.45 19.47 1744 1.1 1
online-humanline kto  2.5e-6 0.25 0.1 22.79 18.78 1663 1.1 1
online           dpo  2.5e-6 0.10 0.5 24.96 22.99 1828
online-humanline dpo  2.5e-6 0.10 1.0 26.84 23.64 1774
online           grpo 5.0e-6 0.01 1.0 25.05 18.82 1529 0.15
online-humanline grpo 5.0e-6 0.01 0.5 26.10 21.57 1647 0.15
"""
# Table 4, the columns of Gemma2-9B-Instruct data: LC-WR, WR, length.
TABLE_4 = """
offline   kto  18.10 15.28 1698
humanline kto  22.18 20.30 1836
offline   dpo  18.63 15.44 1690
humanline dpo  26.26 21.91 1642
offline   grpo 12.64 10.84 1696
humanline grpo 24.24 18.99 1587
"""
# Table 5: LC-WR, WR, standard error, LR, beta.
TABLE_5 = """
offline   llama3 48.59 32.36 1.58 2.5e-6 0.3
humanline llama3 56.27 44.49 1.67 2.5e-6 0.3
offline   gemma2 56.58 45.17 1.68 2.5e-6 0.1
humanline gemma2 67.45 61.37 1.64 2.5e-6 0.1
"""
# Table 6: log eps_P, log eps_R, LC-WR, standard error, length.
TABLE_6 = """
-2.0 1.5 23.33 1.35 1663
-1.5 1.5 24.82 1.36 1637
-1.0 1.5 24.37 1.33 1588
-1.0 2.0 22.55 1.31 1619
-1.0 3.0 23.98 1.33 1636
"""


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def load(name: str, *overrides: str):
    return load_config(recipes.path(name), overrides)


def text(name: str) -> str:
    return recipes.path(name).read_text(encoding="utf-8")


def prose(name: str) -> str:
    """The header comment on one line."""
    return " ".join(line.removeprefix("#").strip() for line in text(name).splitlines() if line.startswith("#"))


# ---------------------------------------------------------------------------------------------------------------------
# The files


def make_recipes():
    spec = importlib.util.spec_from_file_location("make_recipes", ROOT / "scripts" / "make_recipes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_recipes"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_committed_recipes_are_what_the_script_makes():
    """Every recipe is, byte for byte, what scripts/make_recipes.py makes, and there is no other."""
    made = make_recipes().files()
    assert sorted(made) == NAMES
    assert [name for name in NAMES if text(name) != made[name]] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_reads_as_if_written_by_hand(name):
    """A recipe starts with the line for editors and a title, gives its command, and wraps all but the system prompt."""
    lines = text(name).splitlines()
    assert lines[0] == "# yaml-language-server: $schema=schema.json"
    assert recipes.describe(name) == lines[1].removeprefix("# ") and lines[1].endswith(".")
    assert f"#   humanline train {name}" in lines
    prompt = load(name).rounds.sampling.system_prompt if name in MATH else ""
    assert all(len(line) <= 120 or line.strip() in prompt.splitlines() for line in lines)
    assert not any(line.endswith(" ") for line in lines)
    assert load(name).output == f"runs/{name}"


@pytest.mark.parametrize("name", HALOS)
def test_a_recipe_of_the_paper_says_what_is_not_the_papers(name):
    """A recipe claims no reproduction, and warns of the eps, the learning rate, the spaces and the prompt."""
    for part in ("not reproduced here", "eps 1e-8", "20x less", "Runs of spaces", "ChatML", "16 bytes a parameter"):
        assert part in prose(name)
    assert ("k is ignored" in prose(name)) == (load(name).transform.kind == "clip")
    assert ("±.33" in prose(name)) == (load(name).objective.kind == "grpo")
    assert ("sharding: full" in prose(name)) == (name in OFFLINE) == (load(name).training.sharding == "full")
    assert "Computed by humanline estimate, not measured" in prose(name)
    for part in ("about 18 %", "is not trained on", "384 in all", "moments start from nothing", "restart.sh"):
        assert (part in prose(name)) == (name in ONLINE)


def test_the_readme_lists_exactly_the_recipes_that_exist(stand_in):
    """The table of recipes/README.md has one row for each recipe, and its scripts make those runs."""
    readme = (recipes.FOLDER / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([^`]+)` \|.*\| ([^|]+) \|$", readme, re.MULTILINE))
    assert sorted(listed) == NAMES
    for name, scripts in listed.items():
        for command in re.findall(r"`([^`]+)`", scripts):
            if not command.startswith("humanline train tiny"):
                words = tuple(command.split())
                assert words in {(script, *arguments) for script, arguments, _ in RUNS} or words[0] == "figure8.sh"
                assert f" <{name}>" in launch(*words, path=stand_in).stdout


def fits_table(lora: bool = False) -> dict[str, list[int]]:
    """GiB on each of 1, 2, 4 and 8 GPUs, by recipe, in the table of recipes/README.md: rows of LoRA, or the others."""
    made = (recipes.FOLDER / "README.md").read_text(encoding="utf-8").split("make_fits_table.py -->")[1]
    rows = re.findall(r"^\| (.*) \(`(.*)`\) \| (.*) \|$", made.split("<!-- end -->")[0], re.MULTILINE)
    return {
        name: [int(cell.split()[0]) for cell in cells.split(" | ")]
        for run, name, cells in rows
        if ("LoRA" in run) == lora
    }


def test_what_a_recipe_says_of_memory_is_in_the_table():
    """The numbers of GiB in the headers are those of the table of which GPUs hold which models."""
    one, two, four, eight = fits_table()["llama3-8b-dpo-humanline"]
    assert f"{one} GiB on one GPU" in prose("llama3-8b-kto-offline")
    assert f"{two} GiB on each of 2, {four} on each of 4, {eight} on each of 8" in prose("llama3-8b-kto-offline")
    _, two, four, eight = fits_table()["llama3-8b-dpo-online-humanline"]
    assert f"{two} GiB on each of 2 GPUs, {four} on each of 4, {eight} on each of 8" in prose("llama3-8b-kto-online")
    *_, four, eight = fits_table()["gemma2-27b-dpo-humanline-gemma2-data"]
    assert f"{four} GiB on each of 4 GPUs, {eight} on each of 8" in prose("gemma2-27b-kto-offline-llama3-data")
    *_, four, eight = fits_table()["gemma2-27b-dpo-online"]
    assert f"{four} GiB on each of 4 GPUs, {eight} on each of 8" in prose("gemma2-27b-dpo-online")
    one, *_ = fits_table(lora=True)["gemma2-27b-dpo-humanline-gemma2-data"]
    assert f'LoRA (adapter="{{rank: 16}}": {one} GiB)' in prose("gemma2-27b-kto-offline-llama3-data")


@pytest.mark.slow
def test_the_table_of_gpus_is_what_the_script_makes():
    """Every cell is what is estimated today."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_fits_table.py"), "--check"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "old,new",
    [
        ("  count: 12\n", ""),
        ("  count: 12\n", "  count: null\n"),
        ("  batch_size: 16", "  steps: 3\n  batch_size: 16"),
        ("  batch_size: 16", "  epochs: 3\n  batch_size: 16"),
        ("source:\n", "sources:\n"),
    ],
)
def test_the_schema_knows_the_three_lengths_of_a_run(old, new):
    """Rounds are a length like steps and epochs: an editor marks a recipe that gives two of them, or none."""
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")
    from ruamel.yaml import YAML

    validator = jsonschema.Draft202012Validator(json.loads((recipes.FOLDER / "schema.json").read_text()))

    def fits(content: str) -> bool:
        return validator.is_valid(YAML(typ="safe").load(content))

    given = re.sub(" +#.*", "", text("tiny-online"))
    assert fits(given) and given.count(old) == 1 and not fits(given.replace(old, new))
    steps = given.replace("  count: 12\n", "").replace("  batch_size: 16", "  steps: 3\n  batch_size: 16")
    assert fits(steps)


# ---------------------------------------------------------------------------------------------------------------------
# The paper's numbers


@pytest.mark.parametrize("name", HALOS)
def test_table_1(name):
    """All runs share the optimizer, the amount of data and the batch size of Table 1, in our units."""
    config = load(name)
    batch, examples = TABLE_1[config.objective.kind]
    sequences = 2 if config.objective.kind == "grpo" else 1  # a unit of GRPO is a group of two
    assert config.training.batch_size * sequences == batch
    if name in OFFLINE:
        assert config.training.steps == 313 and 312 < examples / batch < 313
    adam = config.optimizer
    assert (adam.adam_beta1, adam.adam_beta2, adam.adam_eps) == (0.9, 0.999, 1e-5)
    assert (adam.weight_decay, adam.warmup_fraction) == (1e-2, 0.1)
    if config.objective.kind == "grpo":  # whose micro-batches are part of the loss under the preset halos
        assert config.training.batch_size * sequences % config.training.micro_batch_size == 0
    else:
        assert config.training.micro_batch_tokens >= 2 * config.data.max_length  # a pair fits
    assert (config.checkpoint.every, config.checkpoint.keep) == (50, 2)
    if "humanline" in name:
        assert config.reference.schedule.model_dump() == {"kind": "before_step", "every": 1}
        if "clip" not in name:
            assert (config.transform.log_eps_low, config.transform.log_eps_high) == (-1.5, 1.5)
    else:
        assert config.transform.kind == "none"
        kind = "each_round" if name in ONLINE else "after_step" if "trust" in name else "never"
        assert config.reference.schedule.kind == kind


@pytest.mark.parametrize("name", ONLINE)
def test_table_1_online(name):
    """Online runs share Table 1's rounds and sampling, the offline pairs' reward model, and Algorithm 1's reference."""
    config = load(name)
    rounds, sampling = config.rounds, config.rounds.sampling
    assert rounds.count * rounds.contexts_per_round == 12288 and rounds.contexts_per_round == 1024
    assert (rounds.samples, rounds.select, rounds.score_margin, rounds.steps) == (8, "best_worst", 0.01, None)
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.7, 0.95, 2048)
    assert config.training.steps is None and config.round_steps == 32 and 12 * 32 == 384
    assert config.reference.round_start == "sync" and config.reference.storage == "score_ahead"
    (reward,) = config.rounds.scoring.rewards
    assert (reward.kind, reward.head) == ("model", "armorm")
    assert reward.model == "hub:RLHFlow/ArmoRM-Llama3-8B-v0.1"
    assert config.data.max_length == config.data.max_prompt_length + sampling.max_tokens
    assert reward.max_length > config.data.max_length


def test_what_18_percent_mean_for_the_length():
    """The numbers that headers give for a discarded share of 18 % follow from it."""
    for batch, units in ((32, 1024), (64, 2048)):
        left = round(units * 0.82)
        assert left // batch == 26 and left // (batch // 32) in (839, 840)
    assert 12 * 26 == 312 and round(0.1 * 384 / 312, 2) == 0.12


def check_objective(config, row: list[str], online: bool = False) -> None:
    """Compare an objective with its row of Table 3."""
    beta, rest = float(row[3]), [float(number) for number in row[8:]]
    objective = config.objective
    if objective.kind == "kto":
        assert (objective.beta, objective.desirable_weight, objective.undesirable_weight) == (beta, *rest)
        assert config.data_shape == ("prompt" if online else "preference")
    elif objective.kind == "grpo":
        assert (objective.kl_coef, objective.clip_eps) == (beta, *rest)
        assert (objective.normalise, objective.advantage_std, objective.advantage_eps) == ("global", "population", 0.0)
        assert config.reference.baseline == "reference"
    else:
        assert objective.beta == beta and rest == []


@pytest.mark.parametrize("row", rows(TABLE_3), ids=lambda row: "-".join(row[:2]))
@pytest.mark.parametrize("data", ["llama3", "gemma2"])
def test_tables_3_and_4(row, data):
    """The 8B recipes have the numbers of Table 3, and quote the results of Table 3 or of Table 4."""
    variant, objective = row[:2]
    name = f"llama3-8b-{objective}-{variant}" + ("-gemma2-data" if data == "gemma2" else "")
    config = load(name)
    assert config.model == "hub:meta-llama/Meta-Llama-3-8B-Instruct"
    assert config.data.train == f"hub:princeton-nlp/{data}-ultrafeedback-armorm#train"
    assert config.data.eval == f"hub:princeton-nlp/{data}-ultrafeedback-armorm#test"
    assert (config.optimizer.lr, config.optimizer.max_grad_norm) == (float(row[2]), float(row[4]))
    check_objective(config, row)
    lc, rate, length = row[5:8]
    if data == "gemma2":
        lc, rate, length = next(other[2:] for other in rows(TABLE_4) if other[:2] == row[:2])
        assert "our reading" in prose(name)
    assert f"length-controlled win rate of {lc}, a win rate of {rate} and an average length of {length};" in prose(name)


@pytest.mark.parametrize("row", rows(TABLE_3_ONLINE), ids=lambda row: "-".join(row[:2]))
def test_table_3_online(row):
    """The online 8B recipes have the numbers of their rows of Table 3, and quote these rows' results."""
    name = f"llama3-8b-{row[1]}-{row[0]}"
    config = load(name)
    assert config.model == "hub:meta-llama/Meta-Llama-3-8B-Instruct"
    assert config.data.train == "hub:princeton-nlp/llama3-ultrafeedback-armorm#train"
    assert (config.optimizer.lr, config.optimizer.max_grad_norm) == (float(row[2]), float(row[4]))
    check_objective(config, row, online=True)
    lc, rate, length = row[5:8]
    assert f"length-controlled win rate of {lc}, a win rate of {rate} and an average length of {length};" in prose(name)


def test_table_5_online():
    """Online DPO of 27B has its learning rate and beta from Table 5, and says that its gradient norm is our choice."""
    name = "gemma2-27b-dpo-online"
    config = load(name)
    assert (config.optimizer.lr, config.objective.beta, config.optimizer.max_grad_norm) == (2.5e-6, 0.1, 0.5)
    assert "win rate of 66.49 (standard error 1.48) and a win rate of 74.22;" in prose(name)
    assert "our choice" in re.search("max_grad_norm.*", text(name)).group()


@pytest.mark.parametrize("name", MATH)
def test_table_2(name):
    """The runs on mathematics have the numbers of Table 2, and those of the released recipes where it has none."""
    config = load(name)
    adam, sampling, rounds = config.optimizer, config.rounds.sampling, config.rounds
    assert (adam.adam_beta1, adam.adam_beta2, adam.adam_eps, adam.weight_decay) == (0.9, 0.999, 1e-8, 0.0)
    assert (adam.lr, adam.warmup_fraction, adam.max_grad_norm) == (1e-6, 0.1, 1.0)
    assert config.training.batch_size * rounds.samples == 256 and rounds.samples == 8
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.7, 1.0, 2048)
    assert (config.objective.clip_eps, config.objective.kl_coef) == (0.2, 1e-4)
    assert [(reward.kind, reward.weight) for reward in config.rounds.scoring.rewards] == [
        ("math", 8.0),
        ("format", 1.0),
        ("tag_count", 1.0),
    ]
    assert config.training.steps == 1600 and rounds.select == "all" and config.rounds.scoring.failed == 0.0
    rarely = "64x" in name
    assert (rounds.steps, rounds.contexts_per_round) == ((64, 2048) if rarely else (1, 32))
    assert config.reference.storage == "model"
    if "humanline" in name:
        every = int(name.split("-k")[1])
        assert 12 <= every <= 24 and config.reference.round_start == "keep"
        assert config.reference.schedule.model_dump() == {"kind": "before_step", "every": every}
        assert (config.transform.log_eps_low, config.transform.log_eps_high) == (-1.5, 1.5)
        assert config.reference.baseline == "reference"
    else:
        assert config.transform.kind == "none" and config.reference.schedule.kind == "each_round"
        assert config.reference.baseline == "initial"
    assert "not reproduced here" in prose(name) and "training.temperature=0.7" in prose(name)
    assert "in other words" in prose(name) and "51,200" in prose(name) and 1600 * 32 == 51_200


def test_the_prompt_for_mathematics_asks_for_what_is_rewarded():
    """The form that the system prompt shows gets the whole reward for format and tags."""
    from humanline.train.online.rewards.verifiers import format_verdict, tag_count_verdict

    config = load(MATH[0])
    shown = config.rounds.sampling.system_prompt
    answer = shown[shown.index("<think>\n") :]
    assert format_verdict(answer, config.rounds.scoring.rewards[1].pattern).value == 1.0
    assert tag_count_verdict(answer).value == 1.0


@pytest.mark.parametrize("row", rows(TABLE_5), ids=lambda row: "-".join(row[:2]))
def test_table_5(row):
    """DPO of 27B has the numbers of Table 5; its gradient norm is said to be our choice."""
    variant, data, lc, rate, error, lr, beta = row
    name = f"gemma2-27b-dpo-{variant}-{data}-data"
    config = load(name)
    assert config.model == "hub:google/gemma-2-27b-it"
    assert config.data.train == f"hub:princeton-nlp/{data}-ultrafeedback-armorm#train"
    assert (config.optimizer.lr, config.objective.beta) == (float(lr), float(beta))
    assert f"win rate of {lc} (standard error {error}) and a win rate of {rate};" in prose(name)
    assert "our choice" in re.search("max_grad_norm.*", text(name)).group()


@pytest.mark.parametrize("row", [r for r in rows(TABLE_3) if r[1] != "dpo"], ids=lambda row: "-".join(row[:2]))
@pytest.mark.parametrize("data", ["llama3", "gemma2"])
def test_figure_9(row, data):
    """KTO and GRPO of 27B take the 8B numbers and DPO's learning rate, and call every one of them our choice."""
    name = f"gemma2-27b-{row[1]}-{row[0]}-{data}-data"
    config = load(name)
    assert (config.optimizer.lr, config.optimizer.max_grad_norm) == (2.5e-6, float(row[4]))
    check_objective(config, row)
    for key in ("lr", "max_grad_norm", *(("clip_eps", "kl_coef") if row[1] == "grpo" else ("beta",))):
        assert "our choice" in re.search(rf"^  {key}:.*", text(name), re.MULTILINE).group()
    assert "prints no hyperparameters" in prose(name)


@pytest.mark.parametrize("row", rows(TABLE_6), ids=lambda row: ":".join(row[:2]))
def test_table_6(row):
    """Each clip range of Table 6 is a recipe that differs from the main one in its range alone."""
    low, high, lc, error, length = row
    main_run = "llama3-8b-dpo-humanline"
    name = main_run if (low, high) == ("-1.5", "1.5") else f"{main_run}-clip{low}-{high}"
    config = load(name)
    assert (config.transform.log_eps_low, config.transform.log_eps_high) == (float(low), float(high))
    same = load(main_run, f"output={config.output}", f"transform.log_eps_low={low}", f"transform.log_eps_high={high}")
    assert config == same
    if name != main_run:
        quoted = f"win rate of {lc} (standard error {error}) and an average length of {length};"
        assert quoted in prose(name)


def test_figure_10():
    """The trust-region run never reaches its sync; read as examples it syncs nine times."""
    config, plain = load("llama3-8b-dpo-trust-region"), load("llama3-8b-dpo-offline")
    schedule, steps = config.reference.schedule, range(313)
    assert schedule.every == 1024 and {schedule.snapshot(step) for step in steps} == {0}
    assert config.model_copy(update={"output": plain.output, "reference": plain.reference}) == plain
    by_examples = load("llama3-8b-dpo-trust-region", "reference.schedule.every=32").reference.schedule
    assert 32 * config.training.batch_size == 1024
    assert len({by_examples.snapshot(step) for step in steps}) == 1 + 9


@pytest.mark.parametrize("every", [2, 4, 8])
def test_figure_8(every):
    """The humanline GRPO recipe takes another k from the command line, as its comment says."""
    assert "reference.schedule.every=4" in prose("llama3-8b-grpo-humanline")
    config = load("llama3-8b-grpo-humanline", f"reference.schedule.every={every}")
    assert config.reference.schedule.model_dump() == {"kind": "before_step", "every": every}


# ---------------------------------------------------------------------------------------------------------------------
# Running them

SAMPLE = [
    "tiny",
    "llama3-8b-dpo-trust-region",
    "llama3-8b-kto-humanline",
    "gemma2-27b-grpo-humanline-llama3-data",
    "llama3-8b-kto-online-humanline",
    "qwen2.5-1.5b-math-64x-humanline-k12",
]
LETTERS = "source.scoring.rewards=[{kind: function, call: 'humanline.reproduce.testbeds.letters:letters_in_place'}]"


@pytest.fixture(scope="session")
def words(tmp_path_factory) -> dict[str, str]:
    """Prompts for rounds: words, and problems with their solutions."""
    folder = tmp_path_factory.mktemp("words")
    letters = [f"{letter}aaaaaaa" for letter in "bcdefghijklmnopqrstuvwxy"]  # an untrained model, too, hits some places
    problems = [{"problem": f"{n} + {n}", "solution": f"That is $\\boxed{{{2 * n}}}$."} for n in range(24)]
    paths = {}
    for name, some in (("words", [{"prompt": word} for word in letters]), ("problems", problems)):
        for part, chosen in (("", some[:20]), ("_held_out", some[20:])):
            path = folder / f"{name}{part}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in chosen), encoding="utf-8")
            paths[name + part] = str(path)
    return paths


def in_rounds(config) -> list[str]:
    """What keeps a run in rounds short: two of them, of some steps."""
    steps = config.rounds.steps
    batch = 4 if config.objective.kind == "kto" else 2
    short = [
        f"training.batch_size={batch}",
        f"source.contexts_per_round={8 if steps is None else batch * min(steps, 2)}",
        "source.sampling.max_tokens=6",
        "source.scoring.workers=1",
        "source.scoring.seconds=60",
    ]
    short += [f"source.steps={min(steps, 2)}"] if steps else []
    return [*short, "source.count=2"] if config.rounds.count else [*short, "training.steps=4", "evaluation.every=4"]


@pytest.mark.parametrize(
    "name", [*SAMPLE, *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name not in SAMPLE)]
)
def test_a_recipe_runs(name, toy, words, tmp_path):
    """Every recipe trains a tiny model, with nothing but paths and sizes replaced (and a reward model of 8B)."""
    given = load(name)
    train_on, held_out, sizes = toy["pairs"], toy["held_out"], ["training.steps=2", "training.batch_size=4"]
    if given.rounds is not None:
        train_on, held_out, sizes = words["words"], words["words_held_out"], in_rounds(given)
        if name in MATH:
            train_on, held_out = words["problems"], words["problems_held_out"]
            pytest.importorskip("math_verify", reason="math-verify is not installed")
        else:
            sizes.append(LETTERS)
    config = load(
        name,
        f"model={toy['model']}",
        f"data.train={train_on}",
        f"data.eval={held_out}",
        f"output={tmp_path / 'run'}",
        f"data.max_length={120 if name in MATH else 64}",
        *(["data.max_prompt_length=110", "source.sampling.system_prompt=Add."] if name in MATH else []),
        *(["data.max_prompt_length=50"] if name in ONLINE else []),
        *sizes,
    )
    result = train(config, show_progress=False)
    assert (result.model / "model.safetensors").is_file()
    if given.rounds is None:
        assert result.initial and result.final["loss"] != result.initial["loss"]
    else:
        assert 0 <= result.initial["score"] <= 10 and "score_se" in result.final


def variants_of_tiny() -> list[tuple[str, list[str]]]:
    """The twelve commands in tiny-online's header, as recipe and arguments."""
    commands, more, offline_grpo = [], [], []
    for line in text("tiny-online").splitlines():
        words = shlex.split(line.removeprefix("#")) if line.startswith("#   ") else []
        if words[:2] == ["humanline", "train"]:
            commands.append((words[2], words[3:]))
        elif words and words[0].startswith("objective="):
            more.append(words)
        elif words and words[0].startswith("objective."):
            offline_grpo = words
    commands = list({json.dumps(command): command for command in commands}.values())

    def wider(changes: list[str], other: list[str]) -> list[str]:
        return offline_grpo if "kind: grpo" in str(other) and "kind: never" in str(changes) else []

    return [
        (recipe, [*changes, *other, *wider(changes, other)]) for other in ([], *more) for recipe, changes in commands
    ]


def test_the_tiny_recipes_have_every_variant_of_every_objective():
    """The commands of tiny-online's header are the four variants of the three objectives, each once."""
    found = set()
    for recipe, changes in variants_of_tiny():
        config = load(recipe, *changes)
        assert config.transform.kind in ("none", "clip")
        schedule = {"none": ("never", "each_round"), "clip": ("before_step",) * 2}[config.transform.kind]
        assert config.reference.schedule.kind == schedule[config.rounds is not None]
        if config.objective.kind == "grpo":
            assert config.objective.clip_eps == (0.5 if config.reference.schedule.kind == "never" else 0.15)  # Table 3
        found.add((config.objective.kind, config.rounds is not None, config.transform.kind))
    assert len(variants_of_tiny()) == len(found) == 12


def each_once() -> list:
    """Return the twelve: each variant is quick with one objective, and each objective with one variant at least."""
    twelve = [variants_of_tiny()[i : i + 4] for i in (0, 4, 8)]
    return [
        pytest.param(*one, marks=() if column % 3 == row else pytest.mark.slow)
        for row, variants in enumerate(twelve)
        for column, one in enumerate(variants)
    ]


@pytest.mark.parametrize(
    "recipe,changes", each_once(), ids=lambda value: value if isinstance(value, str) else " ".join(value) or "-"
)
def test_every_variant_of_every_objective_runs(recipe, changes, toy, words, tmp_path):
    """Each of the twelve trains a tiny model by its own loss, the humanline ones with a ratio that is not 1."""
    from humanline.train.run.metrics import read_metrics

    given = load(recipe, *changes)
    data, held_out = (words["words"], words["words_held_out"]) if given.rounds else (toy["pairs"], toy["held_out"])
    config = load(
        recipe,
        *changes,
        f"model={toy['model']}",
        f"data.train={data}",
        f"data.eval={held_out}",
        f"output={tmp_path / 'run'}",
        "data.max_length=64",
        "optimizer.lr=1e-3",
        *(in_rounds(given) if given.rounds else ["training.steps=3", "training.batch_size=4", "evaluation.every=3"]),
    )
    result = train(config, show_progress=False)
    steps = [row for row in read_metrics(result.metrics_file) if "step" in row]
    assert steps[0]["log_ratio_rms"] == 0.0 and steps[1]["log_ratio_rms"] > 0.0
    if given.rounds:
        in_round = [row["steps"] for row in read_metrics(result.metrics_file) if "round" in row]
        assert len(in_round) == 2 and steps[in_round[0]]["log_ratio_rms"] == 0.0  # a round begins with a ratio of 1


# ---------------------------------------------------------------------------------------------------------------------
# Presets


def changes(name: str, preset: str, *overrides: str) -> dict[str, tuple]:
    """What a preset changes in a recipe: dotted key -> (before, after)."""
    before = load(name, *overrides).model_dump()
    after = load(name, *recipes.preset_overrides(preset, recipes.path(name), overrides), *overrides).model_dump()

    def flat(tree, start=""):
        for key, value in tree.items():
            if isinstance(value, dict):
                yield from flat(value, f"{start}{key}.")
            else:
                yield start + key, value

    old, new = dict(flat(before)), dict(flat(after))
    return {key: (old.get(key), new[key]) for key in new if old.get(key) != new[key]}


@pytest.mark.parametrize("name", [name for name in HALOS if name.startswith("llama3-8b") and "clip" not in name])
def test_paper_changes_nothing_in_the_recipes_of_table_3(name):
    """On the 8B recipes, which have the paper's numbers already, the preset paper changes nothing."""
    assert changes(name, "paper") == {}


def test_paper_on_other_recipes():
    """The preset paper puts the numbers of Tables 1 and 3 on a recipe that has others."""
    expected = {
        "optimizer.adam_eps": (1e-8, 1e-5),
        "optimizer.weight_decay": (0.0, 0.01),
        "training.batch_size": (16, 32),
    }
    assert changes("tiny", "paper") == expected
    clipped = {"transform.log_eps_low": (-1.0, -1.5), "transform.log_eps_high": (3.0, 1.5)}
    assert changes("llama3-8b-dpo-humanline-clip-1.0-3.0", "paper") == clipped
    assert changes("gemma2-27b-dpo-offline-llama3-data", "paper") == {"objective.beta": (0.3, 0.1)}
    rounds = {
        "source.contexts_per_round": (64, 1024),
        "source.select": (None, "best_worst"),
        "source.sampling.temperature": (1.0, 0.7),
        "source.sampling.top_p": (1.0, 0.95),
        "source.sampling.max_tokens": (12, 2048),
    }
    assert changes("tiny-online", "paper") == expected | rounds


@pytest.mark.parametrize("name", HALOS)
def test_halos(name):
    """The preset halos changes AdamW's eps, the lower bound and GRPO's normalisation, where there are any."""
    config, eps = load(name), {"optimizer.adam_eps": (1e-5, 1e-8)}
    if config.transform.kind == "clip" and config.transform.log_eps_low != -1.0:
        eps["transform.log_eps_low"] = (config.transform.log_eps_low, -1.0)
    if config.objective.kind == "grpo":
        eps |= {"objective.normalise": ("global", "local"), "objective.advantage_eps": (0.0, 0.01)}
    assert changes(name, "halos") == eps


def test_a_preset_sees_the_kinds_that_the_command_line_makes():
    """The user's overrides decide which entries apply, and go before them."""
    grpo = "llama3-8b-grpo-offline"
    synced = ["reference.schedule={kind: before_step, every: 3}"]
    assert "objective.clip_eps=0.5" in recipes.preset_overrides("paper", recipes.path(grpo))
    assert "objective.clip_eps=0.5" not in recipes.preset_overrides("paper", recipes.path(grpo), synced)
    config = load(grpo, *recipes.preset_overrides("paper", recipes.path(grpo), synced), *synced)
    assert config.reference.schedule.every == 3
    assert not any("objective" in one for one in recipes.preset_overrides("paper", recipes.path(grpo), ["objective=1"]))


def test_a_preset_sees_rounds_where_there_are_some():
    """Entries for rounds apply where these are the source, also one that the command line makes, and not elsewhere."""

    def sampled(name: str, *overrides: str) -> bool:
        return "source.samples=8" in recipes.preset_overrides("paper", recipes.path(name), overrides)

    assert sampled("tiny-online") and not sampled("tiny") and not sampled("tiny-online", "source={kind: fixed}")
    assert sampled("tiny", "source.kind=rounds")


def test_entries_of_presets_are_well_formed():
    """Every entry has when, set and why, its conditions name kinds that exist, and it applies to some recipe."""
    from ruamel.yaml import YAML

    kinds = {
        "objective": {"dpo", "kto", "grpo"},
        "transform": {"clip"},
        "schedule": {"never", "before_step"},
        "source": {"rounds"},
    }
    for preset in recipes.PRESETS:
        entries = YAML(typ="safe").load(recipes.FOLDER / "presets" / f"{preset}.yaml")
        for entry in entries:
            assert list(entry) == ["when", "set", "why"] and entry["why"] and entry["set"]
            assert all(kind in kinds[section] for section, kind in entry["when"].items())
    assert sorted(path.stem for path in (recipes.FOLDER / "presets").glob("*.yaml")) == sorted(recipes.PRESETS)


def test_a_preset_from_the_command_line(toy, tmp_path, capsys):
    """`humanline train --preset` puts recipe, preset and overrides together in this order."""
    import json

    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"model: {toy['model']}\noutput: {tmp_path / 'run'}\nobjective: {{kind: dpo, beta: 3.0}}\n"
        f"data: {{train: {toy['pairs']}, max_length: 64}}\ntraining: {{steps: 1, batch_size: 4}}\n"
        "optimizer: {lr: 1e-3}\n"
    )
    assert main(["train", str(recipe), "--quiet", "--preset", "paper", "training.batch_size=8"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["objective"]["beta"], config["training"]["batch_size"]) == (0.1, 8)
    assert config["optimizer"]["adam_eps"] == 1e-5
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(recipe), "--preset", "papier"])
    assert stopped.value.code == 2 and "papier" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="there are paper and halos"):
        recipes.preset_overrides("papier", recipe)


def test_a_recipe_that_cannot_be_read_is_left_to_the_reader_of_configurations(tmp_path):
    """A preset on a missing or broken recipe applies what has no conditions, and raises nothing itself."""
    broken = tmp_path / "broken.yaml"
    for content in ("a: [", "- 1\n", "objective: 3\n"):
        broken.write_text(content)
        assert recipes.preset_overrides("halos", broken, ["no", "a=[", "x.y=1"]) == ["optimizer.adam_eps=1e-08"]
    assert recipes.preset_overrides("halos", tmp_path / "missing.yaml") == ["optimizer.adam_eps=1e-08"]


# ---------------------------------------------------------------------------------------------------------------------
# ls, cp, names


def test_ls_lists_every_recipe_with_its_title(capsys):
    """`humanline ls` prints one line a recipe: its name and title."""
    assert main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all(line.endswith(recipes.describe(name)) for line, name in zip(lines, NAMES, strict=True))


def test_cp_copies_and_never_overwrites(tmp_path, monkeypatch, capsys):
    """`humanline cp` writes to the folder here, another folder or a new file, and leaves what exists alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert main(["cp", "tiny"]) == 0
    assert main(["cp", "tiny", "folder"]) == 0
    assert main(["cp", "tiny", "folder/mine.yaml"]) == 0
    assert capsys.readouterr().out.split() == ["tiny.yaml", "folder/tiny.yaml", "folder/mine.yaml"]
    copied = (tmp_path / "folder" / "mine.yaml").read_text()
    assert copied.splitlines()[1:] == text("tiny").splitlines()[1:]
    assert copied.splitlines()[0].endswith((recipes.FOLDER / "schema.json").as_uri())
    assert load_config("folder/mine.yaml") == load("tiny")
    (tmp_path / "tiny.yaml").write_text("mine")
    assert main(["cp", "tiny"]) == 2
    assert "tiny.yaml already exists" in capsys.readouterr().err
    assert (tmp_path / "tiny.yaml").read_text() == "mine"
    assert main(["cp", "tiny", "nowhere/tiny.yaml"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
    assert main(["cp", "tinny"]) == 2
    assert "did you mean tiny?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../tiny", "..", "presets/paper", "/etc/passwd", "a\\b", "tiny\0", "", ".", "paper"])
def test_a_name_is_never_a_path(name, tmp_path):
    """Names with separators, with two dots, or of other files of the folder are refused."""
    for use in (recipes.path, recipes.describe, lambda name: recipes.copy(name, tmp_path)):
        with pytest.raises(RecipeError):
            use(name)
    assert not list(tmp_path.iterdir())


def test_a_recipe_argument_is_a_file_or_else_a_shipped_name(tmp_path, monkeypatch, capsys):
    """A file goes before a shipped name; neither is an error that names the nearest recipe."""
    monkeypatch.chdir(tmp_path)
    assert recipes.resolve("tiny") == recipes.path("tiny")
    (tmp_path / "tiny").write_text("mine")
    assert recipes.resolve("tiny") == Path("tiny")
    assert recipes.resolve(tmp_path / "tiny") == tmp_path / "tiny"
    for wrong in ("llama3-8b-dpo-ofline", "llama3-8b-dpo-offline.yaml", "somewhere/llama3-8b-dpo-offline"):
        assert main(["train", wrong]) == 2
        assert "did you mean llama3-8b-dpo-offline?" in capsys.readouterr().err
    assert main(["train", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert main(["train", "llama3-8b-dpo-offline", "optimizer.lr=fast"]) == 2
    assert "command line: optimizer.lr" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["ls"], ["cp", "--help"], ["ls", "--help"]])
def test_names_and_help_need_nothing_heavy(command):
    """Listing recipes, and the help of ls and cp, import neither torch nor pydantic nor numpy nor a YAML reader."""
    code = (
        "import sys; from humanline.cli import main\n"
        f"try: main({command!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'ruamel'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Launch scripts

CELLS = list(itertools.product(("dpo", "kto", "grpo"), ("offline", "humanline"), ("llama3-data", "gemma2-data")))
RUNS = [
    *(("llama3-8b.sh", cell, "-".join(("llama3-8b", *cell)).removesuffix("-llama3-data")) for cell in CELLS),
    *(("gemma2-27b.sh", cell, "-".join(("gemma2-27b", *cell))) for cell in CELLS),
    *(
        ("table6.sh", (f"{low}:{high}",), f"llama3-8b-dpo-humanline-clip{low}-{high}".removesuffix("-clip-1.5-1.5"))
        for low, high, *_ in rows(TABLE_6)
    ),
    *(("figure8.sh", (every,), "llama3-8b-grpo-humanline") for every in ("1", "2", "4")),
    *(("figure10.sh", (unit,), "llama3-8b-dpo-trust-region") for unit in ("steps", "examples")),
    *(
        ("llama3-8b.sh", (objective, variant), f"llama3-8b-{objective}-{variant}")
        for objective in ("dpo", "kto", "grpo")
        for variant in ("online", "online-humanline")
    ),
    ("gemma2-27b.sh", ("dpo", "online"), "gemma2-27b-dpo-online"),
    *(("qwen-math.sh", (variant,), f"qwen2.5-1.5b-math-{variant}") for variant in ("online", "64x")),
    *(("qwen-math.sh", (f"humanline-{k}",), f"qwen2.5-1.5b-math-64x-humanline-k{k}") for k in (12, 16, 20)),
]


_OF_SCRIPTS = ("DRY_RUN", "GPUS", "RESUME", "OMP_NUM_THREADS", "SLURM_JOB_ID", "SLURM_PROCID")


def launch(script: str, *arguments: str, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in _OF_SCRIPTS}
    return subprocess.run(
        [str(SCRIPTS / script), *arguments],
        capture_output=True,
        text=True,
        env=inherited | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"} | environment,
    )


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory) -> str:
    """A folder with commands that say how they were called; srun ends with CODE."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("humanline", "srun", "scontrol"):
        (folder / name).write_text(f'#!/bin/sh\nprintf "called {name}"\nprintf " <%s>" "$@"\nprintf "\\n"\n')
        (folder / name).chmod(0o755)
    with open(folder / "srun", "a") as script:
        script.write('printf "resume %s, threads %s\\n" "$RESUME" "$OMP_NUM_THREADS"\nexit "$CODE"\n')
    return str(folder)


def dry_run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Dry-run a script with the humanline of these tests."""
    return launch(script, *arguments, path=str(Path(sys.executable).parent), DRY_RUN="1")


@pytest.mark.parametrize("script,arguments,recipe", RUNS, ids=lambda value: value if isinstance(value, str) else None)
def test_a_script_starts_the_recipe_that_its_arguments_name(script, arguments, recipe, stand_in):
    """Every combination of arguments starts one recipe, which exists, with the further arguments passed on."""
    assert recipe in NAMES
    result = launch(script, *arguments, "optimizer.lr=1e-6", "transform={kind: none}", path=stand_in)
    assert result.returncode == 0, result.stderr
    printed, called = result.stdout.splitlines()
    words = re.findall("<(.*?)>", called)
    assert shlex.split(printed) == ["humanline", *words]
    assert words[:2] == ["train", recipe] and words[-2:] == ["optimizer.lr=1e-6", "transform={kind: none}"]
    load(recipe, *words[2:])


def test_scripts_of_figures_give_their_runs_an_output_of_their_own(stand_in):
    """What differs from the recipe on the command line does not share the recipe's folder."""
    for script, argument, every in (("figure8.sh", "4", 4), ("figure10.sh", "examples", 32)):
        printed = launch(script, argument, path=stand_in).stdout.splitlines()[0]
        _, _, recipe, *overrides = shlex.split(printed)
        config = load(recipe, *overrides)
        assert config.reference.schedule.every == every and config.output == f"runs/{recipe}-every-{every}"


def test_what_the_environment_asks_of_a_script(stand_in):
    """GPUS starts so many processes, RESUME adds --resume, and DRY_RUN only validates."""

    def calls(**environment):
        return launch("llama3-8b.sh", "kto", "offline", "llama3-data", path=stand_in, **environment).stdout.splitlines()

    name = "llama3-8b-kto-offline"
    many = f"called humanline <train> <{name}> <--processes> <4>"
    assert calls()[1] == calls(GPUS="1")[1] == f"called humanline <train> <{name}>"
    assert calls(GPUS="4")[1:] == [many]
    assert calls(GPUS="4", RESUME="1")[1] == f"{many} <--resume>"
    assert len(calls(SLURM_PROCID="0")) == 2 and len(calls(SLURM_PROCID="3")) == 1
    printed, called = calls(GPUS="4", RESUME="1", DRY_RUN="1")
    assert printed.strip() == f"humanline train {name} --processes 4 --resume"
    assert called == f"called humanline <validate> <--no-data> <{name}>"


def test_a_batch_job_goes_on_until_it_is_done(stand_in):
    """One task a GPU runs the script that is named; what was saved, or lost a process, is put in the queue again."""
    command = ("llama3-8b.sh", "kto", "offline", "llama3-data", "training.sharding=full")

    def job(**environment):
        own = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(SCRIPTS.parent.parent), "SLURM_CPUS_PER_TASK": "6"}
        return launch("slurm.sh", *command, path=stand_in, **own | environment)

    for code, again in ((0, False), (75, True), (69, True), (1, False)):
        result = job(CODE=str(code))
        assert result.returncode == code, result.stderr
        called, told, *queued = result.stdout.splitlines()
        words = re.findall("<(.*?)>", called)
        assert words == ["--kill-on-bad-exit=0", "--wait=0", str(SCRIPTS / command[0]), *command[1:]]
        assert told == "resume 1, threads 6" and queued == (["called scontrol <requeue> <7>"] if again else [])
    assert "scontrol" not in job(CODE="69", SLURM_RESTART_COUNT="5").stdout
    assert "called scontrol" in job(CODE="75", SLURM_RESTART_COUNT="50").stdout
    refused = job(GPUS="8")
    assert refused.returncode == 2 and "GPUS starts processes, which srun does here" in refused.stderr
    dry = launch("slurm.sh", "figure8.sh", "4", path=stand_in, DRY_RUN="1")
    assert dry.returncode == 0 and "called humanline <validate> <--no-data>" in dry.stdout


@pytest.mark.parametrize(
    "script,arguments,environment,message",
    [
        ("slurm.sh", ("llama4.sh",), {}, "there is no script"),
        ("llama3-8b.sh", (), {}, "needs 2 argument(s); got 0"),
        ("llama3-8b.sh", ("dpo", "offline"), {}, "needs 3 argument(s); got 2"),
        ("llama3-8b.sh", ("ppo", "offline", "llama3-data"), {}, "objective must be one of: dpo kto grpo; got 'ppo'"),
        ("llama3-8b.sh", ("dpo", "onlin"), {}, "variant must be one of: offline humanline online online-humanline"),
        ("gemma2-27b.sh", ("kto", "online"), {}, "objective of the online variant must be one of: dpo; got 'kto'"),
        ("gemma2-27b.sh", ("dpo", "online-humanline"), {}, "variant must be one of: offline humanline online"),
        ("qwen-math.sh", ("humanline-1",), {}, "variant must be one of: online 64x humanline-12"),
        ("llama3-8b.sh", ("dpo", "offline", "optimizer.lr=1"), {}, "data must be one of"),
        ("gemma2-27b.sh", ("dpo", "offline", "llama3"), {}, "data must be one of"),
        ("gemma2-27b.sh", ("", "offline", "llama3-data"), {}, "objective must be one of"),
        ("table6.sh", ("-2.0:2.0",), {}, "range must be one of"),
        ("figure8.sh", ("0",), {}, "K must be a whole number"),
        ("figure8.sh", ("four",), {}, "K must be a whole number"),
        ("figure10.sh", ("batches",), {}, "unit must be one of: steps examples"),
        ("figure10.sh", ("steps",), {"GPUS": "all"}, "GPUS must be a whole number"),
        ("figure10.sh", ("steps",), {"DRY_RUN": "yes"}, "DRY_RUN must be one of: 0 1; got 'yes'"),
        ("figure10.sh", ("steps",), {"RESUME": "true"}, "RESUME must be one of"),
    ],
)
def test_a_wrong_argument_is_refused_and_nothing_is_started(script, arguments, environment, message, stand_in):
    """A script that does not understand says what it wants and how it is used, with exit code 2."""
    result = launch(script, *arguments, path=stand_in, **environment)
    assert result.returncode == 2 and result.stdout == ""
    assert message in result.stderr and "usage: " in result.stderr


def test_every_script_is_tested_and_explains_itself(stand_in):
    """All launch scripts are in the list above, can be executed and answer --help."""
    found = sorted(path.name for path in SCRIPTS.glob("*.sh") if path.name != "common.sh")
    assert found == sorted({script for script, _, _ in RUNS} | {"slurm.sh"})
    for script in found:
        lines = [line for line in (SCRIPTS / script).read_text().splitlines() if not line.startswith("#")]
        assert lines[0] == "set -euo pipefail"
        result = launch(script, "--help", path=stand_in)
        assert result.returncode == 0 and result.stdout.startswith("usage: ")


@pytest.mark.parametrize(
    "script,arguments,recipe",
    [pytest.param(*run, marks=[] if run[1][-1] == "64x" else pytest.mark.slow) for run in RUNS],
)
def test_a_dry_run_checks_the_configuration(script, arguments, recipe):
    """DRY_RUN=1 validates the recipe that would be trained, without model or data, and fails where it is wrong."""
    result = dry_run(script, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].startswith(f"humanline train {recipe}")
    assert dry_run(script, *arguments, "optimizer.lr=fast").returncode == 2
