"""Models as they are saved."""

from __future__ import annotations

import json
import os

import pytest
from transformers import GenerationConfig

from humanline.train.policy.new_model import tiny_llama
from humanline.train.policy.save import save_model


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": False, "repetition_penalty": 1.1},
        {"do_sample": True, "top_k": 20, "top_p": 0.8, "temperature": 0.7},
        {},
    ],
)
def test_saved_models_sample_and_keep_their_settings(tokenizer, tmp_path, settings):
    """A saved generation config says do_sample, whatever it said before, and is otherwise the model's own."""
    model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=64)
    model.generation_config = GenerationConfig(**settings, eos_token_id=[2, 5])
    save_model(tmp_path / "model", model, tokenizer)
    saved = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    saved.pop("transformers_version")
    assert saved == settings | {"do_sample": True, "eos_token_id": [2, 5]}
    assert model.generation_config.do_sample == settings.get("do_sample")  # the model itself is left as it was
    GenerationConfig.from_pretrained(tmp_path / "model").save_pretrained(tmp_path)  # which validates


def test_a_temperature_of_0_is_not_sampled_at(tokenizer, tmp_path):
    """do_sample with temperature 0 would make generate fail, so a model that says 0 is left alone."""
    model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=64)
    model.generation_config = GenerationConfig(eos_token_id=2)
    model.save_pretrained(tmp_path / "own")
    file = tmp_path / "own" / "generation_config.json"
    file.write_text(json.dumps({"temperature": 0.0, "eos_token_id": 2}))
    model.generation_config = GenerationConfig.from_pretrained(tmp_path / "own")
    save_model(tmp_path / "model", model, tokenizer)
    assert type(model.generation_config) is GenerationConfig
    saved = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert "do_sample" not in saved
    assert saved["temperature"] == 0.0


def test_settings_that_transformers_would_not_write_are_kept(tokenizer, tmp_path, monkeypatch):
    """Where transformers refuses to write what it has read, a model is saved all the same, with these settings."""

    def refuse(self, *_, **__):
        if self.top_p == 0.6:
            raise ValueError("GenerationConfig is invalid")

    model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=64)
    model.generation_config = GenerationConfig(do_sample=False)
    model.generation_config.top_p = 0.6
    monkeypatch.setattr(GenerationConfig, "validate", refuse)
    save_model(tmp_path / "model", model, tokenizer)
    saved = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert saved["top_p"] == 0.6 and saved["do_sample"]


@pytest.mark.parametrize("umask,mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_says_who_may_read_a_model(tokenizer, tmp_path, umask, mode):
    """All files of a saved model, weights too, have the permissions that any new file would have."""
    model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=64)
    before = os.umask(umask)
    try:
        save_model(tmp_path / "model", model, tokenizer)
    finally:
        os.umask(before)
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert {"model.safetensors", "manifest.json"} < found.keys() and set(found.values()) == {mode}
