"""Sources: where rows come from, how they are named, and what happens when they cannot be had."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import socket
import subprocess
import sys
from decimal import Decimal

import pytest

datasets = pytest.importorskip("datasets")
import huggingface_hub.utils as hub  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from huggingface_hub import constants  # noqa: E402

from humanline.system.install import install  # noqa: E402
from humanline.train.data import json_lines, tables  # noqa: E402
from humanline.train.data.messages import Message  # noqa: E402
from humanline.train.data.reading import Reading  # noqa: E402
from humanline.train.data.rows import SetReader, read_rows  # noqa: E402
from humanline.train.data.shapes import Preference, Unpaired  # noqa: E402
from humanline.train.data.source import DataError  # noqa: E402
from humanline.train.data.sources import open_source  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

PROMPT = (Message("user", "q"),)
PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
USER, ANSWER, OTHER = (
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a"), ("assistant", "b"))
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def parquet(tmp_path):
    """Write a table (columns as lists, or a pyarrow table) to pairs.parquet."""

    def write(table, **more):
        path = tmp_path / "pairs.parquet"
        pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **more)
        return path

    return write


@pytest.fixture
def on_hub(monkeypatch):
    """Put a function in the place of datasets.load_dataset and return the list of its calls."""

    def put(answer):
        calls = []

        def load_dataset(*args, **kwargs):
            calls.append((args, kwargs))
            assert datasets.are_progress_bars_disabled() and hub.are_progress_bars_disabled()
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return calls

    monkeypatch.setattr(tables, "ask_hub", lambda *_: None)  # which has the file
    tables._load_hub_set.cache_clear()
    drawing = [module for module in (datasets, hub) if not module.are_progress_bars_disabled()]
    yield put
    tables._load_hub_set.cache_clear()
    for module in (datasets, hub):
        module.enable_progress_bars() if module in drawing else module.disable_progress_bars()


def refused(source, shape="preference", columns=None):
    with pytest.raises(DataError) as caught:
        read_rows(source, shape, columns=columns)
    return caught.value


# --- JSON lines ------------------------------------------------------------------------------------------------------


def grown(rng, depth):
    """Return a random JSON value."""
    kind = rng.randrange(6) if depth else rng.randrange(4)
    if kind == 4:
        return [grown(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {rng.choice('ab"\\é🙂,:{}[]') * rng.randrange(3): grown(rng, depth - 1) for _ in range(rng.randrange(4))}
    return [rng.choice(["", '"', "\\", "[{,:}]", "é🙂", 'a\\"b']), rng.random(), None, rng.randrange(100)][kind]


def paths(node, above=()):
    """Return the keys that lead to every value below a node."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path for key, value in inner for path in ((*above, key), *paths(value, (*above, key)))]


def test_places_are_those_of_the_values():
    """In random rows, however spaced, the place of a value is where a unique text put there instead begins."""
    rng = random.Random(0)
    count = 0
    for _ in range(300):
        row = {"x": grown(rng, 4), "y": [grown(rng, 3)]}
        space = rng.choice(["", " ", "\t "])
        for path in paths(row):
            marked = json.loads(json.dumps(row))
            node = marked
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = "@here@"
            style = {"separators": ("," + space, space + ":" + space), "ensure_ascii": rng.random() < 0.5}
            text = space + json.dumps(marked, **style)
            assert json_lines.find(text, path) == text.index('"@here@"')
            count += 1
    assert count > 1000


def test_a_place_that_is_not_there_is_the_nearest_one():
    """A missing column is placed at its row, a missing key of a message at the message, in characters."""
    text = ' {"é": [{"role": "user"}], "b": 1}'
    assert [json_lines.find(text, path) for path in [(), ("c",), ("é", 0, "content"), ("é", 1), ("b", "x")]] == [
        1,
        1,
        8,
        7,
        32,
    ]


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "JSONL"])
def test_json_lines_go_by_their_ending(tmp_path, ending):
    """Endings of JSON lines are read as such in either case, and links keep their own names."""
    path = tmp_path / f"rows.{ending}"
    path.write_text(json.dumps(PAIR))
    (tmp_path / "link.jsonl").symlink_to(path)
    assert read_rows(path, "preference")[0].id == f"rows.{ending}:1"
    assert read_rows(tmp_path / "link.jsonl", "preference")[0].id == "link.jsonl:1"
    assert open_source(str(tmp_path / "no" / ".." / "link.jsonl")).name == str(tmp_path / "link.jsonl")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    """A file that is there but cannot be opened or read is named with the system's reason."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(PAIR))

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    assert str(refused(path)) == f"{path} cannot be read: Permission denied"


# --- parquet ---------------------------------------------------------------------------------------------------------


def test_parquet_reads_like_json_lines(parquet, tmp_path):
    """The same rows, strings or messages, give the same examples from parquet as from JSON lines."""
    rows = [
        {"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [OTHER], "chosen_score": 2.0, "rejected_score": 1.0},
        {"prompt": [USER, ANSWER, USER], "chosen": [ANSWER], "rejected": [OTHER | {"name": "x"}]},
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    from_lines = read_rows(tmp_path / "pairs.jsonl", "preference")
    from_table = read_rows(parquet(pa.Table.from_pylist(rows)), "preference")
    assert [example.id for example in from_table] == ["pairs.parquet:row 1", "pairs.parquet:row 2"]
    for one, other in zip(from_table, from_lines, strict=True):
        assert (one.prompt, one.chosen, one.rejected) == (other.prompt, other.chosen, other.rejected)
        assert (one.chosen_score, one.rejected_score) == (other.chosen_score, other.rejected_score)


def test_nulls_of_a_table_are_absent_where_a_column_is_optional(parquet):
    """A null score, prompt or label that a row may lack is none; in a column that it needs it is a problem."""
    table = {
        "prompt": [None, "q"],
        "chosen": [[USER, ANSWER], [USER, ANSWER]],
        "rejected": [[USER, OTHER], [USER, OTHER]],
        "chosen_score": pa.array([None, None], pa.float64()),
        "rejected_score": pa.array([None, None], pa.float64()),
        "score_chosen": [1, 2],
        "score_rejected": [1, 0],
        "label": [None, True],
    }
    assert read_rows(parquet(table), "preference") == [
        Preference("pairs.parquet:row 1", PROMPT, "a", "b", 1.0, 1.0),
        Preference("pairs.parquet:row 2", PROMPT, "a", "b", 2.0, 0.0),
    ]
    assert read_rows(parquet(table), "completion")[0] == Unpaired("pairs.parquet:row 1", PROMPT, "a")
    table = {"prompt": ["q", None], "chosen": ["a", "a"], "rejected": ["b", None], "chosen_score": [None, 1.0]}
    table["rejected_score"] = pa.array([None, None], pa.float64())
    assert refused(parquet(table)).problems == (
        "pairs.parquet:row 2: 'rejected' is null; expected a string or a list of messages",
        "pairs.parquet:row 2: 'prompt' is null; expected a string or a list of messages",
        "pairs.parquet:row 2: 'chosen_score' stands alone; expected both scores or none",
    )


def test_a_column_that_a_table_lacks_is_one_problem(parquet):
    """A missing column is reported once, with all columns of the file, not once a row."""
    path = parquet({"question": ["q"] * 50, "chosen": ["a"] * 50, "rejected": ["b"] * 50, "more": [[1.0]] * 50})
    (problem,) = refused(path).problems
    assert problem.startswith(
        "pairs.parquet:row 1: no column 'prompt' among 'question', 'chosen', 'rejected', 'more'; "
    )
    (problem,) = refused(path, columns={"prompt": "query"}).problems
    assert problem.startswith("pairs.parquet:row 1: no column 'query' (named in columns); expected it among the row's")
    assert len(read_rows(path, "preference", columns={"prompt": "question"})) == 50
    assert read_rows(path, "prompt", columns={"prompt": "question"})[0].extra["more"] == [1.0]
    assert len(refused(parquet({"x": [1]})).problems) == 3


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pa.array([True, False]), [True, False]),
        (pa.array([1, 0], pa.uint8()), [True, False]),
        (pa.array([1.0, 0.0]), [True, False]),
        (pa.array([0.5, 0.0]), "'label' is 0.5; expected true or false"),
        (pa.array([2**63, 0], pa.uint64()), "'label' is 9223372036854775808; expected true or false"),
        (pa.array(["true", "false"]).dictionary_encode(), "'label' is \"true\"; expected true or false"),
        (pa.array([b"\x01", b"\x00"]), "'label' is of type bytes; expected true or false"),
    ],
    ids=["bool", "uint8", "float", "half", "uint64", "dictionary", "binary"],
)
def test_labels_of_a_table(parquet, labels, expected):
    """Booleans, and numbers 1 and 0 of any width, are labels; nothing else is."""
    path = parquet({"prompt": ["q", "q"], "completion": ["a", "b"], "label": labels})
    if isinstance(expected, list):
        assert [example.label for example in read_rows(path, "unpaired")] == expected
    else:
        assert refused(path, "unpaired").problems[0] == f"pairs.parquet:row 1: {expected}"


@pytest.mark.parametrize(
    ("names", "numbers", "expected"),
    [
        (["False", "True"], [1, 0], [True, False]),
        (["true", "false"], [1, 0], [False, True]),
        (["0", "1"], [1, 0], [True, False]),
        (["good", "bad"], [0, 1], "'label' is \"good\"; expected true or false"),
        (["false", "true"], [-1, 0], "'label' is null; expected true or false"),
    ],
)
def test_class_numbers_mean_what_their_classes_are_called(tmp_path, on_hub, names, numbers, expected):
    """A class called true is true whatever its number; classes with other names are not taken for labels."""
    table = datasets.Dataset.from_dict(
        {"prompt": ["q", "q"], "completion": ["a", "b"], "label": numbers},
        features=datasets.Features(
            prompt=datasets.Value("string"), completion=datasets.Value("string"), label=datasets.ClassLabel(names=names)
        ),
    )
    path = tmp_path / "set.parquet"
    table.to_parquet(path)
    on_hub(table)
    for source, name in ((path, "set.parquet"), ("hub:org/set", "org/set#train")):
        if isinstance(expected, list):
            assert [example.label for example in read_rows(source, "unpaired")] == expected
        else:
            assert refused(source, "unpaired").problems[0] == f"{name}:row 1: {expected}"


def test_numbers_of_a_table(parquet):
    """Integers, decimals and small floats are scores; NaN and infinity are problems with their row."""
    texts = {"prompt": ["q"] * 2, "chosen": ["a"] * 2, "rejected": ["b"] * 2}
    scores = {"chosen_score": [2**62, 3], "rejected_score": [Decimal("0.5"), Decimal("1.5")]}
    (first, second) = read_rows(parquet(texts | scores), "preference")
    assert (first.chosen_score, first.rejected_score, second.rejected_score) == (2.0**62, 0.5, 1.5)
    half = {"chosen_score": pa.array([1, float("nan")], pa.float16()), "rejected_score": [0.0, float("-inf")]}
    assert refused(parquet(texts | half)).problems == (
        "pairs.parquet:row 2: 'chosen_score' is not finite; expected a finite number",
        "pairs.parquet:row 2: 'rejected_score' is not finite; expected a finite number",
    )


def test_bytes_that_are_not_text_cost_one_row(parquet):
    """Bytes that are not UTF-8 in a column of text are a problem of their row, and the others are read."""
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 3, 4)))
    broken = pa.Array.from_buffers(pa.utf8(), 3, [None, offsets, pa.py_buffer(b"a\xff\xfec")])
    error = refused(parquet({"prompt": broken, "chosen": ["a"] * 3, "rejected": ["b"] * 3}))
    (problem,) = error.problems
    assert problem.startswith("pairs.parquet:row 2: 'prompt' cannot be read: 'utf-8' codec can't decode byte 0xff")
    assert ": 1 problem, 2 right rows\n" in str(error)
    reader = SetReader(
        parquet({"prompt": broken, "chosen": broken, "rejected": ["b"] * 3}),
        "preference",
        how=Reading(bad_rows="drop", bad_rows_limit=0.5),
    )
    assert [one.id for one in reader] == ["pairs.parquet:row 1", "pairs.parquet:row 3"]
    left = reader.left_out()  # both columns are told of, and it is one row of three
    assert (left.bad, left.total) == (1, 3) and left.reasons[0].what.count("cannot be read") == 2


def test_rows_are_counted_over_batches(parquet, monkeypatch):
    """Row numbers go on over batches and row groups."""
    monkeypatch.setattr(tables, "_BATCH", 7)
    texts = [f"q{i}" for i in range(50)]
    path = parquet({"prompt": texts, "chosen": ["a"] * 49 + [""], "rejected": ["b"] * 50}, row_group_size=20)
    assert refused(path).problems == ("pairs.parquet:row 50: 'chosen' is empty; expected some text",)


@pytest.mark.parametrize(
    ("bend", "message"),
    [
        (lambda content: b"", "cannot be read as parquet: Parquet file size is 0 bytes"),
        (
            lambda content: json.dumps(PAIR).encode() * 9,
            r"cannot be read as parquet: Parquet magic .*\nIt begins as JSON does: give it the ending \.jsonl",
        ),
        (gzip.compress, r"cannot be read as parquet: .*\nIt is a gzip archive. Unpack it: gzip -dc OLD > NEW\.parquet"),
        (lambda content: content[:-9], "cannot be read as parquet: "),
        (lambda content: content[:40] + b"\xff" * 3000 + content[3040:], "cannot be read as parquet: "),
        (lambda content: content.replace(b"q123 ", b"q124 ", 1), "cannot be read as parquet: .*CRC checksum"),
    ],
    ids=["empty", "JSON", "packed", "cut off", "overwritten", "one byte"],
)
def test_broken_parquet_is_an_error(parquet, bend, message):
    """A file that is not parquet, was cut off or was overwritten (one byte, where it has checksums) is refused."""
    table = {"prompt": [f"q{i} " * 4 for i in range(999)], "chosen": ["a"] * 999, "rejected": ["b"] * 999}
    path = parquet(table, compression="none", use_dictionary=False, write_page_checksum=True)
    content = path.read_bytes()
    assert bend(content) != content
    path.write_bytes(bend(content))
    with pytest.raises(DataError, match=message) as caught:
        read_rows(path, "preference")
    assert str(path) in str(caught.value) and len(str(caught.value).splitlines()) == 1 + message.count(r"\n")


def test_random_damage_to_parquet_is_never_a_surprise(parquet):
    """Of 300 files with overwritten bytes each is read or refused; the reader neither crashes nor hangs."""
    rng = random.Random(0)
    path = parquet({"prompt": [f"q{i}" for i in range(99)], "chosen": [[ANSWER]] * 99, "rejected": [[OTHER]] * 99})
    content = path.read_bytes()
    outcomes = set()
    for _ in range(300):
        at, size = rng.randrange(len(content)), rng.choice([1, 1, 4, 64])
        path.write_bytes(content[:at] + rng.randbytes(size) + content[at + size :])
        try:
            read_rows(path, "preference")
            outcomes.add("read")
        except DataError as error:
            outcomes.add("refused")
            assert len(str(error).splitlines()) <= 30
    assert outcomes == {"read", "refused"}


def test_parquet_without_rows_or_with_a_name_twice(parquet):
    """A table without rows and one with two columns of one name are errors."""
    empty = pa.table({name: pa.array([], pa.string()) for name in PAIR})
    assert str(refused(parquet(empty))).splitlines()[0].endswith("pairs.parquet has no rows")
    twice = pa.table([pa.array(["q"]), pa.array(["r"])], names=["prompt", "prompt"])
    assert str(refused(parquet(twice))).endswith("has two columns 'prompt'; expected each name once")


def test_parquet_loads_neither_torch_nor_a_cache(parquet, tmp_path):
    """Reading parquet prints nothing, loads neither torch nor datasets, and writes nothing."""
    path = parquet({name: [text] for name, text in PAIR.items()})
    code = "import sys; from humanline.train.data.rows import read_rows; "
    code += f"print(read_rows({str(path)!r}, 'preference')[0].id)"
    code += "; print({'torch', 'datasets', 'transformers'} & set(sys.modules))"
    home = tmp_path / "home"
    home.mkdir()
    environment = os.environ | {"HOME": str(home), "HF_HOME": str(home), "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=home, env=environment)
    assert (result.stdout, result.stderr) == ("pairs.parquet:row 1\nset()\n", "")
    assert sorted(item.name for item in tmp_path.rglob("*")) == ["home", "pairs.parquet"]


def test_importing_the_reader_loads_no_library():
    """Neither module loads torch, transformers, numpy, pyarrow or datasets before it needs them."""
    code = "import sys, humanline.train.data.rows, humanline.train.data.sources\n"
    code += "print({'torch', 'transformers', 'numpy', 'pyarrow', 'datasets', 'huggingface_hub'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (result.stdout, result.stderr) == ("set()\n", "")


@pytest.mark.parametrize(("package", "source"), [("pyarrow.parquet", "pairs.parquet"), ("datasets", "hub:org/name")])
def test_a_missing_package_is_named_with_the_way_to_get_it(parquet, monkeypatch, package, source):
    """Without the libraries of the train extra the message says what to install."""
    path = parquet({name: [text] for name, text in PAIR.items()})
    monkeypatch.setitem(sys.modules, package, None)
    tables._load_hub_set.cache_clear()
    error = refused(path if source.endswith("parquet") else source)
    assert install("train") in str(error)


# --- the hub ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "repository", "subset", "revision", "split", "row"),
    [
        ("hub:org/name", "org/name", None, None, "train", "org/name#train:row 1"),
        ("hub:org/name#test", "org/name", None, None, "test", "org/name#test:row 1"),
        ("hub:org/name/sub.set#a_b", "org/name", "sub.set", None, "a_b", "org/name/sub.set#a_b:row 1"),
        ("hub:o-1/n_2.x/en@refs/pr/3#x", "o-1/n_2.x", "en", "refs/pr/3", "x", "o-1/n_2.x/en#x:row 1"),
        (f"hub:org/name@{COMMIT}", "org/name", None, COMMIT, "train", "org/name#train:row 1"),
    ],
)
@pytest.mark.parametrize("bars", [True, False])
def test_hub_names(on_hub, bars, name, repository, subset, revision, split, row):
    """Each part of a hub name reaches the library, which looks on the hub alone; progress bars stay as they were."""
    calls = on_hub(datasets.Dataset.from_list([PAIR]))
    for module in (datasets, hub):
        module.enable_progress_bars() if bars else module.disable_progress_bars()
    (example,) = read_rows(name, "preference")
    assert example == Preference(row, PROMPT, "a", "b")
    assert calls == [((f"hf://datasets/{repository}", subset), {"split": split, "revision": revision})]
    read_rows(name, "preference")
    assert len(calls) == 1  # one version for the whole process
    assert {datasets.are_progress_bars_disabled(), hub.are_progress_bars_disabled()} == {not bars}


def test_rows_of_the_hub_are_checked_as_strictly(on_hub):
    """Problems of a hub set are named by set and row, and missing keys count as absent."""
    rows = [
        PAIR | {"chosen_score": 1.0, "rejected_score": 0.0},
        PAIR,
        PAIR | {"chosen": None},
        PAIR | {"rejected": "a"},
    ]
    on_hub(datasets.Dataset.from_list(rows))
    error = refused("hub:org/name@main#test")
    assert str(error).startswith("hub:org/name@main#test: 2 problems, 2 right rows\n")
    assert error.problems == (
        "org/name#test:row 3: 'chosen' is null; expected a string or a list of messages",
        "org/name#test:row 4: 'chosen' and 'rejected' are the same; expected two answers",
    )


def test_a_selection_and_messages_of_the_hub(on_hub):
    """Rows come in the set's own order, as messages, and columns that are not asked for are not touched."""
    rows = [{"chosen": [USER, ANSWER], "rejected": [USER, OTHER | {"content": str(i)}], "other": i} for i in range(9)]
    on_hub(datasets.Dataset.from_list(rows).select([5, 2]))
    assert [example.rejected for example in read_rows("hub:org/name", "preference")] == ["5", "2"]


HUB_ERRORS = datasets.exceptions


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (
            HUB_ERRORS.DatasetNotFoundError("Dataset 'org/name' is a gated dataset on the Hub. Log in."),
            r"gated dataset.*\nAsk for access at https://huggingface.co/datasets/org/name and log in: hf auth login$",
        ),
        (
            HUB_ERRORS.DatasetNotFoundError("Dataset 'org/name' doesn't exist on the Hub or cannot be accessed."),
            r"doesn't exist.*\nCheck the name at https://.*; a private set needs a login: hf auth login$",
        ),
        (
            HUB_ERRORS.DatasetNotFoundError("Revision 'x' doesn't exist for dataset 'org/name' on the Hub."),
            r"Revision 'x' doesn't exist for dataset 'org/name'",
        ),
        (ConnectionError("Couldn't reach 'org/name' on the Hub (OfflineModeIsEnabled)"), r"\nIt is not in the cache"),
        (
            ValueError("BuilderConfig 'x' not found. Available: ['a', 'b']"),
            r"BuilderConfig 'x' not found. Available: \['a', 'b'\]\nSee https://.*; sets of the hub are written hub:",
        ),
        (
            ValueError("Config name is missing.\nPlease pick one among the available configs: ['a', 'b']"),
            r"Config name is missing. Please pick one among the available configs: \['a', 'b'\]\n",
        ),
        (ValueError('Unknown split "train". Should be one of [\'test\'].'), r'Unknown split "train"'),
        (HUB_ERRORS.DataFilesNotFoundError("No (supported) data files found in org/name"), r"No \(supp"),
        (RuntimeError("Dataset scripts are no longer supported, but found name.py"), r"no longer"),
        (HUB_ERRORS.DatasetGenerationError("An error occurred while generating the dataset"), r"while gen"),
        (HUB_ERRORS.NonMatchingSplitsSizesError([{"a": 1}] * 200), r"cannot be loaded: .{300}\n"),
        (OSError("Not enough disk space"), r"Not enough disk space"),
        (KeyError(), r"cannot be loaded: KeyError"),
    ],
)  # fmt: skip
def test_what_the_hub_refuses_is_said_in_two_lines(on_hub, raised, message):
    """Each way in which the library fails gives our error with its reason and what to do."""
    on_hub(raised)
    error = refused("hub:org/name")
    assert str(error).startswith("hub:org/name#train cannot be loaded: ")
    assert len(str(error).splitlines()) == 2
    assert re.search(message, str(error)), str(error)


def test_a_hub_out_of_reach_is_said_at_once(monkeypatch):
    """One look-up of its name (or two), no second try; the cache is asked, and settings are as they were."""
    asked = []

    def lookup(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    before = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    tables._load_hub_set.cache_clear()
    error = refused("hub:nobody/no-such-set")
    assert len(asked) <= 2  # none where the environment says that there is no network
    assert "the hub cannot be reached (" in str(error) and "It is not in the cache either." in str(error)
    after = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    assert after == before


def test_a_cause_is_told_too(on_hub):
    """The library's general sentence comes with the reason behind it."""
    failure = HUB_ERRORS.DatasetGenerationError("An error occurred while generating the dataset")
    failure.__cause__ = ValueError("line 7 is not JSON")
    on_hub(failure)
    assert "generating the dataset: line 7 is not JSON" in str(refused("hub:org/name"))


def cached_at(commit, folder):
    """Return a set as if loaded from the cache folder of a commit."""
    (folder / commit).mkdir()
    with datasets.arrow_writer.ArrowWriter(path=str(folder / commit / "name-train.arrow")) as writer:
        writer.write(PAIR)
        writer.finalize()
    return datasets.Dataset.from_file(str(folder / commit / "name-train.arrow"))


def test_another_commit_than_asked_for_is_refused(on_hub, tmp_path):
    """When the library falls back to a cached commit that was not asked for, the run does not go on with it."""
    on_hub(cached_at(COMMIT, tmp_path))
    assert len(read_rows(f"hub:org/name@{COMMIT}", "preference")) == 1
    error = refused(f"hub:org/name@{'f' * 40}")
    assert f"the hub was not reached, and the cache holds commit {COMMIT}" in str(error)


def test_the_hub_out_of_reach_is_an_error_in_words(tmp_path):
    """Offline and without a cache, a hub name gives our message, loads no torch and leaves nothing behind."""
    code = "import sys\nfrom humanline.train.data.source import DataError\n"
    code += "from humanline.train.data.rows import read_rows\n"
    code += "try:\n    read_rows('hub:org/name', 'preference')\nexcept DataError as error:\n    print(error)\n"
    code += "print('torch' in sys.modules)"
    work = tmp_path / "work" / "org" / "name"  # a folder of that name is not taken for the set
    work.mkdir(parents=True)
    (work / "train.jsonl").write_text(json.dumps(PAIR))
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path / "work", env=environment
    )
    first, advice, torch_loaded = result.stdout.splitlines()
    assert first.startswith("hub:org/name#train cannot be loaded: the hub cannot be reached (")
    assert advice.startswith("It is not in the cache either.") and torch_loaded == "False"
    assert result.stderr == ""
    assert sorted(item.name for item in (tmp_path / "work").rglob("*")) == ["name", "org", "train.jsonl"]


def test_a_mistyped_path_never_reaches_the_network(on_hub, tmp_path, monkeypatch):
    """Names that are no files are refused without asking the hub, whatever they look like."""
    calls = on_hub(datasets.Dataset.from_list([PAIR]))
    monkeypatch.chdir(tmp_path)
    for name in ("org/name", "pairs.parquet", "pairs", "hf://datasets/org/name", "Hub:org/name", "./hub:org/name"):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            read_rows(name, "preference")
    assert calls == []
