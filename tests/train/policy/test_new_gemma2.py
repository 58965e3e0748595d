"""A small Gemma 2: the same for the same seed, and trained and asked like any other model."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from humanline.train.policy.new_gemma2 import tiny_gemma2
from humanline.train.policy.new_model import new_model
from humanline.train.policy.new_tokenizer import train_tokenizer
from tests.helpers.support import run, steps

SIZES = {"hidden_size": 32, "layers": 2, "heads": 4, "max_length": 64}


def test_a_seed_gives_the_same_weights_and_leaves_torchs_state_alone():
    tokenizer = train_tokenizer(["a b c d e f"] * 50, 280)
    before = torch.random.get_rng_state()
    first, again, other = (tiny_gemma2(tokenizer, **SIZES, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    ids = torch.arange(1, 9)[None]
    assert torch.equal(first(ids).logits, again(ids).logits)
    assert not torch.equal(first(ids).logits, other(ids).logits)
    assert first.dtype == torch.float32 and not first.training and first.config.final_logit_softcapping
    with pytest.raises(ValueError, match="heads must be even, since two share keys and values; got 3"):
        tiny_gemma2(tokenizer, **SIZES | {"heads": 3}, seed=0)


def test_it_is_written_read_and_trained(toy, tmp_path):
    """Humanline at learning rate 0 has log-ratios of 0 at every step: scoring and training agree on the family."""
    folder = new_model(tmp_path / "model", text=toy["pairs"], vocab_size=300, **SIZES, family="gemma2")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "gemma2"
    assert type(AutoModelForCausalLM.from_pretrained(folder)).__name__ == "Gemma2ForCausalLM"
    clip = {"kind": "clip", "log_eps_low": -1.5, "log_eps_high": 1.5}
    schedule = {"schedule": {"kind": "before_step", "every": 1}}
    given = {"transform": clip, "reference": schedule, "training__steps": 3, "optimizer__lr": 0.0}
    rows = steps(run({**toy, "model": str(folder)}, tmp_path / "run", **given))
    assert len(rows) == 3 and all(row["loss"] == pytest.approx(0.6931472) for row in rows)
