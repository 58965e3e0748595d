"""Token log-probabilities over a large vocabulary: time, memory and error, beside what else there is (5 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from benchmarks.interleave import interleave
from benchmarks.machine import DEVICE
from benchmarks.parts import reason_of
from benchmarks.peak import peak_mib
from benchmarks.report import Result, Row, failure, not_measured, timing_row
from humanline.objectives import token_logprobs

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens, width of the hidden states, vocabulary, and the type of the operands."""

    tokens: int
    hidden: int
    vocab: int
    dtype: str = "float32"

    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden states, head and labels."""
        torch.manual_seed(0)
        dtype = getattr(torch, self.dtype)
        hidden = torch.randn(self.tokens, self.hidden, device=DEVICE, dtype=dtype)
        head = torch.randn(self.vocab, self.hidden, device=DEVICE, dtype=dtype).div_(self.hidden**0.5)
        return hidden, head, torch.randint(0, self.vocab, (self.tokens,), device=DEVICE)


QUICK = Shape(64, 64, 4096)
CPU_TIME, CPU_MEMORY = Shape(512, 256, 128_256), Shape(1024, 256, 128_256)
GPU = Shape(8192, 4096, 128_256, "bfloat16")
ERROR = Shape(1024, 1024, 32_768, "bfloat16")


def plain(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Take the logits, their log-softmax in float32, and the label's entry."""
    return torch.log_softmax((hidden @ head.T).float(), -1).gather(1, labels[:, None]).squeeze(1)


def trl_fused(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Call the fused head that TRL's DPO, KTO and GRPO trainers put on a model, asked for log-probabilities alone.

    Its trainers also ask it for the entropy and up to two more metrics when they train, which takes longer.
    """
    from trl.kernels import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE as width

    return ChunkedLogProbFunction.apply(hidden, head, None, labels, 1.0, width, None, 1.0, ("log_probs",))[0]


def trl_selective(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Call the function that TRL's trainers used before, and some still use, on full logits."""
    from trl.trainer.utils import selective_log_softmax

    return selective_log_softmax(hidden @ head.T, labels)


def torch_fused(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Call torch's own function in chunks of our own size; its result has the type of its operands.

    With the chunks that it chooses by itself it takes ten times as long where there are few hidden features.
    """
    from torch.nn import LinearCrossEntropyOptions
    from torch.nn.functional import linear_cross_entropy

    chunks = LinearCrossEntropyOptions(batch_chunk_size=min(len(hidden), max(1, 2**25 // len(head))))
    return -linear_cross_entropy(hidden, head, labels, reduction="none", options=chunks)


def cut_cross_entropy(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Call the kernel as `training.logprobs: cut_cross_entropy` does."""
    from humanline.train.policy.head import cut_cross_entropy_logprobs

    return cut_cross_entropy_logprobs(hidden, head, labels)


def cut_as_it_is(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Call the kernel with its own defaults, which leave small gradients out."""
    from cut_cross_entropy import linear_cross_entropy

    return -linear_cross_entropy(
        hidden, head, labels, reduction="none", impl="cce" if hidden.is_cuda else "torch_compile"
    )


FUNCTIONS: dict[str, Function] = {
    "plain": plain,
    "humanline": token_logprobs,
    "TRL fused head": trl_fused,
    "TRL selective_log_softmax": trl_selective,
    "torch linear_cross_entropy": torch_fused,
    "cut-cross-entropy, filter off": cut_cross_entropy,
    "cut-cross-entropy": cut_as_it_is,
}


def usable() -> tuple[dict[str, Function], dict[str, str]]:
    """Return the functions that run here, and why the others do not."""
    found, missing = {}, {}
    dtype = "bfloat16" if DEVICE == "cuda" else "float32"
    for name, function in FUNCTIONS.items():
        try:
            function(*Shape(64, 64, 512, dtype).operands())
            found[name] = function
        except Exception as error:  # a library that is missing, or is there and does not run here
            text = str(error).split(chr(10))[0]
            missing[name] = text if len(text) < 120 else f"{text[:117]}..."
    return found, missing


def forward_backward(function: Function, shape: Shape) -> Callable[[], None]:
    """Return a call that computes log-probabilities and both gradients."""
    hidden, head, labels = shape.operands()
    hidden.requires_grad_()
    head.requires_grad_()
    incoming = torch.randn(shape.tokens, device=DEVICE)

    def call() -> None:
        hidden.grad = head.grad = None
        function(hidden, head, labels).backward(incoming)

    return call


def prepare_call(function: str, shape: dict[str, int | str]) -> Callable[[], None]:
    """Return one forward and backward pass, for `benchmarks.peak`; a tiny one has started every library before."""
    whole = Shape(**shape)  # type: ignore[arg-type]
    forward_backward(FUNCTIONS[function], replace(QUICK, dtype=whole.dtype))()
    return forward_backward(FUNCTIONS[function], whole)


def benchmark_logprobs(quick: bool) -> Iterator[Result]:
    """Compare forward and backward passes, the error of the values, and what is held in memory."""
    gpu = DEVICE == "cuda"
    time_shape = QUICK if quick else GPU if gpu else CPU_TIME
    memory_shape = QUICK if quick else GPU if gpu else CPU_MEMORY
    rounds, warm_up = (6, 2) if quick else (20, 2)
    functions, missing = usable()
    calls = {name: forward_backward(function, time_shape) for name, function in functions.items()}
    seconds = interleave(calls, rounds=rounds, warm_up=warm_up)
    del calls
    ours = seconds["humanline"]
    size = f"{time_shape.tokens} x {time_shape.vocab}"
    rows = [
        timing_row(
            "5",
            f"forward + backward, {size}, {DEVICE}: humanline / plain",
            ours,
            seconds["plain"],
            limit=1.15 if gpu else 1.35,
        )
    ]
    for name in FUNCTIONS:
        if name in ("humanline", "plain"):
            continue
        what = f"forward + backward, {size}, {DEVICE}: humanline / {name}"
        limit = 0.8 if name == "TRL fused head" else None
        number = "-" if limit is None or gpu else "5"
        if name in seconds:
            rows.append(timing_row(number, what, ours, seconds[name], limit=limit))
        else:
            rows.append(not_measured(number, what, missing[name]))
    if not gpu:
        what = f"forward + backward, {GPU.tokens} x {GPU.vocab}, cuda: humanline / plain"
        rows.append(not_measured("5", what, "needs a GPU", "<= .15 mem, 1.15 t"))
    error_shape = Shape(64, 64, 4096, "bfloat16") if quick else ERROR
    settings = {
        "time": asdict(time_shape),
        "memory": asdict(memory_shape),
        "error": asdict(error_shape),
        "rounds": rounds,
        "warm_up": warm_up,
    }
    yield Result(settings, rows, seconds)
    yield Result({}, _error_rows(functions, error_shape))
    yield Result({}, _memory_rows(functions, missing, memory_shape, quick))


def _memory_rows(functions: dict[str, Function], missing: dict[str, str], shape: Shape, quick: bool) -> list[Row]:
    """Compare the peak memory of a pass, each in a process of its own."""
    gpu, call = DEVICE == "cuda", "benchmarks.logprobs:prepare_call"
    size = f"{shape.tokens} x {shape.vocab}"
    peaks, rows = {}, []
    for name in functions:
        try:
            fresh = not quick or name == "humanline"
            peaks[name] = peak_mib(call, fresh=fresh, function=name, shape=asdict(shape))
        except RuntimeError as error:  # of this function; the others may work
            rows.append(failure("-", f"peak memory, {size}, {DEVICE}: {name}", reason_of(error)))
    for name in [name for name in peaks if name != "humanline" and "humanline" in peaks]:
        sides = (f"{peaks['humanline']:.0f} MiB", f"{peaks[name]:.0f} MiB")
        ratio = peaks["humanline"] / peaks[name] if peaks[name] else None
        limited = gpu and name == "plain" and ratio is not None
        rows.append(
            Row(
                "5" if limited else "-",
                f"peak memory, {size}, {DEVICE}: humanline / {name}",
                sides,
                ratio,
                target="<= 0.15" if limited else "",
                met=ratio <= 0.15 if limited and ratio is not None else None,
            )
        )
    rows += [
        not_measured("-", f"{what}: humanline / {name}", why)
        for name, why in missing.items()
        for what in (f"peak memory, {size}, {DEVICE}", "rms error from bf16 operands")
    ]
    return rows


@torch.no_grad()
def _error_rows(functions: dict[str, Function], shape: Shape) -> list[Row]:
    """Compare the root mean square errors against float64 from the same bf16 operands."""
    hidden, head, labels = shape.operands()
    logits = hidden.double() @ head.double().T
    exact = logits.gather(1, labels[:, None]).squeeze(1) - torch.logsumexp(logits, 1)
    del logits
    rms = {
        name: float((function(hidden, head, labels).double() - exact).square().mean().sqrt())
        for name, function in functions.items()
    }
    ours = rms.pop("humanline")
    rows = []
    for name, other in rms.items():
        rows.append(
            Row(
                "6",
                f"rms error from bf16 operands: humanline / {'bf16 logits' if name == 'plain' else name}",
                (f"{ours:.1e}", f"{other:.1e}"),
                ours / other,
                target="one <= 1e-5",
                met=ours <= 1e-5,
            )
        )
    return rows
