"""The names of weight files in a model's folder lead nowhere else."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
from pathlib import Path

import pytest

from humanline.cli import main
from humanline.train.policy import weight_files
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_policy, load_weights


@pytest.fixture
def sharded(toy, tmp_path) -> Path:
    """A model whose weights are in a file that its index names."""
    model = tmp_path / "model"
    shutil.copytree(toy["model"], model)
    (model / "model.safetensors").rename(model / "part-1.safetensors")
    return model


def index(model: Path, name: object) -> None:
    from safetensors import safe_open

    file = model / name if isinstance(name, str) and (model / name).is_file() else model / "part-1.safetensors"
    with safe_open(file, framework="pt") as tensors:
        names = list(tensors.keys())
    text = json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, name)})
    (model / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize("command", ["train", "validate"])
@pytest.mark.parametrize(
    "name",
    ["../part-1.safetensors", "ABSOLUTE", "a/../../part-1.safetensors", "..\\x", "\x1b[2J\0", "a", "round", "zero"],
)
def test_names_that_lead_out_of_the_folder_are_refused(sharded, toy, tmp_path, capfd, name, command):
    """Parents, absolute names and what is no regular file are input errors that name the index, before a read."""
    outside = tmp_path / "part-1.safetensors"
    shutil.move(sharded / "part-1.safetensors", outside)
    (sharded / "a").mkdir()
    (sharded / "round").symlink_to("round")
    (sharded / "zero").symlink_to("/dev/zero")
    given = str(outside) if name == "ABSOLUTE" else name
    shutil.copy(outside, sharded / "part-1.safetensors")
    index(sharded, given)
    (sharded / "part-1.safetensors").unlink()
    recipe = tmp_path / "recipe.yaml"
    tree = {
        "model": str(sharded),
        "output": str(tmp_path / "run"),
        "objective": {"kind": "dpo"},
        "data": {"train": toy["pairs"], "max_length": 64},
        "training": {"steps": 1, "batch_size": 2},
        "optimizer": {"lr": 1e-3},
    }
    recipe.write_text(json.dumps(tree))
    assert main([command, str(recipe)]) == 2
    said = capfd.readouterr().err
    assert "model.safetensors.index.json names the weight file" in said and not set(said) & {"\x1b", "\0"}


def test_names_within_the_folder_and_the_cache_of_the_hub_are_read(sharded, tmp_path):
    """A plain name, a folder below, and a snapshot whose files are links to blobs are loaded as before."""
    index(sharded, "part-1.safetensors")
    load_weights(str(sharded), dropout=False)
    (sharded / "parts").mkdir()
    shutil.move(sharded / "part-1.safetensors", sharded / "parts/part-1.safetensors")
    index(sharded, "parts/part-1.safetensors")
    load_weights(str(sharded), dropout=False)
    index(sharded, "parts/part-1.safetensors")

    repository = tmp_path / "models--someone--small"
    snapshot, blobs = repository / "snapshots/0a1b", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    shutil.move(sharded / "parts/part-1.safetensors", sharded / "part-1.safetensors")
    index(sharded, "part-1.safetensors")
    for number, file in enumerate(path for path in sorted(sharded.iterdir()) if path.is_file()):
        shutil.copy(file, blobs / f"{number:040x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:040x}")
    load_weights(str(snapshot), dropout=False)
    (tmp_path / "linked").symlink_to(snapshot)
    load_weights(str(tmp_path / "linked"), dropout=False)


@pytest.mark.parametrize("linked", ["files", "folder"])
def test_links_that_someone_made_in_the_folder_are_followed(sharded, tmp_path, linked):
    """Weights may lie on another disk: a shard that is a link, or in a folder that is one, is read where it is."""
    store = tmp_path / "store"
    (store / "objects").mkdir(parents=True)
    shutil.move(sharded / "part-1.safetensors", store / "objects/part-1.safetensors")
    (store / "part-1.safetensors").symlink_to("objects/part-1.safetensors")
    if linked == "files":
        (sharded / "part-1.safetensors").symlink_to(store / "part-1.safetensors")
        index(sharded, "part-1.safetensors")
    else:
        (sharded / "parts").symlink_to(store)
        index(sharded, "parts/part-1.safetensors")
    load_weights(str(sharded), dropout=False)


def test_a_link_to_a_file_that_is_gone_is_said_to_miss_it(sharded):
    """As a shard that is not there: the model cannot be loaded, and it is said which file."""
    index(sharded, "part-1.safetensors")
    (sharded / "part-1.safetensors").unlink()
    (sharded / "part-1.safetensors").symlink_to("gone/part-1.safetensors")
    with pytest.raises(ModelError, match=r"part-1\.safetensors"):
        load_weights(str(sharded), dropout=False)


def test_a_file_that_config_json_names_is_held_to_the_same(sharded):
    """config.json may name a weight file, too; not one elsewhere."""
    settings = json.loads((sharded / "config.json").read_text()) | {"transformers_weights": "/etc/passwd"}
    (sharded / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"config\.json names the weight file '/etc/passwd'"):
        load_weights(str(sharded), dropout=False)


class Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_no_pickle_of_a_model_folder_is_read(toy, tmp_path, name):
    """Pickled weights, or a pickle in the place of another file, are refused or left alone, and never opened."""
    model, ran = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(toy["model"], model)
    if name == "pytorch_model.bin":
        (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Evil(ran)))
    with contextlib.suppress(ModelError):
        load_policy(str(model), dropout=False, max_length=64)
    assert not ran.exists()


def test_an_index_of_endless_files_is_refused_by_their_number(sharded, monkeypatch):
    """Of 100 000 names none is followed, which would take minutes."""
    names = {f"w{number}": f"{number}.safetensors" for number in range(100_000)}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    monkeypatch.setattr(weight_files, "_leads_out", lambda *_: pytest.fail("a name was followed"))
    with pytest.raises(ModelError, match=r"names 100000 weight files, where no model has more than 10000"):
        load_weights(str(sharded), dropout=False)
