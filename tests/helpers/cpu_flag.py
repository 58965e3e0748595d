"""Let bitsandbytes believe that it runs on a CPU with AVX512-BF16, or on one without.

It asks once, while it is imported, so this module is imported before: by pytest's option -p. What is to be believed is
said in the environment, as `HUMANLINE_TEST_AVX512BF16=1` or `=0`; where nothing is said, nothing is done.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from types import ModuleType

VARIABLE = "HUMANLINE_TEST_AVX512BF16"


class _Answer(MetaPathFinder):
    """Give the module that asks the CPU another answer, as soon as it is there and before others take it over."""

    def find_spec(self, name, path=None, target=None):
        if name != "bitsandbytes.functional":
            return None
        spec = PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def answered(module: ModuleType) -> None:
            load(module)
            believed = os.environ[VARIABLE] == "1"
            module.has_avx512bf16 = lambda: believed

        spec.loader.exec_module = answered
        return spec


if VARIABLE in os.environ:
    if "bitsandbytes" in sys.modules:
        raise RuntimeError("bitsandbytes was imported before this module")
    sys.meta_path.insert(0, _Answer())
