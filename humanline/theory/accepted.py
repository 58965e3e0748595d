"""The laws of what is accepted: of a token, or a sequence, proposed until it is kept (Proposition 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory._arrays import last_axis, law_total, plain, resolution
from humanline.theory._special import logsumexp
from humanline.theory.rejection import BetaRejection, BetaTest

#: A ratio may exceed its bound by this much on the log scale, so that a bound computed as the largest ratio is one.
BOUND_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class AcceptedLaw:
    """Hold the distribution that rejection sampling draws from, and what a draw costs.

    Parameters
    ----------
    probs : numpy float64 array
        Probabilities of the tokens on the last axis, or of whole sequences on all axes.
    acceptance_rate : float or (...) array in (0, 1]
        Share accepted of what is proposed: of the tokens, or of the sequences where whole sequences are proposed.
    proposed_tokens : float or (...) array
        Tokens proposed on average until one token, or one sequence, is accepted.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1.
    """

    probs: NDArray[np.float64]
    acceptance_rate: Any
    proposed_tokens: Any


def accepted_law(
    policy: ArrayLike,
    ref: ArrayLike,
    rejection: BetaTest | BetaRejection,
    *,
    proposal: ArrayLike | None = None,
    truncate: bool = False,
) -> AcceptedLaw:
    """Return the exact law of a token that is proposed again and again until it is kept.

    ``proposal(y) A(y) / Z`` with the acceptance ``A(y) = rejection.acceptance_probability(ln(policy(y) / ref(y)))``

    Parameters
    ----------
    policy, ref : (..., N) arrays >= 0
        Next-token distributions; each sums to 1 within 1e-6, or within what rounding in its own dtype can explain if
        that is more (.0076 for 128 256 entries in float32), and is normalised. Either may be (N,).
    rejection : BetaTest or BetaRejection
        Of any shapes. A bound that is the largest ratio of the laws as given counts as one.
    proposal : (..., N) array >= 0, optional
        Where the tokens come from; `ref` by default.
    truncate : bool
        Let a ratio beyond its bound always pass that test, as `keeps` does, instead of refusing it.

    Returns
    -------
    AcceptedLaw
        Of numpy float64 arrays, for torch tensors too: `probs` of shape (..., N), and the rest of shape (...), numpy
        scalars for one law; ``acceptance_rate`` is Z.

    Raises
    ------
    ValueError
        If the shapes differ, a law is negative, not finite or does not sum to 1, a ratio of a token that can be
        proposed exceeds its bound (unless `truncate`), a token can be proposed that neither the policy nor the
        reference produces, or no token can be accepted.
    TypeError
        If `rejection` is neither a BetaTest nor a BetaRejection, or a law is a tensor that requires a gradient.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1 and Def. 4.2; the law of the green curve of Fig. 2. Definition 4.2 proposes a
    token once and detaches it if rejected: this is then the law of the tokens that still count, and Z their share.
    It asks for bounds that no ratio exceeds; with `truncate` and a ratio beyond, this is the law of another rule.

    With both b = 1 and the rule ``either`` the law is proportional to ``proposal (policy / ref)**(a_P - a_R)``.

    Examples
    --------
    >>> from humanline.theory import BetaShape
    >>> policy, ref = [0.6, 0.4], [0.2, 0.8]
    >>> law = accepted_law(policy, ref, BetaTest(BetaShape(1, 1), 3))
    >>> law.probs.round(6).tolist(), float(law.acceptance_rate.round(6))
    ([0.6, 0.4], 0.333333)
    """
    return _accepted_law(policy, ref, rejection, ref if proposal is None else proposal, truncate)


def perceived_law(
    policy: ArrayLike, ref: ArrayLike, gamma: float, *, proposal: str = "ref", ratio_bound: float | None = None
) -> AcceptedLaw:
    """Return in closed form the law that Proposition 4.1 samples token by token, for either reading of its proposal.

    - proposal ``ref``: ``ref**(1 - gamma) policy**gamma / Z``
    - proposal ``ref_power``, that is ``ref**gamma`` normalised: ``policy**gamma / Z``

    accepting ``sum_y proposal(y) (policy(y) / (M ref(y)))**gamma`` of what is proposed

    Parameters
    ----------
    policy, ref : (..., N) arrays >= 0
        Next-token distributions; each sums to 1 up to rounding, as in `accepted_law`, and is normalised. Either may be
        (N,).
    gamma : float > 0
        Of the capacity, and the first shape of the Beta variable.
    proposal : "ref" or "ref_power"
    ratio_bound : float > 1, optional
        M; the largest ratio by default, of each distribution its own. The law does not depend on it.

    Returns
    -------
    AcceptedLaw
        Of numpy float64 arrays, for torch tensors too: `probs` of shape (..., N), and the rest of shape (...), numpy
        scalars for one law.

    Raises
    ------
    ValueError
        If the shapes differ, a law is negative, not finite or does not sum to 1, the policy puts mass where the
        reference has none, gamma is not > 0, the proposal is unknown, or a ratio exceeds the bound.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1. Its condition 1 says that the reference proposes, which samples the first law,
    while its proof wants the second, proportional to ``policy**gamma``. They agree only if gamma = 1 or the reference
    is constant on its support. That the weight omega is close to ``policy**gamma`` needs the probability of better
    outcomes to be small beside that of the token itself, not merely small.

    Examples
    --------
    >>> policy, ref = [0.2, 0.25, 0.15, 0.4], [0.5, 0.3, 0.15, 0.05]
    >>> perceived_law(policy, ref, 0.61).probs.round(3).tolist()
    [0.324, 0.304, 0.17, 0.202]
    >>> perceived_law(policy, ref, 0.61, proposal="ref_power").probs.round(3).tolist()
    [0.222, 0.254, 0.186, 0.338]
    """
    laws, rounding = _laws(policy=policy, ref=ref)
    power = _checks.positive("gamma", gamma)
    _checks.one_of("proposal", proposal, ("ref", "ref_power"))
    outside = (laws["ref"] == 0) & (laws["policy"] > 0)
    _checks.no_element("policy", "be 0 where ref is 0, or no bound of the ratio exists", outside, laws["policy"])
    log_policy, log_ref = _log(laws["policy"]), _log(laws["ref"])
    possible = laws["ref"] > 0
    log_ratio = np.where(possible, log_policy - np.where(possible, log_ref, 0.0), -np.inf)
    log_bound = log_ratio.max(-1, keepdims=True)
    if ratio_bound is not None:
        given = math.log(_checks.greater_than_one("ratio_bound", ratio_bound))
        _bounded("ratio_bound", ratio_bound, log_bound, rounding)
        log_bound = np.maximum(log_bound, given)
    log_proposal = log_ref
    if proposal == "ref_power":
        log_proposal = power * log_ref - logsumexp(power * log_ref, axis=-1, keepdims=True)
    log_weights = log_proposal + power * (log_ratio - log_bound)
    log_rate = logsumexp(log_weights, axis=-1, keepdims=True)
    rate = np.exp(log_rate[..., 0])
    return AcceptedLaw(np.exp(log_weights - log_rate), plain(rate), plain(1 / rate))


def sequence_law(conditionals: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Return the probabilities of all sequences of a small autoregressive model.

    ``prod_t p(y_t | y_<t)``

    Parameters
    ----------
    conditionals : T arrays
        The t-th has t + 1 axes, one for each token before and the last for token t, over which it sums to 1 up to
        rounding, as in `accepted_law`; it is normalised.

    Returns
    -------
    numpy float64 array with T axes
        For torch tensors too.

    Raises
    ------
    ValueError
        If there is no array, an array does not continue the one before it, or a law is negative, not finite or does
        not sum to 1.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1 (the factorisation in its proof).

    Examples
    --------
    >>> sequence_law([[0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]]).round(6).tolist()
    [[0.45, 0.05], [0.1, 0.4]]
    """
    law = np.ones(())
    for conditional in _tree("conditionals", conditionals)[0]:
        law = law[..., None] * conditional
    return law


def accepted_sequence_law(
    policy: Sequence[ArrayLike],
    ref: Sequence[ArrayLike],
    rejection: BetaTest | BetaRejection,
    *,
    resample: str,
    proposal: Sequence[ArrayLike] | None = None,
    truncate: bool = False,
) -> AcceptedLaw:
    """Return the exact law of a sequence whose rejected tokens, or which itself, are drawn again.

    - resample ``token``: ``prod_t proposal(y_t | y_<t) A(y_t | y_<t) / Z(y_<t)``, normalised for each prefix
    - resample ``sequence``, accepted only if every token passes: ``prod_t proposal A / Z``, normalised once

    Parameters
    ----------
    policy, ref : T arrays each
        Conditionals as in `sequence_law`.
    rejection : BetaTest or BetaRejection
    resample : "token" or "sequence"
    proposal : T arrays, optional
        `ref` by default.
    truncate : bool
        As in `accepted_law`.

    Returns
    -------
    AcceptedLaw
        With `probs` a numpy float64 array of T axes, for torch tensors too, and the rest floats.
        A whole sequence is drawn before it is tested.

    Raises
    ------
    ValueError
        As `accepted_law` and `sequence_law` do, or if `resample` is unknown.
    TypeError
        If `rejection` is neither a BetaTest nor a BetaRejection.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1, which takes the two to be the same. They are only if the product of the
    normalisers Z(y_<t) is the same for every sequence.

    Examples
    --------
    >>> from humanline.theory import BetaShape
    >>> policy = [[0.5, 0.5], [[0.9, 0.1], [0.5, 0.5]]]
    >>> ref = [[0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]]
    >>> test = BetaTest(BetaShape(0.5, 1), 2)
    >>> accepted_sequence_law(policy, ref, test, resample="token").probs.sum(-1).round(6).tolist()
    [0.5, 0.5]
    >>> accepted_sequence_law(policy, ref, test, resample="sequence").probs.sum(-1).round(6).tolist()
    [0.472136, 0.527864]
    """
    _checks.one_of("resample", resample, ("token", "sequence"))
    proposal = ref if proposal is None else proposal
    given = (("policy", policy), ("ref", ref), ("proposal", proposal))
    trees, roundings = zip(*(_tree(name, tree) for name, tree in given), strict=True)
    rounding = roundings[0] + roundings[1]
    steps = len(trees[0])
    for name, tree in zip(("ref", "proposal"), trees[1:], strict=True):
        _checks.same_shape(name, tree[-1].shape, "policy", trees[0][-1].shape)
    if resample == "token":
        probs, proposed = np.ones(()), 0.0
        for step in zip(*trees, strict=True):
            policies, refs, proposals = _reached(step, probs > 0)
            law = _accepted_law(policies, refs, rejection, proposals, truncate, rounding)
            proposed += float(np.where(probs > 0, probs * law.proposed_tokens, 0.0).sum())
            probs = probs[..., None] * law.probs
        return AcceptedLaw(probs, steps / proposed, proposed)
    log_weights = np.zeros(())
    for step in zip(*trees, strict=True):
        policies, refs, proposals = _reached(step, log_weights > -np.inf)
        log_weights = log_weights[..., None] + _log_accepted(policies, refs, rejection, proposals, truncate, rounding)
    log_rate = logsumexp(log_weights)
    if log_rate == -np.inf:
        raise _checks.fail("rejection", "accept a sequence that can be proposed", 0.0)
    with np.errstate(over="ignore"):  # a rate too small for a float costs infinitely many tokens
        return AcceptedLaw(np.exp(log_weights - log_rate), float(np.exp(log_rate)), float(steps * np.exp(-log_rate)))


def _reached(step: Sequence[NDArray[np.float64]], occurs: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """Return conditionals whose rows behind a prefix that never occurs, which may be anything, are uniform."""
    return [np.where(occurs[..., None], array, 1 / array.shape[-1]) for array in step]


def _log(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.log(probs)


def _laws(**values: ArrayLike) -> tuple[dict[str, NDArray[np.float64]], float]:
    """Return distributions over the last axis, normalised, after checking that they are ones, and a rounding.

    The rounding is how much a log-ratio of the policy's and the reference's (or of one with a law that has none) can
    differ from the one that is worked out in the dtypes given and before normalising.
    """
    arrays = dict(zip(values, last_axis(**values), strict=True))
    rounding = 0.0
    for name, array in arrays.items():
        total = law_total(name, values[name], array)
        arrays[name] = array / total
        if name != "proposal":
            rounding += float(np.abs(np.log(total)).max()) + resolution(values[name])
    return arrays, rounding


def _tree(name: str, conditionals: Sequence[ArrayLike]) -> tuple[list[NDArray[np.float64]], float]:
    """Return the conditionals of a sequence, each continuing the one before it, and their largest rounding."""
    shape: tuple[int, ...] = ()
    tree, largest = [], 0.0
    for place, conditional in enumerate(conditionals):
        laws, rounding = _laws(**{f"{name}[{place}]": conditional})
        law, largest = laws[f"{name}[{place}]"], max(largest, rounding)
        if law.shape[:-1] != shape:
            raise ValueError(f"{name}[{place}] must have shape {(*shape, 'N')}; got {law.shape}")
        tree.append(law)
        shape = law.shape
    if not tree:
        raise _checks.fail(name, "hold the conditional of at least one token", conditionals)
    return tree, largest


def _accepted_law(
    policy: ArrayLike,
    ref: ArrayLike,
    rejection: BetaTest | BetaRejection,
    proposal: ArrayLike,
    truncate: bool,
    rounding: float = 0.0,
) -> AcceptedLaw:
    log_weights = _log_accepted(policy, ref, rejection, proposal, truncate, rounding)
    log_rate = logsumexp(log_weights, axis=-1, keepdims=True)
    _checks.no_element("rejection", "accept a token that can be proposed", log_rate == -np.inf, np.exp(log_rate))
    rate = np.exp(log_rate[..., 0])
    with np.errstate(over="ignore"):
        return AcceptedLaw(np.exp(log_weights - log_rate), plain(rate), plain(np.exp(-log_rate[..., 0])))


def _log_accepted(
    policy: ArrayLike,
    ref: ArrayLike,
    rejection: BetaTest | BetaRejection,
    proposal: ArrayLike,
    truncate: bool,
    rounding: float,
) -> NDArray[np.float64]:
    """Return ln(proposal A), -inf where nothing can be proposed or accepted.

    `rounding` is what a ratio may exceed its bound by, besides what the laws given here explain.
    """
    if not isinstance(rejection, BetaTest | BetaRejection):
        raise _checks.wrong_kind("rejection", "be a BetaTest or BetaRejection", rejection)
    laws, own_rounding = _laws(policy=policy, ref=ref, proposal=proposal)
    rounding += own_rounding
    possible = laws["proposal"] > 0
    lost = possible & (laws["policy"] == 0) & (laws["ref"] == 0)
    _checks.no_element("proposal", "be 0 where both policy and ref are 0", lost, laws["proposal"])
    with np.errstate(invalid="ignore"):
        log_ratio = np.where(possible, _log(laws["policy"]) - _log(laws["ref"]), 0.0)
    if not truncate:
        if isinstance(rejection, BetaTest):
            _bounded("ratio_bound", rejection.ratio_bound, log_ratio, rounding)
        else:
            _bounded("policy_ratio_bound", rejection.policy_ratio_bound, log_ratio, rounding)
            _bounded("ref_ratio_bound", rejection.ref_ratio_bound, -log_ratio, rounding)
    log_accepted: NDArray[np.float64] = _log(laws["proposal"]) + rejection.log_acceptance_probability(log_ratio)
    return log_accepted


def _bounded(name: str, bound: float, log_ratio: NDArray[np.float64], rounding: float) -> None:
    """Raise if a ratio exceeds its bound by more than rounding."""
    largest = float(log_ratio.max())
    if largest > math.log(bound) + BOUND_TOLERANCE + rounding:
        ratio = math.exp(largest) if largest < 700 else math.inf
        raise _checks.fail(name, f"be at least the largest ratio, {ratio:.9g}", bound)
