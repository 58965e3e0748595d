"""Paths as people write them: those that no library could use are named."""

from __future__ import annotations

import os
import sys

import pytest

from humanline.system.paths import PathError, absolute, absolute_utf8


def test_home_folders_are_written_out(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert absolute("~/a") == tmp_path / "a" == absolute("a")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("~nobody-is-called-so/a", "user who is not known"),
        ("a\0b", "NUL character"),
        ("/tmp/x\ud800y", "a character that no file name has"),
        ("round/a", "too many levels of symbolic links"),
        ("a" * 300, "file name too long"),
    ],
)
def test_impossible_paths_are_named(monkeypatch, tmp_path, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(PathError, match=message):
        absolute(path)


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_a_folder_whose_name_is_not_utf8_is_refused_before_anything_is_loaded(monkeypatch, tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert absolute("a") == folder / "a"
    with pytest.raises(PathError, match="not UTF-8"):
        absolute_utf8("a")
