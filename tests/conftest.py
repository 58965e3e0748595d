"""Fixtures that several folders of tests share. Nothing here imports torch before a test asks for what needs it."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import random
import signal
import sqlite3
import sys
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from humanline import _shapes
from humanline.system import disk
from humanline.system.stop import STOPPING
from tests.helpers.files import connect_without_waits, do_not_wait_for_the_disk

# Doctests are looked for in every module; a system whose own Python has a module of this name imported that one first,
# the plugin must be there before the package is, and the last stands in for a tool that is not here.
collect_ignore = ["helpers/harm/sitecustomize.py", "helpers/no_posix_plugin.py", "helpers/verl_engine.py"]

#: Whether this is the base package alone, whose tests (tests/helpers/base_package.py) do without what training needs.
BASE = importlib.util.find_spec("torch") is None
if not BASE:
    import jaxtyping

ROOT = Path(__file__).resolve().parent.parent
NO_CUDA = "no CUDA device"
#: Modules whose functions have the types, kinds and shapes of arguments and results checked at every call.
CHECKED = ("humanline.objectives", "humanline.train.step.loss")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option, and prepare the checks: of all hooks only this one runs before other conftests are imported."""
    parser.addoption("--no-shapes", action="store_true", help="call humanline's functions without checks of shapes")
    if BASE:
        return
    if early := [name for name in CHECKED if name in sys.modules]:
        raise pytest.UsageError(f"shapes cannot be checked in {', '.join(early)}: imported before tests/conftest.py")
    for name in _shapes.__all__:
        setattr(_shapes, name, getattr(jaxtyping, name))
    # As in mypy, an int may stand for a float.
    jaxtyping.install_import_hook(CHECKED, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests while the garbage collector waits: it would take a third of the time.

    It would look through all that is imported, again and again. Afterwards it leaves that alone, in every test.
    """
    automatic = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        if automatic:
            gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu where there is no CUDA device; where there is one, their warnings end no test.

    What libraries warn of on a machine that nobody has seen is no reason to learn nothing else there.
    """
    on_gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    absent = bool(on_gpu) and not has_cuda()
    for item in on_gpu:
        item.add_marker(pytest.mark.filterwarnings("default"))
        if absent:
            item.add_marker(pytest.mark.skip(reason=NO_CUDA))


def has_cuda() -> bool:
    """Whether there is a CUDA device; torch is asked only where some test wants one."""
    if BASE:
        return False
    import torch

    return torch.cuda.is_available()


class OnGpu:
    """Count the tests marked gpu that have run and that were skipped, and say so in one line.

    A session that asks for them (`-m gpu`), and in which none has run, fails: it has shown nothing.
    """

    def __init__(self, config: pytest.Config) -> None:
        wanted = str(config.getoption("markexpr"))
        self.asked = "gpu" in wanted.replace("not gpu", "") and not config.getoption("collectonly")
        self.ran = self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test, in whatever process it ran."""
        if "gpu" in report.keywords:
            self.ran += report.when == "call" and not report.skipped
            self.skipped += report.skipped

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let the session fail if it was to run such tests and has not."""
        passes = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.asked and not self.ran and passes:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many were left out."""
        if self.skipped:
            why = NO_CUDA if not has_cuda() else "see -rs"
            terminalreporter.write_line(f"{self.skipped} tests marked gpu were skipped: {why}")
        if self.asked and not self.ran:
            terminalreporter.write_line("no test marked gpu has run, though they were asked for: failed")


def pytest_configure(config: pytest.Config) -> None:
    """Count in the process that reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(OnGpu(config))


@pytest.fixture(autouse=True)
def shapes(request: pytest.FixtureRequest) -> None:
    """Check shapes in each test but those that hand over wrong ones, to see what our own checks say."""
    if BASE:
        return
    off = request.config.getoption("no_shapes") or request.node.get_closest_marker("wrong_shapes") is not None
    jaxtyping.config.update("jaxtyping_disable", off)


@pytest.fixture(autouse=True, scope="session")
def no_secrets() -> None:
    """Leave secrets of whoever runs the tests out of them: what is left out of the environment is said."""
    if BASE:
        return
    from humanline.train.config.rounds import EnvironmentConfig
    from humanline.train.online.rewards.environment import worker_environment

    for name in worker_environment(EnvironmentConfig())[1]:
        del os.environ[name]


@pytest.fixture(autouse=True, scope="session")
def default_signals() -> None:
    """Undo what whoever started the tests has had ignored, as nohup does: it would be handed on to every run."""
    for number in STOPPING:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="module")
def without_flushes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let no test wait for the disk, a fifth of a run in rounds, but those of tests/system; commands do flush."""
    with pytest.MonkeyPatch.context() as patch:
        if ROOT / "tests" / "system" not in request.path.parents:
            patch.setattr(os, "fsync", do_not_wait_for_the_disk)
            patch.setattr(sqlite3, "connect", connect_without_waits)
        yield


@pytest.fixture(autouse=True)
def no_run_is_left() -> Iterator[None]:
    """Say which test leaves a run's way with full disks behind, and keep it from the next one."""
    yield
    if disk.patience() is not None:
        disk._now = None
        warnings.warn("a run has not been left", stacklevel=1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public data sets beside the project; tests that want it skip where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the public data sets (../shared/data) are not here")
    return folder


def make_toy_data(folder: Path) -> dict[str, str]:
    """Make small data files of every shape: sort the letters of a word."""
    rng = random.Random(0)
    rows = []
    for i in range(48):
        word = "".join(rng.choice("abcdefgh") for _ in range(rng.randint(2, 9)))
        rows.append((f"{i} {word}", "".join(sorted(word)), word[::-1] + "!"))

    def write(name, lines):
        path = folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return str(path)

    pairs = [{"prompt": p, "chosen": c, "rejected": r} for p, c, r in rows]
    unpaired = [{"prompt": p, "completion": (c, r)[i % 2], "label": i % 2 == 0} for i, (p, c, r) in enumerate(rows)]
    return {
        "pairs": write("pairs.jsonl", pairs),
        "held_out": write("held_out.jsonl", pairs[:9]),
        "unpaired": write("unpaired.jsonl", unpaired),
        "prompts": write("prompts.jsonl", [{"prompt": p} for p, _, _ in rows]),
        "completions": write("completions.jsonl", [{"prompt": p, "completion": c} for p, c, _ in rows]),
    }


def make_toy(folder: Path) -> dict[str, str]:
    """Make a tiny start model, and the data files beside it."""
    files = make_toy_data(folder)
    from humanline.train.policy.new_model import new_model

    model = new_model(folder / "model", text=files["pairs"], vocab_size=320, hidden_size=16, heads=2, max_length=128)
    return files | {"model": str(model)}


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory) -> dict[str, str]:
    """Offer the data files of `toy` without its model, which takes torch and a model's code to make."""
    return make_toy_data(tmp_path_factory.mktemp("toy-data"))


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> dict[str, str]:
    """A tiny start model and small data files of every shape."""
    return make_toy(tmp_path_factory.mktemp("toy"))
