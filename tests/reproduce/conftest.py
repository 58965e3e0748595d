"""What tests of suites share."""

from __future__ import annotations

import pytest

from humanline.reproduce import suite


@pytest.fixture
def in_process(monkeypatch):
    """Workers are too dear for a test of what they are given: the same work is done here."""

    class Here:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def submit(self, work, *arguments, **named):
            from concurrent.futures import Future

            future = Future()
            try:
                future.set_result(work(*arguments, **named))
            except Exception as error:
                future.set_exception(error)
            return future

    monkeypatch.setattr(suite, "worker_processes", lambda *_, **__: Here())
