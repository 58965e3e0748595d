"""Every objective in whole runs: it trains, is evaluated, validated and estimated, and goes on to the same bits."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path

import pytest

from humanline.cli import main
from humanline.system.stop import StopRequested
from humanline.train.config import ConfigError, TrainConfig, load_config
from humanline.train.config.objective import OBJECTIVES, ObjectiveSection
from humanline.train.data.source import DataError
from humanline.train.loop import train
from humanline.train.run.fingerprint import differences, same_settings
from humanline.train.run.metrics import read_metrics
from tests.helpers.cases import StopAt
from tests.helpers.kills import result_of
from tests.helpers.support import CLIP, EVERY_OBJECTIVE, PAIRS, config
from tests.train.online.test_rounds import online

HUMANLINE = {"transform": CLIP, "reference": {"schedule": {"kind": "before_step", "every": 2}}}


def one_of_a_unit(names) -> list:
    """Return the names; those of losses of pairs other than DPO's are slow, and of answers other than KTO's."""
    return [pytest.param(name, marks=pytest.mark.slow if name in (*PAIRS, "bco") else ()) for name in names]


def section_of(name: str) -> type[ObjectiveSection]:
    return next(one for one in OBJECTIVES if one.model_fields["kind"].default == EVERY_OBJECTIVE[name]["kind"])


def test_every_objective_has_a_row():
    """No objective is left out of the tests below."""
    kinds = {one.model_fields["kind"].default for one in OBJECTIVES} - {
        "function"
    }  # tests/train/step/test_own_parts.py
    assert {row["kind"] for row in EVERY_OBJECTIVE.values()} == kinds


def test_objectives_have_the_names_of_their_papers():
    """The variant is told as papers write it; label smoothing makes another objective of DPO."""
    names = {"dpo": "DPO", "dpo-conservative": "conservative DPO", "apo_zero": "APO-zero", "apo_down": "APO-down"}
    for row, name in names.items():
        assert section_of(row).model_validate(EVERY_OBJECTIVE[row]).title == name


def short_run(toy, output, name) -> TrainConfig:
    """Four steps on pairs, with the humanline variant where there is a reference."""
    return config(
        toy,
        output,
        EVERY_OBJECTIVE[name],
        **(HUMANLINE if section_of(name).needs_reference else {}),
        data__eval=toy["held_out"],
        evaluation={"every": 2},
        training={"steps": 4, "batch_size": 8, "micro_batch_size": 4},
        checkpoint={"every": 2, "minutes": None},
    )


@pytest.mark.parametrize("name", one_of_a_unit(EVERY_OBJECTIVE))
def test_an_objective_trains_is_evaluated_and_goes_on(toy, tmp_path, name):
    """Losses are finite, held-out pairs are told apart as for all objectives, and a stopped run ends with the same."""
    whole = short_run(toy, tmp_path / "whole", name)
    points = StopAt(10**9)
    result = train(whole, stop=points, show_progress=False)
    rows = list(read_metrics(result.metrics_file))
    losses = [row["loss"] for row in rows if "step" in row]
    assert len(losses) == 4 and all(map(math.isfinite, losses)) and len(set(losses)) == 4
    assert [row["updates"] for row in rows if "held_out" in row] == [0, 2, 4]
    if whole.references:
        assert result.initial["accuracy"] == 0.5 and result.final["accuracy"] != 0.5
        assert {"log_ratio_rms", "clipped_low", "clipped_high"} <= rows[-2].keys()
    stopped = whole.model_copy(update={"output": str(tmp_path / "stopped")})
    with pytest.raises(StopRequested):
        train(stopped, stop=StopAt(points.asked * 2 // 3), show_progress=False)
    assert not (tmp_path / "stopped" / "final").exists()
    train(stopped, resume=True, show_progress=False)
    assert result_of(stopped) == result_of(whole)


@pytest.mark.parametrize("name", one_of_a_unit(EVERY_OBJECTIVE))
def test_an_objective_is_validated_and_estimated(toy, tmp_path, name, capsys):
    """Its units are counted and shown, and memory and work of its passes are said."""
    recipe = tmp_path / "recipe.yaml"
    given = short_run(toy, tmp_path / "run", name)
    recipe.write_text(json.dumps(given.model_dump(mode="json")))
    assert main(["validate", str(recipe)]) == 0
    out = capsys.readouterr().out
    words = given.objective.units
    assert f"4 steps of 8 {words}" in out and f"steps        4 of 8 {words}" in out and "in the loss" in out
    assert given.objective.title in out or not given.references
    assert main(["estimate", str(recipe), "--gpu-memory", "80"]) == 0
    out = capsys.readouterr().out
    assert "verdict      fits" in out and ("scoring" in out) == bool(given.references)


@pytest.mark.parametrize(
    "section",
    [one for one in OBJECTIVES if one.model_fields["kind"].default != "function"],
    ids=lambda section: section.__name__,
)
def test_a_run_from_before_a_setting_goes_on(section):
    """A checkpoint that lacks a setting which came later is of the same run, as long as that says what held before."""
    now = section().model_dump(mode="json")
    before = {name: value for name, value in now.items() if name not in section.later}
    assert same_settings({"objective": now}) == same_settings({"objective": before})
    for name in section.later:
        other = same_settings({"objective": now | {name: 0.25}})
        assert differences(same_settings({"objective": before}), other)


@pytest.mark.parametrize("name", one_of_a_unit(name for name in EVERY_OBJECTIVE if section_of(name).needs_reference))
def test_an_objective_trains_on_what_a_round_has_made(toy, tmp_path, name):
    """Completions of a round become the units of any objective, and it is trained on all of them."""
    given = online(
        toy,
        toy["pairs"],
        tmp_path / "run",
        EVERY_OBJECTIVE[name],
        rounds={"contexts_per_round": 8, "samples": 3, "count": 1, "score_margin": 0.001},
        training={"batch_size": 4, "micro_batch_size": 4},
        checkpoint={},
    )
    rows = list(read_metrics(train(given, show_progress=False).metrics_file))
    (made,) = (row for row in rows if "round" in row)
    units = made["kept_contexts"] * given.objective.units_a_pair
    assert made["kept_contexts"] > 4 and made["steps"] == units // 4 == sum("step" in row for row in rows)
    assert all(math.isfinite(row["loss"]) for row in rows if "step" in row)


@pytest.mark.parametrize("name", one_of_a_unit(name for name in EVERY_OBJECTIVE if section_of(name).unit == "example"))
def test_labels_are_read_and_both_are_needed(toy, tmp_path, name):
    """Objectives of labelled answers train on unpaired rows, and on rows of one label only where that is allowed."""
    rows = [json.loads(line) for line in Path(toy["unpaired"]).read_text().splitlines()]
    single = tmp_path / "single.jsonl"
    single.write_text("".join(json.dumps(row | {"label": True}) + "\n" for row in rows))

    def given(output: str, path: object, **more: object) -> TrainConfig:
        data = {"train": str(path), "eval": toy["unpaired"], "max_length": 64, "shape": "unpaired"}
        return config(toy, tmp_path / output, EVERY_OBJECTIVE[name] | more, data=data, training__steps=3)

    result = train(given("both", toy["unpaired"]), show_progress=False)
    assert set(result.final) == {"loss"} and result.final["loss"] < result.initial["loss"]
    with pytest.raises(DataError, match=r"labels must hold both true and false; got \d+ true and 0 false"):
        train(given("single", single), show_progress=False)
    assert train(given("allowed", single, allow_single_label=True), show_progress=False).model.exists()


@pytest.mark.parametrize("name", EVERY_OBJECTIVE)
def test_shapes_that_an_objective_does_not_read_are_refused(toy, tmp_path, name):
    """A shape that is not its own is refused with those that are, and its default is the first of these."""
    tree = short_run(toy, tmp_path, name).model_dump(mode="json")
    shapes = section_of(name).shapes
    for shape in (None, "completion", "preference", "unpaired"):
        changed = copy.deepcopy(tree)
        changed["data"]["shape"] = shape
        if shape in (None, *shapes):
            assert TrainConfig.model_validate(changed).data_shape == (shape or shapes[0])
        else:
            with pytest.raises(ValueError, match=rf"data.shape for .* must be {' or '.join(shapes)}; got {shape}"):
                TrainConfig.model_validate(changed)


@pytest.mark.parametrize(
    "section,message",
    [
        ("{kind: dpo, label_smoothing: 0.5}", "objective.label_smoothing: input should be less than 0.5; got 0.5"),
        ("{kind: dpo, label_smoothing: -0.1}", "objective.label_smoothing: input should be greater than or equal to 0"),
        ("{kind: kto, label_smoothing: 0.1}", "objective.label_smoothing: unknown key"),
        ("{kind: apo_zero, beta: -1}", "objective.beta: input should be greater than 0; got -1"),
        ("{kind: apo_down, beta: -1}", "objective.beta: input should be greater than 0; got -1"),
        ("{kind: bco, beta: 0}", "objective.beta: input should be greater than 0; got 0"),
        ("{kind: bco, desirable_weight: 1}", "objective.desirable_weight: unknown key"),
        ("{kind: ipo, beta: 0}", "objective.beta: input should be greater than 0; got 0"),
        ("{kind: ipo, length_normalised: 1}", "objective.length_normalised: input should be a valid boolean; got 1"),
        ("{kind: ipo, tau: 0.1}", "objective.tau: unknown key"),
    ],
)
def test_bad_settings_are_named(toy, tmp_path, section, message):
    """A setting out of range, of another type or unknown is named with what it must be."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(short_run(toy, tmp_path, "dpo").model_dump(mode="json")))
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(recipe, [f"objective={section}"])
