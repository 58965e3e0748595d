"""The layers that a decoder repeats are found in models of every make, and missed ones are said."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertGenerationConfig,
    GPT2Config,
    JambaConfig,
    LongcatFlashConfig,
    Zamba2Config,
)

from humanline.train.config.run import AdapterConfig
from humanline.train.policy.adapter import Adapter
from humanline.train.policy.errors import ModelError
from humanline.train.policy.layers import decoder_layers, layer_list
from humanline.train.policy.load import load_outline, load_policy
from tests.helpers.paper_models import FAMILIES, write_paper_model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_papers_models_have_one_list(tmp_path, family):
    """Of an outline, of a model with weights and of one with an adapter the layers are the decoder's own, in order."""
    path = write_paper_model(tmp_path / family, family)
    outline = load_outline(path)
    model, _ = load_policy(path, dropout=False, max_length=64)
    assert decoder_layers(outline) == list(outline.model.layers) == list(layer_list(outline))
    assert decoder_layers(model) == list(model.model.layers) and len(model.model.layers) == 2
    Adapter(model, AdapterConfig(rank=2), path)
    assert decoder_layers(model) == list(model.model.layers)


@pytest.mark.parametrize(
    "settings,kinds",
    [
        (GPT2Config(n_layer=3), ["GPT2Block"] * 3),  # another name for the number
        (JambaConfig(num_hidden_layers=8), None),  # two kinds
        (Zamba2Config(num_hidden_layers=6, layers_block_type=["mamba", "hybrid"] * 3), None),  # which share modules
        (LongcatFlashConfig(num_hidden_layers=4, num_layers=2), ["LongcatFlashDecoderLayer"] * 2),  # counted twice
        (BertGenerationConfig(num_hidden_layers=3, is_decoder=True), ["BertGenerationLayer"] * 3),  # a list deep inside
    ],
    ids=lambda one: getattr(one, "model_type", ""),
)
def test_lists_of_other_makes_are_found(settings, kinds):
    """Layers are found where configurations count them otherwise, they are of several kinds, or lie deep inside."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings)
    layers = decoder_layers(model)
    if kinds is None:
        assert layers == list(model.model.layers) and len({type(layer) for layer in layers}) == 2
    else:
        assert [type(layer).__name__ for layer in layers] == kinds


def test_layers_that_cannot_be_found_are_named():
    """A model without such a list, and without modules of the kinds it says are whole, is refused with both."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=3))
    model.transformer.h = nn.Sequential(*model.transformer.h)
    with pytest.raises(ModelError, match=r"num_hidden_layers \(3\).*_no_split_modules \(GPT2Block\).*float32"):
        decoder_layers(model)
