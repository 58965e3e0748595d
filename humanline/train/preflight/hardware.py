"""How much memory a device has, and how fast it multiplies."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from humanline.system.launcher import local_processes
from humanline.system.memory import host_memory, in_proc

GIB = 2**30
CUDA_ITSELF = 0.75 * GIB  # its context, kernels and the workspace of matrix products; an assumption
TYPICAL = 0.55  # of the rate of a large matrix product: what a good training step of a large model reaches

_AT_ONCE = 1e9  # FLOPs that any device does in a moment


class EstimateError(ValueError):
    """A question that cannot be answered."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device, as a run is compared with it.

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


def device_of(gpu_memory: float | None, tflops: float | None, precision: str, processes: int = 1) -> Device:
    """Return the device that each process of a run is compared with.

    Parameters
    ----------
    gpu_memory : float or None
        GiB; None = this machine: its first GPU, or where there is none its processor.
    tflops : float or None
        Rate of a large matrix product, 1e12 floating-point operations a second; None = measured, if the device is here.
    precision : {"float32", "bf16"}
        What is computed in.
    processes : int
        How many there are: of a processor, unlike GPUs, they have one memory between them.

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
    if cuda:
        return Device(torch.cuda.get_device_name(), capacity(here), True, CUDA_ITSELF, rate, measured)
    whole = capacity(here)
    name = named_share(whole, processes) or "this machine's memory"
    return Device(name, whole / processes, False, in_proc("self/status", "VmRSS") or 0.0, rate, measured)


def sharing(device: torch.device) -> int:
    """Return how many processes of this run have the memory of a device between them: those of a host its own."""
    return local_processes() if device.type == "cpu" else 1


def named_share(whole: float, processes: int) -> str:
    """Return words for what each of several processes has of a machine's memory; none for a single one."""
    return f"1/{processes} of {whole / GIB:,.2f} GiB, this machine's memory" if processes > 1 else ""


def swap(device: torch.device) -> float:
    """Return the bytes beyond `capacity` that a run could still use, if slowly; a limit unknown is none."""
    if device.type == "mps":
        return float("inf")
    if device.type != "cpu":
        return 0.0
    return in_proc("meminfo", "SwapTotal") or 0.0


def capacity(device: torch.device) -> float:
    """Return the bytes of memory a device has in all; on the CPU what processes here may use of them."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[1])
    if device.type == "mps":
        return float(torch.mps.recommended_max_memory())
    return host_memory()


def used(device: torch.device) -> tuple[float, float]:
    """Return the most bytes that this process has had in use on a device, and how many it could have there."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(torch.cuda.max_memory_allocated(device)), float(free + torch.cuda.memory_reserved(device))
    return in_proc("self/status", "VmHWM") or 0.0, capacity(device) / sharing(device)


def seconds_here(work: float, device: torch.device, precision: str) -> float:
    """Return about how many seconds so many FLOPs take on a device, at the rate that a good training step reaches."""
    return 0.0 if work < _AT_ONCE else work / (TYPICAL * matmul_rate(device, precision))


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
