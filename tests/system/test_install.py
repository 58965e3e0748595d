"""What people are told to type to install an extra."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata

import pytest

from humanline.cli import main
from humanline.system import install as module
from humanline.system.install import install, needed_by
from tests.conftest import ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def taken_from(monkeypatch, tmp_path):
    """Let the package lie outside of a checkout, with this note of the installer."""

    class Noted:
        def __init__(self, note):
            self.note = note

        def read_text(self, name):
            assert name == "direct_url.json"
            return self.note

    def take(note):
        monkeypatch.setattr(module, "__file__", str(tmp_path / "site-packages/humanline/system/install.py"))
        monkeypatch.setattr(metadata, "distribution", lambda name: Noted(note))

    return take


def test_a_checkout_is_installed_where_it_is():
    """From a checkout the command names its folder, whatever index there is."""
    assert shlex.split(install("train")) == ["pip", "install", "-e", f"{ROOT}[train]"]


def test_a_wheel_is_named_by_its_file(taken_from, tmp_path):
    """The extra of a wheel is asked of that wheel, quoted; of one that has moved, in the folder one is in."""
    wheel = tmp_path / "has a space" / "humanline-0.1.0-py3-none-any.whl"
    taken_from(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    assert shlex.split(install("plots")) == ["pip", "install", f"./{wheel.name}[plots]"]
    wheel.parent.mkdir()
    wheel.touch()
    assert shlex.split(install("plots")) == ["pip", "install", f"{wheel}[plots]"]


@pytest.mark.parametrize(
    ("note", "wanted"),
    [
        (None, "humanline[train]"),
        ("no JSON", "humanline[train]"),
        ("[1]", "humanline[train]"),
        ({"url": "https://host.example/h.whl", "archive_info": {}}, "humanline[train] @ https://host.example/h.whl"),
        (
            {"url": "https://host.example/h.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f"humanline[train] @ git+https://host.example/h.git@{COMMIT}",
        ),
    ],
)
def test_the_place_it_came_from_is_asked(taken_from, note, wanted):
    """An address or a repository is asked again, at its commit; an index only if no place was noted."""
    taken_from(json.dumps(note) if isinstance(note, dict) else note)
    assert shlex.split(install("train")) == ["pip", "install", wanted]


def test_what_an_extra_brings(monkeypatch):
    """The names of an extra's packages, without versions and without those of another extra."""
    wanted = ["numpy>=2", "torch>=2; extra == 'train'", 'ruamel.yaml[x]>=1 ; extra == "train"', "a; extra == 'trainer'"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    assert needed_by("train") == ["torch", "ruamel.yaml"]


def test_one_line_says_what_training_needs(monkeypatch, capsys):
    """A missing package names the extra, all that it brings, and a command; without POSIX, that it needs that."""
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=2; extra == 'train'", "rich; extra == 'train'"])
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", None)
    assert main(["new-model", "m", "--text", "t"]) == 2
    said = capsys.readouterr().err
    assert (
        f"is missing; install the training extra (torch, rich): {install('train')}\n" in said and said.count("\n") == 1
    )
    monkeypatch.setattr(module, "has_posix", lambda: False)
    assert main(["new-model", "m", "--text", "t"]) == 2
    said = capsys.readouterr().err
    assert "need Linux" in said and "pip install" not in said
