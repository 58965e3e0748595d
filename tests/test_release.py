"""What is released: the files of sdist and wheel, the page of an index, and the package installed outside of here."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "try_install.py"), run_name="try_install")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Imports modules one by one, without POSIX and without what the training extra brings; says what came of each.
IMPORTS = """
import importlib, importlib.util, pkgutil, sys, traceback
from tests.helpers.no_posix import lack

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

class Probe:  # a module of the package that imports what Windows lacks
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "humanline._wants_posix" else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec("import fcntl", module.__dict__)

lack()
sys.meta_path[:0] = [Absent(), Probe()]
import humanline
found = [one.name for one in pkgutil.walk_packages(humanline.__path__, "humanline.", onerror=lambda name: None)]
base = [name for name in found if not name.startswith("humanline.train.") and not name.endswith("__main__")]
for name in [*base, *sys.argv[2:]]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        places = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
        wanted_by = [place for place in places if place.startswith("humanline.")][-1]
        print(name, "of training" if wanted_by.startswith("humanline.train.") else error.name.split(".")[0])
    except AttributeError as error:
        print(name, f"attribute {error}")
    else:
        print(name, "imported")
"""
#: What the training extra brings: by its own packages or by theirs.
EXTRAS = "torch transformers accelerate peft pydantic ruamel rich datasets httpx2 huggingface_hub tokenizers"
EXTRAS += " safetensors pyarrow jinja2 pandas yaml"
#: Rooms whose every module the base package has; of the others it has some.
WHOLE = ("humanline.theory", "humanline.stats", "humanline.plots", "humanline.recipes", "humanline.cli")


def test_the_base_package_imports_without_posix():
    """Where Windows has no fcntl, resource or SIGKILL, and without an extra: what does not import needs an extra."""
    words = [sys.executable, "-c", IMPORTS, EXTRAS, "humanline._wants_posix"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    came = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert came.pop("humanline._wants_posix") == "fcntl"  # the check can fail
    imported = {name for name, what in came.items() if what == "imported"}
    assert [name for name in came if name.startswith(WHOLE) and name not in imported] == []
    needs = {name: what for name, what in came.items() if what not in ("imported", "of training", *EXTRAS.split())}
    assert needs == {}  # no fcntl, for one, unless by way of training
    assert len(imported) > 100


def test_the_stand_in_lacks_names_too():
    """Of a module that Windows has, the names that it has not are missing for the package, and for nobody else."""
    code = (
        "from tests.helpers.no_posix import lack; lack(); import os, signal; os.fork, signal.SIGKILL\n"
        "import humanline._checks as ours\n"
        "lines = 'import fcntl', 'from os import fork', 'import signal; signal.SIGHUP', 'import os.path; os.getuid'\n"
        "for line in lines:\n"
        "    try: exec(line, ours.__dict__); print('found', line)\n"
        "    except (ImportError, AttributeError) as error: print(type(error).__name__)\n"
        "exec('import os; os.getcwd(); from os import path', ours.__dict__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["ModuleNotFoundError", "ImportError", "AttributeError", "AttributeError"], done


@pytest.mark.slow
def test_the_tests_of_the_base_package_pass_without_posix():
    """Theory and statistics compute the same where the system is not POSIX."""
    words = ("-q", "-p", "no:cacheprovider", "-p", "tests.helpers.no_posix_plugin", "-m", "not slow and not gpu")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "tests/theory", "tests/stats", "tests/plots/test_theory_curves.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_page_of_an_index_has_no_path_in_its_links():
    """Links and the picture of the README, all that are paths here, are no links where there is no repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for one in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(one["pattern"], re.sub(r"\\(\d)", r"\\g<\1>", one["replacement"]), text)
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert targets and all(target.startswith("https://") for target in targets)
    assert "Start (`docs/start.md`)" in text and "letters task: `studies/frontier/letters/frontier.png`" in text


def test_lowest_versions_are_read_from_pyproject():
    """Each package of the base and of an extra is pinned to its bound, but those that are left out."""
    pins = SCRIPT["lowest"](("train", "plots"), but=("torch",))
    stated = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"]["train"]]
    named = {re.split("[>;]", one)[0] for one in stated} | {"matplotlib"}
    assert {pin.partition("==")[0] for pin in pins} == named - {"torch"} and len(pins) == len(named) - 1
    assert {"numpy==2.0", "scipy==1.17"} <= set(pins)
    later = SCRIPT["lowest"](("plots",), python="3.13")
    assert {"numpy==2.1", "scipy==1.17"} <= set(later) and len(later) == 4


@pytest.mark.parametrize(
    ("words", "there", "fails", "code"),
    [
        (["base"], {"3.11", "3.12", "3.13"}, set(), 0),
        (["base"], {"3.12"}, set(), 0),
        (["base"], set(), set(), 1),
        (["base", "--python", "3.12", "3.99"], {"3.12"}, set(), 1),
        (["base", "--python", "3.99", "3.12"], {"3.12"}, set(), 1),
        (["base", "--python", "3.12"], {"3.12"}, set(), 0),
        (["base"], {"3.11", "3.12", "3.13"}, {"3.12"}, 1),
        (["train"], set(), set(), 1),
        (["train", "--python", "3.99"], {"3.11"}, set(), 1),
    ],
)
def test_what_was_named_and_not_tried_is_no_success(monkeypatch, capsys, words, there, fails, code):
    """Of the Pythons that nobody named those that are there are enough; none at all, or a named one less, is 1."""
    names, tried = SCRIPT["main"].__globals__, []

    def attempt(python: Path, wheel: Path, place: Path, *_: object, **__: object) -> dict[str, str]:
        tried.append(python.name)
        if python.name in fails:
            raise SCRIPT["TrialError"]("no")
        return {"numpy": "2"}

    for name in ("try_base", "try_train"):
        monkeypatch.setitem(names, name, attempt)
    monkeypatch.setitem(names, "build", lambda folder: (folder, folder))
    monkeypatch.setitem(names, "python_of", lambda version: Path(version) if version in there else None)
    monkeypatch.setattr(sys, "argv", ["try_install.py", *words])
    assert SCRIPT["main"]() == code
    wanted = words[2:] or (SCRIPT["PYTHONS"] if words[0] == "base" else SCRIPT["PYTHONS"][:1])
    assert tried == [version for version in wanted if version in there]
    told = capsys.readouterr().out
    assert all(f"Python {version}: not found; not tried" in told for version in wanted if version not in there)
    assert ("nothing was tried" in told) == (not tried)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The sdist and the wheel that is made of it; skipped where the tools to build them cannot be had."""
    try:
        return SCRIPT["build"](tmp_path_factory.mktemp("built") / "build")
    except SCRIPT["TrialError"] as error:
        if re.search(r"No matching distribution|Could not find a version|connection|Temporary failure", str(error)):
            pytest.skip(f"the tools that build a wheel cannot be had here: {str(error)[-200:]}")
        raise


@pytest.mark.slow
def test_the_sdist_holds_what_it_says(built):
    """The package, licence, changes, citation and what builds it: no study, no data, no path of the machine."""
    sdist, wheel = built
    with tarfile.open(sdist) as file:
        held = {member.name.split("/", 1)[1]: file.extractfile(member).read() for member in file if member.isfile()}
    outside = {name for name in held if not name.startswith("humanline/")}
    docs = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"}
    assert outside == docs | {"pyproject.toml", "PKG-INFO", ".gitignore"}
    listed = subprocess.run(["git", "ls-files", "humanline"], capture_output=True, text=True, cwd=ROOT).stdout.split()
    untracked = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "humanline"], capture_output=True, text=True, cwd=ROOT
    ).stdout.split()
    assert {name for name in held if name.startswith("humanline/")} == {*listed, *untracked}
    assert {"humanline/py.typed", "humanline/recipes/schema.json", "humanline/recipes/tiny.yaml"} <= held.keys()
    machine = re.compile(rb"/(?:home|Users|root|work)/[a-z]|" + re.escape(str(ROOT).encode()))
    assert [name for name, content in held.items() if machine.search(content)] == []
    assert sum(map(len, held.values())) < 6e6
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if not name.startswith("humanline-")}
        (meta,) = (file.read(name).decode() for name in file.namelist() if name.endswith("/METADATA"))
        assert any(name.endswith("licenses/LICENSE") for name in file.namelist())
    assert inside == {name for name in held if name.startswith("humanline/")}
    assert "Project-URL: Paper, https://arxiv.org/abs/2509.24207" in meta and "Author: humanline" in meta
    assert "](docs/" not in meta and "](studies/" not in meta


@pytest.mark.slow
@pytest.mark.parametrize("version", SCRIPT["PYTHONS"])
def test_the_base_package_works_outside_of_the_repository(built, tmp_path, version):
    """Installed with nothing pinned it runs what needs no extra, and makes the figures of the theory."""
    python = SCRIPT["python_of"](version)
    if python is None:
        pytest.skip(f"there is no Python {version} with venv on the PATH or in ~/.pyenv")
    brought = SCRIPT["try_base"](python, built[1], tmp_path / "base", tests=False)
    assert {"humanline", "numpy", "scipy"} < brought.keys()
