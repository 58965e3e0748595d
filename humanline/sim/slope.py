"""The slope of one step's loss in the policy's table, for all seeds at once: recorded at the first step, then replayed.

It asks the objective for the loss, under vmap and autograd, once a run; every other step runs the kernels that did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from humanline.objectives import detach_rejected
from humanline.sim.objectives import Batch, Dpo, Grpo, Kto, Objective
from humanline.sim.recorded import Function, recorded
from humanline.sim.world import World, token_logprobs
from humanline.theory import BetaRejection, ClipRange

Transform = ClipRange | BetaRejection | None
#: Of the house, or a function of one's own.
AnyTransform = Transform | Callable[..., Tensor]
#: Objectives that read nothing but their batch and their settings; others, and functions, may keep what they are given.
_PURE = (Dpo, Kto, Grpo)


class Slopes:
    """Take the slope of each step's loss.

    Parameters
    ----------
    world : World
    objective : Objective
    transform : ClipRange, BetaRejection, function or None
    start : (S, P, nodes * V) tensor
        The start policy's table.
    """

    def __init__(self, world: World, objective: Objective, transform: AnyTransform, start: Tensor) -> None:
        self.world, self.objective, self.transform, self.start = world, objective, transform, start
        self._run: Function | None = None

    def __call__(
        self, policy: Tensor, reference: Tensor, batch: Batch, rows: Tensor, draws: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return slope, share and saturation.

        Parameters
        ----------
        policy, reference : (S, P, nodes * V) tensors
            Tables of log-probabilities without gradient.
        batch : Batch
        rows : (S, B, K) integer tensor
            What the objective's `rows` says of the batch.
        draws : two (S, B, K, T) tensors, for a BetaRejection
            Beta draws of both tests.

        Returns
        -------
        slope : (S, P, nodes * V) tensor
            Derivative of each seed's own loss.
        share : (S,) tensor
            Of tokens that the transform acted on.
        saturation : (S,) tensor
            DPO's metric; nan for other objectives.
        """
        given = policy, reference, batch.contexts, batch.responses, batch.scores, rows, *draws
        if self._run is None:
            fixed = [self.world.cells, self.world.child, self.start]
            pure = type(self.objective) in _PURE and isinstance(self.transform, ClipRange | BetaRejection | None)
            found = recorded(self._direct, given, fixed) if pure else None
            self._run = found or self._direct
        return self._run(*given)

    def _direct(
        self,
        policy: Tensor,
        reference: Tensor,
        contexts: Tensor,
        responses: Tensor,
        scores: Tensor,
        rows: Tensor,
        *draws: Tensor,
    ) -> tuple[Tensor, ...]:
        table = policy.detach().requires_grad_()
        places = self.world.places(contexts, rows)
        logprobs = token_logprobs(table, places)
        raw = logprobs - token_logprobs(reference, places)
        log_ratio, beyond = _transformed(self.transform, raw, draws)

        def mismatched(others: Tensor) -> Tensor:
            where = self.world.places(contexts, others)
            ratio = token_logprobs(policy, where) - token_logprobs(reference, where)
            return self.transform.clip(ratio) if isinstance(self.transform, ClipRange) else ratio

        to_start = logprobs - token_logprobs(self.start, places)
        losses, metrics = self.objective.losses(Batch(contexts, responses, scores), log_ratio, to_start, mismatched)
        (slope,) = torch.autograd.grad(losses.sum(), table)
        saturation = metrics["saturation"].detach() if "saturation" in metrics else torch.full_like(beyond, torch.nan)
        return slope, beyond, saturation


def _transformed(transform: AnyTransform, raw: Tensor, draws: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the transformed log-ratios and the share of tokens that the transform acted on, (S,)."""
    if transform is None:
        return raw, torch.zeros(len(raw), dtype=raw.dtype)
    if isinstance(transform, ClipRange):
        return transform.clip(raw), share(~transform.contains(raw.detach()))
    if not isinstance(transform, BetaRejection):
        flat = raw.flatten(0, 2)
        own = transform(flat, mask=torch.ones_like(flat, dtype=torch.bool))
        if not isinstance(own, Tensor) or own.shape != flat.shape:
            said = tuple(own.shape) if isinstance(own, Tensor) else type(own).__name__
            raise ValueError(f"a transform must return log-ratios of the shape that it is given; got {said}")
        own = own.reshape(raw.shape)
        return own, share(own.detach() != raw.detach())
    policy_draws, ref_draws = draws
    kept = transform.keeps(raw.detach(), policy_draws, ref_draws)
    return detach_rejected(raw, transform, policy_draws, ref_draws), share(~kept)


def share(flags: Tensor) -> Tensor:
    """Return the share of True over all but the first axis."""
    return flags.flatten(1).to(torch.float64).mean(1)
