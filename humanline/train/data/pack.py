"""The data of a run as bytes: one process reads and tokenises them, and the others are given what it made."""

from __future__ import annotations

import json

import numpy as np
from pydantic import TypeAdapter
from safetensors.numpy import load, save

from humanline.train.config import TrainConfig
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import RunData, rehearsal
from humanline.train.data.sequences import under
from humanline.train.data.sets import DataSets, Report
from humanline.train.data.units import Units

_REPORTS, _CONTEXTS = TypeAdapter(dict[str, Report]), TypeAdapter(list[Context])


def pack(data: RunData) -> bytes:
    """Return a run's data as bytes: arrays in safetensors, the rest JSON."""
    texts = {
        "reports": _REPORTS.dump_python(data.sets.reports, mode="json"),
        "contexts": _CONTEXTS.dump_python(data.contexts, mode="json"),
        "held_out": _CONTEXTS.dump_python(data.held_out, mode="json"),
        "travelled": _CONTEXTS.dump_python(data.travelled, mode="json"),
    }
    arrays = {"texts": np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)}
    for name, units in (("train", data.sets.train), ("held_out", data.sets.held_out)):
        if isinstance(units, Units):  # else made of the contexts
            arrays |= {f"{name}/{part}": np.ascontiguousarray(one) for part, one in units.arrays().items()}
    packed: bytes = save(arrays)
    return packed


def unpack(packed: bytes, config: TrainConfig, renderer: Renderer) -> RunData:
    """Return the data of which `pack` made the bytes, in a process with the same configuration."""
    arrays = load(packed)
    texts = json.loads(arrays["texts"].tobytes())
    reports = _REPORTS.validate_python(texts["reports"])
    contexts, held_out, travelled = (
        _CONTEXTS.validate_python(texts[name]) for name in ("contexts", "held_out", "travelled")
    )
    if config.rounds is not None:
        sets = DataSets(rehearsal(config, contexts, renderer), reports=reports)
        return RunData(sets, contexts, held_out, travelled)
    train = Units.of_arrays(under("train/", arrays))
    if config.data.eval is None:
        return RunData(DataSets(train, reports=reports), travelled=travelled)
    measured = Units.of_arrays(under("held_out/", arrays))
    sets = DataSets(train, measured, measured.pairs() if measured.taken_apart else [], reports)
    return RunData(sets, travelled=travelled)
