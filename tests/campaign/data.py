"""Data files that are none, hold odd rows, or are made to cost time and memory."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaign.agreement import validate_and_train
from tests.campaign.stage import Stage
from tests.campaign.world import online, recipes, tree_of, write_recipe
from tests.helpers.support import config
from tests.train.data.test_bad_input import (
    FILES,
    GOOD,
    GOOD_ROWS,
    LABELLED,
    PAIR,
    ROWS,
    folder_of_files,
    fuzzed_rows,
    garbled,
)

COUNT = 200


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def rows(content: bytes, name: str = "rows.jsonl") -> Callable[[Stage], str]:
    def make(stage: Stage) -> str:
        (stage.folder / name).write_bytes(content)
        return name

    return make


def _linked(stage: Stage) -> str:
    (stage.folder / "a.jsonl").symlink_to("b.jsonl")
    (stage.folder / "b.jsonl").symlink_to("a.jsonl")
    return "a.jsonl"


def _bytes_name(stage: Stage) -> str:
    name = os.fsdecode(b"k\xf6ln.jsonl")
    (stage.folder / name).write_bytes(GOOD * 8)
    return name


# name, what makes it and returns what data.train says, and whether only refusing is right
HAND: list[tuple[str, Callable[[Stage], str], bool]] = [
    ("good rows", rows(lines(*[PAIR | {"prompt": f"q{i}"} for i in range(8)])), False),
    ("a pickle", lambda stage: rows(pickle.dumps(Touch(stage.canary)))(stage), True),
    ("a pickle as parquet", lambda stage: rows(pickle.dumps(Touch(stage.canary)), "rows.parquet")(stage), True),
    ("6 kB of brackets", rows(b'{"prompt": ' + b"[" * 6000 + b"\n"), True),
    ("6 kB of braces", rows(b'{"a":' * 6000 + b"\n"), True),
    (
        "a deep good row",
        rows(b'{"prompt": "q", "x": ' + b"[" * 400 + b"]" * 400 + b', "chosen": "a", "rejected": "b"}\n' * 8),
        False,
    ),
    ("a line of 20 MB", rows(lines(PAIR | {"prompt": "x" * 20_000_000})), True),
    ("a line of 20 MB without end", rows(b'{"prompt": "' + b"x" * 20_000_000), True),
    ("a row of 100 000 columns", rows(lines(PAIR | {f"c{i}": i for i in range(100_000)}) * 2), False),
    ("a prompt of 50 000 messages", rows(lines(PAIR | {"prompt": [{"role": "user", "content": "q"}] * 50_000})), True),
    ("200 000 empty lines", rows(b"\n" * 200_000 + GOOD), False),
    ("100 000 bad lines", rows(b"{\n" * 100_000), True),
    ("20 000 bad rows", rows(lines({"prompt": "q", "chosen": 1, "rejected": None}) * 20_000), True),
    ("escapes in names", rows(lines({"\x1b[2Jprompt": "q", "\u202echosen": "a", "\x07": "b"})), True),
    ("escapes in a role", rows(lines(PAIR | {"prompt": [{"role": "\x1b]0;title\x07", "content": "q"}]})), True),
    ("escapes in a good text", rows(lines(*[PAIR | {"prompt": f"\x1b[31m{i}\u202e"} for i in range(8)])), False),
    (
        "special tokens in a text",
        rows(lines(*[PAIR | {"prompt": f"<|end|><|assistant|>{i}"} for i in range(8)])),
        False,
    ),
    (
        "Jinja in a text",
        rows(lines(*[PAIR | {"prompt": "{{ ''.__class__.__mro__ }}" + str(i)} for i in range(8)])),
        False,
    ),
    (
        "template keys of a row",
        rows(
            lines(*[PAIR | {"prompt": f"{i}", "chat_template_kwargs": {"chat_template": "{{ 1 }}"}} for i in range(8)])
        ),
        False,
    ),
    (
        "a row's own template",
        rows(lines(PAIR | {"chat_template": "{% for i in range(10**9) %}x{% endfor %}"}) * 4),
        False,
    ),
    (
        "a huge tool",
        rows(lines(*[PAIR | {"prompt": f"{i}", "tools": [{"function": {"name": "f" * 10**6}}]} for i in range(2)])),
        True,
    ),
    (
        "numbers without end",
        rows(
            b'{"prompt": "q", "chosen_score": '
            + b"9" * 4000
            + b', "rejected_score": 0, "chosen": "a", "rejected": "b"}\n'
        ),
        True,
    ),
    (
        "1e999999999",
        rows(b'{"prompt": "q", "chosen_score": 1e999999999, "rejected_score": 0, "chosen": "a", "rejected": "b"}\n'),
        True,
    ),
    ("the device of zeros", lambda stage: "/dev/zero", True),
    ("the terminal", lambda stage: "/dev/tty", True),
    ("memory", lambda stage: "/proc/self/mem", True),
    ("the process", lambda stage: "/proc/self/environ", True),
    ("standard input", lambda stage: "/dev/stdin", True),
    ("links in a loop", _linked, True),
    ("a name that is no text", _bytes_name, False),
    ("a name of escapes", lambda stage: "\x1b[31mred\u202e.jsonl", True),
    ("a name that exists, of escapes", rows(GOOD, "\x1b[31mred.jsonl"), False),
    ("somebody's home", lambda stage: "~nobody-of-this-name/x.jsonl", True),
    ("a NUL", lambda stage: "a\0b.jsonl", True),
    ("an endless path", lambda stage: "a/" * 2500 + "x.jsonl", True),
    ("a set of the hub that is none", lambda stage: "hub:nobody-of-this-name/nothing", True),
    ("parquet, cut", lambda stage: rows(parquet([PAIR] * 8)[:-9], "rows.parquet")(stage), True),
    ("parquet, empty", rows(b"", "rows.parquet"), True),
    ("parquet of nothing", lambda stage: rows(parquet([{"x": None}]), "rows.parquet")(stage), True),
    ("parquet with a footer of 2 GiB", rows(b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1", "rows.parquet"), True),
    ("lines as parquet", rows(GOOD, "rows.parquet"), True),
    (
        "parquet, nested",
        lambda stage: rows(parquet([PAIR | {"prompt": [{"role": "user", "content": "q"}]}] * 8), "rows.parquet")(stage),
        False,
    ),
]


def play(stage: Stage) -> None:
    number = stage.number
    if number < len(ROWS):
        stage.name, content, _ = ROWS[number]
        return _meet(stage, "preference", rows(content)(stage), refused=True)
    number -= len(ROWS)
    if number < len(FILES):
        stage.name, name, _ = FILES[number]
        folder_of_files(stage.folder)
        return _meet(stage, "preference", name, refused=True)
    number -= len(FILES)
    if number < len(HAND):
        stage.name, make, refused = HAND[number]
        return _meet(stage, "preference", make(stage), refused=refused, network="hub" in stage.name)
    number -= len(HAND)
    seed = stage.seed * 1_000_000 + number
    if number % 5 == 4:
        good = [PAIR | {"prompt": f"q{i}"} for i in range(8)] if number % 2 else [LABELLED] * 4
        stage.name = f"garbled parquet {seed}"
        return _meet(stage, "preference", rows(garbled(parquet(good), stage.rng), "rows.parquet")(stage))
    content, shape = fuzzed_rows(seed)
    stage.name = f"mutated {shape} rows {seed}"
    good = lines(*(row for row in GOOD_ROWS[shape] for _ in range(2)))
    return _meet(stage, shape, rows(good * (number % 2) + content)(stage))


def _meet(stage: Stage, shape: str, train: str, *, refused: bool = False, network: bool = False) -> None:
    toy, output = stage.world.toy, stage.folder / "run"
    short = {"training": {"steps": 1, "batch_size": 1, "micro_batch_size": 1}, "data__shape": shape}
    if shape == "prompt":
        small = {"contexts_per_round": 1, "samples": 2, "count": 1, "steps": 1}
        tree = tree_of(online(toy, output, rounds=small, training={"batch_size": 1, "micro_batch_size": 2}))
    elif shape == "unpaired":
        tree = recipes(toy, output)["kto"]
        tree["training"] |= {"steps": 1, "batch_size": 2, "micro_batch_size": 2}
        tree["objective"]["allow_single_label"] = True
    else:
        tree = tree_of(config(toy, output, {"kind": "nll"} if shape == "completion" else "dpo", **short))
    tree["data"]["train"] = train
    write_recipe(tree, stage.folder / "recipe.yaml")
    validate_and_train(stage, refused=refused, may_refuse=shape == "prompt", network=network)
