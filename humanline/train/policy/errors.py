"""The error of a model that cannot be trained."""

from __future__ import annotations


class ModelError(ValueError):
    """A model, or its tokenizer, that cannot be trained as it is."""
