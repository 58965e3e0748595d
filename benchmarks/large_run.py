"""One row of `large`: a real run of a large model with random weights, in a process of its own.

The training loop is the real one. What is replaced: weights are made on the device in place of being read from 32 GB
of files, and the disk is not asked for room for a checkpoint. The learning rate is 0, which does not change the work
and under which every log-ratio must be exactly 0.
"""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

import humanline.train.policy.build as build
from benchmarks.inside import PARTS, Inside, idle_share
from benchmarks.interleave import clock, interleave
from benchmarks.machine import DEVICE
from benchmarks.parts import reason_of
from benchmarks.report import Result, Row, failure, not_measured, timing_row
from benchmarks.runs import REAL, REFERENCES, Lengths, Stepped, Workload, pausing_loop, prepare, run_config
from benchmarks.runs import training_batches as batches_of
from humanline.system.imports import quiet_libraries
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from humanline.train.policy.load import TYPES, load_outline, turn_off_dropout
from humanline.train.preflight.disk import Writes
from humanline.train.preflight.fits import workload_of
from humanline.train.preflight.memory import Estimator

GIB = 2**30
# Prompt, answer and the tokens that begin and end a row are 1024 tokens.
LLAMA_8B = Workload(
    hidden=4096,
    layers=32,
    heads=32,
    vocab=128_256,
    prompt=256,
    answer=766,
    batch=32,
    micro_batch=4,
    precision="bf16",
    shortest=1.0,
    inner=14_336,
    key_heads=8,
)
QUICK = Workload(64, 2, 4, 512, prompt=16, answer=47, batch=4, micro_batch=2, shortest=1.0, inner=128, key_heads=2)
QUICK_LENGTHS = (Lengths(6.0, 0.9), Lengths(14.0, 0.7))
# As wide as the 8B model, so that the same kernels run, and as small as several runs after each other need it.
SHALLOW = replace(LLAMA_8B, layers=4, batch=8)
# The shape of Llama 3.2 1B, but with a head of its own: three runs of it fit side by side.
LLAMA_1B = replace(LLAMA_8B, hidden=2048, layers=16, heads=32, inner=8192, batch=8)
DATASHEET, REACHED = 989e12, 788e12  # bf16 FLOP/s of an H200: the data sheet's, and a large matmul's
MOST_GIB, MOST_SECONDS = 135.0, 11.5
WARM_UP = 2  # the first step scores two batches; both warm up the allocator
# What trained weights and optimizer states are kept in.
KEPT: dict[str, dict[str, Any]] = {
    "float32 masters": {},
    "bf16, 8-bit states": {"training": {"weights": "bf16"}, "optimizer": {"states": "8bit"}},
    "LoRA": {"adapter": {"rank": 16}},
}


@dataclass(frozen=True, slots=True)
class Variant:
    """What one row of the matrix measures."""

    what: str
    key: str  # of its numbers, for rows that compare two of them
    kept: str = "float32 masters"
    padding: str = "right"
    lengths: str = "one"
    pairs: int = 8
    micro_batch: int = 4
    reference: str = "ahead"
    steps: int = 3
    headline: bool = False  # the one that target 7 is about


def forward_flops(workload: Workload, rows: int, width: int, counted: int) -> float:
    """Return the floating-point operations of one forward pass without padding.

    Parameters
    ----------
    workload : Workload
    rows, width : int
        Rows of how many tokens.
    counted : int
        Tokens whose log-probability is asked for: the output head sees no others.

    Returns
    -------
    float
        Two for each weight of a matrix and token, and causal attention's own products; nothing else.
    """
    hidden, inner = workload.hidden, workload.inner or 8 * round(workload.hidden / 3)
    of_keys = hidden * (workload.key_heads or workload.heads) // workload.heads
    layer = 2 * hidden * hidden + 2 * hidden * of_keys + 3 * hidden * inner
    attention = 2 * width * hidden  # two products, half of whose entries a causal model needs
    return rows * width * workload.layers * (2.0 * layer + attention) + 2.0 * counted * hidden * workload.vocab


@contextmanager
def random_weights() -> Iterator[None]:
    """Let runs make their weights on the device, the same ones each time, and take the disk for large enough."""
    from transformers import AutoConfig, AutoModelForCausalLM

    def made(path: str, *, weights: str = "float32", **_: Any) -> Any:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=TYPES[weights])
        turn_off_dropout(model)
        return model.eval()

    with (
        patch.object(build, "load_weights", made),
        patch.object(build, "refuse_missing_weights", lambda *_: None),
        patch.object(Writes, "refuse", lambda *_: None),
    ):
        yield


def workload_for(
    large: Workload, quick: bool, *, lengths: str = "one", pairs: int = 8, micro_batch: int = 4
) -> Workload:
    """Return a model's workload with these rows; a tiny one in its place to be quick."""
    if quick:
        return replace(QUICK, lengths=QUICK_LENGTHS if lengths == "real" else None)
    return replace(large, lengths=REAL if lengths == "real" else None, batch=pairs, micro_batch=micro_batch)


def configured(base: dict[str, Any], output: Path, kept: str, padding: str, reference: str, steps: int) -> TrainConfig:
    """Return the configuration of humanline DPO with a clip, k = 1, under full activation checkpointing."""
    sections = dict(KEPT[kept])
    training = {"activation_checkpointing": True, "padding": padding} | sections.pop("training", {})
    precision = base["training"]["precision"]
    if training.get("weights") == "bf16":
        precision = "bf16"
    optimizer = base["optimizer"] | sections.pop("optimizer", {}) | {"lr": 0.0}
    return run_config(
        base | {"checkpoint": {"minutes": None}},
        output,
        REFERENCES[reference],
        steps=steps,
        training=training | {"precision": precision},
        transform={"kind": "clip"},
        **sections | {"optimizer": optimizer},
    )


# ---------------------------------------------------------------------------------------------------------------------
# One run: its time, its parts, its memory


def measure(quick: bool, **variant: Any) -> Iterator[Result]:
    """Run the loop for a few steps, and yield what it took, part by part."""
    how = Variant(**variant)
    quiet_libraries()
    warnings.simplefilter("ignore")
    workload = workload_for(LLAMA_8B, quick, lengths=how.lengths, pairs=how.pairs, micro_batch=how.micro_batch)
    count = WARM_UP + how.steps
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        more = 2  # a step for the profiler; and the last step of a run has nothing left to score ahead
        base = prepare(Path(name), workload, pairs=(count + more) * workload.batch, weights=False)
        config = configured(base, Path(name) / "run", how.kept, how.padding, how.reference, count + more)
        facts = _facts(workload, config, range(WARM_UP, count))
        inside = Inside()
        for context in (random_weights(), pausing_loop(), inside.looked_at()):
            stack.enter_context(context)
        run = Stepped(lambda: train(config, show_progress=False))
        stack.callback(run.close)
        seconds: dict[str, list[float]] = {}
        for step in range(count):
            started = clock()
            run.step()
            taken, parts = clock() - started, inside.seconds()
            if step >= WARM_UP:
                seconds.setdefault("step", []).append(taken)
                for part, value in parts.items():
                    seconds.setdefault(part, []).append(value)
        facts |= {"step": median(seconds["step"])} | _memory()
        yield Result(
            {how.key: facts},
            _rows_of_steps(how, facts, seconds["step"], quick),
            {f"{how.key}: {part}": values for part, values in seconds.items()},
        )
        largest, tokens = inside.log_ratios()
        yield Result({}, [log_ratio_row(how.what, largest, tokens, count, inside.missing.get("log-ratios"))])
        yield Result({}, [_estimate_row(how, config, facts)])
        yield Result({}, [_idle_row(how, run, _told_parts(seconds, inside))])


def _facts(workload: Workload, config: TrainConfig, steps: range) -> dict[str, float]:
    """Return tokens and FLOPs of an average step among these."""
    blocks = [micro.block for number, step in enumerate(batches_of(config)) if number in steps for micro in step]
    counted = sum(int(block.mask.sum()) for block in blocks)
    layers = sum(forward_flops(workload, 1, length, 0) for block in blocks for length in block.lengths)
    head = forward_flops(workload, 0, 0, counted)
    return {
        "tokens": sum(sum(block.lengths) for block in blocks) / len(steps),
        "padded tokens": sum(block.input_ids.numel() for block in blocks) / len(steps),
        "forward FLOPs": (layers + head) / len(steps),
    }


def _memory() -> dict[str, float]:
    if DEVICE == "cpu":
        return {}
    return {
        "allocated GiB": torch.cuda.max_memory_allocated() / GIB,
        "reserved GiB": torch.cuda.max_memory_reserved() / GIB,
    }


def _rows_of_steps(how: Variant, facts: dict[str, float], seconds: list[float], quick: bool) -> list[Row]:
    """Return the rows on speed, memory and utilisation."""
    held = how.headline and not quick
    step, number = facts["step"], "7" if how.headline else "-"
    target = f"<= {MOST_SECONDS:g} s" if how.headline else ""
    note = f"median of {len(seconds)}: {min(seconds):.4g} to {max(seconds):.4g} s"
    rows = [
        Row(
            number,
            f"{how.what}: step",
            (f"{step:.4g} s", f"{facts['tokens'] / step:.4g}/s"),
            step,
            target=target,
            met=step <= MOST_SECONDS if held else None,
            note=note + ("; stretch 9.6 s" if how.headline else ""),
        )
    ]
    what, target = f"{how.what}: peak memory, allocated and reserved", f"<= {MOST_GIB:g} GiB" if how.headline else ""
    if "reserved GiB" in facts:
        reserved = facts["reserved GiB"]
        sides = (f"{facts['allocated GiB']:.1f} GiB", f"{reserved:.1f} GiB")
        rows.append(Row(number, what, sides, reserved, target=target, met=reserved <= MOST_GIB if held else None))
    else:
        rows.append(not_measured(number, what, "needs a GPU", target))
    return rows + _utilisation(how, facts)


def _utilisation(how: Variant, facts: dict[str, float]) -> list[Row]:
    adapter = how.kept == "LoRA"  # frozen weights have no gradient
    least, most = (2, 3) if adapter else (3, 4)
    forward, step = facts["forward FLOPs"], facts["step"]
    chosen = [
        (least, DATASHEET, "forward and backward: the work of a step with ready-made log-probabilities"),
        (most, DATASHEET, "with the pass that scores; what checkpointing does again is not counted"),
        (most, REACHED, "against what a large bf16 matmul reaches on an H200"),
    ]
    of = "" if DEVICE == "cpu" or "H200" in torch.cuda.get_device_name() else "; the rates are an H200's, this is none"
    rows = []
    for times, rate, note in chosen:
        what = f"{how.what}: utilisation: {times} x forward FLOPs a step / {rate / 1e12:.0f} TFLOP/s"
        if DEVICE == "cpu":
            rows.append(not_measured("-", what, "needs a GPU"))
            continue
        sides = (f"{times * forward / 1e15:.4g} PFLOP", f"{rate / 1e12:.0f} T/s")
        rows.append(Row("-", what, sides, times * forward / step / rate, note=note + of))
    return rows if how.headline else rows[1:2]


def log_ratio_row(what: str, largest: float, tokens: int, steps: int, missing: str | None) -> Row:
    """Return the row that says whether every log-ratio was 0 at learning rate 0."""
    what = f"{what}: largest |log-ratio| at learning rate 0"
    if missing is not None or not tokens:
        return not_measured("6", what, missing or "no log-ratio was seen", "== 0")
    return Row("6", what, value=largest, target="== 0", met=largest == 0, note=f"{tokens:,} tokens of {steps} steps")


def _estimate_row(how: Variant, config: TrainConfig, facts: dict[str, float]) -> Row:
    """Hold the estimated peak against the measured one."""
    what, target = f"{how.what}: memory, estimated / allocated at the peak", "0.9 to 1.1"
    try:
        estimator = Estimator(load_outline(config.model), cuda=DEVICE == "cuda")
        estimate = estimator.estimate(config, workload_of(config, 1))
    except Exception as error:  # which takes nothing from what was measured
        return failure("-", what, reason_of(error), target)
    if "allocated GiB" not in facts:
        why = f"needs a GPU; estimated {estimate.peak / GIB:.3g} GiB ({estimate.peak_phase})"
        return not_measured("-", what, why, target)
    allocated = facts["allocated GiB"]
    ratio = estimate.peak / GIB / allocated
    sides = (f"{estimate.peak / GIB:.1f} GiB", f"{allocated:.1f} GiB")
    return Row("-", what, sides, ratio, target=target, met=0.9 <= ratio <= 1.1, note=estimate.peak_phase)


def _told_parts(seconds: dict[str, list[float]], inside: Inside) -> str:
    """Say how long each part of a step took."""
    medians = {part: median(seconds[part]) for part in PARTS if part in seconds}
    rest = median(seconds["step"]) - sum(medians.values())
    told = [f"{part} {value:.3g} s" for part, value in medians.items()]
    told += [
        f"{part} not measured: {inside.missing.get(part, 'never called')}" for part in PARTS if part not in medians
    ]
    return f"parts of a step: {', '.join(told)}; all else {rest:.3g} s"


def _idle_row(how: Variant, run: Stepped, parts: str) -> Row:
    """Return the row on the time in which the GPU waits for the host, from one more step."""
    what = f"{how.what}: time without work on the GPU / step"
    if DEVICE == "cpu":
        return not_measured("-", what, f"needs a GPU; {parts}")
    try:
        taken, idle = idle_share(run.step)
    except Exception as error:  # a profiler that is not there takes nothing from what was measured
        return not_measured("-", what, f"{reason_of(error)}; {parts}")
    return Row("-", what, (f"{idle:.3g} s", f"{taken:.4g} s"), idle / taken, note=f"one more step, recorded; {parts}")


# ---------------------------------------------------------------------------------------------------------------------
# Several short runs: bits, and references side by side


def log_ratios_of_layouts(quick: bool, padding: str) -> Iterator[Result]:
    """Take a few steps at learning rate 0 in one layout of rows, for each way of keeping weights, on real lengths."""
    quiet_libraries()
    warnings.simplefilter("ignore")
    workload, steps = workload_for(SHALLOW, quick, lengths="real", pairs=8, micro_batch=2 if quick else 4), 3
    with tempfile.TemporaryDirectory() as name:
        base = prepare(Path(name), workload, pairs=(steps + 1) * workload.batch, weights=False)
        if quick:
            base["training"]["precision"] = "bf16"  # whose bits are at stake
        for number, kept in enumerate(KEPT):
            what = f"{kept}, {padding_of(padding)}, real lengths, {workload.layers} layers"
            inside = Inside()
            try:
                config = configured(base, Path(name) / str(number), kept, padding, "ahead", steps + 1)
                with ExitStack() as stack:
                    for context in (random_weights(), pausing_loop(), inside.looked_at()):
                        stack.enter_context(context)
                    run = Stepped(lambda config=config: train(config, show_progress=False))  # type: ignore[misc]
                    stack.callback(run.close)
                    for _ in range(steps):
                        run.step()
                row = log_ratio_row(what, *inside.log_ratios(), steps, inside.missing.get("log-ratios"))
            except Exception as error:  # of this layout; the others may work
                row = failure("6", f"{what}: largest |log-ratio| at learning rate 0", reason_of(error), "== 0")
            yield Result({}, [row])
            run = inside = None  # type: ignore[assignment]
            _empty()


def padding_of(padding: str) -> str:
    """Return how rows are laid out, in words."""
    return "padded" if padding == "right" else "padding-free"


def _empty() -> None:
    """Give back the memory of a run that is over."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def references(quick: bool) -> Iterator[Result]:
    """Run three references side by side, on a model of which three copies fit (targets 1 and 2)."""
    quiet_libraries()
    warnings.simplefilter("ignore")
    workload = workload_for(LLAMA_1B, quick)
    rounds, warm_up = (3, 2) if quick else (30, 3)
    size = "1B" if not quick else "a tiny model"
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        steps = warm_up + rounds + 1
        base = prepare(Path(name), workload, pairs=steps * workload.batch, weights=False)
        for context in (random_weights(), pausing_loop()):
            stack.enter_context(context)
        runs: dict[str, Stepped] = {}
        for key in ("ahead", "live", "free"):
            config = configured(base, Path(name) / key, "float32 masters", "right", key, steps)
            runs[key] = Stepped(lambda config=config: train(config, show_progress=False))  # type: ignore[misc]
            stack.callback(runs[key].close)
        seconds = interleave({key: run.step for key, run in runs.items()}, rounds=rounds, warm_up=warm_up)
    what = f"{size}, float32 masters, full checkpointing, step: scoring ahead / "
    rows = [
        timing_row("1", f"{what}live reference", seconds["ahead"], seconds["live"], limit=1.02, upper_end=True),
        timing_row("2", f"{what}precomputed offline", seconds["ahead"], seconds["free"], limit=1.28),
    ]
    yield Result({}, rows, {f"references, {key}": values for key, values in seconds.items()})
