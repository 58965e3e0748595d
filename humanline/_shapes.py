"""Kinds and shapes of tensors in annotations, in jaxtyping's notation: ``Float[Tensor, "B T"]``.

At run time each name is `typing.Annotated`, so that nothing needs jaxtyping. Tests put jaxtyping's classes of the same
names here before anything uses them, and have each call of the functions so annotated checked (tests/conftest.py).
A letter is one number within a call; a single one stands after a space, which tells ruff that it is no type.
"""

from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Integer
from typing import Annotated as Real

__all__ = ["Bool", "Float", "Integer", "Real"]
