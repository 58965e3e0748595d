"""Rounds in verl's own FSDP engine, on the CPU: which weights scored which mini-batch, printed as JSON.

    RANK=0 WORLD_SIZE=1 python -m tests.helpers.verl_fsdp FOLDER STRATEGY LAYOUT SYNC_EVERY EPOCHS

FOLDER holds the model, made by `make_model`, and becomes the meeting place of the processes. verl knows no platform
without an accelerator, so the methods of its CUDA platform answer for the CPU here. Nothing else of verl is changed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed.fsdp


def make_model(folder: Path) -> None:
    """Write a tiny model with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=11, num_key_value_heads=1, tie_word_embeddings=False, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(folder)


def on_the_cpu() -> None:
    """Let verl's platform be the CPU."""
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    names = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved", "synchronize")
    device = SimpleNamespace(**{name: lambda *_: 0 for name in (*names, "empty_cache")}, mem_get_info=lambda *_: (1, 1))
    PlatformCUDA.device_name = property(lambda _: "cpu")
    PlatformCUDA.device_module = property(lambda _: device)
    PlatformCUDA.current_device = lambda _: "cpu"
    PlatformCUDA.is_available = lambda _: True
    PlatformCUDA.set_device = PlatformCUDA.synchronize = lambda *_: None
    PlatformCUDA.empty_cache = lambda _: None
    # FSDP of the first kind refuses to hand out weights from a CPU, where gloo can.
    torch.distributed.fsdp._init_utils._check_module_states_for_sync_module_states = lambda _: None


def fsdp_worker(model: Path, strategy: str):
    """Return verl's worker around its engine for `fsdp` or `fsdp2` with the policy loss `humanline`."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.engine_workers import TrainingWorker

    from tests.helpers import verl_engine

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(FSDPEngineWithLMHead)
    exact = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=str(model),
                load_tokenizer=False,
                use_remove_padding=False,
                enable_gradient_checkpointing=False,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=FSDPEngineConfig(
                strategy=strategy,
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=1,
                use_torch_compile=False,
                mixed_precision=exact,
            ),
            optimizer_config=FSDPOptimizerConfig(lr=1e-2, total_training_steps=100),
            checkpoint_config=CheckpointConfig(),
        )
    )
    made.reset()
    made.flops_counter = None  # it asks which GPU this is
    made.set_loss_fn(verl_engine.loss("humanline", clip_ratio_c=1e9))
    return made


def nearest(batch, before: list[dict], plain) -> tuple[int, float, float]:
    """Return which earlier weights give a mini-batch's reference, how near they come, and how near the next ones."""
    from tests.helpers import verl_engine

    old, far = verl_engine.old_log_probs(batch), []
    for weights in before:
        plain.load_state_dict(weights)
        found = []
        for row, n in zip(batch["input_ids"].unbind(), verl_engine.answer_lengths(batch), strict=True):
            with torch.no_grad():
                log_probs = plain(row[None]).logits[0].log_softmax(-1)
            found.append(log_probs[:-1].gather(-1, row[1:, None])[:, 0][-n:])
        far.append(float((torch.cat(found) - old).abs().max()))
    near, after = sorted(far)[:2]
    return far.index(near), near, after


def whole(module) -> dict[str, torch.Tensor]:
    """Return copies of the weights, put together from all processes."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not isinstance(module, FullyShardedDataParallel):
        return {name: weight.full_tensor().clone() for name, weight in module.named_parameters()}
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        return {name.replace("_fsdp_wrapped_module.", ""): one.clone() for name, one in module.named_parameters()}


def main(folder: Path, strategy: str, layout: str, epochs: int) -> None:
    """Take two rounds of 7 mini-batches and print what scored them."""
    from transformers import AutoModelForCausalLM

    from tests.helpers import verl_engine

    worker = fsdp_worker(folder, strategy)
    plain = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    engine, before, trained = worker.engine, [], []
    train_batch = engine.train_batch

    def remembered(data, loss_function):
        before.append(whole(engine.module))
        trained.append(data.clone())
        return train_batch(data, loss_function)

    engine.train_batch = remembered
    world = torch.distributed.get_world_size()
    for start in (0, 7):
        data = verl_engine.round_of(14, start + 100 * worker.rank, nested=layout == "nested", of=worker)
        del before[:], trained[:]
        verl_engine.train(worker, data, mini_batch=2 * world, shuffle=True, epochs=epochs)
        print(json.dumps([nearest(batch, before, plain) for batch in trained]), flush=True)


if __name__ == "__main__":
    folder, strategy, layout, every, epochs = sys.argv[1:]
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    os.environ.update(VERL_ENGINE_DEVICE="cpu", LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    os.environ.update(HUMANLINE_VERL_LOG_EPS_LOW="-20", HUMANLINE_VERL_LOG_EPS_HIGH="20")
    import verl  # noqa: F401

    on_the_cpu()
    os.environ.update(HUMANLINE_VERL_SYNC="before_step", HUMANLINE_VERL_SYNC_EVERY=every)
    from humanline.integrations.verl import syncing

    syncing.install()
    store = Path(folder, "meeting").resolve()
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size))
    main(Path(folder), strategy, layout, int(epochs))
    torch.distributed.destroy_process_group()
