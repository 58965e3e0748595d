"""What only a GPU runs, on a GPU and, as far as that exists there, on the CPU: each test takes the device it runs on.

`device` makes two tests of one: that of "cuda" is marked gpu, that of "cpu" proves spelling, shapes and arithmetic.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from humanline.train.policy.in_order import WORKSPACE
from tests.helpers.support import config

os.environ.setdefault(WORKSPACE, ":4096:8")  # before any test multiplies on a GPU


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what takes a device on both; the twins on the CPU are slow where their module says TWINS_ARE_SLOW."""
    if "device" in metafunc.fixturenames:
        slow = getattr(metafunc.module, "TWINS_ARE_SLOW", False)
        on_cpu = pytest.param("cpu", marks=(pytest.mark.slow,) if slow else ())
        metafunc.parametrize("device", [on_cpu, pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture
def run_config(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Make the configurations of runs that take place on the device, also where both are there."""
    from accelerate.state import AcceleratorState, PartialState

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)

    forget()
    if device == "cpu" and torch.cuda.is_available():
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    yield config
    if PartialState._shared_state:
        ran_on = PartialState().device.type
        forget()
        assert ran_on == device
