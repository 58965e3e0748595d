"""Code of the user's own, named `module:function`: where it is looked for, and what it was when it was imported.

This is the one place that imports such code, for rewards (in worker processes) as for losses, transforms and reference
schedules (in the run's own). A module is looked for, in this order,

1. next to the recipe that names it,
2. in the folder from which the command was started,
3. where Python looks: PYTHONPATH, then what is installed.

Once it is imported, the first two are searched last, so that no file there takes the place of a library's.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any

from humanline.system.terminal import visible

CALL = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"  # what names a function: `module:function`
_LONGEST = 300  # characters of what an exception says
_PACKAGES = {"site-packages", "dist-packages"}
_LATER = {"bitsandbytes", "datasets", "math_verify", "matplotlib", "peft", "sympy", "torchao"}  # imported when needed
_LOADERS = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader)
# What runs are computed with: imported a second time it would be there twice, with classes that are not each other.
_COMPUTING = {
    *("accelerate", "array_api_compat", "cut_cross_entropy", "huggingface_hub", "liger_kernel", "numpy", "pydantic"),
    *("safetensors", "scipy", "tokenizers", "torch", "transformers", "triton", *_LATER),
}
_HOUSE = Path(__file__).resolve().parent.parent

_added: list[str] = []  # folders at the end of the path: of what was imported last, not of earlier recipes
_imported: dict[str, tuple[str, str]] = {}  # module -> file and digest of what was imported here under its name


class OwnCodeError(ValueError):
    """A function that cannot be had; the message goes on from its name."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function of the user's own.

    Parameters
    ----------
    function : callable
    sources : dict of str to str
        SHA-256 of every file that it is made of, by its module's name: the file of its module and those that it
        imports, directly or not and anywhere in the file, unless they are installed. What a compiled one imports is not
        known. Empty where there is no such file, as of what is defined in a notebook.
    """

    function: Callable[..., Any]
    sources: dict[str, str]

    @property
    def digest(self) -> str:
        """Return one digest of all files (`one_digest`)."""
        return one_digest(self.sources)


def one_digest(sources: Mapping[str, str]) -> str:
    """Return one digest of the files of a function: of one file its SHA-256; empty where there is none."""
    if len(sources) < 2:
        return next(iter(sources.values()), "")
    return hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()


def load_call(call: str, beside: str | None = None) -> Loaded:
    """Import a function of the user's own.

    Its files are imported anew unless just this text of them was imported here before: a process that trains twice, as
    a notebook may, computes with what the files say.

    Parameters
    ----------
    call : str
        `module:function` (`CALL`).
    beside : str, optional
        The recipe's folder.

    Raises
    ------
    OwnCodeError
        If the module cannot be imported, has no such name, or what it names cannot be called.
    """
    module, _, name = call.partition(":")
    folders = places(beside)
    with _searched(folders):
        try:
            sources = _noted(_own_files(module, folders), folders)
            if not sources and module in _imported:  # its file is gone
                del _imported[module]
                sys.modules.pop(module, None)
            found = getattr(importlib.import_module(module), name)
            _tied(sources)
        except BaseException as error:  # SystemExit among them: it is foreign code
            if isinstance(error, KeyboardInterrupt | OwnCodeError):
                raise
            raise OwnCodeError(f"cannot be imported: {_words(error)}{_looked(error, module, beside)}") from None
    if not callable(found):
        raise OwnCodeError(f"is no callable, but {type(found).__name__}")
    return Loaded(found, sources)


def digests_of(call: str, beside: str | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file that a function of the user's own is made of, by module; nothing is imported.

    What cannot be found has none: importing it says so.
    """
    before, added, folders = list(sys.path), list(_added), places(beside)
    try:
        with _searched(folders):
            files = _own_files(call.partition(":")[0], folders)
            return {name: _digest(path) for name, path in files.items()}
    except (OwnCodeError, OSError):
        return {}
    finally:
        sys.path[:], _added[:] = before, added


def places(beside: str | None = None) -> list[str]:
    """Return the folders that are searched before Python's own: the recipe's, if given, and the current one."""
    return list(dict.fromkeys([*([] if beside is None else [os.path.abspath(beside)]), os.getcwd()]))


@contextlib.contextmanager
def _searched(folders: Sequence[str]) -> Iterator[None]:
    """Search folders first, and once it is over last."""
    before, writes = [one for one in sys.path if one not in _added], sys.dont_write_bytecode
    sys.path[:] = [*folders, *before]
    sys.dont_write_bytecode = True  # what is kept for a file is not told from its next text within the same second
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        more = [one for one in sys.path if one not in before and one not in folders]  # by the code itself
        _added[:] = [one for one in folders if one not in before]
        sys.path[:] = [*before, *more, *_added]


def _own_files(module: str, folders: Sequence[str]) -> dict[str, Path]:
    """Return the files of the user's own that a module is made of, by module; nothing is imported to find them."""
    found: dict[str, Path] = {}
    waiting = [] if module == "__main__" else [module]  # the program itself is imported already
    while waiting:
        name = waiting.pop()
        if name in found or (spec := _spec(name)) is None or not isinstance(spec.loader, _LOADERS):
            continue
        path = Path(spec.origin or "").resolve()
        if name != module and _is_library(name, path, folders):
            continue
        _refuse_library(name, path)
        found[name] = path
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
        waiting += [*parents, *_imports(path, package)]
    return dict(sorted(found.items()))


def _is_library(name: str, path: Path, folders: Sequence[str]) -> bool:
    """Return whether a file is of an installed package, or of one to be edited that runs are computed with.

    That is what everybody else gets under the name, with no look into the folders that are searched first; or what is
    in one of these, if it is there that the package is installed.
    """
    if is_installed(path):
        return True
    top = name.partition(".")[0]
    if top not in _COMPUTING:
        return False
    others = [one for one in sys.path if os.path.abspath(one) not in folders]
    here, there = _origin(top, None), _origin(top, others)
    return here is not None and (here == there or (there is None and _is_distributed(top)))


def _origin(name: str, path: Sequence[str] | None) -> Path | None:
    spec = _found(name, path)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve()


def _is_distributed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, distribution  # takes long to import

    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _refuse_library(name: str, path: Path) -> None:
    """Raise OwnCodeError if a file of the user's own has the name of a library, in whose place others would get it.

    A library that a finder of its own finds, and no folder, is itself what others get: it is installed to be edited.
    """
    top = name.partition(".")[0]
    others = top in sys.stdlib_module_names or top in _LATER
    there = getattr(sys.modules.get(top), "__file__", None)
    loaded = there is not None and is_installed(Path(there).resolve())
    if not is_installed(path) and (others or loaded) and PathFinder.find_spec(top) is not None:
        raise OwnCodeError(
            f"cannot be imported: {path} has the name of a library, and would take its place everywhere; rename it"
        )


def _imports(path: Path, package: str) -> Iterator[str]:
    """Yield the names of modules that a file may import; some are names of what is in one."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):  # importing it says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # beyond the top: importing it says so
                continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _spec(name: str) -> ModuleSpec | None:
    """Return where a module would be imported from, without importing its packages."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = _found(".".join(parts[:end]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and end < len(parts):
            return None
    return spec


def _found(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask all who find modules, the folders first: what is installed to be edited may have a finder of its own."""
    for finder in (PathFinder, *sys.meta_path):
        find: Any = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path)
        if spec is not None:
            return spec
    return None


def is_installed(path: Path) -> bool:
    """Return whether a file is of Python, of an installed package or of humanline."""
    there = {Path(one).resolve() for name, one in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
    return any(path.is_relative_to(one) for one in {*there, _HOUSE}) or not _PACKAGES.isdisjoint(path.parts)


def _noted(files: Mapping[str, Path], folders: Sequence[str]) -> dict[str, str]:
    """Return digests of files; forget modules that were imported of another text, or unknown, or import such ones."""
    digests = {name: _digest(path) for name, path in files.items()}
    now = {name: (str(path), digests[name]) for name, path in files.items()}
    compiled = {name for name, path in files.items() if path.name.endswith(tuple(EXTENSION_SUFFIXES))}
    for name in sorted(compiled & sys.modules.keys()):
        known = name in _imported
        if (_imported[name] != now[name]) if known else _is_replaced(files[name]):
            raise OwnCodeError(
                f"cannot be imported anew: {files[name]} is compiled and {'has changed' if known else 'was made anew'} "
                "since this process imported it, which Python does once; start again"
            )
    stale = {name for name, one in now.items() if name in sys.modules and _imported.get(name) != one} - compiled
    for name, path in files.items():
        if (
            stale
            and not _is_library(name, path, folders)
            and name not in compiled
            and not stale.isdisjoint(_own_files(name, folders))
        ):
            sys.modules.pop(name, None)
    _imported.update(now)
    return digests


def _is_replaced(path: Path) -> bool:
    """Return whether a file that this process has loaded is gone, and another in its place; known on Linux alone."""
    try:
        maps = Path("/proc/self/maps").read_bytes().splitlines()
    except OSError:
        return False
    name = b" " + os.fsencode(path)
    return any(line.endswith(name + b" (deleted)") for line in maps) and not any(line.endswith(name) for line in maps)


def _tied(names: Iterable[str]) -> None:
    """Have packages that were imported anew know their compiled modules, which were not: only an import tells them."""
    for name in names:
        package, _, own = name.rpartition(".")
        if {name, package} <= sys.modules.keys() and not hasattr(sys.modules[package], own):
            setattr(sys.modules[package], own, sys.modules[name])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _words(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:
        words = ""
    kind = type(error).__name__
    line = visible(" ".join(f"{kind}: {words}".split())) if words else kind
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _looked(error: BaseException, module: str, beside: str | None) -> str:
    """Return where a module was looked for that is not there."""
    if not isinstance(error, ModuleNotFoundError) or error.name != module.partition(".")[0]:
        return ""
    return f"; looked for in {', '.join(places(beside))}, PYTHONPATH and what is installed"
