"""Recipes, read: YAML and overrides become a configuration, or one message that names every problem."""

from __future__ import annotations

import copy
import difflib
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from humanline.train.config.base import BESIDE
from humanline.train.config.objective import REFERENCE_FREE
from humanline.train.config.rounds import EARLIER
from humanline.train.config.run import TrainConfig
from humanline.train.config.secrets import hidden, learn

S = TypeVar("S", bound=BaseModel)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message lists every problem with its place."""


def load_config(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> TrainConfig:
    """Read a YAML recipe, apply dotted overrides and validate both in one pass.

    Parameters
    ----------
    path : path
        A YAML 1.2 file; duplicate keys are refused and `5e-6` is a number.
    overrides : sequence of "section.key=value"
        Values are YAML; a mapping in braces replaces a whole section, which is how a `kind` is switched.

    Returns
    -------
    TrainConfig

    Raises
    ------
    ConfigError
        If the file is missing, is not YAML, or anything in it or in an override is unknown or out of range. All
        problems are listed at once, with file, line, and the nearest name for an unknown key.
    """
    return read_section(TrainConfig, path, overrides)


def read_section(kind: type[S], path: str | Path, overrides: Sequence[str] = ()) -> S:
    """Read a YAML file that holds the keys of a section, as `load_config` does, which says the rest."""
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    path = Path(path)
    try:
        text = _short_text(path)
        _refuse_deep(text)
        tree = YAML().load(text)
    except _TooLargeError:
        raise ConfigError(f"{path}: nested too deeply: more than {_DEEPEST} brackets within each other") from None
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not valid YAML: {str(error.problem).strip()}") from None
    except YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {str(error).strip()}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    except Exception as error:  # what Python says of a date, a number or a tag that only looks right
        raise ConfigError(f"{path}: not valid YAML: {error or type(error).__name__}") from None
    if not isinstance(tree, CommentedMap):
        first, second = list(kind.model_fields)[:2]
        raise ConfigError(f"{path}: must hold keys such as {first}: and {second}:; got {type(tree).__name__}")

    problems: list[str] = []
    given: set[tuple[str, ...]] = set()
    for override in overrides:
        dotted, equals, text = override.partition("=")
        keys = tuple(dotted.strip().split("."))
        if not equals or not all(keys):
            problems.append(f"command line: {hidden(override, sent=True)!r} must look like section.key=value")
            continue
        if not text.strip():
            problems.append(
                f"command line: {'.'.join(keys)}= is empty, as a variable that is not set is; give a value, or null"
            )
            continue
        try:
            _refuse_deep(text)
            value = YAML(typ="safe").load(text)
        except Exception:  # as above, and YAMLError
            shown = hidden(override, sent=True)[:200]
            problems.append(f"command line: the value of {shown!r} is not valid YAML")
            continue
        if keys[0] in EARLIER:
            problems.append(f"command line: {'.'.join(keys)}: {_now(keys, value)}")
            continue
        place: Any = tree
        for key in keys[:-1]:
            # A copy: a node that has an anchor stands in other places too, which the override does not name.
            place[key] = copy.deepcopy(place[key]) if isinstance(place.get(key), dict) else CommentedMap()
            place = place[key]
        place[keys[-1]] = value
        given.add(keys)
    try:
        learn(plain := _plain(tree))
        config = kind.model_validate(plain, context={BESIDE: str(path.parent.absolute())})
    except _TooLargeError:
        message = f"more than {_LARGEST} values, or deeper than {_DEEPEST}, once its anchors are written out"
        raise ConfigError(f"{path}: too large for a configuration: {message}") from None
    except _SameKeyError as error:
        raise ConfigError(f"{':'.join(filter(None, (str(path), error.place)))}: {error}") from None
    except ValidationError as error:
        # By place and key: a value that fits no type of a union gives one problem each.
        found: dict[str, list[str]] = {}
        for problem in error.errors():
            place, text = _describe(problem, tree, path, given, kind)
            found.setdefault(place, []).append(text)
        problems += [f"{place}: {' or '.join(texts)}" for place, texts in found.items()]
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise ConfigError("\n".join([f"{len(problems)} problem(s) in the configuration:", *problems[:_SHOWN], *more]))
    return config


def _now(keys: Sequence[str], given: Any) -> str:
    """Return the name of today for a key that began with such a section, or of each of the keys given below it."""
    if len(keys) == 1 and given is None:
        return "is now source.kind: fixed"
    below = [str(key) for key in given] if len(keys) == 1 and isinstance(given, dict) else []
    names = [".".join([EARLIER[keys[0]], *keys[1:], *one]) for one in ([[key] for key in below] or [[]])]
    return f"is now {', '.join(names)}" + (", with source.kind: rounds" if keys[0] == "rounds" else "")


_SHOWN = 20  # problems listed; the rest is counted
_LONGEST = 200_000  # bytes
_LARGEST, _DEEPEST = 10_000, 50  # anchors can make a few lines endless


class _TooLargeError(Exception):
    pass


class _SameKeyError(Exception):
    """Two keys of a mapping that are one name: `1` and `'1'`."""

    def __init__(self, node: Any, name: str) -> None:
        keys = [key for key in node if str(key) == name]
        found = [node.lc.key(key) for key in keys if hasattr(node, "lc") and key in (node.lc.data or {})]
        self.place = ":".join(str(one + 1) for one in found[-1]) if found else ""
        super().__init__(f"the key {name!r} is there twice, as {' and '.join(repr(_plain(key)) for key in keys)}")


def _short_text(path: Path) -> str:
    """Return the text of a recipe; raise ConfigError if it is far longer than any, which would take minutes to read."""
    with open(path, "rb") as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ConfigError(f"{path}: more than {_LONGEST:,} bytes, which is no recipe")
    return data.decode()


def _refuse_deep(text: str) -> None:
    """Raise _TooLargeError if brackets lie too deep within each other, on which the parser would take minutes."""
    from ruamel.yaml import YAML
    from ruamel.yaml.events import MappingEndEvent, MappingStartEvent, SequenceEndEvent, SequenceStartEvent

    if text.count("[") + text.count("{") <= _DEEPEST:
        return
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        depth += isinstance(event, MappingStartEvent | SequenceStartEvent)
        depth -= isinstance(event, MappingEndEvent | SequenceEndEvent)
        if depth > _DEEPEST:
            raise _TooLargeError


def _plain(node: Any, depth: int = 0, count: list[int] | None = None) -> Any:
    """Return a YAML tree as plain dicts, lists and scalars."""
    count = [0] if count is None else count
    count[0] += 1
    if count[0] > _LARGEST or depth > _DEEPEST:
        raise _TooLargeError
    if isinstance(node, dict):
        names = [str(key) for key in node]
        if len(set(names)) < len(names):
            raise _SameKeyError(node, Counter(names).most_common(1)[0][0])
        return {str(key): _plain(value, depth + 1, count) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value, depth + 1, count) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _describe(
    problem: Any, tree: Any, path: Path, given: set[tuple[str, ...]], model: type[BaseModel]
) -> tuple[str, str]:
    """Return place and key, and what is wrong with the nearest name."""
    keys: list[str] = []
    node = tree
    place, entered = str(path), False
    for part in problem["loc"]:
        if entered and isinstance(node, dict) and part == node.get("kind") and part in _kinds(model, keys):
            entered = False
            continue  # pydantic puts the tag of a union into the location
        if keys and not isinstance(node, dict):
            break  # and the names of the types it tried for a plain value
        keys.append(str(part))
        if isinstance(node, dict) and part in node:
            if hasattr(node, "lc") and part in (node.lc.data or {}):
                line, column = node.lc.key(part)
                place = f"{path}:{line + 1}:{column + 1}"
            node, entered = node[part], True
    if any(tuple(keys[: len(one)]) == one or (keys and one[: len(keys)] == tuple(keys)) for one in given):
        place = "command line"
    name, text = ".".join(keys), problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        known = _names(model, keys[:-1], tree)
        near = difflib.get_close_matches(keys[-1], known, n=1)
        text = "unknown key" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}")
        text = _now(keys, problem["input"]) if keys[0] in EARLIER else text
    elif problem["type"] == "missing":
        text = "is missing"
    elif problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        name += ".kind"
        expected = ", ".join(_kinds(model, keys))
        tag = str(problem["ctx"].get("tag", ""))
        text = f"must be one of {expected}; got {tag or 'nothing'}"
        if name != "objective.kind" or tag.lower() not in REFERENCE_FREE:
            near = difflib.get_close_matches(tag, expected.split(", "), n=1)
            text += f"; did you mean {near[0]}?" if near else ""
        else:
            text += "; a loss without a reference model has no humanline variant: nothing to sync, no ratio to clip"
    elif problem["type"] in ("model_attributes_type", "model_type", "dict_type"):
        text = f"must be a section such as {{key: value}}; got {_given(problem)}"
    elif not problem["type"].startswith("value_error"):
        text = f"{text[0].lower()}{text[1:]}; got {_given(problem)}"
    return f"{place}: {name}" if name else place, text


def _given(problem: Any) -> str:
    """Return the value that was given where another belongs, its secrets hidden."""
    value, name = problem["input"], str(problem["loc"][-1]) if problem["loc"] else ""
    sent = "new_weights" in problem["loc"] or not isinstance(value, str | int | float)
    return repr(hidden({name: value}, sent=sent)[name])[:200]


def _kinds(model: type[BaseModel], keys: list[str]) -> list[str]:
    """Return the values of `kind` among which the section that `keys` lead to is chosen."""
    for key, inner in itertools.pairwise(keys):
        model = next(c for c in _choices(model.model_fields[key].annotation) if inner in c.model_fields)
    sections = _choices(model.model_fields[keys[-1]].annotation)
    return [section.model_fields["kind"].default for section in sections if "kind" in section.model_fields]


def _names(model: type[BaseModel], keys: list[str], tree: Any) -> list[str]:
    """Return the field names of the section that `keys` lead to."""
    for key in keys:
        field = model.model_fields.get(key)
        tree = tree.get(key) if isinstance(tree, dict) else None
        if field is None:
            return []
        choices = _choices(field.annotation)
        kind = tree.get("kind") if isinstance(tree, dict) else None
        tagged = [c for c in choices if "kind" in c.model_fields and c.model_fields["kind"].default == kind]
        if not choices:
            return []
        model = (tagged or choices)[0]
    return list(model.model_fields)


def _choices(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections of an annotation: itself, or the members of a union or of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for one in getattr(annotation, "__args__", ()) for kind in _choices(one)]
