"""The Python API: a run of a configuration, of rows and of a model that are at hand in a program or a notebook.

What is given is written beside the output folder first, under a name that holds its hash:
`OUTPUT.given/rows-HASH.jsonl`, `OUTPUT.given/model-HASH`. From there on a run is as any other: the same checks,
messages and files; and going on with it takes the same rows and the same model, or is refused.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from humanline.system.files import make_folder, write_text
from humanline.system.imports import import_transformers
from humanline.system.paths import absolute
from humanline.system.stop import StopSignal
from humanline.train.config import TrainConfig
from humanline.train.data.tables import no_progress_bars
from humanline.train.loop import train as train_config
from humanline.train.policy.save import save_model
from humanline.train.run.fingerprint import base_hash, tokenizer_hash
from humanline.train.run.result import RunResult

_DIGITS = 16  # of a hash in a name


class GivenError(ValueError):
    """Rows or a model, given in Python, that cannot be trained on or are not those of the run to go on with."""


def train(
    config: TrainConfig,
    *,
    rows: Iterable[Mapping[str, Any]] | None = None,
    held_out: Iterable[Mapping[str, Any]] | None = None,
    model: Any = None,
    tokenizer: Any = None,
    resume: bool = False,
    stop: StopSignal | None = None,
    show_progress: bool | None = None,
) -> RunResult:
    """Train a policy as the configuration says and write it, with its metrics, to the output folder.

    Parameters
    ----------
    config : TrainConfig
        From `load_config`, or made of dicts by `TrainConfig.model_validate`.
    rows, held_out : iterable of mappings, optional
        In place of `data.train` and `data.eval`: a list of dicts, or a `datasets.Dataset`. Their values must be JSON.
    model, tokenizer : optional
        In place of `model`: a model of transformers, from which the run starts, and its tokenizer. Neither is changed;
        the trained model is in the folder that is returned.
    resume : bool
        Go on with the run in the output folder, to the same result; with the same rows and model where they were given.
    stop : StopSignal, optional
        Polled at every safe point: whether the run is to save and end.
    show_progress : bool, optional
        Print progress to standard error; default: where that is a terminal, so not in notebooks.

    Returns
    -------
    RunResult

    Raises
    ------
    GivenError
        If rows are none or no JSON, a model comes without tokenizer or is no whole model of transformers, several
        processes would write what is given, or `resume` is set and the run began from other rows or another model.
    Exception
        All that `humanline.train.loop.train` raises.
    """
    import_transformers()
    shows = sys.stderr.isatty() if show_progress is None else show_progress
    with _bars(shows):
        given = _written(config, rows, held_out, model, tokenizer)
        if resume:
            _refuse_others(config, given)
        result = train_config(given, resume=resume, stop=stop, show_progress=shows)
    gc.collect()  # torch's compiler, which a first run imports, keeps its callers' frames in cycles, and so the model
    return result


def _written(config: TrainConfig, rows: Any, held_out: Any, model: Any, tokenizer: Any) -> TrainConfig:
    """Return a configuration that names the files of what is given, which are written."""
    if rows is held_out is model is tokenizer is None:
        return config
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise GivenError(
            "rows and models are given in Python to one process alone; write them to files, and name these"
        )
    if (model is None) != (tokenizer is None):
        raise GivenError("give model and tokenizer together: what a model was trained with is not known without it")
    folder = absolute(f"{absolute(config.output)}.given")
    make_folder(folder)
    data = {
        name: str(_rows_written(folder, file, given, said))
        for name, file, given, said in (("train", "rows", rows, "rows"), ("eval", "held-out", held_out, "held_out"))
        if given is not None
    }
    update: dict[str, Any] = {"data": config.data.model_copy(update=data)}
    if model is not None:
        update["model"] = str(_model_written(folder, model, tokenizer))
    return config.model_copy(update=update)


def _rows_written(folder: Path, name: str, given: Any, said: str) -> Path:
    """Write rows, and return their file: JSON lines, or of a `datasets.Dataset` parquet, which keeps its types.

    Of one whose format shows other rows than it holds (`with_transform`, or some columns) those that are shown.
    """
    if isinstance(given, str | bytes | Mapping):
        raise GivenError(f"{said}: expected a list of dicts, or a datasets.Dataset; got {type(given).__name__}")
    lines = _lines(given, said)
    if not lines:
        raise GivenError(f"{said} has no rows; an iterator can be gone through only once")
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()[:_DIGITS]
    if not hasattr(given, "to_parquet") or _shows_others(given, lines):
        path = folder / f"{name}-{digest}.jsonl"
        write_text(path, "".join(lines))
        return path
    path = folder / f"{name}-{digest}.parquet"
    partial = path.with_name(f"{path.name}.partial")
    with no_progress_bars():
        given.to_parquet(str(partial))
    os.replace(partial, path)
    return path


def _lines(given: Any, said: str) -> list[str]:
    """Return rows as lines of JSON; raise GivenError, with its place, for one that is none."""
    lines = []
    for number, row in enumerate(given):
        if not isinstance(row, Mapping):
            raise GivenError(f"{said}[{number}] is {type(row).__name__}; expected a dict: column -> value")
        try:
            lines.append(json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n")
            lines[-1].encode()  # half a surrogate pair is no text
        except (TypeError, ValueError, RecursionError) as error:
            raise GivenError(f"{said}[{number}] cannot be written as JSON: {error}") from None
    return lines


def _shows_others(given: Any, lines: Sequence[str]) -> bool:
    """Return whether the format of a `datasets.Dataset` shows other rows, as lines, than it holds, and would write."""
    shown = getattr(given, "format", None)  # none of one that streams
    if shown is None:
        return False
    if set(shown["columns"]) != set(given.column_names):
        return True
    if shown["type"] is None:
        return False
    try:
        return _lines(given.with_format(None), "rows") != lines
    except Exception:  # also of decoding, of sound or images that only a transform leaves out
        return True


def _model_written(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Write a model, unless that was done, and return its folder."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise GivenError(
            f"model is {type(model).__name__}; expected a model of transformers, whole: an adapter is made by the "
            "section adapter, and one that is trained already is merged first"
        )
    if getattr(model, "quantization_config", None) is not None or getattr(model, "hf_quantizer", None) is not None:
        raise GivenError("model is quantised; give it as it was before, and set adapter.base: nf4")
    state = model.state_dict()
    if any(tensor.is_meta for tensor in state.values()):
        raise GivenError("model has weights on the meta device, which hold nothing")
    sha = hashlib.sha256(f"{base_hash(model)} {tokenizer_hash(tokenizer)} {tokenizer.chat_template!r}".encode())
    for name, tensor in sorted(state.items()):
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    path = folder / f"model-{sha.hexdigest()[:_DIGITS]}"
    if not path.exists():  # whole, if it is there
        save_model(path, model, tokenizer)
    return path


def _refuse_others(config: TrainConfig, given: TrainConfig) -> None:
    """Raise GivenError if the run in the output folder began from rows or a model given in Python, and other ones."""
    try:
        then = json.loads((absolute(config.output) / "config.json").read_text(encoding="utf-8"))
        data = then["data"]
        before = {"model": then["model"], "rows": data["train"], "held_out": data["eval"]}
    except (OSError, ValueError, TypeError, KeyError):  # what is wrong with the folder, the run itself says
        return
    now = {"model": given.model, "rows": given.data.train, "held_out": given.data.eval}
    for said, name in before.items():
        if name != now[said] and Path(str(name)).parent.name == f"{Path(config.output).name}.given":
            raise GivenError(
                f"the run in {config.output!r} began from {said} given in Python, and goes on from the same alone: "
                f"then {Path(name).name}, now {Path(now[said] or 'none').name} (the names hold their hashes). Give the "
                f"same {said}, or start a new run in another folder."
            )


@contextlib.contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """Keep transformers' progress bars from a run that shows nothing by itself."""
    from transformers.utils import logging as library

    if shown or not library.is_progress_bar_enabled():
        yield
        return
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.enable_progress_bar()
