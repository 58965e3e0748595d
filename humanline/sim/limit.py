"""Clipping as the limit of Beta rejection (Theorem 4.3), on simulated problems: verdicts, gradients, trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from humanline import _checks
from humanline.sim.exact import DetachOutside, cell_gradient, expected_gradient
from humanline.sim.objectives import Objective
from humanline.sim.run import Run, Trace, simulate
from humanline.sim.world import World, generator, whole
from humanline.theory import BetaRejection, ClipLimit, ClipRange

#: At this concentration a threshold varies by ``sqrt((1/mean - 1) / concentration)``: 5e-8 nats for ratio bounds of 6.
HARD_CONCENTRATION = 1e16
#: Verdicts are drawn in blocks of about this many.
BLOCK = 2**18

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Disagreement:
    """Hold how often sampled verdicts differ from the clip's, by concentration.

    Parameters
    ----------
    concentrations : (K,) array
    sampled, exact : (K,) arrays
        Share of the verdicts drawn, and its expectation.
    verdicts : int
        Drawn at each concentration.
    """

    concentrations: Floats
    sampled: Floats
    exact: Floats
    verdicts: int

    @property
    def standard_error(self) -> Floats:
        """An upper bound of the sampled share's standard deviation: ``sqrt(exact (1 - exact) / verdicts)``."""
        return np.sqrt(self.exact * (1 - self.exact) / self.verdicts)


def verdict_disagreement(
    log_ratio: ArrayLike, limit: ClipLimit, concentrations: Sequence[float], *, seed: int, repeats: int = 1
) -> Disagreement:
    """Draw verdicts on some tokens and compare them with the clip's.

    Parameters
    ----------
    log_ratio : (N,) array
        Nats, finite.
    limit : ClipLimit
    concentrations : sequence of float > 0
    seed : int >= 0
    repeats : int >= 1
        Independent verdicts on each token.

    Returns
    -------
    Disagreement

    Raises
    ------
    ValueError
        If a concentration is not > 0, the log-ratios are not finite or not on one axis, `seed` < 0 or `repeats` < 1.

    Notes
    -----
    Source: arXiv 2509.24207, Thm 4.3. The exact share is `ClipLimit.mean_disagreement`. It falls as
    ``disagreement_constant / sqrt(concentration)`` for a continuous spread of log-ratios while the spread of a
    threshold, ``sqrt((1/mean - 1) / concentration)`` nats, is wide beside the distance of neighbouring log-ratios;
    exponentially beyond that, but for atoms on an end of the range, which keep half of their probability.
    """
    x = np.asarray(log_ratio, dtype=np.float64)
    exact = np.array([limit.mean_disagreement(x, k) for k in concentrations])
    whole("seed", seed, 0)
    whole("repeats", repeats, 1)
    kept = limit.clip.contains(x)
    rows = max(1, BLOCK // x.size)
    blocks = [min(rows, repeats - done) for done in range(0, repeats, rows)]
    differ = []
    for k in concentrations:
        rejection, rng, total = limit.rejection(k), generator(seed, f"verdicts {k!r}"), 0
        for block in blocks:
            policy, ref = (
                test.shape.sample(rng, (block, x.size)) for test in (rejection.policy_test, rejection.ref_test)
            )
            total += int((rejection.keeps(x, policy, ref) != kept).sum())
        differ.append(total / (x.size * repeats))
    return Disagreement(np.array(concentrations, dtype=np.float64), np.array(differ), exact, x.size * repeats)


@dataclass(frozen=True)
class Power:
    """Hold a power law, ``constant * concentration**slope``."""

    slope: float
    constant: float


def fit_slope(concentrations: ArrayLike, shares: ArrayLike, *, slope: float | None = None) -> Power:
    """Fit a power law by least squares of logarithms.

    Parameters
    ----------
    concentrations, shares : (K,) arrays > 0
        At least two different concentrations, unless the slope is given.
    slope : float, optional
        Given, only the constant is fitted: the geometric mean of ``share / concentration**slope``. Far from
        concentration 1 the constant of a free fit is an extrapolation.

    Returns
    -------
    Power

    Raises
    ------
    ValueError
        If the shapes differ, a number is not > 0, or there are too few concentrations.
    """
    x, y = _logs(concentrations, shares, 1 if slope is not None else 2)
    if slope is None:
        slope = float(_slope(x, y))
    return Power(slope, math.exp(float((y - slope * x).mean())))


@dataclass(frozen=True, eq=False, slots=True)
class GradientGap:
    """Hold how far the expected gradient under Beta rejection is from its limit, by seed and concentration.

    Parameters
    ----------
    concentrations : (K,) array
    to_detached : (S, K) array
        Norm of its difference from the gradient with the tokens outside the range detached, over the norm of the
        gradient under clipping; nan where that is 0.
    to_clip : (S, K) array
        The same for the difference from the gradient under clipping.
    exponent : (S,) array
        D where `to_detached` falls as ``exp(-D concentration) / sqrt(concentration)``; infinite where no token matters.
    """

    concentrations: Floats
    to_detached: Floats
    to_clip: Floats
    exponent: Floats


def gradient_gap(
    world: World,
    objective: Objective,
    params: Tensor,
    reference: Tensor,
    law: Tensor,
    limit: ClipLimit,
    concentrations: Sequence[float],
) -> GradientGap:
    """Compute how fast the expected gradient under Beta rejection approaches that under clipping.

    ``sum_tokens c (A - kept) d log_ratio / d parameters`` with c of `cell_gradient`, A the acceptance probability and
    kept the clip's verdict; ``A - kept`` is the error with a sign, so that no digit cancels

    Parameters
    ----------
    world : World
    objective : Dpo, Kto or Grpo
        Their KL penalty is the same on both sides.
    params : (S, ...) tensor
        Of the policy, shaped like ``world.start``.
    reference : (S, P, nodes * V) tensor
        Table of log-probabilities.
    law : (S, P, N) tensor
        Log-probabilities of the law that writes the groups of two.
    limit : ClipLimit
    concentrations : sequence of float > 0

    Returns
    -------
    GradientGap

    Raises
    ------
    ValueError
        As `expected_loss`, or if a concentration is not > 0.

    Notes
    -----
    Source: arXiv 2509.24207, Thm 4.3 and section 5.1. GRPO's gradient is a sum over tokens, so that detaching and
    clipping give the same one and both gaps are equal. DPO and KTO see a detached token's own value in the sum of its
    sequence, and their gradient does not tend to that under clipping (`detach_or_clamp`).

    The exponent is `ClipLimit.decay_exponent` over the tokens with ``c != 0``. GRPO's own clip makes c = 0 where
    ``r > 1 + clip_eps`` in every group in which the token has an advantage >= 0, and where ``r < 1 - clip_eps`` in
    every one in which it has a negative one; as clip_eps < 1, a token above ``high = 1.5`` is live only where its
    advantage is negative. A token counts however small its c is, so that the rate can take long to show.
    """
    leaf = params.detach().clone().requires_grad_()
    table = world.table(leaf)
    log_ratio = (table - reference).detach().numpy()
    slope = cell_gradient(world, objective, table, reference, law)
    clipped = expected_gradient(world, objective, params, reference, law, transform=limit.clip)
    detached = expected_gradient(world, objective, params, reference, law, transform=DetachOutside(limit.clip))
    size = _norm(clipped)
    sign = np.where(limit.clip.contains(log_ratio), -1.0, 1.0)
    to_detached, to_clip = [], []
    for k in concentrations:
        error = torch.from_numpy(sign * limit.error(log_ratio, k))
        gap = torch.autograd.grad(table, leaf, slope * error, retain_graph=True)[0]
        to_detached.append(_ratio(_norm(gap), size))
        to_clip.append(_ratio(_norm(gap + (detached - clipped)), size))
    live = (slope != 0).numpy()
    exponent = [
        limit.decay_exponent(x[where]) if where.any() else math.inf for x, where in zip(log_ratio, live, strict=True)
    ]
    return GradientGap(
        np.array(concentrations, dtype=np.float64),
        np.stack(to_detached, 1),
        np.stack(to_clip, 1),
        np.array(exponent),
    )


@dataclass(frozen=True)
class Decay:
    """Hold an exponential decay, ``constant * exp(-rate concentration) / sqrt(concentration)``."""

    rate: float
    constant: float


def fit_decay(concentrations: ArrayLike, gaps: ArrayLike) -> Decay:
    """Fit the exponential decay of an error by least squares of its logarithm.

    ``ln gap + 1/2 ln concentration = ln constant - rate concentration``

    Parameters
    ----------
    concentrations, gaps : (K,) arrays > 0
        At least two different concentrations. The rate is the asymptotic one where ``rate * concentration`` is large
        (50 and more, say) and the gap has not underflowed (to about 700).

    Returns
    -------
    Decay

    Raises
    ------
    ValueError
        If the shapes differ, a number is not > 0, or there are too few concentrations.

    Notes
    -----
    Source: not in arXiv 2509.24207. The factor ``1 / sqrt(concentration)`` is that of a Beta variable's tail; left
    out, a slope over [k, 10 k] comes out larger by about ``0.128 / k``.
    """
    log_k, log_gap = _logs(concentrations, gaps, 2)
    k, y = np.exp(log_k), log_gap + log_k / 2
    rate = -float(_slope(k, y))
    return Decay(rate, math.exp(float((y + rate * k).mean())))


@dataclass(frozen=True, eq=False, slots=True)
class DetachOrClamp:
    """Hold how far detaching and clamping are apart, by clip range and seed.

    Parameters
    ----------
    outside : (C, S) array
        Probability that a token of the data lies outside the range.
    difference : (C, S) array
        Norm of the difference of the two expected gradients, over the norm of the clamped one; nan where that is 0.
    """

    outside: Floats
    difference: Floats


def detach_or_clamp(
    world: World,
    objective: Objective,
    params: Tensor,
    reference: Tensor,
    law: Tensor,
    clips: Sequence[ClipRange],
) -> DetachOrClamp:
    """Compare the gradient with the tokens outside a range detached with that with them clamped, on the same data.

    Parameters
    ----------
    world, objective, params, reference, law
        As in `gradient_gap`.
    clips : sequence of ClipRange

    Returns
    -------
    DetachOrClamp

    Raises
    ------
    ValueError
        As `expected_loss`.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 4.2 (detach) and section 5.1 (clamp). Both remove the gradient of the same tokens.
    GRPO's gradient through a token depends on that token's log-ratio alone, so that the two are equal for every
    advantage and every clip_eps, also where its own clip would have kept a gradient (``r > 1 + clip_eps`` with a
    negative advantage, ``r < 1 - clip_eps`` with a positive one); only the value of the loss differs. In DPO and KTO
    the weight of a response's live tokens depends on the sum, in which a detached token counts with its own value and
    a clamped one with the bound; KTO's z_0 differs too. They are equal where no token is outside, and in KTO also for
    responses of one token with the same z_0: the weight of a token that is outside multiplies nothing. The difference
    does not grow with the share outside: where it is large, little gradient is left of either.
    """
    log_ratio = (world.table(params) - reference)[..., world.cells].detach()
    outside, difference = [], []
    for clip in clips:
        share = (~clip.contains(log_ratio)).to(law.dtype).mean(-1)
        outside.append((law.exp() * share).sum(-1).mean(-1).numpy())
        clamped = expected_gradient(world, objective, params, reference, law, transform=clip)
        detached = expected_gradient(world, objective, params, reference, law, transform=DetachOutside(clip))
        difference.append(_ratio(_norm(detached - clamped), _norm(clamped)))
    return DetachOrClamp(np.stack(outside), np.stack(difference))


@dataclass(frozen=True, eq=False, slots=True)
class Trajectories:
    """Hold how far runs under Beta rejection end from runs under its limits, by concentration and seed.

    Distances are root mean squares over the parameters after the last update; scores are differences of the exact
    final score.

    Parameters
    ----------
    concentrations : (K,) array
    to_detached, to_clip : (K, S) arrays
        Distance from the run that detaches by hard verdicts, and from the run that clips.
    score_to_detached, score_to_clip : (K, S) arrays
        The score under rejection minus theirs.
    detached_to_clip, score_detached_to_clip : (S,) arrays
        The same between these two.
    moved : (S,) array
        Distance of the clipped run's end from its start.
    """

    concentrations: Floats
    to_detached: Floats
    to_clip: Floats
    score_to_detached: Floats
    score_to_clip: Floats
    detached_to_clip: Floats
    score_detached_to_clip: Floats
    moved: Floats


def trajectories(run: Run, limit: ClipLimit, concentrations: Sequence[float], seeds: Sequence[int]) -> Trajectories:
    """Train the same seeds under Beta rejection of growing concentration, under hard verdicts and under the clip.

    Parameters
    ----------
    run : Run
        Its transform is replaced.
    limit : ClipLimit
    concentrations : sequence of float > 0
    seeds : sequence of distinct int >= 0

    Returns
    -------
    Trajectories

    Raises
    ------
    ValueError
        If a concentration is not > 0, or as `simulate`.

    Notes
    -----
    Source: arXiv 2509.24207, Thm 4.3 and section 5.1. Verdicts at concentration `HARD_CONCENTRATION` stand for hard
    ones: they differ only for a token within some 1e-7 nats of an end of the range. The limit of the runs is
    detaching by hard verdicts. For GRPO that is clipping; for DPO and KTO clipping is another algorithm, and
    `detached_to_clip` is what stays between them. A run of finitely many tokens *reaches* its limit, at the
    concentration from which on every verdict is the clip's.
    """

    def train(transform: ClipRange | BetaRejection) -> Trace:
        return simulate(replace(run, transform=transform), seeds)

    clipped, detached = train(limit.clip), train(limit.rejection(HARD_CONCENTRATION))
    ends = [train(limit.rejection(k)) for k in concentrations]

    def apart(ends: Sequence[Trace], other: Trace) -> Floats:
        return np.stack([_rms(end.params - other.params) for end in ends])

    def better(ends: Sequence[Trace], other: Trace) -> Floats:
        return np.stack([(end.scores[:, -1] - other.scores[:, -1]).numpy() for end in ends])

    return Trajectories(
        concentrations=np.array(concentrations, dtype=np.float64),
        to_detached=apart(ends, detached),
        to_clip=apart(ends, clipped),
        score_to_detached=better(ends, detached),
        score_to_clip=better(ends, clipped),
        detached_to_clip=apart([detached], clipped)[0],
        score_detached_to_clip=better([detached], clipped)[0],
        moved=_rms(clipped.params - clipped.world.start),
    )


def _norm(values: Tensor) -> Floats:
    return np.asarray(values.flatten(1).norm(dim=1).numpy(), dtype=np.float64)


def _ratio(part: Floats, whole: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, part / whole, math.nan)


def _rms(values: Tensor) -> Floats:
    return np.asarray(values.flatten(1).square().mean(1).sqrt().numpy(), dtype=np.float64)


def _logs(concentrations: ArrayLike, values: ArrayLike, least: int) -> tuple[Floats, Floats]:
    """Return the logarithms of both; raise unless they are positive and there are enough."""
    k, v = np.asarray(concentrations, dtype=np.float64), np.asarray(values, dtype=np.float64)
    _checks.same_shape("the values", v.shape, "concentrations", k.shape)
    for name, array in (("concentrations", k), ("the values", v)):
        _checks.no_element(name, "be finite and > 0", ~((array > 0) & np.isfinite(array)), array)
    if np.unique(k).size < least:
        raise _checks.fail("concentrations", f"hold at least {least} different numbers", k.tolist())
    return np.log(k), np.log(v)


def _slope(x: Floats, y: Floats) -> float:
    centred = x - x.mean()
    return float(centred @ y / (centred @ centred))
