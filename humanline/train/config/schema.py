"""The JSON schema of a recipe, for editors; `humanline/recipes/schema.json` is its committed copy.

An editor that knows it completes keys, shows what they mean and marks unknown ones. First line of a recipe, for those
that speak the YAML language server:

    # yaml-language-server: $schema=path/to/humanline/recipes/schema.json

It says less than `humanline validate --no-data`, which also holds sections against each other.
"""

from __future__ import annotations

import json
from typing import Any

from humanline.train.config.run import TrainConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """Return the schema of `TrainConfig`, draft 2020-12."""
    schema = TrainConfig.model_json_schema()
    sections: dict[str, dict[str, Any]] = schema["$defs"]
    for section in sections.values():
        kind = section.get("properties", {}).get("kind")
        if kind is not None:  # the tag of a union: pydantic demands it, though it has a default in Python
            del kind["default"]
            section["required"] = ["kind", *section.get("required", [])]
    schema["oneOf"] = _lengths()
    named = {"title": "humanline recipe", "description": "One training run."}
    return {"$schema": DIALECT, **_without_discriminators(schema), **named}


def _lengths() -> list[dict[str, Any]]:
    """Return the ways to say how long a run is: exactly one of training.steps, training.epochs and source.count."""
    null = {"type": "null"}

    def one(name: str, kind: str, other: str) -> dict[str, Any]:
        training = {"required": [name], "properties": {name: {"type": kind}, other: null}}
        return {"properties": {"training": training, "source": {"properties": {"count": null}}}}

    counted = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}
    return [
        one("steps", "integer", "epochs"),
        one("epochs", "number", "steps"),
        {
            "required": ["source"],
            "properties": {"training": {"properties": {"steps": null, "epochs": null}}, "source": counted},
        },
    ]


def schema_text() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(recipe_schema(), indent=2, ensure_ascii=False) + "\n"


def _without_discriminators(node: Any) -> Any:
    """Leave out OpenAPI's `discriminator`, which JSON schema does not know; `oneOf` with a constant `kind` says it."""
    if isinstance(node, list):
        return [_without_discriminators(item) for item in node]
    if isinstance(node, dict):
        return {key: _without_discriminators(value) for key, value in node.items() if key != "discriminator"}
    return node
