"""Exact values of a policy: how often it beats another, how people perceive it, and what perceiving costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from humanline.theory import (
    Capacity,
    PowerValue,
    TverskyKahneman,
    ValueFunction,
    decision_weights,
    total_variation,
    utility_gap_bound,
)

#: Decimals of a surprisal; the sums it comes from are good to about 14.
DECIMALS = 12
VALUE, GAIN, LOSS = PowerValue(), TverskyKahneman(0.61), TverskyKahneman(0.69)


def win_rate(law: Tensor, opponent: Tensor, scores: Tensor) -> Tensor:
    """Return how often a response scores higher than one of an opponent to the same context, ties counting half.

    ``mean_x P(s(y) > s(y')) + P(s(y) = s(y'))/2``, y of the policy and y' of the opponent, independent

    Parameters
    ----------
    law, opponent : (S, P, N) tensors
        Log-probabilities.
    scores : (S, P, N) tensor

    Returns
    -------
    (S,) tensor
        By enumeration: sorted once, no pair is looked at.
    """
    ordered, order = scores.sort(dim=-1)
    mine, theirs = law.exp().gather(-1, order), opponent.exp().gather(-1, order)
    up_to = theirs.cumsum(-1)
    first = torch.searchsorted(ordered, ordered, right=False)
    last = torch.searchsorted(ordered, ordered, right=True) - 1
    below = up_to.gather(-1, first) - theirs.gather(-1, first)
    return (mine * (below + up_to.gather(-1, last)) / 2).sum(-1).mean(-1)


@dataclass(frozen=True, eq=False, slots=True)
class Perception:
    """Hold how people perceive a policy whose outcomes are surprisals, for each seed and context.

    Parameters
    ----------
    surprisal : (S, P, N) array
        Outcomes, ``log policy - log reference`` of whole responses, nats.
    weights : (S, P, N) array
        Decision weights of the responses; where surprisals tie, only the sum of their weights is defined.
    utility : (S, P) array
        Subjective utility of the policy, ``sum omega v(z)``.
    mass : (S, P) array
        Sum of the weights.
    """

    surprisal: NDArray[np.float64]
    weights: NDArray[np.float64]
    utility: NDArray[np.float64]
    mass: NDArray[np.float64]


def perceive(
    law: Tensor,
    reference: Tensor,
    *,
    value: ValueFunction = VALUE,
    gain: Capacity = GAIN,
    loss: Capacity = LOSS,
) -> Perception:
    """Compute the human-perceived distribution of a policy and its subjective utility, by enumeration.

    Surprisals are rounded to 12 decimals: those that tie but for floating point tie, and 0 is a gain.

    Parameters
    ----------
    law, reference : (S, P, N) tensors
        Log-probabilities of every response under the policy and the reference, nats.
    value : ValueFunction
        The medians of Tversky and Kahneman (1992) by default, as are both capacities.
    gain, loss : Capacity

    Returns
    -------
    Perception

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.1 to 3.3: the surprisal of a response is its outcome.
    """
    outcome = np.round((law - reference).numpy(), DECIMALS) + 0.0
    probs = law.exp().numpy()
    weights = decision_weights(outcome, probs, gain=gain, loss=loss, reference_point=value.reference_point)
    utility = (weights * value(outcome)).sum(-1)
    return Perception(outcome, weights, utility, weights.sum(-1))


@dataclass(frozen=True, eq=False, slots=True)
class UtilityGap:
    """Hold what it costs to learn from a source in place of the perceived distribution, for each seed and context.

    Parameters
    ----------
    distance : (S, P) array
        ``1/2 sum |omega - Q|``.
    gap : (S, P) array
        ``|sum (omega - Q) v(z)|``.
    bound : (S, P) array
        The corrected bound of the gap, at least as large.
    """

    distance: NDArray[np.float64]
    gap: NDArray[np.float64]
    bound: NDArray[np.float64]


def utility_gap(perception: Perception, source: Tensor, *, value: ValueFunction = VALUE) -> UtilityGap:
    """Compare the perceived distribution with the law Q that data come from.

    Parameters
    ----------
    perception : Perception
    source : (S, P, N) tensor
        Log-probabilities of Q.
    value : ValueFunction
        The one of `perceive`.

    Returns
    -------
    UtilityGap

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4, with the bound corrected for prospects of gains and losses.
    """
    probs, values = source.exp().numpy(), value(perception.surprisal)
    gap = np.abs(((perception.weights - probs) * values).sum(-1))
    bound = utility_gap_bound(perception.weights, probs, values)
    return UtilityGap(total_variation(perception.weights, probs), gap, np.asarray(bound.value))
