"""Training: rows in, an aligned model out (needs the `train` extra). Modules are imported where they are needed.

`from humanline.train import train, load_config, TrainConfig` is the Python API; docs/python.md shows it. Importing this
package imports nothing else: each name is looked up when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from humanline.train.config import ConfigError as ConfigError
    from humanline.train.config import TrainConfig as TrainConfig
    from humanline.train.config import load_config as load_config
    from humanline.train.given import train as train
    from humanline.train.run.result import RunResult as RunResult

_FROM = {
    "train": "humanline.train.given",
    "load_config": "humanline.train.config",
    "TrainConfig": "humanline.train.config",
    "ConfigError": "humanline.train.config",
    "RunResult": "humanline.train.run.result",
}
__all__ = ["ConfigError", "RunResult", "TrainConfig", "load_config", "train"]


def __getattr__(name: str) -> Any:
    """Return a name of the Python API, imported now."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_FROM[name]), name)


def __dir__() -> list[str]:
    """Return what can be asked for."""
    return sorted({*globals(), *__all__})
