"""`humanline inspect-data`: from rows to levels, on the toy task."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from humanline.cli import main
from humanline.evaluate.file_facts import describe_facts, facts_as_json, facts_of
from humanline.evaluate.inspect_run import config_of_file, inspect_data
from humanline.evaluate.inspection import describe
from humanline.evaluate.model_files import files_of
from humanline.evaluate.score_rows import ScoreBook, key_of, passes_of, score_plan
from humanline.train.data.rows import SetReader
from humanline.train.data.run_data import renderer_of
from humanline.train.data.sets import read_units
from humanline.train.online.ledger import LedgerError
from humanline.train.policy.load import load_tokenizer
from tests.helpers.support import config


def silent(text: str) -> None:
    """Say nothing."""


def look(toy, folder: Path, **changes):
    """Inspect the toy's pairs."""
    how = {name: changes.pop(name) for name in ("rows", "stop", "own_samples", "progress") if name in changes}
    return inspect_data(config(toy, folder / "run", **changes), out=str(folder / "look"), say=silent, **how)


def test_levels_are_the_trainer_s_own(toy, tmp_path):
    """Sums over the answer's tokens with its end token, without its prompt, as a plain loop has it."""
    from transformers import AutoModelForCausalLM

    from humanline.train.data.run_data import read_data, renderer_of
    from humanline.train.setup import set_up

    found = look(toy, tmp_path)
    settings = config(toy, tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(toy["model"], dtype=torch.float32).eval()
    tokenizer = load_tokenizer(toy["model"])
    units = read_data(settings, renderer_of(settings, tokenizer)).sets.train
    for row, unit in enumerate(units):
        for member, one in enumerate(unit.sequences):
            assert tokenizer.eos_token_id in one.ids[one.prompt_length :]
            ids = torch.tensor([one.ids])
            with torch.no_grad():
                logprobs = model(ids).logits[0].log_softmax(-1)
            wanted = sum(logprobs[i - 1, one.ids[i]].item() for i in range(one.prompt_length, len(one.ids)))
            assert found.scores.sums[row, member] == pytest.approx(wanted, abs=1e-4)
            assert found.scores.tokens[row, member] == len(one.ids) - one.prompt_length
    held = config(toy, tmp_path / "other", data__eval=toy["pairs"])
    with set_up(held, show_progress=False) as ready:
        metrics = ready.evaluator.start()
    levels = found.levels()
    assert levels["chosen"].nats.mean == pytest.approx(metrics["chosen_logprob"], abs=1e-6)
    assert levels["rejected"].nats.mean == pytest.approx(metrics["rejected_logprob"], abs=1e-6)


def test_padded_and_padding_free_scoring_agree(toy, tmp_path):
    """And so do passes of any size."""
    padded = look(toy, tmp_path / "a")
    free = look(toy, tmp_path / "b", training__padding="free")
    few = look(toy, tmp_path / "c", training__micro_batch_size=None, training__micro_batch_tokens=40)
    assert np.abs(padded.scores.sums - free.scores.sums).max() < 2e-5
    assert np.abs(padded.scores.sums - few.scores.sums).max() < 2e-5
    assert padded.levels()["pair"].nats.mean == pytest.approx(free.levels()["pair"].nats.mean, abs=1e-6)


def test_a_second_look_runs_no_model(toy, tmp_path, monkeypatch):
    """Nor does one at a part of the rows, or at a file that holds them in another order."""
    from humanline.train.policy import build

    first = look(toy, tmp_path)
    monkeypatch.setattr(build, "build_policy", lambda *_: pytest.fail("the model was loaded again"))
    again = look(toy, tmp_path)
    assert np.array_equal(first.scores.sums, again.scores.sums)
    part = look(toy, tmp_path, rows=9)
    places = [first.names.index(name) for name in part.names]
    assert len(set(places)) == 9 and np.array_equal(part.scores.sums, first.scores.sums[places])
    assert part.levels()["pair"].nats.interval().half_width > first.levels()["pair"].nats.interval().half_width
    other = tmp_path / "other.jsonl"
    other.write_text("".join(reversed(Path(toy["pairs"]).read_text().splitlines(keepends=True))))
    turned = look(toy, tmp_path, data__train=str(other))
    assert np.array_equal(turned.scores.sums, first.scores.sums[::-1])


def test_a_copy_of_the_model_draws_the_same_answers(toy, tmp_path):
    """Whatever its folder and the times of its files: the seed decides."""
    first = look(toy, tmp_path / "a", own_samples=6)
    model = shutil.copytree(toy["model"], tmp_path / "copy", copy_function=shutil.copyfile)
    again = look(toy, tmp_path / "b", own_samples=6, model=str(model))
    assert np.array_equal(first.own.scores.sums, again.own.scores.sums)
    assert np.array_equal(first.own.scores.tokens, again.own.scores.tokens)
    other = look(toy, tmp_path / "c", own_samples=6, seed=5)
    assert not np.array_equal(first.own.scores.sums, other.own.scores.sums)


def test_answers_drawn_under_another_template_are_drawn_anew(toy, tmp_path):
    """In the folder of a first look as in a fresh one; those of the same look are said to be the same."""
    look(toy, tmp_path / "a", own_samples=6)
    told: list[str] = []
    for where in ("a", "b"):
        settings = config(toy, tmp_path / where / "run", data__template="plain")
        found = inspect_data(settings, out=str(tmp_path / where / "look"), own_samples=6, say=told.append)
        if where == "a":
            plain = found
    assert np.array_equal(plain.own.scores.sums, found.own.scores.sums)
    assert not any("own answers are those in" in line for line in told)
    inspect_data(settings, out=str(tmp_path / "b" / "look"), own_samples=6, say=told.append)
    assert any("own answers are those in" in line for line in told)


def test_all_that_scores_depend_on_tells_them_apart(toy, tmp_path):
    """And nothing else does: a longer run, or a seed where nothing is drawn, keeps them."""

    def plan(**changes) -> str:
        return json.dumps(score_plan(config(toy, tmp_path / "run", **changes)), sort_keys=True)

    lora = {"adapter": {"rank": 4}}
    kept = plan()
    assert plan(training__steps=77, optimizer__lr=0.5, seed=9) == kept
    others = [
        plan(model=str(shutil.copytree(toy["model"], tmp_path / "copy"))),
        plan(training__precision="bf16"),
        plan(training__precision="bf16", training__weights="bf16"),
        plan(training__padding="free"),
        plan(training__temperature=0.5),
        plan(**lora),
        plan(**lora, seed=9),
        plan(adapter={"rank": 8}),
    ]
    assert len({kept, *others}) == len(others) + 1


def test_another_model_or_precision_is_scored_anew(toy, tmp_path):
    first = look(toy, tmp_path)
    other = look(toy, tmp_path, training__temperature=2.0)
    assert not np.allclose(first.scores.sums, other.scores.sums)
    assert len(list((tmp_path / "look/scores").iterdir())) == 2


@pytest.mark.parametrize("size", [3, 4096, 10_000, 3_000_000])
def test_other_weights_of_the_same_size_and_time_are_another_model(tmp_path, size):
    """As copying and unpacking may leave them: whatever has changed a fifteenth of a file is seen."""
    random = np.random.default_rng(0)
    before = random.bytes(size)

    def look_at(content: bytes) -> dict[str, str]:
        for name, text in (("model.safetensors", content), ("config.json", b"{}")):
            (tmp_path / name).write_bytes(text)
            os.utime(tmp_path / name, (1e9, 1e9))
        return files_of(str(tmp_path))

    first = look_at(before)
    assert look_at(before) == first and len(first) == 2
    part = size // 15 + 1
    for start in (0, int(random.integers(size - part + 1)), size - part):
        other = bytes(255 - byte for byte in before[start : start + part])
        second = look_at(before[:start] + other + before[start + part :])
        assert [name for name in first if first[name] != second[name]] == ["model.safetensors"]


def test_an_inspection_that_was_stopped_goes_on(toy, tmp_path, monkeypatch):
    """Scores are kept pass by pass: the second call scores what the first has not."""
    from humanline.system.stop import StopRequested, StopSignal

    sizes = {"training__micro_batch_size": None, "training__micro_batch_tokens": 60}
    whole = look(toy, tmp_path / "whole", **sizes)
    with StopSignal() as stop:

        def ask(done: int, due: int) -> None:
            stop.requested = "SIGTERM" if done > 20 else None

        with pytest.raises(StopRequested, match="are kept in"):
            look(toy, tmp_path, stop=stop, progress=lambda what: ask, **sizes)
    asked: list[int] = []
    rest = look(toy, tmp_path, progress=lambda what: lambda done, due: asked.append(due), **sizes)
    assert 0 < asked[0] < 2 * len(rest.names) - 20
    assert np.allclose(rest.scores.sums, whole.scores.sums, atol=2e-5)


def test_passes_keep_to_their_budget():
    """The longest first; every sequence once; one that is too long stands alone."""
    lengths = np.random.default_rng(0).integers(1, 60, size=200).tolist()
    for padded in (True, False):
        passes = list(passes_of(lengths, 50, padded=padded))
        assert sorted(place for one in passes for place in one) == list(range(200))
        for one in passes:
            own = [lengths[place] for place in one]
            assert len(one) == 1 or (len(one) * max(own) if padded else sum(own)) <= 50
        longest = [max(lengths[place] for place in one) for one in passes]
        assert longest == sorted(longest, reverse=True)
    assert list(passes_of([3, 4, 3], 10, padded=False)) == [[1, 0, 2]]  # what fits exactly is one pass
    assert list(passes_of([3, 4, 3], 12, padded=True)) == [[1, 0, 2]]


def test_an_inspection_without_a_probe_does_not_replace_one_with(toy, tmp_path):
    """Whatever lies in the folder that holds a probe gets another name, each time; anything else is replaced."""
    file, said = tmp_path / "look" / "inspection.json", []
    file.parent.mkdir()
    for text in ("[]", '{"probe": null}', '{"probe": {"by_step": [1]}}', '{"probe": {"by_step": [2]}}'):
        file.write_text(text)
        given = config(toy, tmp_path / "run")
        inspect_data(given, out=str(file.parent), rows=4, say=said.append)
        assert json.loads(file.read_text()).get("probe") is None
    kept = {path.name: json.loads(path.read_text())["probe"]["by_step"] for path in file.parent.glob("*-with-probe*")}
    assert kept == {"inspection-with-probe.json": [1], "inspection-with-probe-2.json": [2]}
    assert sum("the earlier inspection held a probe" in line for line in said) == 2


def test_a_score_is_found_by_prompt_and_answer_alone():
    """Where the answer begins counts, and nothing but ids does."""
    ids = np.array([5, 6, 7], dtype=np.int64)
    assert key_of(ids, 1) != key_of(ids, 2) and key_of(ids, 1) == key_of(ids.astype(np.int32), 1)
    assert key_of(ids, 1) != key_of(ids[:2], 1)


def test_a_damaged_score_is_named(tmp_path):
    book = ScoreBook(tmp_path, {"model": "a"})
    book.path.write_text('{"plan": {"model": "a"}}\n{"key": "x", "sum": NaN, "bytes": 1}\n')
    with pytest.raises(LedgerError, match=r"\.jsonl:2: no score"):
        ScoreBook(tmp_path, {"model": "a"})
    with pytest.raises(FloatingPointError, match="not finite"):
        from humanline.evaluate.score_rows import Kept

        ScoreBook(tmp_path, {"model": "b"}).add({"x": Kept(float("nan"), 1)})
    assert len(list(tmp_path.iterdir())) == 1


def test_processes_that_begin_at_the_same_moment_share_scores(tmp_path):
    """Each may have written the plan; that is no damage, and what both scored is there."""
    from humanline.evaluate.score_rows import Kept

    book, other = ScoreBook(tmp_path, {"model": "a"}), ScoreBook(tmp_path / "b", {"model": "a"})
    book.add({"x": Kept(-1.0, 1)})
    book.add({"z": Kept(-3.0, 1)})
    heads = [json.loads(line).get("plan") for line in book.path.read_text().splitlines()]
    assert heads == [{"model": "a"}, None, None]  # the first line of a file says what its scores are of
    other.add({"y": Kept(-2.0, 1)})
    book.path.write_bytes(book.path.read_bytes() + other.path.read_bytes())
    both = ScoreBook(tmp_path, {"model": "a"})
    assert (both["x"].total, both["y"].total) == (-1.0, -2.0)


def test_the_file_is_looked_through(toy, tmp_path):
    """Repeats, swapped pairs, an answer on both sides, cut answers: each is counted, with its place."""
    rows = [
        {"prompt": "1 a", "chosen": "bb", "rejected": "cc"},
        {"prompt": "1 a", "chosen": "bb", "rejected": "cc"},
        {"prompt": "2 b", "chosen": "bb", "rejected": "cc"},
        {"prompt": "2 b", "chosen": "cc", "rejected": "bb"},
        {"prompt": "3 c", "chosen": "dd", "rejected": "ee"},
        {"prompt": "3 c", "chosen": "ee", "rejected": "ff"},
        {"prompt": "4 d", "chosen": "a" * 60, "rejected": "f"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = look(toy, tmp_path, data__train=str(file), data__too_long="truncate", data__max_length=30).facts
    assert found.report.duplicates.duplicates == 1 and found.report.duplicates.contradictions == 1
    assert set(found.on_both_sides) == {
        ("rows.jsonl:3", "rows.jsonl:4"),
        ("rows.jsonl:4", "rows.jsonl:3"),
        ("rows.jsonl:6", "rows.jsonl:5"),
    }
    assert found.without_end == found.report.lengths.truncated == 1


def test_the_command_says_and_writes_what_it_found(toy, tmp_path, capsys, monkeypatch):
    """A file and a model; scores beside the file, or all in a folder."""
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_bytes(Path(toy["pairs"]).read_bytes())
    assert main(["inspect-data", "pairs.jsonl", "--model", toy["model"]]) == 0
    heard = capsys.readouterr()
    assert "pair (decides)" in heard.out and "quartile 4" in heard.out and "«" in heard.out
    assert "are to be scored" in heard.err
    assert len(list(Path("pairs.jsonl.scores").iterdir())) == 1
    assert main(["inspect-data", "pairs.jsonl", "--model", toy["model"], "--out", "found", "--quiet"]) == 0
    tree = json.loads(Path("found/inspection.json").read_text())
    assert tree["decides"] == "pair" and len(tree["quartiles"]) == 4 and tree["file"]["rows"] == 48
    assert {"levels.png", "levels.csv", "scores"} <= {path.name for path in Path("found").iterdir()}


def test_what_cannot_be_drawn_is_said_before_any_work(toy, tmp_path, capsys, monkeypatch):
    """Not after the hours that scoring may take; without --out there is no figure, and no need of matplotlib."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["inspect-data", toy["pairs"], "--model", toy["model"], "--quiet", "--out", "found"]
    for command in (words, ["compare", "a", "b", "--out", "found"]):
        assert main(command) == 2
        assert "the package 'matplotlib' is missing" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_rows_with_labels_and_answers_alone(toy, tmp_path):
    """Labelled answers have a level each; one row has a level, no interval and no quartile."""
    found = look(
        toy,
        tmp_path / "a",
        objective={"kind": "kto"},
        data={"train": toy["unpaired"], "max_length": 64, "shape": "unpaired"},
    )
    assert list(found.levels()) == ["desirable", "undesirable", "answer"]
    desirable = [json.loads(line)["label"] for line in Path(toy["unpaired"]).read_text().splitlines()]
    wanted = found.scores.sums[desirable].sum() / found.scores.tokens[desirable].sum()
    assert found.levels()["desirable"].nats.mean == pytest.approx(wanted, rel=1e-12)
    part = look(
        toy,
        tmp_path / "a",
        rows=11,
        objective={"kind": "kto"},
        data={"train": toy["unpaired"], "max_length": 64, "shape": "unpaired"},
    )
    assert part.labels.tolist() == [desirable[found.names.index(name)] for name in part.names]
    one = tmp_path / "one.jsonl"
    one.write_text(Path(toy["pairs"]).read_text().splitlines(keepends=True)[0])
    alone = look(toy, tmp_path / "b", data__train=str(one))
    assert alone.quartiles is None and alone.levels()["pair"].nats.error == float("inf")


def test_levels_at_another_temperature_say_so(toy, tmp_path):
    """training.temperature divides logits, and so makes other levels of the same rows and model."""
    as_is, flat = look(toy, tmp_path / "a", rows=5), look(toy, tmp_path / "b", rows=5, training__temperature=4.0)
    assert as_is.verdict.level.mean != flat.verdict.level.mean
    assert "logits divided by 4" in flat.how and any("logits divided by 4" in line for line in describe(flat))
    assert "divided" not in as_is.how


def test_what_cannot_be_inspected_leaves_nothing(toy, tmp_path, capsys, monkeypatch):
    """Each mistake is one message, with exit code 2."""
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "b"}\n')
    for words, message in [
        (["none.jsonl", "--model", toy["model"]], "none.jsonl"),
        (["bad.jsonl", "--model", toy["model"]], "bad.jsonl:1"),
        ([toy["pairs"], "--model", "nowhere"], "nowhere"),
        ([toy["pairs"], "--model", toy["model"], "--rows", "0"], "--rows must be >= 1"),
        ([toy["pairs"], "--model", toy["model"], "data.max_length=100000"], "positions of the model"),
        ([toy["pairs"]], "--model MODEL"),
        (["tiny.yaml", "--model", toy["model"]], f"model={toy['model']}"),
        ([toy["pairs"], "--model", toy["model"], "--out", "bad.jsonl"], "is a file"),
        (["none.jsonl", "--model", toy["model"], "--out", "found"], "none.jsonl"),
        ([toy["pairs"], "--model", toy["model"], "--scored", "x"], "--scored is not for rows with answers"),
        (["tiny-online"], "--out FOLDER"),
        (["hub:a/b", "--model", toy["model"]], "--out"),
    ]:
        assert main(["inspect-data", *words, "--quiet"]) == 2, words
        assert message in capsys.readouterr().err, words
    assert {path.name for path in tmp_path.iterdir()} == {"bad.jsonl"}


@pytest.mark.parametrize(
    ("file", "kind", "shape"),
    [("pairs", "dpo", "preference"), ("unpaired", "kto", "unpaired"), ("completions", "nll", "completion")],
)
def test_rows_of_every_kind_are_told_by_their_keys(toy, tmp_path, file, kind, shape):
    found = config_of_file(toy[file], toy["model"])
    assert (found.objective.kind, found.data.shape) == (kind, shape)
    assert len(inspect_data(found, out=str(tmp_path / "look"), say=silent).names) > 40


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"prompt": "q", "output_A": "a", "output_B": "b", "label": 1}, "dpo"),  # the released code's pairs
        ({"prompt": "q", "output": "a", "label": 1}, "kto"),
        ({"prompt": "q", "completion": "a", "label": True}, "kto"),
        ({"prompt": "q", "completion": "a"}, "nll"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "messages": "m", "label": 1}, "dpo"),
    ],
)
def test_rows_are_told_by_their_keys_in_every_form_of_file(toy, tmp_path, row, kind, ending):
    """Whatever form a file has, its rows are read as what they are."""
    file = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        table = pytest.importorskip("pyarrow").Table.from_pylist([row])
        pytest.importorskip("pyarrow.parquet").write_table(table, file)
    else:
        file.write_text(json.dumps(row if ending == "jsonl" else [row]) + "\n", encoding="utf-8")
    found = config_of_file(str(file), toy["model"])
    assert found.objective.kind == kind
    assert len(list(SetReader.of(found.data, str(file), found.data_shape))) == 1


@pytest.mark.parametrize(
    ("row", "overrides", "kind"),
    [
        (
            {"question": "q", "answer": "a", "label": True},
            ["data.columns={prompt: question, completion: answer}"],
            "kto",
        ),
        ({"prompt": "q", "answer": "a"}, ["data.columns.completion=answer"], "nll"),
        (
            {"prompt": "q", "completion": "a", "worse": "b"},
            ["data.columns.rejected=worse", "data.columns.chosen=completion"],
            "dpo",
        ),
    ],
)
def test_rows_are_told_by_our_names_of_their_columns(toy, tmp_path, row, overrides, kind):
    """As training tells them, which has them from the recipe."""
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    found = config_of_file(str(file), toy["model"], overrides)
    assert found.objective.kind == kind
    assert len(list(SetReader.of(found.data, str(file), found.data_shape))) == 1


def test_what_nothing_reads_and_marks_inside_of_turns_are_told(toy, tmp_path):
    """As training tells it: a column that is left aside, and conversations that are taken for one user's turn."""
    ask = "\n\nHuman: Which way is north?\n\nAssistant:"
    file = tmp_path / "pairs.jsonl"
    row = {"chosen": f"{ask} Up.", "rejected": f"{ask} Down.", "system": "Be brief."}
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")

    def facts(*overrides):
        settings = config_of_file(str(file), toy["model"], overrides)
        tokenizer = load_tokenizer(toy["model"])
        units, report = read_units(settings, str(file), renderer_of(settings, tokenizer))
        found = facts_of(units, report, tokenizer)
        return list(describe_facts(found)), facts_as_json(found)

    lines, tree = facts()
    (note,) = (line for line in lines if "data.format: hh" in line)
    (columns,) = (line for line in lines if "ignored: 'system'" in line)
    assert note == f"  {tree['note']}" and columns.startswith("  columns read: 'chosen', 'rejected'; ")
    assert tree["columns"]["ignored"] == ("system",)
    lines, tree = facts("data.format=hh", "data.columns.system=system")
    assert not any("columns" in line or "format" in line for line in lines)
    assert tree["note"] == "" and tree["columns"]["ignored"] == ()


@pytest.mark.parametrize("kind", ["kto", "grpo", "nll"])
def test_pairs_are_pairs_whatever_reads_them(toy, tmp_path, kind):
    """Only next-token training reads the chosen answer alone."""
    found = look(toy, tmp_path, objective={"kind": kind})
    assert found.deciding == ("answer" if kind == "nll" else "pair") and len(found.names) == 48


def known_model(toy, folder: Path) -> tuple[str, np.ndarray]:
    """Return a model whose next token depends on the last one alone, and the log-probabilities of it, (V, V)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(toy["model"], dtype=torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:  # which then add nothing to what the embedding says
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.get_input_embeddings().weight.normal_(generator=torch.Generator().manual_seed(0))
        model.model.norm.weight.fill_(0.2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(toy["model"]).save_pretrained(folder)
    embedding = model.get_input_embeddings().weight.detach().double().numpy()
    scale = np.sqrt((embedding**2).mean(1, keepdims=True) + model.config.rms_norm_eps)
    head = model.get_output_embeddings().weight.detach().double().numpy()
    logits = embedding / scale * model.model.norm.weight.detach().double().numpy() @ head.T
    return str(folder), logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_rows_of_known_probabilities_are_split_into_the_right_quartiles(toy, tmp_path):
    """Exactly, with many rows of equal level: the same pair after prompts of other lengths."""
    from humanline.train.data.run_data import read_data, renderer_of

    model, table = known_model(toy, tmp_path / "known")
    pairs = [("ab", "ba"), ("abc", "c"), ("a", "bcd"), ("gh", "h"), ("fgh", "hg"), ("de", "ed"), ("ee", "dd")]
    rows = [
        {"prompt": f"{number} {'abcdefgh'[: 1 + number % 8]}", "chosen": pair[0], "rejected": pair[1]}
        for number, pair in enumerate(pairs * 5)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"model": model, "data__train": str(file)}
    sizes = {"training__micro_batch_size": None, "training__micro_batch_tokens": 100}
    found = look(toy, tmp_path, **changes, **sizes)
    settings = config(toy, tmp_path / "run", **changes)
    units = read_data(settings, renderer_of(settings, load_tokenizer(model))).sets.train
    levels = []
    for unit in units:
        steps = [(one.ids[i - 1], one.ids[i]) for one in unit.sequences for i in range(one.prompt_length, len(one.ids))]
        levels.append(round(sum(table[step] for step in steps) / len(steps), 9))
    assert found.scores.levels == pytest.approx(levels, abs=1e-6) and len(set(levels)) == 7
    ordered = sorted(levels)
    edges = [ordered[8], ordered[17], ordered[26]]  # the 9th, 18th and 27th of 35
    assert found.quartiles.numbers.tolist() == [1 + sum(level > edge for edge in edges) for level in levels]


def of_clusters(x: np.ndarray, y: np.ndarray, clusters: np.ndarray) -> tuple[float, float, float]:
    """A ratio of sums with its interval, from Cochran's formula in plain loops."""
    ratio, names = x.sum() / y.sum(), sorted(set(clusters))
    off = [(x - ratio * y)[clusters == name].sum() for name in names]
    error = np.sqrt(len(names) / (len(names) - 1) * np.square(off).sum()) / y.sum()
    half = scipy.stats.t.ppf(0.975, len(names) - 1) * error
    return ratio, ratio - half, ratio + half


def test_every_number_is_that_of_the_model_s_table(toy, tmp_path, capsys):
    """In inspection.json and in what is printed: levels, bits per byte of two-byte letters, shares, lengths, counts."""
    from humanline.train.data.run_data import read_data, renderer_of

    model, table = known_model(toy, tmp_path / "known")
    random = np.random.default_rng(2)
    texts = ["".join(random.choice([*"abcdefgh", "é"], size)) for size in random.integers(2, 9, 60)]
    rows = [
        {"prompt": f"{number % 11} a", "chosen": f"a{texts[number]}", "rejected": f"b{texts[30 + number]}b"}
        for number in range(30)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["inspect-data", str(file), "--model", model, "--out", str(tmp_path / "look"), "data.max_length=64"]
    assert main([*words, "--quiet"]) == 0
    said, tree = capsys.readouterr().out, json.loads((tmp_path / "look/inspection.json").read_text())
    settings = config_of_file(str(file), model, ["data.max_length=64"])
    units = read_data(settings, renderer_of(settings, load_tokenizer(model))).sets.train
    answers = [[one.ids[one.prompt_length - 1 :] for one in unit.sequences] for unit in units]
    sums = np.array([[sum(table[a, b] for a, b in itertools.pairwise(ids)) for ids in own] for own in answers])
    tokens = np.array([[len(ids) - 1 for ids in own] for own in answers])
    octets = np.array([[len(row[side].encode()) for side in ("chosen", "rejected")] for row in rows])
    assert (octets > [[len(row["chosen"]), len(row["rejected"])] for row in rows]).any()
    prompts = np.array([row["prompt"] for row in rows])
    assert (tree["rows"], tree["prompts"], tree["file"]["prompts"]) == (30, 11, 11)
    assert "of 30 rows with 11 prompts, before" in said and "mean over 11 prompts" in said
    for name, columns in (("chosen", [0]), ("rejected", [1]), ("pair", [0, 1])):
        found, of = tree["levels"][name], [one[:, columns].sum(1) for one in (sums, tokens, octets)]
        for unit, expected in (
            ("nats_per_token", of_clusters(of[0], of[1], prompts)),
            ("bits_per_byte", of_clusters(-of[0] / np.log(2), of[2], prompts)),
        ):
            assert [found[unit][key] for key in ("value", "low", "high")] == pytest.approx(expected, abs=1e-5)
            assert f"{expected[0]:.3f} ± {expected[2] - expected[0]:.3f}" in said
        assert (found["rows"], found["tokens"]) == (30, of[1].sum())
    levels = sums.sum(1) / tokens.sum(1)
    for number, found in enumerate(tree["quartiles"]):
        own = np.argsort(levels)[[0, 8, 15, 23][number] : [8, 15, 23, 30][number]]
        assert found["nats_per_token"]["value"] == pytest.approx(sums[own].sum() / tokens[own].sum(), abs=1e-5)
        assert (found["rows"], found["tokens"]) == (len(own), tokens[own].sum())
        assert [found["from"], found["to"]] == pytest.approx([levels[own].min(), levels[own].max()], abs=1e-5)
        assert f"rows from {found['from']:.3f} to {found['to']:.3f}; {len(own)} rows" in said
    shares = []
    for name, values in (("whole", sums), ("per_token", sums / tokens)):
        wins = (values[:, 0] > values[:, 1]).astype(float)
        shares.append(np.mean([wins[prompts == one].mean() for one in sorted(set(prompts))]))
        assert tree["chosen_more_probable"][name]["share"] == pytest.approx(shares[-1], abs=1e-12)
    assert shares[0] != shares[1] and f"{shares[0]:.3f} (" in said.split(" as whole answers")[0].splitlines()[-1]
    longer = of_clusters((tokens[:, 1] - tokens[:, 0]).astype(float), np.ones(30), prompts)
    assert tree["rejected_longer_by_tokens"]["value"] == pytest.approx(longer[0], abs=1e-12)
    assert f"longer than chosen ones by {longer[0]:+.2f} ± {longer[2] - longer[0]:.2f} tokens" in said


def test_a_part_of_the_rows_is_said_to_be_one(toy, tmp_path, capsys):
    words = ["inspect-data", toy["pairs"], "--model", toy["model"], "--out", str(tmp_path / "look"), "--quiet"]
    assert main(words) == 0 and "drawn at random" not in capsys.readouterr().out
    assert main([*words, "--rows", "9"]) == 0
    assert "of 9 rows, drawn at random of 48 with " in capsys.readouterr().out


def test_rows_of_one_level_have_no_quartiles(toy, tmp_path, capsys):
    """Which is said, and nothing can be kept by them."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 8)
    words = ["inspect-data", str(file), "--model", toy["model"], "--out", str(tmp_path / "found")]
    assert main([*words, "--quiet"]) == 0
    assert "no quartiles: levels of 8 rows" in capsys.readouterr().out
    assert json.loads((tmp_path / "found/inspection.json").read_text())["quartiles"] is None
    assert main([*words, "--keep-quartiles", "2", "--quiet"]) == 2
    assert "there are no quartiles to keep" in capsys.readouterr().err


def test_a_file_is_read_with_what_its_model_has(toy):
    """The tokenizer's chat template, and as many tokens as the model has places for."""
    found = config_of_file(toy["pairs"], toy["model"])
    assert (found.data.template, found.data.max_length, found.data.too_long) == ("chat", 128, "drop")
    assert config_of_file(toy["pairs"], toy["model"], ["data.max_length=40"]).data.max_length == 40
