"""How torch is told to take memory from a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

from humanline.system.allocator import growing_segments

OURS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def test_segments_grow_unless_the_environment_has_anything_to_say():
    """Under Linux they do; where a variable of torch's allocator is there, in whatever way, nothing is added."""
    assert growing_segments({"HOME": "/"}, "linux") == OURS
    assert growing_segments({"HOME": "/"}, "win32") == growing_segments({}, "darwin") == {}
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        for value in ("", "expandable_segments:False", "max_split_size_mb:128"):
            assert growing_segments({name: value}, "linux") == {}


def test_importing_the_package_changes_no_environment():
    """Who uses humanline as a library finds the environment as it was."""
    code = (
        "import os; before = dict(os.environ); import humanline, humanline.cli, humanline.train.config; "
        "import json; print(json.dumps(before == dict(os.environ)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)
