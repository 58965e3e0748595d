"""Recipes with a wrong word, a number at the edge, or a file that is made to harm who reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.campaign.agreement import validate_and_train
from tests.campaign.stage import Stage
from tests.campaign.world import recipes, write_recipe
from tests.train.data.test_bad_input import CONFIGS, RECIPE, bent, fuzzed_config, garbled

COUNT = 400
EDGES: list[Any] = [1e308, -1e308, 1e26, 5e-324, -1, 0, 2**63, 10**400, float("nan"), float("inf"), 1e-45, 10**9]
ODD: list[Any] = [*EDGES, None, True, "", " ", "x", "\x1b[31m", "\u202e", "\0", [], {}, [[]], {"kind": "none"}, "1e3"]
ODD += ["~nouser/x", "../x", "/dev/null", "/proc/self/mem", "x" * 5000, "hub:a/b", "\ud800", ["a"], {"a": 1}, 1.5, 7]
NAMES = ["kind", "every", "steps", "lr", "beta", "trian", "rank", "targets", "url", "x"]


def _with(place: str, value: Any, base: str = "dpo") -> Callable[[Stage], None]:
    def make(stage: Stage) -> None:
        tree = recipes(stage.world.toy, stage.folder / "run")[base]
        node, *rest = place.split(".")
        inside: Any = tree
        for name in rest:
            inside, node = inside[node], name
        inside[node] = value
        write_recipe(tree, stage.folder / "recipe.yaml")

    return make


def _text(text: str | bytes) -> Callable[[Stage], None]:
    def make(stage: Stage) -> None:
        content = text if isinstance(text, bytes) else text.replace("@CANARY@", str(stage.canary)).encode()
        (stage.folder / "recipe.yaml").write_bytes(content)

    return make


def _yaml(old: str, new: str) -> Callable[[Stage], None]:
    return _text(RECIPE.replace(old, new))


def _folder(stage: Stage) -> None:
    (stage.folder / "recipe.yaml").mkdir()


def _pipe(stage: Stage) -> None:
    os.mkfifo(stage.folder / "recipe.yaml")


def _loop(stage: Stage) -> None:
    (stage.folder / "recipe.yaml").symlink_to("recipe.yaml")


def _not_utf8(place: str) -> Callable[[Stage], None]:
    return lambda stage: _with(place, os.fsdecode(b"k\xf6ln"))(stage)


Hand = tuple[str, Callable[[Stage], None], bool, dict[str, str]]
# name, what makes recipe.yaml, whether only refusing is right, and the environment
HAND: list[Hand] = [
    *((f"good, {base}", _with("seed", 1, base), False, {}) for base in ("dpo", "kto", "lora", "grpo", "rounds")),
    *(
        (f"Python in YAML: {tag}", _yaml("model: m", f"model: {tag}"), True, {})
        for tag in (
            "!!python/object/apply:os.mkdir [@CANARY@]",
            "!!python/object/apply:os.system ['touch @CANARY@']",
            "!!python/object/new:os.mkdir {args: [@CANARY@]}",
            "!!python/object/new:type {args: [x, !!python/tuple [], {}], state: {}}",
            "!!python/name:os.system",
            "!!python/module:this",
            "!!python/object:tests.campaign.data.Touch {path: @CANARY@}",
        )
    ),
    ("6 kB of brackets", _yaml("model: m", "model: " + "[" * 6000), True, {}),
    ("6 kB of braces", _yaml("model: m", "model: " + "{a: " * 1500), True, {}),
    ("6 kB of dashes", _yaml("model: m", "model:\n  " + "- " * 3000 + "x"), True, {}),
    ("6 kB of question marks", _yaml("model: m", "? " * 3000 + "x"), True, {}),
    ("1000 brackets, closed", _yaml("model: m", "model: " + "[" * 1000 + "]" * 1000), True, {}),
    ("1 MB of text", _yaml("model: m", "model: " + "x" * 1_000_000), True, {}),
    ("a comment of 20 MB", _text("#" + "x" * 20_000_000 + "\n" + RECIPE), True, {}),
    ("100 000 keys", _text("\n".join(f"k{i}: {i}" for i in range(100_000))), True, {}),
    ("100 000 items", _yaml("model: m", "model: [" + "a," * 100_000 + "]"), True, {}),
    (
        "merges of merges",
        _text("a: &a {x: 1}\n" + "".join(f"b{i}: &b{i} {{<<: [*a, *a, *a]}}\n" for i in range(99))),
        True,
        {},
    ),
    ("a recipe that is a folder", _folder, True, {}),
    ("a recipe that is a loop of links", _loop, True, {}),
    ("a recipe of zeros", lambda stage: (stage.folder / "recipe.yaml").symlink_to("/dev/zero"), True, {}),
    ("escapes in a key", _text('"\\e[31mmodel": m\n' + RECIPE), True, {}),
    ("escapes in a value", _with("objective", {"kind": "\x1b[31m\u202e"}), True, {}),
    ("escapes in a path", _with("model", "\x1b]0;title\x07"), True, {}),
    *(
        (f"{place} {what}", _with(place, value), True, {})
        for place in ("model", "output", "data.train", "data.eval")
        for what, value in (
            ("of no user", "~nouser/x"),
            ("with a NUL", "a\0b"),
            ("too long", "x" * 5000),
            ("below a file", "recipe.yaml/x"),
            ("a half character", "\ud800"),
        )
        if (place, what) not in (("output", "a half character"),)
    ),
    ("output of half a character", _with("output", "\ud800"), False, {}),
    ("output that is not UTF-8", _not_utf8("output"), False, {}),
    ("output below /dev/null", _with("output", "/dev/null/x"), True, {}),
    ("output in /proc", _with("output", "/proc/x"), True, {}),
    (
        "output of a loop of links",
        lambda stage: ((stage.folder / "l").symlink_to("l"), _with("output", "l/run")(stage))[1],
        True,
        {},
    ),
    (
        "model of a loop of links",
        lambda stage: ((stage.folder / "l").symlink_to("l"), _with("model", "l")(stage))[1],
        True,
        {},
    ),
    ("a rank of 1e8", _with("adapter.rank", 10**8, "lora"), True, {}),
    ("targets without end", _with("adapter.targets", ["q_proj"] * 100_000, "lora"), False, {}),
    ("a target that is a pattern", _with("adapter.targets", ["(a+)+$"], "lora"), True, {}),
    ("a batch of 1e9", _with("training.batch_size", 10**9), True, {}),
    ("1e15 steps", _with("training.steps", 10**15), False, {}),
    ("1e15 steps scored ahead", _with("reference.schedule", {"kind": "before_step", "every": 10**15}), False, {}),
    ("1e9 rounds", _with("source.count", 10**9, "rounds"), False, {}),
    ("1e9 samples", _with("source.samples", 10**9, "rounds"), False, {}),
    ("1e9 contexts", _with("source.contexts_per_round", 10**9, "rounds"), True, {}),
    ("1e9 workers", _with("source.scoring.workers", 10**9, "rounds"), False, {}),
    (
        "a pattern that never ends",
        _with("source.scoring", {"rewards": [{"kind": "format", "pattern": "(a*)*" * 50}], "seconds": 0.1}, "rounds"),
        False,
        {},
    ),
    (
        "a pattern that is none",
        _with("source.scoring.rewards", [{"kind": "format", "pattern": "("}], "rounds"),
        True,
        {},
    ),
    (
        "a huge pattern",
        _with("source.scoring.rewards", [{"kind": "format", "pattern": "(?:a{1,60000}){1,60000}"}], "rounds"),
        False,
        {},
    ),
    (
        "a function that is not there",
        _with("source.scoring.rewards", [{"kind": "function", "call": "nowhere:f"}], "rounds"),
        True,
        {},
    ),
    (
        "a reward model that is not there",
        _with("source.scoring.rewards", [{"kind": "model", "model": "nowhere"}], "rounds"),
        True,
        {},
    ),
    *(
        (f"{name}={value}", _with("seed", 1), True, {name: value})
        for name, value in (("WORLD_SIZE", "abc"), ("RANK", "x"), ("LOCAL_RANK", "1e9"), ("WORLD_SIZE", "-3"))
    ),
    ("CUDA_VISIBLE_DEVICES=x", _with("seed", 1), False, {"CUDA_VISIBLE_DEVICES": "x"}),
    ("ACCELERATE_MIXED_PRECISION=x", _with("seed", 1), False, {"ACCELERATE_MIXED_PRECISION": "x"}),
    ("no home", _with("seed", 1), False, {"HOME": "/nonexistent", "HF_HOME": "/dev/null"}),
    ("OMP_NUM_THREADS=x", _with("seed", 1), False, {"OMP_NUM_THREADS": "x"}),
]


def leaves(tree: Any, place: str = "") -> Iterator[str]:
    """Give the place of every number, and of every value that is not set, in a recipe."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from leaves(value, f"{place}.{name}" if place else name)
    elif tree is None or (isinstance(tree, int | float) and not isinstance(tree, bool)):
        yield place


def play(stage: Stage) -> None:
    number = stage.number
    if number < len(CONFIGS):
        stage.name, change, _ = CONFIGS[number]
        _text(change if isinstance(change, bytes) else RECIPE.replace(*change))(stage)
        return validate_and_train(stage, refused=True)
    number -= len(CONFIGS)
    if number < len(HAND):
        stage.name, make, refused, env = HAND[number]
        make(stage)
        if refused and env:  # of the launcher that starts a run, and of no concern to validate
            stage.run("train", "recipe.yaml", allowed=(2,), env=env)
            return None
        rounds = _rounds(stage.folder)
        return validate_and_train(stage, refused=refused, may_refuse=rounds, env=env)
    number -= len(HAND)
    bases = recipes(stage.world.toy, stage.folder / "run")
    name = list(bases)[number % len(bases)]
    begin = name != "server"  # a run would wait for it
    how, turn = number // len(bases) % 5, number // len(bases) // 5
    if how < 3:  # a number at the edge
        places = sorted(leaves(bases[name]))
        place, value = stage.rng.choice(places), EDGES[(turn * 3 + how) % len(EDGES)]
        stage.name = f"{name}: {place} is {_short(value)}"
        _with(place, value, name)(stage)
    elif how == 3:
        stage.name = f"{name}: mutated"
        write_recipe(bent(bases[name], stage.rng, ODD, NAMES), stage.folder / "recipe.yaml")
    else:
        stage.name = f"{name}: garbled"
        text, words = fuzzed_config(stage.seed * 1_000_000 + number, (json.dumps(bases[name], indent=1),))
        text = garbled(text.encode(), stage.rng).decode(errors="replace") if turn % 2 else text
        (stage.folder / "recipe.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        return validate_and_train(
            stage,
            *[word for word in words if not word.startswith("-")],
            may_refuse=_rounds(stage.folder),
            begin=begin,
        )
    return validate_and_train(stage, may_refuse=_rounds(stage.folder), begin=begin)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 30 else f"{text[:8]}... of {len(text)} digits"


def _rounds(folder: Path) -> bool:
    """Tell whether a recipe may have rounds, of which some fail for what was sampled."""
    recipe = folder / "recipe.yaml"
    return recipe.is_file() and recipe.stat().st_size < 10**7 and b'"samples"' in recipe.read_bytes()
