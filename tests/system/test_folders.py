"""Folders that are published whole: each file is hashed by who wrote it."""

from __future__ import annotations

import json
import os
import threading

import pytest

from humanline.system import folders
from humanline.system.files import DamagedError
from humanline.system.folders import begin_folder, flush_files, seal_folder, verify_folder


def prepared(tmp_path, count=3):
    folder = tmp_path / "folder"
    partial = begin_folder(folder)
    for number in range(count):
        (partial / f"{number}.txt").write_text(str(number) * (number + 1))
    return folder, sorted(partial.iterdir())


def test_a_folder_is_sealed_with_what_its_writers_have_said(tmp_path, monkeypatch):
    """Files that other processes have flushed and hashed are not read again, and the manifest is the same."""
    folder, _ = prepared(tmp_path)
    seal_folder(folder)
    manifest = (folder / "manifest.json").read_text()
    assert list(json.loads(manifest)["files"]) == ["0.txt", "1.txt", "2.txt"]
    folder.rename(tmp_path / "other")
    folder, paths = prepared(tmp_path)
    known = flush_files(folder, paths[1:])
    assert known.keys() == {"1.txt", "2.txt"}
    read, facts = [], folders.facts_of
    monkeypatch.setattr(folders, "facts_of", lambda path: read.append(path.name) or facts(path))
    seal_folder(folder, known)
    assert read == ["0.txt"] and (folder / "manifest.json").read_text() == manifest
    verify_folder(folder)
    assert sorted(read[1:]) == ["0.txt", "1.txt", "2.txt"]


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: path.write_text("more of it")])
def test_a_file_that_is_not_as_its_writer_said_is_not_sealed(tmp_path, change):
    """A file of another process that cannot be seen here, or has another size, ends the save; nothing has the name."""
    folder, paths = prepared(tmp_path)
    known = flush_files(folder, paths)
    change(paths[1])
    with pytest.raises(OSError, match=r"1\.txt was written with 2 bytes, but (is not there|has 10 bytes here)"):
        seal_folder(folder, known)
    assert not folder.exists()


def test_files_are_hashed_by_several_threads(tmp_path, monkeypatch):
    """Two files are hashed at the same time, by a process that has two processors."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    both, facts = threading.Barrier(2, timeout=60), folders.facts_of
    folder, _ = prepared(tmp_path, 2)
    monkeypatch.setattr(folders, "facts_of", lambda path: (both.wait(), facts(path))[1])
    seal_folder(folder)
    verify_folder(folder)


def test_what_people_may_edit_is_not_in_the_manifest(tmp_path):
    """A file that is to be edited is flushed and published with the others, and a change of it is no damage."""
    partial = begin_folder(tmp_path / "a")
    (partial / "card").write_text("ours")
    (partial / "weights").write_text("1")
    seal_folder(tmp_path / "a", to_edit=("card",))
    (tmp_path / "a" / "card").write_text("mine")
    verify_folder(tmp_path / "a", foreign=True)
    (tmp_path / "a" / "weights").write_text("2")
    with pytest.raises(DamagedError, match="weights"):
        verify_folder(tmp_path / "a", foreign=True)
