"""Configuration: what is accepted, and how every mistake is named."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from humanline.theory import ClipRange
from humanline.train.config import ConfigError, TrainConfig, load_config
from humanline.train.config.base import BESIDE
from humanline.train.config.objective import BetaTransform
from humanline.train.config.rounds import (
    ByAdapter,
    ByCommand,
    ByPath,
    ByRequest,
    BySglang,
    ByVllm,
    ContinuousEngine,
    ModelReward,
    ProofConfig,
    ServerEngine,
    ServerRequest,
)
from humanline.train.loop import train
from tests.helpers.support import CLIP, EVERY_OBJECTIVE, REJECT, SCHEDULES, config

TRAIN = Path(inspect.getfile(train)).parent  # of the package that is tried, which may be an installed one
GOOD = """\
model: m
output: o
objective: {kind: dpo, beta: 0.1}
transform:
  kind: clip
reference:
  schedule: {kind: before_step, every: 4}
data: {train: pairs.jsonl}
training:
  steps: 3
optimizer:
  lr: 5e-6
"""


def load(tmp_path, text=GOOD, *overrides):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def test_a_recipe_becomes_types(tmp_path):
    """A recipe gives typed sections with the paper's defaults, and 5e-6 is a number."""
    config = load(tmp_path)
    assert config.optimizer.lr == 5e-6 and config.reference.schedule.every == 4
    assert config.transform.build() == ClipRange(-1.5, 1.5)
    assert config.reference.storage == "score_ahead" and config.data_shape == "preference"


def test_an_override_changes_what_it_names_and_not_what_shares_its_anchor(tmp_path):
    """Two sections written once, with an anchor: each of them may be another one then."""
    shared = "{kind: beta_rejection, policy: &b {a: 1.5, b: 2.0}, ref: *b"
    shared += ", policy_ratio_bound: 2.0, ref_ratio_bound: 2.0}"
    text = GOOD.replace("transform:\n  kind: clip\n", f"transform: {shared}\n")
    plain = load(tmp_path, text).transform
    assert plain.policy == plain.ref
    for side, other in (("policy", "ref"), ("ref", "policy")):
        changed = load(tmp_path, text, f"transform.{side}.a=3.0").transform
        assert getattr(changed, side).a == 3.0 and getattr(changed, other) == getattr(plain, other)


@pytest.mark.parametrize("day", ["2026-11-28", "'2026-11-28'"])
def test_a_day_may_be_written_with_and_without_quotes(tmp_path, day):
    config = load(tmp_path, GOOD.replace("pairs.jsonl", f"pairs.jsonl, date: {day}"))
    assert str(config.data.date) == "2026-11-28" == config.model_dump(mode="json")["data"]["date"]
    assert load(tmp_path, GOOD, f"data.date={day}").data.date == config.data.date
    with pytest.raises(ConfigError, match=r"data\.date"):
        load(tmp_path, GOOD, "data.date=20261128")


def test_overrides_are_part_of_the_same_tree(tmp_path):
    """Dotted overrides replace values, make sections, and replace a whole section in braces."""
    config = load(
        tmp_path,
        GOOD,
        "optimizer.lr=1e-4",
        "data.eval=held-out.jsonl",
        "evaluation.every=2",
        "reference.schedule={kind: never}",
        "data.columns.prompt=question",
    )
    assert config.optimizer.lr == 1e-4 and config.evaluation.every == 2
    assert config.reference.schedule.kind == "never" and config.data.columns == {"prompt": "question"}


@pytest.mark.parametrize(
    "old,new",
    [
        ("kind: dpo, beta: 0.1", "kind: kto, desirable_weight: 0"),
        ("kind: dpo, beta: 0.1", "kind: kto, undesirable_weight: 0"),
        ("kind: clip", "kind: clip\n  log_eps_low: 0"),
        ("kind: clip", "kind: clip\n  log_eps_high: 0"),
        ("schedule:", "round_start: sync\n  schedule:"),
    ],
)
def test_a_0_that_leaves_something_to_learn_is_taken(tmp_path, old, new):
    """One weight or one end may be 0, and the default may be written down where it changes nothing."""
    assert old in GOOD
    load(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize(
    "old,new,message",
    [
        ("  lr: 5e-6", "  lrr: 5e-6", r"recipe.yaml:12:3: optimizer.lrr: unknown key; did you mean lr\?"),
        ("beta: 0.1", "betta: 0.1", r"recipe.yaml:3:24: objective.betta: unknown key; did you mean beta\?"),
        ("  lr: 5e-6", "  lr: fast", r"recipe.yaml:12:3: optimizer.lr: input should be a valid number; got 'fast'"),
        ("  lr: 5e-6", "  lr: -1.0", r"optimizer.lr: input should be greater than or equal to 0; got -1.0"),
        ("  lr: 5e-6", "  weight_decay: 0.1", r"optimizer.lr: is missing"),
        (
            "kind: clip",
            "kind: clipp",
            r"transform.kind: must be one of none, clip, beta_rejection, function; got clipp; did you mean",
        ),
        (
            "kind: clip",
            "kind: clip\n  log_eps_low: 0.5",
            r"transform.log_eps_low: input should be less than or equal to 0",
        ),
        (
            "kind: dpo, beta: 0.1",
            "kind: simpo",
            r"objective.kind: must be one of nll, dpo, .*grpo, function; got simpo; a loss without a reference",
        ),
        ("every: 4", "every: 0", r"reference.schedule.every: input should be greater than or equal to 1; got 0"),
        ("every: 4", "every: 1.5", r"reference.schedule.every: input should be a valid integer; got 1.5"),
        ("steps: 3", "steps: 3\n  epochs: 1", r"training: give exactly one of steps and epochs"),
        ("steps: 3", "batch_size: 3", r"training: give exactly one of steps and epochs"),
        ("model: m\n", "", r"recipe.yaml: model: is missing"),
        ("model: m", "model: m\nmodel: n", r"recipe.yaml:2:1: not valid YAML: found duplicate key"),
        (
            "train: pairs.jsonl",
            "train: pairs.jsonl, columns: {1: a, '1': b}",
            r"recipe.yaml:\d+:\d+: the key '1' is there twice, as 1 and '1'",
        ),
        ("model: m", "model: [m", r"recipe.yaml:\d+:\d+: not valid YAML"),
        ("kind: dpo, beta: 0.1", "kind: nll", r"objective nll has no reference"),
        ("schedule:", "baseline: initial\n  schedule:", r"no other objective has one"),
        ("steps: 3", "steps: 3\nevaluation: {every: 2}", r"evaluation.every needs a held-out set: data.eval"),
        ("model: m", "model: m\nseed: 99999999999999999999", r"seed: input should be"),
        ("objective: {kind: dpo, beta: 0.1}", "objective: dpo", r"objective: must be a section such as .*; got 'dpo'"),
        (
            "  kind: clip",
            "  log_eps_low: -1.0",
            r"transform.kind: must be one of none, clip, beta_rejection, function; got nothing",
        ),
        ("kind: clip", "kind: clip\n  log_eps_low: -.inf", r"transform.log_eps_low: input should be a finite number"),
        ("train: pairs.jsonl", "train: x, shape: unpaired", r"data.shape for dpo must be preference; got unpaired"),
        (
            "kind: dpo, beta: 0.1",
            "kind: kto, desirable_weight: 0, undesirable_weight: 0.0",
            r"recipe.yaml:3:1: objective: desirable_weight and undesirable_weight are both 0",
        ),
        (
            "kind: clip",
            "kind: clip\n  log_eps_low: -0.0\n  log_eps_high: 0",
            r"recipe.yaml:4:1: transform: log_eps_low and log_eps_high are both 0",
        ),
        ("schedule:", "round_start: keep\n  schedule:", r"round_start: keep is for rounds of sampling alone"),
    ],
)
def test_mistakes_are_named_with_place_and_remedy(tmp_path, old, new, message):
    """Each mistake is named with its line, its key, what is wrong and, for a typo, the nearest name."""
    assert old in GOOD
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, GOOD.replace(old, new))


def test_simpo_is_refused_with_the_papers_reason(tmp_path):
    """Reference-free losses are refused, and the message says why."""
    for name in ("simpo", "orpo", "slic"):
        with pytest.raises(ConfigError, match="a loss without a reference model has no humanline variant"):
            load(tmp_path, GOOD.replace("kind: dpo, beta: 0.1", f"kind: {name}"))


def test_all_problems_are_listed_at_once(tmp_path):
    """Problems of the file and of the command line appear in one message."""
    text = GOOD.replace("lr: 5e-6", "lr: fast").replace("every: 4", "every: 0")
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text, "trainning.steps=2", "no-equals-sign", "evaluation.every=x")
    lines = str(error.value).splitlines()
    assert lines[0] == "5 problem(s) in the configuration:"
    for part in ("optimizer.lr", "reference.schedule.every", "did you mean training?", "no-equals-sign"):
        assert part in str(error.value)
    assert "command line: evaluation.every: input should be a valid integer; got 'x'" in lines


def test_missing_and_foreign_files(tmp_path):
    """A missing file, bytes that are not text and a list in place of sections are errors with the file's name."""
    with pytest.raises(ConfigError, match=r"nowhere.yaml: cannot be read"):
        load_config(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary.yaml: cannot be read"):
        load_config(tmp_path / "binary.yaml")
    with pytest.raises(ConfigError, match="must hold keys"):
        load(tmp_path, "- a\n- b\n")
    with pytest.raises(ConfigError, match="must hold keys"):
        load(tmp_path, "")


def test_a_value_that_fits_no_type_gives_one_line(tmp_path):
    """A bound that is neither a number above 1 nor batch_max is one problem, in the names of the recipe."""
    shapes = "policy: {a: 1.0, b: 1.0}, ref: {a: 1.0, b: 1.0}"
    bounds = "policy_ratio_bound: 0.5, ref_ratio_bound: 2.0"
    text = GOOD.replace("transform:\n  kind: clip", f"transform: {{kind: beta_rejection, {shapes}, {bounds}}}")
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    lines = str(error.value).splitlines()
    assert len(lines) == 2 and "transform.policy_ratio_bound: input should be greater than 1; got 0.5" in lines[1]
    assert "or input should be 'batch_max'" in lines[1]


def test_an_empty_override_is_a_variable_that_is_not_set(tmp_path):
    """It had taken back what the recipe says, wherever nothing is a value; null still does."""
    text = GOOD.replace("pairs.jsonl", "pairs.jsonl, eval: held-out.jsonl")
    for empty in ("data.eval=", "data.eval= ", "adapter=", "optimizer.lr="):
        with pytest.raises(ConfigError, match=rf"command line: {empty.strip()} is empty, as a variable"):
            load(tmp_path, text, empty)
    assert load(tmp_path, text).data.eval and load(tmp_path, text, "data.eval=null").data.eval is None


def test_a_key_below_a_plain_value_is_blamed_on_the_command_line(tmp_path):
    """An override that makes a section out of a name is reported as the command line's."""
    with pytest.raises(ConfigError, match=r"command line: model: "):
        load(tmp_path, GOOD, "model.name=x")


def test_batch_max_bounds_are_taken_from_the_step():
    """`batch_max` takes the step's largest ratio, never less than just above 1; numbers stay as they are."""
    shapes = {"policy": {"a": 1.0, "b": 1.0}, "ref": {"a": 1.0, "b": 1.0}}
    transform = BetaTransform.model_validate(
        {"kind": "beta_rejection", **shapes, "policy_ratio_bound": "batch_max", "ref_ratio_bound": 6.0}
    )
    assert transform.needs_batch_max()
    assert transform.build(2.5, 9.0).policy_ratio_bound == 2.5 and transform.build(2.5, 9.0).ref_ratio_bound == 6.0
    assert 1 < transform.build(1.0, 1.0).policy_ratio_bound < 1.001


def sections(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    seen.add(model)
    for field in model.model_fields.values():
        stack = [field.annotation]
        while stack:
            kind = stack.pop()
            stack += getattr(kind, "__args__", ())
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
                sections(kind, seen)
    return seen


def test_every_field_is_read_by_a_run(toy, tmp_path, monkeypatch):
    """Across a few short runs every field of every section is read after validation."""
    read: set[str] = set()
    everything = sections(TrainConfig, set())
    configs = [
        config(
            toy,
            tmp_path / str(i),
            objective,
            transform=transform,
            reference={"schedule": schedule, "baseline": "initial" if objective == "grpo" else "reference"},
            data__eval=toy["held_out"],
            evaluation__every=1,
            checkpoint={"every": 1, "minutes": 1.0, "keep": 2},
            tracking={"trackers": ["tensorboard"]},
            training__steps=2,
        )
        for i, (objective, transform, schedule) in enumerate(
            [
                ("dpo", {"kind": "none"}, SCHEDULES["never"]),
                ("kto", CLIP, SCHEDULES["before_1"]),
                ("grpo", REJECT, SCHEDULES["after_2"]),
                ("dpo", CLIP, SCHEDULES["round_4"]),
            ]
        )
    ]
    unpaired = {"train": toy["unpaired"], "max_length": 64, "shape": "unpaired"}
    epochs = {"epochs": 0.2, "batch_size": 8}
    for name in ("kto", "bco"):
        section = EVERY_OBJECTIVE[name]
        configs.append(config(toy, tmp_path / f"unpaired-{name}", section, data=unpaired, training=epochs))
    configs += [config(toy, tmp_path / name, row, training__steps=1) for name, row in EVERY_OBJECTIVE.items()]
    lora = {"targets": ["q_proj"], "base": "float32"}
    far = {"prompts": str(tmp_path / "prompts.jsonl"), "limit": 2, "samples": 1, "max_tokens": 2}
    configs.append(config(toy, tmp_path / "lora", training__steps=1, adapter=lora, evaluation={"distance": far}))
    (tmp_path / "own.py").write_text(
        "def loss(chosen, rejected, *, chosen_mask, rejected_mask, beta):\n"
        "    return beta * (rejected.sum(1) - chosen.sum(1))\n"
        "def transform(log_ratio, *, mask, by):\n    return by * log_ratio\n"
        "def snapshot(step, *, behind):\n    return max(0, step - behind)\n"
    )
    own = config(
        toy,
        tmp_path / "own-parts",
        {"kind": "function", "call": "own:loss", "of": "pairs", "options": {"beta": 0.5}},
        transform={"kind": "function", "call": "own:transform", "options": {"by": 0.5}},
        reference={"schedule": {"kind": "function", "call": "own:snapshot", "options": {"behind": 1}}},
        training__steps=2,
    )
    configs.append(TrainConfig.model_validate(own.model_dump(), context={BESIDE: str(tmp_path)}))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i} + 1", "answer": f"#### {i + 1}"}) + "\n" for i in range(8)))
    rewards = [
        {"kind": "function", "call": "tests.helpers.toy_rewards:right_sum", "columns": ["answer"]},
        {"kind": "number"},
        {"kind": "math"},
        {"kind": "format"},
        {"kind": "tag_count"},
    ]
    configs.append(
        config(
            toy,
            tmp_path / "online",
            "grpo",
            data={"train": str(prompts), "max_length": 64},
            source={
                "kind": "rounds",
                "contexts_per_round": 4,
                "samples": 2,
                "select": "best_worst",
                "count": 1,
                "too_few": "skip",
                "sampling": {"max_tokens": 4, "stop": ["?"], "system_prompt": "Add."},
                "scoring": {"rewards": rewards, "failed": "drop"},
            },
            reference={"schedule": {"kind": "before_step"}},
            training={"batch_size": 2},
        )
    )

    def spy(self, name):
        value = object.__getattribute__(self, name)
        if name in type(self).model_fields:
            read.add(f"{type(self).__name__}.{name}")
        return value

    for model in everything:
        monkeypatch.setattr(model, "__getattribute__", spy, raising=False)
    for settings in configs:
        train(settings, show_progress=False)
    # What needs a server, a GPU's engine or a reward model is run by tests of its own; here, code must ask for it.
    elsewhere = {ServerEngine, ContinuousEngine, ModelReward, ByCommand, ByRequest, ByPath, ByAdapter, ByVllm, BySglang}
    elsewhere |= {ServerRequest, ProofConfig}
    code = "".join(
        path.read_text() for folder in ("samplers", "rewards") for path in (TRAIN / "online" / folder).glob("*.py")
    )
    code += inspect.getsource(ByRequest.in_order.fget)
    as_rounds = importlib.import_module(
        "humanline.evaluate.run"
    ).as_rounds  # what an evaluation reads, and a run does not
    read |= {"EvaluationConfig.scoring"} if "asked.scoring" in inspect.getsource(as_rounds) else set()
    for model in elsewhere:
        read |= {f"{model.__name__}.{name}" for name in model.model_fields if re.search(rf"\w\.{name}\b", code)}
    fields = {f"{m.__name__}.{name}" for m in everything for name in m.model_fields}
    kinds = {f"{m.__name__}.kind" for m in everything}  # read by pydantic, to choose the section
    assert len(fields) > 40
    assert fields - kinds - read == set()


def _numbers(tree, place=()):
    """Give the places of all numbers of a dumped configuration, and of what may be a number but is not given."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from _numbers(value, (*place, key))
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield (*place, key)


HUGE, TINY = (1e308, -1e308, 1e39), (5e-324, 1e-308, -1e-308)


@pytest.mark.parametrize("recipe", [pytest.param("tiny", marks=pytest.mark.slow), "tiny-online"])
@pytest.mark.parametrize(
    "values,at_once",
    [
        pytest.param((1e39, -1e-308), 1, id="two, by turns"),
        pytest.param((*HUGE, *TINY), None, id="all", marks=pytest.mark.slow),
    ],
)
def test_every_number_is_one_that_float32_holds(tmp_path, recipe, values, at_once):
    """Nothing in a recipe may be so large or small that float32 makes infinity or 0 of it."""
    from humanline.recipes import resolve

    tree = load_config(resolve(recipe)).model_dump(mode="json")
    file = tmp_path / "recipe.yaml"
    places = [place for place in _numbers(tree) if place[-1] != "failed_share"]  # which no tensor holds
    assert len(places) > 20
    for i, place in enumerate(places):
        for value in [*values[i % len(values) :], *values][: at_once or len(values)]:
            changed = copy.deepcopy(tree)
            node = changed
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = value
            file.write_text(json.dumps(changed))
            with pytest.raises(ConfigError, match=str(place[-1]) if isinstance(place[-1], str) else ""):
                load_config(file)


def test_brackets_too_deep_are_refused_before_they_are_parsed(tmp_path, monkeypatch):
    """The parser takes a time that grows with the square of the depth."""
    from ruamel.yaml import YAML

    monkeypatch.setattr(YAML, "load", lambda *_: pytest.fail("parsed"))
    file = tmp_path / "deep.yaml"
    for text in ("[" * 6000, "model: " + "{a: " * 1500, "[" * 60 + "]" * 60):
        file.write_text(text)
        with pytest.raises(ConfigError, match="nested too deeply"):
            load_config(file)


def test_many_brackets_that_are_not_deep_are_fine(tmp_path):
    """Brackets of comments and texts do not count."""
    load(tmp_path, GOOD + "# " + "[" * 200 + "\n")


def test_a_file_that_is_far_too_long_is_no_recipe(tmp_path):
    """Reading megabytes of YAML takes minutes."""
    with pytest.raises(ConfigError, match="more than 200,000 bytes, which is no recipe"):
        load(tmp_path, GOOD + "#" * 20_000_000)


def test_counts_that_no_run_has_are_refused(tmp_path):
    """They overflow where they are multiplied, or start as many processes."""
    problems = {
        "checkpoint.keep": 10**400,
        "training.steps": 10**16,
        "adapter": "{rank: 100000000}",
        "source": "{kind: rounds, samples: 1000000000, scoring: {rewards: [{kind: format}]}}",
    }
    for place, value in problems.items():
        with pytest.raises(ConfigError, match=place):
            load(tmp_path, GOOD, f"{place}={value}")
    workers = "source={kind: rounds, scoring: {rewards: [{kind: format}], workers: 1000000000}}"
    with pytest.raises(ConfigError, match=r"source\.scoring\.workers"):
        load(tmp_path, GOOD, workers)


ROUNDS = (
    GOOD.replace("training:\n  steps: 3\n", "training: {batch_size: 8}\n")
    + """\
source:
  kind: rounds
  samples: 4
  count: 2
  sampling: {top_p: 0.9, max_tokens: 8}
  scoring: {rewards: [{kind: format}]}
"""
)


def test_a_source_is_switched_and_its_keys_replaced_on_the_command_line(tmp_path):
    """Keys of a source have its name before them; a mapping replaces it; without one batches are made of the rows."""
    fixed, rounds = load(tmp_path), load(tmp_path, ROUNDS, "source.sampling.temperature=.7", "source.samples=3")
    assert fixed.source.kind == "fixed" and fixed.rounds is None
    assert rounds.rounds is rounds.source and (rounds.rounds.samples, rounds.rounds.count) == (3, 2)
    assert (rounds.rounds.sampling.temperature, rounds.rounds.sampling.top_p) == (0.7, 0.9)
    assert load(tmp_path, ROUNDS, "source={kind: fixed}", "training.steps=3") == fixed.model_copy(
        update={"training": fixed.training.model_copy(update={"batch_size": 8})}
    )


@pytest.mark.parametrize(
    "text,override,message",
    [
        (ROUNDS, "source.sampels=4", "source.sampels: unknown key; did you mean samples?"),
        (ROUNDS, "source.sampling.temprature=1", "source.sampling.temprature: unknown key; did you mean temperature?"),
        (ROUNDS, "source.rounds={samples: 4}", "source.rounds: unknown key; known: kind, contexts_per_round, samples"),
        (ROUNDS, "source.kind=round", "source.kind: must be one of fixed, rounds; got round; did you mean rounds?"),
        (ROUNDS, "source.scoring=null", "source.scoring: must be a section such as {key: value}; got None"),
        (
            ROUNDS,
            "source.kind=fixed",
            "source: samples, count, sampling, scoring: for kind: rounds alone; set that",
        ),
        (GOOD, "source={kind: rounds}", "source.scoring: is missing"),
        (GOOD, "source.samples=4", "source.kind: must be one of fixed, rounds; got nothing"),
        (
            GOOD,
            "source={kind: fixed, steps: 4}",
            "source: steps: for kind: rounds alone; set that",
        ),
        (GOOD, "source={kind: fixed, step: 4}", "source.step: unknown key; known: kind"),
        (GOOD, "objective={kind: dpo, dpo: 1}", "objective.dpo: unknown key; known: kind, beta"),
        (GOOD, "data={train: t, kind: train}", "data.kind: unknown key; known: train, eval"),
    ],
)
def test_what_is_wrong_with_a_source_is_said_in_its_words(tmp_path, text, override, message):
    """Unknown and missing keys, unknown kinds, and keys of rounds under fixed rows are named with what is right."""
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text, override)
    assert str(error.value).startswith(f"1 problem(s) in the configuration:\ncommand line: {message}")


def test_sections_of_earlier_versions_are_refused_with_the_names_of_today(tmp_path):
    """Rounds, sampling and scoring are named at once, in a file and on the command line, each with its new name."""
    old = GOOD + (
        "rounds: {samples: 4, count: 2}\n"
        "sampling:\n  top_p: 0.9\n  engine: {kind: generate}\n"
        "scoring: {rewards: [{kind: format}]}\n"
    )
    with pytest.raises(ConfigError) as error:
        load(tmp_path, old, "training.step=3")
    path = tmp_path / "recipe.yaml"
    assert set(str(error.value).splitlines()[1:]) == {
        "command line: training.step: unknown key; did you mean steps?",
        f"{path}:13:1: rounds: is now source.samples, source.count, with source.kind: rounds",
        f"{path}:14:1: sampling: is now source.sampling.top_p, source.sampling.engine",
        f"{path}:17:1: scoring: is now source.scoring.rewards",
    }
    with pytest.raises(ConfigError) as error:
        old_ways = ["sampling.temperature=.7", "rounds.count=3", "scoring.workers=1", "rounds=null", "scoring=null"]
        load(tmp_path, ROUNDS, *old_ways)
    assert str(error.value).splitlines()[1:] == [
        "command line: sampling.temperature: is now source.sampling.temperature",
        "command line: rounds.count: is now source.count, with source.kind: rounds",
        "command line: scoring.workers: is now source.scoring.workers",
        "command line: rounds: is now source.kind: fixed",
        "command line: scoring: is now source.kind: fixed",
    ]


def test_columns_twice_are_refused_in_the_recipe(toy, tmp_path):
    """The configuration says so before any file is opened."""
    with pytest.raises(ValueError, match="'text' twice, as 'prompt' and 'chosen'"):
        config(toy, tmp_path / "run", data__columns={"prompt": "text", "chosen": "text"})
