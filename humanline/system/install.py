"""How an extra of humanline is installed: by a command that works, whether or not an index has humanline."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install(extra: str) -> str:
    """Return the command that installs an extra from where this copy of humanline came from.

    A checkout, a folder, a file (wheel or sdist), a repository or an address, as the installer has noted it (PEP 610);
    an index only if that is where it came from.
    """
    root = Path(__file__).resolve().parents[2]
    if _is_checkout(root):
        return f"pip install -e {shlex.quote(f'{root}[{extra}]')}"
    return f"pip install {shlex.quote(_requirement(extra, _origin()))}"


def needed_by(extra: str) -> list[str]:
    """Return the names of the packages that an extra brings; none where humanline runs without being installed."""
    try:
        wanted = metadata.requires("humanline") or []
    except metadata.PackageNotFoundError:
        return []
    mark = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    return [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in wanted if mark.search(one)]


def has_posix() -> bool:
    """Return whether this system has the locks and signals that training relies on: Linux and macOS do."""
    return importlib.util.find_spec("fcntl") is not None


def _is_checkout(root: Path) -> bool:
    try:
        return 'name = "humanline"' in (root / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def _origin() -> dict[str, Any]:
    """Return what the installer noted of where it took humanline from; empty for an index."""
    try:
        found = json.loads(metadata.distribution("humanline").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError, OSError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("url"), str) else {}


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """Return what pip is to be asked for."""
    url = origin.get("url", "")
    if not url:
        return f"humanline[{extra}]"
    parts = urlsplit(url)
    vcs = origin.get("vcs_info")
    if isinstance(vcs, dict):
        within = f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else ""
        return f"humanline[{extra}] @ {vcs.get('vcs')}+{url}@{vcs.get('commit_id')}{within}"
    if parts.scheme != "file":
        return f"humanline[{extra}] @ {url}"
    place = Path(url2pathname(parts.path))
    # A file that has moved since is looked for in the folder where the command is typed.
    return f"{place if place.exists() else './' + place.name}[{extra}]"
