"""Files that are put in their place: nothing of anybody else's is replaced."""

from __future__ import annotations

import errno
import os

import pytest

from humanline.system.files import publish_file
from tests.helpers.locks import refuse


@pytest.mark.parametrize("links", [True, False])
def test_publishing_a_file_replaces_nothing(tmp_path, monkeypatch, links):
    """With hard links or without: what has the name keeps it, and the new file stays where it is."""
    if not links:
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    new, target = tmp_path / "new", tmp_path / "target"
    new.write_text("new")
    target.write_text("mine")
    with pytest.raises(FileExistsError):
        publish_file(new, target)
    assert target.read_text() == "mine" and new.read_text() == "new"
    target.unlink()
    publish_file(new, target)
    assert target.read_text() == "new" and not new.exists()
