"""Humanline DPO of an 8B model with random weights on one GPU: a matrix of runs, each in a process of its own.

Does it fit, how long is a step and what are its parts, are all log-ratios 0 at learning rate 0, is the estimate right
(target 7, and 1, 2, 3b, 6 and 8 at that size). Rows come in the order of their worth, so that little time buys most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.parts import Part
from benchmarks.report import Row, not_measured

# Short for what all rows have in common.
WHAT = "8B, 1024 tokens at most, humanline DPO, k = 1, full checkpointing"
SEGMENTS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
WHOLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:False", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
QUICK_SECONDS = {"benchmarks.resume:kill_and_resume": 16.0}  # on a CPU; of all others 3


def _run(what: str, key: str, needs: float, *, environment: dict[str, str] = SEGMENTS, **variant: Any) -> Part:
    target = "<= 135 GiB, 11.5 s" if variant.get("headline") else ""
    return Part(
        what,
        "benchmarks.large_run:measure",
        {"what": what, "key": key} | variant,
        needs=needs,
        number="7" if variant.get("headline") else "-",
        target=target,
        environment=environment,
    )


def _function(what: str, name: str, needs: float, number: str = "-", **arguments: Any) -> Part:
    return Part(what, f"benchmarks.{name}", arguments, needs=needs, number=number, environment=SEGMENTS)


PARTS = (
    _run("8B, 32 pairs, float32 masters, padded, one length", "headline", 95, pairs=32, headline=True),
    _run("8B, 8 pairs, float32 masters, padding-free, real lengths", "free", 45, padding="free", lengths="real"),
    _function(
        "log-ratios at learning rate 0, padded", "large_run:log_ratios_of_layouts", 60, number="6", padding="right"
    ),
    _function(
        "log-ratios at learning rate 0, padding-free", "large_run:log_ratios_of_layouts", 60, number="6", padding="free"
    ),
    _run("8B, 8 pairs, bf16 and 8-bit states, padded, one length", "8-bit", 60, kept="bf16, 8-bit states"),
    _run("8B, 8 pairs, float32 masters, padded, real lengths", "padded", 45, lengths="real"),
    _function("a kill and a resume, 2 layers", "resume:kill_and_resume", 60, size="shallow"),
    _run("8B, 8 pairs, LoRA, padded, one length", "LoRA", 40, kept="LoRA"),
    _function("1B: scoring ahead / other references", "large_run:references", 90, number="1"),
    _run("8B, 8 pairs, bf16 and 8-bit states, live reference", "live", 60, kept="bf16, 8-bit states", reference="live"),
    _run("8B, 16 pairs, float32 masters, micro-batches of 8", "wide", 55, pairs=16, micro_batch=8),
    _run("8B, 8 pairs, float32 masters, no expandable segments", "whole", 45, environment=WHOLE),
    _run(
        "8B, 8 pairs, bf16 and 8-bit states, padding-free, real lengths",
        "8-bit free",
        60,
        kept="bf16, 8-bit states",
        padding="free",
        lengths="real",
    ),
    _function("a kill and a resume, 8B, bf16 and 8-bit states", "resume:kill_and_resume", 240, size="8B"),
)


def parts_of_large(quick: bool, gpu: bool) -> list[Part]:
    """Return the rows of the matrix in the order of their worth; none where the machine has no use for them."""
    if not gpu and not quick:
        return []
    if not quick:
        return [replace(part, arguments=part.arguments | {"quick": False}) for part in PARTS]
    return [_tiny(part, gpu) for part in PARTS]


def _tiny(part: Part, gpu: bool) -> Part:
    """Return a part with a tiny model in the place of its own."""
    what = f"tiny, for {part.what}"
    given = part.arguments | {"quick": True} | ({"what": what} if "what" in part.arguments else {})
    needs = 12.0 if gpu else QUICK_SECONDS.get(part.call, 3.0)
    return replace(part, what=what, arguments=given, needs=needs, target="")


def rows_of_large(settings: dict[str, Any]) -> list[Row]:
    """Compare runs that took place in different processes.

    Parameters
    ----------
    settings : dict
        What each found, by its key; empty where there was none.
    """
    if settings.get("quick"):
        return [replace(row, what=f"tiny, for {row.what}", met=None) for row in _compared(settings)]
    if not settings:
        return [not_measured("7", WHAT, "needs a GPU with 140 GiB", "<= 135 GiB, 11.5 s")]
    return _compared(settings)


def _compared(settings: dict[str, Any]) -> list[Row]:
    return [_padding(settings), _memory_saved(settings), _live(settings), *_others(settings)]


def _missing(settings: dict[str, Any], *keys: str, fact: str = "step") -> str:
    absent = [key for key in keys if fact not in settings.get(key, {})]
    return f"{fact} of {' and '.join(repr(key) for key in absent)} was not" if absent else ""


def _padding(settings: dict[str, Any]) -> Row:
    what, target = "8B, real lengths, padding-free: speed-up / (padded / real tokens)", ">= 0.9"
    if why := _missing(settings, "padded", "free"):
        return not_measured("8", what, why, target)
    padded, free = settings["padded"], settings["free"]
    speed_up, possible = padded["step"] / free["step"], padded["padded tokens"] / padded["tokens"]
    reached = speed_up / possible
    note = "two processes, one after the other"
    return Row("8", what, (f"{speed_up:.3f}", f"{possible:.3f}"), reached, None, target, reached >= 0.9, note)


def _memory_saved(settings: dict[str, Any]) -> Row:
    what, target = "8B, bf16 and 8-bit states: GPU memory saved by scoring ahead / bf16 weights", ">= .95"
    if why := _missing(settings, "8-bit", "live", fact="allocated GiB"):
        return not_measured("3b", what, why, target)
    saved = settings["live"]["allocated GiB"] - settings["8-bit"]["allocated GiB"]
    weights = 2 * PARAMETERS / 2**30
    sides = (f"{saved:.1f} GiB", f"{weights:.1f} GiB")
    return Row("3b", what, sides, saved / weights, None, target, saved >= 0.95 * weights)


def _live(settings: dict[str, Any]) -> Row:
    what, target = "8B, bf16 and 8-bit states, step: scoring ahead / live reference", "<= 1.02"
    if why := _missing(settings, "8-bit", "live"):
        return not_measured("1", what, why, target)
    one, other = settings["8-bit"]["step"], settings["live"]["step"]
    note = "two processes, one after the other"
    return Row("1", what, (f"{one:.4g} s", f"{other:.4g} s"), one / other, None, target, one / other <= 1.02, note)


def _others(settings: dict[str, Any]) -> list[Row]:
    rows = []
    for key, what in (
        ("wide", "8B, seconds a token: micro-batches of 8 pairs / of 4"),
        ("8-bit", "8B, seconds a token: bf16 and 8-bit states, 8 pairs / float32 masters, 32 pairs"),
        ("whole", "8B, seconds a token: without expandable segments, 8 pairs / with, 32 pairs"),
    ):
        if why := _missing(settings, key, "headline"):
            rows.append(not_measured("-", what, why))
            continue
        one, other = (settings[name]["step"] / settings[name]["tokens"] for name in (key, "headline"))
        rows.append(Row("-", what, (f"{one * 1e6:.3g} us", f"{other * 1e6:.3g} us"), one / other))
    return rows


PARAMETERS = 8_030_261_248  # of a Llama 3 8B
