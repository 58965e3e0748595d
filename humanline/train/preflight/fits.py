"""Whether a run fits into a device: the table that `humanline estimate` prints, and the refusal before loading."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from humanline.train.config import TrainConfig
from humanline.train.data.prompts import Context
from humanline.train.data.stream import Stream
from humanline.train.preflight.hardware import (
    GIB,
    TYPICAL,
    Device,
    EstimateError,
    capacity,
    device_of,
    named_share,
    sharing,
    swap,
)
from humanline.train.preflight.memory import Estimate, Estimator, generous_bytes
from humanline.train.preflight.suggest import gpus_needed, suggest
from humanline.train.preflight.workload import Workload, block_of_answers, cheap_shape, lengths_of_prompts


class DoesNotFitError(ValueError):
    """A run that needs more memory than there is; the message holds the estimate and what to change."""


# ---------------------------------------------------------------------------------------------------------------------
# The table


def describe(
    config: TrainConfig, outline: Any, workload: Workload, estimate: Estimate, device: Device
) -> Iterator[str]:
    """Yield the lines that tell what a run takes, and whether that fits."""
    static = estimate.static
    what = "all trained" if static.trained == static.parameters else f"{static.trained:,} of them trained"
    rows, width = workload.first.input_ids.shape
    free = config.training.padding == "free"
    largest = f"{sum(workload.first.lengths):,} tokens in {rows} rows, end to end" if free else f"{rows} x {width}"
    yield f"model        {type(outline).__name__}: {static.parameters:,} parameters, {what}"
    one, several = ("GPU", "GPUs") if device.cuda else ("process", "processes")
    processes = f" on each of {workload.ranks} {several}" if workload.ranks > 1 else ""
    yield (
        f"step         about {workload.work.laid_out(config.training.padding)[0]:,.0f} tokens, "
        f"{workload.work.counted:,.0f} of them in the loss, in {workload.passes} pass(es){processes}; "
        f"the largest: {largest}"
    )
    if workload.remark:
        yield f"remark       {workload.remark}"
    lines = [
        (f"weights, trained ({config.training.weights})", static.weights),
        (f"weights, frozen ({config.kept_in})" if config.adapter else "", static.frozen),
        ("gradients", static.gradients),
        (f"optimizer states ({config.optimizer.states})", static.states),
        (f"gradients on their way between {several}", static.buckets),
        ("second model(s) (reference.storage: model)", static.second_models),
        ("drawing completions, at most: their cache, copies of weights to compute with, and a pass", estimate.drawing),
        ("weights of the start, for a look (evaluation.distance.to_start)", estimate.start),
        *_of_shards(config, estimate),
        ("activations, at most", estimate.activations),
        ("output head, at most: a chunk of logits, head weight and its gradient", estimate.logits),
    ]
    share = f", 1/{estimate.sharded.parts} of weights, gradients and states" if estimate.sharded else ""
    yield "memory       GiB" + (f" on each {one}{share}" if workload.ranks > 1 else "")
    for name, size in lines:
        if name and size:
            yield f"{size / GIB:>14,.2f}   {name}"
    where = "host" if device.cuda else "the same"
    if estimate.window >= 0.005 * GIB:
        yield f"{estimate.window / GIB:>14,.2f}   log-probabilities scored ahead, in {where} memory"
    if estimate.copies >= 0.005 * GIB:
        room = " (checkpoint.overlap: auto: if there is room)" if config.checkpoint.overlap == "auto" else ""
        yield f"{estimate.copies / GIB:>14,.2f}   what a checkpoint is written from meanwhile, in {where} memory{room}"
    yield f"{estimate.peak / GIB:>14,.2f}   peak: {estimate.peak_phase} (not all of the above is there at once)"
    if device.aside:
        yield f"{device.aside / GIB:>14,.2f}   {'CUDA itself, assumed' if device.cuda else 'the program itself'}"
    needed = estimate.peak + device.aside
    verdict = "fits" if needed <= device.memory else "does not fit"
    if verdict == "fits" and needed > 0.9 * device.memory:
        verdict = "fits, but only just: the estimate may be wrong by a tenth"
    yield f"verdict      {verdict}: {needed / GIB:,.2f} GiB of {device.memory / GIB:,.2f} GiB ({device.name})"
    if estimate.sharded is not None and workload.ranks > 1:
        weights, gradients = estimate.received
        yield (
            f"traffic      {_bytes(weights + gradients)} a step into each {one}, and as much out of it: weights "
            f"gathered {_bytes(weights)}, gradients reduced {_bytes(gradients)}"
        )
    model = sum(estimate.flops[name] for name in ("scoring", "forward", "backward"))
    parts = ", ".join(f"{name} {_flops(size)}" for name, size in estimate.flops.items() if size)
    yield f"compute      {_flops(estimate.total_flops)} a step: {parts}; without recomputation {_flops(model)}"
    if device.flops_per_second is None:
        yield "step time    not measured: there is no such device here; give the rate of a large matmul by --tflops"
    else:
        seconds = estimate.total_flops / device.flops_per_second / workload.ranks
        yield (
            f"step time    {_seconds(seconds)} at the rate of a large matrix product "
            f"({device.flops_per_second / 1e12:,.3g} TFLOP/s, {device.measured}), {_seconds(seconds / TYPICAL)} at "
            f"{TYPICAL:.0%} of it"
        )


def describe_suggestions(
    estimator: Estimator, config: TrainConfig, workload: Workload, device: Device
) -> Iterator[str]:
    """Yield what to change, with what is needed then, and how many GPUs would hold the run as it is."""
    memory, aside = device.memory, device.aside
    needed = gpus_needed(estimator, config, workload, memory, aside=aside) if device.cuda else None
    if needed is not None:
        gpus, estimate = needed
        yield (
            f"more GPUs    {(estimate.peak + aside) / GIB:,.2f} GiB on each of {gpus} GPUs with training.sharding=full "
            "(equal results; fits)"
        )
    suggestions = suggest(estimator, config, workload, memory, aside=aside)
    if not suggestions:
        yield "change       nothing known makes it smaller: take a smaller model, shorter rows or a larger device"
        return
    yield "change       what costs least first; GiB with this alone, and with those above that have two numbers"
    for one in suggestions:
        size = (one.alone.peak + aside) / GIB
        both = "" if one.together is None else f"{(one.together.peak + aside) / GIB:,.2f}"
        fits = min(one.alone.peak, one.alone.peak if one.together is None else one.together.peak) + aside <= memory
        yield f"{size:>14,.2f} {both:>9}   {' '.join(one.overrides)}  ({one.what}{'; fits' if fits else ''})"
    peaks = [one.alone.peak for one in suggestions] + [one.together.peak for one in suggestions if one.together]
    if min(peaks) + aside > memory:
        yield "             none of it is enough: take a smaller model, shorter rows or a larger device"


def _of_shards(config: TrainConfig, estimate: Estimate) -> list[tuple[str, int]]:
    """Return what a process with a share of the weights holds for a moment."""
    sharded = estimate.sharded
    if sharded is None:
        return []
    kept, gradients = config.training.precision, sharded.in_backward - sharded.in_forward
    return [
        (f"weights gathered, at most ({kept}): embedding, norm and head, and layers", sharded.in_forward),
        ("gradients of a layer and of the head, and what is reduced, at most", max(gradients, sharded.at_end)),
    ]


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.3g} GB" if count >= 1e9 else f"{count / 1e6:,.3g} MB"


def _flops(count: float) -> str:
    for unit, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")):
        if count >= unit:
            return f"{count / unit:,.3g} {name}"
    return f"{count / 1e6:,.3g} MFLOP"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


# ---------------------------------------------------------------------------------------------------------------------
# The command, and the refusal


def estimate_run(
    config: TrainConfig, *, gpu_memory: float | None = None, gpus: int = 1, tflops: float | None = None
) -> tuple[list[str], bool]:
    """Return the lines on memory and compute of a run, and whether it fits; no weights are read.

    Parameters
    ----------
    config : TrainConfig
    gpu_memory, tflops : float, optional
        As in `device_of`.
    gpus : int
        How many processes share a batch.

    Raises
    ------
    EstimateError
        If a number is out of range.
    ModelError
        If the model cannot be built, or does not fit the configuration or its tokenizer.
    LogprobsError
        As `refuse_softcap` raises.
    DryRunError
        If the model cannot be run without numbers.
    ValueError
        As `Stream` raises, if the batch cannot be shared by so many processes.
    """
    from humanline.train.policy.build import outline_checks
    from humanline.train.policy.errors import ModelError
    from humanline.train.policy.hub import HUB, shipped_shape
    from humanline.train.policy.load import load_outline, load_tokenizer

    if gpus < 1:
        raise EstimateError(f"--gpus must be >= 1; got {gpus}")
    device = device_of(gpu_memory, tflops, config.training.precision, gpus)
    shape, tokenizer = shipped_shape(config.model), None
    outline = load_outline(config.model, shape)
    with contextlib.suppress(ModelError):  # then rows are taken to be as long as they may be
        tokenizer = load_tokenizer(config.model) if shape is None else None
    for check in outline_checks(config, outline, tokenizer, "cuda" if device.cuda else "cpu", files=False):
        check()
    if shape is None:
        workload = workload_of(config, gpus, tokenizer)
    else:
        name = config.model.removeprefix(HUB)
        why = (
            f"{name} is not at hand, so its shape was taken that ships with humanline, and no tokenizer or data were "
            f"looked at (`hf download {name}` gets it)"
        )
        workload = Workload.at_limits(config, ranks=gpus, why=why)
    estimator = Estimator(outline, cuda=device.cuda)
    estimate = estimator.estimate(config, workload)
    lines = list(describe(config, outline, workload, estimate, device))
    fits = estimate.peak + device.aside <= device.memory
    if not fits:
        lines += describe_suggestions(estimator, config, workload, device)
    return lines, fits


def workload_of(config: TrainConfig, ranks: int, tokenizer: Any = None) -> Workload:
    """Return the batches of a run, from its data if they can be read; raise ValueError as `Stream` does.

    Parameters
    ----------
    config : TrainConfig
    ranks : int
        How many processes share a batch.
    tokenizer : optional
        Default: the one of the model, which is loaded.
    """
    from humanline.train.data.run_data import read_data, renderer_of, stream_of
    from humanline.train.policy.load import load_tokenizer
    from humanline.train.step.held_out import held_out_evaluator

    def never(*_: Any) -> Any:
        raise AssertionError("an estimate scores nothing")

    try:
        renderer = renderer_of(config, load_tokenizer(config.model) if tokenizer is None else tokenizer)
        data = read_data(config, renderer)
    except (ValueError, OSError) as error:
        why = textwrap.shorten(str(error).splitlines()[0], 160, placeholder=" ...")
        return Workload.at_limits(config, ranks=ranks, why=why)
    stream, steps = stream_of(config, data, renderer, ranks=ranks)
    answers = block_of_answers(config, data.travelled)
    prompts = lengths_of_prompts(rounds=data.contexts, held_out=data.held_out, travelled=data.travelled)
    if config.rounds is not None:
        work = Workload.of_stream(stream, steps, travelled=answers)
        what = "every answer is taken to be as long as it may be; reward models are not counted"
        if config.rounds.sampling.engine.kind == "continuous":
            what += ", nor the cache of continuous batching"
        if config.rounds.overlap:
            what += ", nor the second process, which samples and has the weights once more"
        return replace(work, remark=what, prompts=prompts)
    evaluator = held_out_evaluator(config, data.sets, renderer, never, never, torch.device("cpu"), ranks=ranks)
    batches = [] if evaluator is None else [evaluator.batch, evaluator.pairs]
    micros = [micro for batch in batches if batch is not None for micro in batch.micro_batches]
    held_out = [block for micro in micros for block in (micro.block, micro.mismatched) if block is not None]
    return replace(Workload.of_stream(stream, steps, held_out, answers), prompts=prompts)


def refuse_unfit(
    config: TrainConfig,
    outline: Any,
    stream: Stream,
    steps: int,
    device: torch.device,
    travelled: Sequence[Context] = (),
) -> None:
    """Refuse a run that cannot fit into its device, before its weights are loaded.

    A run that is small beside the device is let through at once. Any other is let through unless its weights,
    gradients and optimizer states and nine tenths of what its passes are estimated to hold are more than all the
    memory there is, of a host the share of each of the run's processes there; a model that no estimate can be made of
    is let through, too.

    Parameters
    ----------
    config : TrainConfig
    outline
        The model on the meta device; left as it was.
    stream : Stream
        As this process sees it.
    steps : int
        Length of the run.
    device : torch.device
        Where it will train.
    travelled : sequence of Context
        Prompts by which the distance from the start is measured.

    Raises
    ------
    DoesNotFitError
        If it cannot fit; with the estimate, and what to change.
    """
    whole, processes = capacity(device) + swap(device), sharing(device)
    memory = whole / processes
    try:
        if generous_bytes(config, outline, *cheap_shape(stream, config)) < memory / 4:
            return
        workload = Workload.of_stream(stream, steps, travelled=block_of_answers(config, travelled))
        estimator = Estimator(outline, cuda=device.type == "cuda")
        estimate = estimator.estimate(config, workload)
        if estimate.lower_bound <= memory:
            return
        name = named_share(whole, processes) or "the device of this run"
        at = Device(name, memory, device.type == "cuda")
        lines = [line for line in describe(config, outline, workload, estimate, at) if not line.startswith("step time")]
        lines += describe_suggestions(estimator, config, workload, at)
    except Exception:  # an estimate that fails is no reason against a run
        return
    raise DoesNotFitError("this run does not fit into memory, nothing was loaded:\n" + "\n".join(lines))
