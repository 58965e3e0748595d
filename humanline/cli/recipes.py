"""Commands that show and copy recipes, and make models without training."""

from __future__ import annotations

import argparse

from humanline.cli.common import Commands, quiet_libraries
from humanline.system.terminal import visible


def recipe_commands(commands: Commands) -> None:
    """Add what shows and copies recipes."""
    schema = commands.add_parser("schema", help="print the JSON schema of a recipe, for editors")
    schema.set_defaults(run=_schema)

    listing = commands.add_parser("ls", help="list the shipped recipes")
    listing.set_defaults(run=_ls)

    cp = commands.add_parser("cp", help="copy a shipped recipe, to be edited; nothing is overwritten")
    cp.add_argument("name", help="a name that ls lists")
    cp.add_argument("destination", nargs="?", default=".", help="file to create, or a folder (default: this one)")
    cp.set_defaults(run=_cp)


def model_commands(commands: Commands) -> None:
    """Add what makes models without training."""
    new = commands.add_parser("new-model", help="make a tiny Llama with a tokenizer trained on a text")
    new.add_argument("out", help="folder to create")
    new.add_argument("--text", required=True, help="a .txt or .jsonl file to train the tokenizer on")
    new.add_argument("--fields", nargs="+", help="the .jsonl fields to use; default: every string")
    new.add_argument("--vocab-size", type=int, default=2048)
    new.add_argument("--hidden-size", type=int, default=128)
    new.add_argument("--layers", type=int, default=2)
    new.add_argument("--heads", type=int, default=4)
    new.add_argument("--max-length", type=int, default=1024, help="positions the model is built for")
    new.add_argument("--seed", type=int, default=0)
    new.set_defaults(run=_new_model)

    merged = commands.add_parser("merge", help="make one whole model of an adapter and its base")
    merged.add_argument("adapter", help="folder of a finished run that trained an adapter")
    merged.add_argument("out", help="folder to create")
    merged.add_argument("--base", help="the base model, if it is not where the adapter's files say")
    merged.set_defaults(run=_merge)


def _schema(options: argparse.Namespace) -> int:
    from humanline.recipes import schema_text

    text = schema_text()
    if not text:  # emptied by the shell that is to write the new one there: humanline schema > recipes/schema.json
        from humanline.train.config import schema

        text = schema.schema_text()
    print(text, end="")
    return 0


def _ls(options: argparse.Namespace) -> int:
    from humanline import recipes

    width = max(map(len, recipes.names()))
    for name in recipes.names():
        print(f"{name:<{width}}  {recipes.describe(name)}")
    return 0


def _cp(options: argparse.Namespace) -> int:
    from humanline.recipes import copy

    print(visible(str(copy(options.name, options.destination))))
    return 0


def _new_model(options: argparse.Namespace) -> int:
    quiet_libraries()
    from humanline.train.policy.new_model import new_model

    path = new_model(
        options.out,
        text=options.text,
        fields=options.fields,
        vocab_size=options.vocab_size,
        hidden_size=options.hidden_size,
        layers=options.layers,
        heads=options.heads,
        max_length=options.max_length,
        seed=options.seed,
    )
    print(visible(str(path)))
    return 0


def _merge(options: argparse.Namespace) -> int:
    from humanline.train.policy.merge import merge

    quiet_libraries()
    print(visible(f"model: {merge(options.adapter, options.out, options.base)}"))
    return 0
