"""The shipped recipes, one YAML file per run of the paper, the presets, and the shapes of the models they name.

Importing this loads nothing but the standard library; README.md in this folder says which recipe is which run.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PRESETS = ("paper", "halos")
_SCHEMA = "$schema=schema.json"


class RecipeError(ValueError):
    """A recipe or preset that does not exist, or a copy that cannot be made; the message says what to do."""


def names() -> list[str]:
    """Return the names of all shipped recipes, sorted."""
    return sorted(path.name.removesuffix(".yaml") for path in FOLDER.glob("*.yaml"))


def path(name: str) -> Path:
    """Return the file of a shipped recipe.

    Raises
    ------
    RecipeError
        If there is no recipe of that name, or it is a path and not a name.
    """
    if re.search(r"[/\\\0]", name) or ".." in name:
        raise RecipeError(f"{name!r} is not the name of a recipe, but a path; humanline ls lists the names")
    if name not in names():
        raise RecipeError(f"no recipe is called {name!r}; {_nearest(name)}")
    return FOLDER / f"{name}.yaml"


def shape(model: str) -> Path | None:
    """Return the file with the architecture of a model on the hub, organisation/name; None if none ships."""
    return next((one for one in FOLDER.glob("shapes/*.json") if one.stem == model.replace("/", "--", 1)), None)


def schema_text() -> str:
    """Return the JSON schema of a recipe as it ships; `humanline.train.config.schema` makes it."""
    return (FOLDER / "schema.json").read_text(encoding="utf-8")


def describe(name: str) -> str:
    """Return a recipe's title: its first comment line, the one for editors left out.

    Raises
    ------
    RecipeError
        If there is no recipe of that name.
    """
    for line in path(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and _SCHEMA not in line:
            return line.removeprefix("# ").rstrip()
    return ""


def copy(name: str, destination: str | Path = ".") -> Path:
    """Copy a recipe to where it can be edited, and return the copy.

    The line that tells editors where the schema is then names the installed one.

    Parameters
    ----------
    name : str
    destination : path
        A file to create, or a folder, in which the copy keeps its name. Nothing is ever overwritten.

    Raises
    ------
    RecipeError
        If there is no recipe of that name, the destination exists, or its folder does not.
    """
    source, target = path(name), Path(destination)
    if target.is_dir():
        target /= source.name
    text = source.read_text(encoding="utf-8").replace(_SCHEMA, f"$schema={(FOLDER / 'schema.json').as_uri()}", 1)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RecipeError(f"{target} already exists, and is left as it is; give another destination") from None
    except FileNotFoundError:
        raise RecipeError(f"{target}: the folder {target.parent} does not exist; make it first") from None
    return target


def resolve(recipe: str | Path) -> Path:
    """Return the recipe file that a command line names: a file of the user's, or else a shipped recipe.

    Raises
    ------
    RecipeError
        If it is neither.
    """
    given = Path(recipe)
    if given.is_file():
        return given
    if given.is_dir():
        raise RecipeError(f"{recipe} is a folder; expected a recipe, such as {given / 'recipe.yaml'}")
    if str(recipe) in names():
        return path(str(recipe))
    name = given.name.removesuffix(".yaml")
    raise RecipeError(f"{recipe}: there is no such file, and no shipped recipe of that name; {_nearest(name)}")


def preset_overrides(preset: str, recipe: str | Path, overrides: Sequence[str] = ()) -> list[str]:
    """Return a preset's changes of a recipe, as overrides to be put before the user's own.

    A preset is a list of entries `{when, set, why}`; an entry applies when the kinds that it names (of objective,
    transform, schedule and source) are the recipe's.

    Parameters
    ----------
    preset : "paper" or "halos"
    recipe : path
        A file that cannot be read has no kinds, so that only entries without conditions apply; `load_config` says what
        is wrong with it.
    overrides : sequence of "section.key=value"
        The user's, which may change a kind.

    Returns
    -------
    list of "section.key=value"

    Raises
    ------
    RecipeError
        If there is no such preset.
    """
    if preset not in PRESETS:
        raise RecipeError(f"no preset is called {preset!r}; there are {' and '.join(PRESETS)}")
    from ruamel.yaml import YAML

    kinds = _kinds(Path(recipe), overrides)
    entries = YAML(typ="safe").load((FOLDER / "presets" / f"{preset}.yaml").read_text(encoding="utf-8"))
    return [
        f"{key}={json.dumps(value)}"
        for entry in entries
        if all(kinds.get(section) == kind for section, kind in entry["when"].items())
        for key, value in entry["set"].items()
    ]


def _kinds(recipe: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the kinds of objective, transform, schedule and source of a recipe with overrides."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe")
    try:
        tree = yaml.load(recipe.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError):
        return {}
    if not isinstance(tree, dict):
        return {}
    for override in overrides:
        dotted, _, text = override.partition("=")
        *sections, last = dotted.strip().split(".")
        try:
            value = yaml.load(text)
        except YAMLError:
            continue  # load_config says so
        place = tree
        for section in sections:
            # A copy: what has an anchor stands in other places too.
            place[section] = dict(place[section]) if isinstance(place.get(section), dict) else {}
            place = place[section]
        place[last] = value

    def kind(default: str, *keys: str) -> Any:
        node: Any = tree
        for key in (*keys, "kind"):
            node = node.get(key) if isinstance(node, dict) else None
        return default if node is None else node

    return {
        "objective": kind("", "objective"),
        "transform": kind("none", "transform"),
        "schedule": kind("never", "reference", "schedule"),
        "source": kind("fixed", "source"),
    }


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, names(), n=1)
    return (f"did you mean {near[0]}? " if near else "") + "humanline ls lists the shipped recipes"
