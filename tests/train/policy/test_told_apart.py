"""What tells models apart: other weights do, a copy and an edited card do not."""

from __future__ import annotations

import shutil

import pytest

from humanline.train.config.own_sources import REWARD_MODEL
from humanline.train.policy.errors import ModelError
from humanline.train.policy.told_apart import (
    glance,
    model_digest,
    refuse_changed_rewards,
    reward_models,
    settle_reward_models,
    weights_digest,
)
from humanline.train.run.fingerprint import comparable
from tests.helpers.rounds import SCORED, online


@pytest.fixture
def model(toy, tmp_path):
    return shutil.copytree(toy["model"], tmp_path / "model")


def change(file, place: int) -> None:
    """Change one byte of a file, and neither its size nor where it is."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("digest", [model_digest, weights_digest])
def test_a_copy_is_the_same_model_and_other_weights_are_another(model, tmp_path, digest):
    before = digest(str(model))
    assert digest(str(shutil.copytree(model, tmp_path / "copy", copy_function=shutil.copyfile))) == before
    (model / "README.md").write_text("an edited card")
    assert digest(str(model)) == before
    change(model / "model.safetensors", -1)
    assert digest(str(model)) != before


def test_settings_make_another_model_and_no_other_weights(model):
    whole, weights = model_digest(str(model)), weights_digest(str(model))
    change(model / "config.json", -2)
    assert model_digest(str(model)) != whole and weights_digest(str(model)) == weights
    assert weights_digest(str(model / "nowhere")) is None and weights_digest("org/name") is None


def test_a_glance_sees_the_whole_of_a_small_file(tmp_path):
    file = tmp_path / "one"
    file.write_bytes(bytes(4096))
    before = glance(file)
    for place in (0, 2000, 4095):
        file.write_bytes(bytes(4096))
        change(file, place)
        assert glance(file) != before


def test_a_reward_model_that_is_replaced_is_another_run(model, toy, tmp_path):
    """In the facts that a resumed run must share, by its name; runs of earlier versions, which kept none, go on."""
    scoring = SCORED | {"rewards": [{"kind": "model", "model": str(model)}]}
    config = online(toy, toy["prompts"], tmp_path / "run", scoring=scoring)
    before = reward_models(config)
    assert list(before) == [f"{REWARD_MODEL}: {model}"]
    assert settle_reward_models(config, {}, lambda text: [text]) == before
    refuse_changed_rewards(config.rounds.scoring)
    change(model / "model.safetensors", -1)
    now = reward_models(config)
    assert now != before
    with pytest.raises(ModelError, match="has changed since the run began"):
        refuse_changed_rewards(config.rounds.scoring)
    assert comparable({"data": "x"}, {"data": "x", **now}) == {"data": "x"}
    assert comparable({"data": "x", **before}, {"data": "x", **now}) == {"data": "x", **now}
