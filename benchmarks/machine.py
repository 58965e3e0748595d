"""What the numbers were measured on: hardware and versions, and nothing that names the machine or its owner."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Result
from humanline.system.cores import usable_cores

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PACKAGES = (
    "humanline",
    "numpy",
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "torchao",
    "bitsandbytes",
    "triton",
    "trl",
    "numba",
)


def machine_result() -> Result:
    """Return the facts as a part of a benchmark does: whoever prints them need not load torch."""
    return Result(machine(), [])


def machine() -> dict[str, Any]:
    """Return processor, memory, threads, load, accelerator and versions."""
    facts: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "torch_threads": torch.get_num_threads(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in PACKAGES},
        "gpu": None,
    }
    if DEVICE == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        facts["gpu"] = {
            "name": gpu.name,
            "memory_gib": round(gpu.total_memory / 2**30, 1),
            "driver": _driver(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "capability": f"{gpu.major}.{gpu.minor}",
        }
    return facts


def installed(package: str) -> str | None:
    """Return a package's version, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return answer.stdout.split("\n")[0].strip() or None
