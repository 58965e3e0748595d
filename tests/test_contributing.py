"""What CONTRIBUTING says is there is there, and it stays short."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROOMS = TEXT.split("| room of `train/` |")[1].split("\n\n")[0]
FOLDERS = [
    "",
    "humanline",
    "humanline/train",
    "humanline/train/online",
    "humanline/train/config",
    "tests/campaign",
    "tests/helpers",
]


def paths(text: str) -> list[str]:
    """Return the names in backticks in a text that look like files or folders of the project."""
    named = re.findall(r"`([\w./]+)`", text)
    return sorted({name for name in named if re.search(r"^[\w./]*(/|\.py|\.md|\.txt)$", name) and "../" not in name})


def test_it_is_short():
    """It has at most 110 lines, and the rooms of training are one table of eight rows."""
    assert len(TEXT.splitlines()) <= 110
    assert len(re.findall(r"^\| (?!-)", ROOMS, re.MULTILINE)) == 8


@pytest.mark.parametrize("name", paths(TEXT))
def test_what_it_names_is_there(name):
    """Every file and folder that it names exists, from the root or in a room that the text speaks of."""
    assert any((ROOT / folder / name).exists() for folder in FOLDERS)


def test_every_link_leads_somewhere():
    """Every link leads to a file of the project."""
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links and all((ROOT / link.split("#")[0]).exists() for link in links)


def test_every_room_of_training_is_in_the_table():
    """Each folder of training is a row, in the order in which they may import each other, the lowest first."""
    rows = re.findall(r"^\| `(\w+)/`", ROOMS, re.MULTILINE)
    folders = {path.name for path in (ROOT / "humanline" / "train").iterdir() if (path / "__init__.py").exists()}
    assert set(rows) == folders
    layers = re.search(
        r'one way"\ntype = "layers"\nlayers = (\[.*humanline.train.loop.*\])', (ROOT / "pyproject.toml").read_text()
    )
    assert layers and re.findall(r"humanline\.train\.(\w+)", layers.group(1))[:1:-1] == rows


def test_its_commands_are_there():
    """Every make target and every module it has run exists."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"make (\w+)", TEXT))
    assert {"test", "slow", "lint", "campaign"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    for module in re.findall(r"python -m ([\w.]+)", TEXT):
        assert (ROOT / module.replace(".", "/")).exists()
