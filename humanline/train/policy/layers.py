"""Where the layers of a model are."""

from __future__ import annotations

from typing import Any

from torch import nn

from humanline.train.policy.errors import ModelError


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return the layers of a model's decoder, in their order; the model may be an outline.

    Raises
    ------
    ModelError
        If there are none that can be told.
    """
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for module in model.get_decoder().modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise ModelError(f"{type(model).__name__}: its {count} decoder layers cannot be found")
