"""AlpacaEval's length-controlled win rate, by the package itself, with a file in place of what it would fetch."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from humanline.evaluate.records import EvaluationError

GAMED = "df_gamed.csv"


def length_controlled_rate(annotations: str, difficulty: str) -> float:
    """Return the package's length-controlled win rate, percent.

    Parameters
    ----------
    annotations : str
        annotations.json, of all of the package's instructions in its order: their places in the file are what their
        difficulty is looked up by.
    difficulty : str
        df_gamed.csv of the data set tatsu-lab/alpaca_eval.

    Raises
    ------
    EvaluationError
        If the package is not installed, the file is missing, the package fails on them, or gives no finite number.
    """
    file = Path(difficulty).expanduser().absolute()
    if not file.is_file():
        raise EvaluationError(
            f"--difficulty {difficulty!r} is no file; it is {GAMED} of the data set tatsu-lab/alpaca_eval, which is "
            "not fetched"
        )
    try:
        pandas = importlib.import_module("pandas")
        glm_winrate = importlib.import_module("alpaca_eval.metrics.glm_winrate")
    except ImportError as error:
        raise EvaluationError(
            f"the length-controlled rate is computed by the package alpaca_eval, which cannot be imported: {error}. "
            "Install it (pip install alpaca_eval), or leave out --difficulty"
        ) from None
    rows = json.loads(Path(annotations).expanduser().read_text(encoding="utf-8"))
    table = pandas.DataFrame(rows).drop(columns="index", errors="ignore")
    try:
        with _in_place_of_downloads(glm_winrate, file):
            found = glm_winrate.get_length_controlled_winrate(
                table, save_weights_dir=None, is_add_glm_preference_inplace=False
            )
        rate = float(found["length_controlled_winrate"])
    except EvaluationError:
        raise
    except Exception as error:  # of pandas, scikit-learn or the package, on files of another version
        raise EvaluationError(
            f"the package alpaca_eval fails on {annotations} with {difficulty}: {type(error).__name__}: {error}"
        ) from None
    if not math.isfinite(rate):
        raise EvaluationError(
            f"the package's length-controlled rate of {annotations} is {rate}: the file must hold all of its "
            "instructions, once each and unchanged"
        )
    return rate


@contextlib.contextmanager
def _in_place_of_downloads(module: Any, file: Path) -> Iterator[None]:
    """Hand over a file where the package would fetch it; anything else that it wants to fetch is refused."""

    def fetched(*_: Any, filename: str = "", **__: Any) -> str:
        if filename != GAMED:
            raise EvaluationError(f"the package alpaca_eval wants to fetch {filename!r}; only {GAMED} was given")
        return str(file)

    before = module.hf_hub_download
    module.hf_hub_download = fetched
    try:
        yield
    finally:
        module.hf_hub_download = before
