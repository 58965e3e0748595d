"""Bad input: a corpus with the message each one gives, and mutated input by the hundred, and slowly by the thousand."""

from __future__ import annotations

import copy
import gzip
import io
import json
import math
import os
import random
import re
import traceback
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest

from humanline.train.config import ConfigError, TrainConfig, load_config
from humanline.train.data.messages import Message
from humanline.train.data.render import Renderer
from humanline.train.data.rows import read_rows
from humanline.train.data.shapes import Group, Preference, PromptOnly, Shape, Unpaired
from humanline.train.data.tokenize import tokenize
from tests.helpers.work import at_most

PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
LABELLED = {"prompt": "q", "completion": "a", "label": True}
USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
RECIPE = """\
model: m
output: o
objective: {kind: dpo, beta: 0.1}
transform:
  kind: clip
reference:
  schedule: {kind: before_step, every: 4}
data: {train: pairs.jsonl}
training:
  steps: 3
optimizer:
  lr: 5e-6
"""


def line(row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("rows.jsonl", content)
    return buffer.getvalue()


def raising(message: str) -> str:
    return "{{ raise_exception('" + message + "') }}"


TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"  # no opening of an answer
GOOD = line(PAIR)
REST = b'"chosen": "a", "rejected": "b"}'
ROWS_PRETTY = json.dumps([PAIR, PAIR], indent=2).encode()

# What is written to rows.jsonl, as preference rows; then the message.
ROWS: list[tuple[str, bytes, str]] = [
    ("empty file", b"", r"rows\.jsonl has no rows; expected one JSON object per line"),
    ("blank lines", b"\n  \r\n\t\n", r"rows\.jsonl has no rows"),
    ("only a mark", b"\xef\xbb\xbf", r"rows\.jsonl has no rows"),
    ("utf-16 with a mark", GOOD.decode().encode("utf-16"), r"is UTF-16 text; .*\nSave it as UTF-8: iconv -f UTF-16 "),
    ("utf-16, the other order", b"\xfe\xff" + GOOD.decode().encode("utf-16-be"), r"is UTF-16 text; expected UTF-8"),
    ("utf-16 without a mark", GOOD.decode().encode("utf-16-le"), r"begins with NUL bytes, .*\n.*iconv -f UTF-16LE "),
    ("utf-16 the other way", GOOD.decode().encode("utf-16-be"), r"begins with NUL bytes, .*\n.*iconv -f UTF-16BE "),
    ("utf-32 without a mark", GOOD.decode().encode("utf-32-le"), r"begins with NUL bytes, .*\n.*iconv -f UTF-32LE "),
    ("utf-32", GOOD.decode().encode("utf-32"), r"is UTF-32 text; .*\nSave it as UTF-8: iconv -f UTF-32 "),
    ("latin-1", '{"prompt": "Köln", '.encode("latin-1") + REST, r"rows\.jsonl:1:14: byte 0xf6 is not UTF-8"),
    ("half a character", b'{"prompt": "\xf0\x9f\x98"}', r"rows\.jsonl:1:13: byte 0xf0 is not UTF-8"),
    ("gzip", gzip.compress(GOOD), r"is a gzip archive; .*\nUnpack it: gzip -dc"),
    ("zip", zipped(GOOD), r"is a zip archive; .*\nUnpack it first"),
    ("zstandard", b"\x28\xb5\x2f\xfd\x00", r"is a zstandard archive"),
    ("xz", b"\xfd7zXZ\x00\x00", r"is an xz archive"),
    ("parquet", b"PAR1\x15\x04PAR1", r"is a parquet file; .*\nGive it the ending \.parquet"),
    ("a NUL byte", GOOD + b"\x00" + GOOD, r"rows\.jsonl:2:1: not valid JSON \(a NUL character\)"),
    ("a NUL byte in a text", b'{"prompt": "a\x00b", ' + REST, r"rows\.jsonl:1:14: not valid JSON \(a NUL character\)"),
    ("a tab in a text", b'{"prompt": "a\tb", ' + REST, r"rows\.jsonl:1:14: not valid JSON \(Invalid control"),
    ("a mark inside", GOOD + b"\xef\xbb\xbf" + GOOD, r"rows\.jsonl:2:1: not valid JSON \(a byte order mark inside"),
    ("lone carriage returns", GOOD.replace(b"\n", b"\r") * 3, r"1:\d+: goes on after a lone carriage return.*tr '\\r'"),
    ("two objects on a line", GOOD.strip() * 2, r"rows\.jsonl:1:48: not valid JSON \(Extra data\)"),
    ("an array on one line", line([PAIR, PAIR]), r"1:1: the row is a list; .* \(jq -c '\.\[\]' OLD > NEW\.jsonl"),
    ("an array over lines", ROWS_PRETTY, r"1 problem, .*\n  rows\.jsonl:1:1: one JSON array of 2 items over 12 lines"),
    ("an array, a row a line", b"[\n" + GOOD.strip() + b",\n" + GOOD + b"]\n", r"1 problem, .*\n.*array of 2 items"),
    ("an array that is cut off", ROWS_PRETTY[:-9], r"1:1: one JSON array over many lines"),
    ("pretty-printed objects", json.dumps(PAIR, indent=1).encode() * 2, r"1 problem,.*\n.*1:1: one JSON object over 5"),
    ("pretty-printed after a row", GOOD + json.dumps(PAIR, indent=1).encode(), r"2:1: one JSON object over 5 lines"),
    ("not an object", b"7\n", r"rows\.jsonl:1:1: the row is a number; expected one JSON object per line"),
    ("null", b" null\n", r"rows\.jsonl:1:2: the row is null"),
    ("a cut line", GOOD[:-9], r"rows\.jsonl:1:\d+: not valid JSON"),
    ("python, not JSON", b"{'prompt': 'q'}", r"rows\.jsonl:1:2: not valid JSON"),
    ("csv", b"prompt,chosen,rejected\nq,a,b\n", r"rows\.jsonl:1:1: not valid JSON.*also at rows\.jsonl:2:1"),
    ("NaN", b'{"x": [1, {"y": NaN}], "prompt": "q", ' + REST, r"rows\.jsonl:1:17: NaN is not a JSON number"),
    ("minus infinity", b'{"x": "NaN", "y": -Infinity, ' + REST, r"rows\.jsonl:1:19: -Infinity is not a JSON number"),
    ("a repeated key", b'{"prompt": "q", "prompt": "r", ' + REST, r"1:17: the key 'prompt' appears twice"),
    ("a key repeated inside", b'{"x": {"a": {"b": 1}, "\\u0061": 1}, ' + REST, r"1:23: the key 'a' appears twice"),
    ("an endless number", b'{"x": ' + b"9" * 5000 + b", " + REST, r"1:7: a whole number of 5000 digits is more than"),
    ("endless nesting", b'{"x": ' + b"[" * 99_999 + b"]" * 99_999 + b"}", r"rows\.jsonl:1:1: nested too deeply"),
    ("an empty object", b"{}\n", r"1:1: no column 'chosen' among none"),
    ("a missing column", line({"prompt": "q", "chosen": "a"}), r"1:1: no column 'rejected' among 'prompt', 'chosen'"),
    ("a null", line(PAIR | {"chosen": None}), r"1:27: 'chosen' is null; expected a string or a list of messages"),
    ("an empty text", line(PAIR | {"chosen": ""}), r"1:27: 'chosen' is empty; expected some text"),
    ("a blank text", line(PAIR | {"chosen": "\u00a0\n"}), r"1:27: 'chosen' is blank; expected some text"),
    ("a character's half", line(PAIR | {"chosen": "\udc80"}), r"1:27: 'chosen' holds half a surrogate pair"),
    ("wide characters", '{"prompt": "東京🙂", "chosen": 7, "rejected": "b"}'.encode(), r"1:29: 'chosen' is a number"),
    ("equal answers", line(PAIR | {"rejected": "a"}), r"1:44: 'chosen' and 'rejected' are the same"),
    ("a wrong role", line(PAIR | {"prompt": [{"role": "human", "content": "q"}]}), r"1:22: .* has the role \"human\""),
    ("a role of lists", line(PAIR | {"prompt": [{"role": [[]], "content": "q"}]}), r"1:22: .* has the role a list"),
    ("no content", line(PAIR | {"prompt": [{"role": "user"}]}), r"1:13: 'prompt' message 1 is an object of the keys"),
    ("content in parts", line(PAIR | {"prompt": [USER | {"content": [{"text": "q"}]}]}), r"1:41: .* is a list; "),
    ("a score of words", line(PAIR | {"chosen_score": "1", "rejected_score": 0}), r"1:65: 'chosen_score' is a string"),
    ("a score too large", b'{"prompt": "q", "chosen_score": 1e400, "rejected_score": 0, ' + REST, r"1:33: .*not fin"),
    ("scores upside down", line(PAIR | {"chosen_score": 1, "rejected_score": 2}), r"1:65: the chosen score 1 is below"),
    ("one score", line(PAIR | {"rejected_score": 2}), r"1:67: 'rejected_score' stands alone"),
    ("many problems", b"{\n}\n" * 500, r"1 problem, 0 right rows\n.*one JSON object over 2 lines"),
    ("problems without end", line(PAIR | {"chosen": 1}) * 500, r"500 problems, 0 right.*\n.*\(500 times in all, also"),
]  # fmt: skip

# What is made in the folder, as the name of the data: then the message.
FILES: list[tuple[str, str, str]] = [
    ("no such file", "row.jsonl", r"/row\.jsonl does not exist; did you mean rows\.jsonl\?"),
    ("no such directory", "no/rows.jsonl", r"/no/rows\.jsonl does not exist, and neither does its directory"),
    ("a way up", "sub/../../nowhere/../x.jsonl", r"/x\.jsonl does not exist"),
    ("a directory", "sub", r"/sub is a directory; expected a file, for example .*sub/train\.jsonl"),
    ("a directory with an ending", "sub.parquet", r"sub\.parquet is a directory; expected a file"),
    ("a pipe", "pipe.jsonl", r"pipe\.jsonl is a pipe; expected a regular file"),
    ("a loop", "loop.jsonl", r"loop\.jsonl"),
    ("a NUL in the name", "a\0b.jsonl", r"'.*a\\x00b\.jsonl' names no file: it holds a NUL"),
    ("a name too long", "x" * 5000 + ".jsonl", r"names no file: file name too long"),
    ("no such user", "~nobody-of-this-name/x.jsonl", r"~nobody-of-this-name.* user who is not known"),
    (
        "text",
        "rows.txt",
        r"rows\.txt ends in \.txt; humanline reads \.jsonl \(or \.ndjson\), \.json and \.parquet files",
    ),
    ("csv", "rows.csv", r"rows\.csv ends in \.csv; humanline reads"),
    ("packed", "rows.jsonl.gz", r"rows\.jsonl\.gz ends in \.gz; humanline reads"),
    ("no ending", "rows", r"/rows has no ending; humanline reads"),
    ("a URL", "https://example.org/rows.jsonl", r"does not exist; a set of the hub is written hub:ORG/NAME"),
    ("a hub name without hub:", "trl-lib/tldr", r"trl-lib/tldr does not exist, and neither does its directory"),
    ("another prefix", "hf:trl-lib/tldr", r"does not exist; a set of the hub is written hub:ORG/NAME"),
    (
        "no organisation",
        "hub:squad",
        r"'hub:squad' must be written hub:ORG/NAME\[/SUBSET\]\[@REVISION\]\[#SPLIT\], for",
    ),
    ("a slice", "hub:org/name#train[:10]", r"'hub:org/name#train\[:10\]' must be written"),
    ("two revisions", "hub:org/name@a@b", r"'hub:org/name@a@b' must be written"),
    ("a folder as a hub name", "hub:../x", r"'hub:\.\./x' must be written"),
]

# What is changed in a tokenizer, or the template to render with, and the message.
TEMPLATES: list[tuple[str, dict[str, Any], str]] = [
    ("no template", {"chat_template": None}, r"no chat template; set template: plain"),
    ("no end token", {"eos_token": None}, r"no end-of-sequence token"),
    (
        "not a template",
        {"chat_template": "{% for m in %}"},
        r"1 of 1 examples .*\n.*refuses the roles user, assistant: |us",
    ),
    ("an unknown name", {"chat_template": "{{ nobody.here }}"}, r"refuses the roles user: 'nobody' is undefined"),
    ("one that raises", {"chat_template": raising("no\\nway")}, r"refuses the roles user: no way"),
    ("arithmetic", {"chat_template": "{{ 1 // 0 }}"}, r"refuses the roles user: "),
    ("empty", {"chat_template": " "}, r"leaves out message 1 of the prompt \(user\)"),
    ("constant", {"chat_template": "hello"}, r"leaves out message 1 of the prompt \(user\)"),
    ("no question", {"chat_template": "{{ messages[1:] | map(attribute='content') | join }}"}, r"leaves out message 1"),
    ("no answer", {"chat_template": "{{ messages[0].content }}<|end|>"}, r"does not write the whole answer, but ''"),
    (
        "half the answer",
        {"chat_template": "{% for m in messages %}{{ m.content[:4] }}<|end|>{% endfor %}"},
        r"leaves out",
    ),
    ("always another turn", {"chat_template": TURNS + "<|assistant|>"}, r"ends with .*as if another answer followed"),
    (
        "does not continue",
        {"chat_template": "{{ messages | length }}" + TURNS},
        r"does not continue its own prompt: .*'2",
    ),
    ("two begin tokens", {"chat_template": "<|bos|><|bos|>" + TURNS}, r"writes the begin token '<\|bos\|>' twice"),
]

# What is changed in the recipe (or the whole of it), and the message.
CONFIGS: list[tuple[str, tuple[str, str] | bytes, str]] = [
    ("empty", b"", r"must hold keys such as model: and output:; got NoneType"),
    ("a list", b"- a\n- b\n", r"must hold keys"),
    ("a word", b"word", r"must hold keys"),
    ("not text", b"\xff\xfe\x00", r"recipe\.yaml: cannot be read"),
    ("a control character", b"model: \x01", r"recipe\.yaml.*not valid YAML"),
    ("two documents", (RECIPE, RECIPE + "---\n" + RECIPE), r"recipe\.yaml.*not valid YAML"),
    ("a tab", ("  steps", "\tsteps"), r"recipe\.yaml:\d+:\d+: not valid YAML"),
    ("an open bracket", ("{train: pairs.jsonl}", "{train: pairs.jsonl"), r"recipe\.yaml:\d+:\d+: not valid YAML"),
    ("an unknown alias", ("model: m", "model: *m"), r"recipe\.yaml:1:8: not valid YAML: .*undefined alias"),
    ("a key twice", ("model: m", "model: m\nmodel: n"), r"recipe\.yaml:2:1: not valid YAML: found duplicate key"),
    ("a loop", ("{train: pairs.jsonl}", "&a\n  train: x\n  columns: *a"), r"data\.columns: must be a section such"),
    ("a bomb", ("model: m", "model: [" + "&a0 [x]" + "".join(f", &a{i + 1} [{f'*a{i},' * 9}]" for i in range(9)) + "]"),
     r"recipe\.yaml: too large for"),
    ("a date that is none", ("model: m", "model: 2024-13-45"), r"recipe\.yaml.*: "),
    ("an object of Python", ("model: m", "model: !!python/object:os.system x"), r"model: input should be a valid str"),
    ("an unknown section", ("optimizer:", "optimiser:"), r"optimiser: unknown key; did you mean optimizer\?"),
    ("an unknown key", ("  steps", "  step"), r"training\.step: unknown key; did you mean steps\?"),
    ("a missing section", ("data: {train: pairs.jsonl}\n", ""), r"recipe\.yaml: data: is missing"),
    ("an unknown kind", ("kind: dpo", "kind: ddpo"), r"objective\.kind: must be .*; got ddpo; did you mean dpo\?"),
    ("a list as a kind", ("kind: dpo", "kind: [dpo]"), r"objective\.kind: must be one of"),
    ("a number as a section", ("{kind: dpo, beta: 0.1}", "7"), r"objective: must be a section such as .*; got 7"),
    ("words for a number", ("5e-6", "five"), r"optimizer\.lr: input should be a valid number; got 'five'"),
    ("not a number", ("5e-6", ".nan"), r"optimizer\.lr: input should be a finite number; got nan"),
    ("infinity", ("5e-6", ".inf"), r"optimizer\.lr: input should be a finite number; got inf"),
    ("half a step", ("steps: 3", "steps: 2.5"), r"training\.steps: input should be a valid integer; got 2\.5"),
    ("no step", ("steps: 3", "steps: 0"), r"training\.steps: input should be greater than or equal to 1; got 0"),
    ("true as a number", ("steps: 3", "steps: true"), r"training\.steps: input should be a valid integer; got True"),
    ("a huge number", ("steps: 3", "steps: " + "9" * 5000), r"training\.steps|recipe\.yaml"),
    ("a null", ("model: m", "model:"), r"model: input should be a valid string; got None"),
    ("an empty name", ("model: m", 'model: ""'), r"model: string should have at least 1 character"),
    ("a list of columns", ("train: pairs.jsonl", "train: x, columns: [a]"), r"data\.columns: must be a section such"),
    ("clip that leaves out 0", ("kind: clip", "kind: clip\n  log_eps_high: -1.0"), r"log_eps_high: .* equal to 0"),
    ("300 wrong", ("model: m", "\n".join(f"key{i}: {i}" for i in range(300))), r"301 problem.*\n(.*\n){20}.*281 more"),
]  # fmt: skip

CORPUS = (
    [("rows", *case) for case in ROWS]
    + [("file", *case) for case in FILES]
    + [("template", *case) for case in TEMPLATES]
    + [("config", *case) for case in CONFIGS]
)


LITTLE = 1_000_000  # calls of functions: what a small input may cost, about a second on an idle machine


def folder_of_files(folder: Path) -> None:
    """Make what the names of `FILES` stand for."""
    for name in ("rows.jsonl", "rows.txt", "rows.csv", "rows.jsonl.gz", "rows"):
        (folder / name).write_bytes(GOOD)
    for name in ("sub", "sub.parquet"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")


def meet(kind: str, written: Any, folder: Path, tokenizer: Any) -> None:
    """Give something that is written to the part of humanline that reads it."""
    if kind == "rows":
        (folder / "rows.jsonl").write_bytes(written)
        read_rows(folder / "rows.jsonl", "preference")
    elif kind == "file":
        folder_of_files(folder)
        read_rows(written if re.match(r"hub:|hf:|https:|~", written) else str(folder / written), "preference")
    elif kind == "template":
        changed = copy.deepcopy(tokenizer)
        for name, value in written.items():
            setattr(changed, name, value)
        example = Unpaired("rows.jsonl:1", (Message("user", "What is the cat on?"),), "The mat.", True)
        tokenize([example], Renderer(changed, "chat", 64))
    else:
        text = written if isinstance(written, bytes) else RECIPE.replace(*written).encode()
        assert text != RECIPE.encode()
        (folder / "recipe.yaml").write_bytes(text)
        load_config(folder / "recipe.yaml")


def check_user_error(error: BaseException) -> str:
    """Return the message of an error that is fit for users: raised by humanline about its input, and short."""
    assert isinstance(error, ValueError | FileNotFoundError), repr(error)
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    assert frame.f_globals["__name__"].startswith("humanline."), frame
    assert not isinstance(error, UnicodeError | json.JSONDecodeError)
    text = str(error)
    assert 1 <= len(text.splitlines()) <= 30, text
    assert max(map(len, text.splitlines())) < 6000  # a name that is given is given back whole
    return text


@pytest.mark.parametrize(("kind", "name", "written", "message"), CORPUS, ids=[f"{c[0]}: {c[1]}" for c in CORPUS])
def test_bad_input_gives_a_message_for_users(tmp_path, tokenizer, kind, name, written, message):
    """Each bad input raises an error of humanline's own whose few lines say what is wrong and where."""
    with pytest.raises((ValueError, OSError)) as caught, at_most(LITTLE):
        meet(kind, written, tmp_path, tokenizer)
    assert re.search(message, check_user_error(caught.value)), str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Mutated input

# What json.dumps would not write stands in rows as a text.
DEEP, HUGE = "@deep@", "@huge@"
LITERALS = {DEEP: "[" * 900 + "]" * 900, HUGE: "1e400"}
ODD: list[Any] = [None, True, False, 0, 1, -1, 1.0, 0.5, 1e308, -1e-320, 10**400, math.nan, math.inf, "", " ", "\u2028"]
ODD += ["\ud800", "\x00", "x" * 3000, "true", [], {}, [[]], [None], {"": ""}, {"role": "user"}, USER, [USER], [ANSWER]]
ODD += [[USER, ANSWER], [ANSWER, USER], [{"role": "system", "content": ""}, USER, ANSWER], {"content": DEEP}]
ODD += [DEEP, [DEEP], HUGE, " ", "\ud800", [USER | {"role": DEEP}], [USER | {"role": []}], [ANSWER | {"content": ""}]]
COLUMNS = ["prompt", "chosen", "rejected", "completion", "label", "messages", "chosen_score", "score_rejected", "extra"]
COLUMNS += ["tools", "chat_template_kwargs", "tool_calls", "name"]
GIVEN = {"tools": [{"function": {"name": "f"}}], "chat_template_kwargs": '{"think": false}'}
CALLING = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x": [1, None]}}}]}
RESULT = {"role": "tool", "content": "", "name": "f"}
GOOD_ROWS: dict[str, list[dict[str, Any]]] = {
    "preference": [
        PAIR,
        PAIR | {"chosen_score": 1.0, "rejected_score": 0},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": "b"},
        {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER | {"content": "b"}]},
        {"prompt": [USER, CALLING, RESULT], "chosen": [ANSWER], "rejected": [CALLING]} | GIVEN,
    ],
    "unpaired": [
        LABELLED,
        {"prompt": "q", "completion": [USER, ANSWER], "label": 0},
        {"messages": [{"role": "system", "content": "s"}, USER, ANSWER], "label": False},
    ],
    "completion": [LABELLED, PAIR, {"messages": [USER, ANSWER]}, {"messages": [USER, CALLING]} | GIVEN],
    "prompt": [{"prompt": "q", "answer": 4}, {"prompt": [USER]}, {"prompt": [USER, CALLING, RESULT]} | GIVEN],
}
PIECES = [
    b"\n",
    b"\r",
    b"\0",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b'"',
    b"\\",
    b"\\ud8",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"NaN",
    b"1e9",
]
PIECES += [b"-Infinity", b"\xc3", b"9" * 4400, b"[" * 2000, b" ", b"null"]


def places(node: Any) -> list[tuple[Any, Any]]:
    """Return every container with each of its keys."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    return [(node, key) for key in keys] + [place for key in keys for place in places(node[key])]


def bent(row: Any, rng: random.Random, values: list[Any] = ODD, names: list[str] = COLUMNS) -> Any:
    """Return a row, or another tree, with one to three changes to its structure: odd values, and names of columns."""
    row = copy.deepcopy(row)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = places(row)
        if not found:
            return rng.choice(values)
        node, key = rng.choice(found)
        kind = rng.randrange(5)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, dict):
            node[rng.choice(names)] = node.pop(key)
        elif kind == 2 and isinstance(node, dict):
            node[rng.choice(names)] = copy.deepcopy(rng.choice(values))
        elif kind == 3:
            node[key] = [node[key]] * rng.randint(1, 3)
        else:
            node[key] = copy.deepcopy(rng.choice(values))
    return row


def garbled(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to four changes."""
    for _ in range(rng.randint(1, 4)):
        at, to = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        to = min(to, at + rng.choice([1, 1, 4, 60]))
        kind = rng.randrange(5)
        if kind == 0:
            content = content[:at] + content[to:]
        elif kind == 1:
            content = content[:at] + content[at:to] * 2 + content[to:]
        elif kind == 2:
            content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
        elif kind == 3 and rng.random() < 0.1:
            content = content[:at]
        else:
            content = content[:at] + rng.choice(PIECES) + content[at:]
    return content


def fuzzed_rows(seed: int) -> tuple[bytes, str]:
    """Return the content of a file of a few rows, of which some are mutated, and a shape to read it as."""
    rng = random.Random(f"rows {seed}")
    shape = rng.choice(get_args(Shape))
    rows = rng.choices(GOOD_ROWS[shape if rng.random() < 0.9 else "preference"], k=rng.randint(1, 4))
    if rng.random() < 0.8:
        at = rng.randrange(len(rows))
        rows[at] = bent(rows[at], rng)
    text = "".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows)
    for name, literal in LITERALS.items():
        text = text.replace(json.dumps(name), literal)
    content = text.encode("utf-8", "surrogatepass")
    return garbled(content, rng) if rng.random() < 0.4 else content, shape


def check_examples(examples: list[Any]) -> None:
    """Every text can be trained on, every score compared, every label used."""
    for example in examples:
        prompt = example.prompt
        assert prompt and prompt[-1].role in ("user", "system", "tool", "developer")
        answers = [getattr(example, name) for name in ("chosen", "rejected", "completion") if hasattr(example, name)]
        messages = [*prompt, *(answer for answer in answers if isinstance(answer, Message))]
        for message in messages:
            keys = json.loads(message.keys or "{}")
            assert not {"role", "content"} & keys.keys() and message.keys.encode() is not None
            assert message.content.strip() or keys.get("tool_calls") or message.role in ("system", "developer", "tool")
        texts = [message.content for message in messages if message.content.strip()]
        assert all(type(one) is dict for one in example.given.columns().get("tools", []))
        if isinstance(example, Preference):
            assert example.chosen != example.rejected
            scores = (example.chosen_score, example.rejected_score)
            assert scores == (None, None) or (all(type(s) is float and math.isfinite(s) for s in scores))
            assert scores == (None, None) or scores[0] >= scores[1]
        elif isinstance(example, Unpaired):
            assert example.label is None or type(example.label) is bool
        else:
            assert isinstance(example, PromptOnly) and not isinstance(example, Group)
        texts += [answer for answer in answers if not isinstance(answer, Message)]
        assert all(type(text) is str and text.strip() and text.encode() for text in texts)


def meet_rows(seeds: range, folder: Path) -> tuple[int, int]:
    """Read fuzzed files; return how many were read and how many refused."""
    done = [0, 0]
    path = folder / "rows.jsonl"
    for seed in seeds:
        content, shape = fuzzed_rows(seed)
        path.write_bytes(content)
        try:
            with at_most(LITTLE, seed, content):
                examples: list[Any] = read_rows(path, shape)  # type: ignore[arg-type]
        except Exception as error:
            done[1] += 1
            try:
                text = check_user_error(error)
                assert "rows.jsonl" in text
                for problem in getattr(error, "problems", ()):
                    assert re.match(r"rows\.jsonl:\d+:[1-9]\d*: ", problem), problem
            except AssertionError as wrong:
                raise AssertionError(f"seed {seed}, {shape}: {content!r}") from wrong
        else:
            done[0] += 1
            check_examples(examples)
    return done[0], done[1]


RICH = """# every section
model: &name m
output: o
seed: 1
objective:
  kind: kto
  beta: 0.1
  desirable_weight: 1.0
transform:
  kind: beta_rejection
  policy: {a: 0.5, b: 1.0}
  ref: {a: 0.5, b: 1.5}
  policy_ratio_bound: 3.0
  ref_ratio_bound: batch_max
reference:
  schedule: {kind: each_round, round_steps: 4}
  storage: score_ahead
data:
  train: pairs.jsonl
  eval: *name
  shape: unpaired
  columns: {prompt: question}
  template: chat
  max_length: 64
training:
  epochs: 1.5
  batch_size: 8
optimizer:
  lr: 5e-6
  adam_beta1: 0.9
evaluation: {every: 2}
"""
WORDS = [
    "null",
    "~",
    "true",
    "yes",
    "0",
    "-1",
    "1.5",
    "1e400",
    ".nan",
    "-.inf",
    "0x1F",
    "0o9",
    "9" * 4400,
    '""',
    "''",
    "'x",
]
WORDS += [
    "[",
    "]",
    "{",
    "}",
    "[]",
    "{}",
    "{kind: dpo}",
    "[a, b]",
    "- a",
    "a: b",
    "*name",
    "&name",
    "*x",
    "!!int x",
    "!x y",
]
WORDS += [
    "!!python/object:os.system x",
    "!!set {a}",
    "!!binary aGk=",
    "!!timestamp x",
    "2024-13-45",
    "2001-01-01",
    "<<: *name",
]
WORDS += [
    "|",
    ">",
    "|\n  x",
    "? x",
    "%YAML 1.1",
    "---",
    "...",
    "#",
    "\t",
    "\x00",
    "\x85",
    "\ufeff",
    "\u2028",
    "\U0001f642",
    "@",
    "`",
    "=",
]
WORDS += ["kind: grpo", "kind: simpo", "never", "before_step", "every: 3", "steps: 3", "[" * 200, "{a: " * 60]
SECTIONS = [
    "model",
    "objective",
    "objective.kind",
    "transform",
    "transform.policy.a",
    "reference.schedule.every",
    "data.columns.x",
]
SECTIONS += [
    "data",
    "data.train",
    "training.steps",
    "training.epochs",
    "optimizer.lr",
    "optimizer.lrr",
    "a..b",
    "",
    ".",
    "seed",
    "x.y.z",
]


def fuzzed_config(seed: int, recipes: tuple[str, ...] = (RECIPE, RICH)) -> tuple[str, list[str]]:
    """Return the text of a mutated recipe and overrides."""
    rng = random.Random(f"config {seed}")
    lines = rng.choice(recipes).split("\n")
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        at, kind = rng.randrange(len(lines)), rng.randrange(6)
        line, word = lines[at], rng.choice(WORDS)
        if kind == 0:
            lines[at : at + 1] = []
        elif kind == 1:
            lines.insert(rng.randrange(len(lines) + 1), line)
        elif kind == 2:
            lines[at] = rng.choice([" ", "  ", "\t"]) + line if rng.random() < 0.5 else line.strip()
        elif kind == 3 and ":" in line:
            lines[at] = line.partition(":")[0] + ": " + word
        elif kind == 4:
            cut = rng.randrange(len(line) + 1)
            lines[at] = line[:cut] + word + line[cut + rng.choice([0, 1, 5]) :]
        else:
            lines[at] = line.replace(rng.choice(line), rng.choice(":-{}[] ,'#&*!|0e"), 1) if line else word
        if not lines:
            break
    overrides = [f"{rng.choice(SECTIONS)}={rng.choice(WORDS)}" for _ in range(rng.choice([0, 0, 1, 3]))]
    return "\n".join(lines), overrides


def meet_configs(seeds: range, folder: Path) -> tuple[int, int]:
    """Load fuzzed recipes; return how many were read and how many refused."""
    done = [0, 0]
    path = folder / "recipe.yaml"
    for seed in seeds:
        text, overrides = fuzzed_config(seed)
        path.write_text(text, encoding="utf-8", newline="")
        try:
            # Counting takes twice as long as reading does.
            with at_most(LITTLE, seed, text, overrides) if seed % 10 == 0 else nullcontext():
                config = load_config(path, overrides)
        except Exception as error:
            done[1] += 1
            try:
                assert isinstance(error, ConfigError), repr(error)
                check_user_error(error)
            except AssertionError as wrong:
                raise AssertionError(f"seed {seed}: {text!r} {overrides!r}") from wrong
        else:
            done[0] += 1
            assert type(config) is TrainConfig and TrainConfig.model_validate(config.model_dump()) == config
    return done[0], done[1]


REUSED = pytest.mark.filterwarnings("ignore::ruamel.yaml.error.ReusedAnchorWarning")


def test_mutated_rows_are_read_right_or_refused(tmp_path):
    """Of 600 files of mutated rows each is either read into sound examples or refused with a message for users."""
    read, refused = meet_rows(range(600), tmp_path)
    assert read > 90 and refused > 300


@REUSED
def test_mutated_recipes_are_read_or_refused(tmp_path):
    """Each of 300 mutated recipes, with overrides, is either read or refused with a ConfigError."""
    read, refused = meet_configs(range(300), tmp_path)
    assert read > 30 and refused > 120


@REUSED
@pytest.mark.slow
def test_many_mutated_recipes_and_rows(tmp_path):
    """The same for 4700 other recipes and 21400 other files of rows."""
    read, refused = meet_configs(range(300, 5000), tmp_path)
    assert read > 400 and refused > 1500
    read, refused = meet_rows(range(600, 22_000), tmp_path)
    assert read > 1000 and refused > 10_000
