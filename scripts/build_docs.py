"""Build the documentation as a site: the pages of this repository, at the paths they have in it.

    python scripts/build_docs.py            # what `make docs` runs; the site lies in build/site
    python scripts/build_docs.py --stage    # only lay the pages out, in build/docs

What git tracks, if a page may show or link to it, is laid out under build/docs: a link means the same there as in the
repository. Then Zensical builds it. A warning of any part ends this with exit code 1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build" / "docs"
#: What a page may show or link to.
SHOWN = {
    *(".md", ".png", ".svg", ".css", ".csv", ".json", ".jsonl", ".yaml", ".toml", ".cff"),
    *(".py", ".sh", ".ipynb"),
}
WARNING = re.compile(r"\b(warning|error|griffe|mkdocstrings|mkdocs_autorefs)\b", re.IGNORECASE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def tracked() -> list[str]:
    """Return the files of the repository that are shown, with those that are new and not ignored."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    kept = [name for name in names if Path(name).suffix in SHOWN or name == "LICENSE"]
    return sorted({name for name in kept if (ROOT / name).is_file() and not is_card(ROOT / name)})


def is_card(file: Path) -> bool:
    """Return whether it is the card of a saved model, which is no page: start models lie beside their runs."""
    return file.name == "README.md" and file.with_name("manifest.json").is_file()


def lay_out() -> None:
    """Copy what is shown to where the site is built from."""
    shutil.rmtree(STAGE, ignore_errors=True)
    for name in tracked():
        to = STAGE / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, to)


def warnings(output: str) -> list[str]:
    """Return the lines of a build's output that warn: strict mode counts only those of the pages' links."""
    return [line for line in COLOUR.sub("", output).splitlines() if WARNING.search(line)]


def main() -> int:
    """Lay the pages out and build them; return 1 if anything warned."""
    lay_out()
    if "--stage" in sys.argv[1:]:
        return 0
    shutil.rmtree(ROOT / "build" / "site", ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    output = done.stdout + done.stderr
    print(output, end="")
    found = warnings(output)
    if done.returncode or found:
        print(f"the site was not built: {len(found)} warnings, exit code {done.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
