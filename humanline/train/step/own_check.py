"""Whether losses, transforms and schedules of the user's own are what training needs, tried on numbers made up for it.

What is tried of a loss and of a transform: that it can be called with what it is given, returns finite numbers of the
right shape, lets a gradient through, gives the same twice, leaves what it is given alone, and that each unit's numbers
come from its own tokens that count: not from padding, and not from the units beside it. Else results would depend on
how a step is cut into micro-batches, without a word.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from humanline.system.own_code import OwnCodeError
from humanline.train.config import TrainConfig
from humanline.train.config.base import OwnPart
from humanline.train.config.own_schedule import FunctionSchedule
from humanline.train.config.own_sources import own_parts
from humanline.train.run.processes import Processes
from humanline.train.step.own import NOT_GIVEN, OwnLoss, OwnTransform

_ROWS, _TOKENS, _PADDING = 4, 5, 3
_SCALES = (0.0, 0.1, 1.0, 10.0)  # nats: right after a sync, where policy and reference are one, later, and far away
_EXAMPLES = {
    "pair": "(chosen, rejected, *, chosen_mask, rejected_mask)",
    "example": "(log_ratio, *, mask, desirable)",
    "sequence": "(log_ratio, *, mask)",
    "group": "(log_ratio, *, mask, advantages)",
}
_WHY = {
    "reference_point": "a reference point (z_0) is estimated for losses of the house alone, such as kto and bco",
    "kl_log_ratio": "a KL penalty against another policy is part of grpo alone",
    "denominator": "means over a step are taken for you: return the loss of each unit",
}


def check_own_parts(config: TrainConfig, device: torch.device) -> list[str]:
    """Import the user's own parts of a run anew, try each, and return lines about them.

    Parameters
    ----------
    config : TrainConfig
    device : torch.device
        Where they will be called.

    Raises
    ------
    OwnCodeError
        If one cannot be imported, or is not what training needs.
    """
    for part in own_parts(config):
        part.load(anew=True)
    lines = []
    for part in own_parts(config):
        if isinstance(part, FunctionSchedule):
            steps = config.round_steps if config.rounds is not None else config.training.steps or 1000
            _signature(part, ["step"], [], "(step)")
            part.refuse_unfit(steps, config.reference.storage)
        elif part is config.objective.own:
            _check_loss(part, config.objective.unit, device)
        else:
            _signature(part, ["log_ratio"], ["mask"], "(log_ratio, *, mask)")
            _check_transform(part, device)
        files = ", ".join(f"{name} {digest[:12]}" for name, digest in part.load().sources.items())
        lines.append(f"{part.place}: {part.call}; its files, by SHA-256: {files}")
    return lines


def check_together(config: TrainConfig, processes: Processes) -> None:
    """Do what `check_own_parts` does in all processes of a run, and refuse a loss of which they get other metrics.

    Raises
    ------
    OwnCodeError
        As `check_own_parts` does, and if the metrics differ, which the processes add up by their places: in the main
        process, and MainProcessError in the others.
    """
    processes.alike(lambda: check_own_parts(config, processes.device))
    own = config.objective.own
    if own is None or processes.ranks == 1:
        return
    found = [json.loads(text) for text in processes.meeting.texts(json.dumps(own.first_metrics()))]
    other = next((rank for rank, names in enumerate(found) if names != found[0]), 0)

    def refuse() -> None:
        if other:
            raise _wrong(
                own,
                f"returned metrics {found[0]} in process 0 and {found[other]} in process {other} when it was tried; "
                "expected the same in all, since means are taken over all of them",
            )

    processes.on_main(refuse)


def _check_loss(part: OwnPart, unit: str, device: torch.device) -> None:
    first, *given = _loss_arguments(unit)
    _signature(part, first.split(), given, _EXAMPLES[unit])
    loss = OwnLoss(part)

    def call(values: list[Tensor], more: Mapping[str, Tensor]) -> list[Tensor]:
        losses, metrics = loss.each(*values, **more)
        return [losses, *metrics.values()]

    _try(part, call, lambda scale: _made_up(unit, scale, device), is_loss=True)


def _check_transform(part: OwnPart, device: torch.device) -> None:
    transform = OwnTransform(part)

    def call(values: list[Tensor], more: Mapping[str, Tensor]) -> list[Tensor]:
        return [transform(values[0], more["mask"])[0]]

    _try(part, call, lambda scale: _made_up("sequence", scale, device), is_loss=False)


def _loss_arguments(unit: str) -> list[str]:
    if unit == "pair":
        return ["chosen rejected", "chosen_mask", "rejected_mask"]
    return ["log_ratio", "mask", *{"example": ["desirable"], "group": ["advantages"]}.get(unit, [])]


def _made_up(unit: str, scale: float, device: torch.device) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return log-ratios of some rows, 0 behind each one's end, and what else a function of such units is given."""
    generator = torch.Generator().manual_seed(round(1000 * scale))
    first, *given = _loss_arguments(unit)
    lengths = {name: torch.tensor([5, 3, 4, 1])[torch.randperm(_ROWS, generator=generator)] for name in first.split()}
    masks = {name: torch.arange(_TOKENS)[None] < one[:, None] for name, one in lengths.items()}
    values = [scale * torch.randn(_ROWS, _TOKENS, generator=generator) * mask for mask in masks.values()]
    more = dict(zip([name for name in given if name.endswith("mask")], masks.values(), strict=True))
    if unit == "example":
        more["desirable"] = torch.tensor([True, False, False, True])
    if unit == "group":
        more["advantages"] = torch.tensor([1.0, -1.0, 0.5, -0.5])
    return [one.to(device) for one in values], {name: one.to(device) for name, one in more.items()}


Call = Callable[[list[Tensor], Mapping[str, Tensor]], list[Tensor]]
MadeUp = Callable[[float], tuple[list[Tensor], dict[str, Tensor]]]


def _try(part: OwnPart, call: Call, made_up: MadeUp, *, is_loss: bool) -> None:
    """Try a function on numbers of several sizes; raise OwnCodeError for whatever training could not bear."""
    moved = False
    for scale in _SCALES:
        values, more = made_up(scale)
        at = f"at log-ratios of about {scale:g} nats"
        found = _called(part, call, values, more)
        if not all(torch.isfinite(one).all() for one in found):
            raise _wrong(part, f"gave numbers that are not finite {at}")
        again = _called(part, call, values, more)
        if not all(torch.equal(one, other) for one, other in zip(found, again, strict=True)):
            raise _wrong(part, "did not give the same twice; a resumed run could not be the same run")
        moved |= _has_gradient(part, call, values, more, at)
        _refuse_padding(part, call, values, more, found)
        _refuse_neighbours(part, call, values, more, found)
    if not moved:
        raise _wrong(
            part,
            "let no gradient through: nothing would be trained. Compute with the tensors that it is given, and without "
            "detach(), item() and numpy",
        )


def _called(part: OwnPart, call: Call, values: list[Tensor], more: Mapping[str, Tensor]) -> list[Tensor]:
    given = [*values, *more.values()]
    before = [one.detach().clone() for one in given]
    found = [one.detach() for one in call(values, more)]
    if not all(torch.equal(one.detach(), other) for one, other in zip(given, before, strict=True)):
        raise _wrong(part, "changed what it was given in place; compute new tensors")
    return found


def _has_gradient(part: OwnPart, call: Call, values: list[Tensor], more: Mapping[str, Tensor], at: str) -> bool:
    """Return whether any gradient is not 0; raise OwnCodeError if one is not finite."""
    leaves = [one.detach().clone().requires_grad_() for one in values]
    out = call([one * 1.0 for one in leaves], more)[0]  # not the leaves themselves, as in training
    if not out.requires_grad:
        return False
    gradients = torch.autograd.grad(out.sum(), leaves, allow_unused=True)
    there = [one for one in gradients if one is not None]
    if not all(torch.isfinite(one).all() for one in there):
        raise _wrong(part, f"has a gradient that is not finite {at}")
    return any(bool(one.any()) for one in there)


def _refuse_padding(
    part: OwnPart, call: Call, values: list[Tensor], more: Mapping[str, Tensor], found: list[Tensor]
) -> None:
    """Refuse what changes where rows are padded further: a mean over tokens without the mask does."""
    wider = [torch.nn.functional.pad(one, (0, _PADDING)) for one in values]
    masks = {name: torch.nn.functional.pad(one, (0, _PADDING)) if one.ndim == 2 else one for name, one in more.items()}
    padded = [one[:, :_TOKENS] if one.ndim == 2 else one for one in _called(part, call, wider, masks)]
    if not _close(part, padded, found, more):
        raise _wrong(
            part, "gave other numbers when rows were padded further; use the mask, which is True where a token counts"
        )


def _refuse_neighbours(
    part: OwnPart, call: Call, values: list[Tensor], more: Mapping[str, Tensor], found: list[Tensor]
) -> None:
    """Refuse what changes with the rows beside: micro-batches are cut as memory allows."""
    alone = [
        _called(part, call, [one[row : row + 1] for one in values], {k: v[row : row + 1] for k, v in more.items()})
        for row in range(_ROWS)
    ]
    if not _close(part, [torch.cat(parts) for parts in zip(*alone, strict=True)], found, more):
        raise _wrong(
            part,
            "gave other numbers for a row alone than beside others; a micro-batch holds whatever rows memory has room "
            "for, so that each row's must come from that row",
        )


def _close(part: OwnPart, some: list[Tensor], others: list[Tensor], more: Mapping[str, Tensor]) -> bool:
    mask = next(iter(more.values()))

    def counted(one: Tensor) -> Tensor:
        return torch.where(mask, one, 0.0) if one.ndim == 2 else one

    pairs = zip(some, others, strict=True)
    return all(torch.allclose(counted(one), counted(other), rtol=1e-4, atol=1e-5) for one, other in pairs)


def _signature(part: OwnPart, first: list[str], keywords: list[str], example: str) -> None:
    """Refuse a function that cannot be called with what it is given, before it is."""
    expected = (
        f"expected def {part.call.partition(':')[2]}{example[:-1]}" + "".join(f", {n}" for n in part.options) + ")"
    )
    try:
        signature = inspect.signature(part.load().function)
    except (TypeError, ValueError):  # of what is not written in Python
        return
    accepts_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    for name in NOT_GIVEN:
        asked = signature.parameters.get(name)
        if asked is not None and asked.default is asked.empty and name not in part.options:
            raise _wrong(part, f"takes {name}, which is not given: {_WHY[name]}; {expected}")
    unknown = [name for name in part.options if name not in signature.parameters]
    if unknown and not accepts_any:
        raise _wrong(part, f"takes no {', '.join(unknown)}, which options names; it is def {signature}; {expected}")
    taken = [name for name in part.options if name in [*first, *keywords]]
    if taken:
        raise _wrong(part, f"is given {', '.join(taken)} already; options cannot name it")
    try:
        signature.bind(*[None] * len(first), **dict.fromkeys([*keywords, *part.options]))
    except TypeError as error:
        raise _wrong(
            part, f"cannot be called with what it is given: {error}; it is def {signature}; {expected}"
        ) from None


def _wrong(part: OwnPart, what: str) -> OwnCodeError:
    return OwnCodeError(f"{part.place}: {part.call} {what}")
