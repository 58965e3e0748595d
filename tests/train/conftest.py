"""A tokenizer for every test of training, built here: nothing is downloaded; and what starts runs to kill them."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator

import pytest
from transformers import PreTrainedTokenizerFast

from humanline.system import disk
from humanline.system.stop import STOPPING
from humanline.train.config.rounds import EnvironmentConfig
from humanline.train.online.rewards.environment import worker_environment
from humanline.train.policy.new_model import train_tokenizer
from tests.helpers.kills import Server


@pytest.fixture(autouse=True, scope="session")
def no_secrets() -> None:
    """Leave secrets of whoever runs the tests out of them: what is left out of the environment is said."""
    for name in worker_environment(EnvironmentConfig())[1]:
        del os.environ[name]


@pytest.fixture(autouse=True, scope="session")
def default_signals() -> None:
    """Undo what whoever started the tests has had ignored, as nohup does: it would be handed on to every run."""
    for number in STOPPING:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def no_run_is_left() -> Iterator[None]:
    """Say which test leaves a run's way with full disks behind, and keep it from the next one."""
    yield
    if disk.patience() is not None:
        disk._now = None
        warnings.warn("a run has not been left", stacklevel=1)


TEXTS = [
    "The cat sat on the mat, and the dog sat on the cat. What is the cat on? The mat.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 2))  # 4\n",
    "Two and two make four; four and four make eight. Grüße aus Köln, 東京 и Москва. 🙂",
]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Offer a byte-level tokenizer with a chat template; tests that change it make a copy."""
    return train_tokenizer(TEXTS * 3, vocab_size=400)


@pytest.fixture(scope="session")
def server(toy):
    """Start runs in processes of their own, without the time it takes to import what they need."""
    with Server(toy["model"]) as server:
        yield server
