"""Whether a run fits into a device, and what to change where it does not: the table, and the refusal before loading."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from humanline.train.config import GrpoObjective, TrainConfig
from humanline.train.estimate import Estimate, Estimator, Workload, cheap_shape, generous_bytes
from humanline.train.stream import Stream

GIB = 2**30
CUDA_ITSELF = 0.75 * GIB  # its context, kernels and the workspace of matrix products; an assumption
TYPICAL = 0.55  # of the rate of a large matrix product: what a good training step of a large model reaches


class EstimateError(ValueError):
    """A question that cannot be answered."""


class DoesNotFitError(ValueError):
    """A run that needs more memory than there is; the message holds the estimate and what to change."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a run is held against.

    Parameters
    ----------
    name : str
    memory : float
        Bytes in all.
    cuda : bool
    aside : float
        Bytes that are taken before a run holds any tensor.
    flops_per_second : float or None
        Of a large matrix product in the run's precision; None where it was not measured.
    measured : str
        Where the rate comes from.
    """

    name: str
    memory: float
    cuda: bool
    aside: float = 0.0
    flops_per_second: float | None = None
    measured: str = ""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that makes a run smaller, as words of the command line, and what is needed then."""

    overrides: tuple[str, ...]
    what: str
    alone: Estimate
    together: Estimate | None  # with all suggestions before it; None once those are enough


# ---------------------------------------------------------------------------------------------------------------------
# What to change


def suggest(
    estimator: Estimator, config: TrainConfig, workload: Workload, memory: float, *, aside: float = 0.0
) -> list[Suggestion]:
    """Return what makes a run smaller, that which costs its user least first; only what helps.

    Parameters
    ----------
    estimator : Estimator
    config : TrainConfig
    workload : Workload
    memory : float
        Bytes that the run should fit into.
    aside : float
        Bytes of it that are taken by something else.
    """
    start = estimator.estimate(config, workload).peak
    suggestions: list[Suggestion] = []
    so_far, so_far_work, so_far_peak = config, workload, float(start)
    for what, changes in _CHANGES:
        alone = _changed(config, workload, changes(config, workload))
        if alone is None or (estimate := _estimated(estimator, alone)) is None or estimate.peak > 0.99 * start:
            continue
        together = None
        if so_far_peak + aside > memory:
            joined = _changed(so_far, so_far_work, changes(so_far, so_far_work))
            together = None if joined is None else _estimated(estimator, joined)
            if joined is None or together is None or together.peak > 0.99 * so_far_peak:
                together = None
            else:
                so_far, so_far_work, _ = joined
                so_far_peak = together.peak
        suggestions.append(Suggestion(alone[2], what, estimate, together))
    return suggestions


_Changes = dict[str, Any]
_Changed = tuple[TrainConfig, Workload, tuple[str, ...]]


def _more_passes(config: TrainConfig, _: Workload) -> _Changes:
    """Make passes smaller where that changes rounding alone."""
    return {} if _is_mean_of_passes(config) else _smaller_passes(config)


def _other_passes(config: TrainConfig, _: Workload) -> _Changes:
    """Make passes smaller where that changes the loss."""
    return _smaller_passes(config) if _is_mean_of_passes(config) else {}


def _is_mean_of_passes(config: TrainConfig) -> bool:
    return isinstance(config.objective, GrpoObjective) and config.objective.normalise == "local"


def _smaller_passes(config: TrainConfig) -> _Changes:
    training = config.training
    if training.micro_batch_tokens is not None:
        least = config.rows_together * config.data.max_length  # which alone has to fit
        return {} if training.micro_batch_tokens <= least else {"training.micro_batch_tokens": least}
    least = config.rows_together if config.objective.kind == "grpo" else 1
    return {} if training.micro_batch_size == least else {"training.micro_batch_size": least}


def _narrow_weights(config: TrainConfig, _: Workload) -> _Changes:
    if config.adapter is not None:
        return {"optimizer.states": "8bit"}
    return {"training.precision": "bf16", "training.weights": "bf16", "optimizer.states": "8bit"}


def _lora(config: TrainConfig, _: Workload) -> _Changes:
    if config.adapter is not None:
        return {}
    wide = {"training.weights": "float32", "optimizer.states": "float32"}
    return {"adapter": {"rank": 16}, "training.precision": "bf16"} | wide


def _qlora(config: TrainConfig, _: Workload) -> _Changes:
    if config.adapter is not None:
        return {"adapter.base": "nf4"}
    return {"adapter": {"rank": 16, "base": "nf4"}, "training.precision": "bf16", "training.weights": "float32"}


# What costs a user least first: nothing, time, rounding, then another loss and what is trained.
_CHANGES: tuple[tuple[str, Any], ...] = (
    ("no second model, equal results", lambda c, w: {"reference.storage": "score_ahead"}),
    ("up to a third more work", lambda c, w: {"training.activation_checkpointing": True}),
    ("more and smaller passes", _more_passes),
    ("no padding, equal results", lambda c, w: {"training.padding": "free"}),
    ("bf16 compute", lambda c, w: {"training.precision": "bf16"}),
    ("bf16 weights and 8-bit optimizer states, rounded stochastically", _narrow_weights),
    ("smaller passes, which are part of the loss under normalise: local", _other_passes),
    ("LoRA: additions are trained, not the weights", _lora),
    ("QLoRA: and the weights kept in 4 bits", _qlora),
)


def _changed(config: TrainConfig, workload: Workload, changes: _Changes) -> _Changed | None:
    """Return configuration and workload with some values changed and the words for it; None if nothing changes."""
    tree = config.model_dump(mode="json")
    words = []
    for name, value in changes.items():
        section, _, key = name.partition(".")
        old = tree[section] if not key else (tree[section] or {}).get(key)
        if old == value:
            continue
        if key:
            tree[section][key] = value
        else:
            tree[section] = value
        shown = value if not isinstance(value, dict) else "{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}"
        shown = str(shown).lower() if isinstance(shown, bool) else shown
        words.append(f'{name}="{shown}"' if isinstance(value, dict) else f"{name}={shown}")
    if not words:
        return None
    try:
        changed = TrainConfig.model_validate(tree)
    except ValueError:  # not in this configuration
        return None
    now, then = _a_pass(config, workload), _a_pass(changed, workload)
    return changed, workload if now == then else workload.with_rows(then / now), tuple(words)


def _a_pass(config: TrainConfig, workload: Workload) -> float:
    """Return how much of a step one pass has, in a unit of which only ratios count."""
    rows, tokens = config.rows_a_pass(workload.ranks), config.training.micro_batch_tokens
    return float(rows if tokens is None else min(tokens, rows * config.data.max_length))  # no more than a step has


def _estimated(estimator: Estimator, changed: _Changed) -> Estimate | None:
    try:
        return estimator.estimate(changed[0], changed[1])
    except ValueError:  # the model cannot be packed, say
        return None


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
    processes = f" on each of {workload.ranks} GPUs" if workload.ranks > 1 else ""
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
        ("gradients on their way between GPUs", static.buckets),
        ("second model(s) (reference.storage: model)", static.second_models),
        ("activations, at most", estimate.activations),
        ("output head, at most: a chunk of logits, head weight and its gradient", estimate.logits),
    ]
    yield "memory       GiB" + (" on each GPU" if workload.ranks > 1 else "")
    for name, size in lines:
        if name and size:
            yield f"{size / GIB:>14,.2f}   {name}"
    if estimate.window >= 0.005 * GIB:
        where = "host" if device.cuda else "the same"
        yield f"{estimate.window / GIB:>14,.2f}   log-probabilities scored ahead, in {where} memory"
    yield f"{estimate.peak / GIB:>14,.2f}   peak: {estimate.peak_phase} (not all of the above is there at once)"
    if device.aside:
        yield f"{device.aside / GIB:>14,.2f}   {'CUDA itself, assumed' if device.cuda else 'the program itself'}"
    needed = estimate.peak + device.aside
    verdict = "fits" if needed <= device.memory else "does not fit"
    if verdict == "fits" and needed > 0.9 * device.memory:
        verdict = "fits, but only just: the estimate may be wrong by a tenth"
    yield f"verdict      {verdict}: {needed / GIB:,.2f} GiB of {device.memory / GIB:,.2f} GiB ({device.name})"
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


def describe_suggestions(suggestions: list[Suggestion], memory: float, *, aside: float = 0.0) -> Iterator[str]:
    """Yield what to change, with what is needed then."""
    if not suggestions:
        yield "change       nothing known makes it smaller: take a smaller model, shorter rows or a larger device"
        return
    yield "change       what costs least first; GiB with this alone, and with all above it too"
    for one in suggestions:
        size = (one.alone.peak + aside) / GIB
        both = "" if one.together is None else f"{(one.together.peak + aside) / GIB:,.2f}"
        fits = min(one.alone.peak, one.alone.peak if one.together is None else one.together.peak) + aside <= memory
        yield f"{size:>14,.2f} {both:>9}   {' '.join(one.overrides)}  ({one.what}{'; fits' if fits else ''})"
    peaks = [one.alone.peak for one in suggestions] + [one.together.peak for one in suggestions if one.together]
    if min(peaks) + aside > memory:
        yield "             none of it is enough: take a smaller model, shorter rows or a larger device"


def _flops(count: float) -> str:
    for unit, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")):
        if count >= unit:
            return f"{count / unit:,.3g} {name}"
    return f"{count / 1e6:,.3g} MFLOP"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


# ---------------------------------------------------------------------------------------------------------------------
# Devices


def device_of(gpu_memory: float | None, tflops: float | None, precision: str) -> Device:
    """Return the device that a run is held against.

    Parameters
    ----------
    gpu_memory : float or None
        GiB; None = this machine: its first GPU, or where there is none its processor.
    tflops : float or None
        Rate of a large matrix product, 1e12 floating-point operations a second; None = measured, if the device is here.
    precision : {"float32", "bf16"}
        What is computed in.

    Raises
    ------
    EstimateError
        If a number is not above 0.
    """
    for name, value in (("--gpu-memory", gpu_memory), ("--tflops", tflops)):
        if value is not None and not 0 < value < float("inf"):
            raise EstimateError(f"{name} must be a number above 0; got {value:g}")
    cuda = torch.cuda.is_available()
    here = torch.device("cuda" if cuda else "cpu")
    rate, measured = (None, "") if tflops is None else (tflops * 1e12, "as given")
    if rate is None and (gpu_memory is None or cuda):
        rate, measured = matmul_rate(here, precision), "measured here"
    if gpu_memory is not None:
        return Device(f"a GPU of {gpu_memory:g} GiB", gpu_memory * GIB, True, CUDA_ITSELF, rate, measured)
    name = torch.cuda.get_device_name() if cuda else "this machine's memory"
    return Device(
        name, capacity(here), cuda, CUDA_ITSELF if cuda else _in_proc("self/status", "VmRSS") or 0.0, rate, measured
    )


def _swap(device: torch.device) -> float:
    """Return the bytes beyond `capacity` that a run could still use, if slowly; a limit unknown is none."""
    if device.type == "mps":
        return float("inf")
    if device.type != "cpu":
        return 0.0
    return _in_proc("meminfo", "SwapTotal") or 0.0


def capacity(device: torch.device) -> float:
    """Return the bytes of memory a device has in all; on the CPU what the process may use of them."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[1])
    if device.type == "mps":
        return float(torch.mps.recommended_max_memory())
    limits = [float("inf")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
            limits.append(float(int(Path(path).read_text())))
    return min([*limits, _in_proc("meminfo", "MemTotal") or float("inf")])


def matmul_rate(device: torch.device, precision: str) -> float:
    """Return the FLOPs a second of a large matrix product: the median of five, after one to warm up."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn((size, size), device=device, dtype=kind) for _ in range(2))
    seconds = []
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2.0 * size**3 / sorted(seconds[1:])[2]


def _in_proc(file: str, name: str) -> float | None:
    """Return the bytes that a file of Linux' /proc gives under a name; None where there is no such thing."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc", file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024.0 * int(line.split()[1])
    return None


# ---------------------------------------------------------------------------------------------------------------------
# The command, and the refusal


def estimate_run(
    config: TrainConfig, *, gpu_memory: float | None = None, gpus: int = 1, tflops: float | None = None
) -> tuple[list[str], bool]:
    """Return what to print about the memory and the compute of a run, and whether it fits; no weights are read.

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
    from humanline.train.model import load_outline, load_tokenizer
    from humanline.train.policy import outline_checks
    from humanline.train.scorer import ModelError

    if gpus < 1:
        raise EstimateError(f"--gpus must be >= 1; got {gpus}")
    device = device_of(gpu_memory, tflops, config.training.precision)
    outline = load_outline(config.model)
    tokenizer = None
    with contextlib.suppress(ModelError):  # then rows are taken to be as long as they may be
        tokenizer = load_tokenizer(config.model)
    for check in outline_checks(config, outline, tokenizer, files=False):
        check()
    workload = workload_of(config, gpus, tokenizer)
    estimator = Estimator(outline, cuda=device.cuda)
    estimate = estimator.estimate(config, workload)
    lines = list(describe(config, outline, workload, estimate, device))
    fits = estimate.peak + device.aside <= device.memory
    if not fits:
        suggestions = suggest(estimator, config, workload, device.memory, aside=device.aside)
        lines += describe_suggestions(suggestions, device.memory, aside=device.aside)
    return lines, fits


def workload_of(config: TrainConfig, ranks: int, tokenizer: Any = None) -> Workload:
    """Return the batches of a run, from its data if they can be read; raise ValueError as `Stream` does.

    Parameters
    ----------
    config : TrainConfig
    ranks : int
        How many processes share a batch.
    tokenizer : optional
        By itself it is loaded.
    """
    from humanline.train.assemble import held_out_evaluator, read_data, renderer_of, stream_of
    from humanline.train.model import load_tokenizer

    def never(*_: Any) -> Any:
        raise AssertionError("an estimate scores nothing")

    try:
        renderer = renderer_of(config, load_tokenizer(config.model) if tokenizer is None else tokenizer)
        data = read_data(config, renderer)
    except (ValueError, OSError) as error:
        why = textwrap.shorten(str(error).splitlines()[0], 160, placeholder=" ...")
        return Workload.at_limits(config, ranks=ranks, why=why)
    stream, steps = stream_of(config, data, renderer, ranks=ranks)
    if config.rounds is not None:
        work = Workload.of_stream(stream, steps)
        what = "every answer is taken to be as long as it may be; sampling and reward models are not counted"
        if config.rounds.overlap:
            what += ", nor the second process, which has the weights once more"
        return replace(work, remark=what)
    evaluator = held_out_evaluator(config, data.sets, renderer, never, never, torch.device("cpu"), ranks=ranks)
    batches = [] if evaluator is None else [evaluator.batch, evaluator.pairs]
    micros = [micro for batch in batches if batch is not None for micro in batch.micro_batches]
    held_out = [block for micro in micros for block in (micro.block, micro.mismatched) if block is not None]
    return Workload.of_stream(stream, steps, held_out)


def refuse_unfit(config: TrainConfig, outline: Any, stream: Stream, steps: int, device: torch.device) -> None:
    """Refuse a run that cannot fit into its device, before its weights are loaded.

    A run that is small beside the device is let through at once. Any other is let through unless its weights,
    gradients and optimizer states and nine tenths of what its passes are estimated to hold are more than all the
    memory there is; a model that no estimate can be made of is let through, too.

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

    Raises
    ------
    DoesNotFitError
        If it cannot fit; with the estimate, and what to change.
    """
    memory = capacity(device) + _swap(device)
    try:
        if generous_bytes(config, outline, *cheap_shape(stream, config)) < memory / 4:
            return
        workload = Workload.of_stream(stream, steps)
        estimator = Estimator(outline, cuda=device.type == "cuda")
        estimate = estimator.estimate(config, workload)
        if estimate.lower_bound <= memory:
            return
        at = Device("the device of this run", memory, device.type == "cuda")
        lines = [line for line in describe(config, outline, workload, estimate, at) if not line.startswith("step time")]
        lines += describe_suggestions(suggest(estimator, config, workload, memory), memory)
    except Exception:  # an estimate that fails is no reason against a run
        return
    raise DoesNotFitError("this run does not fit into memory, nothing was loaded:\n" + "\n".join(lines))
