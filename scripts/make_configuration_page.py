"""Write docs/configuration.md from the schema that ships with the recipes (humanline/recipes/schema.json).

    python scripts/make_configuration_page.py

A test holds the committed page to what this writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
SCHEMA = ROOT / "humanline" / "recipes" / "schema.json"
HEAD = """# Configuration

<!-- made by scripts/make_configuration_page.py from humanline/recipes/schema.json: change the texts in the code -->

A recipe is a YAML file of these sections. On the command line `section.key=value` replaces a value. `model`, `output`,
`objective`, `data`, `training` and `optimizer` have to be there; all else has a default. An unknown key is an error.
`humanline schema` prints the schema from which this page is made, for an editor.

Where a key takes one of several kinds, `kind` says which, and the kinds follow below it.

"""
REF = "#/$defs/"
# Limits that keep slips of the pen out say nothing to a reader.
UNTOLD = 10**5


def cell(text: str) -> str:
    """Return a text as a cell of a table: one line, and nothing that ends the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def written(value: Any) -> str:
    """Return a value as YAML writes it."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e-3 or value != int(value) else str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def kinds(field: dict[str, Any]) -> list[str]:
    """Return the definitions that a field may be one of."""
    options = field.get("oneOf") or field.get("anyOf") or [field]
    if "items" in field:
        return kinds(field["items"])
    return [name for option in options for name in (_named(option))]


def _named(option: dict[str, Any]) -> list[str]:
    if "$ref" in option:
        return [option["$ref"].removeprefix(REF)]
    return kinds(option) if {"oneOf", "anyOf", "items"} & option.keys() else []


def type_of(field: dict[str, Any]) -> str:
    """Return what a field takes, in words."""
    if "enum" in field:
        return ", ".join(f"`{one}`" for one in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "oneOf" in field or "$ref" in field:
        return "below"
    if "anyOf" in field:
        found = [type_of(one) for one in field["anyOf"]]
        return " or ".join(dict.fromkeys(found))
    kind = field.get("type", "anything")
    if kind == "array":
        return f"list of {type_of(field['items'])}" if "items" in field else "list"
    names = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false", "null": "null"}
    return names.get(kind, "mapping") + bounds(field)


def bounds(field: dict[str, Any]) -> str:
    """Return the limits of a number, those alone that a reader may meet."""
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    told = [f"{sign} {field[name]:g}" for name, sign in signs.items() if name in field and abs(field[name]) < UNTOLD]
    return f" {', '.join(told)}" if told else ""


def section(place: str, definition: dict[str, Any], level: int) -> Iterator[str]:
    """Yield the lines of a section: its text, its keys, and what these may be."""
    if text := definition.get("description", ""):
        yield from (line.strip() for line in (*text.splitlines(), ""))
    fields = {name: one for name, one in definition["properties"].items() if name != "kind"}
    if fields:
        yield from ("| key | takes | default | |", "|---|---|---|---|")
        for name, field in fields.items():
            needed = name in definition.get("required", [])
            default = "**needed**" if needed else f"`{written(field.get('default'))}`"
            default = "below" if len(default) > 60 else default
            yield f"| `{name}` | {cell(type_of(field))} | {cell(default)} | {cell(field.get('description', ''))} |"
        yield ""
    for name, field in fields.items():
        yield from inner(f"{place}.{name}", field, level + 1)


def inner(place: str, field: dict[str, Any], level: int) -> Iterator[str]:
    """Yield the lines of what a field may be, where that is one section or one of several."""
    found = kinds(field)
    for name in found:
        definition = DEFINITIONS[name]
        kind = definition["properties"].get("kind", {}).get("const")
        title = f"`{place}`" + (f": `{kind}`" if kind and len(found) > 1 else "")
        if name in DONE:
            yield from (f"{'#' * min(level, 6)} {title}", "", f"As in [`{DONE[name]}`](#{anchor(DONE[name])}).", "")
            continue
        DONE[name] = title.replace("`", "")
        yield from (f"{'#' * min(level, 6)} {title}", "")
        yield from section(place, definition, level)


def anchor(title: str) -> str:
    """Return the anchor of a heading."""
    kept = "".join(one for one in title.lower() if one.isalnum() or one in " _-")
    return kept.replace(" ", "-")


DEFINITIONS: dict[str, Any] = {}
DONE: dict[str, str] = {}


def page() -> str:
    """Return the page."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    DEFINITIONS.clear()
    DEFINITIONS.update(schema["$defs"])
    DONE.clear()
    lines = ["| key | takes | default | |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        needed = name in schema["required"]
        default = "**needed**" if needed else f"`{written(field.get('default'))}`"
        default = "below" if len(default) > 60 else default
        what = f"[below](#{anchor(name)})" if kinds(field) else cell(type_of(field))
        lines.append(f"| `{name}` | {what} | {cell(default)} | {cell(field.get('description', ''))} |")
    lines.append("")
    for name, field in schema["properties"].items():
        found = kinds(field)
        if not found:
            continue
        lines += [f"## `{name}`", ""]
        if len(found) == 1:
            DONE[found[0]] = name
            lines += section(name, DEFINITIONS[found[0]], 2)
        else:
            lines += [field.get("description", ""), "", *inner(name, field, 3)]
    return HEAD + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
