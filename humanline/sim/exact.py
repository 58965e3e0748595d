"""What `simulate` samples, by enumeration: losses and gradients over every pair of responses and over Beta draws."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from humanline import _checks
from humanline.objectives import kto_reference_point
from humanline.sim.objectives import Batch, Grpo, Kto, Objective
from humanline.sim.slope import Transform
from humanline.sim.world import World, check_size
from humanline.theory import BetaRejection, ClipRange

#: The most token log-ratios that all pairs of all seeds may hold together.
MAX_PAIR_TOKENS = 2**24
#: A row of a law sums to 1 within this.
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class DetachOutside:
    """Leave every log-ratio as it is, and cut those outside a range from the graph.

    ``low <= x <= high ? x : stop_gradient(x)``: detaching by the verdicts that Beta rejection tends to

    Parameters
    ----------
    clip : ClipRange

    Raises
    ------
    TypeError
        If `clip` is not a ClipRange.

    Notes
    -----
    Source: arXiv 2509.24207, Thm 4.3, read with Def. 4.2: the limit of the *verdicts* is the clip's, and a token that
    is rejected is detached, not replaced by a bound.
    """

    clip: ClipRange

    def __post_init__(self) -> None:
        _checks.instance("clip", self.clip, ClipRange)

    def __call__(self, log_ratio: Tensor) -> Tensor:
        """Return the log-ratios (any shape, nats), with gradient 1 inside the range and 0 outside."""
        return torch.where(self.clip.contains(log_ratio.detach()), log_ratio, log_ratio.detach())


#: What may happen to log-ratios where expectations are exact.
ExactTransform = Transform | DetachOutside


def expected_loss(
    world: World,
    objective: Objective,
    policy: Tensor,
    reference: Tensor,
    law: Tensor,
    *,
    transform: ExactTransform = None,
    start: Tensor | None = None,
) -> Tensor:
    """Compute the expectation of an objective's loss over groups of two responses, exactly, with its gradient.

    ``mean_x sum_(y, y') law(y | x) law(y' | x) loss(x, y, y')``

    Parameters
    ----------
    world : World
    objective : Dpo, Kto or Grpo
    policy, reference : (S, P, nodes * V) tensors
        Tables of log-probabilities, nats; the reference carries no gradient.
    law : (S, P, N) tensor
        Log-probabilities of the law that writes the groups, which carries no gradient; -inf is a probability of 0.
    transform : ClipRange, BetaRejection, DetachOutside or None
        Under a BetaRejection the *gradient* is the expectation over the Beta draws: a detached token keeps its value,
        so the loss does not depend on the verdicts, and its gradient is linear in them.
    start : (S, P, nodes * V) tensor, optional
        Anchor of GRPO's KL penalty; the start policy by default.

    Returns
    -------
    (S,) tensor
        With a gradient with respect to whatever `policy` was made from.

    Raises
    ------
    ValueError
        If shapes do not fit the world, a row of the law does not sum to 1 within 1e-6, or the pairs hold more than
        2^24 token log-ratios.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 1, 6 and 7, by the imported losses on each pair alone; DPO and GRPO of a batch are
    means of these. KTO's loss is one once z_0 is given, and here it is given: `expected_reference_point`. The z_0 of a
    finite batch is the larger of 0 and a random mean, so it lies above that one on average, and the expectation over
    batches differs from this one by what that does to the loss. Exactly 2 responses a group.
    """
    seeds, contexts, count = law.shape
    tokens = world.cells.shape[1]
    check_size(
        "token log-ratios of all pairs",
        2 * seeds * contexts * count**2 * tokens,
        MAX_PAIR_TOKENS,
        "take fewer seeds, contexts or responses",
    )
    law = _checked_law(world, law)
    log_ratio = _log_ratios(world, policy, reference)
    to_start = _log_ratios(world, policy, world.table(world.start) if start is None else start)
    # every pair is a batch of one group, and the objectives treat batches independently
    first = torch.arange(count).repeat_interleave(count)
    pairs = torch.stack([first, torch.arange(count).repeat(count)], -1)
    labels = world.scores if world.labels is None else world.labels  # as training sees them
    scores = labels[..., pairs].flatten(0, 2)[:, None]
    responses = pairs.repeat(seeds * contexts, 1)[:, None]
    batch = Batch(torch.zeros(1, dtype=torch.long), responses, scores)
    rows = objective.rows(batch) + count * torch.arange(seeds * contexts).repeat_interleave(count**2)[:, None, None]
    mismatched = torch.zeros(*rows.shape, tokens, dtype=law.dtype)
    if isinstance(objective, Kto):
        z_0 = expected_reference_point(world, policy, reference, law, transform=transform)
        mismatched[..., 0] = z_0.repeat_interleave(contexts * count**2)[:, None, None]
    losses, _ = objective.losses(
        batch,
        _transformed(transform, log_ratio).flatten(0, 2)[rows],
        to_start.flatten(0, 2)[rows],
        lambda _: mismatched,
    )
    probs = (law[..., pairs[:, 0]] + law[..., pairs[:, 1]]).exp()
    return (losses.view(probs.shape) * probs).sum(-1).mean(-1)


def expected_gradient(
    world: World,
    objective: Objective,
    params: Tensor,
    reference: Tensor,
    law: Tensor,
    *,
    transform: ExactTransform = None,
) -> Tensor:
    """Compute the gradient of `expected_loss` with respect to the policy's parameters.

    Parameters
    ----------
    params : (S, ...) tensor
        Shaped like ``world.start``.
    world, objective, reference, law, transform
        As in `expected_loss`.

    Returns
    -------
    (S, ...) tensor

    Raises
    ------
    ValueError
        As `expected_loss`.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 1, 6 and 7. The data are given: nothing is differentiated through the law.
    """
    leaf = params.detach().clone().requires_grad_()
    losses = expected_loss(world, objective, world.table(leaf), reference, law, transform=transform)
    return torch.autograd.grad(losses.sum(), leaf)[0]


def cell_gradient(world: World, objective: Objective, policy: Tensor, reference: Tensor, law: Tensor) -> Tensor:
    """Compute how the expected loss changes with the raw log-ratio of each token, the KL penalty aside.

    ``c = d expected_loss / d log_ratio``; under detaching the gradient is ``sum c kept d log_ratio / d parameters``

    Parameters
    ----------
    world, objective, policy, reference, law
        As in `expected_loss`.

    Returns
    -------
    (S, P, nodes * V) tensor
        0 for a token that the objective ignores, as GRPO does beyond its own clip.

    Raises
    ------
    ValueError
        As `expected_loss`.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 4.2. GRPO's KL penalty sees raw log-ratios, so detaching does not change it.
    """
    if isinstance(objective, Grpo):
        objective = replace(objective, kl_coef=0.0)
    leaf = policy.detach().clone().requires_grad_()
    return torch.autograd.grad(expected_loss(world, objective, leaf, reference, law).sum(), leaf)[0]


def expected_reference_point(
    world: World, policy: Tensor, reference: Tensor, law: Tensor, *, transform: ExactTransform = None
) -> Tensor:
    """Compute KTO's z_0 for infinitely many groups.

    ``z_0 = max(0, mean_x sum_y law(y | x + 1) z(x, y))`` with z the sum of the token log-ratios, and the context after
    the last the first

    Parameters
    ----------
    world, policy, reference, law, transform
        As in `expected_loss`. A ClipRange clips the token log-ratios; any other transform leaves their values alone.

    Returns
    -------
    (S,) tensor
        Nats, without gradient.

    Raises
    ------
    ValueError
        If shapes do not fit the world, or a row of the law does not sum to 1 within 1e-6.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 7 (z_0). A group's best and worst response are its two responses in some order
    (where they tie, the first twice), so that together they have the law of a response. Contexts take turns, so the
    next group has the next context; in a batch of `simulate` the last group takes the responses of the first, whose
    context is the next one where the number of groups is a multiple of the contexts. With one context the pairs match.
    """
    law = _checked_law(world, law)
    with torch.no_grad():
        log_ratio = _log_ratios(world, policy, reference)
        z = (transform.clip(log_ratio) if isinstance(transform, ClipRange) else log_ratio).sum(-1)
        means = (law.roll(-1, 1).exp() * z).sum(-1)
        return kto_reference_point(means.sum(-1), means.shape[1])


def _checked_law(world: World, law: Tensor) -> Tensor:
    """Return the law without gradient; raise unless it fits the world and sums to 1."""
    _checks.same_shape("law", law.shape, "world.scores", world.scores.shape)
    law = law.detach()
    total = law.logsumexp(-1).exp()
    _checks.no_element("law", f"sum to 1 within {SUM_TOLERANCE:g}", ~((total - 1).abs() <= SUM_TOLERANCE), total)
    return law


def _log_ratios(world: World, policy: Tensor, reference: Tensor) -> Tensor:
    """Return the token log-ratios of every response, (S, P, N, T)."""
    shape = (*world.scores.shape[:2], world.child.numel())
    _checks.same_shape("policy", policy.shape, "the world's tables", shape)
    _checks.same_shape("reference", reference.shape, "the world's tables", shape)
    return (policy - reference.detach())[..., world.cells]


def _transformed(transform: ExactTransform, log_ratio: Tensor) -> Tensor:
    if transform is None:
        return log_ratio
    if isinstance(transform, ClipRange):
        return transform.clip(log_ratio)  # type: ignore[no-any-return]
    if isinstance(transform, DetachOutside):
        return transform(log_ratio)
    _checks.instance("transform", transform, BetaRejection)
    value = log_ratio.detach()
    kept = torch.as_tensor(transform.acceptance_probability(value.numpy()), dtype=value.dtype)
    return value + kept * (log_ratio - value)
