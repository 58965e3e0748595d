"""What is wrong with a model, or does not fit it."""

from __future__ import annotations


class ModelError(ValueError):
    """A model, or its tokenizer, that cannot be trained as it is."""
