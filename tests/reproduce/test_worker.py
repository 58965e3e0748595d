"""Worker processes of suites: one path of code whatever the environment says, and libraries that are left alone."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from humanline._workers import worker_processes
from humanline.reproduce.start import make_start
from humanline.reproduce.worker import prepare_worker
from tests.helpers.micro_testbed import MICRO

needs_avx2 = pytest.mark.skipif(not torch.cpu.get_capabilities().get("avx2"), reason="this processor has no AVX2")


def in_worker(work, *arguments):
    """Return what a prepared worker makes."""
    with worker_processes(1, begin=prepare_worker, then="") as pool:
        return pool.submit(work, *arguments).result()


def looked_at():
    """Return what a worker was prepared to be."""
    path = torch.backends.cpu.get_cpu_capability()
    return path, os.environ.get("MKL_CBWR"), torch.get_num_threads(), gc.get_freeze_count(), len(gc.get_objects())


def trained(folder: Path):
    """Return the start model's score and a digest of its weights."""
    start = make_start(MICRO, "near", 0, folder)
    weights = b"".join(path.read_bytes() for path in sorted(start.model.glob("*.safetensors")))
    return start.measured.score, hashlib.sha256(weights).hexdigest()


@needs_avx2
@pytest.mark.slow  # two start models; the next test sees the settings that this one shows to be enough
def test_a_start_model_is_the_same_whatever_path_of_code_the_libraries_would_take(tmp_path, monkeypatch):
    """Where they would take the path of another processor, training in a worker makes the same bits."""
    first = in_worker(trained, tmp_path / "first")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert in_worker(trained, tmp_path / "second") == first


def test_a_worker_has_one_path_and_thread_and_leaves_its_libraries_alone(monkeypatch):
    """The garbage collector of a worker does not look through torch and transformers, at four looks a run."""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    path, of_mkl, threads, frozen, seen = in_worker(looked_at)
    assert (path, of_mkl) == ("AVX2", None) or not torch.cpu.get_capabilities().get("avx2")
    assert threads == 1 and frozen > 100_000 > seen


@needs_avx2
def test_a_process_that_has_computed_on_another_path_is_no_worker():
    """What torch chose first it keeps, and then a start model would be another one without a word."""
    text = (
        "import os; os.environ['ATEN_CPU_CAPABILITY'] = 'default'\n"
        "import torch; torch.ones(9).exp()\n"
        "from humanline.reproduce.worker import prepare_worker\n"
        "prepare_worker()\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode and "torch computes with" in done.stderr.splitlines()[-1]
