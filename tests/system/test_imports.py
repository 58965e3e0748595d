"""What libraries say is shown as everything else is."""

from __future__ import annotations

import logging
import sys
import warnings

from humanline.system.imports import shown_safely
from humanline.system.terminal import show


def test_what_libraries_say_is_shown_as_everything_else(capfd, monkeypatch):
    """A warning, a record of a library's log and a line of a caller in Python: no control character, no secret."""
    evil = "a\x1b[2J\u202e.jsonl"
    monkeypatch.setenv("SOME_KEY", "kanarie-1")
    log = logging.getLogger("a.library")
    handler = logging.StreamHandler(sys.stderr)
    log.addHandler(handler)
    try:
        with shown_safely():
            warnings.showwarning(UserWarning(f"first {evil} kanarie-1"), UserWarning, f"{evil}.py", 1)  # as `warn` does
            log.warning("second %s kanarie-1", evil)
        show(f"third {evil} kanarie-1")
    finally:
        log.removeHandler(handler)
    said = "".join(capfd.readouterr())
    assert all(f"{word} a\\x1b[2J\\u202e.jsonl ***" in said for word in ("first", "second", "third"))
    assert not set(said) & {"\x1b", "\u202e"} and "kanarie" not in said
