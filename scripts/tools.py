"""Try the newest release of each tool that humanline works inside of, and say in a sentence what broke.

    python scripts/tools.py                      # all of them, each in an environment of its own
    python scripts/tools.py verl --in envs       # one, in envs/verl, which is made anew
    python scripts/tools.py --list               # what was tested, as the table in docs/inside-others.md

The exit code is 1 where anything broke or could not be tried, and where a tool that was only looked at asks for another
TRL than it did. A newer release that works is no break; the sentence says so, and the table here is then the place to
write it down. Needs an index of packages.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
#: Why tests/conftest.py skips a test.
NO_GPU = "no CUDA device"
#: Of pip: say on standard output what would be installed, and nothing else.
TOLD = ("--quiet", "--report", "-")
#: What the tests of a tool need beside it and humanline.
TESTING = ("pytest", "jaxtyping", "beartype", "hypothesis", "scipy", "array-api-compat", "pydantic")


@dataclass(frozen=True)
class Tool:
    """A tool on an index of packages that has tests here."""

    package: str
    tested: str
    tests: str
    beside: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    """Extras of humanline itself."""


TOOLS = {
    "trl": Tool("trl", "1.16.0", "tests/integrations/test_trl*.py", extras=("train",)),
    "verl": Tool(
        "verl",
        "0.9.1",
        "tests/integrations/test_verl*.py",
        beside=("torch==2.13.0", "uvicorn", "fastapi", "cachetools"),
    ),
}
#: Tools that humanline would reach through TRL: the release looked at, and which TRL it asks for.
THROUGH_TRL = {
    "axolotl": ("0.19.0", "trl==1.9.0"),
    "unsloth": ("2026.10.9", "trl!=0.19.0,<=1.15.0,>=0.18.2"),
    "llamafactory": ("0.9.5", "trl<=0.24.0,>=0.18.0"),
    "openrlhf": ("0.11.2", "no trl"),
}


class Broken(Exception):
    """Something about a tool broke; the message is the rest of a sentence that begins with its name and version."""


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal and return what it said."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=cwd)


def newest(package: str) -> str:
    """Return the newest release on the index, whatever fits here."""
    found = run(sys.executable, "-m", "pip", "index", "versions", package)
    told = re.search(rf"^{re.escape(package)} \(([^)]+)\)", found.stdout, re.MULTILINE | re.IGNORECASE)
    if found.returncode != 0 or told is None:
        raise Broken(f"could not be looked up: {pip_said(found)}")
    return told[1]


def pip_said(done: subprocess.CompletedProcess[str]) -> str:
    """Return why pip failed. Of an index that does not answer its last line says that there is no such package."""
    return "the index of packages does not answer" if "WARNING: Retrying" in done.stderr else last_line(done.stderr)


def last_line(text: str) -> str:
    """Return the last line that says anything of errors, or the last of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing was said"]
    errors = [line for line in lines if line.startswith(("ERROR", "error", "E ")) or "Error:" in line]
    return (errors or lines)[-1].removeprefix("ERROR: ")


def install(tool: Tool, version: str, folder: Path) -> Path:
    """Make the environment of a tool in `folder`, with humanline in it, and return its Python."""
    if folder.exists() and not (folder / "pyvenv.cfg").is_file():
        raise Broken(f"could not be tried: {folder} is there already and is no environment")
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    here = f"{ROOT}[{','.join(tool.extras)}]" if tool.extras else str(ROOT)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", f"{tool.package}=={version}", *tool.beside, *TESTING, here],
    ):
        done = run(*command)
        if done.returncode != 0:
            raise Broken(f"could not be installed beside humanline: {pip_said(done)}")
    return python


def verdict(report: Path, code: int, said: str) -> str:
    """Return how many tests passed, from pytest's report; raise if one failed or was skipped, or none ran.

    A skipped test is taken for a break: in this environment the tool is there, so nothing is to be left out but what
    wants a GPU, which is counted.
    """
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        raise Broken(f"could not be tried: pytest wrote no report: {last_line(said)}") from None
    waiting = [case for case in cases if (left := case.find("skipped")) is not None and left.get("message") == NO_GPU]
    cases = [case for case in cases if case not in waiting]
    for word, kinds in (("breaks", ("failure", "error")), ("leaves out", ("skipped",))):
        for case in cases:
            for kind in kinds:
                if (found := case.find(kind)) is not None:
                    why = (found.get("message") or "").strip().splitlines() or ["no message"]
                    named = [line.strip() for line in why if "Error:" in line]  # a traceback ends with its error
                    raise Broken(f"{word} {case.get('classname')}.{case.get('name')}: {(named or why[:1])[-1]}")
    if code != 0 or not cases:
        raise Broken(f"could not be tried: {len(cases)} tests ran and pytest ended with {code}: {last_line(said)}")
    return f"{len(cases)} tests pass" + (f", {len(waiting)} want a GPU" if waiting else "")


def try_tool(name: str, folder: Path) -> tuple[bool, str]:
    """Return whether the newest release of a tool works, and a sentence about it."""
    tool, version = TOOLS[name], "(newest)"
    try:
        version = newest(tool.package)
        python = install(tool, version, folder / name)
        report = folder / f"{name}.xml"
        report.unlink(missing_ok=True)
        if not (files := sorted(ROOT.glob(tool.tests))):
            raise Broken(f"could not be tried: there is no {tool.tests}")
        done = run(python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *files)
        told = verdict(report, done.returncode, done.stdout + done.stderr)
    except Broken as broken:
        return False, f"{name} {version} {broken} (tested: {tool.tested})."
    newer = "" if version == tool.tested else f"; the table says {tool.tested}, write {version} there"
    return True, f"{name} {version} works: {told}{newer}."


def look_at(name: str) -> tuple[bool, str]:
    """Return whether a tool asks for the same TRL as when it was looked at, and a sentence about it."""
    looked_at, asked = THROUGH_TRL[name]
    version = "(newest)"
    try:
        version = newest(name)
        wanted = [f"{name}=={version}"]
        done = run(
            sys.executable, "-m", "pip", "install", *["--dry-run", "--ignore-installed", "--no-deps"], *TOLD, *wanted
        )
        if done.returncode != 0:
            raise Broken(f"could not be looked at: {pip_said(done)}")
        now = trl_asked_for(done.stdout)
    except Broken as broken:
        return False, f"{name} {version} {broken} (looked at: {looked_at})."
    if now != asked:
        return False, f"{name} {version} asks for {now}, where {looked_at} asked for {asked}: see what works now."
    newer = "" if version == looked_at else f"; nobody has looked at {version}, do and write it into the table"
    return True, f"{name} {version} asks for {asked}, as {looked_at} did{newer}."


def trl_asked_for(report: str) -> str:
    """Return the TRL that a package asks for outside of its extras, from pip's report of what it would install."""
    try:
        asked = json.loads(report)["install"][0]["metadata"].get("requires_dist", [])
    except (ValueError, LookupError, TypeError):
        raise Broken(f"could not be looked at: pip's report is not understood: {last_line(report)[:100]}") from None
    found = [re.fullmatch(r"trl\b(?!-)\s*\(?([^;)]*)\)?\s*", line) for line in asked]
    return next(("trl" + match[1].strip() for match in found if match), "no trl")


def table() -> str:
    """Return the table of tested versions in docs/inside-others.md."""
    rows = [f"| {tool.package} | {tool.tested} | `{tool.tests}` |" for tool in TOOLS.values()]
    rows += [f"| {name} | looked at: {version} | the TRL it asks for |" for name, (version, _) in THROUGH_TRL.items()]
    return "\n".join(["| tool | release | by |", "|---|---|---|", *rows])


def main(words: Sequence[str] | None = None) -> int:
    """Try the tools named, or all; print a sentence each and return 1 if anything broke."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = [*TOOLS, *THROUGH_TRL]
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--in", dest="folder", type=Path, help="folder for the environments, kept; default: a new one")
    parser.add_argument("--list", action="store_true", help="print the table of tested versions and stop")
    given = parser.parse_args(words)
    if given.list:
        print(table())
        return 0
    if unknown := [name for name in given.tools if name not in known]:
        parser.error(f"no such tool: {', '.join(unknown)}; there are {', '.join(known)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        sound = True
        for name in given.tools or known:
            works, sentence = try_tool(name, folder) if name in TOOLS else look_at(name)
            print(sentence, flush=True)
            sound = sound and works
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
