"""Build wheel and sdist, install them outside of the repository, and try what they promise.

    python scripts/try_install.py base                     # no extra, nothing pinned, on every Python that is found
    python scripts/try_install.py base --versions lowest --python 3.11
    python scripts/try_install.py train                    # the training extra, the newest versions; torch pinned
    python scripts/try_install.py train --versions lowest  # and the lowest that pyproject.toml states

`--tests` runs the package's own tests against what was installed, too. It ends with 0 if all held, and says what was
installed; with 1 if something did not, if a Python that was named is not there, or if none is. Needs an index, or
whatever pip is set up to find packages in. Versions of packages that pyproject.toml does not name (tokenizers,
safetensors, pyarrow) are those that the resolver chooses, and torch is never varied: each of its versions is gigabytes
where an index has builds for CUDA alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
#: What the tests of the base package need besides it. Their array kinds are numpy's; tests of torch's are skipped.
TOOLS = ("pytest", "hypothesis", "mpmath", "sympy", "pyyaml")
BASE_TESTS = ("tests/theory", "tests/fit", "tests/stats", "tests/plots")
#: Not of an installed package: they look at the source of a checkout, or need the simulator at once.
LEFT_OUT = ("tests/theory/test_citations.py", "tests/plots/test_study_figures.py")
#: Quick tests of rooms that lean on the packages whose lowest versions are tried.
TRAIN_TESTS = ("tests/objectives", "tests/train/config", "tests/train/data", "tests/train/policy", "tests/train/step")
TRAIN_TOOLS = (*TOOLS, "jaxtyping", "beartype", "jsonschema", "math-verify", "pyyaml", "tensorboard", "torchao")
THEORY_FIGURES = (
    *("distortion_curves", "bound", "clipping_limit", "capacity_families"),
    *("fitted_people", "fitted_rejection"),
)


class TrialError(Exception):
    """Something that does not hold; the message says what was run and what came of it."""


def run(*words: str | Path, cwd: Path, code: int = 0, limit: int = 3000) -> str:
    """Run a command outside of the repository, and return what it printed; it must end with `code`."""
    names = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in names} | {"OMP_NUM_THREADS": "1"}
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=limit)
    if done.returncode != code:
        raise TrialError(f"{' '.join(command)}\nended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def python_of(version: str) -> Path | None:
    """Return a Python of this version, of the PATH or of pyenv; None if there is none."""
    found = [shutil.which(f"python{version}"), *(Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")]
    for one in [sys.executable, *found]:
        ask = "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"
        if one is not None:
            told = subprocess.run([one, "-c", ask], capture_output=True, text=True)
            if told.stdout.strip() == version:
                return Path(one)
    return None


class Environment:
    """A fresh virtual environment, in a folder."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder = folder
        run(python, "-m", "venv", folder / "venv", cwd=folder.parent)
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")

    def install(self, *wanted: str, pins: Iterable[str] = ()) -> None:
        """Install packages with pip, which takes what it is set up to take."""
        limits = self.folder / "pins.txt"
        limits.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
        how = ("--quiet", "--only-binary", ":all:")  # what has no wheel for this Python fails at once
        run(self.bin / "python", "-m", "pip", "install", *how, "--constraint", limits, *wanted, cwd=self.folder)

    def versions(self) -> dict[str, str]:
        """Return what is installed."""
        words = ("-m", "pip", "list", "--format", "json", "--disable-pip-version-check")
        told = run(self.bin / "python", *words, cwd=self.folder)
        return {row["name"].lower(): row["version"] for row in json.loads(told[: told.rindex("]") + 1])}


def build(folder: Path, python: Path = Path(sys.executable)) -> tuple[Path, Path]:
    """Return an sdist of the repository, and the wheel that is made of that sdist alone."""
    folder.mkdir()
    tools = Environment(python, folder)
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    tools.install(*backend, pins=_lines(ROOT / "constraints.txt"))
    run(tools.bin / "python", "-m", "hatchling", "build", "-t", "sdist", "-d", folder / "dist", cwd=ROOT)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        file.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(tools.bin / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist", cwd=source)
    (wheel,) = (folder / "dist").glob("*.whl")
    return sdist, wheel


def lowest(extras: Sequence[str], but: Sequence[str] = (), python: str = PYTHONS[0]) -> list[str]:
    """Return a pin to the lowest version that pyproject.toml states, for each package of the base and of extras.

    Where it states one for later Pythons too, that one follows the other, and holds for them.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    pins = {}
    for one in wanted:
        found = re.fullmatch(r"([\w.-]+)>=([\d.]+)(?:; python_version >= '3\.(\d+)')?", one)
        if found is None:
            raise TrialError(f"pyproject.toml: {one!r} is not NAME>=VERSION, so that its lowest version is not known")
        if found[1] not in but and int(found[3] or 0) <= int(python.partition(".")[2]):
            pins[found[1]] = f"{found[1]}=={found[2]}"
    return list(pins.values())


def try_commands(at: Environment, work: Path) -> None:
    """Try what the base package can do by itself, in an empty folder."""
    humanline = at.bin / "humanline"
    for words in (("--help",), ("train", "--help")):
        _expect("usage: humanline" in run(humanline, *words, cwd=work), f"{words} shows no usage")
    names = [line.split()[0] for line in run(humanline, "ls", cwd=work).splitlines()]
    _expect({"tiny", "tiny-online", "llama3-8b-dpo-humanline"} <= set(names), f"ls: {names}")
    shipped = (ROOT / "humanline" / "recipes" / "schema.json").read_text(encoding="utf-8")
    _expect(run(humanline, "schema", cwd=work) == shipped, "schema does not print the file of the repository")
    run(humanline, "cp", "tiny", "mine.yaml", cwd=work)
    schema = re.search(r"\$schema=file://(\S+)", (work / "mine.yaml").read_text(encoding="utf-8"))
    _expect(schema is not None and Path(schema[1]).read_text(encoding="utf-8") == shipped, "cp: no schema is named")
    run(humanline, "cp", "tiny", "mine.yaml", cwd=work, code=2)  # nothing is overwritten
    where = run(at.bin / "python", "-c", "import humanline; print(humanline.__file__)", cwd=work)
    _expect(str(ROOT) not in where, f"the repository's own package was tried: {where}")
    _expect((Path(where.strip()).parent / "py.typed").is_file(), "py.typed is missing")


def try_base(
    python: Path, wheel: Path, folder: Path, pins: Sequence[str] = (), *, tests: bool = False
) -> dict[str, str]:
    """Try the base package on a Python; return the versions of what it brought."""
    folder.mkdir()
    at, work = Environment(python, folder), folder / "work"
    work.mkdir()
    before = at.versions()
    at.install(str(wheel), pins=pins)
    brought = {name: version for name, version in at.versions().items() if name not in before}
    _expect(set(brought) == {"humanline", "numpy", "scipy", "array-api-compat"}, f"it brought {brought}")
    try_commands(at, work)
    said = run(at.bin / "humanline", "demo", cwd=work, code=2)
    _expect("torch, transformers" in said and f"{wheel}[train]" in said, f"demo without the extra says: {said}")
    said = run(at.bin / "humanline", "figures", "--out", "f", cwd=work, code=2)
    _expect(f"{wheel}[plots]" in said, f"figures without the extra says: {said}")
    at.install(f"{wheel}[plots]", pins=pins)
    run(at.bin / "humanline", "figures", "--out", "f", *THEORY_FIGURES, cwd=work)
    _expect(len(list((work / "f").iterdir())) == 3 * len(THEORY_FIGURES), "figures are missing")
    brought |= {"tests": run_tests(at, folder, TOOLS, BASE_TESTS, pins=pins)} if tests else {}
    return brought


def try_train(python: Path, wheel: Path, folder: Path, pins: Sequence[str], *, tests: bool) -> dict[str, str]:
    """Try the training extra with some versions: all commands above, figures, the demo, a run and rounds."""
    folder.mkdir()
    at, work = Environment(python, folder), folder / "work"
    work.mkdir()
    at.install(f"{wheel}[train,plots]", pins=pins)
    brought = at.versions()
    try_commands(at, work)
    run(at.bin / "humanline", "figures", "--out", "f", *THEORY_FIGURES, "sequence_utility", cwd=work)
    run(at.bin / "humanline", "demo", cwd=work)
    run(at.bin / "humanline", "train", "mine.yaml", cwd=work)
    run(at.bin / "humanline", "train", "tiny-online", "source.count=1", cwd=work)
    for name in ("tiny", "tiny-online"):
        _expect((work / "runs" / name / "final" / "model.safetensors").is_file(), f"{name} left no model")
    brought |= {"tests": run_tests(at, folder, TRAIN_TOOLS, TRAIN_TESTS, pins=pins)} if tests else {}
    return brought


def run_tests(
    at: Environment, folder: Path, tools: Sequence[str], rooms: Sequence[str], pins: Sequence[str] = ()
) -> str:
    """Run tests of the repository against the installed package, from a copy without the package; return the sum."""
    at.install(*tools, pins=pins)
    copy = folder / "tests"
    copy.mkdir()
    for name in run("git", "ls-files", cwd=ROOT).splitlines():
        if not name.startswith("humanline/") and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    left_out = [f"--ignore={name}" for name in LEFT_OUT]
    # One library's lowest version beside another's newest: what they say of each other is no fault of ours.
    warned = ("-W", "default::DeprecationWarning", "-W", "default::FutureWarning")
    words = ("-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow and not gpu", "--tb=short", *warned, *left_out)
    return run(at.bin / "python", *words, *rooms, cwd=copy).strip().splitlines()[-1]


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise TrialError(otherwise)


def main() -> int:
    """Try what the command line names; 1 if something does not hold, or was named and cannot be tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("base", "train"))
    parser.add_argument("--python", nargs="+", default=None, metavar="X.Y", help=f"default: {', '.join(PYTHONS)}")
    parser.add_argument("--versions", choices=("newest", "lowest"), default="newest", help="of packages")
    parser.add_argument("--torch", default=None, metavar="VERSION", help="default: the one of constraints.txt")
    parser.add_argument("--tests", action="store_true", help="run the package's own tests too")
    options = parser.parse_args()
    failed = tried = 0
    with tempfile.TemporaryDirectory(prefix="try-install-") as folder:
        _, wheel = build(Path(folder) / "build")
        for version in options.python or (PYTHONS if options.what == "base" else PYTHONS[:1]):
            began, python, place = time.monotonic(), python_of(version), Path(folder) / version
            if python is None:
                failed += options.python is not None
                print(f"Python {version}: not found; not tried")
                continue
            tried += 1
            try:
                if options.what == "base":
                    pins = lowest(("plots",), python=version) if options.versions == "lowest" else []
                    told = try_base(python, wheel, place, pins, tests=options.tests)
                else:
                    (held,) = [one for one in _lines(ROOT / "constraints.txt") if one.startswith("torch==")]
                    pins = [f"torch=={options.torch}" if options.torch else held]
                    pins += lowest(("train", "plots"), ("torch",), version) if options.versions == "lowest" else []
                    told = try_train(python, wheel, place, pins, tests=options.tests)
            except TrialError as error:
                failed += 1
                print(f"Python {version}: FAILED\n{error}")
            else:
                facts = ", ".join(f"{name} {value}" for name, value in told.items())
                print(f"Python {version}: all held, {time.monotonic() - began:.0f} s: {facts}", flush=True)
    if not tried:
        print("nothing was tried: install one of these Pythons, or name another one with --python")
    return int(bool(failed) or not tried)


if __name__ == "__main__":
    sys.exit(main())
