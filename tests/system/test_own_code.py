"""Where functions of the user's own are looked for, and what is known of their files."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import humanline
from humanline.system import own_code
from humanline.system.own_code import OwnCodeError, digests_of, load_call


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in a folder of its own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    modules, path = dict(sys.modules), list(sys.path)
    yield tmp_path
    sys.modules.clear()
    sys.modules.update(modules)
    sys.path[:] = path


def test_the_recipes_folder_comes_first_then_the_current_one_then_pythons(here, monkeypatch):
    """A module is taken from the first of these places that has it; libraries are not shadowed afterwards."""
    names = ("recipe", "", "python")
    for name, modules in zip(names, (["one"], ["one", "two"], ["one", "two", "three"]), strict=True):
        (here / name).mkdir(exist_ok=True)
        for module in modules:
            (here / name / f"own_{module}.py").write_text(f"def f(): return {name!r}\n")
    (here / "queue.py").write_text("raise RuntimeError('a library was shadowed')\n")
    monkeypatch.syspath_prepend(str(here / "python"))
    found = [load_call(f"own_{one}:f", str(here / "recipe")).function() for one in ("one", "two", "three")]
    assert found == list(names)
    assert sys.path[0] == str(here / "python") and sys.path[-2:] == [str(here / "recipe"), str(here)]
    load_call("own_three:f")  # of no recipe: an earlier one's folder is searched no more
    assert sys.path[-1] == str(here) and str(here / "recipe") not in sys.path
    monkeypatch.delitem(sys.modules, "queue", raising=False)
    import queue

    assert hasattr(queue, "Queue")


def test_a_file_that_has_changed_is_imported_anew(here):
    """A process that trains twice computes with what the files say now, also those that the module imports."""
    (here / "own_a.py").write_text("from own_b import value\ndef f(): return value\n")
    (here / "own_b.py").write_text("value = 1\n")
    first = load_call("own_a:f")
    assert load_call("own_a:f").function is first.function  # nothing has changed
    (here / "own_b.py").write_text("value = 2\n")
    second = load_call("own_a:f")
    assert (first.function(), second.function()) == (1, 2)
    assert first.sources["own_a"] == second.sources["own_a"] and first.sources["own_b"] != second.sources["own_b"]


def test_sources_are_the_files_of_ones_own_wherever_they_are_imported(here):
    """Imports of imports, relative ones and those within functions count; installed packages do not."""
    (here / "own_pkg").mkdir()
    files = {
        "own_pkg/__init__.py": "",
        "own_pkg/loss.py": "import json, pytest\nfrom . import parts\nfrom .deep import g\ndef f(): return g()\n",
        "own_pkg/parts.py": "",
        "own_pkg/deep.py": "def g():\n    import own_late\n    return own_late.x\n",
        "own_late.py": "x = 3\n",
        "own_other.py": "raise RuntimeError\n",
    }
    for name, text in files.items():
        (here / name).write_text(text)
    found = load_call("own_pkg.loss:f")
    assert found.sources == {
        module: hashlib.sha256(files[name].encode()).hexdigest()
        for module, name in {
            "own_late": "own_late.py",
            "own_pkg": "own_pkg/__init__.py",
            "own_pkg.deep": "own_pkg/deep.py",
            "own_pkg.loss": "own_pkg/loss.py",
            "own_pkg.parts": "own_pkg/parts.py",
        }.items()
    }
    assert found.function() == 3 and len(found.digest) == 64


def test_files_of_a_package_that_is_installed_to_be_edited_count(here, monkeypatch):
    """`pip install -e` of a folder with its package at the top leaves a finder, and no entry of the path."""
    package = here / "project" / "own_edited"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "rewards.py").write_text("from own_edited.more import value\ndef f(): return value\n")
    (package / "more.py").write_text("value = 1\n")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            parent, _, rest = name.partition(".")
            place = package / (f"{rest}.py" if rest else "__init__.py")
            if parent == "own_edited" and place.is_file():
                return importlib.util.spec_from_file_location(name, place)
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    found = digests_of("own_edited.rewards:f")
    assert found.keys() == {"own_edited", "own_edited.rewards", "own_edited.more"}
    assert load_call("own_edited.rewards:f").sources == found
    (package / "more.py").write_text("value = 2\n")
    assert digests_of("own_edited.rewards:f") != found and load_call("own_edited.rewards:f").function() == 2


def test_a_library_that_is_installed_to_be_edited_takes_nobodys_place(here, monkeypatch):
    """Its finder is asked behind the folders, so that it is what all get; a file of its name is refused still."""
    place = here / "project" / "bitsandbytes" / "__init__.py"
    place.parent.mkdir(parents=True)
    place.write_text("value = 3\n")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.util.spec_from_file_location(name, place) if name == "bitsandbytes" else None

    (here / "own_user.py").write_text("import bitsandbytes\ndef f(): return bitsandbytes.value\n")
    monkeypatch.setattr(sys, "path", [one for one in sys.path if "site-packages" not in one])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    monkeypatch.delitem(sys.modules, "bitsandbytes", raising=False)
    found = load_call("own_user:f")
    assert found.function() == 3 and found.sources.keys() == {"own_user"}
    (here / "bitsandbytes.py").write_text("value = 4\n")
    with pytest.raises(OwnCodeError, match="has the name of a library"):
        load_call("own_user:f")


EXTENSION = """
#include <Python.h>
static PyObject *f(PyObject *self, PyObject *none) { return PyLong_FromLong(NUMBER); }
static PyMethodDef methods[] = {{"f", f, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", "", -1, methods};
PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&module); }
"""


@pytest.fixture
def compile_to():
    """Return a function that makes a compiled module, whose function returns a number, in a folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    headers = sysconfig.get_paths()["include"]
    if compiler is None or not (Path(headers) / "Python.h").is_file():
        pytest.skip("no C compiler, or no headers of Python")

    def compiled(folder: Path, number: int) -> None:
        target = folder / f"compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
        target.unlink(missing_ok=True)  # what is mapped is not written into
        source = folder / "compiled.c"
        source.write_text(EXTENSION.replace("NUMBER", str(number)))
        subprocess.run([compiler, "-shared", "-fPIC", f"-I{headers}", source, "-o", target], check=True)

    return compiled


def test_compiled_files_count(here, compile_to):
    """A changed one cannot be imported anew within a process, and is refused; a new process computes with it."""
    (here / "mine.py").write_text("import compiled\ndef f(): return compiled.f()\n")
    compile_to(here, 1)
    first = load_call("mine:f")
    assert first.function() == 1 and load_call("compiled:f").function() == 1
    assert first.sources == digests_of("mine:f") and set(first.sources) == {"compiled", "mine"}
    (here / "mine.py").write_text("import compiled\ndef f(): return 10 * compiled.f()\n")
    assert load_call("mine:f").function() == 10  # what is not compiled is imported anew
    compile_to(here, 1)
    assert load_call("mine:f").function() == 10  # another file of the same bytes
    compile_to(here, 2)
    assert digests_of("mine:f")["compiled"] != first.sources["compiled"]
    for call in ("mine:f", "compiled:f"):
        with pytest.raises(OwnCodeError, match=r"compiled\S* is compiled and has changed since .*; start again"):
            load_call(call)
    words = "from humanline.system.own_code import load_call; print(load_call('mine:f').function())"
    environment = os.environ | {"PYTHONPATH": str(Path(humanline.__file__).parents[1])}
    assert (
        subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True).stdout == "20\n"
    )


def test_a_compiled_file_that_a_notebook_has_imported_is_not_taken_for_a_later_one(here, compile_to, monkeypatch):
    """What was imported in another way counts as the file that is there, unless that was made since, as Linux tells."""
    (here / "own_package").mkdir()
    (here / "own_package" / "__init__.py").write_text("")
    compile_to(here / "own_package", 1)
    (here / "mine.py").write_text("import own_package.compiled\ndef f(): return own_package.compiled.f()\n")
    monkeypatch.syspath_prepend(str(here))
    importlib.import_module("own_package.compiled")
    for made_anew in (False, True):
        monkeypatch.setattr(own_code, "_imported", {})
        if not made_anew:
            assert load_call("mine:f").function() == 1
        elif Path("/proc/self/maps").exists():
            compile_to(here / "own_package", 2)
            with pytest.raises(OwnCodeError, match=r"compiled\S* is compiled and was made anew since .*; start again"):
                load_call("mine:f")


def test_a_package_imported_anew_has_its_compiled_modules(here, compile_to):
    """Python tells a package of a module that it imports, which a compiled one is not a second time."""
    (here / "own_package").mkdir()
    compile_to(here / "own_package", 3)
    (here / "mine.py").write_text(
        "import own_package.compiled\ndef f(): return own_package.K * own_package.compiled.f()\n"
    )
    for factor in (1, 2):
        (here / "own_package" / "__init__.py").write_text(f"K = {factor}\n")
        assert load_call("mine:f").function() == 3 * factor


def test_a_module_without_its_source_counts(here):
    """As Python reads it: a .pyc in the place of the .py."""
    (here / "bare.py").write_text("def f(): return 1\n")
    py_compile.compile("bare.py", cfile="bare.pyc", doraise=True)
    (here / "bare.py").unlink()
    loaded = load_call("bare:f")
    assert loaded.function() == 1
    assert loaded.sources == {"bare": hashlib.sha256((here / "bare.pyc").read_bytes()).hexdigest()}


@pytest.mark.parametrize("how", ["finder", "path", "link"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_library_that_runs_are_computed_with_is_not_imported_twice(here, monkeypatch, how, beside):
    """Installed to be edited, by a finder or an entry of the path, or from its own folder: its classes stay one."""
    project = here if beside else here / "project"
    place = project / "peft" / "__init__.py"
    place.parent.mkdir(parents=True)
    place.write_text("class A: pass\n")
    (place.parent / "more.py").write_text("import peft\nA = peft.A\n")
    (project / "peft.egg-info").mkdir()  # as any way to install leaves it
    (project / "peft.egg-info" / "PKG-INFO").write_text("Name: peft\nVersion: 1.0\n")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            where = {"submodule_search_locations": [str(place.parent)]}
            return importlib.util.spec_from_file_location(name, place, **where) if name == "peft" else None

    for name in [name for name in sys.modules if name.partition(".")[0] == "peft"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if "site-packages" not in one])
    if how == "finder":
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    else:
        (here / "link").symlink_to(project)
        monkeypatch.setattr(sys, "path", [*sys.path, str(here / "link" if how == "link" else project)])
    first = importlib.import_module("peft")
    (here / "own_peft.py").write_text("import peft.more\ndef f(): return peft.more.A\n")
    assert digests_of("own_peft:f").keys() == {"own_peft"}
    found = load_call("own_peft:f")
    assert found.function() is first.A and sys.modules["peft"] is first and found.sources.keys() == {"own_peft"}


def test_one_file_alone_has_its_own_digest(here):
    """What a cache of verdicts knows a function's file by is the file's SHA-256."""
    (here / "own_one.py").write_text("def f(): pass\n")
    assert load_call("own_one:f").digest == hashlib.sha256(b"def f(): pass\n").hexdigest()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("own_missing:f", r"^cannot be imported: ModuleNotFoundError: .*; looked for in .*/own_recipe, .*, PYTHONPATH"),
        ("own_bad:f", r"^cannot be imported: SyntaxError: .*\(own_bad.py, line 1\)$"),
        ("own_exits:f", r"^cannot be imported: SystemExit: 3$"),
        ("own_wants:f", r"^cannot be imported: ModuleNotFoundError: No module named 'own_library'$"),
        ("own_right:g", r"^cannot be imported: AttributeError: module 'own_right' has no attribute 'g'$"),
        ("own_right:x", r"^is no callable, but int$"),
    ],
)
def test_what_is_wrong_is_said(here, call, said):
    """A function that cannot be had ends in a sentence, whatever its module does, and where it was looked for."""
    files = {"bad": "def (", "exits": "import sys\nsys.exit(3)", "wants": "import own_library", "right": "x = 1"}
    for name, text in files.items():
        (here / f"own_{name}.py").write_text(text + "\n")
    with pytest.raises(OwnCodeError, match=said):
        load_call(call, str(here / "own_recipe"))
