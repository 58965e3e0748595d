"""How torch is told to take memory from a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from unittest import mock

import pytest

from humanline.cli import main
from humanline.system.allocator import growing_segments

OURS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def test_segments_grow_unless_the_environment_has_anything_to_say():
    """Under Linux they do; where a variable of torch's allocator is there, in whatever way, nothing is added."""
    assert growing_segments({"HOME": "/"}, "linux") == OURS
    assert growing_segments({"HOME": "/"}, "win32") == growing_segments({}, "darwin") == {}
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        for value in ("", "expandable_segments:False", "max_split_size_mb:128"):
            assert growing_segments({name: value}, "linux") == {}


@pytest.mark.skipif(sys.platform != "linux", reason="segments grow under Linux alone")
@pytest.mark.parametrize(
    "words", [["train", "no.yaml"], ["train", "no.yaml", "--processes", "2"], ["sample", "no.yaml"]]
)
def test_commands_that_load_models_set_it_before_anything_else(words, tmp_path, capsys):
    """`train`, alone or as the launcher of several, and `sample` set it; an environment that says so keeps its own."""
    words = [*words, "--out", str(tmp_path / "out")] if words[0] == "sample" else words
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        with mock.patch.dict(os.environ, {name: "max_split_size_mb:64"}):
            before = dict(os.environ)
            assert main(words) == 2
            assert dict(os.environ) == before
    with mock.patch.dict(os.environ):
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        os.environ.pop("PYTORCH_ALLOC_CONF", None)
        assert main(words) == 2
        assert os.environ["PYTORCH_ALLOC_CONF"] == OURS["PYTORCH_ALLOC_CONF"]


def test_importing_the_package_changes_no_environment():
    """Who uses humanline as a library finds the environment as it was."""
    code = (
        "import os; before = dict(os.environ); import humanline, humanline.cli, humanline.train.config; "
        "import json; print(json.dumps(before == dict(os.environ)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)
