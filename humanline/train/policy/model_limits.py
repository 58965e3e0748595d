"""Limits of what a model's config.json may ask for: without them building could take for ever or fill the memory."""

from __future__ import annotations

import re
from typing import Any

from humanline.train.policy.errors import ModelError
from humanline.train.run.fingerprint import flat

# Ends of the names of settings that say how many parts of a kind there are, and more than any model has: it would be
# built for ever, or fill the memory before it is compared with its weights.
_LIMITS = {
    re.compile(r"(layer|block|expert|head)s?$"): 10_000,
    re.compile(r"labels$"): 1_000_000,
    re.compile(r"(size|dim|rank|width)$"): 10_000_000,
}
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # where 0 is none


def refuse_endless(written: Any, what: str) -> None:
    """Raise ModelError if config.json asks for so many parts that making them would never end, or for no layer.

    Parameters
    ----------
    written
        What is in the file; anything but an object is left to what reads it.
    what : str
        The model, in messages.
    """
    for key, value in flat(written).items() if isinstance(written, dict) else ():
        if not isinstance(value, int | float):
            continue
        most = min((limit for pattern, limit in _LIMITS.items() if pattern.search(key)), default=value)
        if value > most:
            raise ModelError(f"{what}: config.json: {key} is {value}, and no model has more than {most:,}")
        if value < 1 and key in _DEPTHS:
            raise ModelError(f"{what}: config.json: {key} is {value}: a model without layers")
