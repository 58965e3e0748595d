"""What drawing completions is estimated to hold is what transformers' generate holds, token by token."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from humanline.train.config import TrainConfig
from humanline.train.config.rounds import GenerateEngine, SamplingConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.data.run_data import renderer_of
from humanline.train.online.samplers.generate import GenerateSampler
from humanline.train.policy.load import load_tokenizer
from humanline.train.preflight import suggest as changes
from humanline.train.preflight.hardware import GIB
from humanline.train.preflight.memory import DRAWING, Estimator
from humanline.train.preflight.sampling import drawing_bytes
from humanline.train.preflight.suggest import suggest
from humanline.train.preflight.workload import Drawn, batches_drawn
from tests.train.preflight.test_estimate import LLAMA_8B, limits, outline_of, run_config, small


class Live(TorchDispatchMode):
    """Count bytes of storages that are live, of those that operations make."""

    def __init__(self, known: Any) -> None:
        super().__init__()
        self.known = {id(tensor.untyped_storage()) for tensor in known}
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, torch.Tensor) and id(storage := tensor.untyped_storage()) not in self.known:
                self.known.add(id(storage))
                self.now += storage.nbytes()
                weakref.finalize(storage, self.gone, id(storage), storage.nbytes())
        self.most = max(self.most, self.now)
        return output

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize(
    ("kind", "rows", "prompt", "new"),
    [("llama", 8, 24, 120), pytest.param("gemma2", 6, 300, 30, marks=pytest.mark.slow)],
)
def test_generate_holds_what_is_estimated(toy, tmp_path, kind, rows, prompt, new):
    """The largest number of live bytes is within a tenth, where the cache decides and where the prompts do."""
    from transformers import AutoModelForCausalLM

    outline, given = small(kind, 8, tmp_path / "model"), run_config(training={"precision": "float32"})
    model = AutoModelForCausalLM.from_config(outline.config, dtype=torch.float32).eval()
    sampling = SamplingConfig(max_tokens=new, engine=GenerateEngine(batch_size=rows))
    sampler = GenerateSampler(model, renderer_of(given, load_tokenizer(toy["model"])), sampling)
    contexts = [Context(f"{row}", (Message("user", "a"),), tuple([1] * (prompt - row)), {}) for row in range(rows)]
    with Live([*model.parameters(), *model.buffers()]) as live:
        (rollouts,) = sampler.sample(contexts, 1, key=(0, 0))
    assert max(len(each.completions[0].ids) for each in rollouts) == new  # as far as completions may go
    found = drawing_bytes(given, outline, Drawn(rows, prompt, new))
    assert found == pytest.approx(live.most, rel=0.1)


ROUNDS = {"kind": "rounds", "scoring": {"rewards": [{"kind": "number"}]}}


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Estimator:
    """An estimator for the shape of Llama 3 8B on a GPU."""
    return Estimator(outline_of(tmp_path_factory.mktemp("llama"), LLAMA_8B), cuda=True)


def in_rounds(**sampling: Any) -> TrainConfig:
    """LoRA on bf16 weights, whose gradients are small, with 64 completions of at most 512 tokens at a time."""
    source = ROUNDS | {"sampling": {"max_tokens": 512} | sampling}
    never, small_passes = {"schedule": {"kind": "never"}}, {"activation_checkpointing": True}
    return run_config(source=source, adapter={"rank": 8, "base": "bf16"}, reference=never, training=small_passes)


def test_the_cache_of_an_8b_model_is_the_peak_of_lora_in_rounds(llama):
    """Of 64 completions of 1024 tokens with their prompts it has 8 GiB: 2 x 32 x 8 x 128 x 2 bytes a token."""
    given = in_rounds()
    estimate = llama.estimate(given, limits(given))
    cache = 64 * 1024 * 2 * 32 * 8 * 128 * 2
    assert cache == 8 * GIB
    assert cache < estimate.drawing < 1.25 * cache + 64 * 128256 * 32
    assert estimate.peak_phase == DRAWING
    # A run is refused for what it must take alone: completions may end early.
    assert estimate.lower_bound < estimate.static.kept + cache < estimate.peak


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [
        ({}, [Drawn(64, 512, 512)]),
        ({"prompts": {"rounds": (100, 200)}}, [Drawn(64, 200, 512)]),
        ({"prompts": {"rounds": (900, 1000)}}, [Drawn(64, 1000, 124)]),
        ({"sampling": {"engine": {"kind": "continuous"}}}, []),
        ({"sampling": {"engine": {"kind": "generate", "batch_size": 4}}}, [Drawn(4, 512, 512)]),
    ],
)
def test_batches_drawn_are_those_of_engine_and_prompts(changes, drawn):
    """The longest prompts in batches of the engine, and no further than data.max_length; other engines draw none."""
    assert batches_drawn(in_rounds(**changes.get("sampling", {})), changes.get("prompts", {})) == drawn


def test_fixed_data_draw_for_the_distance_alone():
    """In batches of the evaluation; a run without that look draws nothing."""
    assert batches_drawn(run_config(), {}) == []
    given = run_config(evaluation={"batch_size": 3, "distance": {"prompts": "p.jsonl", "max_tokens": 24}})
    assert batches_drawn(given, {"travelled": (10, 30)}) == [Drawn(3, 30, 24)]


def test_fewer_completions_together_are_suggested(llama, monkeypatch):
    """Where drawing them is the peak, that is what costs least, and it helps."""
    monkeypatch.setattr(changes, "_CHANGES", changes._CHANGES[:2])
    given = in_rounds()
    found = suggest(llama, given, limits(given), memory=1.0)
    (first,) = [one for one in found if one.overrides == ("source.sampling.engine.batch_size=16",)]
    assert first.alone.drawing < 0.3 * llama.estimate(given, limits(given)).drawing + 64 * 128256 * 8
