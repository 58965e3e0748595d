"""A run that was killed before its first checkpoint begins again with what it began with, or says what has changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from humanline.system.files import OutputError
from humanline.system.lock import is_lock
from humanline.train.loop import train
from humanline.train.setup import set_up
from tests.helpers.support import config, same, weights

ADAPTER = {"rank": 2, "alpha": 4.0}


@pytest.fixture
def begun(toy, tmp_path):
    """Begin a run of a model of its own, and have it die when all is written down that a start writes."""
    model, data = tmp_path / "model", tmp_path / "pairs.jsonl"
    shutil.copytree(toy["model"], model)
    shutil.copy(toy["pairs"], data)

    def begin(name: str = "run", **changes):
        settings = config(toy, tmp_path / name, model=str(model), data__train=str(data), training__steps=2, **changes)
        with pytest.raises(KeyboardInterrupt), set_up(settings, show_progress=False) as run:
            assert run.start.updates == 0
            raise KeyboardInterrupt
        return settings, model, data

    return begin


def change_weights(model: Path, by: float = 1e-3) -> None:
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("mlp.up_proj.weight"))
    tensors[name] = tensors[name].clone()
    tensors[name][0, 0] += by
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_start_with_the_same_weights_and_data_is_the_same_run(begun, toy, tmp_path):
    """Begun again, a run ends with the bits of one that was never killed; so does one from before starts were noted."""
    settings, _, _ = begun()
    assert (tmp_path / "run/start.json").is_file()
    result = train(settings, resume=True, show_progress=False)
    older, _, _ = begun("older")
    (tmp_path / "older/start.json").unlink()
    other = train(older, resume=True, show_progress=False)
    whole = train(settings.model_copy(update={"output": str(tmp_path / "whole")}), show_progress=False)
    assert same(weights(result), weights(whole)) and same(weights(other), weights(whole))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder but its lock, whose number grows with each process that takes it."""
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file() and not is_lock(one.name)}


@pytest.mark.parametrize("changes,row", [({}, "start weights"), ({"adapter": ADAPTER}, "frozen weights")])
def test_other_start_weights_are_noticed(begun, tmp_path, changes, row):
    """One number of the model's file is another one: --resume says so, changes nothing, and a new folder takes them."""
    settings, model, _ = begun(**changes)
    before = files_of(tmp_path / "run")
    change_weights(model)
    with pytest.raises(OutputError, match=rf"began with other weights or data(?s:.*){row} "):
        train(settings, resume=True, show_progress=False)
    assert files_of(tmp_path / "run") == before
    train(settings.model_copy(update={"output": str(tmp_path / "new")}), show_progress=False)


def test_other_data_are_noticed(begun):
    """So is another row of the data, which a checkpoint would have told."""
    settings, _, data = begun()
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    rows[3]["chosen"] += " x"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(OutputError, match="began with other weights or data"):
        train(settings, resume=True, show_progress=False)
