"""The Python API: rows and a model at hand in place of files, and what goes on only from the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import humanline.train
from humanline.system.stop import StopRequested
from humanline.train.config import TrainConfig
from humanline.train.given import GivenError, _rows_written, train
from tests.conftest import ROOT
from tests.helpers.cases import StopAt
from tests.helpers.support import config, run, same, steps, weights, without_timing


@pytest.fixture(scope="module")
def rows(toy) -> list[dict[str, str]]:
    """The toy's pairs."""
    return [json.loads(line) for line in Path(toy["pairs"]).read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def start(toy):
    """The toy's start model and its tokenizer, as objects."""
    return {
        "model": AutoModelForCausalLM.from_pretrained(toy["model"]),
        "tokenizer": AutoTokenizer.from_pretrained(toy["model"]),
    }


def given(toy, output, **changes):
    """A run of which neither rows nor model are files."""
    return config(toy | {"pairs": "given", "model": "given"}, output, training__steps=4, **changes)


def test_the_names_of_the_api_are_where_the_pages_say():
    """`humanline.train` has train, load_config and TrainConfig, and names what it lacks."""
    assert humanline.train.train is train and humanline.train.TrainConfig is TrainConfig
    assert {"train", "load_config", "TrainConfig"} <= set(humanline.train.__all__) <= set(dir(humanline.train))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        humanline.train.trian  # noqa: B018


def test_rows_and_a_model_object_train_as_their_files_do(toy, tmp_path, rows, start, capfd):
    """A list of dicts, a Dataset and a model object give the bits of the files; without a terminal nothing is shown."""
    datasets = pytest.importorskip("datasets")
    files = run(toy, tmp_path / "files", training__steps=4, data__eval=toy["held_out"])
    before = {name: one.clone() for name, one in start["model"].state_dict().items()}
    capfd.readouterr()
    for name, kind in (("list", list), ("dataset", datasets.Dataset.from_list)):
        found = train(given(toy, tmp_path / name), rows=kind(rows), held_out=kind(rows[:9]), **start)
        assert same(weights(found), weights(files)) and found.initial == files.initial
        assert without_timing(found.metrics("train")) == without_timing(steps(files))
    assert capfd.readouterr() == ("", "")
    assert all(torch.equal(one, before[name]) for name, one in start["model"].state_dict().items())
    assert [row["updates"] for row in found.metrics("look")] == [0, 4] and len(found.metrics()) == 6
    with pytest.raises(ValueError, match="kind must be one of"):
        found.metrics("step")


def test_rows_are_those_that_a_dataset_shows(tmp_path):
    """A transform, and columns left out by the format, are in what is written, as they are in a program's own loop."""
    datasets = pytest.importorskip("datasets")
    held = datasets.Dataset.from_list([{"prompt": "a", "completion": "b", "label": True}])
    spelt = held.with_transform(lambda rows: rows | {"completion": [text.upper() for text in rows["completion"]]})
    fewer = held.with_format(columns=["prompt", "completion"])
    for shown, row in ((spelt, held[0] | {"completion": "B"}), (fewer, {"prompt": "a", "completion": "b"})):
        (found,) = _rows_written(tmp_path, "rows", shown, "rows").read_text(encoding="utf-8").splitlines()
        assert json.loads(found) == shown[0] == row
    alike = held.remove_columns("label").with_format("numpy")  # texts are what they were: a run goes on with its file
    assert all(_rows_written(tmp_path, "rows", one, "rows").suffix == ".parquet" for one in (held, alike))


def test_columns_that_a_dataset_does_not_show_are_not_decoded(tmp_path, monkeypatch):
    """Sound and images need libraries of their own, without which rows of texts beside them could not be given."""
    datasets = pytest.importorskip("datasets")

    def missing(*_, **__):
        raise ImportError("no library for sound")

    monkeypatch.setattr(datasets.Audio, "decode_example", missing)
    held = datasets.Dataset.from_list([{"prompt": "a", "completion": "b", "voice": "a.wav"}])
    held = held.cast_column("voice", datasets.Audio())
    with pytest.raises(ImportError):
        held[0]
    texts = ["prompt", "completion"]
    for shown in (
        held.with_format(columns=texts),
        held.with_transform(lambda rows: {name: rows[name] for name in texts}, columns=texts),
    ):
        (found,) = _rows_written(tmp_path, "rows", shown, "rows").read_text(encoding="utf-8").splitlines()
        assert json.loads(found) == {"prompt": "a", "completion": "b"}


def test_a_run_goes_on_only_from_the_same_rows_and_model(toy, tmp_path, rows, start):
    """Other rows or weights are refused by hash; with the same ones a stopped run ends with the same bits."""
    made = given(toy, tmp_path / "run", checkpoint={"every": 1})
    with pytest.raises(StopRequested):
        train(made, rows=rows, **start, stop=StopAt(5))
    with pytest.raises(
        GivenError, match=r"began from rows given in Python.*then rows-\w{16}\.jsonl, now rows-\w{16}\."
    ):
        train(made, rows=rows[::-1], **start, resume=True)
    with pytest.raises(GivenError, match=r"began from rows given in Python.*, now given"):
        train(made, **start, resume=True)
    bias = next(start["model"].parameters())
    with torch.no_grad():
        bias += 1e-3
        with pytest.raises(GivenError, match=r"began from model given in Python.*then model-\w{16}, now model-"):
            train(made, rows=rows, **start, resume=True)
        bias.copy_(AutoModelForCausalLM.from_pretrained(toy["model"]).state_dict()["model.embed_tokens.weight"])
    found = train(made, rows=rows, **start, resume=True)
    whole = train(given(toy, tmp_path / "whole"), rows=rows, **start)
    assert same(weights(found), weights(whole))


def test_the_page_on_python_runs(toy, tmp_path, monkeypatch):
    """The code of docs/python.md runs as it stands, in a folder with a start model."""
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "start").symlink_to(toy["model"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "python.md", "exec"), names)
    assert len(names["losses"]) == 4 and (tmp_path / "run" / "final" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rows": []}, "rows has no rows"),
        ({"rows": "rows.jsonl"}, "rows: expected a list of dicts.*got str"),
        ({"rows": [{"prompt": "a"}, ["b"]]}, r"rows\[1\] is list; expected a dict"),
        ({"rows": [{"prompt": {1, 2}}]}, r"rows\[0\] cannot be written as JSON: .*set"),
        ({"rows": [{"prompt": float("nan")}]}, r"rows\[0\] cannot be written as JSON"),
        ({"rows": [{"prompt": "\ud800"}]}, r"rows\[0\] cannot be written as JSON: .*surrogates"),
        ({"held_out": []}, "held_out has no rows"),
        ({"model": torch.nn.Linear(1, 1), "tokenizer": object()}, "model is Linear; expected a model of transformers"),
        ({"model": object()}, "give model and tokenizer together"),
    ],
)
def test_what_is_none_of_it_is_refused(toy, tmp_path, wrong, said):
    """What cannot be written as rows or as a model is named, with its place, and no run is begun."""
    with pytest.raises(GivenError, match=said):
        train(given(toy, tmp_path / "run"), **wrong)
    assert not (tmp_path / "run").exists()
