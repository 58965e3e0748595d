"""Units of a set as columns: what is read in batches and packed is what each row gives when it is rendered alone."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import random
import signal
import tracemalloc

import numpy as np
import pytest
from rich.console import Console

from humanline.system.progress import ReadingProgress
from humanline.system.stop import StopRequested, StopSignal
from humanline.train.config import TrainConfig
from humanline.train.data import tokenize as tokens
from humanline.train.data.batch import Unit
from humanline.train.data.compiled_template import CompiledTemplate
from humanline.train.data.messages import Message
from humanline.train.data.prompts import read_contexts
from humanline.train.data.render import Renderer
from humanline.train.data.rows import read_rows
from humanline.train.data.sequences import IdStore
from humanline.train.data.sets import read_sets, read_units
from humanline.train.data.shapes import Group, Preference, Unpaired
from humanline.train.data.stream import Stream
from humanline.train.data.text_ids import TextIds
from humanline.train.data.tokenize import tokenize
from humanline.train.data.units import SIDES, Names, columns_of, count_tokens, lengths_of, units_hash
from tests.helpers.rows import render

WORDS = "the cat sat on a mat and two dogs ran home; Grüße aus Köln 東京 🙂 42 = 40 + 2".split()  # noqa: SIM905


def text(rng, most=20):
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def make_rows(shape, count=60, seed=0):
    """Rows with prompts and answers that come again, scores where asked for, message lists in between."""
    rng = random.Random(seed)
    prompts = [text(rng) for _ in range(count // 3)]
    rows = []
    for i in range(count):
        prompt = rng.choice(prompts)
        row = {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]}
        row = row if i % 7 == 3 else {"prompt": prompt}
        if shape == "unpaired":
            row |= {"completion": f"{text(rng)} {i % 9}", "label": i % 3 == 0}
        else:
            row |= {"chosen": f"{text(rng)} {i % 5}", "rejected": f"{text(rng)}! {i % 7}"}
            row |= {"chosen_score": 2.0 + i, "rejected_score": -1.5} if shape == "scored" else {}
        rows.append(row)
    return rows


def config_of(path, kind, shape="preference", **data):
    return TrainConfig.model_validate(
        {
            "model": "m",
            "output": "o",
            "objective": {"kind": kind},
            "data": {"train": str(path), "shape": shape, "max_length": 40, **data},
            "optimizer": {"lr": 1e-5},
            "training": {"steps": 1, "batch_size": 2},
        }
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def plain_units(path, kind, shape, renderer):
    """The units of a file, row by row, each sequence rendered by itself: the long way to the same."""
    units = []
    for row in read_rows(path, "completion" if kind == "nll" else shape):
        answers = (row.chosen, row.rejected) if isinstance(row, Preference) else (row.completion,)
        try:
            one = tuple(render(renderer, row.prompt, answer, row.given) for answer in answers)
        except ValueError:
            continue
        if len(one) == 2 and one[0].ids == one[1].ids:
            continue
        if kind == "kto" and isinstance(row, Preference):
            units += [Unit(f"{row.id}#{name}", (s,), name == "chosen") for name, s in zip(SIDES, one, strict=True)]
        elif kind == "grpo":
            scores = (1.0, 0.0) if row.chosen_score is None else (row.chosen_score, row.rejected_score)
            units.append(Unit(row.id, one, scores=scores))
        else:
            units.append(Unit(row.id, one, row.label is not False if isinstance(row, Unpaired) else True))
    return units


def plain_hash(units):
    """The hash that checkpoints hold since before there were columns."""
    sha = hashlib.sha256()
    for unit in units:
        facts = [unit.id, unit.desirable, unit.scores, [(len(s.ids), s.prompt_length) for s in unit.sequences]]
        sha.update(json.dumps(facts).encode())
        for sequence in unit.sequences:
            sha.update(np.asarray(sequence.ids, dtype=np.int64).tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("template", ["chat", "plain"])
@pytest.mark.parametrize("too_long", ["drop", "truncate"])
@pytest.mark.parametrize(
    ("kind", "shape", "rows"),
    [
        ("dpo", "preference", "preference"),
        ("kto", "preference", "preference"),
        ("kto", "unpaired", "unpaired"),
        ("grpo", "preference", "scored"),
        ("nll", "completion", "preference"),
    ],
)
def test_a_set_read_in_batches_is_each_row_by_itself(
    tmp_path, tokenizer, monkeypatch, kind, shape, rows, too_long, template
):
    """Names, ids, labels, scores, order and hash are those of row after row, whatever the size of the batches."""
    found = make_rows(rows)
    if template == "plain":
        found = [row for row in found if isinstance(row["prompt"], str)]
    path = write(tmp_path / "rows.jsonl", found)
    config = config_of(path, kind, shape, too_long=too_long, template=template)
    expected = plain_units(path, kind, shape, Renderer(tokenizer, template, 40, too_long))
    assert len(expected) > 10 and any(s.truncated for u in expected for s in u.sequences) == (too_long == "truncate")
    for size in (1, 7, 1000):
        monkeypatch.setattr(tokens, "_ROWS", size)
        monkeypatch.setattr(tokens, "_LATELY", 1000 * size)
        units, report = read_units(config, str(path), Renderer(tokenizer, template, 40, too_long))
        assert units == expected and units[-1] == expected[-1] and units[3:5] == expected[3:5]
        assert units_hash(units) == units_hash(expected) == plain_hash(expected)
        assert [*lengths_of(units)] == [*lengths_of(expected)] and count_tokens(units) == count_tokens(expected)
        assert [*map(list, columns_of(units))] == [*map(list, columns_of(expected))]
        assert report.prompts == len({u.sequences[0].ids[: u.sequences[0].prompt_length] for u in expected})
    if kind == "kto" and shape == "preference":
        assert units.pairs() == plain_units(path, "dpo", shape, Renderer(tokenizer, template, 40, too_long))


def test_batches_of_columns_are_those_of_a_list(tmp_path, tokenizer):
    """A stream gives the same rows, micro-batches and mismatched pairs over columns as over a list of the units."""
    path = write(tmp_path / "rows.jsonl", make_rows("preference"))
    units, _ = read_units(config_of(path, "kto", too_long="drop"), str(path), Renderer(tokenizer, "chat", 40, "drop"))
    settings = {"batch_size": 6, "micro_batch_size": None, "micro_batch_tokens": 256, "seed": 3, "pad_id": 0}
    objective = config_of(path, "kto").objective
    streams = [Stream(one, objective, max_length=40, **settings) for one in (units, list(units))]
    for step in range(12):
        for one, other in zip(*(stream.step(step).micro_batches for stream in streams), strict=True):
            assert one.rows == other.rows and one.block.input_ids.equal(other.block.input_ids)
            assert one.mismatched.names == other.mismatched.names
            assert one.mismatched.input_ids.equal(other.mismatched.input_ids)


def test_every_text_is_tokenised_once(tmp_path, tokenizer, monkeypatch):
    """The tokenizer is given no prompt and no answer twice, and few batches of them, whatever repeats in a set."""
    given = []
    many = TextIds.many
    monkeypatch.setattr(TextIds, "many", lambda self, texts: given.append(list(texts)) or many(self, texts))
    rows = make_rows("preference", 300)
    path = write(tmp_path / "rows.jsonl", rows + rows)
    monkeypatch.setattr(tokens, "_ROWS", 200)
    read_units(config_of(path, "dpo", max_length=512), str(path), Renderer(tokenizer, "chat", 512))
    assert len(given) == 3 and given[-1] == []
    seen = [one for batch in given for one in batch]
    assert len(seen) == len(set(seen)) < 3 * len(rows)


def test_a_set_takes_little_memory(tmp_path, tokenizer):
    """What stays of a row is 2 bytes a token, its prompt once, and less than 120 bytes beside them."""
    rng = random.Random(1)
    rows = [{"prompt": f"{i} {text(rng)}", "chosen": text(rng), "rejected": f"{text(rng)} {i}"} for i in range(1500)]
    path = write(tmp_path / "rows.jsonl", rows)
    config, renderer = config_of(path, "dpo", max_length=512), Renderer(tokenizer, "chat", 512)
    read_units(config, str(path), renderer)  # caches of the template and the tokenizer
    tracemalloc.start()
    try:
        units, _ = read_units(config, str(path), renderer)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    whole, completions = count_tokens(units)
    kept -= 2 << 20  # of ids that are not packed yet: at most a chunk of them, of 4 bytes each
    assert kept / len(units) < 2 * (completions + (whole - completions) / 2) / len(units) + 120


@pytest.mark.parametrize("largest", [60_000, 150_000, 1 << 25])
def test_ids_come_back_from_few_bytes(largest, monkeypatch):
    """Ids of any size come back as they went in, from two, three or four bytes each, packed or not yet."""
    monkeypatch.setattr("humanline.train.data.sequences._CHUNK", 50)
    rng = random.Random(largest)
    store, expected = IdStore(), []
    for _ in range(200):
        ids = [rng.randint(0, largest) for _ in range(rng.randint(0, 30))]
        expected.append((store.add(ids), ids))
    for start, ids in expected:
        assert store.read(start, len(ids)).tolist() == ids
        assert store.read(start + 1, max(0, len(ids) - 2)).tolist() == ids[1:-1]
    width = 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4
    assert all(chunk.nbytes == width * len(chunk) for chunk in store._chunks)


def test_names_come_back():
    """Names with one beginning and a number are kept as numbers, any others as they are."""
    given = ["a.jsonl:1", "a.jsonl:20", "b.jsonl:3", "a.jsonl:007", "a.jsonl:", "", "a.jsonl:٣", "a.jsonl:" + "9" * 30]
    names = Names()
    for name in given:
        names.append(name)
    assert list(names) == given and names[-3] == given[-3] and names[1:3] == given[1:3]
    with pytest.raises(IndexError):
        names[len(given)]


@pytest.mark.parametrize("automatic", [True, False])
def test_the_garbage_collector_is_as_it_was(automatic):
    """While batches are given the collector waits; then, also after an error, it is on or off as it was before."""
    before = gc.isenabled()
    try:
        (gc.enable if automatic else gc.disable)()
        rows = [Unpaired(f"f:{i}", (Message("user", "a"),), "b") for i in range(2500)]
        found = []
        with contextlib.suppress(KeyError), contextlib.closing(tokens.in_batches(rows)) as batches:
            for batch in batches:
                found.append((len(batch), gc.isenabled()))
                if len(found) == 3:
                    raise KeyError
        assert found == [(1000, False), (1000, False), (500, False)] and gc.isenabled() == automatic
    finally:
        (gc.enable if before else gc.disable)()


# ---------------------------------------------------------------------------------------------------------------------
# Texts and templates, many at a time


def test_ids_of_many_are_those_of_one(tokenizer):
    """A batch has the ids that each text has alone, and leaves the environment as it was."""
    before = dict(os.environ)
    rng = random.Random(2)
    texts = ["", " ", "<|end|>a<|end|>\n", *(text(rng) for _ in range(50))]
    ids = TextIds(tokenizer)
    assert ids.many(texts) == [tokenizer.encode(one, add_special_tokens=False) for one in texts]
    assert ids.many([]) == [] and dict(os.environ) == before


def test_a_backend_that_differs_is_not_used(tokenizer):
    """Where a batch comes out otherwise than the tokenizer's own encode, each text is encoded by itself."""
    ids = TextIds(tokenizer)
    ids._many = lambda texts: [tokenizer.backend_tokenizer.encode(one.upper()).ids for one in texts]
    assert ids.many(["a cat", "b"]) == [tokenizer.encode(one, add_special_tokens=False) for one in ("a cat", "b")]


TEMPLATES = [
    None,
    "{{ bos_token }}{% for m in messages %}{{ m.role|upper }}: {{ m['content'].strip() }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}",
    "{% set ns = namespace(n=0) %}{% macro say(m) %}[{{ m.role }}]{{ m.content }}{% endmacro %}{% for m in messages %}"
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ say(m) }}{{ tools is none }}{{ documents }}{% endfor %}{{ range(2)|list }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_compiled_template_writes_what_the_tokenizer_writes(tokenizer, template):
    """Text for text the same as apply_chat_template, before and after it is trusted."""
    import copy

    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template or tokenizer.chat_template
    compiled, rng = CompiledTemplate(tokenizer), random.Random(3)
    for i in range(30):
        turns = (Message("user", text(rng)), Message("assistant", f" {text(rng)}\n"))[: 1 + i % 2]
        messages = [turn.as_dict() for turn in turns]
        expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=i % 3 == 0)
        assert compiled.write(turns, i % 3 == 0) == expected
    tokenizer.chat_template = "another{{ messages[0].content }}"
    assert compiled.write((Message("user", "a"),), True) == "anothera"


def test_a_compiled_template_leaves_the_unusual_alone(tokenizer):
    """Nothing is written where the template raises, is one of several, or the tokenizer writes in its own way."""
    import copy

    turns = (Message("user", "a"),)
    raising = copy.deepcopy(tokenizer)
    raising.chat_template = "{{ raise_exception('no') }}"
    assert CompiledTemplate(raising).write(turns, True) is None
    raising.chat_template = {"default": "a", "tool_use": "b"}
    assert CompiledTemplate(raising).write(turns, True) is None

    class Own(type(tokenizer)):
        def apply_chat_template(self, *args, **kwargs):
            return "mine"

    own = copy.deepcopy(tokenizer)
    own.__class__ = Own
    assert CompiledTemplate(own).write(turns, True) is None
    differing = copy.deepcopy(tokenizer)
    differing.apply_chat_template = lambda *args, **kwargs: "other"
    compiled = CompiledTemplate(differing)
    assert compiled.write(turns, True) is None and compiled.write(turns, True) is None


def test_groups_of_any_size_are_tokenised(tokenizer):
    """Groups of different sizes keep their own sequences, and one whose answers are all cut to the same is left out."""
    user = (Message("user", "a"),)
    groups = [
        Group("f:1", user, ("a", "b", "c"), (1.0, 2.0, 3.0)),
        Group("f:2", user, ("x " * 90, "x " * 80), (1.0, 2.0)),
        Group("f:3", user, ("c", "d"), (1.0, 2.0)),
    ]
    renderer = Renderer(tokenizer, "plain", 24, "truncate")
    tokenized = tokenize(groups, renderer)
    found = tokenized.examples, tokenized.sequences
    assert [(one.id, len(s)) for one, s in zip(*found, strict=True)] == [("f:1", 3), ("f:3", 2)]
    for one, sequences in zip(tokenized.examples, tokenized.sequences, strict=True):
        assert [render(renderer, user, answer) for answer in one.completions] == [*sequences]


def test_prompts_of_rounds_are_read_in_batches_too(tmp_path, tokenizer, monkeypatch):
    """Prompts with their columns, ids and report are those of row after row, and their reading is counted."""
    rng = random.Random(5)
    rows = [{"prompt": text(rng, 4), "answer": i} for i in range(40)]
    path = write(tmp_path / "prompts.jsonl", rows + rows[:3])
    tree = config_of(path, "grpo").model_dump() | {
        "source": {
            "kind": "rounds",
            "contexts_per_round": 4,
            "samples": 2,
            "count": 1,
            "sampling": {"max_tokens": 8, "system_prompt": "Be brief."},
            "scoring": {"rewards": [{"kind": "format"}]},
        },
        "reference": {"schedule": {"kind": "each_round"}},
        "data": {"train": str(path), "max_length": 64},
        "training": {"batch_size": 2},
    }
    config = TrainConfig.model_validate(tree)
    told = []

    @contextlib.contextmanager
    def counting(name):
        yield lambda *now: told.append((name, *now))

    found = []
    for size in (1, 7, 1000):
        monkeypatch.setattr(tokens, "_ROWS", size)
        renderer = Renderer(tokenizer, "chat", 64)
        contexts, report = read_contexts(config, str(path), renderer, counting)
        found.append((contexts, str(report)))
    assert found[0] == found[1] == found[2] and told == [("prompts.jsonl", 43, 1.0)] * 3
    for context, row in zip(contexts, rows + rows[:3], strict=True):
        asked = (Message("system", "Be brief."), Message("user", row["prompt"]))
        assert context.prompt == asked and context.ids == renderer.render_prompt(asked)
        assert context.extra == {"answer": row["answer"]}
    repeated = 43 - len({row["prompt"] for row in rows})
    assert report.duplicates.duplicates == repeated and report.prompts == 43 - repeated


# ---------------------------------------------------------------------------------------------------------------------
# The counter


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def shown(monkeypatch, **settings):
    import io

    out = io.StringIO()
    clock = Clock()
    progress = ReadingProgress(show=True, clock=clock)
    progress.console = Console(file=out, width=100, **settings)
    return progress, clock, out


def test_a_long_reading_is_told_of_in_lines(monkeypatch):
    """Elsewhere than in a terminal there is a line every ten seconds, the first after ten, and one at the end."""
    progress, clock, out = shown(monkeypatch)
    with progress("pairs\x1b[31m.jsonl") as tell:
        for second in range(1, 31):
            clock.now = second
            tell(1000 * second, second / 40)
        clock.now = 40
        tell(40_123, 1.0)
    assert out.getvalue().splitlines() == [
        "reading pairs\\x1b[31m.jsonl: 10,000 of about 40,000 rows, about 30 s left",
        "reading pairs\\x1b[31m.jsonl: 20,000 of about 40,000 rows, about 20 s left",
        "reading pairs\\x1b[31m.jsonl: 30,000 of about 40,000 rows, about 10 s left",
        "reading pairs\\x1b[31m.jsonl: 40,123 rows, 40 s",
    ]


def test_a_short_reading_is_silent(monkeypatch):
    """A set that is read in a few seconds is not spoken of, and one of unknown size has no time left."""
    progress, clock, out = shown(monkeypatch)
    with progress("a") as tell:
        clock.now = 9
        tell(9, 0.9)
        tell(10, 1.0)
    assert out.getvalue() == ""
    with progress("a") as tell:
        clock.now = 40
        tell(9, 0.0)
    assert out.getvalue() == "reading a: 9 rows\n"


def test_a_terminal_has_a_bar(monkeypatch):
    """In a terminal a bar shows the rows so far and about how many there are, with names as text."""
    progress, clock, out = shown(monkeypatch, force_terminal=True)
    with progress("[red]pairs.jsonl") as tell:
        clock.now = 2
        tell(500, 0.25)
    assert "reading [red]pairs.jsonl" in out.getvalue() and "500 of about 2,000 rows" in out.getvalue()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_reader_tells_how_far_it_is(tmp_path, tokenizer, ending):
    """The share of a file rises to 1 while its rows are counted, whatever it is a file of."""
    rows = [{"prompt": f"{i}", "chosen": "a", "rejected": "b"} for i in range(2600)]
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        write(path, rows)
    told = []

    @contextlib.contextmanager
    def counting(name):
        yield lambda *now: told.append((name, *now))

    read_sets(config_of(path, "dpo"), Renderer(tokenizer, "chat", 40), counting)
    assert [rows for _, rows, _ in told] == [500, 1000, 1500, 2000, 2500, 2600]
    shares = [share for _, _, share in told]
    assert told[0][0] == path.name and shares == sorted(shares) and 0 < shares[0] < 0.7 and shares[-1] == 1


def test_a_signal_ends_reading_at_once(tmp_path, tokenizer):
    """A SIGTERM in the middle of a set raises where it arrives, as nothing is there to save, and no more is read."""
    path = write(tmp_path / "rows.jsonl", make_rows("preference", 2000))
    told = []

    @contextlib.contextmanager
    def counting(name):
        def tell(rows, share):
            told.append(rows)
            os.kill(os.getpid(), signal.SIGTERM)

        yield tell

    with pytest.raises(StopRequested), StopSignal():
        read_sets(config_of(path, "dpo", max_length=512), Renderer(tokenizer, "chat", 512), counting)
    assert told == [500]
