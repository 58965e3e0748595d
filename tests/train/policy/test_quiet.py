"""What libraries say while models and texts are read does not reach the terminal; what is wrong is said by us."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_model, load_tokenizer
from tests.conftest import ROOT


@pytest.fixture
def said():
    """Collect what transformers logs."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def changed(model: str, folder: Path, change) -> str:
    """Copy a model with other weights in its file."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_weights_that_find_no_place_are_no_table_on_the_terminal(toy, tmp_path, said):
    """A report of raw tensor names, which the library logs for a file that holds more than the model, is kept in."""
    path = changed(toy["model"], tmp_path / "m", lambda tensors: tensors.update({"more.weight": torch.zeros(2)}))
    try:
        load_model(path, torch.float32)
    except ModelError as error:  # said by us, if at all
        assert "more.weight" in str(error)
    assert said == []


def test_weights_of_another_shape_are_named(toy, tmp_path, said):
    """Beside a foreign tensor, where nothing is said before weights are read, a misfit is named with both shapes."""

    def change(tensors):
        tensors["more.weight"] = torch.zeros(2)
        tensors["model.norm.weight"] = torch.ones(5)

    path = changed(toy["model"], tmp_path / "m", change)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has the shape \(5,\) in place of \(16,\)"):
        load_model(path, torch.float32)
    assert said == []


def test_a_long_text_is_no_news(toy, said):
    """A text of more tokens than the model has positions is encoded without a word."""
    tokenizer = load_tokenizer(toy["model"])
    assert len(tokenizer("a b " * 500)["input_ids"]) > tokenizer.model_max_length
    assert said == []


def test_our_own_warnings_are_heard(tmp_path):
    """Nothing is switched off for good: after a model was read, warnings and logs are as they were."""
    with pytest.raises(ModelError):
        load_model(str(tmp_path / "nowhere"), torch.float32)
    assert logging.root.manager.disable == logging.NOTSET
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


@pytest.mark.slow
def test_a_run_of_the_command_says_what_is_ours(toy, tmp_path):
    """A training run on the command line and a worker of the demo print lines of this project alone."""
    recipe = tmp_path / "recipe.yaml"
    long = "w " * 400
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "{i} {long if i == 3 else ""}", "chosen": "a", "rejected": "b"}}\n' for i in range(9))
    )
    recipe.write_text(
        f"model: {toy['model']}\noutput: {tmp_path}/run\nobjective: {{kind: dpo, beta: 1.0}}\n"
        f"data: {{train: {tmp_path}/rows.jsonl, max_length: 64, too_long: drop}}\n"
        "training: {steps: 2, batch_size: 4}\noptimizer: {lr: 1e-3}\n"
    )
    words = [sys.executable, "-m", "humanline", "train", str(recipe)]
    result = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert not re.search(r"Failed to load|Token indices|LOAD REPORT|torchao|Warning|it/s", result.stderr), result.stderr
    code = (
        "from humanline.system.imports import quiet_libraries; quiet_libraries()\n"
        f"from humanline.train.policy.new_model import new_model; new_model(r'{tmp_path}/new', text=r'{toy['pairs']}', "
        "vocab_size=300, hidden_size=16, heads=2)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
