"""The pages that a reader meets: their code, their links and the anchors of their headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

#: Every page; those below `studies`, `figures`, `examples` and the package are beside what they tell of.
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "studies/**/*.md", "figures/*.md", "examples/*/*.md", "humanline/**/*.md")
    for path in ROOT.glob(pattern)
    if "work" not in path.relative_to(ROOT).parts
)
#: Those whose code a reader is to run.
GUIDES = [path for path in PAGES if path.parent == ROOT / "docs" or (path.name == "README.md" and path.parent == ROOT)]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int


def name(path: Path) -> str:
    """Return the name of a page in the repository."""
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, *languages: str) -> list[Block]:
    """Return the fenced blocks of a page, of these languages or all."""
    text = path.read_text(encoding="utf-8")
    found = [Block(one[2], one[3], text[: one.start()].count("\n") + 1) for one in FENCE.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def prose(path: Path) -> str:
    """Return a page without its code, where what looks like a link or a heading is one."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def links(path: Path) -> Iterator[str]:
    """Yield the targets of the links and pictures of a page."""
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site and the places that show Markdown make them."""
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', prose(path)))
    for heading in re.findall(r"^#{1,6} (.+?) *$", prose(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        found.add(slug)
    return found


def commands(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the commands of a page's shell blocks, each with its line, without prompts, remarks and what follows."""
    for block in blocks(path, "bash", "console", "sh"):
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            if block.language == "console" and not line.startswith("$ "):
                continue
            command = re.sub(r"\s+#.*$", "", line.removeprefix("$ ")).strip()
            if command and not command.startswith("#"):
                yield block.line, command


def settings_tables(path: Path) -> dict[str, list[list[str]]]:
    """Return those tables of a page that hold two tools' settings against each other: they have more than 4 columns."""
    return {kind: rows for kind, rows in tables(path).items() if len(rows[0]) > 4}


def tables(path: Path) -> dict[str, list[list[str]]]:
    """Return the rows of each table of a page, by the first cell of its heading."""
    found: dict[str, list[list[str]]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", path.read_text(encoding="utf-8"), re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        found[head[0].strip("`")] = rows
    return found
