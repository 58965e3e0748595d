"""Shapes of tensors in annotations: written everywhere in the modules that are checked, and checked in tests."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import jaxtyping
import pytest
import torch

from humanline import _shapes
from humanline.objectives import nll_loss, token_logprobs
from tests.conftest import CHECKED


@pytest.fixture
def checked(request):
    if request.config.getoption("no_shapes"):
        pytest.skip("--no-shapes")


@pytest.mark.usefixtures("checked")
def test_a_wrong_shape_is_caught():
    """A length that differs between arguments is told by name, before the function itself is called."""
    with pytest.raises(jaxtyping.TypeCheckError, match="'mask'"):
        nll_loss(torch.zeros(2, 3), mask=torch.ones(2, 4, dtype=torch.bool))
    nll_loss(torch.zeros(2, 3), mask=torch.ones(2, 3, dtype=torch.bool), denominator=6)


@pytest.mark.usefixtures("checked")
def test_a_wrong_kind_or_number_of_axes_is_caught():
    """So is a mask that is not bool, and one axis too many."""
    with pytest.raises(jaxtyping.TypeCheckError, match="'mask'"):
        nll_loss(torch.zeros(2, 3), mask=torch.ones(2, 3))
    with pytest.raises(jaxtyping.TypeCheckError, match="'labels'"):
        token_logprobs(torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, 1, dtype=torch.long))


@pytest.mark.wrong_shapes
def test_marked_tests_reach_our_own_checks():
    """Without the checks the same call gets the message that users get."""
    with pytest.raises(ValueError, match=r"^mask must have the shape of logprobs \(2, 3\); got \(2, 4\)$"):
        nll_loss(torch.zeros(2, 3), mask=torch.ones(2, 4, dtype=torch.bool))


def modules() -> list[str]:
    """The modules that are checked, those in packages too."""
    found = []
    for name in CHECKED:
        module = importlib.import_module(name)
        found += [name, *(each.name for each in pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}."))]
    return found


def bare_tensors(annotation: ast.expr) -> int:
    """How often `Tensor` stands in an annotation without a shape."""
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", None) in _shapes.__all__:
        return 0
    here = isinstance(annotation, ast.Name) and annotation.id == "Tensor"
    return here + sum(bare_tensors(child) for child in ast.iter_child_nodes(annotation))


@pytest.mark.parametrize("name", modules())
def test_every_tensor_of_a_signature_has_a_shape(name):
    """No argument, result or field of a checked module is just a Tensor."""
    tree = ast.parse(Path(importlib.import_module(name).__file__).read_text(encoding="utf-8"))
    annotations: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            annotations += [
                node.returns,
                *(each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg)),
            ]
        elif isinstance(node, ast.ClassDef):
            annotations += [each.annotation for each in node.body if isinstance(each, ast.AnnAssign)]
    assert not [each.lineno for each in annotations if each is not None and bare_tensors(each)]
