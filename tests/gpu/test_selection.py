"""Asking for the tests of a GPU and running none of them is no success."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import OnGpu

OK, FAILED, NONE = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED


def finished(expression: str, reports: list[tuple[str, bool]], status: pytest.ExitCode = OK) -> pytest.ExitCode:
    """The exit status of a session with reports of tests marked gpu: of which phase, and whether skipped."""
    options = {"markexpr": expression, "collectonly": False}
    counter = OnGpu(SimpleNamespace(getoption=options.__getitem__))
    for when, skipped in reports:
        counter.pytest_runtest_logreport(SimpleNamespace(keywords={"gpu": 1}, when=when, skipped=skipped))
    counter.pytest_runtest_logreport(SimpleNamespace(keywords={}, when="call", skipped=False))  # of another test
    session = SimpleNamespace(exitstatus=status)
    counter.pytest_sessionfinish(session)
    return session.exitstatus


def test_a_session_that_asks_for_gpu_tests_and_runs_none_fails():
    """All skipped, in whatever phase, or none there: failed; one that ran is enough, and nobody else is concerned."""
    ran = [("setup", False), ("call", False), ("teardown", False)]
    for none in ([], [("setup", True)], [("setup", False), ("call", True), ("teardown", False)]):
        assert finished("gpu", none) == finished("gpu and not slow", none, NONE) == FAILED
        assert finished("gpu", none + ran) == OK
        assert finished("", none) == finished("not slow and not gpu", none) == OK
    assert finished("gpu", ran, FAILED) == FAILED
