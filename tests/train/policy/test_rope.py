"""Rotary embeddings that turn to another one for all rows of a pass, once one of these is long."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Phi3Config

from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_outline, refuse_misfits
from humanline.train.policy.logprobs import LogprobModel

SHAPE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 0}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 8.0}
LONG |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


@pytest.fixture
def switching(tmp_path):
    """A folder of a tiny Phi-3, which turns to another embedding beyond 32 positions, and the model."""
    torch.manual_seed(0)
    settings = Phi3Config(**SHAPE, rope_parameters=LONG, original_max_position_embeddings=32, initializer_range=0.3)
    made = AutoModelForCausalLM.from_config(settings)
    made.save_pretrained(tmp_path)
    return str(tmp_path), made.eval()


def test_a_limit_beyond_the_switch_is_refused(switching):
    """With the limit that is none, before weights are read; up to it the embedding is the same in all passes."""
    path, _ = switching
    outline = load_outline(path)
    refuse_misfits(path, outline, None, 32)
    with pytest.raises(ModelError, match=r"data\.max_length 33 exceeds the 32 positions .* set .* to at most 32$"):
        refuse_misfits(path, outline, None, 33)


def test_beyond_it_a_row_is_another_beside_a_long_one(switching):
    """Why it is refused: the library looks at the longest row of a pass, padding included."""
    policy = LogprobModel(switching[1])
    row = torch.arange(1, 21)[None]
    beside = torch.nn.functional.pad(row, (0, 20))
    with torch.no_grad():
        alone = policy(row, torch.ones((1, 19), dtype=torch.bool))
        wide = policy(beside, torch.nn.functional.pad(torch.ones((1, 19), dtype=torch.bool), (0, 20)))
    assert (alone - wide[:, :19]).abs().max() > 0.1


def test_the_same_factors_on_both_sides_are_no_switch():
    """MiniCPM has such: a row is the same beside any other, so that there is nothing to refuse."""
    torch.manual_seed(0)
    same = LONG | {"short_factor": LONG["long_factor"]}
    settings = Phi3Config(**SHAPE, rope_parameters=same, original_max_position_embeddings=32, initializer_range=0.3)
    made = AutoModelForCausalLM.from_config(settings).eval()
    refuse_misfits("a", made, None, 256)
    policy, row = LogprobModel(made), torch.arange(1, 21)[None]
    mask = torch.ones((1, 19), dtype=torch.bool)
    with torch.no_grad():
        alone = policy(row, mask)
        wide = policy(torch.nn.functional.pad(row, (0, 20)), torch.nn.functional.pad(mask, (0, 20)))
    assert (alone - wide[:, :19]).abs().max() < 1e-5


def test_other_embeddings_have_no_such_limit():
    """Neither one that is the same for all positions, nor one for each kind of layers."""
    kinds = {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}}
    kinds |= {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    for settings in (Phi3Config(**SHAPE), Gemma3TextConfig(**SHAPE, head_dim=8, rope_parameters=kinds)):
        with torch.device("meta"):
            refuse_misfits("a", AutoModelForCausalLM.from_config(settings), None, 256)
